// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_call.h"

#include "common/bounds.h"
#include "common/clock.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "controller/core/prefix_index.h"
#include "controller/http/api_journal.h"
#include "controller/http/api_streams.h"
#include <stdio.h>
#include <string.h>

// A core request id is a serial number above the index of its slot: unique for life, found at once.
enum { SLOT_BITS = 20, COMPLETIONS_MAX_TOKENS = 16, RETRY_MS = 1000 };

// ---- slots -------------------------------------------------------------------------------------

static bool slots_grow(struct api *api) {
    uint32_t count = api->slot_count == 0 ? 64 : api->slot_count * 2;
    if (count > 1u << SLOT_BITS) {
        return false;
    }
    struct api_slot *slots = memory_realloc(api->slots, count * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (uint32_t i = api->slot_count; i < count; i++) {
        slots[i] = (struct api_slot){.next_free = i + 1 < count ? i + 1 : api->slot_free};
    }
    api->slot_free = api->slot_count;
    api->slots = slots;
    api->slot_count = count;
    return true;
}

// Gives the choice an id; false without memory.
static bool slot_take(struct api *api, struct api_choice *choice) {
    if (api->slot_free == API_SLOT_NONE && !slots_grow(api)) {
        return false;
    }
    uint32_t index = api->slot_free;
    struct api_slot *slot = &api->slots[index];
    api->slot_free = slot->next_free;
    slot->choice = choice;
    slot->id = ++api->serial << SLOT_BITS | index;
    choice->id = slot->id;
    choice->call->live_count++;
    api->live_sequences++;
    return true;
}

void api_slot_give_back(struct api *api, struct api_choice *choice) {
    uint32_t index = (uint32_t)(choice->id & ((1u << SLOT_BITS) - 1));
    INVARIANT(api->slots[index].choice == choice);
    api->slots[index] = (struct api_slot){.next_free = api->slot_free};
    api->slot_free = index;
    choice->id = 0;
    choice->call->live_count--;
    api->live_sequences--;
}

struct api_choice *api_slot_find(const struct api *api, struct request_id id) {
    uint32_t index = (uint32_t)(id.value & ((1u << SLOT_BITS) - 1));
    if (index >= api->slot_count || api->slots[index].id != id.value) {
        return NULL;
    }
    return api->slots[index].choice;
}

// ---- life cycle --------------------------------------------------------------------------------

// The id in the body is built from the request's; a running twin gets a suffix.
static void make_body_id(struct api_call *call) {
    struct api *api = call->visit.api;
    const char *prefix = call->kind == API_CALL_KIND_CHAT ? "chatcmpl-" : "cmpl-";
    bool taken = false;
    for (struct api_call *at = api->calls; call->visit.id_is_clients && at != NULL && !taken;
         at = at->next) {
        taken = strcmp(at->visit.request_id, call->visit.request_id) == 0;
    }
    taken = taken ||
            (call->visit.id_is_clients && api_streams_have(api, prefix, call->visit.request_id));
    if (taken) {
        snprintf(call->body_id, sizeof call->body_id, "%s%s-%llu", prefix, call->visit.request_id,
                 (unsigned long long)(api->serial + 1));
    } else {
        snprintf(call->body_id, sizeof call->body_id, "%s%s", prefix, call->visit.request_id);
    }
}

// The bias changes hands: the core reads it until the sequences have ended.
static void take_params(struct api_call *call, struct api_params *params) {
    struct api *api = call->visit.api;
    call->sampling = params->sampling;
    call->bias = params->bias;
    params->bias = NULL;
    call->seed_given = params->seed_given;
    call->eos_count = params->eos_count;
    call->stream = params->stream;
    call->usage_in_stream = params->usage_in_stream || api->config.usage_always;
    call->usage_in_every_chunk = params->usage_in_every_chunk;
    call->echo = params->echo;
    call->keepalive_us = api->config.keepalive_us;
    if (params->keepalive_us > 0 &&
        (call->keepalive_us == 0 || params->keepalive_us < call->keepalive_us)) {
        call->keepalive_us = params->keepalive_us;    // a request may only shorten it
    }
    if (!params->seed_given) {
        call->sampling.seed = rng_u64(&api->seeds);
    }
}

// The class of the key; a request may lower it, never raise it.
static bool choose_class(struct api_call *call, struct api_failure *failure) {
    const struct api_account *account = call->visit.account;
    call->class_ = account != NULL ? account->class_ : REQUEST_CLASS_STANDARD;
    struct http_span wish = http_request_field(call->exchange->request, "x-tare-class");
    if (wish.text == NULL) {
        return true;
    }
    enum request_class asked = REQUEST_CLASS_STANDARD;
    if (core_class_parse(wish.text, wish.byte_count, &asked)) {
        call->class_ = asked > call->class_ ? asked : call->class_;
        return true;
    }
    return api_fail(failure, API_CODE_INVALID_VALUE, "x-tare-class",
                    "'x-tare-class' must be realtime, standard or batch.");
}

// What was drawn and decided when an earlier controller began it.
static void take_begin(struct api_call *call, const struct api_begin *begin) {
    call->resumed = true;
    call->unattended = true;
    call->class_ = begin->class_;
    call->sampling.seed = begin->seed;
    call->created_unix_s = begin->created_unix_s;
    memcpy(call->body_id, begin->body_id.text, begin->body_id.byte_count);
}

static void link_call(struct api_call *call) {
    struct api *api = call->visit.api;
    call->next = api->calls;
    if (api->calls != NULL) {
        api->calls->prev = call;
    }
    api->calls = call;
    api->open_calls++;
}

struct api_call *api_call_create(struct api_visit *visit, const struct api_call_spec *spec,
                                 struct api_failure *failure) {
    struct api_params *params = spec->params;
    uint64_t choice_count = (uint64_t)spec->prompt_count * params->choice_count;
    uint32_t count_max = visit->api->config.sequences_max;
    if (choice_count > count_max) {
        api_fail(failure, API_CODE_TOO_LARGE, "n", "A request may ask for at most %u sequences.",
                 count_max);
        return NULL;
    }
    struct api_call *call =
        memory_zalloc(sizeof *call + (size_t)choice_count * sizeof call->choices[0]);
    if (call == NULL) {
        api_fail(failure, API_CODE_UNAVAILABLE, NULL, "There is no memory for this request.");
        return NULL;
    }
    call->visit = *visit;
    call->exchange = visit->exchange;
    call->kind = spec->kind;
    call->created_unix_s = clock_unix_s();
    call->choice_count = (uint32_t)choice_count;
    buf_init(&call->chunk_head, BOUND_HTTP_HEAD_BYTES);
    take_params(call, params);
    if (spec->again != NULL) {
        take_begin(call, spec->again);
    } else {
        make_body_id(call);
    }
    for (uint32_t i = 0; i < call->choice_count; i++) {
        call->choices[i].call = call;
        call->choices[i].index = i;
        buf_init(&call->choices[i].text, BOUND_HTTP_RESPONSE_BYTES);
        buf_init(&call->choices[i].scores, BOUND_HTTP_RESPONSE_BYTES);
    }
    link_call(call);
    if (spec->again == NULL && !choose_class(call, failure)) {
        api_call_destroy(call);
        return NULL;
    }
    return call;
}

static uint64_t outputs_of(const struct api_call *call) {
    uint64_t outputs = 0;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        outputs += call->choices[i].output_count;
    }
    return outputs;
}

void api_call_refund(struct api_call *call) {
    if (call->charged && !call->refunded && outputs_of(call) == 0) {
        call->refunded = true;
        api_account_refund(call->visit.account, call->prompt_tokens);
    }
}

void api_call_destroy(struct api_call *call) {
    struct api *api = call->visit.api;
    if (call->charged) {
        api_account_return(call->visit.account, outputs_of(call));
    }
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_choice *choice = &call->choices[i];
        if (choice->id != 0) {
            api_slot_give_back(api, choice);
        }
        api->prompt_tokens_held -= choice->tokens != NULL ? choice->prompt_count : 0;
        memory_free(choice->tokens);
        memory_free(choice->keys);
        api_text_deinit(choice);
        buf_deinit(&choice->text);
        buf_deinit(&choice->scores);
    }
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        api->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    if (call->exchange != NULL) {
        api->open_calls--;
    }
    INVARIANT(!call->dirty);
    memory_free(call->bias);
    buf_deinit(&call->chunk_head);
    buf_deinit(&call->noted);
    memory_free(call);
}

// ---- prompts -----------------------------------------------------------------------------------

static bool judge_length(const struct api_call *call, const struct api_params *params,
                         size_t token_count, uint32_t *output_max, struct api_failure *failure) {
    struct api *api = call->visit.api;
    uint32_t context = api->facts.context_tokens;
    const char *param = call->kind == API_CALL_KIND_CHAT ? "messages" : "prompt";
    if (token_count + 1 > context) {
        failure->prompt_tokens = token_count > UINT32_MAX ? UINT32_MAX : (uint32_t)token_count;
        failure->context_tokens = context;
        return api_fail(failure, API_CODE_CONTEXT_LENGTH, param,
                        "This model's maximum context length is %u tokens. The prompt has %zu "
                        "tokens; shorten it to at most %u.",
                        context, token_count, context - 1);
    }
    uint32_t rest = context - (uint32_t)token_count;
    uint32_t wanted = call->kind == API_CALL_KIND_CHAT ? rest : COMPLETIONS_MAX_TOKENS;
    wanted = params->max_given ? params->max_tokens : wanted;
    if (wanted > rest && params->max_given && api->config.strict_max_tokens) {
        failure->prompt_tokens = (uint32_t)token_count;
        failure->context_tokens = context;
        return api_fail(failure, API_CODE_CONTEXT_LENGTH, "max_tokens",
                        "This model's maximum context length is %u tokens. The prompt has %zu "
                        "tokens and %u more were asked for.",
                        context, token_count, wanted);
    }
    *output_max = wanted < rest ? wanted : rest;
    return true;
}

static bool set_tokens(struct api_choice *choice, const uint32_t *tokens, size_t token_count,
                       uint32_t output_max) {
    struct api *api = choice->call->visit.api;
    size_t capacity = token_count + output_max;
    choice->tokens = memory_alloc(capacity * sizeof *choice->tokens);
    if (choice->tokens == NULL) {
        return false;
    }
    for (size_t i = 0; i < token_count; i++) {
        choice->tokens[i] = (int32_t)tokens[i];
    }
    // Without room for them it only shares nothing. Shorter sequences have no full block.
    choice->key_capacity = api->config.prefix_caching ? (uint32_t)(capacity / CORE_KEY_TOKENS) : 0;
    if (choice->key_capacity > 0) {
        choice->keys = memory_alloc(choice->key_capacity * sizeof *choice->keys);
    }
    choice->prompt_count = (uint32_t)token_count;
    choice->output_max = output_max;
    api->prompt_tokens_held += choice->prompt_count;
    return true;
}

// A tokenizer may know tokens that the model's matrices have no row for.
static bool judge_ids(const struct api *api, const uint32_t *tokens, size_t token_count,
                      const char *param, struct api_failure *failure) {
    for (size_t i = 0; i < token_count; i++) {
        if (tokens[i] >= api->facts.vocabulary) {
            return api_fail(failure, API_CODE_INVALID_VALUE, param,
                            "'%s' holds token %u, which this model does not have.", param,
                            tokens[i]);
        }
    }
    return true;
}

bool api_call_set_prompt(struct api_call *call, const struct api_params *params,
                         uint32_t prompt_index, const uint32_t *tokens, size_t token_count,
                         struct api_failure *failure) {
    struct api *api = call->visit.api;
    const char *param = call->kind == API_CALL_KIND_CHAT ? "messages" : "prompt";
    if (token_count == 0) {
        return api_fail(failure, API_CODE_INVALID_VALUE, param, "'%s' has no tokens.", param);
    }
    size_t keep = params->truncate_tokens == UINT32_MAX ? api->facts.context_tokens - 1
                                                        : params->truncate_tokens;
    if (keep > 0 && token_count > keep) {
        tokens += token_count - keep;
        token_count = keep;
    }
    uint32_t output_max = 0;
    if (!judge_length(call, params, token_count, &output_max, failure) ||
        !judge_ids(api, tokens, token_count, param, failure)) {
        return false;
    }
    uint64_t held = api->prompt_tokens_held + (uint64_t)token_count * params->choice_count;
    if (held > BOUND_PROMPT_TOKENS_HELD) {
        api_fail(failure, API_CODE_QUEUE_FULL, NULL, "Too many prompt tokens wait already.");
        failure->retry_after_ms = RETRY_MS;
        return false;
    }
    call->prompt_tokens += token_count;
    for (uint32_t i = 0; i < params->choice_count; i++) {
        struct api_choice *choice = &call->choices[prompt_index * params->choice_count + i];
        choice->first_of_prompt = i == 0;
        if (!set_tokens(choice, tokens, token_count, output_max) ||
            !api_text_begin(choice, params)) {
            return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                            "There is no memory for this request.");
        }
    }
    return true;
}

// ---- submitting --------------------------------------------------------------------------------

// Marks the call for api_turn_end.
void api_call_touch(struct api_call *call) {
    struct api *api = call->visit.api;
    if (!call->dirty) {
        call->dirty = true;
        call->next_dirty = NULL;
        *api->dirty_end = call;
        api->dirty_end = &call->next_dirty;
    }
}

void api_choice_finish(struct api_choice *choice, const char *reason) {
    INVARIANT(!choice->finished);
    choice->finished = true;
    choice->finish_reason = reason;
    choice->call->unfinished_count--;
    choice->dirty = true;
    api_call_touch(choice->call);
}

// The draw of choice i of a request with a seed depends on (seed, i); without one, choices of
// different prompts must differ too.
static uint32_t draw_stream(const struct api_choice *choice, uint32_t per_prompt, bool seeded) {
    return seeded ? choice->index % per_prompt : choice->index;
}

static bool submit_choice(struct api_choice *choice, uint32_t stream, struct api_failure *failure) {
    struct api_call *call = choice->call;
    struct api *api = call->visit.api;
    if (!slot_take(api, choice)) {
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    struct core_request request = {
        .id = {choice->id},
        .class_ = call->class_,
        .tokens = choice->tokens,
        .token_capacity = choice->prompt_count + choice->output_max,
        .prompt_count = choice->prompt_count,
        .resumed_count = choice->output_count,
        .output_max = choice->output_max,
        .sampling = call->sampling,
        .keys = choice->keys,
        .key_capacity = choice->keys != NULL ? choice->key_capacity : 0,
        .salt = call->visit.salt,
        .tenant = call->visit.account != NULL ? call->visit.account->tenant : 0,
        .weight = call->visit.account != NULL ? call->visit.account->weight : 1,
    };
    request.sampling.stream = stream;
    if (request.sampling.min_tokens > choice->output_max) {
        request.sampling.min_tokens = choice->output_max;    // the limit was lowered
    }
    enum status status = api->config.submit(api->config.ctx, &request);
    if (status == STATUS_OK) {
        return true;
    }
    api_slot_give_back(api, choice);
    api_fail(failure, status == STATUS_BUSY ? API_CODE_QUEUE_FULL : API_CODE_UNAVAILABLE, NULL,
             status == STATUS_BUSY ? "Too many requests wait already."
                                   : "The request cannot be taken now.");
    failure->retry_after_ms = RETRY_MS;
    return false;
}

void api_call_prepare(struct api_call *call) {
    call->unfinished_count = call->choice_count;
    call->exchange->user = call;
    if (call->stream) {
        api_render_chunk_head(call);
        call->exchange->alarm_us = call->visit.now_us + call->visit.api->config.head_delay_us;
    }
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_choice *choice = &call->choices[i];
        if (choice->output_max == 0 && !call->sampling.want_prompt_logprobs) {
            api_choice_finish(choice, "length");    // an echo needs no engine
        }
    }
}

void api_call_submit(struct api_call *call) {
    struct api_failure failure = {0};
    uint32_t prompts = 0;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        prompts += call->choices[i].first_of_prompt ? 1 : 0;
    }
    uint32_t per_prompt = call->choice_count / prompts;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_choice *choice = &call->choices[i];
        if (choice->finished) {
            continue;
        }
        uint32_t stream = draw_stream(choice, per_prompt, call->seed_given);
        if (!submit_choice(choice, stream, &failure)) {
            api_call_fail(call, &failure);
            return;
        }
    }
}

static bool set_prompts(struct api_call *call, const struct api_reading *reading,
                        struct api_failure *failure) {
    const struct api_params *params = &reading->params;
    size_t start = 0;
    for (uint32_t i = 0; i < reading->prompt_count; i++) {
        const struct api_prompt *prompt = &reading->prompts[i];
        if (!api_call_set_prompt(call, params, i, reading->tokens.ids + start,
                                 prompt->token_end - start, failure)) {
            return false;
        }
        for (uint32_t k = 0; params->echo && k < params->choice_count; k++) {
            api_text_echo(&call->choices[i * params->choice_count + k], prompt->bos_added);
        }
        start = prompt->token_end;
    }
    return true;
}

static void charge(struct api_call *call) {
    struct api_account *account = call->visit.account;
    if (account != NULL) {
        api_account_take(account, call->visit.now_us, call->prompt_tokens);
        call->charged = true;
    }
}

void api_call_start(struct api_visit *visit, enum api_call_kind kind, struct api_reading *reading) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    if (reading->params.ignored != NULL && !api->warned_of_ignored) {
        api->warned_of_ignored = true;
        log_warn("http", "a sampler field without effect here was ignored field=%s",
                 reading->params.ignored);
    }
    const struct api_call_spec spec = {kind, &reading->params, reading->prompt_count, NULL};
    struct api_call *call = api_call_create(visit, &spec, &failure);
    if (call != NULL && set_prompts(call, reading, &failure) && api_judge_quota(visit, &failure)) {
        charge(call);
        api_call_prepare(call);
        api_journal_begin(call, reading);
        api_call_submit(call);
        return;
    }
    if (call != NULL) {
        api_call_destroy(call);
    }
    api_answer_failure(visit, &failure);
}

// The same prompts, and room for the same outputs?
static bool judge_again(struct api_call *call, const struct api_begin *begin,
                        const struct api_reading *reading, struct api_failure *failure) {
    if (api_prompt_digest(reading) != begin->prompt_digest ||
        call->choice_count != begin->choice_count) {
        return api_fail(failure, API_CODE_NOT_RESUMABLE, NULL,
                        "This server has other tokens for the prompt than the one that began the "
                        "response.");
    }
    for (uint32_t i = 0; i < call->choice_count; i++) {
        uint32_t output_max = api_begin_output_max(begin, i);
        if (output_max > call->choices[i].output_max) {
            return api_fail(failure, API_CODE_NOT_RESUMABLE, NULL,
                            "This server's context is too short for the rest of the response.");
        }
        call->choices[i].output_max = output_max;
    }
    return true;
}

// What a key used before is not known here: the whole response is counted now, once.
struct api_call *api_call_again(struct api_visit *visit, const struct api_begin *begin,
                                struct api_reading *reading, struct api_failure *failure) {
    const struct api_call_spec spec = {begin->kind, &reading->params, reading->prompt_count, begin};
    struct api_call *call = api_call_create(visit, &spec, failure);
    if (call == NULL) {
        return NULL;
    }
    if (!set_prompts(call, reading, failure) || !judge_again(call, begin, reading, failure)) {
        api_call_destroy(call);
        return NULL;
    }
    charge(call);
    api_call_prepare(call);
    buf_reset(&call->chunk_head);
    buf_append(&call->chunk_head, begin->chunk_head.text, begin->chunk_head.byte_count);
    return call;
}

// ---- ends --------------------------------------------------------------------------------------

// In api_turn_end and not at once: by then a tick that refuses many sequences has refused them all,
// and only those are cancelled that really run.
void api_call_cancel(struct api_call *call) {
    struct api *api = call->visit.api;
    call->cancel_wanted = false;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        if (call->choices[i].id != 0) {
            api->config.cancel(api->config.ctx, (struct request_id){call->choices[i].id});
        }
    }
}

void api_call_let_go(struct api_call *call) {
    INVARIANT(call->exchange != NULL);
    call->exchange->user = NULL;
    call->exchange = NULL;
    call->visit.exchange = NULL;
    call->visit.api->open_calls--;
    api_call_touch(call);
}

void api_call_log(struct api_call *call, int status, const char *finish) {
    struct api_access access = {.status = status,
                                .finish = finish,
                                .model = call->visit.api->facts.model->names[0],
                                .prompt_tokens = (uint32_t)call->prompt_tokens};
    for (uint32_t i = 0; i < call->choice_count; i++) {
        const struct api_choice *choice = &call->choices[i];
        access.output_tokens += choice->output_count;
        if (choice->first_us > call->exchange->arrived_us && access.ttft_us == 0) {
            access.ttft_us = choice->first_us - call->exchange->arrived_us;
        }
    }
    if (!call->unattended) {
        api_log_access(&call->visit, &access);    // else of whom asks for it
    }
}

void api_call_answer(struct api_call *call, const struct buf *body) {
    struct buf *fields = &call->visit.api->fields;
    api_begin_fields(&call->visit);
    buf_append_str(fields, "openai-processing-ms: ");
    buf_append_u64(fields, (call->visit.now_us - call->exchange->arrived_us) / 1000);
    buf_append_str(fields, "\r\n");
    const struct http_response response = {.status = 200,
                                           .content_type = "application/json",
                                           .fields = fields,
                                           .body = (const char *)body->data,
                                           .body_bytes = body->bytes_used};
    api_call_log(call, response.status, call->choices[0].finish_reason);
    http_exchange_respond(call->exchange, &response);
    api_call_let_go(call);
}

void api_call_fail(struct api_call *call, const struct api_failure *failure) {
    struct http_exchange *exchange = call->exchange;
    if (exchange == NULL) {
        return;
    }
    if (exchange->phase == HTTP_EXCHANGE_PHASE_OPEN) {
        api_answer_failure(&call->visit, failure);
    } else {
        // The head is out: the error travels in the stream, which then never looks finished.
        struct buf *out = http_exchange_payload(exchange);
        buf_append_str(out, "data: ");
        api_failure_write(failure, out);
        buf_append_str(out, "\n\n");
        api_call_log(call, exchange->status, api_code_name(failure->code));
        http_exchange_break(exchange);
    }
    api_journal_end(call);
    call->cancel_wanted = true;
    api_call_let_go(call);
}

void api_call_gone(struct api_call *call, enum http_gone_reason reason, uint64_t now_us) {
    call->visit.now_us = now_us;
    call->visit.probe = call->kind == API_CALL_KIND_CANARY;
    api_call_log(call, 499, api_gone_name(reason));
    api_journal_end(call);
    call->cancel_wanted = true;
    api_call_let_go(call);
}

void api_call_alarm(struct api_call *call, uint64_t now_us) {
    call->visit.now_us = now_us;
    struct http_exchange *exchange = call->exchange;
    if (call->kind == API_CALL_KIND_CANARY) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_UNAVAILABLE, NULL, "No token came out in time.");
        api_call_fail(call, &failure);
        return;
    }
    if (exchange->phase == HTTP_EXCHANGE_PHASE_OPEN) {
        api_render_stream_head(&call->visit);    // clients give up on silent servers
    } else {
        // Not a comment line: a common benchmark client loses the event behind one.
        buf_append_str(http_exchange_payload(exchange), "\n\n");
    }
    exchange->alarm_us = call->keepalive_us > 0 ? now_us + call->keepalive_us : 0;
}
