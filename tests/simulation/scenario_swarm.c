// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

// Everything at random: machines, clients and faults are drawn from the seed, each kind of fault
// with a rate of its own or not at all, so that rare meetings come in some of the seeds (swarm
// testing; Groce et al., ISSTA 2012). At the end faults stop, everybody must end and nothing stay.

static double pick(struct rng *rng, double low, double high) {
    return low + (high - low) * rng_unit(rng);
}

// Half of the kinds of faults take part in a seed.
static double maybe(struct rng *rng, double low, double high) {
    return rng_below(rng, 2) == 0 ? 0.0 : pick(rng, low, high);
}

static struct scenario_machine draw_machine(struct rng *rng) {
    uint32_t block_tokens = 16u << rng_below(rng, 3);
    uint32_t seqs = 1 + (uint32_t)rng_below(rng, 16);
    uint32_t blocks = 8 + (uint32_t)rng_below(rng, 120);
    uint32_t longest = blocks * block_tokens;
    uint32_t seq_tokens = longest / 4 + (uint32_t)rng_below(rng, longest);
    return (struct scenario_machine){
        .seqs = seqs,
        .step_tokens = seqs + 1 + (uint32_t)rng_below(rng, 256),
        .seq_tokens = seq_tokens,
        .block_tokens = block_tokens,
        .kv_blocks = blocks,
    };
}

static struct sim_faults draw_faults(struct rng *rng) {
    return (struct sim_faults){
        .death_s = maybe(rng, 60, 1000),
        .stall_s = maybe(rng, 60, 1000),
        .lost_plan_s = maybe(rng, 200, 1000),
        .slow_s = maybe(rng, 60, 1000),
        .narrow_s = maybe(rng, 60, 1000),
        .resize_s = maybe(rng, 10, 300),
        .storm_s = maybe(rng, 60, 600),
        .doubled = maybe(rng, 0, 0.1),
        .slow_join = maybe(rng, 0, 0.2),
        .diverge_s = maybe(rng, 200, 1000),
        .mute_s = maybe(rng, 200, 1000),
        .kv_lost = rng_below(rng, 4) == 0 ? 1.0 : maybe(rng, 0, 1),
    };
}

// Narrower than its tables: a step may hold fewer logits, logprobs and context.
static void narrow_envelope(struct rng *rng, struct envelope *e) {
    if (rng_below(rng, 2) == 0) {
        e->logit_rows = 1 + (uint32_t)rng_below(rng, e->seqs + 8);
        e->prompt_logit_rows = 1 + (uint32_t)rng_below(rng, e->logit_rows);
        e->logprob_rows = 1 + (uint32_t)rng_below(rng, e->logit_rows);
    }
    if (rng_below(rng, 2) == 0) {
        e->attended_tokens = e->seq_tokens + rng_below(rng, e->attended_tokens);
    }
}

static struct sim_traffic_options draw_traffic(struct rng *rng, const struct plan_limits *machine,
                                               double scale, double until_s) {
    const struct envelope *e = &machine->envelope;
    uint32_t longest = machine->kv_blocks * machine->block_tokens;
    double prompt = pick(rng, 4, longest * 0.25);
    double output = pick(rng, 2, 60);
    // What one machine does, roughly: decode rows side by side until slots or memory are full.
    double side_by_side = longest / (prompt + 2 * output);
    side_by_side = side_by_side < e->seqs ? side_by_side : e->seqs;
    double step_s = 0.013 * scale;
    double service_s = step_s * (prompt / 128.0 + output / (side_by_side < 1 ? 1 : side_by_side));
    return (struct sim_traffic_options){
        .seed = rng_u64(rng),
        .per_s = pick(rng, 0.2, 1.3) / service_s,
        .burst_share = maybe(rng, 0, 0.8),
        .prompt_mean = prompt,
        .output_mean = output,
        .prompt_max = 1 + longest / 2,
        .output_max = 1 + longest / 4,
        .families = 1 + (uint32_t)rng_below(rng, 20),
        .shared_share = maybe(rng, 0.2, 1),
        .cancel_share = maybe(rng, 0, 0.5),
        .stop_share = maybe(rng, 0, 0.3),
        .endless_share = maybe(rng, 0, 0.3),
        .logprob_share = maybe(rng, 0, 0.5),
        .score_share = maybe(rng, 0, 0.1),
        .penalty_share = maybe(rng, 0, 0.2),
        .cache_share = rng_below(rng, 4) == 0 ? 0.0 : pick(rng, 0.5, 1),
        .salts = 1 + (uint32_t)rng_below(rng, 3),
        .poison_share = maybe(rng, 0, 0.02),
        .until_us = (uint64_t)(until_s * 1e6),
    };
}

void scenario_swarm(struct scenario_run *run) {
    struct rng rng;
    rng_init(&rng, run->seed);
    double scale = run->full_rate ? 1.0 : 16.0;
    double until_s = run->hours * 3600.0;
    struct scenario_machine machine = draw_machine(&rng);
    struct sim_world_options options = {
        .seed = rng_u64(&rng),
        .groups = rng_below(&rng, 3) == 0 ? 1 + (uint32_t)rng_below(&rng, 6) : 1,
        .ranks = rng_below(&rng, 2) == 0 ? 1 : 1 + (uint32_t)rng_below(&rng, 8),
        .waiting_max = 1 + (uint32_t)rng_below(&rng, 64),
        .depth = 1 + (uint32_t)rng_below(&rng, 3),
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(scale),
        .time_scale = scale,
        .ttft_target_s = maybe(&rng, 1, 60) * scale,
        .no_guard = rng_below(&rng, 4) == 0,
        .spread = maybe(&rng, 0, 0.3),
        .link_us = (uint64_t)pick(&rng, 20, 2000),
        .tick_us = run->full_rate ? 100 * 1000 : 1000 * 1000,
        .faults = draw_faults(&rng),
        .faults_until_us = (uint64_t)(until_s * 1e6),
    };
    options.audit_every = options.groups;    // an audit walks all of them, a tick moves one
    narrow_envelope(&rng, &options.machine.envelope);
    struct sim_traffic traffic;
    struct sim_traffic_options clients = draw_traffic(&rng, &options.machine, scale, until_s);
    clients.per_s *= options.groups;
    uint64_t ending = rng_below(&rng, 4);
    struct sim_world *world = sim_world_create(&options);
    struct sim_source source = sim_traffic_source(&traffic, &clients);
    sim_world_source(world, &source);
    sim_world_run(world, (uint64_t)(until_s * 1e6));
    if (ending < 2) {
        sim_world_finish(world, ending == 0);
    }
    uint64_t took_us = sim_world_drain(world, sim_world_serial_us(world));
    SIM_CHECK(ending >= 2 || world->drained, "a drain that never says it is done");
    scenario_add(run, world);
    scenario_figure(run, "drain_s", (double)took_us / 1e6);
    sim_world_destroy(world);
}
