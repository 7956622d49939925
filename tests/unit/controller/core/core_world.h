// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_CORE_CORE_WORLD_H
#define TESTS_UNIT_CONTROLLER_CORE_CORE_WORLD_H

#include "controller/core/core.h"
#include "controller/core/prefix_index.h"
#include "controller/core/scheduler.h"
#include "tests/unit/controller/core/fake_worker.h"
#include <check.h>

// The core, its workers without arithmetic, and clients that check what they receive; in invented
// time. Every tick is audited.
//
//   Owns its parts.  Thread one.  Allocates in world_init.  Fails by check's assertions.

enum {
    SEQS = 6,
    WAITING = 20,
    STEP_TOKENS = 24,
    SEQ_TOKENS = 192,
    BLOCK_TOKENS = 16,
    KV_BLOCKS = 24,
    VOCABULARY = 100,
    CLIENTS = 100,
    ROWS_MAX = 200,
    LANES = 3,
    TENANTS = 4,
};

struct client {
    bool open;
    uint64_t id;
    enum request_class class_;
    uint32_t tenant;
    float weight;
    int32_t tokens[SEQ_TOKENS + 1];
    struct prefix_key keys[SEQ_TOKENS / CORE_KEY_TOKENS + 1];
    bool penalised;
    uint32_t cached;
    uint32_t prompt_count, output_max;
    uint32_t received;
    int32_t stop_token;
    bool admitted;
    uint32_t lane;        // whose worker drew its last token
    uint32_t place;       // admissions before its own
    uint64_t first_us;    // its first token
    bool rejected;
    enum reject_reason reason;
    uint32_t retry_after_ms;
};

// One group's worker, and what it has not answered yet.
struct lane {
    struct fake_worker *worker;
    uint64_t epoch;
    bool plan_waits;
    struct step_result result;    // its answer to the oldest; what a test changes here goes with it
    struct pending {
        struct step_result result;
        struct result_row rows[ROWS_MAX];
        uint32_t resized;
    } pending[SCHEDULER_DEPTH_MAX], answered;
    uint32_t pending_count;
};

struct world {
    struct core *core;
    struct core_config config;
    struct message_capacity capacity;
    struct client clients[CLIENTS];
    struct lane lanes[LANES];
    uint32_t ticked_lane;    // whose input the tick has
    uint64_t now_us, next_id;
    uint32_t world;       // ranks of each group
    uint32_t token_us;    // > 0: a step takes so long per row, and time passes with its answer
    uint32_t depth, deepest;
    uint32_t admissions;
    bool resync;
    uint32_t asked_resizes, told_resizes;
    struct core_action resized;    // the last
    char note[64];
    bool loses;    // random events include lost workers
    bool keeps;    // some of which come back with their KV
    bool doubted;
    uint32_t recovered;
    struct core_action recovery;
    uint32_t missing;    // ranks that the last resync named
    uint64_t salt;
    bool drained;
    uint32_t finished[FINISH_REASON_COUNT], rejected[REJECT_REASON_COUNT];
};

void world_init(struct world *w);
void world_init_depth(struct world *w, uint32_t depth);
// With another policy or other limits: `configure` changes what the core is created with.
void world_init_with(struct world *w, void (*configure)(struct core_config *config));
void world_deinit(struct world *w);

void tick(struct world *w, const struct core_input *input);
void worker_ready(struct world *w);    // of the first group
void worker_lost(struct world *w);
void lane_ready(struct world *w, uint32_t lane);
void lane_back(struct world *w, uint32_t lane);    // with its KV
void lane_lost(struct world *w, uint32_t lane);
// One rank's part of the answer that was taken last.
void lane_rank_answer(struct world *w, uint32_t lane, uint32_t rank, uint64_t digest);
// The oldest answer is taken from the worker, and not yet told. Blocks of the pool it resized to.
uint32_t take_answer(struct world *w);
void answer(struct world *w);    // the first group's oldest plan
void lane_answer(struct world *w, uint32_t lane);
// Answers plans until nothing is outstanding; bounded by the work that can exist.
void run_dry(struct world *w);

void resize(struct world *w, uint32_t blocks);
void expect_resized(const struct world *w, enum resize_outcome outcome, uint32_t after);

// A new client, not submitted yet; NULL when all are taken.
struct client *arrive(struct world *w, uint32_t prompt, uint32_t output);
void submit(struct world *w, struct client *client);
// A client whose prompt begins with the first `count` tokens of another one's sequence, submitted.
struct client *arrive_after(struct world *w, const int32_t *begin, uint32_t count, uint32_t prompt,
                            uint32_t output);
void cancel(struct world *w, const struct client *client);

uint32_t open_count(const struct world *w);
uint32_t pool_of(const struct world *w);
uint32_t running(const struct world *w);
void expect_all_blocks_free(const struct world *w);

#endif
