// SPDX-License-Identifier: Apache-2.0
// Goal: a large body is read elsewhere and ends like a small one, whoever leaves meanwhile. Method:
// the recording core, with helper threads on a real loop that the test turns.
#include "common/bounds.h"
#include "controller/http/background.h"
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

static struct api_fixture *f;
static uv_loop_t loop;
static struct background *background;
static struct buf large;

static void with_background(struct api_config *config) {
    config->background = background;
}

static void setup(void) {
    uv_loop_init(&loop);
    background = background_create(&loop);
    f = calloc(1, sizeof *f);
    api_fixture_init(f, with_background);
    api_fixture_ready(f);
    buf_init(&large, 1u << 20);
}

static void teardown(void) {
    background_destroy(background);
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    api_fixture_deinit(f);
    free(f);
    buf_deinit(&large);
}

// A body with these fields that is larger than what is read at once.
static const char *large_body(const char *fields) {
    buf_reset(&large);
    buf_append_str(&large, "{\"user\":\"");
    memset(buf_extend(&large, BOUND_HTTP_INLINE_BODY_BYTES), 'u', BOUND_HTTP_INLINE_BODY_BYTES);
    buf_append_str(&large, "\",");
    buf_append_str(&large, fields);
    buf_append_str(&large, "}");
    return buf_cstr(&large);
}

static void turn_until_answered(void) {
    while (!api_fixture_collect(&f->client)) {
        uv_run(&loop, UV_RUN_ONCE);
    }
}

START_TEST(a_large_body_makes_the_call_that_a_small_one_makes) {
    static const char fields[] = "\"prompt\":\"hello\",\"max_tokens\":1,\"stop\":[\"x\"]";
    api_fixture_post(f, "/v1/completions",
                     "{\"prompt\":\"hello\",\"max_tokens\":1,\"stop\":[\"x\"]}");
    ck_assert_uint_eq(f->submit_count, 1);
    uint32_t prompt_count = f->submits[0].prompt_count;
    int32_t tokens[FIXTURE_CONTEXT];
    memcpy(tokens, f->submits[0].tokens, prompt_count * sizeof tokens[0]);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    api_fixture_post(f, "/v1/completions", large_body(fields));
    ck_assert_uint_eq(f->submit_count, 1);
    while (f->submit_count < 2) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    ck_assert_uint_eq(f->submits[1].prompt_count, prompt_count);
    ck_assert_mem_eq(f->submits[1].tokens, tokens, prompt_count * sizeof tokens[0]);
    ck_assert_uint_eq(f->submits[1].output_max, 1);
    api_fixture_token(f, 1, TOKEN_HELLO);
    api_fixture_finish(f, 1, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
}
END_TEST

START_TEST(a_large_body_that_is_wrong_is_answered_so) {
    api_fixture_post(f, "/v1/completions", large_body("\"prompt\":7"));
    turn_until_answered();
    ck_assert_int_eq(api_fixture_status(&f->client), 400);
    api_fixture_post(f, "/v1/chat/completions", large_body("\"messages\":[}"));
    turn_until_answered();
    ck_assert_int_eq(api_fixture_status(&f->client), 400);
    ck_assert_uint_eq(f->submit_count, 0);
    ck_assert_uint_eq(f->access_count, 2);
}
END_TEST

START_TEST(a_large_text_is_tokenized) {
    api_fixture_post(f, "/tokenize", large_body("\"content\":\"hello\""));
    turn_until_answered();
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    ck_assert_ptr_nonnull(strstr(api_fixture_body(&f->client, NULL), "{\"tokens\":["));
}
END_TEST

START_TEST(a_worker_that_is_lost_meanwhile_is_told) {
    api_fixture_post(f, "/v1/completions", large_body("\"prompt\":\"hello\""));
    api_set_failed(f->api, "It broke.");
    turn_until_answered();
    ck_assert_int_eq(api_fixture_status(&f->client), 503);
    ck_assert_uint_eq(f->submit_count, 0);
}
END_TEST

static void leave(void) {
    struct http_handler handler = api_handler(f->api);
    f->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &f->client.exchange, HTTP_GONE_REASON_CLIENT, f->now_us);
}

// Holds the helper threads until the test lets them go.
static sem_t gate;
static void hold(struct background_job *job) {
    (void)job;
    sem_wait(&gate);
}
static void held(struct background_job *job, uint64_t now_us) {
    (void)now_us;
    job->done = NULL;
}

START_TEST(a_client_that_leaves_makes_no_call_whether_reading_has_begun_or_not) {
    api_fixture_post(f, "/v1/completions", large_body("\"prompt\":\"hello\""));
    leave();    // it runs, or is about to
    ck_assert_int_eq(f->access.status, 499);
    sem_init(&gate, 0, 0);
    struct background_job blocks[BOUND_BACKGROUND_RUNNING + 1];
    for (size_t i = 0; i <= BOUND_BACKGROUND_RUNNING; i++) {
        blocks[i] = (struct background_job){.work = hold, .done = held};
        ck_assert(background_submit(background, &blocks[i]));
        sem_post(&gate);
    }
    api_fixture_post(f, "/v1/completions", large_body("\"prompt\":\"hello\""));
    leave();
    ck_assert_uint_eq(f->access_count, 2);
    for (size_t i = 0; i <= BOUND_BACKGROUND_RUNNING; i++) {
        while (blocks[i].done != NULL) {
            uv_run(&loop, UV_RUN_ONCE);
        }
    }
    sem_destroy(&gate);
    ck_assert_uint_eq(f->submit_count, 0);
    ck_assert(!api_fixture_collect(&f->client));
}
END_TEST

START_TEST(too_many_large_bodies_are_refused_with_a_time_to_come_back) {
    sem_init(&gate, 0, 0);
    enum { BLOCKS = BOUND_BACKGROUND_RUNNING + BOUND_BACKGROUND_WAITING };
    static struct background_job blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = (struct background_job){.work = hold, .done = held};
        ck_assert(background_submit(background, &blocks[i]));
    }
    api_fixture_post(f, "/v1/completions", large_body("\"prompt\":\"hello\""));
    ck_assert_int_eq(api_fixture_status(&f->client), 429);
    ck_assert_ptr_nonnull(api_fixture_field(&f->client, "retry-after"));
    for (size_t i = 0; i < BLOCKS; i++) {
        sem_post(&gate);
    }
    background_destroy(background);
    background = NULL;
    sem_destroy(&gate);
}
END_TEST

Suite *suite_api_reading(void) {
    Suite *suite = suite_create("controller/http/api_reading");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_large_body_makes_the_call_that_a_small_one_makes);
    tcase_add_test(tc, a_large_body_that_is_wrong_is_answered_so);
    tcase_add_test(tc, a_large_text_is_tokenized);
    tcase_add_test(tc, a_worker_that_is_lost_meanwhile_is_told);
    tcase_add_test(tc, a_client_that_leaves_makes_no_call_whether_reading_has_begun_or_not);
    tcase_add_test(tc, too_many_large_bodies_are_refused_with_a_time_to_come_back);
    suite_add_tcase(suite, tc);
    return suite;
}
