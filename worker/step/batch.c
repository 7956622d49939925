// SPDX-License-Identifier: Apache-2.0
#include "worker/step/batch.h"

#include "common/hash.h"
#include "common/integers.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "worker/step/digest.h"
#include <string.h>

enum slot_state { SLOT_FREE, SLOT_PREFILLING, SLOT_DECODING, SLOT_DONE };

struct slot {
    enum slot_state state;
    bool paused;
    uint32_t gen;
    uint32_t len;    // positions whose KV is computed
    uint32_t prompt_tokens;
    uint32_t len_max;
    uint32_t block_count;
    int32_t last_token;                 // decoding: the token at position len, not yet computed
    uint64_t blocks_digest;             // sum over its blocks, kept as they change
    uint64_t sampling_digest;           // since admission
    struct sampling_params sampling;    // bias points into `bias`
    struct op_token_bias *bias;         // [BOUND_LOGIT_BIAS], allocated with the table
    // Scratch of plan judgement: the state as it will be after the plan.
    const struct plan_admit *admit;    // of this plan, or NULL
    enum slot_state next_state;
    uint32_t next_len;
    uint32_t next_blocks;
    uint32_t next_gen;
    bool next_paused;
    bool touched;    // has a chunk in this plan
};

// What a logit row belongs to, until the results are written.
struct logit_row {
    uint32_t slot;
    uint32_t position;    // of the token that is drawn or scored
    bool is_prompt;
};

struct batch {
    struct plan_limits limits;
    uint8_t *kv_base;
    int32_t *history;         // [seqs, seq_tokens]
    struct slot *slots;       // [seqs]
    uint32_t *slot_blocks;    // [seqs, blocks_per_seq]
    // Step arrays, in the memory given at create.
    struct op_step step;
    int32_t *token;                       // [tokens]
    uint32_t *position;                   // [tokens]
    uint32_t *row_seq;                    // [tokens]
    uint32_t *seq_row;                    // [seqs + 1]
    uint32_t *block_table;                // [seqs, blocks_per_seq]
    uint32_t *logit_index;                // [tokens]
    struct op_sample_row *sample_rows;    // [tokens]
    uint32_t *copy_from, *copy_to;        // [BOUND_KV_COPIES]
    uint32_t copy_count;
    struct logit_row *logit_rows;    // [tokens]
    struct step_size size;           // of the step being judged or laid out
};

// ---- memory ------------------------------------------------------------------------------------

static size_t array_bytes(size_t count, size_t element_bytes) {
    return bytes_to_lines(count * element_bytes);
}

size_t batch_step_bytes(const struct plan_limits *limits) {
    size_t tokens = limits->envelope.tokens;
    size_t seqs = limits->envelope.seqs;
    size_t table = seqs * limits->envelope.blocks_per_seq;
    return array_bytes(tokens, sizeof(int32_t)) + 3 * array_bytes(tokens, sizeof(uint32_t)) +
           array_bytes(seqs + 1, sizeof(uint32_t)) + array_bytes(table, sizeof(uint32_t)) +
           array_bytes(tokens, sizeof(struct op_sample_row)) +
           2 * array_bytes(BOUND_KV_COPIES, sizeof(uint32_t));
}

static void *carve(uint8_t **at, size_t count, size_t element_bytes) {
    void *memory = *at;
    *at += array_bytes(count, element_bytes);
    return memory;
}

enum status batch_create(const struct batch_options *options, void *step_memory, struct batch **out,
                         struct error *err) {
    const struct envelope *e = &options->limits.envelope;
    struct batch *batch = memory_zalloc(sizeof *batch);
    if (batch == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a slot table");
    }
    batch->limits = options->limits;
    batch->kv_base = options->kv_base;
    batch->history = options->history;
    uint8_t *at = step_memory;
    batch->token = carve(&at, e->tokens, sizeof(int32_t));
    batch->position = carve(&at, e->tokens, sizeof(uint32_t));
    batch->row_seq = carve(&at, e->tokens, sizeof(uint32_t));
    batch->logit_index = carve(&at, e->tokens, sizeof(uint32_t));
    batch->seq_row = carve(&at, (size_t)e->seqs + 1, sizeof(uint32_t));
    batch->block_table = carve(&at, (size_t)e->seqs * e->blocks_per_seq, sizeof(uint32_t));
    batch->sample_rows = carve(&at, e->tokens, sizeof(struct op_sample_row));
    batch->copy_from = carve(&at, BOUND_KV_COPIES, sizeof(uint32_t));
    batch->copy_to = carve(&at, BOUND_KV_COPIES, sizeof(uint32_t));
    batch->slots = memory_array(e->seqs, sizeof *batch->slots);
    batch->slot_blocks =
        memory_array((size_t)e->seqs * e->blocks_per_seq, sizeof *batch->slot_blocks);
    batch->logit_rows = memory_array(e->tokens, sizeof *batch->logit_rows);
    struct op_token_bias *bias = memory_array((size_t)e->seqs * BOUND_LOGIT_BIAS, sizeof *bias);
    if (batch->slots == NULL || batch->slot_blocks == NULL || batch->logit_rows == NULL ||
        bias == NULL) {
        memory_free(bias);
        batch_destroy(batch);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a table of %u slots", e->seqs);
    }
    for (uint32_t i = 0; i < e->seqs; i++) {
        batch->slots[i].bias = bias + (size_t)i * BOUND_LOGIT_BIAS;
    }
    batch->step = (struct op_step){
        .kv_base = batch->kv_base,
        .token = batch->token,
        .position = batch->position,
        .row_seq = batch->row_seq,
        .seq_row = batch->seq_row,
        .block_table = batch->block_table,
        .block_table_stride = e->blocks_per_seq,
    };
    *out = batch;
    return STATUS_OK;
}

void batch_destroy(struct batch *batch) {
    if (batch == NULL) {
        return;
    }
    if (batch->slots != NULL) {
        memory_free(batch->slots[0].bias);
    }
    memory_free(batch->slots);
    memory_free(batch->slot_blocks);
    memory_free(batch->logit_rows);
    memory_free(batch);
}

void batch_reset(struct batch *batch) {
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        batch->slots[i].state = SLOT_FREE;
        batch->slots[i].gen = 0;
    }
    batch->step.logit_count = 0;
    batch->step.row_count = 0;
}

static uint32_t *blocks_of(struct batch *batch, uint32_t slot) {
    return batch->slot_blocks + (size_t)slot * batch->limits.envelope.blocks_per_seq;
}

static int32_t *history_of(struct batch *batch, uint32_t slot) {
    return batch->history + (size_t)slot * batch->limits.envelope.seq_tokens;
}

// ---- judging a plan ----------------------------------------------------------------------------

static enum status wrong_slot(struct error *err, const char *what, struct slot_ref ref) {
    return error_set(err, STATUS_INVALID, "%s slot %u generation %u", what, ref.slot, ref.gen);
}

static struct slot *live_slot(struct batch *batch, struct slot_ref ref) {
    struct slot *slot = &batch->slots[ref.slot];
    return slot->next_state == SLOT_FREE || slot->next_gen != ref.gen ? NULL : slot;
}

static enum status judge_admits(struct batch *batch, const struct plan *plan, struct error *err) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *admit = &plan->admits[i];
        struct slot *slot = &batch->slots[admit->ref.slot];
        if (slot->next_state != SLOT_FREE) {
            return wrong_slot(err, "admission into a used", admit->ref);
        }
        slot->admit = admit;
        slot->next_state = SLOT_PREFILLING;
        slot->next_gen = admit->ref.gen;
        slot->next_len = admit->cached_tokens;
        slot->next_blocks = admit->block_count;
        slot->next_paused = false;
    }
    return STATUS_OK;
}

static enum status judge_updates(struct batch *batch, const struct plan *plan, struct error *err) {
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *update = &plan->updates[i];
        struct slot *slot = live_slot(batch, update->ref);
        if (slot == NULL) {
            return wrong_slot(err, "update of an unknown", update->ref);
        }
        if (update->append_count > batch->limits.envelope.blocks_per_seq - slot->next_blocks) {
            return wrong_slot(err, "too many blocks for", update->ref);
        }
        slot->next_blocks += update->append_count;
        slot->next_paused = update->pause || (slot->next_paused && !update->resume);
    }
    return STATUS_OK;
}

static enum status judge_prefills(struct batch *batch, const struct plan *plan, struct error *err) {
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        struct slot *slot = live_slot(batch, chunk->ref);
        if (slot == NULL || slot->next_state != SLOT_PREFILLING || slot->touched) {
            return wrong_slot(err, "prompt chunk for a wrong", chunk->ref);
        }
        if (chunk->start_pos != slot->next_len) {
            return error_set(err, STATUS_INVALID, "prompt chunk of slot %u starts at %u, not at %u",
                             chunk->ref.slot, chunk->start_pos, slot->next_len);
        }
        slot->touched = true;
        slot->next_len += chunk->token_count;
        if (chunk->last) {
            slot->next_state = SLOT_DECODING;
        }
    }
    return STATUS_OK;
}

// Rows that decode in this step: decoding before the plan, still alive, not paused.
static bool decodes(const struct slot *slot) {
    return slot->state == SLOT_DECODING && slot->next_state == SLOT_DECODING &&
           slot->admit == NULL && !slot->next_paused;
}

// Every position a slot computes in this step must lie in a block it holds.
static enum status judge_blocks(struct batch *batch, const struct plan *plan, struct error *err) {
    uint32_t decode_rows = 0;
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        struct slot *slot = &batch->slots[i];
        if (slot->next_state == SLOT_FREE) {
            continue;
        }
        uint64_t positions = slot->next_len;
        if (decodes(slot)) {
            positions++;
            decode_rows++;
        }
        if (positions > (uint64_t)slot->next_blocks * batch->limits.block_tokens) {
            return error_set(err, STATUS_INVALID,
                             "slot %u needs %llu positions and holds %u blocks", i,
                             (unsigned long long)positions, slot->next_blocks);
        }
    }
    if (decode_rows > plan->decode_rows) {
        return error_set(err, STATUS_INVALID, "%u rows decode; the plan says %u", decode_rows,
                         plan->decode_rows);
    }
    return STATUS_OK;
}

static uint32_t len_max_of(const struct slot *slot) {
    return slot->admit != NULL ? slot->admit->len_max : slot->len_max;
}

static const struct sampling_params *sampling_of(const struct slot *slot) {
    return slot->admit != NULL ? &slot->admit->sampling : &slot->sampling;
}

static enum status judge_lengths(struct batch *batch, const struct plan *plan, struct error *err) {
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        const struct slot *slot = &batch->slots[chunk->ref.slot];
        if (slot->next_len > len_max_of(slot)) {
            return error_set(err, STATUS_INVALID, "prompt of slot %u ends at %u, past its limit %u",
                             chunk->ref.slot, slot->next_len, len_max_of(slot));
        }
        bool scored = sampling_of(slot)->want_prompt_logprobs && !chunk->last;
        if (scored != (chunk->next_token >= 0)) {
            return error_set(err, STATUS_INVALID, "prompt chunk of slot %u %s the token after it",
                             chunk->ref.slot, scored ? "lacks" : "needs not");
        }
    }
    return STATUS_OK;
}

// The whole step against the envelope: decode rows and chunks, each with the context it attends to.
static enum status judge_size(struct batch *batch, const struct plan *plan, struct error *err) {
    batch->size = (struct step_size){0};
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        const struct slot *slot = &batch->slots[i];
        if (decodes(slot)) {
            struct step_share share =
                step_share_decode(slot->len + 1, slot->sampling.want_logprobs);
            step_size_add(&batch->size, &share);
        }
    }
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        const struct slot *slot = &batch->slots[chunk->ref.slot];
        const struct sampling_params *sampling = sampling_of(slot);
        struct step_chunk facts = {
            .start = chunk->start_pos,
            .count = chunk->token_count,
            .last = chunk->last,
            .prompt_tokens = slot->admit != NULL ? slot->admit->prompt_tokens : slot->prompt_tokens,
            .len_max = len_max_of(slot),
            .want_logprobs = sampling->want_logprobs,
            .want_prompt_logprobs = sampling->want_prompt_logprobs,
        };
        struct step_share share = step_share_chunk(&facts);
        step_size_add(&batch->size, &share);
    }
    return step_size_validate(&batch->size, &batch->limits.envelope, err);
}

// Moves name blocks that slots hold before the plan, and all go below all places that are left.
static enum status judge_moves(struct batch *batch, const struct plan *plan, struct error *err) {
    uint32_t from_min = UINT32_MAX;
    uint32_t to_max = 0;
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *move = &plan->moves[i];
        const struct slot *slot = live_slot(batch, move->ref);
        if (slot == NULL) {
            return wrong_slot(err, "move in an unknown", move->ref);
        }
        if (move->index >= slot->block_count) {
            return wrong_slot(err, "move of a block that is not of", move->ref);
        }
        uint32_t from = blocks_of(batch, move->ref.slot)[move->index];
        for (uint32_t k = 0; k < i; k++) {
            const struct plan_move *other = &plan->moves[k];
            uint32_t other_from = blocks_of(batch, other->ref.slot)[other->index];
            if ((other->block == move->block) != (other_from == from)) {
                return error_set(err, STATUS_INVALID, "block %u moves to %u, block %u to %u",
                                 other_from, other->block, from, move->block);
            }
        }
        from_min = from < from_min ? from : from_min;
        to_max = move->block > to_max ? move->block : to_max;
    }
    if (plan->move_count > 0 && to_max >= from_min) {
        return error_set(err, STATUS_INVALID, "a block moves to %u, not below %u", to_max,
                         from_min);
    }
    return STATUS_OK;
}

static bool is_moved(const struct plan *plan, uint32_t slot, uint32_t index) {
    for (uint32_t i = 0; i < plan->move_count; i++) {
        if (plan->moves[i].ref.slot == slot && plan->moves[i].index == index) {
            return true;
        }
    }
    return false;
}

static enum status judge_ids(const uint32_t *ids, uint32_t count, uint32_t end, struct error *err) {
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= end) {
            return error_set(err, STATUS_INVALID, "block %u lies above the pool's new end %u",
                             ids[i], end);
        }
    }
    return STATUS_OK;
}

// A pool that shrinks holds no block above its new end: moves went below (their blocks are judged
// with the others), everything else must lie there.
static enum status judge_pool(struct batch *batch, const struct plan *plan, struct error *err) {
    uint32_t end = plan->kv_blocks;
    if (end == 0 || end >= batch->limits.kv_blocks) {
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        const struct slot *slot = &batch->slots[i];
        if (slot->next_state == SLOT_FREE || slot->admit != NULL) {
            continue;
        }
        for (uint32_t k = 0; k < slot->block_count; k++) {
            if (!is_moved(plan, i, k)) {
                TRY(judge_ids(&blocks_of(batch, i)[k], 1, end, err));
            }
        }
    }
    for (uint32_t i = 0; i < plan->move_count; i++) {
        TRY(judge_ids(&plan->moves[i].block, 1, end, err));
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        TRY(judge_ids(plan->admits[i].blocks, plan->admits[i].block_count, end, err));
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        TRY(judge_ids(plan->updates[i].append_blocks, plan->updates[i].append_count, end, err));
    }
    return STATUS_OK;
}

static enum status judge(struct batch *batch, const struct plan *plan, struct error *err) {
    TRY(plan_validate(plan, &batch->limits, err));
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        struct slot *slot = &batch->slots[i];
        slot->admit = NULL;
        slot->next_state = slot->state;
        slot->next_gen = slot->gen;
        slot->next_len = slot->len;
        slot->next_blocks = slot->block_count;
        slot->next_paused = slot->paused;
        slot->touched = false;
    }
    TRY(judge_moves(batch, plan, err));
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        struct slot *slot = live_slot(batch, plan->retires[i].ref);
        if (slot == NULL) {
            return wrong_slot(err, "retirement of an unknown", plan->retires[i].ref);
        }
        slot->next_state = SLOT_FREE;
    }
    TRY(judge_admits(batch, plan, err));
    TRY(judge_updates(batch, plan, err));
    TRY(judge_prefills(batch, plan, err));
    TRY(judge_blocks(batch, plan, err));
    TRY(judge_lengths(batch, plan, err));
    TRY(judge_pool(batch, plan, err));
    return judge_size(batch, plan, err);
}

// ---- applying a plan ---------------------------------------------------------------------------

// An empty list has no address.
static void copy_blocks(uint32_t *to, const uint32_t *from, uint32_t count) {
    if (count > 0) {
        memcpy(to, from, count * sizeof *to);
    }
}

static void admit(struct batch *batch, const struct plan_admit *admit) {
    struct slot *slot = &batch->slots[admit->ref.slot];
    slot->gen = admit->ref.gen;
    slot->state = SLOT_PREFILLING;
    slot->paused = false;
    slot->len = admit->cached_tokens;
    slot->prompt_tokens = admit->prompt_tokens;
    slot->len_max = admit->len_max;
    slot->block_count = admit->block_count;
    slot->sampling = admit->sampling;
    for (uint32_t i = 0; i < admit->sampling.bias_count; i++) {
        slot->bias[i] =
            (struct op_token_bias){admit->sampling.bias[i].token, admit->sampling.bias[i].bias};
    }
    slot->sampling.bias = NULL;    // the plan's memory goes; slot->bias stays
    slot->sampling_digest = digest_sampling(&slot->sampling, slot->bias);
    copy_blocks(blocks_of(batch, admit->ref.slot), admit->blocks, admit->block_count);
    slot->blocks_digest = digest_blocks(admit->blocks, 0, admit->block_count);
    if (admit->history_count > 0) {
        memcpy(history_of(batch, admit->ref.slot), admit->history,
               admit->history_count * sizeof(int32_t));
    }
}

// A block that several sequences share is copied once.
static bool is_copied(const struct batch *batch, uint32_t to) {
    for (uint32_t i = 0; i < batch->copy_count; i++) {
        if (batch->copy_to[i] == to) {
            return true;
        }
    }
    return false;
}

static void move_blocks(struct batch *batch, const struct plan *plan) {
    batch->copy_count = 0;
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *move = &plan->moves[i];
        uint32_t *block = &blocks_of(batch, move->ref.slot)[move->index];
        if (!is_copied(batch, move->block)) {
            INVARIANT(batch->copy_count < BOUND_KV_COPIES);
            batch->copy_from[batch->copy_count] = *block;
            batch->copy_to[batch->copy_count++] = move->block;
        }
        struct slot *slot = &batch->slots[move->ref.slot];
        slot->blocks_digest -= digest_block(move->index, *block);
        slot->blocks_digest += digest_block(move->index, move->block);
        *block = move->block;
    }
}

static void change(struct batch *batch, const struct plan *plan) {
    move_blocks(batch, plan);
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        batch->slots[plan->retires[i].ref.slot].state = SLOT_FREE;
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        admit(batch, &plan->admits[i]);
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *update = &plan->updates[i];
        struct slot *slot = &batch->slots[update->ref.slot];
        uint32_t *blocks = blocks_of(batch, update->ref.slot);
        copy_blocks(blocks + slot->block_count, update->append_blocks, update->append_count);
        slot->blocks_digest += digest_blocks(blocks, slot->block_count, update->append_count);
        slot->block_count += update->append_count;
        slot->paused = slot->next_paused;
    }
}

static void add_row(struct batch *batch, uint32_t seq, int32_t token, uint32_t position) {
    uint32_t row = batch->step.row_count++;
    batch->token[row] = token;
    batch->position[row] = position;
    batch->row_seq[row] = seq;
    if (position >= batch->step.context_max) {
        batch->step.context_max = position + 1;
    }
}

// The logits of `row` draw the token at `position` of the slot, or score `target` there.
static void add_logit(struct batch *batch, uint32_t slot_index, uint32_t position, int32_t target) {
    const struct slot *slot = &batch->slots[slot_index];
    const struct sampling_params *s = &slot->sampling;
    uint32_t index = batch->step.logit_count++;
    batch->logit_index[index] = batch->step.row_count - 1;
    batch->logit_rows[index] = (struct logit_row){slot_index, position, target >= 0};
    uint32_t output_count = position > slot->prompt_tokens ? position - slot->prompt_tokens : 0;
    batch->sample_rows[index] = (struct op_sample_row){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .seed = s->seed,
        .stream = s->stream,
        .position = position,
        .history = sampling_uses_history(s) ? history_of(batch, slot_index) : NULL,
        .prompt_count = position - output_count,
        .output_count = output_count,
        .bias = slot->bias,
        .bias_count = s->bias_count,
        .banned = s->stop_tokens,
        .banned_count = output_count < s->min_tokens ? s->stop_token_count : 0,
        .target = target,
        .want_logprob = target >= 0 || s->want_logprobs,
        .top_count = s->top_logprobs,
    };
}

static uint32_t open_sequence(struct batch *batch, uint32_t slot) {
    uint32_t seq = batch->step.seq_count++;
    uint32_t stride = batch->limits.envelope.blocks_per_seq;
    memcpy(batch->block_table + (size_t)seq * stride, blocks_of(batch, slot),
           batch->slots[slot].block_count * sizeof(uint32_t));
    batch->seq_row[seq] = batch->step.row_count;
    return seq;
}

static void lay_out_chunk(struct batch *batch, const struct plan_prefill *chunk) {
    uint32_t slot_index = chunk->ref.slot;
    struct slot *slot = &batch->slots[slot_index];
    uint32_t seq = open_sequence(batch, slot_index);
    memcpy(history_of(batch, slot_index) + chunk->start_pos, chunk->tokens,
           chunk->token_count * sizeof(int32_t));
    for (uint32_t i = 0; i < chunk->token_count; i++) {
        uint32_t position = chunk->start_pos + i;
        add_row(batch, seq, chunk->tokens[i], position);
        bool ends_chunk = i + 1 == chunk->token_count;
        int32_t next = ends_chunk ? chunk->next_token : chunk->tokens[i + 1];
        bool scored =
            slot->sampling.want_prompt_logprobs && next >= 0 && position + 1 < slot->prompt_tokens;
        if (scored) {
            add_logit(batch, slot_index, position + 1, next);
        } else if (ends_chunk && chunk->last && slot->next_len < slot->len_max) {
            add_logit(batch, slot_index, position + 1, -1);
        }
    }
}

static void lay_out(struct batch *batch, const struct plan *plan) {
    batch->step.row_count = 0;
    batch->step.seq_count = 0;
    batch->step.logit_count = 0;
    batch->step.context_max = 0;
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        struct slot *slot = &batch->slots[i];
        if (slot->state == SLOT_DECODING && !slot->paused) {
            uint32_t seq = open_sequence(batch, i);
            add_row(batch, seq, slot->last_token, slot->len);
            slot->next_len = slot->len + 1;
            add_logit(batch, i, slot->len + 1, -1);
        }
    }
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        lay_out_chunk(batch, &plan->prefills[i]);
    }
    batch->seq_row[batch->step.seq_count] = batch->step.row_count;
    // What was judged is what was laid out.
    INVARIANT(batch->step.row_count == batch->size.tokens);
    INVARIANT(batch->step.seq_count == batch->size.seqs);
    INVARIANT(batch->step.logit_count == batch->size.logit_rows);
}

enum status batch_apply(struct batch *batch, const struct plan *plan, struct error *err) {
    TRY(judge(batch, plan, err));
    change(batch, plan);
    lay_out(batch, plan);
    return STATUS_OK;
}

void batch_pose(struct batch *batch, uint32_t rows) {
    INVARIANT(rows <= batch->limits.envelope.seqs);
    batch->step.row_count = rows;
    batch->step.seq_count = rows;
    batch->step.logit_count = rows;
    batch->step.context_max = batch->limits.envelope.attended_tokens_max;
}

bool batch_only_decodes(const struct batch *batch) {
    const struct op_step *step = &batch->step;
    return step->row_count == step->seq_count && step->row_count == step->logit_count;
}

void batch_set_pool(struct batch *batch, uint32_t kv_blocks, uint32_t seq_tokens) {
    batch->limits.kv_blocks = kv_blocks;
    batch->limits.envelope.seq_tokens = seq_tokens;
}

// ---- views and results -------------------------------------------------------------------------

const struct op_step *batch_step(const struct batch *batch) {
    return &batch->step;
}

struct batch_copies batch_copies(const struct batch *batch) {
    return (struct batch_copies){batch->copy_from, batch->copy_to, batch->copy_count};
}

uint32_t batch_logit_count(const struct batch *batch) {
    return batch->step.logit_count;
}

const uint32_t *batch_logit_rows(const struct batch *batch) {
    return batch->logit_index;
}

struct op_sample_row *batch_sample_rows(struct batch *batch) {
    return batch->sample_rows;
}

static bool is_stop_token(const struct slot *slot, int32_t token) {
    for (uint32_t i = 0; i < slot->sampling.stop_token_count; i++) {
        if (slot->sampling.stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}

// A token was drawn for `position`: the slot goes on with it, or is done.
static void take_token(struct batch *batch, uint32_t slot_index, uint32_t position, int32_t token) {
    struct slot *slot = &batch->slots[slot_index];
    INVARIANT(position == slot->len);
    INVARIANT(position < slot->len_max);
    slot->last_token = token;
    history_of(batch, slot_index)[position] = token;
    bool full = position + 1 >= slot->len_max;
    slot->state = full || is_stop_token(slot, token) ? SLOT_DONE : SLOT_DECODING;
}

void batch_commit(struct batch *batch, struct result_row *rows) {
    for (uint32_t s = 0; s < batch->limits.envelope.seqs; s++) {
        struct slot *slot = &batch->slots[s];
        if (slot->state != SLOT_FREE) {
            slot->len = slot->next_len;
            // A scored prompt without output ends here.
            if (slot->next_state == SLOT_DECODING && slot->len >= slot->len_max) {
                slot->state = SLOT_DONE;
            }
        }
    }
    for (uint32_t i = 0; i < batch->step.logit_count; i++) {
        const struct logit_row *row = &batch->logit_rows[i];
        const struct op_sample_row *drawn = &batch->sample_rows[i];
        rows[i] = (struct result_row){
            .ref = {row->slot, batch->slots[row->slot].gen},
            .position = row->position,
            .token = row->is_prompt ? drawn->target : drawn->token,
            .is_prompt = row->is_prompt,
            .has_logprob = drawn->want_logprob,
            .logprob = drawn->want_logprob ? drawn->logprob : 0.0f,
            .rank = drawn->want_logprob ? drawn->rank : 0,
            .top_count = drawn->want_logprob ? drawn->top_count : 0,
            .top_tokens = drawn->top_token,
            .top_logprobs = drawn->top_logprob,
        };
        if (!row->is_prompt) {
            take_token(batch, row->slot, row->position, drawn->token);
        }
    }
}

uint64_t batch_step_digest(const struct batch *batch, const struct result_row *rows,
                           uint32_t count) {
    uint64_t digest = digest_rows(rows, count);
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        const struct slot *slot = &batch->slots[i];
        if (slot->state == SLOT_FREE) {
            continue;
        }
        uint64_t last = slot->state == SLOT_DECODING ? (uint32_t)slot->last_token : 0;
        digest = digest_mix(digest, (uint64_t)i << 32 | slot->gen);
        digest =
            digest_mix(digest, (uint64_t)slot->state << 33 | (uint64_t)slot->paused << 32 | last);
        digest = digest_mix(digest, (uint64_t)slot->len << 32 | slot->len_max);
        digest = digest_mix(digest, (uint64_t)slot->prompt_tokens << 32 | slot->block_count);
        digest = digest_mix(digest, slot->blocks_digest ^ hash_u64(slot->sampling_digest));
    }
    return digest;
}

static uint64_t mix_bytes(uint64_t digest, const void *bytes, size_t byte_count) {
    return hash_u64(digest ^ hash_bytes(bytes, byte_count));
}

uint64_t batch_digest(const struct batch *batch) {
    const struct envelope *e = &batch->limits.envelope;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < e->seqs; i++) {
        const struct slot *slot = &batch->slots[i];
        const uint32_t facts[] = {
            (uint32_t)slot->state, slot->paused,  slot->gen,         slot->len,
            slot->prompt_tokens,   slot->len_max, slot->block_count, (uint32_t)slot->last_token};
        digest = mix_bytes(digest, facts, sizeof facts);
        digest = mix_bytes(digest, &slot->sampling, sizeof slot->sampling);
        digest = mix_bytes(digest, slot->bias, BOUND_LOGIT_BIAS * sizeof *slot->bias);
    }
    return mix_bytes(digest, batch->slot_blocks,
                     (size_t)e->seqs * e->blocks_per_seq * sizeof *batch->slot_blocks);
}

void batch_audit(const struct batch *batch) {
    for (uint32_t i = 0; i < batch->limits.envelope.seqs; i++) {
        const struct slot *slot = &batch->slots[i];
        if (slot->state == SLOT_FREE) {
            continue;
        }
        INVARIANT(slot->len <= slot->len_max);
        INVARIANT(slot->block_count <= batch->limits.envelope.blocks_per_seq);
        INVARIANT(slot->len <= slot->block_count * batch->limits.block_tokens);
        const uint32_t *blocks =
            batch->slot_blocks + (size_t)i * batch->limits.envelope.blocks_per_seq;
        INVARIANT(slot->blocks_digest == digest_blocks(blocks, 0, slot->block_count));
        INVARIANT(slot->sampling_digest == digest_sampling(&slot->sampling, slot->bias));
        for (uint32_t k = 0; k < slot->block_count; k++) {
            INVARIANT(batch->slot_blocks[(size_t)i * batch->limits.envelope.blocks_per_seq + k] <
                      batch->limits.kv_blocks);
        }
    }
}
