// SPDX-License-Identifier: Apache-2.0
#include "common/hash.h"

#define XXH_INLINE_ALL    // small keys dominate: saves the call
#include <xxhash.h>

uint64_t hash_bytes(const void *bytes, size_t byte_count) {
    return XXH3_64bits(bytes, byte_count);
}
