// SPDX-License-Identifier: Apache-2.0
// Text to ids and back for the other routes, and POST /tokenize and /detokenize.
#include "controller/http/api_call.h"

#include "common/bounds.h"
#include "common/log.h"
#include "controller/text/detokenizer.h"
#include "controller/text/tokenizer.h"
#include <string.h>

// ---- shared by the routes ----------------------------------------------------------------------

void api_params_rules(const struct api *api, enum api_endpoint endpoint,
                      struct api_params_rules *out) {
    *out = (struct api_params_rules){.endpoint = endpoint,
                                     .defaults = api->model->defaults,
                                     .vocabulary = api->vocabulary,
                                     .logprobs_max = api->config.logprobs_max};
    out->eos = tokenizer_eos(api->model->tokenizer, &out->eos_count);
}

void api_warn_of_ignored(struct api *api, const struct api_params *params) {
    if (params->ignored != NULL && !api->warned_of_ignored) {
        api->warned_of_ignored = true;
        log_warn("http", "a sampler field without effect here was ignored field=%s",
                 params->ignored);
    }
}

// Enough to name the length of a prompt that is too long, without encoding megabytes to the end.
size_t api_encode_tokens_max(const struct api *api) {
    return (size_t)api->context_tokens + BOUND_ENCODE_SLACK_TOKENS;
}

bool api_encode(const struct api *api, struct http_span text, bool add_special, const char *param,
                struct token_list *tokens, struct api_failure *failure) {
    const struct tokenizer_options options = {.add_special = add_special, .parse_special = true};
    enum status status =
        tokenizer_encode(api->model->tokenizer, text.text, text.byte_count, options, tokens, NULL);
    if (status == STATUS_OK) {
        return true;
    }
    if (status == STATUS_EXHAUSTED) {
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    failure->prompt_tokens = (uint32_t)api_encode_tokens_max(api);
    failure->context_tokens = api->context_tokens;
    return api_fail(failure, API_CODE_CONTEXT_LENGTH, param,
                    "This model's maximum context length is %u tokens. The text has more than %zu.",
                    api->context_tokens, api_encode_tokens_max(api));
}

bool api_take_ids(const struct api *api, const struct json *list, const char *param,
                  struct token_list *tokens, struct api_failure *failure) {
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json *value = json_at(list, i);
        if (json_kind(value) != JSON_KIND_INT) {
            return api_fail(failure, API_CODE_INVALID_TYPE, param, "'%s' must hold token ids only.",
                            param);
        }
        int64_t id = json_int(value);
        if (id < 0 || id >= api->vocabulary) {
            return api_fail(failure, API_CODE_INVALID_VALUE, param,
                            "'%s' holds a token id outside of 0..%u.", param, api->vocabulary - 1);
        }
        if (token_list_push(tokens, (uint32_t)id, NULL) != STATUS_OK) {
            failure->prompt_tokens = (uint32_t)json_count(list);
            failure->context_tokens = api->context_tokens;
            return api_fail(failure, API_CODE_CONTEXT_LENGTH, param,
                            "This model's maximum context length is %u tokens. The list has %zu.",
                            api->context_tokens, json_count(list));
        }
    }
    return true;
}

// ---- /tokenize ---------------------------------------------------------------------------------

struct tokenize_request {
    struct http_span text;
    bool llama_form;    // "content" in, bare ids out
    bool add_special, with_strings;
};

// The two forms differ by their keys, so one route serves both.
static bool parse_tokenize(const struct json *body, struct tokenize_request *out,
                           struct api_failure *failure) {
    struct http_span content;
    *out = (struct tokenize_request){.add_special = true};
    if (!api_field_text(body, "prompt", &out->text, failure) ||
        !api_field_text(body, "content", &content, failure)) {
        return false;
    }
    if (content.text != NULL) {
        out->llama_form = true;
        out->add_special = false;
        out->text = content;
        return api_field_bool(body, "add_special", &out->add_special, failure) &&
               api_field_bool(body, "with_pieces", &out->with_strings, failure);
    }
    return api_field_bool(body, "add_special_tokens", &out->add_special, failure) &&
           api_field_bool(body, "return_token_strs", &out->with_strings, failure);
}

static void write_piece(const struct api *api, uint32_t id, struct buf *out) {
    size_t byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(api->model->tokenizer, id, &byte_count);
    json_write_string(out, bytes == NULL ? "" : (const char *)bytes, byte_count);
}

static void write_llama_form(const struct api *api, const struct tokenize_request *request,
                             const struct token_list *tokens, struct buf *out) {
    buf_append_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < tokens->count; i++) {
        buf_append_str(out, i > 0 ? "," : "");
        if (request->with_strings) {
            buf_append_str(out, "{\"id\":");
        }
        buf_append_u64(out, tokens->ids[i]);
        if (request->with_strings) {
            buf_append_str(out, ",\"piece\":");
            write_piece(api, tokens->ids[i], out);
            buf_append_byte(out, '}');
        }
    }
    buf_append_str(out, "]}");
}

static void write_tokens(const struct api *api, const struct tokenize_request *request,
                         const struct token_list *tokens, struct buf *out) {
    buf_append_str(out, "{\"count\":");
    buf_append_u64(out, tokens->count);
    buf_append_str(out, ",\"max_model_len\":");
    buf_append_u64(out, api->context_tokens);
    buf_append_str(out, ",\"tokens\":[");
    for (size_t i = 0; i < tokens->count; i++) {
        buf_append_str(out, i > 0 ? "," : "");
        buf_append_u64(out, tokens->ids[i]);
    }
    buf_append_str(out, "],\"token_strs\":");
    if (!request->with_strings) {
        buf_append_str(out, "null}");
        return;
    }
    buf_append_byte(out, '[');
    for (size_t i = 0; i < tokens->count; i++) {
        buf_append_str(out, i > 0 ? "," : "");
        write_piece(api, tokens->ids[i], out);
    }
    buf_append_str(out, "]}");
}

static bool convert_text(struct api *api, const struct json *body, struct token_list *tokens,
                         struct api_failure *failure) {
    struct tokenize_request request;
    struct buf rendered;
    buf_init(&rendered, BOUND_TEMPLATE_OUTPUT_BYTES);
    bool fine = api_check_model(api, body, failure) && parse_tokenize(body, &request, failure);
    if (fine && request.text.text == NULL && json_absent(json_get(body, "messages"))) {
        fine = api_fail(failure, API_CODE_MISSING_PARAMETER, "prompt",
                        "'prompt' or 'messages' is missing.");
    } else if (fine && request.text.text == NULL) {
        request.add_special = false;    // templates write their own
        fine = api_field_bool(body, "add_special_tokens", &request.add_special, failure) &&
               api_render_chat(api, body, &rendered, failure);
        request.text = (struct http_span){buf_cstr(&rendered), rendered.bytes_used};
    }
    fine = fine && api_encode(api, request.text, request.add_special, "prompt", tokens, failure);
    if (fine) {
        buf_reset(&api->body);
        if (request.llama_form) {
            write_llama_form(api, &request, tokens, &api->body);
        } else {
            write_tokens(api, &request, tokens, &api->body);
        }
    }
    buf_deinit(&rendered);
    return fine;
}

static bool convert_ids(struct api *api, const struct json *body, struct token_list *tokens,
                        struct api_failure *failure) {
    const struct json *list = json_get(body, "tokens");
    if (!api_check_model(api, body, failure)) {
        return false;
    }
    if (json_absent(list)) {
        return api_fail(failure, API_CODE_MISSING_PARAMETER, "tokens", "'tokens' is missing.");
    }
    if (json_kind(list) != JSON_KIND_ARRAY) {
        return api_fail(failure, API_CODE_INVALID_TYPE, "tokens", "'tokens' must be a list.");
    }
    if (!api_take_ids(api, list, "tokens", tokens, failure)) {
        return false;
    }
    struct buf text;
    buf_init(&text, BOUND_HTTP_RESPONSE_BYTES);
    enum status status =
        detokenize(api->model->tokenizer, tokens->ids, tokens->count, false, &text, NULL);
    struct buf *out = &api->body;
    buf_reset(out);
    buf_append_str(out, "{\"prompt\":");
    json_write_string(out, buf_cstr(&text), text.bytes_used);
    buf_append_str(out, ",\"content\":");
    json_write_string(out, buf_cstr(&text), text.bytes_used);
    buf_append_byte(out, '}');
    bool fine = status == STATUS_OK ||
                api_fail(failure, API_CODE_UNAVAILABLE, NULL, "There is no memory for this text.");
    buf_deinit(&text);
    return fine;
}

typedef bool (*convert_fn)(struct api *api, const struct json *body, struct token_list *tokens,
                           struct api_failure *failure);

static void convert(struct api_visit *visit, convert_fn fn) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    struct json_doc *doc = NULL;
    bool fine = false;
    // Needs no worker, only the model's tables; but the context length is part of the answer.
    bool known = (api->model != NULL && api->context_tokens > 0) || api_can_serve(api, &failure);
    if (known) {
        doc = api_parse_body(visit, &failure);
    }
    if (doc != NULL) {
        struct token_list tokens;
        token_list_init(&tokens, api_encode_tokens_max(api));
        fine = fn(api, json_root(doc), &tokens, &failure);
        token_list_deinit(&tokens);
        json_destroy(doc);
    }
    if (fine) {
        api_answer_json(visit, 200, &api->body);
    } else {
        api_answer_failure(visit, &failure);
    }
}

void api_tokenize(struct api_visit *visit) {
    convert(visit, convert_text);
}

void api_detokenize(struct api_visit *visit) {
    convert(visit, convert_ids);
}
