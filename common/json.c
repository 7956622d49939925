// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "common/utf8.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct json_doc {
    json_t *root;
};

// `struct json` is jansson's value under another name: handles are never dereferenced outside.
static const struct json *wrap(const json_t *value) {
    return (const struct json *)value;
}

static const json_t *unwrap(const struct json *value) {
    return (const json_t *)value;
}

// jansson wants mutable pointers even where it only reads.
static json_t *unwrap_mutable(const struct json *value) {
    union {
        const struct json *from;
        json_t *to;
    } cast = {.from = value};
    return cast.to;
}

// ---- parsing -----------------------------------------------------------------------------------

static bool hex4(const char *at, unsigned *out) {
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        unsigned digit;
        if (c >= '0' && c <= '9') {
            digit = (unsigned)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            digit = (unsigned)(c - 'a' + 10);
        } else if (c >= 'A' && c <= 'F') {
            digit = (unsigned)(c - 'A' + 10);
        } else {
            return false;
        }
        value = value * 16 + digit;
    }
    *out = value;
    return true;
}

// True when bytes[i..] starts a \uXXXX escape; `out` receives its code unit.
static bool escape_at(const char *bytes, size_t byte_count, size_t i, unsigned *out) {
    return i + 6 <= byte_count && bytes[i] == '\\' && bytes[i + 1] == 'u' &&
           hex4(bytes + i + 2, out);
}

// One pass over the text before the real parser: refuses deep nesting, and rewrites lone surrogate
// escapes (JavaScript emits them when it cuts an emoji in half) to \\ufffd in place.
static enum status prepare(char *bytes, size_t byte_count, struct error *err) {
    uint32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < byte_count; i++) {
        char c = bytes[i];
        if (!in_string) {
            if (c == '"') {
                in_string = true;
            } else if (c == '{' || c == '[') {
                if (++depth > BOUND_JSON_DEPTH) {
                    return error_set(err, STATUS_INVALID, "JSON is nested deeper than %u levels",
                                     BOUND_JSON_DEPTH);
                }
            } else if ((c == '}' || c == ']') && depth > 0) {
                depth--;
            }
            continue;
        }
        if (c == '"') {
            in_string = false;
        } else if (c == '\\') {
            unsigned unit = 0;
            if (!escape_at(bytes, byte_count, i, &unit)) {
                i++;    // skips the escaped character; bad escapes are left to the parser
                continue;
            }
            if (unit >= 0xD800 && unit <= 0xDBFF) {
                unsigned low = 0;
                if (escape_at(bytes, byte_count, i + 6, &low) && low >= 0xDC00 && low <= 0xDFFF) {
                    i += 11;
                    continue;
                }
            }
            if (unit >= 0xD800 && unit <= 0xDFFF) {
                memcpy(bytes + i + 2, "fffd", 4);
            }
            i += 5;
        }
    }
    return STATUS_OK;
}

enum status json_parse(const char *bytes, size_t byte_count, struct json_doc **out,
                       struct error *err) {
    char *copy = memory_strndup(bytes, byte_count);
    if (copy == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a JSON text of %zu bytes",
                         byte_count);
    }
    enum status status = prepare(copy, byte_count, err);
    if (status != STATUS_OK) {
        memory_free(copy);
        return status;
    }
    json_error_t problem;
    json_t *root = json_loadb(copy, byte_count, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    memory_free(copy);
    if (root == NULL && json_error_code(&problem) == json_error_numeric_overflow) {
        return error_set(err, STATUS_INVALID, "a number at line %d, column %d is beyond 64 bits",
                         problem.line, problem.column);
    }
    if (root == NULL) {
        return error_set(err, STATUS_INVALID, "not valid JSON at line %d, column %d: %s",
                         problem.line, problem.column, problem.text);
    }
    struct json_doc *doc = memory_zalloc(sizeof *doc);
    if (doc == NULL) {
        json_decref(root);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a JSON document");
    }
    doc->root = root;
    *out = doc;
    return STATUS_OK;
}

void json_destroy(struct json_doc *doc) {
    if (doc != NULL) {
        json_decref(doc->root);
        memory_free(doc);
    }
}

const struct json *json_root(const struct json_doc *doc) {
    return wrap(doc->root);
}

// ---- reading -----------------------------------------------------------------------------------

// 256.0 is an integer when float64 holds it exactly.
static bool real_is_int(double value) {
    return value >= -9007199254740992.0 && value <= 9007199254740992.0 && floor(value) == value;
}

enum json_kind json_kind(const struct json *value) {
    const json_t *v = unwrap(value);
    if (v == NULL) {
        return JSON_KIND_NULL;
    }
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return JSON_KIND_OBJECT;
    case JSON_ARRAY:
        return JSON_KIND_ARRAY;
    case JSON_STRING:
        return JSON_KIND_STRING;
    case JSON_INTEGER:
        return JSON_KIND_INT;
    case JSON_REAL:
        return real_is_int(json_real_value(v)) ? JSON_KIND_INT : JSON_KIND_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_KIND_BOOL;
    case JSON_NULL:
        return JSON_KIND_NULL;
    }
    return JSON_KIND_NULL;
}

const char *json_kind_name(enum json_kind kind) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
    INVARIANT((size_t)kind < sizeof names / sizeof names[0]);
    return names[kind];
}

bool json_absent(const struct json *value) {
    return json_kind(value) == JSON_KIND_NULL;
}

bool json_bool(const struct json *value) {
    return value != NULL && json_is_true(unwrap(value));
}

int64_t json_int(const struct json *value) {
    const json_t *v = unwrap(value);
    if (v != NULL && json_is_integer(v)) {
        return (int64_t)json_integer_value(v);
    }
    if (v != NULL && json_is_real(v) && real_is_int(json_real_value(v))) {
        return (int64_t)json_real_value(v);
    }
    return 0;
}

double json_number(const struct json *value) {
    return value == NULL ? 0.0 : json_number_value(unwrap(value));
}

const char *json_text(const struct json *value, size_t *byte_count) {
    const json_t *v = unwrap(value);
    if (v == NULL || !json_is_string(v)) {
        return NULL;
    }
    if (byte_count != NULL) {
        *byte_count = json_string_length(v);
    }
    return json_string_value(v);
}

size_t json_count(const struct json *value) {
    const json_t *v = unwrap(value);
    if (v == NULL) {
        return 0;
    }
    return json_is_object(v) ? json_object_size(v) : json_array_size(v);
}

const struct json *json_at(const struct json *array, size_t index) {
    return array == NULL ? NULL : wrap(json_array_get(unwrap(array), index));
}

const struct json *json_get(const struct json *object, const char *key) {
    return object == NULL ? NULL : wrap(json_object_get(unwrap(object), key));
}

// Length and both ends tell the keys of one format apart well enough.
static uint64_t key_bit(const char *key, size_t byte_count) {
    unsigned first = byte_count == 0 ? 0 : (unsigned char)key[0];
    unsigned last = byte_count == 0 ? 0 : (unsigned char)key[byte_count - 1];
    return 1ull << ((byte_count * 5 + first * 3 + last) & 63);
}

struct json_fields json_fields_of(const struct json *object) {
    struct json_fields fields = {.object = object};
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        size_t byte_count = 0;
        const char *key = json_iter_key(it, &byte_count);
        fields.seen |= key_bit(key, byte_count);
    }
    return fields;
}

const struct json *json_fields_get(const struct json_fields *fields, const char *key) {
    bool maybe = (fields->seen & key_bit(key, strlen(key))) != 0;
    return maybe ? json_get(fields->object, key) : NULL;
}

void *json_iter(const struct json *object) {
    return object == NULL ? NULL : json_object_iter(unwrap_mutable(object));
}

void *json_iter_next(const struct json *object, void *iter) {
    return json_object_iter_next(unwrap_mutable(object), iter);
}

const char *json_iter_key(void *iter, size_t *byte_count) {
    if (byte_count != NULL) {
        *byte_count = json_object_iter_key_len(iter);
    }
    return json_object_iter_key(iter);
}

const struct json *json_iter_value(void *iter) {
    return wrap(json_object_iter_value(iter));
}

// ---- typed fields ------------------------------------------------------------------------------

// Finds the field; `*value` is NULL when it is absent or null. Fails only when it is required.
static enum status find(const struct json *object, const char *key, const bool *found,
                        const struct json **value, struct error *err) {
    const struct json *field = json_get(object, key);
    *value = json_absent(field) ? NULL : field;
    if (*value == NULL && found == NULL) {
        return error_set(err, STATUS_INVALID, "field '%s' is required", key);
    }
    return STATUS_OK;
}

static enum status wrong_type(const char *key, const struct json *value, const char *wanted,
                              struct error *err) {
    return error_set(err, STATUS_INVALID, "field '%s' must be %s, not %s", key, wanted,
                     json_kind_name(json_kind(value)));
}

enum status json_field_bool(const struct json *object, const char *key, bool *out, bool *found,
                            struct error *err) {
    const struct json *value = NULL;
    TRY(find(object, key, found, &value, err));
    if (found != NULL) {
        *found = value != NULL;
    }
    if (value == NULL) {
        return STATUS_OK;
    }
    if (json_kind(value) != JSON_KIND_BOOL) {
        return wrong_type(key, value, "a boolean", err);
    }
    *out = json_bool(value);
    return STATUS_OK;
}

enum status json_field_int(const struct json *object, const char *key, struct json_range_int range,
                           int64_t *out, bool *found, struct error *err) {
    const struct json *value = NULL;
    TRY(find(object, key, found, &value, err));
    if (found != NULL) {
        *found = value != NULL;
    }
    if (value == NULL) {
        return STATUS_OK;
    }
    if (json_kind(value) != JSON_KIND_INT) {
        return wrong_type(key, value, "an integer", err);
    }
    int64_t number = json_int(value);
    if (number < range.min || number > range.max) {
        return error_set(err, STATUS_INVALID, "field '%s' is %lld; it must lie in %lld..%lld", key,
                         (long long)number, (long long)range.min, (long long)range.max);
    }
    *out = number;
    return STATUS_OK;
}

enum status json_field_real(const struct json *object, const char *key,
                            struct json_range_real range, double *out, bool *found,
                            struct error *err) {
    const struct json *value = NULL;
    TRY(find(object, key, found, &value, err));
    if (found != NULL) {
        *found = value != NULL;
    }
    if (value == NULL) {
        return STATUS_OK;
    }
    enum json_kind kind = json_kind(value);
    if (kind != JSON_KIND_INT && kind != JSON_KIND_REAL) {
        return wrong_type(key, value, "a number", err);
    }
    double number = json_number(value);
    if (!(number >= range.min && number <= range.max)) {
        return error_set(err, STATUS_INVALID, "field '%s' is %g; it must lie in %g..%g", key,
                         number, range.min, range.max);
    }
    *out = number;
    return STATUS_OK;
}

enum status json_field_string(const struct json *object, const char *key, const char **out,
                              size_t *byte_count, bool *found, struct error *err) {
    const struct json *value = NULL;
    TRY(find(object, key, found, &value, err));
    if (found != NULL) {
        *found = value != NULL;
    }
    if (value == NULL) {
        return STATUS_OK;
    }
    const char *text = json_text(value, byte_count);
    if (text == NULL) {
        return wrong_type(key, value, "a string", err);
    }
    *out = text;
    return STATUS_OK;
}

// ---- writing -----------------------------------------------------------------------------------

static void write_escape(struct buf *out, uint32_t code) {
    if (code >= 0x10000) {
        code -= 0x10000;
        buf_printf(out, "\\u%04x\\u%04x", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
        buf_printf(out, "\\u%04x", code);
    }
}

static const char *short_escape(uint32_t code) {
    switch (code) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

static void write_string(struct buf *out, const char *bytes, size_t byte_count, bool ascii_only) {
    const unsigned char *s = (const unsigned char *)bytes;
    buf_append_byte(out, '"');
    size_t plain = 0;    // start of the run that needs no escape
    size_t i = 0;
    while (i < byte_count) {
        if (s[i] >= 0x20 && s[i] < 0x7F && s[i] != '"' && s[i] != '\\') {
            i++;
            continue;
        }
        uint32_t code = 0;
        size_t length = utf8_decode(s + i, byte_count - i, &code);
        bool line_break = code == 0x85 || code == 0x2028 || code == 0x2029;
        bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        bool keep = length > 1 && !line_break && !control && !ascii_only;
        if (keep) {
            i += length;
            continue;
        }
        buf_append(out, s + plain, i - plain);
        if (length == 0) {
            buf_append_str(out, ascii_only ? "\\ufffd" : "\xEF\xBF\xBD");
            length = 1;
        } else if (short_escape(code) != NULL) {
            buf_append_str(out, short_escape(code));
        } else {
            write_escape(out, code);
        }
        i += length;
        plain = i;
    }
    buf_append(out, s + plain, byte_count - plain);
    buf_append_byte(out, '"');
}

void json_write_string(struct buf *out, const char *bytes, size_t byte_count) {
    write_string(out, bytes, byte_count, false);
}

void json_write_float(struct buf *out, float value) {
    if (isnan(value)) {
        buf_append_str(out, "null");
        return;
    }
    if (isinf(value)) {
        buf_append_str(out, value < 0 ? "-9999.0" : "9999.0");
        return;
    }
    buf_printf(out, "%.9g", (double)value);
}

void json_write_double(struct buf *out, double value) {
    if (!isfinite(value)) {
        buf_append_str(out, "null");
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = 0;
        if (sscanf(text, "%lf", &back) == 1 && back == value) {
            break;
        }
    }
    buf_append_str(out, text);
    if (strpbrk(text, ".en") == NULL) {
        buf_append_str(out, ".0");    // a real stays a real when it is read back
    }
}

static void newline(struct buf *out, const struct json_write_options *options, uint32_t level) {
    if (options->indent == 0) {
        return;
    }
    buf_append_byte(out, '\n');
    for (uint32_t i = 0; i < level * options->indent; i++) {
        buf_append_byte(out, ' ');
    }
}

static void write_separator(struct buf *out, const struct json_write_options *options) {
    buf_append_byte(out, ',');
    if (options->style == JSON_STYLE_SPACED && options->indent == 0) {
        buf_append_byte(out, ' ');
    }
}

static void write_value(const json_t *value, const struct json_write_options *options,
                        uint32_t level, struct buf *out);

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_member(const char *key, size_t key_bytes, const json_t *value, bool first,
                         const struct json_write_options *options, uint32_t level,
                         struct buf *out) {
    if (!first) {
        write_separator(out, options);
    }
    newline(out, options, level + 1);
    write_string(out, key, key_bytes, options->ascii_only);
    buf_append_byte(out, ':');
    if (options->style == JSON_STYLE_SPACED) {
        buf_append_byte(out, ' ');
    }
    write_value(value, options, level + 1, out);
}

static void write_object(json_t *object, const struct json_write_options *options, uint32_t level,
                         struct buf *out) {
    size_t count = json_object_size(object);
    if (count == 0) {
        buf_append_str(out, "{}");
        return;
    }
    buf_append_byte(out, '{');
    bool first = true;
    const char **keys = options->sort_keys ? memory_array(count, sizeof *keys) : NULL;
    if (keys != NULL) {
        size_t at = 0;
        for (void *it = json_object_iter(object); it != NULL;
             it = json_object_iter_next(object, it)) {
            keys[at++] = json_object_iter_key(it);
        }
        qsort(keys, count, sizeof *keys, compare_keys);
        for (size_t i = 0; i < count; i++) {
            write_member(keys[i], strlen(keys[i]), json_object_get(object, keys[i]), first, options,
                         level, out);
            first = false;
        }
        memory_free(keys);
    } else {
        for (void *it = json_object_iter(object); it != NULL;
             it = json_object_iter_next(object, it)) {
            write_member(json_object_iter_key(it), json_object_iter_key_len(it),
                         json_object_iter_value(it), first, options, level, out);
            first = false;
        }
    }
    newline(out, options, level);
    buf_append_byte(out, '}');
}

static void write_array(const json_t *array, const struct json_write_options *options,
                        uint32_t level, struct buf *out) {
    size_t count = json_array_size(array);
    if (count == 0) {
        buf_append_str(out, "[]");
        return;
    }
    buf_append_byte(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            write_separator(out, options);
        }
        newline(out, options, level + 1);
        write_value(json_array_get(array, i), options, level + 1, out);
    }
    newline(out, options, level);
    buf_append_byte(out, ']');
}

// Recursion is bounded by BOUND_JSON_DEPTH, checked while parsing.
static void write_value(const json_t *value, const struct json_write_options *options,
                        uint32_t level, struct buf *out) {
    INVARIANT(level <= BOUND_JSON_DEPTH + 1);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(unwrap_mutable(wrap(value)), options, level, out);
        break;
    case JSON_ARRAY:
        write_array(value, options, level, out);
        break;
    case JSON_STRING:
        write_string(out, json_string_value(value), json_string_length(value), options->ascii_only);
        break;
    case JSON_INTEGER:
        buf_printf(out, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        json_write_double(out, json_real_value(value));
        break;
    case JSON_TRUE:
        buf_append_str(out, "true");
        break;
    case JSON_FALSE:
        buf_append_str(out, "false");
        break;
    case JSON_NULL:
        buf_append_str(out, "null");
        break;
    }
}

void json_write(const struct json *value, const struct json_write_options *options,
                struct buf *out) {
    static const struct json_write_options compact = {.style = JSON_STYLE_COMPACT};
    if (value == NULL) {
        buf_append_str(out, "null");
        return;
    }
    write_value(unwrap(value), options != NULL ? options : &compact, 0, out);
}

void json_write_failure(struct buf *out, const struct error *err) {
    buf_printf(out, "\"code\":\"%s\",\"reason\":", status_name(err->status));
    json_write_string(out, err->message, strlen(err->message));
    if (err->hint[0] != '\0') {
        buf_append_str(out, ",\"hint\":");
        json_write_string(out, err->hint, strlen(err->hint));
    }
}
