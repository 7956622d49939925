// SPDX-License-Identifier: Apache-2.0
// Filters over sequences and dicts. Where the reference yields a generator ours yields a list,
// which can do more (it has a length, it prints), and nothing less.
#include "common/bounds.h"
#include "controller/text/template_run.h"
#include <stdlib.h>
#include <string.h>

typedef enum status (*filter_fn)(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err);

// The elements, paid for.
static enum status elements(struct template_run *run, const struct template_value *value,
                            const struct template_list **out, struct error *err) {
    TRY(template_charge(run, value->kind == TEMPLATE_STRING ? value->as.string.byte_count / 4 : 0,
                        err));
    TRY(template_iterate(run->arena, value, out, err));
    return template_charge(run, (*out)->count, err);
}

// select, reject and map take every false value for an empty sequence, none among them.
static enum status elements_if_true(struct template_run *run, const struct template_value *value,
                                    const struct template_list **out, struct error *err) {
    static const struct template_list empty = {0};
    if (!template_truth(value)) {
        *out = &empty;
        return STATUS_OK;
    }
    return elements(run, value, out, err);
}

static enum status new_list(struct template_run *run, size_t count, struct template_list **out,
                            struct error *err) {
    *out = template_list_create(run->arena, count);
    return *out == NULL ? template_full(err) : STATUS_OK;
}

static struct template_value list_value(const struct template_list *list) {
    return (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
}

static bool flag_arg(const struct template_args *args, size_t index, const char *name) {
    const struct template_value *value = template_arg(args, index, name);
    return value != NULL && template_truth(value);
}

// "a.b.0": attributes and items one after the other, as the reference's make_attrgetter.
static enum status path(struct template_run *run, const struct template_value *value,
                        const struct template_value *attribute, struct template_value *out,
                        struct error *err) {
    *out = *value;
    if (attribute->kind == TEMPLATE_INT) {
        return template_item(run, value, attribute, out, err);
    }
    if (attribute->kind != TEMPLATE_STRING) {
        return error_set(err, STATUS_INVALID, "an attribute's name must be str, not %s",
                         template_type_name(attribute));
    }
    struct template_text rest = attribute->as.string;
    for (;;) {
        const char *dot = memchr(rest.bytes, '.', rest.byte_count);
        size_t length = dot == NULL ? rest.byte_count : (size_t)(dot - rest.bytes);
        struct template_value key = template_string(rest.bytes, length);
        bool digits = length > 0 && length < 10;
        int64_t number = 0;
        for (size_t i = 0; i < length; i++) {
            digits = digits && rest.bytes[i] >= '0' && rest.bytes[i] <= '9';
            number = digits ? number * 10 + (rest.bytes[i] - '0') : 0;
        }
        if (digits) {
            key = template_int(number);
        }
        struct template_value next;
        TRY(template_item(run, out, &key, &next, err));
        *out = next;
        if (dot == NULL) {
            return STATUS_OK;
        }
        rest = (struct template_text){dot + 1, rest.byte_count - length - 1};
    }
}

// The arguments from `from` on.
static struct template_args tail(const struct template_args *args, size_t from) {
    struct template_args rest = *args;
    size_t skip = from < args->count ? from : args->count;
    rest.items += skip;
    rest.count -= skip;
    return rest;
}

// ---- size and place ----------------------------------------------------------------------------

static enum status filter_length(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    (void)args;
    switch (value->kind) {
    case TEMPLATE_UNDEFINED:
        *out = template_int(0);
        return STATUS_OK;
    case TEMPLATE_STRING:
        *out = template_int((int64_t)template_text_chars(value->as.string));
        return template_charge(run, value->as.string.byte_count / 64, err);
    case TEMPLATE_LIST:
        *out = template_int((int64_t)value->as.list->count);
        return STATUS_OK;
    case TEMPLATE_DICT:
        *out = template_int((int64_t)value->as.dict->count);
        return STATUS_OK;
    default:
        return error_set(err, STATUS_INVALID, "object of type '%s' has no len()",
                         template_type_name(value));
    }
}

static enum status end_of(struct template_run *run, const struct template_value *value, bool last,
                          struct template_value *out, struct error *err) {
    const struct template_list *list = NULL;
    TRY(elements(run, value, &list, err));
    struct template_text name = {"the first element of an empty sequence", 38};
    *out = list->count == 0 ? template_undefined(name) : list->items[last ? list->count - 1 : 0];
    return STATUS_OK;
}

static enum status filter_first(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)args;
    return end_of(run, value, false, out, err);
}

static enum status filter_last(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    (void)args;
    return end_of(run, value, true, out, err);
}

static enum status filter_list(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    (void)args;
    const struct template_list *items = NULL;
    struct template_list *list = NULL;
    TRY(elements(run, value, &items, err));
    TRY(new_list(run, items->count, &list, err));
    for (size_t i = 0; i < items->count; i++) {
        list->items[i] = items->items[i];
    }
    *out = list_value(list);
    return STATUS_OK;
}

static enum status filter_reverse(struct template_run *run, const struct template_value *value,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    (void)args;
    const struct template_list *items = NULL;
    struct template_list *list = NULL;
    TRY(elements(run, value, &items, err));
    TRY(new_list(run, items->count, &list, err));
    for (size_t i = 0; i < items->count; i++) {
        list->items[i] = items->items[items->count - 1 - i];
    }
    if (value->kind != TEMPLATE_STRING) {
        *out = list_value(list);
        return STATUS_OK;
    }
    struct buf text;
    buf_init(&text, value->as.string.byte_count);
    for (size_t i = 0; i < list->count; i++) {
        template_print(&list->items[i], &text);
    }
    return template_take(run, &text, out, err);
}

static enum status filter_join(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    const struct template_list *items = NULL;
    const struct template_value *separator = template_arg(args, 0, "d");
    const struct template_value *attribute = template_arg(args, 1, "attribute");
    struct buf text;
    enum status status = STATUS_OK;
    TRY(elements(run, value, &items, err));
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    for (size_t i = 0; i < items->count && status == STATUS_OK; i++) {
        struct template_value item = items->items[i];
        if (attribute != NULL) {
            status = path(run, &items->items[i], attribute, &item, err);
        }
        if (i > 0 && separator != NULL) {
            template_print(separator, &text);
        }
        template_print(&item, &text);
    }
    if (status != STATUS_OK) {
        buf_deinit(&text);
        return status;
    }
    return template_take(run, &text, out, err);
}

// ---- choosing and changing ---------------------------------------------------------------------

struct choice {
    bool by_attribute;
    bool reject;
};

static enum status chosen(struct template_run *run, const struct template_value *item,
                          struct choice choice, const struct template_args *args, bool *out,
                          struct error *err) {
    struct template_value subject = *item;
    size_t at = choice.by_attribute ? 1 : 0;
    if (choice.by_attribute) {
        TRY(path(run, item, &args->items[0], &subject, err));
    }
    if (args->count <= at) {
        *out = template_truth(&subject) != choice.reject;
        return STATUS_OK;
    }
    if (args->items[at].kind != TEMPLATE_STRING) {
        return error_set(err, STATUS_INVALID, "a test's name must be str, not %s",
                         template_type_name(&args->items[at]));
    }
    struct template_args rest = tail(args, at + 1);
    TRY(template_test(run, args->items[at].as.string, &subject, &rest, out, err));
    *out = *out != choice.reject;
    return STATUS_OK;
}

static enum status choose(struct template_run *run, const struct template_value *value,
                          struct choice choice, const struct template_args *args,
                          struct template_value *out, struct error *err) {
    const struct template_list *items = NULL;
    struct template_list *list = NULL;
    if (choice.by_attribute && args->count == 0) {
        return error_set(err, STATUS_INVALID, "the filter wants an attribute's name");
    }
    TRY(elements_if_true(run, value, &items, err));
    TRY(new_list(run, items->count, &list, err));
    size_t kept = 0;
    for (size_t i = 0; i < items->count; i++) {
        bool keep = false;
        TRY(template_charge(run, 1, err));
        TRY(chosen(run, &items->items[i], choice, args, &keep, err));
        if (keep) {
            list->items[kept++] = items->items[i];
        }
    }
    list->count = kept;
    *out = list_value(list);
    return STATUS_OK;
}

static enum status filter_select(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    return choose(run, value, (struct choice){false, false}, args, out, err);
}

static enum status filter_reject(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    return choose(run, value, (struct choice){false, true}, args, out, err);
}

static enum status filter_selectattr(struct template_run *run, const struct template_value *value,
                                     const struct template_args *args, struct template_value *out,
                                     struct error *err) {
    return choose(run, value, (struct choice){true, false}, args, out, err);
}

static enum status filter_rejectattr(struct template_run *run, const struct template_value *value,
                                     const struct template_args *args, struct template_value *out,
                                     struct error *err) {
    return choose(run, value, (struct choice){true, true}, args, out, err);
}

static enum status map_one(struct template_run *run, const struct template_value *item,
                           const struct template_value *attribute, const struct template_args *args,
                           struct template_value *out, struct error *err) {
    if (attribute != NULL) {
        const struct template_value *fallback = template_arg(args, SIZE_MAX, "default");
        TRY(path(run, item, attribute, out, err));
        if (out->kind == TEMPLATE_UNDEFINED && fallback != NULL) {
            *out = *fallback;
        }
        return STATUS_OK;
    }
    struct template_args rest = tail(args, 1);
    return template_filter(run, args->items[0].as.string, item, &rest, out, err);
}

static enum status filter_map(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    const struct template_list *items = NULL;
    struct template_list *list = NULL;
    const struct template_value *attribute = template_arg(args, SIZE_MAX, "attribute");
    if (attribute == NULL && (args->count == 0 || args->items[0].kind != TEMPLATE_STRING)) {
        return error_set(err, STATUS_INVALID, "map requires a filter argument");
    }
    TRY(elements_if_true(run, value, &items, err));
    TRY(new_list(run, items->count, &list, err));
    // A filter that maps filters may nest as deep as its own value: bounded like evaluations.
    if (run->depth >= BOUND_TEMPLATE_CALLS) {
        return error_set(err, STATUS_INVALID, "the chat template nests more than %u evaluations",
                         BOUND_TEMPLATE_CALLS);
    }
    run->depth++;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < items->count && status == STATUS_OK; i++) {
        status = map_one(run, &items->items[i], attribute, args, &list->items[i], err);
    }
    run->depth--;
    *out = list_value(list);
    return status;
}

// ---- order -------------------------------------------------------------------------------------

struct sortable {
    struct template_value key;
    struct template_value item;
};

// Case does not count unless asked for: texts are compared in lower case.
static enum status sort_key(struct template_run *run, const struct template_value *item,
                            const struct template_value *attribute, bool case_sensitive,
                            struct template_value *out, struct error *err) {
    *out = *item;
    if (attribute != NULL && attribute->kind != TEMPLATE_NONE) {
        TRY(path(run, item, attribute, out, err));
    }
    if (!case_sensitive && out->kind == TEMPLATE_STRING) {
        TRY(template_change_case(run, out->as.string, TEMPLATE_LOWER, out, err));
    }
    return STATUS_OK;
}

// A stable merge sort from `a` with room in `b`: comparisons can fail, which qsort cannot express.
static enum status sort(struct template_run *run, struct sortable *a, struct sortable *b,
                        size_t count, bool reverse, struct error *err) {
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = start + 2 * width < count ? start + 2 * width : count;
            size_t left = start;
            size_t right = middle;
            for (size_t k = start; k < end; k++) {
                bool take_right = left == middle;
                if (left < middle && right < end) {
                    int order = 0;
                    TRY(template_charge(run, 1, err));
                    TRY(template_order(&a[left].key, &a[right].key, &order, err));
                    take_right = reverse ? order < 0 : order > 0;
                }
                b[k] = take_right ? a[right++] : a[left++];
            }
        }
        memcpy(a, b, count * sizeof *a);
    }
    return STATUS_OK;
}

static enum status sorted(struct template_run *run, const struct template_list *items,
                          const struct template_value *attribute, bool case_sensitive, bool reverse,
                          struct template_value *out, struct error *err) {
    struct sortable *a = arena_array(run->arena, items->count, sizeof *a);
    struct sortable *b = arena_array(run->arena, items->count, sizeof *b);
    struct template_list *list = NULL;
    TRY(new_list(run, items->count, &list, err));
    if (a == NULL || b == NULL) {
        return template_full(err);
    }
    for (size_t i = 0; i < items->count; i++) {
        a[i].item = items->items[i];
        TRY(sort_key(run, &a[i].item, attribute, case_sensitive, &a[i].key, err));
    }
    TRY(sort(run, a, b, items->count, reverse, err));
    for (size_t i = 0; i < items->count; i++) {
        list->items[i] = a[i].item;
    }
    *out = list_value(list);
    return STATUS_OK;
}

static enum status filter_sort(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    const struct template_list *items = NULL;
    TRY(elements(run, value, &items, err));
    return sorted(run, items, template_arg(args, 2, "attribute"),
                  flag_arg(args, 1, "case_sensitive"), flag_arg(args, 0, "reverse"), out, err);
}

static enum status pairs_of(struct template_run *run, const struct template_value *value,
                            struct template_value *out, struct error *err) {
    static const struct template_args none = {0};
    if (value->kind != TEMPLATE_DICT) {
        return error_set(err, STATUS_INVALID, "can only get item pairs from a mapping, not '%s'",
                         template_type_name(value));
    }
    return template_call_method(run, value, (struct template_text){"items", 5}, &none, out, err);
}

static enum status filter_items(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)args;
    static const struct template_list empty = {0};
    if (value->kind == TEMPLATE_UNDEFINED) {
        *out = list_value(&empty);
        return STATUS_OK;
    }
    return pairs_of(run, value, out, err);
}

static enum status filter_dictsort(struct template_run *run, const struct template_value *value,
                                   const struct template_args *args, struct template_value *out,
                                   struct error *err) {
    struct template_value pairs;
    const struct template_value *by = template_arg(args, 1, "by");
    bool by_value =
        by != NULL && by->kind == TEMPLATE_STRING && template_text_is(by->as.string, "value");
    struct template_value index = template_int(by_value ? 1 : 0);
    TRY(pairs_of(run, value, &pairs, err));
    return sorted(run, pairs.as.list, &index, flag_arg(args, 0, "case_sensitive"),
                  flag_arg(args, 2, "reverse"), out, err);
}

static enum status filter_unique(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    const struct template_list *items = NULL;
    struct template_list *list = NULL;
    struct template_list *keys = NULL;
    TRY(elements(run, value, &items, err));
    TRY(new_list(run, items->count, &list, err));
    TRY(new_list(run, items->count, &keys, err));
    size_t kept = 0;
    for (size_t i = 0; i < items->count; i++) {
        struct template_value key;
        bool seen = false;
        TRY(sort_key(run, &items->items[i], template_arg(args, 1, "attribute"),
                     flag_arg(args, 0, "case_sensitive"), &key, err));
        TRY(template_charge(run, kept / 8, err));
        for (size_t k = 0; k < kept && !seen; k++) {
            seen = template_equal(&keys->items[k], &key);
        }
        if (!seen) {
            keys->items[kept] = key;
            list->items[kept++] = items->items[i];
        }
    }
    list->count = kept;
    *out = list_value(list);
    return STATUS_OK;
}

static enum status extreme(struct template_run *run, const struct template_value *value,
                           const struct template_args *args, int sign, struct template_value *out,
                           struct error *err) {
    const struct template_list *items = NULL;
    const struct template_value *attribute = template_arg(args, 1, "attribute");
    bool case_sensitive = flag_arg(args, 0, "case_sensitive");
    struct template_value best_key = template_none();
    TRY(elements(run, value, &items, err));
    *out = template_undefined((struct template_text){"No aggregated item, sequence was empty", 38});
    for (size_t i = 0; i < items->count; i++) {
        struct template_value key;
        int order = sign;
        TRY(sort_key(run, &items->items[i], attribute, case_sensitive, &key, err));
        if (i > 0) {
            TRY(template_order(&key, &best_key, &order, err));
        }
        if (order == sign) {
            best_key = key;
            *out = items->items[i];
        }
    }
    return STATUS_OK;
}

static enum status filter_min(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    return extreme(run, value, args, -1, out, err);
}

static enum status filter_max(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    return extreme(run, value, args, 1, out, err);
}

static enum status filter_sum(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    const struct template_list *items = NULL;
    const struct template_value *attribute = template_arg(args, 0, "attribute");
    const struct template_value *start = template_arg(args, 1, "start");
    TRY(elements(run, value, &items, err));
    struct template_value total = start != NULL ? *start : template_int(0);
    for (size_t i = 0; i < items->count; i++) {
        struct template_value item = items->items[i];
        struct template_value next;
        if (attribute != NULL && attribute->kind != TEMPLATE_NONE) {
            TRY(path(run, &items->items[i], attribute, &item, err));
        }
        TRY(template_operate(run, OP_ADD, &total, &item, &next, err));
        total = next;
    }
    *out = total;
    return STATUS_OK;
}

// ---- the table ---------------------------------------------------------------------------------

static const struct {
    const char *name;
    filter_fn fn;
} filters[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"first", filter_first},
    {"last", filter_last},
    {"list", filter_list},
    {"reverse", filter_reverse},
    {"join", filter_join},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"map", filter_map},
    {"sort", filter_sort},
    {"items", filter_items},
    {"dictsort", filter_dictsort},
    {"unique", filter_unique},
    {"min", filter_min},
    {"max", filter_max},
    {"sum", filter_sum},
};

enum status template_filter_list(struct template_run *run, struct template_text name,
                                 const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 bool *known, struct error *err) {
    *known = false;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (template_text_is(name, filters[i].name)) {
            *known = true;
            return filters[i].fn(run, value, args, out, err);
        }
    }
    return STATUS_OK;
}

bool template_filter_list_exists(struct template_text name) {
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (template_text_is(name, filters[i].name)) {
            return true;
        }
    }
    return false;
}
