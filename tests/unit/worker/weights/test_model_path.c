// SPDX-License-Identifier: Apache-2.0
// Goal: names find shipped shapes, paths win, and what is not there is answered with what is; a
// model of shapes cannot be started. Method: the shipped models, a name beside them.
#include "tests/unit/suites.h"
#include "worker/engine.h"
#include "worker/weights/model_path.h"

#include <string.h>

START_TEST(a_name_finds_shipped_shapes) {
    static const char *const names[] = {
        "Llama-3.1-70B", "llama-3.1-70b", "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.1-70B-Instruct", "LLAMA-3.1-70b-instruct"};
    char path[MODEL_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct error err = {0};
        ck_assert_msg(model_path_find_in("deploy/models", names[i], path, &err) == STATUS_OK, "%s",
                      err.message);
        ck_assert_str_eq(path, "deploy/models/Llama-3.1-70B");
    }
}
END_TEST

START_TEST(a_path_that_exists_wins) {
    char path[MODEL_PATH_BYTES];
    ck_assert_int_eq(model_path_find("deploy/models/Qwen3-8B", path, NULL), STATUS_OK);
    ck_assert_str_eq(path, "deploy/models/Qwen3-8B");
    ck_assert_int_eq(model_path_find("deploy", path, NULL), STATUS_OK);
    ck_assert_str_eq(path, "deploy");
}
END_TEST

START_TEST(a_name_nobody_ships_is_answered_with_those_that_are) {
    static const char *const names[] = {"Qwen3-8B-FP8", "Qwen3-8", "", "models/", "nothing"};
    char path[MODEL_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct error err = {0};
        ck_assert_int_eq(model_path_find_in("deploy/models", names[i], path, &err),
                         STATUS_NOT_FOUND);
        ck_assert_ptr_nonnull(strstr(err.message, "Llama-3.1-405B, Llama-3.1-70B, Llama-3.1-8B"));
    }
    struct error err = {0};
    ck_assert_int_eq(model_path_find_in("/nonexistent", "Qwen3-8B", path, &err), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "none"));
}
END_TEST

START_TEST(shapes_are_planned_and_not_started) {
    struct engine_options options = {
        .model_path = "deploy/models/SmolLM2-135M",
        .device = "cpu",
        .isa = "scalar",
        .threads = 1,
        .utilization = 1.0,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 4,
        .step_tokens = 32,
        .model_len = 128,
        .weights_fd = -1,
        .kv_fd = -1,
    };
    struct error err = {0};
    struct engine *engine = NULL;
    struct weights *weights = NULL;
    struct engine_plan plan;
    ck_assert_int_eq(weights_open(options.model_path, &weights, &err), STATUS_OK);
    ck_assert_msg(engine_plan(&options, weights, &plan, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(plan.capacity.parameters, 134515008);
    ck_assert_int_eq(engine_create(&options, &engine, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "has no weights, only shapes"));
    weights_close(weights);
}
END_TEST

Suite *suite_model_path(void) {
    Suite *suite = suite_create("worker/weights/model_path");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, a_name_finds_shipped_shapes);
    tcase_add_test(tc, a_path_that_exists_wins);
    tcase_add_test(tc, a_name_nobody_ships_is_answered_with_those_that_are);
    tcase_add_test(tc, shapes_are_planned_and_not_started);
    suite_add_tcase(suite, tc);
    return suite;
}
