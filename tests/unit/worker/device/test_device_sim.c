// SPDX-License-Identifier: Apache-2.0
// Goal: whatever drivers and libraries take for themselves, a worker that weighs first ends with
// exactly what is left, and nothing more is taken once it is sealed. Method: starts on simulated
// devices whose costs are drawn at random behind a function that the worker cannot ask, then steps
// of every kind; the incidents with their published numbers.
#include "common/log.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/device/device_sim.h"
#include "worker/device/sim_pages.h"
#include "worker/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t MIB = 1024 * 1024;

#ifdef TARE_SLOW_CHECKS
enum { DRAWS = 10 };
#else
enum { DRAWS = 100 };
#endif

// ---- costs -------------------------------------------------------------------------------------

struct drawn {
    uint64_t context, library[SIM_KERNEL_COUNT], graph_first, graph, graph_node, replay, foreign;
    uint64_t taken;    // answered so far, without what others hold
    uint32_t asked;
};

static uint64_t draw_bytes(struct rng *rng, uint64_t mib_max) {
    return rng_below(rng, mib_max * MIB);    // any number of bytes, not of pages
}

static void draw_costs(uint64_t seed, struct drawn *out) {
    struct rng rng;
    rng_init(&rng, seed);
    *out = (struct drawn){.context = draw_bytes(&rng, 1200),
                          .graph_first = draw_bytes(&rng, 600),
                          .graph = draw_bytes(&rng, 60),
                          .graph_node = rng_below(&rng, 70000),
                          .replay = draw_bytes(&rng, 300),
                          .foreign = draw_bytes(&rng, 1500)};
    for (int k = 0; k < SIM_KERNEL_COUNT; k++) {
        out->library[k] = rng_below(&rng, 2) == 0 ? 0 : draw_bytes(&rng, 150);
    }
}

static uint64_t answer(void *ctx, const struct sim_charge *charge) {
    struct drawn *d = ctx;
    uint64_t bytes = 0;
    switch (charge->event) {
    case SIM_EVENT_CONTEXT:
        bytes = d->context;
        break;
    case SIM_EVENT_LIBRARY:
        bytes = d->library[charge->index];
        break;
    case SIM_EVENT_GRAPH:
        bytes = charge->index == 0 ? d->graph_first : d->graph;
        bytes += charge->count * d->graph_node;
        break;
    case SIM_EVENT_REPLAY:
        bytes = d->replay;
        break;
    case SIM_EVENT_FOREIGN:
        return d->foreign;
    }
    d->taken += bytes;
    d->asked++;
    return bytes;
}

// ---- engines -----------------------------------------------------------------------------------

static char tiny_path[64];

static void set_up(void) {
    static const struct tiny_model tiny = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};
    snprintf(tiny_path, sizeof tiny_path, "/tmp/tare-test-sim-%d.gguf", (int)getpid());
    tiny_model_write(&tiny, tiny_path);
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
}

static void tear_down(void) {
    remove(tiny_path);
}

static struct engine_options options_for(const char *model, const char *device) {
    return (struct engine_options){
        .model_path = model,
        .device = device,
        .isa = "auto",
        .utilization = 0.92,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 32,
        .step_tokens = 256,
        .model_len = 256,
        .weights_fd = -1,
        .kv_fd = -1,
    };
}

static struct engine *start(const struct engine_options *options) {
    struct engine *engine = NULL;
    struct error err = {0};
    ck_assert_msg(engine_create(options, &engine, &err) == STATUS_OK, "%s", err.message);
    return engine;
}

static uint64_t line_bytes(const struct engine *engine, enum ledger_id line) {
    return engine_ledger(engine)->bytes[line];
}

// Every line that the worker planned and mapped itself.
static uint64_t mapped_bytes(const struct engine *engine) {
    uint64_t sum = line_bytes(engine, LEDGER_WORKSPACE) + line_bytes(engine, LEDGER_STEP) +
                   line_bytes(engine, LEDGER_SAMPLER);
    for (unsigned line = LEDGER_WEIGHTS; line <= LEDGER_WEIGHTS_EXPERTS; line++) {
        sum += line_bytes(engine, (enum ledger_id)line);
    }
    return sum;
}

static uint64_t whole(uint64_t bytes, uint64_t unit) {
    return bytes / unit * unit;
}

// ---- random costs ------------------------------------------------------------------------------

// `seqs` sequences are admitted, computed, decoded in batches that shrink, and retired.
static void run_steps(struct engine *engine, uint32_t seqs) {
    enum { PROMPT = 5, SEQS_MAX = 32, LENGTH = 128, BLOCKS_EACH = 8 };
    static const int32_t tokens[PROMPT] = {1, 2, 3, 4, 5};
    struct plan_admit admits[SEQS_MAX];
    struct plan_prefill prefills[SEQS_MAX];
    struct plan_retire retires[SEQS_MAX];
    uint32_t blocks[SEQS_MAX][BLOCKS_EACH];
    struct executor *executor = engine_executor(engine);
    struct step_result result;
    executor_reset(executor, 1);
    for (uint32_t i = 0; i < seqs; i++) {
        for (uint32_t b = 0; b < BLOCKS_EACH; b++) {
            blocks[i][b] = i * BLOCKS_EACH + b;
        }
        struct slot_ref ref = {i, 1};
        admits[i] = (struct plan_admit){
            .ref = ref,
            .prompt_tokens = PROMPT,
            .len_max = LENGTH,
            .block_count = BLOCKS_EACH,
            .blocks = blocks[i],
            .sampling = {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f}};
        prefills[i] = (struct plan_prefill){ref, 0, PROMPT, tokens, -1, true};
        retires[i] = (struct plan_retire){.ref = ref};
    }
    struct plan plan = {.epoch = 1,
                        .seq = 1,
                        .admit_count = seqs,
                        .admits = admits,
                        .prefill_count = seqs,
                        .prefills = prefills};
    executor_run(executor, &plan, &result);
    ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
    for (uint32_t left = seqs; left > 0; left--) {
        plan = (struct plan){.epoch = 1, .seq = plan.seq + 1, .decode_rows = left};
        executor_run(executor, &plan, &result);
        ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
        ck_assert_uint_eq(result.row_count, left);
        for (uint32_t i = 0; i < left; i++) {
            ck_assert_int_ge(result.rows[i].token, 0);
        }
        plan = (struct plan){.epoch = 1,
                             .seq = plan.seq + 1,
                             .decode_rows = left - 1,
                             .retire_count = 1,
                             .retires = &retires[left - 1]};
        executor_run(executor, &plan, &result);
        ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
    }
}

static void what_is_left_is_kv(const char *model, const char *device, uint64_t seed) {
    struct drawn drawn;
    draw_costs(seed, &drawn);
    struct engine_options options = options_for(model, device);
    struct sim_costs costs = {.fn = answer, .ctx = &drawn};
    options.sim = &costs;
    struct engine *engine = start(&options);
    const struct memory_ledger *ledger = engine_ledger(engine);
    const struct message_capacity *capacity = engine_capacity(engine);
    ck_assert_uint_gt(drawn.asked, 4);
    // Others hold memory of the device, not of our budget; both are limits.
    uint64_t ours = drawn.taken + mapped_bytes(engine);
    uint64_t of_budget = ledger->budget_bytes - ours;
    uint64_t of_device = ledger->device_bytes - drawn.foreign - ours;
    uint64_t left = of_budget < of_device ? of_budget : of_device;
    uint64_t block = capacity->kv_bytes_per_token * capacity->block_tokens;
    uint64_t most = BOUND_BLOCKS * block;    // ids of blocks end before a tiny model's memory
    uint64_t kv = whole(left < most ? left : most, SIM_PAGES_GRANULE);
    ck_assert_msg(line_bytes(engine, LEDGER_KV) == kv, "seed %llu: KV %llu, %llu are left",
                  (unsigned long long)seed, (unsigned long long)line_bytes(engine, LEDGER_KV),
                  (unsigned long long)kv);
    uint64_t blocks = kv / block < BOUND_BLOCKS ? kv / block : BOUND_BLOCKS;
    ck_assert_uint_eq(capacity->kv_blocks, blocks);
    ck_assert_uint_eq(ledger->foreign_bytes, drawn.foreign);
    // Sealed: steps of every kind take nothing.
    uint64_t taken = drawn.taken;
    uint32_t asked = drawn.asked;
    run_steps(engine, 32);
    run_steps(engine, 3);
    ck_assert_uint_eq(drawn.taken, taken);
    ck_assert_uint_eq(drawn.asked, asked);
    engine_destroy(engine);
}

START_TEST(whatever_libraries_take_kv_is_what_is_left) {
    for (uint64_t seed = 1; seed <= DRAWS; seed++) {
        what_is_left_is_kv("deploy/models/Qwen3-0.6B", "sim:rtx4090", seed);
    }
}
END_TEST

START_TEST(the_same_holds_for_a_file_and_another_device) {
    for (uint64_t seed = 1; seed <= DRAWS / 10; seed++) {
        what_is_left_is_kv(tiny_path, "sim:rtx5090-laptop", seed);
        what_is_left_is_kv("deploy/models/Llama-3.1-8B", "sim:h200", seed);
    }
}
END_TEST

Suite *suite_device_sim(void) {
    Suite *suite = suite_create("worker/device/device_sim");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, whatever_libraries_take_kv_is_what_is_left);
    tcase_add_test(tc, the_same_holds_for_a_file_and_another_device);
    suite_add_tcase(suite, tc);
    return suite;
}
