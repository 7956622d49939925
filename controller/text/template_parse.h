// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TEMPLATE_PARSE_H
#define CONTROLLER_TEXT_TEMPLATE_PARSE_H

#include "common/arena.h"
#include "common/status.h"
#include "controller/text/template_ast.h"

// Tokens to tree, by recursive descent, with Jinja 3.1's grammar and precedence.
//
// The idea: what chat templates use is built; what they do not use (inheritance, includes, imports,
// recursive loops) is refused by name, with its line, when the model is opened, not when the first
// request comes.
//
//   Owns       nothing; the tree lives in the arena.
//   Thread     one at a time per arena.
//   Allocates  from the arena; a name table from the heap while parsing.
//   Fails      INVALID or UNSUPPORTED with the line, EXHAUSTED.

enum status template_parse(struct arena *arena, const char *source, size_t byte_count,
                           struct template_ast *out, struct error *err) MUST_USE;

// ---- shared by template_parse.c (statements) and template_parse_expr.c (expressions) -----------

struct template_parser {
    struct arena *arena;
    const struct template_token *tokens;
    size_t at;
    uint32_t nesting;
    uint32_t loops;                 // around the current statement, up to the nearest macro
    struct template_text *names;    // heap, BOUND_TEMPLATE_NAMES
    uint32_t name_count;
    uint32_t *slots;    // hash table over names, index + 1
};

const struct template_token *parser_peek(const struct template_parser *parser);
bool parser_is_sign(const struct template_parser *parser, const char *sign);
bool parser_is_name(const struct template_parser *parser, const char *name);
bool parser_skip_sign(struct template_parser *parser, const char *sign);
bool parser_skip_name(struct template_parser *parser, const char *name);
enum status parser_expect_sign(struct template_parser *parser, const char *sign,
                               struct error *err) MUST_USE;
enum status parser_fail(const struct template_parser *parser, struct error *err,
                        const char *what) MUST_USE;
enum status parser_node(struct template_parser *parser, enum template_node_kind kind,
                        struct template_node **out, struct error *err) MUST_USE;
enum status parser_intern(struct template_parser *parser, struct template_text text, uint32_t *name,
                          struct error *err) MUST_USE;
// Bounds recursion: enter before going down, leave after.
enum status parser_enter(struct template_parser *parser, struct error *err) MUST_USE;
void parser_leave(struct template_parser *parser);

enum status parse_expression(struct template_parser *parser, struct template_node **out,
                             struct error *err) MUST_USE;
// One expression, or several with commas as a tuple. `conditions` allows `a if b else c` at the
// top, which the iterable of a for loop must not have.
enum status parse_tuple(struct template_parser *parser, bool conditions, struct template_node **out,
                        struct error *err) MUST_USE;
// `| name(args) | ...` on top of `node`, as often as they follow.
enum status parse_filters(struct template_parser *parser, struct template_node *node,
                          struct template_node **out, struct error *err) MUST_USE;

#endif
