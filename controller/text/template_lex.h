// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TEMPLATE_LEX_H
#define CONTROLLER_TEXT_TEMPLATE_LEX_H

#include "common/arena.h"
#include "common/status.h"
#include "controller/text/template_value.h"
#include <stddef.h>
#include <stdint.h>

// Cuts a template into text and the tokens between the brackets, with whitespace control done.
//
// The idea: Jinja 3.1 with trim_blocks, lstrip_blocks and keep_trailing_newline off, as the
// reference sets it. All whitespace rules are settled here, so the parser sees plain text pieces:
//   -  beside a bracket strips all whitespace on its side;
//   +  turns off what the two options would do there;
//   trim_blocks: one newline right after %} and #} goes, not after }};
//   lstrip_blocks: blanks between the start of a line and {% or {# go, not before {{;
//   line ends become \n, and one newline at the very end goes.
//
//   Owns       nothing; tokens and their texts live in the arena.
//   Thread     one at a time per arena.
//   Allocates  from the arena.
//   Fails      INVALID with the line, EXHAUSTED.

enum template_token_kind {
    TEMPLATE_TOKEN_TEXT,    // between the brackets; never empty
    TEMPLATE_TOKEN_VARIABLE_BEGIN,
    TEMPLATE_TOKEN_VARIABLE_END,
    TEMPLATE_TOKEN_BLOCK_BEGIN,
    TEMPLATE_TOKEN_BLOCK_END,
    TEMPLATE_TOKEN_NAME,
    TEMPLATE_TOKEN_STRING,    // escapes resolved
    TEMPLATE_TOKEN_INT,
    TEMPLATE_TOKEN_FLOAT,
    TEMPLATE_TOKEN_SIGN,    // an operator or bracket of one or two characters
    TEMPLATE_TOKEN_END,
};

struct template_token {
    enum template_token_kind kind;
    uint32_t line;
    struct template_text text;    // of TEXT, NAME, STRING, SIGN
    int64_t integer;
    double real;
};

struct template_tokens {
    struct template_token *items;    // the last one is END
    size_t count;
};

enum status template_lex(struct arena *arena, const char *source, size_t byte_count,
                         struct template_tokens *out, struct error *err) MUST_USE;

#endif
