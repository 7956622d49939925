// SPDX-License-Identifier: Apache-2.0
// Expressions. Precedence from loose to tight: if-else, or, and, not, comparisons, + -, ~, * / //
// %,
// **, signs, postfix (. [] ()), filters and tests.
#include "common/bounds.h"
#include "controller/text/template_lex.h"
#include "controller/text/template_parse.h"
#include <string.h>

static enum status parse_or(struct template_parser *p, struct template_node **out,
                            struct error *err);
static enum status parse_unary(struct template_parser *p, bool with_filters,
                               struct template_node **out, struct error *err);
static enum status parse_primary(struct template_parser *p, struct template_node **out,
                                 struct error *err);

static enum status constant(struct template_parser *p, struct template_value value,
                            struct template_node **out, struct error *err) {
    TRY(parser_node(p, NODE_CONST, out, err));
    (*out)->value = value;
    return STATUS_OK;
}

static enum status binary(struct template_parser *p, enum template_op op, struct template_node *a,
                          struct template_node *b, struct template_node **out, struct error *err) {
    TRY(parser_node(p, NODE_BINARY, out, err));
    (*out)->op = op;
    (*out)->a = a;
    (*out)->b = b;
    (*out)->line = a->line;
    return STATUS_OK;
}

// ---- literals ----------------------------------------------------------------------------------

// Adjacent string literals are one string.
static enum status parse_string(struct template_parser *p, struct template_node **out,
                                struct error *err) {
    size_t first = p->at;
    size_t byte_count = 0;
    while (parser_peek(p)->kind == TEMPLATE_TOKEN_STRING) {
        byte_count += parser_peek(p)->text.byte_count;
        p->at++;
    }
    char *joined = arena_alloc(p->arena, byte_count + 1);
    if (joined == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a template's strings");
    }
    size_t used = 0;
    for (size_t i = first; i < p->at; i++) {
        memcpy(joined + used, p->tokens[i].text.bytes, p->tokens[i].text.byte_count);
        used += p->tokens[i].text.byte_count;
    }
    return constant(p, template_string(joined, byte_count), out, err);
}

static enum status parse_list(struct template_parser *p, struct template_node **out,
                              struct error *err) {
    TRY(parser_node(p, NODE_LIST, out, err));
    struct template_node **tail = &(*out)->list;
    TRY(parser_expect_sign(p, "[", err));
    while (!parser_is_sign(p, "]")) {
        TRY(parse_expression(p, tail, err));
        tail = &(*tail)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
    }
    return parser_expect_sign(p, "]", err);
}

static enum status parse_dict(struct template_parser *p, struct template_node **out,
                              struct error *err) {
    TRY(parser_node(p, NODE_DICT, out, err));
    struct template_node **tail = &(*out)->list;
    TRY(parser_expect_sign(p, "{", err));
    while (!parser_is_sign(p, "}")) {
        TRY(parser_node(p, NODE_PAIR, tail, err));
        TRY(parse_expression(p, &(*tail)->a, err));
        TRY(parser_expect_sign(p, ":", err));
        TRY(parse_expression(p, &(*tail)->b, err));
        tail = &(*tail)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
    }
    return parser_expect_sign(p, "}", err);
}

static enum status parse_name(struct template_parser *p, struct template_node **out,
                              struct error *err) {
    static const struct {
        const char *word;
        enum template_kind kind;
        bool boolean;
    } words[] = {
        {"true", TEMPLATE_BOOL, true},   {"True", TEMPLATE_BOOL, true},
        {"false", TEMPLATE_BOOL, false}, {"False", TEMPLATE_BOOL, false},
        {"none", TEMPLATE_NONE, false},  {"None", TEMPLATE_NONE, false},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (parser_skip_name(p, words[i].word)) {
            struct template_value value = {.kind = words[i].kind, .as.boolean = words[i].boolean};
            return constant(p, value, out, err);
        }
    }
    TRY(parser_node(p, NODE_NAME, out, err));
    (*out)->text = parser_peek(p)->text;
    TRY(parser_intern(p, (*out)->text, &(*out)->name, err));
    p->at++;
    return STATUS_OK;
}

static enum status parse_parentheses(struct template_parser *p, struct template_node **out,
                                     struct error *err) {
    TRY(parser_expect_sign(p, "(", err));
    if (parser_is_sign(p, ")")) {
        TRY(parser_node(p, NODE_TUPLE, out, err));
    } else {
        TRY(parse_tuple(p, true, out, err));
    }
    return parser_expect_sign(p, ")", err);
}

static enum status parse_primary(struct template_parser *p, struct template_node **out,
                                 struct error *err) {
    const struct template_token *token = parser_peek(p);
    switch (token->kind) {
    case TEMPLATE_TOKEN_NAME:
        return parse_name(p, out, err);
    case TEMPLATE_TOKEN_STRING:
        return parse_string(p, out, err);
    case TEMPLATE_TOKEN_INT:
        p->at++;
        return constant(p, template_int(token->integer), out, err);
    case TEMPLATE_TOKEN_FLOAT:
        p->at++;
        return constant(p, template_float(token->real), out, err);
    case TEMPLATE_TOKEN_SIGN:
        if (parser_is_sign(p, "(")) {
            return parse_parentheses(p, out, err);
        }
        if (parser_is_sign(p, "[")) {
            return parse_list(p, out, err);
        }
        if (parser_is_sign(p, "{")) {
            return parse_dict(p, out, err);
        }
        break;
    case TEMPLATE_TOKEN_TEXT:
    case TEMPLATE_TOKEN_VARIABLE_BEGIN:
    case TEMPLATE_TOKEN_VARIABLE_END:
    case TEMPLATE_TOKEN_BLOCK_BEGIN:
    case TEMPLATE_TOKEN_BLOCK_END:
    case TEMPLATE_TOKEN_END:
        break;
    }
    return parser_fail(p, err, "an expression is expected");
}

// ---- postfix -----------------------------------------------------------------------------------

static enum status parse_attribute(struct template_parser *p, struct template_node *object,
                                   struct template_node **out, struct error *err) {
    p->at++;
    const struct template_token *token = parser_peek(p);
    if (token->kind == TEMPLATE_TOKEN_NAME) {
        TRY(parser_node(p, NODE_ATTRIBUTE, out, err));
        (*out)->text = token->text;
    } else if (token->kind == TEMPLATE_TOKEN_INT) {
        TRY(parser_node(p, NODE_ITEM, out, err));
        TRY(constant(p, template_int(token->integer), &(*out)->b, err));
    } else {
        return parser_fail(p, err, "a name is expected after '.'");
    }
    (*out)->a = object;
    p->at++;
    return STATUS_OK;
}

// a[i], a[b:c], a[b:c:d]
static enum status parse_subscript(struct template_parser *p, struct template_node *object,
                                   struct template_node **out, struct error *err) {
    TRY(parser_expect_sign(p, "[", err));
    struct template_node *parts[3] = {NULL, NULL, NULL};
    uint32_t colons = 0;
    while (!parser_is_sign(p, "]")) {
        if (parser_skip_sign(p, ":")) {
            if (++colons > 2) {
                return parser_fail(p, err, "a slice has at most two ':'");
            }
            continue;
        }
        if (parts[colons] != NULL) {
            return parser_fail(p, err, "']' is expected");
        }
        TRY(parse_expression(p, &parts[colons], err));
    }
    p->at++;
    if (colons == 0 && parts[0] == NULL) {
        return parser_fail(p, err, "an index is expected");
    }
    TRY(parser_node(p, colons > 0 ? NODE_SLICE : NODE_ITEM, out, err));
    (*out)->a = object;
    (*out)->b = parts[0];
    (*out)->c = parts[1];
    (*out)->d = parts[2];
    return STATUS_OK;
}

// ( ... ) with keywords; p stands on "(".
static enum status parse_arguments(struct template_parser *p, struct template_node **list,
                                   struct error *err) {
    struct template_node **tail = list;
    bool keywords = false;
    TRY(parser_expect_sign(p, "(", err));
    while (!parser_is_sign(p, ")")) {
        if (parser_is_sign(p, "*") || parser_is_sign(p, "**")) {
            return parser_fail(p, err, "arguments with * are not supported");
        }
        TRY(parser_node(p, NODE_ARGUMENT, tail, err));
        const struct template_token *token = parser_peek(p);
        const struct template_token *after = token + 1;    // END is always behind
        bool keyword = token->kind == TEMPLATE_TOKEN_NAME && after->kind == TEMPLATE_TOKEN_SIGN &&
                       template_text_is(after->text, "=");
        if (keyword) {
            (*tail)->text = token->text;
            p->at += 2;
        } else if (keywords) {
            return parser_fail(p, err, "a positional argument follows a keyword");
        }
        keywords = keyword;
        TRY(parse_expression(p, &(*tail)->a, err));
        tail = &(*tail)->next;
        if (!parser_skip_sign(p, ",")) {
            break;
        }
    }
    return parser_expect_sign(p, ")", err);
}

static enum status parse_call(struct template_parser *p, struct template_node *callee,
                              struct template_node **out, struct error *err) {
    TRY(parser_node(p, NODE_CALL, out, err));
    (*out)->a = callee;
    return parse_arguments(p, &(*out)->list, err);
}

static enum status parse_postfix(struct template_parser *p, struct template_node *node,
                                 struct template_node **out, struct error *err) {
    for (;;) {
        if (parser_is_sign(p, ".")) {
            TRY(parse_attribute(p, node, &node, err));
        } else if (parser_is_sign(p, "[")) {
            TRY(parse_subscript(p, node, &node, err));
        } else if (parser_is_sign(p, "(")) {
            TRY(parse_call(p, node, &node, err));
        } else {
            *out = node;
            return STATUS_OK;
        }
    }
}

// ---- filters and tests -------------------------------------------------------------------------

static enum status parse_filter(struct template_parser *p, struct template_node *value,
                                struct template_node **out, struct error *err) {
    p->at++;
    if (parser_peek(p)->kind != TEMPLATE_TOKEN_NAME) {
        return parser_fail(p, err, "a filter's name is expected after '|'");
    }
    TRY(parser_node(p, NODE_FILTER, out, err));
    (*out)->text = parser_peek(p)->text;
    (*out)->a = value;
    p->at++;
    return parser_is_sign(p, "(") ? parse_arguments(p, &(*out)->list, err) : STATUS_OK;
}

enum status parse_filters(struct template_parser *p, struct template_node *node,
                          struct template_node **out, struct error *err) {
    while (parser_is_sign(p, "|")) {
        TRY(parse_filter(p, node, &node, err));
    }
    *out = node;
    return STATUS_OK;
}

// A test may have one argument without parentheses: `is divisibleby 3`, `is equalto x`.
static bool argument_follows(const struct template_parser *p) {
    switch (parser_peek(p)->kind) {
    case TEMPLATE_TOKEN_NAME:
        return !parser_is_name(p, "else") && !parser_is_name(p, "or") &&
               !parser_is_name(p, "and") && !parser_is_name(p, "if") && !parser_is_name(p, "is") &&
               !parser_is_name(p, "not") && !parser_is_name(p, "in");
    case TEMPLATE_TOKEN_STRING:
    case TEMPLATE_TOKEN_INT:
    case TEMPLATE_TOKEN_FLOAT:
        return true;
    case TEMPLATE_TOKEN_SIGN:
        return parser_is_sign(p, "[") || parser_is_sign(p, "{");
    case TEMPLATE_TOKEN_TEXT:
    case TEMPLATE_TOKEN_VARIABLE_BEGIN:
    case TEMPLATE_TOKEN_VARIABLE_END:
    case TEMPLATE_TOKEN_BLOCK_BEGIN:
    case TEMPLATE_TOKEN_BLOCK_END:
    case TEMPLATE_TOKEN_END:
        break;
    }
    return false;
}

static enum status parse_test(struct template_parser *p, struct template_node *value,
                              struct template_node **out, struct error *err) {
    p->at++;
    TRY(parser_node(p, NODE_TEST, out, err));
    (*out)->a = value;
    (*out)->flag = parser_skip_name(p, "not");
    if (parser_peek(p)->kind != TEMPLATE_TOKEN_NAME) {
        return parser_fail(p, err, "a test's name is expected after 'is'");
    }
    (*out)->text = parser_peek(p)->text;
    p->at++;
    if (parser_is_sign(p, "(")) {
        return parse_arguments(p, &(*out)->list, err);
    }
    if (argument_follows(p)) {
        TRY(parser_node(p, NODE_ARGUMENT, &(*out)->list, err));
        struct template_node *argument = NULL;
        TRY(parse_primary(p, &argument, err));
        return parse_postfix(p, argument, &(*out)->list->a, err);
    }
    return STATUS_OK;
}

static enum status parse_filters_and_tests(struct template_parser *p, struct template_node *node,
                                           struct template_node **out, struct error *err) {
    for (;;) {
        if (parser_is_sign(p, "|")) {
            TRY(parse_filter(p, node, &node, err));
        } else if (parser_is_name(p, "is")) {
            TRY(parse_test(p, node, &node, err));
        } else if (parser_is_sign(p, "(")) {
            TRY(parse_call(p, node, &node, err));
        } else {
            *out = node;
            return STATUS_OK;
        }
    }
}

// ---- operators ---------------------------------------------------------------------------------

static enum status parse_unary(struct template_parser *p, bool with_filters,
                               struct template_node **out, struct error *err) {
    TRY(parser_enter(p, err));
    struct template_node *node = NULL;
    bool minus = parser_is_sign(p, "-");
    if (minus || parser_is_sign(p, "+")) {
        TRY(parser_node(p, minus ? NODE_NEGATE : NODE_PLUS, &node, err));
        p->at++;
        TRY(parse_unary(p, false, &node->a, err));
    } else {
        TRY(parse_primary(p, &node, err));
    }
    TRY(parse_postfix(p, node, &node, err));
    if (with_filters) {
        TRY(parse_filters_and_tests(p, node, &node, err));
    }
    parser_leave(p);
    *out = node;
    return STATUS_OK;
}

struct sign_op {
    const char *sign;
    enum template_op op;
};

// The operator that the parser stands on, of those in `table`; NULL if none.
static const struct sign_op *sign_of(const struct template_parser *p, const struct sign_op *table) {
    for (; table->sign != NULL; table++) {
        if (parser_is_sign(p, table->sign)) {
            return table;
        }
    }
    return NULL;
}

static enum status parse_power(struct template_parser *p, struct template_node **out,
                               struct error *err) {
    struct template_node *left = NULL;
    TRY(parse_unary(p, true, &left, err));
    while (parser_skip_sign(p, "**")) {
        struct template_node *right = NULL;
        TRY(parse_unary(p, true, &right, err));
        TRY(binary(p, OP_POW, left, right, &left, err));
    }
    *out = left;
    return STATUS_OK;
}

// The three levels of left-associative operators: 0: + -, 1: ~, 2: * / // %
static enum status parse_level(struct template_parser *p, uint32_t level,
                               struct template_node **out, struct error *err) {
    static const struct sign_op tables[3][5] = {
        {{"+", OP_ADD}, {"-", OP_SUB}, {NULL, OP_ADD}},
        {{"~", OP_CONCAT}, {NULL, OP_ADD}},
        {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}, {NULL, OP_ADD}},
    };
    if (level == 3) {
        return parse_power(p, out, err);
    }
    struct template_node *left = NULL;
    TRY(parse_level(p, level + 1, &left, err));
    const struct sign_op *found = sign_of(p, tables[level]);
    while (found != NULL) {
        p->at++;
        struct template_node *right = NULL;
        TRY(parse_level(p, level + 1, &right, err));
        TRY(binary(p, found->op, left, right, &left, err));
        found = sign_of(p, tables[level]);
    }
    *out = left;
    return STATUS_OK;
}

static bool compare_op(struct template_parser *p, enum template_op *op) {
    static const struct sign_op table[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE},
                                           {">=", OP_GE}, {"<", OP_LT},  {">", OP_GT},
                                           {NULL, OP_ADD}};
    const struct sign_op *found = sign_of(p, table);
    if (found != NULL) {
        p->at++;
        *op = found->op;
        return true;
    }
    if (parser_skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    const struct template_token *after = parser_peek(p) + 1;
    if (parser_is_name(p, "not") && after->kind == TEMPLATE_TOKEN_NAME &&
        template_text_is(after->text, "in")) {
        p->at += 2;
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

static enum status parse_compare(struct template_parser *p, struct template_node **out,
                                 struct error *err) {
    struct template_node *first = NULL;
    TRY(parse_level(p, 0, &first, err));
    enum template_op op = OP_EQ;
    if (!compare_op(p, &op)) {
        *out = first;
        return STATUS_OK;
    }
    TRY(parser_node(p, NODE_COMPARE, out, err));
    (*out)->a = first;
    struct template_node **tail = &(*out)->list;
    do {
        TRY(parser_node(p, NODE_OPERAND, tail, err));
        (*tail)->op = op;
        TRY(parse_level(p, 0, &(*tail)->a, err));
        tail = &(*tail)->next;
    } while (compare_op(p, &op));
    return STATUS_OK;
}

static enum status parse_not(struct template_parser *p, struct template_node **out,
                             struct error *err) {
    if (!parser_is_name(p, "not")) {
        return parse_compare(p, out, err);
    }
    TRY(parser_enter(p, err));
    TRY(parser_node(p, NODE_NOT, out, err));
    p->at++;
    TRY(parse_not(p, &(*out)->a, err));
    parser_leave(p);
    return STATUS_OK;
}

static enum status parse_and(struct template_parser *p, struct template_node **out,
                             struct error *err) {
    struct template_node *left = NULL;
    TRY(parse_not(p, &left, err));
    while (parser_skip_name(p, "and")) {
        struct template_node *node = NULL;
        TRY(parser_node(p, NODE_AND, &node, err));
        node->a = left;
        TRY(parse_not(p, &node->b, err));
        left = node;
    }
    *out = left;
    return STATUS_OK;
}

static enum status parse_or(struct template_parser *p, struct template_node **out,
                            struct error *err) {
    struct template_node *left = NULL;
    TRY(parse_and(p, &left, err));
    while (parser_skip_name(p, "or")) {
        struct template_node *node = NULL;
        TRY(parser_node(p, NODE_OR, &node, err));
        node->a = left;
        TRY(parse_and(p, &node->b, err));
        left = node;
    }
    *out = left;
    return STATUS_OK;
}

enum status parse_expression(struct template_parser *p, struct template_node **out,
                             struct error *err) {
    TRY(parser_enter(p, err));
    struct template_node *node = NULL;
    TRY(parse_or(p, &node, err));
    while (parser_skip_name(p, "if")) {
        struct template_node *condition = NULL;
        TRY(parser_node(p, NODE_CONDITION, &condition, err));
        condition->a = node;
        TRY(parse_or(p, &condition->b, err));
        if (parser_skip_name(p, "else")) {
            TRY(parse_expression(p, &condition->c, err));
        }
        node = condition;
    }
    parser_leave(p);
    *out = node;
    return STATUS_OK;
}

// Where a tuple without parentheses may end after a comma.
static bool tuple_ends(const struct template_parser *p) {
    enum template_token_kind kind = parser_peek(p)->kind;
    return kind == TEMPLATE_TOKEN_VARIABLE_END || kind == TEMPLATE_TOKEN_BLOCK_END ||
           kind == TEMPLATE_TOKEN_END || parser_is_sign(p, ")");
}

enum status parse_tuple(struct template_parser *p, bool conditions, struct template_node **out,
                        struct error *err) {
    struct template_node *first = NULL;
    if (conditions) {
        TRY(parse_expression(p, &first, err));
    } else {
        TRY(parse_or(p, &first, err));
    }
    if (!parser_is_sign(p, ",")) {
        *out = first;
        return STATUS_OK;
    }
    TRY(parser_node(p, NODE_TUPLE, out, err));
    (*out)->list = first;
    struct template_node **tail = &first->next;
    while (parser_skip_sign(p, ",") && !tuple_ends(p)) {
        if (conditions) {
            TRY(parse_expression(p, tail, err));
        } else {
            TRY(parse_or(p, tail, err));
        }
        tail = &(*tail)->next;
    }
    return STATUS_OK;
}
