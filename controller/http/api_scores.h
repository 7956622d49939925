// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_SCORES_H
#define CONTROLLER_HTTP_API_SCORES_H

#include "common/buf.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Logprobs of tokens, kept as plain records until the text they belong to is written.
//
// The idea: text can be held back (half a character, the start of a stop string), and a chunk must
// carry the logprobs of exactly its own tokens. So scores wait in a queue in binary form, each with
// the position where its text ends, and are rendered once, in the shape of the endpoint.
//
//   Owns       nothing: the queue is the caller's buffer.
//   Thread     any.
//   Allocates  when the queue or the output grows.
//   Fails      a full buffer stays failed, see buf.h.

struct tokenizer;

struct api_score {
    int32_t token;
    bool has_logprob;    // false for the first token of a prompt
    float logprob;
    uint32_t top_count;
    uint64_t text_offset;    // code points in front of it
    uint64_t raw_end;        // bytes of visible text up to its end
};

// Appends one score; `row` may be NULL for a token without logprob.
void api_scores_push(struct buf *queue, const struct api_score *score,
                     const struct result_row *row);

// Bytes of the records at the front whose text ends at or before `raw_end`.
size_t api_scores_ready(const struct buf *queue, uint64_t raw_end);

// The logprobs object of /v1/completions: four parallel arrays. Each map holds the alternatives and
// the token itself; of two ids with the same text the larger value stays.
void api_scores_write_completion(const struct tokenizer *tokenizer, const struct buf *queue,
                                 size_t byte_count, struct buf *out);
// The logprobs object of chat: one entry per token.
void api_scores_write_chat(const struct tokenizer *tokenizer, const struct buf *queue,
                           size_t byte_count, struct buf *out);

#endif
