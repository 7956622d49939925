// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_PARTS_AVX2_H
#define KERNELS_CPU_PARTS_AVX2_H

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/matmul.h"

// matmul_fold for sums that are held in registers.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

// `wait`: [MATMUL_STACK_LEVELS * count], of this strip.
AVX2_INLINE bool parts_fold(const struct matmul_tile *tile, uint32_t part, __m256 *sum, int count,
                            __m256 *wait) {
    if (tile->part_count == 1 || tile->part_stride > 0) {
        return true;
    }
    for (uint32_t bits = part; bits % 2 == 1; bits /= 2) {
        AVX2_UNROLL
        for (int i = 0; i < count; i++) {
            sum[i] = _mm256_add_ps(wait[i], sum[i]);
        }
        wait += count;
    }
    if (part + 1 == tile->part_count) {
        return true;
    }
    AVX2_UNROLL
    for (int i = 0; i < count; i++) {
        wait[i] = sum[i];
    }
    return false;
}

#endif
#endif
