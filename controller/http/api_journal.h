// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_JOURNAL_H
#define CONTROLLER_HTTP_API_JOURNAL_H

#include "controller/core/core.h"
#include "controller/http/api_call.h"

// How a streamed response lies in the journal: what it began with, and what each step brought.
//
// The idea: events are a function of the request, of a few things that were drawn for it, and of
// the portions in which its tokens came, because a portion is one event. So the request is kept as
// it was sent, with what was drawn, and of each portion the tokens: read again, they make the same
// events byte for byte, and nobody has to keep text. The items of a step are noted while they come
// and handed over just before their events are rendered.
//
//   Owns       nothing; `noted` of a call.
//   Thread     the loop thread.
//   Allocates  `noted` grows.
//   Fails      decoding: false, for bytes that this version cannot have written.

// With what an entry begins. Spans point into the bytes it was decoded from.
struct api_begin {
    enum api_call_kind kind;
    enum request_class class_;
    uint64_t salt;    // of its key
    uint64_t seed;
    uint64_t created_unix_s;
    uint64_t read_unix_s;      // the time that its template was told
    uint64_t prompt_digest;    // of all its prompts' tokens
    uint32_t choice_count;
    const uint8_t *output_max;    // [choice_count] uint32_t, not aligned
    struct http_span request_id, body_id, chunk_head, body;
};
bool api_begin_decode(const uint8_t *bytes, size_t byte_count, struct api_begin *out);
uint32_t api_begin_output_max(const struct api_begin *begin, uint32_t choice);
uint64_t api_prompt_digest(const struct api_reading *reading);

enum api_item_kind {
    API_ITEM_KIND_TOKEN = 1,    // generated, or a prompt's score
    API_ITEM_KIND_FINISH,       // the core ended the choice
    API_ITEM_KIND_CACHED,       // what was found of its prompt
};

struct api_item {
    enum api_item_kind kind;
    uint32_t choice;
    struct result_row row;    // TOKEN; its alternatives lie in the arrays below
    bool is_stop_token;
    enum finish_reason reason;    // FINISH: STOP or LENGTH
    uint32_t cached_tokens;       // CACHED
    int32_t top_tokens[BOUND_LOGPROBS];
    float top_logprobs[BOUND_LOGPROBS];
};
// Reads the item at `*at` and moves behind it; false where none lies.
bool api_item_next(const uint8_t *bytes, size_t byte_count, size_t *at, struct api_item *out);

// ---- from a call -------------------------------------------------------------------------------

// Begins its entry, if it is to have one: after prepare, before submit.
void api_journal_begin(struct api_call *call, const struct api_reading *reading);
// Goes on with the entry of an earlier controller.
void api_journal_go_on(struct api_call *call, uint64_t entry);
void api_journal_note(struct api_choice *choice, struct api_item *item);
void api_journal_note_token(struct api_choice *choice, const struct result_row *row,
                            bool is_stop_token);
// What was noted is a step: its events follow.
void api_journal_step(struct api_call *call);
// Nobody will ask for it any more.
void api_journal_end(struct api_call *call);

#endif
