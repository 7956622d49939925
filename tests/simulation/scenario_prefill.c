// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

enum { SECOND_US = 1000 * 1000 };

static struct sim_world_options world_of(const struct scenario_run *run) {
    const struct scenario_machine machine = {64, 8192, 700000, 64, 16384};
    return (struct sim_world_options){
        .seed = run->seed,
        .groups = 1,
        .waiting_max = 1024,
        .depth = 2,
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = 100 * 1000,
        .audit_every = 64,
    };
}

// ---- nobody waits ------------------------------------------------------------------------------

// A fixed cap on long prompts wastes steps where nobody else wants them (vllm#57413). Alone, a
// prompt has every row of every step.
void scenario_prompt_alone(struct scenario_run *run) {
    enum { PROMPT = 100 * 1000 };
    struct sim_world_options options = world_of(run);
    struct sim_world *world = sim_world_create(&options);
    struct sim_spec spec = scenario_client(0, PROMPT, 1);
    uint32_t client = sim_world_submit(world, &spec);
    sim_world_run_until(world, client, SIM_CLIENT_ENDED, 60ull * SECOND_US);
    uint32_t rows = options.machine.envelope.tokens;
    scenario_at_most(run, "steps", (double)world->groups[0].steps, (PROMPT + rows - 1.0) / rows);
    scenario_figure(run, "ttft_s",
                    (double)sim_client_at(&world->clients, client)->first_us / SECOND_US);
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- a very long prompt ------------------------------------------------------------------------

enum { STREAM, SHORT, LONG };

static double short_alone_us(const struct scenario_run *run) {
    struct sim_world_options options = world_of(run);
    struct sim_world *world = sim_world_create(&options);
    struct sim_spec spec = scenario_client(SECOND_US, 101, 50);
    uint32_t client = sim_world_submit(world, &spec);
    sim_world_run(world, 10 * SECOND_US);
    double us = (double)(sim_client_at(&world->clients, client)->first_us - spec.at_us);
    sim_world_destroy(world);
    return us;
}

// A prompt of 600,000 tokens comes while one stream decodes; then requests of 101 tokens. Where one
// prompt may have every step they wait 82 s (ATOM#1835), and the stream falls from 270 to 6.6
// tokens per second (vllm#57413). Here a short one waits for the plans that are out and for its
// own step, and no step with a decoding row is longer than the target between two tokens.
void scenario_head_of_line(struct scenario_run *run) {
    enum { SHORTS = 20 };
    struct sim_world_options options = world_of(run);
    double target_us = 100e3;    // of the policy, between two tokens
    double alone_us = short_alone_us(run);
    struct sim_world *world = sim_world_create(&options);
    struct sim_spec stream = scenario_client(0, 100, 20000);
    struct sim_spec huge = scenario_client(SECOND_US, 600 * 1000, 10);
    huge.label = LONG;
    sim_world_submit(world, &stream);
    uint32_t client = sim_world_submit(world, &huge);
    for (uint32_t i = 0; i < SHORTS; i++) {
        struct sim_spec spec =
            scenario_client((2 + 2 * i) * (uint64_t)SECOND_US + i * 7001, 101, 50);
        spec.label = SHORT;
        sim_world_submit(world, &spec);
    }
    sim_world_run_until(world, client, SIM_CLIENT_ENDED, 600ull * SECOND_US);
    SIM_CHECK(sim_client_at(&world->clients, client)->first_us > 2ull * SHORTS * SECOND_US,
              "the long prompt is done before the short ones have come");
    double worst = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, SHORT, 1.0);
    double gap = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_GAP, STREAM, 1.0);
    scenario_figure(run, "short_ttft_alone_ms", alone_us / 1000);
    scenario_at_most(run, "short_ttft_ms_max", worst / 1000,
                     (1.2 * alone_us + 2 * 1.1 * target_us) / 1000);
    scenario_at_most(run, "stream_gap_ms_max", gap / 1000, 1.1 * target_us / 1000);
    scenario_figure(run, "long_ttft_s",
                    (double)(sim_client_at(&world->clients, client)->first_us - huge.at_us) /
                        SECOND_US);
    sim_world_drain(world, sim_world_serial_us(world));
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- nothing of it is cached -------------------------------------------------------------------

enum label { WARM, COLD };

struct mix {
    struct rng rng;
    uint64_t at_us, until_us;
    double per_s;
};

// 95 of 100 prompts begin like one of sixteen others and are new at their end only; 5 are new.
static bool mix_next(void *ctx, struct sim_spec *out) {
    struct mix *mix = ctx;
    mix->at_us += (uint64_t)(2e6 / mix->per_s * rng_unit(&mix->rng));
    *out = scenario_client(mix->at_us, 8000, 100);
    out->label = rng_below(&mix->rng, 20) == 0 ? COLD : WARM;
    out->key = out->label == COLD ? 1000 + rng_u64(&mix->rng) % 1000000 : rng_below(&mix->rng, 16);
    out->shared_count = 7680;
    out->cache = true;
    return mix->at_us < mix->until_us;
}

// Where the longest cached beginning goes first, those without one wait behind everybody: in
// sglang#31954 5 of 100 requests had three quarters of all waiting. Here order does not ask what is
// cached: those have to wait as long as others, and their own prompt besides.
void scenario_cache_cold(struct scenario_run *run) {
    struct sim_world_options options = world_of(run);
    struct sim_world *world = sim_world_create(&options);
    struct mix mix = {.until_us = 600u * SECOND_US, .per_s = 14};
    rng_init(&mix.rng, run->seed);
    sim_world_source(world, &(struct sim_source){mix_next, &mix});
    sim_world_run(world, mix.until_us);
    sim_world_drain(world, sim_world_serial_us(world));
    double warm = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_QUEUE, WARM, 0.99);
    double cold = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_QUEUE, COLD, 0.99);
    double step = (double)sim_world_step_us_max(world);
    scenario_figure(run, "found_share",
                    (double)world->found_tokens / (double)world->admitted_tokens);
    scenario_figure(run, "warm_queue_p99_s", warm / SECOND_US);
    scenario_at_most(run, "cold_queue_p99_s", cold / SECOND_US, (1.2 * warm + step) / SECOND_US);
    scenario_figure(run, "warm_ttft_p99_s",
                    (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, WARM, 0.99) /
                        SECOND_US);
    scenario_figure(run, "cold_ttft_p99_s",
                    (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, COLD, 0.99) /
                        SECOND_US);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
}
