// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_EXECUTOR_H
#define WORKER_STEP_EXECUTOR_H

#include "proto/messages.h"
#include "worker/model/model.h"
#include "worker/step/batch.h"

// Runs one plan: slots and arrays (batch), forward pass (model), results. No policy.
//
// The idea: a plan is either carried out whole or refused whole. Everything it needs was reserved
// before the first plan: the workspace arena was measured with the same forward function.
//
//   Owns       its result rows; keeps everything in options.
//   Thread     the step thread.
//   Allocates  in create only.
//   Fails      never: what is wrong with a plan is in the result's status and message.

struct executor;

struct executor_options {
    const struct model *model;
    const struct ops *ops;
    const struct op_ctx *ctx;
    const struct op_kv_layout *kv;
    struct batch *batch;
    struct plan_limits limits;
    uint8_t *workspace;
    size_t workspace_bytes;
    struct tiles tiles;
};

// Workspace bytes that the worst step of the envelope needs, by the measure reader.
size_t executor_workspace_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles);

enum status executor_create(const struct executor_options *options, struct executor **out,
                            struct error *err) MUST_USE;
void executor_destroy(struct executor *executor);

// Forgets every slot: a new epoch begins, its first plan has seq 1.
void executor_reset(struct executor *executor, uint64_t epoch);

// `out` points into the executor and the batch, alive until the next call.
void executor_run(struct executor *executor, const struct plan *plan, struct step_result *out);

// The sampled rows of the last step, with their logits while the step had at most one logit tile.
const struct op_sample_row *executor_sample_rows(const struct executor *executor);

// Steps run only so many layers from now on; 0 = all, as in the beginning. For rehearsals.
void executor_limit_layers(struct executor *executor, uint32_t layer_count);

uint64_t executor_applied_seq(const struct executor *executor);

#endif
