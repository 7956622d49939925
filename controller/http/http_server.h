// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_SERVER_H
#define CONTROLLER_HTTP_HTTP_SERVER_H

#include "common/status.h"
#include "controller/http/http_config.h"
#include "controller/http/http_exchange.h"
#include <stdint.h>

// Connections: bytes between sockets and exchanges, on one libuv loop. This file accepts and ends
// them and looks at the clock; http_connection is one of them.
//
// The idea: a connection works on one exchange at a time. Reading stops only where a turn has had
// enough requests, so a client that leaves is noticed at once, in every state that costs anything;
// what it sends ahead waits in a small buffer. Answers
// are sent once per loop turn (before the loop sleeps, or at http_server_flush), so one turn costs
// one write per connection. One coarse timer walks all connections and enforces every time limit.
//
//   reading ──whole request──► answering ──done, all sent──► reading      (keep-alive)
//      │ broken, slow, too big     │  client left                └──► lingering ──► closed
//      └──────► flushing ◄─────────┘ done, not all sent
//
//   state     │ what holds
//   READING   │ no answer is owed, or the head was refused early
//   ANSWERING │ the handler has the exchange and it is live
//   FLUSHING  │ the answer is whole or broken; bytes are still unsent
//   LINGERING │ our side is shut; what still comes is discarded, so that the kernel does not
//             │ destroy the answer with a reset
//   CLOSED    │ the handle is being closed; the memory goes with its callback
//
//   Owns       sockets, connections and their exchanges.
//   Thread     the loop thread.
//   Allocates  per connection; never per event.
//   Fails      create and listen: IO with the address named. A connection's failure ends only it.

struct uv_loop_s;
struct http_server;

// Keeps `loop`, which must outlive it. Copies `config`.
enum status http_server_create(struct uv_loop_s *loop, const struct http_server_config *config,
                               struct http_server **out, struct error *err) MUST_USE;
// After the closed callback, or in it. Before it: closes everything at once and runs the loop until
// libuv has let go, so not from inside the loop then. NULL is fine.
void http_server_destroy(struct http_server *server);

// `host` is a numeric address or "localhost"; port 0 takes a free one. May be called repeatedly.
enum status http_server_listen_tcp(struct http_server *server, const char *host, uint16_t port,
                                   struct error *err) MUST_USE;
// A socket file that nobody answers on is replaced; mode 0600.
enum status http_server_listen_unix(struct http_server *server, const char *path,
                                    struct error *err) MUST_USE;
uint16_t http_server_port(const struct http_server *server);    // of the last tcp listen

// Sends what lies in touched exchanges now instead of before the loop sleeps.
void http_server_flush(struct http_server *server);

// While paused no request is handed over: what comes stays in the kernel, which slows the senders.
// Answers go on.
void http_server_pause(struct http_server *server, bool paused);

// Stops listening, closes idle connections, lets answers that are owed finish for `grace_us`, then
// closes the rest (on_gone is called for live ones) and calls `closed` from the loop.
typedef void (*http_server_closed_fn)(void *ctx);
void http_server_close(struct http_server *server, uint64_t grace_us, http_server_closed_fn closed,
                       void *ctx);

struct http_server_counters {
    uint64_t deferred;    // requests that waited for the next turn
    uint64_t accepted, turned_away, refused, client_gone, slow_clients, timeouts;
    uint64_t bytes_received, bytes_sent;
    uint32_t open;    // a gauge
};
const struct http_server_counters *http_server_counters(const struct http_server *server);

#endif
