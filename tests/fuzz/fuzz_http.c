// SPDX-License-Identifier: Apache-2.0
// Any bytes as a connection: messages are taken or refused, what is taken lies inside its bounds,
// and the verdict does not depend on how the bytes were split.
#include "common/invariant.h"
#include "controller/http/http_parse.h"
#include <string.h>

enum { HEAD_BYTES = 4096, BODY_BYTES = 4096, MESSAGES_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// What one connection meant: the same for every split, or two parsers could disagree.
struct meaning {
    uint32_t messages;
    enum http_parse_state state;
    int error_status;
    uint64_t sum;    // over all parts of all messages
};

static void mix(struct meaning *meaning, const void *bytes, size_t byte_count) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < byte_count; i++) {
        meaning->sum = meaning->sum * 1099511628211u + at[i] + 1;
    }
    meaning->sum = meaning->sum * 31 + byte_count;
}

static void mix_message(struct meaning *meaning, const struct http_parser *parser) {
    const struct http_request *request = &parser->request;
    INVARIANT(request->field_count <= BOUND_HTTP_HEADER_FIELDS);
    INVARIANT(parser->body.bytes_used <= BODY_BYTES);
    INVARIANT(request->chunked || parser->body.bytes_used == request->content_length);
    mix(meaning, request->method_name.text, request->method_name.byte_count);
    mix(meaning, request->path.text, request->path.byte_count);
    mix(meaning, request->query.text, request->query.byte_count);
    mix(meaning, request->host.text, request->host.byte_count);
    for (uint32_t i = 0; i < request->field_count; i++) {
        const struct http_field *field = &request->fields[i];
        INVARIANT(memchr(field->name.text, '\n', field->name.byte_count) == NULL);
        INVARIANT(field->value.byte_count == 0 ||
                  memchr(field->value.text, '\n', field->value.byte_count) == NULL);
        mix(meaning, field->name.text, field->name.byte_count);
        mix(meaning, field->value.text, field->value.byte_count);
    }
    mix(meaning, parser->body.data, parser->body.bytes_used);
}

// Feeds pieces of `step` bytes; 0 = all at once.
static struct meaning read_all(const char *bytes, size_t byte_count, size_t step) {
    const struct http_limits limits = {HEAD_BYTES, BOUND_HTTP_HEADER_FIELDS, BODY_BYTES};
    struct meaning meaning = {0};
    struct http_parser parser;
    http_parser_init(&parser, &limits);
    size_t at = 0;
    while (at < byte_count && meaning.messages < MESSAGES_MAX) {
        size_t piece = step == 0 || step > byte_count - at ? byte_count - at : step;
        enum http_parse_state before = parser.state;
        size_t taken = http_parser_feed(&parser, bytes + at, piece);
        INVARIANT(taken <= piece);
        at += taken;
        if (parser.state == HTTP_PARSE_STATE_BODY && before != HTTP_PARSE_STATE_BODY) {
            http_parser_feed(&parser, bytes + at, 0);    // perhaps it has no body
        }
        if (parser.state == HTTP_PARSE_STATE_ERROR) {
            break;
        }
        if (parser.state == HTTP_PARSE_STATE_DONE) {
            mix_message(&meaning, &parser);
            meaning.messages++;
            http_parser_reset(&parser);
        } else {
            INVARIANT(taken > 0 || before != parser.state);
        }
    }
    meaning.state = parser.state;
    meaning.error_status = parser.error_status;
    INVARIANT((parser.state == HTTP_PARSE_STATE_ERROR) == (parser.error_message != NULL));
    http_parser_deinit(&parser);
    return meaning;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    const char *bytes = (const char *)data + 1;
    struct meaning whole = read_all(bytes, size - 1, 0);
    struct meaning split = read_all(bytes, size - 1, 1 + data[0] % 64);
    INVARIANT(whole.messages == split.messages);
    INVARIANT(whole.state == split.state);
    INVARIANT(whole.error_status == split.error_status);
    INVARIANT(whole.sum == split.sum);
    return 0;
}
