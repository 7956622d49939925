// SPDX-License-Identifier: Apache-2.0
// Goal: every row of a report is what the engine plans with that option, in both forms, and a model
// that does not fit has a report too. Method: a tiny model, the JSON read back by the parser.
#include "common/json.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    buf_init(&out, 64 * 1024);
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

static struct engine_plan plan_with(const struct engine_options *changed) {
    struct weights *weights = NULL;
    struct engine_plan plan;
    ck_assert_int_eq(weights_open(path, &weights, NULL), STATUS_OK);
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

Suite *suite_plan_report(void) {
    Suite *suite = suite_create("worker/plan_report");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, every_row_is_what_the_engine_plans_with_that_option);
    tcase_add_test(tc, what_binds_is_the_option_to_change);
    tcase_add_test(tc, a_model_that_does_not_fit_has_a_ledger_and_a_reason);
    tcase_add_test(tc, a_file_that_is_no_model_has_no_report);
    tcase_add_test(tc, people_read_the_same_numbers);
    suite_add_tcase(suite, tc);
    return suite;
}
