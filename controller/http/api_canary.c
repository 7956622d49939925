// SPDX-License-Identifier: Apache-2.0
// GET /healthz/step: one token through the real path, so a green answer means tokens can come out.
#include "controller/http/api_call.h"

#include "controller/text/tokenizer.h"
#include <string.h>

void api_canary_answer(struct api_call *call, const char *skipped) {
    struct buf *body = &call->visit.api->body;
    buf_reset(body);
    buf_append_str(body, "{\"status\":\"ok\"");
    if (skipped != NULL) {
        buf_append_str(body, ",\"canary\":\"skipped\",\"reason\":\"");
        buf_append_str(body, skipped);
        buf_append_byte(body, '"');
    }
    buf_append_byte(body, '}');
    call->visit.probe = true;
    api_answer_json(&call->visit, 200, body);
    api_call_let_go(call);
}

static uint32_t canary_token(const struct api *api) {
    uint32_t token = 0;
    uint32_t eos_count = 0;
    const uint32_t *eos = tokenizer_eos(api->facts.model->tokenizer, &eos_count);
    if (!tokenizer_bos(api->facts.model->tokenizer, &token) && eos_count > 0) {
        token = eos[0];
    }
    return token < api->facts.vocabulary ? token : 0;
}

void api_step_health(struct api_visit *visit) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    visit->probe = true;
    if (!api_can_serve(api, &failure)) {
        api_answer_failure(visit, &failure);
        return;
    }
    struct api_params params = {.max_given = true, .max_tokens = 1, .choice_count = 1};
    params.sampling.top_p = 1;
    params.sampling.repetition_penalty = 1;
    const struct api_call_spec spec = {API_CALL_KIND_CANARY, &params, 1, NULL};
    struct api_call *call = api_call_create(visit, &spec, &failure);
    uint32_t token = canary_token(api);
    if (call != NULL && !api_call_set_prompt(call, &params, 0, &token, 1, &failure)) {
        api_call_destroy(call);
        call = NULL;
    }
    if (call == NULL) {
        api_answer_failure(visit, &failure);
        return;
    }
    visit->exchange->alarm_us = visit->now_us + api->config.canary_us;
    api_call_prepare(call);
    api_call_submit(call);
}
