// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_HTTP_API_FIXTURE_H
#define TESTS_UNIT_CONTROLLER_HTTP_API_FIXTURE_H

#include "common/buf.h"
#include "common/json.h"
#include "controller/http/api.h"
#include "controller/http/http_exchange.h"
#include "controller/http/http_parse.h"
#include "tests/tiny_tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

// An API with a tiny tokenizer and a core that only records: tests play the core's part.
//
// The idea: the API is memory in, memory out, so a test writes a request as text, looks at what was
// submitted, feeds actions, and reads the answer as text.
//
// Owns everything it creates.  Thread one.  Allocates through common/memory.  Fails by assertion.

enum {
    FIXTURE_CONTEXT = 64,
    FIXTURE_SUBMITS = 8192,
};

// One client: a connection that serves one exchange at a time.
struct api_fixture_client {
    struct http_parser parser;
    struct http_exchange exchange;
    struct buf answer;    // everything it was sent
};

struct api_fixture {
    struct api *api;
    struct api_config config;
    struct api_model model;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct api_fixture_client
        client;    // the first one; others are made with api_fixture_client_init
    uint64_t now_us;

    struct core_request submits[FIXTURE_SUBMITS];
    bool alive[FIXTURE_SUBMITS];    // not ended by an action yet
    uint32_t submit_count, cancel_count, stop_count;
    struct request_id cancels[FIXTURE_SUBMITS], stops[FIXTURE_SUBMITS];
    enum status submit_status;    // what submit answers from now on
    uint64_t fail_nth;            // this allocation of on_request fails; 0 = none
    uint32_t submit_fail_at;      // the n-th from now on fails with submit_status; 0 = all
    struct api_access access;     // the last one
    char access_id[160], access_finish[64];
    uint32_t access_count;
};

// `configure` may change the configuration before the API is made; NULL for defaults.
void api_fixture_init(struct api_fixture *fixture, void (*configure)(struct api_config *config));
void api_fixture_deinit(struct api_fixture *fixture);
void api_fixture_ready(struct api_fixture *fixture);    // a worker with FIXTURE_CONTEXT is there

void api_fixture_client_init(struct api_fixture *fixture, struct api_fixture_client *client);
void api_fixture_client_deinit(struct api_fixture_client *client);

// Sends a whole request; the answer so far is in client->answer.
void api_fixture_send(struct api_fixture *fixture, struct api_fixture_client *client,
                      const char *request);
void api_fixture_post(struct api_fixture *fixture, const char *path, const char *body);
void api_fixture_get(struct api_fixture *fixture, const char *path);
// Moves what the API wrote into client->answer; true if there was anything.
bool api_fixture_collect(struct api_fixture_client *client);

// The core's part. `index` counts submits from 0.
void api_fixture_token(struct api_fixture *fixture, uint32_t index,
                       int32_t token);    // appended too
void api_fixture_row(struct api_fixture *fixture, uint32_t index, const struct result_row *row);
void api_fixture_finish(struct api_fixture *fixture, uint32_t index, enum finish_reason reason);
void api_fixture_reject(struct api_fixture *fixture, uint32_t index, enum reject_reason reason,
                        uint32_t retry_after_ms);
void api_fixture_turn(
    struct api_fixture *fixture);    // api_turn_end, then collect the first client
// Token, finish by LENGTH once output_max is reached; one turn per token.
void api_fixture_play(struct api_fixture *fixture, uint32_t index, const char *text);

int api_fixture_status(const struct api_fixture_client *client);    // of the answer
const char *api_fixture_field(const struct api_fixture_client *client,
                              const char *name);    // or NULL
// The body with chunk framing removed. `whole` may be NULL; else whether its end was sent.
const char *api_fixture_body(const struct api_fixture_client *client, bool *whole);
struct json_doc *api_fixture_json(const struct api_fixture_client *client);
// The n-th event's data of a stream as JSON; NULL when there is none. "[DONE]" is not counted.
struct json_doc *api_fixture_event(const struct api_fixture_client *client, uint32_t index);
uint32_t api_fixture_event_count(const struct api_fixture_client *client);

// Walks "a.b.0.c"; NULL when something on the way is missing.
const struct json *json_walk(const struct json *value, const char *path);
const char *json_walk_text(const struct json *value, const char *path);    // "" unless a string

#endif
