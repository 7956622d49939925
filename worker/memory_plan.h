// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MEMORY_PLAN_H
#define WORKER_MEMORY_PLAN_H

#include "worker/device/device.h"
#include "worker/engine.h"
#include "worker/kv/kv_pool.h"
#include "worker/model/model.h"
#include "worker/step/tiles.h"

// What a start will weigh, line by line, before any of it exists.
//
// The idea: every size is asked of the code that will use the memory: the model for its weights,
// the measure reader for the workspace and the launches of each graph, the batch for its arrays.
// The KV pool is what the budget leaves. A start makes this plan, then weighs what it really took
// and corrects the pool by the difference; `tare plan` makes it and stops.
//
//   Owns       nothing.
//   Thread     one at a time.
//   Allocates  never.
//   Fails      INVALID for lengths the model cannot have; EXHAUSTED naming the ledger line.

enum { MEMORY_PLAN_HEAD_BYTES = 4096 };    // before the weights: whose they are

struct memory_plan {
    uint64_t bytes[LEDGER_COUNT];    // every line but the KV pool; found ones as the device expects
    struct plan_limits limits;
    struct op_kv_layout kv;
    struct kv_chunk_rule chunk;
    uint64_t kv_bytes;         // whole small chunks
    uint64_t scratch_bytes;    // of the pool, mapped for the first rehearsal
    struct tiles tiles;        // of the step's buffers
    size_t workspace_bytes;    // what the worst step needs with these, before rounding to pages
    uint32_t bucket_count;     // captured decode steps; 0 with --enforce-eager
};

// `ledger`: budget, and what is charged so far (context, libraries). Lines of the plan are noted in
// it (memory_ledger_plan), also when the plan fails.
enum status memory_plan_make(const struct engine_options *options, const struct model *model,
                             const struct device_table *table, struct device *device,
                             struct memory_ledger *ledger, struct memory_plan *out,
                             struct error *err) MUST_USE;

// The line that weights of a kind are handed to; and all of them with what stays in their own.
enum ledger_id memory_plan_kind_line(enum model_kind kind);
uint64_t memory_plan_weight_bytes(const struct memory_plan *plan);

uint64_t memory_plan_fixed_bytes(const struct memory_plan *plan);    // every line but the pool

// The pool for `kv_bytes`: whole chunks, blocks, and, where the length was not given, the longest
// sequence that fits. EXHAUSTED when not even one sequence does.
enum status memory_plan_set_kv(struct memory_plan *plan, const struct engine_options *options,
                               uint64_t kv_bytes, struct error *err) MUST_USE;

#endif
