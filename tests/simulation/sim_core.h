// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_CORE_H
#define TESTS_SIMULATION_SIM_CORE_H

#include "proto/messages.h"

// The controller's core as the simulated world sees it: inputs by name, actions by name.
//
// The idea: this is the only file of the simulator that includes controller/core, so that the rest
// of it does not move when the core's interface does. It links the objects that the daemon links.
//
//   Owns       the core and the inputs of one tick; keeps the listener.
//   Thread     one.
//   Allocates  in create, and a request's part for the core.
//   Fails      by sim_fail.

struct sim_core;

enum sim_class { SIM_REALTIME, SIM_STANDARD, SIM_BATCH, SIM_CLASS_COUNT };

enum sim_end {
    SIM_END_NONE,    // lives
    SIM_END_STOP,
    SIM_END_LENGTH,
    SIM_END_CANCELLED,
    SIM_END_FAULT,
    SIM_END_SHUTDOWN,
    SIM_END_REFUSED,
    SIM_END_QUEUE_FULL,    // from here on: never started
    SIM_END_TOO_LARGE,
    SIM_END_UNAVAILABLE,
    SIM_END_DRAINING,
    SIM_END_COUNT,
};
extern const char *const sim_end_name[SIM_END_COUNT];

struct sim_core_options {
    uint32_t seqs_max, waiting_max, step_tokens_max, blocks_max;
    uint32_t depth;    // plans that may be outstanding
    uint32_t groups, tenants, blocks_per_seq;
    uint32_t ranks;          // of a group
    double time_scale;       // of what it aims at, as steps are so many times longer
    double ttft_target_s;    // of the classes that have one; 0: none
    bool no_guard;           // admission by the safe state alone
};

// One sequence to generate. The sampling seed tells the simulated worker whose it is and where it
// ends by itself; see sim_worker.h.
struct sim_request {
    uint64_t id;
    enum sim_class class_;
    uint32_t tenant;
    int32_t *tokens;    // [prompt_count + output_max], alive until the end
    uint32_t prompt_count, output_max;
    uint64_t seed;
    bool want_logprobs, want_prompt_logprobs;
    bool penalties;    // tokens before are counted
    void *keys;        // of sim_core_keys; NULL: no cached KV is looked for
    uint32_t key_capacity;
    uint64_t salt;    // others share nothing
};

// Room for what the core keeps of a sequence of so many tokens, alive as long as the tokens.
void *sim_core_keys(uint32_t tokens, uint32_t *capacity);

struct sim_listener {
    void *ctx;
    void (*plan)(void *ctx, uint32_t group, const struct plan *plan);
    void (*admitted)(void *ctx, uint64_t id, uint32_t cached_tokens);
    void (*token)(void *ctx, uint64_t id, const struct result_row *row);
    void (*ended)(void *ctx, uint64_t id, enum sim_end end, uint32_t output_count,
                  uint32_t retry_after_ms);
    void (*resync)(void *ctx, uint32_t connection);
    void (*resized)(void *ctx, uint32_t blocks);
    void (*drained)(void *ctx);
};

struct sim_core *sim_core_create(const struct sim_core_options *options,
                                 const struct sim_listener *listener);
void sim_core_destroy(struct sim_core *core);

// Inputs of the next tick, in order; what they point to lives until then.
void sim_core_request(struct sim_core *core, const struct sim_request *request);
void sim_core_cancel(struct sim_core *core, uint64_t id);
void sim_core_stop(struct sim_core *core, uint64_t id);
// A connection `worker` of a group.
struct sim_ready {
    uint32_t group, worker;
    uint64_t epoch;
    uint32_t ranks;
    bool kv_kept;
    const struct message_capacity *capacity;
};
void sim_core_ready(struct sim_core *core, const struct sim_ready *ready);
void sim_core_lost(struct sim_core *core, uint32_t worker);
void sim_core_result(struct sim_core *core, uint32_t worker, uint32_t rank,
                     const struct step_result *result);
void sim_core_resize(struct sim_core *core, uint32_t group, uint32_t blocks);
void sim_core_drain(struct sim_core *core);
void sim_core_abort_all(struct sim_core *core);
bool sim_core_full(const struct sim_core *core);    // room for a few more inputs only

void sim_core_tick(struct sim_core *core, uint64_t now_us);

struct sim_core_state {
    uint32_t queued, prefilling, decoding, paused;
    uint32_t blocks_total, blocks_free, blocks_quarantined, blocks_held;
    uint32_t blocks_cached;    // of the free ones
    bool resizing;
    // Counted since the start.
    uint64_t plans, generated, prompt_computed, recomputed, preemptions, refusals;
    uint64_t divergences, losses, losses_kept;
    uint64_t prefix_queries, prefix_hits;    // prompt tokens of admissions, and those found
};
void sim_core_state(const struct sim_core *core, uint64_t now_us, struct sim_core_state *out);
// The same of one group; counted sums are the core's.
void sim_core_group_state(const struct sim_core *core, uint32_t group, uint64_t now_us,
                          struct sim_core_state *out);
void sim_core_audit(const struct sim_core *core);

// What the core promises, for bounds of the checks.
uint32_t sim_core_resumes_max(void);    // losses of its group that a request survives
uint64_t sim_core_recovery_us(void);    // a group may be away so long
uint32_t sim_core_evictions_max(enum sim_class class_);    // of one request, without a fault
uint64_t sim_core_step_lost_us(void);                      // past its deadline a step is given up

#endif
