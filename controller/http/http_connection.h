// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_CONNECTION_H
#define CONTROLLER_HTTP_HTTP_CONNECTION_H

#include "controller/http/http_server.h"
#include <uv.h>

// One connection of the server, between its socket and its exchange. For http_server.c only, which
// accepts connections, walks them on its timer and owns the loop's other handles.
//
// The idea and the states are those of http_server.h. Whatever ends a connection passes
// http_connection_gone or, when no answer is owed, http_connection_close; memory goes in libuv's
// close callback, so a walk over the list stays valid.
//
//   Owns       see http_server.h.
//   Thread     the loop thread.
//   Allocates  create; `ahead` and `sending` grow within their bounds.
//   Fails      create: NULL without memory or handles.

enum {
    HTTP_LISTENERS_MAX = 8,
    HTTP_READ_BYTES = 64 * 1024,
};

enum connection_state {
    CONNECTION_STATE_READING,
    CONNECTION_STATE_ANSWERING,
    CONNECTION_STATE_FLUSHING,
    CONNECTION_STATE_LINGERING,
    CONNECTION_STATE_CLOSED,
};

union stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct connection {
    union stream io;    // its `data` is the connection
    struct http_server *server;
    struct connection *prev, *next;
    enum connection_state state;
    struct http_parser parser;
    struct http_exchange exchange;
    bool begun;          // the exchange of the message being read has begun
    bool counted;        // holds one of the connections_max places
    bool peer_closed;    // its side is shut: finish what is whole, then close
    struct buf ahead;    // bytes that came while an answer was open, or a turn was full
    bool waits;          // for the next turn, with `ahead`; it is not read meanwhile
    struct connection *prev_waiting, *next_waiting;
    struct buf sending;    // bytes libuv is writing
    bool write_busy;
    uv_write_t write;
    uv_shutdown_t shutdown;
    uint64_t since_us;         // of the state's clock: last activity, first byte of a head, linger
    uint64_t sent_us;          // last time bytes left
    uint64_t slow_since_us;    // 0 = keeps up
    size_t queue_bytes;        // at the last tick
    size_t discarded_bytes;
    uint64_t body_counted_bytes;
};

struct http_server {
    uv_loop_t *loop;
    struct http_server_config config;
    union stream listeners[HTTP_LISTENERS_MAX];
    uint32_t listener_count;
    uint16_t port;
    uv_prepare_t prepare;
    uv_timer_t timer;
    uint64_t tick_ms;
    uint32_t handles_open;    // listeners, prepare, timer, again
    struct connection *connections;
    uint32_t connection_count;    // all, counted or not
    uint32_t turned_away_count;
    struct http_exchange_list ready;
    uint64_t bodies_bytes;
    uint32_t turn_requests;    // handed over since the loop slept
    bool paused;
    struct connection *waiting_first, *waiting_last;
    uv_idle_t again;    // runs while some wait and may be served: the loop then does not sleep
    struct http_server_counters counters;
    bool closing;
    bool closed;
    uint64_t close_deadline_us;
    http_server_closed_fn closed_fn;
    void *closed_ctx;
    char read_buffer[HTTP_READ_BYTES];
};

// Linked into the server's list, with one of its places or as one that is turned away.
struct connection *http_connection_create(struct http_server *server, bool is_pipe);
// False when libuv refuses.
bool http_connection_start(struct connection *connection);
// Answers on the transport's behalf; no request is served after it.
void http_connection_refuse(struct connection *connection, int status, const char *message,
                            uint64_t now_us);
// Sends what its exchange holds; goes on to the next request or the end once that is all.
void http_connection_flush(struct connection *connection);
// Enforces its limits of time.
void http_connection_tick(struct connection *connection, uint64_t now_us);
// The peer is gone or must go: the handler hears of it if it still owes an answer.
void http_connection_gone(struct connection *connection, enum http_gone_reason reason,
                          uint64_t now_us);
void http_connection_close(struct connection *connection);
// Goes on with what it waits with.
void http_connection_resume(struct connection *connection);

// The server's part of the end of a connection (http_server.c).
void http_server_connection_closed(struct http_server *server);

#endif
