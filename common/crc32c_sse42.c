// SPDX-License-Identifier: Apache-2.0
#include "common/crc32c_sse42.h"

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#include <string.h>

bool crc32c_sse42_here(void) {
    return __builtin_cpu_supports("sse4.2");
}

uint32_t crc32c_sse42(const void *bytes, size_t byte_count) {
    const uint8_t *at = bytes;
    uint64_t crc = ~0u;
    for (; byte_count >= 8; byte_count -= 8, at += 8) {
        uint64_t eight;
        memcpy(&eight, at, sizeof eight);
        crc = _mm_crc32_u64(crc, eight);
    }
    for (; byte_count > 0; byte_count--, at++) {
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    }
    return ~(uint32_t)crc;
}
#else
bool crc32c_sse42_here(void) {
    return false;
}

uint32_t crc32c_sse42(const void *bytes, size_t byte_count) {
    (void)bytes;
    (void)byte_count;
    return 0;
}
#endif
