// SPDX-License-Identifier: Apache-2.0
// Packing a model's weights: of each tensor the rows, columns or experts that are the rank's.
#include "worker/model/model_items.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include <math.h>

// ---- loading -----------------------------------------------------------------------------------

struct pack_job {
    const struct ops *ops;
    const struct op_weight *weight;
    struct op_source source;
    void *packed;
    uint32_t rows_per_task;
};

static void pack_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct pack_job *job = arg;
    uint32_t begin = task_index * job->rows_per_task;
    uint32_t left = job->weight->rows - begin;
    uint32_t end = begin + (left < job->rows_per_task ? left : job->rows_per_task);
    job->ops->weight_pack(job->weight, &job->source, job->packed, begin, end);
}

static uint64_t row_bytes(enum dtype dtype, uint64_t cols) {
    uint64_t bytes = 0;
    bool whole = dtype_row_bytes(dtype, cols, &bytes);
    INVARIANT(whole);    // the list checked that cuts are at blocks
    return bytes;
}

// The rank's part of `tensor`; rows past its end are zero.
static void pack(const struct model *model, const struct model_item *item,
                 const struct op_weight *weight, const struct weights_tensor *tensor, void *packed,
                 const struct op_ctx *ctx) {
    enum { TASK_ROWS = 64 };
    uint32_t unit = model->ops->weight_pack_rows();
    uint32_t rows = (TASK_ROWS + unit - 1) / unit * unit;
    uint64_t begin = item->row_begin < tensor->rows ? item->row_begin : tensor->rows;
    uint64_t left = tensor->rows - begin;
    uint64_t whole_row = row_bytes(tensor->dtype, tensor->cols);
    struct pack_job job = {
        .ops = model->ops,
        .weight = weight,
        .source = {.data =
                       tensor->data + whole_row * begin + row_bytes(tensor->dtype, item->col_begin),
                   .row_bytes = whole_row,
                   .rows = left < weight->rows ? (uint32_t)left : weight->rows},
        .packed = packed,
        .rows_per_task = rows,
    };
    ctx->parallel(ctx->pool, (weight->rows + rows - 1) / rows, pack_task, &job);
}

static void load_experts(struct model *model, const struct model_item *item,
                         const struct weights *weights, const struct op_ctx *ctx) {
    for (uint32_t e = 0; e < item->experts->count; e++) {
        struct weights_tensor tensor;
        enum status status =
            model_find_expert(weights, item, item->expert_begin + e, &tensor, NULL);
        INVARIANT(status == STATUS_OK);    // the list found it
        pack(model, item, &item->experts->first, &tensor,
             model->memory + item->offset + item->experts->stride_bytes * e, ctx);
        weights_release(weights, &tensor);
    }
}

static void fill_rope_table(struct model *model) {
    const struct model_config *c = &model->config;
    double inv_freq[BOUND_HEAD_DIM / 2];
    double amplitude = 1.0;
    rope_frequencies(&c->rope, model->rope_divisors, inv_freq, &amplitude);
    float *table = (float *)(void *)(model->memory + model->rope_offset);
    uint32_t half = c->head_dim / 2;
    for (uint32_t position = 0; position < model->position_count; position++) {
        float *row = table + (size_t)position * c->head_dim;
        for (uint32_t j = 0; j < half; j++) {
            double angle = (double)position * inv_freq[j];
            row[j] = (float)(cos(angle) * amplitude);
            row[half + j] = (float)(sin(angle) * amplitude);
        }
    }
}

void model_load(struct model *model, const struct weights *weights, const struct op_ctx *ctx,
                model_progress_fn progress, void *progress_ctx) {
    INVARIANT(model->memory != NULL);
    if (model->ops->weight_pack == NULL) {
        return;
    }
    uint64_t done = 0;
    for (uint32_t i = 0; i < model->item_count; i++) {
        struct model_item *item = &model->items[i];
        uint32_t matrices = 1;
        if (item->experts != NULL) {
            load_experts(model, item, weights, ctx);
            matrices = model->config.expert_count;
        } else if (item->weight != NULL) {
            pack(model, item, item->weight, &item->source, model->memory + item->offset, ctx);
        } else {
            dtype_decode(item->source.dtype, item->source.data, item->source.cols,
                         (float *)(void *)(model->memory + item->offset));
        }
        weights_release(weights, &item->source);
        done += item->source.byte_count * matrices;
        if (progress != NULL) {
            progress(progress_ctx, done, model->source_bytes);
        }
    }
    fill_rope_table(model);
}
