// SPDX-License-Identifier: Apache-2.0
// Arithmetic and concatenation, as Python does them on numbers, texts and lists.
#include "common/bounds.h"
#include "controller/text/template_run.h"
#include <math.h>
#include <string.h>

static const char *op_sign(enum template_op op) {
    static const char *const signs[] = {"+",  "-",  "*", "/",  "//", "%",  "**", "~",
                                        "==", "!=", "<", "<=", ">",  ">=", "in", "not in"};
    return signs[op];
}

static enum status no_operation(enum template_op op, const struct template_value *a,
                                const struct template_value *b, struct error *err) {
    if (a->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(a, err);
    }
    if (b->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(b, err);
    }
    return error_set(err, STATUS_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                     op_sign(op), template_type_name(a), template_type_name(b));
}

static enum status overflow(struct error *err) {
    return error_set(err, STATUS_INVALID, "an integer does not fit 64 bits");
}

static enum status integer_power(int64_t base, int64_t exponent, struct template_value *out,
                                 struct error *err) {
    if (exponent < 0) {
        *out = template_float(pow((double)base, (double)exponent));
        return STATUS_OK;
    }
    int64_t result = 1;
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(result, base, &result)) {
            return overflow(err);
        }
        if (base == 0 || base == 1 || (base == -1 && exponent % 2 == 1)) {
            break;    // the rest changes nothing
        }
    }
    *out = template_int(result);
    return STATUS_OK;
}

// Python's // and % round towards minus infinity.
static enum status integer_divide(enum template_op op, int64_t a, int64_t b,
                                  struct template_value *out, struct error *err) {
    if (b == 0) {
        return error_set(err, STATUS_INVALID, "division by zero");
    }
    if (op == OP_DIV) {
        *out = template_float((double)a / (double)b);
        return STATUS_OK;
    }
    if (b == -1) {    // INT64_MIN / -1 traps
        int64_t negated = 0;
        if (op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &negated)) {
            return overflow(err);
        }
        *out = template_int(op == OP_FLOORDIV ? negated : 0);
        return STATUS_OK;
    }
    int64_t quotient = a / b;
    int64_t rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = template_int(op == OP_FLOORDIV ? quotient : rest);
    return STATUS_OK;
}

static enum status integer_operation(enum template_op op, int64_t a, int64_t b,
                                     struct template_value *out, struct error *err) {
    int64_t result = 0;
    bool bad = false;
    switch (op) {
    case OP_ADD:
        bad = __builtin_add_overflow(a, b, &result);
        break;
    case OP_SUB:
        bad = __builtin_sub_overflow(a, b, &result);
        break;
    case OP_MUL:
        bad = __builtin_mul_overflow(a, b, &result);
        break;
    case OP_POW:
        return integer_power(a, b, out, err);
    default:
        return integer_divide(op, a, b, out, err);
    }
    if (bad) {
        return overflow(err);
    }
    *out = template_int(result);
    return STATUS_OK;
}

static enum status float_operation(enum template_op op, double a, double b,
                                   struct template_value *out, struct error *err) {
    bool divides = op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD;
    if (divides && b == 0.0) {
        return error_set(err, STATUS_INVALID, "division by zero");
    }
    double result = 0.0;
    switch (op) {
    case OP_ADD:
        result = a + b;
        break;
    case OP_SUB:
        result = a - b;
        break;
    case OP_MUL:
        result = a * b;
        break;
    case OP_DIV:
        result = a / b;
        break;
    case OP_FLOORDIV:
        result = floor(a / b);
        break;
    case OP_MOD:
        result = fmod(a, b);
        result += result != 0.0 && (result < 0.0) != (b < 0.0) ? b : 0.0;
        break;
    default:
        result = pow(a, b);
        break;
    }
    *out = template_float(result);
    return STATUS_OK;
}

static enum status add_lists(struct template_run *run, const struct template_list *a,
                             const struct template_list *b, struct template_value *out,
                             struct error *err) {
    TRY(template_charge(run, (a->count + b->count) / 8, err));
    struct template_list *list = template_list_create(run->arena, a->count + b->count);
    if (list == NULL) {
        return template_full(err);
    }
    list->tuple = a->tuple;
    for (size_t i = 0; i < list->count; i++) {
        list->items[i] = i < a->count ? a->items[i] : b->items[i - a->count];
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

// "ab" * 3, [x] * 2
static enum status repeat(struct template_run *run, const struct template_value *what,
                          int64_t times, struct template_value *out, struct error *err) {
    size_t count = times < 0 ? 0 : (size_t)times;
    bool is_text = what->kind == TEMPLATE_STRING;
    size_t unit =
        is_text ? what->as.string.byte_count : what->as.list->count * sizeof(struct template_value);
    size_t total = 0;
    if (__builtin_mul_overflow(unit, count, &total) || total > BOUND_TEMPLATE_MEMORY_BYTES) {
        return template_full(err);
    }
    TRY(template_charge(run, total / 64 + 1, err));
    struct template_list *list =
        is_text ? NULL : template_list_create(run->arena, what->as.list->count * count);
    char *text = is_text ? arena_alloc(run->arena, total + 1) : NULL;
    if (list == NULL && text == NULL) {
        return template_full(err);
    }
    if (is_text) {
        for (size_t i = 0; unit > 0 && i < count; i++) {
            memcpy(text + i * unit, what->as.string.bytes, unit);
        }
        *out = template_string(text, total);
        return STATUS_OK;
    }
    list->tuple = what->as.list->tuple;
    for (size_t i = 0; i < list->count; i++) {
        list->items[i] = what->as.list->items[i % what->as.list->count];
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

static bool is_integer(const struct template_value *value) {
    return value->kind == TEMPLATE_INT || value->kind == TEMPLATE_BOOL;
}

static bool is_sequence(const struct template_value *value) {
    return value->kind == TEMPLATE_STRING || value->kind == TEMPLATE_LIST;
}

static enum status concat_values(struct template_run *run, const struct template_value *a,
                                 const struct template_value *b, struct template_value *out,
                                 struct error *err) {
    struct template_value left;
    struct template_value right;
    TRY(template_to_string(run->arena, a, &left, err));
    TRY(template_to_string(run->arena, b, &right, err));
    return template_concat(run, left.as.string, right.as.string, out, err);
}

enum status template_operate(struct template_run *run, enum template_op op,
                             const struct template_value *a, const struct template_value *b,
                             struct template_value *out, struct error *err) {
    if (op == OP_CONCAT) {
        return concat_values(run, a, b, out, err);
    }
    if (is_integer(a) && is_integer(b)) {
        return integer_operation(op, template_integer(a), template_integer(b), out, err);
    }
    if (template_is_number(a) && template_is_number(b)) {
        return float_operation(op, template_number(a), template_number(b), out, err);
    }
    if (op == OP_ADD && a->kind == TEMPLATE_STRING && b->kind == TEMPLATE_STRING) {
        return template_concat(run, a->as.string, b->as.string, out, err);
    }
    if (op == OP_ADD && a->kind == TEMPLATE_LIST && b->kind == TEMPLATE_LIST &&
        a->as.list->tuple == b->as.list->tuple) {
        return add_lists(run, a->as.list, b->as.list, out, err);
    }
    if (op == OP_MUL && is_sequence(a) && is_integer(b)) {
        return repeat(run, a, template_integer(b), out, err);
    }
    if (op == OP_MUL && is_integer(a) && is_sequence(b)) {
        return repeat(run, b, template_integer(a), out, err);
    }
    if (op == OP_MOD && a->kind == TEMPLATE_STRING) {
        return template_format_percent(run, a->as.string, b, out, err);
    }
    return no_operation(op, a, b, err);
}

enum status template_negate(const struct template_value *value, bool minus,
                            struct template_value *out, struct error *err) {
    if (is_integer(value)) {
        int64_t result = template_integer(value);
        if (minus && __builtin_sub_overflow((int64_t)0, result, &result)) {
            return overflow(err);
        }
        *out = template_int(result);
        return STATUS_OK;
    }
    if (value->kind == TEMPLATE_FLOAT) {
        *out = template_float(minus ? -value->as.real : value->as.real);
        return STATUS_OK;
    }
    if (value->kind == TEMPLATE_UNDEFINED) {
        return template_undefined_use(value, err);
    }
    return error_set(err, STATUS_INVALID, "bad operand type for unary %s: '%s'", minus ? "-" : "+",
                     template_type_name(value));
}
