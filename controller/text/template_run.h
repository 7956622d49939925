// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TEMPLATE_RUN_H
#define CONTROLLER_TEXT_TEMPLATE_RUN_H

#include "common/arena.h"
#include "common/buf.h"
#include "common/status.h"
#include "controller/text/template_ast.h"
#include "controller/text/template_value.h"

// One rendering of a template: state shared by the files of the interpreter.
//
// The idea: a tree walk. Every evaluation takes a step from a budget and long texts and lists take
// more, so neither a template nor a request can make it run for long; every value comes from one
// arena with a cap. The sandbox is what is not there: no attributes but data and the methods
// listed, no mutation but of namespaces, no files, no clock.
//
//   Owns       nothing; lives on the stack of chat_template_render.
//   Thread     one at a time.
//   Allocates  from the arena; captured blocks grow a buffer on the heap.
//   Fails      INVALID with Python's wording where there is one.

struct template_binding {
    uint32_t name;
    struct template_value value;
    struct template_binding *next;
};

struct template_scope {
    struct template_scope *parent;
    struct template_binding *first;
};

struct template_macro {
    const struct template_node *node;
    struct template_scope *scope;    // where it was defined: its body sees that
};

struct template_loop {
    const struct template_list *items;
    size_t index;
};

enum template_flow { TEMPLATE_FLOW_NEXT, TEMPLATE_FLOW_BREAK, TEMPLATE_FLOW_CONTINUE };

struct template_run {
    struct arena *arena;
    const struct template_ast *ast;
    struct buf *out;    // where output goes: the prompt, or a captured block
    struct template_scope *scope;
    enum template_flow flow;
    uint64_t steps;    // taken
    uint32_t depth;    // of nested evaluations
    bool placed;       // the error already names a line, or is the template's own sentence
    int64_t now_unix_s;
    int32_t utc_offset_s;
};

struct template_named {
    struct template_text name;
    struct template_value value;
};

struct template_args {
    size_t count;
    struct template_value *items;
    size_t named_count;
    struct template_named *named;
};

// ---- template_eval.c ---------------------------------------------------------------------------

enum status template_eval(struct template_run *run, const struct template_node *node,
                          struct template_value *out, struct error *err) MUST_USE;
// Takes `count` steps.
enum status template_charge(struct template_run *run, size_t count, struct error *err) MUST_USE;
enum status template_full(struct error *err);    // the arena's cap is reached

// value.name and value[key], as Jinja looks them up.
enum status template_attribute(struct template_run *run, const struct template_value *value,
                               struct template_text name, struct template_value *out,
                               struct error *err) MUST_USE;
enum status template_item(struct template_run *run, const struct template_value *value,
                          const struct template_value *key, struct template_value *out,
                          struct error *err) MUST_USE;
enum status template_compare(struct template_run *run, enum template_op op,
                             const struct template_value *a, const struct template_value *b,
                             bool *out, struct error *err) MUST_USE;
enum status template_undefined_use(const struct template_value *value, struct error *err);
enum status template_eval_args(struct template_run *run, const struct template_node *list,
                               struct template_args *out, struct error *err) MUST_USE;
// Argument number `index` or named `name`; NULL when it is absent.
const struct template_value *template_arg(const struct template_args *args, size_t index,
                                          const char *name);
enum status template_concat(struct template_run *run, struct template_text a,
                            struct template_text b, struct template_value *out,
                            struct error *err) MUST_USE;
// Moves what a buffer holds into the arena and frees the buffer.
enum status template_take(struct template_run *run, struct buf *buf, struct template_value *out,
                          struct error *err) MUST_USE;

// ---- template_arith.c --------------------------------------------------------------------------

enum status template_operate(struct template_run *run, enum template_op op,
                             const struct template_value *a, const struct template_value *b,
                             struct template_value *out, struct error *err) MUST_USE;
enum status template_negate(const struct template_value *value, bool minus,
                            struct template_value *out, struct error *err) MUST_USE;

// ---- template_exec.c ---------------------------------------------------------------------------

enum status template_exec(struct template_run *run, const struct template_node *list,
                          struct error *err) MUST_USE;
enum status template_call(struct template_run *run, const struct template_value *callee,
                          const struct template_args *args, const struct template_macro *caller,
                          struct template_value *out, struct error *err) MUST_USE;
struct template_value template_lookup(const struct template_run *run, uint32_t name);
enum status template_bind(struct template_run *run, struct template_scope *scope, uint32_t name,
                          struct template_value value, struct error *err) MUST_USE;

// ---- template_filters.c, template_filters_list.c, template_tests.c -----------------------------

enum status template_filter(struct template_run *run, struct template_text name,
                            const struct template_value *value, const struct template_args *args,
                            struct template_value *out, struct error *err) MUST_USE;
// The filters over sequences; *known says whether there is one of that name.
enum status template_filter_list(struct template_run *run, struct template_text name,
                                 const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 bool *known, struct error *err) MUST_USE;
enum status template_test(struct template_run *run, struct template_text name,
                          const struct template_value *value, const struct template_args *args,
                          bool *out, struct error *err) MUST_USE;
bool template_filter_list_exists(struct template_text name);
bool template_filter_exists(struct template_text name);
bool template_test_exists(struct template_text name);

// ---- template_methods.c, template_strings.c ----------------------------------------------------

typedef enum status (*template_method_fn)(struct template_run *run,
                                          const struct template_value *self,
                                          const struct template_args *args,
                                          struct template_value *out, struct error *err);
struct template_method_row {
    const char *name;    // NULL ends a table
    template_method_fn fn;
};
extern const struct template_method_row template_str_methods[];

bool template_has_method(const struct template_value *object, struct template_text name);
enum status template_call_method(struct template_run *run, const struct template_value *object,
                                 struct template_text name, const struct template_args *args,
                                 struct template_value *out, struct error *err) MUST_USE;
// str.strip and its kin; chars NULL strips whitespace.
struct template_text template_strip(struct template_text text, const struct template_text *chars,
                                    bool left, bool right);
enum template_case { TEMPLATE_UPPER, TEMPLATE_LOWER, TEMPLATE_CAPITALIZE, TEMPLATE_TITLE };
enum status template_change_case(struct template_run *run, struct template_text text,
                                 enum template_case how, struct template_value *out,
                                 struct error *err) MUST_USE;
// count < 0: all of them.
enum status template_replace(struct template_run *run, struct template_text text,
                             struct template_text old, struct template_text new, int64_t count,
                             struct template_value *out, struct error *err) MUST_USE;
// "%s and %d" % args
enum status template_format_percent(struct template_run *run, struct template_text format,
                                    const struct template_value *arg, struct template_value *out,
                                    struct error *err) MUST_USE;

// ---- template_functions.c ----------------------------------------------------------------------

// The function of that name, as a value; false if there is none.
bool template_function(struct template_text name, struct template_value *out);
enum status template_call_function(struct template_run *run, uint32_t function,
                                   const struct template_args *args, struct template_value *out,
                                   struct error *err) MUST_USE;

#endif
