// SPDX-License-Identifier: Apache-2.0
// Plain weights (F32, F16, BF16) times float32 inputs: chains of at most 64 columns.
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/quads_avx2.h"

enum { PLAIN_GROUPS = 2, PLAIN_ROWS = 6, PREFETCH_BYTES = 2048 };

// Weights of one column, 8 rows.
AVX2_INLINE __m256 column(enum dtype dtype, const uint8_t *group, uint32_t c) {
    if (dtype == DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)group + (size_t)PACK_ROWS * c);
    }
    const uint8_t *at = group + (size_t)2 * PACK_ROWS * c;
    return dtype == DTYPE_F16 ? avx2_load_half8(at) : avx2_load_bfloat8(at);
}

AVX2_INLINE void store(const struct matmul_tile *tile, uint32_t group, uint32_t row, __m256 sum) {
    float lanes[PACK_ROWS];
    _mm256_storeu_ps(lanes, sum);
    matmul_store(tile, group, row, lanes);
}

// ---- few rows: straight from the weights -------------------------------------------------------

// Four groups at once, so that enough chains are in flight to hide the latency of the sums.
AVX2_INLINE void direct_groups(enum dtype dtype, const struct matmul_tile *tile, uint32_t group,
                               int groups, uint32_t row, int rows) {
    uint32_t cols = tile->weight->cols;
    size_t column_bytes = (size_t)PACK_ROWS * (dtype == DTYPE_F32 ? 4 : 2);
    size_t group_bytes = column_bytes * cols;
    const uint8_t *data = (const uint8_t *)tile->weight->data + group_bytes * group;
    __m256 acc[4][3];
    for (int g = 0; g < 4; g++) {
        for (int r = 0; r < 3; r++) {
            acc[g][r] = _mm256_setzero_ps();
        }
    }
    for (uint32_t begin = 0; begin < cols; begin += MATMUL_PLAIN_SPAN) {
        uint32_t end = cols - begin < MATMUL_PLAIN_SPAN ? cols : begin + MATMUL_PLAIN_SPAN;
        __m256 part[4][3];
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                part[g][r] = _mm256_setzero_ps();
            }
        }
        for (uint32_t c = begin; c < end; c++) {
            __m256 x[3];
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                x[r] = _mm256_broadcast_ss(tile->input->x + (size_t)(row + (uint32_t)r) * cols + c);
            }
            AVX2_UNROLL
            for (int g = 0; g < groups; g++) {
                const uint8_t *at = data + group_bytes * (uint32_t)g;
                _mm_prefetch((const char *)at + column_bytes * c + PREFETCH_BYTES, _MM_HINT_T0);
                __m256 w = column(dtype, at, c);
                AVX2_UNROLL
                for (int r = 0; r < rows; r++) {
                    part[g][r] = _mm256_fmadd_ps(w, x[r], part[g][r]);
                }
            }
        }
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                acc[g][r] = _mm256_add_ps(acc[g][r], part[g][r]);
            }
        }
    }
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            store(tile, group + (uint32_t)g, row + (uint32_t)r, acc[g][r]);
        }
    }
}

AVX2_INLINE void direct(enum dtype dtype, const struct matmul_tile *tile, int rows) {
    uint32_t group = tile->group_begin;
    for (; group + 4 <= tile->group_end; group += 4) {
        direct_groups(dtype, tile, group, 4, tile->row_begin, rows);
    }
    for (; group < tile->group_end; group++) {
        direct_groups(dtype, tile, group, 1, tile->row_begin, rows);
    }
}

// ---- many rows: a span of columns is converted once ---------------------------------------------

AVX2_INLINE void convert_span(enum dtype dtype, const uint8_t *group, uint32_t begin,
                              uint32_t count, uint32_t groups, uint32_t g, float *out) {
    for (uint32_t c = 0; c < count; c++) {
        _mm256_store_ps(out + (size_t)PACK_ROWS * (c * groups + g),
                        column(dtype, group, begin + c));
    }
}

// acc[row][group] += the chain over one span, for `rows` input rows.
AVX2_INLINE void span_rows(const struct matmul_tile *tile, const float *span, uint32_t begin,
                           uint32_t count, uint32_t row, int groups, int rows, float *acc) {
    const float *x[PLAIN_ROWS];
    __m256 part[PLAIN_ROWS][PLAIN_GROUPS];
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        x[r] = tile->input->x + (size_t)(row + (uint32_t)r) * tile->input->cols + begin;
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            part[r][g] = _mm256_setzero_ps();
        }
    }
    for (uint32_t c = 0; c < count; c++) {
        __m256 w[PLAIN_GROUPS];
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            w[g] = _mm256_load_ps(span + PACK_ROWS * ((int)c * groups + g));
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 value = _mm256_broadcast_ss(x[r] + c);
            AVX2_UNROLL
            for (int g = 0; g < groups; g++) {
                part[r][g] = _mm256_fmadd_ps(w[g], value, part[r][g]);
            }
        }
    }
    float *at = acc + (size_t)(row - tile->row_begin) * (uint32_t)groups * PACK_ROWS;
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            float *sum = at + (r * groups + g) * PACK_ROWS;
            _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), part[r][g]));
        }
    }
}

AVX2_INLINE void span_all_rows(const struct matmul_tile *tile, const float *span, uint32_t begin,
                               uint32_t count, int groups, float *acc) {
    uint32_t row = tile->row_begin;
    for (; row + PLAIN_ROWS <= tile->row_end; row += PLAIN_ROWS) {
        span_rows(tile, span, begin, count, row, groups, PLAIN_ROWS, acc);
    }
    for (; row + 2 <= tile->row_end; row += 2) {
        span_rows(tile, span, begin, count, row, groups, 2, acc);
    }
    if (row < tile->row_end) {
        span_rows(tile, span, begin, count, row, groups, 1, acc);
    }
}

AVX2_INLINE void tiled_groups(enum dtype dtype, const struct matmul_tile *tile, uint32_t group,
                              int groups) {
    uint32_t cols = tile->weight->cols;
    size_t group_bytes = (size_t)PACK_ROWS * cols * (dtype == DTYPE_F32 ? 4 : 2);
    const uint8_t *data = (const uint8_t *)tile->weight->data + group_bytes * group;
    float *span = (float *)(void *)tile->scratch;
    float *acc = span + MATMUL_PLAIN_SPAN * PLAIN_GROUPS * PACK_ROWS;
    uint32_t rows = tile->row_end - tile->row_begin;
    memset(acc, 0, (size_t)rows * (uint32_t)groups * PACK_ROWS * sizeof *acc);
    for (uint32_t begin = 0; begin < cols; begin += MATMUL_PLAIN_SPAN) {
        uint32_t count = cols - begin < MATMUL_PLAIN_SPAN ? cols - begin : MATMUL_PLAIN_SPAN;
        for (uint32_t g = 0; g < (uint32_t)groups; g++) {
            convert_span(dtype, data + group_bytes * g, begin, count, (uint32_t)groups, g, span);
        }
        span_all_rows(tile, span, begin, count, groups, acc);
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t g = 0; g < (uint32_t)groups; g++) {
            matmul_store(tile, group + g, tile->row_begin + r,
                         acc + ((size_t)r * (uint32_t)groups + g) * PACK_ROWS);
        }
    }
}

AVX2_INLINE void plain(enum dtype dtype, const struct matmul_tile *tile) {
    uint32_t rows = tile->row_end - tile->row_begin;
    if (rows == 1) {
        direct(dtype, tile, 1);
        return;
    }
    if (rows == 2) {
        direct(dtype, tile, 2);
        return;
    }
    if (rows == 3) {
        direct(dtype, tile, 3);
        return;
    }
    uint32_t group = tile->group_begin;
    for (; group + PLAIN_GROUPS <= tile->group_end; group += PLAIN_GROUPS) {
        tiled_groups(dtype, tile, group, PLAIN_GROUPS);
    }
    if (group < tile->group_end) {
        tiled_groups(dtype, tile, group, 1);
    }
}

static void plain_f32(const struct matmul_tile *tile) {
    plain(DTYPE_F32, tile);
}

static void plain_f16(const struct matmul_tile *tile) {
    plain(DTYPE_F16, tile);
}

static void plain_bf16(const struct matmul_tile *tile) {
    plain(DTYPE_BF16, tile);
}

void matmul_plain_avx2(const struct matmul_tile *tile) {
    if (tile->weight->dtype == DTYPE_F32) {
        plain_f32(tile);
    } else if (tile->weight->dtype == DTYPE_F16) {
        plain_f16(tile);
    } else {
        plain_bf16(tile);
    }
}
