// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TEMPLATE_AST_H
#define CONTROLLER_TEXT_TEMPLATE_AST_H

#include "controller/text/template_value.h"
#include <stdint.h>

// The syntax tree of a chat template.
//
// The idea: one node shape for everything; which fields a kind uses is written beside it. Lists of
// nodes are linked through `next`. Variables are numbers (`name`), given out while parsing, so that
// scopes compare integers.
//
//   Owns       nothing; nodes live in the template's arena and never change after parsing.
//   Thread     any number of readers.
//   Allocates  never.
//   Fails      never.

enum template_node_kind {
    // Expressions.
    NODE_CONST,        // value
    NODE_NAME,         // name, text
    NODE_LIST,         // list: elements
    NODE_TUPLE,        // list: elements
    NODE_DICT,         // list: NODE_PAIR
    NODE_PAIR,         // a: key, b: value
    NODE_ATTRIBUTE,    // a: object, text: name
    NODE_ITEM,         // a: object, b: index
    NODE_SLICE,        // a: object, b: start, c: stop, d: step; each may be NULL
    NODE_CALL,         // a: callee, list: arguments
    NODE_ARGUMENT,     // a: value, text: keyword (bytes NULL: positional)
    NODE_FILTER,       // a: value (NULL: the block's text), text: name, list: arguments
    NODE_TEST,         // a: value, text: name, list: arguments, flag: negated
    NODE_NOT,          // a
    NODE_NEGATE,       // a
    NODE_PLUS,         // a
    NODE_BINARY,       // a, b, op
    NODE_COMPARE,      // a: first, list: NODE_OPERAND
    NODE_OPERAND,      // a: value, op
    NODE_AND,          // a, b
    NODE_OR,           // a, b
    NODE_CONDITION,    // a: value if true, b: condition, c: otherwise or NULL
    // Statements.
    NODE_TEXT,            // text
    NODE_OUTPUT,          // a: expression
    NODE_IF,              // a: condition, list: body, other: else
    NODE_FOR,             // target, a: iterable, b: filter or NULL, list: body, other: else
    NODE_SET,             // target, a: value
    NODE_SET_BLOCK,       // target, a: filters over the block or NULL, list: body
    NODE_MACRO,           // name, text, target: parameters (NODE_PARAMETER), list: body
    NODE_PARAMETER,       // name, text, a: default or NULL
    NODE_CALL_BLOCK,      // a: NODE_CALL, b: a NODE_MACRO that becomes `caller`
    NODE_FILTER_BLOCK,    // a: filters over the block, list: body
    NODE_SCOPE,           // list: body in a scope of its own; target: NODE_SET first
    NODE_BREAK,
    NODE_CONTINUE,
    // Targets of assignments.
    NODE_TARGET_NAME,         // name, text
    NODE_TARGET_ATTRIBUTE,    // name: the namespace, text: the attribute
    NODE_TARGET_TUPLE,        // list: targets
};

enum template_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct template_node {
    enum template_node_kind kind;
    enum template_op op;
    uint32_t line;
    uint32_t name;
    bool flag;
    struct template_node *a;
    struct template_node *b;
    struct template_node *c;
    struct template_node *d;
    struct template_node *list;
    struct template_node *other;
    struct template_node *target;
    struct template_node *next;
    struct template_text text;
    struct template_value value;
};

// Names that the interpreter itself binds; every template's table starts with them.
enum template_known_name {
    TEMPLATE_NAME_LOOP,
    TEMPLATE_NAME_CALLER,
    TEMPLATE_NAME_KNOWN_COUNT,
};

struct template_ast {
    struct template_node *body;
    uint32_t name_count;
    const struct template_text *names;    // [name_count]
};

#endif
