// SPDX-License-Identifier: Apache-2.0
// Functions that a template finds without anybody passing them: namespace, range, dict,
// raise_exception, strftime_now.
#include "common/bounds.h"
#include "common/invariant.h"
#include "controller/text/template_run.h"
#include <string.h>

enum function { FUNCTION_NAMESPACE, FUNCTION_RANGE, FUNCTION_DICT, FUNCTION_RAISE, FUNCTION_NOW };

static const char *const function_names[] = {"namespace", "range", "dict", "raise_exception",
                                             "strftime_now"};

bool template_function(struct template_text name, struct template_value *out) {
    for (uint32_t i = 0; i < sizeof function_names / sizeof function_names[0]; i++) {
        if (template_text_is(name, function_names[i])) {
            *out = (struct template_value){.kind = TEMPLATE_FUNCTION, .as.function = i};
            return true;
        }
    }
    return false;
}

// namespace(a=1), dict(a=1), and both of an existing dict.
static enum status make_dict(struct template_run *run, const struct template_args *args,
                             enum template_kind kind, struct template_value *out,
                             struct error *err) {
    struct template_dict *dict = template_dict_create(run->arena, args->named_count + 4);
    if (dict == NULL) {
        return template_full(err);
    }
    if (args->count > 1 || (args->count == 1 && args->items[0].kind != TEMPLATE_DICT)) {
        return error_set(err, STATUS_INVALID, "%s() takes one dict and keywords",
                         kind == TEMPLATE_DICT ? "dict" : "namespace");
    }
    const struct template_dict *base = args->count == 1 ? args->items[0].as.dict : NULL;
    for (size_t i = 0; base != NULL && i < base->count; i++) {
        TRY(template_charge(run, 1 + i / 8, err));
        TRY(template_dict_set(run->arena, dict, base->pairs[i].key, base->pairs[i].value, err));
    }
    for (size_t i = 0; i < args->named_count; i++) {
        struct template_text name = args->named[i].name;
        TRY(template_dict_set(run->arena, dict, template_string(name.bytes, name.byte_count),
                              args->named[i].value, err));
    }
    *out = (struct template_value){.kind = kind, .as.dict = dict};
    return STATUS_OK;
}

static enum status make_range(struct template_run *run, const struct template_args *args,
                              struct template_value *out, struct error *err) {
    int64_t bounds[3] = {0, 0, 1};    // start, stop, step
    if (args->count < 1 || args->count > 3) {
        return error_set(err, STATUS_INVALID, "range() takes 1 to 3 arguments");
    }
    for (size_t i = 0; i < args->count; i++) {
        const struct template_value *value = &args->items[i];
        if (value->kind != TEMPLATE_INT && value->kind != TEMPLATE_BOOL) {
            return error_set(err, STATUS_INVALID, "range() wants integers, not '%s'",
                             template_type_name(value));
        }
        bounds[args->count == 1 ? 1 : i] = template_integer(value);
    }
    int64_t step = bounds[2];
    if (step == 0) {
        return error_set(err, STATUS_INVALID, "range() arg 3 must not be zero");
    }
    size_t length = 0;
    int64_t at = bounds[0];
    bool more = true;
    while (more && (step > 0 ? at < bounds[1] : at > bounds[1])) {
        if (++length > BOUND_TEMPLATE_RANGE) {
            return error_set(err, STATUS_INVALID, "range() has more than %u elements",
                             BOUND_TEMPLATE_RANGE);
        }
        more = !__builtin_add_overflow(at, step, &at);
    }
    TRY(template_charge(run, length, err));
    struct template_list *list = template_list_create(run->arena, length);
    if (list == NULL) {
        return template_full(err);
    }
    for (size_t i = 0; i < length; i++) {
        list->items[i] = template_int(bounds[0] + (int64_t)i * step);
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

// The template's own sentence, for the client: nothing is put before it.
static enum status raise(struct template_run *run, const struct template_args *args,
                         struct error *err) {
    struct template_value text = template_literal("the chat template raised an exception");
    if (args->count > 0) {
        TRY(template_to_string(run->arena, &args->items[0], &text, err));
    }
    run->placed = true;
    int shown = text.as.string.byte_count > 900 ? 900 : (int)text.as.string.byte_count;
    return error_set(err, STATUS_INVALID, "%.*s", shown, text.as.string.bytes);
}

// ---- time --------------------------------------------------------------------------------------

struct civil {
    int64_t year;
    int month;      // 1..12
    int day;        // 1..31
    int weekday;    // 0 = Sunday
    int yearday;    // 0..365
    int hour, minute, second;
};

// Days since 1970-01-01 to a date in the proleptic Gregorian calendar: 400-year eras of 146,097
// days that begin on 1 March (H. Hinnant, "chrono-compatible low-level date algorithms").
static struct civil civil_from(int64_t seconds) {
    int64_t days = seconds / 86400 - (seconds % 86400 < 0 ? 1 : 0);
    int64_t rest = seconds - days * 86400;
    int64_t shifted = days + 719468;
    int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int64_t day_of_era = shifted - era * 146097;
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted_month = (5 * day_of_year + 2) / 153;
    struct civil c = {
        .day = (int)(day_of_year - (153 * shifted_month + 2) / 5 + 1),
        .month = (int)(shifted_month < 10 ? shifted_month + 3 : shifted_month - 9),
        .weekday = (int)(((days + 4) % 7 + 7) % 7),
        .hour = (int)(rest / 3600),
        .minute = (int)(rest / 60 % 60),
        .second = (int)(rest % 60),
    };
    c.year = year_of_era + era * 400 + (c.month <= 2 ? 1 : 0);
    bool leap = (c.year % 4 == 0 && c.year % 100 != 0) || c.year % 400 == 0;
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    c.yearday = before[c.month - 1] + c.day - 1 + (leap && c.month > 2 ? 1 : 0);
    return c;
}

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const weekdays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};

static bool append_field(struct buf *out, const struct civil *c, int32_t utc_offset_s, char field,
                         bool padded) {
    int hour12 = c->hour % 12 == 0 ? 12 : c->hour % 12;
    int zone = (utc_offset_s < 0 ? -utc_offset_s : utc_offset_s) / 60;
    switch (field) {
    case 'Y':
        buf_printf(out, "%lld", (long long)c->year);
        return true;
    case 'B':
        buf_append_str(out, months[c->month - 1]);
        return true;
    case 'b':
        buf_append(out, months[c->month - 1], 3);
        return true;
    case 'A':
        buf_append_str(out, weekdays[c->weekday]);
        return true;
    case 'a':
        buf_append(out, weekdays[c->weekday], 3);
        return true;
    case 'p':
        buf_append_str(out, c->hour < 12 ? "AM" : "PM");
        return true;
    case 'j':
        buf_printf(out, padded ? "%03d" : "%d", c->yearday + 1);
        return true;
    case 'z':
        buf_printf(out, "%c%02d%02d", utc_offset_s < 0 ? '-' : '+', zone / 60, zone % 60);
        return true;
    case 'F':
        buf_printf(out, "%lld-%02d-%02d", (long long)c->year, c->month, c->day);
        return true;
    case 'T':
        buf_printf(out, "%02d:%02d:%02d", c->hour, c->minute, c->second);
        return true;
    case '%':
        buf_append_byte(out, '%');
        return true;
    default:
        break;
    }
    static const char fields[] = "mdHMSIyw";
    const int values[] = {
        c->month, c->day, c->hour, c->minute, c->second, hour12, (int)(c->year % 100), c->weekday};
    const char *at = field == '\0' ? NULL : strchr(fields, field);
    if (at == NULL) {
        return false;
    }
    int value = values[at - fields];
    if (padded && value < 10 && field != 'w') {
        buf_append_byte(out, '0');
    }
    buf_append_u64(out, (uint64_t)(value < 0 ? -value : value));
    return true;
}

static enum status strftime_now(struct template_run *run, const struct template_args *args,
                                struct template_value *out, struct error *err) {
    if (args->count != 1 || args->items[0].kind != TEMPLATE_STRING) {
        return error_set(err, STATUS_INVALID, "strftime_now() takes one format");
    }
    struct template_text format = args->items[0].as.string;
    struct civil now = civil_from(run->now_unix_s + run->utc_offset_s);
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    for (size_t i = 0; i < format.byte_count; i++) {
        if (format.bytes[i] != '%' || i + 1 == format.byte_count) {
            buf_append_byte(&text, (uint8_t)format.bytes[i]);
            continue;
        }
        bool padded = format.bytes[i + 1] != '-';    // %-d, as the C library has it
        i += padded ? 1 : 2;
        char field = i < format.byte_count ? format.bytes[i] : '\0';
        if (!append_field(&text, &now, run->utc_offset_s, field, padded)) {
            buf_deinit(&text);
            return error_set(err, STATUS_INVALID, "strftime_now() does not know '%%%c'",
                             field >= 0x20 && field < 0x7F ? field : '?');
        }
    }
    return template_take(run, &text, out, err);
}

enum status template_call_function(struct template_run *run, uint32_t function,
                                   const struct template_args *args, struct template_value *out,
                                   struct error *err) {
    switch ((enum function)function) {
    case FUNCTION_NAMESPACE:
        return make_dict(run, args, TEMPLATE_NAMESPACE, out, err);
    case FUNCTION_DICT:
        return make_dict(run, args, TEMPLATE_DICT, out, err);
    case FUNCTION_RANGE:
        return make_range(run, args, out, err);
    case FUNCTION_RAISE:
        return raise(run, args, err);
    case FUNCTION_NOW:
        return strftime_now(run, args, out, err);
    }
    UNREACHABLE();
}
