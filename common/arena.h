// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_ARENA_H
#define COMMON_ARENA_H

#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// A bump arena: many small allocations, one release.
//
// The idea: things that die together are born together. Memory comes in pages from the heap; a
// reset keeps the first page, so an arena that is reset in a loop soon stops allocating.
//
//   Owns       its pages.
//   Thread     one at a time.
//   Allocates  pages, until `bytes_max` is reached.
//   Fails      arena_alloc returns NULL past the cap; the arena stays usable.

struct arena_page;

struct arena {
    struct arena_page *first;
    struct arena_page *current;
    size_t bytes_used;    // handed out since the last reset, padding included
    size_t bytes_max;
    size_t page_bytes;
};

void arena_init(struct arena *arena, size_t bytes_max);
void arena_deinit(struct arena *arena);
void arena_reset(struct arena *arena);

void *arena_alloc(struct arena *arena, size_t bytes);    // zeroed, 16-byte aligned
void *arena_array(struct arena *arena, size_t count, size_t element_bytes);    // zeroed
// Not zeroed: for who writes all of it at once.
void *arena_alloc_raw(struct arena *arena, size_t bytes);
void *arena_array_raw(struct arena *arena, size_t count, size_t element_bytes);
char *arena_strndup(struct arena *arena, const char *text, size_t byte_count);

#endif
