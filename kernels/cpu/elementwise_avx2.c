// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/elementwise.h"

void rms_norm_row_avx2(const float *x, const float *weight, float *y, uint32_t cols, float eps) {
    __m256 factor = _mm256_set1_ps(arith_rms_factor(avx2_sum_squares(x, cols), cols, eps));
    for (uint32_t i = 0; i < cols; i += 8) {
        __m256i mask = avx2_mask(cols - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), factor);
        v = _mm256_mul_ps(_mm256_maskload_ps(weight + i, mask), v);
        _mm256_maskstore_ps(y + i, mask, v);
    }
}
