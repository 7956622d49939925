// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_PRETOKENIZE_H
#define CONTROLLER_TEXT_PRETOKENIZE_H

#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Cuts text into the words that byte-level BPE then works on, one at a time.
//
// The idea: a pre-tokenizer is a short list of stages; each stage cuts every piece that the stage
// before left. The patterns of the families we serve are hand-written scanners (an order of
// magnitude faster than a regular-expression engine, and linear by construction); any other pattern
// runs in pcre2. A stage never looks outside its piece: the piece's ends are the text's ends.
// Broken bytes count as characters of no class, one each; in pcre2 stages every run of them is a
// word of its own.
//
//   Owns       its stages and compiled patterns.
//   Thread     any number at once; immutable once built.
//   Allocates  while stages are added; pretokenize_run only for pcre2 and prefix-space stages.
//   Fails      UNSUPPORTED for a pattern that does not compile, INVALID for a text that a pattern
//              cannot handle within its limits, EXHAUSTED.

struct pretokenizer;

enum pretokenize_rule {
    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    PRETOKENIZE_GPT2,
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
    // |\s*[\r\n]+|\s+(?!\S)|\s+
    PRETOKENIZE_LLAMA3,
    // LLAMA3 with \p{N} in place of \p{N}{1,3}
    PRETOKENIZE_QWEN2,
    // QWEN2 with marks among the letters: [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+
    PRETOKENIZE_QWEN35,
    PRETOKENIZE_DIGIT,     // every \p{N} alone, the rest in runs
    PRETOKENIZE_DIGITS,    // runs of \p{N}, and the rest in runs
    PRETOKENIZE_RULE_COUNT
};

// Called once per word, in order. A status other than OK ends the run with that status.
typedef enum status (*pretoken_fn)(void *context, const uint8_t *bytes, size_t byte_count,
                                   struct error *err);

// ---- life cycle --------------------------------------------------------------------------------

// With no stage at all the whole text is one word.
struct pretokenizer *pretokenizer_create(void);    // NULL without memory
void pretokenizer_destroy(struct pretokenizer *pre);

// Stages run in the order in which they are added, at most BOUND_PRETOKENIZER_STAGES of them.
enum status pretokenizer_add_rule(struct pretokenizer *pre, enum pretokenize_rule rule,
                                  struct error *err) MUST_USE;
// Words are the matches of a regular expression (Oniguruma's common subset, UTF-8) and what lies
// between; with `matches_only` the parts between are dropped. A pattern that equals a rule above,
// byte for byte, becomes that rule.
enum status pretokenizer_add_regex(struct pretokenizer *pre, const char *pattern, size_t byte_count,
                                   bool matches_only, struct error *err) MUST_USE;
// Each piece that does not start with a space gets one.
enum status pretokenizer_add_prefix_space(struct pretokenizer *pre, struct error *err) MUST_USE;

// ---- actions -----------------------------------------------------------------------------------

enum status pretokenize_run(const struct pretokenizer *pre, const uint8_t *bytes, size_t byte_count,
                            pretoken_fn fn, void *context, struct error *err) MUST_USE;

// Where the word that starts at bytes[at] ends (at < byte_count). Exposed for tests.
size_t pretokenize_scan(enum pretokenize_rule rule, const uint8_t *bytes, size_t byte_count,
                        size_t at);
const char *pretokenize_pattern(enum pretokenize_rule rule);    // the regular expression, or NULL

#endif
