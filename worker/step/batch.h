// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_BATCH_H
#define WORKER_STEP_BATCH_H

#include "common/status.h"
#include "kernels/ops.h"
#include "proto/messages.h"
#include "worker/model/model.h"
#include <stdbool.h>
#include <stdint.h>

// The slot table, and a plan turned into the arrays that one step reads.
//
// The idea: the worker keeps, per slot, exactly what steady decode needs (length, last token, block
// list, sampling), so that a plan names only what changes. batch_apply judges the whole plan
// against the table first; only then does it change anything, so a refused plan leaves no trace.
//
//   slot states                 by
//   free      -> prefilling     admit
//   prefilling-> decoding       last prompt chunk
//   decoding  -> done           stop token or len_max (no more rows), by batch_commit
//   any       -> free           retire
//
//   Owns       the slot table and the step arrays, sized at create.
//   Thread     the step thread.
//   Allocates  in create only.
//   Fails      INVALID naming slot and rule; nothing has changed then.

struct batch;

struct batch_options {
    struct plan_limits limits;
    uint8_t *kv_base;    // pool base, written into every step descriptor
    int32_t *history;    // [seqs, seq_tokens] token log of each slot; caller's memory
};

// Bytes of the arrays that kernels read (the ledger's "step descriptor" line).
size_t batch_step_bytes(const struct plan_limits *limits);

// Keeps `step_memory` (batch_step_bytes long, 64-byte aligned) and options->history.
enum status batch_create(const struct batch_options *options, void *step_memory, struct batch **out,
                         struct error *err) MUST_USE;
void batch_destroy(struct batch *batch);
void batch_reset(struct batch *batch);    // a new epoch: every slot becomes free

// Applies the plan and lays out the step. On success the views below describe it.
enum status batch_apply(struct batch *batch, const struct plan *plan, struct error *err) MUST_USE;

const struct op_step *batch_step(const struct batch *batch);
// Between steps: the descriptor says that `rows` sequences decode, each drawing a token, with all
// arrays where they will be. What a capture reads; the next batch_apply overwrites it.
void batch_pose(struct batch *batch, uint32_t rows);
// Every row of the step is a decoding sequence that draws a token: what captured steps are.
bool batch_only_decodes(const struct batch *batch);
// Blocks that plans may name from now on, and tokens of a sequence (at most as many as at create).
void batch_set_pool(struct batch *batch, uint32_t kv_blocks, uint32_t seq_tokens);
// Blocks to be copied before the step runs: from[i] to to[i], both in device memory. The slots name
// the new ones already.
struct batch_copies {
    const uint32_t *from, *to;
    uint32_t count;
};
struct batch_copies batch_copies(const struct batch *batch);
uint32_t batch_logit_count(const struct batch *batch);
const uint32_t *batch_logit_rows(const struct batch *batch);
struct op_sample_row *batch_sample_rows(struct batch *batch);

// After the step ran: advances the slots by what was computed and drawn, and writes one result row
// per logit row. `rows` has room for batch_logit_count entries; alternatives point into the batch.
void batch_commit(struct batch *batch, struct result_row *rows);

// After batch_commit: a number over the result rows (slot, generation, position, token) and every
// slot that is in use, with its blocks and sampling. Equal on all ranks that ran the same plans in
// this epoch; different ranks that differ do not fit together any more. Costs a few steps of
// arithmetic for each slot: blocks and sampling are summed up as they change.
uint64_t batch_step_digest(const struct batch *batch, const struct result_row *rows,
                           uint32_t count);

// A number over all that outlives a step: every slot with its blocks and sampling. Equal before and
// after a refused plan. Of this process only, and slow.
uint64_t batch_digest(const struct batch *batch);

// Tests: walks the table and checks all that must hold.
void batch_audit(const struct batch *batch);

#endif
