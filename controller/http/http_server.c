// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_server.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/http/http_address.h"
#include "controller/http/http_connection.h"
#include <stdio.h>
#include <sys/stat.h>

enum {
    LISTEN_BACKLOG = 1024,
    TURNED_AWAY_MAX = 256,    // over the limit and told so; further ones are closed in silence
    TCP_KEEPALIVE_S = 60,
};

static struct connection *connection_of(struct http_exchange *exchange) {
    char *at = (char *)exchange - offsetof(struct connection, exchange);
    return (struct connection *)(void *)at;
}

// ---- closing -----------------------------------------------------------------------------------

static void on_handle_closed(uv_handle_t *handle);

// The loop's handles go after the last connection; the callback may destroy the server.
static void maybe_closed(struct http_server *server) {
    if (!server->closing || server->closed || server->connection_count > 0) {
        return;
    }
    if (!uv_is_closing((uv_handle_t *)&server->prepare)) {
        uv_close((uv_handle_t *)&server->prepare, on_handle_closed);
        uv_close((uv_handle_t *)&server->timer, on_handle_closed);
        uv_close((uv_handle_t *)&server->again, on_handle_closed);
    }
    if (server->handles_open == 0) {
        server->closed = true;
        if (server->closed_fn != NULL) {
            server->closed_fn(server->closed_ctx);
        }
    }
}

static void on_handle_closed(uv_handle_t *handle) {
    struct http_server *server = handle->data;
    server->handles_open--;
    maybe_closed(server);
}

void http_server_connection_closed(struct http_server *server) {
    if (server->connection_count == 0) {
        uv_timer_stop(&server->timer);
    }
    maybe_closed(server);
}

// ---- turns -------------------------------------------------------------------------------------

void http_server_flush(struct http_server *server) {
    struct http_exchange *exchange;
    while ((exchange = http_exchange_list_pop(&server->ready)) != NULL) {
        http_connection_flush(connection_of(exchange));
    }
}

static void on_again(uv_idle_t *handle) {
    (void)handle;    // the loop looks at its sockets and comes back
}

static void on_prepare(uv_prepare_t *handle) {
    struct http_server *server = handle->data;
    http_server_flush(server);
    server->turn_requests = 0;
    bool more = server->waiting_first != NULL && !server->paused;
    while (server->waiting_first != NULL && !server->paused &&
           server->turn_requests < server->config.turn_requests_max) {
        http_connection_resume(server->waiting_first);
    }
    if (!more) {
        uv_idle_stop(&server->again);
        return;
    }
    http_server_flush(server);
    uv_idle_start(&server->again, on_again);    // what was handed over now has a turn at once
}

void http_server_pause(struct http_server *server, bool paused) {
    server->paused = paused;
}

static void on_tick(uv_timer_t *timer) {
    struct http_server *server = timer->data;
    uint64_t now_us = clock_monotonic_us();
    bool late = server->closing && now_us >= server->close_deadline_us;
    // Closing only marks: memory goes in on_connection_closed, so `next` stays valid.
    for (struct connection *at = server->connections; at != NULL; at = at->next) {
        if (late) {
            http_connection_gone(at, HTTP_GONE_REASON_CLOSING, now_us);
        } else {
            http_connection_tick(at, now_us);
        }
    }
}
// ---- accepting ---------------------------------------------------------------------------------

static void on_connection(uv_stream_t *listener, int status) {
    struct http_server *server = listener->data;
    if (status < 0) {
        return;
    }
    bool is_pipe = listener->type == UV_NAMED_PIPE;
    struct connection *connection = http_connection_create(server, is_pipe);
    if (connection == NULL) {
        return;    // no memory; libuv keeps the peer in the backlog
    }
    uint64_t now_us = clock_monotonic_us();
    connection->since_us = now_us;
    connection->sent_us = now_us;
    if (!uv_is_active((uv_handle_t *)&server->timer)) {
        uv_timer_start(&server->timer, on_tick, server->tick_ms, server->tick_ms);
    }
    if (uv_accept(listener, &connection->io.stream) != 0) {
        http_connection_close(connection);
        return;
    }
    server->counters.accepted++;
    if (!is_pipe) {
        // Neither can fail in a way that matters: the connection works without them.
        (void)uv_tcp_nodelay(&connection->io.tcp, 1);
        (void)uv_tcp_keepalive(&connection->io.tcp, 1, TCP_KEEPALIVE_S);
    }
    if (!connection->counted) {
        server->counters.turned_away++;
        if (server->turned_away_count > TURNED_AWAY_MAX) {
            http_connection_close(connection);
            return;
        }
    }
    if (!http_connection_start(connection)) {
        http_connection_close(connection);
    } else if (!connection->counted) {
        http_connection_refuse(connection, 503, "Too many connections are open.", now_us);
    }
}

// ---- life cycle --------------------------------------------------------------------------------

enum status http_server_create(struct uv_loop_s *loop, const struct http_server_config *config,
                               struct http_server **out, struct error *err) {
    struct http_server *server = memory_zalloc(sizeof *server);
    if (server == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the HTTP server");
    }
    server->loop = loop;
    server->config = *config;
    server->tick_ms = http_server_tick_ms(config);
    if (uv_prepare_init(loop, &server->prepare) != 0 || uv_timer_init(loop, &server->timer) != 0 ||
        uv_idle_init(loop, &server->again) != 0) {
        memory_free(server);
        return error_set(err, STATUS_IO, "the event loop refuses new handles");
    }
    server->prepare.data = server;
    server->timer.data = server;
    server->again.data = server;
    server->handles_open = 3;
    uv_prepare_start(&server->prepare, on_prepare);
    *out = server;
    return STATUS_OK;
}

// What nobody closed is closed here: libuv gives handles back only from its loop.
void http_server_destroy(struct http_server *server) {
    if (server == NULL) {
        return;
    }
    if (!server->closing) {
        http_server_close(server, 0, NULL, NULL);
    }
    server->closed_fn = NULL;
    for (struct connection *at = server->connections; at != NULL; at = at->next) {
        http_connection_gone(at, HTTP_GONE_REASON_CLOSING, clock_monotonic_us());
    }
    while (!server->closed) {
        uv_run(server->loop, UV_RUN_ONCE);
    }
    memory_free(server);
}

// Listens on a bound handle (`rc` 0). One that failed stays in its slot until it is closed.
static enum status start_listening(struct http_server *server, int rc, const char *where,
                                   const char *option, struct error *err) {
    union stream *listener = &server->listeners[server->listener_count++];
    if (rc == 0) {
        rc = uv_listen(&listener->stream, LISTEN_BACKLOG, on_connection);
    }
    if (rc == 0) {
        return STATUS_OK;
    }
    uv_close(&listener->handle, on_handle_closed);
    return http_address_failed(where, option, -rc, err);    // libuv's codes are errno, negated
}

static enum status take_listener(struct http_server *server, union stream **out,
                                 struct error *err) {
    *out = &server->listeners[server->listener_count % HTTP_LISTENERS_MAX];
    return server->listener_count < HTTP_LISTENERS_MAX && !server->closing
               ? STATUS_OK
               : error_set(err, STATUS_EXHAUSTED, "at most %d listening addresses",
                           HTTP_LISTENERS_MAX);
}

enum status http_server_listen_tcp(struct http_server *server, const char *host, uint16_t port,
                                   struct error *err) {
    struct http_address address;
    TRY(http_address_parse(host, port, &address, err));
    union stream *listener = NULL;
    TRY(take_listener(server, &listener, err));
    char where[128];
    snprintf(where, sizeof where, "%s port %u", host, (unsigned)port);
    int rc = uv_tcp_init(server->loop, &listener->tcp);
    if (rc != 0) {
        return http_address_failed(where, "port", -rc, err);
    }
    listener->handle.data = server;
    server->handles_open++;
    rc = uv_tcp_bind(&listener->tcp, (const struct sockaddr *)&address.storage, 0);
    TRY(start_listening(server, rc, where, "port", err));
    int address_bytes = sizeof address.storage;
    rc = uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)&address.storage, &address_bytes);
    server->port = rc == 0 ? http_address_port(&address) : port;
    return STATUS_OK;
}

enum status http_server_listen_unix(struct http_server *server, const char *path,
                                    struct error *err) {
    union stream *listener = NULL;
    TRY(http_address_check_unix(path, err));
    TRY(take_listener(server, &listener, err));
    http_address_clear_unix(path);
    int rc = uv_pipe_init(server->loop, &listener->pipe, 0);
    if (rc != 0) {
        return http_address_failed(path, "uds", -rc, err);
    }
    listener->handle.data = server;
    server->handles_open++;
    rc = uv_pipe_bind(&listener->pipe, path);
    // Before it listens, so nobody comes in first.
    if (rc == 0 && chmod(path, 0600) != 0) {
        rc = uv_translate_sys_error(error_errno());
    }
    return start_listening(server, rc, path, "uds", err);
}

uint16_t http_server_port(const struct http_server *server) {
    return server->port;
}

const struct http_server_counters *http_server_counters(const struct http_server *server) {
    return &server->counters;
}

void http_server_close(struct http_server *server, uint64_t grace_us, http_server_closed_fn closed,
                       void *ctx) {
    INVARIANT(!server->closing);
    server->closing = true;
    server->closed_fn = closed;
    server->closed_ctx = ctx;
    for (uint32_t i = 0; i < server->listener_count; i++) {
        if (!uv_is_closing(&server->listeners[i].handle)) {
            uv_close(&server->listeners[i].handle, on_handle_closed);
        }
    }
    http_server_flush(server);
    for (struct connection *at = server->connections; at != NULL; at = at->next) {
        at->exchange.keep_alive = false;
        if (at->state == CONNECTION_STATE_READING) {
            http_connection_close(at);
        }
    }
    server->close_deadline_us = clock_monotonic_us() + grace_us;
    maybe_closed(server);
}
