// SPDX-License-Identifier: Apache-2.0
// Many input rows on AVX-512: panels of six groups, unpacked as on AVX2, are three vectors of 16
// rows; four input rows at once make twelve sums in registers.
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matmul_avx512.h"

enum {
    VECTORS = MATMUL_PANEL_GROUPS / 2,
    ROWS = MATMUL_AVX512_ROWS,
    LANES = 2 * PACK_ROWS,
    VECTOR_BYTES = 2 * PACK_QUAD_BYTES,
};

AVX2_INLINE __m512i broadcast4(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

// Sums of the input rows that a call works on.
struct sums {
    __m512 acc[ROWS][VECTORS];
    float *at;
};

AVX2_INLINE struct sums load_sums(const struct matmul_tile *tile, const struct matmul_panel *panel,
                                  uint32_t row, int rows) {
    struct sums sums;
    sums.at = panel->acc + (size_t)(row - tile->row_begin) * VECTORS * LANES;
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        AVX2_UNROLL
        for (int v = 0; v < VECTORS; v++) {
            sums.acc[r][v] = _mm512_load_ps(sums.at + (r * VECTORS + v) * LANES);
        }
    }
    return sums;
}

AVX2_INLINE void store_sums(const struct sums *sums, int rows) {
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        AVX2_UNROLL
        for (int v = 0; v < VECTORS; v++) {
            _mm512_store_ps(sums->at + (r * VECTORS + v) * LANES, sums->acc[r][v]);
        }
    }
}

// Unsigned bytes times signed ones, four columns a step.
AVX2_INLINE void rows_bytes(const struct matmul_tile *tile, const struct matmul_panel *panel,
                            uint32_t row, int rows) {
    const struct matmul_input *input = tile->input;
    struct sums sums = load_sums(tile, panel, row, rows);
    const int8_t *q =
        input->q + (size_t)row * input->cols + (size_t)PACK_BLOCK * panel->block_begin;
    size_t first = (size_t)row * input->block_count + panel->block_begin;
    const float *input_scale = input->scale + first;
    const float *input_sum = input->sum + first;
    const uint8_t *w = panel->w;
    const float *scale = panel->scale;
    const float *min = panel->min;
    for (uint32_t b = 0; b < panel->block_count; b++) {
        __m512i dot[ROWS][VECTORS];
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                dot[r][v] = _mm512_setzero_si512();
            }
        }
        AVX2_UNROLL
        for (int k = 0; k < 8; k++) {
            __m512i value[VECTORS];
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                value[v] = _mm512_load_si512(w + (k * VECTORS + v) * VECTOR_BYTES);
            }
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                __m512i x = broadcast4(q + (size_t)r * input->cols + 4 * k);
                AVX2_UNROLL
                for (int v = 0; v < VECTORS; v++) {
                    dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], value[v], x);
                    AVX512_KEEP_ORDER(dot[r][v]);
                }
            }
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 dx = _mm512_set1_ps(input_scale[(size_t)r * input->block_count + b]);
            __m512 sx = _mm512_set1_ps(input_sum[(size_t)r * input->block_count + b]);
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                __m512 both = _mm512_mul_ps(_mm512_load_ps(scale + v * LANES), dx);
                __m512 sum = sums.acc[r][v];
                sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][v]), both, sum);
                sums.acc[r][v] = _mm512_fmadd_ps(_mm512_load_ps(min + v * LANES), sx, sum);
            }
        }
        q += PACK_BLOCK;
        w += 8 * VECTORS * VECTOR_BYTES;
        scale += VECTORS * LANES;
        min += VECTORS * LANES;
    }
    store_sums(&sums, rows);
}

// int16 pairs: the even and the odd columns of a quad one after the other.
AVX2_INLINE void rows_words(const struct matmul_tile *tile, const struct matmul_panel *panel,
                            uint32_t row, int rows) {
    const struct matmul_input *input = tile->input;
    struct sums sums = load_sums(tile, panel, row, rows);
    const int16_t *q =
        input->q16 + (size_t)row * input->cols + (size_t)PACK_BLOCK * panel->block_begin;
    const float *input_scale = input->scale + (size_t)row * input->block_count + panel->block_begin;
    const uint8_t *w = panel->w;
    const float *scale = panel->scale;
    for (uint32_t b = 0; b < panel->block_count; b++) {
        __m512i dot[ROWS][VECTORS];
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                dot[r][v] = _mm512_setzero_si512();
            }
        }
        AVX2_UNROLL
        for (int k = 0; k < 16; k++) {
            __m512i value[VECTORS];
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                value[v] = _mm512_load_si512(w + (k * VECTORS + v) * VECTOR_BYTES);
            }
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                __m512i x = broadcast4(q + (size_t)r * input->cols + 2 * k);
                AVX2_UNROLL
                for (int v = 0; v < VECTORS; v++) {
                    dot[r][v] = _mm512_dpwssd_epi32(dot[r][v], value[v], x);
                    AVX512_KEEP_ORDER(dot[r][v]);
                }
            }
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 dx = _mm512_set1_ps(input_scale[(size_t)r * input->block_count + b]);
            AVX2_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                __m512 both = _mm512_mul_ps(_mm512_load_ps(scale + v * LANES), dx);
                sums.acc[r][v] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][v]), both, sums.acc[r][v]);
            }
        }
        q += PACK_BLOCK;
        w += 16 * VECTORS * VECTOR_BYTES;
        scale += VECTORS * LANES;
    }
    store_sums(&sums, rows);
}

#define EACH_ROWS(fn)                                                                              \
    uint32_t row = tile->row_begin;                                                                \
    for (; row + ROWS <= tile->row_end; row += ROWS) {                                             \
        fn(tile, panel, row, ROWS);                                                                \
    }                                                                                              \
    if (tile->row_end - row == 3) {                                                                \
        fn(tile, panel, row, 3);                                                                   \
    } else if (tile->row_end - row == 2) {                                                         \
        fn(tile, panel, row, 2);                                                                   \
    } else if (tile->row_end - row == 1) {                                                         \
        fn(tile, panel, row, 1);                                                                   \
    }

static void panel_bytes(const struct matmul_tile *tile, const struct matmul_panel *panel) {
    EACH_ROWS(rows_bytes)
}

static void panel_words(const struct matmul_tile *tile, const struct matmul_panel *panel) {
    EACH_ROWS(rows_words)
}

const struct matmul_panel_kernels matmul_panel_kernels_avx512 = {
    .group_count = MATMUL_PANEL_GROUPS,
    .min4 = panel_bytes,
    .min5 = panel_bytes,
    .words = panel_words,
};
