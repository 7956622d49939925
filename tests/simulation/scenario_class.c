// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

enum { SECOND_US = 1000 * 1000 };
enum label { BATCH, FIRST };
// Until blocks of an evicted one are there: it is seen that they are missing, its slot is taken
// with the next plan, which must be done; meanwhile others of best effort may have taken what was
// free.
enum { GIVE_WAY_STEPS = 20 };

static struct sim_world *world_of(const struct scenario_run *run,
                                  const struct scenario_machine *machine) {
    return sim_world_create(&(struct sim_world_options){
        .seed = run->seed,
        .groups = 1,
        .waiting_max = 1024,
        .depth = 2,
        .machine = scenario_limits(machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = 100 * 1000,
    });
}

static struct sim_spec first_of_all(uint64_t at_us) {
    struct sim_spec spec = scenario_client(at_us, 400, 20);
    spec.class_ = SIM_REALTIME;
    spec.label = FIRST;
    return spec;
}

static double alone_us(const struct scenario_run *run, const struct scenario_machine *machine) {
    struct sim_world *world = world_of(run, machine);
    struct sim_spec spec = first_of_all(SECOND_US);
    sim_world_submit(world, &spec);
    sim_world_run(world, 10 * SECOND_US);
    double us = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, FIRST, 1.0);
    sim_world_destroy(world);
    return us;
}

// Best-effort requests fill the machine, with more in the line; then requests of the first class
// come. Where priority only sorts the line they wait until somebody ends (vllm#19057), and where it
// evicts without end the low ones starve. Here best effort gives way at once, each at most twice,
// and all of them end.
static void fill_and_come(struct scenario_run *run, const struct scenario_machine *machine) {
    enum { BATCHES = 60, FIRSTS = 40 };
    double alone = alone_us(run, machine);
    struct sim_world *world = world_of(run, machine);
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct sim_spec spec = scenario_client(i * 1000, 300, 1500);
        spec.class_ = SIM_BATCH;
        spec.label = BATCH;
        sim_world_submit(world, &spec);
    }
    for (uint32_t i = 0; i < FIRSTS; i++) {
        struct sim_spec spec = first_of_all((8 + i / 2) * (uint64_t)SECOND_US + i * 1013);
        sim_world_submit(world, &spec);
    }
    sim_world_run(world, 40 * SECOND_US);
    double worst = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, FIRST, 1.0);
    double step = (double)sim_world_step_us_max(world);
    scenario_figure(run, "first_ttft_alone_ms", alone / 1000);
    scenario_at_most(run, "first_ttft_ms_max", worst / 1000,
                     (1.2 * alone + GIVE_WAY_STEPS * step) / 1000);
    sim_world_drain(world, sim_world_serial_us(world));
    uint32_t most = 0;
    for (uint32_t i = 0; i < world->clients.count; i++) {
        const struct sim_client *client = sim_client_at(&world->clients, i);
        most = client->evictions > most ? client->evictions : most;
    }
    scenario_figure(run, "evictions_of_best_effort", (double)world->evictions);
    scenario_at_most(run, "evictions_of_one", most, 2);
    scenario_at_least(run, "ended", world->clients.ended[SIM_END_LENGTH], BATCHES + FIRSTS);
    scenario_add(run, world);
    sim_world_destroy(world);
}

void scenario_priority(struct scenario_run *run) {
    fill_and_come(run, &(struct scenario_machine){64, 512, 4096, 16, 1024});
}

void scenario_priority_slots(struct scenario_run *run) {
    fill_and_come(run, &(struct scenario_machine){8, 512, 4096, 16, 4096});
}
