// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_MODEL_TEXT_H
#define CONTROLLER_MODEL_TEXT_H

#include "common/status.h"
#include <stdint.h>

// What the controller needs of a model's files: tokenizer, chat template, sampling defaults, name.
//
// The idea: the worker reads tensors, the controller reads text, each on its own. A GGUF file holds
// all of it in its metadata; a Hugging Face directory spreads it over tokenizer.json,
// tokenizer_config.json, chat_template.jinja, generation_config.json and config.json, with the
// precedence of models.md 1.2.
//
//   Owns       tokenizer and template; files are closed again before open returns.
//   Thread     one while opening; immutable afterwards.
//   Allocates  while opening.
//   Fails      NOT_FOUND, CORRUPT, UNSUPPORTED, INVALID; the sentence names the file.

struct chat_template;
struct model_text;
struct tokenizer;

struct model_text_sampling {
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

// `template_path` replaces the model's own template; NULL keeps it.
enum status model_text_open(const char *path, const char *template_path, struct model_text **out,
                            struct error *err) MUST_USE;
void model_text_close(struct model_text *text);    // accepts NULL

const struct tokenizer *model_text_tokenizer(const struct model_text *text);
const struct chat_template *model_text_template(const struct model_text *text);    // NULL: no chat
struct model_text_sampling model_text_sampling(const struct model_text *text);
// The file's or directory's name without extension.
const char *model_text_name(const struct model_text *text);

#endif
