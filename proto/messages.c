// SPDX-License-Identifier: Apache-2.0
#include "proto/messages.h"

#include "common/integers.h"
#include "common/invariant.h"

static enum status range_error(struct error *err, const char *what, uint64_t value, uint64_t max) {
    return error_set(err, STATUS_INVALID, "%s is %llu; the limit is %llu", what,
                     (unsigned long long)value, (unsigned long long)max);
}

static enum status check_real(float value, float min, float max, const char *what,
                              struct error *err) {
    if (!(value >= min && value <= max)) {
        return error_set(err, STATUS_INVALID, "%s is %g; it must lie in %g..%g", what,
                         (double)value, (double)min, (double)max);
    }
    return STATUS_OK;
}

static enum status check_token(int32_t token, uint32_t vocabulary, const char *what,
                               struct error *err) {
    if (token < 0 || (uint32_t)token >= vocabulary) {
        return error_set(err, STATUS_INVALID, "%s %d is outside the vocabulary of %u", what, token,
                         vocabulary);
    }
    return STATUS_OK;
}

enum status sampling_validate(const struct sampling_params *s, uint32_t vocabulary,
                              struct error *err) {
    TRY(check_real(s->temperature, 0.0f, 100.0f, "temperature", err));
    TRY(check_real(s->top_p, 0x1.0p-126f, 1.0f, "top_p", err));
    TRY(check_real(s->min_p, 0.0f, 1.0f, "min_p", err));
    TRY(check_real(s->repetition_penalty, 0x1.0p-126f, 10.0f, "repetition_penalty", err));
    TRY(check_real(s->presence_penalty, -2.0f, 2.0f, "presence_penalty", err));
    TRY(check_real(s->frequency_penalty, -2.0f, 2.0f, "frequency_penalty", err));
    if (s->top_logprobs > BOUND_LOGPROBS) {
        return range_error(err, "top_logprobs", s->top_logprobs, BOUND_LOGPROBS);
    }
    if (s->stream >= BOUND_CHOICES * BOUND_PROMPTS_PER_REQUEST) {
        return range_error(err, "stream", s->stream, BOUND_CHOICES * BOUND_PROMPTS_PER_REQUEST - 1);
    }
    if (s->stop_token_count > BOUND_STOP_TOKENS) {
        return range_error(err, "stop token count", s->stop_token_count, BOUND_STOP_TOKENS);
    }
    for (uint32_t i = 0; i < s->stop_token_count; i++) {
        TRY(check_token(s->stop_tokens[i], vocabulary, "stop token", err));
    }
    if (s->bias_count > BOUND_LOGIT_BIAS) {
        return range_error(err, "logit_bias count", s->bias_count, BOUND_LOGIT_BIAS);
    }
    for (uint32_t i = 0; i < s->bias_count; i++) {
        TRY(check_token(s->bias[i].token, vocabulary, "logit_bias token", err));
        TRY(check_real(s->bias[i].bias, -100.0f, 100.0f, "logit_bias", err));
    }
    return STATUS_OK;
}

bool sampling_uses_history(const struct sampling_params *s) {
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

static enum status check_slot(struct slot_ref ref, const struct plan_limits *limits,
                              struct error *err) {
    if (ref.slot >= limits->envelope.seqs) {
        return range_error(err, "slot", ref.slot, (uint64_t)limits->envelope.seqs - 1);
    }
    return STATUS_OK;
}

static enum status check_blocks(const uint32_t *blocks, uint32_t count,
                                const struct plan_limits *limits, struct error *err) {
    if (count > limits->envelope.blocks_per_seq) {
        return range_error(err, "block count", count, limits->envelope.blocks_per_seq);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i] >= limits->kv_blocks) {
            return range_error(err, "block id", blocks[i], (uint64_t)limits->kv_blocks - 1);
        }
    }
    return STATUS_OK;
}

static enum status check_cached(const struct plan_admit *admit, const struct plan_limits *limits,
                                struct error *err) {
    uint64_t held = (uint64_t)admit->block_count * limits->block_tokens;
    if (admit->cached_tokens > held || admit->cached_tokens >= admit->len_max) {
        return error_set(err, STATUS_INVALID,
                         "slot %u is admitted with %u cached tokens; its blocks hold %llu, and it "
                         "ends at %u",
                         admit->ref.slot, admit->cached_tokens, (unsigned long long)held,
                         admit->len_max);
    }
    bool needs = sampling_uses_history(&admit->sampling);
    if (admit->history_count != (needs ? admit->cached_tokens : 0)) {
        return error_set(err, STATUS_INVALID, "slot %u is admitted with %u tokens of history",
                         admit->ref.slot, admit->history_count);
    }
    for (uint32_t i = 0; i < admit->history_count; i++) {
        TRY(check_token(admit->history[i], limits->vocabulary, "cached token", err));
    }
    return STATUS_OK;
}

static enum status check_admit(const struct plan_admit *admit, const struct plan_limits *limits,
                               struct error *err) {
    TRY(check_slot(admit->ref, limits, err));
    if (admit->prompt_tokens == 0) {
        return error_set(err, STATUS_INVALID, "slot %u is admitted with an empty prompt",
                         admit->ref.slot);
    }
    if (admit->len_max > limits->envelope.seq_tokens) {
        return range_error(err, "len_max", admit->len_max, limits->envelope.seq_tokens);
    }
    if (admit->prompt_tokens > admit->len_max) {
        return range_error(err, "prompt_tokens", admit->prompt_tokens, admit->len_max);
    }
    TRY(check_blocks(admit->blocks, admit->block_count, limits, err));
    TRY(check_cached(admit, limits, err));
    return sampling_validate(&admit->sampling, limits->vocabulary, err);
}

static enum status check_prefill(const struct plan_prefill *chunk, const struct plan_limits *limits,
                                 struct error *err) {
    TRY(check_slot(chunk->ref, limits, err));
    if (chunk->token_count == 0) {
        return error_set(err, STATUS_INVALID, "slot %u has an empty prompt chunk", chunk->ref.slot);
    }
    uint64_t end = (uint64_t)chunk->start_pos + chunk->token_count;
    if (end > limits->envelope.seq_tokens) {
        return range_error(err, "end of a prompt chunk", end, limits->envelope.seq_tokens);
    }
    for (uint32_t i = 0; i < chunk->token_count; i++) {
        TRY(check_token(chunk->tokens[i], limits->vocabulary, "prompt token", err));
    }
    if (chunk->next_token != -1) {
        TRY(check_token(chunk->next_token, limits->vocabulary, "next prompt token", err));
    }
    return STATUS_OK;
}

// What can be said of moves without the slot table. None is met twice: bounded, so compared in
// pairs.
static enum status check_moves(const struct plan *plan, const struct plan_limits *limits,
                               struct error *err) {
    if (plan->move_count > BOUND_KV_MOVES) {
        return range_error(err, "move count", plan->move_count, BOUND_KV_MOVES);
    }
    uint32_t copies = 0;
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *move = &plan->moves[i];
        bool is_new = true;
        TRY(check_slot(move->ref, limits, err));
        TRY(check_blocks(&move->block, 1, limits, err));
        for (uint32_t k = 0; k < i; k++) {
            const struct plan_move *other = &plan->moves[k];
            if (other->ref.slot == move->ref.slot &&
                (other->index == move->index || other->block == move->block)) {
                return error_set(err, STATUS_INVALID, "two moves share a block of slot %u",
                                 move->ref.slot);
            }
            is_new = is_new && other->block != move->block;
        }
        copies += is_new ? 1 : 0;
    }
    if (copies > BOUND_KV_COPIES) {
        return range_error(err, "blocks to move", copies, BOUND_KV_COPIES);
    }
    if (plan->kv_blocks > BOUND_BLOCKS) {
        return range_error(err, "KV blocks asked for", plan->kv_blocks, BOUND_BLOCKS);
    }
    return STATUS_OK;
}

bool plan_follows(const struct plan *plan, uint64_t applied_seq) {
    return plan->undone < plan->seq && plan->seq - 1 - plan->undone == applied_seq;
}

enum status plan_validate(const struct plan *plan, const struct plan_limits *limits,
                          struct error *err) {
    uint32_t seqs = limits->envelope.seqs;
    const struct {
        const char *name;
        uint32_t count;
    } lists[] = {{"admit count", plan->admit_count},
                 {"update count", plan->update_count},
                 {"retire count", plan->retire_count},
                 {"prefill count", plan->prefill_count},
                 {"decode rows", plan->decode_rows}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (lists[i].count > seqs) {
            return range_error(err, lists[i].name, lists[i].count, seqs);
        }
    }
    TRY(check_moves(plan, limits, err));
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        TRY(check_admit(&plan->admits[i], limits, err));
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *update = &plan->updates[i];
        TRY(check_slot(update->ref, limits, err));
        TRY(check_blocks(update->append_blocks, update->append_count, limits, err));
        if (update->pause && update->resume) {
            return error_set(err, STATUS_INVALID, "slot %u is paused and resumed at once",
                             update->ref.slot);
        }
    }
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        TRY(check_slot(plan->retires[i].ref, limits, err));
    }
    struct step_size least = {0};
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        TRY(check_prefill(chunk, limits, err));
        // Without logits: whether the chunk's rows score or draw stands in the slot table.
        step_size_add(&least,
                      &(struct step_share){.tokens = chunk->token_count,
                                           .context = chunk->start_pos + chunk->token_count});
    }
    // A decode row attends to itself at least, and draws.
    if (plan->decode_rows > 0) {
        struct step_share share = step_share_decode(1, false);
        share.tokens = plan->decode_rows;
        share.logit_rows = plan->decode_rows;
        step_size_add(&least, &share);
        least.seqs += plan->decode_rows - 1;
        least.attended_tokens += plan->decode_rows - 1;
    }
    return step_size_validate(&least, &limits->envelope, err);
}

// ---- the size of a step ------------------------------------------------------------------------

struct step_share step_share_chunk(const struct step_chunk *chunk) {
    uint32_t end = chunk->start + chunk->count;
    uint32_t scored = 0;
    if (chunk->want_prompt_logprobs && chunk->prompt_tokens > 0) {
        // The row of the last prompt token has nothing to score, and the last row of a prompt
        // draws.
        uint32_t score_end = u32_min(chunk->last ? end - 1 : end, chunk->prompt_tokens - 1);
        scored = score_end > chunk->start ? score_end - chunk->start : 0;
    }
    uint32_t drawn = chunk->last && end < chunk->len_max ? 1 : 0;
    return (struct step_share){.tokens = chunk->count,
                               .context = end,
                               .logit_rows = scored + drawn,
                               .prompt_logit_rows = scored,
                               .logprob_rows = scored + (chunk->want_logprobs ? drawn : 0)};
}

struct step_share step_share_decode(uint32_t context, bool want_logprobs) {
    return (struct step_share){
        .tokens = 1, .context = context, .logit_rows = 1, .logprob_rows = want_logprobs ? 1 : 0};
}

// A hostile plan may name more rows than the counter holds: it stays at the end then, which no
// envelope allows.
static void count_rows(uint32_t *sum, uint32_t rows) {
    *sum = rows > UINT32_MAX - *sum ? UINT32_MAX : *sum + rows;
}

void step_size_add(struct step_size *size, const struct step_share *share) {
    count_rows(&size->tokens, share->tokens);
    size->seqs++;
    count_rows(&size->logit_rows, share->logit_rows);
    count_rows(&size->prompt_logit_rows, share->prompt_logit_rows);
    count_rows(&size->logprob_rows, share->logprob_rows);
    size->attended_tokens += share->context;
    if (share->context > size->attended_tokens_max) {
        size->attended_tokens_max = share->context;
    }
}

bool step_size_fits(const struct step_size *size, const struct envelope *envelope) {
    return size->tokens <= envelope->tokens && size->seqs <= envelope->seqs &&
           size->logit_rows <= envelope->logit_rows &&
           size->prompt_logit_rows <= envelope->prompt_logit_rows &&
           size->logprob_rows <= envelope->logprob_rows &&
           size->attended_tokens_max <= envelope->attended_tokens_max &&
           size->attended_tokens <= envelope->attended_tokens;
}

enum status step_size_validate(const struct step_size *size, const struct envelope *envelope,
                               struct error *err) {
    if (step_size_fits(size, envelope)) {
        return STATUS_OK;
    }
    const struct {
        const char *name;
        uint64_t value, max;
    } fields[] = {
        {"rows of the step", size->tokens, envelope->tokens},
        {"sequences of the step", size->seqs, envelope->seqs},
        {"logit rows of the step", size->logit_rows, envelope->logit_rows},
        {"prompt logit rows of the step", size->prompt_logit_rows, envelope->prompt_logit_rows},
        {"logprob rows of the step", size->logprob_rows, envelope->logprob_rows},
        {"longest attended context", size->attended_tokens_max, envelope->attended_tokens_max},
        {"attended context of the step", size->attended_tokens, envelope->attended_tokens},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].value > fields[i].max) {
            return range_error(err, fields[i].name, fields[i].value, fields[i].max);
        }
    }
    UNREACHABLE();
}

// ---- results -----------------------------------------------------------------------------------

static enum status check_row(const struct result_row *row, const struct plan_limits *limits,
                             struct error *err) {
    TRY(check_slot(row->ref, limits, err));
    TRY(check_token(row->token, limits->vocabulary, "token", err));
    if (row->position >= limits->envelope.seq_tokens) {
        return range_error(err, "position", row->position,
                           (uint64_t)limits->envelope.seq_tokens - 1);
    }
    if (row->top_count > BOUND_LOGPROBS) {
        return range_error(err, "alternatives", row->top_count, BOUND_LOGPROBS);
    }
    for (uint32_t i = 0; i < row->top_count; i++) {
        TRY(check_token(row->top_tokens[i], limits->vocabulary, "alternative", err));
    }
    return STATUS_OK;
}

// Whether all rows are such that nothing can be wrong with them, as most results are. Without a
// branch for every row.
static bool are_plain_rows(const struct step_result *result, const struct plan_limits *limits) {
    const struct result_row *rows = result->rows;
    uint32_t slots = limits->envelope.seqs, positions = limits->envelope.seq_tokens;
    uint32_t vocabulary = limits->vocabulary, others = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        others |= (uint32_t)(rows[i].ref.slot >= slots) |
                  (uint32_t)((uint32_t)rows[i].token >= vocabulary) |
                  (uint32_t)(rows[i].position >= positions) | rows[i].top_count;
    }
    return others == 0;
}

enum status result_validate(const struct step_result *result, const struct plan_limits *limits,
                            struct error *err) {
    uint64_t rows_max = (uint64_t)limits->envelope.seqs + limits->envelope.tokens;
    if (result->row_count > rows_max) {
        return range_error(err, "result rows", result->row_count, rows_max);
    }
    if (are_plain_rows(result, limits)) {
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < result->row_count; i++) {
        TRY(check_row(&result->rows[i], limits, err));
    }
    return STATUS_OK;
}

enum status capacity_validate(const struct message_capacity *capacity, struct error *err) {
    const struct envelope *e = &capacity->envelope;
    const struct {
        const char *name;
        uint64_t value, min, max;
    } fields[] = {
        {"envelope tokens", e->tokens, 1, BOUND_STEP_TOKENS},
        {"envelope sequences", e->seqs, 1, BOUND_SEQS},
        {"envelope sequence tokens", e->seq_tokens, 1, BOUND_SEQ_TOKENS},
        {"envelope logit rows", e->logit_rows, 1, BOUND_STEP_TOKENS},
        {"envelope prompt logit rows", e->prompt_logit_rows, 0, BOUND_STEP_TOKENS},
        {"envelope logprob rows", e->logprob_rows, 0, BOUND_STEP_TOKENS},
        {"envelope draft tokens", e->draft_tokens, 0, 0},
        {"envelope longest attended context", e->attended_tokens_max, 1, e->seq_tokens},
        {"envelope attended context", e->attended_tokens, e->attended_tokens_max,
         (uint64_t)BOUND_SEQS * BOUND_SEQ_TOKENS},
        {"block tokens", capacity->block_tokens, 1, BOUND_BLOCK_TOKENS},
        {"KV blocks", capacity->kv_blocks, 1, BOUND_BLOCKS},
        {"vocabulary", capacity->vocabulary, 1, BOUND_VOCABULARY_TOKENS},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max) {
            return error_set(err, STATUS_INVALID, "%s is %llu; it must lie in %llu..%llu",
                             fields[i].name, (unsigned long long)fields[i].value,
                             (unsigned long long)fields[i].min, (unsigned long long)fields[i].max);
        }
    }
    uint64_t need = ((uint64_t)e->seq_tokens + capacity->block_tokens - 1) / capacity->block_tokens;
    if (need > BOUND_BLOCKS_PER_SEQ) {
        return range_error(err, "blocks per sequence", need, BOUND_BLOCKS_PER_SEQ);
    }
    if (e->blocks_per_seq != need) {
        return error_set(err, STATUS_INVALID, "blocks per sequence is %u, not %llu",
                         e->blocks_per_seq, (unsigned long long)need);
    }
    return STATUS_OK;
}

enum status hello_validate(const struct message_hello *hello, struct error *err) {
    if (hello->world == 0 || hello->world > BOUND_RANKS) {
        return error_set(err, STATUS_INVALID, "a group of %u ranks; 1 to %u are possible",
                         hello->world, BOUND_RANKS);
    }
    if (hello->rank >= hello->world) {
        return error_set(err, STATUS_INVALID, "rank %u of a group of %u ranks", hello->rank,
                         hello->world);
    }
    if (hello->group >= BOUND_GROUPS) {
        return range_error(err, "group", hello->group, BOUND_GROUPS - 1);
    }
    return STATUS_OK;
}
