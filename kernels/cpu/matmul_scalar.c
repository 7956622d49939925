// SPDX-License-Identifier: Apache-2.0
// The meaning of the matrix product: plain loops, one chain per output element.
#include "kernels/cpu/arith.h"
#include "kernels/cpu/matmul.h"

static void prepare_scalar(const struct op_matmul_args *args, uint32_t in_row,
                           const struct matmul_input *input, uint32_t out_row) {
    uint32_t cols = input->cols;
    float factor = 0.0f;
    if (args->input == OP_INPUT_RMS_NORM) {
        const float *x = args->x + (size_t)in_row * args->x_stride;
        factor = arith_rms_factor(arith_sum_squares(x, cols), cols, args->norm_eps);
    }
    if (input->x != NULL) {
        matmul_transform(args, in_row, factor, 0, cols, input->x + (size_t)out_row * cols);
    }
    if (input->q == NULL) {
        return;
    }
    for (uint32_t b = 0; b < input->block_count; b++) {
        float block[PACK_BLOCK];
        size_t at = (size_t)out_row * input->block_count + b;
        matmul_transform(args, in_row, factor, PACK_BLOCK * b, PACK_BLOCK, block);
        arith_quantise32(block, input->q + (size_t)out_row * cols + (size_t)PACK_BLOCK * b,
                         &input->scale[at], &input->sum[at]);
    }
}

static int dot32(const int16_t *weight, const int8_t *q) {
    int dot = 0;
    for (int i = 0; i < PACK_BLOCK; i++) {
        dot += weight[i] * q[i];
    }
    return dot;
}

static void add_block(const struct matmul_input *input, uint32_t row, uint32_t block_index,
                      const struct pack_block *block, bool has_min, float *acc) {
    size_t at = (size_t)row * input->block_count + block_index;
    const int8_t *q = input->q + (size_t)row * input->cols + (size_t)PACK_BLOCK * block_index;
    for (int i = 0; i < PACK_ROWS; i++) {
        float dot = (float)dot32(block->value[i], q);
        acc[i] = fmaf(dot, block->scale[i] * input->scale[at], acc[i]);
        if (has_min) {
            acc[i] = fmaf(block->min[i], input->sum[at], acc[i]);
        }
    }
}

// Blocks of part `part`, rows of the tile, to acc.
static void part_quantised(const struct matmul_tile *tile, uint32_t group, uint32_t part,
                           float acc[][PACK_ROWS]) {
    bool has_min = pack_has_min(tile->weight->dtype);
    uint32_t count = matmul_part_cols(tile) / PACK_BLOCK;
    for (uint32_t b = count * part; b < count * (part + 1); b++) {
        struct pack_block block;
        pack_read_block(tile->weight, group, b, &block);
        for (uint32_t r = tile->row_begin; r < tile->row_end; r++) {
            add_block(tile->input, r, b, &block, has_min, acc[r - tile->row_begin]);
        }
    }
}

static void part_plain(const struct matmul_tile *tile, uint32_t group, uint32_t part,
                       float acc[][PACK_ROWS]) {
    const struct op_weight *weight = tile->weight;
    struct pack_place place = pack_place_of(weight, group);
    uint32_t part_end = matmul_part_cols(tile) * (part + 1);
    for (uint32_t begin = matmul_part_cols(tile) * part; begin < part_end;
         begin += MATMUL_PLAIN_SPAN) {
        uint32_t left = part_end - begin;
        uint32_t count = left < MATMUL_PLAIN_SPAN ? left : MATMUL_PLAIN_SPAN;
        float span[MATMUL_PLAIN_SPAN * PACK_ROWS];
        for (uint32_t c = 0; c < count; c++) {
            dtype_decode(weight->dtype, place.data + place.step_bytes * (begin + c), PACK_ROWS,
                         &span[PACK_ROWS * c]);
        }
        for (uint32_t r = tile->row_begin; r < tile->row_end; r++) {
            const float *x = tile->input->x + (size_t)r * weight->cols + begin;
            float sum[PACK_ROWS] = {0};
            for (uint32_t c = 0; c < count; c++) {
                for (int i = 0; i < PACK_ROWS; i++) {
                    sum[i] = fmaf(span[PACK_ROWS * c + (uint32_t)i], x[c], sum[i]);
                }
            }
            for (int i = 0; i < PACK_ROWS; i++) {
                acc[r - tile->row_begin][i] += sum[i];
            }
        }
    }
}

static void tile_scalar(const struct matmul_tile *tile) {
    uint32_t rows = tile->row_end - tile->row_begin;
    for (uint32_t group = tile->group_begin; group < tile->group_end; group++) {
        for (uint32_t part = 0; part < tile->part_count; part++) {
            float acc[MATMUL_TILE_ROWS][PACK_ROWS] = {{0}};
            if (pack_is_plain(tile->weight->dtype)) {
                part_plain(tile, group, part, acc);
            } else {
                part_quantised(tile, group, part, acc);
            }
            if (!matmul_fold(tile, part, acc[0], (size_t)rows * PACK_ROWS)) {
                continue;
            }
            for (uint32_t r = 0; r < rows; r++) {
                matmul_store(tile, part, group, tile->row_begin + r, acc[r]);
            }
        }
    }
}

const struct matmul_kernels matmul_kernels_scalar = {
    .prepare = prepare_scalar,
    .tile = tile_scalar,
    .thread_scratch_bytes = 0,
    .row_step = 1,
};
