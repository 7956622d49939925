// SPDX-License-Identifier: Apache-2.0
// How values become text: Python's str and repr, and json.dumps.
#include "controller/text/template_value.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/text/unicode.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- numbers -----------------------------------------------------------------------------------

// Digits of the shortest decimal that reads back as `value` (finite), and its exponent: the number
// is d.ddd * 10^exponent.
static int shortest_digits(double value, char digits[24], int *exponent) {
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    int count = 0;
    const char *at = text;
    for (; *at != 'e' && *at != '\0'; at++) {
        if (*at >= '0' && *at <= '9') {
            digits[count++] = *at;
        }
    }
    *exponent = (int)strtol(at + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    return count;
}

void template_print_float(double value, struct buf *out) {
    if (isnan(value)) {
        buf_append_str(out, "nan");
        return;
    }
    if (signbit(value)) {
        buf_append_byte(out, '-');
    }
    if (isinf(value)) {
        buf_append_str(out, "inf");
        return;
    }
    char digits[24];
    int exponent = 0;
    int count = shortest_digits(fabs(value), digits, &exponent);
    // Python's repr turns to exponents below 1e-4 and from 1e16 on.
    if (exponent < -4 || exponent >= 16) {
        buf_append_byte(out, (uint8_t)digits[0]);
        if (count > 1) {
            buf_append_byte(out, '.');
            buf_append(out, digits + 1, (size_t)(count - 1));
        }
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        buf_append_str(out, "0.");
        for (int i = -1; i > exponent; i--) {
            buf_append_byte(out, '0');
        }
        buf_append(out, digits, (size_t)count);
        return;
    }
    for (int i = 0; i <= exponent || i < count; i++) {
        if (i == exponent + 1) {
            buf_append_byte(out, '.');
        }
        buf_append_byte(out, i < count ? (uint8_t)digits[i] : '0');
    }
    if (count <= exponent + 1) {
        buf_append_str(out, ".0");
    }
}

static void print_int(int64_t value, struct buf *out) {
    buf_printf(out, "%lld", (long long)value);
}

// ---- str and repr ------------------------------------------------------------------------------

// Python escapes in repr what does not print: controls, formats, unassigned, separators but space.
static bool prints(uint32_t code) {
    if (code < 0x7F) {
        return code >= 0x20;
    }
    return unicode_is_printable(code);
}

static void repr_text(struct template_text text, struct buf *out) {
    bool single = memchr(text.bytes, '\'', text.byte_count) != NULL;
    bool twice = memchr(text.bytes, '"', text.byte_count) != NULL;
    char quote = single && !twice ? '"' : '\'';
    buf_append_byte(out, (uint8_t)quote);
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        const char *bytes = text.bytes + at;
        uint32_t length = unicode_decode((const uint8_t *)bytes, text.byte_count - at, &code);
        if (code == (uint32_t)quote || code == '\\') {
            buf_printf(out, "\\%c", (char)code);
        } else if (code == '\n') {
            buf_append_str(out, "\\n");
        } else if (code == '\r') {
            buf_append_str(out, "\\r");
        } else if (code == '\t') {
            buf_append_str(out, "\\t");
        } else if (prints(code)) {
            buf_append(out, bytes, length);
        } else if (code < 0x100) {
            buf_printf(out, "\\x%02x", code);
        } else if (code < 0x10000) {
            buf_printf(out, "\\u%04x", code);
        } else {
            buf_printf(out, "\\U%08x", code);
        }
        at += length;
    }
    buf_append_byte(out, (uint8_t)quote);
}

static void repr(const struct template_value *value, uint32_t level, struct buf *out);

// Loops end when the buffer is full: a small graph of shared lists may print as a huge tree.
static void repr_list(const struct template_list *list, uint32_t level, struct buf *out) {
    buf_append_byte(out, list->tuple ? '(' : '[');
    for (size_t i = 0; i < list->count && buf_status(out) == STATUS_OK; i++) {
        if (i > 0) {
            buf_append_str(out, ", ");
        }
        repr(&list->items[i], level + 1, out);
    }
    if (list->tuple && list->count == 1) {
        buf_append_byte(out, ',');
    }
    buf_append_byte(out, list->tuple ? ')' : ']');
}

static void repr_dict(const struct template_dict *dict, uint32_t level, struct buf *out) {
    buf_append_byte(out, '{');
    for (size_t i = 0; i < dict->count && buf_status(out) == STATUS_OK; i++) {
        if (i > 0) {
            buf_append_str(out, ", ");
        }
        repr(&dict->pairs[i].key, level + 1, out);
        buf_append_str(out, ": ");
        repr(&dict->pairs[i].value, level + 1, out);
    }
    buf_append_byte(out, '}');
}

static void repr(const struct template_value *value, uint32_t level, struct buf *out) {
    if (level > BOUND_TEMPLATE_VALUE_DEPTH) {
        buf_append_str(out, "...");    // as Python prints what it will not follow
        return;
    }
    switch (value->kind) {
    case TEMPLATE_UNDEFINED:
        buf_append_str(out, "Undefined");
        break;
    case TEMPLATE_NONE:
        buf_append_str(out, "None");
        break;
    case TEMPLATE_BOOL:
        buf_append_str(out, value->as.boolean ? "True" : "False");
        break;
    case TEMPLATE_INT:
        print_int(value->as.integer, out);
        break;
    case TEMPLATE_FLOAT:
        template_print_float(value->as.real, out);
        break;
    case TEMPLATE_STRING:
        repr_text(value->as.string, out);
        break;
    case TEMPLATE_LIST:
        repr_list(value->as.list, level, out);
        break;
    case TEMPLATE_DICT:
        repr_dict(value->as.dict, level, out);
        break;
    case TEMPLATE_NAMESPACE:
    case TEMPLATE_LOOP:
    case TEMPLATE_MACRO:
    case TEMPLATE_METHOD:
    case TEMPLATE_FUNCTION:
        buf_printf(out, "<%s>", template_type_name(value));
        break;
    }
}

void template_print(const struct template_value *value, struct buf *out) {
    if (value->kind == TEMPLATE_STRING) {
        buf_append(out, value->as.string.bytes, value->as.string.byte_count);
    } else if (value->kind != TEMPLATE_UNDEFINED) {
        repr(value, 0, out);
    }
}

enum status template_to_string(struct arena *arena, const struct template_value *value,
                               struct template_value *out, struct error *err) {
    if (value->kind == TEMPLATE_STRING) {
        *out = *value;
        return STATUS_OK;
    }
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    template_print(value, &text);
    enum status status = buf_status(&text);
    if (status == STATUS_OK) {
        status = template_string_copy(arena, text.data, text.bytes_used, out, err);
    } else {
        status = error_set(err, STATUS_INVALID, "a value prints as more than %u bytes",
                           BOUND_TEMPLATE_OUTPUT_BYTES);
    }
    buf_deinit(&text);
    return status;
}

// ---- JSON --------------------------------------------------------------------------------------

static void json_text_out(struct template_text text, bool ascii_only, struct buf *out) {
    buf_append_byte(out, '"');
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        const char *bytes = text.bytes + at;
        uint32_t length = unicode_decode((const uint8_t *)bytes, text.byte_count - at, &code);
        static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
        const char *name = NULL;
        for (size_t i = 0; i + 1 < sizeof named; i += 2) {
            name = (uint32_t)named[i] == code ? &named[i + 1] : name;
        }
        if (name != NULL) {
            buf_append_byte(out, '\\');
            buf_append_byte(out, (uint8_t)*name);
        } else if (code < 0x20 || (ascii_only && code >= 0x7F && code < 0x10000)) {
            buf_printf(out, "\\u%04x", code);
        } else if (ascii_only && code >= 0x10000) {
            uint32_t low = code - 0x10000;
            buf_printf(out, "\\u%04x\\u%04x", 0xD800 + (low >> 10), 0xDC00 + (low & 0x3FF));
        } else {
            buf_append(out, bytes, length);
        }
        at += length;
    }
    buf_append_byte(out, '"');
}

static enum status json_out(const struct template_value *value,
                            const struct template_json_options *options, uint32_t level,
                            struct buf *out, struct error *err);

static void json_newline(const struct template_json_options *options, uint32_t level,
                         struct buf *out) {
    if (options->indent < 0) {
        return;
    }
    buf_append_byte(out, '\n');
    for (int64_t i = 0; i < options->indent * level && buf_status(out) == STATUS_OK; i++) {
        buf_append_byte(out, ' ');
    }
}

static enum status json_list(const struct template_list *list,
                             const struct template_json_options *options, uint32_t level,
                             struct buf *out, struct error *err) {
    buf_append_byte(out, '[');
    for (size_t i = 0; i < list->count && buf_status(out) == STATUS_OK; i++) {
        if (i > 0) {
            buf_append(out, options->item_separator.bytes, options->item_separator.byte_count);
        }
        json_newline(options, level + 1, out);
        TRY(json_out(&list->items[i], options, level + 1, out, err));
    }
    if (list->count > 0) {
        json_newline(options, level, out);
    }
    buf_append_byte(out, ']');
    return STATUS_OK;
}

// JSON keys are strings; Python turns numbers, booleans and None into them.
static enum status json_key(const struct template_value *key,
                            const struct template_json_options *options, struct buf *out,
                            struct error *err) {
    if (key->kind == TEMPLATE_STRING) {
        json_text_out(key->as.string, options->ascii_only, out);
        return STATUS_OK;
    }
    if (!template_is_number(key) && key->kind != TEMPLATE_NONE) {
        return error_set(err, STATUS_INVALID, "keys of a JSON object cannot be '%s'",
                         template_type_name(key));
    }
    buf_append_byte(out, '"');
    TRY(json_out(key, options, 0, out, err));
    buf_append_byte(out, '"');
    return STATUS_OK;
}

static enum status json_pairs(const struct template_pair *pairs, size_t count,
                              const struct template_json_options *options, uint32_t level,
                              struct buf *out, struct error *err) {
    buf_append_byte(out, '{');
    for (size_t i = 0; i < count && buf_status(out) == STATUS_OK; i++) {
        if (i > 0) {
            buf_append(out, options->item_separator.bytes, options->item_separator.byte_count);
        }
        json_newline(options, level + 1, out);
        TRY(json_key(&pairs[i].key, options, out, err));
        buf_append(out, options->key_separator.bytes, options->key_separator.byte_count);
        TRY(json_out(&pairs[i].value, options, level + 1, out, err));
    }
    if (count > 0) {
        json_newline(options, level, out);
    }
    buf_append_byte(out, '}');
    return STATUS_OK;
}

static int compare_pairs(const void *a, const void *b) {
    const struct template_pair *x = a;
    const struct template_pair *y = b;
    int order = 0;
    // Keys of mixed kinds have no order; they stay where they are.
    return template_order(&x->key, &y->key, &order, NULL) == STATUS_OK ? order : 0;
}

static enum status json_dict(const struct template_dict *dict,
                             const struct template_json_options *options, uint32_t level,
                             struct buf *out, struct error *err) {
    if (!options->sort_keys || dict->count < 2) {
        return json_pairs(dict->pairs, dict->count, options, level, out, err);
    }
    struct template_pair *sorted = memory_array(dict->count, sizeof *sorted);
    if (sorted == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory to sort %zu keys", dict->count);
    }
    memcpy(sorted, dict->pairs, dict->count * sizeof *sorted);
    qsort(sorted, dict->count, sizeof *sorted, compare_pairs);
    enum status status = json_pairs(sorted, dict->count, options, level, out, err);
    memory_free(sorted);
    return status;
}

static enum status json_out(const struct template_value *value,
                            const struct template_json_options *options, uint32_t level,
                            struct buf *out, struct error *err) {
    if (level > BOUND_TEMPLATE_VALUE_DEPTH) {
        return error_set(err, STATUS_INVALID, "a value is nested deeper than %u levels",
                         BOUND_TEMPLATE_VALUE_DEPTH);
    }
    switch (value->kind) {
    case TEMPLATE_NONE:
        buf_append_str(out, "null");
        return STATUS_OK;
    case TEMPLATE_BOOL:
        buf_append_str(out, value->as.boolean ? "true" : "false");
        return STATUS_OK;
    case TEMPLATE_INT:
        print_int(value->as.integer, out);
        return STATUS_OK;
    case TEMPLATE_FLOAT:
        if (isfinite(value->as.real)) {
            template_print_float(value->as.real, out);
        } else {
            buf_append_str(out, isnan(value->as.real)  ? "NaN"
                                : value->as.real < 0.0 ? "-Infinity"
                                                       : "Infinity");
        }
        return STATUS_OK;
    case TEMPLATE_STRING:
        json_text_out(value->as.string, options->ascii_only, out);
        return STATUS_OK;
    case TEMPLATE_LIST:
        return json_list(value->as.list, options, level, out, err);
    case TEMPLATE_DICT:
        return json_dict(value->as.dict, options, level, out, err);
    case TEMPLATE_UNDEFINED:
    case TEMPLATE_NAMESPACE:
    case TEMPLATE_LOOP:
    case TEMPLATE_MACRO:
    case TEMPLATE_METHOD:
    case TEMPLATE_FUNCTION:
        break;
    }
    return error_set(err, STATUS_INVALID, "Object of type %s is not JSON serializable",
                     template_type_name(value));
}

enum status template_print_json(const struct template_value *value,
                                const struct template_json_options *options, struct buf *out,
                                struct error *err) {
    return json_out(value, options, 0, out, err);
}
