// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_SCHEDULER_INTERNAL_H
#define CONTROLLER_CORE_SCHEDULER_INTERNAL_H

#include "common/integers.h"
#include "controller/core/scheduler.h"

// What the files of the scheduler share: scheduler.c plans steps, scheduler_pool.c changes the size
// of the KV pool between them. Nobody else includes this.
//
//   Owns, Thread, Allocates, Fails as scheduler.h.

// What the worker knows of a slot. A plan says the difference to what holds.
struct told {
    bool present;
    bool paused;
    uint32_t gen;
    uint32_t blocks;
};

#define SLOT_NONE UINT32_MAX

// Who runs in a slot: what every row of a result asks for, so that many lie in a cache line.
struct slot_owner {
    uint32_t request;    // REQUEST_NONE: free, or still to be retired
    uint32_t gen;
};

struct slot {
    uint32_t order_at;     // its place in the order, while it runs
    uint64_t told_step;    // that changed `told` last
    bool kept;    // its request's KV stands in the group from an epoch before; no plan told of it
    struct told told;       // once the plans sent so far are carried out
    struct told applied;    // by the plans that were; a refused plan falls back to it
};

// What a refused plan leaves behind: its work is divided until it passes, or one sequence's single
// row is refused alone.
struct split {
    uint32_t seqs;        // most sequences of a step while suspects are left
    uint32_t tokens;      // most rows of a step; grows back with plans that pass
    uint32_t passed;      // plans carried out since `tokens` changed
    bool changes_only;    // the next plan has no rows: are the other changes at fault?
};

// A plan that is out: what holds once it is carried out, as far as its answer does not say it.
struct flight {
    uint64_t seq;
    struct step_size size;
    struct cost_shape cost;
    uint32_t change_count;
    struct flight_chunk {
        uint32_t slot, gen, end;
    } * chunks;    // [seqs_max]
    uint32_t chunk_count;
    struct flight_told {
        uint32_t slot;
        struct told told;
    } * told;    // [seqs_max] slots whose knowledge changed
    uint32_t told_count;
};

enum pool_phase { POOL_STEADY, POOL_MOVING, POOL_ASKING, POOL_ASKED, POOL_ANSWERING };

// A block on its way down, while the plan that moves it is out.
struct move {
    uint32_t slot, gen, index;
    uint32_t from, to;
};

struct scheduler {
    struct scheduler_options options;
    struct request *requests;    // the table's entries
    struct safety_tree *safety;
    struct waiting_line *waiting;
    struct cost_model cost;
    uint64_t now_us;
    uint32_t suspect_count;    // running or waiting
    uint32_t paused_count;     // guaranteed ones that run and lack blocks
    uint32_t untold;           // running ones that the worker is to be told of again
    uint32_t best_effort;      // blocks that only best-effort requests hold
    uint32_t wanted_blocks;    // free ones that guaranteed requests looked for in vain
    uint32_t wanted_slots;
    double time_us;            // of the step, for prompts and all; 0: not known yet
    bool best_effort_short;    // a best-effort one lacked a block
    // Blocks that running requests are expected to take yet: guaranteed ones, and best-effort ones.
    uint64_t expected_more, expected_more_best_effort;
    double mean_output[REQUEST_CLASS_COUNT];    // tokens, smoothed; 0: unknown
    uint32_t ticket;                            // request whose need is left alone, or REQUEST_NONE
    uint32_t ticket_blocks;
    uint64_t waiting_tokens, prefill_tokens;
    uint64_t evictions, evicted_tokens;
    struct slot *slots;           // [seqs_max]
    struct slot_owner *owners;    // [seqs_max]
    uint32_t *free_slots;         // stack
    uint32_t free_slot_count;
    uint32_t *block_ids;    // [seqs_max, blocks_per_seq_max]
    // Running slots in order of admission, and SLOT_NONE where one has ended since the last
    // scheduler_close_order, which comes before plans that need it closed, and where holes are
    // many.
    uint32_t *order;    // [2 * seqs_max]
    uint32_t order_count;
    uint32_t running;
    // Of the group, once a worker is there.
    struct envelope envelope;    // the worker's, lowered by the options
    uint32_t block_tokens;
    uint32_t retire_count;    // slots without a request that the worker still knows
    struct flight flights[SCHEDULER_DEPTH_MAX];    // ring
    uint32_t flight_first, flight_count;
    uint64_t step;    // steps planned so far
    // Of the step being planned.
    struct envelope allowed;    // the envelope, lowered while work is split
    bool suspects_only;
    bool prompt_waits;         // one that runs got no token: the step is full for it
    uint32_t *prompt_slots;    // [seqs_max] whose prompts were not all planned before
    uint32_t prompt_slot_count;
    struct step_size size;
    struct cost_shape shape;
    uint32_t change_count;        // of the plan, beside its rows
    uint32_t history_left;        // tokens that its admissions may still carry
    uint32_t admit_bytes_left;    // of them
    struct split split;
    // Another size of the pool.
    enum pool_phase pool_phase;
    uint32_t pool_end;    // that the worker is asked for
    struct move moves[BOUND_KV_MOVES];
    uint32_t move_count;     // of the plan that is out
    uint32_t move_blocks;    // blocks that move: a shared one has several moves
};

static inline struct request *scheduler_request(struct scheduler *s, uint32_t slot) {
    return &s->requests[s->owners[slot].request];
}

static inline uint32_t *scheduler_blocks(struct scheduler *s, uint32_t slot) {
    return s->block_ids + (size_t)slot * s->options.blocks_per_seq_max;
}

static inline struct slot_ref scheduler_ref(const struct scheduler *s, uint32_t slot) {
    return (struct slot_ref){slot, s->owners[slot].gen};
}

static inline uint32_t scheduler_blocks_for(const struct scheduler *s, uint32_t tokens) {
    return (tokens + s->block_tokens - 1) / s->block_tokens;
}

static inline uint32_t scheduler_length_max(const struct scheduler *s,
                                            const struct core_request *spec) {
    uint64_t length = (uint64_t)spec->prompt_count + spec->output_max;
    return length < s->envelope.seq_tokens ? (uint32_t)length : s->envelope.seq_tokens;
}

// Blocks of running sequences, wherever they lie; the places that moves go to are not theirs yet.
static inline uint32_t scheduler_live_blocks(const struct scheduler *s) {
    return kv_blocks_held(s->options.blocks) - s->move_blocks;
}

static inline struct flight *scheduler_open_flight(struct scheduler *s) {
    return &s->flights[(s->flight_first + s->flight_count) % SCHEDULER_DEPTH_MAX];
}

// The order without its holes: `running` entries.
void scheduler_close_order(struct scheduler *s);
// Free: without a request, and unknown to the worker.
void scheduler_list_free_slots(struct scheduler *s);
// Without its blocks, which the caller has disposed of.
void scheduler_leave_slot(struct scheduler *s, struct request *request);
void scheduler_clear_suspects(struct scheduler *s);
// The slot's `told` changes with the plan being made.
struct told *scheduler_tell(struct scheduler *s, uint32_t slot);
void scheduler_set_suspect(struct scheduler *s, struct request *request, bool suspect);
void scheduler_set_paused(struct scheduler *s, struct request *request, bool paused);
bool scheduler_may_run(const struct scheduler *s, const struct request *request);

// ---- scheduler_prompt.c: chunks ----------------------------------------------------------------

// The slot's next `tokens` prompt tokens are part of the step.
void scheduler_plan_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                          uint32_t tokens);
// The most of `tokens` that the step has place for.
uint32_t scheduler_chunk_that_fits(const struct scheduler *s, const struct request *request,
                                   uint32_t tokens);
// And that it has time for.
uint32_t scheduler_chunk_in_time(const struct scheduler *s, const struct request *request,
                                 uint32_t tokens);
// One chunk of a request that was just admitted, within `budget` tokens. Returns what is left.
uint32_t scheduler_first_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                               uint32_t budget);
// Time for prompts beside `rows` decode rows; the tokens that prompts may take together.
uint32_t scheduler_open_prompts(struct scheduler *s, uint32_t rows);
// Chunks of those that were admitted before, within `budget` tokens. Returns what is left.
uint32_t scheduler_plan_prompts(struct scheduler *s, struct step_plan *plan, uint32_t budget);

// ---- scheduler_admit.c: blocks, claims, cached beginnings, admission ---------------------------

uint32_t scheduler_reachable_free(const struct scheduler *s);
// Whether the plan has place for an admission of so many blocks and tokens of history.
bool scheduler_admission_fits(const struct scheduler *s, const struct request *request,
                              uint32_t blocks, uint32_t history);
// The slot's request is admitted with `cached` positions computed.
void scheduler_tell_admission(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                              uint32_t cached);
// One more block for a running request if everybody can still finish then.
bool scheduler_take_block(struct scheduler *s, uint32_t slot);
// The request's share of every count; before its blocks go.
void scheduler_drop_claim(struct scheduler *s, struct request *request);
void scheduler_publish(struct scheduler *s, struct request *request);
uint32_t scheduler_admit(struct scheduler *s, struct step_plan *plan, uint32_t budget);
// Best-effort requests go back to the line until what others lacked is on its way.
void scheduler_evict(struct scheduler *s, uint64_t seq);

// ---- scheduler_recover.c -----------------------------------------------------------------------

// Those whom the worker is to be told of again, and how many rows of the step are theirs.
uint32_t scheduler_restate(struct scheduler *s, struct step_plan *plan);
// Once decode rows are planned: they decode from the next step on.
void scheduler_end_restate(struct scheduler *s);

// ---- scheduler_pool.c --------------------------------------------------------------------------

// The pool's part of a plan, and of its answer.
void scheduler_plan_pool(struct scheduler *s, struct step_plan *plan);
void scheduler_finish_moves(struct scheduler *s, uint64_t seq);
void scheduler_undo_moves(struct scheduler *s);

#endif
