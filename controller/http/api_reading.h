// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_READING_H
#define CONTROLLER_HTTP_API_READING_H

#include "common/json.h"
#include "controller/http/api_internal.h"
#include "controller/http/api_params.h"
#include "controller/text/bpe.h"

// From the bytes of a body to what a route needs: parsed, judged, rendered, encoded.
//
// The idea: this half of a request only looks at tables that never change, so it may run anywhere.
// Small bodies are read on the loop, at once; large ones by a helper thread (background.h), from a
// body that was taken out of the exchange, against a copy of the facts. The other half (`finish`)
// makes the call or the answer and always runs on the loop. A client that leaves meanwhile costs
// what has begun, and its result is thrown away.
//
//   Owns       the document, prompts and answer of a reading.
//   Thread     `read` any; the rest the loop thread.
//   Allocates  through common/memory.
//   Fails      the failure in the reading is the answer.

// The tokens of prompt i lie between the end of prompt i - 1 and its own.
struct api_prompt {
    size_t token_end;
    bool bos_added;    // the first token was put there by us
};

struct api_reading {
    const struct api_facts *facts;
    const char *body;
    size_t body_bytes;
    uint64_t now_unix_s;    // what a template is told
    struct json_doc *doc;
    struct api_params params;    // stop strings point into the document
    struct token_list tokens;    // of all prompts, one after the other
    struct api_prompt *prompts;
    uint32_t prompt_count;
    struct buf answer;    // of routes that answer with what they read
    bool fine;
    struct api_failure failure;    // unless fine
};

// What a route does with a body.
struct api_reader {
    // May it be served now? On the loop, before and after reading.
    bool (*can)(const struct api *api, struct api_failure *failure);
    // False with the failure filled. `body` is an object.
    bool (*read)(struct api_reading *reading, const struct json_fields *body);
    void (*finish)(struct api_visit *visit, struct api_reading *reading);
};

// Serves the exchange of the visit, now or later.
void api_read(struct api_visit *visit, const struct api_reader *reader);
// The client of an exchange without a call has left.
void api_read_gone(struct api *api, struct http_exchange *exchange, enum http_gone_reason reason,
                   uint64_t now_us);

// A reading on its own: `reading` is the result of `reader`'s first half.
void api_reading_run(struct api_reading *reading, const struct api_facts *facts,
                     struct http_span body, uint64_t now_unix_s, const struct api_reader *reader);
void api_reading_deinit(struct api_reading *reading);
extern const struct api_reader api_chat_reader, api_completion_reader;

// ---- for readers -------------------------------------------------------------------------------

void api_params_rules(const struct api_facts *facts, enum api_endpoint endpoint,
                      struct api_params_rules *out);
// Room for `count` prompts; false with the failure filled.
bool api_reading_prompts(struct api_reading *reading, uint32_t count);
// Appends a prompt from text or from a JSON list of ids, each below the vocabulary. `param` is
// named when it is too long.
bool api_reading_text(struct api_reading *reading, struct http_span text, bool add_special,
                      const char *param);
bool api_reading_ids(struct api_reading *reading, const struct json *list, const char *param);
// Renders the messages of a body with the model's template.
bool api_render_chat(struct api_reading *reading, const struct json_fields *body, struct buf *out);
// Judges `model` of a body: absent and empty are fine (api_models.c).
bool api_check_model(const struct api_facts *facts, const struct json_fields *body,
                     struct api_failure *failure);

#endif
