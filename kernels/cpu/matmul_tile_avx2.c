// SPDX-License-Identifier: Apache-2.0
// Many input rows: weights of three groups are unpacked once, a cache-sized run of blocks at a
// time, then multiplied with three input rows at once, nine int16 sums in registers.
#include "common/invariant.h"
#include "kernels/cpu/matmul_avx2.h"
#include "kernels/cpu/quads_avx2.h"

enum { GROUPS = PACK_STRIP, ROWS = 3 };

// ---- unpacking ---------------------------------------------------------------------------------

AVX2_INLINE void put(uint8_t *at, __m256i v) {
    _mm256_storeu_si256((__m256i *)at, v);
}

// Block `b` of one group to slot `block` of the panel.
AVX2_INLINE void unpack_block(enum dtype dtype, struct pack_place place, uint32_t b,
                              const struct matmul_panel *panel, uint32_t block, uint32_t g) {
    const uint8_t *unit = quads_unit(dtype, place.data, place.step_bytes, b);
    const uint8_t *data = quads_data(dtype, unit, b);
    size_t step = (size_t)PACK_QUAD_BYTES * panel->group_count;    // to the next vector of g
    uint8_t *w = panel->w + (size_t)PACK_QUAD_BYTES * g;
    __m256 scale = quads_scale(dtype, unit, b);
    size_t lane = ((size_t)block * panel->group_count + g) * PACK_ROWS;
    _mm256_storeu_ps(panel->scale + lane, scale);
    if (dtype == DTYPE_Q8_0 || dtype == DTYPE_Q6_K) {
        w += 16 * step * block;
        AVX2_UNROLL
        for (uint32_t quad = 0; quad < 8; quad++) {
            __m256i even, odd;
            quads_words(dtype, unit, b, quad, &even, &odd);
            put(w + step * (2 * quad), even);
            put(w + step * (2 * quad + 1), odd);
        }
        return;
    }
    _mm256_storeu_ps(panel->min + lane, quads_min(dtype, unit, b, scale));
    w += 8 * step * block;
    AVX2_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        __m256i low, high;
        quads_bytes(dtype, data, k, &low, &high);
        put(w + step * k, low);
        put(w + step * (k + 4), high);
    }
}

AVX2_INLINE void unpack_blocks(enum dtype dtype, struct pack_place group,
                               const struct matmul_panel *panel, uint32_t g) {
    for (uint32_t i = 0; i < panel->block_count; i++) {
        unpack_block(dtype, group, panel->block_begin + i, panel, i, g);
    }
}

static void unpack_group(enum dtype dtype, struct pack_place group,
                         const struct matmul_panel *panel, uint32_t g) {
    switch (dtype) {
    case DTYPE_Q4_0:
        unpack_blocks(DTYPE_Q4_0, group, panel, g);
        return;
    case DTYPE_Q4_1:
        unpack_blocks(DTYPE_Q4_1, group, panel, g);
        return;
    case DTYPE_Q5_0:
        unpack_blocks(DTYPE_Q5_0, group, panel, g);
        return;
    case DTYPE_Q5_1:
        unpack_blocks(DTYPE_Q5_1, group, panel, g);
        return;
    case DTYPE_Q8_0:
        unpack_blocks(DTYPE_Q8_0, group, panel, g);
        return;
    case DTYPE_Q4_K:
        unpack_blocks(DTYPE_Q4_K, group, panel, g);
        return;
    case DTYPE_Q5_K:
        unpack_blocks(DTYPE_Q5_K, group, panel, g);
        return;
    default:
        unpack_blocks(DTYPE_Q6_K, group, panel, g);
        return;
    }
}

// ---- multiplying -------------------------------------------------------------------------------

AVX2_INLINE __m256i broadcast4(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm256_set1_epi32(four);
}

// Quads [first, first + count) of one block: int16 sums of byte products.
AVX2_INLINE void sum_bytes(const uint8_t *w, const int8_t *const *q, int rows, uint32_t first,
                           uint32_t count, __m256i sum[ROWS][GROUPS]) {
    AVX2_UNROLL
    for (uint32_t k = first; k < first + count; k++) {
        __m256i v[GROUPS];
        AVX2_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            v[g] = _mm256_load_si256((const __m256i *)w + k * GROUPS + (uint32_t)g);
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256i x = broadcast4(q[r] + 4 * k);
            AVX2_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                __m256i p = _mm256_maddubs_epi16(v[g], x);
                sum[r][g] = k == first ? p : _mm256_add_epi16(sum[r][g], p);
                AVX2_KEEP_ORDER(sum[r][g]);
            }
        }
    }
}

AVX2_INLINE void rows_min(const struct matmul_tile *tile, const struct matmul_panel *panel,
                          uint32_t row, bool five, int rows) {
    const struct matmul_input *input = tile->input;
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q[ROWS];
    const float *input_scale[ROWS], *input_sum[ROWS];
    __m256 acc[ROWS][GROUPS];
    float *acc_at = panel->acc + (size_t)(row - tile->row_begin) * GROUPS * PACK_ROWS;
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        size_t at = row + (uint32_t)r;
        q[r] = input->q + at * input->cols + (size_t)PACK_BLOCK * panel->block_begin;
        input_scale[r] = input->scale + at * input->block_count + panel->block_begin;
        input_sum[r] = input->sum + at * input->block_count + panel->block_begin;
        AVX2_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            acc[r][g] = _mm256_load_ps(acc_at + (r * GROUPS + g) * PACK_ROWS);
        }
    }
    const uint8_t *w = panel->w;
    const float *scale = panel->scale;
    const float *min = panel->min;
    for (uint32_t b = 0; b < panel->block_count; b++) {
        __m256i sum[ROWS][GROUPS], wide[ROWS][GROUPS];
        sum_bytes(w, q, rows, 0, five ? 4 : 8, sum);
        if (five) {
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                AVX2_UNROLL
                for (int g = 0; g < GROUPS; g++) {
                    wide[r][g] = _mm256_madd_epi16(sum[r][g], ones);
                }
            }
            sum_bytes(w, q, rows, 4, 4, sum);
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 dx = _mm256_broadcast_ss(input_scale[r] + b);
            __m256 sx = _mm256_broadcast_ss(input_sum[r] + b);
            AVX2_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                __m256i dot = _mm256_madd_epi16(sum[r][g], ones);
                dot = five ? _mm256_add_epi32(dot, wide[r][g]) : dot;
                __m256 both = _mm256_mul_ps(_mm256_load_ps(scale + g * PACK_ROWS), dx);
                acc[r][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc[r][g]);
                acc[r][g] = _mm256_fmadd_ps(_mm256_load_ps(min + g * PACK_ROWS), sx, acc[r][g]);
            }
            q[r] += PACK_BLOCK;
        }
        w += 8 * PACK_QUAD_BYTES * GROUPS;
        scale += GROUPS * PACK_ROWS;
        min += GROUPS * PACK_ROWS;
    }
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        AVX2_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            _mm256_store_ps(acc_at + (r * GROUPS + g) * PACK_ROWS, acc[r][g]);
        }
    }
}

AVX2_INLINE void rows_words(const struct matmul_tile *tile, const struct matmul_panel *panel,
                            uint32_t row, int rows) {
    const struct matmul_input *input = tile->input;
    const int16_t *q[ROWS];
    const float *input_scale[ROWS];
    __m256 acc[ROWS][GROUPS];
    float *acc_at = panel->acc + (size_t)(row - tile->row_begin) * GROUPS * PACK_ROWS;
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        size_t at = row + (uint32_t)r;
        q[r] = input->q16 + at * input->cols + (size_t)PACK_BLOCK * panel->block_begin;
        input_scale[r] = input->scale + at * input->block_count + panel->block_begin;
        AVX2_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            acc[r][g] = _mm256_load_ps(acc_at + (r * GROUPS + g) * PACK_ROWS);
        }
    }
    const __m256i *w = (const __m256i *)panel->w;
    const float *scale = panel->scale;
    for (uint32_t b = 0; b < panel->block_count; b++) {
        __m256i sum[ROWS][GROUPS];
        AVX2_UNROLL
        for (int k = 0; k < 16; k++) {
            __m256i v[GROUPS];
            AVX2_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                v[g] = _mm256_load_si256(w + k * GROUPS + g);
            }
            AVX2_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256i x = broadcast4(q[r] + 2 * k);
                AVX2_UNROLL
                for (int g = 0; g < GROUPS; g++) {
                    __m256i p = _mm256_madd_epi16(v[g], x);
                    sum[r][g] = k == 0 ? p : _mm256_add_epi32(sum[r][g], p);
                    AVX2_KEEP_ORDER(sum[r][g]);
                }
            }
        }
        AVX2_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 dx = _mm256_broadcast_ss(input_scale[r] + b);
            AVX2_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                __m256 both = _mm256_mul_ps(_mm256_load_ps(scale + g * PACK_ROWS), dx);
                acc[r][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][g]), both, acc[r][g]);
            }
            q[r] += PACK_BLOCK;
        }
        w += 16 * GROUPS;
        scale += GROUPS * PACK_ROWS;
    }
    AVX2_UNROLL
    for (int r = 0; r < rows; r++) {
        AVX2_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            _mm256_store_ps(acc_at + (r * GROUPS + g) * PACK_ROWS, acc[r][g]);
        }
    }
}

// Rows in threes; one left over of four is cheaper as two and two.
#define EACH_ROWS(call)                                                                            \
    for (uint32_t row = tile->row_begin; row < tile->row_end;) {                                   \
        uint32_t left = tile->row_end - row;                                                       \
        if (left == 1) {                                                                           \
            call(1);                                                                               \
            row += 1;                                                                              \
        } else if (left == 2 || left == 4) {                                                       \
            call(2);                                                                               \
            row += 2;                                                                              \
        } else {                                                                                   \
            call(3);                                                                               \
            row += 3;                                                                              \
        }                                                                                          \
    }

static void panel_min4(const struct matmul_tile *tile, const struct matmul_panel *panel) {
#define ROWS_MIN4(rows) rows_min(tile, panel, row, false, rows)
    EACH_ROWS(ROWS_MIN4)
}

static void panel_min5(const struct matmul_tile *tile, const struct matmul_panel *panel) {
#define ROWS_MIN5(rows) rows_min(tile, panel, row, true, rows)
    EACH_ROWS(ROWS_MIN5)
}

static void panel_words(const struct matmul_tile *tile, const struct matmul_panel *panel) {
#define ROWS_WORDS(rows) rows_words(tile, panel, row, rows)
    EACH_ROWS(ROWS_WORDS)
}

const struct matmul_panel_kernels matmul_panel_kernels_avx2 = {
    .group_count = GROUPS,
    .min4 = panel_min4,
    .min5 = panel_min5,
    .words = panel_words,
};

// ---- tiles -------------------------------------------------------------------------------------

// The chains over one part's blocks, `most` of them unpacked at a time.
static void run_part(const struct matmul_tile *tile, struct matmul_panel *panel, uint32_t group,
                     uint32_t present, uint32_t part, const struct matmul_panel_kernels *kernels) {
    const struct op_weight *weight = tile->weight;
    bool words = !pack_has_min(weight->dtype);
    uint32_t most = MATMUL_TILE_BYTES / (panel->group_count * PACK_ROWS * PACK_BLOCK);
    most = words ? most / 2 : most;
    uint32_t part_blocks = matmul_part_cols(tile) / PACK_BLOCK;
    uint32_t block_end = part_blocks * (part + 1);
    for (uint32_t begin = part_blocks * part; begin < block_end; begin += most) {
        panel->block_begin = begin;
        panel->block_count = block_end - begin < most ? block_end - begin : most;
        for (uint32_t g = 0; g < present; g++) {
            unpack_group(weight->dtype, pack_place_of(weight, group + g), panel, g);
        }
        if (words) {
            kernels->words(tile, panel);
        } else if (quads_has_fifth(weight->dtype)) {
            kernels->min5(tile, panel);
        } else {
            kernels->min4(tile, panel);
        }
    }
}

// `present` groups of the panel exist; the others are zeros, whose sums nobody stores.
static void run_panel(const struct matmul_tile *tile, struct matmul_panel *panel, uint32_t group,
                      uint32_t present, const struct matmul_panel_kernels *kernels) {
    uint32_t rows = tile->row_end - tile->row_begin;
    size_t sums = (size_t)rows * panel->group_count * PACK_ROWS;
    if (present < panel->group_count) {
        memset(panel->w, 0, MATMUL_TILE_BYTES);
        memset(panel->scale, 0, 2 * MATMUL_SCALE_FLOATS * sizeof(float));
    }
    for (uint32_t part = 0; part < tile->part_count; part++) {
        memset(panel->acc, 0, sums * sizeof(float));
        run_part(tile, panel, group, present, part, kernels);
        if (!matmul_fold(tile, part, panel->acc, sums)) {
            continue;
        }
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t g = 0; g < present; g++) {
                matmul_store(tile, part, group + g, tile->row_begin + r,
                             panel->acc + ((size_t)r * panel->group_count + g) * PACK_ROWS);
            }
        }
    }
}

void matmul_tiled_avx2(const struct matmul_tile *tile, const struct matmul_panel_kernels *kernels) {
    float *floats = (float *)(void *)(tile->scratch + MATMUL_TILE_BYTES);
    struct matmul_panel panel = {
        .w = tile->scratch,
        .scale = floats,
        .min = floats + MATMUL_SCALE_FLOATS,
        .acc = floats + 2 * MATMUL_SCALE_FLOATS,
        .group_count = kernels->group_count,
    };
    bool single = tile->row_end - tile->row_begin == 1;
    uint32_t group = tile->group_begin;
    while (group < tile->group_end) {
        uint32_t left = tile->group_end - group;
        if (single && left >= PACK_STRIP) {
            matmul_direct_avx2(tile, group);
            group += PACK_STRIP;
            continue;
        }
        uint32_t present = left < panel.group_count ? left : panel.group_count;
        run_panel(tile, &panel, group, present, kernels);
        group += present;
    }
}
