// SPDX-License-Identifier: Apache-2.0
#include "controller/text/template_value.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "controller/text/unicode.h"
#include <string.h>

static enum status full(struct error *err) {
    return error_set(err, STATUS_INVALID, "the chat template needs more than %u MiB of memory",
                     BOUND_TEMPLATE_MEMORY_BYTES / (1024 * 1024));
}

// ---- making values -----------------------------------------------------------------------------

struct template_value template_none(void) {
    return (struct template_value){.kind = TEMPLATE_NONE};
}

struct template_value template_bool(bool value) {
    return (struct template_value){.kind = TEMPLATE_BOOL, .as.boolean = value};
}

struct template_value template_int(int64_t value) {
    return (struct template_value){.kind = TEMPLATE_INT, .as.integer = value};
}

struct template_value template_float(double value) {
    return (struct template_value){.kind = TEMPLATE_FLOAT, .as.real = value};
}

struct template_value template_string(const char *bytes, size_t byte_count) {
    return (struct template_value){.kind = TEMPLATE_STRING,
                                   .as.string = {.bytes = bytes, .byte_count = byte_count}};
}

struct template_value template_literal(const char *text) {
    return template_string(text, strlen(text));
}

struct template_value template_undefined(struct template_text name) {
    return (struct template_value){.kind = TEMPLATE_UNDEFINED, .as.string = name};
}

struct template_list *template_list_create(struct arena *arena, size_t count) {
    struct template_list *list = arena_alloc(arena, sizeof *list);
    struct template_value *items = arena_array(arena, count, sizeof *items);
    if (list == NULL || items == NULL) {
        return NULL;
    }
    list->count = count;
    list->items = items;
    return list;
}

struct template_dict *template_dict_create(struct arena *arena, size_t allocated) {
    struct template_dict *dict = arena_alloc(arena, sizeof *dict);
    struct template_pair *pairs = arena_array(arena, allocated, sizeof *pairs);
    if (dict == NULL || pairs == NULL) {
        return NULL;
    }
    dict->allocated = allocated;
    dict->pairs = pairs;
    return dict;
}

enum status template_dict_set(struct arena *arena, struct template_dict *dict,
                              struct template_value key, struct template_value value,
                              struct error *err) {
    struct template_value *old = template_dict_get(dict, &key);
    if (old != NULL) {
        *old = value;
        return STATUS_OK;
    }
    if (dict->count == dict->allocated) {
        size_t allocated = dict->allocated * 2 + 4;
        struct template_pair *pairs = arena_array(arena, allocated, sizeof *pairs);
        if (pairs == NULL) {
            return full(err);
        }
        if (dict->count > 0) {
            memcpy(pairs, dict->pairs, dict->count * sizeof *pairs);
        }
        dict->pairs = pairs;
        dict->allocated = allocated;
    }
    dict->pairs[dict->count++] = (struct template_pair){.key = key, .value = value};
    return STATUS_OK;
}

enum status template_string_copy(struct arena *arena, const void *bytes, size_t byte_count,
                                 struct template_value *out, struct error *err) {
    if (byte_count == 0) {
        *out = template_literal("");
        return STATUS_OK;
    }
    char *copy = arena_strndup(arena, bytes, byte_count);
    if (copy == NULL) {
        return full(err);
    }
    *out = template_string(copy, byte_count);
    return STATUS_OK;
}

// ---- from JSON ---------------------------------------------------------------------------------

// The reader's kinds call 1.0 an integer, Python does not: the number's own text tells.
static struct template_value number_from_json(const struct json *json) {
    struct buf text;
    buf_init(&text, 64);
    json_write(json, NULL, &text);
    bool real = strpbrk(buf_cstr(&text), ".eEnN") != NULL;
    buf_deinit(&text);
    return real ? template_float(json_number(json)) : template_int(json_int(json));
}

static enum status list_from_json(struct arena *arena, const struct json *json,
                                  struct template_value *out, struct error *err) {
    size_t count = json_count(json);
    struct template_list *list = template_list_create(arena, count);
    if (list == NULL) {
        return full(err);
    }
    for (size_t i = 0; i < count; i++) {
        TRY(template_from_json(arena, json_at(json, i), &list->items[i], err));
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

static enum status dict_from_json(struct arena *arena, const struct json *json,
                                  struct template_value *out, struct error *err) {
    struct template_dict *dict = template_dict_create(arena, json_count(json));
    if (dict == NULL) {
        return full(err);
    }
    // The parser has already dropped duplicate keys, so none is looked for here.
    for (void *it = json_iter(json); it != NULL; it = json_iter_next(json, it)) {
        struct template_pair *pair = &dict->pairs[dict->count++];
        size_t byte_count = 0;
        const char *key = json_iter_key(it, &byte_count);
        pair->key = template_string(key, byte_count);
        TRY(template_from_json(arena, json_iter_value(it), &pair->value, err));
    }
    *out = (struct template_value){.kind = TEMPLATE_DICT, .as.dict = dict};
    return STATUS_OK;
}

// Recursion is bounded by BOUND_JSON_DEPTH, checked while parsing.
enum status template_from_json(struct arena *arena, const struct json *json,
                               struct template_value *out, struct error *err) {
    switch (json_kind(json)) {
    case JSON_KIND_NULL:
        *out = template_none();
        return STATUS_OK;
    case JSON_KIND_BOOL:
        *out = template_bool(json_bool(json));
        return STATUS_OK;
    case JSON_KIND_INT:
    case JSON_KIND_REAL:
        *out = number_from_json(json);
        return STATUS_OK;
    case JSON_KIND_STRING: {
        size_t byte_count = 0;
        const char *bytes = json_text(json, &byte_count);
        *out = template_string(bytes, byte_count);
        return STATUS_OK;
    }
    case JSON_KIND_ARRAY:
        return list_from_json(arena, json, out, err);
    case JSON_KIND_OBJECT:
        return dict_from_json(arena, json, out, err);
    }
    UNREACHABLE();
}

// ---- asking ------------------------------------------------------------------------------------

bool template_truth(const struct template_value *value) {
    switch (value->kind) {
    case TEMPLATE_UNDEFINED:
    case TEMPLATE_NONE:
        return false;
    case TEMPLATE_BOOL:
        return value->as.boolean;
    case TEMPLATE_INT:
        return value->as.integer != 0;
    case TEMPLATE_FLOAT:
        return value->as.real != 0.0;
    case TEMPLATE_STRING:
        return value->as.string.byte_count > 0;
    case TEMPLATE_LIST:
        return value->as.list->count > 0;
    case TEMPLATE_DICT:
        return value->as.dict->count > 0;
    case TEMPLATE_NAMESPACE:
    case TEMPLATE_LOOP:
    case TEMPLATE_MACRO:
    case TEMPLATE_METHOD:
    case TEMPLATE_FUNCTION:
        return true;
    }
    UNREACHABLE();
}

const char *template_type_name(const struct template_value *value) {
    switch (value->kind) {
    case TEMPLATE_UNDEFINED:
        return "Undefined";
    case TEMPLATE_NONE:
        return "NoneType";
    case TEMPLATE_BOOL:
        return "bool";
    case TEMPLATE_INT:
        return "int";
    case TEMPLATE_FLOAT:
        return "float";
    case TEMPLATE_STRING:
        return "str";
    case TEMPLATE_LIST:
        return value->as.list->tuple ? "tuple" : "list";
    case TEMPLATE_DICT:
        return "dict";
    case TEMPLATE_NAMESPACE:
        return "Namespace";
    case TEMPLATE_LOOP:
        return "LoopContext";
    case TEMPLATE_MACRO:
        return "Macro";
    case TEMPLATE_METHOD:
    case TEMPLATE_FUNCTION:
        return "function";
    }
    UNREACHABLE();
}

bool template_is_number(const struct template_value *value) {
    return value->kind == TEMPLATE_BOOL || value->kind == TEMPLATE_INT ||
           value->kind == TEMPLATE_FLOAT;
}

int64_t template_integer(const struct template_value *value) {
    return value->kind == TEMPLATE_BOOL ? value->as.boolean : value->as.integer;
}

double template_number(const struct template_value *value) {
    return value->kind == TEMPLATE_FLOAT ? value->as.real : (double)template_integer(value);
}

bool template_text_is(struct template_text text, const char *word) {
    return text.byte_count == strlen(word) && memcmp(text.bytes, word, text.byte_count) == 0;
}

bool template_text_same(struct template_text a, struct template_text b) {
    return a.byte_count == b.byte_count && memcmp(a.bytes, b.bytes, a.byte_count) == 0;
}

// What one comparison may still look at. Templates can build lists that share parts over and over;
// followed to the end such a graph is a tree of astronomic size.
struct comparison {
    uint32_t steps;
    uint32_t depth;
};

static bool equal(const struct template_value *a, const struct template_value *b,
                  struct comparison *c);

static bool list_equal(const struct template_list *a, const struct template_list *b,
                       struct comparison *c) {
    if (a->count != b->count || a->tuple != b->tuple) {
        return false;
    }
    for (size_t i = 0; a != b && i < a->count; i++) {
        if (!equal(&a->items[i], &b->items[i], c)) {
            return false;
        }
    }
    return true;
}

static const struct template_value *find_equal(const struct template_dict *dict,
                                               const struct template_value *key,
                                               struct comparison *c) {
    for (size_t i = 0; i < dict->count; i++) {
        if (equal(&dict->pairs[i].key, key, c)) {
            return &dict->pairs[i].value;
        }
    }
    return NULL;
}

static bool dict_equal(const struct template_dict *a, const struct template_dict *b,
                       struct comparison *c) {
    if (a->count != b->count) {
        return false;
    }
    for (size_t i = 0; a != b && i < a->count; i++) {
        const struct template_value *other = find_equal(b, &a->pairs[i].key, c);
        if (other == NULL || !equal(&a->pairs[i].value, other, c)) {
            return false;
        }
    }
    return true;
}

static bool number_equal(const struct template_value *a, const struct template_value *b) {
    if (a->kind != TEMPLATE_FLOAT && b->kind != TEMPLATE_FLOAT) {
        return template_integer(a) == template_integer(b);
    }
    return template_number(a) == template_number(b);
}

static bool same_kind_equal(const struct template_value *a, const struct template_value *b,
                            struct comparison *c) {
    switch (a->kind) {
    case TEMPLATE_UNDEFINED:
    case TEMPLATE_NONE:
        return true;
    case TEMPLATE_BOOL:
    case TEMPLATE_INT:
    case TEMPLATE_FLOAT:
        return number_equal(a, b);
    case TEMPLATE_STRING:
        return template_text_same(a->as.string, b->as.string);
    case TEMPLATE_LIST:
        return list_equal(a->as.list, b->as.list, c);
    case TEMPLATE_DICT:
        return dict_equal(a->as.dict, b->as.dict, c);
    case TEMPLATE_NAMESPACE:
        return a->as.dict == b->as.dict;
    case TEMPLATE_LOOP:
        return a->as.loop == b->as.loop;
    case TEMPLATE_MACRO:
        return a->as.macro == b->as.macro;
    case TEMPLATE_METHOD:
        return a->as.method == b->as.method;
    case TEMPLATE_FUNCTION:
        return a->as.function == b->as.function;
    }
    UNREACHABLE();
}

static bool equal(const struct template_value *a, const struct template_value *b,
                  struct comparison *c) {
    if (template_is_number(a) && template_is_number(b)) {
        return number_equal(a, b);
    }
    if (a->kind != b->kind || c->steps == 0 || c->depth == BOUND_TEMPLATE_VALUE_DEPTH) {
        return false;
    }
    c->steps--;
    c->depth++;
    bool result = same_kind_equal(a, b, c);
    c->depth--;
    return result;
}

bool template_equal(const struct template_value *a, const struct template_value *b) {
    struct comparison c = {.steps = BOUND_TEMPLATE_STEPS};
    return equal(a, b, &c);
}

// Byte order of UTF-8 is code point order.
static int text_order(struct template_text a, struct template_text b) {
    size_t common = a.byte_count < b.byte_count ? a.byte_count : b.byte_count;
    int order = memcmp(a.bytes, b.bytes, common);
    if (order == 0) {
        order = (a.byte_count > b.byte_count) - (a.byte_count < b.byte_count);
    }
    return (order > 0) - (order < 0);
}

// The depth of lists in lists is not followed: the first unequal pair decides, and lists among
// them are refused.
static enum status list_order(const struct template_list *a, const struct template_list *b,
                              int *out, struct error *err) {
    size_t common = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < common; i++) {
        if (!template_equal(&a->items[i], &b->items[i])) {
            if (a->items[i].kind == TEMPLATE_LIST) {
                return error_set(err, STATUS_INVALID, "lists of lists cannot be ordered");
            }
            return template_order(&a->items[i], &b->items[i], out, err);
        }
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return STATUS_OK;
}

enum status template_order(const struct template_value *a, const struct template_value *b, int *out,
                           struct error *err) {
    if (template_is_number(a) && template_is_number(b)) {
        if (a->kind != TEMPLATE_FLOAT && b->kind != TEMPLATE_FLOAT) {
            int64_t x = template_integer(a);
            int64_t y = template_integer(b);
            *out = (x > y) - (x < y);
        } else {
            double x = template_number(a);
            double y = template_number(b);
            *out = (x > y) - (x < y);
        }
        return STATUS_OK;
    }
    if (a->kind == TEMPLATE_STRING && b->kind == TEMPLATE_STRING) {
        *out = text_order(a->as.string, b->as.string);
        return STATUS_OK;
    }
    if (a->kind == TEMPLATE_LIST && b->kind == TEMPLATE_LIST) {
        return list_order(a->as.list, b->as.list, out, err);
    }
    return error_set(err, STATUS_INVALID, "'%s' and '%s' cannot be ordered", template_type_name(a),
                     template_type_name(b));
}

struct template_value *template_dict_get(const struct template_dict *dict,
                                         const struct template_value *key) {
    for (size_t i = 0; i < dict->count; i++) {
        if (template_equal(&dict->pairs[i].key, key)) {
            return &dict->pairs[i].value;
        }
    }
    return NULL;
}

struct template_value *template_dict_get_text(const struct template_dict *dict,
                                              struct template_text key) {
    struct template_value value = template_string(key.bytes, key.byte_count);
    return template_dict_get(dict, &value);
}

// ---- characters --------------------------------------------------------------------------------

size_t template_text_chars(struct template_text text) {
    size_t chars = 0;
    for (size_t i = 0; i < text.byte_count; i++) {
        chars += ((unsigned char)text.bytes[i] & 0xC0) != 0x80 ? 1 : 0;
    }
    return chars;
}

size_t template_text_offset(struct template_text text, size_t index) {
    size_t at = 0;
    while (index > 0 && at < text.byte_count) {
        at++;
        while (at < text.byte_count && ((unsigned char)text.bytes[at] & 0xC0) == 0x80) {
            at++;
        }
        index--;
    }
    return at;
}

static enum status iterate_text(struct arena *arena, struct template_text text,
                                const struct template_list **out, struct error *err) {
    struct template_list *list = template_list_create(arena, template_text_chars(text));
    if (list == NULL) {
        return full(err);
    }
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct template_text rest = {text.bytes + at, text.byte_count - at};
        size_t length = template_text_offset(rest, 1);
        list->items[i] = template_string(rest.bytes, length);
        at += length;
    }
    *out = list;
    return STATUS_OK;
}

enum status template_iterate(struct arena *arena, const struct template_value *value,
                             const struct template_list **out, struct error *err) {
    static const struct template_list empty = {0};
    *out = &empty;
    if (value->kind == TEMPLATE_UNDEFINED) {
        return STATUS_OK;
    }
    if (value->kind == TEMPLATE_LIST) {
        *out = value->as.list;
        return STATUS_OK;
    }
    if (value->kind == TEMPLATE_STRING) {
        return iterate_text(arena, value->as.string, out, err);
    }
    if (value->kind == TEMPLATE_DICT) {
        struct template_list *keys = template_list_create(arena, value->as.dict->count);
        if (keys == NULL) {
            return full(err);
        }
        for (size_t i = 0; i < keys->count; i++) {
            keys->items[i] = value->as.dict->pairs[i].key;
        }
        *out = keys;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID, "'%s' object is not iterable", template_type_name(value));
}
