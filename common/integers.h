// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_INTEGERS_H
#define COMMON_INTEGERS_H

#include <stddef.h>
#include <stdint.h>

// The two questions about sizes that every layer asks.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

static inline uint32_t u32_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// Up to whole cache lines, which is also what vector loads want. `bytes` is the size of an object
// that exists or was checked before, far from the end of the range.
static inline size_t bytes_to_lines(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

#endif
