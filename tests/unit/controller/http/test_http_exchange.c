// SPDX-License-Identifier: Apache-2.0
// Goal: the bytes of an answer are exact and a cut answer never looks whole. Method: drive one
// exchange by hand and collect what the server would send.
#include "common/buf.h"
#include "controller/http/http_exchange.h"
#include "tests/unit/suites.h"

#include <string.h>

static struct http_request get11 = {
    .method = HTTP_METHOD_GET, .version_minor = 1, .keep_alive = true};
static struct http_request get10 = {.method = HTTP_METHOD_GET, .version_minor = 0};
static struct http_request head11 = {
    .method = HTTP_METHOD_HEAD, .version_minor = 1, .keep_alive = true};

static void collect(struct http_exchange *exchange, struct buf *sent) {
    struct http_pieces pieces;
    http_exchange_pieces(exchange, &pieces);
    size_t total = 0;
    for (uint32_t i = 0; i < pieces.count; i++) {
        buf_append(sent, pieces.piece[i].text, pieces.piece[i].byte_count);
        total += pieces.piece[i].byte_count;
    }
    ck_assert_uint_eq(total, pieces.byte_count);
    http_exchange_sent(exchange);
}

START_TEST(whole_answer_has_length_and_fields) {
    struct http_exchange exchange;
    struct buf sent, fields;
    buf_init(&sent, 4096);
    buf_init(&fields, 4096);
    buf_append_str(&fields, "x-request-id: r1\r\n");
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &get11, 1);
    struct http_response response = {.status = 404,
                                     .content_type = "application/json",
                                     .fields = &fields,
                                     .body = "{}",
                                     .body_bytes = 2};
    http_exchange_respond(&exchange, &response);
    ck_assert(!http_exchange_live(&exchange));
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent), "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n"
                                      "x-request-id: r1\r\ncontent-length: 2\r\n\r\n{}");
    // HEAD: the same head, no body.
    buf_reset(&sent);
    http_exchange_begin(&exchange, &head11, 1);
    response.close = true;
    http_exchange_respond(&exchange, &response);
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent),
                     "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n"
                     "x-request-id: r1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n");
    ck_assert(!exchange.keep_alive);
    buf_deinit(&sent);
    buf_deinit(&fields);
    http_exchange_deinit(&exchange);
}
END_TEST

START_TEST(stream_is_chunked_and_ended_once) {
    struct http_exchange exchange;
    struct buf sent;
    buf_init(&sent, 4096);
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &get11, 1);
    struct http_response response = {.status = 200, .content_type = "text/event-stream"};
    http_exchange_stream(&exchange, &response);
    buf_append_str(http_exchange_payload(&exchange), "data: a\n\n");
    buf_append_str(http_exchange_payload(&exchange), "data: b\n\n");
    collect(&exchange, &sent);
    collect(&exchange, &sent);    // nothing new: no empty chunk, which would end the body
    ck_assert_str_eq(buf_cstr(&sent), "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                                      "transfer-encoding: chunked\r\n\r\n"
                                      "12\r\ndata: a\n\ndata: b\n\n\r\n");
    buf_reset(&sent);
    buf_append_str(http_exchange_payload(&exchange), "end");
    http_exchange_end(&exchange);
    collect(&exchange, &sent);
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent), "3\r\nend\r\n0\r\n\r\n");
    buf_deinit(&sent);
    http_exchange_deinit(&exchange);
}
END_TEST

START_TEST(end_without_payload_is_the_last_chunk_alone) {
    struct http_exchange exchange;
    struct buf sent;
    buf_init(&sent, 4096);
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &get11, 1);
    struct http_response response = {.status = 200};
    http_exchange_stream(&exchange, &response);
    collect(&exchange, &sent);
    buf_reset(&sent);
    http_exchange_end(&exchange);
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent), "0\r\n\r\n");
    buf_deinit(&sent);
    http_exchange_deinit(&exchange);
}
END_TEST

START_TEST(broken_stream_has_no_last_chunk) {
    struct http_exchange exchange;
    struct buf sent;
    buf_init(&sent, 4096);
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &get11, 1);
    struct http_response response = {.status = 200};
    http_exchange_stream(&exchange, &response);
    buf_append_str(http_exchange_payload(&exchange), "half");
    http_exchange_break(&exchange);
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent),
                     "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    ck_assert(!exchange.keep_alive);
    buf_deinit(&sent);
    http_exchange_deinit(&exchange);
}
END_TEST

START_TEST(old_version_streams_until_close) {
    struct http_exchange exchange;
    struct buf sent;
    buf_init(&sent, 4096);
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &get10, 1);
    struct http_response response = {.status = 200};
    http_exchange_stream(&exchange, &response);
    buf_append_str(http_exchange_payload(&exchange), "x");
    http_exchange_end(&exchange);
    collect(&exchange, &sent);
    ck_assert_str_eq(buf_cstr(&sent), "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nx");
    buf_deinit(&sent);
    http_exchange_deinit(&exchange);
}
END_TEST

START_TEST(ready_list_keeps_order_and_forgets_dropped_ones) {
    struct http_exchange_list list = {0};
    struct http_exchange exchange[3];
    struct http_response response = {.status = 200};
    for (int i = 0; i < 3; i++) {
        http_exchange_init(&exchange[i], &list);
        http_exchange_begin(&exchange[i], &get11, 1);
        http_exchange_stream(&exchange[i], &response);
        http_exchange_payload(&exchange[i]);    // twice touched is once listed
    }
    http_exchange_list_drop(&list, &exchange[2]);
    http_exchange_payload(&exchange[2]);    // the end of the list still links
    http_exchange_list_drop(&list, &exchange[0]);
    ck_assert_ptr_eq(http_exchange_list_pop(&list), &exchange[1]);
    ck_assert_ptr_eq(http_exchange_list_pop(&list), &exchange[2]);
    ck_assert_ptr_null(http_exchange_list_pop(&list));
    http_exchange_payload(&exchange[0]);
    ck_assert_ptr_eq(http_exchange_list_pop(&list), &exchange[0]);
    for (int i = 0; i < 3; i++) {
        http_exchange_deinit(&exchange[i]);
    }
}
END_TEST

START_TEST(dates_match_known_days) {
    static const struct {
        uint64_t unix_s;
        const char *text;
    } days[] = {
        {0, "Thu, 01 Jan 1970 00:00:00 GMT"},
        {784111777, "Sun, 06 Nov 1994 08:49:37 GMT"},
        {951782399, "Mon, 28 Feb 2000 23:59:59 GMT"},
        {951782400, "Tue, 29 Feb 2000 00:00:00 GMT"},
        {951868800, "Wed, 01 Mar 2000 00:00:00 GMT"},
        {1735689599, "Tue, 31 Dec 2024 23:59:59 GMT"},
        {1735689600, "Wed, 01 Jan 2025 00:00:00 GMT"},
        {4107542400, "Mon, 01 Mar 2100 00:00:00 GMT"},
    };
    for (size_t i = 0; i < sizeof days / sizeof days[0]; i++) {
        char text[HTTP_DATE_BYTES];
        http_date(days[i].unix_s, text);
        ck_assert_str_eq(text, days[i].text);
    }
}
END_TEST

Suite *suite_http_exchange(void) {
    Suite *suite = suite_create("controller/http/http_exchange");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, whole_answer_has_length_and_fields);
    tcase_add_test(tc, stream_is_chunked_and_ended_once);
    tcase_add_test(tc, end_without_payload_is_the_last_chunk_alone);
    tcase_add_test(tc, broken_stream_has_no_last_chunk);
    tcase_add_test(tc, old_version_streams_until_close);
    tcase_add_test(tc, ready_list_keeps_order_and_forgets_dropped_ones);
    tcase_add_test(tc, dates_match_known_days);
    suite_add_tcase(suite, tc);
    return suite;
}
