// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_MODEL_TEXT_H
#define CONTROLLER_MODEL_TEXT_H

#include "common/status.h"
#include "controller/text/chat_template.h"
#include "controller/text/tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

// Everything textual about a served model: tokenizer, chat template, stop ids, sampling defaults,
// context length, name.
//
// The idea: MODEL is a GGUF file or a Hugging Face directory, and this is the one place that knows
// which file says what, and which one wins. Files are mapped, read, and let go before open returns.
//   GGUF        tokenizer.ggml.*, tokenizer.chat_template, ARCH.context_length, general.sampling.*
//   directory   tokenizer.json; chat_template.jinja before tokenizer_config.json; stop ids from
//               generation_config.json before config.json, and the tokenizer's eos_token with
//               either; defaults from generation_config.json; context from config.json
//
//   Owns       all it hands out.
//   Thread     immutable after open.
//   Allocates  in open.
//   Fails      NOT_FOUND, IO, CORRUPT, UNSUPPORTED, INVALID; the sentence names the file, and a
//   hint
//              says what to do.

struct model_text;

// What a request takes when it leaves a field out. Where the model says nothing: the API's own
// defaults, which are these.
struct model_text_sampling {
    float temperature;           // 1
    float top_p;                 // 1
    float min_p;                 // 0
    float repetition_penalty;    // 1
    uint32_t top_k;              // 0: off
};

// `chat_template` replaces the model's own template: a file's path, or the template itself; NULL
// keeps it.
enum status model_text_open(const char *path, const char *chat_template, struct model_text **out,
                            struct error *err) MUST_USE;
void model_text_close(struct model_text *text);    // accepts NULL

const struct tokenizer *model_text_tokenizer(const struct model_text *text);
const struct chat_template *model_text_template(const struct model_text *text);    // NULL: none
const char *model_text_template_source(const struct model_text *text);             // NULL: none
struct model_text_sampling model_text_sampling(const struct model_text *text);
uint32_t model_text_context_tokens(const struct model_text *text);    // what it was trained for
// Rows of the output matrix. Ids from tokenizer_vocabulary_tokens up to here pad the matrix: one
// that is drawn all the same has no text.
uint32_t model_text_logit_rows(const struct model_text *text);
// Last part of the path, without ".gguf": the name to serve under when none is given.
const char *model_text_name(const struct model_text *text);
const char *model_text_architecture(const struct model_text *text);    // "llama", or ""
// Texts for templates and for /tokenizer_info; "" when the model has none.
const char *model_text_bos_token(const struct model_text *text);
const char *model_text_eos_token(const struct model_text *text);

#endif
