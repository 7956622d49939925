// SPDX-License-Identifier: Apache-2.0
#include "controller/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// What a list of CLASS=VALUE holds.
enum value_kind { VALUE_TIME, VALUE_SHARE };

static bool parse_value(enum value_kind kind, const char *text, double *out) {
    int64_t us = 0;
    if (kind == VALUE_TIME) {
        bool off = strcmp(text, "off") == 0;
        bool parsed = off || config_human_us(text, &us);
        *out = (double)us;
        return parsed;
    }
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out >= 0 && *out <= 1;
}

static enum status load_by_class(const struct config *config, enum option_id option,
                                 enum value_kind kind, double out[REQUEST_CLASS_COUNT],
                                 struct error *err) {
    for (uint32_t i = 0; i < config_list_count(config, option); i++) {
        const char *item = config_list_item(config, option, i);
        const char *equals = strchr(item, '=');
        const char *text = equals == NULL ? item : equals + 1;
        enum request_class class_ = REQUEST_CLASS_COUNT;
        double value = 0;
        if (equals != NULL && !core_class_parse(item, (size_t)(equals - item), &class_)) {
            return error_set(err, STATUS_INVALID,
                             "--%s names '%.*s' (%s); classes are realtime, standard and batch",
                             config_name(option), (int)(equals - item), item,
                             config_source(config, option));
        }
        if (!parse_value(kind, text, &value)) {
            return error_set(err, STATUS_INVALID, "--%s has '%s' (%s); it takes %s",
                             config_name(option), item, config_source(config, option),
                             kind == VALUE_TIME ? "CLASS=TIME such as realtime=800ms or 2s, or off"
                                                : "CLASS=PART from 0 to 1, such as batch=0.05");
        }
        for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
            out[c] = equals == NULL || c == (unsigned)class_ ? value : out[c];
        }
    }
    return STATUS_OK;
}

static enum status load_time(const struct config *config, enum option_id option, int64_t *out,
                             struct error *err) {
    const char *text = config_string(config, option);
    if (!config_human_us(text, out) || *out == 0) {
        return error_set(err, STATUS_INVALID, "--%s is '%s' (%s); it takes a time such as 50ms",
                         config_name(option), text, config_source(config, option));
    }
    return STATUS_OK;
}

enum status policy_load(const struct config *config, struct core_policy *out, struct error *err) {
    core_policy_defaults(out);
    int64_t itl_us = 0, hold_us = 0;
    TRY(load_time(config, OPTION_ITL_TARGET, &itl_us, err));
    TRY(load_time(config, OPTION_HOLD_TIME, &hold_us, err));
    TRY(load_by_class(config, OPTION_TTFT_TARGET, VALUE_TIME, out->ttft_target_us, err));
    TRY(load_by_class(config, OPTION_GUARD, VALUE_SHARE, out->guard, err));
    TRY(load_by_class(config, OPTION_CLASS_SHARE, VALUE_SHARE, out->share_min, err));
    double promised = 0;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        promised += out->share_min[c];
    }
    if (promised > 1) {
        return error_set(
            err, STATUS_INVALID, "--%s promises %.10g of the work in all (%s); at most 1 can be",
            config_name(OPTION_CLASS_SHARE), promised, config_source(config, OPTION_CLASS_SHARE));
    }
    out->itl_target_us = (double)itl_us;
    out->hold_us = (uint64_t)hold_us;
    int64_t tokens = config_int(config, OPTION_MAX_NUM_QUEUED_TOKENS);
    out->queued_tokens_max = tokens < 0 ? CORE_QUEUED_TOKENS_AUTO : (uint64_t)tokens;
    return STATUS_OK;
}
