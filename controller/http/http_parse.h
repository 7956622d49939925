// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_PARSE_H
#define CONTROLLER_HTTP_HTTP_PARSE_H

#include "common/bounds.h"
#include "common/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// HTTP/1.1 requests from bytes: pure, incremental, bounded, and strict about everything that lets
// two parsers disagree where a message ends.
//
// The idea: bytes are scanned once as they come, for the end of the head and for bytes that no head
// may contain, so a broken head is refused at its first bad byte and not at a timeout. The complete
// head is then cut into spans in one pass. How the bytes were split over feeds never matters.
//
// Refused, beyond the grammar of RFC 9112: bare CR or LF, control bytes, folded lines, blanks
// before a colon, Content-Length together with Transfer-Encoding, differing lengths, any coding but
// one final "chunked", a missing or doubled Host, blanks and lone LF in chunk framing.
//
//   head ──► body ──► done        error is reachable from head and body and is final
//
//   state │ set by              │ what holds
//   HEAD  │ init, reset         │ `request` is not valid
//   BODY  │ the end of a head   │ `request` is valid; feed returns here once, before the body
//   DONE  │ the end of the body │ `request` and `body` are valid until reset
//   ERROR │ the first violation │ `error_status` and `error_message` are set
//
//   Owns       the bytes of head and body; every span points into them, until reset or deinit.
//   Thread     one at a time.
//   Allocates  up to the limits; memory is kept for the next message when it is small.
//   Fails      state ERROR with the HTTP status to answer; the connection must then be closed.

enum http_method {
    HTTP_METHOD_GET,
    HTTP_METHOD_HEAD,
    HTTP_METHOD_POST,
    HTTP_METHOD_PUT,
    HTTP_METHOD_DELETE,
    HTTP_METHOD_PATCH,
    HTTP_METHOD_OPTIONS,
    HTTP_METHOD_OTHER,
};

struct http_span {
    const char *text;    // not terminated; NULL when the part is absent
    size_t byte_count;
};

struct http_field {
    struct http_span name;
    struct http_span value;    // without the blanks around it
};

struct http_request {
    enum http_method method;
    struct http_span method_name;
    struct http_span path;     // "/v1/models", as sent, still percent-encoded; "*" for OPTIONS *
    struct http_span query;    // after '?', without it; absent or possibly empty
    struct http_span host;     // absent only in HTTP/1.0
    uint32_t version_minor;    // 0 or 1
    bool keep_alive;
    bool expect_continue;
    bool chunked;
    uint64_t content_length;    // 0 when absent or chunked
    uint32_t field_count;
    struct http_field fields[BOUND_HTTP_HEADER_FIELDS];
};

struct http_limits {
    size_t head_bytes_max;
    uint32_t field_count_max;    // <= BOUND_HTTP_HEADER_FIELDS
    size_t body_bytes_max;
};

enum http_parse_state {
    HTTP_PARSE_STATE_HEAD,
    HTTP_PARSE_STATE_BODY,
    HTTP_PARSE_STATE_DONE,
    HTTP_PARSE_STATE_ERROR,
};

// Where inside a chunked body the next byte falls.
enum http_chunk_place {
    HTTP_CHUNK_PLACE_SIZE,
    HTTP_CHUNK_PLACE_EXTENSION,
    HTTP_CHUNK_PLACE_SIZE_LF,
    HTTP_CHUNK_PLACE_DATA,
    HTTP_CHUNK_PLACE_DATA_CR,
    HTTP_CHUNK_PLACE_DATA_LF,
    HTTP_CHUNK_PLACE_TRAILER,
};

struct http_parser {
    struct http_limits limits;
    enum http_parse_state state;
    int error_status;             // 400, 413, 417, 431, 503, 505
    const char *error_message;    // static sentence
    struct http_request request;
    struct buf body;

    // The rest is the parser's own.
    struct buf head;
    uint32_t line_bytes;    // of the line being scanned, without its CR
    bool after_cr;
    bool line_seen;    // a line that is not empty was completed
    bool blank_seen;
    bool colon_seen;       // in the current trailer line
    uint64_t body_left;    // bytes of the body, or of the chunk, still to come
    enum http_chunk_place place;
    uint32_t size_digits;
    uint32_t overhead_bytes;    // chunk extensions and trailers of this body
};

void http_parser_init(struct http_parser *parser, const struct http_limits *limits);
void http_parser_deinit(struct http_parser *parser);
void http_parser_reset(struct http_parser *parser);    // ready for the next message

// Takes bytes until the state changes or they run out; returns how many were taken. After BODY is
// reached, feed again (zero bytes will do) to learn whether the message is already complete.
size_t http_parser_feed(struct http_parser *parser, const char *bytes, size_t byte_count);

// True when nothing of a message has arrived yet.
bool http_parser_idle(const struct http_parser *parser);

// First field of that name, letters compared without case; an absent span when there is none.
struct http_span http_request_field(const struct http_request *request, const char *name);

bool http_span_is(struct http_span span, const char *text);             // exact
bool http_span_is_caseless(struct http_span span, const char *text);    // ASCII letters

#endif
