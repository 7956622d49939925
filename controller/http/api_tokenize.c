// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize: text to ids and back.
#include "controller/http/api_reading.h"

#include "common/bounds.h"
#include "controller/text/detokenizer.h"
#include "controller/text/tokenizer.h"
#include <string.h>

// ---- /tokenize ---------------------------------------------------------------------------------

struct tokenize_request {
    struct http_span text;
    bool llama_form;    // "content" in, bare ids out
    bool add_special, with_strings;
};

// The two forms differ by their keys, so one route serves both.
static bool parse_tokenize(const struct json_fields *body, struct tokenize_request *out,
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

static void write_piece(const struct api_facts *facts, uint32_t id, struct buf *out) {
    size_t byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(facts->model->tokenizer, id, &byte_count);
    json_write_string(out, bytes == NULL ? "" : (const char *)bytes, byte_count);
}

static void write_llama_form(const struct api_facts *facts, const struct tokenize_request *request,
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
            write_piece(facts, tokens->ids[i], out);
            buf_append_byte(out, '}');
        }
    }
    buf_append_str(out, "]}");
}

static void write_tokens(const struct api_facts *facts, const struct tokenize_request *request,
                         const struct token_list *tokens, struct buf *out) {
    buf_append_str(out, "{\"count\":");
    buf_append_u64(out, tokens->count);
    buf_append_str(out, ",\"max_model_len\":");
    buf_append_u64(out, facts->context_tokens);
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
        write_piece(facts, tokens->ids[i], out);
    }
    buf_append_str(out, "]}");
}

static bool read_text(struct api_reading *reading, const struct json_fields *body) {
    const struct api_facts *facts = reading->facts;
    struct api_failure *failure = &reading->failure;
    struct tokenize_request request;
    struct buf rendered;
    buf_init(&rendered, BOUND_TEMPLATE_OUTPUT_BYTES);
    bool fine = api_reading_prompts(reading, 1) && api_check_model(facts, body, failure) &&
                parse_tokenize(body, &request, failure);
    if (fine && request.text.text == NULL && json_absent(json_fields_get(body, "messages"))) {
        fine = api_fail(failure, API_CODE_MISSING_PARAMETER, "prompt",
                        "'prompt' or 'messages' is missing.");
    } else if (fine && request.text.text == NULL) {
        request.add_special = false;    // templates write their own
        fine = api_field_bool(body, "add_special_tokens", &request.add_special, failure) &&
               api_render_chat(reading, body, &rendered);
        request.text = (struct http_span){buf_cstr(&rendered), rendered.bytes_used};
    }
    fine = fine && api_reading_text(reading, request.text, request.add_special, "prompt");
    if (fine && request.llama_form) {
        write_llama_form(facts, &request, &reading->tokens, &reading->answer);
    } else if (fine) {
        write_tokens(facts, &request, &reading->tokens, &reading->answer);
    }
    buf_deinit(&rendered);
    return fine;
}

// ---- /detokenize -------------------------------------------------------------------------------

static bool read_ids(struct api_reading *reading, const struct json_fields *body) {
    struct api_failure *failure = &reading->failure;
    const struct json *list = json_fields_get(body, "tokens");
    if (!api_reading_prompts(reading, 1) || !api_check_model(reading->facts, body, failure)) {
        return false;
    }
    if (json_absent(list)) {
        return api_fail(failure, API_CODE_MISSING_PARAMETER, "tokens", "'tokens' is missing.");
    }
    if (json_kind(list) != JSON_KIND_ARRAY) {
        return api_fail(failure, API_CODE_INVALID_TYPE, "tokens", "'tokens' must be a list.");
    }
    if (!api_reading_ids(reading, list, "tokens")) {
        return false;
    }
    struct buf text;
    buf_init(&text, BOUND_HTTP_RESPONSE_BYTES);
    enum status status = detokenize(reading->facts->model->tokenizer, reading->tokens.ids,
                                    reading->tokens.count, false, &text, NULL);
    struct buf *out = &reading->answer;
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

// ---- the routes --------------------------------------------------------------------------------

// Needs no worker, only the model's tables; but the context length is part of the answer.
static bool can_convert(const struct api *api, struct api_failure *failure) {
    return (api->facts.model != NULL && api->facts.context_tokens > 0) ||
           api_can_serve(api, failure);
}

static void finish(struct api_visit *visit, struct api_reading *reading) {
    api_answer_json(visit, 200, &reading->answer);
}

void api_tokenize(struct api_visit *visit) {
    static const struct api_reader reader = {can_convert, read_text, finish};
    api_read(visit, &reader);
}

void api_detokenize(struct api_visit *visit) {
    static const struct api_reader reader = {can_convert, read_ids, finish};
    api_read(visit, &reader);
}
