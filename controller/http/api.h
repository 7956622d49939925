// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_H
#define CONTROLLER_HTTP_API_H

#include "common/metrics.h"
#include "common/status.h"
#include "controller/core/core.h"
#include "controller/http/api_gate.h"
#include "controller/http/api_params.h"
#include "controller/http/http_server.h"
#include "controller/stats.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// The OpenAI-shaped HTTP API: JSON requests become core requests, core actions become JSON bodies
// and event streams.
//
// The idea: the API is memory in, memory out. It gets whole requests as exchanges, hands sequences
// to the core through callbacks, and turns the core's actions into answers; it never waits and
// never touches a socket. One HTTP request is a call; each of its sequences (prompts x n) is a
// choice with a core request of its own. Tokens of a tick are only noted as they come; api_turn_end
// writes one event per choice, so that a finish reason rides on the last text and one tick is one
// write.
//
//   call:  parsed ──submitted──► waiting ──first token or alarm──► streaming ──► answered
//             │ refused             │ rejected                        │ fault      (error event)
//             ▼                     ▼                                 ▼
//          error answer         error answer, siblings cancelled    broken stream
//
//   A call outlives its answer until the core has ended all its sequences: the core appends to
//   their token arrays until then.
//
//   Owns       calls, choices, token arrays. The configuration's pointers are borrowed for life.
//   Thread     the loop thread.
//   Allocates  per request, through common/memory; per token only when a text buffer grows.
//   Fails      create: EXHAUSTED. A request's failure is an answer.

struct api;
struct background;
struct chat_template;
struct tokenizer;

// What is served. Strings and tables outlive the API.
struct api_model {
    const char *const *names;    // [name_count] served names; the first appears in answers
    uint32_t name_count;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template;    // NULL: the model cannot chat
    struct api_sampling_defaults defaults;
    uint64_t created_unix_s;
};

// One finished HTTP request, for the log. Strings live during the call only.
struct api_access {
    struct http_span method, path;    // absent when the head was refused
    int status;                       // 499 when the client left
    const char *request_id;
    const char *key_name;    // "" without one
    const char *model;       // "" where none is involved
    const char *finish;      // finish reason of the first choice, or error code, or ""
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    uint64_t ttft_us;    // 0 without a token
    uint64_t total_us;
    bool probe;    // health, metrics: not worth a line by default
};

// Where streamed responses are kept for a next controller. Without `begin` they are not.
struct api_journal {
    void *ctx;
    uint64_t (*begin)(void *ctx, const void *bytes, size_t byte_count);    // 0: not this one
    // False: the entry is none any more.
    bool (*step)(void *ctx, uint64_t entry, const void *bytes, size_t byte_count);
    void (*end)(void *ctx, uint64_t entry);
};

struct api_config {
    void *ctx;
    // Enqueues; the request is copied, its arrays stay the API's. BUSY: 429, else 503.
    enum status (*submit)(void *ctx, const struct core_request *request);
    void (*cancel)(void *ctx, struct request_id id);    // CORE_INPUT_CANCEL
    void (*stop)(void *ctx, struct request_id id);      // CORE_INPUT_STOP
    void (*metrics)(void *ctx, enum metric_format format, struct buf *out);
    void (*access)(void *ctx, const struct api_access *access);    // may be NULL

    struct api_journal journal;
    struct stats *stats;              // may be NULL
    struct background *background;    // reads large bodies; NULL: the loop does
    struct api_gate gate;
    const char *version, *commit;
    bool server_header;
    bool any_model_name;
    bool strict_max_tokens;
    bool prefix_caching;      // --enable-prefix-caching
    bool usage_always;        // --enable-force-include-usage
    uint32_t logprobs_max;    // --max-logprobs, <= BOUND_LOGPROBS
    // Prompts x n of one request, <= BOUND_SEQUENCES_PER_REQUEST: more than may wait could never be
    // accepted, and a 429 would send its client into an endless loop.
    uint32_t sequences_max;
    uint64_t seed;             // requests without one draw theirs from it
    uint64_t id_seed;          // unpredictable; request ids are drawn from it
    uint64_t head_delay_us;    // a stream's head leaves after this even without a token
    uint64_t keepalive_us;     // silence before two newlines; 0 = off
    uint64_t canary_us;        // limit of /healthz/step
};
void api_defaults(struct api_config *config);    // times, limits and names; no callbacks

// Copies `config`, not what it points to.
enum status api_create(const struct api_config *config, struct api **out,
                       struct error *err) MUST_USE;
// Drops calls without a word; exchanges must be gone, and with them whatever `background` was
// given.
void api_destroy(struct api *api);

// For http_server_config.handler.
struct http_handler api_handler(struct api *api);

// ---- state: who is healthy ---------------------------------------------------------------------

// Starting until the first capacity. Until then everything that needs a model is answered 503.
void api_set_model(struct api *api, const struct api_model *model);    // keeps `model`
void api_on_progress(struct api *api, const struct message_progress *progress);
void api_on_capacity(struct api *api, const struct message_capacity *capacity);    // ready
void api_on_worker_lost(struct api *api);               // recovering until the next capacity
void api_set_overdue(struct api *api, bool overdue);    // a step is past its deadline
void api_set_draining(struct api *api);
// Other keys from the next request on. Keeps `keys`; accounts must stay while calls are open.
void api_set_keys(struct api *api, const struct api_key *keys, uint32_t key_count);
void api_set_failed(struct api *api, const char *reason);    // for good; one sentence

// ---- the core's actions ------------------------------------------------------------------------

// TOKEN, FINISHED and REJECTED; others are ignored.
void api_on_action(struct api *api, const struct core_action *action, uint64_t now_us);
// After every tick: writes what its actions brought. Then http_server_flush sends it.
void api_turn_end(struct api *api, uint64_t now_us);

// ---- responses of an earlier controller --------------------------------------------------------

// What its journal says of one. The bytes are copied.
struct api_unfinished {
    uint64_t entry;
    const uint8_t *begin, *steps;    // see journal.h
    size_t begin_bytes, steps_bytes;
    uint64_t expires_us;    // nobody has asked for it until then: it is dropped
};
// False when it cannot be continued: the caller ends the entry.
bool api_stream_add(struct api *api, const struct api_unfinished *unfinished);
// Continues the next one, once a worker is there, and drops those that have expired. True while
// more of them could be continued.
bool api_streams_turn(struct api *api, uint64_t now_us);
uint64_t api_streams_resumed(const struct api *api);    // given to a client that asked

// Calls that are not answered yet, and sequences the core has not ended yet.
uint32_t api_open_calls(const struct api *api);
uint32_t api_live_sequences(const struct api *api);

#endif
