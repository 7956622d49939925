// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_streams.h"

#include "common/log.h"
#include "common/memory.h"
#include "controller/http/api_call.h"
#include "controller/http/api_journal.h"
#include <stdio.h>
#include <string.h>

enum { CHECK_US = 100 * 1000, RETRY_MS = 1000 };

enum stream_state {
    STREAM_STATE_WAITING,    // for a worker
    STREAM_STATE_HELD,       // its events lie in `exchange`
    STREAM_STATE_FAILED,
};

struct api_stream {
    struct api_stream *prev, *next;
    enum stream_state state;
    uint64_t entry;    // until it is read
    uint64_t salt;
    uint64_t expires_us;
    char body_id[API_BODY_ID_BYTES];
    char request_id[API_REQUEST_ID_BYTES];
    struct buf begin, steps;          // until it is read
    struct http_exchange exchange;    // nobody's; HELD: the events so far and the response's phase
    struct api_call *call;            // HELD, while the exchange is live
    struct api_failure failure;       // FAILED
    bool asked;                       // WAITING: by `asking`, who has the events up to `after`
    struct api_visit asking;
    uint64_t after;
};

// ---- life cycle --------------------------------------------------------------------------------

static void end_entry(const struct api *api, uint64_t entry) {
    if (entry != 0 && api->config.journal.end != NULL) {
        api->config.journal.end(api->config.journal.ctx, entry);
    }
}

static void stream_free(struct api *api, struct api_stream *stream) {
    if (stream->prev != NULL) {
        stream->prev->next = stream->next;
    } else {
        api->streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->prev = stream->prev;
    }
    api->streams_waiting -= stream->state == STREAM_STATE_WAITING ? 1 : 0;
    http_exchange_deinit(&stream->exchange);
    buf_deinit(&stream->begin);
    buf_deinit(&stream->steps);
    memory_free(stream);
}

// Its call, if it still runs, has no use any more; nor has its entry.
static void stream_let_go(struct api *api, struct api_stream *stream) {
    if (stream->state == STREAM_STATE_HELD && http_exchange_live(&stream->exchange)) {
        struct api_call *call = stream->call;
        api_journal_end(call);
        call->cancel_wanted = true;
        api_call_let_go(call);
        stream->exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    }
    end_entry(api, stream->exchange.receipt);
    end_entry(api, stream->entry);
    stream->exchange.receipt = 0;
    stream->entry = 0;
    stream->call = NULL;
}

// The account of the key whose requests have this salt; false when there is no such key.
static bool find_account(const struct api *api, uint64_t salt, struct api_account **out) {
    const struct api_gate *gate = &api->config.gate;
    *out = NULL;
    for (uint32_t i = 0; i < gate->key_count; i++) {
        if (api_key_salt(&gate->keys[i]) == salt) {
            *out = gate->keys[i].account;
            return true;
        }
    }
    return gate->key_count == 0 && salt == 0;
}

static void copy_span(char *out, struct http_span span) {
    memcpy(out, span.text, span.byte_count);
    out[span.byte_count] = '\0';
}

bool api_stream_add(struct api *api, const struct api_unfinished *unfinished) {
    struct api_begin begin;
    struct api_account *account = NULL;
    if (!api_begin_decode(unfinished->begin, unfinished->begin_bytes, &begin) ||
        !find_account(api, begin.salt, &account)) {
        return false;
    }
    struct api_stream *stream = memory_zalloc(sizeof *stream);
    if (stream == NULL) {
        return false;
    }
    stream->entry = unfinished->entry;
    stream->salt = begin.salt;
    stream->expires_us = unfinished->expires_us;
    copy_span(stream->body_id, begin.body_id);
    copy_span(stream->request_id, begin.request_id);
    http_exchange_init(&stream->exchange, NULL);
    buf_init(&stream->begin, unfinished->begin_bytes);
    buf_append(&stream->begin, unfinished->begin, unfinished->begin_bytes);
    buf_init(&stream->steps, unfinished->steps_bytes);
    buf_append(&stream->steps, unfinished->steps, unfinished->steps_bytes);
    struct api_stream *last = api->streams;
    while (last != NULL && last->next != NULL) {
        last = last->next;
    }
    stream->prev = last;
    *(last != NULL ? &last->next : &api->streams) = stream;
    api->streams_waiting++;
    if (buf_status(&stream->begin) != STATUS_OK || buf_status(&stream->steps) != STATUS_OK) {
        stream_free(api, stream);
        return false;
    }
    return true;
}

void api_streams_destroy(struct api *api) {
    while (api->streams != NULL) {
        stream_free(api, api->streams);
    }
}

uint64_t api_streams_resumed(const struct api *api) {
    return api->streams_resumed;
}

bool api_streams_have(const struct api *api, const char *prefix, const char *request_id) {
    size_t prefix_bytes = strlen(prefix);
    for (const struct api_stream *at = api->streams; at != NULL; at = at->next) {
        if (strncmp(at->body_id, prefix, prefix_bytes) == 0 &&
            strcmp(at->body_id + prefix_bytes, request_id) == 0) {
            return true;
        }
    }
    return false;
}

// ---- giving it to a client ---------------------------------------------------------------------

// Where the event behind the first `after` begins. False when there are fewer, then `*count` says
// how many.
static bool skip_events(const struct buf *events, uint64_t after, size_t *start, uint64_t *count) {
    *start = 0;
    *count = 0;
    while (*count < after) {
        const uint8_t *from = events->data + *start;
        const uint8_t *end = *start < events->bytes_used
                                 ? memmem(from, events->bytes_used - *start, "\n\n", 2)
                                 : NULL;
        if (end == NULL) {
            return false;
        }
        *start = (size_t)(end - events->data) + 2;
        (*count)++;
    }
    return true;
}

// The call goes on with the client's exchange.
static void give_call(struct api_stream *stream, struct api_visit *visit, size_t start) {
    struct api_call *call = stream->call;
    struct http_exchange *exchange = visit->exchange;
    const struct buf *held = &stream->exchange.out;
    call->exchange = exchange;
    call->visit.exchange = exchange;
    call->visit.now_us = visit->now_us;
    call->unattended = false;
    exchange->user = call;
    api_render_stream_head(&call->visit);
    struct buf *out = http_exchange_payload(exchange);
    if (held->bytes_used > start) {
        buf_append(out, held->data + start, held->bytes_used - start);
    }
    exchange->alarm_us = call->keepalive_us > 0 ? visit->now_us + call->keepalive_us : 0;
}

// The response has ended already.
static void give_rest(struct api_stream *stream, struct api_visit *visit, size_t start) {
    struct http_exchange *exchange = visit->exchange;
    const struct buf *held = &stream->exchange.out;
    bool whole = stream->exchange.phase == HTTP_EXCHANGE_PHASE_DONE;
    snprintf(visit->request_id, sizeof visit->request_id, "%s", stream->request_id);
    api_render_stream_head(visit);
    struct buf *out = http_exchange_payload(exchange);
    if (held->bytes_used > start) {
        buf_append(out, held->data + start, held->bytes_used - start);
    }
    struct api_access access = {.status = exchange->status,
                                .finish = whole ? "resumed" : "failed",
                                .model = visit->api->facts.model->names[0]};
    api_log_access(visit, &access);
    exchange->receipt = stream->exchange.receipt;    // the entry ends once the client has it
    stream->exchange.receipt = 0;
    if (whole) {
        http_exchange_end(exchange);
    } else {
        http_exchange_break(exchange);
    }
}

static void hand_over(struct api_stream *stream, struct api_visit *visit, uint64_t after) {
    struct api *api = visit->api;
    size_t start = 0;
    uint64_t count = 0;
    if (stream->state == STREAM_STATE_FAILED) {
        api_answer_failure(visit, &stream->failure);
        return;
    }
    if (!skip_events(&stream->exchange.out, after, &start, &count)) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_INVALID_VALUE, "after",
                 "'after' is %llu; this response has %llu events so far.",
                 (unsigned long long)after, (unsigned long long)count);
        api_answer_failure(visit, &failure);
        return;
    }
    api->streams_resumed++;
    if (http_exchange_live(&stream->exchange)) {
        give_call(stream, visit, start);
    } else {
        give_rest(stream, visit, start);
    }
    stream_free(api, stream);
}

// ---- reading it again --------------------------------------------------------------------------

static void stream_fail(struct api *api, struct api_stream *stream, const char *why) {
    stream_let_go(api, stream);
    api->streams_waiting -= stream->state == STREAM_STATE_WAITING ? 1 : 0;
    stream->state = STREAM_STATE_FAILED;
    buf_deinit(&stream->exchange.out);
    api_fail(&stream->failure, API_CODE_NOT_RESUMABLE, NULL,
             "This response cannot be continued: %.400s", why);
    char text[LOG_VALUE_BYTES];
    log_warn("http", "a response of an earlier controller is not continued id=%s because=\"%s\"",
             stream->body_id, log_value(why, text));
}

static bool replay(struct api_call *call, const struct buf *steps) {
    size_t at = 0;
    while (at < steps->bytes_used) {
        uint32_t length = 0;
        if (steps->bytes_used - at < sizeof length) {
            return false;
        }
        memcpy(&length, steps->data + at, sizeof length);
        at += sizeof length;
        if (steps->bytes_used - at < length || call->exchange == NULL ||
            !api_call_replay(call, steps->data + at, length)) {
            return false;
        }
        at += length;
    }
    return true;
}

// Everything that was to be drawn is there, but not its end: nothing that we wrote.
static bool overdrawn(const struct api_call *call) {
    for (uint32_t i = 0; i < call->choice_count; i++) {
        const struct api_choice *choice = &call->choices[i];
        if (!choice->finished && choice->output_count > 0 &&
            choice->output_count >= choice->output_max) {
            return true;
        }
    }
    return false;
}

static struct api_call *read_again(struct api *api, struct api_stream *stream,
                                   struct api_visit *visit, struct api_failure *failure) {
    struct api_begin begin;
    bool known = api_begin_decode(stream->begin.data, stream->begin.bytes_used, &begin);
    const struct api_reader *reader =
        begin.kind == API_CALL_KIND_CHAT ? &api_chat_reader : &api_completion_reader;
    if (!known || !find_account(api, stream->salt, &visit->account)) {
        api_fail(failure, API_CODE_NOT_RESUMABLE, NULL, "its API key is no more.");
        return NULL;
    }
    struct api_reading reading;
    api_reading_run(&reading, &api->facts, begin.body, begin.read_unix_s, reader);
    struct api_call *call = NULL;
    if (reading.fine) {
        call = api_call_again(visit, &begin, &reading, failure);
    } else {
        *failure = reading.failure;
    }
    api_reading_deinit(&reading);
    return call;
}

// From its journal to a call that goes on.
static void stream_continue(struct api *api, struct api_stream *stream, uint64_t now_us) {
    struct http_exchange *exchange = &stream->exchange;
    struct api_failure failure = {0};
    struct api_visit visit = {
        .api = api, .exchange = exchange, .now_us = now_us, .salt = stream->salt};
    snprintf(visit.request_id, sizeof visit.request_id, "%s", stream->request_id);
    http_exchange_begin(exchange, NULL, now_us);
    exchange->phase = HTTP_EXCHANGE_PHASE_STREAMING;
    exchange->status = 200;
    exchange->out.bytes_max = API_STREAM_BYTES_MAX;
    struct api_call *call = read_again(api, stream, &visit, &failure);
    if (call == NULL) {
        exchange->phase = HTTP_EXCHANGE_PHASE_BROKEN;
        stream_fail(api, stream, failure.message);
        return;
    }
    api->streams_waiting--;
    stream->state = STREAM_STATE_HELD;
    stream->call = call;
    if (!call->stream || !replay(call, &stream->steps) ||
        (call->exchange != NULL && overdrawn(call))) {
        stream_fail(api, stream, "its journal does not fit its request.");
        return;
    }
    if (http_exchange_live(exchange)) {
        api_journal_go_on(call, stream->entry);
        stream->entry = 0;
        api_call_submit(call);
    } else {
        exchange->receipt = stream->entry;
        stream->entry = 0;
    }
    log_info("http", "a response of an earlier controller goes on id=%s", stream->body_id);
}

static void stream_turn(struct api *api, struct api_stream *stream, uint64_t now_us) {
    stream_continue(api, stream, now_us);
    buf_deinit(&stream->begin);
    buf_deinit(&stream->steps);
    api_turn_end(api, now_us);    // an echo has its events now
    if (stream->asked) {
        struct api_visit visit = stream->asking;
        stream->asked = false;
        visit.now_us = now_us;
        hand_over(stream, &visit, stream->after);
        api_turn_end(api, now_us);
    }
}

// ---- time --------------------------------------------------------------------------------------

static void stream_expire(struct api *api, struct api_stream *stream, uint64_t now_us) {
    log_info("http", "nobody asked for a response of an earlier controller id=%s", stream->body_id);
    if (stream->asked) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_UNAVAILABLE, NULL,
                 "No worker came back in time to continue this response.");
        failure.retryable = false;
        stream->asking.now_us = now_us;
        stream->asked = false;
        api_answer_failure(&stream->asking, &failure);
    }
    stream_let_go(api, stream);
    stream_free(api, stream);
}

static void check_all(struct api *api, uint64_t now_us) {
    api->streams_checked_us = now_us;
    for (struct api_stream *at = api->streams; at != NULL;) {
        struct api_stream *next = at->next;
        if (now_us >= at->expires_us) {
            stream_expire(api, at, now_us);
        } else if (at->state == STREAM_STATE_HELD && buf_status(&at->exchange.out) != STATUS_OK) {
            stream_fail(api, at, "it grew beyond what is kept without a client.");
        }
        at = next;
    }
    api_turn_end(api, now_us);
}

bool api_streams_turn(struct api *api, uint64_t now_us) {
    if (api->streams == NULL) {
        return false;
    }
    if (now_us >= api->streams_checked_us + CHECK_US) {
        check_all(api, now_us);
    }
    bool can = api->state == API_STATE_READY || api->state == API_STATE_RECOVERING;
    struct api_stream *next = api->streams;
    while (next != NULL && next->state != STREAM_STATE_WAITING) {
        next = next->next;
    }
    if (can && next != NULL) {
        stream_turn(api, next, now_us);
    }
    return can && api->streams_waiting > 0;
}

bool api_streams_gone(struct api *api, const struct http_exchange *exchange,
                      enum http_gone_reason reason, uint64_t now_us) {
    for (struct api_stream *at = api->streams; at != NULL; at = at->next) {
        if (at->asked && at->asking.exchange == exchange) {
            struct api_access access = {.status = 499, .finish = api_gone_name(reason)};
            at->asking.now_us = now_us;
            at->asked = false;    // it was told nothing yet: it may ask again
            api_log_access(&at->asking, &access);
            return true;
        }
    }
    return false;
}

// ---- the route ---------------------------------------------------------------------------------

// `after` of the query; absent is 0.
static bool read_after(struct http_span query, uint64_t *out, struct api_failure *failure) {
    static const char key[] = "after=";
    const char *at = query.text;
    const char *end = at == NULL ? NULL : at + query.byte_count;
    *out = 0;
    while (at != NULL && at < end) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        stop = stop == NULL ? end : stop;
        if ((size_t)(stop - at) >= sizeof key - 1 && memcmp(at, key, sizeof key - 1) == 0) {
            const char *digit = at + sizeof key - 1;
            bool fine = digit < stop && stop - digit <= 18;
            *out = 0;
            for (; fine && digit < stop; digit++) {
                fine = *digit >= '0' && *digit <= '9';
                *out = *out * 10 + (uint64_t)(*digit - '0');
            }
            if (!fine) {
                return api_fail(failure, API_CODE_INVALID_VALUE, "after",
                                "'after' must be the number of the last event seen, 0 for none.");
            }
        }
        at = stop + 1;
    }
    return true;
}

static struct api_stream *find_stream(const struct api_visit *visit, const char *id) {
    struct api_stream *found = NULL;
    for (struct api_stream *at = visit->api->streams; at != NULL; at = at->next) {
        if (at->salt == visit->salt && strcmp(at->body_id, id) == 0) {
            found = at;    // the youngest, where a client has used an id again
        }
    }
    return found;
}

static bool has_client(const struct api_visit *visit, const char *id) {
    for (const struct api_call *at = visit->api->calls; at != NULL; at = at->next) {
        if (at->exchange != NULL && !at->unattended && at->stream &&
            at->visit.salt == visit->salt && strcmp(at->body_id, id) == 0) {
            return true;
        }
    }
    return false;
}

void api_stream(struct api_visit *visit) {
    struct api *api = visit->api;
    const struct http_request *request = visit->exchange->request;
    struct api_failure failure = {0};
    static const char mark[] = "/streams/";
    const char *at = memmem(request->path.text, request->path.byte_count, mark, sizeof mark - 1);
    struct http_span id = {at + sizeof mark - 1, 0};
    id.byte_count = request->path.byte_count - (size_t)(id.text - request->path.text);
    buf_reset(&api->body);
    api_unescape(id, &api->body);
    const char *name = buf_cstr(&api->body);
    uint64_t after = 0;
    bool fine = request->method == HTTP_METHOD_GET ||
                api_fail(&failure, API_CODE_METHOD_NOT_ALLOWED, NULL, "This path answers GET.");
    fine = fine && read_after(request->query, &after, &failure);
    struct api_stream *stream = fine ? find_stream(visit, name) : NULL;
    if (fine &&
        ((stream == NULL && has_client(visit, name)) || (stream != NULL && stream->asked))) {
        fine = api_fail(&failure, API_CODE_STREAM_IN_USE, NULL,
                        "This response is being sent to another client.");
        failure.retry_after_ms = RETRY_MS;
    } else if (fine && stream == NULL) {
        fine = api_fail(&failure, API_CODE_STREAM_NOT_FOUND, NULL,
                        "No response with this id can be continued for this key: only streams that "
                        "a controller left unfinished when it died can, for a while.");
    }
    if (!fine) {
        api_answer_failure(visit, &failure);
    } else if (stream->state == STREAM_STATE_WAITING) {
        stream->asked = true;
        stream->asking = *visit;
        stream->after = after;
    } else {
        hand_over(stream, visit, after);
    }
}
