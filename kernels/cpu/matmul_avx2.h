// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_MATMUL_AVX2_H
#define KERNELS_CPU_MATMUL_AVX2_H

#include "kernels/cpu/matmul.h"

// The matrix product on AVX2, in four files: rows to 8 bits (matmul_input_avx2.c), few input rows
// straight from packed weights (matmul_direct_avx2.c), many input rows against weights unpacked
// once per tile (matmul_tile_avx2.c), and plain weights (matmul_plain_avx2.c).
//
// The idea: lanes are output rows, so nothing is summed across lanes and the order of operations
// is that of matmul.h. Integer sums are exact, so each path may choose its own instructions.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum {
    // Unpacked weights: half a first-level cache. 3 groups x 24 blocks, or 6 x 12.
    MATMUL_PANEL_BLOCK_GROUPS = 72,
    MATMUL_TILE_BYTES = MATMUL_PANEL_BLOCK_GROUPS * PACK_ROWS * PACK_BLOCK,
    MATMUL_SCALE_FLOATS = MATMUL_PANEL_BLOCK_GROUPS * PACK_ROWS,
    MATMUL_ACC_FLOATS = MATMUL_TILE_ROWS * MATMUL_PANEL_GROUPS * PACK_ROWS,
    MATMUL_SCRATCH_BYTES = MATMUL_TILE_BYTES + 4 * (2 * MATMUL_SCALE_FLOATS + MATMUL_ACC_FLOATS),
};

// Blocks [block_begin, block_begin + block_count) of `group_count` groups, unpacked. `w` is
// [block][quad][group][32 bytes], or for signed types [block][quad][even, odd][group][16 words].
struct matmul_panel {
    uint8_t *w;
    float *scale;    // [block][group][8]
    float *min;      // the same, types with a minimum
    float *acc;      // [row - row_begin][group][8]
    uint32_t group_count;
    uint32_t block_begin;
    uint32_t block_count;
};

// acc += panel x input rows, for each kind of value.
struct matmul_panel_kernels {
    uint32_t group_count;    // groups of a full panel
    void (*min4)(const struct matmul_tile *tile, const struct matmul_panel *panel);    // 0..15
    void (*min5)(const struct matmul_tile *tile, const struct matmul_panel *panel);    // 0..31
    void (*words)(const struct matmul_tile *tile, const struct matmul_panel *panel);
};

extern const struct matmul_panel_kernels matmul_panel_kernels_avx2;

void matmul_prepare_avx2(const struct op_matmul_args *args, uint32_t in_row,
                         const struct matmul_input *input, uint32_t out_row);
void matmul_direct_avx2(const struct matmul_tile *tile, uint32_t group);
void matmul_tiled_avx2(const struct matmul_tile *tile, const struct matmul_panel_kernels *kernels);
void matmul_plain_avx2(const struct matmul_tile *tile);

#endif
