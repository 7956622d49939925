// SPDX-License-Identifier: Apache-2.0
// Methods of Python's dict and list and of Jinja's loop, and the lookup of all methods by name.
// Lists and dicts cannot be changed, as in the reference's immutable sandbox.
#include "controller/text/template_run.h"

// ---- dict, list, loop --------------------------------------------------------------------------

static enum status dict_list(struct template_run *run, const struct template_dict *dict, int part,
                             struct template_value *out, struct error *err) {
    struct template_list *list = template_list_create(run->arena, dict->count);
    if (list == NULL) {
        return template_full(err);
    }
    for (size_t i = 0; i < dict->count; i++) {
        const struct template_pair *pair = &dict->pairs[i];
        if (part < 2) {
            list->items[i] = part == 0 ? pair->key : pair->value;
            continue;
        }
        struct template_list *both = template_list_create(run->arena, 2);
        if (both == NULL) {
            return template_full(err);
        }
        both->tuple = true;
        both->items[0] = pair->key;
        both->items[1] = pair->value;
        list->items[i] = (struct template_value){.kind = TEMPLATE_LIST, .as.list = both};
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return template_charge(run, dict->count, err);
}

static enum status dict_keys(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    (void)args;
    return dict_list(run, self->as.dict, 0, out, err);
}

static enum status dict_values(struct template_run *run, const struct template_value *self,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    (void)args;
    return dict_list(run, self->as.dict, 1, out, err);
}

static enum status dict_items(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    (void)args;
    return dict_list(run, self->as.dict, 2, out, err);
}

static enum status dict_get(struct template_run *run, const struct template_value *self,
                            const struct template_args *args, struct template_value *out,
                            struct error *err) {
    const struct template_value *key = template_arg(args, 0, "key");
    const struct template_value *fallback = template_arg(args, 1, "default");
    if (key == NULL) {
        return error_set(err, STATUS_INVALID, "get expected at least 1 argument, got 0");
    }
    const struct template_value *found = template_dict_get(self->as.dict, key);
    *out = found != NULL ? *found : fallback != NULL ? *fallback : template_none();
    return template_charge(run, self->as.dict->count / 8, err);
}

static enum status same_object(struct template_run *run, const struct template_value *self,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    (void)run;
    (void)args;
    (void)err;
    *out = *self;    // values do not change, so a copy is the thing itself
    return STATUS_OK;
}

static enum status immutable(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    (void)run;
    (void)args;
    (void)out;
    return error_set(err, STATUS_INVALID, "a %s cannot be changed in a chat template",
                     template_type_name(self));
}

static enum status list_index(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    const struct template_value *value = template_arg(args, 0, "value");
    const struct template_list *list = self->as.list;
    TRY(template_charge(run, list->count / 8, err));
    for (size_t i = 0; value != NULL && i < list->count; i++) {
        if (template_equal(&list->items[i], value)) {
            *out = template_int((int64_t)i);
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_INVALID, "the value is not in the list");
}

static enum status list_count(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    const struct template_value *value = template_arg(args, 0, "value");
    const struct template_list *list = self->as.list;
    int64_t count = 0;
    for (size_t i = 0; value != NULL && i < list->count; i++) {
        count += template_equal(&list->items[i], value) ? 1 : 0;
    }
    *out = template_int(count);
    return template_charge(run, list->count / 8, err);
}

static enum status loop_cycle(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    (void)run;
    if (args->count == 0) {
        return error_set(err, STATUS_INVALID, "no items for cycling given");
    }
    *out = args->items[self->as.loop->index % args->count];
    return STATUS_OK;
}

// ---- tables ------------------------------------------------------------------------------------

static const struct template_method_row dict_methods[] = {
    {"get", dict_get},         {"keys", dict_keys},   {"values", dict_values},
    {"items", dict_items},     {"copy", same_object}, {"pop", immutable},
    {"popitem", immutable},    {"clear", immutable},  {"update", immutable},
    {"setdefault", immutable}, {NULL, NULL},
};

static const struct template_method_row list_methods[] = {
    {"index", list_index}, {"count", list_count},  {"copy", same_object}, {"append", immutable},
    {"extend", immutable}, {"insert", immutable},  {"pop", immutable},    {"remove", immutable},
    {"clear", immutable},  {"reverse", immutable}, {"sort", immutable},   {NULL, NULL},
};

static const struct template_method_row loop_methods[] = {{"cycle", loop_cycle}, {NULL, NULL}};

static const struct template_method_row *find_method(const struct template_value *object,
                                                     struct template_text name) {
    const struct template_method_row *table = object->kind == TEMPLATE_STRING ? template_str_methods
                                              : object->kind == TEMPLATE_DICT ? dict_methods
                                              : object->kind == TEMPLATE_LIST ? list_methods
                                              : object->kind == TEMPLATE_LOOP ? loop_methods
                                                                              : NULL;
    for (; table != NULL && table->name != NULL; table++) {
        if (template_text_is(name, table->name)) {
            return table;
        }
    }
    return NULL;
}

bool template_has_method(const struct template_value *object, struct template_text name) {
    return find_method(object, name) != NULL;
}

enum status template_call_method(struct template_run *run, const struct template_value *object,
                                 struct template_text name, const struct template_args *args,
                                 struct template_value *out, struct error *err) {
    const struct template_method_row *method = find_method(object, name);
    if (method == NULL) {
        return error_set(err, STATUS_INVALID, "'%s' object has no such method",
                         template_type_name(object));
    }
    TRY(template_charge(run, 1, err));
    return method->fn(run, object, args, out, err);
}
