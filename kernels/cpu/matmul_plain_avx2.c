// SPDX-License-Identifier: Apache-2.0
// Plain weights (F32, F16, BF16) times float32 inputs: chains of at most 64 columns.
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/parts_avx2.h"
#include "kernels/cpu/quads_avx2.h"

enum { PLAIN_GROUPS = 2, PLAIN_ROWS = 6, PREFETCH_BYTES = 2048 };

// Weights of one column, 8 rows.
AVX2_INLINE __m256 column(enum dtype dtype, const uint8_t *at) {
    if (dtype == DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)at);
    }
    return dtype == DTYPE_F16 ? avx2_load_half8(at) : avx2_load_bfloat8(at);
}

AVX2_INLINE void store(const struct matmul_tile *tile, uint32_t part, uint32_t group, uint32_t row,
                       __m256 sum) {
    float lanes[PACK_ROWS];
    _mm256_storeu_ps(lanes, sum);
    matmul_store(tile, part, group, row, lanes);
}

// ---- few rows: straight from the weights -------------------------------------------------------

enum { DIRECT_SUMS = PACK_STRIP * MATMUL_FEW_ROWS };

// Columns [begin, end) of a strip, its groups side by side: several chains hide the latency of the
// sums. acc[group * MATMUL_FEW_ROWS + row] += the chain.
AVX2_INLINE void direct_span(enum dtype dtype, const uint8_t *data, const float *x, size_t cols,
                             uint32_t begin, uint32_t end, int groups, int rows, __m256 *acc) {
    size_t unit_bytes = (size_t)PACK_ROWS * (dtype == DTYPE_F32 ? 4 : 2);
    size_t step_bytes = unit_bytes * (size_t)groups;
    __m256 chain[PACK_STRIP][MATMUL_FEW_ROWS];
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            chain[g][r] = _mm256_setzero_ps();
        }
    }
    for (uint32_t c = begin; c < end; c++) {
        const uint8_t *at = data + step_bytes * c;
        _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T0);
        __m256 value[MATMUL_FEW_ROWS];
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            value[r] = _mm256_broadcast_ss(x + (size_t)r * cols + c);
        }
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            __m256 w = column(dtype, at + unit_bytes * (size_t)g);
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                chain[g][r] = _mm256_fmadd_ps(w, value[r], chain[g][r]);
            }
        }
    }
    AVX2_UNROLL
    for (int g = 0; g < groups; g++) {
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 *sum = &acc[g * MATMUL_FEW_ROWS + r];
            *sum = _mm256_add_ps(*sum, chain[g][r]);
        }
    }
}

AVX2_INLINE void direct_strip(enum dtype dtype, const struct matmul_tile *tile, uint32_t group,
                              int groups, int rows) {
    uint32_t cols = tile->weight->cols;
    const uint8_t *data = pack_place_of(tile->weight, group).data;
    const float *x = tile->input->x + (size_t)tile->row_begin * cols;
    __m256 wait[MATMUL_STACK_LEVELS * DIRECT_SUMS];
    for (uint32_t part = 0; part < tile->part_count; part++) {
        uint32_t part_end = matmul_part_cols(tile) * (part + 1);
        __m256 acc[DIRECT_SUMS];
        AVX2_UNROLL
        for (int i = 0; i < DIRECT_SUMS; i++) {
            acc[i] = _mm256_setzero_ps();
        }
        for (uint32_t begin = matmul_part_cols(tile) * part; begin < part_end;
             begin += MATMUL_PLAIN_SPAN) {
            uint32_t left = part_end - begin;
            uint32_t end = begin + (left < MATMUL_PLAIN_SPAN ? left : MATMUL_PLAIN_SPAN);
            direct_span(dtype, data, x, cols, begin, end, groups, rows, acc);
        }
        if (!parts_fold(tile, part, acc, DIRECT_SUMS, wait)) {
            continue;
        }
        AVX2_UNROLL
        for (int g = 0; g < groups; g++) {
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                store(tile, part, group + (uint32_t)g, tile->row_begin + (uint32_t)r,
                      acc[g * MATMUL_FEW_ROWS + r]);
            }
        }
    }
}

AVX2_INLINE void direct(enum dtype dtype, const struct matmul_tile *tile, int rows) {
    for (uint32_t group = tile->group_begin; group < tile->group_end; group += PACK_STRIP) {
        uint32_t left = tile->group_end - group;
        if (left >= 3) {
            direct_strip(dtype, tile, group, 3, rows);
        } else if (left == 2) {
            direct_strip(dtype, tile, group, 2, rows);
        } else {
            direct_strip(dtype, tile, group, 1, rows);
        }
    }
}

// ---- many rows: a span of columns is converted once ---------------------------------------------

AVX2_INLINE void convert_span(enum dtype dtype, struct pack_place place, uint32_t begin,
                              uint32_t count, uint32_t groups, uint32_t g, float *out) {
    for (uint32_t c = 0; c < count; c++) {
        _mm256_store_ps(out + (size_t)PACK_ROWS * (c * groups + g),
                        column(dtype, place.data + place.step_bytes * (begin + c)));
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
    float *span = (float *)(void *)tile->scratch;
    float *acc = span + MATMUL_PLAIN_SPAN * PLAIN_GROUPS * PACK_ROWS;
    uint32_t rows = tile->row_end - tile->row_begin;
    size_t sums = (size_t)rows * (uint32_t)groups * PACK_ROWS;
    for (uint32_t part = 0; part < tile->part_count; part++) {
        uint32_t part_end = matmul_part_cols(tile) * (part + 1);
        memset(acc, 0, sums * sizeof *acc);
        for (uint32_t begin = matmul_part_cols(tile) * part; begin < part_end;
             begin += MATMUL_PLAIN_SPAN) {
            uint32_t left = part_end - begin;
            uint32_t count = left < MATMUL_PLAIN_SPAN ? left : MATMUL_PLAIN_SPAN;
            for (uint32_t g = 0; g < (uint32_t)groups; g++) {
                convert_span(dtype, pack_place_of(tile->weight, group + g), begin, count,
                             (uint32_t)groups, g, span);
            }
            span_all_rows(tile, span, begin, count, groups, acc);
        }
        if (!matmul_fold(tile, part, acc, sums)) {
            continue;
        }
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t g = 0; g < (uint32_t)groups; g++) {
                matmul_store(tile, part, group + g, tile->row_begin + r,
                             acc + ((size_t)r * (uint32_t)groups + g) * PACK_ROWS);
            }
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
