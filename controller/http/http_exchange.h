// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_EXCHANGE_H
#define CONTROLLER_HTTP_HTTP_EXCHANGE_H

#include "common/buf.h"
#include "controller/http/http_parse.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One request and its answer, as plain memory: the seam between sockets and the API.
//
// The idea: the API never writes to a socket. It puts bytes and a phase into the exchange, and
// touching an exchange links it into a ready list; the server sends what lies there once per loop
// turn. So all events of one tick leave in one write, and the whole API runs in tests without a
// socket.
//
//   open ──respond──► done
//   open ──stream──► streaming ──end──► done
//                        └──────break──► broken      (open may break too: close without a word)
//
//   phase     │ what holds
//   OPEN      │ nothing of the answer was said; every status is still possible
//   STREAMING │ the head is said, events follow
//   DONE      │ the answer is whole; the API must not touch the exchange any more
//   BROKEN    │ the connection closes without the end of the body, so the cut is visible
//
//   Owns       `out`. The request, its spans and body belong to the connection and live until the
//              phase is DONE or BROKEN, or the server says that the client is gone.
//   Thread     the loop thread.
//   Allocates  `out` grows up to BOUND_HTTP_RESPONSE_BYTES.
//   Fails      a full `out` breaks the exchange when it is sent.

enum http_exchange_phase {
    HTTP_EXCHANGE_PHASE_OPEN,
    HTTP_EXCHANGE_PHASE_STREAMING,
    HTTP_EXCHANGE_PHASE_DONE,
    HTTP_EXCHANGE_PHASE_BROKEN,
};

struct http_exchange;

// Exchanges with something to send, in the order they were touched.
struct http_exchange_list {
    struct http_exchange *first;
    struct http_exchange **end;    // where the next one is linked; NULL while empty
};

struct http_exchange {
    const struct http_request *request;    // NULL when the head itself was refused
    const char *body;
    size_t body_bytes;
    struct buf *body_owner;    // holds `body`; NULL: nobody who would give it away
    uint64_t arrived_us;       // when the first byte of the request was read
    void *user;                // the API's own
    uint64_t alarm_us;         // the server calls back once this moment has passed; 0 = never
    // Not 0: the server gives it back once the kernel has taken the whole answer, or its connection
    // has ended before.
    uint64_t receipt;

    enum http_exchange_phase phase;
    int status;          // of the answer; 0 while open
    struct buf out;      // raw head bytes, then payload that the server may have to frame
    size_t raw_bytes;    // prefix of `out` that goes out unframed
    bool framed;         // the payload is sent as chunks
    bool keep_alive;     // the connection may serve another request
    bool body_wanted;    // false for HEAD
    bool touched;
    struct http_exchange *next_ready;
    struct http_exchange_list *ready;    // may be NULL in tests
};

struct http_response {
    int status;
    const char *content_type;    // NULL = no body and no type
    const struct buf *fields;    // further "name: value\r\n" lines, or NULL
    const char *body;
    size_t body_bytes;
    bool close;    // end the connection after this answer
};

// Life cycle. `init` once per connection; `begin` for each request, keeping the memory of `out`.
void http_exchange_init(struct http_exchange *exchange, struct http_exchange_list *ready);
void http_exchange_deinit(struct http_exchange *exchange);
void http_exchange_begin(struct http_exchange *exchange, const struct http_request *request,
                         uint64_t arrived_us);

// A whole answer; OPEN only.
void http_exchange_respond(struct http_exchange *exchange, const struct http_response *response);

// The head of an event stream; OPEN only. `body` and `body_bytes` are ignored.
void http_exchange_stream(struct http_exchange *exchange, const struct http_response *response);
// Where to append events, STREAMING only; marks the exchange as having something to send.
struct buf *http_exchange_payload(struct http_exchange *exchange);
void http_exchange_end(struct http_exchange *exchange);      // STREAMING only
void http_exchange_break(struct http_exchange *exchange);    // OPEN or STREAMING

// Moves the body into `out`, so that it outlives the exchange (copies it where nobody owns it).
// False without memory.
bool http_exchange_take_body(struct http_exchange *exchange, struct buf *out);

// True while an answer is still owed.
bool http_exchange_live(const struct http_exchange *exchange);

// The server's side: what to send now, in order, the payload framed where the answer is chunked.
enum { HTTP_PIECES_MAX = 4 };
struct http_pieces {
    struct http_span piece[HTTP_PIECES_MAX];    // into `out` and into this struct
    uint32_t count;
    size_t byte_count;    // of all pieces
    char size_line[24];
};
void http_exchange_pieces(const struct http_exchange *exchange, struct http_pieces *out);
// Appends what is left of the pieces after `sent_bytes`; false when `out` cannot take it.
bool http_pieces_keep(const struct http_pieces *pieces, size_t sent_bytes, struct buf *out);
void http_exchange_sent(struct http_exchange *exchange);    // the pieces are taken care of

// The server's side of the ready list.
struct http_exchange *http_exchange_list_pop(struct http_exchange_list *list);
void http_exchange_list_drop(struct http_exchange_list *list, struct http_exchange *exchange);

const char *http_reason(int status);    // "Not Found"; "Unknown" for others

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110 section 5.6.7).
enum { HTTP_DATE_BYTES = 30 };
void http_date(uint64_t unix_s, char out[HTTP_DATE_BYTES]);

#endif
