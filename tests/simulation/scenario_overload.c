// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

enum { SECOND_US = 1000 * 1000, OVERLOAD_S = 300 };
static const double TARGET_S = 5;

struct outcome {
    uint64_t in_time;    // had their first token within the target and their own prompt's time
    uint64_t refused, refused_at_once, retry_ms_min, retry_ms_max;
    double ttft_p99_s, refused_after_s;
    uint32_t queued_most;
    double tokens_per_s;
};

static struct sim_world *overload(const struct scenario_run *run, double ttft_target_s,
                                  struct outcome *out) {
    const struct scenario_machine machine = {32, 2048, 4096, 16, 2048};
    struct sim_world *world = sim_world_create(&(struct sim_world_options){
        .seed = run->seed,
        .groups = 1,
        .waiting_max = BOUND_WAITING,
        .depth = 2,
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(1.0),
        .ttft_target_s = ttft_target_s,
        .link_us = 50,
        .tick_us = 100 * 1000,
        .audit_every = 16,
    });
    struct sim_traffic traffic;
    struct sim_source source = sim_traffic_source(
        &traffic, &(struct sim_traffic_options){.seed = run->seed,
                                                .per_s = 150,
                                                .burst_share = 0.3,
                                                .prompt_mean = 300,
                                                .output_mean = 150,
                                                .prompt_max = 2000,
                                                .output_max = 1000,
                                                .one_class = true,
                                                .until_us = OVERLOAD_S * (uint64_t)SECOND_US});
    *out = (struct outcome){.retry_ms_min = UINT64_MAX};
    sim_world_source(world, &source);
    while (world->now_us < OVERLOAD_S * (uint64_t)SECOND_US) {
        sim_world_step(world);
        struct sim_core_state state;
        sim_core_state(world->core, world->now_us, &state);
        out->queued_most = state.queued > out->queued_most ? state.queued : out->queued_most;
    }
    out->tokens_per_s = (double)world->tokens / OVERLOAD_S;
    return world;
}

static void count(const struct sim_world *world, struct outcome *out) {
    for (uint32_t i = 0; i < world->clients.count; i++) {
        const struct sim_client *client = sim_client_at(&world->clients, i);
        if (client->outputs > 0 &&
            (double)(client->first_us - client->spec.at_us) <= TARGET_S * SECOND_US) {
            out->in_time++;
        }
        if (client->state == SIM_CLIENT_ENDED && client->end >= SIM_END_QUEUE_FULL) {
            uint64_t ms = client->retry_after_ms;
            double after_s = (double)(client->ended_us - client->spec.at_us) / SECOND_US;
            out->refused_after_s = after_s > out->refused_after_s ? after_s : out->refused_after_s;
            out->refused++;
            out->refused_at_once += client->ended_us == client->spec.at_us ? 1 : 0;
            out->retry_ms_min = ms < out->retry_ms_min ? ms : out->retry_ms_min;
            out->retry_ms_max = ms > out->retry_ms_max ? ms : out->retry_ms_max;
        }
    }
    out->ttft_p99_s =
        (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, SIM_NEVER, 0.99) / 1e6;
}

// Several times as many clients as the machine can serve, for five minutes. Where nobody is refused
// the line grows without end and at last nobody is served in time (vllm#18826). Here those who
// would be served too late are told so, at once or as soon as it is certain, with a time to come
// again, and those who are served are served in time; the machine does nearly as much as without a
// bound.
void scenario_overload(struct scenario_run *run) {
    struct outcome bounded, unbounded;
    struct sim_world *world = overload(run, TARGET_S, &bounded);
    count(world, &bounded);
    sim_world_drain(world, sim_world_serial_us(world));
    SIM_CHECK(bounded.refused > 0, "nobody is refused");
    scenario_at_most(run, "ttft_p99_s", bounded.ttft_p99_s, 1.2 * TARGET_S);
    scenario_figure(run, "served_in_time", (double)bounded.in_time);
    scenario_figure(run, "refused", (double)bounded.refused);
    scenario_figure(run, "refused_at_once_share",
                    (double)bounded.refused_at_once / (double)bounded.refused);
    scenario_at_most(run, "refused_after_s_max", bounded.refused_after_s, 1.2 * TARGET_S);
    scenario_at_least(run, "retry_after_s_min", (double)bounded.retry_ms_min / 1000, 0.8);
    scenario_at_most(run, "retry_after_s_max", (double)bounded.retry_ms_max / 1000, 72);
    scenario_figure(run, "queued_most", bounded.queued_most);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
    world = overload(run, 0, &unbounded);
    count(world, &unbounded);
    scenario_figure(run, "without_bound_served_in_time", (double)unbounded.in_time);
    scenario_figure(run, "without_bound_ttft_p99_s", unbounded.ttft_p99_s);
    scenario_figure(run, "without_bound_queued_most", unbounded.queued_most);
    scenario_at_least(run, "tokens_per_s", bounded.tokens_per_s, 0.85 * unbounded.tokens_per_s);
    scenario_add(run, world);
    sim_world_destroy(world);
}
