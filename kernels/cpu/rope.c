// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

#include "common/invariant.h"
#include "kernels/cpu/arith.h"
#include "kernels/cpu/kv_page.h"

// Rows per task; a row takes about half a microsecond, so up to this many stay on the caller.
enum { TASK_ROWS = 8 };

// ---- one row -----------------------------------------------------------------------------------

static void norm_head(float *x, const float *weight, uint32_t head_dim, float eps) {
    float factor = arith_rms_factor(arith_sum_squares(x, head_dim), head_dim, eps);
    for (uint32_t i = 0; i < head_dim; i++) {
        x[i] = weight[i] * (x[i] * factor);
    }
}

static void rotate_head(float *x, const float *cos_sin, uint32_t head_dim,
                        enum op_rope_pairing pairing) {
    uint32_t half = head_dim / 2;
    for (uint32_t j = 0; j < half; j++) {
        float *a = pairing == OP_ROPE_HALF ? &x[j] : &x[2 * j];
        float *b = pairing == OP_ROPE_HALF ? &x[j + half] : &x[2 * j + 1];
        float c = cos_sin[j];
        float s = cos_sin[half + j];
        float rotated_a = fmaf(*a, c, -(*b * s));
        float rotated_b = fmaf(*b, c, *a * s);
        *a = rotated_a;
        *b = rotated_b;
    }
}

static void store_element(enum dtype dtype, uint8_t *base, size_t index, float value) {
    if (dtype == DTYPE_F16) {
        uint16_t half = dtype_f32_to_f16(value);
        memcpy(base + 2 * index, &half, sizeof half);
    } else {
        memcpy(base + 4 * index, &value, sizeof value);
    }
}

void rope_row_scalar(const struct op_rope_append_args *args, uint32_t row) {
    const struct op_kv_layout *kv = args->kv;
    uint32_t head_dim = kv->head_dim;
    uint32_t position = args->step->position[row];
    const float *cos_sin = args->rope_cos_sin + (size_t)position * head_dim;
    float *q = args->q + (size_t)row * args->q_head_count * head_dim;
    for (uint32_t h = 0; h < args->q_head_count; h++, q += head_dim) {
        if (args->q_norm != NULL) {
            norm_head(q, args->q_norm, head_dim, args->norm_eps);
        }
        rotate_head(q, cos_sin, head_dim, args->pairing);
    }
    uint8_t *page = kv_page(args->step, kv, args->layer, args->step->row_seq[row], position);
    uint32_t in_block = position % kv->block_tokens;
    float *k = args->k + (size_t)row * kv->kv_head_count * head_dim;
    const float *v = args->v + (size_t)row * kv->kv_head_count * head_dim;
    for (uint32_t h = 0; h < kv->kv_head_count; h++, k += head_dim, v += head_dim) {
        if (args->k_norm != NULL) {
            norm_head(k, args->k_norm, head_dim, args->norm_eps);
        }
        rotate_head(k, cos_sin, head_dim, args->pairing);
        uint8_t *keys = page + kv_key_span_offset(kv, h, in_block);
        uint8_t *values = page + kv_value_offset(kv, h, in_block);
        for (uint32_t i = 0; i < head_dim; i++) {
            store_element(kv->dtype, keys, (size_t)KV_SPAN * i + in_block % KV_SPAN, k[i]);
            store_element(kv->dtype, values, i, v[i]);
        }
    }
}

// ---- rows over threads -------------------------------------------------------------------------

struct rope_job {
    const struct op_rope_append_args *args;
    rope_row_fn row;
};

static void rope_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    struct rope_job *job = arg;
    uint32_t begin = task_index * TASK_ROWS;
    uint32_t left = job->args->step->row_count - begin;
    uint32_t end = begin + (left < TASK_ROWS ? left : TASK_ROWS);
    for (uint32_t r = begin; r < end; r++) {
        job->row(job->args, r);
    }
}

void rope_append_run(const struct op_ctx *ctx, const struct op_rope_append_args *args,
                     rope_row_fn row) {
    INVARIANT(args->kv->block_tokens % KV_SPAN == 0);
    uint32_t rows = args->step->row_count;
    struct rope_job job = {.args = args, .row = row};
    ctx->parallel(ctx->pool, rows / TASK_ROWS + (rows % TASK_ROWS != 0), rope_task, &job);
}
