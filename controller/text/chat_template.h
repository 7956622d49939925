// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_CHAT_TEMPLATE_H
#define CONTROLLER_TEXT_CHAT_TEMPLATE_H

#include "common/buf.h"
#include "common/json.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A model's chat template: compiled once, rendered for every request.
//
// The idea: templates are Jinja programs that ship with the model. This is a small interpreter of
// what they use, in a sandbox of its own making: it can read the values it is given and write text,
// within bounds on steps, memory, depth and output, and nothing else. Environment and meaning are
// those of the reference (transformers, Jinja 3.1: trim_blocks, lstrip_blocks, loop controls,
// immutable sandbox, JSON without HTML escapes). The clock is an argument.
//
//   Owns       the compiled template; nothing of the source is kept.
//   Thread     any number of renderings at once; immutable after chat_template_compile.
//   Allocates  in both; a rendering frees all it took before it returns.
//   Fails      compile: INVALID with the line. Render: INVALID with the line, or with exactly the
//              sentence that the template raised; EXHAUSTED.

struct chat_template;

struct chat_template_input {
    const struct json *messages;    // array of messages as on the OpenAI wire; required
    const struct json *tools;       // array, or NULL; [] and null are the same as NULL
    const struct json *kwargs;      // object of further variables (chat_template_kwargs), or NULL
    const char *bos_token;          // text, or NULL
    const char *eos_token;          // text, or NULL
    bool add_generation_prompt;
    bool continue_final_message;    // the prompt ends inside the last message; not with the above
    int64_t now_unix_s;             // for strftime_now
    int32_t utc_offset_s;
};

// ---- life cycle --------------------------------------------------------------------------------

enum status chat_template_compile(const char *source, size_t byte_count, struct chat_template **out,
                                  struct error *err) MUST_USE;
void chat_template_destroy(struct chat_template *tmpl);    // accepts NULL

// ---- actions -----------------------------------------------------------------------------------

// Appends the prompt to `out`. Messages are prepared as templates expect them (chat_messages.h).
enum status chat_template_render(const struct chat_template *tmpl,
                                 const struct chat_template_input *input, struct buf *out,
                                 struct error *err) MUST_USE;

#endif
