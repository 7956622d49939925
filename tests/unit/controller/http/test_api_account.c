// SPDX-License-Identifier: Apache-2.0
// Goal: a key gets what its entry says, no more, and is told when it gets more; what was refused
// costs nothing. Method: accounts in invented time; then requests through the whole API.
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

enum { SECOND_US = 1000 * 1000 };

static bool take(struct api_account *account, uint64_t now_us, uint64_t tokens,
                 struct api_failure *failure) {
    *failure = (struct api_failure){0};
    bool fine = api_account_judge(account, now_us, failure);
    if (fine) {
        api_account_take(account, now_us, tokens);
    }
    return fine;
}

START_TEST(requests_come_back_one_by_one) {
    struct api_account account = {.limits = {.requests_per_minute = 6}};
    struct api_failure failure;
    uint64_t now_us = 5 * SECOND_US;
    for (int i = 0; i < 6; i++) {
        ck_assert(take(&account, now_us, 1000000, &failure));    // tokens have no limit
    }
    ck_assert(!take(&account, now_us, 1, &failure));
    ck_assert_int_eq(failure.code, API_CODE_QUOTA);
    ck_assert(failure.retryable);
    ck_assert_uint_ge(failure.retry_after_ms, 10000);    // one in ten seconds
    ck_assert_uint_le(failure.retry_after_ms, 10001);
    ck_assert(!take(&account, now_us + 9 * SECOND_US, 1, &failure));
    // When it was told, and not one more.
    now_us += 10 * SECOND_US + 1000;
    ck_assert(take(&account, now_us, 1, &failure));
    ck_assert(!take(&account, now_us, 1, &failure));
    // A long silence fills the bucket and no more.
    now_us += 3600ull * SECOND_US;
    for (int i = 0; i < 6; i++) {
        ck_assert(take(&account, now_us, 1, &failure));
    }
    ck_assert(!take(&account, now_us, 1, &failure));
}
END_TEST

START_TEST(tokens_may_be_overdrawn_once_and_are_waited_for) {
    struct api_account account = {.limits = {.tokens_per_minute = 600}};
    struct api_failure failure;
    uint64_t now_us = SECOND_US;
    ck_assert(take(&account, now_us, 500, &failure));
    api_account_return(&account, 200);    // a hundred below nothing
    ck_assert(!take(&account, now_us, 1, &failure));
    ck_assert(failure.retryable);
    ck_assert_uint_ge(failure.retry_after_ms, 10000);    // ten tokens a second
    ck_assert_uint_le(failure.retry_after_ms, 10101);
    ck_assert(take(&account, now_us + failure.retry_after_ms * 1000ull, 5000, &failure));
    // What does not come back within a minute is not worth a retry.
    ck_assert(!take(&account, now_us + 20 * SECOND_US, 1, &failure));
    ck_assert(!failure.retryable);
    ck_assert_uint_eq(failure.retry_after_ms, 0);
}
END_TEST

START_TEST(concurrency_counts_what_is_not_over) {
    struct api_account account = {.limits = {.concurrency = 2}};
    struct api_failure failure;
    ck_assert(take(&account, 1, 1, &failure));
    ck_assert(take(&account, 1, 1, &failure));
    ck_assert(!take(&account, 1, 1, &failure));
    ck_assert(failure.retryable);
    ck_assert_uint_gt(failure.retry_after_ms, 0);
    api_account_return(&account, 1000000);
    ck_assert(take(&account, 1, 1, &failure));
    ck_assert_uint_eq(account.open, 2);
}
END_TEST

// ---- through the API ---------------------------------------------------------------------------

static struct api_fixture fixture, *f = &fixture;
static struct api_account account;
static struct api_key key;

static void with_account(struct api_config *config) {
    api_key_digest("sk-a", 4, key.digest);
    key.account = &account;
    config->gate.keys = &key;
    config->gate.key_count = 1;
}

static void set_up(void) {
    account = (struct api_account){
        .name = "a", .class_ = REQUEST_CLASS_REALTIME, .tenant = 7, .weight = 3};
    api_fixture_init(f, with_account);
    api_fixture_ready(f);
}

static void tear_down(void) {
    api_fixture_deinit(f);
    ck_assert_uint_eq(account.open, 0);    // nobody is forgotten
}

static void post(const char *fields, const char *body) {
    char request[1024];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-a\r\n%s"
             "Content-Length: %zu\r\n\r\n%s",
             fields, strlen(body), body);
    api_fixture_send(f, &f->client, request);
}

static void expect_quota(const char *should_retry) {
    ck_assert_int_eq(api_fixture_status(&f->client), 429);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.code"), "quota");
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.type"), "rate_limit_error");
    json_destroy(doc);
    ck_assert_str_eq(api_fixture_field(&f->client, "x-should-retry"), should_retry);
}

START_TEST(class_tenant_and_weight_come_from_the_key) {
    post("", "{\"prompt\":\"a\"}");
    ck_assert_int_eq(f->submits[0].class_, REQUEST_CLASS_REALTIME);
    ck_assert_uint_eq(f->submits[0].tenant, 7);
    ck_assert_double_eq((double)f->submits[0].weight, 3);
    ck_assert_str_eq(account.name, "a");
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    post("x-tare-class: batch\r\n", "{\"prompt\":\"a\"}");
    ck_assert_int_eq(f->submits[1].class_, REQUEST_CLASS_BATCH);
}
END_TEST

START_TEST(a_call_counts_until_the_core_has_ended_it) {
    account.limits.concurrency = 1;
    post("", "{\"prompt\":\"a\"}");
    ck_assert_uint_eq(account.open, 1);
    // The client leaves; what it asked for is cancelled, and counts until it is.
    struct http_handler handler = api_handler(f->api);
    f->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &f->client.exchange, HTTP_GONE_REASON_CLIENT, f->now_us);
    ck_assert_uint_eq(f->cancel_count, 1);
    post("", "{\"prompt\":\"b\"}");
    expect_quota("true");
    ck_assert_ptr_nonnull(api_fixture_field(&f->client, "retry-after"));
    api_fixture_finish(f, 0, FINISH_REASON_CANCELLED);
    api_fixture_turn(f);
    ck_assert_uint_eq(account.open, 0);
    post("", "{\"prompt\":\"b\"}");
    ck_assert_uint_eq(f->submit_count, 2);
}
END_TEST

START_TEST(prompt_and_output_are_charged_and_a_refusal_is_not) {
    account.limits.tokens_per_minute = 60;
    account.limits.requests_per_minute = 60;
    post("", "{\"prompt\":\"abcd\",\"max_tokens\":3}");
    double before = account.tokens;
    ck_assert_double_lt(before, 57);
    api_fixture_play(f, 0, "xyz");
    ck_assert_double_eq(account.tokens, before - 3);
    post("", "{\"prompt\":\"abcd\",\"max_tokens\":3}");
    double requests = account.requests;
    api_fixture_reject(f, 1, REJECT_REASON_QUEUE_FULL, 1000);
    api_fixture_turn(f);
    ck_assert_double_eq(account.requests, requests + 1);
    ck_assert_double_ge(account.tokens, before - 3);
}
END_TEST

// 400 first: what can never be served costs no quota, even when there is none left.
START_TEST(a_bad_request_is_told_so_before_its_quota) {
    account.limits.requests_per_minute = 1;
    post("", "{\"prompt\":7}");
    ck_assert_int_eq(api_fixture_status(&f->client), 400);
    post("", "{\"prompt\":\"a\"}");
    ck_assert_uint_eq(f->submit_count, 1);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    post("", "{\"prompt\":7}");
    ck_assert_int_eq(api_fixture_status(&f->client), 400);
    post("", "{\"prompt\":\"a\"}");
    expect_quota("true");
    ck_assert_uint_eq(f->submit_count, 1);
    account.tokens = -1000;
    account.limits = (struct api_limits){.tokens_per_minute = 10};
    post("", "{\"prompt\":\"a\"}");
    expect_quota("false");
    ck_assert_ptr_null(api_fixture_field(&f->client, "retry-after"));
    // Other routes have no quota.
    api_fixture_send(f, &f->client,
                     "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-a\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
}
END_TEST

Suite *suite_api_account(void) {
    Suite *suite = suite_create("controller/http/api_account");
    TCase *buckets = tcase_create("buckets");
    tcase_add_test(buckets, requests_come_back_one_by_one);
    tcase_add_test(buckets, tokens_may_be_overdrawn_once_and_are_waited_for);
    tcase_add_test(buckets, concurrency_counts_what_is_not_over);
    suite_add_tcase(suite, buckets);
    TCase *api = tcase_create("api");
    tcase_add_checked_fixture(api, set_up, tear_down);
    tcase_add_test(api, class_tenant_and_weight_come_from_the_key);
    tcase_add_test(api, a_call_counts_until_the_core_has_ended_it);
    tcase_add_test(api, prompt_and_output_are_charged_and_a_refusal_is_not);
    tcase_add_test(api, a_bad_request_is_told_so_before_its_quota);
    suite_add_tcase(suite, api);
    return suite;
}
