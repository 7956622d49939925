// SPDX-License-Identifier: Apache-2.0
// Goal: each admin call answers once, those that wait when their operation has ended; whatever else
// is asked is refused with the way to it. Method: one exchange driven by hand, as the server would.
#include "controller/http/admin.h"
#include "tests/unit/suites.h"

#include <stdio.h>
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

static struct admin_resize asked;
static char asked_group[16];
static enum status starts;
static bool ends_at_once;

static void end_resize(const char *state, uint32_t after, const char *reason) {
    const struct admin_outcome outcome = {.operation = asked.operation,
                                          .state = state,
                                          .blocks_asked = 8,
                                          .blocks_before = 10,
                                          .blocks_after = after,
                                          .block_bytes = 1000,
                                          .reason = reason};
    admin_resized(admin, &outcome);
}

static enum status start_resize(void *ctx, const struct admin_resize *ask, struct error *err) {
    ck_assert_ptr_eq(ctx, &full);
    asked = *ask;
    snprintf(asked_group, sizeof asked_group, "%s", ask->group);
    if (starts != STATUS_OK) {
        return error_set(err, starts, "no such group");
    }
    if (ends_at_once) {
        end_resize("refused", 10, "busy");
    }
    return STATUS_OK;
}

static void set_up(void) {
    struct admin_config config = {&full, write_status, start_resize};
    memset(&asked, 0, sizeof asked);
    starts = STATUS_OK;
    ends_at_once = false;
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

static void post(const char *body) {
    begin(HTTP_METHOD_POST, "/admin/v1/resize/kv");
    exchange.body = body;
    exchange.body_bytes = strlen(body);
    handler.on_head(handler.ctx, &exchange, 0);
    handler.on_request(handler.ctx, &exchange, 0);
}

START_TEST(a_resize_is_answered_when_it_has_ended) {
    post("{\"group\":\"0\",\"amount\":-2,\"relative\":true}");
    ck_assert(http_exchange_live(&exchange));
    ck_assert_str_eq(asked_group, "0");
    ck_assert_int_eq(asked.amount, -2);
    ck_assert(asked.relative);
    ck_assert(!asked.bytes);
    end_resize("partial", 9, "somebody \"needs\" it");
    expect(200, "\"state\":\"partial\",\"blocks_asked\":8,\"blocks_before\":10,\"blocks_after\":9,"
                "\"bytes_before\":10000,\"bytes_after\":9000,"
                "\"reason\":\"somebody \\\"needs\\\" it\"}");
}
END_TEST

START_TEST(who_does_not_wait_is_told_that_it_runs) {
    post("{\"group\":\"0\",\"amount\":8,\"unit\":\"bytes\",\"wait\":false}");
    ck_assert(asked.bytes);
    expect(200, "\"state\":\"running\"");
    end_resize("done", 8, "");    // nobody listens any more
}
END_TEST

START_TEST(a_resize_that_ends_at_once_is_answered_once) {
    ends_at_once = true;
    post("{\"group\":\"0\",\"amount\":8,\"wait\":false}");
    expect(409, "\"state\":\"refused\"");
}
END_TEST

START_TEST(a_caller_that_leaves_is_forgotten) {
    post("{\"group\":\"0\",\"amount\":8}");
    handler.on_gone(handler.ctx, &exchange, HTTP_GONE_REASON_CLIENT, 0);
    end_resize("done", 8, "");
    ck_assert(http_exchange_live(&exchange));    // untouched
}
END_TEST

START_TEST(a_wrong_resize_is_refused_with_the_field) {
    static const struct {
        const char *body, *word;
    } cases[] = {{"{", "not valid JSON"},
                 {"[]", "must be an object"},
                 {"{\"amount\":1}", "'group'"},
                 {"{\"group\":\"0\"}", "'amount'"},
                 {"{\"group\":\"0\",\"amount\":\"1\"}", "amount"},
                 {"{\"group\":\"0\",\"amount\":1,\"unit\":\"pages\"}", "'unit'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        post(cases[i].body);
        expect(400, cases[i].word);
        ck_assert_uint_eq(asked.operation, 0);
    }
    starts = STATUS_NOT_FOUND;
    post("{\"group\":\"7\",\"amount\":1}");
    expect(404, "no such group");
    ask(HTTP_METHOD_GET, "/admin/v1/resize/kv", 405, "takes POST");
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
    tcase_add_test(tc, a_resize_is_answered_when_it_has_ended);
    tcase_add_test(tc, who_does_not_wait_is_told_that_it_runs);
    tcase_add_test(tc, a_resize_that_ends_at_once_is_answered_once);
    tcase_add_test(tc, a_caller_that_leaves_is_forgotten);
    tcase_add_test(tc, a_wrong_resize_is_refused_with_the_field);
    suite_add_tcase(suite, tc);
    return suite;
}
