// SPDX-License-Identifier: Apache-2.0
// Goal: no client behaviour holds a connection longer than its limit, and connections and bodies
// have theirs. Method: a real loop on loopback with short limits, and raw sockets.
#include "common/clock.h"
#include "tests/unit/controller/http/http_app.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(slow_reader_of_a_stream_is_dropped) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.unsent_bytes_max = 64 * 1024;
    app.config.slow_client_us = 40000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert(http_app_pump(&app, &client, "\r\n\r\n"));
    char event[4096];
    memset(event, 'e', sizeof event);
    // Fills the kernel's buffers and then more than the bound.
    for (int i = 0; i < 8192 && app.gone == 0; i++) {
        buf_append(http_exchange_payload(app.held), event, sizeof event);
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    ck_assert(http_app_pump_until(&app, &app.gone, 1));
    ck_assert_int_eq(app.gone_reason, HTTP_GONE_REASON_SLOW);
    ck_assert_uint_eq(http_server_counters(app.server)->slow_clients, 1);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(slow_head_gets_408) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.head_us = 40000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "GET / HTTP/1.1\r\n");
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "HTTP/1.1 408"));
    ck_assert_int_eq(app.refused_status, 408);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(dribbled_head_does_not_outlive_its_limit) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.head_us = 60000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    uint64_t start_us = clock_monotonic_us();
    raw_client_say(&client, "GET / HTTP/1.1\r\nX: ");
    while (app.refusals == 0 && clock_monotonic_us() - start_us < 5000000) {
        raw_client_say(&client, "y");
        uv_run(&app.loop, UV_RUN_ONCE);
    }
    ck_assert_int_eq(app.refused_status, 408);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(stalled_body_gets_408) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.body_us = 40000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "HTTP/1.1 408"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(idle_connection_is_closed_in_silence) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.idle_us = 40000;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert(client.ended);
    ck_assert_uint_eq(client.got.bytes_used, 0);
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

START_TEST(connections_over_the_limit_are_told_503) {
    struct http_app app;
    struct raw_client first, second;
    http_app_init(&app);
    app.config.connections_max = 1;
    http_app_start(&app);
    raw_client_dial(&first, &app);
    raw_client_say(&first, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none");
    ck_assert(http_app_pump(&app, &first, "one"));
    raw_client_dial(&second, &app);
    ck_assert(http_app_pump(&app, &second, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&second.got), "HTTP/1.1 503"));
    raw_client_close(&second);
    raw_client_close(&first);
    for (int i = 0; i < 1000 && http_server_counters(app.server)->open > 0; i++) {
        uv_run(&app.loop, UV_RUN_NOWAIT);
    }
    raw_client_dial(&second, &app);    // the place is free again
    raw_client_say(&second, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo");
    ck_assert(http_app_pump(&app, &second, "two"));
    raw_client_close(&second);
    http_app_stop(&app);
}
END_TEST

START_TEST(bodies_share_one_budget) {
    struct http_app app;
    struct raw_client client;
    http_app_init(&app);
    app.config.bodies_bytes_max = 4096;
    http_app_start(&app);
    raw_client_dial(&client, &app);
    char body[8192];
    memset(body, 'b', sizeof body);
    raw_client_say(&client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n");
    raw_client_send(&client, body, sizeof body);
    ck_assert(http_app_pump(&app, &client, NULL));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&client.got), "HTTP/1.1 503"));
    raw_client_close(&client);
    http_app_stop(&app);
}
END_TEST

Suite *suite_http_limits(void) {
    Suite *suite = suite_create("controller/http/http_limits");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_test(tc, slow_reader_of_a_stream_is_dropped);
    tcase_add_test(tc, slow_head_gets_408);
    tcase_add_test(tc, dribbled_head_does_not_outlive_its_limit);
    tcase_add_test(tc, stalled_body_gets_408);
    tcase_add_test(tc, idle_connection_is_closed_in_silence);
    tcase_add_test(tc, connections_over_the_limit_are_told_503);
    tcase_add_test(tc, bodies_share_one_budget);
    suite_add_tcase(suite, tc);
    return suite;
}
