// SPDX-License-Identifier: Apache-2.0
// Statements of a chat template, scopes and macros.
//
// Scopes: `if` has none; every round of a `for` has a fresh one, so what it sets neither leaks out
// nor lasts; a macro's body sees its parameters and the scope where the macro was defined.
#include "common/bounds.h"
#include "common/invariant.h"
#include "controller/text/template_run.h"

// ---- scopes ------------------------------------------------------------------------------------

struct template_value template_lookup(const struct template_run *run, uint32_t name) {
    for (const struct template_scope *s = run->scope; s != NULL; s = s->parent) {
        for (const struct template_binding *b = s->first; b != NULL; b = b->next) {
            if (b->name == name) {
                return b->value;
            }
        }
    }
    struct template_value function;
    struct template_text text = run->ast->names[name];
    return template_function(text, &function) ? function : template_undefined(text);
}

enum status template_bind(struct template_run *run, struct template_scope *scope, uint32_t name,
                          struct template_value value, struct error *err) {
    for (struct template_binding *b = scope->first; b != NULL; b = b->next) {
        if (b->name == name) {
            b->value = value;
            return STATUS_OK;
        }
    }
    struct template_binding *binding = arena_alloc(run->arena, sizeof *binding);
    if (binding == NULL) {
        return template_full(err);
    }
    *binding = (struct template_binding){.name = name, .value = value, .next = scope->first};
    scope->first = binding;
    return STATUS_OK;
}

static enum status open_scope(struct template_run *run, struct template_scope *parent,
                              struct template_scope **out, struct error *err) {
    struct template_scope *scope = arena_alloc(run->arena, sizeof *scope);
    if (scope == NULL) {
        return template_full(err);
    }
    scope->parent = parent;
    *out = scope;
    return STATUS_OK;
}

static enum status assign(struct template_run *run, struct template_scope *scope,
                          const struct template_node *target, const struct template_value *value,
                          struct error *err);

static enum status assign_tuple(struct template_run *run, struct template_scope *scope,
                                const struct template_node *target,
                                const struct template_value *value, struct error *err) {
    const struct template_list *items = NULL;
    TRY(template_iterate(run->arena, value, &items, err));
    size_t i = 0;
    for (const struct template_node *t = target->list; t != NULL; t = t->next, i++) {
        if (i == items->count) {
            return error_set(err, STATUS_INVALID, "not enough values to unpack (got %zu)", i);
        }
        TRY(assign(run, scope, t, &items->items[i], err));
    }
    if (i < items->count) {
        return error_set(err, STATUS_INVALID, "too many values to unpack (expected %zu)", i);
    }
    return STATUS_OK;
}

// Recursion is bounded by BOUND_TEMPLATE_NESTING, checked while parsing.
static enum status assign(struct template_run *run, struct template_scope *scope,
                          const struct template_node *target, const struct template_value *value,
                          struct error *err) {
    if (target->kind == NODE_TARGET_NAME) {
        return template_bind(run, scope, target->name, *value, err);
    }
    if (target->kind == NODE_TARGET_TUPLE) {
        return assign_tuple(run, scope, target, value, err);
    }
    struct template_value namespace = template_lookup(run, target->name);
    if (namespace.kind != TEMPLATE_NAMESPACE) {
        return error_set(err, STATUS_INVALID, "cannot assign attribute on non-namespace object");
    }
    struct template_value key = template_string(target->text.bytes, target->text.byte_count);
    return template_dict_set(run->arena, namespace.as.dict, key, *value, err);
}

// ---- blocks ------------------------------------------------------------------------------------

// Runs a list of statements with its output caught instead of written.
static enum status capture(struct template_run *run, const struct template_node *list,
                           struct template_value *out, struct error *err) {
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    struct buf *before = run->out;
    run->out = &text;
    enum status status = template_exec(run, list, err);
    run->out = before;
    if (status != STATUS_OK) {
        buf_deinit(&text);
        return status;
    }
    return template_take(run, &text, out, err);
}

// A chain of filters whose innermost value is the text of a block.
static enum status filter_block(struct template_run *run, const struct template_node *filter,
                                struct template_value *value, struct error *err) {
    if (filter == NULL) {
        return STATUS_OK;
    }
    TRY(template_charge(run, 1, err));
    TRY(filter_block(run, filter->a, value, err));
    struct template_args args;
    TRY(template_eval_args(run, filter->list, &args, err));
    return template_filter(run, filter->text, value, &args, value, err);
}

static enum status exec_in_scope(struct template_run *run, struct template_scope *scope,
                                 const struct template_node *list, struct error *err) {
    struct template_scope *before = run->scope;
    run->scope = scope;
    enum status status = template_exec(run, list, err);
    run->scope = before;
    return status;
}

// ---- macros ------------------------------------------------------------------------------------

static bool has_parameter(const struct template_node *macro, struct template_text name) {
    for (const struct template_node *p = macro->target; p != NULL; p = p->next) {
        if (template_text_same(p->text, name)) {
            return true;
        }
    }
    return false;
}

static enum status check_args(const struct template_macro *macro, const struct template_args *args,
                              struct error *err) {
    size_t count = 0;
    for (const struct template_node *p = macro->node->target; p != NULL; p = p->next) {
        count++;
    }
    struct template_text name = macro->node->text;
    int shown = name.byte_count > 60 ? 60 : (int)name.byte_count;
    if (args->count > count) {
        return error_set(err, STATUS_INVALID, "macro '%.*s' takes not more than %zu argument(s)",
                         shown, name.bytes, count);
    }
    for (size_t i = 0; i < args->named_count; i++) {
        if (!has_parameter(macro->node, args->named[i].name)) {
            struct template_text key = args->named[i].name;
            return error_set(err, STATUS_INVALID, "macro '%.*s' takes no keyword argument '%.*s'",
                             shown, name.bytes, key.byte_count > 60 ? 60 : (int)key.byte_count,
                             key.bytes);
        }
    }
    return STATUS_OK;
}

static const struct template_value *named_arg(const struct template_args *args,
                                              struct template_text name) {
    for (size_t i = 0; i < args->named_count; i++) {
        if (template_text_same(args->named[i].name, name)) {
            return &args->named[i].value;
        }
    }
    return NULL;
}

// Defaults are evaluated with the call, in the macro's scope, after the parameters before them.
static enum status bind_parameters(struct template_run *run, const struct template_macro *macro,
                                   const struct template_args *args, struct error *err) {
    size_t i = 0;
    for (const struct template_node *p = macro->node->target; p != NULL; p = p->next, i++) {
        const struct template_value *given =
            i < args->count ? &args->items[i] : named_arg(args, p->text);
        struct template_value value = template_undefined(p->text);
        if (given != NULL) {
            value = *given;
        } else if (p->a != NULL) {
            TRY(template_eval(run, p->a, &value, err));
        }
        TRY(template_bind(run, run->scope, p->name, value, err));
    }
    return STATUS_OK;
}

static enum status call_macro(struct template_run *run, const struct template_macro *macro,
                              const struct template_args *args, const struct template_macro *caller,
                              struct template_value *out, struct error *err) {
    TRY(check_args(macro, args, err));
    struct template_scope *scope = NULL;
    TRY(open_scope(run, macro->scope, &scope, err));
    struct template_scope *before = run->scope;
    run->scope = scope;
    enum status status = bind_parameters(run, macro, args, err);
    if (status == STATUS_OK && caller != NULL) {
        struct template_value value = {.kind = TEMPLATE_MACRO, .as.macro = caller};
        status = template_bind(run, scope, TEMPLATE_NAME_CALLER, value, err);
    }
    if (status == STATUS_OK) {
        status = capture(run, macro->node->list, out, err);
    }
    run->scope = before;
    run->flow = TEMPLATE_FLOW_NEXT;
    return status;
}

enum status template_call(struct template_run *run, const struct template_value *callee,
                          const struct template_args *args, const struct template_macro *caller,
                          struct template_value *out, struct error *err) {
    switch (callee->kind) {
    case TEMPLATE_MACRO:
        return call_macro(run, callee->as.macro, args, caller, out, err);
    case TEMPLATE_METHOD:
        return template_call_method(run, &callee->as.method->object, callee->as.method->name, args,
                                    out, err);
    case TEMPLATE_FUNCTION:
        return template_call_function(run, callee->as.function, args, out, err);
    case TEMPLATE_UNDEFINED:
        return template_undefined_use(callee, err);
    default:
        return error_set(err, STATUS_INVALID, "'%s' object is not callable",
                         template_type_name(callee));
    }
}

static enum status define_macro(struct template_run *run, const struct template_node *node,
                                struct template_macro **out, struct error *err) {
    struct template_macro *macro = arena_alloc(run->arena, sizeof *macro);
    if (macro == NULL) {
        return template_full(err);
    }
    macro->node = node;
    macro->scope = run->scope;
    *out = macro;
    return STATUS_OK;
}

// ---- statements --------------------------------------------------------------------------------

static enum status exec_output(struct template_run *run, const struct template_node *node,
                               struct error *err) {
    struct template_value value;
    TRY(template_eval(run, node->a, &value, err));
    size_t before = run->out->bytes_used;
    template_print(&value, run->out);
    return template_charge(run, (run->out->bytes_used - before) / 64, err);
}

static enum status exec_if(struct template_run *run, const struct template_node *node,
                           struct error *err) {
    // An elif is an NODE_IF in `other`; a plain else may start with one too, which is the same.
    for (; node != NULL && node->kind == NODE_IF; node = node->other) {
        struct template_value condition;
        TRY(template_eval(run, node->a, &condition, err));
        if (template_truth(&condition)) {
            return template_exec(run, node->list, err);
        }
        if (node->other != NULL && (node->other->kind != NODE_IF || node->other->next != NULL)) {
            return template_exec(run, node->other, err);
        }
    }
    return STATUS_OK;
}

// The items of a loop, without those that its `if` rules out.
static enum status loop_items(struct template_run *run, const struct template_node *node,
                              const struct template_list **out, struct error *err) {
    struct template_value iterable;
    TRY(template_eval(run, node->a, &iterable, err));
    if (iterable.kind == TEMPLATE_STRING) {
        TRY(template_charge(run, iterable.as.string.byte_count / 4, err));
    }
    TRY(template_iterate(run->arena, &iterable, out, err));
    if (node->b == NULL) {
        return STATUS_OK;
    }
    const struct template_list *all = *out;
    struct template_list *kept = template_list_create(run->arena, all->count);
    if (kept == NULL) {
        return template_full(err);
    }
    kept->count = 0;
    struct template_scope *before = run->scope;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < all->count && status == STATUS_OK; i++) {
        struct template_scope *scope = NULL;
        struct template_value holds = template_none();
        status = open_scope(run, before, &scope, err);
        if (status == STATUS_OK) {
            run->scope = scope;
            status = assign(run, scope, node->target, &all->items[i], err);
        }
        if (status == STATUS_OK) {
            status = template_eval(run, node->b, &holds, err);
        }
        if (template_truth(&holds)) {
            kept->items[kept->count++] = all->items[i];
        }
    }
    run->scope = before;
    *out = kept;
    return status;
}

static enum status exec_round(struct template_run *run, const struct template_node *node,
                              const struct template_list *items, size_t index, struct error *err) {
    struct template_scope *scope = NULL;
    struct template_loop *loop = arena_alloc(run->arena, sizeof *loop);
    if (loop == NULL) {
        return template_full(err);
    }
    *loop = (struct template_loop){.items = items, .index = index};
    TRY(template_charge(run, 1, err));
    TRY(open_scope(run, run->scope, &scope, err));
    TRY(template_bind(run, scope, TEMPLATE_NAME_LOOP,
                      (struct template_value){.kind = TEMPLATE_LOOP, .as.loop = loop}, err));
    TRY(assign(run, scope, node->target, &items->items[index], err));
    return exec_in_scope(run, scope, node->list, err);
}

static enum status exec_for(struct template_run *run, const struct template_node *node,
                            struct error *err) {
    const struct template_list *items = NULL;
    TRY(loop_items(run, node, &items, err));
    if (items->count == 0) {
        return template_exec(run, node->other, err);
    }
    enum status status = STATUS_OK;
    for (size_t i = 0; i < items->count && status == STATUS_OK; i++) {
        status = exec_round(run, node, items, i, err);
        enum template_flow flow = run->flow;
        run->flow = TEMPLATE_FLOW_NEXT;
        if (flow == TEMPLATE_FLOW_BREAK) {
            break;
        }
    }
    return status;
}

static enum status exec_set(struct template_run *run, const struct template_node *node,
                            struct error *err) {
    struct template_value value;
    TRY(template_eval(run, node->a, &value, err));
    return assign(run, run->scope, node->target, &value, err);
}

// The text of a block with a scope of its own, after the block's filters.
static enum status filtered_block(struct template_run *run, const struct template_node *node,
                                  struct template_value *out, struct error *err) {
    struct template_scope *before = run->scope;
    TRY(open_scope(run, before, &run->scope, err));
    enum status status = capture(run, node->list, out, err);
    run->scope = before;
    if (status != STATUS_OK) {
        return status;
    }
    return filter_block(run, node->a, out, err);
}

static enum status exec_set_block(struct template_run *run, const struct template_node *node,
                                  struct error *err) {
    struct template_value value;
    TRY(filtered_block(run, node, &value, err));
    return assign(run, run->scope, node->target, &value, err);
}

static enum status exec_filter_block(struct template_run *run, const struct template_node *node,
                                     struct error *err) {
    struct template_value value;
    TRY(filtered_block(run, node, &value, err));
    template_print(&value, run->out);
    return STATUS_OK;
}

static enum status exec_macro(struct template_run *run, const struct template_node *node,
                              struct error *err) {
    struct template_macro *macro = NULL;
    TRY(define_macro(run, node, &macro, err));
    return template_bind(run, run->scope, node->name,
                         (struct template_value){.kind = TEMPLATE_MACRO, .as.macro = macro}, err);
}

static enum status exec_call_block(struct template_run *run, const struct template_node *node,
                                   struct error *err) {
    struct template_macro *caller = NULL;
    struct template_value callee;
    struct template_value value;
    struct template_args args;
    TRY(define_macro(run, node->b, &caller, err));
    TRY(template_eval(run, node->a->a, &callee, err));
    TRY(template_eval_args(run, node->a->list, &args, err));
    TRY(template_call(run, &callee, &args, caller, &value, err));
    template_print(&value, run->out);
    return STATUS_OK;
}

static enum status exec_scope(struct template_run *run, const struct template_node *node,
                              struct error *err) {
    struct template_scope *scope = NULL;
    TRY(open_scope(run, run->scope, &scope, err));
    // The values of `with` are computed outside: they do not see each other.
    for (const struct template_node *set = node->target; set != NULL; set = set->next) {
        struct template_value value;
        TRY(template_eval(run, set->a, &value, err));
        TRY(assign(run, scope, set->target, &value, err));
    }
    return exec_in_scope(run, scope, node->list, err);
}

static enum status exec(struct template_run *run, const struct template_node *node,
                        struct error *err) {
    switch (node->kind) {
    case NODE_TEXT:
        buf_append(run->out, node->text.bytes, node->text.byte_count);
        return template_charge(run, node->text.byte_count / 64, err);
    case NODE_OUTPUT:
        return exec_output(run, node, err);
    case NODE_IF:
        return exec_if(run, node, err);
    case NODE_FOR:
        return exec_for(run, node, err);
    case NODE_SET:
        return exec_set(run, node, err);
    case NODE_SET_BLOCK:
        return exec_set_block(run, node, err);
    case NODE_MACRO:
        return exec_macro(run, node, err);
    case NODE_CALL_BLOCK:
        return exec_call_block(run, node, err);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(run, node, err);
    case NODE_SCOPE:
        return exec_scope(run, node, err);
    case NODE_BREAK:
    case NODE_CONTINUE:
        run->flow = node->kind == NODE_BREAK ? TEMPLATE_FLOW_BREAK : TEMPLATE_FLOW_CONTINUE;
        return STATUS_OK;
    default:
        UNREACHABLE();    // expressions and parts of statements
    }
}

static enum status exec_one(struct template_run *run, const struct template_node *node,
                            struct error *err) {
    TRY(template_charge(run, 1, err));
    if (run->depth == BOUND_TEMPLATE_CALLS) {
        return error_set(err, STATUS_INVALID, "the chat template nests more than %u evaluations",
                         BOUND_TEMPLATE_CALLS);
    }
    run->depth++;
    enum status status = exec(run, node, err);
    run->depth--;
    if (status == STATUS_OK && buf_status(run->out) != STATUS_OK) {
        status = error_set(err, STATUS_INVALID, "the chat template writes more than %u bytes",
                           BOUND_TEMPLATE_OUTPUT_BYTES);
    }
    return status;
}

enum status template_exec(struct template_run *run, const struct template_node *list,
                          struct error *err) {
    for (; list != NULL && run->flow == TEMPLATE_FLOW_NEXT; list = list->next) {
        enum status status = exec_one(run, list, err);
        if (status != STATUS_OK) {
            // The innermost statement names the line; what the template raised stays as it is.
            if (!run->placed) {
                error_context(err, "chat template, line %u", list->line);
                run->placed = true;
            }
            return status;
        }
    }
    return STATUS_OK;
}
