// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/cpu/pack.h"
#include "kernels/ops.h"
#include <string.h>

// Matrix product with packed weights: the driver that cuts it into tasks, and the two inner pieces
// each instruction set supplies.
//
// The idea: first every input row is brought into the form the weights want, once (norm or SiLU
// applied, then 8 bits per 32 columns for quantised weights, float32 for plain ones); then tiles of
// 8-row groups x input rows are taken from a counter. An output element is computed by one fixed
// chain over its columns, whatever tile it falls into:
//
//   quantised: for each block of 32 columns, with the integer dot product exact,
//                  acc = fma(dot, weight_scale * input_scale, acc)
//                  acc = fma(weight_min, input_sum, acc)            (types with a minimum)
//   plain:     for each span of 64 columns, part = 0, then for each column
//                  part = fma(weight, x, part)
//              and acc = acc + part: short chains round less than one over all columns.
//
// With args->parts the columns are cut into equal runs, each of which has such a chain of its own.
// Finished sums of a strip wait on a stack until their partner in the pairwise tree is there, as a
// binary counter carries.
//
//   Owns       nothing; all memory is the caller's scratch.
//   Thread     as the operation table says.
//   Allocates  never.
//   Fails      never.

enum {
    MATMUL_TILE_ROWS = 128,     // most input rows of a task: what stays in a second-level cache
    MATMUL_FEW_ROWS = 3,        // up to this many, reading weights takes longer than multiplying
    MATMUL_PLAIN_SPAN = 64,     // columns of one chain of a plain weight
    MATMUL_PANEL_GROUPS = 6,    // most groups whose sums are made together
    MATMUL_STACK_LEVELS = 3,    // sums of 1, 2 and 4 parts
    MATMUL_STACK_SUMS = MATMUL_TILE_ROWS * MATMUL_PANEL_GROUPS,    // of 8 rows each, of a level
    MATMUL_STACK_BYTES = MATMUL_STACK_LEVELS * MATMUL_STACK_SUMS * PACK_ROWS * 4,
};

// Input rows in prepared form. Pointers that no weight needs are NULL.
struct matmul_input {
    uint32_t row_count;
    uint32_t cols;
    uint32_t block_count;    // cols / 32
    int8_t *q;               // [row_count, cols]
    int16_t *q16;            // the same for Q8_0 and Q6_K, each four in the order 0, 2, 1, 3
    float *scale;            // [row_count, block_count]
    float *sum;              // [row_count, block_count] scale * sum of q
    float *x;                // [row_count, cols]
};

// One task: rows of groups [group_begin, group_end) for input rows [row_begin, row_end), at most
// MATMUL_TILE_ROWS of them. `y` points at input row 0 of this pass.
struct matmul_tile {
    const struct op_weight *weight;
    const struct matmul_input *input;
    uint32_t group_begin, group_end;
    uint32_t row_begin, row_end;
    uint32_t part_count;
    size_t part_stride;    // 0: parts are added; else each is stored so far from the last in y
    float *y;              // [row_count, y_stride]
    uint32_t y_stride;
    bool accumulate;
    uint8_t *scratch;    // this thread's, 64-byte aligned
    float *stack;        // [MATMUL_STACK_LEVELS][MATMUL_STACK_SUMS][8] where parts are added
};

struct matmul_kernels {
    // Writes prepared row `out_row` from row `in_row` of the arguments' x.
    void (*prepare)(const struct op_matmul_args *args, uint32_t in_row,
                    const struct matmul_input *input, uint32_t out_row);
    void (*tile)(const struct matmul_tile *tile);
    size_t thread_scratch_bytes;
    uint32_t row_step;    // input rows the inner step takes at once: tiles have a multiple of them
};

extern const struct matmul_kernels matmul_kernels_scalar;
extern const struct matmul_kernels matmul_kernels_avx2;
extern const struct matmul_kernels matmul_kernels_avx512;

size_t matmul_scratch(const struct op_ctx *ctx, const struct op_matmul_args *args,
                      const struct matmul_kernels *kernels);
void matmul_run(const struct op_ctx *ctx, const struct op_matmul_args *args,
                const struct matmul_kernels *kernels);

// One product whose rows use different weights of one shape: rows [row_begin[s], row_begin[s + 1])
// of the arguments those of expert s. args->weight[w] is the first expert's. NULL `experts`: one
// weight for all rows, as matmul_run.
struct matmul_experts {
    uint32_t count;
    const uint32_t *row_begin;                     // [count + 1]
    size_t stride_bytes[OP_MATMUL_WEIGHTS_MAX];    // from one expert's weight to the next one's
    uint32_t *task_begin;                          // [count + 1] room for the driver
};
void matmul_run_experts(const struct op_ctx *ctx, const struct op_matmul_args *args,
                        const struct matmul_experts *experts, const struct matmul_kernels *kernels);

// The input transform for one element range, shared by the scalar table and the ends of rows in
// the vector ones: out[0..count) from columns [begin, begin + count).
void matmul_transform(const struct op_matmul_args *args, uint32_t in_row, float rms_factor,
                      uint32_t begin, uint32_t count, float *out);

// Columns of one part.
static inline uint32_t matmul_part_cols(const struct matmul_tile *tile) {
    return tile->input->cols / tile->part_count;
}

// Adds the finished sums of a part, [count] of one strip or panel, to those that wait for them;
// true when `sum` is to be stored: it is now of all parts, or parts stay apart.
static inline bool matmul_fold(const struct matmul_tile *tile, uint32_t part, float *restrict sum,
                               size_t count) {
    if (tile->part_count == 1 || tile->part_stride > 0) {
        return true;
    }
    float *restrict wait = tile->stack;
    for (uint32_t bits = part; bits % 2 == 1; bits /= 2) {
        for (size_t i = 0; i < count; i++) {
            sum[i] = wait[i] + sum[i];
        }
        wait += (size_t)MATMUL_STACK_SUMS * PACK_ROWS;
    }
    if (part + 1 == tile->part_count) {
        return true;
    }
    memcpy(wait, sum, count * sizeof *sum);
    return false;
}

// Writes 8 finished sums to rows 8 * group .. of y[row], leaving out those past the weight's end.
static inline void matmul_store(const struct matmul_tile *tile, uint32_t part, uint32_t group,
                                uint32_t row, const float *sum) {
    float *y = tile->y + tile->part_stride * part + (size_t)row * tile->y_stride +
               (size_t)PACK_ROWS * group;
    uint32_t left = tile->weight->rows - PACK_ROWS * group;
    uint32_t count = left < PACK_ROWS ? left : PACK_ROWS;
    for (uint32_t i = 0; i < count; i++) {
        y[i] = tile->accumulate ? y[i] + sum[i] : sum[i];
    }
}

#endif
