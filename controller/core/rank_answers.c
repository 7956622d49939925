// SPDX-License-Identifier: Apache-2.0
#include "controller/core/rank_answers.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/scheduler.h"
#include <string.h>

struct answer {
    uint64_t seq;
    uint32_t ranks;    // that have answered, one bit each
    enum result_status status;
    uint64_t digest;
    bool borrowed;                // its rows are the caller's
    struct step_result result;    // rank 0's
    struct result_row *rows;      // [rows_max] copies
    int32_t *top_tokens;          // [rows_max, BOUND_LOGPROBS]
    float *top_logprobs;
};

struct rank_answers {
    uint32_t rows_max, ranks_max;
    uint32_t world;
    struct answer answer[SCHEDULER_DEPTH_MAX];    // ring
    uint32_t first, count;
};

enum status rank_answers_create(uint32_t rows_max, uint32_t ranks_max, struct rank_answers **out,
                                struct error *err) {
    INVARIANT(ranks_max >= 1 && ranks_max <= BOUND_RANKS);
    struct rank_answers *answers = memory_zalloc(sizeof *answers);
    if (answers == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the answers of ranks");
    }
    answers->rows_max = rows_max;
    answers->ranks_max = ranks_max;
    answers->world = 1;
    bool whole = true;
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX && ranks_max > 1; i++) {
        // Touched only as far as results grow: most of it never becomes resident.
        struct answer *answer = &answers->answer[i];
        size_t tops = (size_t)rows_max * BOUND_LOGPROBS;
        answer->rows = memory_array(rows_max, sizeof *answer->rows);
        answer->top_tokens = memory_array(tops, sizeof *answer->top_tokens);
        answer->top_logprobs = memory_array(tops, sizeof *answer->top_logprobs);
        whole = whole && answer->rows && answer->top_tokens && answer->top_logprobs;
    }
    if (!whole) {
        rank_answers_destroy(answers);
        return error_set(err, STATUS_EXHAUSTED, "no memory for results of %u rows", rows_max);
    }
    *out = answers;
    return STATUS_OK;
}

void rank_answers_destroy(struct rank_answers *answers) {
    if (answers == NULL) {
        return;
    }
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX; i++) {
        memory_free(answers->answer[i].rows);
        memory_free(answers->answer[i].top_tokens);
        memory_free(answers->answer[i].top_logprobs);
    }
    memory_free(answers);
}

void rank_answers_reset(struct rank_answers *answers, uint32_t world) {
    INVARIANT(world >= 1 && world <= answers->ranks_max);
    answers->world = world;
    answers->count = 0;
}

static struct answer *at(struct rank_answers *answers, uint32_t index) {
    return &answers->answer[(answers->first + index) % SCHEDULER_DEPTH_MAX];
}

void rank_answers_sent(struct rank_answers *answers, uint64_t seq) {
    INVARIANT(answers->count < SCHEDULER_DEPTH_MAX);
    struct answer *answer = at(answers, answers->count++);
    answer->seq = seq;
    answer->ranks = 0;
    answer->borrowed = false;
}

static uint32_t all_ranks(const struct rank_answers *answers) {
    return (1u << answers->world) - 1;
}

static bool is_missing_something(enum result_status status) {
    return status == RESULT_STATUS_FAULT || status == RESULT_STATUS_GAP;
}

// What two ranks say of one plan.
static enum rank_verdict compare(const struct answer *answer, const struct step_result *result) {
    if (answer->status != result->status) {
        bool broken = is_missing_something(answer->status) || is_missing_something(result->status);
        return broken ? RANK_VERDICT_BROKEN : RANK_VERDICT_DIVERGED;
    }
    bool differ = result->status == RESULT_STATUS_OK && answer->digest != result->digest;
    return differ ? RANK_VERDICT_DIVERGED : RANK_VERDICT_FINE;
}

// The plan that this rank's answer is awaited for, or NULL.
static struct answer *awaiting(struct rank_answers *answers, uint32_t rank, uint64_t seq) {
    for (uint32_t i = 0; i < answers->count && rank < answers->world; i++) {
        struct answer *answer = at(answers, i);
        // Alone, a rank answers in order: there is nothing to wait with.
        bool early = answers->ranks_max == 1 && i > 0;
        if (answer->seq == seq && (answer->ranks & 1u << rank) == 0 && !early) {
            return answer;
        }
    }
    return NULL;
}

bool rank_answers_await(struct rank_answers *answers, uint32_t rank, uint64_t seq) {
    return awaiting(answers, rank, seq) != NULL;
}

enum rank_verdict rank_answers_take(struct rank_answers *answers, uint32_t rank,
                                    const struct step_result *result) {
    struct answer *answer = awaiting(answers, rank, result->seq);
    INVARIANT(answer != NULL && result->row_count <= answers->rows_max);
    if (answers->world > 1 && result->status == RESULT_STATUS_FAULT) {
        return RANK_VERDICT_BROKEN;    // the others may wait for it for ever
    }
    enum rank_verdict verdict = answer->ranks == 0 ? RANK_VERDICT_FINE : compare(answer, result);
    answer->status = result->status;
    answer->digest = result->digest;
    answer->ranks |= 1u << rank;
    if (rank == 0) {
        answer->result = *result;
        answer->borrowed = true;
    }
    return verdict;
}

const struct step_result *rank_answers_oldest(const struct rank_answers *answers) {
    if (answers->count == 0) {
        return NULL;
    }
    const struct answer *answer = &answers->answer[answers->first];
    return answer->ranks == all_ranks(answers) ? &answer->result : NULL;
}

void rank_answers_pop(struct rank_answers *answers) {
    INVARIANT(answers->count > 0);
    answers->first = (answers->first + 1) % SCHEDULER_DEPTH_MAX;
    answers->count--;
}

static void copy_rows(struct answer *answer) {
    struct step_result *result = &answer->result;
    memcpy(answer->rows, result->rows, result->row_count * sizeof *answer->rows);
    size_t top = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        struct result_row *row = &answer->rows[i];
        if (row->top_count == 0) {
            continue;    // as most: their pointers are not looked at
        }
        INVARIANT(row->top_count <= BOUND_LOGPROBS);
        memcpy(answer->top_tokens + top, row->top_tokens, row->top_count * sizeof(int32_t));
        memcpy(answer->top_logprobs + top, row->top_logprobs, row->top_count * sizeof(float));
        row->top_tokens = answer->top_tokens + top;
        row->top_logprobs = answer->top_logprobs + top;
        top += row->top_count;
    }
    result->rows = answer->rows;
    result->message = "";    // the caller's too
    answer->borrowed = false;
}

void rank_answers_keep(struct rank_answers *answers) {
    for (uint32_t i = 0; i < answers->count; i++) {
        if (at(answers, i)->borrowed) {
            INVARIANT(answers->ranks_max > 1);
            copy_rows(at(answers, i));
        }
    }
}

uint32_t rank_answers_missing(const struct rank_answers *answers) {
    return answers->count == 0 ? 0 : all_ranks(answers) & ~answers->answer[answers->first].ranks;
}
