// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_WORKER_STEP_SCRIPT_H
#define TESTS_UNIT_WORKER_STEP_SCRIPT_H

#include "common/rng.h"
#include "worker/device/device.h"
#include "worker/step/executor.h"
#include "worker/step/tiles.h"
#include "worker/weights/weights.h"
#include <check.h>

// Legal plans at the brim of a small envelope, and a real executor that carries them out.
//
// The idea: sequences of random lengths fill the slots; each step has as much as the envelope lets
// in, so a little more is too much. Plans are written into memory with room past every limit, for
// tests that change them. Pools have a guard page behind them and canaries before them.
//
// Owns the pools.  Thread one.  Allocates in script_worker_init.  Fails the test.

enum {
    SEQS = 4,
    TOKENS = 16,
    SEQ_TOKENS = 64,
    BLOCK = 16,
    BLOCKS_EACH = SEQ_TOKENS / BLOCK,
    SPARE = 3,    // blocks below all that the script uses
    BLOCKS = SPARE + SEQS * BLOCKS_EACH,
    VOCABULARY = 64,
    STEPS = 40,
    // What a message could bring, past every limit.
    LIST_CAP = SEQS + 4,
    MOVES_CAP = BLOCKS + 1,
    TOKENS_CAP = TOKENS + 9,
    BLOCKS_CAP = BLOCKS_EACH + 4,
    ROWS_CAP = TOKENS,
};

extern const struct plan_limits script_limits;

// check writes a line for every assertion that holds; here millions do.
#define MUST(claim) ((claim) ? (void)0 : ck_abort_msg("%s", #claim))

// ---- the worker --------------------------------------------------------------------------------

struct script_pool {
    uint8_t *map;    // canaries, then `base`, then a page that nobody may touch
    size_t open_bytes;
    uint8_t *base;
    size_t bytes;
};

enum { POOL_KV, POOL_HISTORY, POOL_STEP, POOL_WORKSPACE, POOL_WEIGHTS, POOL_COUNT };

struct script_worker {
    struct memory_ledger ledger;
    struct weights *weights;
    struct device *device;
    struct model *model;
    struct op_kv_layout kv;
    struct batch *batch;
    struct executor *executor;
    struct script_pool pools[POOL_COUNT];
};

void script_worker_init(struct script_worker *w);
void script_worker_deinit(struct script_worker *w);
void script_worker_check(const struct script_worker *w);    // the canaries live

// ---- the script --------------------------------------------------------------------------------

// A plan as a message could bring it.
struct script_parts {
    struct plan plan;
    struct plan_admit admits[LIST_CAP];
    struct plan_update updates[LIST_CAP];
    struct plan_retire retires[LIST_CAP];
    struct plan_prefill prefills[LIST_CAP];
    struct plan_move moves[MOVES_CAP];
    uint32_t admit_blocks[LIST_CAP][BLOCKS_CAP];
    uint32_t update_blocks[LIST_CAP][BLOCKS_CAP];
    int32_t tokens[LIST_CAP][TOKENS_CAP];
    struct token_bias bias[BOUND_LOGIT_BIAS + 1];
};

// Pointers into the parts themselves, and something in every place that a count may reach.
void script_parts_bind(struct script_parts *p);

struct script_sequence {
    bool live, scores, logprobs;
    uint32_t gen, prompt, len_max, length, blocks;
};

struct script {
    struct script_parts steps[STEPS];
    struct script_sequence sequences[SEQS];
    struct step_size size;
};

// The step of this number, from 1: each slot's sequence goes on, ends, or another one begins.
void script_write(struct script *s, struct script_parts *p, struct rng *rng, uint64_t seq);

// ---- running it --------------------------------------------------------------------------------

struct script_bits {
    uint32_t row_count;
    struct {
        uint32_t slot, position, rank;
        int32_t token;
        float logprob;
        int32_t top_token;
        float top_logprob;
    } rows[ROWS_CAP];
};

// A plan that must be carried out, and what it drew.
void script_run(struct script_worker *w, const struct script_parts *step, struct script_bits *out);
// The last step was inside the envelope and the pools: counted from the step's own arrays and its
// results, not as the worker counted.
void script_check(const struct script_worker *w, const struct step_result *result);

#endif
