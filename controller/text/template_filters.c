// SPDX-License-Identifier: Apache-2.0
// Filters over single values; those over sequences are in template_filters_list.c.
#include "common/bounds.h"
#include "controller/text/template_run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum status (*filter_fn)(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err);

static enum status text_of(struct template_run *run, const struct template_value *value,
                           struct template_text *out, struct error *err) {
    struct template_value text;
    TRY(template_to_string(run->arena, value, &text, err));
    *out = text.as.string;
    return STATUS_OK;
}

static bool flag_arg(const struct template_args *args, size_t index, const char *name) {
    const struct template_value *value = template_arg(args, index, name);
    return value != NULL && template_truth(value);
}

// ---- texts -------------------------------------------------------------------------------------

static enum status filter_string(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    (void)args;
    return template_to_string(run->arena, value, out, err);
}

static enum status filter_trim(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    struct template_text text;
    TRY(text_of(run, value, &text, err));
    struct template_value self = template_string(text.bytes, text.byte_count);
    return template_call_method(run, &self, (struct template_text){"strip", 5}, args, out, err);
}

static enum status filter_upper(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)args;
    struct template_text text;
    TRY(text_of(run, value, &text, err));
    return template_change_case(run, text, TEMPLATE_UPPER, out, err);
}

static enum status filter_lower(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)args;
    struct template_text text;
    TRY(text_of(run, value, &text, err));
    return template_change_case(run, text, TEMPLATE_LOWER, out, err);
}

static enum status filter_capitalize(struct template_run *run, const struct template_value *value,
                                     const struct template_args *args, struct template_value *out,
                                     struct error *err) {
    (void)args;
    struct template_text text;
    TRY(text_of(run, value, &text, err));
    return template_change_case(run, text, TEMPLATE_CAPITALIZE, out, err);
}

static enum status filter_title(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)args;
    struct template_text text;
    TRY(text_of(run, value, &text, err));
    return template_change_case(run, text, TEMPLATE_TITLE, out, err);
}

static enum status filter_replace(struct template_run *run, const struct template_value *value,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    const struct template_value *old = template_arg(args, 0, "old");
    const struct template_value *new = template_arg(args, 1, "new");
    const struct template_value *count = template_arg(args, 2, "count");
    struct template_text texts[3];
    if (old == NULL || new == NULL) {
        return error_set(err, STATUS_INVALID, "the filter 'replace' wants two arguments");
    }
    TRY(text_of(run, value, &texts[0], err));
    TRY(text_of(run, old, &texts[1], err));
    TRY(text_of(run, new, &texts[2], err));
    bool counted = count != NULL && count->kind == TEMPLATE_INT;
    return template_replace(run, texts[0], texts[1], texts[2], counted ? count->as.integer : -1,
                            out, err);
}

static enum status filter_escape(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    (void)args;
    struct template_text text;
    struct buf escaped;
    TRY(text_of(run, value, &text, err));
    buf_init(&escaped, BOUND_TEMPLATE_OUTPUT_BYTES);
    for (size_t i = 0; i < text.byte_count; i++) {
        char c = text.bytes[i];
        const char *name = c == '&'    ? "&amp;"
                           : c == '<'  ? "&lt;"
                           : c == '>'  ? "&gt;"
                           : c == '"'  ? "&#34;"
                           : c == '\'' ? "&#39;"
                                       : NULL;
        if (name != NULL) {
            buf_append_str(&escaped, name);
        } else {
            buf_append_byte(&escaped, (uint8_t)c);
        }
    }
    return template_take(run, &escaped, out, err);
}

// Every line but the first gets `width` blanks; empty lines only with `blank`.
static enum status indent_lines(struct template_run *run, const struct template_list *lines,
                                struct template_text margin, bool first, bool blank,
                                struct template_value *out, struct error *err) {
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    for (size_t i = 0; i < lines->count; i++) {
        struct template_text line = lines->items[i].as.string;
        if (i > 0) {
            buf_append_byte(&text, '\n');
        }
        if (i == 0 ? first : (blank || line.byte_count > 0)) {
            buf_append(&text, margin.bytes, margin.byte_count);
        }
        buf_append(&text, line.bytes, line.byte_count);
    }
    return template_take(run, &text, out, err);
}

static enum status filter_indent(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    const struct template_value *width = template_arg(args, 0, "width");
    struct template_value four = template_int(4);
    struct template_value margin = template_literal(" ");
    width = width == NULL ? &four : width;
    if (width->kind == TEMPLATE_STRING) {
        margin = *width;
    } else {
        TRY(template_operate(run, OP_MUL, &margin, width, &margin, err));
    }
    struct template_text text;
    struct template_value longer;
    struct template_value lines;
    struct template_args none = {0};
    // With one newline more, a newline at the end survives the splitting.
    TRY(text_of(run, value, &text, err));
    TRY(template_concat(run, text, (struct template_text){"\n", 1}, &longer, err));
    TRY(template_call_method(run, &longer, (struct template_text){"splitlines", 10}, &none, &lines,
                             err));
    return indent_lines(run, lines.as.list, margin.as.string, flag_arg(args, 1, "first"),
                        flag_arg(args, 2, "blank"), out, err);
}

static enum status filter_wordcount(struct template_run *run, const struct template_value *value,
                                    const struct template_args *args, struct template_value *out,
                                    struct error *err) {
    (void)args;
    struct template_value text;
    struct template_value words;
    struct template_args none = {0};
    TRY(template_to_string(run->arena, value, &text, err));
    TRY(template_call_method(run, &text, (struct template_text){"split", 5}, &none, &words, err));
    *out = template_int((int64_t)words.as.list->count);
    return STATUS_OK;
}

static enum status filter_format(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    struct template_text format;
    struct template_list *tuple = template_list_create(run->arena, args->count);
    TRY(text_of(run, value, &format, err));
    if (tuple == NULL) {
        return template_full(err);
    }
    tuple->tuple = true;
    for (size_t i = 0; i < args->count; i++) {
        tuple->items[i] = args->items[i];
    }
    struct template_value arg = {.kind = TEMPLATE_LIST, .as.list = tuple};
    return template_format_percent(run, format, &arg, out, err);
}

// ---- JSON --------------------------------------------------------------------------------------

static enum status json_options(const struct template_args *args, struct template_json_options *out,
                                struct error *err) {
    const struct template_value *indent = template_arg(args, 1, "indent");
    const struct template_value *separators = template_arg(args, 2, "separators");
    bool indented = indent != NULL && indent->kind == TEMPLATE_INT;
    *out = (struct template_json_options){
        .ascii_only = flag_arg(args, 0, "ensure_ascii"),
        .sort_keys = flag_arg(args, 3, "sort_keys"),
        .indent = indented ? (indent->as.integer < 0 ? 0 : indent->as.integer) : -1,
        .item_separator = {indented ? "," : ", ", indented ? 1 : 2},
        .key_separator = {": ", 2},
    };
    if (out->indent > 64) {
        return error_set(err, STATUS_INVALID, "tojson indents by at most 64");
    }
    if (separators != NULL && separators->kind == TEMPLATE_LIST) {
        const struct template_list *list = separators->as.list;
        if (list->count != 2 || list->items[0].kind != TEMPLATE_STRING ||
            list->items[1].kind != TEMPLATE_STRING) {
            return error_set(err, STATUS_INVALID, "tojson wants two separators");
        }
        out->item_separator = list->items[0].as.string;
        out->key_separator = list->items[1].as.string;
    }
    return STATUS_OK;
}

static enum status filter_tojson(struct template_run *run, const struct template_value *value,
                                 const struct template_args *args, struct template_value *out,
                                 struct error *err) {
    struct template_json_options options;
    struct buf text;
    TRY(json_options(args, &options, err));
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    enum status status = template_print_json(value, &options, &text, err);
    if (status != STATUS_OK) {
        buf_deinit(&text);
        return status;
    }
    return template_take(run, &text, out, err);
}

// ---- numbers and choices -----------------------------------------------------------------------

static enum status filter_default(struct template_run *run, const struct template_value *value,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    (void)run;
    (void)err;
    const struct template_value *fallback = template_arg(args, 0, "default_value");
    bool missing = value->kind == TEMPLATE_UNDEFINED ||
                   (flag_arg(args, 1, "boolean") && !template_truth(value));
    *out = !missing ? *value : fallback != NULL ? *fallback : template_literal("");
    return STATUS_OK;
}

// The number that a text spells; false when it spells none.
static bool parse_number(struct template_text text, double *real, int64_t *integer, bool *whole) {
    char copy[64];
    text = template_strip(text, NULL, true, true);
    if (text.byte_count == 0 || text.byte_count >= sizeof copy) {
        return false;
    }
    memcpy(copy, text.bytes, text.byte_count);
    copy[text.byte_count] = '\0';
    char *end = NULL;
    if (strpbrk(copy, "xXpP") != NULL) {
        return false;
    }
    *real = strtod(copy, &end);
    if (*end != '\0' || end == copy) {
        return false;
    }
    *whole = strpbrk(copy, ".eEnN") == NULL && fabs(*real) < 9e18;
    *integer = *whole ? strtoll(copy, NULL, 10) : 0;
    return true;
}

static enum status filter_int(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    (void)run;
    (void)err;
    const struct template_value *fallback = template_arg(args, 0, "default");
    double real = 0.0;
    int64_t integer = 0;
    bool whole = false;
    bool good = template_is_number(value);
    if (good) {
        whole = value->kind != TEMPLATE_FLOAT;
        integer = whole ? template_integer(value) : 0;
        real = whole ? 0.0 : value->as.real;
    } else if (value->kind == TEMPLATE_STRING) {
        good = parse_number(value->as.string, &real, &integer, &whole);
    }
    if (good && !whole) {
        good = isfinite(real) && fabs(real) < 9e18;
        integer = good ? (int64_t)real : 0;
    }
    *out = good ? template_int(integer) : fallback != NULL ? *fallback : template_int(0);
    return STATUS_OK;
}

static enum status filter_float(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)run;
    (void)err;
    const struct template_value *fallback = template_arg(args, 0, "default");
    double real = 0.0;
    int64_t integer = 0;
    bool whole = false;
    bool good = template_is_number(value);
    if (good) {
        real = template_number(value);
    } else if (value->kind == TEMPLATE_STRING) {
        good = parse_number(value->as.string, &real, &integer, &whole);
    }
    *out = good ? template_float(real) : fallback != NULL ? *fallback : template_float(0.0);
    return STATUS_OK;
}

static enum status filter_abs(struct template_run *run, const struct template_value *value,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    (void)run;
    (void)args;
    if (!template_is_number(value)) {
        return error_set(err, STATUS_INVALID, "bad operand type for abs(): '%s'",
                         template_type_name(value));
    }
    return template_negate(value, template_number(value) < 0.0, out, err);
}

static enum status filter_round(struct template_run *run, const struct template_value *value,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)run;
    const struct template_value *digits = template_arg(args, 0, "precision");
    const struct template_value *method = template_arg(args, 1, "method");
    int64_t precision = digits != NULL && digits->kind == TEMPLATE_INT ? digits->as.integer : 0;
    if (!template_is_number(value) || precision < -15 || precision > 15) {
        return error_set(err, STATUS_INVALID, "the filter 'round' cannot round that");
    }
    double scale = pow(10.0, (double)precision);
    double scaled = template_number(value) * scale;
    bool up = method != NULL && method->kind == TEMPLATE_STRING &&
              template_text_is(method->as.string, "ceil");
    bool down = method != NULL && method->kind == TEMPLATE_STRING &&
                template_text_is(method->as.string, "floor");
    double rounded = up ? ceil(scaled) : down ? floor(scaled) : nearbyint(scaled);
    *out = template_float(rounded / scale);
    return STATUS_OK;
}

static enum status filter_attr(struct template_run *run, const struct template_value *value,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    const struct template_value *name = template_arg(args, 0, "name");
    if (name == NULL || name->kind != TEMPLATE_STRING) {
        return error_set(err, STATUS_INVALID, "the filter 'attr' wants a name");
    }
    // Attributes only, no items: what differs from value.name.
    if (value->kind == TEMPLATE_DICT && !template_has_method(value, name->as.string)) {
        *out = template_undefined(name->as.string);
        return STATUS_OK;
    }
    return template_attribute(run, value, name->as.string, out, err);
}

// ---- the table ---------------------------------------------------------------------------------

// `safe` marks a text as needing no HTML escapes; without automatic escaping it is the text. (In
// the reference a marked text escapes what is added to it with + or ~, which no template wants.)
static const struct {
    const char *name;
    filter_fn fn;
} filters[] = {
    {"string", filter_string},       {"safe", filter_string},
    {"trim", filter_trim},           {"upper", filter_upper},
    {"lower", filter_lower},         {"capitalize", filter_capitalize},
    {"title", filter_title},         {"replace", filter_replace},
    {"escape", filter_escape},       {"e", filter_escape},
    {"forceescape", filter_escape},  {"indent", filter_indent},
    {"wordcount", filter_wordcount}, {"format", filter_format},
    {"tojson", filter_tojson},       {"default", filter_default},
    {"d", filter_default},           {"int", filter_int},
    {"float", filter_float},         {"abs", filter_abs},
    {"round", filter_round},         {"attr", filter_attr},
};

enum status template_filter(struct template_run *run, struct template_text name,
                            const struct template_value *value, const struct template_args *args,
                            struct template_value *out, struct error *err) {
    // `out` may be `value`: filters read it after they begin to write.
    struct template_value input = *value;
    TRY(template_charge(run, 1, err));
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (template_text_is(name, filters[i].name)) {
            return filters[i].fn(run, &input, args, out, err);
        }
    }
    bool known = false;
    TRY(template_filter_list(run, name, &input, args, out, &known, err));
    if (!known) {
        int shown = name.byte_count > 60 ? 60 : (int)name.byte_count;
        return error_set(err, STATUS_INVALID, "no filter named '%.*s'", shown, name.bytes);
    }
    return STATUS_OK;
}

bool template_filter_exists(struct template_text name) {
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (template_text_is(name, filters[i].name)) {
            return true;
        }
    }
    return template_filter_list_exists(name);
}
