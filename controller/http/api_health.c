// SPDX-License-Identifier: Apache-2.0
// Health and readiness: the truth table of the probes, in one place.
//
//   state                          │ /livez │ /health           │ /ready          │ generation
//   starting, loading              │ 200    │ 503 model_loading │ 503             │ 503
//   ready                          │ 200    │ 200               │ 200             │ yes
//   recovering                     │ 200    │ 503 unavailable   │ 503             │ queued
//   draining                       │ 200    │ 200               │ 503             │ 503 draining
//   step overdue, failed           │ 200    │ 503 unavailable   │ 503             │ yes / 503
#include "controller/http/api_internal.h"

#include "common/json.h"
#include "controller/text/tokenizer.h"
#include <stdio.h>
#include <string.h>

enum { LOADING_RETRY_MS = 2000, DRAINING_RETRY_MS = 5000 };

// ---- state -------------------------------------------------------------------------------------

// The text of a token as templates want it; "" when it is too long to be one.
static void copy_token_text(const struct tokenizer *tokenizer, uint32_t token,
                            char out[API_TOKEN_TEXT_BYTES]) {
    size_t byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(tokenizer, token, &byte_count);
    if (bytes != NULL && byte_count < API_TOKEN_TEXT_BYTES) {
        memcpy(out, bytes, byte_count);
        out[byte_count] = '\0';
    }
}

void api_set_model(struct api *api, const struct api_model *model) {
    uint32_t bos = 0;
    uint32_t eos_count = 0;
    const uint32_t *eos = tokenizer_eos(model->tokenizer, &eos_count);
    api->facts.model = model;
    api->facts.bos_text[0] = '\0';
    api->facts.eos_text[0] = '\0';
    if (tokenizer_bos(model->tokenizer, &bos)) {
        copy_token_text(model->tokenizer, bos, api->facts.bos_text);
    }
    if (eos_count > 0) {
        copy_token_text(model->tokenizer, eos[0], api->facts.eos_text);
    }
}

void api_on_progress(struct api *api, const struct message_progress *progress) {
    snprintf(api->progress.phase, sizeof api->progress.phase, "%s", progress->phase);
    api->progress.bytes_done = progress->bytes_done;
    api->progress.bytes_total = progress->bytes_total;
    api->progress.bytes_per_s = progress->bytes_per_s;
}

void api_on_capacity(struct api *api, const struct message_capacity *capacity) {
    // A pool that was made smaller may hold less than the longest sequence.
    uint64_t pool = (uint64_t)capacity->kv_blocks * capacity->block_tokens;
    uint32_t longest = capacity->envelope.seq_tokens;
    api->facts.context_tokens = pool < longest ? (uint32_t)pool : longest;
    api->facts.vocabulary = capacity->vocabulary;
    if (api->state != API_STATE_FAILED) {
        api->state = API_STATE_READY;
    }
}

void api_on_worker_lost(struct api *api) {
    if (api->state == API_STATE_READY) {
        api->state = API_STATE_RECOVERING;
    }
}

void api_set_overdue(struct api *api, bool overdue) {
    api->overdue = overdue;
}

void api_set_draining(struct api *api) {
    api->draining = true;
}

void api_set_failed(struct api *api, const char *reason) {
    api->state = API_STATE_FAILED;
    snprintf(api->failed_reason, sizeof api->failed_reason, "%s", reason);
}

static bool fail_loading(const struct api *api, struct api_failure *failure) {
    const struct api_progress *progress = &api->progress;
    failure->retry_after_ms = 0;
    if (progress->bytes_total > 0) {
        api_fail(failure, API_CODE_MODEL_LOADING, NULL, "The model is loading: %d%% done.",
                 (int)(100.0 * (double)progress->bytes_done / (double)progress->bytes_total));
    } else {
        api_fail(failure, API_CODE_MODEL_LOADING, NULL, "The model is loading.");
    }
    failure->retry_after_ms = LOADING_RETRY_MS;
    return false;
}

static bool fail_for_good(const struct api *api, struct api_failure *failure) {
    api_fail(failure, API_CODE_UNAVAILABLE, NULL, "The model cannot be served: %s",
             api->failed_reason);
    failure->retryable = false;
    return false;
}

bool api_can_serve(const struct api *api, struct api_failure *failure) {
    if (api->state == API_STATE_FAILED) {
        return fail_for_good(api, failure);
    }
    if (api->draining) {
        api_fail(failure, API_CODE_DRAINING, NULL, "The server is shutting down.");
        failure->retry_after_ms = DRAINING_RETRY_MS;
        return false;
    }
    if (api->state == API_STATE_STARTING || api->facts.model == NULL) {
        return fail_loading(api, failure);
    }
    return true;
}

// True when tokens can come out right now.
static bool is_healthy(const struct api *api, struct api_failure *failure) {
    switch (api->state) {
    case API_STATE_STARTING:
        return fail_loading(api, failure);
    case API_STATE_FAILED:
        return fail_for_good(api, failure);
    case API_STATE_RECOVERING:
        api_fail(failure, API_CODE_UNAVAILABLE, NULL, "The worker was lost; another is awaited.");
        failure->retry_after_ms = LOADING_RETRY_MS;
        return false;
    case API_STATE_READY:
        break;
    }
    if (api->overdue) {
        api_fail(failure, API_CODE_UNAVAILABLE, NULL, "A step is overdue.");
        failure->retry_after_ms = LOADING_RETRY_MS;
        return false;
    }
    return true;
}

// ---- probes ------------------------------------------------------------------------------------

static void answer_text(struct api_visit *visit, int status, const char *body) {
    api_answer(visit, status, "application/json", body, strlen(body));
}

void api_livez(struct api_visit *visit) {
    visit->probe = true;
    answer_text(visit, 200, "{\"status\":\"ok\"}");
}

void api_health(struct api_visit *visit) {
    visit->probe = true;
    struct http_span query = visit->exchange->request->query;
    if (http_span_is(query, "deep=1")) {
        api_step_health(visit);
        return;
    }
    struct api_failure failure = {0};
    if (is_healthy(visit->api, &failure)) {
        answer_text(visit, 200, "{\"status\":\"ok\"}");
    } else {
        api_answer_failure(visit, &failure);
    }
}

static const char *state_name(const struct api *api) {
    if (api->state == API_STATE_FAILED) {
        return "failed";
    }
    if (api->draining) {
        return "draining";
    }
    if (api->state == API_STATE_STARTING) {
        return "loading";
    }
    if (api->state == API_STATE_RECOVERING) {
        return "recovering";
    }
    return api->overdue ? "stalled" : "ready";
}

static void write_model_progress(const struct api *api, const char *name, struct buf *out) {
    const struct api_progress *progress = &api->progress;
    bool loaded = api->state != API_STATE_STARTING;
    double share = loaded ? 1.0 : 0.0;
    if (!loaded && progress->bytes_total > 0) {
        share = (double)progress->bytes_done / (double)progress->bytes_total;
    }
    buf_append_str(out, "{\"id\":");
    json_write_string(out, name, strlen(name));
    buf_append_str(out, ",\"state\":");
    json_write_string(out, state_name(api), strlen(state_name(api)));
    buf_printf(out, ",\"progress\":%.4f,\"bytes_done\":%llu,\"bytes_total\":%llu", share,
               (unsigned long long)progress->bytes_done, (unsigned long long)progress->bytes_total);
    buf_printf(out, ",\"rate_bytes_per_second\":%llu,\"eta_seconds\":",
               (unsigned long long)progress->bytes_per_s);
    if (loaded || progress->bytes_per_s == 0 || progress->bytes_done > progress->bytes_total) {
        buf_append_str(out, loaded ? "0}" : "null}");
    } else {
        buf_printf(out, "%.1f}",
                   (double)(progress->bytes_total - progress->bytes_done) /
                       (double)progress->bytes_per_s);
    }
}

void api_ready(struct api_visit *visit) {
    struct api *api = visit->api;
    visit->probe = true;
    struct api_failure failure = {0};
    bool ready = is_healthy(api, &failure) && !api->draining;
    struct buf *body = &api->body;
    buf_reset(body);
    buf_append_str(body, ready ? "{\"ready\":true,\"state\":" : "{\"ready\":false,\"state\":");
    json_write_string(body, state_name(api), strlen(state_name(api)));
    buf_append_str(body, ",\"models\":[");
    for (uint32_t i = 0; api->facts.model != NULL && i < api->facts.model->name_count; i++) {
        buf_append_str(body, i > 0 ? "," : "");
        write_model_progress(api, api->facts.model->names[i], body);
    }
    buf_append_str(body, "]}");
    api_answer_json(visit, ready ? 200 : 503, body);
}

void api_version(struct api_visit *visit) {
    struct api *api = visit->api;
    struct buf *body = &api->body;
    buf_reset(body);
    buf_append_str(body, "{\"version\":");
    json_write_string(body, api->config.version, strlen(api->config.version));
    buf_append_str(body, ",\"commit\":");
    json_write_string(body, api->config.commit, strlen(api->config.commit));
    buf_append_str(body, ",\"api\":[\"openai-chat\",\"openai-completions\"]}");
    api_answer_json(visit, 200, body);
}

void api_metrics(struct api_visit *visit) {
    struct api *api = visit->api;
    visit->probe = true;
    struct http_span accept = http_request_field(visit->exchange->request, "accept");
    static const char open_type[] = "application/openmetrics-text";
    bool open = accept.text != NULL &&
                memmem(accept.text, accept.byte_count, open_type, sizeof open_type - 1) != NULL;
    enum metric_format format = open ? METRIC_FORMAT_OPEN : METRIC_FORMAT_CLASSIC;
    buf_reset(&api->body);
    api->config.metrics(api->config.ctx, format, &api->body);
    api_answer(visit, 200, metric_format_content_type(format), buf_cstr(&api->body),
               api->body.bytes_used);
}
