// SPDX-License-Identifier: Apache-2.0
// Goal: the one admin call answers, and whatever else is asked is refused with the way to it.
// Method: one exchange driven by hand, as the server would.
#include "controller/http/admin.h"
#include "tests/unit/suites.h"

#include <string.h>

static struct admin *admin;
static struct http_handler handler;
static struct http_exchange exchange;
static struct http_request request;
static bool full;

static void write_status(void *ctx, struct buf *json) {
    ck_assert_ptr_eq(ctx, &full);
    buf_append_str(json, "{\"state\":\"ready\"}\n");
    json->failed = full;
}

static void set_up(void) {
    struct admin_config config = {&full, write_status};
    full = false;
    ck_assert_int_eq(admin_create(&config, &admin, NULL), STATUS_OK);
    handler = admin_handler(admin);
    http_exchange_init(&exchange, NULL);
}

static void tear_down(void) {
    http_exchange_deinit(&exchange);
    admin_destroy(admin);
}

static void begin(enum http_method method, const char *path) {
    request = (struct http_request){.method = method, .path = {path, strlen(path)}};
    http_exchange_begin(&exchange, &request, 0);
}

static void expect(int status, const char *word) {
    ck_assert(!http_exchange_live(&exchange));
    ck_assert_int_eq(exchange.status, status);
    const char *sent = buf_cstr(&exchange.out);
    ck_assert_msg(strstr(sent, word) != NULL, "'%s' is not in %s", word, sent);
}

static void ask(enum http_method method, const char *path, int status, const char *word) {
    begin(method, path);
    handler.on_head(handler.ctx, &exchange, 0);
    ck_assert(http_exchange_live(&exchange));
    handler.on_request(handler.ctx, &exchange, 0);
    expect(status, word);
}

START_TEST(the_status_is_what_the_callback_wrote) {
    ask(HTTP_METHOD_GET, "/admin/v1/status", 200, "\r\n\r\n{\"state\":\"ready\"}\n");
    ask(HTTP_METHOD_HEAD, "/admin/v1/status", 200, "content-length: 18\r\n");
}
END_TEST

START_TEST(other_calls_are_told_the_right_one) {
    ask(HTTP_METHOD_GET, "/admin/v1/statu", 404, "GET /admin/v1/status is one");
    ask(HTTP_METHOD_GET, "/v1/models", 404, "no such admin call");
    ask(HTTP_METHOD_POST, "/admin/v1/status", 405, "answers GET");
}
END_TEST

START_TEST(an_answer_that_does_not_fit_is_an_error_and_not_half_an_object) {
    full = true;
    ask(HTTP_METHOD_GET, "/admin/v1/status", 500, "no memory");
    ck_assert_ptr_null(strstr(buf_cstr(&exchange.out), "ready"));
}
END_TEST

START_TEST(what_the_transport_refuses_gets_its_status_and_sentence) {
    http_exchange_begin(&exchange, NULL, 0);
    handler.on_refused(handler.ctx, &exchange, 431, "The \"head\" is too long.", 0);
    expect(431, "The \\\"head\\\" is too long.");
}
END_TEST

Suite *suite_admin(void) {
    Suite *suite = suite_create("controller/http/admin");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, the_status_is_what_the_callback_wrote);
    tcase_add_test(tc, other_calls_are_told_the_right_one);
    tcase_add_test(tc, an_answer_that_does_not_fit_is_an_error_and_not_half_an_object);
    tcase_add_test(tc, what_the_transport_refuses_gets_its_status_and_sentence);
    suite_add_tcase(suite, tc);
    return suite;
}
