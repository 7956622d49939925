// SPDX-License-Identifier: Apache-2.0
// Goal: only who may ask is heard, and no web page can drive a local server. Method: heads in,
// verdicts out, over every rule and its neighbour.
#include "controller/http/api_gate.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

static struct http_parser parser;

// A head with these field lines; `request` of the parser is valid until the next call.
static const struct http_request *head(const char *fields) {
    static const struct http_limits limits = {BOUND_HTTP_HEAD_BYTES, BOUND_HTTP_HEADER_FIELDS, 100};
    char text[4096];
    http_parser_deinit(&parser);
    http_parser_init(&parser, &limits);
    snprintf(text, sizeof text, "POST /x HTTP/1.1\r\n%s\r\n", fields);
    http_parser_feed(&parser, text, strlen(text));
    ck_assert_msg(parser.state == HTTP_PARSE_STATE_BODY, "%s", parser.error_message);
    return &parser.request;
}

START_TEST(local_server_without_a_key_answers_to_local_names_only) {
    static const struct {
        const char *fields;
        bool fine;
    } rows[] = {
        {"Host: localhost\r\n", true},       {"Host: LocalHost:8000\r\n", true},
        {"Host: 127.0.0.1:1\r\n", true},     {"Host: [::1]:8000\r\n", true},
        {"Host: [::1]\r\n", true},           {"Host: mybox:8000\r\n", true},
        {"Host: evil.example\r\n", false},   {"Host: localhost.evil.example\r\n", false},
        {"Host: 127.0.0.1.evil\r\n", false}, {"Host: 127.0.0.2\r\n", false},
    };
    struct api_gate gate = {.loopback_only = true, .host_name = "mybox"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct api_failure failure = {0};
        ck_assert_msg(api_gate_host(&gate, head(rows[i].fields), &failure) == rows[i].fine, "%s",
                      rows[i].fields);
        ck_assert_int_eq(rows[i].fine ? 403 : api_code_http(failure.code), 403);
    }
    struct api_failure failure = {0};
    gate.loopback_only = false;
    ck_assert(api_gate_host(&gate, head("Host: evil.example\r\n"), &failure));
    gate.loopback_only = true;
    const struct api_key key = {.account = NULL};
    gate.keys = &key;
    gate.key_count = 1;
    ck_assert(api_gate_host(&gate, head("Host: evil.example\r\n"), &failure));
}
END_TEST

START_TEST(keys_are_found_in_all_three_places) {
    struct api_key keys[2] = {{.account = NULL}, {.account = NULL}};
    api_key_digest("sk-1", 4, keys[0].digest);
    api_key_digest("sk-2", 4, keys[1].digest);
    const struct api_gate gate = {.keys = keys, .key_count = 2};
    static const struct {
        const char *fields;
        int key;    // index, or -1
    } rows[] = {
        {"Host: a\r\nAuthorization: Bearer sk-1\r\n", 0},
        {"Host: a\r\nauthorization: bearer   sk-2\r\n", 1},
        {"Host: a\r\nx-api-key: sk-2\r\n", 1},
        {"Host: a\r\napi-key: sk-1\r\n", 0},
        {"Host: a\r\nAuthorization: Bearer none\r\nx-api-key: sk-1\r\n", 0},
        {"Host: a\r\n", -1},
        {"Host: a\r\nAuthorization: Bearer sk-\r\n", -1},
        {"Host: a\r\nAuthorization: Bearer sk-12\r\n", -1},
        {"Host: a\r\nAuthorization: sk-1\r\n", -1},
        {"Host: a\r\nAuthorization: Bearer\r\n", -1},
        {"Host: a\r\nAuthorization: Basic sk-1\r\n", -1},
        {"Host: a\r\nx-api-key:\r\n", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct api_key *key = NULL;
        struct api_failure failure = {0};
        bool fine = api_gate_key(&gate, head(rows[i].fields), &key, &failure);
        ck_assert_msg(fine == (rows[i].key >= 0), "%s", rows[i].fields);
        if (fine) {
            ck_assert_ptr_eq(key, &keys[rows[i].key]);
        } else {
            ck_assert_int_eq(failure.code, API_CODE_INVALID_API_KEY);
        }
    }
    const struct api_gate open = {0};
    const struct api_key *key = &keys[0];
    struct api_failure failure = {0};
    ck_assert(api_gate_key(&open, head("Host: a\r\n"), &key, &failure));
    ck_assert_ptr_null(key);
}
END_TEST

START_TEST(json_may_be_nameless_only_outside_of_browsers) {
    static const struct {
        const char *fields;
        bool fine;
    } rows[] = {
        {"Host: a\r\nContent-Type: application/json\r\n", true},
        {"Host: a\r\nContent-Type: Application/JSON; charset=utf-8\r\n", true},
        {"Host: a\r\nContent-Type: application/json ;x\r\nOrigin: http://b\r\n", true},
        {"Host: a\r\n", true},
        {"Host: a\r\nContent-Type: application/x-www-form-urlencoded\r\n", true},
        {"Host: a\r\nOrigin: http://b\r\n", false},
        {"Host: a\r\nOrigin: null\r\nContent-Type: application/x-www-form-urlencoded\r\n", false},
        {"Host: a\r\nContent-Type: text/plain\r\n", false},
        {"Host: a\r\nContent-Type: application/jsonp\r\n", false},
        {"Host: a\r\nContent-Type: multipart/form-data; boundary=x\r\n", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct api_failure failure = {0};
        ck_assert_msg(api_gate_content_type(head(rows[i].fields), &failure) == rows[i].fine, "%s",
                      rows[i].fields);
    }
}
END_TEST

START_TEST(origins_are_local_or_listed) {
    static const char *const listed[] = {"https://app.example", "http://b"};
    static const char *const any[] = {"*"};
    const struct api_key key = {.account = NULL};
    const struct api_gate plain = {0};
    const struct api_gate keyed = {.keys = &key, .key_count = 1};
    const struct api_gate list = {.origins = listed, .origin_count = 2};
    const struct api_gate all = {.origins = any, .origin_count = 1};
    static const struct {
        const char *origin;
        bool plain, keyed, list;
    } rows[] = {
        {"http://localhost:3000", true, false, false},
        {"http://localhost", true, false, false},
        {"http://127.0.0.1:9", true, false, false},
        {"http://localhost:", false, false, false},
        {"http://localhost:80x", false, false, false},
        {"http://localhost.evil", false, false, false},
        {"http://me:8000", true, true, false},    // the server's own
        {"https://me:8000", true, true, false},
        {"http://me:8001", false, false, false},
        {"https://app.example", false, false, true},
        {"https://app.example.evil", false, false, false},
        {"null", false, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char fields[256];
        snprintf(fields, sizeof fields, "Host: me:8000\r\nOrigin: %s\r\n", rows[i].origin);
        const struct http_request *request = head(fields);
        ck_assert_msg(api_gate_origin(&plain, request) == rows[i].plain, "%s", rows[i].origin);
        ck_assert_msg(api_gate_origin(&keyed, request) == rows[i].keyed, "%s", rows[i].origin);
        ck_assert_msg(api_gate_origin(&list, request) == rows[i].list, "%s", rows[i].origin);
        ck_assert(api_gate_origin(&all, request));
    }
    ck_assert(!api_gate_origin(&all, head("Host: me\r\n")));
}
END_TEST

START_TEST(preflight_reflects_names_and_nothing_else) {
    const struct api_gate gate = {.allow_credentials = true};
    struct buf out;
    buf_init(&out, 4096);
    api_gate_write_preflight(
        &gate,
        head("Host: a\r\nOrigin: http://localhost:1\r\n"
             "Access-Control-Request-Method: POST\r\n"
             "Access-Control-Request-Headers: authorization, x-stainless-os\r\n"),
        &out);
    ck_assert_str_eq(buf_cstr(&out),
                     "access-control-allow-origin: http://localhost:1\r\nvary: origin\r\n"
                     "access-control-expose-headers: x-request-id, retry-after\r\n"
                     "access-control-allow-credentials: true\r\n"
                     "access-control-allow-methods: POST\r\n"
                     "access-control-allow-headers: authorization, x-stainless-os\r\n"
                     "access-control-max-age: 600\r\n");
    buf_reset(&out);
    api_gate_write_preflight(&gate,
                             head("Host: a\r\nOrigin: http://localhost:1\r\n"
                                  "Access-Control-Request-Headers: a:b\x80\r\n"),
                             &out);
    ck_assert_ptr_null(strstr(buf_cstr(&out), "allow-headers"));
    buf_reset(&out);
    api_gate_write_preflight(&gate, head("Host: a\r\nOrigin: http://evil\r\n"), &out);
    ck_assert_uint_eq(out.bytes_used, 0);
    buf_deinit(&out);
}
END_TEST

START_TEST(request_ids_are_taken_when_printable) {
    char fields[400] = "Host: a\r\nX-Request-Id: ";
    struct http_span id;
    size_t start = strlen(fields);
    memset(fields + start, 'i', 128);
    memcpy(fields + start + 128, "\r\n", 3);
    ck_assert(api_gate_request_id(head(fields), &id));
    ck_assert_uint_eq(id.byte_count, 128);
    memcpy(fields + start + 128, "i\r\n", 4);
    ck_assert(!api_gate_request_id(head(fields), &id));
    ck_assert(!api_gate_request_id(head("Host: a\r\nX-Request-Id:\r\n"), &id));
    ck_assert(!api_gate_request_id(head("Host: a\r\nX-Request-Id: a b\r\n"), &id));
    ck_assert(!api_gate_request_id(head("Host: a\r\nX-Request-Id: a\x80\r\n"), &id));
    ck_assert(!api_gate_request_id(head("Host: a\r\n"), &id));
}
END_TEST

Suite *suite_api_gate(void) {
    Suite *suite = suite_create("controller/http/api_gate");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, local_server_without_a_key_answers_to_local_names_only);
    tcase_add_test(tc, keys_are_found_in_all_three_places);
    tcase_add_test(tc, json_may_be_nameless_only_outside_of_browsers);
    tcase_add_test(tc, origins_are_local_or_listed);
    tcase_add_test(tc, preflight_reflects_names_and_nothing_else);
    tcase_add_test(tc, request_ids_are_taken_when_printable);
    suite_add_tcase(suite, tc);
    return suite;
}
