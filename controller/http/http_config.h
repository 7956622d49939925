// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_CONFIG_H
#define CONTROLLER_HTTP_HTTP_CONFIG_H

#include "controller/http/http_exchange.h"
#include "controller/http/http_parse.h"
#include <stddef.h>
#include <stdint.h>

// What an HTTP server is told: who answers, and how much and how long anything may take.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum http_gone_reason {
    HTTP_GONE_REASON_CLIENT,       // end of file, half-close, reset or write error
    HTTP_GONE_REASON_SLOW,         // it does not read its stream
    HTTP_GONE_REASON_READAHEAD,    // it sent too much while its answer was open
    HTTP_GONE_REASON_CLOSING,      // http_server_close ran out of patience
};

// What the server asks of the API. Every function may complete the exchange before it returns.
struct http_handler {
    void *ctx;
    // The head is here, the body is not, or not all of it: refuse now and it will not be read. A
    // request that is here at once goes to on_request alone.
    void (*on_head)(void *ctx, struct http_exchange *exchange, uint64_t now_us);
    // The whole request is here; the exchange is the handler's until DONE, BROKEN or on_gone.
    void (*on_request)(void *ctx, struct http_exchange *exchange, uint64_t now_us);
    // The transport refuses the request; the handler must answer with this status.
    void (*on_refused)(void *ctx, struct http_exchange *exchange, int status, const char *message,
                       uint64_t now_us);
    // The client is gone. Only for exchanges that are live; they must not be touched afterwards.
    void (*on_gone)(void *ctx, struct http_exchange *exchange, enum http_gone_reason reason,
                    uint64_t now_us);
    // `alarm_us` of a live exchange has passed; it is 0 again.
    void (*on_alarm)(void *ctx, struct http_exchange *exchange, uint64_t now_us);
    // The `receipt` of an answer that is over. NULL where none is ever asked for.
    void (*on_receipt)(void *ctx, uint64_t receipt);
};

// Bounds and times; http_server_defaults fills in those of common/bounds.h.
struct http_server_config {
    struct http_handler handler;
    struct http_limits limits;
    uint32_t connections_max;
    uint32_t turn_requests_max;    // handed over between two sleeps of the loop; the rest waits
    size_t readahead_bytes_max;
    size_t unsent_bytes_max;
    uint64_t bodies_bytes_max;
    uint64_t idle_us;
    uint64_t head_us;
    uint64_t body_us;    // progress of a body, and of an answer that is being sent
    uint64_t slow_client_us;
    uint64_t linger_us;
};
void http_server_defaults(struct http_server_config *config);

// How often the limits are looked at: a quarter of the shortest, so that none is missed by much.
uint64_t http_server_tick_ms(const struct http_server_config *config);

#endif
