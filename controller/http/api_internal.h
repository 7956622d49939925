// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_INTERNAL_H
#define CONTROLLER_HTTP_API_INTERNAL_H

#include "common/rng.h"
#include "controller/http/api.h"
#include "controller/http/api_errors.h"

// What the files of the API share: its state, one request on its way (visit), and the functions of
// each route. Not for other modules.
//
//   Owns       see api.h.
//   Thread     the loop thread.
//   Allocates  see api.h.
//   Fails      route functions answer the exchange themselves.

enum api_state {
    API_STATE_STARTING,      // no capacity yet
    API_STATE_READY,         // a worker computes
    API_STATE_RECOVERING,    // the worker was lost; the core waits for another
    API_STATE_FAILED,        // it will not come back
};

enum {
    API_REQUEST_ID_BYTES = 129,    // 128 and a NUL
    API_TOKEN_TEXT_BYTES = 256,
    API_BODY_ID_BYTES = 160,    // "chatcmpl-" + request id + "-" + serial
};

// One request on its way to its answer. Points into the exchange's request, which lives as long.
struct api_visit {
    struct api *api;
    struct http_exchange *exchange;
    uint64_t now_us;
    struct api_account *account;    // of its key; NULL without keys
    uint64_t salt;                  // of its key: what was computed for it is found under it alone
    char request_id[API_REQUEST_ID_BYTES];
    bool id_is_clients;
    bool probe;
};

#define API_SLOT_NONE UINT32_MAX

// What a body is read against. Constant while one is read, on whatever thread.
struct api_facts {
    const struct api_model *model;                                          // NULL: none is set yet
    char bos_text[API_TOKEN_TEXT_BYTES], eos_text[API_TOKEN_TEXT_BYTES];    // "" for none
    uint32_t context_tokens;    // of the last capacity; 0 before the first
    uint32_t vocabulary;
    uint32_t logprobs_max;
    bool any_model_name;
};

struct api_progress {
    char phase[32];
    uint64_t bytes_done, bytes_total, bytes_per_s;
};

struct api_call;
struct api_choice;
struct api_later;
struct api_stream;

struct api_slot {
    struct api_choice *choice;
    uint64_t id;
    uint32_t next_free;
};

struct api {
    struct api_config config;
    struct api_facts facts;

    enum api_state state;
    bool draining, overdue;
    char failed_reason[256];
    struct api_progress progress;
    char fingerprint[64];    // system_fingerprint

    struct rng ids, seeds;
    uint64_t serial;
    struct api_slot *slots;    // [slot_count] the low bits of a core request id
    uint32_t slot_count, slot_free;
    uint64_t prompt_tokens_held;    // of all token arrays

    struct api_later *readings;    // bodies that helper threads read, newest first
    struct api_call *calls;        // newest first
    uint32_t open_calls, live_sequences;
    struct api_call *dirty;    // calls that api_turn_end must look at, in order
    struct api_call **dirty_end;

    struct api_stream *streams;    // of an earlier controller, nobody has them; oldest first
    uint32_t streams_waiting;      // of these, to be continued
    uint64_t streams_resumed;
    uint64_t streams_checked_us;    // when it was last looked whether they have expired

    struct buf body;      // an answer being built
    struct buf fields;    // its header lines
    char date[HTTP_DATE_BYTES];
    uint64_t date_unix_s;
    bool warned_of_ignored;
};

// ---- answering (api.c) -------------------------------------------------------------------------

void api_answer(struct api_visit *visit, int status, const char *content_type, const char *body,
                size_t body_bytes);
void api_answer_json(struct api_visit *visit, int status, const struct buf *body);
void api_answer_failure(struct api_visit *visit, const struct api_failure *failure);
// The header lines every answer carries, into api->fields.
void api_begin_fields(const struct api_visit *visit);
// May the visit's key have one more request? False with the failure filled, and counted.
bool api_judge_quota(struct api_visit *visit, struct api_failure *failure);
// Fills a random request id.
void api_make_id(struct api *api, char out[API_REQUEST_ID_BYTES]);
void api_log_access(struct api_visit *visit, struct api_access *access);
const char *api_gone_name(enum http_gone_reason reason);    // for the log

// Undoes the percent escapes of a path (api_models.c).
void api_unescape(struct http_span text, struct buf *out);

// ---- routes ------------------------------------------------------------------------------------

void api_chat_completions(struct api_visit *visit);
void api_completions(struct api_visit *visit);
void api_stream(struct api_visit *visit);    // "/v1/streams/" + id
void api_models(struct api_visit *visit);
void api_model(struct api_visit *visit);    // "/v1/models/" + id
void api_tokenize(struct api_visit *visit);
void api_detokenize(struct api_visit *visit);
void api_livez(struct api_visit *visit);
void api_health(struct api_visit *visit);
void api_ready(struct api_visit *visit);
void api_step_health(struct api_visit *visit);
void api_version(struct api_visit *visit);
void api_metrics(struct api_visit *visit);

// False with the failure filled while no answer can come out (api_health.c).
bool api_can_serve(const struct api *api, struct api_failure *failure);

#endif
