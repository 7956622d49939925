// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_WORKER_H
#define TESTS_SIMULATION_SIM_WORKER_H

#include "common/rng.h"
#include "proto/messages.h"

// A worker without arithmetic: it carries plans out on a slot table and a table of KV blocks of its
// own, says how long the step took by a cost model, and draws tokens that depend on the tokens
// before them and on nothing else.
//
// The idea: what a position leaves in the KV is a hash over all tokens up to it, the chain. A block
// keeps the chain before its first position and after its last filled one, so each write sees
// whether the block still holds what belongs there, and shared, moved or recycled blocks with wrong
// contents are noticed. The next token is a function of the chain, so a client that knows its
// prompt knows every token it must receive, whatever happened in between.
//
//   Owns       its tables.
//   Thread     one.
//   Allocates  in create.
//   Fails      by sim_fail: a plan that breaks a rule is a bug of the controller.

struct sim_worker;

// t = step + prefill T + row D + pair sum(chunk x context) + context sum(contexts of decode rows)
struct sim_cost {
    double step_us;
    double prefill_token_us;
    double decode_row_us;
    double prefill_pair_us;
    double decode_context_us;
    double noise;    // each step takes 1 - noise .. 1 + noise times as long
};

struct sim_worker_options {
    struct plan_limits limits;
    struct sim_cost cost;
    uint64_t seed;
};

// ---- tokens ------------------------------------------------------------------------------------

enum { SIM_VOCABULARY = 65536, SIM_TOKEN_END = 0 };

// A sequence's sampling seed: whose it is, how many tokens it draws before it ends by itself
// (0: never), and whether its work is refused whenever a plan holds it.
uint64_t sim_seed(uint64_t id, uint32_t natural_length, bool poison);
uint64_t sim_seed_id(uint64_t seed);
uint32_t sim_seed_natural_length(uint64_t seed);
bool sim_seed_poison(uint64_t seed);

// The chain after one more token.
static inline uint64_t sim_chain(uint64_t before, int32_t token) {
    uint64_t mixed = (before ^ ((uint64_t)(uint32_t)token + 1)) * 0x9E3779B97F4A7C15u;
    return mixed ^ (mixed >> 29);
}
// The output number `index` (from 0) of a sequence whose tokens so far have this chain.
int32_t sim_next_token(uint64_t chain, uint32_t index, uint64_t seed);

// ---- life cycle --------------------------------------------------------------------------------

struct sim_worker *sim_worker_create(const struct sim_worker_options *options);
void sim_worker_destroy(struct sim_worker *worker);
// A new epoch: slots and KV are gone; the pool has so many blocks, at most those of create.
void sim_worker_reset(struct sim_worker *worker, uint64_t epoch, uint32_t kv_blocks);
// A new epoch over the KV that is there: slots are gone.
void sim_worker_resume(struct sim_worker *worker, uint64_t epoch);

// ---- plans -------------------------------------------------------------------------------------

// Rows of one result; the caller's, at least sim_worker_rows_max of them.
uint32_t sim_worker_rows_max(const struct sim_worker *worker);

// Carries the plan out. `completed_seq` is the last plan whose result the controller had when it
// made this one: blocks that a later plan touched may not be handed out again yet.
void sim_worker_run(struct sim_worker *worker, const struct plan *plan, uint64_t completed_seq,
                    struct result_row *rows, struct step_result *out);

// From now on plans of more rows than this are refused (0: none are).
void sim_worker_narrow(struct sim_worker *worker, uint32_t rows_max);
// Steps take so many times as long.
void sim_worker_slow(struct sim_worker *worker, double factor);
// A pool that shrinks or grows gives whole chunks, and so many blocks at most.
void sim_worker_chunk(struct sim_worker *worker, uint32_t chunk_blocks);

// ---- what it did -------------------------------------------------------------------------------

struct sim_step {
    uint32_t decode_rows, prefill_tokens;
    uint32_t idle_rows;    // of sequences that had ended by themselves, which the plan counted
    uint32_t seqs;
    bool resized;    // the pool's size was asked for: a capacity report follows
};
const struct sim_step *sim_worker_last(const struct sim_worker *worker);
const struct message_capacity *sim_worker_capacity(const struct sim_worker *worker);

uint32_t sim_worker_blocks_held(const struct sim_worker *worker);    // each counted once
uint32_t sim_worker_live(const struct sim_worker *worker);
// Ids of the sequences in slots; `out` has room for all slots. Their number.
uint32_t sim_worker_ids(const struct sim_worker *worker, uint64_t *out);
// Walks every table.
void sim_worker_audit(const struct sim_worker *worker);

// Prompt tokens computed for the sequence that the plan's chunk belongs to are told here.
struct sim_worker_listener {
    void *ctx;
    void (*admitted)(void *ctx, uint64_t id, uint32_t cached_tokens);
    void (*computed)(void *ctx, uint64_t id, uint32_t tokens);    // of a prompt's chunk
    void (*shares)(void *ctx, uint64_t id, uint64_t writer);      // a block that `writer` computed
    const int32_t *(*tokens)(void *ctx, uint64_t id);    // of the sequence, prompt and outputs
};
void sim_worker_listen(struct sim_worker *worker, const struct sim_worker_listener *listener);

#endif
