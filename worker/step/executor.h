// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_EXECUTOR_H
#define WORKER_STEP_EXECUTOR_H

#include "proto/messages.h"
#include "worker/comm/collective.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/step/batch.h"

// Runs one plan: slots and arrays (batch), forward pass (model), results. No policy.
//
// The idea: a plan is either carried out whole or refused whole. Everything it needs was reserved
// before the first plan: the workspace arena was measured with the same forward function. Steps
// that only decode are captured before the first plan, one graph per bucket of sequences, and
// replayed; steps with prompt tokens run the forward function.
//
//   Owns       its result rows; keeps everything in options.
//   Thread     the step thread.
//   Allocates  in create only.
//   Fails      never: what is wrong with a plan, or with the group, is in the result's status and
//              message.

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
    const struct device_table *table;    // captures and replays; NULL: every step runs eagerly
    struct device *device;
};

// Workspace bytes that the worst step of the envelope needs, by the measure reader.
size_t executor_workspace_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles);

// Device memory that the messages between the ranks need in that step; 0 in a group of one.
uint64_t executor_message_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles);

// Buckets of sequences that decode together: 8, 16, 32 ... up to the first that holds `rows_max`
// (the fewer of the envelope's sequences and tokens), the last one clipped to it. Steps of more
// than 1024 sequences run eagerly.
uint32_t executor_bucket_count(uint32_t rows_max);
uint32_t executor_bucket_rows(uint32_t rows_max, uint32_t bucket);
// Launches of the step that a bucket captures, by the measure reader.
uint32_t executor_bucket_launches(const struct model *model, const struct ops *ops,
                                  const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                  uint32_t rows, const struct tiles *tiles);

enum status executor_create(const struct executor_options *options, struct executor **out,
                            struct error *err) MUST_USE;
void executor_destroy(struct executor *executor);

// Forgets every slot: a new epoch begins, its first plan has seq 1.
void executor_reset(struct executor *executor, uint64_t epoch);

// Captures the bucket's step, charged to the bucket's ledger line. Each bucket once, in any order,
// before the first plan. Fails as device_table.capture_begin.
enum status executor_capture(struct executor *executor, uint32_t bucket,
                             struct error *err) MUST_USE;
uint64_t executor_replays(const struct executor *executor);    // steps that were replays

// Blocks that plans may name from now on, and tokens of a sequence (at most as many as at create).
void executor_set_pool(struct executor *executor, uint32_t kv_blocks, uint32_t seq_tokens);

// Who carries the messages between the ranks from now on, kept; NULL, as in the beginning: nobody,
// and where there is arithmetic every plan of a rank is answered with FAULT.
void executor_set_collective(struct executor *executor, struct collective *collective);
// While on, steps run with the loopback and wait for nobody: a rank can rehearse alone.
void executor_rehearse(struct executor *executor, bool on);

// `out` points into the executor and the batch, alive until the next call. When the collective
// broke, the answer is FAULT and the plan does not count as applied; so is every later one until
// executor_reset.
void executor_run(struct executor *executor, const struct plan *plan, struct step_result *out);

// The sampled rows of the last step, with their logits while the step had at most one logit tile.
const struct op_sample_row *executor_sample_rows(const struct executor *executor);

// Eager steps run only so many layers from now on; 0 = all, as in the beginning. For rehearsals.
void executor_limit_layers(struct executor *executor, uint32_t layer_count);

uint64_t executor_applied_seq(const struct executor *executor);

#endif
