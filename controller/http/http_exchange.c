// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_exchange.h"

#include "common/invariant.h"
#include <stdio.h>
#include <string.h>

// Kept between answers; larger memory goes back to the heap.
enum { MEMORY_KEPT_BYTES = 64 * 1024 };

// ---- ready list --------------------------------------------------------------------------------

static void touch(struct http_exchange *exchange) {
    struct http_exchange_list *list = exchange->ready;
    if (exchange->touched || list == NULL) {
        return;
    }
    exchange->touched = true;
    exchange->next_ready = NULL;
    if (list->end == NULL) {
        list->end = &list->first;
    }
    *list->end = exchange;
    list->end = &exchange->next_ready;
}

struct http_exchange *http_exchange_list_pop(struct http_exchange_list *list) {
    struct http_exchange *exchange = list->first;
    if (exchange == NULL) {
        return NULL;
    }
    list->first = exchange->next_ready;
    if (list->first == NULL) {
        list->end = NULL;
    }
    exchange->touched = false;
    exchange->next_ready = NULL;
    return exchange;
}

void http_exchange_list_drop(struct http_exchange_list *list, struct http_exchange *exchange) {
    if (!exchange->touched) {
        return;
    }
    struct http_exchange **at = &list->first;
    while (*at != exchange) {
        INVARIANT(*at != NULL);
        at = &(*at)->next_ready;
    }
    *at = exchange->next_ready;
    if (list->first == NULL) {
        list->end = NULL;
    } else if (list->end == &exchange->next_ready) {
        list->end = at;
    }
    exchange->touched = false;
    exchange->next_ready = NULL;
}

// ---- life cycle --------------------------------------------------------------------------------

void http_exchange_init(struct http_exchange *exchange, struct http_exchange_list *ready) {
    memset(exchange, 0, sizeof *exchange);
    exchange->ready = ready;
    exchange->phase = HTTP_EXCHANGE_PHASE_DONE;
    buf_init(&exchange->out, BOUND_HTTP_RESPONSE_BYTES);
}

void http_exchange_deinit(struct http_exchange *exchange) {
    INVARIANT(!exchange->touched);
    buf_deinit(&exchange->out);
}

void http_exchange_begin(struct http_exchange *exchange, const struct http_request *request,
                         uint64_t arrived_us) {
    INVARIANT(!http_exchange_live(exchange));
    INVARIANT(!exchange->touched);
    exchange->request = request;
    exchange->body = NULL;
    exchange->body_bytes = 0;
    exchange->body_owner = NULL;
    exchange->arrived_us = arrived_us;
    exchange->user = NULL;
    exchange->alarm_us = 0;
    exchange->receipt = 0;
    exchange->phase = HTTP_EXCHANGE_PHASE_OPEN;
    exchange->status = 0;
    exchange->raw_bytes = 0;
    exchange->framed = false;
    // Without a head nobody knows where the next message would begin.
    exchange->keep_alive = request != NULL && request->keep_alive;
    exchange->body_wanted = request == NULL || request->method != HTTP_METHOD_HEAD;
    if (exchange->out.bytes_allocated > MEMORY_KEPT_BYTES) {
        buf_deinit(&exchange->out);
        buf_init(&exchange->out, BOUND_HTTP_RESPONSE_BYTES);
    }
    buf_reset(&exchange->out);
}

bool http_exchange_take_body(struct http_exchange *exchange, struct buf *out) {
    if (exchange->body_owner != NULL) {
        *out = *exchange->body_owner;
        buf_init(exchange->body_owner, out->bytes_max);
        exchange->body_owner = NULL;
    } else {
        buf_init(out, exchange->body_bytes);
        buf_append(out, exchange->body, exchange->body_bytes);
    }
    exchange->body = NULL;
    exchange->body_bytes = 0;
    return buf_status(out) == STATUS_OK;
}

bool http_exchange_live(const struct http_exchange *exchange) {
    return exchange->phase == HTTP_EXCHANGE_PHASE_OPEN ||
           exchange->phase == HTTP_EXCHANGE_PHASE_STREAMING;
}

// ---- answers -----------------------------------------------------------------------------------

static void put_head(struct http_exchange *exchange, const struct http_response *response) {
    struct buf *out = &exchange->out;
    exchange->status = response->status;
    if (response->close) {
        exchange->keep_alive = false;
    }
    buf_append_str(out, "HTTP/1.1 ");
    buf_append_u64(out, (uint64_t)response->status);
    buf_append_byte(out, ' ');
    buf_append_str(out, http_reason(response->status));
    buf_append_str(out, "\r\n");
    if (response->content_type != NULL) {
        buf_append_str(out, "content-type: ");
        buf_append_str(out, response->content_type);
        buf_append_str(out, "\r\n");
    }
    if (response->fields != NULL) {
        buf_append(out, response->fields->data, response->fields->bytes_used);
    }
    if (!exchange->keep_alive) {
        buf_append_str(out, "connection: close\r\n");
    }
}

void http_exchange_respond(struct http_exchange *exchange, const struct http_response *response) {
    INVARIANT(exchange->phase == HTTP_EXCHANGE_PHASE_OPEN);
    struct buf *out = &exchange->out;
    put_head(exchange, response);
    if (response->status != 204) {
        buf_append_str(out, "content-length: ");
        buf_append_u64(out, response->body_bytes);
        buf_append_str(out, "\r\n");
    }
    buf_append_str(out, "\r\n");
    if (exchange->body_wanted) {
        buf_append(out, response->body, response->body_bytes);
    }
    exchange->raw_bytes = out->bytes_used;
    exchange->phase = HTTP_EXCHANGE_PHASE_DONE;
    exchange->alarm_us = 0;
    touch(exchange);
}

void http_exchange_stream(struct http_exchange *exchange, const struct http_response *response) {
    INVARIANT(exchange->phase == HTTP_EXCHANGE_PHASE_OPEN);
    // HTTP/1.0 has no chunks: the end of the connection ends the body.
    exchange->framed = exchange->request != NULL && exchange->request->version_minor == 1;
    put_head(exchange, response);
    if (exchange->framed) {
        buf_append_str(&exchange->out, "transfer-encoding: chunked\r\n");
    }
    buf_append_str(&exchange->out, "\r\n");
    exchange->raw_bytes = exchange->out.bytes_used;
    exchange->phase = HTTP_EXCHANGE_PHASE_STREAMING;
    touch(exchange);
}

struct buf *http_exchange_payload(struct http_exchange *exchange) {
    INVARIANT(exchange->phase == HTTP_EXCHANGE_PHASE_STREAMING);
    touch(exchange);
    return &exchange->out;
}

void http_exchange_end(struct http_exchange *exchange) {
    INVARIANT(exchange->phase == HTTP_EXCHANGE_PHASE_STREAMING);
    exchange->phase = HTTP_EXCHANGE_PHASE_DONE;
    exchange->alarm_us = 0;
    touch(exchange);
}

void http_exchange_break(struct http_exchange *exchange) {
    INVARIANT(http_exchange_live(exchange));
    exchange->phase = HTTP_EXCHANGE_PHASE_BROKEN;
    exchange->keep_alive = false;
    exchange->alarm_us = 0;
    touch(exchange);
}

// ---- sending -----------------------------------------------------------------------------------

static void add_piece(struct http_pieces *pieces, const void *text, size_t byte_count) {
    if (byte_count == 0) {
        return;
    }
    INVARIANT(pieces->count < HTTP_PIECES_MAX);
    pieces->piece[pieces->count++] = (struct http_span){text, byte_count};
    pieces->byte_count += byte_count;
}

// The length of a chunk in hexadecimal, and its line end.
static void write_size_line(size_t byte_count, struct http_pieces *out) {
    char *end = out->size_line + sizeof out->size_line;
    char *at = end;
    *--at = '\n';
    *--at = '\r';
    for (size_t rest = byte_count; at == end - 2 || rest > 0; rest >>= 4) {
        *--at = "0123456789abcdef"[rest & 15];
    }
    add_piece(out, at, (size_t)(end - at));
}

void http_exchange_pieces(const struct http_exchange *exchange, struct http_pieces *out) {
    static const char chunk_end[] = "\r\n0\r\n\r\n";    // ends a chunk, then the body
    const struct buf *from = &exchange->out;
    size_t payload_bytes = from->bytes_used - exchange->raw_bytes;
    bool chunk = exchange->framed && payload_bytes > 0;
    bool last = exchange->framed && exchange->phase == HTTP_EXCHANGE_PHASE_DONE;
    out->count = 0;
    out->byte_count = 0;
    add_piece(out, from->data, exchange->raw_bytes);
    if (chunk) {
        write_size_line(payload_bytes, out);
    }
    if (payload_bytes > 0) {
        add_piece(out, from->data + exchange->raw_bytes, payload_bytes);
    }
    size_t end_start = chunk ? 0 : 2;
    size_t end_stop = last ? sizeof chunk_end - 1 : 2;
    add_piece(out, chunk_end + end_start, end_stop - end_start);
}

bool http_pieces_keep(const struct http_pieces *pieces, size_t sent_bytes, struct buf *out) {
    for (uint32_t i = 0; i < pieces->count; i++) {
        const struct http_span *piece = &pieces->piece[i];
        size_t skip = sent_bytes < piece->byte_count ? sent_bytes : piece->byte_count;
        buf_append(out, piece->text + skip, piece->byte_count - skip);
        sent_bytes -= skip;
    }
    return buf_status(out) == STATUS_OK;
}

void http_exchange_sent(struct http_exchange *exchange) {
    if (exchange->phase == HTTP_EXCHANGE_PHASE_DONE) {
        exchange->framed = false;    // the end was said; saying it again would be a second body
    }
    exchange->raw_bytes = 0;
    buf_reset(&exchange->out);
}

// ---- words -------------------------------------------------------------------------------------

const char *http_reason(int status) {
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {100, "Continue"},
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) {
            return reasons[i].text;
        }
    }
    return "Unknown";
}

void http_date(uint64_t unix_s, char out[HTTP_DATE_BYTES]) {
    static const char *const week_days[] = {"Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    uint64_t day = unix_s / 86400;
    unsigned second = (unsigned)(unix_s % 86400);
    // Proleptic Gregorian calendar, counted in years that begin in March so that the leap day comes
    // last; 400 years are 146097 days, and day 0 of this count is 0000-03-01.
    uint64_t from_march_0000 = day + 719468;
    uint64_t era = from_march_0000 / 146097;
    uint64_t era_day = from_march_0000 % 146097;
    uint64_t era_year = (era_day - era_day / 1460 + era_day / 36524 - era_day / 146096) / 365;
    uint64_t year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
    uint64_t month_from_march = (5 * year_day + 2) / 153;
    unsigned month_day = (unsigned)(year_day - (153 * month_from_march + 2) / 5 + 1);
    unsigned month =
        (unsigned)(month_from_march < 10 ? month_from_march + 2 : month_from_march - 10);
    unsigned year = (unsigned)(era * 400 + era_year + (month < 2 ? 1 : 0));
    snprintf(out, HTTP_DATE_BYTES, "%s, %02u %s %04u %02u:%02u:%02u GMT", week_days[day % 7],
             month_day % 100, months[month], year % 10000, second / 3600, second / 60 % 60,
             second % 60);
}
