// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_MEMORY_H
#define COMMON_MEMORY_H

#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// The host heap's only door, and checked size arithmetic.
//
// The idea: every heap allocation of the project passes here, so that tests can make the n-th one
// fail and so that a phase that must not allocate can say so. Raw malloc is banned elsewhere.
//
//   Owns       nothing; the caller frees with memory_free.
//   Thread     any.
//   Allocates  that is its job. Inside a guard (memory_guard_begin) any call is counted, and aborts
//              in debug and sanitizer builds.
//   Fails      returns NULL.

void *memory_alloc(size_t bytes);                          // uninitialised
void *memory_zalloc(size_t bytes);                         // zeroed
void *memory_array(size_t count, size_t element_bytes);    // zeroed, product checked
void *memory_realloc(void *old, size_t bytes);             // NULL leaves `old` alone
void *memory_aligned(size_t alignment, size_t bytes);      // uninitialised
char *memory_strdup(const char *text);
char *memory_strndup(const char *text, size_t byte_count);    // adds a NUL
void memory_free(void *memory);                               // accepts NULL

// False when the result does not fit; `out` is then untouched.
bool memory_mul(size_t a, size_t b, size_t *out);

// Between begin and end no allocation may happen on this thread.
void memory_guard_begin(const char *phase);
void memory_guard_end(void);
uint64_t memory_guard_violations(void);    // counted since the process started

// Tests: the `nth` allocation from now on (1 = the next) fails; 0 turns it off.
void memory_fail_nth(uint64_t nth);

#endif
