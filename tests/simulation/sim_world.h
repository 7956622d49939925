// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_WORLD_H
#define TESTS_SIMULATION_SIM_WORLD_H

#include "tests/simulation/sim_client.h"
#include "tests/simulation/sim_core.h"
#include "tests/simulation/sim_events.h"
#include "tests/simulation/sim_worker.h"

// One core, its workers, their links, its clients, faults and a clock that nobody waits for.
//
// The idea: events in order of virtual time become inputs of the core; its plans are carried out by
// model workers whose results are events again. Every chance comes from the seed, so the seed gives
// the same plans, bit for bit, and their digest says so. After every tick everything that must hold
// is checked, in the core and between the core, the workers and what clients received.
//
//   Owns       everything of the world. Fields are read by scenarios and the simulator's files.
//   Thread     one.
//   Allocates  as it grows.
//   Fails      by sim_fail.

// Mean time between two faults of a kind, in virtual seconds; 0: never.
struct sim_faults {
    double death_s;        // a worker dies and joins again
    double stall_s;        // it stops for a while: link silent, then late results
    double lost_plan_s;    // a plan never arrives, nothing tells
    double slow_s;         // steps take several times as long, for a while
    double narrow_s;       // plans above some size are refused, for a while
    double resize_s;       // an operator changes the KV pool
    double storm_s;        // half of the clients leave at once
    double doubled;        // share of results that come twice, the second one late
    double slow_join;      // share of joins that take longer than a recovery may
    double diverge_s;      // a rank draws something else than the others
    double mute_s;         // one rank's answer never comes, nothing tells
    double kv_lost;        // share of deaths that take the KV with them
};

struct sim_world_options {
    uint64_t seed;
    uint32_t groups;
    uint32_t ranks;    // of each group; 0: 1
    uint32_t waiting_max;
    uint32_t depth;                // plans that may be outstanding
    struct plan_limits machine;    // of each group
    struct sim_cost cost;          // of each group, times 1 - spread .. 1 + spread
    double spread;
    double time_scale;       // of what the core aims at; 0: 1
    double ttft_target_s;    // 0: none
    bool no_guard;
    uint64_t link_us;    // one way
    uint64_t tick_us;    // between two looks of the core at its timers
    struct sim_faults faults;
    uint64_t faults_until_us;
    uint32_t audit_every;    // ticks between two walks over every table; 0: 1
};

enum { SIM_GHOSTS = 8 };    // results of earlier epochs that may still come

enum sim_group_state { SIM_GROUP_AWAY, SIM_GROUP_JOINING, SIM_GROUP_UP };

struct sim_message;    // a result on its way (sim_link.h)

struct sim_group {
    struct sim_worker *worker;
    enum sim_group_state state;
    uint32_t index;
    uint32_t connection;    // of the worker that is there, or was last
    uint64_t epoch;
    uint64_t join_us;         // when it is back
    uint64_t away_us;         // since when it is not up
    uint64_t busy_until;      // its last step ends
    uint64_t last_arrival;    // of a result: those of a connection keep their order
    uint64_t completed_seq, sent_seq;
    uint64_t refused_seq;    // 0: none since the last that was done
    uint64_t stall_until;    // it does nothing before
    bool deaf;               // loses the next plan
    bool mute;               // of the next answer one rank's part is lost
    bool diverged;           // in the next answer one rank differs
    bool kept;               // the KV outlived the last death
    bool silent;             // has lost one in this epoch
    bool odd;                // slow or narrow for a while
    uint32_t *slots;         // [seqs] clients that plans admitted there; SIM_NEVER
    uint32_t *running;       // [seqs] clients in its slots, as the core sees it
    uint32_t running_count;
    struct sim_message *ghosts[SIM_GHOSTS];    // by seq
    // Sums.
    uint64_t steps;    // with rows
    uint64_t decode_steps, decode_rows, prefill_tokens, busy_us, idle_rows;
};

struct sim_world {
    struct sim_world_options options;
    struct sim_core *core;
    struct sim_events events;
    struct sim_group *groups;    // [options.groups]
    struct sim_clients clients;
    struct sim_source source;
    struct rng rng;    // of faults and links
    uint64_t now_us;
    uint64_t digest;    // over all plans and ends
    uint64_t epoch;     // the last one given
    uint32_t connection;
    uint64_t ticks, faults, evictions, events_done;
    uint64_t fault_us;        // of the last fault, or of its end
    uint64_t pause_us_max;    // between two such, while somebody lived
    uint64_t progress_us;     // the last step whose result arrived
    bool timer;               // is due
    bool drained, aborted;
    struct sim_message *free_messages, *delivered;    // delivered: inputs of this tick
    uint32_t *must_end;    // clients whose cancellation is an input of this tick
    uint32_t must_end_count;
    uint64_t *ids;                             // [seqs]
    uint64_t tokens;                           // received by clients
    uint64_t admitted_tokens, found_tokens;    // of prompts, at first admissions
};

struct sim_world *sim_world_create(const struct sim_world_options *options);
void sim_world_destroy(struct sim_world *world);

// A client that will send what `spec` says at spec->at_us; its index.
uint32_t sim_world_submit(struct sim_world *world, const struct sim_spec *spec);
// Clients that come one after the other; asked for the next one when the last has come.
void sim_world_source(struct sim_world *world, const struct sim_source *source);

void sim_world_run(struct sim_world *world, uint64_t until_us);
// Until the client's state is this; fails after `bound_us`.
void sim_world_run_until(struct sim_world *world, uint32_t client, enum sim_client_state state,
                         uint64_t bound_us);
// What happens next, all of one time.
void sim_world_step(struct sim_world *world);
// No more faults and new clients: everybody who lives must end within the bound, and nothing stay
// behind. Returns the time that it took.
uint64_t sim_world_drain(struct sim_world *world, uint64_t bound_us);
// The longest that those who live now could take one after the other, with room to spare.
uint64_t sim_world_serial_us(const struct sim_world *world);

// ---- for faults and scenarios ------------------------------------------------------------------

// The worker dies and is back after `away_us`, with so many blocks.
void sim_world_kill(struct sim_world *world, uint32_t group, uint64_t away_us, uint32_t blocks);
void sim_world_cancel(struct sim_world *world, uint32_t client);    // now
void sim_world_resize(struct sim_world *world, uint32_t group, uint32_t blocks);
void sim_world_finish(struct sim_world *world, bool abort);    // drain, or end everything now

// sim_fault.c
void sim_fault_start(struct sim_world *world);
void sim_fault_event(struct sim_world *world, uint32_t kind);
void sim_fault_end(struct sim_world *world);    // everything works again

// The longest step that this machine can be asked for.
uint64_t sim_world_step_us_max(const struct sim_world *world);

static inline uint64_t sim_fold(uint64_t digest, uint64_t value) {
    uint64_t mixed = (digest ^ value) * 0x9E3779B97F4A7C15u;
    return mixed ^ (mixed >> 32);
}

#endif
