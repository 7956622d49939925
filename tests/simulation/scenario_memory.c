// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

enum { SECOND_US = 1000 * 1000 };

static struct sim_world_options world_of(const struct scenario_run *run,
                                         const struct scenario_machine *machine) {
    return (struct sim_world_options){
        .seed = run->seed,
        .groups = 1,
        .waiting_max = 1024,
        .depth = 2,
        .machine = scenario_limits(machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = 100 * 1000,
    };
}

static struct sim_core_state state_of(const struct sim_world *world) {
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    return state;
}

// ---- a fifth prompt where four fit -------------------------------------------------------------

// Four prompts of 100,000 tokens fill nine tenths of the pool and decode; a fifth comes. Where the
// first chunk decides it is let in, computed to its end, thrown out, and again: vllm#37307 saw the
// decode rate fall from 100 to 1.5 tokens per second. Here it waits, and the four do not notice.
void scenario_preemption_thrash(struct scenario_run *run) {
    const struct scenario_machine machine = {16, 8192, 131072, 64, 7014};
    enum { PROMPT = 100 * 1000, OUTPUTS = 6000, FILLERS = 4 };
    struct sim_world_options options = world_of(run, &machine);
    options.audit_every = 64;
    struct sim_world *world = sim_world_create(&options);
    for (uint32_t i = 0; i < FILLERS; i++) {
        struct sim_spec spec = scenario_client(i, PROMPT, OUTPUTS);
        sim_world_submit(world, &spec);
    }
    while (sim_client_at(&world->clients, FILLERS - 1)->outputs < 10) {
        sim_world_step(world);
    }
    uint64_t rows = world->groups[0].decode_rows;
    uint64_t start_us = world->now_us;
    sim_world_run(world, start_us + 5 * SECOND_US);
    double before = (double)(world->groups[0].decode_rows - rows) / 5.0;
    struct sim_spec fifth = scenario_client(world->now_us, PROMPT, OUTPUTS);
    uint32_t client = sim_world_submit(world, &fifth);
    rows = world->groups[0].decode_rows;
    sim_world_run(world, world->now_us + 5 * SECOND_US);
    double after = (double)(world->groups[0].decode_rows - rows) / 5.0;
    SIM_CHECK(sim_client_at(&world->clients, client)->admitted == 0, "the fifth is let in");
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_figure(run, "decode_per_s_before", before);
    scenario_at_least(run, "decode_per_s_while_fifth_waits", after, 0.98 * before);
    scenario_at_most(run, "fifth_admissions", sim_client_at(&world->clients, client)->admitted, 1);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- frees behind a fence ----------------------------------------------------------------------

// Results come so late that three plans are always on their way, in a pool that is always full. All
// that ends stands behind a fence. Where a shortage makes a scheduler evict until the free count
// changes, it evicts everybody, for the count does not change (vllm-ascend#16315). Here quarantine
// counts as coming back: nobody is evicted and no step is left out.
void scenario_deferred_frees(struct scenario_run *run) {
    const struct scenario_machine machine = {32, 512, 2048, 16, 512};
    struct sim_world_options options = world_of(run, &machine);
    options.depth = 3;
    options.link_us = 40 * 1000;
    struct sim_world *world = sim_world_create(&options);
    struct sim_traffic traffic;
    struct sim_source source =
        sim_traffic_source(&traffic, &(struct sim_traffic_options){.seed = run->seed,
                                                                   .per_s = 20,
                                                                   .prompt_mean = 200,
                                                                   .output_mean = 100,
                                                                   .prompt_max = 800,
                                                                   .output_max = 1000,
                                                                   .endless_share = 0.3,
                                                                   .one_class = true,
                                                                   .until_us = 120u * SECOND_US});
    sim_world_source(world, &source);
    uint64_t quarantined = 0, looks = 0, short_looks = 0;
    while (world->now_us < 120u * SECOND_US) {
        sim_world_step(world);
        struct sim_core_state state = state_of(world);
        quarantined += state.blocks_quarantined;
        short_looks += state.blocks_free == 0 && state.blocks_quarantined > 0 ? 1 : 0;
        looks++;
    }
    double bound_s = (double)(3 * sim_world_step_us_max(world) + 4 * options.link_us) / SECOND_US;
    scenario_figure(run, "quarantined_mean", (double)quarantined / (double)looks);
    scenario_figure(run, "looks_with_all_free_ones_fenced", (double)short_looks);
    scenario_at_most(run, "longest_pause_s", (double)world->pause_us_max / SECOND_US, bound_s);
    scenario_no_recompute(run, world);
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- who waits owns nothing --------------------------------------------------------------------

// Sixteen sequences grow until the pool is full and most of them pause; the head of the line needs
// half of the pool. Where waiting requests own memory, or the walk ends at the head, nothing moves
// again (vllm#45388). Here whoever needs least ends, then the next; the head starts at the latest
// when all sixteen have ended one after the other.
void scenario_parked(struct scenario_run *run) {
    const struct scenario_machine machine = {32, 512, 4096, 16, 256};
    enum { FILLERS = 16, OUTPUTS = 1000 };
    struct sim_world_options options = world_of(run, &machine);
    struct sim_world *world = sim_world_create(&options);
    for (uint32_t i = 0; i < FILLERS; i++) {
        struct sim_spec spec = scenario_client(i, 64, OUTPUTS);
        sim_world_submit(world, &spec);
    }
    struct sim_spec spec = scenario_client(SECOND_US, 2000, 100);
    uint32_t head = sim_world_submit(world, &spec);
    sim_world_run(world, SECOND_US);
    uint64_t serial_us = FILLERS * (OUTPUTS + 4) * (sim_world_step_us_max(world) + 100);
    uint32_t held_most = 0;
    while (sim_client_at(&world->clients, head)->outputs == 0) {
        sim_world_step(world);
        struct sim_core_state state = state_of(world);
        held_most = state.blocks_held > held_most ? state.blocks_held : held_most;
        SIM_CHECK(world->now_us < SECOND_US + serial_us, "the head of the line waits for ever");
    }
    scenario_at_least(run, "blocks_held_most", held_most, 0.95 * machine.kv_blocks);
    scenario_at_most(run, "head_ttft_s",
                     (double)(sim_client_at(&world->clients, head)->first_us - spec.at_us) /
                         SECOND_US,
                     (double)serial_us / SECOND_US);
    scenario_figure(run, "longest_gap_s",
                    (double)sim_clients_quantile(&world->clients, SIM_MEASURE_GAP, 0, 1.0) /
                        SECOND_US);
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- clients that leave ------------------------------------------------------------------------

// One client after the other leaves at some moment of its life: waiting, between chunks of its
// prompt, while a step runs, decoding. Elsewhere it decodes on to its max_tokens (sglang#36333).
// Here the next plan takes its slot, and all its blocks are free when that one is done: behind
// those that are on their way.
void scenario_client_gone(struct scenario_run *run) {
    const struct scenario_machine machine = {16, 256, 4096, 16, 512};
    enum { CLIENTS = 1000, PROMPT = 2000, OUTPUTS = 200 };
    struct sim_world_options options = world_of(run, &machine);
    struct sim_world *world = sim_world_create(&options);
    struct rng rng;
    rng_init(&rng, run->seed);
    uint64_t life_us = 2600 * 1000;    // a little longer than one takes from start to end
    uint64_t worst_us = 0;
    uint32_t gone = 0;
    double rows_after = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        uint64_t at = world->now_us + 1 + rng_below(&rng, 20 * 1000);
        struct sim_spec spec = scenario_client(at, PROMPT, OUTPUTS);
        spec.cancel_after_us = 1 + rng_below(&rng, life_us);
        uint32_t client = sim_world_submit(world, &spec);
        sim_world_run_until(world, client, SIM_CLIENT_LIVES, 2 * SECOND_US);
        sim_world_run_until(world, client, SIM_CLIENT_ENDED, 2 * life_us);
        uint64_t end_us = world->now_us;
        uint64_t rows = world->groups[0].decode_rows;
        while (state_of(world).blocks_free < machine.kv_blocks) {
            sim_world_step(world);
        }
        if (sim_client_at(&world->clients, client)->cancelled) {
            gone++;
            uint64_t took_us = world->now_us - end_us;
            worst_us = took_us > worst_us ? took_us : worst_us;
            rows_after += (double)(world->groups[0].decode_rows - rows);
        }
    }
    double step_ms = (double)sim_world_step_us_max(world) / 1000.0;
    scenario_at_least(run, "clients_gone", gone, CLIENTS / 2.0);
    scenario_at_most(run, "memory_back_ms_max", (double)worst_us / 1000.0,
                     (options.depth + 1) * step_ms + 1);
    scenario_figure(run, "step_ms_max", step_ms);
    scenario_at_most(run, "rows_planned_after_leaving", rows_after / gone, 0);
    scenario_no_recompute(run, world);
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_add(run, world);
    sim_world_destroy(world);
}
