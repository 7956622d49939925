// SPDX-License-Identifier: Apache-2.0
// Statements, and what both parts of the parser share.
#include "controller/text/template_parse.h"

#include "common/bounds.h"
#include "common/hash.h"
#include "common/memory.h"
#include "controller/text/template_lex.h"
#include <string.h>

// ---- shared ------------------------------------------------------------------------------------

const struct template_token *parser_peek(const struct template_parser *p) {
    return &p->tokens[p->at];
}

bool parser_is_sign(const struct template_parser *p, const char *sign) {
    const struct template_token *token = parser_peek(p);
    return token->kind == TEMPLATE_TOKEN_SIGN && template_text_is(token->text, sign);
}

bool parser_is_name(const struct template_parser *p, const char *name) {
    const struct template_token *token = parser_peek(p);
    return token->kind == TEMPLATE_TOKEN_NAME && template_text_is(token->text, name);
}

bool parser_skip_sign(struct template_parser *p, const char *sign) {
    bool is = parser_is_sign(p, sign);
    p->at += is ? 1 : 0;
    return is;
}

bool parser_skip_name(struct template_parser *p, const char *name) {
    bool is = parser_is_name(p, name);
    p->at += is ? 1 : 0;
    return is;
}

enum status parser_fail(const struct template_parser *p, struct error *err, const char *what) {
    const struct template_token *token = parser_peek(p);
    int shown = token->text.byte_count > 40 ? 40 : (int)token->text.byte_count;
    return error_set(err, STATUS_INVALID, "chat template, line %u: %s, before '%.*s'", token->line,
                     what, shown, shown > 0 ? token->text.bytes : "");
}

enum status parser_expect_sign(struct template_parser *p, const char *sign, struct error *err) {
    if (!parser_skip_sign(p, sign)) {
        char what[32] = "' ' is expected";
        what[1] = sign[0];
        return parser_fail(p, err, what);
    }
    return STATUS_OK;
}

enum status parser_node(struct template_parser *p, enum template_node_kind kind,
                        struct template_node **out, struct error *err) {
    struct template_node *node = arena_alloc(p->arena, sizeof *node);
    if (node == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a template's syntax tree");
    }
    node->kind = kind;
    node->line = parser_peek(p)->line;
    *out = node;
    return STATUS_OK;
}

enum { NAME_SLOTS = 2 * BOUND_TEMPLATE_NAMES };
_Static_assert((NAME_SLOTS & (NAME_SLOTS - 1)) == 0, "slots are found with a mask");

enum status parser_intern(struct template_parser *p, struct template_text text, uint32_t *name,
                          struct error *err) {
    uint32_t i = (uint32_t)hash_bytes(text.bytes, text.byte_count) & (NAME_SLOTS - 1);
    for (; p->slots[i] != 0; i = (i + 1) & (NAME_SLOTS - 1)) {
        if (template_text_same(p->names[p->slots[i] - 1], text)) {
            *name = p->slots[i] - 1;
            return STATUS_OK;
        }
    }
    if (p->name_count == BOUND_TEMPLATE_NAMES) {
        return error_set(err, STATUS_INVALID, "a chat template uses more than %u names",
                         BOUND_TEMPLATE_NAMES);
    }
    *name = p->name_count;
    p->names[p->name_count++] = text;
    p->slots[i] = p->name_count;
    return STATUS_OK;
}

enum status parser_enter(struct template_parser *p, struct error *err) {
    if (p->nesting == BOUND_TEMPLATE_NESTING) {
        return parser_fail(p, err, "nesting is too deep");
    }
    p->nesting++;
    return STATUS_OK;
}

void parser_leave(struct template_parser *p) {
    p->nesting--;
}

// ---- targets and parameters --------------------------------------------------------------------

static enum status parse_target_name(struct template_parser *p, bool attributes,
                                     struct template_node **out, struct error *err) {
    const struct template_token *token = parser_peek(p);
    if (token->kind != TEMPLATE_TOKEN_NAME) {
        return parser_fail(p, err, "a name to assign to is expected");
    }
    TRY(parser_node(p, NODE_TARGET_NAME, out, err));
    (*out)->text = token->text;
    TRY(parser_intern(p, token->text, &(*out)->name, err));
    p->at++;
    if (attributes && parser_skip_sign(p, ".")) {
        if (parser_peek(p)->kind != TEMPLATE_TOKEN_NAME) {
            return parser_fail(p, err, "an attribute's name is expected");
        }
        (*out)->kind = NODE_TARGET_ATTRIBUTE;
        (*out)->text = parser_peek(p)->text;
        p->at++;
    }
    return STATUS_OK;
}

// a | a, b | (a, b) | a, (b, c)
static enum status parse_target(struct template_parser *p, bool attributes,
                                struct template_node **out, struct error *err) {
    TRY(parser_enter(p, err));
    struct template_node *first = NULL;
    struct template_node **tail = &first;
    bool tuple = false;
    for (;;) {
        if (parser_skip_sign(p, "(")) {
            TRY(parse_target(p, attributes, tail, err));
            TRY(parser_expect_sign(p, ")", err));
        } else {
            TRY(parse_target_name(p, attributes, tail, err));
        }
        tail = &(*tail)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
        tuple = true;
        if (parser_is_name(p, "in") || parser_is_sign(p, "=") || parser_is_sign(p, ")")) {
            break;
        }
    }
    *out = first;
    if (tuple) {
        TRY(parser_node(p, NODE_TARGET_TUPLE, out, err));
        (*out)->list = first;
    }
    parser_leave(p);
    return STATUS_OK;
}

// (a, b=1)
static enum status parse_parameters(struct template_parser *p, struct template_node **list,
                                    struct error *err) {
    TRY(parser_expect_sign(p, "(", err));
    bool defaults = false;
    while (!parser_is_sign(p, ")")) {
        TRY(parse_target_name(p, false, list, err));
        (*list)->kind = NODE_PARAMETER;
        if (parser_skip_sign(p, "=")) {
            defaults = true;
            TRY(parse_expression(p, &(*list)->a, err));
        } else if (defaults) {
            return parser_fail(p, err, "a parameter without a default follows one with");
        }
        list = &(*list)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
    }
    return parser_expect_sign(p, ")", err);
}

// ---- statements --------------------------------------------------------------------------------

static enum status parse_body(struct template_parser *p, const char *const *ends,
                              struct template_node **list, struct error *err);

static enum status block_end(struct template_parser *p, struct error *err) {
    if (parser_peek(p)->kind != TEMPLATE_TOKEN_BLOCK_END) {
        return parser_fail(p, err, "'%}' is expected");
    }
    p->at++;
    return STATUS_OK;
}

// The tag that closes `what` has been reached; parse_body stops on its name.
static enum status close_tag(struct template_parser *p, const char *name, struct error *err) {
    if (!parser_skip_name(p, name)) {
        char what[48];
        size_t n = strlen(name);
        memcpy(what, name, n);
        memcpy(what + n, " is missing", sizeof " is missing");
        return parser_fail(p, err, what);
    }
    return block_end(p, err);
}

static enum status parse_if(struct template_parser *p, struct template_node **out,
                            struct error *err) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct template_node **slot = out;
    do {
        TRY(parser_node(p, NODE_IF, slot, err));
        p->at++;    // if or elif
        TRY(parse_tuple(p, true, &(*slot)->a, err));
        TRY(block_end(p, err));
        TRY(parse_body(p, ends, &(*slot)->list, err));
        slot = &(*slot)->other;
    } while (parser_is_name(p, "elif"));
    if (parser_skip_name(p, "else")) {
        TRY(block_end(p, err));
        TRY(parse_body(p, last, slot, err));
    }
    return close_tag(p, "endif", err);
}

static enum status parse_for(struct template_parser *p, struct template_node **out,
                             struct error *err) {
    static const char *const ends[] = {"else", "endfor", NULL};
    TRY(parser_node(p, NODE_FOR, out, err));
    p->at++;
    TRY(parse_target(p, false, &(*out)->target, err));
    if (!parser_skip_name(p, "in")) {
        return parser_fail(p, err, "'in' is expected");
    }
    TRY(parse_tuple(p, false, &(*out)->a, err));
    if (parser_skip_name(p, "if")) {
        TRY(parse_expression(p, &(*out)->b, err));
    }
    if (parser_is_name(p, "recursive")) {
        return parser_fail(p, err, "recursive loops are not supported");
    }
    TRY(block_end(p, err));
    p->loops++;
    TRY(parse_body(p, ends, &(*out)->list, err));
    p->loops--;
    if (parser_skip_name(p, "else")) {
        TRY(block_end(p, err));
        TRY(parse_body(p, ends + 1, &(*out)->other, err));
    }
    return close_tag(p, "endfor", err);
}

static enum status parse_set(struct template_parser *p, struct template_node **out,
                             struct error *err) {
    static const char *const ends[] = {"endset", NULL};
    TRY(parser_node(p, NODE_SET, out, err));
    p->at++;
    TRY(parse_target(p, true, &(*out)->target, err));
    if (parser_skip_sign(p, "=")) {
        TRY(parse_tuple(p, true, &(*out)->a, err));
        return block_end(p, err);
    }
    (*out)->kind = NODE_SET_BLOCK;
    TRY(parse_filters(p, NULL, &(*out)->a, err));
    TRY(block_end(p, err));
    TRY(parse_body(p, ends, &(*out)->list, err));
    return close_tag(p, "endset", err);
}

static enum status parse_macro(struct template_parser *p, struct template_node **out,
                               struct error *err) {
    static const char *const ends[] = {"endmacro", NULL};
    p->at++;
    TRY(parse_target_name(p, false, out, err));
    (*out)->kind = NODE_MACRO;
    TRY(parse_parameters(p, &(*out)->target, err));
    TRY(block_end(p, err));
    uint32_t loops = p->loops;
    p->loops = 0;
    TRY(parse_body(p, ends, &(*out)->list, err));
    p->loops = loops;
    if (!parser_skip_name(p, "endmacro")) {
        return parser_fail(p, err, "endmacro is missing");
    }
    p->at += parser_peek(p)->kind == TEMPLATE_TOKEN_NAME ? 1 : 0;    // the name may be repeated
    return block_end(p, err);
}

static enum status parse_call_block(struct template_parser *p, struct template_node **out,
                                    struct error *err) {
    static const char *const ends[] = {"endcall", NULL};
    TRY(parser_node(p, NODE_CALL_BLOCK, out, err));
    p->at++;
    TRY(parser_node(p, NODE_MACRO, &(*out)->b, err));
    (*out)->b->name = TEMPLATE_NAME_CALLER;
    (*out)->b->text = (struct template_text){"caller", 6};
    if (parser_is_sign(p, "(")) {
        TRY(parse_parameters(p, &(*out)->b->target, err));
    }
    TRY(parse_expression(p, &(*out)->a, err));
    if ((*out)->a->kind != NODE_CALL) {
        return parser_fail(p, err, "a call is expected");
    }
    TRY(block_end(p, err));
    uint32_t loops = p->loops;
    p->loops = 0;
    TRY(parse_body(p, ends, &(*out)->b->list, err));
    p->loops = loops;
    return close_tag(p, "endcall", err);
}

static enum status parse_filter_block(struct template_parser *p, struct template_node **out,
                                      struct error *err) {
    static const char *const ends[] = {"endfilter", NULL};
    TRY(parser_node(p, NODE_FILTER_BLOCK, out, err));
    // `filter a | b` reads like `| a | b`: the word stands where the sign would.
    struct template_node *first = NULL;
    TRY(parser_node(p, NODE_FILTER, &first, err));
    p->at++;
    struct template_node *expression = NULL;
    TRY(parse_expression(p, &expression, err));
    struct template_node *innermost = expression;
    while (innermost->kind == NODE_FILTER && innermost->a != NULL) {
        if (innermost->a->kind != NODE_FILTER) {
            break;
        }
        innermost = innermost->a;
    }
    struct template_node *head = innermost->kind == NODE_FILTER ? innermost->a : expression;
    if (head->kind != NODE_NAME && (head->kind != NODE_CALL || head->a->kind != NODE_NAME)) {
        return parser_fail(p, err, "a filter's name is expected");
    }
    first->text = head->kind == NODE_CALL ? head->a->text : head->text;
    first->list = head->kind == NODE_CALL ? head->list : NULL;
    if (innermost->kind == NODE_FILTER) {
        innermost->a = first;
    }
    (*out)->a = innermost->kind == NODE_FILTER ? expression : first;
    TRY(block_end(p, err));
    TRY(parse_body(p, ends, &(*out)->list, err));
    return close_tag(p, "endfilter", err);
}

// {% with a = 1, b = 2 %}
static enum status parse_with(struct template_parser *p, struct template_node **out,
                              struct error *err) {
    static const char *const ends[] = {"endwith", NULL};
    TRY(parser_node(p, NODE_SCOPE, out, err));
    p->at++;
    struct template_node **tail = &(*out)->target;
    while (parser_peek(p)->kind != TEMPLATE_TOKEN_BLOCK_END) {
        TRY(parser_node(p, NODE_SET, tail, err));
        TRY(parse_target_name(p, false, &(*tail)->target, err));
        TRY(parser_expect_sign(p, "=", err));
        TRY(parse_expression(p, &(*tail)->a, err));
        tail = &(*tail)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
    }
    TRY(block_end(p, err));
    TRY(parse_body(p, ends, &(*out)->list, err));
    return close_tag(p, "endwith", err);
}

// {% generation %} marks what the assistant said, for training; here it is only a scope.
static enum status parse_generation(struct template_parser *p, struct template_node **out,
                                    struct error *err) {
    static const char *const ends[] = {"endgeneration", NULL};
    TRY(parser_node(p, NODE_SCOPE, out, err));
    p->at++;
    TRY(block_end(p, err));
    TRY(parse_body(p, ends, &(*out)->list, err));
    return close_tag(p, "endgeneration", err);
}

static enum status parse_jump(struct template_parser *p, struct template_node **out,
                              struct error *err) {
    if (p->loops == 0) {
        return parser_fail(p, err, "break and continue stand outside a loop");
    }
    TRY(parser_node(p, parser_is_name(p, "break") ? NODE_BREAK : NODE_CONTINUE, out, err));
    p->at++;
    return block_end(p, err);
}

typedef enum status (*statement_fn)(struct template_parser *p, struct template_node **out,
                                    struct error *err);

static enum status parse_statement(struct template_parser *p, struct template_node **out,
                                   struct error *err) {
    static const struct {
        const char *word;
        statement_fn fn;
    } rows[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
        {"break", parse_jump},      {"continue", parse_jump},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (parser_is_name(p, rows[i].word)) {
            TRY(parser_enter(p, err));
            TRY(rows[i].fn(p, out, err));
            parser_leave(p);
            return STATUS_OK;
        }
    }
    TRY(parser_fail(p, err, "an unknown or unsupported tag"));
    return STATUS_OK;
}

static bool at_end(const struct template_parser *p, const char *const *ends) {
    for (; *ends != NULL; ends++) {
        if (parser_is_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

// Statements up to a tag whose name is in `ends`, on which the parser then stands; with no names,
// up to the end of the source.
static enum status parse_body(struct template_parser *p, const char *const *ends,
                              struct template_node **list, struct error *err) {
    for (;;) {
        const struct template_token *token = parser_peek(p);
        switch (token->kind) {
        case TEMPLATE_TOKEN_TEXT:
            TRY(parser_node(p, NODE_TEXT, list, err));
            (*list)->text = token->text;
            p->at++;
            break;
        case TEMPLATE_TOKEN_VARIABLE_BEGIN:
            TRY(parser_node(p, NODE_OUTPUT, list, err));
            p->at++;
            TRY(parse_tuple(p, true, &(*list)->a, err));
            if (parser_peek(p)->kind != TEMPLATE_TOKEN_VARIABLE_END) {
                return parser_fail(p, err, "'}}' is expected");
            }
            p->at++;
            break;
        case TEMPLATE_TOKEN_BLOCK_BEGIN:
            p->at++;
            if (at_end(p, ends)) {
                return STATUS_OK;
            }
            TRY(parse_statement(p, list, err));
            break;
        case TEMPLATE_TOKEN_END:
            if (*ends != NULL) {
                return parser_fail(p, err, "the template ends inside a block");
            }
            return STATUS_OK;
        case TEMPLATE_TOKEN_VARIABLE_END:
        case TEMPLATE_TOKEN_BLOCK_END:
        case TEMPLATE_TOKEN_NAME:
        case TEMPLATE_TOKEN_STRING:
        case TEMPLATE_TOKEN_INT:
        case TEMPLATE_TOKEN_FLOAT:
        case TEMPLATE_TOKEN_SIGN:
            return parser_fail(p, err, "unexpected token");
        }
        list = &(*list)->next;
    }
}

// ---- the whole source --------------------------------------------------------------------------

static enum status parse_all(struct template_parser *p, struct template_ast *out,
                             struct error *err) {
    static const char *const no_ends[] = {NULL};
    static const struct template_text known[TEMPLATE_NAME_KNOWN_COUNT] = {
        [TEMPLATE_NAME_LOOP] = {"loop", 4}, [TEMPLATE_NAME_CALLER] = {"caller", 6}};
    for (uint32_t i = 0; i < TEMPLATE_NAME_KNOWN_COUNT; i++) {
        uint32_t name = 0;
        TRY(parser_intern(p, known[i], &name, err));
    }
    TRY(parse_body(p, no_ends, &out->body, err));
    struct template_text *names = arena_array(p->arena, p->name_count, sizeof *names);
    if (names == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a template's names");
    }
    memcpy(names, p->names, p->name_count * sizeof *names);
    out->names = names;
    out->name_count = p->name_count;
    return STATUS_OK;
}

enum status template_parse(struct arena *arena, const char *source, size_t byte_count,
                           struct template_ast *out, struct error *err) {
    struct template_tokens tokens = {0};
    TRY(template_lex(arena, source, byte_count, &tokens, err));
    struct template_parser parser = {.arena = arena, .tokens = tokens.items};
    parser.names = memory_array(BOUND_TEMPLATE_NAMES, sizeof *parser.names);
    parser.slots = memory_array(NAME_SLOTS, sizeof *parser.slots);
    enum status status = STATUS_OK;
    memset(out, 0, sizeof *out);
    if (parser.names == NULL || parser.slots == NULL) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory to parse a template");
    } else {
        status = parse_all(&parser, out, err);
    }
    memory_free(parser.names);
    memory_free(parser.slots);
    return status;
}
