// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions: prompts as text or ids, several at once, scored or echoed on request.
#include "controller/http/api_call.h"

#include "common/bounds.h"
#include "controller/text/tokenizer.h"
#include <string.h>

static bool fail_type(struct api_failure *failure) {
    return api_fail(failure, API_CODE_INVALID_TYPE, "prompt",
                    "'prompt' must be a string, a list of strings, a list of token ids or a list "
                    "of lists of token ids, none of them empty.");
}

static bool encode_text(const struct api *api, const struct json *value, bool add_special,
                        struct token_list *tokens, struct api_failure *failure) {
    size_t byte_count = 0;
    const char *text = json_text(value, &byte_count);
    if (text == NULL) {
        return fail_type(failure);
    }
    if (byte_count == 0) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "prompt", "'prompt' is empty.");
    }
    return api_encode(api, (struct http_span){text, byte_count}, add_special, "prompt", tokens,
                      failure);
}

static bool take_ids(const struct api *api, const struct json *list, struct token_list *tokens,
                     struct api_failure *failure) {
    if (json_count(list) == 0) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "prompt", "'prompt' is empty.");
    }
    return api_take_ids(api, list, "prompt", tokens, failure);
}

// The prompts of a body: what each element is depends on the first one.
struct prompts {
    const struct json *value;
    uint32_t count;
    bool single;    // `value` itself is the prompt
};

static bool find_prompts(const struct json *body, struct prompts *out,
                         struct api_failure *failure) {
    const struct json *value = json_get(body, "prompt");
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

static bool set_prompts(struct api_call *call, const struct prompts *prompts,
                        const struct api_params *params, struct api_failure *failure) {
    struct api *api = call->visit.api;
    struct token_list tokens;
    token_list_init(&tokens, api_encode_tokens_max(api));
    bool fine = true;
    for (uint32_t i = 0; fine && i < prompts->count; i++) {
        const struct json *value = prompts->single ? prompts->value : json_at(prompts->value, i);
        bool ids = json_kind(value) == JSON_KIND_ARRAY;
        tokens.count = 0;
        fine = ids ? take_ids(api, value, &tokens, failure)
                   : encode_text(api, value, params->add_special, &tokens, failure);
        fine = fine && api_call_set_prompt(call, params, i, tokens.ids, tokens.count, failure);
        for (uint32_t k = 0; fine && params->echo && k < params->choice_count; k++) {
            bool bos_added =
                !ids && params->add_special && tokenizer_adds_bos(api->model->tokenizer);
            api_text_echo(&call->choices[i * params->choice_count + k], bos_added);
        }
    }
    token_list_deinit(&tokens);
    return fine;
}

// Everything up to the submit; NULL with the failure filled.
static struct api_call *prepare(struct api_visit *visit, const struct json *body,
                                struct api_failure *failure) {
    struct api *api = visit->api;
    struct api_params_rules rules;
    struct api_params params = {0};
    struct prompts prompts;
    struct api_call *call = NULL;
    api_params_rules(api, API_ENDPOINT_COMPLETIONS, &rules);
    if (api_check_model(api, body, failure) && find_prompts(body, &prompts, failure) &&
        api_params_parse(body, &rules, &params, failure)) {
        api_warn_of_ignored(api, &params);
        const struct api_call_spec spec = {API_CALL_KIND_COMPLETION, &params, prompts.count};
        call = api_call_create(visit, &spec, failure);
        if (call != NULL && !set_prompts(call, &prompts, &params, failure)) {
            api_call_destroy(call);
            call = NULL;
        }
    }
    api_params_deinit(&params);
    return call;
}

void api_completions(struct api_visit *visit) {
    api_generate(visit, prepare);
}
