// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "kernels/cpu/arith.h"
#include "kernels/cpu/pack.h"
#include <string.h>

// Values per task: some microseconds, so that one row stays on the caller.
enum { TASK_ELEMENTS = 4096 };

static uint32_t rows_per_task(uint32_t cols) {
    return cols >= TASK_ELEMENTS ? 1 : TASK_ELEMENTS / cols;
}

static uint32_t task_count(uint32_t rows, uint32_t cols) {
    uint32_t per_task = rows_per_task(cols);
    return rows / per_task + (rows % per_task != 0);
}

static void embed_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct op_embed_args *args = arg;
    const struct op_weight *weight = args->weight;
    uint32_t per_task = rows_per_task(weight->cols);
    uint32_t end = u32_min((task_index + 1) * per_task, args->step->row_count);
    for (uint32_t r = task_index * per_task; r < end; r++) {
        INVARIANT(args->step->token[r] >= 0);
        // Below token_begin the difference wraps to a large number.
        uint32_t row = (uint32_t)args->step->token[r] - args->token_begin;
        float *y = args->y + (size_t)r * weight->cols;
        if (row < weight->rows) {
            pack_decode_row(weight, row, y);
        } else {
            memset(y, 0, weight->cols * sizeof *y);
        }
        if (args->zero != NULL) {
            memset(args->zero + (size_t)r * weight->cols, 0, weight->cols * sizeof *y);
        }
    }
}

void elementwise_embed(const struct op_ctx *ctx, const struct op_embed_args *args) {
    struct op_embed_args copy = *args;
    ctx->parallel(ctx->pool, task_count(args->step->row_count, args->weight->cols), embed_task,
                  &copy);
}

void rms_norm_row_scalar(const float *x, const float *weight, float *y, uint32_t cols, float eps) {
    float factor = arith_rms_factor(arith_sum_squares(x, cols), cols, eps);
    for (uint32_t i = 0; i < cols; i++) {
        y[i] = weight[i] * (x[i] * factor);
    }
}

struct norm_job {
    const struct op_rms_norm_args *args;
    rms_norm_row_fn row;
};

static void norm_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    struct norm_job *job = arg;
    const struct op_rms_norm_args *args = job->args;
    uint32_t per_task = rows_per_task(args->cols);
    uint32_t end = u32_min((task_index + 1) * per_task, args->row_count);
    for (uint32_t r = task_index * per_task; r < end; r++) {
        size_t at = (size_t)r * args->cols;
        job->row(args->x + at, args->weight, args->y + at, args->cols, args->eps);
    }
}

void elementwise_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args,
                          rms_norm_row_fn row) {
    struct norm_job job = {.args = args, .row = row};
    ctx->parallel(ctx->pool, task_count(args->row_count, args->cols), norm_task, &job);
}
