// SPDX-License-Identifier: Apache-2.0
// One input row: packed blocks are unpacked in registers and used at once, so the time is that of
// reading the weights, which a strip lays out as one linear run.
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/parts_avx2.h"
#include "kernels/cpu/quads_avx2.h"

// Bytes ahead of the reads that are asked for: some hundred nanoseconds at full bandwidth.
enum { PREFETCH_BYTES = 4096, LINE_BYTES = 64 };

// A full strip against one input row.
struct strip {
    const uint8_t *data;
    size_t unit_bytes;
    const int8_t *q;
    const int16_t *q16;
    const float *scale;
    const float *sum;
};

AVX2_INLINE __m256i broadcast4(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm256_set1_epi32(four);
}

AVX2_INLINE const uint8_t *unit_of(enum dtype dtype, const struct strip *strip, uint32_t b, int g) {
    size_t step_bytes = PACK_STRIP * strip->unit_bytes;
    return quads_unit(dtype, strip->data, step_bytes, b) + strip->unit_bytes * (size_t)g;
}

// acc += dot * scale * input scale (+ min * input sum) for one block.
AVX2_INLINE void add_scaled(enum dtype dtype, const struct strip *strip, uint32_t b,
                            const __m256i *dot, __m256 *acc) {
    __m256 input_scale = _mm256_broadcast_ss(&strip->scale[b]);
    __m256 input_sum = _mm256_broadcast_ss(&strip->sum[b]);
    AVX2_UNROLL
    for (int g = 0; g < PACK_STRIP; g++) {
        const uint8_t *unit = unit_of(dtype, strip, b, g);
        __m256 scale = quads_scale(dtype, unit, b);
        __m256 both = _mm256_mul_ps(scale, input_scale);
        acc[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[g]), both, acc[g]);
        if (dtype != DTYPE_Q8_0 && dtype != DTYPE_Q6_K) {
            __m256 min = quads_min(dtype, unit, b, scale);
            acc[g] = _mm256_fmadd_ps(min, input_sum, acc[g]);
        }
    }
}

// Types with a minimum. Eight products of 4-bit values fit an int16 sum (15 * 127 * 2 * 8 = 30480),
// four of 5-bit ones (31 * 127 * 2 * 4 = 31496).
AVX2_INLINE void add_bytes(enum dtype dtype, const struct strip *strip, uint32_t b, __m256 *acc) {
    const __m256i ones = _mm256_set1_epi16(1);
    bool five = quads_has_fifth(dtype);
    const int8_t *q = strip->q + (size_t)PACK_BLOCK * b;
    __m256i sum[PACK_STRIP], sum_high[PACK_STRIP];
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        __m256i x_low = broadcast4(q + 4 * k);
        __m256i x_high = broadcast4(q + 4 * k + 16);
        AVX2_UNROLL
        for (int g = 0; g < PACK_STRIP; g++) {
            __m256i low, high;
            quads_bytes(dtype, quads_data(dtype, unit_of(dtype, strip, b, g), b), k, &low, &high);
            __m256i p_low = _mm256_maddubs_epi16(low, x_low);
            __m256i p_high = _mm256_maddubs_epi16(high, x_high);
            sum[g] = k == 0 ? p_low : _mm256_add_epi16(sum[g], p_low);
            AVX2_KEEP_ORDER(sum[g]);
            if (five) {
                sum_high[g] = k == 0 ? p_high : _mm256_add_epi16(sum_high[g], p_high);
                AVX2_KEEP_ORDER(sum_high[g]);
            } else {
                sum[g] = _mm256_add_epi16(sum[g], p_high);
                AVX2_KEEP_ORDER(sum[g]);
            }
        }
    }
    AVX2_UNROLL
    for (int g = 0; g < PACK_STRIP; g++) {
        sum[g] = _mm256_madd_epi16(sum[g], ones);
        if (five) {
            sum[g] = _mm256_add_epi32(sum[g], _mm256_madd_epi16(sum_high[g], ones));
        }
    }
    add_scaled(dtype, strip, b, sum, acc);
}

// Q8_0 and Q6_K: int16 pairs into int32.
AVX2_INLINE void add_words(enum dtype dtype, const struct strip *strip, uint32_t b, __m256 *acc) {
    const int16_t *q = strip->q16 + (size_t)PACK_BLOCK * b;
    __m256i sum[PACK_STRIP];
    AVX2_UNROLL
    for (uint32_t quad = 0; quad < 8; quad++) {
        __m256i x_even = broadcast4(q + 4 * quad);
        __m256i x_odd = broadcast4(q + 4 * quad + 2);
        AVX2_UNROLL
        for (int g = 0; g < PACK_STRIP; g++) {
            __m256i even, odd;
            quads_words(dtype, unit_of(dtype, strip, b, g), b, quad, &even, &odd);
            __m256i p = _mm256_madd_epi16(even, x_even);
            sum[g] = quad == 0 ? p : _mm256_add_epi32(sum[g], p);
            AVX2_KEEP_ORDER(sum[g]);
            sum[g] = _mm256_add_epi32(sum[g], _mm256_madd_epi16(odd, x_odd));
            AVX2_KEEP_ORDER(sum[g]);
        }
    }
    add_scaled(dtype, strip, b, sum, acc);
}

AVX2_INLINE void one_strip(enum dtype dtype, const struct matmul_tile *tile, uint32_t group) {
    const struct matmul_input *input = tile->input;
    size_t row = tile->row_begin;
    const struct strip strip = {
        .data = pack_place_of(tile->weight, group).data,
        .unit_bytes = quads_unit_bytes(dtype),
        .q = input->q + row * input->cols,
        .q16 = input->q16 == NULL ? NULL : input->q16 + row * input->cols,
        .scale = input->scale + row * input->block_count,
        .sum = input->sum + row * input->block_count,
    };
    size_t block_bytes =
        PACK_STRIP * strip.unit_bytes / (quads_is_super(dtype) ? PACK_SUPER_BLOCKS : 1);
    __m256 wait[MATMUL_STACK_LEVELS * PACK_STRIP];
    uint32_t part_blocks = matmul_part_cols(tile) / PACK_BLOCK;
    for (uint32_t part = 0; part < tile->part_count; part++) {
        __m256 acc[PACK_STRIP] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t b = part_blocks * part; b < part_blocks * (part + 1); b++) {
            const char *ahead = (const char *)strip.data + block_bytes * b + PREFETCH_BYTES;
            AVX2_UNROLL
            for (size_t i = 0; i < block_bytes; i += LINE_BYTES) {
                _mm_prefetch(ahead + i, _MM_HINT_T0);
            }
            if (dtype == DTYPE_Q8_0 || dtype == DTYPE_Q6_K) {
                add_words(dtype, &strip, b, acc);
            } else {
                add_bytes(dtype, &strip, b, acc);
            }
        }
        if (!parts_fold(tile, part, acc, PACK_STRIP, wait)) {
            continue;
        }
        for (uint32_t g = 0; g < PACK_STRIP; g++) {
            float lanes[PACK_ROWS];
            _mm256_storeu_ps(lanes, acc[g]);
            matmul_store(tile, part, group + g, tile->row_begin, lanes);
        }
    }
}

// One function per type.
#define DIRECT(name, dtype)                                                                        \
    static void name(const struct matmul_tile *tile, uint32_t group) {                             \
        one_strip(dtype, tile, group);                                                             \
    }
DIRECT(direct_q4_0, DTYPE_Q4_0)
DIRECT(direct_q4_1, DTYPE_Q4_1)
DIRECT(direct_q5_0, DTYPE_Q5_0)
DIRECT(direct_q5_1, DTYPE_Q5_1)
DIRECT(direct_q8_0, DTYPE_Q8_0)
DIRECT(direct_q4_k, DTYPE_Q4_K)
DIRECT(direct_q5_k, DTYPE_Q5_K)
DIRECT(direct_q6_k, DTYPE_Q6_K)

void matmul_direct_avx2(const struct matmul_tile *tile, uint32_t group) {
    switch (tile->weight->dtype) {
    case DTYPE_Q4_0:
        direct_q4_0(tile, group);
        return;
    case DTYPE_Q4_1:
        direct_q4_1(tile, group);
        return;
    case DTYPE_Q5_0:
        direct_q5_0(tile, group);
        return;
    case DTYPE_Q5_1:
        direct_q5_1(tile, group);
        return;
    case DTYPE_Q8_0:
        direct_q8_0(tile, group);
        return;
    case DTYPE_Q4_K:
        direct_q4_k(tile, group);
        return;
    case DTYPE_Q5_K:
        direct_q5_k(tile, group);
        return;
    default:
        direct_q6_k(tile, group);
        return;
    }
}
