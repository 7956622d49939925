// SPDX-License-Identifier: Apache-2.0
// Expressions of a chat template.
#include "common/bounds.h"
#include "common/invariant.h"
#include "controller/text/template_run.h"
#include <string.h>

enum status template_full(struct error *err) {
    return error_set(err, STATUS_INVALID, "the chat template needs more than %u MiB of memory",
                     BOUND_TEMPLATE_MEMORY_BYTES / (1024 * 1024));
}

enum status template_charge(struct template_run *run, size_t count, struct error *err) {
    run->steps += count;
    if (run->steps > BOUND_TEMPLATE_STEPS) {
        return error_set(err, STATUS_INVALID, "the chat template takes more than %u steps",
                         BOUND_TEMPLATE_STEPS);
    }
    return STATUS_OK;
}

// ---- texts -------------------------------------------------------------------------------------

enum status template_concat(struct template_run *run, struct template_text a,
                            struct template_text b, struct template_value *out, struct error *err) {
    size_t byte_count = a.byte_count + b.byte_count;
    TRY(template_charge(run, byte_count / 64, err));
    char *joined = arena_alloc(run->arena, byte_count + 1);
    if (joined == NULL) {
        return template_full(err);
    }
    memcpy(joined, a.bytes, a.byte_count);
    memcpy(joined + a.byte_count, b.bytes, b.byte_count);
    *out = template_string(joined, byte_count);
    return STATUS_OK;
}

enum status template_take(struct template_run *run, struct buf *buf, struct template_value *out,
                          struct error *err) {
    enum status status = buf_status(buf);
    if (status == STATUS_OK) {
        status = template_charge(run, buf->bytes_used / 64, err);
    } else {
        status = error_set(err, STATUS_INVALID, "the chat template writes more than %u bytes",
                           BOUND_TEMPLATE_OUTPUT_BYTES);
    }
    if (status == STATUS_OK) {
        status = template_string_copy(run->arena, buf->data, buf->bytes_used, out, err);
    }
    buf_deinit(buf);
    return status;
}

// ---- looking things up -------------------------------------------------------------------------

enum status template_undefined_use(const struct template_value *value, struct error *err) {
    int shown = value->as.string.byte_count > 80 ? 80 : (int)value->as.string.byte_count;
    return error_set(err, STATUS_INVALID, "'%.*s' is undefined", shown, value->as.string.bytes);
}

static bool loop_attribute(const struct template_loop *loop, struct template_text name,
                           struct template_value *out) {
    size_t index = loop->index;
    size_t count = loop->items->count;
    const struct template_value *items = loop->items->items;
    if (template_text_is(name, "index0")) {
        *out = template_int((int64_t)index);
    } else if (template_text_is(name, "index")) {
        *out = template_int((int64_t)index + 1);
    } else if (template_text_is(name, "first")) {
        *out = template_bool(index == 0);
    } else if (template_text_is(name, "last")) {
        *out = template_bool(index + 1 == count);
    } else if (template_text_is(name, "length")) {
        *out = template_int((int64_t)count);
    } else if (template_text_is(name, "revindex")) {
        *out = template_int((int64_t)(count - index));
    } else if (template_text_is(name, "revindex0")) {
        *out = template_int((int64_t)(count - index) - 1);
    } else if (template_text_is(name, "depth") || template_text_is(name, "depth0")) {
        *out = template_int(name.byte_count == 5);    // only recursive loops go deeper
    } else if (template_text_is(name, "previtem")) {
        *out = index > 0 ? items[index - 1] : template_undefined(name);
    } else if (template_text_is(name, "nextitem")) {
        *out = index + 1 < count ? items[index + 1] : template_undefined(name);
    } else {
        return false;
    }
    return true;
}

static enum status bind_method(struct template_run *run, const struct template_value *object,
                               struct template_text name, struct template_value *out,
                               struct error *err) {
    struct template_method *method = arena_alloc(run->arena, sizeof *method);
    if (method == NULL) {
        return template_full(err);
    }
    method->object = *object;
    method->name = name;
    *out = (struct template_value){.kind = TEMPLATE_METHOD, .as.method = method};
    return STATUS_OK;
}

// Jinja's getattr: an attribute of the object first, then an item. So a dict's method hides a key
// of the same name.
enum status template_attribute(struct template_run *run, const struct template_value *value,
                               struct template_text name, struct template_value *out,
                               struct error *err) {
    if (value->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(value, err);
    }
    if (template_has_method(value, name)) {
        return bind_method(run, value, name, out, err);
    }
    *out = template_undefined(name);
    if (value->kind == TEMPLATE_DICT || value->kind == TEMPLATE_NAMESPACE) {
        TRY(template_charge(run, value->as.dict->count / 8, err));
        const struct template_value *found = template_dict_get_text(value->as.dict, name);
        if (found != NULL) {
            *out = *found;
        }
    } else if (value->kind == TEMPLATE_LOOP) {
        (void)loop_attribute(value->as.loop, name, out);
    }
    return STATUS_OK;
}

static enum status index_of(struct template_run *run, const struct template_value *value,
                            int64_t index, struct template_value *out, struct error *err) {
    struct template_text nothing = {"index", 5};
    *out = template_undefined(nothing);
    if (value->kind == TEMPLATE_LIST) {
        int64_t count = (int64_t)value->as.list->count;
        index += index < 0 ? count : 0;
        if (index >= 0 && index < count) {
            *out = value->as.list->items[index];
        }
        return STATUS_OK;
    }
    struct template_text text = value->as.string;
    TRY(template_charge(run, text.byte_count / 64, err));
    int64_t count = (int64_t)template_text_chars(text);
    index += index < 0 ? count : 0;
    if (index >= 0 && index < count) {
        size_t start = template_text_offset(text, (size_t)index);
        struct template_text rest = {text.bytes + start, text.byte_count - start};
        *out = template_string(rest.bytes, template_text_offset(rest, 1));
    }
    return STATUS_OK;
}

// Jinja's getitem: an item first, then, for a string key, an attribute; else undefined.
enum status template_item(struct template_run *run, const struct template_value *value,
                          const struct template_value *key, struct template_value *out,
                          struct error *err) {
    if (value->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(value, err);
    }
    if (value->kind == TEMPLATE_DICT) {
        TRY(template_charge(run, value->as.dict->count / 8, err));
        const struct template_value *found = template_dict_get(value->as.dict, key);
        if (found != NULL) {
            *out = *found;
            return STATUS_OK;
        }
    }
    bool is_sequence = value->kind == TEMPLATE_LIST || value->kind == TEMPLATE_STRING;
    bool is_index = key->kind == TEMPLATE_INT || key->kind == TEMPLATE_BOOL;
    if (is_sequence && is_index) {
        return index_of(run, value, template_integer(key), out, err);
    }
    if (key->kind == TEMPLATE_STRING) {
        return template_attribute(run, value, key->as.string, out, err);
    }
    *out = template_undefined((struct template_text){"item", 4});
    return STATUS_OK;
}

// ---- slices ------------------------------------------------------------------------------------

struct range {
    int64_t start;
    int64_t stop;
    int64_t step;
    int64_t count;
};

static enum status slice_bound(struct template_run *run, const struct template_node *node,
                               bool *present, int64_t *out, struct error *err) {
    *present = false;
    if (node == NULL) {
        return STATUS_OK;
    }
    struct template_value value;
    TRY(template_eval(run, node, &value, err));
    if (value.kind == TEMPLATE_NONE) {
        return STATUS_OK;
    }
    if (value.kind != TEMPLATE_INT && value.kind != TEMPLATE_BOOL) {
        return error_set(err, STATUS_INVALID, "slice indices must be integers, not '%s'",
                         template_type_name(&value));
    }
    *present = true;
    *out = template_integer(&value);
    return STATUS_OK;
}

// Python's slice.indices: negative bounds count from the end, all are clipped to the sequence.
static int64_t clip(int64_t bound, int64_t count, int64_t step) {
    int64_t low = step > 0 ? 0 : -1;
    int64_t high = step > 0 ? count : count - 1;
    if (bound < 0) {
        bound = bound < -count ? low : bound + count;
    }
    return bound < low ? low : bound > high ? high : bound;
}

static enum status slice_range(struct template_run *run, const struct template_node *node,
                               int64_t count, struct range *out, struct error *err) {
    bool has_start = false;
    bool has_stop = false;
    bool has_step = false;
    struct range r = {.step = 1};
    TRY(slice_bound(run, node->b, &has_start, &r.start, err));
    TRY(slice_bound(run, node->c, &has_stop, &r.stop, err));
    TRY(slice_bound(run, node->d, &has_step, &r.step, err));
    if (has_step && r.step == 0) {
        return error_set(err, STATUS_INVALID, "slice step cannot be zero");
    }
    // A step beyond the sequence is the same as one just beyond it, and cannot overflow.
    r.step = r.step > count + 1 ? count + 1 : r.step < -count - 1 ? -count - 1 : r.step;
    r.start = has_start ? clip(r.start, count, r.step) : r.step > 0 ? 0 : count - 1;
    r.stop = has_stop ? clip(r.stop, count, r.step) : r.step > 0 ? count : -1;
    if (r.step > 0 && r.start < r.stop) {
        r.count = (r.stop - r.start + r.step - 1) / r.step;
    } else if (r.step < 0 && r.start > r.stop) {
        r.count = (r.start - r.stop - r.step - 1) / -r.step;
    }
    *out = r;
    return STATUS_OK;
}

static enum status slice_list(struct template_run *run, const struct template_list *from,
                              struct range r, struct template_value *out, struct error *err) {
    TRY(template_charge(run, (size_t)r.count / 8, err));
    struct template_list *list = template_list_create(run->arena, (size_t)r.count);
    if (list == NULL) {
        return template_full(err);
    }
    list->tuple = from->tuple;
    for (int64_t i = 0; i < r.count; i++) {
        list->items[i] = from->items[r.start + i * r.step];
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

static enum status slice_text(struct template_run *run, struct template_text text, struct range r,
                              struct template_value *out, struct error *err) {
    TRY(template_charge(run, text.byte_count / 32, err));
    if (r.step == 1 || r.count == 0) {
        size_t start = r.count == 0 ? 0 : template_text_offset(text, (size_t)r.start);
        struct template_text rest = {text.bytes + start, text.byte_count - start};
        *out = template_string(rest.bytes, template_text_offset(rest, (size_t)r.count));
        return STATUS_OK;
    }
    struct template_value value = template_string(text.bytes, text.byte_count);
    const struct template_list *chars = NULL;
    TRY(template_charge(run, text.byte_count / 4, err));
    TRY(template_iterate(run->arena, &value, &chars, err));
    struct buf joined;
    buf_init(&joined, text.byte_count);
    for (int64_t i = 0; i < r.count; i++) {
        struct template_text c = chars->items[r.start + i * r.step].as.string;
        buf_append(&joined, c.bytes, c.byte_count);
    }
    return template_take(run, &joined, out, err);
}

static enum status eval_slice(struct template_run *run, const struct template_node *node,
                              struct template_value *out, struct error *err) {
    struct template_value value;
    struct range r;
    TRY(template_eval(run, node->a, &value, err));
    if (value.kind == TEMPLATE_LIST) {
        TRY(slice_range(run, node, (int64_t)value.as.list->count, &r, err));
        return slice_list(run, value.as.list, r, out, err);
    }
    if (value.kind == TEMPLATE_STRING) {
        TRY(slice_range(run, node, (int64_t)template_text_chars(value.as.string), &r, err));
        return slice_text(run, value.as.string, r, out, err);
    }
    if (value.kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(&value, err);
    }
    *out = template_undefined((struct template_text){"slice", 5});
    return STATUS_OK;
}

// ---- comparisons -------------------------------------------------------------------------------

static enum status contains(struct template_run *run, const struct template_value *container,
                            const struct template_value *value, bool *out, struct error *err) {
    *out = false;
    switch (container->kind) {
    case TEMPLATE_UNDEFINED:
        return STATUS_OK;
    case TEMPLATE_STRING:
        if (value->kind != TEMPLATE_STRING) {
            return error_set(err, STATUS_INVALID,
                             "'in <string>' requires string as left operand, not %s",
                             template_type_name(value));
        }
        *out = memmem(container->as.string.bytes, container->as.string.byte_count,
                      value->as.string.bytes, value->as.string.byte_count) != NULL;
        return template_charge(run, container->as.string.byte_count / 64, err);
    case TEMPLATE_LIST:
        for (size_t i = 0; i < container->as.list->count && !*out; i++) {
            *out = template_equal(&container->as.list->items[i], value);
        }
        return template_charge(run, container->as.list->count / 8, err);
    case TEMPLATE_DICT:
        *out = template_dict_get(container->as.dict, value) != NULL;
        return template_charge(run, container->as.dict->count / 8, err);
    case TEMPLATE_NONE:
    case TEMPLATE_BOOL:
    case TEMPLATE_INT:
    case TEMPLATE_FLOAT:
    case TEMPLATE_NAMESPACE:
    case TEMPLATE_LOOP:
    case TEMPLATE_MACRO:
    case TEMPLATE_METHOD:
    case TEMPLATE_FUNCTION:
        break;
    }
    return error_set(err, STATUS_INVALID, "argument of type '%s' is not iterable",
                     template_type_name(container));
}

enum status template_compare(struct template_run *run, enum template_op op,
                             const struct template_value *a, const struct template_value *b,
                             bool *out, struct error *err) {
    if (op == OP_EQ || op == OP_NE) {
        *out = template_equal(a, b) == (op == OP_EQ);
        return STATUS_OK;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        TRY(contains(run, b, a, out, err));
        *out = *out == (op == OP_IN);
        return STATUS_OK;
    }
    if (a->kind == TEMPLATE_UNDEFINED || b->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(a->kind == TEMPLATE_UNDEFINED ? a : b, err);
    }
    int order = 0;
    TRY(template_order(a, b, &order, err));
    *out = op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
    return STATUS_OK;
}

static enum status eval_compare(struct template_run *run, const struct template_node *node,
                                struct template_value *out, struct error *err) {
    struct template_value left;
    TRY(template_eval(run, node->a, &left, err));
    bool holds = true;
    for (const struct template_node *operand = node->list; operand != NULL && holds;
         operand = operand->next) {
        struct template_value right;
        TRY(template_eval(run, operand->a, &right, err));
        TRY(template_compare(run, operand->op, &left, &right, &holds, err));
        left = right;
    }
    *out = template_bool(holds);
    return STATUS_OK;
}

// ---- calls -------------------------------------------------------------------------------------

enum status template_eval_args(struct template_run *run, const struct template_node *list,
                               struct template_args *out, struct error *err) {
    memset(out, 0, sizeof *out);
    size_t positional = 0;
    size_t named = 0;
    for (const struct template_node *n = list; n != NULL; n = n->next) {
        positional += n->text.bytes == NULL ? 1 : 0;
        named += n->text.bytes == NULL ? 0 : 1;
    }
    if (positional + named == 0) {
        return STATUS_OK;
    }
    out->items = arena_array(run->arena, positional, sizeof *out->items);
    out->named = arena_array(run->arena, named, sizeof *out->named);
    if (out->items == NULL || out->named == NULL) {
        return template_full(err);
    }
    for (const struct template_node *n = list; n != NULL; n = n->next) {
        if (n->text.bytes == NULL) {
            TRY(template_eval(run, n->a, &out->items[out->count++], err));
        } else {
            struct template_named *slot = &out->named[out->named_count++];
            slot->name = n->text;
            TRY(template_eval(run, n->a, &slot->value, err));
        }
    }
    return STATUS_OK;
}

const struct template_value *template_arg(const struct template_args *args, size_t index,
                                          const char *name) {
    if (index < args->count) {
        return &args->items[index];
    }
    for (size_t i = 0; i < args->named_count; i++) {
        if (template_text_is(args->named[i].name, name)) {
            return &args->named[i].value;
        }
    }
    return NULL;
}

static enum status eval_call(struct template_run *run, const struct template_node *node,
                             struct template_value *out, struct error *err) {
    struct template_args args;
    const struct template_node *callee = node->a;
    if (callee->kind == NODE_ATTRIBUTE) {
        struct template_value object;
        TRY(template_eval(run, callee->a, &object, err));
        if (template_has_method(&object, callee->text)) {
            TRY(template_eval_args(run, node->list, &args, err));
            return template_call_method(run, &object, callee->text, &args, out, err);
        }
        struct template_value found;
        TRY(template_attribute(run, &object, callee->text, &found, err));
        TRY(template_eval_args(run, node->list, &args, err));
        return template_call(run, &found, &args, NULL, out, err);
    }
    struct template_value value;
    TRY(template_eval(run, callee, &value, err));
    TRY(template_eval_args(run, node->list, &args, err));
    return template_call(run, &value, &args, NULL, out, err);
}

// ---- the rest ----------------------------------------------------------------------------------

static enum status eval_list(struct template_run *run, const struct template_node *node,
                             struct template_value *out, struct error *err) {
    size_t count = 0;
    for (const struct template_node *n = node->list; n != NULL; n = n->next) {
        count++;
    }
    struct template_list *list = template_list_create(run->arena, count);
    if (list == NULL) {
        return template_full(err);
    }
    list->tuple = node->kind == NODE_TUPLE;
    size_t i = 0;
    for (const struct template_node *n = node->list; n != NULL; n = n->next) {
        TRY(template_eval(run, n, &list->items[i++], err));
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

static enum status eval_dict(struct template_run *run, const struct template_node *node,
                             struct template_value *out, struct error *err) {
    struct template_dict *dict = template_dict_create(run->arena, 4);
    if (dict == NULL) {
        return template_full(err);
    }
    for (const struct template_node *n = node->list; n != NULL; n = n->next) {
        struct template_value key;
        struct template_value value;
        TRY(template_eval(run, n->a, &key, err));
        TRY(template_eval(run, n->b, &value, err));
        if (key.kind == TEMPLATE_LIST || key.kind == TEMPLATE_DICT) {
            return error_set(err, STATUS_INVALID, "unhashable type: '%s'",
                             template_type_name(&key));
        }
        TRY(template_dict_set(run->arena, dict, key, value, err));
    }
    *out = (struct template_value){.kind = TEMPLATE_DICT, .as.dict = dict};
    return STATUS_OK;
}

static enum status eval_logic(struct template_run *run, const struct template_node *node,
                              struct template_value *out, struct error *err) {
    TRY(template_eval(run, node->a, out, err));
    if (template_truth(out) == (node->kind == NODE_AND)) {
        return template_eval(run, node->b, out, err);
    }
    return STATUS_OK;
}

static enum status eval_condition(struct template_run *run, const struct template_node *node,
                                  struct template_value *out, struct error *err) {
    struct template_value condition;
    TRY(template_eval(run, node->b, &condition, err));
    if (template_truth(&condition)) {
        return template_eval(run, node->a, out, err);
    }
    if (node->c != NULL) {
        return template_eval(run, node->c, out, err);
    }
    *out = template_undefined((struct template_text){"an inline if without else", 25});
    return STATUS_OK;
}

static enum status eval_filter(struct template_run *run, const struct template_node *node,
                               struct template_value *out, struct error *err) {
    struct template_value value;
    struct template_args args;
    TRY(template_eval(run, node->a, &value, err));
    TRY(template_eval_args(run, node->list, &args, err));
    return template_filter(run, node->text, &value, &args, out, err);
}

static enum status eval_test(struct template_run *run, const struct template_node *node,
                             struct template_value *out, struct error *err) {
    struct template_value value;
    struct template_args args;
    TRY(template_eval(run, node->a, &value, err));
    TRY(template_eval_args(run, node->list, &args, err));
    bool holds = false;
    TRY(template_test(run, node->text, &value, &args, &holds, err));
    *out = template_bool(holds != node->flag);
    return STATUS_OK;
}

static enum status eval_binary(struct template_run *run, const struct template_node *node,
                               struct template_value *out, struct error *err) {
    struct template_value a;
    struct template_value b;
    TRY(template_eval(run, node->a, &a, err));
    TRY(template_eval(run, node->b, &b, err));
    return template_operate(run, node->op, &a, &b, out, err);
}

static enum status eval_item(struct template_run *run, const struct template_node *node,
                             struct template_value *out, struct error *err) {
    struct template_value value;
    struct template_value key;
    TRY(template_eval(run, node->a, &value, err));
    TRY(template_eval(run, node->b, &key, err));
    return template_item(run, &value, &key, out, err);
}

static enum status eval_unary(struct template_run *run, const struct template_node *node,
                              struct template_value *out, struct error *err) {
    struct template_value value;
    TRY(template_eval(run, node->a, &value, err));
    if (node->kind == NODE_ATTRIBUTE) {
        return template_attribute(run, &value, node->text, out, err);
    }
    if (node->kind == NODE_NOT) {
        *out = template_bool(!template_truth(&value));
        return STATUS_OK;
    }
    return template_negate(&value, node->kind == NODE_NEGATE, out, err);
}

static enum status eval(struct template_run *run, const struct template_node *node,
                        struct template_value *out, struct error *err) {
    switch (node->kind) {
    case NODE_CONST:
        *out = node->value;
        return STATUS_OK;
    case NODE_NAME:
        *out = template_lookup(run, node->name);
        return STATUS_OK;
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(run, node, out, err);
    case NODE_DICT:
        return eval_dict(run, node, out, err);
    case NODE_ATTRIBUTE:
    case NODE_NOT:
    case NODE_NEGATE:
    case NODE_PLUS:
        return eval_unary(run, node, out, err);
    case NODE_ITEM:
        return eval_item(run, node, out, err);
    case NODE_SLICE:
        return eval_slice(run, node, out, err);
    case NODE_CALL:
        return eval_call(run, node, out, err);
    case NODE_FILTER:
        return eval_filter(run, node, out, err);
    case NODE_TEST:
        return eval_test(run, node, out, err);
    case NODE_BINARY:
        return eval_binary(run, node, out, err);
    case NODE_COMPARE:
        return eval_compare(run, node, out, err);
    case NODE_AND:
    case NODE_OR:
        return eval_logic(run, node, out, err);
    case NODE_CONDITION:
        return eval_condition(run, node, out, err);
    default:
        UNREACHABLE();    // statements and parts of them are no expressions
    }
}

enum status template_eval(struct template_run *run, const struct template_node *node,
                          struct template_value *out, struct error *err) {
    TRY(template_charge(run, 1, err));
    if (run->depth == BOUND_TEMPLATE_CALLS) {
        return error_set(err, STATUS_INVALID, "the chat template nests more than %u evaluations",
                         BOUND_TEMPLATE_CALLS);
    }
    run->depth++;
    enum status status = eval(run, node, out, err);
    run->depth--;
    return status;
}
