// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_TRAFFIC_H
#define TESTS_SIMULATION_SIM_TRAFFIC_H

#include "tests/simulation/sim_world.h"

// Who comes when: invented clients, and recorded ones.
//
//   Owns       its tables; a source made here keeps the object, which must outlive its world.
//   Thread     one.
//   Allocates  in load.
//   Fails      load: NOT_FOUND, INVALID naming the line. Else by sim_fail.

// ---- invented ----------------------------------------------------------------------------------

struct sim_traffic_options {
    uint64_t seed;
    double per_s;                       // clients, on average
    double burst_share;                 // of them, those that come in bursts of up to 64
    double prompt_mean, output_mean;    // tokens, log-normal around these
    uint32_t prompt_max, output_max;
    uint32_t families;       // beginnings that prompts share
    double shared_share;     // of the clients, those whose prompt begins like others
    double cancel_share;     // that leave before their end
    double stop_share;       // that end by a stop string
    double endless_share;    // that never end by themselves
    double logprob_share, score_share, poison_share, penalty_share;
    double cache_share;    // that may share KV
    uint32_t salts;        // groups of clients that may
    bool one_class;        // all are of the standard class
    uint64_t until_us;
};

struct sim_traffic {
    struct sim_traffic_options options;
    struct rng rng;
    uint64_t at_us;
    uint32_t burst_left;
};

struct sim_source sim_traffic_source(struct sim_traffic *traffic,
                                     const struct sim_traffic_options *options);

// ---- recorded ----------------------------------------------------------------------------------

// One row of a trace. Prompts of rows with `ids` are made of pieces of 512 tokens: one id, one
// piece, so they share beginnings exactly as the ids say.
struct sim_trace_row {
    uint64_t at_us;
    uint32_t prompt_count, output_count;
    const uint32_t *ids;    // NULL: nothing is shared
};
enum { SIM_TRACE_PIECE = 512 };

struct sim_trace {
    struct sim_trace_row *rows;
    uint32_t *ids;
    uint32_t row_count, id_count;
};

// A file with the columns TIMESTAMP,ContextTokens,GeneratedTokens (.csv), or of one JSON object a
// line with timestamp (ms), input_length, output_length, hash_ids (.jsonl).
enum status sim_trace_load(const char *path, struct sim_trace *out, struct error *err) MUST_USE;
void sim_trace_deinit(struct sim_trace *trace);

struct sim_replay_options {
    const struct sim_trace *trace;
    double speed;           // the recorded times divided by this
    uint32_t output_max;    // what each client asks for at most; at least what it got
    uint32_t length_max;    // longer prompts lose their end
    bool cache;
    uint64_t until_us;
};
struct sim_replay {
    struct sim_replay_options options;
    uint32_t next;
};
struct sim_source sim_replay_source(struct sim_replay *replay,
                                    const struct sim_replay_options *options);

#endif
