// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_CALL_H
#define CONTROLLER_HTTP_API_CALL_H

#include "controller/http/api_internal.h"
#include "controller/http/api_params.h"
#include "controller/http/api_reading.h"
#include "controller/text/detokenizer.h"

// One generating request: its sequences, their text so far, and its way to an answer.
//
// The idea: a call owns everything it needs, so the JSON document, the parameters and the prompt
// lists are gone once it is submitted. Its answer and its sequences end at different times:
// `exchange` is NULL once the client has its answer or has left, `live_count` is 0 once the core
// has ended all sequences; only then the memory goes, in api_turn_end.
//
//   Owns       choices with their token arrays, bias and buffers.
//   Thread     the loop thread.
//   Allocates  see api.h.
//   Fails      api_call_create: false with the failure filled.

enum api_call_kind { API_CALL_KIND_COMPLETION, API_CALL_KIND_CHAT, API_CALL_KIND_CANARY };

enum api_stop_kind { API_STOP_KIND_NONE, API_STOP_KIND_TOKEN, API_STOP_KIND_STRING };

struct api_begin;

struct api_choice {
    struct api_call *call;
    uint32_t index;
    uint64_t id;                // core request; 0 before submit and after the core has ended it
    int32_t *tokens;            // [prompt_count + output_max]
    struct prefix_key *keys;    // of its KV blocks; NULL: it shares none
    uint32_t key_capacity;
    uint32_t cached_tokens;    // of the prompt, that were not computed again
    uint32_t prompt_count, output_max, output_count;
    bool first_of_prompt;     // counts the prompt in `usage`
    uint32_t scored_count;    // prompt positions scored so far

    struct detokenizer detokenizer;
    bool detokenizing;      // the detokenizer is initialised
    struct buf text;        // visible text that is not written yet; all of it without stream
    struct buf scores;      // api_scores queue of the same
    uint64_t raw_bytes;     // visible bytes of all tokens so far
    uint64_t text_chars;    // their code points

    uint64_t first_us, last_us;    // first and last token
    bool dirty;                    // something happened since the last write
    bool begun;                    // its first chunk was written
    bool finished;                 // the client's view: no more text
    bool finish_written;
    const char *finish_reason;    // static
    enum api_stop_kind stop_kind;
    uint32_t stop_index;    // token id, or index of the stop string
};

struct api_call {
    struct api_visit visit;            // `now_us` is renewed on every event
    struct http_exchange *exchange;    // NULL once answered or gone
    struct api_call *prev, *next;
    struct api_call *next_dirty;
    bool dirty;
    bool cancel_wanted;        // its sequences are of no use any more
    bool resumed;              // an earlier controller began it
    bool unattended;           // and no client has asked for it yet: its exchange is nobody's
    uint64_t journal_entry;    // 0: it has none
    struct buf noted;          // of its next step (api_journal.h)
    enum api_call_kind kind;
    char body_id[API_BODY_ID_BYTES];
    uint64_t created_unix_s;
    enum request_class class_;
    bool charged;     // to its account, which is told when the call is over
    bool refunded;    // what it was charged

    struct sampling_params sampling;    // shared by all choices but for `stream`
    struct token_bias *bias;
    uint32_t eos_count;
    bool stream, usage_in_stream, usage_in_every_chunk;
    bool echo, seed_given;
    uint64_t keepalive_us;
    struct buf chunk_head;    // what all chunks begin with, up to the choice's index
    uint32_t choice_count;
    uint32_t live_count;          // the core has not ended them
    uint32_t unfinished_count;    // the client waits for them
    uint64_t prompt_tokens;       // prompts counted once each
    struct api_choice choices[];
};

// What a call is made of; the prompts are copied.
struct api_call_spec {
    enum api_call_kind kind;
    struct api_params *params;    // its bias moves into the call
    uint32_t prompt_count;
    const struct api_begin *again;    // what an earlier controller had begun; NULL: it is new
};

// The call takes over the exchange, but nothing is submitted yet. NULL with the failure filled.
struct api_call *api_call_create(struct api_visit *visit, const struct api_call_spec *spec,
                                 struct api_failure *failure);
// Sets the prompt of the choices [prompt_index * n, (prompt_index + 1) * n). Judges its length.
bool api_call_set_prompt(struct api_call *call, const struct api_params *params,
                         uint32_t prompt_index, const uint32_t *tokens, size_t token_count,
                         struct api_failure *failure);
// With all prompts set: from here on it is an answer on its way.
void api_call_prepare(struct api_call *call);
// Hands every choice that is not finished to the core.
void api_call_submit(struct api_call *call);
// What an earlier controller had begun, read again: prepared as it was then, not submitted. NULL
// with the failure filled.
struct api_call *api_call_again(struct api_visit *visit, const struct api_begin *begin,
                                struct api_reading *reading, struct api_failure *failure);
// One step of it again: its items, then its events. False when they cannot be the call's.
bool api_call_replay(struct api_call *call, const uint8_t *items, size_t byte_count);
// Makes a call of what was read and submits it, or answers the failure.
void api_call_start(struct api_visit *visit, enum api_call_kind kind, struct api_reading *reading);
// Before submit, or from api_destroy: forgets everything.
void api_call_destroy(struct api_call *call);

// Ends the answer with an error, before or inside the stream; cancels what still runs.
void api_call_fail(struct api_call *call, const struct api_failure *failure);
void api_call_gone(struct api_call *call, enum http_gone_reason reason, uint64_t now_us);
void api_call_alarm(struct api_call *call, uint64_t now_us);

// Answers a whole body and lets go.
void api_call_answer(struct api_call *call, const struct buf *body);
// Logs the answer that is about to end.
void api_call_log(struct api_call *call, int status, const char *finish);
// The exchange has its answer; from here on the call only waits for the core.
void api_call_let_go(struct api_call *call);

// ---- shared by api_call.c and api_actions.c ----------------------------------------------------

// The choice of a core request; NULL once the core has ended it.
struct api_choice *api_slot_find(const struct api *api, struct request_id id);
void api_slot_give_back(struct api *api, struct api_choice *choice);
void api_call_touch(struct api_call *call);    // api_turn_end will look at it
void api_choice_finish(struct api_choice *choice, const char *reason);    // `reason` is static
// The core refused it before anything was done for it: its account gets back what it was charged.
void api_call_refund(struct api_call *call);
// Cancels what still runs.
void api_call_cancel(struct api_call *call);

// ---- text of a choice (api_text.c) -------------------------------------------------------------

// Copies the stop strings; false without memory.
bool api_text_begin(struct api_choice *choice, const struct api_params *params);
void api_text_deinit(struct api_choice *choice);
// The prompt's own text, for echo. `bos_added`: the first token was put there by us.
void api_text_echo(struct api_choice *choice, bool bos_added);
// One scored prompt position.
void api_text_score_prompt(struct api_choice *choice, const struct result_row *row);
// One generated token; `hidden`: it ended the sequence and has no text. True when a stop string
// matched: stop_kind and stop_index are then set.
bool api_text_token(struct api_choice *choice, const struct result_row *row, bool hidden);
// Releases what was held back, when the sequence ended without a stop string.
void api_text_end(struct api_choice *choice);
// True while some token's text is not decided yet.
bool api_text_holds_back(const struct api_choice *choice);
// Records at the front of `scores` whose text is out, in bytes.
size_t api_text_scores_ready(const struct api_choice *choice);

// ---- writing (api_render.c, api_canary.c) ------------------------------------------------------

void api_render_chunk_head(struct api_call *call);
void api_render_stream_head(struct api_visit *visit);    // OPEN only
// Writes what happened since the last turn into the stream.
void api_render_events(struct api_call *call);
// Builds and sends the whole answer.
void api_render_body(struct api_call *call);
void api_canary_answer(struct api_call *call, const char *skipped);    // `skipped`: why, or NULL

#endif
