// SPDX-License-Identifier: Apache-2.0
// One to three input rows: each packed block is unpacked in registers and used at once, so the
// time is that of reading the weights. Two groups run side by side as two streams of reads.
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/quads_avx2.h"

// Bytes ahead of the reads that are asked for: some hundred nanoseconds at full bandwidth.
enum { PREFETCH_BYTES = 2048, LINE_BYTES = 64 };

AVX2_INLINE __m256i broadcast4(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm256_set1_epi32(four);
}

AVX2_INLINE void prefetch_unit(const uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm_prefetch((const char *)at + PREFETCH_BYTES + i, _MM_HINT_T0);
    }
}

// acc += block for types with a minimum. Eight products of 4-bit values fit an int16 sum (15 * 127
// * 2 * 8 = 30480), four of 5-bit ones (31 * 127 * 2 * 4 = 31496).
AVX2_INLINE void add_min_block(enum dtype dtype, const uint8_t *group, uint32_t b,
                               const struct matmul_input *input, uint32_t row, int rows,
                               __m256 *acc) {
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t *data = quads_data(dtype, group, b);
    __m256i low_sum[3], high_sum[3];
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        __m256i low, high;
        quads_bytes(dtype, data, k, &low, &high);
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *q = input->q + (size_t)(row + (uint32_t)r) * input->cols + 32 * b + 4 * k;
            __m256i pl = _mm256_maddubs_epi16(low, broadcast4(q));
            __m256i ph = _mm256_maddubs_epi16(high, broadcast4(q + 16));
            low_sum[r] = k == 0 ? pl : _mm256_add_epi16(low_sum[r], pl);
            high_sum[r] = k == 0 ? ph : _mm256_add_epi16(high_sum[r], ph);
        }
    }
    const uint8_t *header = quads_header(dtype, group, b);
    __m256 scale = quads_scale(dtype, header, b);
    __m256 min = quads_min(dtype, header, b, scale);
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        __m256i dot;
        if (quads_has_fifth(dtype)) {
            dot = _mm256_add_epi32(_mm256_madd_epi16(low_sum[r], ones),
                                   _mm256_madd_epi16(high_sum[r], ones));
        } else {
            dot = _mm256_madd_epi16(_mm256_add_epi16(low_sum[r], high_sum[r]), ones);
        }
        size_t at = (size_t)(row + (uint32_t)r) * input->block_count + b;
        __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&input->scale[at]));
        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc[r]);
        acc[r] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(&input->sum[at]), acc[r]);
    }
}

AVX2_INLINE void add_words(__m256i even, __m256i odd, const int16_t *q, __m256i *sum) {
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(even, broadcast4(q)));
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(odd, broadcast4(q + 2)));
}

// acc += block for Q8_0 and Q6_K.
AVX2_INLINE void add_words_block(enum dtype dtype, const uint8_t *group, uint32_t b,
                                 const struct matmul_input *input, uint32_t row, int rows,
                                 __m256 *acc) {
    const uint8_t *header = quads_header(dtype, group, b);
    const uint8_t *data = quads_data(dtype, group, b);
    __m256i sum[3] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i scales[2];
    if (dtype == DTYPE_Q6_K) {
        scales[0] = quads_k6_scale(header, b, 0);
        scales[1] = quads_k6_scale(header, b, 1);
    }
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        __m256i even[2], odd[2];    // quads k and k + 4
        if (dtype == DTYPE_Q6_K) {
            __m256i low, high;
            quads_bytes(dtype, data, k, &low, &high);
            quads_k6_words(low, scales[0], &even[0], &odd[0]);
            quads_k6_words(high, scales[1], &even[1], &odd[1]);
        } else {
            quads_q8_words(data, k, &even[0], &odd[0]);
            quads_q8_words(data, k + 4, &even[1], &odd[1]);
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            const int16_t *q =
                input->q16 + (size_t)(row + (uint32_t)r) * input->cols + 32 * b + 4 * k;
            add_words(even[0], odd[0], q, &sum[r]);
            add_words(even[1], odd[1], q + 16, &sum[r]);
        }
    }
    __m256 scale = quads_scale(dtype, header, b);
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)(row + (uint32_t)r) * input->block_count + b;
        __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&input->scale[at]));
        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), both, acc[r]);
    }
}

AVX2_INLINE void add_block(enum dtype dtype, const uint8_t *group, uint32_t b,
                           const struct matmul_input *input, uint32_t row, int rows, __m256 *acc) {
    if (dtype == DTYPE_Q8_0 || dtype == DTYPE_Q6_K) {
        add_words_block(dtype, group, b, input, row, rows, acc);
    } else {
        add_min_block(dtype, group, b, input, row, rows, acc);
    }
}

AVX2_INLINE void store(const struct matmul_tile *tile, uint32_t group, uint32_t row, __m256 sum) {
    float lanes[PACK_ROWS];
    _mm256_storeu_ps(lanes, sum);
    matmul_store(tile, group, row, lanes);
}

AVX2_INLINE void groups(enum dtype dtype, const struct matmul_tile *tile, uint32_t group, int count,
                        uint32_t row, int rows) {
    const struct matmul_input *input = tile->input;
    size_t unit_bytes = quads_unit_bytes(dtype);
    size_t group_bytes =
        unit_bytes * (quads_is_super(dtype) ? input->block_count / 8 : input->block_count);
    size_t block_bytes = quads_is_super(dtype) ? unit_bytes / 8 : unit_bytes;
    const uint8_t *first = (const uint8_t *)tile->weight->data + group_bytes * group;
    const uint8_t *second = first + (count > 1 ? group_bytes : 0);
    __m256 acc[2][3];
    for (int r = 0; r < 3; r++) {
        acc[0][r] = _mm256_setzero_ps();
        acc[1][r] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < input->block_count; b++) {
        prefetch_unit(first + block_bytes * b, block_bytes);
        add_block(dtype, first, b, input, row, rows, acc[0]);
        if (count > 1) {
            prefetch_unit(second + block_bytes * b, block_bytes);
            add_block(dtype, second, b, input, row, rows, acc[1]);
        }
    }
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        store(tile, group, row + (uint32_t)r, acc[0][r]);
        if (count > 1) {
            store(tile, group + 1, row + (uint32_t)r, acc[1][r]);
        }
    }
}

AVX2_INLINE void all_groups(enum dtype dtype, const struct matmul_tile *tile, int rows) {
    uint32_t group = tile->group_begin;
    for (; group + 2 <= tile->group_end; group += 2) {
        groups(dtype, tile, group, 2, tile->row_begin, rows);
    }
    if (group < tile->group_end) {
        groups(dtype, tile, group, 1, tile->row_begin, rows);
    }
}

// One function per type: each is three loops of its own.
#define DIRECT(name, dtype)                                                                        \
    static void name(const struct matmul_tile *tile) {                                             \
        uint32_t rows = tile->row_end - tile->row_begin;                                           \
        if (rows == 1) {                                                                           \
            all_groups(dtype, tile, 1);                                                            \
        } else if (rows == 2) {                                                                    \
            all_groups(dtype, tile, 2);                                                            \
        } else {                                                                                   \
            all_groups(dtype, tile, 3);                                                            \
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
