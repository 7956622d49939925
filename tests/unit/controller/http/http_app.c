// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/http/http_app.h"

#include "common/clock.h"
#include "common/memory.h"
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- a small application -----------------------------------------------------------------------

void http_app_answer(struct http_exchange *exchange, int status, const char *body,
                     size_t byte_count) {
    struct http_response response = {
        .status = status, .content_type = "text/plain", .body = body, .body_bytes = byte_count};
    http_exchange_respond(exchange, &response);
}

static void on_head(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)now_us;
    struct http_app *app = ctx;
    app->heads++;
    if (http_span_is(exchange->request->path, "/early")) {
        http_app_answer(exchange, 401, "no", 2);
    }
}

static void on_request(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    struct http_app *app = ctx;
    app->requests++;
    struct http_span path = exchange->request->path;
    if (http_span_is(path, "/hold")) {
        app->held = exchange;
    } else if (http_span_is(path, "/alarm")) {
        exchange->alarm_us = now_us + 20000;
    } else if (http_span_is(path, "/stream")) {
        struct http_response response = {.status = 200, .content_type = "text/event-stream"};
        http_exchange_stream(exchange, &response);
        app->held = exchange;
    } else if (http_span_is(path, "/big")) {
        size_t byte_count = 8u << 20;
        char *body = memory_alloc(byte_count);
        memset(body, 'z', byte_count);
        http_app_answer(exchange, 200, body, byte_count);
        memory_free(body);
    } else {
        http_app_answer(exchange, 200, exchange->body, exchange->body_bytes);
    }
}

static void on_refused(void *ctx, struct http_exchange *exchange, int status, const char *message,
                       uint64_t now_us) {
    (void)now_us;
    struct http_app *app = ctx;
    app->refusals++;
    app->refused_status = status;
    http_app_answer(exchange, status, message, strlen(message));
}

static void on_gone(void *ctx, struct http_exchange *exchange, enum http_gone_reason reason,
                    uint64_t now_us) {
    (void)now_us;
    struct http_app *app = ctx;
    app->gone++;
    app->gone_reason = reason;
    ck_assert(!http_exchange_live(exchange));
    if (exchange == app->held) {
        app->held = NULL;
    }
}

static void on_alarm(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)now_us;
    struct http_app *app = ctx;
    app->alarms++;
    http_app_answer(exchange, 200, "rang", 4);
}

static void on_receipt(void *ctx, uint64_t receipt) {
    struct http_app *app = ctx;
    app->receipt = receipt;
}

void http_app_on_closed(void *ctx) {
    struct http_app *app = ctx;
    app->closed = true;
}

void http_app_init(struct http_app *app) {
    memset(app, 0, sizeof *app);
    ck_assert_int_eq(uv_loop_init(&app->loop), 0);
    http_server_defaults(&app->config);
    app->config.handler =
        (struct http_handler){app, on_head, on_request, on_refused, on_gone, on_alarm, on_receipt};
}

void http_app_start(struct http_app *app) {
    struct error err = {0};
    ck_assert_int_eq(http_server_create(&app->loop, &app->config, &app->server, &err), STATUS_OK);
    ck_assert_msg(http_server_listen_tcp(app->server, "127.0.0.1", 0, &err) == STATUS_OK, "%s",
                  err.message);
    ck_assert_uint_ne(http_server_port(app->server), 0);
}

void http_app_stop(struct http_app *app) {
    http_server_close(app->server, 20000, http_app_on_closed, app);
    for (int i = 0; i < 1000000 && !app->closed; i++) {
        uv_run(&app->loop, UV_RUN_NOWAIT);
    }
    ck_assert(app->closed);
    http_server_destroy(app->server);
    uv_run(&app->loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(uv_loop_close(&app->loop), 0);
}

// ---- a raw client ------------------------------------------------------------------------------

void raw_client_dial(struct raw_client *client, struct http_app *app) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(app->server))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memset(client, 0, sizeof *client);
    buf_init(&client->got, 64u << 20);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(client->fd, 0);
    ck_assert_int_eq(connect(client->fd, (struct sockaddr *)&address, sizeof address), 0);
}

void raw_client_close(struct raw_client *client) {
    if (client->fd >= 0) {
        close(client->fd);
    }
    buf_deinit(&client->got);
}

void raw_client_send(struct raw_client *client, const char *bytes, size_t byte_count) {
    ck_assert_int_eq(send(client->fd, bytes, byte_count, MSG_NOSIGNAL), (ssize_t)byte_count);
}

void raw_client_say(struct raw_client *client, const char *text) {
    raw_client_send(client, text, strlen(text));
}

void raw_client_take(struct raw_client *client) {
    char chunk[65536];
    ssize_t n = recv(client->fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (n > 0) {
        buf_append(&client->got, chunk, (size_t)n);
    } else if (n == 0) {
        client->ended = true;
    } else if (errno != EAGAIN) {
        client->reset = true;
    }
}

bool http_app_pump(struct http_app *app, struct raw_client *client, const char *text) {
    uint64_t start_us = clock_monotonic_us();
    while (clock_monotonic_us() - start_us < 5000000) {
        uv_run(&app->loop, UV_RUN_NOWAIT);
        struct pollfd wait = {.fd = client->fd, .events = POLLIN};
        poll(&wait, 1, 1);
        raw_client_take(client);
        if (text != NULL && strstr(buf_cstr(&client->got), text) != NULL) {
            return true;
        }
        if (client->ended || client->reset) {
            return text == NULL;
        }
    }
    return false;
}

bool http_app_pump_until(struct http_app *app, const int *counter, int value) {
    uint64_t start_us = clock_monotonic_us();
    while (*counter < value && clock_monotonic_us() - start_us < 5000000) {
        uv_run(&app->loop, UV_RUN_ONCE);
    }
    return *counter >= value;
}
