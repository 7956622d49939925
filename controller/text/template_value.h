// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TEMPLATE_VALUE_H
#define CONTROLLER_TEXT_TEMPLATE_VALUE_H

#include "common/arena.h"
#include "common/buf.h"
#include "common/json.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The values that chat templates compute with, and what Python would say about them.
//
// The idea: templates were written against Python objects, so truth, equality, order, printing and
// indexing follow Python to the letter. Values are small and copied; what they point to lives in
// the arena of one rendering, in the template, or in the caller's JSON, and never changes, with one
// exception: a namespace, whose attributes templates may assign.
//
//   Owns       nothing; everything dies with the arena.
//   Thread     one at a time per arena.
//   Allocates  from the arena.
//   Fails      EXHAUSTED when the arena is full, INVALID for an operation Python would refuse.

enum template_kind {
    TEMPLATE_UNDEFINED,    // a name or attribute that is not there; prints as nothing
    TEMPLATE_NONE,
    TEMPLATE_BOOL,
    TEMPLATE_INT,
    TEMPLATE_FLOAT,
    TEMPLATE_STRING,
    TEMPLATE_LIST,
    TEMPLATE_DICT,
    TEMPLATE_NAMESPACE,
    TEMPLATE_LOOP,
    TEMPLATE_MACRO,
    TEMPLATE_METHOD,
    TEMPLATE_FUNCTION,
};

struct template_text {
    const char *bytes;    // UTF-8, may hold NUL
    size_t byte_count;
};

struct template_list;
struct template_dict;
struct template_loop;
struct template_macro;
struct template_method;

struct template_value {
    enum template_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct template_text string;    // of UNDEFINED: what was looked for, for messages
        const struct template_list *list;
        struct template_dict *dict;    // also of NAMESPACE
        const struct template_loop *loop;
        const struct template_macro *macro;
        const struct template_method *method;
        uint32_t function;
    } as;
};

struct template_list {
    size_t count;
    struct template_value *items;    // [count]
    bool tuple;                      // prints with parentheses
};

struct template_pair {
    struct template_value key;
    struct template_value value;
};

struct template_dict {
    size_t count;
    size_t allocated;
    struct template_pair *pairs;    // [count], in order of insertion
};

// A method that was looked up and not yet called: "abc".upper
struct template_method {
    struct template_value object;
    struct template_text name;
};

// ---- making values -----------------------------------------------------------------------------

struct template_value template_none(void);
struct template_value template_bool(bool value);
struct template_value template_int(int64_t value);
struct template_value template_float(double value);
struct template_value template_string(const char *bytes, size_t byte_count);
struct template_value template_literal(const char *text);    // static or long-lived
struct template_value template_undefined(struct template_text name);

// NULL when the arena is full.
struct template_list *template_list_create(struct arena *arena, size_t count);
struct template_dict *template_dict_create(struct arena *arena, size_t allocated);
// Sets or replaces a key.
enum status template_dict_set(struct arena *arena, struct template_dict *dict,
                              struct template_value key, struct template_value value,
                              struct error *err) MUST_USE;
// A copy of `bytes` in the arena.
enum status template_string_copy(struct arena *arena, const void *bytes, size_t byte_count,
                                 struct template_value *out, struct error *err) MUST_USE;
// The whole document below `json`; strings are borrowed. Integers stay integers, 1.0 stays a float.
enum status template_from_json(struct arena *arena, const struct json *json,
                               struct template_value *out, struct error *err) MUST_USE;

// ---- asking ------------------------------------------------------------------------------------

bool template_truth(const struct template_value *value);
bool template_equal(const struct template_value *a, const struct template_value *b);
// -1, 0, 1; INVALID for values that Python does not order.
enum status template_order(const struct template_value *a, const struct template_value *b, int *out,
                           struct error *err) MUST_USE;
const char *template_type_name(const struct template_value *value);    // Python's name: "dict"
bool template_is_number(const struct template_value *value);           // bool counts, as in Python
double template_number(const struct template_value *value);            // of a number
int64_t template_integer(const struct template_value *value);          // of INT or BOOL

struct template_value *template_dict_get(const struct template_dict *dict,
                                         const struct template_value *key);    // NULL: absent
struct template_value *template_dict_get_text(const struct template_dict *dict,
                                              struct template_text key);

bool template_text_is(struct template_text text, const char *word);
bool template_text_same(struct template_text a, struct template_text b);
size_t template_text_chars(struct template_text text);    // code points
// The byte offset of code point `index` (at most the text's end).
size_t template_text_offset(struct template_text text, size_t index);

// The elements that a for loop would see: list items, dict keys, characters. UNDEFINED has none.
enum status template_iterate(struct arena *arena, const struct template_value *value,
                             const struct template_list **out, struct error *err) MUST_USE;

// ---- printing ----------------------------------------------------------------------------------

// str(value): what {{ value }} prints.
void template_print(const struct template_value *value, struct buf *out);
// The same as a value of kind STRING.
enum status template_to_string(struct arena *arena, const struct template_value *value,
                               struct template_value *out, struct error *err) MUST_USE;
// repr(float): the shortest text that reads back as the same number.
void template_print_float(double value, struct buf *out);

struct template_json_options {
    bool ascii_only;
    bool sort_keys;
    int64_t indent;    // spaces per level; -1: one line
    struct template_text item_separator;
    struct template_text key_separator;
};
// json.dumps(value): not HTML-escaped, only what JSON demands is escaped.
enum status template_print_json(const struct template_value *value,
                                const struct template_json_options *options, struct buf *out,
                                struct error *err) MUST_USE;

#endif
