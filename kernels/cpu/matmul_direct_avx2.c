// SPDX-License-Identifier: Apache-2.0
// One to three input rows: packed blocks are unpacked in registers and used at once, so the time is
// that of reading the weights, which a strip lays out as one linear run.
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/quads_avx2.h"

// Bytes ahead of the reads that are asked for: some hundred nanoseconds at full bandwidth.
enum { PREFETCH_BYTES = 4096, LINE_BYTES = 64 };

// One strip against `rows` input rows.
struct strip {
    const uint8_t *data;
    size_t unit_bytes;
    size_t step_bytes;
    const struct matmul_input *input;
    uint32_t row;
};

AVX2_INLINE __m256i broadcast4(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm256_set1_epi32(four);
}

AVX2_INLINE const uint8_t *unit_of(enum dtype dtype, const struct strip *strip, uint32_t b, int g) {
    return quads_unit(dtype, strip->data, strip->step_bytes, b) + strip->unit_bytes * (size_t)g;
}

AVX2_INLINE const int8_t *bytes_of(const struct strip *strip, int r, uint32_t b) {
    size_t row = strip->row + (uint32_t)r;
    return strip->input->q + row * strip->input->cols + (size_t)PACK_BLOCK * b;
}

AVX2_INLINE const int16_t *words_of(const struct strip *strip, int r, uint32_t b) {
    size_t row = strip->row + (uint32_t)r;
    return strip->input->q16 + row * strip->input->cols + (size_t)PACK_BLOCK * b;
}

// acc += dot * scale * input scale (+ min * input sum) for one block.
AVX2_INLINE void add_scaled(enum dtype dtype, const struct strip *strip, uint32_t b, int groups,
                            int rows, __m256i dot[3][3], __m256 acc[3][3]) {
    const struct matmul_input *input = strip->input;
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        const uint8_t *unit = unit_of(dtype, strip, b, g);
        __m256 scale = quads_scale(dtype, unit, b);
        __m256 min = _mm256_setzero_ps();
        bool has_min = dtype != DTYPE_Q8_0 && dtype != DTYPE_Q6_K;
        if (has_min) {
            min = quads_min(dtype, unit, b, scale);
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            size_t at = (size_t)(strip->row + (uint32_t)r) * input->block_count + b;
            __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&input->scale[at]));
            acc[g][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[g][r]), both, acc[g][r]);
            if (has_min) {
                acc[g][r] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(&input->sum[at]), acc[g][r]);
            }
        }
    }
}

// Types with a minimum. Eight products of 4-bit values fit an int16 sum (15 * 127 * 2 * 8 = 30480),
// four of 5-bit ones (31 * 127 * 2 * 4 = 31496).
AVX2_INLINE void add_bytes(enum dtype dtype, const struct strip *strip, uint32_t b, int groups,
                           int rows, __m256 acc[3][3]) {
    const __m256i ones = _mm256_set1_epi16(1);
    bool five = quads_has_fifth(dtype);
    __m256i sum[3][3], sum_high[3][3];
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        __m256i low[3], high[3];
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            const uint8_t *data = quads_data(dtype, unit_of(dtype, strip, b, g), b);
            quads_bytes(dtype, data, k, &low[g], &high[g]);
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256i x_low = broadcast4(bytes_of(strip, r, b) + 4 * k);
            __m256i x_high = broadcast4(bytes_of(strip, r, b) + 4 * k + 16);
            AVX2_UNROLL
            for (int g = 0; g < groups; g++) {
                __m256i p_low = _mm256_maddubs_epi16(low[g], x_low);
                __m256i p_high = _mm256_maddubs_epi16(high[g], x_high);
                sum[g][r] = k == 0 ? p_low : _mm256_add_epi16(sum[g][r], p_low);
                AVX2_KEEP_ORDER(sum[g][r]);
                if (five) {
                    sum_high[g][r] = k == 0 ? p_high : _mm256_add_epi16(sum_high[g][r], p_high);
                    AVX2_KEEP_ORDER(sum_high[g][r]);
                } else {
                    sum[g][r] = _mm256_add_epi16(sum[g][r], p_high);
                    AVX2_KEEP_ORDER(sum[g][r]);
                }
            }
        }
    }
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            sum[g][r] = _mm256_madd_epi16(sum[g][r], ones);
            if (five) {
                __m256i high = _mm256_madd_epi16(sum_high[g][r], ones);
                sum[g][r] = _mm256_add_epi32(sum[g][r], high);
            }
        }
    }
    add_scaled(dtype, strip, b, groups, rows, sum, acc);
}

AVX2_INLINE void unpack_words(enum dtype dtype, const uint8_t *unit, uint32_t b, uint32_t k,
                              __m256i even[2], __m256i odd[2]) {
    const uint8_t *data = quads_data(dtype, unit, b);
    if (dtype == DTYPE_Q6_K) {
        __m256i low, high;
        quads_bytes(dtype, data, k, &low, &high);
        quads_k6_words(low, quads_k6_scale(unit, b, 0), &even[0], &odd[0]);
        quads_k6_words(high, quads_k6_scale(unit, b, 1), &even[1], &odd[1]);
    } else {
        quads_q8_words(data, k, &even[0], &odd[0]);
        quads_q8_words(data, k + 4, &even[1], &odd[1]);
    }
}

// Q8_0 and Q6_K: int16 pairs into int32.
AVX2_INLINE void add_words(enum dtype dtype, const struct strip *strip, uint32_t b, int groups,
                           int rows, __m256 acc[3][3]) {
    __m256i sum[3][3];
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            sum[g][r] = _mm256_setzero_si256();
        }
    }
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            __m256i even[2], odd[2];    // quads k and k + 4
            unpack_words(dtype, unit_of(dtype, strip, b, g), b, k, even, odd);
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                const int16_t *q = words_of(strip, r, b) + 4 * k;
                AVX2_UNROLL
                for (int half = 0; half < 2; half++) {
                    __m256i x = broadcast4(q + 16 * half);
                    __m256i y = broadcast4(q + 16 * half + 2);
                    sum[g][r] = _mm256_add_epi32(sum[g][r], _mm256_madd_epi16(even[half], x));
                    AVX2_KEEP_ORDER(sum[g][r]);
                    sum[g][r] = _mm256_add_epi32(sum[g][r], _mm256_madd_epi16(odd[half], y));
                    AVX2_KEEP_ORDER(sum[g][r]);
                }
            }
        }
    }
    add_scaled(dtype, strip, b, groups, rows, sum, acc);
}

AVX2_INLINE void store(const struct matmul_tile *tile, uint32_t group, uint32_t row, __m256 sum) {
    float lanes[PACK_ROWS];
    _mm256_storeu_ps(lanes, sum);
    matmul_store(tile, group, row, lanes);
}

AVX2_INLINE void one_strip(enum dtype dtype, const struct matmul_tile *tile, uint32_t group,
                           int groups, int rows) {
    size_t unit_bytes = quads_unit_bytes(dtype);
    const struct strip strip = {
        .data = pack_place_of(tile->weight, group).data,
        .unit_bytes = unit_bytes,
        .step_bytes = unit_bytes * (size_t)groups,
        .input = tile->input,
        .row = tile->row_begin,
    };
    size_t block_bytes = strip.step_bytes / (quads_is_super(dtype) ? PACK_SUPER_BLOCKS : 1);
    __m256 acc[3][3];
    for (int g = 0; g < 3; g++) {
        for (int r = 0; r < 3; r++) {
            acc[g][r] = _mm256_setzero_ps();
        }
    }
    for (uint32_t b = 0; b < tile->input->block_count; b++) {
        const char *ahead = (const char *)strip.data + block_bytes * b + PREFETCH_BYTES;
        AVX2_UNROLL
        for (size_t i = 0; i < block_bytes; i += LINE_BYTES) {
            _mm_prefetch(ahead + i, _MM_HINT_T0);
        }
        if (dtype == DTYPE_Q8_0 || dtype == DTYPE_Q6_K) {
            add_words(dtype, &strip, b, groups, rows, acc);
        } else {
            add_bytes(dtype, &strip, b, groups, rows, acc);
        }
    }
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            store(tile, group + (uint32_t)g, strip.row + (uint32_t)r, acc[g][r]);
        }
    }
}

AVX2_INLINE void strips(enum dtype dtype, const struct matmul_tile *tile, int rows) {
    for (uint32_t group = tile->group_begin; group < tile->group_end; group += PACK_STRIP) {
        uint32_t left = tile->group_end - group;
        if (left >= 3) {
            one_strip(dtype, tile, group, 3, rows);
        } else if (left == 2) {
            one_strip(dtype, tile, group, 2, rows);
        } else {
            one_strip(dtype, tile, group, 1, rows);
        }
    }
}

// One function per type: each is nine loops of its own.
#define DIRECT(name, dtype)                                                                        \
    static void name(const struct matmul_tile *tile) {                                             \
        uint32_t rows = tile->row_end - tile->row_begin;                                           \
        if (rows == 1) {                                                                           \
            strips(dtype, tile, 1);                                                                \
        } else if (rows == 2) {                                                                    \
            strips(dtype, tile, 2);                                                                \
        } else {                                                                                   \
            strips(dtype, tile, 3);                                                                \
        }                                                                                          \
    }
DIRECT(direct_q4_0, DTYPE_Q4_0)
DIRECT(direct_q4_1, DTYPE_Q4_1)
DIRECT(direct_q5_0, DTYPE_Q5_0)
DIRECT(direct_q5_1, DTYPE_Q5_1)
DIRECT(direct_q8_0, DTYPE_Q8_0)
DIRECT(direct_q4_k, DTYPE_Q4_K)
DIRECT(direct_q5_k, DTYPE_Q5_K)
DIRECT(direct_q6_k, DTYPE_Q6_K)

void matmul_direct_avx2(const struct matmul_tile *tile) {
    switch (tile->weight->dtype) {
    case DTYPE_Q4_0:
        direct_q4_0(tile);
        return;
    case DTYPE_Q4_1:
        direct_q4_1(tile);
        return;
    case DTYPE_Q5_0:
        direct_q5_0(tile);
        return;
    case DTYPE_Q5_1:
        direct_q5_1(tile);
        return;
    case DTYPE_Q8_0:
        direct_q8_0(tile);
        return;
    case DTYPE_Q4_K:
        direct_q4_k(tile);
        return;
    case DTYPE_Q5_K:
        direct_q5_k(tile);
        return;
    default:
        direct_q6_k(tile);
        return;
    }
}
