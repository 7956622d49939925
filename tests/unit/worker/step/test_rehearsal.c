// SPDX-License-Identifier: Apache-2.0
// Goal: the worst steps are legal plans whatever the envelope, and leave the executor as new.
// Method: a start, which rehearses, for envelopes at their edges; then the rehearsal once more and
// a first plan.
#include "common/log.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/engine.h"
#include "worker/step/rehearsal.h"

#include <stdio.h>
#include <unistd.h>

static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};

static const struct shape {
    uint32_t seqs, step_tokens;
    int64_t model_len;
} shapes[] = {
    {1, 1, 2},    {1, 1, 3},   {1, 32, 2},   {8, 1, 128},  {8, 7, 128},
    {8, 8, 2},    {8, 32, 3},  {8, 33, 128}, {3, 100, 17}, {8, 600, 256},
    {1, 600, 16}, {40, 64, 2}, {1, 1, 256},  {2, 3, 4},    {5, 32, 33},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof *shapes };

static struct engine *start(const struct shape *shape) {
    char path[64];
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);    // a line for each start
    snprintf(path, sizeof path, "/tmp/tare-test-rehearsal-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    struct engine_options options = {
        .model_path = path,
        .device = "cpu",
        .isa = "auto",
        .threads = 2,
        .kv_bytes = 1024 * 1024,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = shape->seqs,
        .step_tokens = shape->step_tokens,
        .model_len = shape->model_len,
        .weights_fd = -1,
        .kv_fd = -1,
    };
    struct engine *engine = NULL;
    struct error err = {0};
    enum status status = engine_create(&options, &engine, &err);
    remove(path);
    ck_assert_msg(status == STATUS_OK, "%u sequences, %u tokens, context %lld: %s", shape->seqs,
                  shape->step_tokens, (long long)shape->model_len, err.message);
    return engine;
}

START_TEST(a_start_rehearses_every_envelope) {
    engine_destroy(start(&shapes[_i]));
}
END_TEST

START_TEST(after_a_rehearsal_a_first_plan_is_taken) {
    struct engine *engine = start(&shapes[_i]);
    struct executor *executor = engine_executor(engine);
    const struct message_capacity *capacity = engine_capacity(engine);
    const struct plan_limits limits = {.envelope = capacity->envelope,
                                       .block_tokens = capacity->block_tokens,
                                       .kv_blocks = capacity->kv_blocks,
                                       .vocabulary = capacity->vocabulary};
    struct error err = {0};
    ck_assert_msg(rehearsal_run(executor, &limits, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(executor_applied_seq(executor), 0);
    static const int32_t token = 3;
    static const uint32_t block = 0;
    struct plan_admit admit = {.ref = {0, 1},
                               .prompt_tokens = 1,
                               .len_max = 2,
                               .block_count = 1,
                               .blocks = &block,
                               .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
    struct plan_prefill prefill = {{0, 1}, 0, 1, &token, -1, true};
    struct plan plan = {.epoch = 9,
                        .seq = 1,
                        .admit_count = 1,
                        .prefill_count = 1,
                        .admits = &admit,
                        .prefills = &prefill};
    struct step_result result;
    executor_reset(executor, 9);
    executor_run(executor, &plan, &result);
    ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
    ck_assert_uint_eq(result.row_count, 1);
    engine_destroy(engine);
}
END_TEST

Suite *suite_rehearsal(void) {
    Suite *suite = suite_create("worker/step/rehearsal");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_start_rehearses_every_envelope, 0, SHAPE_COUNT);
    tcase_add_loop_test(tc, after_a_rehearsal_a_first_plan_is_taken, 0, SHAPE_COUNT);
    suite_add_tcase(suite, tc);
    return suite;
}
