// SPDX-License-Identifier: Apache-2.0
// Bodies and event streams of generating requests, written straight into the outgoing buffer: one
// escape function and no tree, since this runs for every token.
#include "controller/http/api_call.h"

#include "common/json.h"
#include "controller/http/api_journal.h"
#include "controller/http/api_scores.h"
#include <string.h>

// ---- parts -------------------------------------------------------------------------------------

static void write_text(struct buf *out, const char *text) {
    json_write_string(out, text, strlen(text));
}

// {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…,"choices":[
static void write_head(const struct api_call *call, const char *object, struct buf *out) {
    const struct api *api = call->visit.api;
    buf_append_str(out, "{\"id\":");
    write_text(out, call->body_id);
    buf_append_str(out, ",\"object\":");
    write_text(out, object);
    buf_append_str(out, ",\"created\":");
    buf_append_u64(out, call->created_unix_s);
    buf_append_str(out, ",\"model\":");
    write_text(out, api->facts.model->names[0]);
    buf_append_str(out, ",\"system_fingerprint\":");
    write_text(out, api->fingerprint);
    buf_append_str(out, ",\"choices\":[");
}

static void write_usage(uint64_t prompt_tokens, uint64_t cached_tokens, uint64_t output_tokens,
                        struct buf *out) {
    buf_append_str(out, "{\"prompt_tokens\":");
    buf_append_u64(out, prompt_tokens);
    buf_append_str(out, ",\"completion_tokens\":");
    buf_append_u64(out, output_tokens);
    buf_append_str(out, ",\"total_tokens\":");
    buf_append_u64(out, prompt_tokens + output_tokens);
    buf_append_str(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    buf_append_u64(out, cached_tokens);
    buf_append_str(out, "},"
                        "\"completion_tokens_details\":{\"reasoning_tokens\":0}}");
}

static void write_call_usage(const struct api_call *call, struct buf *out) {
    uint64_t output_tokens = 0, cached_tokens = 0;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        const struct api_choice *choice = &call->choices[i];
        output_tokens += choice->output_count;
        cached_tokens += choice->first_of_prompt ? choice->cached_tokens : 0;
    }
    write_usage(call->prompt_tokens, cached_tokens, output_tokens, out);
}

static void write_logprobs(const struct api_choice *choice, size_t byte_count, struct buf *out) {
    const struct api_call *call = choice->call;
    const struct tokenizer *tokenizer = call->visit.api->facts.model->tokenizer;
    buf_append_str(out, ",\"logprobs\":");
    if (!call->sampling.want_logprobs || byte_count == 0) {
        buf_append_str(out, "null");
    } else if (call->kind == API_CALL_KIND_CHAT) {
        api_scores_write_chat(tokenizer, &choice->scores, byte_count, out);
    } else {
        api_scores_write_completion(tokenizer, &choice->scores, byte_count, out);
    }
}

static void write_finish(const struct api_choice *choice, struct buf *out) {
    if (!choice->finished) {
        buf_append_str(out, ",\"finish_reason\":null,\"stop_reason\":null}");
        return;
    }
    buf_append_str(out, ",\"finish_reason\":\"");
    buf_append_str(out, choice->finish_reason);
    buf_append_str(out, "\",\"stop_reason\":");
    switch (choice->stop_kind) {
    case API_STOP_KIND_NONE:
        buf_append_str(out, "null");
        break;
    case API_STOP_KIND_TOKEN:
        buf_append_u64(out, choice->stop_index);
        break;
    case API_STOP_KIND_STRING: {
        const struct detokenizer_stop *stop = &choice->detokenizer.stops[choice->stop_index];
        json_write_string(out, stop->text, stop->byte_count);
        break;
    }
    }
    buf_append_byte(out, '}');
}

// ---- whole bodies ------------------------------------------------------------------------------

static void write_choice(struct api_choice *choice, struct buf *out) {
    bool chat = choice->call->kind == API_CALL_KIND_CHAT;
    buf_append_str(out, "{\"index\":");
    buf_append_u64(out, choice->index);
    buf_append_str(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":");
    json_write_string(out, buf_cstr(&choice->text), choice->text.bytes_used);
    buf_append_str(out, chat ? ",\"refusal\":null}" : "");
    write_logprobs(choice, choice->scores.bytes_used, out);
    write_finish(choice, out);
}

void api_render_body(struct api_call *call) {
    struct buf *body = &call->visit.api->body;
    bool chat = call->kind == API_CALL_KIND_CHAT;
    bool whole = true;
    buf_reset(body);
    write_head(call, chat ? "chat.completion" : "text_completion", body);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_choice *choice = &call->choices[i];
        whole = whole && buf_status(&choice->text) == STATUS_OK &&
                buf_status(&choice->scores) == STATUS_OK;
        buf_append_str(body, i > 0 ? "," : "");
        write_choice(choice, body);
    }
    buf_append_str(body, chat ? "],\"service_tier\":\"default\",\"usage\":" : "],\"usage\":");
    write_call_usage(call, body);
    buf_append_byte(body, '}');
    if (!whole || buf_status(body) != STATUS_OK) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_INTERNAL, NULL, "The answer does not fit the memory.");
        api_call_fail(call, &failure);
        return;
    }
    api_call_answer(call, body);
}

// ---- event streams -----------------------------------------------------------------------------

void api_render_chunk_head(struct api_call *call) {
    buf_append_str(&call->chunk_head, "data: ");
    write_head(call, call->kind == API_CALL_KIND_CHAT ? "chat.completion.chunk" : "text_completion",
               &call->chunk_head);
}

void api_render_stream_head(struct api_visit *visit) {
    struct api *api = visit->api;
    api_begin_fields(visit);
    buf_append_str(&api->fields, "cache-control: no-store\r\nx-accel-buffering: no\r\n");
    const struct http_response response = {
        .status = 200,
        .content_type = "text/event-stream; charset=utf-8",
        .fields = &api->fields,
    };
    http_exchange_stream(visit->exchange, &response);
}

static void begin_chunk(const struct api_choice *choice, struct buf *out) {
    const struct buf *head = &choice->call->chunk_head;
    buf_append(out, head->data, head->bytes_used);
    buf_append_str(out, "{\"index\":");
    buf_append_u64(out, choice->index);
}

static void end_chunk(const struct api_choice *choice, struct buf *out) {
    buf_append_byte(out, ']');
    if (choice->call->usage_in_every_chunk) {
        buf_append_str(out, ",\"usage\":");
        write_usage(choice->prompt_count, choice->cached_tokens, choice->output_count, out);
    }
    buf_append_str(out, "}\n\n");
}

static void write_role_chunk(const struct api_choice *choice, struct buf *out) {
    begin_chunk(choice, out);
    buf_append_str(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                        "\"finish_reason\":null,\"stop_reason\":null}");
    end_chunk(choice, out);
}

static void write_text_chunk(struct api_choice *choice, struct buf *out) {
    size_t score_bytes = api_text_scores_ready(choice);
    const char *text = buf_cstr(&choice->text);
    begin_chunk(choice, out);
    if (choice->call->kind == API_CALL_KIND_COMPLETION) {
        buf_append_str(out, ",\"text\":");
        json_write_string(out, text, choice->text.bytes_used);
    } else if (choice->text.bytes_used == 0 && choice->finished) {
        buf_append_str(out, ",\"delta\":{}");
    } else {
        buf_append_str(out, ",\"delta\":{\"content\":");
        json_write_string(out, text, choice->text.bytes_used);
        buf_append_byte(out, '}');
    }
    const struct api_call *call = choice->call;
    if (choice->finished || call->sampling.want_logprobs || call->usage_in_every_chunk) {
        write_logprobs(choice, score_bytes, out);
        write_finish(choice, out);
        end_chunk(choice, out);
    } else {
        // What the three write for nearly every token.
        buf_append_str(out,
                       ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}\n\n");
    }
    buf_reset(&choice->text);
    buf_consume(&choice->scores, score_bytes);
}

// At most one chunk of text per choice and turn. None while everything new is held back.
static void write_choice_events(struct api_choice *choice, struct buf *out) {
    if (!choice->begun && choice->call->kind == API_CALL_KIND_CHAT) {
        write_role_chunk(choice, out);
    }
    choice->begun = true;
    bool visible = choice->text.bytes_used > 0 || !api_text_holds_back(choice);
    if (visible || choice->finished) {
        write_text_chunk(choice, out);
        choice->finish_written = choice->finished;
    }
}

static void end_stream(struct api_call *call, struct buf *out) {
    if (call->usage_in_stream) {
        buf_append(out, call->chunk_head.data, call->chunk_head.bytes_used);
        buf_append_str(out, "],\"usage\":");
        write_call_usage(call, out);
        buf_append_str(out, "}\n\n");
    }
    buf_append_str(out, "data: [DONE]\n\n");
}

// A buffer that ran out of memory has lost text; a stream with a hole must not go on.
static bool is_whole(const struct api_call *call) {
    bool whole = buf_status(&call->chunk_head) == STATUS_OK;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        whole = whole && buf_status(&call->choices[i].text) == STATUS_OK &&
                buf_status(&call->choices[i].scores) == STATUS_OK;
    }
    return whole;
}

void api_render_events(struct api_call *call) {
    struct http_exchange *exchange = call->exchange;
    if (exchange->phase == HTTP_EXCHANGE_PHASE_OPEN) {
        api_render_stream_head(&call->visit);
    }
    api_journal_step(call);
    if (!is_whole(call)) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_INTERNAL, NULL, "The answer does not fit the memory.");
        api_call_fail(call, &failure);
        return;
    }
    struct buf *out = http_exchange_payload(exchange);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_choice *choice = &call->choices[i];
        if (choice->dirty && !choice->finish_written) {
            write_choice_events(choice, out);
        }
        choice->dirty = false;
    }
    if (call->unfinished_count > 0) {
        exchange->alarm_us = call->keepalive_us > 0 ? call->visit.now_us + call->keepalive_us : 0;
        return;
    }
    end_stream(call, out);
    api_call_log(call, exchange->status, call->choices[0].finish_reason);
    // The entry ends once the client has it.
    exchange->receipt = call->journal_entry;
    call->journal_entry = 0;
    http_exchange_end(exchange);
    api_call_let_go(call);
}
