// SPDX-License-Identifier: Apache-2.0
// Goal: every row of a report is what the engine plans with that option, in both forms, and a model
// that does not fit has a report too. Method: a tiny model, the JSON read back by the parser.
#include "common/json.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device_sim.h"
#include "worker/plan_report.h"
#include "worker/seal.h"
#include "worker/step_budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};
static char path[64];
static struct engine_options options;
static struct buf out;
static struct json_doc *doc;

static void set_up(void) {
    snprintf(path, sizeof path, "/tmp/tare-test-plan-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    options = (struct engine_options){
        .model_path = path,
        .device = "cpu",
        .isa = "scalar",
        .threads = 2,
        .device_memory = 16 * 1024 * 1024,
        .utilization = 0.9,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 8,
        .step_tokens = 32,
        .model_len = 128,
        .weights_fd = -1,
        .kv_fd = -1,
    };
    buf_init(&out, 256 * 1024);
}

static void tear_down(void) {
    json_destroy(doc);
    buf_deinit(&out);
    remove(path);
}

static const struct json *report(enum status want) {
    struct error err = {0};
    enum status status = plan_report(&options, PLAN_FORMAT_JSON, &out, &err);
    ck_assert_msg(status == want, "%s: %s", status_name(status), err.message);
    err = (struct error){0};
    ck_assert_msg(json_parse((const char *)out.data, out.bytes_used, &doc, &err) == STATUS_OK,
                  "%s in %s", err.message, buf_cstr(&out));
    return json_root(doc);
}

static const char *text_of(const struct json *object, const char *key) {
    const char *text = json_text(json_get(object, key), NULL);
    ck_assert_msg(text != NULL, "no %s in %s", key, buf_cstr(&out));
    return text;
}

static struct engine_plan plan_with_path(const char *from, const struct engine_options *changed) {
    struct weights *weights = NULL;
    struct engine_plan plan;
    ck_assert_int_eq(weights_open(from, &weights, NULL), STATUS_OK);
    ck_assert_int_eq(engine_plan(changed, weights, &plan, NULL), STATUS_OK);
    weights_close(weights);
    return plan;
}

static void check_tiles(const struct json *root, const struct engine_plan *plan) {
    const struct json *tiles = json_get(root, "tiles");
    ck_assert_int_eq(json_int(json_get(tiles, "logit_rows")), plan->capacity.tiles.logit_rows);
    ck_assert_int_eq(json_int(json_get(tiles, "mlp_rows")), plan->capacity.tiles.mlp_rows);
    ck_assert_int_eq(json_int(json_get(tiles, "matmul_rows")), plan->capacity.tiles.matmul_rows);
    ck_assert_int_eq(json_int(json_get(tiles, "attention_parts")),
                     plan->capacity.tiles.attention_parts);
    ck_assert_int_eq(json_int(json_get(root, "workspace_bytes")), (int64_t)plan->workspace_bytes);
}

static struct engine_plan plan_with(const struct engine_options *changed) {
    return plan_with_path(path, changed);
}

static int64_t tokens_of(const struct engine_plan *plan) {
    return (int64_t)plan->capacity.kv_blocks * plan->capacity.block_tokens;
}

// The options that a row stands for.
static struct engine_options apply(const char *option, const char *value) {
    struct engine_options changed = options;
    if (strcmp(option, "--max-num-batched-tokens") == 0) {
        changed.step_tokens = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(option, "--max-num-seqs") == 0) {
        changed.seqs = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(option, "--max-model-len") == 0) {
        changed.model_len = (int64_t)strtoul(value, NULL, 10);
    } else if (strcmp(option, "--gpu-memory-utilization") == 0) {
        changed.utilization = strtod(value, NULL);
    } else if (strcmp(option, "--kv-cache-dtype") == 0) {
        changed.kv_dtype = strcmp(value, "float32") == 0 ? DTYPE_F32 : DTYPE_F16;
    } else if (strcmp(option, "--workspace-budget") == 0) {
        changed.workspace_budget = strtoll(value, NULL, 10);
    } else {
        ck_abort_msg("a row for %s", option);
    }
    return changed;
}

START_TEST(every_row_is_what_the_engine_plans_with_that_option) {
    const struct json *root = report(STATUS_OK);
    struct engine_plan now = plan_with(&options);
    ck_assert(json_bool(json_get(root, "fits")));
    ck_assert_int_eq(json_int(json_get(root, "kv_capacity_tokens")), tokens_of(&now));
    const struct json *rows = json_get(root, "knobs");
    ck_assert_uint_eq(json_count(rows), 9);
    check_tiles(root, &now);
    for (size_t i = 0; i < json_count(rows); i++) {
        const struct json *row = json_at(rows, i);
        struct engine_options changed = apply(text_of(row, "option"), text_of(row, "value"));
        struct engine_plan plan = plan_with(&changed);
        ck_assert(json_bool(json_get(row, "fits")));
        ck_assert_int_eq(json_int(json_get(row, "kv_capacity_tokens")), tokens_of(&plan));
        ck_assert_int_eq(json_int(json_get(row, "other_bytes")), (int64_t)plan.fixed_bytes);
    }
}
END_TEST

START_TEST(what_binds_is_the_option_to_change) {
    ck_assert_str_eq(text_of(report(STATUS_OK), "binds"),
                     "--device-memory times --gpu-memory-utilization");
    json_destroy(doc);
    buf_reset(&out);
    options.kv_bytes = 1024 * 1024;
    ck_assert_str_eq(text_of(report(STATUS_OK), "binds"), "--kv-cache-memory-bytes");
}
END_TEST

START_TEST(a_model_that_does_not_fit_has_a_ledger_and_a_reason) {
    options.device_memory = 512 * 1024;
    const struct json *root = report(STATUS_EXHAUSTED);
    ck_assert(!json_bool(json_get(root, "fits")));
    ck_assert_uint_eq(json_count(json_get(root, "ledger")), LEDGER_COUNT);
    ck_assert_ptr_nonnull(strstr(text_of(root, "reason"), "ledger line '"));
    ck_assert(json_absent(json_get(root, "knobs")));
}
END_TEST

START_TEST(a_file_that_is_no_model_has_no_report) {
    ck_assert_int_eq(truncate(path, 100), 0);
    struct error err = {0};
    ck_assert_int_eq(plan_report(&options, PLAN_FORMAT_TEXT, &out, &err), STATUS_CORRUPT);
    ck_assert_uint_eq(out.bytes_used, 0);
}
END_TEST

START_TEST(people_read_the_same_numbers) {
    struct error err = {0};
    struct engine_plan now = plan_with(&options);
    ck_assert_int_eq(plan_report(&options, PLAN_FORMAT_TEXT, &out, &err), STATUS_OK);
    char line[64];
    snprintf(line, sizeof line, "MiB = %lld tokens of ", (long long)tokens_of(&now));
    ck_assert_msg(strstr(buf_cstr(&out), line) != NULL, "%s", buf_cstr(&out));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "\nfits     yes\n"));
}
END_TEST

// ---- groups on simulated devices ---------------------------------------------------------------

// A public model on a device that nobody has here.
static void plan_for(const char *name, const char *device, uint32_t world) {
    static char model_path[64];
    snprintf(model_path, sizeof model_path, "deploy/models/%s", name);
    options.model_path = model_path;
    options.device = device;
    options.device_memory = 0;
    options.utilization = 0.92;
    options.seqs = 64;
    options.step_tokens = 2048;
    options.model_len = 8192;
    options.shard = (struct model_shard){0, world};
}

static int64_t line_of(const struct json *ledger, const char *name) {
    for (size_t i = 0; i < json_count(ledger); i++) {
        const struct json *line = json_at(ledger, i);
        if (strcmp(text_of(line, "line"), name) == 0) {
            return json_int(json_get(line, "bytes"));
        }
    }
    ck_abort_msg("no line %s", name);
}

START_TEST(a_group_is_planned_rank_by_rank) {
    plan_for("Llama-3.1-70B", "sim:h200", 8);
    const struct json *root = report(STATUS_OK);
    const struct json *ranks = json_get(root, "ranks");
    ck_assert_uint_eq(json_count(ranks), 8);
    ck_assert_int_eq(json_int(json_get(root, "tensor_parallel_size")), 8);
    int64_t tokens = json_int(json_get(root, "kv_capacity_tokens"));
    int64_t budget = json_int(json_get(root, "budget_bytes"));
    // 80 layers of keys and values of one head of 128 each.
    ck_assert_int_eq(json_int(json_get(root, "kv_bytes_per_token")), 80 * 2 * 128 * 2);
    for (size_t i = 0; i < 8; i++) {
        const struct json *rank = json_at(ranks, i);
        const struct json *ledger = json_get(rank, "ledger");
        ck_assert_int_eq(json_int(json_get(rank, "kv_capacity_tokens")), tokens);
        int64_t sum = 0;
        for (size_t k = 0; k < json_count(ledger); k++) {
            sum += json_int(json_get(json_at(ledger, k), "bytes"));
        }
        // Nothing is left over but a part of a chunk.
        ck_assert_int_le(sum, budget);
        ck_assert_int_gt(sum, budget - 2 * 1024 * 1024);
        // An eighth of the matrices, all norms and the rotary table.
        int64_t weights = line_of(ledger, "weights: other") + line_of(ledger, "weights: mlp") +
                          line_of(ledger, "weights: attention") +
                          line_of(ledger, "weights: embedding");
        ck_assert_int_gt(weights, 70553706496 * 2 / 8);
        ck_assert_int_lt(weights, 70553706496 * 2 / 8 + 32 * 1024 * 1024);
        ck_assert_int_eq(line_of(ledger, "communicators: ring"), 32 * 1024 * 1024);
        ck_assert_int_gt(line_of(ledger, "communicators: arena"), 0);
    }
}
END_TEST

START_TEST(more_ranks_are_named_when_one_is_too_few) {
    plan_for("Llama-3.1-70B", "sim:h100", 1);
    const struct json *root = report(STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(text_of(root, "reason"), "'weights"));
    ck_assert_int_eq(json_int(json_get(root, "tensor_parallel_size_needed")), 2);
}
END_TEST

START_TEST(what_is_only_assumed_is_marked) {
    plan_for("Qwen3-8B", "sim:rtx5090", 1);
    const struct json *root = report(STATUS_OK);
    const struct json *facts = json_get(root, "device_facts");
    uint32_t estimated = 0;
    for (size_t i = 0; i < json_count(facts); i++) {
        estimated += json_bool(json_get(json_at(facts, i), "known")) ? 0 : 1;
    }
    ck_assert_uint_eq(json_count(facts), SIM_FACT_COUNT);
    ck_assert_uint_gt(estimated, 0);
    const struct json *ledger = json_get(root, "ledger");
    for (size_t i = 0; i < json_count(ledger); i++) {
        bool planned = strcmp(text_of(json_at(ledger, i), "kind"), "planned") == 0;
        ck_assert_str_eq(text_of(json_at(ledger, i), "source"), planned ? "plan" : "device table");
    }
}
END_TEST

START_TEST(a_role_changes_what_is_reserved) {
    plan_for("Qwen3-8B", "sim:h100", 1);
    const struct json *root = report(STATUS_OK);
    int64_t mixed = json_int(json_get(root, "kv_capacity_tokens"));
    ck_assert_int_gt(line_of(json_get(root, "ledger"), "graph: 64 rows"), 0);
    json_destroy(doc);
    buf_reset(&out);
    options.role = ENGINE_ROLE_PREFILL;
    root = report(STATUS_OK);
    ck_assert_str_eq(text_of(root, "role"), "prefill");
    ck_assert_int_eq(line_of(json_get(root, "ledger"), "graph: 64 rows"), 0);
    ck_assert_int_gt(json_int(json_get(root, "kv_capacity_tokens")), mixed);
    json_destroy(doc);
    buf_reset(&out);
    options.role = ENGINE_ROLE_DECODE;
    root = report(STATUS_OK);
    ck_assert_int_eq(json_int(json_get(json_get(root, "envelope"), "tokens")), 64);
    ck_assert_int_gt(json_int(json_get(root, "kv_capacity_tokens")), mixed);
}
END_TEST

static struct engine_plan plan_tokens(uint32_t tokens, enum status *status) {
    struct weights *weights = NULL;
    struct engine_plan plan;
    struct engine_options changed = options;
    changed.step_tokens = tokens;
    ck_assert_int_eq(weights_open(options.model_path, &weights, NULL), STATUS_OK);
    *status = engine_plan(&changed, weights, &plan, NULL);
    weights_close(weights);
    return plan;
}

static uint32_t found_tokens(void) {
    struct weights *weights = NULL;
    struct error err = {0};
    uint32_t tokens = 0;
    ck_assert_int_eq(weights_open(options.model_path, &weights, &err), STATUS_OK);
    ck_assert_msg(step_budget_find(&options, weights, &tokens, &err) == STATUS_OK, "%s",
                  err.message);
    weights_close(weights);
    return tokens;
}

START_TEST(auto_takes_the_most_tokens_that_the_workspace_budget_holds) {
    static const struct {
        const char *model, *device;
        int64_t budget;
    } cases[] = {{"Llama-3.1-8B", "sim:h200", 0},
                 {"Llama-3.1-8B", "sim:rtx5090-laptop", 0},
                 {"Llama-3.1-8B", "sim:h200", 600 * 1024 * 1024},
                 {"Qwen3-32B", "sim:h100", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan_for(cases[i].model, cases[i].device, 1);
        options.workspace_budget = cases[i].budget;
        uint64_t limit = (uint64_t)cases[i].budget;
        if (limit == 0) {
            limit = sim_spec_find(cases[i].device)->memory_bytes / 32;
            limit = limit < 2147483648 ? limit : 2147483648;
        }
        uint32_t tokens = found_tokens();
        enum status status;
        struct engine_plan plan = plan_tokens(tokens, &status);
        ck_assert_int_eq(status, STATUS_OK);
        ck_assert_uint_le(plan.workspace_bytes, limit);
        plan = plan_tokens(tokens + 64, &status);
        ck_assert(status == STATUS_EXHAUSTED || plan.workspace_bytes > limit);
    }
}
END_TEST

START_TEST(auto_holds_every_sequence_even_where_nothing_fits) {
    plan_for("Llama-3.1-70B", "sim:rtx4090", 1);
    ck_assert_uint_eq(found_tokens(), 64);
}
END_TEST

// Drivers that take more than the table says.
static uint64_t expensive(void *ctx, const struct sim_charge *charge) {
    (void)ctx;
    bool once = charge->event == SIM_EVENT_LIBRARY && charge->index == SIM_KERNEL_MATMUL;
    return once || charge->event == SIM_EVENT_REPLAY ? 777 * 1024 * 1024 : 1000000;
}

START_TEST(a_seal_tells_the_next_plan_what_was_found) {
    char dir[64];
    snprintf(dir, sizeof dir, "/tmp/tare-test-seals-%d", (int)getpid());
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    plan_for("Qwen3-0.6B", "sim:h100", 1);
    options.seal_dir = dir;
    struct engine_plan before = plan_with_path(options.model_path, &options);
    ck_assert(!before.from_seal);
    struct sim_costs costs = {.fn = expensive};
    struct engine *engine = NULL;
    struct error err = {0};
    options.sim = &costs;
    ck_assert_msg(engine_create(&options, &engine, &err) == STATUS_OK, "%s", err.message);
    struct engine_plan after = plan_with_path(options.model_path, &options);
    ck_assert(after.from_seal);
    ck_assert_int_lt(tokens_of(&after), tokens_of(&before));
    ck_assert_uint_eq(after.capacity.kv_blocks, engine_capacity(engine)->kv_blocks);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        ck_assert_uint_eq(after.lines[i].bytes, engine_ledger(engine)->bytes[i]);
    }
    // It says nothing of a group.
    options.shard = (struct model_shard){0, 2};
    ck_assert(!plan_with_path(options.model_path, &options).from_seal);
    options.shard = (struct model_shard){0, 1};
    // Another start finds the same: what libraries take at first use is not taken late.
    uint32_t blocks = engine_capacity(engine)->kv_blocks;
    engine_destroy(engine);
    ck_assert_msg(engine_create(&options, &engine, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(engine_capacity(engine)->kv_blocks, blocks);
    engine_destroy(engine);
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

Suite *suite_plan_report(void) {
    Suite *suite = suite_create("worker/plan_report");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, every_row_is_what_the_engine_plans_with_that_option);
    tcase_add_test(tc, what_binds_is_the_option_to_change);
    tcase_add_test(tc, a_model_that_does_not_fit_has_a_ledger_and_a_reason);
    tcase_add_test(tc, a_file_that_is_no_model_has_no_report);
    tcase_add_test(tc, people_read_the_same_numbers);
    tcase_add_test(tc, a_group_is_planned_rank_by_rank);
    tcase_add_test(tc, more_ranks_are_named_when_one_is_too_few);
    tcase_add_test(tc, what_is_only_assumed_is_marked);
    tcase_add_test(tc, a_role_changes_what_is_reserved);
    tcase_add_test(tc, auto_takes_the_most_tokens_that_the_workspace_budget_holds);
    tcase_add_test(tc, auto_holds_every_sequence_even_where_nothing_fits);
    tcase_add_test(tc, a_seal_tells_the_next_plan_what_was_found);
    suite_add_tcase(suite, tc);
    return suite;
}
