// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_journal.h"

#include "common/hash.h"
#include "common/wire.h"
#include "controller/http/api_reading.h"
#include <string.h>

enum { NOTED_BYTES_MAX = 16 * 1024 * 1024 };

// ---- both directions ---------------------------------------------------------------------------

// Numbers lie as they do in memory: a journal is read on the machine that wrote it.

static void wire_span(struct wire *w, struct http_span *span) {
    const uint8_t *bytes = (const uint8_t *)span->text;
    uint32_t byte_count = (uint32_t)span->byte_count;
    wire_run(w, &bytes, &byte_count);
    *span = (struct http_span){(const char *)bytes, byte_count};
}

static void wire_begin(struct wire *w, struct api_begin *begin) {
    uint32_t kind = (uint32_t)begin->kind;
    uint32_t class_ = (uint32_t)begin->class_;
    wire_u8(w, &kind);
    wire_u8(w, &class_);
    w->broken = w->broken || kind > API_CALL_KIND_CHAT || class_ >= REQUEST_CLASS_COUNT;
    begin->kind = (enum api_call_kind)(w->broken ? 0 : kind);
    begin->class_ = (enum request_class)(w->broken ? 0 : class_);
    WIRE(w, begin->salt);
    WIRE(w, begin->seed);
    WIRE(w, begin->created_unix_s);
    WIRE(w, begin->read_unix_s);
    WIRE(w, begin->prompt_digest);
    WIRE(w, begin->choice_count);
    wire_span(w, &begin->request_id);
    wire_span(w, &begin->body_id);
    wire_span(w, &begin->chunk_head);
    wire_span(w, &begin->body);
}

static void wire_token(struct wire *w, struct api_item *item) {
    struct result_row *row = &item->row;
    WIRE(w, row->token);
    wire_bool(w, &row->is_prompt);
    wire_bool(w, &item->is_stop_token);
    wire_bool(w, &row->has_logprob);
    if (row->is_prompt) {
        WIRE(w, row->position);
    }
    if (!row->has_logprob) {
        return;
    }
    WIRE(w, row->logprob);
    wire_u8(w, &row->top_count);
    if (row->top_count > BOUND_LOGPROBS) {
        w->broken = true;
        row->top_count = 0;
    }
    wire_bytes(w, item->top_tokens, row->top_count * sizeof item->top_tokens[0]);
    wire_bytes(w, item->top_logprobs, row->top_count * sizeof item->top_logprobs[0]);
}

static void wire_item(struct wire *w, struct api_item *item) {
    uint32_t kind = (uint32_t)item->kind;
    uint32_t reason = (uint32_t)item->reason;
    wire_u8(w, &kind);
    WIRE(w, item->choice);
    switch (kind) {
    case API_ITEM_KIND_TOKEN:
        wire_token(w, item);
        break;
    case API_ITEM_KIND_FINISH:
        wire_u8(w, &reason);
        w->broken = w->broken || (reason != FINISH_REASON_STOP && reason != FINISH_REASON_LENGTH);
        item->reason = reason == FINISH_REASON_STOP ? FINISH_REASON_STOP : FINISH_REASON_LENGTH;
        break;
    case API_ITEM_KIND_CACHED:
        WIRE(w, item->cached_tokens);
        break;
    default:
        w->broken = true;
        return;
    }
    item->kind = (enum api_item_kind)kind;
}

// ---- decoding ----------------------------------------------------------------------------------

bool api_begin_decode(const uint8_t *bytes, size_t byte_count, struct api_begin *out) {
    struct wire w = wire_reader(bytes, byte_count);
    *out = (struct api_begin){0};
    wire_begin(&w, out);
    out->output_max = w.at;
    return !w.broken && out->choice_count > 0 && out->choice_count <= BOUND_SEQUENCES_PER_REQUEST &&
           wire_left(&w) == (size_t)out->choice_count * sizeof(uint32_t) &&
           out->request_id.byte_count < API_REQUEST_ID_BYTES &&
           out->body_id.byte_count < API_BODY_ID_BYTES &&
           out->chunk_head.byte_count <= BOUND_HTTP_HEAD_BYTES;
}

uint32_t api_begin_output_max(const struct api_begin *begin, uint32_t choice) {
    uint32_t value = 0;
    memcpy(&value, begin->output_max + choice * sizeof value, sizeof value);
    return value;
}

bool api_item_next(const uint8_t *bytes, size_t byte_count, size_t *at, struct api_item *out) {
    if (*at >= byte_count) {
        return false;
    }
    struct wire w = wire_reader(bytes + *at, byte_count - *at);
    *out = (struct api_item){0};
    wire_item(&w, out);
    out->row.top_tokens = out->top_tokens;
    out->row.top_logprobs = out->top_logprobs;
    *at = (size_t)(w.at - bytes);
    return !w.broken;
}

uint64_t api_prompt_digest(const struct api_reading *reading) {
    uint64_t digest =
        hash_bytes(reading->tokens.ids, reading->tokens.count * sizeof reading->tokens.ids[0]);
    for (uint32_t i = 0; i < reading->prompt_count; i++) {
        digest = hash_u64(digest ^ reading->prompts[i].token_end);
    }
    return digest;
}

// ---- from a call -------------------------------------------------------------------------------

void api_journal_begin(struct api_call *call, const struct api_reading *reading) {
    const struct api_journal *journal = &call->visit.api->config.journal;
    if (journal->begin == NULL || !call->stream) {
        return;
    }
    struct api_begin begin = {
        .kind = call->kind,
        .class_ = call->class_,
        .salt = call->visit.salt,
        .seed = call->sampling.seed,
        .created_unix_s = call->created_unix_s,
        .read_unix_s = reading->now_unix_s,
        .prompt_digest = api_prompt_digest(reading),
        .choice_count = call->choice_count,
        .request_id = {call->visit.request_id, strlen(call->visit.request_id)},
        .body_id = {call->body_id, strlen(call->body_id)},
        .chunk_head = {(const char *)call->chunk_head.data, call->chunk_head.bytes_used},
        .body = {reading->body, reading->body_bytes},
    };
    struct buf bytes;
    buf_init(&bytes, 2u * BOUND_HTTP_BODY_BYTES);
    struct wire w = {.out = &bytes};
    wire_begin(&w, &begin);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        WIRE(&w, call->choices[i].output_max);
    }
    if (buf_status(&bytes) == STATUS_OK) {
        api_journal_go_on(call, journal->begin(journal->ctx, bytes.data, bytes.bytes_used));
    }
    buf_deinit(&bytes);
}

void api_journal_go_on(struct api_call *call, uint64_t entry) {
    call->journal_entry = entry;
    buf_init(&call->noted, NOTED_BYTES_MAX);
}

void api_journal_note(struct api_choice *choice, struct api_item *item) {
    struct api_call *call = choice->call;
    if (call->journal_entry != 0) {
        struct wire w = {.out = &call->noted};
        item->choice = choice->index;
        wire_item(&w, item);
    }
}

void api_journal_note_token(struct api_choice *choice, const struct result_row *row,
                            bool is_stop_token) {
    if (choice->call->journal_entry == 0) {
        return;
    }
    struct api_item item;    // only what is written is set: this runs for every token
    item.kind = API_ITEM_KIND_TOKEN;
    item.row = *row;
    item.is_stop_token = is_stop_token;
    item.reason = FINISH_REASON_STOP;
    if (row->has_logprob && row->top_count > 0) {
        memcpy(item.top_tokens, row->top_tokens, row->top_count * sizeof item.top_tokens[0]);
        memcpy(item.top_logprobs, row->top_logprobs, row->top_count * sizeof item.top_logprobs[0]);
    }
    api_journal_note(choice, &item);
}

void api_journal_step(struct api_call *call) {
    const struct api_journal *journal = &call->visit.api->config.journal;
    if (call->journal_entry == 0 || call->noted.bytes_used == 0) {
        return;
    }
    if (buf_status(&call->noted) != STATUS_OK) {
        api_journal_end(call);    // an entry with a hole must not be continued
    } else if (!journal->step(journal->ctx, call->journal_entry, call->noted.data,
                              call->noted.bytes_used)) {
        call->journal_entry = 0;
    }
    buf_reset(&call->noted);
}

void api_journal_end(struct api_call *call) {
    const struct api_journal *journal = &call->visit.api->config.journal;
    if (call->journal_entry != 0) {
        journal->end(journal->ctx, call->journal_entry);
        call->journal_entry = 0;
    }
}
