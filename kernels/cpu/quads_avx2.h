// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_QUADS_AVX2_H
#define KERNELS_CPU_QUADS_AVX2_H

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/pack.h"

// Packed weight blocks (pack.h) into registers, for the matrix product on AVX2.
//
// The idea: every function takes the type as a constant, so the compiler keeps the one branch that
// applies. Types with a minimum give unsigned bytes for the byte multiply-add; Q8_0 and Q6_K give
// int16 pairs, with the 16 even and the 16 odd bytes of a quad apart, since sign extension in
// place is two shifts and a byte shuffle across lanes is slow.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

AVX2_INLINE bool quads_is_super(enum dtype dtype) {
    return dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K || dtype == DTYPE_Q6_K;
}

AVX2_INLINE bool quads_has_fifth(enum dtype dtype) {
    return dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q5_K;
}

// Packed bytes of 8 rows x 32 columns (x 256 for the K types).
AVX2_INLINE size_t quads_unit_bytes(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_Q4_0:
        return 8 * 18;
    case DTYPE_Q4_1:
        return 8 * 20;
    case DTYPE_Q5_0:
        return 8 * 22;
    case DTYPE_Q5_1:
        return 8 * 24;
    case DTYPE_Q8_0:
        return 8 * 34;
    case DTYPE_Q4_K:
        return 8 * 144;
    case DTYPE_Q5_K:
        return 8 * 176;
    default:
        return 8 * 210;    // Q6_K
    }
}

// The unit of a group that holds block `b`; units of a group are `step_bytes` apart.
AVX2_INLINE const uint8_t *quads_unit(enum dtype dtype, const uint8_t *group, size_t step_bytes,
                                      uint32_t b) {
    return group + step_bytes * (quads_is_super(dtype) ? b / PACK_SUPER_BLOCKS : b);
}

// Where the quads of block `b` begin in its unit; the scales begin with the unit.
AVX2_INLINE const uint8_t *quads_data(enum dtype dtype, const uint8_t *unit, uint32_t b) {
    uint32_t j = b % PACK_SUPER_BLOCKS;
    switch (dtype) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
        return unit + 16;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        return unit + 32;
    case DTYPE_Q4_K:
        return unit + 32 + 2 * PACK_SIX_BYTES + PACK_NIBBLES_BYTES * j;
    case DTYPE_Q5_K:
        return unit + 32 + 2 * PACK_SIX_BYTES + (PACK_FIFTH_BYTES + PACK_NIBBLES_BYTES) * j;
    default:
        return unit + 16 + 128 + (PACK_TWO_BYTES + PACK_NIBBLES_BYTES) * j;
    }
}

// ---- scales ------------------------------------------------------------------------------------

// The 8 rows' six-bit values of block j of a super-block.
AVX2_INLINE __m256 quads_six(const uint8_t *six, uint32_t j) {
    __m256i low = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(six + 8 * (j % 4))));
    __m256i high = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(six + 32 + 8 * (j % 2))));
    low = _mm256_srl_epi32(low, _mm_cvtsi32_si128((int)(4 * (j / 4))));
    high = _mm256_srl_epi32(high, _mm_cvtsi32_si128((int)(2 * (j / 2))));
    low = _mm256_and_si256(low, _mm256_set1_epi32(15));
    high = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
    return _mm256_cvtepi32_ps(_mm256_or_si256(low, high));
}

AVX2_INLINE __m256 quads_scale(enum dtype dtype, const uint8_t *unit, uint32_t b) {
    __m256 d = avx2_load_half8(unit);
    if (dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K) {
        return _mm256_mul_ps(d, quads_six(unit + 32, b % PACK_SUPER_BLOCKS));
    }
    return d;
}

AVX2_INLINE __m256 quads_min(enum dtype dtype, const uint8_t *unit, uint32_t b, __m256 scale) {
    switch (dtype) {
    case DTYPE_Q4_0:
        return _mm256_mul_ps(_mm256_set1_ps(-8.0f), scale);
    case DTYPE_Q5_0:
        return _mm256_mul_ps(_mm256_set1_ps(-16.0f), scale);
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        return avx2_load_half8(unit + 16);
    default: {
        __m256 min = quads_six(unit + 32 + PACK_SIX_BYTES, b % PACK_SUPER_BLOCKS);
        min = _mm256_mul_ps(avx2_load_half8(unit + 16), min);
        return _mm256_xor_ps(min, _mm256_set1_ps(-0.0f));
    }
    }
}

// ---- values ------------------------------------------------------------------------------------

// Quads k and k + 4 (k = 0..3) as unsigned bytes.
AVX2_INLINE void quads_bytes(enum dtype dtype, const uint8_t *data, uint32_t k, __m256i *low,
                             __m256i *high) {
    const uint8_t *nibbles = data;
    nibbles += quads_has_fifth(dtype) ? PACK_FIFTH_BYTES : 0;
    nibbles += dtype == DTYPE_Q6_K ? PACK_TWO_BYTES : 0;
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i v = _mm256_loadu_si256((const __m256i *)(nibbles + PACK_QUAD_BYTES * k));
    __m256i l = _mm256_and_si256(v, mask);
    __m256i h = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    if (quads_has_fifth(dtype)) {
        const __m256i bit = _mm256_set1_epi8(16);
        __m256i fifth = _mm256_loadu_si256((const __m256i *)data);
        l = _mm256_or_si256(l, _mm256_and_si256(_mm256_slli_epi16(fifth, (int)(4 - k)), bit));
        h = _mm256_or_si256(h, _mm256_and_si256(_mm256_srli_epi16(fifth, (int)k), bit));
    }
    if (dtype == DTYPE_Q6_K) {
        const __m256i bits = _mm256_set1_epi8(48);
        __m256i t0 = _mm256_loadu_si256((const __m256i *)data);
        __m256i t1 = _mm256_loadu_si256((const __m256i *)(data + PACK_QUAD_BYTES));
        // Bits 2k, 2k + 1 move to 4, 5.
        t0 = k < 2 ? _mm256_slli_epi16(t0, (int)(4 - 2 * k))
                   : _mm256_srli_epi16(t0, (int)(2 * k - 4));
        t1 = k < 2 ? _mm256_slli_epi16(t1, (int)(4 - 2 * k))
                   : _mm256_srli_epi16(t1, (int)(2 * k - 4));
        l = _mm256_or_si256(l, _mm256_and_si256(t0, bits));
        h = _mm256_or_si256(h, _mm256_and_si256(t1, bits));
    }
    *low = l;
    *high = h;
}

// A Q6_K sub-block's scale as int16 in both halves of each row's lane; half = 0 or 1 of block b.
AVX2_INLINE __m256i quads_k6_scale(const uint8_t *unit, uint32_t b, uint32_t half) {
    const uint8_t *at = unit + 16 + PACK_ROWS * (2 * (b % PACK_SUPER_BLOCKS) + half);
    __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at));
    __m256i low = _mm256_and_si256(wide, _mm256_set1_epi32(0xFFFF));
    return _mm256_or_si256(low, _mm256_slli_epi32(wide, 16));
}

// Unsigned six-bit bytes to scaled int16: even and odd columns of the quad.
AVX2_INLINE void quads_k6_words(__m256i bytes, __m256i scale, __m256i *even, __m256i *odd) {
    const __m256i offset = _mm256_set1_epi16(32);
    __m256i e = _mm256_and_si256(bytes, _mm256_set1_epi16(0xFF));
    __m256i o = _mm256_srli_epi16(bytes, 8);
    *even = _mm256_mullo_epi16(_mm256_sub_epi16(e, offset), scale);
    *odd = _mm256_mullo_epi16(_mm256_sub_epi16(o, offset), scale);
}

AVX2_INLINE void quads_q8_words(const uint8_t *data, uint32_t quad, __m256i *even, __m256i *odd) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(data + PACK_QUAD_BYTES * quad));
    *even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    *odd = _mm256_srai_epi16(v, 8);
}

// One quad of Q8_0 or Q6_K as int16.
AVX2_INLINE void quads_words(enum dtype dtype, const uint8_t *unit, uint32_t b, uint32_t quad,
                             __m256i *even, __m256i *odd) {
    const uint8_t *data = quads_data(dtype, unit, b);
    if (dtype == DTYPE_Q8_0) {
        quads_q8_words(data, quad, even, odd);
        return;
    }
    __m256i low, high;
    quads_bytes(dtype, data, quad % 4, &low, &high);
    quads_k6_words(quad < 4 ? low : high, quads_k6_scale(unit, b, quad / 4), even, odd);
}

#endif
#endif
