// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_params.h"

#include "common/memory.h"
#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

// ---- single fields -----------------------------------------------------------------------------

static bool wrong_type(const char *key, const struct json *value, const char *wanted,
                       struct api_failure *failure) {
    return api_fail(failure, API_CODE_INVALID_TYPE, key, "'%s' must be %s, not %s.", key, wanted,
                    json_kind_name(json_kind(value)));
}

bool api_field_bool(const struct json_fields *body, const char *key, bool *out,
                    struct api_failure *failure) {
    const struct json *value = json_fields_get(body, key);
    if (json_absent(value)) {
        return true;
    }
    if (json_kind(value) != JSON_KIND_BOOL) {
        return wrong_type(key, value, "a boolean", failure);
    }
    *out = json_bool(value);
    return true;
}

static bool int_in_range(const struct json *value, const char *key, struct json_range_int range,
                         int64_t *out, struct api_failure *failure) {
    if (json_kind(value) != JSON_KIND_INT) {
        return wrong_type(key, value, "an integer", failure);
    }
    int64_t number = json_int(value);
    if (number < range.min || number > range.max) {
        return api_fail(failure, API_CODE_INVALID_VALUE, key,
                        "'%s' is %lld; it must lie between %lld and %lld.", key, (long long)number,
                        (long long)range.min, (long long)range.max);
    }
    *out = number;
    return true;
}

bool api_field_int(const struct json_fields *body, const char *key, struct json_range_int range,
                   int64_t *out, struct api_failure *failure) {
    const struct json *value = json_fields_get(body, key);
    return json_absent(value) || int_in_range(value, key, range, out, failure);
}

static bool field_real(const struct json_fields *body, const char *key,
                       struct json_range_real range, float *out, struct api_failure *failure) {
    const struct json *value = json_fields_get(body, key);
    if (json_absent(value)) {
        return true;
    }
    if (json_kind(value) != JSON_KIND_INT && json_kind(value) != JSON_KIND_REAL) {
        return wrong_type(key, value, "a number", failure);
    }
    double number = json_number(value);
    if (!(number >= range.min && number <= range.max)) {
        return api_fail(failure, API_CODE_INVALID_VALUE, key,
                        "'%s' is %g; it must lie between %g and %g.", key, number, range.min,
                        range.max);
    }
    *out = (float)number;
    return true;
}

// The same for an interval that is open at zero.
static bool field_positive(const struct json_fields *body, const char *key, double max, float *out,
                           struct api_failure *failure) {
    if (!field_real(body, key, (struct json_range_real){0, max}, out, failure)) {
        return false;
    }
    // Below the smallest normal float32 is as good as zero, and the worker refuses it.
    return *out >= 0x1.0p-126f || api_fail(failure, API_CODE_INVALID_VALUE, key,
                                           "'%s' must be greater than 0 and at most %g.", key, max);
}

bool api_field_text(const struct json_fields *body, const char *key, struct http_span *text,
                    struct api_failure *failure) {
    const struct json *value = json_fields_get(body, key);
    *text = (struct http_span){NULL, 0};
    if (json_absent(value)) {
        return true;
    }
    text->text = json_text(value, &text->byte_count);
    return text->text != NULL || wrong_type(key, value, "a string", failure);
}

// ---- fields that are refused -------------------------------------------------------------------

enum presence {
    PRESENCE_ABSENT,    // only null passes
    PRESENCE_EMPTY,     // an empty string, list or object passes too
    PRESENCE_FALSE,     // false passes too
};

// Refused rather than ignored: each would restrict or change the output.
static const struct {
    const char *key;
    enum presence allowed;
} refused[] = {
    {"tools", PRESENCE_EMPTY},
    {"functions", PRESENCE_EMPTY},
    {"function_call", PRESENCE_ABSENT},
    {"structured_outputs", PRESENCE_EMPTY},
    {"guided_json", PRESENCE_ABSENT},
    {"guided_regex", PRESENCE_ABSENT},
    {"guided_choice", PRESENCE_ABSENT},
    {"guided_grammar", PRESENCE_ABSENT},
    {"guided_decoding_backend", PRESENCE_ABSENT},
    {"guided_whitespace_pattern", PRESENCE_ABSENT},
    {"structural_tag", PRESENCE_ABSENT},
    {"regex", PRESENCE_ABSENT},
    {"ebnf", PRESENCE_ABSENT},
    {"grammar", PRESENCE_ABSENT},
    {"json_schema", PRESENCE_ABSENT},
    {"logits_processors", PRESENCE_EMPTY},
    {"allowed_token_ids", PRESENCE_ABSENT},
    {"bad_words", PRESENCE_EMPTY},
    {"use_beam_search", PRESENCE_FALSE},
    {"suffix", PRESENCE_EMPTY},
    {"chat_template", PRESENCE_ABSENT},
    {"thinking_token_budget", PRESENCE_ABSENT},
    {"prompt_logprobs", PRESENCE_ABSENT},
    {"prompt_embeds", PRESENCE_EMPTY},
    {"audio", PRESENCE_ABSENT},
    {"prediction", PRESENCE_ABSENT},
    {"web_search_options", PRESENCE_ABSENT},
};

static bool passes(const struct json *value, enum presence allowed) {
    if (json_absent(value)) {
        return true;
    }
    size_t byte_count = 0;
    switch (allowed) {
    case PRESENCE_ABSENT:
        return false;
    case PRESENCE_FALSE:
        return json_kind(value) == JSON_KIND_BOOL && !json_bool(value);
    case PRESENCE_EMPTY:
        if (json_text(value, &byte_count) != NULL) {
            return byte_count == 0;
        }
        return (json_kind(value) == JSON_KIND_ARRAY || json_kind(value) == JSON_KIND_OBJECT) &&
               json_count(value) == 0;
    }
    return false;
}

static bool text_is(const struct json *value, const char *text) {
    size_t byte_count = 0;
    const char *found = json_text(value, &byte_count);
    struct http_span span = {found, byte_count};
    return http_span_is(span, text);
}

static bool check_response_format(const struct json_fields *body, struct api_failure *failure) {
    const struct json *format = json_fields_get(body, "response_format");
    if (json_absent(format) || text_is(json_get(format, "type"), "text")) {
        return true;
    }
    if (json_kind(format) != JSON_KIND_OBJECT) {
        return wrong_type("response_format", format, "an object", failure);
    }
    return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, "response_format",
                    "'response_format' of a type other than 'text' is not supported.");
}

static bool check_tool_choice(const struct json_fields *body, struct api_failure *failure) {
    const struct json *choice = json_fields_get(body, "tool_choice");
    if (json_absent(choice) || text_is(choice, "none") || text_is(choice, "auto")) {
        return true;
    }
    return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, "tool_choice",
                    "'tool_choice' other than 'none' and 'auto' is not supported.");
}

static bool check_modalities(const struct json_fields *body, struct api_failure *failure) {
    const struct json *list = json_fields_get(body, "modalities");
    for (size_t i = 0; i < json_count(list); i++) {
        if (!text_is(json_at(list, i), "text")) {
            return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, "modalities",
                            "'modalities' other than 'text' are not supported.");
        }
    }
    return true;
}

static bool check_refused(const struct json_fields *body, struct api_failure *failure) {
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        if (!passes(json_fields_get(body, refused[i].key), refused[i].allowed)) {
            bool old = strncmp(refused[i].key, "function", 8) == 0;
            return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, refused[i].key,
                            "'%s' is not supported%s.", refused[i].key,
                            old ? "; its successor 'tools' is not either" : "");
        }
    }
    int64_t priority = 0;
    if (!api_field_int(body, "priority", (struct json_range_int){INT64_MIN, INT64_MAX}, &priority,
                       failure)) {
        return false;
    }
    if (priority != 0) {
        return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, "priority",
                        "'priority' other than 0 needs a scheduling policy by priority.");
    }
    return check_response_format(body, failure) && check_tool_choice(body, failure) &&
           check_modalities(body, failure);
}

// Samplers of other servers that have no effect here.
static const char *find_ignored(const struct json_fields *body) {
    static const char *const names[] = {"mirostat",           "mirostat_tau",
                                        "mirostat_eta",       "dry_multiplier",
                                        "dry_base",           "dry_allowed_length",
                                        "dry_penalty_last_n", "dry_sequence_breakers",
                                        "xtc_probability",    "xtc_threshold",
                                        "typical_p",          "dynatemp_range",
                                        "dynatemp_exponent",  "samplers"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!json_absent(json_fields_get(body, names[i]))) {
            return names[i];
        }
    }
    return NULL;
}

// ---- sampling ----------------------------------------------------------------------------------

struct api_sampling_defaults api_sampling_neutral(void) {
    return (struct api_sampling_defaults){
        .temperature = 1, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .top_k = 0};
}

static bool parse_numbers(const struct json_fields *body, const struct api_params_rules *rules,
                          struct api_params *out, struct api_failure *failure) {
    struct sampling_params *sampling = &out->sampling;
    sampling->temperature = rules->defaults.temperature;
    sampling->top_p = rules->defaults.top_p;
    sampling->min_p = rules->defaults.min_p;
    sampling->repetition_penalty = rules->defaults.repetition_penalty;
    int64_t top_k = rules->defaults.top_k;
    int64_t seed = 0;
    const struct json_range_real unit = {0, 1};
    const struct json_range_real penalty = {-2, 2};
    if (!field_real(body, "temperature", (struct json_range_real){0, 100}, &sampling->temperature,
                    failure) ||
        !field_positive(body, "top_p", 1, &sampling->top_p, failure) ||
        !field_real(body, "min_p", unit, &sampling->min_p, failure) ||
        !field_positive(body, "repetition_penalty", 10, &sampling->repetition_penalty, failure) ||
        !field_real(body, "presence_penalty", penalty, &sampling->presence_penalty, failure) ||
        !field_real(body, "frequency_penalty", penalty, &sampling->frequency_penalty, failure) ||
        !api_field_int(body, "top_k", (struct json_range_int){-1, INT32_MAX}, &top_k, failure) ||
        !api_field_int(body, "seed", (struct json_range_int){INT64_MIN, INT64_MAX}, &seed,
                       failure)) {
        return false;
    }
    // As many as there are tokens is the same as all of them.
    sampling->top_k = top_k <= 0 || top_k >= rules->vocabulary ? 0 : (uint32_t)top_k;
    out->seed_given = !json_absent(json_fields_get(body, "seed"));
    sampling->seed = (uint64_t)seed;
    return true;
}

static bool parse_counts(const struct json_fields *body, const struct api_params_rules *rules,
                         struct api_params *out, struct api_failure *failure) {
    bool chat = rules->endpoint == API_ENDPOINT_CHAT;
    int64_t max = 0;
    int64_t min = 0;
    int64_t choices = 1;
    int64_t truncate = 0;
    int64_t ping_s = 0;
    const char *max_key = chat && !json_absent(json_fields_get(body, "max_completion_tokens"))
                              ? "max_completion_tokens"
                              : "max_tokens";
    // Zero scores the prompt without generating: only with echo.
    const struct json_range_int max_range = {!chat && out->echo ? 0 : 1, INT64_MAX};
    if (!api_field_int(body, max_key, max_range, &max, failure) ||
        !api_field_int(body, "min_tokens", (struct json_range_int){0, INT32_MAX}, &min, failure) ||
        !api_field_int(body, "n", (struct json_range_int){1, BOUND_CHOICES}, &choices, failure) ||
        !api_field_int(body, "truncate_prompt_tokens", (struct json_range_int){-1, INT32_MAX},
                       &truncate, failure) ||
        !api_field_int(body, "sse_ping_interval", (struct json_range_int){-1, 86400}, &ping_s,
                       failure)) {
        return false;
    }
    int64_t best_of = choices;
    if (!api_field_int(body, "best_of", (struct json_range_int){1, INT32_MAX}, &best_of, failure)) {
        return false;
    }
    if (best_of != choices) {
        return api_fail(failure, API_CODE_UNSUPPORTED_VALUE, "best_of",
                        "'best_of' other than 'n' is not supported.");
    }
    out->max_given = !json_absent(json_fields_get(body, max_key));
    out->max_tokens = max > UINT32_MAX ? UINT32_MAX : (uint32_t)max;
    if (out->max_given && min > max) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "min_tokens",
                        "'min_tokens' is larger than '%s'.", max_key);
    }
    out->sampling.min_tokens = (uint32_t)min;
    out->choice_count = (uint32_t)choices;
    out->truncate_tokens = truncate < 0 ? UINT32_MAX : (uint32_t)truncate;
    out->keepalive_us = ping_s > 0 ? (uint64_t)ping_s * 1000000 : 0;
    return true;
}

// ---- stops and bias ----------------------------------------------------------------------------

static bool add_stop(struct api_params *out, const struct json *value,
                     struct api_failure *failure) {
    struct http_span text = {0};
    text.text = json_text(value, &text.byte_count);
    if (text.text == NULL) {
        return wrong_type("stop", value, "a string or a list of strings", failure);
    }
    if (text.byte_count == 0 || text.byte_count > BOUND_STOP_STRING_BYTES) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "stop",
                        "Each string of 'stop' must have 1 to %u bytes.", BOUND_STOP_STRING_BYTES);
    }
    if (out->stop_count >= BOUND_STOP_STRINGS) {
        return api_fail(failure, API_CODE_TOO_LARGE, "stop", "'stop' takes at most %u strings.",
                        BOUND_STOP_STRINGS);
    }
    out->stops[out->stop_count++] = text;
    return true;
}

static bool parse_stops(const struct json_fields *body, struct api_params *out,
                        struct api_failure *failure) {
    const struct json *stop = json_fields_get(body, "stop");
    if (json_absent(stop)) {
        return true;
    }
    if (json_kind(stop) != JSON_KIND_ARRAY) {
        return add_stop(out, stop, failure);
    }
    for (size_t i = 0; i < json_count(stop); i++) {
        if (!add_stop(out, json_at(stop, i), failure)) {
            return false;
        }
    }
    return true;
}

static bool parse_stop_tokens(const struct json_fields *body, const struct api_params_rules *rules,
                              struct api_params *out, struct api_failure *failure) {
    struct sampling_params *sampling = &out->sampling;
    bool ignore_eos = false;
    if (!api_field_bool(body, "ignore_eos", &ignore_eos, failure)) {
        return false;
    }
    for (uint32_t i = 0; !ignore_eos && i < rules->eos_count && i < BOUND_STOP_TOKENS; i++) {
        if (rules->eos[i] < rules->vocabulary) {    // else it cannot be drawn
            sampling->stop_tokens[sampling->stop_token_count++] = (int32_t)rules->eos[i];
        }
    }
    out->eos_count = sampling->stop_token_count;
    const struct json *list = json_fields_get(body, "stop_token_ids");
    if (!json_absent(list) && json_kind(list) != JSON_KIND_ARRAY) {
        return wrong_type("stop_token_ids", list, "a list of integers", failure);
    }
    const struct json_range_int range = {0, (int64_t)rules->vocabulary - 1};
    for (size_t i = 0; i < json_count(list); i++) {
        int64_t token = 0;
        if (!int_in_range(json_at(list, i), "stop_token_ids", range, &token, failure)) {
            return false;
        }
        if (sampling->stop_token_count >= BOUND_STOP_TOKENS) {
            return api_fail(failure, API_CODE_TOO_LARGE, "stop_token_ids",
                            "'stop_token_ids' takes at most %u ids beside the model's own.",
                            BOUND_STOP_TOKENS - out->eos_count);
        }
        sampling->stop_tokens[sampling->stop_token_count++] = (int32_t)token;
    }
    return true;
}

// Keys are decimal strings.
static bool parse_token_key(const char *text, size_t byte_count, uint32_t vocabulary,
                            int32_t *token) {
    int64_t value = 0;
    if (byte_count == 0 || byte_count > 9) {
        return false;
    }
    for (size_t i = 0; i < byte_count; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        value = value * 10 + (text[i] - '0');
    }
    *token = (int32_t)value;
    return value < vocabulary;
}

static bool parse_bias(const struct json_fields *body, const struct api_params_rules *rules,
                       struct api_params *out, struct api_failure *failure) {
    const struct json *object = json_fields_get(body, "logit_bias");
    size_t count = json_count(object);
    if (json_absent(object)) {
        return true;
    }
    if (json_kind(object) != JSON_KIND_OBJECT) {
        return wrong_type("logit_bias", object, "an object", failure);
    }
    if (count > BOUND_LOGIT_BIAS) {
        return api_fail(failure, API_CODE_TOO_LARGE, "logit_bias",
                        "'logit_bias' takes at most %u entries.", BOUND_LOGIT_BIAS);
    }
    out->bias = count == 0 ? NULL : memory_array(count, sizeof *out->bias);
    if (count > 0 && out->bias == NULL) {
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        size_t key_bytes = 0;
        const char *key = json_iter_key(it, &key_bytes);
        const struct json *value = json_iter_value(it);
        struct token_bias *bias = &out->bias[out->sampling.bias_count];
        if (!parse_token_key(key, key_bytes, rules->vocabulary, &bias->token)) {
            return api_fail(failure, API_CODE_INVALID_VALUE, "logit_bias",
                            "Keys of 'logit_bias' must be token ids below %u.", rules->vocabulary);
        }
        double number = json_number(value);
        bool numeric = json_kind(value) == JSON_KIND_INT || json_kind(value) == JSON_KIND_REAL;
        if (!numeric || !(number >= -100 && number <= 100)) {
            return api_fail(failure, API_CODE_INVALID_VALUE, "logit_bias",
                            "Values of 'logit_bias' must lie between -100 and 100.");
        }
        bias->bias = (float)number;
        out->sampling.bias_count++;
    }
    out->sampling.bias = out->bias;
    return true;
}

// ---- logprobs and streaming --------------------------------------------------------------------

static bool parse_logprobs_chat(const struct json_fields *body,
                                const struct api_params_rules *rules, struct api_params *out,
                                struct api_failure *failure) {
    int64_t top = 0;
    const struct json_range_int range = {0, rules->logprobs_max};
    if (!api_field_bool(body, "logprobs", &out->sampling.want_logprobs, failure) ||
        !api_field_int(body, "top_logprobs", range, &top, failure)) {
        return false;
    }
    if (!json_absent(json_fields_get(body, "top_logprobs")) && !out->sampling.want_logprobs) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "top_logprobs",
                        "'top_logprobs' needs 'logprobs' to be true.");
    }
    out->sampling.top_logprobs = (uint32_t)top;
    return true;
}

static bool parse_logprobs(const struct json_fields *body, const struct api_params_rules *rules,
                           struct api_params *out, struct api_failure *failure) {
    bool echo = false;
    if (!api_field_bool(body, "echo", &echo, failure)) {
        return false;
    }
    if (rules->endpoint == API_ENDPOINT_CHAT) {
        if (echo) {
            return api_fail(failure, API_CODE_UNSUPPORTED_PARAMETER, "echo",
                            "'echo' is not supported for chat.");
        }
        return parse_logprobs_chat(body, rules, out, failure);
    }
    int64_t top = 0;
    const struct json_range_int range = {0, rules->logprobs_max};
    if (!api_field_int(body, "logprobs", range, &top, failure)) {
        return false;
    }
    out->echo = echo;
    out->sampling.want_logprobs = !json_absent(json_fields_get(body, "logprobs"));
    out->sampling.want_prompt_logprobs = echo && out->sampling.want_logprobs;
    out->sampling.top_logprobs = (uint32_t)top;
    return true;
}

static bool parse_stream(const struct json_fields *body, struct api_params *out,
                         struct api_failure *failure) {
    const struct json *options = json_fields_get(body, "stream_options");
    if (!api_field_bool(body, "stream", &out->stream, failure)) {
        return false;
    }
    if (json_absent(options)) {
        return true;
    }
    if (json_kind(options) != JSON_KIND_OBJECT) {
        return wrong_type("stream_options", options, "an object", failure);
    }
    if (!out->stream) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "stream_options",
                        "'stream_options' needs 'stream' to be true.");
    }
    bool obfuscation = false;    // accepted and without effect
    const struct json_fields fields = json_fields_of(options);
    return api_field_bool(&fields, "include_usage", &out->usage_in_stream, failure) &&
           api_field_bool(&fields, "continuous_usage_stats", &out->usage_in_every_chunk, failure) &&
           api_field_bool(&fields, "include_obfuscation", &obfuscation, failure);
}

static bool parse_text_rules(const struct json_fields *body, const struct api_params_rules *rules,
                             struct api_params *out, struct api_failure *failure) {
    bool parallel = true;
    bool spaces = true;
    out->skip_special = true;
    out->add_special = rules->endpoint == API_ENDPOINT_COMPLETIONS;
    return api_field_bool(body, "skip_special_tokens", &out->skip_special, failure) &&
           api_field_bool(body, "include_stop_str_in_output", &out->include_stop, failure) &&
           api_field_bool(body, "add_special_tokens", &out->add_special, failure) &&
           api_field_bool(body, "parallel_tool_calls", &parallel, failure) &&
           api_field_bool(body, "spaces_between_special_tokens", &spaces, failure);
}

bool api_params_parse(const struct json_fields *body, const struct api_params_rules *rules,
                      struct api_params *out, struct api_failure *failure) {
    *out = (struct api_params){.ignored = find_ignored(body)};
    return check_refused(body, failure) && parse_numbers(body, rules, out, failure) &&
           parse_logprobs(body, rules, out, failure) && parse_counts(body, rules, out, failure) &&
           parse_stops(body, out, failure) && parse_stop_tokens(body, rules, out, failure) &&
           parse_bias(body, rules, out, failure) && parse_stream(body, out, failure) &&
           parse_text_rules(body, rules, out, failure);
}

void api_params_deinit(struct api_params *params) {
    memory_free(params->bias);
    params->bias = NULL;
    params->sampling.bias = NULL;
}
