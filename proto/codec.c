// SPDX-License-Identifier: Apache-2.0
// Header frames, plans and results.
#include "proto/codec.h"

#include "common/crc32c.h"
#include "common/invariant.h"
#include "common/wire.h"
#include "proto/codec_internal.h"
#include "proto/step.pb-c.h"
#include <string.h>

// ---- header frame ------------------------------------------------------------------------------

enum status codec_header_decode(const uint8_t *frame, size_t frame_bytes,
                                struct message_header *out, const uint8_t **body,
                                struct error *err) {
    if (frame_bytes < MESSAGE_HEADER_BYTES) {
        return error_set(err, STATUS_CORRUPT, "message of %zu bytes is shorter than its header",
                         frame_bytes);
    }
    *out = (struct message_header){
        .version = (uint32_t)wire_get_le(frame, 4),
        .kind = (uint32_t)wire_get_le(frame + 4, 4),
        .group = wire_get_le(frame + 8, 8),
        .epoch = wire_get_le(frame + 16, 8),
        .seq = wire_get_le(frame + 24, 8),
        .body_bytes = (uint32_t)wire_get_le(frame + 32, 4),
        .body_crc32c = (uint32_t)wire_get_le(frame + 36, 4),
    };
    if (out->version != MESSAGE_VERSION) {
        return error_set(err, STATUS_VERSION, "message has protocol version %u, this is %d",
                         out->version, MESSAGE_VERSION);
    }
    if (out->kind == 0 || out->kind >= MESSAGE_KIND_COUNT) {
        return error_set(err, STATUS_CORRUPT, "message has unknown kind %u", out->kind);
    }
    *body = frame + MESSAGE_HEADER_BYTES;
    if (out->body_bytes != frame_bytes - MESSAGE_HEADER_BYTES) {
        return error_set(err, STATUS_CORRUPT, "message says %u body bytes, %zu follow",
                         out->body_bytes, frame_bytes - MESSAGE_HEADER_BYTES);
    }
    if (crc32c(*body, out->body_bytes) != out->body_crc32c) {
        return error_set(err, STATUS_CORRUPT, "message body fails its checksum");
    }
    return STATUS_OK;
}

// Appends header and packed body.
enum status codec_frame_encode(enum message_kind kind, const struct message_address *address,
                               const ProtobufCMessage *message, struct buf *out,
                               struct error *err) {
    size_t body_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *at = buf_extend(out, MESSAGE_HEADER_BYTES + body_bytes);
    if (at == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "a message of %zu bytes exceeds the limit of %zu",
                         body_bytes, out->bytes_max);
    }
    uint8_t *body = at + MESSAGE_HEADER_BYTES;
    size_t packed = protobuf_c_message_pack(message, body);
    INVARIANT(packed == body_bytes);
    wire_put_le(at, MESSAGE_VERSION, 4);
    wire_put_le(at + 4, (uint64_t)kind, 4);
    wire_put_le(at + 8, address->group, 8);
    wire_put_le(at + 16, address->epoch, 8);
    wire_put_le(at + 24, address->seq, 8);
    wire_put_le(at + 32, body_bytes, 4);
    wire_put_le(at + 36, crc32c(body, body_bytes), 4);
    return STATUS_OK;
}

// ---- arena as protobuf-c's allocator -----------------------------------------------------------

static void *arena_allocate(void *arena, size_t bytes) {
    return arena_alloc_raw(arena, bytes);
}

static void arena_ignore_free(void *arena, void *memory) {
    (void)arena;
    (void)memory;
}

ProtobufCMessage *codec_unpack(const ProtobufCMessageDescriptor *descriptor,
                               const struct message_header *header, const uint8_t *body,
                               struct arena *arena) {
    ProtobufCAllocator allocator = {arena_allocate, arena_ignore_free, arena};
    return protobuf_c_message_unpack(descriptor, &allocator, header->body_bytes, body);
}

enum status codec_no_memory(struct error *err) {
    return error_set(err, STATUS_EXHAUSTED, "no room to encode or decode a message");
}

enum status codec_broken(struct error *err, const char *what) {
    return error_set(err, STATUS_CORRUPT, "message body is broken: %s", what);
}

// An array of `count` pointers to structs of `bytes` each, contiguous, from the arena.
void *codec_pointer_array(struct arena *arena, size_t count, size_t bytes, void **items) {
    char *memory = arena_array(arena, count, bytes);
    void **pointers = arena_array(arena, count, sizeof *pointers);
    if (memory == NULL || pointers == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        pointers[i] = memory + i * bytes;
    }
    *items = memory;
    return pointers;
}

// protobuf-c's structs hold mutable pointers even where packing only reads them.
void *codec_mutable(const void *pointer) {
    union {
        const void *from;
        void *to;
    } cast = {.from = pointer};
    return cast.to;
}

// ---- plans -------------------------------------------------------------------------------------

static bool sampling_encode(const struct sampling_params *in, struct arena *arena,
                            Tare__Sampling *out) {
    tare__sampling__init(out);
    out->temperature = in->temperature;
    out->top_p = in->top_p;
    out->min_p = in->min_p;
    out->top_k = in->top_k;
    out->repetition_penalty = in->repetition_penalty;
    out->presence_penalty = in->presence_penalty;
    out->frequency_penalty = in->frequency_penalty;
    out->seed = in->seed;
    out->stream = in->stream;
    out->want_logprobs = in->want_logprobs;
    out->want_prompt_logprobs = in->want_prompt_logprobs;
    out->top_logprobs = in->top_logprobs;
    out->min_tokens = in->min_tokens;
    out->n_stop_tokens = in->stop_token_count;
    out->stop_tokens = codec_mutable(in->stop_tokens);
    out->n_bias_tokens = in->bias_count;
    out->n_bias_values = in->bias_count;
    out->bias_tokens = arena_array(arena, in->bias_count, sizeof *out->bias_tokens);
    out->bias_values = arena_array(arena, in->bias_count, sizeof *out->bias_values);
    if (out->bias_tokens == NULL || out->bias_values == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < in->bias_count; i++) {
        out->bias_tokens[i] = in->bias[i].token;
        out->bias_values[i] = in->bias[i].bias;
    }
    return true;
}

static enum status sampling_decode(const Tare__Sampling *in, struct arena *arena,
                                   struct sampling_params *out, struct error *err) {
    if (in == NULL) {
        return codec_broken(err, "an admission without sampling");
    }
    if (in->n_bias_tokens != in->n_bias_values || in->n_bias_tokens > BOUND_LOGIT_BIAS) {
        return codec_broken(err, "logit bias arrays");
    }
    if (in->n_stop_tokens > BOUND_STOP_TOKENS) {
        return codec_broken(err, "too many stop tokens");
    }
    struct token_bias *bias = arena_array(arena, in->n_bias_tokens, sizeof *bias);
    if (bias == NULL) {
        return codec_no_memory(err);
    }
    for (size_t i = 0; i < in->n_bias_tokens; i++) {
        bias[i].token = in->bias_tokens[i];
        bias[i].bias = in->bias_values[i];
    }
    *out = (struct sampling_params){
        .temperature = in->temperature,
        .top_p = in->top_p,
        .min_p = in->min_p,
        .top_k = in->top_k,
        .repetition_penalty = in->repetition_penalty,
        .presence_penalty = in->presence_penalty,
        .frequency_penalty = in->frequency_penalty,
        .seed = in->seed,
        .stream = in->stream,
        .want_logprobs = in->want_logprobs,
        .want_prompt_logprobs = in->want_prompt_logprobs,
        .top_logprobs = in->top_logprobs,
        .min_tokens = in->min_tokens,
        .stop_token_count = (uint32_t)in->n_stop_tokens,
        .bias_count = (uint32_t)in->n_bias_tokens,
        .bias = bias,
    };
    if (in->n_stop_tokens > 0) {
        memcpy(out->stop_tokens, in->stop_tokens, in->n_stop_tokens * sizeof out->stop_tokens[0]);
    }
    return STATUS_OK;
}

static bool admits_encode(const struct plan *plan, struct arena *arena, Tare__StepPlan *out) {
    void *items = NULL;
    out->n_admit = plan->admit_count;
    out->admit = codec_pointer_array(arena, plan->admit_count, sizeof **out->admit, &items);
    Tare__Sampling *sampling = arena_array(arena, plan->admit_count, sizeof *sampling);
    if (out->admit == NULL || sampling == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *in = &plan->admits[i];
        Tare__Admit *admit = out->admit[i];
        tare__admit__init(admit);
        admit->slot = in->ref.slot;
        admit->gen = in->ref.gen;
        admit->prompt_tokens = in->prompt_tokens;
        admit->len_max = in->len_max;
        admit->n_blocks = in->block_count;
        admit->blocks = codec_mutable(in->blocks);
        admit->cached_tokens = in->cached_tokens;
        admit->n_history = in->history_count;
        admit->history = codec_mutable(in->history);
        admit->sampling = &sampling[i];
        if (!sampling_encode(&in->sampling, arena, &sampling[i])) {
            return false;
        }
    }
    return true;
}

static bool changes_encode(const struct plan *plan, struct arena *arena, Tare__StepPlan *out) {
    void *items = NULL;
    out->n_update = plan->update_count;
    out->update = codec_pointer_array(arena, plan->update_count, sizeof **out->update, &items);
    out->n_retire = plan->retire_count;
    out->retire = codec_pointer_array(arena, plan->retire_count, sizeof **out->retire, &items);
    out->n_prefill = plan->prefill_count;
    out->prefill = codec_pointer_array(arena, plan->prefill_count, sizeof **out->prefill, &items);
    if (out->update == NULL || out->retire == NULL || out->prefill == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *in = &plan->updates[i];
        Tare__SlotUpdate *update = out->update[i];
        tare__slot_update__init(update);
        update->slot = in->ref.slot;
        update->gen = in->ref.gen;
        update->n_append_blocks = in->append_count;
        update->append_blocks = codec_mutable(in->append_blocks);
        update->pause = in->pause;
        update->resume = in->resume;
    }
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        tare__retire__init(out->retire[i]);
        out->retire[i]->slot = plan->retires[i].ref.slot;
        out->retire[i]->gen = plan->retires[i].ref.gen;
    }
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *in = &plan->prefills[i];
        Tare__Prefill *prefill = out->prefill[i];
        tare__prefill__init(prefill);
        prefill->slot = in->ref.slot;
        prefill->gen = in->ref.gen;
        prefill->start_pos = in->start_pos;
        prefill->n_tokens = in->token_count;
        prefill->tokens = codec_mutable(in->tokens);
        prefill->last = in->last;
        prefill->next_token = in->next_token;
    }
    return true;
}

static bool moves_encode(const struct plan *plan, struct arena *arena, Tare__StepPlan *out) {
    void *items = NULL;
    out->n_move = plan->move_count;
    out->move = codec_pointer_array(arena, plan->move_count, sizeof **out->move, &items);
    if (out->move == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *in = &plan->moves[i];
        tare__move__init(out->move[i]);
        out->move[i]->slot = in->ref.slot;
        out->move[i]->gen = in->ref.gen;
        out->move[i]->index = in->index;
        out->move[i]->block = in->block;
    }
    return true;
}

enum status codec_plan_encode(const struct plan *plan, struct arena *scratch, struct buf *out,
                              struct error *err) {
    Tare__StepPlan message = TARE__STEP_PLAN__INIT;
    message.decode_rows = plan->decode_rows;
    message.kv_blocks = plan->kv_blocks;
    message.undone = plan->undone;
    if (!admits_encode(plan, scratch, &message) || !changes_encode(plan, scratch, &message) ||
        !moves_encode(plan, scratch, &message)) {
        return codec_no_memory(err);
    }
    struct message_address address = {plan->group, plan->epoch, plan->seq};
    return codec_frame_encode(MESSAGE_KIND_PLAN, &address, &message.base, out, err);
}

static enum status admits_decode(const Tare__StepPlan *in, struct arena *arena, struct plan *out,
                                 struct error *err) {
    struct plan_admit *admits = arena_array(arena, in->n_admit, sizeof *admits);
    if (admits == NULL) {
        return codec_no_memory(err);
    }
    for (size_t i = 0; i < in->n_admit; i++) {
        const Tare__Admit *admit = in->admit[i];
        if (admit->n_blocks > BOUND_SEQ_TOKENS || admit->n_history > BOUND_SEQ_TOKENS) {
            return codec_broken(err, "too many blocks in an admission");
        }
        admits[i] = (struct plan_admit){
            .ref = {admit->slot, admit->gen},
            .prompt_tokens = admit->prompt_tokens,
            .len_max = admit->len_max,
            .block_count = (uint32_t)admit->n_blocks,
            .blocks = admit->blocks,
            .cached_tokens = admit->cached_tokens,
            .history_count = (uint32_t)admit->n_history,
            .history = admit->history,
        };
        TRY(sampling_decode(admit->sampling, arena, &admits[i].sampling, err));
    }
    out->admits = admits;
    out->admit_count = (uint32_t)in->n_admit;
    return STATUS_OK;
}

static enum status changes_decode(const Tare__StepPlan *in, struct arena *arena, struct plan *out,
                                  struct error *err) {
    struct plan_update *updates = arena_array(arena, in->n_update, sizeof *updates);
    struct plan_retire *retires = arena_array(arena, in->n_retire, sizeof *retires);
    struct plan_prefill *prefills = arena_array(arena, in->n_prefill, sizeof *prefills);
    if (updates == NULL || retires == NULL || prefills == NULL) {
        return codec_no_memory(err);
    }
    for (size_t i = 0; i < in->n_update; i++) {
        const Tare__SlotUpdate *update = in->update[i];
        if (update->n_append_blocks > BOUND_SEQ_TOKENS) {
            return codec_broken(err, "too many blocks in an update");
        }
        updates[i] = (struct plan_update){
            .ref = {update->slot, update->gen},
            .append_count = (uint32_t)update->n_append_blocks,
            .append_blocks = update->append_blocks,
            .pause = update->pause,
            .resume = update->resume,
        };
    }
    for (size_t i = 0; i < in->n_retire; i++) {
        retires[i].ref = (struct slot_ref){in->retire[i]->slot, in->retire[i]->gen};
    }
    for (size_t i = 0; i < in->n_prefill; i++) {
        const Tare__Prefill *prefill = in->prefill[i];
        if (prefill->n_tokens > BOUND_STEP_TOKENS) {
            return codec_broken(err, "too many tokens in a prompt chunk");
        }
        prefills[i] = (struct plan_prefill){
            .ref = {prefill->slot, prefill->gen},
            .start_pos = prefill->start_pos,
            .token_count = (uint32_t)prefill->n_tokens,
            .tokens = prefill->tokens,
            .next_token = prefill->next_token,
            .last = prefill->last,
        };
    }
    out->updates = updates;
    out->update_count = (uint32_t)in->n_update;
    out->retires = retires;
    out->retire_count = (uint32_t)in->n_retire;
    out->prefills = prefills;
    out->prefill_count = (uint32_t)in->n_prefill;
    return STATUS_OK;
}

static enum status moves_decode(const Tare__StepPlan *in, struct arena *arena, struct plan *out,
                                struct error *err) {
    struct plan_move *moves = arena_array(arena, in->n_move, sizeof *moves);
    if (moves == NULL) {
        return codec_no_memory(err);
    }
    for (size_t i = 0; i < in->n_move; i++) {
        const Tare__Move *move = in->move[i];
        moves[i] = (struct plan_move){{move->slot, move->gen}, move->index, move->block};
    }
    out->moves = moves;
    out->move_count = (uint32_t)in->n_move;
    return STATUS_OK;
}

enum status codec_plan_decode(const struct message_header *header, const uint8_t *body,
                              struct arena *arena, struct plan *out, struct error *err) {
    INVARIANT(header->kind == MESSAGE_KIND_PLAN);
    const Tare__StepPlan *in =
        (const Tare__StepPlan *)codec_unpack(&tare__step_plan__descriptor, header, body, arena);
    if (in == NULL) {
        return codec_broken(err, "not a step plan");
    }
    if (in->n_admit > BOUND_SEQS || in->n_update > BOUND_SEQS || in->n_retire > BOUND_SEQS ||
        in->n_prefill > BOUND_SEQS) {
        return codec_broken(err, "a list is longer than the number of slots");
    }
    if (in->n_move > BOUND_KV_MOVES) {
        return codec_broken(err, "too many moves");
    }
    *out = (struct plan){
        .group = header->group,
        .epoch = header->epoch,
        .seq = header->seq,
        .decode_rows = in->decode_rows,
        .kv_blocks = in->kv_blocks,
        .undone = in->undone,
    };
    TRY(moves_decode(in, arena, out, err));
    TRY(admits_decode(in, arena, out, err));
    return changes_decode(in, arena, out, err);
}

// ---- results -----------------------------------------------------------------------------------

enum { ROW_FLAG_PROMPT = 1, ROW_FLAG_LOGPROB = 2 };

// The parallel arrays of a result under construction.
struct row_arrays {
    uint32_t *slots, *gens, *positions, *ranks;
    int32_t *tokens, *top_tokens;
    uint8_t *flags, *top_counts;
    float *logprobs, *top_logprobs;
};

static bool row_arrays_alloc(struct arena *arena, size_t rows, size_t tops,
                             struct row_arrays *out) {
    out->slots = arena_array_raw(arena, rows, sizeof *out->slots);
    out->gens = arena_array_raw(arena, rows, sizeof *out->gens);
    out->positions = arena_array_raw(arena, rows, sizeof *out->positions);
    out->ranks = arena_array_raw(arena, rows, sizeof *out->ranks);
    out->tokens = arena_array_raw(arena, rows, sizeof *out->tokens);
    out->flags = arena_array_raw(arena, rows, sizeof *out->flags);
    out->top_counts = arena_array_raw(arena, rows, sizeof *out->top_counts);
    out->logprobs = arena_array_raw(arena, rows, sizeof *out->logprobs);
    out->top_tokens = arena_array_raw(arena, tops, sizeof *out->top_tokens);
    out->top_logprobs = arena_array_raw(arena, tops, sizeof *out->top_logprobs);
    return out->slots != NULL && out->gens != NULL && out->positions != NULL &&
           out->ranks != NULL && out->tokens != NULL && out->flags != NULL &&
           out->top_counts != NULL && out->logprobs != NULL && out->top_tokens != NULL &&
           out->top_logprobs != NULL;
}

static void row_arrays_fill(const struct step_result *result, struct row_arrays *arrays) {
    size_t top = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        INVARIANT(row->top_count <= BOUND_LOGPROBS);
        arrays->slots[i] = row->ref.slot;
        arrays->gens[i] = row->ref.gen;
        arrays->positions[i] = row->position;
        arrays->ranks[i] = row->rank;
        arrays->tokens[i] = row->token;
        arrays->flags[i] = (uint8_t)((row->is_prompt ? ROW_FLAG_PROMPT : 0) |
                                     (row->has_logprob ? ROW_FLAG_LOGPROB : 0));
        arrays->top_counts[i] = (uint8_t)row->top_count;
        arrays->logprobs[i] = row->logprob;
        for (uint32_t k = 0; k < row->top_count; k++, top++) {
            arrays->top_tokens[top] = row->top_tokens[k];
            arrays->top_logprobs[top] = row->top_logprobs[k];
        }
    }
}

enum status codec_result_encode(const struct step_result *result, struct arena *scratch,
                                struct buf *out, struct error *err) {
    size_t rows = result->row_count;
    size_t tops = 0;
    for (size_t i = 0; i < rows; i++) {
        tops += result->rows[i].top_count;
    }
    struct row_arrays arrays;
    if (!row_arrays_alloc(scratch, rows, tops, &arrays)) {
        return codec_no_memory(err);
    }
    row_arrays_fill(result, &arrays);
    Tare__StepResult message = TARE__STEP_RESULT__INIT;
    message.status = (uint32_t)result->status;
    message.applied_seq = result->applied_seq;
    message.step_us = result->step_us;
    message.digest = result->digest;
    message.n_slots = rows;
    message.slots = arrays.slots;
    message.n_gens = rows;
    message.gens = arrays.gens;
    message.n_positions = rows;
    message.positions = arrays.positions;
    message.n_tokens = rows;
    message.tokens = arrays.tokens;
    message.flags = (ProtobufCBinaryData){rows, arrays.flags};
    message.n_logprobs = rows;
    message.logprobs = arrays.logprobs;
    message.n_ranks = rows;
    message.ranks = arrays.ranks;
    message.top_counts = (ProtobufCBinaryData){rows, arrays.top_counts};
    message.n_top_tokens = tops;
    message.top_tokens = arrays.top_tokens;
    message.n_top_logprobs = tops;
    message.top_logprobs = arrays.top_logprobs;
    message.message = codec_mutable(result->message == NULL ? "" : result->message);
    struct message_address address = {result->group, result->epoch, result->seq};
    return codec_frame_encode(MESSAGE_KIND_RESULT, &address, &message.base, out, err);
}

// Rows of arrays that are as long as each other.
static enum status read_rows(const Tare__StepResult *in, struct result_row *out,
                             struct error *err) {
    // Read through pointers that the writes cannot be taken to change.
    const uint32_t *slots = in->slots, *gens = in->gens, *positions = in->positions;
    const uint32_t *ranks = in->ranks;
    const int32_t *tokens = in->tokens;
    const float *logprobs = in->logprobs;
    const uint8_t *flags = in->flags.data, *top_counts = in->top_counts.data;
    size_t rows = in->n_slots, top = 0;
    for (size_t i = 0; i < rows; i++) {
        struct result_row *row = &out[i];
        row->ref = (struct slot_ref){slots[i], gens[i]};
        row->position = positions[i];
        row->token = tokens[i];
        row->logprob = logprobs[i];
        row->rank = ranks[i];
        row->is_prompt = (flags[i] & ROW_FLAG_PROMPT) != 0;
        row->has_logprob = (flags[i] & ROW_FLAG_LOGPROB) != 0;
        row->top_count = top_counts[i];
        row->top_tokens = NULL;
        row->top_logprobs = NULL;
        if (row->top_count > 0) {
            if (row->top_count > in->n_top_tokens - top) {
                return codec_broken(err, "alternatives run past their array");
            }
            row->top_tokens = in->top_tokens + top;
            row->top_logprobs = in->top_logprobs + top;
            top += row->top_count;
        }
    }
    return STATUS_OK;
}

enum status codec_result_decode(const struct message_header *header, const uint8_t *body,
                                struct arena *arena, struct step_result *out, struct error *err) {
    INVARIANT(header->kind == MESSAGE_KIND_RESULT);
    const Tare__StepResult *in =
        (const Tare__StepResult *)codec_unpack(&tare__step_result__descriptor, header, body, arena);
    if (in == NULL) {
        return codec_broken(err, "not a step result");
    }
    size_t rows = in->n_slots;
    bool same = in->n_gens == rows && in->n_positions == rows && in->n_tokens == rows &&
                in->flags.len == rows && in->n_logprobs == rows && in->n_ranks == rows &&
                in->top_counts.len == rows && in->n_top_tokens == in->n_top_logprobs;
    if (!same || rows > BOUND_RESULT_ROWS) {
        return codec_broken(err, "result arrays of different lengths");
    }
    if (in->status > RESULT_STATUS_FAULT) {
        return codec_broken(err, "unknown result status");
    }
    struct result_row *decoded = arena_array_raw(arena, rows, sizeof *decoded);
    if (decoded == NULL) {
        return codec_no_memory(err);
    }
    TRY(read_rows(in, decoded, err));
    *out = (struct step_result){
        .group = header->group,
        .epoch = header->epoch,
        .seq = header->seq,
        .status = (enum result_status)in->status,
        .applied_seq = in->applied_seq,
        .step_us = in->step_us,
        .row_count = (uint32_t)rows,
        .rows = decoded,
        .message = in->message,
        .digest = in->digest,
    };
    return STATUS_OK;
}
