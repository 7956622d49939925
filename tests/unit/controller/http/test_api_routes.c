// SPDX-License-Identifier: Apache-2.0
// Goal: every route marked must is there, answers as written, and refuses as written. Method: whole
// requests against an API whose core only records.
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct api_fixture *f;

static void setup(void) {
    f = calloc(1, sizeof *f);
    api_fixture_init(f, NULL);
}

static void teardown(void) {
    api_fixture_deinit(f);
    free(f);
}

static void get(const char *path) {
    api_fixture_get(f, path);
}

static void expect_error(int status, const char *code) {
    ck_assert_int_eq(api_fixture_status(&f->client), status);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *error = json_get(json_root(doc), "error");
    ck_assert_str_eq(json_walk_text(error, "code"), code);
    // All four keys of the schema, and ours.
    ck_assert_uint_gt(strlen(json_walk_text(error, "message")), 0);
    ck_assert_uint_gt(strlen(json_walk_text(error, "type")), 0);
    ck_assert_ptr_nonnull(json_get(error, "param"));
    ck_assert_int_eq(json_kind(json_get(error, "retryable")), JSON_KIND_BOOL);
    json_destroy(doc);
    ck_assert_ptr_nonnull(api_fixture_field(&f->client, "x-request-id"));
    ck_assert_str_eq(api_fixture_field(&f->client, "content-type"), "application/json");
}

START_TEST(unknown_paths_and_wrong_methods_say_so) {
    api_fixture_ready(f);
    get("/v1/nothing");
    expect_error(404, "not_found");
    get("/");
    expect_error(404, "not_found");
    get("/admin/v1/drain");
    expect_error(404, "not_found");
    get("/v1/chat/completions");
    expect_error(405, "method_not_allowed");
    ck_assert_str_eq(api_fixture_field(&f->client, "allow"), "POST, OPTIONS");
    api_fixture_post(f, "/health", "{}");
    expect_error(405, "method_not_allowed");
    ck_assert_str_eq(api_fixture_field(&f->client, "allow"), "GET, HEAD, OPTIONS");
    api_fixture_send(f, &f->client, "BREW /health HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_error(405, "method_not_allowed");
    api_fixture_post(f, "/v1/embeddings", "{}");
    expect_error(501, "unsupported_endpoint");
    ck_assert_str_eq(api_fixture_field(&f->client, "x-should-retry"), "false");
    api_fixture_post(f, "/v1/responses", "{}");
    expect_error(501, "unsupported_endpoint");
    api_fixture_post(f, "/v1/messages", "{}");
    expect_error(501, "unsupported_endpoint");
    api_fixture_post(f, "/v1/audio/speech", "{}");
    expect_error(501, "unsupported_endpoint");
}
END_TEST

START_TEST(trailing_slash_means_the_same) {
    api_fixture_ready(f);
    get("/health/");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    get("/v1/models/");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "object"), "list");
    json_destroy(doc);
}
END_TEST

START_TEST(head_answers_like_get_without_a_body) {
    api_fixture_ready(f);
    static const char *const paths[] = {"/health",  "/ready",     "/livez",
                                        "/metrics", "/v1/models", "/version"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char request[128];
        snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
        api_fixture_send(f, &f->client, request);
        ck_assert_int_eq(api_fixture_status(&f->client), 200);
        ck_assert_str_eq(api_fixture_body(&f->client, NULL), "");
        ck_assert_int_gt(atoi(api_fixture_field(&f->client, "content-length")), 0);
    }
}
END_TEST

// status of: /livez /health /ready /v1/models, and of a generation; 0 = it was submitted
static void expect_row(int livez, int health, int ready, int models, int generation) {
    get("/livez");
    ck_assert_int_eq(api_fixture_status(&f->client), livez);
    get("/health");
    ck_assert_int_eq(api_fixture_status(&f->client), health);
    get("/healthz");
    ck_assert_int_eq(api_fixture_status(&f->client), health);
    get("/ready");
    ck_assert_int_eq(api_fixture_status(&f->client), ready);
    get("/readyz");
    ck_assert_int_eq(api_fixture_status(&f->client), ready);
    get("/v1/models");
    ck_assert_int_eq(api_fixture_status(&f->client), models);
    uint32_t submitted = f->submit_count;
    api_fixture_post(f, "/v1/completions", "{\"prompt\":\"a\"}");
    if (generation != 0) {
        ck_assert_int_eq(api_fixture_status(&f->client), generation);
        ck_assert_uint_eq(f->submit_count, submitted);
    } else {
        ck_assert_uint_eq(f->submit_count, submitted + 1);
        api_fixture_finish(f, submitted, FINISH_REASON_LENGTH);
        api_fixture_turn(f);
        ck_assert_int_eq(api_fixture_status(&f->client), 200);
    }
    get("/metrics");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);    // in every state
}

START_TEST(health_follows_the_truth_table) {
    expect_row(200, 503, 503, 503, 503);    // starting
    api_set_model(f->api, &f->model);
    const struct message_progress progress = {"load", 31, 100, 7};
    api_on_progress(f->api, &progress);
    expect_row(200, 503, 503, 503, 503);    // loading
    get("/health");
    expect_error(503, "model_loading");
    ck_assert_str_eq(api_fixture_field(&f->client, "x-should-retry"), "true");
    ck_assert_str_eq(api_fixture_field(&f->client, "retry-after"), "2");
    get("/ready");
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert(!json_bool(json_walk(json_root(doc), "ready")));
    ck_assert_str_eq(json_walk_text(json_root(doc), "state"), "loading");
    ck_assert(json_number(json_walk(json_root(doc), "models.0.progress")) == 0.31);
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "models.0.bytes_total")), 100);
    ck_assert(json_number(json_walk(json_root(doc), "models.0.eta_seconds")) == 9.9);
    json_destroy(doc);

    api_fixture_ready(f);
    expect_row(200, 200, 200, 200, 0);
    api_set_overdue(f->api, true);
    expect_row(200, 503, 503, 200, 0);
    api_set_overdue(f->api, false);
    expect_row(200, 200, 200, 200, 0);
    api_on_worker_lost(f->api);
    expect_row(200, 503, 503, 200, 0);    // recovering: the core queues
    api_fixture_ready(f);
    expect_row(200, 200, 200, 200, 0);
    api_set_draining(f->api);
    expect_row(200, 200, 503, 200, 503);
    api_set_failed(f->api, "the file is gone");
    expect_row(200, 503, 503, 200, 503);
    get("/health");
    expect_error(503, "unavailable");
    ck_assert_str_eq(api_fixture_field(&f->client, "x-should-retry"), "false");
}
END_TEST

START_TEST(aliases_answer_too) {
    api_fixture_ready(f);
    static const char *const paths[] = {
        "/ping", "/v1/health", "/v2/health/live", "/v2/health/ready", "/models", "/models/tiny"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        get(paths[i]);
        ck_assert_msg(api_fixture_status(&f->client) == 200, "%s", paths[i]);
    }
    api_fixture_post(f, "/ping", "");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    api_fixture_post(f, "/completions", "{\"prompt\":\"a\"}");
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    api_fixture_post(f, "/chat/completions",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    ck_assert_uint_eq(f->submit_count, 2);
}
END_TEST

START_TEST(canary_takes_the_real_path) {
    api_fixture_ready(f);
    get("/healthz/step");
    ck_assert_uint_eq(f->client.answer.bytes_used, 0);    // nothing yet: no token
    ck_assert_uint_eq(f->submit_count, 1);
    ck_assert_uint_eq(f->submits[0].output_max, 1);
    api_fixture_token(f, 0, 'x');
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    get("/health?deep=1");
    api_fixture_finish(f, 1, FINISH_REASON_FAULT);
    api_fixture_turn(f);
    expect_error(503, "instance_lost");
    get("/health_generate");
    api_fixture_reject(f, 2, REJECT_REASON_QUEUE_FULL, 1000);
    api_fixture_turn(f);
    ck_assert_int_eq(api_fixture_status(&f->client), 200);    // others are being served
    get("/healthz/step");
    struct http_handler handler = api_handler(f->api);
    ck_assert_uint_gt(f->client.exchange.alarm_us, f->now_us);
    f->now_us = f->client.exchange.alarm_us;
    handler.on_alarm(handler.ctx, &f->client.exchange, f->now_us);
    api_fixture_collect(&f->client);
    expect_error(503, "unavailable");
    ck_assert_uint_eq(f->cancel_count, 1);
}
END_TEST

START_TEST(models_are_listed_and_found_with_slashes) {
    api_fixture_ready(f);
    get("/v1/models");
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_uint_eq(json_count(json_get(root, "data")), 2);
    ck_assert_str_eq(json_walk_text(root, "data.0.id"), "tiny");
    ck_assert_str_eq(json_walk_text(root, "data.0.object"), "model");
    ck_assert_int_eq(json_int(json_walk(root, "data.0.created")), 1700000000);
    ck_assert_str_eq(json_walk_text(root, "data.0.owned_by"), "tare");
    ck_assert_int_eq(json_int(json_walk(root, "data.0.max_model_len")), FIXTURE_CONTEXT);
    ck_assert_int_eq(json_kind(json_walk(root, "data.0.permission")), JSON_KIND_ARRAY);
    json_destroy(doc);
    static const char *const found[] = {"/v1/models/org/tiny:latest",
                                        "/v1/models/org%2Ftiny%3Alatest", "/v1/models/tiny/"};
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        get(found[i]);
        ck_assert_msg(api_fixture_status(&f->client) == 200, "%s", found[i]);
    }
    static const char *const missing[] = {"/v1/models/other", "/v1/models/tiny%00",
                                          "/v1/models/tin", "/v1/models/tiny%2"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        get(missing[i]);
        expect_error(404, "model_not_found");
    }
}
END_TEST

START_TEST(version_and_metrics_answer_in_both_formats) {
    get("/version");
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "version"), "9.9.9");
    ck_assert_str_eq(json_walk_text(json_root(doc), "commit"), "c0ffee");
    json_destroy(doc);
    get("/metrics");
    ck_assert_str_eq(api_fixture_body(&f->client, NULL), "classic\n");
    ck_assert_str_eq(api_fixture_field(&f->client, "content-type"),
                     "text/plain; version=0.0.4; charset=utf-8");
    api_fixture_send(f, &f->client,
                     "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;"
                     "version=1.0.0,text/plain;q=0.5\r\n\r\n");
    ck_assert_str_eq(api_fixture_body(&f->client, NULL), "open\n# EOF\n");
}
END_TEST

START_TEST(request_id_and_server_are_in_every_answer) {
    api_fixture_send(f, &f->client,
                     "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: my-id_1\r\n\r\n");
    ck_assert_str_eq(api_fixture_field(&f->client, "x-request-id"), "my-id_1");
    ck_assert_str_eq(api_fixture_field(&f->client, "server"), "tare/9.9.9");
    ck_assert_ptr_nonnull(strstr(api_fixture_field(&f->client, "date"), " GMT"));
    get("/livez");
    char first[64];
    snprintf(first, sizeof first, "%s", api_fixture_field(&f->client, "x-request-id"));
    ck_assert_uint_ge(strlen(first), 16);
    get("/livez");
    ck_assert_str_ne(api_fixture_field(&f->client, "x-request-id"), first);
}
END_TEST

START_TEST(transport_refusals_are_error_objects) {
    static const struct {
        int status;
        const char *code;
    } rows[] = {{400, "invalid_value"},     {408, "request_timeout"}, {413, "request_too_large"},
                {431, "headers_too_large"}, {503, "unavailable"},     {505, "unsupported_feature"},
                {417, "invalid_value"}};
    struct http_handler handler = api_handler(f->api);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        buf_reset(&f->client.answer);
        http_exchange_begin(&f->client.exchange, NULL, f->now_us);
        handler.on_refused(handler.ctx, &f->client.exchange, rows[i].status, "Because.", f->now_us);
        api_fixture_collect(&f->client);
        expect_error(rows[i].status, rows[i].code);
        ck_assert_str_eq(api_fixture_field(&f->client, "connection"), "close");
    }
}
END_TEST

START_TEST(preflight_is_answered_for_any_route) {
    api_fixture_send(f, &f->client,
                     "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n"
                     "Access-Control-Request-Headers: authorization, content-type\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 204);
    ck_assert_str_eq(api_fixture_field(&f->client, "access-control-allow-origin"),
                     "http://localhost:3000");
    ck_assert_str_eq(api_fixture_field(&f->client, "access-control-allow-headers"),
                     "authorization, content-type");
    ck_assert_ptr_null(api_fixture_field(&f->client, "content-length"));
    api_fixture_send(
        f, &f->client,
        "OPTIONS /anything HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 204);
    ck_assert_ptr_null(api_fixture_field(&f->client, "access-control-allow-origin"));
    api_fixture_send(
        f, &f->client,
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:1\r\n\r\n");
    ck_assert_str_eq(api_fixture_field(&f->client, "access-control-allow-origin"),
                     "http://localhost:1");
    api_fixture_send(f, &f->client,
                     "GET /livez HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    ck_assert_ptr_null(api_fixture_field(&f->client, "access-control-allow-origin"));
}
END_TEST

static struct api_account alice = {.name = "alice", .class_ = REQUEST_CLASS_STANDARD};
static struct api_key keys[1];

static void with_key(struct api_config *config) {
    api_key_digest("sk-test", 7, keys[0].digest);
    keys[0].account = &alice;
    config->gate.keys = keys;
    config->gate.key_count = 1;
}

START_TEST(with_a_key_only_the_written_list_is_open) {
    api_fixture_deinit(f);
    api_fixture_init(f, with_key);
    api_fixture_ready(f);
    static const char *const open[] = {"/health",  "/ready", "/livez",  "/readyz",
                                       "/healthz", "/ping",  "/metrics"};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        get(open[i]);
        ck_assert_msg(api_fixture_status(&f->client) == 200, "%s", open[i]);
    }
    static const char *const closed[] = {"/v1/models",    "/v1/models/tiny", "/version",
                                         "/healthz/step", "/v1/health",      "/health_generate",
                                         "/nothing",      "/models"};
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
        get(closed[i]);
        expect_error(401, "invalid_api_key");
        ck_assert_str_eq(api_fixture_field(&f->client, "www-authenticate"), "Bearer");
    }
    static const char *const posts[] = {"/v1/completions", "/v1/chat/completions",
                                        "/tokenize",       "/detokenize",
                                        "/v1/tokenize",    "/v1/embeddings"};
    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++) {
        api_fixture_post(f, posts[i], "{}");
        expect_error(401, "invalid_api_key");
    }
    api_fixture_send(f, &f->client, "OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 204);
    api_fixture_send(f, &f->client,
                     "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-test\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    ck_assert_str_eq(f->access.key_name, "alice");
}
END_TEST

static void metrics_closed(struct api_config *config) {
    with_key(config);
    config->gate.metrics_require_key = true;
}

START_TEST(metrics_can_be_closed) {
    api_fixture_deinit(f);
    api_fixture_init(f, metrics_closed);
    get("/metrics");
    expect_error(401, "invalid_api_key");
}
END_TEST

static void loopback(struct api_config *config) {
    config->gate.loopback_only = true;
}

START_TEST(foreign_host_on_a_local_server_is_forbidden) {
    api_fixture_deinit(f);
    api_fixture_init(f, loopback);
    api_fixture_send(f, &f->client, "GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    expect_error(403, "forbidden");
    api_fixture_send(f, &f->client, "GET /livez HTTP/1.1\r\nHost: localhost:8000\r\n\r\n");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
}
END_TEST

START_TEST(a_packed_body_is_refused) {
    api_fixture_ready(f);
    api_fixture_send(
        f, &f->client,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
        "Content-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
    expect_error(415, "unsupported_media_type");
    ck_assert_uint_eq(f->submit_count, 0);
}
END_TEST

START_TEST(a_number_beyond_64_bits_is_named_as_such) {
    api_fixture_ready(f);
    api_fixture_send(f, &f->client,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: 42\r\n\r\n"
                     "{\"prompt\":\"a\",\"seed\":18446744073709551615}");
    expect_error(400, "invalid_value");
    ck_assert_uint_eq(f->submit_count, 0);
}
END_TEST

START_TEST(pages_cannot_post_without_asking) {
    api_fixture_ready(f);
    api_fixture_send(f, &f->client,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n"
                     "Content-Type: text/plain\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
    expect_error(415, "unsupported_media_type");
    ck_assert_uint_eq(f->submit_count, 0);
}
END_TEST

START_TEST(heads_are_refused_before_their_body) {
    api_fixture_ready(f);
    // The body is not there: an answer means that nobody waited for it.
    struct http_handler handler = api_handler(f->api);
    static const char head[] = "POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    http_parser_reset(&f->client.parser);
    http_parser_feed(&f->client.parser, head, sizeof head - 1);
    http_exchange_begin(&f->client.exchange, &f->client.parser.request, f->now_us);
    handler.on_head(handler.ctx, &f->client.exchange, f->now_us);
    ck_assert(!http_exchange_live(&f->client.exchange));
    api_fixture_collect(&f->client);
    expect_error(404, "not_found");
}
END_TEST

START_TEST(bodies_must_be_json_objects) {
    api_fixture_ready(f);
    static const char *const bad[] = {"", "{", "{\"prompt\":}", "nonsense", "{} x", "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        api_fixture_post(f, "/v1/completions", bad[i]);
        expect_error(400, "invalid_json");
    }
    static const char *const other[] = {"[]", "1", "\"x\"", "null"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        api_fixture_post(f, "/v1/completions", other[i]);
        expect_error(400, "invalid_type");
    }
    char deep[400] = "";
    memset(deep, '[', 200);
    api_fixture_post(f, "/v1/completions", deep);
    expect_error(400, "invalid_json");
    // What the client wrote never comes back in the message.
    api_fixture_post(f, "/v1/completions", "{\"prompt\": secretword}");
    ck_assert_ptr_null(strstr(api_fixture_body(&f->client, NULL), "secretword"));
}
END_TEST

START_TEST(tokenize_and_detokenize_are_inverse) {
    api_fixture_ready(f);
    api_fixture_post(f, "/tokenize", "{\"prompt\":\"hello wo\",\"return_token_strs\":true}");
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_int_eq(json_int(json_get(root, "count")), 3);
    ck_assert_int_eq(json_int(json_get(root, "max_model_len")), FIXTURE_CONTEXT);
    ck_assert_int_eq(json_int(json_walk(root, "tokens.0")), TOKEN_HELLO);
    ck_assert_int_eq(json_int(json_walk(root, "tokens.1")), TOKEN_SPACE_W);
    ck_assert_str_eq(json_walk_text(root, "token_strs.1"), " w");
    json_destroy(doc);
    api_fixture_post(f, "/v1/detokenize", "{\"tokens\":[259,260,111]}");
    doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "prompt"), "hello wo");
    ck_assert_str_eq(json_walk_text(json_root(doc), "content"), "hello wo");
    json_destroy(doc);
    api_fixture_post(f, "/tokenize", "{\"content\":\"hello\",\"with_pieces\":true}");
    doc = api_fixture_json(&f->client);
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "tokens.0.id")), TOKEN_HELLO);
    ck_assert_str_eq(json_walk_text(json_root(doc), "tokens.0.piece"), "hello");
    json_destroy(doc);
    api_fixture_post(f, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}");
    doc = api_fixture_json(&f->client);
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "tokens.0")), TOKEN_IM_START);
    json_destroy(doc);
    api_fixture_post(f, "/tokenize", "{\"prompt\":\"\"}");
    doc = api_fixture_json(&f->client);
    ck_assert_int_eq(json_int(json_get(json_root(doc), "count")), 0);
    json_destroy(doc);
    api_fixture_post(f, "/tokenize", "{}");
    expect_error(400, "missing_required_parameter");
    api_fixture_post(f, "/detokenize", "{}");
    expect_error(400, "missing_required_parameter");
    api_fixture_post(f, "/detokenize", "{\"tokens\":[265]}");
    expect_error(400, "invalid_value");
    api_fixture_post(f, "/detokenize", "{\"tokens\":[-1]}");
    expect_error(400, "invalid_value");
    api_fixture_post(f, "/detokenize", "{\"tokens\":\"x\"}");
    expect_error(400, "invalid_type");
    api_fixture_post(f, "/tokenize", "{\"prompt\":\"a\",\"model\":\"other\"}");
    expect_error(404, "model_not_found");
}
END_TEST

START_TEST(access_is_reported_once_per_request) {
    api_fixture_ready(f);
    get("/health");
    ck_assert_uint_eq(f->access_count, 1);
    ck_assert(f->access.probe);
    get("/v1/nothing");
    ck_assert_uint_eq(f->access_count, 2);
    ck_assert_int_eq(f->access.status, 404);
    ck_assert(!f->access.probe);
    ck_assert_str_eq(f->access_finish, "not_found");
    ck_assert(http_span_is(f->access.path, "/v1/nothing"));
}
END_TEST

Suite *suite_api_routes(void) {
    Suite *suite = suite_create("controller/http/api_routes");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, unknown_paths_and_wrong_methods_say_so);
    tcase_add_test(tc, trailing_slash_means_the_same);
    tcase_add_test(tc, head_answers_like_get_without_a_body);
    tcase_add_test(tc, health_follows_the_truth_table);
    tcase_add_test(tc, aliases_answer_too);
    tcase_add_test(tc, canary_takes_the_real_path);
    tcase_add_test(tc, models_are_listed_and_found_with_slashes);
    tcase_add_test(tc, version_and_metrics_answer_in_both_formats);
    tcase_add_test(tc, request_id_and_server_are_in_every_answer);
    tcase_add_test(tc, transport_refusals_are_error_objects);
    tcase_add_test(tc, preflight_is_answered_for_any_route);
    tcase_add_test(tc, with_a_key_only_the_written_list_is_open);
    tcase_add_test(tc, metrics_can_be_closed);
    tcase_add_test(tc, foreign_host_on_a_local_server_is_forbidden);
    tcase_add_test(tc, pages_cannot_post_without_asking);
    tcase_add_test(tc, a_packed_body_is_refused);
    tcase_add_test(tc, a_number_beyond_64_bits_is_named_as_such);
    tcase_add_test(tc, heads_are_refused_before_their_body);
    tcase_add_test(tc, bodies_must_be_json_objects);
    tcase_add_test(tc, tokenize_and_detokenize_are_inverse);
    tcase_add_test(tc, access_is_reported_once_per_request);
    suite_add_tcase(suite, tc);
    return suite;
}
