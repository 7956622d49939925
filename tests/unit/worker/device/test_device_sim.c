// SPDX-License-Identifier: Apache-2.0
// Goal: whatever drivers and libraries take for themselves, a worker that weighs first ends with
// exactly what is left, and nothing more is taken once it is sealed. Method: starts on simulated
// devices whose costs are drawn at random behind a function that the worker cannot ask, then steps
// of every kind; the incidents with their published numbers.
#include "common/log.h"
#include "common/memory.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/device/device_sim.h"
#include "worker/device/sim_pages.h"
#include "worker/engine.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

// ---- others that take memory while we start
// ------------------------------------------------------

struct growing {
    uint32_t asked, from;    // looks at what others hold; from which on they hold `bytes`
    uint64_t bytes;
};

static uint64_t growing_answer(void *ctx, const struct sim_charge *charge) {
    struct growing *g = ctx;
    if (charge->event != SIM_EVENT_FOREIGN) {
        return 20 * MIB;
    }
    return g->asked++ >= g->from ? g->bytes : 0;
}

// The first and last ones are each another moment; in between chunk after chunk is mapped. The very
// last look only reports.
static uint32_t next_look(uint32_t look, uint32_t looks) {
    return look + (look < 40 || look + 40 > looks ? 1 : 11);
}

static enum status start_beside(struct growing *g, struct engine **out, struct error *err) {
    struct engine_options options = options_for("deploy/models/Qwen3-0.6B", "sim:rtx4090");
    struct sim_costs costs = {.fn = growing_answer, .ctx = g};
    options.memory_margin = 256 * (int64_t)MIB;
    options.sim = &costs;
    return engine_create(&options, out, err);
}

// What lies outside the budget takes the first of it; the pool gives the rest, and the margin is
// kept.
START_TEST(memory_that_others_take_during_the_start_is_given_by_the_pool) {
    struct growing quiet = {.from = UINT32_MAX};
    struct engine *engine = NULL;
    struct error err = {0};
    ck_assert_msg(start_beside(&quiet, &engine, &err) == STATUS_OK, "%s", err.message);
    const struct memory_ledger *ledger = engine_ledger(engine);
    uint64_t kv = line_bytes(engine, LEDGER_KV);
    uint64_t outside = ledger->device_bytes - memory_ledger_used(ledger);
    ck_assert_uint_eq(ledger->foreign_bytes, 0);
    engine_destroy(engine);
    uint32_t looks = quiet.asked;
    ck_assert_uint_gt(looks, 4);
    for (uint32_t from = 0; from + 1 < looks; from = next_look(from, looks)) {
        struct growing g = {.from = from, .bytes = outside + 3000 * MIB};
        ck_assert_msg(start_beside(&g, &engine, &err) == STATUS_OK, "from look %u: %s", from,
                      err.message);
        ledger = engine_ledger(engine);
        uint64_t left = ledger->device_bytes - g.bytes - memory_ledger_used(ledger) +
                        ledger->bytes[LEDGER_GUARD];
        ck_assert_uint_eq(ledger->foreign_bytes, g.bytes);
        ck_assert_msg(left >= 256 * MIB, "from look %u of %u: %.1f MiB are left", from, looks,
                      (double)left / (double)MIB);
        ck_assert_uint_le(line_bytes(engine, LEDGER_KV), kv - 3000 * MIB);
        ck_assert_uint_ge(line_bytes(engine, LEDGER_KV), kv / 2);
        run_steps(engine, 32);
        engine_destroy(engine);
    }
}
END_TEST

START_TEST(others_that_take_all_of_it_end_the_start_and_nothing_else) {
    struct growing quiet = {.from = UINT32_MAX};
    struct engine *engine = NULL;
    struct error err = {0};
    ck_assert_msg(start_beside(&quiet, &engine, &err) == STATUS_OK, "%s", err.message);
    uint64_t device = engine_ledger(engine)->device_bytes;
    engine_destroy(engine);
    for (uint32_t from = 0; from + 1 < quiet.asked; from = next_look(from, quiet.asked)) {
        struct growing g = {.from = from, .bytes = device};
        err = (struct error){0};
        ck_assert_msg(start_beside(&g, &engine, &err) == STATUS_EXHAUSTED, "from look %u", from);
        ck_assert_msg(strstr(err.message, "ledger line") != NULL, "from look %u: %s", from,
                      err.message);
    }
}
END_TEST

// ---- M1a: a capture that does not fit ----------------------------------------------------------

enum { M1_TOKEN_BYTES = 21153, M1_CONTEXT = 124000, M1_BLOCK = 64 };

static uint64_t gib(double value) {
    return (uint64_t)(value * 1024.0 * 1024.0 * 1024.0);
}

// KV of the published bytes per token, whatever the model's heads say.
static size_t m1_page_bytes(const struct op_kv_layout *kv) {
    return (size_t)kv->block_tokens * M1_TOKEN_BYTES;
}

struct m1 {
    uint64_t context, graphs, late, foreign;
};

static uint64_t m1_answer(void *ctx, const struct sim_charge *charge) {
    const struct m1 *m = ctx;
    switch (charge->event) {
    case SIM_EVENT_CONTEXT:
        return m->context;
    case SIM_EVENT_GRAPH:
        return m->graphs;
    case SIM_EVENT_REPLAY:
        return m->late;
    case SIM_EVENT_FOREIGN:
        return m->foreign;
    case SIM_EVENT_LIBRARY:
        break;
    }
    return 0;
}

static void write_m1_model(char *directory, size_t bytes) {
    char path[128];
    snprintf(directory, bytes, "/tmp/tare-test-m1-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/config.json", directory);
    ck_assert_int_eq(mkdir(directory, 0700), 0);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":512,"
          "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
          "\"vocab_size\":1000,\"max_position_embeddings\":262144}",
          file);
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_m1_model(const char *directory) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", directory);
    remove(path);
    rmdir(directory);
}

START_TEST(m1a_a_late_charge_makes_the_pool_smaller_and_the_start_succeed) {
    char directory[64];
    write_m1_model(directory, sizeof directory);
    struct ops ops = *ops_sim();
    ops.kv_page_bytes = m1_page_bytes;
    struct m1 m = {.graphs = gib(0.46), .late = 136 * MIB};
    struct sim_costs costs = {.fn = m1_answer, .ctx = &m, .ops = &ops};
    struct engine_options options = options_for(directory, "sim:rtx5090-laptop");
    options.utilization = 0.98;
    options.seqs = 1;
    options.step_tokens = 2048;
    options.model_len = M1_CONTEXT;
    options.block_tokens = M1_BLOCK;
    options.sim = &costs;
    // The lines of the report: 19.57 GiB besides KV and graphs, of which the worker's own are few.
    struct engine *engine = start(&options);
    m.context = gib(19.57) - mapped_bytes(engine);
    engine_destroy(engine);
    // With 2.97 GiB of KV the reporter's device had 120.88 MiB left before the late charge.
    m.foreign = gib(23.46) - gib(19.57) - m.graphs - gib(2.97) - (uint64_t)(120.88 * (double)MIB);
    engine = start(&options);
    const struct message_capacity *capacity = engine_capacity(engine);
    uint64_t tokens = (uint64_t)capacity->kv_blocks * capacity->block_tokens;
    ck_assert_uint_eq(capacity->kv_bytes_per_token, M1_TOKEN_BYTES);
    ck_assert_msg(tokens >= 138588, "%llu tokens are waste", (unsigned long long)tokens);
    ck_assert_msg(tokens <= 149995, "%llu tokens are the fault", (unsigned long long)tokens);
    ck_assert_uint_ge(capacity->envelope.seq_tokens, M1_CONTEXT);
    run_steps(engine, 1);
    engine_destroy(engine);
    remove_m1_model(directory);
}
END_TEST

// ---- M4: graphs that share a pool --------------------------------------------------------------

static uint64_t m4_answer(void *ctx, const struct sim_charge *charge) {
    (void)ctx;
    if (charge->event != SIM_EVENT_GRAPH) {
        return 0;
    }
    return charge->index == 0 ? 1024 * MIB : 24 * MIB;
}

static struct device *open_device(const char *name, const struct sim_costs *costs,
                                  struct memory_ledger *ledger) {
    struct device *device = NULL;
    struct error err = {0};
    uint64_t bytes = device_sim.memory_bytes(name);
    memory_ledger_init(ledger, bytes, bytes);
    struct device_options options = {.name = name, .ledger = ledger, .sim = costs};
    ck_assert_msg(device_sim.open(&options, &device, &err) == STATUS_OK, "%s", err.message);
    return device;
}

START_TEST(m4_graphs_weigh_what_they_cost_and_not_a_sample_of_it) {
    static const uint32_t counts[] = {1, 16, 51, 83};
    uint32_t count = counts[_i];
    struct sim_costs costs = {.fn = m4_answer};
    struct memory_ledger ledger;
    struct device *device = open_device("sim:h200", &costs, &ledger);
    uint64_t before = device_sim.free_bytes(device);
    for (uint32_t i = 0; i < count; i++) {
        struct device_capture capture;
        ck_assert_int_eq(device_sim.capture_begin(device, LEDGER_GRAPH_8, 1, &capture, NULL),
                         STATUS_OK);
        ck_assert_ptr_nonnull(device_sim.capture_end(device));
    }
    uint64_t want = 1024 * MIB + (count - 1) * 24 * MIB;
    ck_assert_uint_eq(ledger.bytes[LEDGER_GRAPH_8], want);
    ck_assert_uint_eq(before - device_sim.free_bytes(device), want);
    ck_assert_uint_eq(device_sim.own_bytes(device), memory_ledger_used(&ledger));
    device_sim.close(device);
}
END_TEST

// ---- the device --------------------------------------------------------------------------------

START_TEST(a_full_device_refuses_by_line_and_gives_back) {
    struct sim_costs costs = {.fn = m4_answer};
    struct memory_ledger ledger;
    struct device *device = open_device("sim:rtx4090", &costs, &ledger);
    struct device_range range;
    struct error err = {0};
    uint64_t all = whole(device_sim.memory_bytes("sim:rtx4090"), SIM_PAGES_GRANULE);
    ck_assert_int_eq(device_sim.reserve(device, LEDGER_KV, 2 * all, -1, &range, &err), STATUS_OK);
    ck_assert_int_eq(device_sim.map(device, &range, all - 64 * MIB, &err), STATUS_OK);
    ck_assert_int_eq(device_sim.map(device, &range, 64 * MIB, &err), STATUS_OK);
    ck_assert_int_eq(device_sim.map(device, &range, 2 * MIB, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "'kv pool'"));
    struct device_capture capture;
    err = (struct error){0};
    ck_assert_int_eq(device_sim.capture_begin(device, LEDGER_GRAPH_8, 1, &capture, &err),
                     STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "'graph: 8 rows'"));
    ck_assert_uint_eq(ledger.bytes[LEDGER_KV], all);
    device_sim.unmap(device, &range, 64 * MIB);
    ck_assert_uint_eq(ledger.bytes[LEDGER_KV], all - 64 * MIB);
    ck_assert_uint_eq(device_sim.own_bytes(device), all - 64 * MIB);
    device_sim.close(device);
}
END_TEST

START_TEST(a_part_of_a_mapping_cannot_be_unmapped) {
    struct sim_costs costs = {.fn = m4_answer};
    struct memory_ledger ledger;
    struct device *device = open_device("sim:rtx4090", &costs, &ledger);
    struct device_range range;
    ck_assert_int_eq(device_sim.reserve(device, LEDGER_KV, 256 * MIB, -1, &range, NULL), STATUS_OK);
    ck_assert_int_eq(device_sim.map(device, &range, 64 * MIB, NULL), STATUS_OK);
    device_sim.unmap(device, &range, 2 * MIB);    // our bug: ends the process
}
END_TEST

START_TEST(memory_of_the_host_that_ends_anywhere_ends_a_start_cleanly) {
    struct engine_options options = options_for("deploy/models/SmolLM2-135M", "sim:rtx4090");
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));    // a ledger for each failure
    uint64_t nth = 1;
    for (;; nth++) {
        struct engine *engine = NULL;
        struct error err = {0};
        memory_fail_nth(nth);
        enum status status = engine_create(&options, &engine, &err);
        memory_fail_nth(0);
        if (status == STATUS_OK) {
            engine_destroy(engine);
            break;
        }
        ck_assert_msg(status == STATUS_EXHAUSTED, "allocation %llu: %s: %s",
                      (unsigned long long)nth, status_name(status), err.message);
        ck_assert_ptr_null(engine);
    }
    ck_assert_uint_gt(nth, 10);
}
END_TEST

START_TEST(costs_that_fill_the_device_are_refused_by_line) {
    struct engine_options options = options_for("deploy/models/Qwen3-0.6B", "sim:rtx4090");
    struct drawn drawn = {.context = 10 * MIB, .graph_first = 30000 * MIB};
    struct sim_costs costs = {.fn = answer, .ctx = &drawn};
    struct engine *engine = NULL;
    struct error err = {0};
    options.sim = &costs;
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'graph: "));
    drawn = (struct drawn){.context = 40000 * MIB};
    err = (struct error){0};
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'context'"));
    drawn = (struct drawn){.library = {[SIM_KERNEL_SAMPLE] = 40000 * MIB}};
    err = (struct error){0};
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'library handles'"));
    drawn = (struct drawn){.foreign = 24000 * MIB};
    err = (struct error){0};
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line '"));
}
END_TEST

START_TEST(names_are_those_of_the_table) {
    ck_assert_ptr_eq(device_find("sim:h200"), &device_sim);
    ck_assert_ptr_null(device_find("sim:h201"));
    ck_assert_ptr_null(device_find("sim"));
    ck_assert_ptr_null(device_find("h200"));
    ck_assert_ptr_ne(device_find("cpu"), &device_sim);
}
END_TEST

START_TEST(a_rank_starts_with_the_lines_that_were_planned) {
    struct engine_options options = options_for("deploy/models/Qwen3-0.6B", "sim:h100");
    struct engine *engine = NULL;
    struct error err = {0};
    options.shard = (struct model_shard){1, 2};
    ck_assert_msg(engine_create(&options, &engine, &err) == STATUS_OK, "%s", err.message);
    const struct memory_ledger *ledger = engine_ledger(engine);
    ck_assert_uint_gt(ledger->bytes[LEDGER_COMM_ARENA], 0);
    for (unsigned i = LEDGER_COMM_ARENA; i <= LEDGER_STEP; i++) {
        ck_assert_uint_eq(ledger->bytes[i], ledger->planned[i]);
    }
    engine_destroy(engine);
}
END_TEST

START_TEST(what_can_only_be_planned_is_not_started) {
    struct engine_options options = options_for("deploy/models/Qwen3-0.6B", "sim:h100");
    struct engine *engine = NULL;
    struct error err = {0};
    options.role = ENGINE_ROLE_DECODE;
    err = (struct error){0};
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "roles of groups"));
}
END_TEST

Suite *suite_device_sim(void) {
    Suite *suite = suite_create("worker/device/device_sim");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, whatever_libraries_take_kv_is_what_is_left);
    tcase_add_test(tc, the_same_holds_for_a_file_and_another_device);
    tcase_add_test(tc, memory_that_others_take_during_the_start_is_given_by_the_pool);
    tcase_add_test(tc, others_that_take_all_of_it_end_the_start_and_nothing_else);
    tcase_add_test(tc, m1a_a_late_charge_makes_the_pool_smaller_and_the_start_succeed);
    tcase_add_loop_test(tc, m4_graphs_weigh_what_they_cost_and_not_a_sample_of_it, 0, 4);
    tcase_add_test(tc, a_full_device_refuses_by_line_and_gives_back);
    tcase_add_test_raise_signal(tc, a_part_of_a_mapping_cannot_be_unmapped, SIGABRT);
    tcase_add_test(tc, memory_of_the_host_that_ends_anywhere_ends_a_start_cleanly);
    tcase_add_test(tc, costs_that_fill_the_device_are_refused_by_line);
    tcase_add_test(tc, names_are_those_of_the_table);
    tcase_add_test(tc, a_rank_starts_with_the_lines_that_were_planned);
    tcase_add_test(tc, what_can_only_be_planned_is_not_started);
    suite_add_tcase(suite, tc);
    return suite;
}
