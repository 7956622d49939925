// SPDX-License-Identifier: Apache-2.0
#include "common/integers.h"
#include "common/invariant.h"
#include "worker/model/model.h"
#include <math.h>

// The decoder: x += Wo attention(norm1(x)); x += Wd swiglu(norm2(x)), or experts in its place.
// Six operations a dense layer; norms and the gate are folded into the products that read them. In
// a group x is the same on every rank; a product over a rank's own columns is a part of a sum,
// which goes to a buffer of its own and is added to x with those of the other ranks. Alone, the
// product adds to x itself, its columns in the same parts (ops.h).

struct dense_buffers {
    float *x;                // [rows, hidden] residual stream
    float *q, *k, *v, *a;    // [rows, heads * head_dim]
    float *gate, *up;        // [rows of a tile, inter]
};

// Where products over the rank's own columns put their part of the sum over the ranks; NULL: there
// is one rank, and they add to x.
static float *begin_sum(const struct model_view *m, struct reader *reader, size_t rows) {
    return m->shard.world == 1 ? NULL : reader_take_f32(reader, rows * m->config->hidden);
}

static void end_sum(const struct model_view *m, struct reader *reader,
                    const struct forward_step *step, float *part, float *x) {
    if (part != NULL) {
        struct op_rows rows = {step->step->row_count, &step->step->row_count, 0};
        reader_all_reduce_add(reader, part, x, rows, m->config->hidden);
        reader_drop(reader, part);
    }
}

static void attention_block(const struct model_view *m, struct reader *reader,
                            const struct forward_step *step, uint32_t layer,
                            const struct dense_buffers *b) {
    const struct model_config *c = m->config;
    const struct model_layer *w = &m->layers[layer];
    struct op_rows rows = {step->step->row_count, &step->step->row_count, 0};
    uint32_t q_width = c->q_head_count * c->head_dim;
    uint32_t kv_width = c->kv_head_count * c->head_dim;
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_RMS_NORM,
                              .x = b->x,
                              .x_stride = c->hidden,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .norm_weight = w->attn_norm,
                              .norm_eps = c->rms_eps,
                              .weight_count = 3,
                              .weight = {&w->q, &w->k, &w->v},
                              .y = {b->q, b->k, b->v},
                              .y_stride = {q_width, kv_width, kv_width},
                          });
    reader_rope_append(reader, &(struct op_rope_append_args){
                                   .step = step->step,
                                   .kv = step->kv,
                                   .layer = layer,
                                   .q = b->q,
                                   .k = b->k,
                                   .v = b->v,
                                   .q_head_count = c->q_head_count,
                                   .pairing = c->rope.pairing,
                                   .rope_cos_sin = m->rope_cos_sin,
                                   .q_norm = w->q_norm,
                                   .k_norm = w->k_norm,
                                   .norm_eps = c->rms_eps,
                               });
    reader_attention(reader, &(struct op_attention_args){
                                 .step = step->step,
                                 .kv = step->kv,
                                 .layer = layer,
                                 .q = b->q,
                                 .y = b->a,
                                 .q_head_count = c->q_head_count,
                                 .scale = 1.0f / sqrtf((float)c->head_dim),
                                 .parts = step->tiles.attention_parts,
                             });
    float *part = begin_sum(m, reader, rows.most);
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_PLAIN,
                              .x = b->a,
                              .x_stride = q_width,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .weight_count = 1,
                              .weight = {&w->o},
                              .y = {part != NULL ? part : b->x},
                              .y_stride = {c->hidden},
                              .parts = m->parts,
                              .accumulate = part == NULL,
                          });
    end_sum(m, reader, step, part, b->x);
}

// One tile of rows, whose residual stream is `x`, and `part` of it or NULL.
static void mlp_tile(const struct model_view *m, struct reader *reader,
                     const struct forward_step *step, uint32_t layer, struct op_rows rows, float *x,
                     float *part, const struct dense_buffers *b) {
    const struct model_config *c = m->config;
    const struct model_layer *w = &m->layers[layer];
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_RMS_NORM,
                              .x = x,
                              .x_stride = c->hidden,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .norm_weight = w->ffn_norm,
                              .norm_eps = c->rms_eps,
                              .weight_count = 2,
                              .weight = {&w->gate, &w->up},
                              .y = {b->gate, b->up},
                              .y_stride = {c->inter, c->inter},
                          });
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_SILU_MUL,
                              .x = b->gate,
                              .x2 = b->up,
                              .x_stride = c->inter,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .weight_count = 1,
                              .weight = {&w->down},
                              .y = {part != NULL ? part : x},
                              .y_stride = {c->hidden},
                              .parts = m->parts,
                              .accumulate = part == NULL,
                          });
}

// A tile of rows at a time, so that the inner width never needs more than one tile.
static void mlp_block(const struct model_view *m, struct reader *reader,
                      const struct forward_step *step, uint32_t layer, struct dense_buffers *b) {
    const struct model_config *c = m->config;
    const uint32_t *row_count = &step->step->row_count;
    bool dense = m->layers[layer].router.rows == 0;
    INVARIANT(step->tiles.mlp_rows > 0);
    uint32_t tile = u32_min(*row_count, step->tiles.mlp_rows);
    float *part = begin_sum(m, reader, *row_count);
    if (dense) {
        b->gate = reader_take_f32(reader, (size_t)tile * c->inter);
        b->up = reader_take_f32(reader, (size_t)tile * c->inter);
    }
    for (uint32_t done = 0; done < *row_count; done += tile) {
        struct op_rows rows = {u32_min(*row_count - done, tile), row_count, done};
        size_t at = (size_t)done * c->hidden;
        float *tile_part = part != NULL ? part + at : NULL;
        if (dense) {
            mlp_tile(m, reader, step, layer, rows, b->x + at, tile_part, b);
        } else {
            model_experts_tile(m, reader, step, layer, rows, b->x + at, tile_part);
        }
    }
    if (dense) {
        reader_drop(reader, b->up);
        reader_drop(reader, b->gate);
    }
    end_sum(m, reader, step, part, b->x);
}

// Rows of the embedding are shared out: each rank has those of its tokens, zeros for the others.
static void embed(const struct model_view *m, struct reader *reader,
                  const struct forward_step *step, float *x) {
    float *part = begin_sum(m, reader, step->step->row_count);
    reader_embed(reader, &(struct op_embed_args){
                             .step = step->step,
                             .weight = m->embed,
                             .token_begin = m->shard.rank * m->embed->rows,
                             .y = part != NULL ? part : x,
                             .zero = part != NULL ? x : NULL,
                         });
    end_sum(m, reader, step, part, x);
}

// Logits and sampling, a tile of rows at a time, so that the logits never need more than one tile.
static void output_block(const struct model_view *m, struct reader *reader,
                         const struct forward_step *step, const float *x) {
    const struct model_config *c = m->config;
    uint32_t logit_count = step->step->logit_count;
    if (logit_count == 0) {
        return;
    }
    INVARIANT(step->tiles.logit_rows > 0);
    uint32_t tile_max = u32_min(logit_count, step->tiles.logit_rows);
    float *logits = reader_take_f32(reader, (size_t)tile_max * c->vocabulary);
    // Every rank draws from all logits, and so the same token.
    float *all =
        m->shard.world == 1 ? logits : reader_take_f32(reader, (size_t)tile_max * m->vocabulary);
    for (uint32_t done = 0; done < logit_count; done += tile_max) {
        struct op_rows rows = {u32_min(logit_count - done, tile_max), &step->step->logit_count,
                               done};
        // The measure reader needs counts only; its step has no arrays.
        const uint32_t *row_index = step->logit_row == NULL ? NULL : step->logit_row + done;
        struct op_sample_row *sample_rows =
            step->sample_rows == NULL ? NULL : step->sample_rows + done;
        reader_matmul(reader, &(struct op_matmul_args){
                                  .input = OP_INPUT_RMS_NORM,
                                  .x = x,
                                  .x_stride = c->hidden,
                                  .row_index = row_index,
                                  .rows = rows,
                                  .pass_rows = step->tiles.matmul_rows,
                                  .norm_weight = m->output_norm,
                                  .norm_eps = c->rms_eps,
                                  .weight_count = 1,
                                  .weight = {m->output},
                                  .y = {logits},
                                  .y_stride = {c->vocabulary},
                              });
        if (all != logits) {
            reader_all_gather(reader, logits, all, rows, c->vocabulary, m->vocabulary);
        }
        reader_sample(reader, &(struct op_sample_args){.row = sample_rows,
                                                       .rows = rows,
                                                       .logits = all,
                                                       .vocabulary = m->vocabulary});
    }
    if (all != logits) {
        reader_drop(reader, all);
    }
    reader_drop(reader, logits);
}

void model_dense_forward(const struct model *model, struct reader *reader,
                         const struct forward_step *step) {
    const struct model_view *m = model_view(model);
    const struct model_config *c = m->config;
    size_t rows = step->step->row_count;
    size_t q_width = (size_t)c->q_head_count * c->head_dim;
    size_t kv_width = (size_t)c->kv_head_count * c->head_dim;
    struct dense_buffers b = {.x = reader_take_f32(reader, rows * c->hidden)};
    embed(m, reader, step, b.x);
    bool limited = step->layer_limit > 0 && step->layer_limit < c->layer_count;
    uint32_t layer_count = limited ? step->layer_limit : c->layer_count;
    for (uint32_t layer = 0; layer < layer_count; layer++) {
        b.q = reader_take_f32(reader, rows * q_width);
        b.k = reader_take_f32(reader, rows * kv_width);
        b.v = reader_take_f32(reader, rows * kv_width);
        b.a = reader_take_f32(reader, rows * q_width);
        attention_block(m, reader, step, layer, &b);
        reader_drop(reader, b.a);
        reader_drop(reader, b.v);
        reader_drop(reader, b.k);
        reader_drop(reader, b.q);
        mlp_block(m, reader, step, layer, &b);
    }
    output_block(m, reader, step, b.x);
    reader_drop(reader, b.x);
}
