// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MODEL_MODEL_H
#define WORKER_MODEL_MODEL_H

#include "common/status.h"
#include "kernels/ops.h"
#include "proto/messages.h"
#include "worker/model/model_config.h"
#include "worker/model/reader.h"
#include "worker/weights/weights.h"
#include <stdint.h>

// A model: its configuration, where each weight lies in device memory, and its forward function.
//
// The idea: a family lists its weights once (name in either container, shape, where the pointer
// goes) and writes its layers once, as calls on a reader. Everything else — sizes, offsets,
// packing, binding, planning — is the same for all families and follows from that list.
//
// A group of several ranks splits a model (models.md section 6): heads and inner columns are shared
// out, the vocabulary is padded and shared out, norms and routers are copied, experts are shared
// out whole, KV heads are copied where there are fewer than ranks. The forward function sees its
// rank's part and asks for sums over the ranks.
//
//   Owns       its tables; weights lie in memory that the caller gives to model_bind.
//   Thread     one at a time; immutable after load.
//   Allocates  in model_create.
//   Fails      NOT_FOUND, CORRUPT or UNSUPPORTED naming the tensor.

struct model;

// What a weight is for: how the ledger tells them apart.
enum model_kind {
    MODEL_KIND_OTHER,    // norms and routers
    MODEL_KIND_EMBEDDING,
    MODEL_KIND_ATTENTION,
    MODEL_KIND_MLP,
    MODEL_KIND_EXPERTS,
    MODEL_KIND_COUNT,
};

// Which part of a model a rank holds. {0, 1} is all of it.
struct model_shard {
    uint32_t rank, world;
};

// What one step computes, beside the batch itself.
struct forward_step {
    const struct op_step *step;
    const struct op_kv_layout *kv;
    const uint32_t *logit_row;            // [step->logit_count] which row of the step feeds each
    struct op_sample_row *sample_rows;    // [step->logit_count]
    struct tiles tiles;
    uint32_t layer_limit;    // 0 = all; a rehearsal runs fewer (see rehearsal.h)
};

typedef void (*model_forward_fn)(const struct model *model, struct reader *reader,
                                 const struct forward_step *step);

// ---- life cycle --------------------------------------------------------------------------------

// Reads the configuration, finds the family, checks every tensor's presence, type and shape, and
// lays the packed weights of the rank out. `position_count`: positions the rotary table must cover.
// Keeps `ops`. UNSUPPORTED, naming what does not divide, for a group that cannot share this model.
enum status model_create(const struct weights *weights, const struct ops *ops,
                         struct model_shard shard, uint32_t position_count, struct model **out,
                         struct error *err) MUST_USE;
void model_destroy(struct model *model);

const struct model_config *model_config(const struct model *model);    // of the whole model
size_t model_bytes(const struct model *model);    // this rank: weights, norms, rotary table
size_t model_kind_bytes(const struct model *model, enum model_kind kind);    // without the table
uint64_t model_parameters(const struct model *model);    // whole, as published totals count them

// The tensors of this rank, in the order they lie in memory.
enum model_split {
    MODEL_SPLIT_COPY,          // every rank has all of it
    MODEL_SPLIT_ROWS,          // output rows shared out
    MODEL_SPLIT_KV_ROWS,       // the same by KV heads; copied to world / kv_heads ranks when fewer
    MODEL_SPLIT_COLS,          // input columns shared out; products are summed over the ranks
    MODEL_SPLIT_VOCABULARY,    // rows, padded to a multiple of 64 per rank
    MODEL_SPLIT_EXPERTS,       // whole experts, neighbours on a rank
};
struct model_tensor {
    const char *name;
    enum model_split split;
    enum dtype dtype;
    uint32_t rows, cols;
    uint32_t matrices;    // of this shape: the rank's experts, else 1
    size_t bytes;
};
uint32_t model_tensor_count(const struct model *model);
struct model_tensor model_tensor_at(const struct model *model, uint32_t index);

// Points every weight into `memory` (model_bytes long, 64-byte aligned), loaded or to be loaded.
void model_bind(struct model *model, void *memory);

// Packs the file's tensors into the bound memory, in file order of the list, giving back file pages
// as it goes. `progress` (may be NULL) is called after each tensor. A device without arithmetic
// (ops->weight_pack is NULL) has nothing to load. Of each tensor only the rank's part is read.
typedef void (*model_progress_fn)(void *ctx, uint64_t bytes_done, uint64_t bytes_total);
void model_load(struct model *model, const struct weights *weights, const struct op_ctx *ctx,
                model_progress_fn progress, void *progress_ctx);

// Runs or measures one step, depending on the reader.
void model_forward(const struct model *model, struct reader *reader,
                   const struct forward_step *step);

// KV layout of one block over all layers, without the pool: dtype and block size are the caller's.
void model_kv_layout(const struct model *model, enum dtype dtype, uint32_t block_tokens,
                     struct op_kv_layout *out);

// ---- for families ------------------------------------------------------------------------------

struct model_layer {
    const float *attn_norm;    // [hidden]
    const float *ffn_norm;     // [hidden]
    const float *q_norm;       // [head_dim], NULL where the family has none
    const float *k_norm;
    struct op_weight q, k, v, o;
    struct op_weight gate, up, down;    // of a dense layer, or of the shared expert
    struct op_weight shared_switch;     // [1, hidden], where there is a shared expert
    struct op_weight router;            // [experts, hidden]; rows 0: dense
    struct op_experts expert_gate, expert_up, expert_down;    // this rank's
};

struct model_family {
    const char *arch;    // as in general.architecture and model_type
    bool qk_norm;
    bool experts;    // layers may be mixtures
    model_forward_fn forward;
};

struct model_view {                       // what a forward function reads
    const struct model_config *config;    // this rank's heads, inner size and vocabulary rows
    struct model_shard shard;
    uint32_t parts;         // of sums that cross ranks, on this one (ops.h)
    uint32_t vocabulary;    // of the whole model
    const struct model_family *family;
    const struct model_layer *layers;    // [layer_count]
    const struct op_weight *embed;       // [vocabulary, hidden]
    const struct op_weight *output;      // the same matrix when tied
    const float *output_norm;            // [hidden]
    const float *rope_cos_sin;           // [positions, head_dim]
};
const struct model_view *model_view(const struct model *model);

// Pre-norm decoder with grouped-query attention, dense or with experts: llama, qwen3, qwen3_moe.
void model_dense_forward(const struct model *model, struct reader *reader,
                         const struct forward_step *step);

// The experts' half of a layer for one tile of rows, whose residual stream is `x`: adds to x, or
// where `part` is not NULL leaves the rank's part of the sum there. Both [rows, hidden].
void model_experts_tile(const struct model_view *view, struct reader *reader,
                        const struct forward_step *step, uint32_t layer, struct op_rows rows,
                        float *x, float *part);

#endif
