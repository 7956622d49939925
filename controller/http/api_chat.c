// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions: messages are checked, rendered by the model's template and encoded;
// from there on a chat is a completion in another envelope.
#include "controller/http/api_call.h"

#include "common/bounds.h"
#include "controller/text/chat_template.h"
#include <stdio.h>

enum { PATH_BYTES = 64, VARIABLES_BYTES_MAX = 1024 * 1024 };

// ---- messages ----------------------------------------------------------------------------------

static bool text_is(const struct json *value, const char *text) {
    struct http_span span = {0};
    span.text = json_text(value, &span.byte_count);
    return http_span_is(span, text);
}

static bool check_parts(const struct json *parts, const char *path, struct api_failure *failure) {
    size_t count = json_count(parts);
    if (count > BOUND_PARTS_PER_MESSAGE) {
        return api_fail(failure, API_CODE_TOO_LARGE, path, "A message may have at most %u parts.",
                        BOUND_PARTS_PER_MESSAGE);
    }
    for (size_t i = 0; i < count; i++) {
        const struct json *part = json_at(parts, i);
        const struct json *type = json_get(part, "type");
        if (!text_is(type, "text") && !text_is(type, "input_text")) {
            return api_fail(failure, API_CODE_UNSUPPORTED_VALUE, path,
                            "Part %zu of '%s' is not text; this model reads text only.", i, path);
        }
        if (json_kind(json_get(part, "text")) != JSON_KIND_STRING) {
            return api_fail(failure, API_CODE_INVALID_TYPE, path,
                            "Part %zu of '%s' has no string 'text'.", i, path);
        }
    }
    return true;
}

static bool check_content(const struct json *message, size_t index, struct api_failure *failure) {
    const struct json *content = json_get(message, "content");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "messages.%zu.content", index);
    switch (json_kind(content)) {
    case JSON_KIND_STRING:
        return true;
    case JSON_KIND_ARRAY:
        return check_parts(content, path, failure);
    case JSON_KIND_NULL:
        // An assistant's turn may consist of tool calls alone.
        return text_is(json_get(message, "role"), "assistant") ||
               api_fail(failure, API_CODE_MISSING_PARAMETER, path, "'%s' is missing.", path);
    default:
        return api_fail(failure, API_CODE_INVALID_TYPE, path,
                        "'%s' must be a string or a list of parts, not %s.", path,
                        json_kind_name(json_kind(content)));
    }
}

static bool check_message(const struct json *message, size_t index, struct api_failure *failure) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "messages.%zu", index);
    if (json_kind(message) != JSON_KIND_OBJECT) {
        return api_fail(failure, API_CODE_INVALID_TYPE, path, "'%s' must be an object.", path);
    }
    const struct json *role = json_get(message, "role");
    snprintf(path, sizeof path, "messages.%zu.role", index);
    if (json_absent(role)) {
        return api_fail(failure, API_CODE_MISSING_PARAMETER, path, "'%s' is missing.", path);
    }
    if (json_kind(role) != JSON_KIND_STRING) {
        return api_fail(failure, API_CODE_INVALID_TYPE, path, "'%s' must be a string.", path);
    }
    const struct json *calls = json_get(message, "tool_calls");
    if (!json_absent(calls) && json_kind(calls) != JSON_KIND_ARRAY) {
        snprintf(path, sizeof path, "messages.%zu.tool_calls", index);
        return api_fail(failure, API_CODE_INVALID_TYPE, path, "'%s' must be a list.", path);
    }
    return check_content(message, index, failure);
}

static bool check_messages(const struct json_fields *body, struct api_failure *failure) {
    const struct json *messages = json_fields_get(body, "messages");
    if (json_absent(messages)) {
        return api_fail(failure, API_CODE_MISSING_PARAMETER, "messages", "'messages' is missing.");
    }
    if (json_kind(messages) != JSON_KIND_ARRAY) {
        return api_fail(failure, API_CODE_INVALID_TYPE, "messages", "'messages' must be a list.");
    }
    size_t count = json_count(messages);
    if (count == 0) {
        return api_fail(failure, API_CODE_INVALID_VALUE, "messages", "'messages' is empty.");
    }
    if (count > BOUND_MESSAGES_PER_REQUEST) {
        return api_fail(failure, API_CODE_TOO_LARGE, "messages",
                        "A request may carry at most %u messages.", BOUND_MESSAGES_PER_REQUEST);
    }
    for (size_t i = 0; i < count; i++) {
        if (!check_message(json_at(messages, i), i, failure)) {
            return false;
        }
    }
    return true;
}

// ---- rendering ---------------------------------------------------------------------------------

// chat_template_kwargs with reasoning_effort put in under its own name; what the request says in
// its kwargs comes last and wins.
static bool merge_effort(const struct json *kwargs, struct http_span effort, struct json_doc **out,
                         struct api_failure *failure) {
    struct buf text;
    buf_init(&text, VARIABLES_BYTES_MAX);
    buf_append_str(&text, "{\"reasoning_effort\":");
    json_write_string(&text, effort.text, effort.byte_count);
    buf_append_str(&text, http_span_is(effort, "none") ? ",\"enable_thinking\":false" : "");
    void *it = json_absent(kwargs) ? NULL : json_iter(kwargs);
    for (; it != NULL; it = json_iter_next(kwargs, it)) {
        size_t key_bytes = 0;
        const char *key = json_iter_key(it, &key_bytes);
        buf_append_byte(&text, ',');
        json_write_string(&text, key, key_bytes);
        buf_append_byte(&text, ':');
        json_write(json_iter_value(it), NULL, &text);
    }
    buf_append_byte(&text, '}');
    bool fine = buf_status(&text) == STATUS_OK &&
                json_parse(buf_cstr(&text), text.bytes_used, out, NULL) == STATUS_OK;
    buf_deinit(&text);
    return fine || api_fail(failure, API_CODE_TOO_LARGE, "chat_template_kwargs",
                            "'chat_template_kwargs' is too large.");
}

// How the prompt ends: with an open turn of the assistant, inside the last message, or neither.
static bool choose_end(const struct json_fields *body, struct chat_template_input *input,
                       struct api_failure *failure) {
    if (!api_field_bool(body, "continue_final_message", &input->continue_final_message, failure)) {
        return false;
    }
    input->add_generation_prompt = !input->continue_final_message;
    if (!api_field_bool(body, "add_generation_prompt", &input->add_generation_prompt, failure)) {
        return false;
    }
    return !(input->add_generation_prompt && input->continue_final_message) ||
           api_fail(failure, API_CODE_INVALID_VALUE, "continue_final_message",
                    "'continue_final_message' and 'add_generation_prompt' exclude each other.");
}

static bool render(const struct api_facts *facts, const struct chat_template_input *input,
                   struct buf *out, struct api_failure *failure) {
    struct error err = {0};
    enum status status = chat_template_render(facts->model->chat_template, input, out, &err);
    if (status == STATUS_OK) {
        return true;
    }
    // The sentence is the template's own, or names the bound that was hit.
    enum api_code code = status == STATUS_EXHAUSTED ? API_CODE_TOO_LARGE : API_CODE_INVALID_VALUE;
    return api_fail(failure, code, "messages", "%s", err.message);
}

bool api_render_chat(struct api_reading *reading, const struct json_fields *body, struct buf *out) {
    const struct api_facts *facts = reading->facts;
    struct api_failure *failure = &reading->failure;
    const struct json *kwargs = json_fields_get(body, "chat_template_kwargs");
    struct http_span effort;
    struct json_doc *merged = NULL;
    if (facts->model->chat_template == NULL) {
        return api_fail(failure, API_CODE_UNSUPPORTED_VALUE, "messages",
                        "This model has no chat template; use /v1/completions.");
    }
    if (!json_absent(kwargs) && json_kind(kwargs) != JSON_KIND_OBJECT) {
        return api_fail(failure, API_CODE_INVALID_TYPE, "chat_template_kwargs",
                        "'chat_template_kwargs' must be an object.");
    }
    struct chat_template_input input = {
        .messages = json_fields_get(body, "messages"),
        .kwargs = json_absent(kwargs) ? NULL : kwargs,
        .bos_token = facts->bos_text[0] != '\0' ? facts->bos_text : NULL,
        .eos_token = facts->eos_text[0] != '\0' ? facts->eos_text : NULL,
        .now_unix_s = (int64_t)reading->now_unix_s};
    bool fine = check_messages(body, failure) && choose_end(body, &input, failure) &&
                api_field_text(body, "reasoning_effort", &effort, failure);
    if (fine && effort.text != NULL) {
        fine = merge_effort(kwargs, effort, &merged, failure);
        input.kwargs = fine ? json_root(merged) : NULL;
    }
    fine = fine && render(facts, &input, out, failure);
    json_destroy(merged);
    return fine;
}

// ---- the route ---------------------------------------------------------------------------------

static bool read_chat(struct api_reading *reading, const struct json_fields *body) {
    struct api_failure *failure = &reading->failure;
    struct api_params_rules rules;
    struct buf rendered;
    api_params_rules(reading->facts, API_ENDPOINT_CHAT, &rules);
    buf_init(&rendered, BOUND_TEMPLATE_OUTPUT_BYTES);
    bool fine = api_reading_prompts(reading, 1) && api_check_model(reading->facts, body, failure) &&
                api_params_parse(body, &rules, &reading->params, failure) &&
                api_render_chat(reading, body, &rendered);
    struct http_span text = {buf_cstr(&rendered), rendered.bytes_used};
    fine = fine && api_reading_text(reading, text, reading->params.add_special, "messages");
    buf_deinit(&rendered);
    return fine;
}

static void finish(struct api_visit *visit, struct api_reading *reading) {
    api_call_start(visit, API_CALL_KIND_CHAT, reading);
}

const struct api_reader api_chat_reader = {api_can_serve, read_chat, finish};

void api_chat_completions(struct api_visit *visit) {
    api_read(visit, &api_chat_reader);
}
