// SPDX-License-Identifier: Apache-2.0
#include "controller/text/detokenizer.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/text/unicode.h"
#include <string.h>

_Static_assert(BOUND_STOP_STRING_BYTES <= UINT16_MAX, "borders are held in 16 bits");

static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD};

// ---- life cycle --------------------------------------------------------------------------------

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      struct detokenizer_options options) {
    memset(detokenizer, 0, sizeof *detokenizer);
    detokenizer->tokenizer = tokenizer;
    detokenizer->options = options;
    detokenizer->stop_index = -1;
    detokenizer->watching = true;
    // Held text is shorter than the longest stop string, plus the token that is being looked at.
    buf_init(&detokenizer->held, BOUND_STOP_STRING_BYTES + 4 * BOUND_TOKEN_BYTES);
}

void detokenizer_deinit(struct detokenizer *detokenizer) {
    if (detokenizer == NULL) {
        return;
    }
    for (uint32_t i = 0; i < detokenizer->stop_count; i++) {
        memory_free(detokenizer->stops[i].text);
        memory_free(detokenizer->stops[i].border);
    }
    buf_deinit(&detokenizer->held);
    memset(detokenizer, 0, sizeof *detokenizer);
}

// border[i] = length of the longest proper prefix of text[0..i] that is also its suffix.
static void compute_borders(struct detokenizer_stop *stop) {
    uint32_t length = 0;
    stop->border[0] = 0;
    for (uint32_t i = 1; i < stop->byte_count; i++) {
        while (length > 0 && stop->text[i] != stop->text[length]) {
            length = stop->border[length - 1];
        }
        length += stop->text[i] == stop->text[length] ? 1 : 0;
        stop->border[i] = (uint16_t)length;
    }
}

enum status detokenizer_add_stop(struct detokenizer *detokenizer, const char *text,
                                 size_t byte_count, struct error *err) {
    if (byte_count == 0 || byte_count > BOUND_STOP_STRING_BYTES) {
        return error_set(err, STATUS_INVALID, "a stop string has %zu bytes; 1 to %u are allowed",
                         byte_count, BOUND_STOP_STRING_BYTES);
    }
    if (detokenizer->stop_count == BOUND_STOP_STRINGS) {
        return error_set(err, STATUS_INVALID, "more than %u stop strings", BOUND_STOP_STRINGS);
    }
    struct detokenizer_stop *stop = &detokenizer->stops[detokenizer->stop_count];
    stop->text = memory_strndup(text, byte_count);
    stop->border = memory_array(byte_count, sizeof *stop->border);
    stop->byte_count = (uint32_t)byte_count;
    stop->matched = 0;
    if (stop->text == NULL || stop->border == NULL) {
        memory_free(stop->text);
        memory_free(stop->border);
        memset(stop, 0, sizeof *stop);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a stop string");
    }
    compute_borders(stop);
    detokenizer->stop_count++;
    return STATUS_OK;
}

// ---- second gate: stop strings -----------------------------------------------------------------

static bool stop_advance(struct detokenizer_stop *stop, char byte) {
    while (stop->matched > 0 &&
           (stop->matched == stop->byte_count || stop->text[stop->matched] != byte)) {
        stop->matched = stop->border[stop->matched - 1];
    }
    stop->matched += stop->text[stop->matched] == byte ? 1 : 0;
    return stop->matched == stop->byte_count;
}

// Looks at one byte of finished text; true when a stop string ends with it.
static bool scan_byte(struct detokenizer *detokenizer, uint8_t byte) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < detokenizer->stop_count; i++) {
        struct detokenizer_stop *stop = &detokenizer->stops[i];
        if (stop_advance(stop, (char)byte) && stop->byte_count > longest) {
            longest = stop->byte_count;
            detokenizer->stop_index = (int32_t)i;
        }
    }
    return longest > 0;
}

static uint32_t longest_match(const struct detokenizer *detokenizer) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < detokenizer->stop_count; i++) {
        longest = detokenizer->stops[i].matched > longest ? detokenizer->stops[i].matched : longest;
    }
    return longest;
}

// Moves all but the last `keep` bytes of the held text to `out`.
static void release(struct detokenizer *detokenizer, size_t keep, struct buf *out) {
    struct buf *held = &detokenizer->held;
    INVARIANT(keep <= held->bytes_used);
    size_t count = held->bytes_used - keep;
    // A stop string may be cut inside a character by its author; ours are never cut.
    while (count > 0 && count < held->bytes_used && (held->data[count] & 0xC0) == 0x80) {
        count--;
    }
    buf_append(out, held->data, count);
    buf_consume(held, count);
}

void detokenizer_watch_stops(struct detokenizer *detokenizer, bool on) {
    detokenizer->watching = on;
    for (uint32_t i = 0; !on && i < detokenizer->stop_count; i++) {
        detokenizer->stops[i].matched = 0;
    }
}

// Finished text: valid UTF-8, whole characters.
static void emit(struct detokenizer *detokenizer, const uint8_t *bytes, size_t byte_count,
                 struct buf *out) {
    if (detokenizer->stop_count == 0 || !detokenizer->watching) {
        release(detokenizer, 0, out);
        buf_append(out, bytes, byte_count);
        return;
    }
    struct buf *held = &detokenizer->held;
    for (size_t i = 0; i < byte_count && detokenizer->stop_index < 0; i++) {
        buf_append_byte(held, bytes[i]);
        if (!scan_byte(detokenizer, bytes[i])) {
            continue;
        }
        uint32_t length = detokenizer->stops[detokenizer->stop_index].byte_count;
        if (detokenizer->options.include_stop) {
            release(detokenizer, 0, out);
        } else {
            release(detokenizer, length, out);
        }
        buf_reset(held);
        return;
    }
    if (detokenizer->stop_index < 0) {
        release(detokenizer, longest_match(detokenizer), out);
    }
}

// ---- first gate: characters --------------------------------------------------------------------

// Emits the finished characters of `bytes` and returns how many bytes at the end are unfinished.
static uint32_t emit_characters(struct detokenizer *detokenizer, const uint8_t *bytes,
                                size_t byte_count, struct buf *out) {
    size_t end = byte_count - unicode_incomplete_tail(bytes, byte_count);
    size_t plain = 0;
    for (size_t at = 0; at < end;) {
        uint32_t code = 0;
        uint32_t length = unicode_decode(bytes + at, end - at, &code);
        if (code == UNICODE_BROKEN) {
            emit(detokenizer, bytes + plain, at - plain, out);
            emit(detokenizer, replacement, sizeof replacement, out);
            length = unicode_broken_span(bytes + at, end - at);
            plain = at + length;
        }
        at += length;
    }
    emit(detokenizer, bytes + plain, end - plain, out);
    return (uint32_t)(byte_count - end);
}

static enum status check(const struct detokenizer *detokenizer, const struct buf *out,
                         struct error *err) {
    if (buf_status(out) != STATUS_OK || buf_status(&detokenizer->held) != STATUS_OK) {
        return error_set(err, STATUS_EXHAUSTED, "no room for the text of a token");
    }
    return STATUS_OK;
}

enum status detokenizer_push(struct detokenizer *detokenizer, uint32_t id, struct buf *out,
                             bool *stopped, struct error *err) {
    *stopped = detokenizer->stop_index >= 0;
    size_t byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(detokenizer->tokenizer, id, &byte_count);
    bool skipped =
        detokenizer->options.skip_special && tokenizer_is_special(detokenizer->tokenizer, id);
    if (*stopped || bytes == NULL || skipped) {
        return STATUS_OK;
    }
    uint8_t joined[BOUND_TOKEN_BYTES + 4];
    uint32_t before = detokenizer->partial_bytes;
    memcpy(joined, detokenizer->partial, before);
    memcpy(joined + before, bytes, byte_count);
    size_t total = before + byte_count;
    uint32_t rest = emit_characters(detokenizer, joined, total, out);
    detokenizer->partial_bytes = rest;
    memcpy(detokenizer->partial, joined + total - rest, rest);
    *stopped = detokenizer->stop_index >= 0;
    return check(detokenizer, out, err);
}

enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *out,
                               struct error *err) {
    if (detokenizer->stop_index < 0) {
        if (detokenizer->partial_bytes > 0) {
            emit(detokenizer, replacement, sizeof replacement, out);
        }
        release(detokenizer, 0, out);
    }
    detokenizer->partial_bytes = 0;
    return check(detokenizer, out, err);
}

// ---- queries -----------------------------------------------------------------------------------

int32_t detokenizer_stop_index(const struct detokenizer *detokenizer) {
    return detokenizer->stop_index;
}

size_t detokenizer_held_bytes(const struct detokenizer *detokenizer) {
    return detokenizer->held.bytes_used + detokenizer->partial_bytes;
}

enum status detokenize(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                       bool skip_special, struct buf *out, struct error *err) {
    struct detokenizer whole;
    detokenizer_init(&whole, tokenizer, (struct detokenizer_options){.skip_special = skip_special});
    enum status status = STATUS_OK;
    bool stopped = false;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = detokenizer_push(&whole, ids[i], out, &stopped, err);
    }
    if (status == STATUS_OK) {
        status = detokenizer_finish(&whole, out, err);
    }
    detokenizer_deinit(&whole);
    return status;
}
