// SPDX-License-Identifier: Apache-2.0
// Goal: an unfinished response is given to its key, once, as long as it is kept, and a client is
// told when it cannot be continued. Method: the second of two APIs is asked for what the first one
// left.
#include "tests/unit/controller/http/two_lives.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

// ---- who may have it ---------------------------------------------------------------------------

START_TEST(only_its_id_and_sane_numbers) {
    two_lives_begin_one("");
    two_lives_resume_one();
    two_lives_ask("cmpl-other", 0);
    two_lives_expect_failure(404, "stream_not_found");
    two_lives_ask_as(two_lives_body_id(), "?after=x", "");
    two_lives_expect_failure(400, "invalid_value");
    two_lives_ask_as(two_lives_body_id(), "?after=", "");
    two_lives_expect_failure(400, "invalid_value");
    two_lives_ask_as(two_lives_body_id(), "?after=-1", "");
    two_lives_expect_failure(400, "invalid_value");
    two_lives_ask_as(two_lives_body_id(), "?after=99999999999999999999999999", "");
    two_lives_expect_failure(400, "invalid_value");
    two_lives_ask(two_lives_body_id(), 3);
    two_lives_expect_failure(400, "invalid_value");
    ck_assert_uint_eq(lives.b->cancel_count, 0);
    two_lives_ask_as(two_lives_body_id(), "?other=3&after=2&after", "");
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    ck_assert_uint_eq(api_fixture_event_count(&lives.b->client), 0);
}
END_TEST

START_TEST(one_client_at_a_time) {
    two_lives_begin_one("");
    two_lives_resume_one();
    two_lives_ask(two_lives_body_id(), 1);
    ck_assert_uint_eq(api_fixture_event_count(&lives.b->client), 1);
    struct api_fixture_client other;
    char request[512];
    snprintf(request, sizeof request, "GET /v1/streams/%s HTTP/1.1\r\nHost: localhost\r\n\r\n",
             two_lives_body_id());
    api_fixture_client_init(lives.b, &other);
    api_fixture_send(lives.b, &other, request);
    ck_assert_int_eq(api_fixture_status(&other), 409);
    api_fixture_client_deinit(&other);
    // A client that leaves has cancelled it.
    struct http_handler handler = api_handler(lives.b->api);
    lives.b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &lives.b->client.exchange, HTTP_GONE_REASON_CLIENT,
                    lives.b->now_us);
    ck_assert_uint_eq(lives.b->cancel_count, 1);
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    two_lives_ask(two_lives_body_id(), 1);
    two_lives_expect_failure(404, "stream_not_found");
}
END_TEST

START_TEST(its_key_alone) {
    two_lives_teardown();
    api_key_digest("one", 3, lives.keys[0].digest);
    api_key_digest("two", 3, lives.keys[1].digest);
    two_lives_setup();
    lives.key_count = 2;
    lives.keys[0].account = &lives.accounts[0];
    lives.keys[1].account = &lives.accounts[1];
    lives.accounts[0].class_ = REQUEST_CLASS_BATCH;
    api_set_keys(lives.a->api, lives.keys, 2);
    two_lives_end_second();
    two_lives_begin_second();
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":3,\"stream\":true}";
    char request[512];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    api_fixture_send(lives.a, &lives.a->client, request);
    api_fixture_token(lives.a, 0, 'x');
    api_fixture_turn(lives.a);
    uint32_t open = lives.accounts[0].open;
    two_lives_resume_one();
    ck_assert_uint_eq(lives.accounts[0].open,
                      open + 1);    // counted once more by the new controller
    ck_assert_uint_eq(lives.b->submits[0].class_, REQUEST_CLASS_BATCH);
    ck_assert_uint_eq(lives.b->submits[0].salt, lives.a->submits[0].salt);
    two_lives_ask_as(two_lives_body_id(), "?after=1", "two");
    two_lives_expect_failure(404, "stream_not_found");
    two_lives_ask_as(two_lives_body_id(), "?after=1", "");
    two_lives_expect_failure(401, "invalid_api_key");
    two_lives_ask_as(two_lives_body_id(), "?after=1", "one");
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    ck_assert_uint_eq(lives.accounts[0].open, open + 1);
    // Without its key nobody could ask for it.
    two_lives_end_second();
    lives.key_count = 1;
    lives.keys[0] = lives.keys[1];
    two_lives_begin_second();
    ck_assert(!two_lives_give(0, lives.b->now_us + TWO_LIVES_LATER_US));
    lives.key_count = 0;
    api_set_keys(lives.b->api, lives.keys, 0);
    ck_assert(!two_lives_give(0, lives.b->now_us + TWO_LIVES_LATER_US));
}
END_TEST

// ---- waiting, failing, expiring ----------------------------------------------------------------

START_TEST(who_asks_before_a_worker_is_there_waits) {
    two_lives_begin_one("");
    two_lives_give_all();
    api_streams_turn(lives.b->api, lives.b->now_us);
    two_lives_ask(two_lives_body_id(), 1);
    ck_assert_uint_eq(lives.b->client.answer.bytes_used, 0);
    struct http_handler handler = api_handler(lives.b->api);
    lives.b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &lives.b->client.exchange, HTTP_GONE_REASON_CLIENT,
                    lives.b->now_us);
    ck_assert_int_eq(lives.b->access.status, 499);
    two_lives_ask(two_lives_body_id(), 1);    // it was told nothing: it may ask again
    ck_assert_uint_eq(lives.b->client.answer.bytes_used, 0);
    api_set_model(lives.b->api, &lives.b->model);
    api_fixture_ready(lives.b);
    api_streams_turn(lives.b->api, lives.b->now_us);
    api_fixture_collect(&lives.b->client);
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    ck_assert_uint_eq(api_fixture_event_count(&lives.b->client), 1);
}
END_TEST

START_TEST(nobody_asks_in_time) {
    two_lives_begin_one("");
    two_lives_resume_one();
    lives.b->now_us += TWO_LIVES_LATER_US - 1;
    api_streams_turn(lives.b->api, lives.b->now_us);
    ck_assert_uint_eq(lives.second_journal.ends, 0);
    lives.b->now_us += 200 * 1000;
    api_streams_turn(lives.b->api, lives.b->now_us);
    ck_assert_uint_eq(lives.b->cancel_count, 1);
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    ck_assert_uint_eq(api_open_calls(lives.b->api), 0);
    two_lives_ask(two_lives_body_id(), 0);
    two_lives_expect_failure(404, "stream_not_found");
    // A client that waits for a worker that never comes is told.
    two_lives_end_second();
    two_lives_begin_second();
    two_lives_give_all();
    two_lives_ask(two_lives_body_id(), 0);
    lives.b->now_us += TWO_LIVES_LATER_US;
    api_streams_turn(lives.b->api, lives.b->now_us);
    api_fixture_collect(&lives.b->client);
    two_lives_expect_failure(503, "unavailable");
    ck_assert_uint_eq(lives.second_journal.ends, 1);
}
END_TEST

START_TEST(one_that_ended_alone_is_kept_until_it_is_asked_for) {
    two_lives_begin_one("");
    two_lives_resume_one();
    api_fixture_token(lives.b, 0, 'z');
    api_fixture_finish(lives.b, 0, FINISH_REASON_LENGTH);
    api_turn_end(lives.b->api, lives.b->now_us);
    lives.b->now_us += TWO_LIVES_LATER_US + 1;
    api_streams_turn(lives.b->api, lives.b->now_us);    // delivered to nobody
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    two_lives_ask(two_lives_body_id(), 0);
    two_lives_expect_failure(404, "stream_not_found");
}
END_TEST

START_TEST(a_fault_without_a_client_is_told_later) {
    two_lives_begin_one("");
    two_lives_resume_one();
    api_fixture_finish(lives.b, 0, FINISH_REASON_FAULT);
    api_turn_end(lives.b->api, lives.b->now_us);
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    bool whole = true;
    two_lives_ask(two_lives_body_id(), 2);
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    const char *body = api_fixture_body(&lives.b->client, &whole);
    ck_assert(!whole);
    ck_assert_ptr_nonnull(strstr(body, "\"code\":\"instance_lost\""));
    ck_assert_ptr_null(strstr(body, "[DONE]"));
    ck_assert_int_eq(lives.b->client.exchange.phase, HTTP_EXCHANGE_PHASE_BROKEN);
}
END_TEST

START_TEST(another_model_or_context_cannot_continue_it) {
    two_lives_begin_one(",\"model\":\"tiny\"");
    static const char *const others[] = {"another"};
    lives.b->model.names = others;
    lives.b->model.name_count = 1;
    two_lives_give_all();
    api_fixture_ready(lives.b);
    two_lives_ask(two_lives_body_id(), 0);
    api_streams_turn(lives.b->api, lives.b->now_us);
    api_fixture_collect(&lives.b->client);
    two_lives_expect_failure(410, "not_resumable");
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    ck_assert_uint_eq(lives.b->submit_count, 0);
    two_lives_ask(two_lives_body_id(), 0);    // who asks later is told as well
    two_lives_expect_failure(410, "not_resumable");
    // A context that has room for the prompt only.
    two_lives_end_second();
    two_lives_begin_second();
    struct message_capacity capacity = {.envelope = {.seq_tokens = 2},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TINY_VOCABULARY,
                                        .kv_dtype = "f16"};
    api_set_model(lives.b->api, &lives.b->model);
    two_lives_give_all();
    api_on_capacity(lives.b->api, &capacity);
    api_streams_turn(lives.b->api, lives.b->now_us);
    two_lives_ask(two_lives_body_id(), 0);
    two_lives_expect_failure(410, "not_resumable");
}
END_TEST

START_TEST(too_much_without_a_client_fails_clearly) {
    enum { TOKENS = 120000 };
    struct message_capacity capacity = {.envelope = {.seq_tokens = TOKENS + 64},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TINY_VOCABULARY,
                                        .kv_dtype = "f16"};
    api_on_capacity(lives.a->api, &capacity);
    api_fixture_post(lives.a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"max_tokens\":120000,\"ignore_eos\":true,"
                     "\"stream\":true}");
    api_fixture_token(lives.a, 0, 'x');
    api_fixture_turn(lives.a);
    api_set_model(lives.b->api, &lives.b->model);
    api_on_capacity(lives.b->api, &capacity);
    two_lives_give_all();
    api_streams_turn(lives.b->api, lives.b->now_us);
    for (uint32_t i = 0; i < TOKENS - 1; i++) {
        api_fixture_token(lives.b, 0, 'x');
        api_turn_end(lives.b->api, lives.b->now_us);
    }
    lives.b->now_us += 1000 * 1000;
    api_streams_turn(lives.b->api, lives.b->now_us);
    ck_assert_uint_eq(lives.b->cancel_count, 1);
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    two_lives_ask(two_lives_body_id(), 0);
    two_lives_expect_failure(410, "not_resumable");
}
END_TEST

START_TEST(an_id_that_is_kept_is_not_given_again) {
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":3,\"stream\":true}";
    char request[512];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a/b%%\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    api_fixture_send(lives.a, &lives.a->client, request);
    api_fixture_token(lives.a, 0, 'x');
    api_fixture_turn(lives.a);
    ck_assert_str_eq(two_lives_body_id(), "cmpl-a/b%");
    two_lives_resume_one();
    api_fixture_send(lives.b, &lives.b->client, request);
    api_fixture_token(lives.b, 1, 'y');
    api_fixture_turn(lives.b);
    ck_assert_ptr_null(strstr(api_fixture_body(&lives.b->client, NULL), "\"cmpl-a/b%\""));
    struct http_handler handler = api_handler(lives.b->api);
    lives.b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &lives.b->client.exchange, HTTP_GONE_REASON_CLIENT,
                    lives.b->now_us);
    two_lives_ask("cmpl-a%2fb%25", 1);
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    ck_assert_str_eq(api_fixture_field(&lives.b->client, "x-request-id"), "a/b%");
}
END_TEST

Suite *suite_api_streams(void) {
    Suite *suite = suite_create("controller/http/api_streams");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, two_lives_setup, two_lives_teardown);
    tcase_add_test(tc, only_its_id_and_sane_numbers);
    tcase_add_test(tc, one_client_at_a_time);
    tcase_add_test(tc, its_key_alone);
    tcase_add_test(tc, who_asks_before_a_worker_is_there_waits);
    tcase_add_test(tc, nobody_asks_in_time);
    tcase_add_test(tc, one_that_ended_alone_is_kept_until_it_is_asked_for);
    tcase_add_test(tc, a_fault_without_a_client_is_told_later);
    tcase_add_test(tc, another_model_or_context_cannot_continue_it);
    tcase_add_test(tc, too_much_without_a_client_fails_clearly);
    tcase_add_test(tc, an_id_that_is_kept_is_not_given_again);
    suite_add_tcase(suite, tc);
    return suite;
}
