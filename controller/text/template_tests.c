// SPDX-License-Identifier: Apache-2.0
// Tests: what may stand after `is`.
#include "common/bounds.h"
#include "controller/text/template_run.h"
#include "controller/text/unicode.h"

enum test {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_TRUE,
    TEST_FALSE,
    TEST_BOOLEAN,
    TEST_STRING,
    TEST_NUMBER,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_MAPPING,
    TEST_SEQUENCE,
    TEST_ITERABLE,
    TEST_CALLABLE,
    TEST_UPPER,
    TEST_LOWER,
    TEST_EVEN,
    TEST_ODD,
    TEST_DIVISIBLE,
    TEST_SAME,
    TEST_COMPARE,
    TEST_FILTER,
    TEST_TEST,
    TEST_ESCAPED,
};

static const struct {
    const char *name;
    enum test test;
    enum template_op op;
} rows[] = {
    {"defined", TEST_DEFINED, OP_EQ},
    {"undefined", TEST_UNDEFINED, OP_EQ},
    {"none", TEST_NONE, OP_EQ},
    {"true", TEST_TRUE, OP_EQ},
    {"false", TEST_FALSE, OP_EQ},
    {"boolean", TEST_BOOLEAN, OP_EQ},
    {"string", TEST_STRING, OP_EQ},
    {"number", TEST_NUMBER, OP_EQ},
    {"integer", TEST_INTEGER, OP_EQ},
    {"float", TEST_FLOAT, OP_EQ},
    {"mapping", TEST_MAPPING, OP_EQ},
    {"sequence", TEST_SEQUENCE, OP_EQ},
    {"iterable", TEST_ITERABLE, OP_EQ},
    {"callable", TEST_CALLABLE, OP_EQ},
    {"upper", TEST_UPPER, OP_EQ},
    {"lower", TEST_LOWER, OP_EQ},
    {"even", TEST_EVEN, OP_EQ},
    {"odd", TEST_ODD, OP_EQ},
    {"divisibleby", TEST_DIVISIBLE, OP_EQ},
    {"sameas", TEST_SAME, OP_EQ},
    {"eq", TEST_COMPARE, OP_EQ},
    {"equalto", TEST_COMPARE, OP_EQ},
    {"==", TEST_COMPARE, OP_EQ},
    {"ne", TEST_COMPARE, OP_NE},
    {"!=", TEST_COMPARE, OP_NE},
    {"lt", TEST_COMPARE, OP_LT},
    {"lessthan", TEST_COMPARE, OP_LT},
    {"<", TEST_COMPARE, OP_LT},
    {"le", TEST_COMPARE, OP_LE},
    {"<=", TEST_COMPARE, OP_LE},
    {"gt", TEST_COMPARE, OP_GT},
    {"greaterthan", TEST_COMPARE, OP_GT},
    {">", TEST_COMPARE, OP_GT},
    {"ge", TEST_COMPARE, OP_GE},
    {">=", TEST_COMPARE, OP_GE},
    {"in", TEST_COMPARE, OP_IN},
    {"filter", TEST_FILTER, OP_EQ},
    {"test", TEST_TEST, OP_EQ},
    {"escaped", TEST_ESCAPED, OP_EQ},
};

static size_t find_row(struct template_text name) {
    size_t i = 0;
    while (i < sizeof rows / sizeof rows[0] && !template_text_is(name, rows[i].name)) {
        i++;
    }
    return i;
}

bool template_test_exists(struct template_text name) {
    return find_row(name) < sizeof rows / sizeof rows[0];
}

// str.isupper, str.islower: some cased letter, and all of them of that case.
static bool all_cased(struct template_text text, bool upper) {
    bool some = false;
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        at += unicode_decode((const uint8_t *)text.bytes + at, text.byte_count - at, &code);
        if (upper ? unicode_is_lower(code) : unicode_is_upper(code)) {
            return false;
        }
        some = some || (upper ? unicode_is_upper(code) : unicode_is_lower(code));
    }
    return some;
}

static bool is_iterable(const struct template_value *value) {
    return value->kind == TEMPLATE_STRING || value->kind == TEMPLATE_LIST ||
           value->kind == TEMPLATE_DICT || value->kind == TEMPLATE_UNDEFINED;
}

static bool is_callable(const struct template_value *value) {
    return value->kind == TEMPLATE_MACRO || value->kind == TEMPLATE_METHOD ||
           value->kind == TEMPLATE_FUNCTION || value->kind == TEMPLATE_UNDEFINED;
}

// Identity: of small things equality with the same kind, of lists and dicts the same object.
static bool same(const struct template_value *a, const struct template_value *b) {
    if (a->kind != b->kind) {
        return false;
    }
    if (a->kind == TEMPLATE_LIST) {
        return a->as.list == b->as.list;
    }
    if (a->kind == TEMPLATE_DICT) {
        return a->as.dict == b->as.dict;
    }
    return template_equal(a, b);
}

static bool kind_test(enum test test, const struct template_value *value) {
    switch (test) {
    case TEST_DEFINED:
        return value->kind != TEMPLATE_UNDEFINED;
    case TEST_UNDEFINED:
        return value->kind == TEMPLATE_UNDEFINED;
    case TEST_NONE:
        return value->kind == TEMPLATE_NONE;
    case TEST_TRUE:
        return value->kind == TEMPLATE_BOOL && value->as.boolean;
    case TEST_FALSE:
        return value->kind == TEMPLATE_BOOL && !value->as.boolean;
    case TEST_BOOLEAN:
        return value->kind == TEMPLATE_BOOL;
    case TEST_STRING:
        return value->kind == TEMPLATE_STRING;
    case TEST_NUMBER:
        return template_is_number(value);
    case TEST_INTEGER:
        return value->kind == TEMPLATE_INT;
    case TEST_FLOAT:
        return value->kind == TEMPLATE_FLOAT;
    case TEST_MAPPING:
        return value->kind == TEMPLATE_DICT;
    case TEST_SEQUENCE:    // has a length and can be indexed; an undefined value counts as empty
    case TEST_ITERABLE:
        return is_iterable(value);
    case TEST_CALLABLE:
        return is_callable(value);
    case TEST_UPPER:
        return value->kind == TEMPLATE_STRING && all_cased(value->as.string, true);
    case TEST_LOWER:
        return value->kind == TEMPLATE_STRING && all_cased(value->as.string, false);
    case TEST_FILTER:
        return value->kind == TEMPLATE_STRING && template_filter_exists(value->as.string);
    case TEST_TEST:
        return value->kind == TEMPLATE_STRING && template_test_exists(value->as.string);
    case TEST_EVEN:
    case TEST_ODD:
    case TEST_DIVISIBLE:
    case TEST_SAME:
    case TEST_COMPARE:
    case TEST_ESCAPED:
        break;
    }
    return false;
}

// even, odd and divisibleby are value % divisor == rest.
static enum status remainder_test(struct template_run *run, const struct template_value *value,
                                  const struct template_value *divisor, int64_t rest, bool *out,
                                  struct error *err) {
    if (!template_is_number(value) || !template_is_number(divisor)) {
        return error_set(err, STATUS_INVALID, "'%s' is no number to divide",
                         template_type_name(template_is_number(value) ? divisor : value));
    }
    struct template_value remainder;
    TRY(template_operate(run, OP_MOD, value, divisor, &remainder, err));
    struct template_value wanted = template_int(rest);
    *out = template_equal(&remainder, &wanted);
    return STATUS_OK;
}

enum status template_test(struct template_run *run, struct template_text name,
                          const struct template_value *value, const struct template_args *args,
                          bool *out, struct error *err) {
    size_t row = find_row(name);
    if (row == sizeof rows / sizeof rows[0]) {
        int shown = name.byte_count > 60 ? 60 : (int)name.byte_count;
        return error_set(err, STATUS_INVALID, "no test named '%.*s'", shown, name.bytes);
    }
    const struct template_value two = template_int(2);
    const struct template_value *argument = template_arg(args, 0, "other");
    enum test test = rows[row].test;
    if (test == TEST_EVEN || test == TEST_ODD) {
        return remainder_test(run, value, &two, test == TEST_ODD ? 1 : 0, out, err);
    }
    bool wants_argument = test == TEST_COMPARE || test == TEST_SAME || test == TEST_DIVISIBLE;
    if (!wants_argument) {
        *out = kind_test(test, value);
        return STATUS_OK;
    }
    if (argument == NULL) {
        return error_set(err, STATUS_INVALID, "the test '%s' wants an argument", rows[row].name);
    }
    if (test == TEST_COMPARE) {
        return template_compare(run, rows[row].op, value, argument, out, err);
    }
    if (test == TEST_DIVISIBLE) {
        return remainder_test(run, value, argument, 0, out, err);
    }
    *out = same(value, argument);
    return STATUS_OK;
}
