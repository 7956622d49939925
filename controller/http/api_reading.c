// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_reading.h"

#include "common/bounds.h"
#include "common/clock.h"
#include "common/memory.h"
#include "controller/http/background.h"
#include "controller/text/tokenizer.h"
#include <stdio.h>
#include <string.h>

enum { RETRY_MS = 1000 };

// ---- bodies ------------------------------------------------------------------------------------

static void fail_json(const struct error *err, struct api_failure *failure) {
    // Where, not what: the parser's own words may quote the text.
    const char *near = strstr(err->message, ", column");
    int line = 0;
    bool placed = near != NULL && sscanf(err->message, "not valid JSON at line %d", &line) == 1;
    bool large = near != NULL && sscanf(err->message, "a number at line %d", &line) == 1;
    if (large) {
        api_fail(failure, API_CODE_INVALID_VALUE, NULL,
                 "A number in the request body (line %d) is beyond 64 bits with a sign.", line);
    } else if (placed) {
        api_fail(failure, API_CODE_INVALID_JSON, NULL,
                 "The request body is not valid JSON (line %d).", line);
    } else {
        api_fail(failure, API_CODE_INVALID_JSON, NULL,
                 "The request body is not valid JSON or nested deeper than %u levels.",
                 BOUND_JSON_DEPTH);
    }
}

static bool parse_body(struct api_reading *reading) {
    struct api_failure *failure = &reading->failure;
    if (reading->body_bytes == 0) {
        return api_fail(failure, API_CODE_INVALID_JSON, NULL,
                        "The request has no body; send JSON.");
    }
    struct error err = {0};
    enum status status = json_parse(reading->body, reading->body_bytes, &reading->doc, &err);
    if (status == STATUS_EXHAUSTED) {
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    if (status != STATUS_OK) {
        fail_json(&err, failure);
        return false;
    }
    return json_kind(json_root(reading->doc)) == JSON_KIND_OBJECT ||
           api_fail(failure, API_CODE_INVALID_TYPE, NULL,
                    "The request body must be a JSON object.");
}

// ---- one reading -------------------------------------------------------------------------------

static void reading_init(struct api_reading *reading, const struct api_facts *facts,
                         const char *body, size_t body_bytes) {
    *reading = (struct api_reading){
        .facts = facts, .body = body, .body_bytes = body_bytes, .now_unix_s = clock_unix_s()};
    token_list_init(&reading->tokens, 0);
    buf_init(&reading->answer, BOUND_HTTP_RESPONSE_BYTES);
}

void api_reading_deinit(struct api_reading *reading) {
    json_destroy(reading->doc);
    api_params_deinit(&reading->params);
    token_list_deinit(&reading->tokens);
    memory_free(reading->prompts);
    buf_deinit(&reading->answer);
}

static void reading_run(struct api_reading *reading, const struct api_reader *reader) {
    if (parse_body(reading)) {
        const struct json_fields body = json_fields_of(json_root(reading->doc));
        reading->fine = reader->read(reading, &body);
    }
}

void api_reading_run(struct api_reading *reading, const struct api_facts *facts,
                     struct http_span body, uint64_t now_unix_s, const struct api_reader *reader) {
    reading_init(reading, facts, body.text, body.byte_count);
    reading->now_unix_s = now_unix_s;
    reading_run(reading, reader);
}

static void conclude(struct api_visit *visit, const struct api_reader *reader,
                     struct api_reading *reading) {
    if (reading->fine && reader->can(visit->api, &reading->failure)) {
        reader->finish(visit, reading);
    } else {
        api_answer_failure(visit, &reading->failure);
    }
}

// ---- on a helper thread ------------------------------------------------------------------------

// A reading that a helper thread does: first it reads, then, after the loop has used the result, it
// gives the memory back, which for millions of values takes long as well.
struct api_later {
    struct background_job job;
    struct api_later *prev, *next;    // in api->readings until it is concluded
    struct api_visit visit;           // its exchange is NULL once the client has left
    const struct api_reader *reader;
    struct api_facts facts;
    struct buf body;
    struct api_reading reading;
};

static struct api_later *later_of(struct background_job *job) {
    return (struct api_later *)(void *)((char *)job - offsetof(struct api_later, job));
}

static void later_unlink(struct api_later *later) {
    struct api *api = later->visit.api;
    if (later->prev != NULL) {
        later->prev->next = later->next;
    } else {
        api->readings = later->next;
    }
    if (later->next != NULL) {
        later->next->prev = later->prev;
    }
}

static void work_read(struct background_job *job) {
    struct api_later *later = later_of(job);
    reading_run(&later->reading, later->reader);
}

static void work_discard(struct background_job *job) {
    struct api_later *later = later_of(job);
    api_reading_deinit(&later->reading);
    buf_deinit(&later->body);
}

static void done_discard(struct background_job *job, uint64_t now_us) {
    (void)now_us;
    memory_free(later_of(job));
}

static void done_read(struct background_job *job, uint64_t now_us) {
    struct api_later *later = later_of(job);
    struct api *api = later->visit.api;
    later_unlink(later);
    if (later->visit.exchange != NULL) {
        later->visit.now_us = now_us;
        conclude(&later->visit, later->reader, &later->reading);
        api_turn_end(api, now_us);    // what needs no engine is answered now
    }
    job->work = work_discard;
    job->done = done_discard;
    if (!background_submit(api->config.background, job)) {
        work_discard(job);
        done_discard(job, now_us);
    }
}

static bool read_later(struct api_visit *visit, const struct api_reader *reader,
                       struct api_failure *failure) {
    struct api *api = visit->api;
    struct api_later *later = memory_zalloc(sizeof *later);
    if (later == NULL || !http_exchange_take_body(visit->exchange, &later->body)) {
        if (later != NULL) {
            buf_deinit(&later->body);
        }
        memory_free(later);
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    later->job = (struct background_job){.work = work_read, .done = done_read};
    later->visit = *visit;
    later->reader = reader;
    later->facts = api->facts;
    reading_init(&later->reading, &later->facts, (const char *)later->body.data,
                 later->body.bytes_used);
    if (!background_submit(api->config.background, &later->job)) {
        api_reading_deinit(&later->reading);
        buf_deinit(&later->body);
        memory_free(later);
        failure->retry_after_ms = RETRY_MS;
        return api_fail(failure, API_CODE_QUEUE_FULL, NULL,
                        "Too many large requests wait already.");
    }
    later->next = api->readings;
    if (api->readings != NULL) {
        api->readings->prev = later;
    }
    api->readings = later;
    return true;
}

void api_read_gone(struct api *api, struct http_exchange *exchange, enum http_gone_reason reason,
                   uint64_t now_us) {
    struct api_later *later = api->readings;
    while (later != NULL && later->visit.exchange != exchange) {
        later = later->next;
    }
    if (later == NULL) {
        return;
    }
    later->visit.now_us = now_us;
    struct api_access access = {.status = 499, .finish = api_gone_name(reason)};
    api_log_access(&later->visit, &access);
    later->visit.exchange = NULL;
    if (background_drop(api->config.background, &later->job)) {
        later_unlink(later);
        api_reading_deinit(&later->reading);
        buf_deinit(&later->body);
        memory_free(later);
    }
}

void api_read(struct api_visit *visit, const struct api_reader *reader) {
    struct api *api = visit->api;
    const struct http_exchange *exchange = visit->exchange;
    struct api_failure failure = {0};
    bool large = exchange->body_bytes > BOUND_HTTP_INLINE_BODY_BYTES;
    if (!reader->can(api, &failure)) {
        api_answer_failure(visit, &failure);
    } else if (large && api->config.background != NULL) {
        if (!read_later(visit, reader, &failure)) {
            api_answer_failure(visit, &failure);
        }
    } else {
        struct api_reading reading;
        reading_init(&reading, &api->facts, exchange->body, exchange->body_bytes);
        reading_run(&reading, reader);
        conclude(visit, reader, &reading);
        api_reading_deinit(&reading);
    }
}

// ---- for readers -------------------------------------------------------------------------------

void api_params_rules(const struct api_facts *facts, enum api_endpoint endpoint,
                      struct api_params_rules *out) {
    *out = (struct api_params_rules){.endpoint = endpoint,
                                     .defaults = facts->model->defaults,
                                     .vocabulary = facts->vocabulary,
                                     .logprobs_max = facts->logprobs_max};
    out->eos = tokenizer_eos(facts->model->tokenizer, &out->eos_count);
}

bool api_reading_prompts(struct api_reading *reading, uint32_t count) {
    reading->prompts = memory_array(count, sizeof *reading->prompts);
    return reading->prompts != NULL || api_fail(&reading->failure, API_CODE_UNAVAILABLE, NULL,
                                                "There is no memory for this request.");
}

// Enough to name the length of a prompt that is too long, without encoding megabytes to the end.
static size_t prompt_tokens_max(const struct api_facts *facts) {
    return (size_t)facts->context_tokens + BOUND_ENCODE_SLACK_TOKENS;
}

static void begin_prompt(struct api_reading *reading) {
    reading->tokens.count_max = reading->tokens.count + prompt_tokens_max(reading->facts);
}

static void end_prompt(struct api_reading *reading, bool bos_added) {
    reading->prompts[reading->prompt_count++] =
        (struct api_prompt){.token_end = reading->tokens.count, .bos_added = bos_added};
}

bool api_reading_text(struct api_reading *reading, struct http_span text, bool add_special,
                      const char *param) {
    const struct api_facts *facts = reading->facts;
    const struct tokenizer *tokenizer = facts->model->tokenizer;
    struct api_failure *failure = &reading->failure;
    const struct tokenizer_options options = {.add_special = add_special, .parse_special = true};
    begin_prompt(reading);
    enum status status =
        tokenizer_encode(tokenizer, text.text, text.byte_count, options, &reading->tokens, NULL);
    if (status == STATUS_OK) {
        end_prompt(reading, add_special && tokenizer_adds_bos(tokenizer));
        return true;
    }
    if (status == STATUS_EXHAUSTED) {
        return api_fail(failure, API_CODE_UNAVAILABLE, NULL,
                        "There is no memory for this request.");
    }
    failure->prompt_tokens = (uint32_t)prompt_tokens_max(facts);
    failure->context_tokens = facts->context_tokens;
    return api_fail(failure, API_CODE_CONTEXT_LENGTH, param,
                    "This model's maximum context length is %u tokens. The text has more than %zu.",
                    facts->context_tokens, prompt_tokens_max(facts));
}

bool api_reading_ids(struct api_reading *reading, const struct json *list, const char *param) {
    const struct api_facts *facts = reading->facts;
    struct api_failure *failure = &reading->failure;
    begin_prompt(reading);
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json *value = json_at(list, i);
        if (json_kind(value) != JSON_KIND_INT) {
            return api_fail(failure, API_CODE_INVALID_TYPE, param, "'%s' must hold token ids only.",
                            param);
        }
        int64_t id = json_int(value);
        if (id < 0 || id >= facts->vocabulary) {
            return api_fail(failure, API_CODE_INVALID_VALUE, param,
                            "'%s' holds a token id outside of 0..%u.", param,
                            facts->vocabulary - 1);
        }
        if (token_list_push(&reading->tokens, (uint32_t)id, NULL) != STATUS_OK) {
            failure->prompt_tokens = (uint32_t)json_count(list);
            failure->context_tokens = facts->context_tokens;
            return api_fail(failure, API_CODE_CONTEXT_LENGTH, param,
                            "This model's maximum context length is %u tokens. The list has %zu.",
                            facts->context_tokens, json_count(list));
        }
    }
    end_prompt(reading, false);
    return true;
}
