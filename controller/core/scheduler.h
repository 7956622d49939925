// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_SCHEDULER_H
#define CONTROLLER_CORE_SCHEDULER_H

#include "common/invariant.h"
#include "controller/core/cost_model.h"
#include "controller/core/kv_blocks.h"
#include "controller/core/request.h"
#include "controller/core/safety_tree.h"
#include "controller/core/step_plan.h"
#include "controller/core/waiting_line.h"

// Who runs in the next step: decodes always, prompts in chunks, admissions while the state is safe.
//
// The idea: a request is admitted when a slot is free, the blocks of its prompt are free, and the
// banker's rule still holds with its whole worst case counted; so everything admitted can finish
// without eviction. A decoding sequence that crosses into a new block takes one under the same
// rule, or is paused in place until others return theirs. Best-effort requests are outside the
// rule: what they hold counts as free for the others, who evict them when it is needed. Prompt
// tokens of a step are bounded by the time that its decode rows leave.
//
// Who cannot be admitted for want of memory is passed by those behind it, for a while; then it gets
// a ticket, and what it needs is left alone until it fits.
//
//   Owns       slots and block lists; keeps the request table, block ids and plan builder.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      never after create.

struct scheduler;

struct scheduler_options {
    struct request_table *requests;
    struct kv_blocks *blocks;
    uint32_t seqs_max;
    uint32_t step_tokens_max;
    uint32_t blocks_per_seq_max;
    const uint8_t *prefix_secret;    // [HASH_KEY_BYTES]
    uint32_t tenant_max;
    struct core_policy policy;
};

enum { SCHEDULER_DEPTH_MAX = 3 };    // plans that may be outstanding

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *err) MUST_USE;
void scheduler_destroy(struct scheduler *scheduler);

// A worker with this capacity is there: every slot free, every block free.
void scheduler_start(struct scheduler *scheduler, const struct message_capacity *capacity);
// The worker is gone: running requests wait again.
void scheduler_stop(struct scheduler *scheduler);

// The group is lost, and its KV perhaps not: whoever runs keeps slot and blocks, and falls back to
// what is computed. False when that cannot be (blocks are on their way); nothing has changed then.
// Until scheduler_resume, or scheduler_stop, requests may come and end, and nothing is planned.
bool scheduler_suspend(struct scheduler *scheduler);
// The group is back in a new epoch with all its KV: the next plans admit everybody again, with what
// is computed. Plans are numbered from 1.
void scheduler_resume(struct scheduler *scheduler);

// ---- who waits ---------------------------------------------------------------------------------

// The request waits here from now on; `state` becomes WAITING.
void scheduler_enter(struct scheduler *scheduler, uint32_t request);
void scheduler_leave(struct scheduler *scheduler, uint32_t request);    // without being admitted
uint32_t scheduler_waiting(const struct scheduler *scheduler);
// Blocks of the request's beginning that are here already.
uint32_t scheduler_overlap(struct scheduler *scheduler, struct request *request);

// What stands between a request that comes now and its first token: prompt tokens to compute.
struct scheduler_load {
    uint64_t waiting_tokens;    // of those who wait
    uint64_t prefill_tokens;    // of those who run
    uint32_t decode_rows;       // of the last step, with their contexts
    uint64_t decode_context;
    uint32_t step_tokens;
    uint32_t running, slots;
    uint32_t blocks_free, blocks_total;    // free: what can be had without anybody's end
};
void scheduler_load(const struct scheduler *scheduler, struct scheduler_load *out);
const struct cost_model *scheduler_cost(const struct scheduler *scheduler);
// The line, for whoever predicts how long it takes.
const struct waiting_line *scheduler_line(const struct scheduler *scheduler);

// Its tenant was served: so many prompt tokens computed, so many tokens drawn. Prompts are charged
// at admission by the scheduler itself, so that tenants take turns from one admission to the next.
void scheduler_charge(struct scheduler *scheduler, uint32_t request, uint32_t prompt_tokens,
                      uint32_t output_tokens);

// True when the request's worst case can never fit the group.
bool scheduler_too_large(const struct scheduler *scheduler, const struct core_request *spec);

// True when an accepted request, with the tokens it has by now, can never run on this worker: one
// that came back may have a shorter context or a smaller pool than the one before.
bool scheduler_misfit(const struct scheduler *scheduler, const struct request *request);

// Fills the builder with the next step, which becomes the plan `seq`, outstanding behind those that
// are: it is made from what will hold when they are done. False when there is nothing to do now.
bool scheduler_plan(struct scheduler *scheduler, struct step_plan *plan, uint64_t seq,
                    uint64_t now_us);
uint32_t scheduler_outstanding(const struct scheduler *scheduler);
// How long the newest of them will take, as nine of ten do.
double scheduler_predicted_us(const struct scheduler *scheduler);

// ---- another size of the pool ------------------------------------------------------------------
//
//   STEADY  --scheduler_shrink--> MOVING --nothing lies above the end--> ASKING
//   STEADY  --scheduler_grow-------------------------------------------> ASKING
//   ASKING  --a plan asks the worker--> ASKED --its plan is done--> ANSWERING
//   ANSWERING (or ASKED) --scheduler_set_pool, from the capacity report--> STEADY
//
// Shrinking, ids above the end are closed at once, so admissions see the smaller pool; blocks that
// live there move down with plans, a few per plan. Growing, nothing changes until the worker has
// the memory.

// Blocks with which everybody who runs can still finish and everybody who waits can still start.
uint32_t scheduler_pool_floor(struct scheduler *scheduler);
// `end` at least the floor and below the total.
void scheduler_shrink(struct scheduler *scheduler, uint32_t end);
void scheduler_grow(struct scheduler *scheduler, uint32_t end);
bool scheduler_resizing(const struct scheduler *scheduler);
// The worker is mapping or unmapping, and what it is sent meanwhile waits.
bool scheduler_pool_answering(const struct scheduler *scheduler);
// The pool has `total` blocks, as the worker says. False when that is less than are in use.
bool scheduler_set_pool(struct scheduler *scheduler, uint32_t total);

// The oldest outstanding plan, `seq`, completed: prompts advance by its chunks.
// The worker says how long it took.
void scheduler_complete(struct scheduler *scheduler, uint64_t seq, uint32_t step_us);

// The part of scheduler_advance that is seldom needed.
void scheduler_advance_further(struct scheduler *scheduler, struct request *request);

// A token was drawn for `position`: all positions before it are computed. Inline, since every row
// of a result does it.
static inline void scheduler_advance(struct scheduler *scheduler, struct request *request,
                                     uint32_t position) {
    INVARIANT(position <= request->planned);
    bool further = position > request->computed && position >= request->publish_at;
    request->computed = position > request->computed ? position : request->computed;
    if (further || request->suspect) {
        scheduler_advance_further(scheduler, request);
    }
}

// The oldest outstanding plan was refused and the worker did none of those behind it: nothing of
// them happened. What they said is said again by the next plans, in smaller parts: half of its
// sequences and rows at a time, until a part passes or is a single row.
enum scheduler_refusal {
    SCHEDULER_REFUSAL_SPLIT,     // go on planning
    SCHEDULER_REFUSAL_GUILTY,    // a plan of `*guilty`'s one row alone: it can never run there
    SCHEDULER_REFUSAL_STATE,     // a plan without rows: the worker's slots are not ours
};
enum scheduler_refusal scheduler_refuse(struct scheduler *scheduler, uint32_t *guilty);

// The request leaves its slot, blocks go to quarantine. `next_seq` is the number of the next plan.
void scheduler_release(struct scheduler *scheduler, uint32_t request, uint64_t next_seq);
// It ended by itself with so many tokens drawn: what the guard expects of others like it.
void scheduler_learn_output(struct scheduler *scheduler, enum request_class class_,
                            uint32_t tokens);

// Which request a result row belongs to, or REQUEST_NONE when the slot has moved on.
uint32_t scheduler_owner(const struct scheduler *scheduler, struct slot_ref ref);

// The same for all rows of a result; NULL for none.
void scheduler_owners(const struct scheduler *scheduler, const struct result_row *rows,
                      uint32_t row_count, struct request **out);

// The request that runs in a slot, or REQUEST_NONE.
uint32_t scheduler_slot_request(const struct scheduler *scheduler, uint32_t slot);

struct scheduler_counts {
    uint32_t prefilling, decoding, paused;
};
void scheduler_count(const struct scheduler *scheduler, struct scheduler_counts *out);

// Best-effort requests that had to leave, and what they had computed, since it was created.
void scheduler_evictions(const struct scheduler *scheduler, uint64_t *count, uint64_t *tokens);

void scheduler_audit(const struct scheduler *scheduler);

#endif
