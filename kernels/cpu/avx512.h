// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_AVX512_H
#define KERNELS_CPU_AVX512_H

#include "kernels/cpu/avx2.h"

// What the AVX-512 files share; included only by files compiled for AVX-512 F, BW, VL and VNNI.
//
// The idea: 16 lanes instead of 8 and byte products summed straight into int32; each lane performs
// the operations of the scalar table in the same order, so the bits are the same.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#if defined(__AVX512F__) && defined(__AVX512VNNI__) && defined(__AVX512BW__) &&                    \
    defined(__AVX512VL__)

// As AVX2_KEEP_ORDER.
#define AVX512_KEEP_ORDER(vector) __asm__("" : "+v"(vector))

// Sixteen float16 values.
AVX2_INLINE __m512 avx512_load_half16(const void *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

// The sum of 16 lanes as kept by the scalar table: lane i with lane i + 8, then those eight.
AVX2_INLINE float avx512_fold16(__m512 v) {
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    return avx2_fold8(_mm256_add_ps(_mm512_castps512_ps256(v), high));
}

// As avx2_exp.
AVX2_INLINE __m512 avx512_exp(__m512 x) {
    // min returns its second operand when the first is NaN.
    __m512 clamped = _mm512_min_ps(_mm512_set1_ps(ARITH_EXP_MAX), x);
    __m512 shifted =
        _mm512_fmadd_ps(clamped, _mm512_set1_ps(ARITH_EXP_LOG2E), _mm512_set1_ps(ARITH_EXP_ROUND));
    __m512 n = _mm512_sub_ps(shifted, _mm512_set1_ps(ARITH_EXP_ROUND));
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ARITH_EXP_LN2_HIGH), clamped);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ARITH_EXP_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(ARITH_EXP_C6), r, _mm512_set1_ps(ARITH_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(ARITH_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(ARITH_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(ARITH_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    p = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
    __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(ARITH_EXP_MIN), _CMP_LT_OQ);
    p = _mm512_mask_mov_ps(p, tiny, _mm512_setzero_ps());
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(p, nan, x);
}

#endif
#endif
