// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_AVX2_H
#define KERNELS_CPU_AVX2_H

#include "kernels/cpu/arith.h"

// Vector forms of arith.h for 8 lanes; included only by files compiled for AVX2, FMA and F16C.
//
// The idea: each function performs the operations of its scalar namesake in the same order, so the
// bits are the same.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
// The header also has to compile alone, without those flags, and is then empty.
#else

#include <immintrin.h>

// Checked builds leave the specialisation to chance: there it only costs minutes of compiling.
#ifdef TARE_SLOW_CHECKS
#define AVX2_INLINE static inline
#else
#define AVX2_INLINE static inline __attribute__((always_inline))
#endif

// Full unrolling of loops whose bounds are constants after inlining: indices into arrays of vectors
// must become register names. Not in checked builds either.
#if defined(TARE_SLOW_CHECKS)
#define AVX2_UNROLL
#elif defined(__clang__)
#define AVX2_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AVX2_UNROLL _Pragma("GCC unroll 32")
#endif

// Keeps integer sums in the order written: compilers otherwise rebalance them into trees that need
// more registers than there are.
#define AVX2_KEEP_ORDER(vector) __asm__("" : "+x"(vector))

AVX2_INLINE float avx2_fold8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

AVX2_INLINE __m256 avx2_exp(__m256 x) {
    // max and min return their second operand when the first is NaN.
    __m256 clamped = _mm256_min_ps(_mm256_set1_ps(ARITH_EXP_MAX), x);
    __m256 shifted =
        _mm256_fmadd_ps(clamped, _mm256_set1_ps(ARITH_EXP_LOG2E), _mm256_set1_ps(ARITH_EXP_ROUND));
    __m256 n = _mm256_sub_ps(shifted, _mm256_set1_ps(ARITH_EXP_ROUND));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ARITH_EXP_LN2_HIGH), clamped);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ARITH_EXP_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(ARITH_EXP_C6), r, _mm256_set1_ps(ARITH_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ARITH_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ARITH_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ARITH_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(ARITH_EXP_MIN), _CMP_LT_OQ);
    p = _mm256_andnot_ps(tiny, p);
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(p, x, nan);
}

AVX2_INLINE __m256 avx2_silu(__m256 x) {
    __m256 negative = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), avx2_exp(negative)));
}

// Eight float16 values.
AVX2_INLINE __m256 avx2_load_half8(const void *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

// Eight bfloat16 values.
AVX2_INLINE __m256 avx2_load_bfloat8(const void *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// Lanes 0..count-1 active, for the ends of rows.
AVX2_INLINE __m256i avx2_mask(uint32_t count) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane);
}

// arith_sum_squares.
AVX2_INLINE float avx2_sum_squares(const float *x, uint32_t count) {
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32) {
        AVX2_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
        }
    }
    AVX2_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t begin = i + 8 * j;
        if (begin < count) {
            __m256 v = _mm256_maskload_ps(x + begin, avx2_mask(count - begin));
            lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
        }
    }
    return avx2_fold8(
        _mm256_add_ps(_mm256_add_ps(lane[0], lane[1]), _mm256_add_ps(lane[2], lane[3])));
}

#endif
#endif
