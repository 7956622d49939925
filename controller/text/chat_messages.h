// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_CHAT_MESSAGES_H
#define CONTROLLER_TEXT_CHAT_MESSAGES_H

#include "common/arena.h"
#include "common/json.h"
#include "common/status.h"
#include "controller/text/template_value.h"

// Messages from the wire, in the shape that chat templates were written for.
//
// The idea: templates assume what their authors tried out, and clients send what the API allows.
// The differences are settled here, once:
//   content null or missing      -> ""
//   any other null               -> the key is left out
//   content parts                -> joined with newlines, unless the template takes lists
//   part type input_text         -> text
//   role developer               -> system, unless the template knows it
//   tool_calls[].function.arguments, a string holding a JSON object -> that object
//   reasoning                    -> also reasoning_content, which templates read
//
//   Owns       parsed arguments, until chat_messages_deinit.
//   Thread     one at a time.
//   Allocates  from the arena; documents from the heap.
//   Fails      INVALID with the path of the field, EXHAUSTED.

struct chat_messages_options {
    bool keep_parts;
    bool keep_developer;
};

struct chat_messages {
    struct template_value value;    // the list; strings point into the caller's JSON
    struct json_doc **docs;         // parsed arguments
    size_t doc_count;
    size_t docs_allocated;
};

// deinit is due in either case.
enum status chat_messages_init(struct chat_messages *messages, struct arena *arena,
                               const struct json *json, struct chat_messages_options options,
                               struct error *err) MUST_USE;
void chat_messages_deinit(struct chat_messages *messages);

#endif
