// SPDX-License-Identifier: Apache-2.0
// Goal: one meaning per message, whatever the split; nothing ambiguous passes. Method: a table of
// whole messages with their verdict, each fed whole, byte by byte and cut at every point; limits at
// the bound and one past it.
#include "common/memory.h"
#include "controller/http/http_parse.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

static const struct http_limits limits = {
    .head_bytes_max = BOUND_HTTP_HEAD_BYTES,
    .field_count_max = BOUND_HTTP_HEADER_FIELDS,
    .body_bytes_max = 4096,
};

#define H "Host: a\r\n"
#define GET11 "GET / HTTP/1.1\r\n"
#define POST11 "POST /x HTTP/1.1\r\n"
#define CHUNKED POST11 H "Transfer-Encoding: chunked\r\n\r\n"

// 0 = accepted with `left` bytes behind the message; else the status of the refusal.
struct verdict {
    const char *message;
    int status;
    const char *body;
    size_t left;
};

static const struct verdict verdicts[] = {
    // Accepted.
    {GET11 H "\r\n", 0, "", 0},
    {"\r\n" GET11 H "\r\n", 0, "", 0},
    {"GET / HTTP/1.0\r\n\r\n", 0, "", 0},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", 0, "", 0},
    {"GET http://a/x?y HTTP/1.1\r\n" H "\r\n", 0, "", 0},
    {"GET HTTP://A/x HTTP/1.1\r\n" H "\r\n", 0, "", 0},
    {"BREW /pot HTTP/1.1\r\n" H "\r\n", 0, "", 0},
    {GET11 "Host:a\r\nX-Empty:\r\nX: \t v w\t \r\n\r\n", 0, "", 0},
    {GET11 H "X: \x80\xff\r\n\r\n", 0, "", 0},
    {POST11 H "Content-Length: 5\r\n\r\nhello", 0, "hello", 0},
    {POST11 H "Content-Length: 0\r\n\r\n", 0, "", 0},
    {POST11 H "Content-Length: 00005\r\n\r\nhello" GET11, 0, "hello", 16},
    {POST11 H "content-length: 2\r\nContent-Length: 2\r\n\r\nok", 0, "ok", 0},
    {POST11 H "Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nok", 0, "ok", 0},
    {CHUNKED "5\r\nhello\r\n0\r\n\r\n", 0, "hello", 0},
    {CHUNKED "1\r\na\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\nrest", 0, "a0123456789", 4},
    {CHUNKED "0\r\nTrailer-One: x\r\nT2:\r\n\r\n", 0, "", 0},
    {POST11 H "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 0, "", 0},
    // Line ends and control bytes.
    {"GET / HTTP/1.1\nHost: a\n\n", 400, NULL, 0},
    {GET11 "Host: a\n\r\n", 400, NULL, 0},
    {GET11 H "X: a\rb\r\n\r\n", 400, NULL, 0},
    {GET11 H "X: a\r\r\n\r\n", 400, NULL, 0},
    {GET11 H "X-Abc:\rxTransfer-Encoding: chunked\r\n\r\n", 400, NULL, 0},
    {GET11 H "X: a\x01\r\n\r\n", 400, NULL, 0},
    {GET11 H "X: a\x7f\r\n\r\n", 400, NULL, 0},
    {"\r\n\r\n" GET11 H "\r\n", 400, NULL, 0},
    {"\x16\x03\x01\x02", 400, NULL, 0},
    // Request line.
    {"GET /\r\n" H "\r\n", 400, NULL, 0},
    {"GET  / HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET / HTTP/1.1 \r\n" H "\r\n", 400, NULL, 0},
    {"GET /a b HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {" GET / HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET\t/ HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"G(T / HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET * HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET /#x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"CONNECT a:80 HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET https://a/ HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET http://b/ HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET http://a HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET / http/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"GET / HTTP/1.10\r\n" H "\r\n", 400, NULL, 0},
    {"GET / HTTP/1.2\r\n" H "\r\n", 505, NULL, 0},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, NULL, 0},
    // Fields.
    {GET11 H " folded: x\r\n\r\n", 400, NULL, 0},
    {GET11 H "A: b\r\n\tc\r\n\r\n", 400, NULL, 0},
    {GET11 " " H "\r\n", 400, NULL, 0},
    {GET11 H "Transfer-Encodin: chunked\r\n g\r\n\r\n", 400, NULL, 0},
    {GET11 H "Name : x\r\n\r\n", 400, NULL, 0},
    {POST11 H "Content-Length : 5\r\n\r\nhello", 400, NULL, 0},
    {GET11 H ": x\r\n\r\n", 400, NULL, 0},
    {GET11 H "no colon\r\n\r\n", 400, NULL, 0},
    {GET11 H "N(me: x\r\n\r\n", 400, NULL, 0},
    {GET11 H "N\xc3\xa9: x\r\n\r\n", 400, NULL, 0},
    {GET11 H "Expect: magic\r\n\r\n", 417, NULL, 0},
    // Host.
    {GET11 "\r\n", 400, NULL, 0},
    {GET11 H H "\r\n", 400, NULL, 0},
    {GET11 "Host:\r\n\r\n", 400, NULL, 0},
    {GET11 "Host: a/b\r\n\r\n", 400, NULL, 0},
    {GET11 "Host: u@a\r\n\r\n", 400, NULL, 0},
    {GET11 "Host: a b\r\n\r\n", 400, NULL, 0},
    // Length and coding.
    {POST11 H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: 5, 5\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: +5\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: -5\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: 0x5\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: 5 5\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length:\r\n\r\nhello", 400, NULL, 0},
    {POST11 H "Content-Length: 9999999999999999999\r\n\r\n", 400, NULL, 0},
    {POST11 H "Content-Length: 999999999999999999\r\n\r\n", 413, NULL, 0},
    {POST11 H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: identity\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "x", 400, NULL, 0},
    {POST11 H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
     NULL, 0},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    // Chunk framing.
    {CHUNKED "5 \r\nhello\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED " 5\r\nhello\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "5\nhello\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "5\r\nhello\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "5\r\nhello!\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "0x5\r\nhello\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "-1\r\n", 400, NULL, 0},
    {CHUNKED "\r\n", 400, NULL, 0},
    {CHUNKED "5;a\nb\r\nhello\r\n0\r\n\r\n", 400, NULL, 0},
    {CHUNKED "5\rX", 400, NULL, 0},
    {CHUNKED "000000000000000\r\n\r\n", 0, "", 0},
    {CHUNKED "0000000000000001\r\n", 400, NULL, 0},
    {CHUNKED "FFFFFFFFFFFFFFF\r\n", 413, NULL, 0},
    {CHUNKED "0\r\n folded\r\n\r\n", 400, NULL, 0},
    {CHUNKED "0\r\nGET / HTTP/1.1\r\n\r\n", 400, NULL, 0},
    {CHUNKED "0\r\nnocolon\r\n\r\n", 400, NULL, 0},
    {CHUNKED "0\r\n: x\r\n\r\n", 400, NULL, 0},
    {CHUNKED "0\r\nA: b\n\r\n", 400, NULL, 0},
};
enum { VERDICT_COUNT = sizeof verdicts / sizeof verdicts[0] };

// Feeds everything that is taken; returns what was left over.
static size_t feed_all(struct http_parser *parser, const char *bytes, size_t byte_count) {
    size_t at = 0;
    for (;;) {
        enum http_parse_state before = parser->state;
        at += http_parser_feed(parser, bytes + at, byte_count - at);
        if (parser->state == before) {
            return byte_count - at;
        }
    }
}

static void check_verdict(const struct http_parser *parser, const struct verdict *want, size_t left,
                          size_t cut) {
    if (want->status != 0) {
        ck_assert_msg(parser->state == HTTP_PARSE_STATE_ERROR &&
                          parser->error_status == want->status,
                      "cut %zu: state %d status %d for: %s", cut, (int)parser->state,
                      parser->error_status, want->message);
        ck_assert_ptr_nonnull(parser->error_message);
        return;
    }
    ck_assert_msg(parser->state == HTTP_PARSE_STATE_DONE, "cut %zu: state %d, %s, for: %s", cut,
                  (int)parser->state, parser->error_message ? parser->error_message : "-",
                  want->message);
    ck_assert_uint_eq(parser->body.bytes_used, strlen(want->body));
    if (parser->body.bytes_used > 0) {
        ck_assert_mem_eq(parser->body.data, want->body, parser->body.bytes_used);
    }
    ck_assert_uint_eq(left, want->left);
}

START_TEST(whole_message_has_its_verdict) {
    const struct verdict *want = &verdicts[_i];
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    size_t left = feed_all(&parser, want->message, strlen(want->message));
    check_verdict(&parser, want, left, 0);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(every_cut_gives_the_same_verdict) {
    const struct verdict *want = &verdicts[_i];
    size_t byte_count = strlen(want->message);
    for (size_t cut = 0; cut <= byte_count; cut++) {
        struct http_parser parser;
        http_parser_init(&parser, &limits);
        size_t left = feed_all(&parser, want->message, cut);
        left += feed_all(&parser, want->message + cut, byte_count - cut);
        check_verdict(&parser, want, left, cut);
        http_parser_deinit(&parser);
    }
}
END_TEST

START_TEST(byte_by_byte_gives_the_same_verdict) {
    const struct verdict *want = &verdicts[_i];
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    size_t left = 0;
    for (const char *at = want->message; *at != '\0'; at++) {
        left += feed_all(&parser, at, 1);
    }
    check_verdict(&parser, want, left, 1);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(nul_bytes_are_refused_everywhere_in_a_head) {
    static const char message[] = GET11 H "Name: value\r\n\r\n";
    for (size_t i = 0; i + 1 < sizeof message; i++) {
        char broken[sizeof message];
        memcpy(broken, message, sizeof message);
        broken[i] = '\0';
        struct http_parser parser;
        http_parser_init(&parser, &limits);
        feed_all(&parser, broken, sizeof message - 1);
        ck_assert_msg(parser.state == HTTP_PARSE_STATE_ERROR, "NUL at %zu", i);
        http_parser_deinit(&parser);
    }
}
END_TEST

START_TEST(spans_name_the_parts) {
    static const char message[] = "PoST /v1/a%20b?x=1&y HTTP/1.1\r\nHOST: me:80\r\n"
                                  "Connection: Keep-Alive, CLOSE\r\nX-One:  a b \r\n\r\n";
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    ck_assert(http_parser_idle(&parser));
    feed_all(&parser, message, sizeof message - 1);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_DONE);
    const struct http_request *request = &parser.request;
    ck_assert_int_eq(request->method, HTTP_METHOD_OTHER);    // methods are case-sensitive
    ck_assert(http_span_is(request->method_name, "PoST"));
    ck_assert(http_span_is(request->path, "/v1/a%20b"));
    ck_assert(http_span_is(request->query, "x=1&y"));
    ck_assert(http_span_is(request->host, "me:80"));
    ck_assert(http_span_is(http_request_field(request, "x-one"), "a b"));
    ck_assert_ptr_null(http_request_field(request, "x-two").text);
    ck_assert(!request->keep_alive);
    http_parser_reset(&parser);
    ck_assert(http_parser_idle(&parser));
    feed_all(&parser, GET11 H "\r\n", sizeof(GET11 H "\r\n") - 1);
    ck_assert(parser.request.keep_alive);
    ck_assert_uint_eq(parser.request.field_count, 1);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(head_is_announced_before_the_body) {
    static const char message[] = POST11 H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok";
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    size_t taken = http_parser_feed(&parser, message, sizeof message - 1);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_BODY);
    ck_assert_uint_eq(taken, sizeof message - 1 - 2);
    ck_assert(parser.request.expect_continue);
    ck_assert_uint_eq(parser.request.content_length, 2);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(old_version_closes_and_expects_nothing) {
    static const char message[] =
        "POST / HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n";
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    feed_all(&parser, message, sizeof message - 1);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_DONE);
    ck_assert(!parser.request.keep_alive);
    ck_assert(!parser.request.expect_continue);
    ck_assert_ptr_null(parser.request.host.text);
    http_parser_deinit(&parser);
}
END_TEST

// A head of exactly `head_bytes`.
static void feed_head_of(struct http_parser *parser, size_t head_bytes) {
    static const char start[] = GET11 H "X: ";
    feed_all(parser, start, sizeof start - 1);
    for (size_t i = sizeof start - 1; i < head_bytes - 4; i++) {
        feed_all(parser, "v", 1);
    }
    feed_all(parser, "\r\n\r\n", 4);
}

START_TEST(head_fits_its_bound_and_no_byte_more) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    feed_head_of(&parser, BOUND_HTTP_HEAD_BYTES);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_DONE);
    http_parser_reset(&parser);
    feed_head_of(&parser, BOUND_HTTP_HEAD_BYTES + 1);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_ERROR);
    ck_assert_int_eq(parser.error_status, 431);
    http_parser_deinit(&parser);
}
END_TEST

static void feed_fields(struct http_parser *parser, uint32_t field_count) {
    feed_all(parser, GET11 H, sizeof(GET11 H) - 1);
    for (uint32_t i = 1; i < field_count; i++) {
        feed_all(parser, "A: b\r\n", 6);
    }
    feed_all(parser, "\r\n", 2);
}

START_TEST(fields_fit_their_bound_and_not_one_more) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    feed_fields(&parser, BOUND_HTTP_HEADER_FIELDS);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_DONE);
    ck_assert_uint_eq(parser.request.field_count, BOUND_HTTP_HEADER_FIELDS);
    http_parser_reset(&parser);
    feed_fields(&parser, BOUND_HTTP_HEADER_FIELDS + 1);
    ck_assert_int_eq(parser.error_status, 431);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(body_fits_its_bound_and_no_byte_more) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    char head[128];
    snprintf(head, sizeof head, POST11 H "Content-Length: %zu\r\n\r\n", limits.body_bytes_max);
    feed_all(&parser, head, strlen(head));
    for (size_t i = 0; i < limits.body_bytes_max; i++) {
        ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_BODY);
        feed_all(&parser, "b", 1);
    }
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_DONE);
    http_parser_reset(&parser);
    snprintf(head, sizeof head, POST11 H "Content-Length: %zu\r\n\r\n", limits.body_bytes_max + 1);
    feed_all(&parser, head, strlen(head));
    ck_assert_int_eq(parser.error_status, 413);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(chunked_body_is_refused_before_it_passes_its_bound) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    feed_all(&parser, CHUNKED "FFF\r\n", sizeof(CHUNKED "FFF\r\n") - 1);
    for (int i = 0; i < 0xFFF; i++) {
        feed_all(&parser, "b", 1);
    }
    feed_all(&parser, "\r\n1\r\n", 5);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_BODY);    // 4096 bytes in all: the bound
    feed_all(&parser, "b\r\n1\r\n", 6);
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_ERROR);
    ck_assert_int_eq(parser.error_status, 413);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(chunk_overhead_fits_its_bound_and_no_byte_more) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    feed_all(&parser, CHUNKED "1;", sizeof(CHUNKED "1;") - 1);
    for (uint32_t i = 0; i < BOUND_HTTP_CHUNK_OVERHEAD_BYTES; i++) {
        feed_all(&parser, "e", 1);
    }
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_BODY);
    feed_all(&parser, "e", 1);
    ck_assert_int_eq(parser.error_status, 431);
    http_parser_reset(&parser);
    feed_all(&parser, CHUNKED "0\r\nA:", sizeof(CHUNKED "0\r\nA:") - 1);
    for (uint32_t i = 2; i < BOUND_HTTP_CHUNK_OVERHEAD_BYTES; i++) {
        feed_all(&parser, "t", 1);
    }
    ck_assert_int_eq(parser.state, HTTP_PARSE_STATE_BODY);
    feed_all(&parser, "t", 1);
    ck_assert_int_eq(parser.error_status, 431);
    http_parser_deinit(&parser);
}
END_TEST

START_TEST(missing_memory_is_a_refusal) {
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    memory_fail_nth(1);
    feed_all(&parser, GET11, sizeof GET11 - 1);
    memory_fail_nth(0);
    ck_assert_int_eq(parser.error_status, 503);
    http_parser_deinit(&parser);
}
END_TEST

Suite *suite_http_parse(void) {
    Suite *suite = suite_create("controller/http/http_parse");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, whole_message_has_its_verdict, 0, VERDICT_COUNT);
    tcase_add_loop_test(tc, every_cut_gives_the_same_verdict, 0, VERDICT_COUNT);
    tcase_add_loop_test(tc, byte_by_byte_gives_the_same_verdict, 0, VERDICT_COUNT);
    tcase_add_test(tc, nul_bytes_are_refused_everywhere_in_a_head);
    tcase_add_test(tc, spans_name_the_parts);
    tcase_add_test(tc, head_is_announced_before_the_body);
    tcase_add_test(tc, old_version_closes_and_expects_nothing);
    tcase_add_test(tc, head_fits_its_bound_and_no_byte_more);
    tcase_add_test(tc, fields_fit_their_bound_and_not_one_more);
    tcase_add_test(tc, body_fits_its_bound_and_no_byte_more);
    tcase_add_test(tc, chunked_body_is_refused_before_it_passes_its_bound);
    tcase_add_test(tc, chunk_overhead_fits_its_bound_and_no_byte_more);
    tcase_add_test(tc, missing_memory_is_a_refusal);
    suite_add_tcase(suite, tc);
    return suite;
}
