// SPDX-License-Identifier: Apache-2.0
// Goal: bytes on a socket become exchanges and back, whatever a client does. Method: a real loop on
// loopback, and raw sockets.
#include "common/clock.h"
#include "common/memory.h"
#include "tests/unit/controller/http/http_app.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

START_TEST(keep_alive_serves_one_request_after_another) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\none"));
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\ntwo"));
    raw_client_say(&client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert(client.ended);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "connection: close"));
    ck_assert_int_eq(app.requests, 3);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(pipelined_requests_are_answered_in_order) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    char all[8192] = "";
    size_t used = 0;
    for (int i = 0; i < 50; i++) {
        used += (size_t)snprintf(all + used, sizeof all - used,
                                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nn%02d", i);
    }
    raw_client_send(&client, all, used);
    ck_assert(http_app_pump(&app, &client, "n49"));
    const char *at = buf_cstr(&client.got);
    for (int i = 0; i < 50; i++) {
        char want[24];
        snprintf(want, sizeof want, "\r\n\r\nn%02d", i);
        at = strstr(at, want);
        ck_assert_msg(at != NULL, "answer %d is missing or out of order", i);
    }
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

// Of all that lies in the sockets a turn takes as many as it may; everybody is answered in the end.
START_TEST(a_turn_takes_no_more_requests_than_it_may) {
    enum { MANY = 9, MOST = 2 };
    struct http_app app;
    struct raw_client clients[MANY];
    http_app_init(&app);
    app.config.turn_requests_max = MOST;
    http_app_start(&app);
    for (int i = 0; i < MANY; i++) {
        raw_client_dial(&clients[i], &app);
        raw_client_say(&clients[i], "GET /one HTTP/1.1\r\nHost: a\r\n\r\n"
                                    "GET /two HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    int before = 0, turns = 0;
    uint64_t start_us = clock_monotonic_us();
    while (app.requests < 2 * MANY && clock_monotonic_us() - start_us < 5000000) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
        ck_assert_int_le(app.requests - before, 2 * MOST);    // a run may see the end of a turn too
        turns += app.requests > before ? 1 : 0;
        before = app.requests;
    }
    ck_assert_int_eq(app.requests, 2 * MANY);
    ck_assert_int_ge(turns, MANY / MOST);
    ck_assert_uint_gt(http_server_counters(app.server)->deferred, 0);
    for (int i = 0; i < MANY; i++) {
        raw_client_close(&clients[i]);
    }
    http_app_stop(&app);
}
END_TEST

START_TEST(a_paused_server_takes_nothing_and_then_all) {
    struct http_app app;
    struct raw_client client, other, gone;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "text/event-stream"));
    http_server_pause(app.server, true);
    raw_client_dial(&other, &app);
    raw_client_dial(&gone, &app);
    raw_client_say(&gone, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    raw_client_say(&other, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
    while (http_server_counters(app.server)->deferred < 2) {
        uv_run(&app.loop, UV_RUN_ONCE);
    }
    raw_client_say(&other, "half");
    // Answers go on meanwhile.
    buf_append_str(http_exchange_payload(app.held), "data: x\n\n");
    ck_assert(http_app_pump(&app, &client, "data: x"));
    ck_assert_int_eq(app.requests, 1);
    raw_client_close(&gone);
    http_server_pause(app.server, false);
    ck_assert(http_app_pump(&app, &other, "halfhalf"));
    raw_client_close(&client);
    raw_client_close(&other);
    http_app_stop(&app);
}
END_TEST

START_TEST(answers_wait_for_the_open_one_before_them) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"
                            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo");
    ck_assert(http_app_pump_until(&app, &app.requests, 1));
    for (int i = 0; i < 20; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(app.requests, 1);
    http_app_answer(app.held, 200, "one", 3);
    ck_assert(http_app_pump(&app, &client, "two"));
    ck_assert(strstr(buf_cstr(&client.got), "one") < strstr(buf_cstr(&client.got), "two"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(too_much_readahead_ends_the_connection) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.readahead_bytes_max = 1000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump_until(&app, &app.requests, 1));
    char junk[1001];
    memset(junk, 'x', sizeof junk);
    raw_client_send(&client, junk, 1000);
    for (int i = 0; i < 20; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(app.gone, 0);    // the bound itself is fine
    raw_client_send(&client, junk, 1);
    ck_assert(http_app_pump_until(&app, &app.gone, 1));
    ck_assert_int_eq(app.gone_reason, HTTP_GONE_REASON_READAHEAD);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(early_answer_leaves_the_body_unread_and_closes) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "401 Unauthorized"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "connection: close"));
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert_int_eq(app.requests, 0);
    raw_client_close(&client);
    // Without a body nothing is left unread, and the connection goes on.
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /early HTTP/1.1\r\nHost: a\r\n\r\n"
                            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\nok"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(expectation_is_met_before_the_body) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                            "Content-Length: 2\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "HTTP/1.1 100 Continue\r\n\r\n"));
    raw_client_say(&client, "ok");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\nok"));
    raw_client_close(&client);
    // Refused on its head: the final status comes instead of the interim one.
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST /early HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                            "Content-Length: 2\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "401"));
    ck_assert_ptr_null(strstr(buf_cstr(&client.got), "100 Continue"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(broken_head_is_answered_and_nothing_behind_it_is_read) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client,
                   "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n"
                   "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert(client.ended);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "HTTP/1.1 400"));
    ck_assert_int_eq(app.requests, 0);
    ck_assert_int_eq(app.refusals, 1);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(large_body_is_refused_and_the_answer_survives) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.limits.body_bytes_max = 100;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n");
    char junk[65536];
    memset(junk, 'x', sizeof junk);
    raw_client_send(&client, junk,
                    sizeof junk);    // it keeps sending; no reset may kill the answer
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert(client.ended);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "HTTP/1.1 413"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(client_that_leaves_is_noticed_while_its_answer_is_open) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    for (int way = 0; way < 3; way++) {
        raw_client_dial(&client, &app);
        raw_client_say(&client, way == 2 ? "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
                                         : "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
        ck_assert(http_app_pump_until(&app, &app.requests, way + 1));
        if (way == 0) {
            shutdown(client.fd, SHUT_WR);    // half-closed counts as closed
        } else if (way == 1) {
            struct linger hard = {1, 0};
            setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            close(client.fd);
            client.fd = -1;
        } else {
            close(client.fd);
            client.fd = -1;
        }
        ck_assert(http_app_pump_until(&app, &app.gone, way + 1));
        ck_assert_int_eq(app.gone_reason, HTTP_GONE_REASON_CLIENT);
        ck_assert_ptr_null(app.held);
        raw_client_close(&client);
    }
    http_app_stop(&app);
}
END_TEST

START_TEST(half_close_behind_a_request_that_is_answered_at_once_still_gets_the_answer) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    shutdown(client.fd, SHUT_WR);
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "\r\n\r\nok"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(events_of_one_turn_leave_in_one_write) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\n"));
    buf_reset(&client.got);
    buf_append_str(http_exchange_payload(app.held), "data: 1\n\n");
    buf_append_str(http_exchange_payload(app.held), "data: 2\n\n");
    http_server_flush(app.server);
    ck_assert(http_app_pump(&app, &client, "data: 2"));
    ck_assert_str_eq(buf_cstr(&client.got), "12\r\ndata: 1\n\ndata: 2\n\n\r\n");
    buf_reset(&client.got);
    http_exchange_end(app.held);
    ck_assert(http_app_pump(&app, &client, "0\r\n\r\n"));
    // The connection goes on after an ended stream.
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\nok"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(broken_stream_ends_without_its_last_chunk) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\n"));
    buf_append_str(http_exchange_payload(app.held), "data: error\n\n");
    http_exchange_break(app.held);
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert(client.ended);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "data: error\n\n\r\n"));
    ck_assert_ptr_null(strstr(buf_cstr(&client.got), "0\r\n\r\n"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(large_answers_arrive_whole_through_a_full_socket) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n"
                            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nend");
    for (int i = 0; i < 50; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);    // the socket is full before the first byte is read
    }
    while (client.got.bytes_used < (8u << 20)) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
        raw_client_take(&client);
        ck_assert(!client.ended && !client.reset);
    }
    ck_assert(http_app_pump(&app, &client, "end"));
    const char *body = strstr(buf_cstr(&client.got), "\r\n\r\n") + 4;
    ck_assert_uint_eq(strspn(body, "z"), 8u << 20);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(a_receipt_comes_back_when_the_kernel_has_it_all) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "text/event-stream"));
    app.held->receipt = 7;
    char *bytes = memory_alloc(8u << 20);
    memset(bytes, 'z', 8u << 20);
    buf_append(http_exchange_payload(app.held), bytes, 8u << 20);
    memory_free(bytes);
    http_exchange_end(app.held);
    for (int i = 0; i < 50; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
        ck_assert_uint_eq(app.receipt, 0);    // the socket is full
    }
    ck_assert(http_app_pump(&app, &client, "\r\n0\r\n\r\n"));
    ck_assert_uint_eq(app.receipt, 7);
    // One that was not asked for does not come.
    app.receipt = 0;
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nend");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\nend"));
    ck_assert_uint_eq(app.receipt, 0);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(a_receipt_comes_back_when_the_client_leaves_with_the_end_unsent) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump_until(&app, &app.requests, 1));
    app.held->receipt = 9;
    char *bytes = memory_alloc(8u << 20);
    memset(bytes, 'z', 8u << 20);
    http_app_answer(app.held, 200, bytes, 8u << 20);
    memory_free(bytes);
    for (int i = 0; i < 50; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_eq(app.receipt, 0);
    raw_client_close(&client);
    while (app.receipt == 0) {
        uv_run(&app.loop, UV_RUN_ONCE);
    }
    ck_assert_uint_eq(app.receipt, 9);
    ck_assert_int_eq(app.gone, 0);    // its answer was whole
    http_app_stop(&app);
}
END_TEST

START_TEST(alarms_ring) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /alarm HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "rang"));
    ck_assert_int_eq(app.alarms, 1);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(closing_finishes_open_answers_and_cuts_late_ones) {
    struct http_app app;
    struct raw_client open_client, late_client, idle_client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&open_client, &app);
    raw_client_say(&open_client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump_until(&app, &app.requests, 1));
    struct http_exchange *first = app.held;
    raw_client_dial(&late_client, &app);
    raw_client_say(&late_client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump_until(&app, &app.requests, 2));
    raw_client_dial(&idle_client, &app);
    for (int i = 0; i < 1000 && http_server_counters(app.server)->open < 3; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    http_server_close(app.server, 100000, http_app_on_closed, &app);
    http_app_answer(first, 200, "fine", 4);
    ck_assert(http_app_pump(&app, &open_client, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&open_client.got), "fine"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&open_client.got), "connection: close"));
    ck_assert(http_app_pump(&app, &idle_client, NULL));
    ck_assert(http_app_pump_until(&app, &app.gone, 1));
    ck_assert_int_eq(app.gone_reason, HTTP_GONE_REASON_CLOSING);
    for (int i = 0; i < 1000000 && !app.closed; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    ck_assert(app.closed);
    http_server_destroy(app.server);
    ck_assert_int_eq(uv_loop_close(&app.loop), 0);
    raw_client_close(&open_client);
    raw_client_close(&late_client);
    raw_client_close(&idle_client);
}
END_TEST

// A start-up that fails later destroys a server that was never closed.
START_TEST(destroying_an_open_server_closes_it_and_tells_who_waits) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump_until(&app, &app.requests, 1));
    http_server_destroy(app.server);
    ck_assert_int_eq(app.gone, 1);
    ck_assert_int_eq(app.gone_reason, HTTP_GONE_REASON_CLOSING);
    ck_assert_int_eq(uv_loop_close(&app.loop), 0);
    raw_client_close(&client);

    struct error err = {0};
    http_app_init(&app);
    ck_assert_int_eq(http_server_create(&app.loop, &app.config, &app.server, &err), STATUS_OK);
    ck_assert_int_eq(http_server_listen_unix(app.server, "/no/such/folder/x.sock", &err),
                     STATUS_IO);
    http_server_destroy(app.server);
    ck_assert_int_eq(uv_loop_close(&app.loop), 0);
}
END_TEST

START_TEST(addresses_that_cannot_be_listened_on_are_named) {
    struct http_app app;
    http_app_init(&app);
    http_app_start(&app);
    struct error err = {0};
    ck_assert_int_eq(http_server_listen_tcp(app.server, "no.such.host", 0, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "no.such.host"));
    error_reset(&err);
    uint16_t port = http_server_port(app.server);
    ck_assert_int_eq(http_server_listen_tcp(app.server, "127.0.0.1", port, &err), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.hint, "--port"));
    error_reset(&err);
    ck_assert_int_eq(http_server_listen_unix(app.server, "/no/such/folder/x.sock", &err),
                     STATUS_IO);
    char path[110] = "/tmp/";
    memset(path + 5, 'x', 103);    // 108 bytes, one too many
    ck_assert_int_eq(http_server_listen_unix(app.server, path, NULL), STATUS_INVALID);
    ck_assert_int_eq(http_server_listen_unix(app.server, "", NULL), STATUS_INVALID);
    http_app_stop(&app);
}
END_TEST

START_TEST(unix_socket_serves_and_replaces_a_stale_file) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    http_app_start(&app);
    char path[64];
    snprintf(path, sizeof path, "/tmp/tare-test-%d.sock", (int)getpid());
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(path);
    ck_assert_int_eq(bind(stale, (struct sockaddr *)&address, sizeof address), 0);
    close(stale);
    struct error err = {0};
    ck_assert_msg(http_server_listen_unix(app.server, path, &err) == STATUS_OK, "%s", err.message);
    struct stat file;
    ck_assert_int_eq(stat(path, &file), 0);
    ck_assert_uint_eq(file.st_mode & 07777, 0600);
    // A file that answers belongs to somebody.
    ck_assert_int_eq(http_server_listen_unix(app.server, path, &err), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.hint, "--uds"));
    memset(&client, 0, sizeof client);
    buf_init(&client.got, 1 << 20);
    client.fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(client.fd, (struct sockaddr *)&address, sizeof address), 0);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    ck_assert(http_app_pump(&app, &client, "ok"));
    raw_client_close(&client);
    http_app_stop(&app);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

Suite *suite_http_server(void) {
    Suite *suite = suite_create("controller/http/http_server");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_test(tc, keep_alive_serves_one_request_after_another);
    tcase_add_test(tc, pipelined_requests_are_answered_in_order);
    tcase_add_test(tc, answers_wait_for_the_open_one_before_them);
    tcase_add_test(tc, a_turn_takes_no_more_requests_than_it_may);
    tcase_add_test(tc, a_paused_server_takes_nothing_and_then_all);
    tcase_add_test(tc, too_much_readahead_ends_the_connection);
    tcase_add_test(tc, early_answer_leaves_the_body_unread_and_closes);
    tcase_add_test(tc, expectation_is_met_before_the_body);
    tcase_add_test(tc, broken_head_is_answered_and_nothing_behind_it_is_read);
    tcase_add_test(tc, large_body_is_refused_and_the_answer_survives);
    tcase_add_test(tc, client_that_leaves_is_noticed_while_its_answer_is_open);
    tcase_add_test(tc, half_close_behind_a_request_that_is_answered_at_once_still_gets_the_answer);
    tcase_add_test(tc, events_of_one_turn_leave_in_one_write);
    tcase_add_test(tc, broken_stream_ends_without_its_last_chunk);
    tcase_add_test(tc, large_answers_arrive_whole_through_a_full_socket);
    tcase_add_test(tc, a_receipt_comes_back_when_the_kernel_has_it_all);
    tcase_add_test(tc, a_receipt_comes_back_when_the_client_leaves_with_the_end_unsent);
    tcase_add_test(tc, alarms_ring);
    tcase_add_test(tc, closing_finishes_open_answers_and_cuts_late_ones);
    tcase_add_test(tc, destroying_an_open_server_closes_it_and_tells_who_waits);
    tcase_add_test(tc, addresses_that_cannot_be_listened_on_are_named);
    tcase_add_test(tc, unix_socket_serves_and_replaces_a_stale_file);
    suite_add_tcase(suite, tc);
    return suite;
}
