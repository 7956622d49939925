// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions: prompts as text or ids, several at once, scored or echoed on request.
#include "controller/http/api_call.h"

#include "common/bounds.h"

static bool fail_type(struct api_failure *failure) {
    return api_fail(failure, API_CODE_INVALID_TYPE, "prompt",
                    "'prompt' must be a string, a list of strings, a list of token ids or a list "
                    "of lists of token ids, none of them empty.");
}

static bool read_text(struct api_reading *reading, const struct json *value) {
    struct http_span text;
    text.text = json_text(value, &text.byte_count);
    if (text.text == NULL) {
        return fail_type(&reading->failure);
    }
    if (text.byte_count == 0) {
        return api_fail(&reading->failure, API_CODE_INVALID_VALUE, "prompt", "'prompt' is empty.");
    }
    return api_reading_text(reading, text, reading->params.add_special, "prompt");
}

static bool read_ids(struct api_reading *reading, const struct json *list) {
    if (json_count(list) == 0) {
        return api_fail(&reading->failure, API_CODE_INVALID_VALUE, "prompt", "'prompt' is empty.");
    }
    return api_reading_ids(reading, list, "prompt");
}

// The prompts of a body: what each element is depends on the first one.
struct prompts {
    const struct json *value;
    uint32_t count;
    bool single;    // `value` itself is the prompt
};

static bool find_prompts(const struct json_fields *body, struct prompts *out,
                         struct api_failure *failure) {
    const struct json *value = json_fields_get(body, "prompt");
    *out = (struct prompts){.value = value, .count = 1, .single = true};
    if (json_absent(value)) {
        return api_fail(failure, API_CODE_MISSING_PARAMETER, "prompt", "'prompt' is missing.");
    }
    if (json_kind(value) == JSON_KIND_STRING) {
        return true;
    }
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return fail_type(failure);
    }
    size_t count = json_count(value);
    if (count == 0) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "prompt", "'prompt' is empty.");
    }
    if (json_kind(json_at(value, 0)) == JSON_KIND_INT) {
        return true;
    }
    if (count > BOUND_PROMPTS_PER_REQUEST) {
        return api_fail(failure, API_CODE_TOO_LARGE, "prompt",
                        "A request may carry at most %u prompts.", BOUND_PROMPTS_PER_REQUEST);
    }
    *out = (struct prompts){.value = value, .count = (uint32_t)count, .single = false};
    return true;
}

static bool read_prompts(struct api_reading *reading, const struct prompts *prompts) {
    bool fine = api_reading_prompts(reading, prompts->count);
    for (uint32_t i = 0; fine && i < prompts->count; i++) {
        const struct json *value = prompts->single ? prompts->value : json_at(prompts->value, i);
        fine = json_kind(value) == JSON_KIND_ARRAY ? read_ids(reading, value)
                                                   : read_text(reading, value);
    }
    return fine;
}

static bool read_completion(struct api_reading *reading, const struct json_fields *body) {
    struct api_failure *failure = &reading->failure;
    struct api_params_rules rules;
    struct prompts prompts;
    api_params_rules(reading->facts, API_ENDPOINT_COMPLETIONS, &rules);
    return api_check_model(reading->facts, body, failure) &&
           find_prompts(body, &prompts, failure) &&
           api_params_parse(body, &rules, &reading->params, failure) &&
           read_prompts(reading, &prompts);
}

static void finish(struct api_visit *visit, struct api_reading *reading) {
    api_call_start(visit, API_CALL_KIND_COMPLETION, reading);
}

const struct api_reader api_completion_reader = {api_can_serve, read_completion, finish};

void api_completions(struct api_visit *visit) {
    api_read(visit, &api_completion_reader);
}
