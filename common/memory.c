// SPDX-License-Identifier: Apache-2.0
#include "common/memory.h"

#include "common/invariant.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// The guard is per thread by its nature: it forbids allocation to the thread that runs a step,
// while others go on. It is the one thread-local of the project.
static _Thread_local const char *guard_phase;
static atomic_uint_fast64_t guard_violation_count;
static atomic_int_fast64_t fail_countdown;    // 0 = off

static bool may_allocate(void) {
    if (guard_phase != NULL) {
        atomic_fetch_add(&guard_violation_count, 1);
#ifdef TARE_SLOW_CHECKS
        invariant_failed("no allocation inside a guarded phase", __FILE__, __LINE__, guard_phase);
#endif
    }
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0) {
        return true;
    }
    return atomic_fetch_sub(&fail_countdown, 1) != 1;
}

void *memory_alloc(size_t bytes) {
    return may_allocate() ? malloc(bytes == 0 ? 1 : bytes) : NULL;
}

void *memory_zalloc(size_t bytes) {
    return may_allocate() ? calloc(1, bytes == 0 ? 1 : bytes) : NULL;
}

void *memory_array(size_t count, size_t element_bytes) {
    size_t bytes = 0;
    if (!memory_mul(count, element_bytes, &bytes)) {
        return NULL;
    }
    return memory_zalloc(bytes);
}

void *memory_realloc(void *old, size_t bytes) {
    return may_allocate() ? realloc(old, bytes == 0 ? 1 : bytes) : NULL;
}

void *memory_aligned(size_t alignment, size_t bytes) {
    INVARIANT(alignment >= sizeof(void *));
    INVARIANT((alignment & (alignment - 1)) == 0);
    if (!may_allocate()) {
        return NULL;
    }
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) == 0 ? memory : NULL;
}

char *memory_strndup(const char *text, size_t byte_count) {
    char *copy = memory_alloc(byte_count + 1);
    if (copy != NULL) {
        memcpy(copy, text, byte_count);
        copy[byte_count] = '\0';
    }
    return copy;
}

char *memory_strdup(const char *text) {
    return memory_strndup(text, strlen(text));
}

void memory_free(void *memory) {
    free(memory);
}

bool memory_mul(size_t a, size_t b, size_t *out) {
    size_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

void memory_guard_begin(const char *phase) {
    INVARIANT(guard_phase == NULL);
    INVARIANT(phase != NULL);
    guard_phase = phase;
}

void memory_guard_end(void) {
    INVARIANT(guard_phase != NULL);
    guard_phase = NULL;
}

uint64_t memory_guard_violations(void) {
    return atomic_load(&guard_violation_count);
}

void memory_fail_nth(uint64_t nth) {
    atomic_store(&fail_countdown, (int_fast64_t)nth);
}
