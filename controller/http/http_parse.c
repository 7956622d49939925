// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_parse.h"

#include "common/invariant.h"
#include <string.h>

// Kept between messages; larger memory goes back to the heap.
enum { MEMORY_KEPT_BYTES = 16 * 1024 };

// ---- spans and characters ----------------------------------------------------------------------

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool http_span_is(struct http_span span, const char *text) {
    return span.text != NULL && span.byte_count == strlen(text) &&
           memcmp(span.text, text, span.byte_count) == 0;
}

static bool spans_match_caseless(struct http_span a, struct http_span b) {
    if (a.byte_count != b.byte_count) {
        return false;
    }
    for (size_t i = 0; i < a.byte_count; i++) {
        if (lower(a.text[i]) != lower(b.text[i])) {
            return false;
        }
    }
    return true;
}

bool http_span_is_caseless(struct http_span span, const char *text) {
    struct http_span other = {text, strlen(text)};
    return span.text != NULL && spans_match_caseless(span, other);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_alpha(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// RFC 9110 section 5.6.2.
static bool is_token_char(char c) {
    return is_digit(c) || is_alpha(c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(struct http_span span) {
    for (size_t i = 0; i < span.byte_count; i++) {
        if (!is_token_char(span.text[i])) {
            return false;
        }
    }
    return span.byte_count > 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static struct http_span trim(struct http_span span) {
    while (span.byte_count > 0 && is_blank(span.text[0])) {
        span.text++;
        span.byte_count--;
    }
    while (span.byte_count > 0 && is_blank(span.text[span.byte_count - 1])) {
        span.byte_count--;
    }
    return span;
}

struct http_span http_request_field(const struct http_request *request, const char *name) {
    for (uint32_t i = 0; i < request->field_count; i++) {
        if (http_span_is_caseless(request->fields[i].name, name)) {
            return request->fields[i].value;
        }
    }
    return (struct http_span){NULL, 0};
}

// ---- life cycle --------------------------------------------------------------------------------

void http_parser_init(struct http_parser *parser, const struct http_limits *limits) {
    INVARIANT(limits->field_count_max <= BOUND_HTTP_HEADER_FIELDS);
    memset(parser, 0, sizeof *parser);
    parser->limits = *limits;
    buf_init(&parser->head, limits->head_bytes_max);
    buf_init(&parser->body, limits->body_bytes_max);
}

void http_parser_deinit(struct http_parser *parser) {
    buf_deinit(&parser->head);
    buf_deinit(&parser->body);
}

static void recycle(struct buf *buf, size_t bytes_max) {
    if (buf->bytes_allocated > MEMORY_KEPT_BYTES) {
        buf_deinit(buf);
        buf_init(buf, bytes_max);
    } else {
        buf_reset(buf);
    }
}

void http_parser_reset(struct http_parser *parser) {
    recycle(&parser->head, parser->limits.head_bytes_max);
    recycle(&parser->body, parser->limits.body_bytes_max);
    parser->state = HTTP_PARSE_STATE_HEAD;
    parser->error_status = 0;
    parser->error_message = NULL;
    parser->request.field_count = 0;
    parser->line_bytes = 0;
    parser->after_cr = false;
    parser->line_seen = false;
    parser->blank_seen = false;
    parser->colon_seen = false;
    parser->body_left = 0;
    parser->place = HTTP_CHUNK_PLACE_SIZE;
    parser->size_digits = 0;
    parser->overhead_bytes = 0;
}

bool http_parser_idle(const struct http_parser *parser) {
    return parser->state == HTTP_PARSE_STATE_HEAD && parser->head.bytes_used == 0 &&
           !parser->after_cr && !parser->blank_seen;
}

static bool refuse(struct http_parser *parser, int http_status, const char *message) {
    parser->state = HTTP_PARSE_STATE_ERROR;
    parser->error_status = http_status;
    parser->error_message = message;
    return false;
}

// ---- lines -------------------------------------------------------------------------------------

// One byte of a head or trailer section. True when it ends a line; false otherwise or on refusal.
static bool scan_byte(struct http_parser *parser, char c) {
    unsigned char byte = (unsigned char)c;
    if (parser->after_cr) {
        parser->after_cr = false;
        return c == '\n' || refuse(parser, 400, "The head has a CR without a LF after it.");
    }
    if (c == '\r') {
        parser->after_cr = true;
        return false;
    }
    if (c == '\n') {
        return refuse(parser, 400, "The head has a LF without a CR before it.");
    }
    if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
        return refuse(parser, 400, "The head contains a control byte.");
    }
    parser->line_bytes++;
    return false;
}

// ---- request line ------------------------------------------------------------------------------

static enum http_method method_of(struct http_span name) {
    static const struct {
        const char *name;
        enum http_method method;
    } known[] = {
        {"POST", HTTP_METHOD_POST},       {"GET", HTTP_METHOD_GET}, {"HEAD", HTTP_METHOD_HEAD},
        {"OPTIONS", HTTP_METHOD_OPTIONS}, {"PUT", HTTP_METHOD_PUT}, {"DELETE", HTTP_METHOD_DELETE},
        {"PATCH", HTTP_METHOD_PATCH},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (http_span_is(name, known[i].name)) {
            return known[i].method;
        }
    }
    return HTTP_METHOD_OTHER;
}

// Splits "http://host/path" off; the authority must repeat the Host field, which is checked later.
static bool split_absolute(struct http_span *target, struct http_span *authority) {
    static const char scheme[] = "http://";
    const size_t scheme_bytes = sizeof scheme - 1;
    struct http_span start = {target->text, scheme_bytes};
    if (target->byte_count <= scheme_bytes || !http_span_is_caseless(start, scheme)) {
        return false;
    }
    const char *rest = target->text + scheme_bytes;
    size_t rest_bytes = target->byte_count - scheme_bytes;
    const char *slash = memchr(rest, '/', rest_bytes);
    if (slash == NULL || slash == rest) {
        return false;
    }
    *authority = (struct http_span){rest, (size_t)(slash - rest)};
    *target = (struct http_span){slash, rest_bytes - authority->byte_count};
    return true;
}

static bool parse_target(struct http_parser *parser, struct http_span target,
                         struct http_span *authority) {
    struct http_request *request = &parser->request;
    for (size_t i = 0; i < target.byte_count; i++) {
        unsigned char byte = (unsigned char)target.text[i];
        if (byte <= 0x20 || byte >= 0x7F || byte == '#') {
            return refuse(parser, 400, "The request target has a byte that must be escaped.");
        }
    }
    bool asterisk = http_span_is(target, "*") && request->method == HTTP_METHOD_OPTIONS;
    if (!asterisk && target.byte_count > 0 && target.text[0] != '/' &&
        !split_absolute(&target, authority)) {
        return refuse(parser, 400, "The request target must begin with '/'.");
    }
    if (target.byte_count == 0) {
        return refuse(parser, 400, "The request line has no target.");
    }
    const char *mark = memchr(target.text, '?', target.byte_count);
    request->path = target;
    request->query = (struct http_span){NULL, 0};
    if (mark != NULL) {
        request->path.byte_count = (size_t)(mark - target.text);
        request->query.text = mark + 1;
        request->query.byte_count = target.byte_count - request->path.byte_count - 1;
    }
    return true;
}

static bool parse_request_line(struct http_parser *parser, struct http_span line,
                               struct http_span *authority) {
    struct http_request *request = &parser->request;
    const char *space = memchr(line.text, ' ', line.byte_count);
    if (space == NULL) {
        return refuse(parser, 400, "The request line is not METHOD TARGET VERSION.");
    }
    request->method_name = (struct http_span){line.text, (size_t)(space - line.text)};
    if (!is_token(request->method_name)) {
        return refuse(parser, 400, "The request line does not begin with a method.");
    }
    request->method = method_of(request->method_name);
    const char *rest = space + 1;
    size_t rest_bytes = line.byte_count - request->method_name.byte_count - 1;
    space = memchr(rest, ' ', rest_bytes);
    if (space == NULL) {
        return refuse(parser, 400, "The request line is not METHOD TARGET VERSION.");
    }
    struct http_span target = {rest, (size_t)(space - rest)};
    struct http_span version = {space + 1, rest_bytes - target.byte_count - 1};
    if (http_span_is(version, "HTTP/1.1")) {
        request->version_minor = 1;
    } else if (http_span_is(version, "HTTP/1.0")) {
        request->version_minor = 0;
    } else if (version.byte_count == 8 && memcmp(version.text, "HTTP/", 5) == 0 &&
               is_digit(version.text[5]) && version.text[6] == '.' && is_digit(version.text[7])) {
        return refuse(parser, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    } else {
        return refuse(parser, 400, "The request line does not end with an HTTP version.");
    }
    return parse_target(parser, target, authority);
}

// ---- fields ------------------------------------------------------------------------------------

// What the fields say about the end of the message.
struct framing {
    uint32_t length_count;
    uint64_t length;
    uint32_t coding_count;
    uint32_t host_count;
};

static bool parse_length(struct http_parser *parser, struct http_span value,
                         struct framing *framing) {
    uint64_t length = 0;
    // 18 digits always fit 64 bits, and no limit comes near.
    bool valid = value.byte_count >= 1 && value.byte_count <= 18;
    for (size_t i = 0; valid && i < value.byte_count; i++) {
        valid = is_digit(value.text[i]);
        length = length * 10 + (uint64_t)(value.text[i] - '0');
    }
    if (!valid) {
        return refuse(parser, 400, "Content-Length is not a plain number.");
    }
    if (framing->length_count > 0 && framing->length != length) {
        return refuse(parser, 400, "Content-Length is given twice with different values.");
    }
    framing->length_count++;
    framing->length = length;
    return true;
}

// RFC 3986 section 3.2.2 without user information: what a name, an address and a port may contain.
static bool is_host(struct http_span value) {
    for (size_t i = 0; i < value.byte_count; i++) {
        char c = value.text[i];
        if (!is_alpha(c) && !is_digit(c) &&
            (c == '\0' || strchr("-._~%!$&'()*+,;=:[]", c) == NULL)) {
            return false;
        }
    }
    return value.byte_count > 0;
}

static bool parse_connection(struct http_request *request, struct http_span value) {
    while (value.byte_count > 0) {
        const char *comma = memchr(value.text, ',', value.byte_count);
        size_t option_bytes = comma == NULL ? value.byte_count : (size_t)(comma - value.text);
        struct http_span option = trim((struct http_span){value.text, option_bytes});
        if (http_span_is_caseless(option, "close")) {
            request->keep_alive = false;
        }
        size_t step = comma == NULL ? option_bytes : option_bytes + 1;
        value.text += step;
        value.byte_count -= step;
    }
    return true;
}

// The fields that decide framing and persistence. Everything else is left to the application.
static bool note_field(struct http_parser *parser, const struct http_field *field,
                       struct framing *framing) {
    struct http_request *request = &parser->request;
    if (http_span_is_caseless(field->name, "content-length")) {
        return parse_length(parser, field->value, framing);
    }
    if (http_span_is_caseless(field->name, "transfer-encoding")) {
        framing->coding_count++;
        if (!http_span_is_caseless(field->value, "chunked")) {
            return refuse(parser, 400, "The only transfer coding spoken here is 'chunked'.");
        }
        return true;
    }
    if (http_span_is_caseless(field->name, "host")) {
        framing->host_count++;
        request->host = field->value;
        return is_host(field->value) || refuse(parser, 400, "Host is not a host name.");
    }
    if (http_span_is_caseless(field->name, "connection")) {
        return parse_connection(request, field->value);
    }
    if (http_span_is_caseless(field->name, "expect")) {
        request->expect_continue = true;
        return http_span_is_caseless(field->value, "100-continue") ||
               refuse(parser, 417, "The only expectation met here is '100-continue'.");
    }
    return true;
}

static bool parse_field(struct http_parser *parser, struct http_span line,
                        struct framing *framing) {
    struct http_request *request = &parser->request;
    if (is_blank(line.text[0])) {
        return refuse(parser, 400, "A header line begins with a blank; folded lines are refused.");
    }
    const char *colon = memchr(line.text, ':', line.byte_count);
    if (colon == NULL) {
        return refuse(parser, 400, "A header line has no colon.");
    }
    struct http_field field = {.name = {line.text, (size_t)(colon - line.text)}};
    if (!is_token(field.name)) {
        return refuse(parser, 400, "A header name is empty or contains a blank or a separator.");
    }
    field.value = trim((struct http_span){colon + 1, line.byte_count - field.name.byte_count - 1});
    if (request->field_count >= parser->limits.field_count_max) {
        return refuse(parser, 431, "The request has too many header fields.");
    }
    request->fields[request->field_count++] = field;
    return note_field(parser, &field, framing);
}

static bool check_framing(struct http_parser *parser, const struct framing *framing,
                          struct http_span authority) {
    struct http_request *request = &parser->request;
    if (framing->host_count > 1) {
        return refuse(parser, 400, "Host is given twice.");
    }
    if (framing->host_count == 0 && request->version_minor == 1) {
        return refuse(parser, 400, "Host is missing.");
    }
    if (authority.text != NULL && !spans_match_caseless(authority, request->host)) {
        return refuse(parser, 400, "The request target names another host than Host.");
    }
    if (framing->coding_count > 0 && framing->length_count > 0) {
        return refuse(parser, 400, "Content-Length and Transfer-Encoding exclude each other.");
    }
    if (framing->coding_count > 1) {
        return refuse(parser, 400, "Transfer-Encoding is given twice.");
    }
    if (framing->coding_count > 0 && request->version_minor == 0) {
        return refuse(parser, 400, "HTTP/1.0 has no transfer codings.");
    }
    if (framing->length > parser->limits.body_bytes_max) {
        return refuse(parser, 413, "The request body is larger than this server takes.");
    }
    request->chunked = framing->coding_count > 0;
    request->content_length = framing->length;
    parser->body_left = framing->length;
    if (request->version_minor == 0) {
        request->keep_alive = false;
        request->expect_continue = false;    // RFC 9110 10.1.1: 1.0 cannot mean it
    }
    return true;
}

// The whole head lies in parser->head; every line ends with CR LF, the last one is empty.
static bool parse_head(struct http_parser *parser) {
    struct http_request *request = &parser->request;
    *request = (struct http_request){.keep_alive = true};
    struct framing framing = {0};
    struct http_span authority = {NULL, 0};
    const char *at = (const char *)parser->head.data;
    const char *end = at + parser->head.bytes_used - 2;
    bool first = true;
    while (at < end) {
        const char *cr = memchr(at, '\r', (size_t)(end - at));
        INVARIANT(cr != NULL);
        struct http_span line = {at, (size_t)(cr - at)};
        bool fine = first ? parse_request_line(parser, line, &authority)
                          : parse_field(parser, line, &framing);
        if (!fine) {
            return false;
        }
        first = false;
        at = cr + 2;
    }
    return check_framing(parser, &framing, authority);
}

static size_t feed_head(struct http_parser *parser, const char *bytes, size_t byte_count) {
    size_t room = parser->limits.head_bytes_max - parser->head.bytes_used;
    size_t start = 0;    // first byte that belongs to the head
    bool complete = false;
    size_t i = 0;
    for (; i < byte_count && !complete; i++) {
        if (i - start >= room) {
            refuse(parser, 431, "The request head is larger than this server takes.");
            return i;
        }
        bool line_ends = scan_byte(parser, bytes[i]);
        if (parser->state == HTTP_PARSE_STATE_ERROR) {
            return i + 1;
        }
        if (!line_ends) {
            continue;
        }
        complete = parser->line_bytes == 0 && parser->line_seen;
        if (parser->line_bytes == 0 && !parser->line_seen) {
            // RFC 9112 section 2.2: one empty line before the request line is forgiven.
            if (parser->blank_seen) {
                refuse(parser, 400, "The request begins with empty lines.");
                return i + 1;
            }
            parser->blank_seen = true;
            buf_reset(&parser->head);
            room = parser->limits.head_bytes_max;
            start = i + 1;
        }
        parser->line_seen = parser->line_seen || parser->line_bytes > 0;
        parser->line_bytes = 0;
    }
    buf_append(&parser->head, bytes + start, i - start);
    if (buf_status(&parser->head) != STATUS_OK) {
        refuse(parser, 503, "There is no memory for this request.");
    } else if (complete && parse_head(parser)) {
        parser->state = HTTP_PARSE_STATE_BODY;
    }
    return i;
}

// ---- body --------------------------------------------------------------------------------------

static size_t take_body(struct http_parser *parser, const char *bytes, size_t byte_count) {
    size_t take = byte_count < parser->body_left ? byte_count : (size_t)parser->body_left;
    buf_append(&parser->body, bytes, take);
    if (buf_status(&parser->body) != STATUS_OK) {
        refuse(parser, 503, "There is no memory for this request.");
    }
    parser->body_left -= take;
    return take;
}

static int hex_digit(char c) {
    if (is_digit(c)) {
        return c - '0';
    }
    char l = lower(c);
    return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

static bool count_overhead(struct http_parser *parser) {
    return ++parser->overhead_bytes <= BOUND_HTTP_CHUNK_OVERHEAD_BYTES ||
           refuse(parser, 431, "The chunked body has too many bytes that are not content.");
}

static void chunk_size_byte(struct http_parser *parser, char c) {
    int digit = hex_digit(c);
    if (digit >= 0) {
        // 15 digits always fit 64 bits. Leading zeros count: nobody needs them.
        if (++parser->size_digits > 15) {
            refuse(parser, 400, "A chunk size has too many digits.");
            return;
        }
        parser->body_left = parser->body_left * 16 + (uint64_t)digit;
    } else if (parser->size_digits == 0) {
        refuse(parser, 400, "A chunk size is not a hexadecimal number.");
    } else if (c == '\r') {
        parser->place = HTTP_CHUNK_PLACE_SIZE_LF;
    } else if (c == ';') {
        parser->place = HTTP_CHUNK_PLACE_EXTENSION;
    } else {
        refuse(parser, 400, "A chunk size is not a hexadecimal number.");
    }
}

static void chunk_extension_byte(struct http_parser *parser, char c) {
    unsigned char byte = (unsigned char)c;
    if (c == '\r') {
        parser->place = HTTP_CHUNK_PLACE_SIZE_LF;
    } else if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
        refuse(parser, 400, "A chunk extension contains a control byte.");
    } else {
        count_overhead(parser);
    }
}

// A chunk size line is complete.
static void chunk_begin(struct http_parser *parser) {
    if (parser->body_left > parser->limits.body_bytes_max - parser->body.bytes_used) {
        refuse(parser, 413, "The request body is larger than this server takes.");
        return;
    }
    parser->place = parser->body_left == 0 ? HTTP_CHUNK_PLACE_TRAILER : HTTP_CHUNK_PLACE_DATA;
    parser->size_digits = 0;
    parser->line_bytes = 0;
    parser->after_cr = false;
    parser->colon_seen = false;
}

// Trailer fields are checked for their form and dropped: nothing here may depend on them.
static void trailer_byte(struct http_parser *parser, char c) {
    if (!count_overhead(parser)) {
        return;
    }
    bool in_name = !parser->colon_seen && c != '\r' && !parser->after_cr;
    if (in_name && c == ':' && parser->line_bytes > 0) {
        parser->colon_seen = true;
    } else if (in_name && c != '\n' && !is_token_char(c)) {
        refuse(parser, 400, "A trailer line does not begin with a header name.");
        return;
    }
    if (!scan_byte(parser, c)) {
        return;
    }
    if (parser->line_bytes == 0) {
        parser->state = HTTP_PARSE_STATE_DONE;
    } else if (!parser->colon_seen) {
        refuse(parser, 400, "A trailer line has no colon.");
    }
    parser->line_bytes = 0;
    parser->colon_seen = false;
}

static void expect_byte(struct http_parser *parser, char c, char wanted,
                        enum http_chunk_place next) {
    if (c != wanted) {
        refuse(parser, 400, "The framing of a chunk is broken.");
        return;
    }
    parser->place = next;
}

static void chunk_byte(struct http_parser *parser, char c) {
    switch (parser->place) {
    case HTTP_CHUNK_PLACE_SIZE:
        chunk_size_byte(parser, c);
        break;
    case HTTP_CHUNK_PLACE_EXTENSION:
        chunk_extension_byte(parser, c);
        break;
    case HTTP_CHUNK_PLACE_SIZE_LF:
        expect_byte(parser, c, '\n', HTTP_CHUNK_PLACE_DATA);
        if (parser->state != HTTP_PARSE_STATE_ERROR) {
            chunk_begin(parser);
        }
        break;
    case HTTP_CHUNK_PLACE_DATA_CR:
        expect_byte(parser, c, '\r', HTTP_CHUNK_PLACE_DATA_LF);
        break;
    case HTTP_CHUNK_PLACE_DATA_LF:
        expect_byte(parser, c, '\n', HTTP_CHUNK_PLACE_SIZE);
        break;
    case HTTP_CHUNK_PLACE_TRAILER:
        trailer_byte(parser, c);
        break;
    case HTTP_CHUNK_PLACE_DATA:
        UNREACHABLE();
    }
}

static size_t feed_chunked(struct http_parser *parser, const char *bytes, size_t byte_count) {
    size_t taken = 0;
    while (taken < byte_count && parser->state == HTTP_PARSE_STATE_BODY) {
        if (parser->place == HTTP_CHUNK_PLACE_DATA) {
            taken += take_body(parser, bytes + taken, byte_count - taken);
            if (parser->body_left == 0) {
                parser->place = HTTP_CHUNK_PLACE_DATA_CR;
            }
        } else {
            chunk_byte(parser, bytes[taken++]);
        }
    }
    return taken;
}

size_t http_parser_feed(struct http_parser *parser, const char *bytes, size_t byte_count) {
    switch (parser->state) {
    case HTTP_PARSE_STATE_HEAD:
        return feed_head(parser, bytes, byte_count);
    case HTTP_PARSE_STATE_BODY:
        break;
    case HTTP_PARSE_STATE_DONE:
    case HTTP_PARSE_STATE_ERROR:
        return 0;
    }
    if (parser->request.chunked) {
        return feed_chunked(parser, bytes, byte_count);
    }
    size_t taken = take_body(parser, bytes, byte_count);
    if (parser->state == HTTP_PARSE_STATE_BODY && parser->body_left == 0) {
        parser->state = HTTP_PARSE_STATE_DONE;
    }
    return taken;
}
