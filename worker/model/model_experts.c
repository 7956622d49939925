// SPDX-License-Identifier: Apache-2.0
// A mixture of experts: every rank routes every row, the same way to the bit, and computes the
// experts it holds.
#include "common/invariant.h"
#include "worker/model/model.h"

// The expert that every row goes to, as far as its parts: [parts][rows, hidden].
struct shared {
    float *gate, *up;    // [rows, inner columns of the rank]
    float *sw;           // [rows] logit of the row's share
    float *parts;
};

static void take_shared(const struct model_view *view, struct reader *reader,
                        const struct forward_step *step, const struct model_layer *w,
                        struct op_rows rows, const float *x, struct shared *s) {
    const struct model_config *c = view->config;
    s->parts = reader_take_f32(reader, (size_t)view->parts * rows.most * c->hidden);
    s->sw = reader_take_f32(reader, rows.most);
    s->gate = reader_take_f32(reader, (size_t)rows.most * c->shared_inter);
    s->up = reader_take_f32(reader, (size_t)rows.most * c->shared_inter);
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_RMS_NORM,
                              .x = x,
                              .x_stride = c->hidden,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .norm_weight = w->ffn_norm,
                              .norm_eps = c->rms_eps,
                              .weight_count = 3,
                              .weight = {&w->gate, &w->up, &w->shared_switch},
                              .y = {s->gate, s->up, s->sw},
                              .y_stride = {c->shared_inter, c->shared_inter, 1},
                          });
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_SILU_MUL,
                              .x = s->gate,
                              .x2 = s->up,
                              .x_stride = c->shared_inter,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .weight_count = 1,
                              .weight = {&w->down},
                              .y = {s->parts},
                              .y_stride = {c->hidden},
                              .parts = view->parts,
                              .part_stride = (size_t)rows.most * c->hidden,
                          });
    reader_drop(reader, s->up);
    reader_drop(reader, s->gate);
}

void model_experts_tile(const struct model_view *view, struct reader *reader,
                        const struct forward_step *step, uint32_t layer, struct op_rows rows,
                        float *x, float *part) {
    const struct model_config *c = view->config;
    const struct model_layer *w = &view->layers[layer];
    INVARIANT(w->router.rows == c->expert_count);
    struct shared shared = {0};
    if (c->shared_inter > 0) {
        take_shared(view, reader, step, w, rows, x, &shared);
    }
    float *logits = reader_take_f32(reader, (size_t)rows.most * c->expert_count);
    uint32_t *chosen = reader_take(reader, (size_t)rows.most * c->expert_used * sizeof *chosen);
    float *share = reader_take_f32(reader, (size_t)rows.most * c->expert_used);
    reader_matmul(reader, &(struct op_matmul_args){
                              .input = OP_INPUT_RMS_NORM,
                              .x = x,
                              .x_stride = c->hidden,
                              .rows = rows,
                              .pass_rows = step->tiles.matmul_rows,
                              .norm_weight = w->ffn_norm,
                              .norm_eps = c->rms_eps,
                              .weight_count = 1,
                              .weight = {&w->router},
                              .y = {logits},
                              .y_stride = {c->expert_count},
                          });
    reader_route(reader, &(struct op_route_args){
                             .logits = logits,
                             .rows = rows,
                             .expert_count = c->expert_count,
                             .used = c->expert_used,
                             .normalise = c->expert_normalise,
                             .chosen = chosen,
                             .share = share,
                         });
    reader_experts(reader, &(struct op_experts_args){
                               .x = x,
                               .rows = rows,
                               .pass_rows = step->tiles.matmul_rows,
                               .norm_weight = w->ffn_norm,
                               .norm_eps = c->rms_eps,
                               .gate = &w->expert_gate,
                               .up = &w->expert_up,
                               .down = &w->expert_down,
                               .expert_begin = view->shard.rank * w->expert_gate.count,
                               .expert_count = c->expert_count,
                               .used = c->expert_used,
                               .chosen = chosen,
                               .share = share,
                               .parts = view->parts,
                               .shared = shared.parts,
                               .shared_stride = (size_t)rows.most * c->hidden,
                               .shared_gate = shared.sw,
                               .y = part != NULL ? part : x,
                               .accumulate = part == NULL,
                           });
    reader_drop(reader, share);
    reader_drop(reader, chosen);
    reader_drop(reader, logits);
    if (c->shared_inter > 0) {
        reader_drop(reader, shared.sw);
        reader_drop(reader, shared.parts);
    }
}
