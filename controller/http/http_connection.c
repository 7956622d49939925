// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_connection.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/memory.h"

enum {
    LINGER_BYTES_MAX = 1024 * 1024,
    MEMORY_KEPT_BYTES = 64 * 1024,
};

static void connection_consume(struct connection *connection, const char *bytes, size_t byte_count,
                               uint64_t now_us);

// ---- closing -----------------------------------------------------------------------------------

static void on_connection_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    struct http_server *server = connection->server;
    http_exchange_list_drop(&server->ready, &connection->exchange);
    http_parser_deinit(&connection->parser);
    http_exchange_deinit(&connection->exchange);
    buf_deinit(&connection->ahead);
    buf_deinit(&connection->sending);
    if (connection->prev != NULL) {
        connection->prev->next = connection->next;
    } else {
        server->connections = connection->next;
    }
    if (connection->next != NULL) {
        connection->next->prev = connection->prev;
    }
    server->connection_count--;
    memory_free(connection);
    http_server_connection_closed(server);
}

static void give_place_back(struct connection *connection) {
    struct http_server *server = connection->server;
    if (connection->counted) {
        server->counters.open--;
    } else {
        server->turned_away_count--;
    }
    server->bodies_bytes -= connection->body_counted_bytes;
    connection->body_counted_bytes = 0;
}

// ---- waiting for a turn ------------------------------------------------------------------------

static bool turn_is_full(const struct http_server *server) {
    return server->paused || server->turn_requests >= server->config.turn_requests_max;
}

// The kernel keeps what comes now, and its window closes.
static void wait_for_turn(struct connection *connection) {
    struct http_server *server = connection->server;
    uv_read_stop(&connection->io.stream);
    server->counters.deferred++;
    connection->waits = true;
    connection->next_waiting = NULL;
    connection->prev_waiting = server->waiting_last;
    if (server->waiting_last != NULL) {
        server->waiting_last->next_waiting = connection;
    } else {
        server->waiting_first = connection;
    }
    server->waiting_last = connection;
}

static void stop_waiting(struct connection *connection) {
    struct http_server *server = connection->server;
    connection->waits = false;
    if (connection->prev_waiting != NULL) {
        connection->prev_waiting->next_waiting = connection->next_waiting;
    } else {
        server->waiting_first = connection->next_waiting;
    }
    if (connection->next_waiting != NULL) {
        connection->next_waiting->prev_waiting = connection->prev_waiting;
    } else {
        server->waiting_last = connection->prev_waiting;
    }
}

static void consume_ahead(struct connection *connection, uint64_t now_us) {
    struct buf ahead = connection->ahead;
    buf_init(&connection->ahead, connection->server->config.readahead_bytes_max);
    connection_consume(connection, (const char *)ahead.data, ahead.bytes_used, now_us);
    buf_deinit(&ahead);
}

void http_connection_resume(struct connection *connection) {
    stop_waiting(connection);
    if (!http_connection_start(connection)) {
        http_connection_close(connection);
        return;
    }
    consume_ahead(connection, clock_monotonic_us());
}

static void give_receipt(struct connection *connection) {
    const struct http_handler *handler = &connection->server->config.handler;
    uint64_t receipt = connection->exchange.receipt;
    if (receipt != 0) {
        connection->exchange.receipt = 0;
        handler->on_receipt(handler->ctx, receipt);
    }
}

void http_connection_close(struct connection *connection) {
    if (connection->state == CONNECTION_STATE_CLOSED) {
        return;
    }
    INVARIANT(connection->state != CONNECTION_STATE_ANSWERING ||
              !http_exchange_live(&connection->exchange));
    connection->state = CONNECTION_STATE_CLOSED;
    give_receipt(connection);
    if (connection->waits) {
        stop_waiting(connection);
    }
    give_place_back(connection);
    uv_close(&connection->io.handle, on_connection_closed);
}

void http_connection_gone(struct connection *connection, enum http_gone_reason reason,
                          uint64_t now_us) {
    struct http_server *server = connection->server;
    bool told = connection->state == CONNECTION_STATE_ANSWERING &&
                http_exchange_live(&connection->exchange);
    if (told) {
        // First the phase, so that whatever the handler does now cannot touch the exchange.
        connection->exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
        server->counters.client_gone += reason == HTTP_GONE_REASON_CLIENT ? 1 : 0;
        server->counters.slow_clients += reason == HTTP_GONE_REASON_SLOW ? 1 : 0;
        server->config.handler.on_gone(server->config.handler.ctx, &connection->exchange, reason,
                                       now_us);
    } else if (http_exchange_live(&connection->exchange)) {
        connection->exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    }
    http_connection_close(connection);
}

static void on_shutdown(uv_shutdown_t *request, int status) {
    struct connection *connection = request->data;
    if (status < 0) {
        http_connection_close(connection);
    }
}

// Our side is finished. Bytes that the client still sends would make the kernel answer with a
// reset, which can destroy the answer before it is read; so they are read and dropped for a while.
static void connection_linger(struct connection *connection, uint64_t now_us) {
    if (connection->peer_closed) {
        http_connection_close(connection);
        return;
    }
    connection->state = CONNECTION_STATE_LINGERING;
    connection->since_us = now_us;
    connection->shutdown.data = connection;
    if (uv_shutdown(&connection->shutdown, &connection->io.stream, on_shutdown) != 0) {
        http_connection_close(connection);
    }
}

// ---- sending -----------------------------------------------------------------------------------

static void on_written(uv_write_t *request, int status) {
    struct connection *connection = request->data;
    connection->write_busy = false;
    if (connection->sending.bytes_allocated > MEMORY_KEPT_BYTES) {
        buf_deinit(&connection->sending);
        buf_init(&connection->sending, BOUND_HTTP_RESPONSE_BYTES + MEMORY_KEPT_BYTES);
    }
    buf_reset(&connection->sending);
    if (connection->state == CONNECTION_STATE_CLOSED) {
        return;
    }
    uint64_t now_us = clock_monotonic_us();
    if (status < 0) {
        http_connection_gone(connection, HTTP_GONE_REASON_CLIENT, now_us);
        return;
    }
    connection->sent_us = now_us;
    http_exchange_list_drop(&connection->server->ready, &connection->exchange);
    http_connection_flush(connection);
}

// Gives `connection->sending` from `start` on to libuv.
static void start_write(struct connection *connection, size_t start) {
    struct buf *sending = &connection->sending;
    uv_buf_t piece =
        uv_buf_init((char *)sending->data + start, (unsigned int)(sending->bytes_used - start));
    connection->write.data = connection;
    connection->write_busy = true;
    connection->sent_us = clock_monotonic_us();
    int rc = uv_write(&connection->write, &connection->io.stream, &piece, 1, on_written);
    if (rc != 0) {
        connection->write_busy = false;
        http_connection_gone(connection, HTTP_GONE_REASON_CLIENT, clock_monotonic_us());
    }
}

// Tries to send everything in `out` with one call; libuv gets the rest. False when the connection
// did not survive it.
static bool send_out(struct connection *connection) {
    struct http_exchange *exchange = &connection->exchange;
    struct http_pieces pieces;
    http_exchange_pieces(exchange, &pieces);
    if (pieces.count == 0) {
        return true;
    }
    uv_buf_t buffers[HTTP_PIECES_MAX];
    for (uint32_t i = 0; i < pieces.count; i++) {
        // libuv takes a mutable pointer and only reads.
        buffers[i] = uv_buf_init((char *)(uintptr_t)pieces.piece[i].text,
                                 (unsigned int)pieces.piece[i].byte_count);
    }
    int sent = uv_try_write(&connection->io.stream, buffers, pieces.count);
    if (sent < 0 && sent != UV_EAGAIN) {
        http_connection_gone(connection, HTTP_GONE_REASON_CLIENT, clock_monotonic_us());
        return false;
    }
    size_t sent_bytes = sent > 0 ? (size_t)sent : 0;
    connection->server->counters.bytes_sent += pieces.byte_count;
    bool rest = sent_bytes < pieces.byte_count;
    bool swap = pieces.count == 1 && pieces.piece[0].text == (const char *)exchange->out.data;
    if (rest && swap) {
        struct buf spare = connection->sending;    // a large answer is not copied
        connection->sending = exchange->out;
        exchange->out = spare;
    } else if (rest && !http_pieces_keep(&pieces, sent_bytes, &connection->sending)) {
        http_connection_gone(connection, HTTP_GONE_REASON_SLOW, clock_monotonic_us());
        return false;
    }
    http_exchange_sent(exchange);
    if (rest) {
        start_write(connection, swap ? sent_bytes : 0);
    }
    return connection->state != CONNECTION_STATE_CLOSED;
}

// The answer is whole and sent: on to the next request, or to the end.
static void connection_finish(struct connection *connection) {
    struct http_server *server = connection->server;
    uint64_t now_us = clock_monotonic_us();
    give_receipt(connection);
    bool more = connection->exchange.keep_alive && !connection->peer_closed && !server->closing;
    if (!more) {
        connection_linger(connection, now_us);
        return;
    }
    http_parser_reset(&connection->parser);
    server->bodies_bytes -= connection->body_counted_bytes;
    connection->body_counted_bytes = 0;
    connection->begun = false;
    connection->state = CONNECTION_STATE_READING;
    connection->since_us = now_us;
    if (connection->ahead.bytes_used > 0 && turn_is_full(server)) {
        wait_for_turn(connection);
    } else if (connection->ahead.bytes_used > 0) {
        consume_ahead(connection, now_us);
    }
}

void http_connection_flush(struct connection *connection) {
    struct http_exchange *exchange = &connection->exchange;
    if (connection->state == CONNECTION_STATE_CLOSED ||
        connection->state == CONNECTION_STATE_LINGERING) {
        return;
    }
    if (buf_status(&exchange->out) != STATUS_OK) {
        // An answer that did not fit its buffer must not look whole.
        http_connection_gone(connection, HTTP_GONE_REASON_SLOW, clock_monotonic_us());
        return;
    }
    if (connection->write_busy || !send_out(connection)) {
        return;
    }
    bool over = connection->begun && !http_exchange_live(exchange);
    if (over && connection->write_busy) {
        connection->state = CONNECTION_STATE_FLUSHING;
    } else if (over) {
        connection_finish(connection);
    }
}

// ---- reading -----------------------------------------------------------------------------------

void http_connection_refuse(struct connection *connection, int status, const char *message,
                            uint64_t now_us) {
    struct http_server *server = connection->server;
    if (!connection->begun) {
        http_exchange_begin(&connection->exchange, NULL, connection->since_us);
        connection->begun = true;
    }
    if (!http_exchange_live(&connection->exchange)) {
        return;    // already answered, on its head
    }
    server->counters.refused++;
    connection->exchange.keep_alive = false;
    connection->state = CONNECTION_STATE_ANSWERING;
    server->config.handler.on_refused(server->config.handler.ctx, &connection->exchange, status,
                                      message, now_us);
    INVARIANT(!http_exchange_live(&connection->exchange));
}

// The head is complete. True when its body should be read.
static bool head_arrived(struct connection *connection, size_t bytes_behind, uint64_t now_us) {
    struct http_server *server = connection->server;
    struct http_exchange *exchange = &connection->exchange;
    const struct http_request *request = &connection->parser.request;
    bool has_body = request->chunked || request->content_length > 0;
    http_exchange_begin(exchange, request, connection->since_us);
    connection->begun = true;
    connection->since_us = now_us;
    // An answer before the body leaves the body unread, so the connection cannot go on.
    bool keep_alive = exchange->keep_alive && !server->closing;
    exchange->keep_alive = keep_alive && !has_body;
    bool whole = !request->chunked && bytes_behind >= request->content_length;
    if (!whole) {
        server->config.handler.on_head(server->config.handler.ctx, exchange, now_us);
    }
    if (!http_exchange_live(exchange)) {
        connection->state = CONNECTION_STATE_ANSWERING;
        return false;
    }
    exchange->keep_alive = keep_alive;
    if (request->expect_continue && has_body && bytes_behind == 0) {
        // Lost when the socket is full, which a client that waits for this line cannot cause.
        char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        uv_buf_t line = uv_buf_init(text, sizeof text - 1);
        (void)uv_try_write(&connection->io.stream, &line, 1);
    }
    return true;
}

static void request_arrived(struct connection *connection, uint64_t now_us) {
    struct http_server *server = connection->server;
    struct http_exchange *exchange = &connection->exchange;
    exchange->body = (const char *)connection->parser.body.data;
    exchange->body_bytes = connection->parser.body.bytes_used;
    exchange->body_owner = &connection->parser.body;
    connection->state = CONNECTION_STATE_ANSWERING;
    server->turn_requests++;
    server->config.handler.on_request(server->config.handler.ctx, exchange, now_us);
}

// Bodies under way share one budget, so that many connections cannot fill the memory together.
static bool count_body(struct connection *connection, uint64_t now_us) {
    struct http_server *server = connection->server;
    uint64_t held = connection->parser.body.bytes_allocated;
    server->bodies_bytes += held - connection->body_counted_bytes;
    connection->body_counted_bytes = held;
    if (server->bodies_bytes > server->config.bodies_bytes_max) {
        http_connection_refuse(connection, 503, "Too many request bodies are under way.", now_us);
        return false;
    }
    return true;
}

// Bytes behind a request whose answer is still owed.
static void keep_ahead(struct connection *connection, const char *bytes, size_t byte_count,
                       uint64_t now_us) {
    if (!connection->exchange.keep_alive) {
        return;    // nothing after this answer will be served
    }
    buf_append(&connection->ahead, bytes, byte_count);
    if (buf_status(&connection->ahead) != STATUS_OK) {
        http_connection_gone(connection, HTTP_GONE_REASON_READAHEAD, now_us);
    }
}

// Feeds the parser until a request is whole, refused or out of bytes; keeps the rest for later.
static void connection_consume(struct connection *connection, const char *bytes, size_t byte_count,
                               uint64_t now_us) {
    struct http_parser *parser = &connection->parser;
    size_t at = 0;
    if (http_parser_idle(parser)) {
        connection->since_us = now_us;
    }
    for (;;) {
        enum http_parse_state before = parser->state;
        at += http_parser_feed(parser, bytes + at, byte_count - at);
        if (parser->state == HTTP_PARSE_STATE_ERROR) {
            http_connection_refuse(connection, parser->error_status, parser->error_message, now_us);
            return;
        }
        if (parser->state == HTTP_PARSE_STATE_BODY && !connection->begun) {
            if (!head_arrived(connection, byte_count - at, now_us)) {
                break;
            }
            continue;
        }
        if (parser->state == HTTP_PARSE_STATE_BODY) {
            connection->since_us = now_us;
            if (!count_body(connection, now_us)) {
                return;
            }
        }
        if (parser->state == HTTP_PARSE_STATE_DONE) {
            request_arrived(connection, now_us);
            break;
        }
        if (parser->state == before) {
            return;
        }
    }
    keep_ahead(connection, bytes + at, byte_count - at, now_us);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)suggested;
    struct connection *connection = handle->data;
    *buffer = uv_buf_init(connection->server->read_buffer, HTTP_READ_BYTES);
}

static void on_end(struct connection *connection, ssize_t code, uint64_t now_us) {
    bool whole = connection->begun && !http_exchange_live(&connection->exchange);
    connection->peer_closed = true;
    if (code == UV_EOF && whole && connection->state != CONNECTION_STATE_LINGERING) {
        return;    // the answer is ready: it is sent, then the connection closes
    }
    http_connection_gone(connection, HTTP_GONE_REASON_CLIENT, now_us);
}

static void on_read(uv_stream_t *stream, ssize_t byte_count, const uv_buf_t *buffer) {
    struct connection *connection = stream->data;
    if (byte_count == 0 || connection->state == CONNECTION_STATE_CLOSED) {
        return;
    }
    uint64_t now_us = clock_monotonic_us();
    if (byte_count < 0) {
        on_end(connection, byte_count, now_us);
        return;
    }
    connection->server->counters.bytes_received += (uint64_t)byte_count;
    switch (connection->state) {
    case CONNECTION_STATE_READING:
        if (turn_is_full(connection->server) &&
            (size_t)byte_count <= connection->server->config.readahead_bytes_max) {
            buf_append(&connection->ahead, buffer->base, (size_t)byte_count);
            wait_for_turn(connection);
        } else {
            connection_consume(connection, buffer->base, (size_t)byte_count, now_us);
        }
        break;
    case CONNECTION_STATE_ANSWERING:
    case CONNECTION_STATE_FLUSHING:
        keep_ahead(connection, buffer->base, (size_t)byte_count, now_us);
        break;
    case CONNECTION_STATE_LINGERING:
        connection->discarded_bytes += (size_t)byte_count;
        if (connection->discarded_bytes > LINGER_BYTES_MAX) {
            http_connection_close(connection);
        }
        break;
    case CONNECTION_STATE_CLOSED:
        break;
    }
}

bool http_connection_start(struct connection *connection) {
    return uv_read_start(&connection->io.stream, on_alloc, on_read) == 0;
}

// ---- time --------------------------------------------------------------------------------------

static bool past(uint64_t now_us, uint64_t since_us, uint64_t limit_us) {
    return now_us >= since_us && now_us - since_us >= limit_us;
}

static void check_sending(struct connection *connection, uint64_t now_us) {
    const struct http_server_config *config = &connection->server->config;
    size_t queued = uv_stream_get_write_queue_size(&connection->io.stream);
    if (queued < connection->queue_bytes || queued == 0) {
        connection->sent_us = now_us;
    }
    connection->queue_bytes = queued;
    bool live = http_exchange_live(&connection->exchange);
    if (live && queued + connection->exchange.out.bytes_used > config->unsent_bytes_max) {
        if (connection->slow_since_us == 0) {
            connection->slow_since_us = now_us;
        } else if (past(now_us, connection->slow_since_us, config->slow_client_us)) {
            http_connection_gone(connection, HTTP_GONE_REASON_SLOW, now_us);
        }
        return;
    }
    connection->slow_since_us = 0;
    if (!live && past(now_us, connection->sent_us, config->body_us)) {
        connection->server->counters.timeouts++;
        http_connection_gone(connection, HTTP_GONE_REASON_SLOW, now_us);
    }
}

static void check_reading(struct connection *connection, uint64_t now_us) {
    const struct http_server_config *config = &connection->server->config;
    if (http_parser_idle(&connection->parser)) {
        if (past(now_us, connection->since_us, config->idle_us)) {
            http_connection_close(connection);
        }
        return;
    }
    bool in_head = connection->parser.state == HTTP_PARSE_STATE_HEAD;
    if (past(now_us, connection->since_us, in_head ? config->head_us : config->body_us)) {
        connection->server->counters.timeouts++;
        http_connection_refuse(connection, 408,
                               in_head ? "The request head did not arrive in time."
                                       : "The request body stopped arriving.",
                               now_us);
    }
}

void http_connection_tick(struct connection *connection, uint64_t now_us) {
    struct http_server *server = connection->server;
    struct http_exchange *exchange = &connection->exchange;
    switch (connection->state) {
    case CONNECTION_STATE_READING:
        if (!connection->waits) {
            check_reading(connection, now_us);
        }
        break;
    case CONNECTION_STATE_ANSWERING:
        if (http_exchange_live(exchange) && exchange->alarm_us != 0 &&
            now_us >= exchange->alarm_us) {
            exchange->alarm_us = 0;
            server->config.handler.on_alarm(server->config.handler.ctx, exchange, now_us);
        }
        check_sending(connection, now_us);
        break;
    case CONNECTION_STATE_FLUSHING:
        check_sending(connection, now_us);
        break;
    case CONNECTION_STATE_LINGERING:
        if (past(now_us, connection->since_us, server->config.linger_us)) {
            http_connection_close(connection);
        }
        break;
    case CONNECTION_STATE_CLOSED:
        break;
    }
}

// ---- life cycle --------------------------------------------------------------------------------

struct connection *http_connection_create(struct http_server *server, bool is_pipe) {
    struct connection *connection = memory_zalloc(sizeof *connection);
    if (connection == NULL) {
        return NULL;
    }
    connection->server = server;
    int rc = is_pipe ? uv_pipe_init(server->loop, &connection->io.pipe, 0)
                     : uv_tcp_init(server->loop, &connection->io.tcp);
    if (rc != 0) {
        memory_free(connection);
        return NULL;
    }
    connection->io.handle.data = connection;
    http_parser_init(&connection->parser, &server->config.limits);
    http_exchange_init(&connection->exchange, &server->ready);
    buf_init(&connection->ahead, server->config.readahead_bytes_max);
    buf_init(&connection->sending, BOUND_HTTP_RESPONSE_BYTES + MEMORY_KEPT_BYTES);
    connection->next = server->connections;
    if (server->connections != NULL) {
        server->connections->prev = connection;
    }
    server->connections = connection;
    server->connection_count++;
    connection->counted = server->counters.open < server->config.connections_max;
    if (connection->counted) {
        server->counters.open++;
    } else {
        server->turned_away_count++;
    }
    return connection;
}
