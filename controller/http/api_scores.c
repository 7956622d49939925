// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_scores.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/json.h"
#include "common/utf8.h"
#include "controller/text/tokenizer.h"
#include <string.h>

struct alternative {
    int32_t token;
    float logprob;
};

// ---- the queue ---------------------------------------------------------------------------------

void api_scores_push(struct buf *queue, const struct api_score *score,
                     const struct result_row *row) {
    struct api_score record = *score;
    record.has_logprob = row != NULL && row->has_logprob;
    record.logprob = record.has_logprob ? row->logprob : 0;
    record.top_count = record.has_logprob ? row->top_count : 0;
    buf_append(queue, &record, sizeof record);
    for (uint32_t i = 0; i < record.top_count; i++) {
        struct alternative alternative = {row->top_tokens[i], row->top_logprobs[i]};
        buf_append(queue, &alternative, sizeof alternative);
    }
}

static size_t record_bytes(const struct api_score *score) {
    return sizeof *score + score->top_count * sizeof(struct alternative);
}

// Copies the record at `at`; records are not aligned.
static struct api_score record_at(const struct buf *queue, size_t at) {
    struct api_score score;
    INVARIANT(at + sizeof score <= queue->bytes_used);
    memcpy(&score, queue->data + at, sizeof score);
    return score;
}

static struct alternative alternative_at(const struct buf *queue, size_t record_at_bytes,
                                         uint32_t index) {
    struct alternative alternative;
    size_t at = record_at_bytes + sizeof(struct api_score) + index * sizeof alternative;
    INVARIANT(at + sizeof alternative <= queue->bytes_used);
    memcpy(&alternative, queue->data + at, sizeof alternative);
    return alternative;
}

size_t api_scores_ready(const struct buf *queue, uint64_t raw_end) {
    size_t at = 0;
    while (at < queue->bytes_used) {
        struct api_score score = record_at(queue, at);
        if (score.raw_end > raw_end) {
            break;
        }
        at += record_bytes(&score);
    }
    return at;
}

// ---- token texts -------------------------------------------------------------------------------

static const char *token_bytes(const struct tokenizer *tokenizer, int32_t token,
                               size_t *byte_count) {
    *byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(tokenizer, (uint32_t)token, byte_count);
    return bytes == NULL ? "" : (const char *)bytes;
}

// A part of a character has no text of its own; "bytes:\xe2\x80" keeps such tokens apart.
static void write_token_text(const struct tokenizer *tokenizer, int32_t token, struct buf *out) {
    static const char digits[] = "0123456789abcdef";
    size_t byte_count = 0;
    const char *text = token_bytes(tokenizer, token, &byte_count);
    if (utf8_valid(text, byte_count)) {
        json_write_string(out, text, byte_count);
        return;
    }
    buf_append_str(out, "\"bytes:");
    for (size_t i = 0; i < byte_count; i++) {
        unsigned char byte = (unsigned char)text[i];
        buf_append_str(out, "\\\\x");
        buf_append_byte(out, (uint8_t)digits[byte >> 4]);
        buf_append_byte(out, (uint8_t)digits[byte & 15]);
    }
    buf_append_byte(out, '"');
}

static bool same_text(const struct tokenizer *tokenizer, int32_t a, int32_t b) {
    size_t a_bytes = 0;
    size_t b_bytes = 0;
    const char *a_text = token_bytes(tokenizer, a, &a_bytes);
    const char *b_text = token_bytes(tokenizer, b, &b_bytes);
    return a_bytes == b_bytes && memcmp(a_text, b_text, a_bytes) == 0;
}

// ---- completions -------------------------------------------------------------------------------

// One map of alternatives. They come in falling order, so the first of equal texts is the larger.
static void write_top_map(const struct tokenizer *tokenizer, const struct buf *queue, size_t at,
                          const struct api_score *score, struct buf *out) {
    struct alternative entry[BOUND_LOGPROBS + 1];
    uint32_t count = 0;
    bool has_token = false;
    INVARIANT(score->top_count <= BOUND_LOGPROBS);
    for (uint32_t i = 0; i < score->top_count; i++) {
        entry[count] = alternative_at(queue, at, i);
        if (entry[count].token == score->token) {
            has_token = true;
            entry[count].logprob = score->logprob;    // the same digits in both places
        }
        count++;
    }
    if (!has_token) {
        entry[count++] = (struct alternative){score->token, score->logprob};
    }
    buf_append_byte(out, '{');
    bool first = true;
    for (uint32_t i = 0; i < count; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) {
            seen = same_text(tokenizer, entry[i].token, entry[k].token);
        }
        if (seen) {
            continue;
        }
        buf_append_str(out, first ? "" : ",");
        first = false;
        write_token_text(tokenizer, entry[i].token, out);
        buf_append_byte(out, ':');
        json_write_float(out, entry[i].logprob);
    }
    buf_append_byte(out, '}');
}

enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_TOP, COLUMN_OFFSETS };

static void write_cell(const struct tokenizer *tokenizer, const struct buf *queue, size_t at,
                       enum column column, struct buf *out) {
    struct api_score score = record_at(queue, at);
    switch (column) {
    case COLUMN_TOKENS:
        write_token_text(tokenizer, score.token, out);
        break;
    case COLUMN_LOGPROBS:
        if (score.has_logprob) {
            json_write_float(out, score.logprob);
        } else {
            buf_append_str(out, "null");
        }
        break;
    case COLUMN_TOP:
        if (score.has_logprob) {
            write_top_map(tokenizer, queue, at, &score, out);
        } else {
            buf_append_str(out, "null");
        }
        break;
    case COLUMN_OFFSETS:
        buf_append_u64(out, score.text_offset);
        break;
    }
}

void api_scores_write_completion(const struct tokenizer *tokenizer, const struct buf *queue,
                                 size_t byte_count, struct buf *out) {
    static const char *const heads[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};
    for (enum column column = COLUMN_TOKENS; column <= COLUMN_OFFSETS; column++) {
        buf_append_str(out, heads[column]);
        size_t at = 0;
        while (at < byte_count) {
            struct api_score score = record_at(queue, at);
            buf_append_str(out, at > 0 ? "," : "");
            write_cell(tokenizer, queue, at, column, out);
            at += record_bytes(&score);
        }
    }
    buf_append_str(out, "]}");
}

// ---- chat --------------------------------------------------------------------------------------

static void write_chat_token(const struct tokenizer *tokenizer, int32_t token, float logprob,
                             struct buf *out) {
    size_t byte_count = 0;
    const char *text = token_bytes(tokenizer, token, &byte_count);
    buf_append_str(out, "{\"token\":");
    json_write_string(out, text, byte_count);
    buf_append_str(out, ",\"logprob\":");
    json_write_float(out, logprob);
    buf_append_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < byte_count; i++) {
        buf_append_str(out, i > 0 ? "," : "");
        buf_append_u64(out, (unsigned char)text[i]);
    }
    buf_append_byte(out, ']');
}

void api_scores_write_chat(const struct tokenizer *tokenizer, const struct buf *queue,
                           size_t byte_count, struct buf *out) {
    buf_append_str(out, "{\"content\":[");
    size_t at = 0;
    while (at < byte_count) {
        struct api_score score = record_at(queue, at);
        buf_append_str(out, at > 0 ? "," : "");
        write_chat_token(tokenizer, score.token, score.logprob, out);
        buf_append_str(out, ",\"top_logprobs\":[");
        for (uint32_t i = 0; i < score.top_count; i++) {
            struct alternative entry = alternative_at(queue, at, i);
            buf_append_str(out, i > 0 ? "," : "");
            write_chat_token(tokenizer, entry.token, entry.logprob, out);
            buf_append_byte(out, '}');
        }
        buf_append_str(out, "]}");
        at += record_bytes(&score);
    }
    buf_append_str(out, "],\"refusal\":null}");
}
