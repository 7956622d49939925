// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/core/fake_worker.h"

#include "common/hash.h"
#include "common/memory.h"
#include <check.h>
#include <string.h>

enum { FAKE_SEQ_TOKENS = 512 };

struct fake_slot {
    bool live, decoding, paused;
    uint32_t gen;
    uint32_t len;      // computed positions
    uint32_t known;    // tokens in `tokens`
    uint32_t len_max;
    uint32_t prompt;
    bool logprobs, prompt_logprobs;
    uint32_t block_count;
    uint32_t blocks[FAKE_SEQ_TOKENS];
    int32_t tokens[FAKE_SEQ_TOKENS];
};

// What a position leaves in its block: its token, and a hash over all tokens up to it.
struct fake_kv {
    int32_t token;
    uint64_t chain;
};

struct fake_worker {
    struct plan_limits limits;
    uint64_t epoch, applied;
    struct fake_slot *slots;
    struct result_row *rows;
    uint32_t row_count;
    uint8_t *holders;      // [FAKE_BLOCKS_MAX] slots that name the block
    struct fake_kv *kv;    // [FAKE_BLOCKS_MAX, block_tokens] what was computed there
    uint64_t cached;       // positions that were admitted computed
    uint32_t pool_blocks, chunk_blocks, pool_max;
    uint32_t resized;
    uint64_t moves;
    struct envelope secret;
    int32_t poison;
    uint64_t refusals;
    bool refused;    // the last plan that followed
};

struct fake_worker *fake_worker_create(const struct plan_limits *limits) {
    ck_assert_uint_le(limits->envelope.seq_tokens, FAKE_SEQ_TOKENS);
    struct fake_worker *worker = memory_zalloc(sizeof *worker);
    worker->limits = *limits;
    worker->secret = limits->envelope;
    worker->poison = -1;
    worker->slots = memory_array(limits->envelope.seqs, sizeof *worker->slots);
    worker->rows =
        memory_array(limits->envelope.tokens + limits->envelope.seqs, sizeof *worker->rows);
    ck_assert_uint_le(limits->kv_blocks, FAKE_BLOCKS_MAX);
    worker->holders = memory_array(FAKE_BLOCKS_MAX, 1);
    worker->kv = memory_array((size_t)FAKE_BLOCKS_MAX * limits->block_tokens, sizeof *worker->kv);
    worker->pool_blocks = limits->kv_blocks;
    worker->chunk_blocks = 1;
    worker->pool_max = FAKE_BLOCKS_MAX;
    return worker;
}

void fake_worker_destroy(struct fake_worker *worker) {
    memory_free(worker->slots);
    memory_free(worker->rows);
    memory_free(worker->holders);
    memory_free(worker->kv);
    memory_free(worker);
}

void fake_worker_resume(struct fake_worker *worker, uint64_t epoch) {
    worker->epoch = epoch;
    worker->applied = 0;
    worker->refused = false;
    memset(worker->slots, 0, worker->limits.envelope.seqs * sizeof *worker->slots);
    memset(worker->holders, 0, FAKE_BLOCKS_MAX);
    worker->resized = 0;
}

void fake_worker_reset(struct fake_worker *worker, uint64_t epoch) {
    fake_worker_resume(worker, epoch);
    memset(worker->kv, 0,
           (size_t)FAKE_BLOCKS_MAX * worker->limits.block_tokens * sizeof *worker->kv);
}

void fake_worker_budget(struct fake_worker *worker, uint32_t chunk_blocks, uint32_t blocks_max) {
    worker->chunk_blocks = chunk_blocks;
    worker->pool_max = blocks_max;
}

uint32_t fake_worker_resized(struct fake_worker *worker) {
    uint32_t resized = worker->resized;
    worker->resized = 0;
    return resized;
}

uint64_t fake_worker_moves(const struct fake_worker *worker) {
    return worker->moves;
}

uint32_t fake_worker_pool(const struct fake_worker *worker) {
    return worker->pool_blocks;
}

uint64_t fake_worker_cached(const struct fake_worker *worker) {
    return worker->cached;
}

static uint64_t chain_of(uint64_t before, uint32_t at, int32_t token) {
    return hash_u64(before ^ ((uint64_t)at << 32) ^ ((uint64_t)token + 1));
}

static struct fake_kv *kv_place(struct fake_worker *worker, const struct fake_slot *slot,
                                uint32_t at) {
    uint32_t block_tokens = worker->limits.block_tokens;
    uint32_t block = slot->blocks[at / block_tokens];
    ck_assert_msg(block < worker->pool_blocks, "block %u lies outside the pool", block);
    return &worker->kv[(size_t)block * block_tokens + at % block_tokens];
}

static void compute(struct fake_worker *worker, struct fake_slot *slot, uint32_t count) {
    if (slot->len + count > slot->block_count * worker->limits.block_tokens) {
        ck_abort_msg("a position without a block");
    }
    for (uint32_t i = 0; i < count; i++, slot->len++) {
        uint32_t block = slot->blocks[slot->len / worker->limits.block_tokens];
        ck_assert_msg(worker->holders[block] == 1, "block %u is shared and written", block);
        uint64_t before = slot->len == 0 ? 0 : kv_place(worker, slot, slot->len - 1)->chain;
        int32_t token = slot->tokens[slot->len];
        *kv_place(worker, slot, slot->len) =
            (struct fake_kv){token, chain_of(before, slot->len, token)};
    }
}

static void attend(struct fake_worker *worker, const struct fake_slot *slot) {
    uint64_t chain = 0;
    for (uint32_t i = 0; i < slot->len; i++) {
        chain = chain_of(chain, i, slot->tokens[i]);
        if (kv_place(worker, slot, i)->chain != chain) {
            ck_abort_msg("position %u of slot %d has lost its KV", i, (int)(slot - worker->slots));
        }
    }
}

// The sequence begins with what stands in its first blocks.
static void adopt(struct fake_worker *worker, struct fake_slot *slot, const struct plan_admit *in) {
    for (uint32_t i = 0; i < in->cached_tokens; i++) {
        slot->tokens[i] = kv_place(worker, slot, i)->token;
        ck_assert(in->history_count == 0 || in->history[i] == slot->tokens[i]);
    }
    slot->len = in->cached_tokens;
    slot->known = in->cached_tokens;
    worker->cached += in->cached_tokens;
    attend(worker, slot);
}

int32_t fake_worker_next(const int32_t *tokens, uint32_t count, uint32_t vocabulary) {
    return (int32_t)(hash_bytes(tokens, count * sizeof *tokens) % vocabulary);
}

static struct fake_slot *slot_of(struct fake_worker *worker, struct slot_ref ref) {
    struct fake_slot *slot = &worker->slots[ref.slot];
    ck_assert_msg(slot->live && slot->gen == ref.gen, "plan names slot %u gen %u", ref.slot,
                  ref.gen);
    return slot;
}

static void take_blocks(struct fake_worker *worker, struct fake_slot *slot, const uint32_t *ids,
                        uint32_t count, uint32_t shared) {
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_lt(ids[i], worker->pool_blocks);
        ck_assert_msg(i < shared || worker->holders[ids[i]] == 0, "block %u is used twice", ids[i]);
        worker->holders[ids[i]]++;
        slot->blocks[slot->block_count++] = ids[i];
    }
}

static void move(struct fake_worker *worker, const struct plan *plan) {
    size_t bytes = worker->limits.block_tokens * sizeof *worker->kv;
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *in = &plan->moves[i];
        struct fake_slot *slot = slot_of(worker, in->ref);
        ck_assert_uint_lt(in->index, slot->block_count);
        uint32_t *block = &slot->blocks[in->index];
        ck_assert_uint_lt(in->block, *block);
        bool again = i > 0 && plan->moves[i - 1].block == in->block;    // a shared block
        ck_assert_msg(again || worker->holders[in->block] == 0, "block %u is used twice",
                      in->block);
        worker->holders[in->block]++;
        worker->holders[*block]--;
        memcpy(worker->kv + in->block * (size_t)worker->limits.block_tokens,
               worker->kv + *block * (size_t)worker->limits.block_tokens, bytes);
        *block = in->block;
        worker->moves++;
    }
}

// Whole chunks, and never under somebody's feet.
static void resize(struct fake_worker *worker, const struct plan *plan) {
    if (plan->kv_blocks == 0) {
        return;
    }
    uint32_t chunk = worker->chunk_blocks;
    uint32_t blocks = (plan->kv_blocks + chunk - 1) / chunk * chunk;
    if (blocks > worker->pool_max) {
        blocks = worker->pool_blocks;    // all or nothing, as a budget
    }
    for (uint32_t i = plan->kv_blocks; i < worker->pool_blocks; i++) {
        ck_assert_msg(worker->holders[i] == 0, "block %u is unmapped while in use", i);
    }
    worker->pool_blocks = blocks;
    worker->limits.kv_blocks = blocks;
    worker->resized = blocks;
}

static void retire(struct fake_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        struct fake_slot *slot = slot_of(worker, plan->retires[i].ref);
        for (uint32_t k = 0; k < slot->block_count; k++) {
            worker->holders[slot->blocks[k]]--;
        }
        slot->live = false;
    }
}

static void admit(struct fake_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *in = &plan->admits[i];
        struct fake_slot *slot = &worker->slots[in->ref.slot];
        ck_assert_msg(!slot->live, "slot %u is admitted twice", in->ref.slot);
        memset(slot, 0, sizeof *slot);
        slot->live = true;
        slot->gen = in->ref.gen;
        slot->len_max = in->len_max;
        slot->prompt = in->prompt_tokens;
        slot->logprobs = in->sampling.want_logprobs;
        slot->prompt_logprobs = in->sampling.want_prompt_logprobs;
        take_blocks(worker, slot, in->blocks, in->block_count,
                    in->cached_tokens / worker->limits.block_tokens);
        adopt(worker, slot, in);
    }
}

static void update(struct fake_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *in = &plan->updates[i];
        struct fake_slot *slot = slot_of(worker, in->ref);
        take_blocks(worker, slot, in->append_blocks, in->append_count, 0);
        slot->paused = in->pause || (slot->paused && !in->resume);
    }
}

static void draw(struct fake_worker *worker, uint32_t index) {
    struct fake_slot *slot = &worker->slots[index];
    attend(worker, slot);
    if (slot->known >= slot->len_max) {
        slot->decoding = false;
        return;
    }
    int32_t token = fake_worker_next(slot->tokens, slot->known, worker->limits.vocabulary);
    worker->rows[worker->row_count++] = (struct result_row){
        .ref = {index, slot->gen},
        .position = slot->known,
        .token = token,
    };
    slot->tokens[slot->known++] = token;
    slot->decoding = slot->known < slot->len_max;
}

void fake_worker_narrow(struct fake_worker *worker, const struct envelope *secret, int32_t poison) {
    worker->secret = *secret;
    worker->poison = poison;
}

uint64_t fake_worker_refusals(const struct fake_worker *worker) {
    return worker->refusals;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

// The step's size by another way than the controller's: from the rows that the plan would make.
static struct step_size size_of(const struct fake_worker *worker, const struct plan *plan,
                                bool *poisoned) {
    struct step_size size = {0};
    for (uint32_t i = 0; i < worker->limits.envelope.seqs; i++) {
        const struct fake_slot *slot = &worker->slots[i];
        bool runs = slot->live && slot->decoding && !slot->paused;
        for (uint32_t k = 0; k < plan->update_count; k++) {
            const struct plan_update *update = &plan->updates[k];
            if (update->ref.slot == i && (update->pause || update->resume)) {
                runs = slot->live && slot->decoding && update->resume;
            }
        }
        for (uint32_t k = 0; k < plan->retire_count; k++) {
            runs = runs && plan->retires[k].ref.slot != i;
        }
        if (runs) {
            size.seqs++;
            size.tokens++;
            size.logit_rows++;
            size.logprob_rows += slot->logprobs ? 1 : 0;
            size.attended_tokens += slot->len + 1;
            size.attended_tokens_max = larger(size.attended_tokens_max, slot->len + 1);
            *poisoned = *poisoned || slot->tokens[0] == worker->poison;
        }
    }
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        const struct fake_slot *slot = &worker->slots[chunk->ref.slot];
        uint32_t prompt = slot->prompt;
        uint32_t len_max = slot->len_max;
        bool logprobs = slot->logprobs, scores = slot->prompt_logprobs;
        for (uint32_t k = 0; k < plan->admit_count; k++) {
            const struct plan_admit *admit = &plan->admits[k];
            if (admit->ref.slot == chunk->ref.slot) {
                prompt = admit->prompt_tokens;
                len_max = admit->len_max;
                logprobs = admit->sampling.want_logprobs;
                scores = admit->sampling.want_prompt_logprobs;
            }
        }
        size.seqs++;
        size.tokens += chunk->token_count;
        uint32_t end = chunk->start_pos + chunk->token_count;
        size.attended_tokens += end;
        size.attended_tokens_max = larger(size.attended_tokens_max, end);
        for (uint32_t k = 0; k < chunk->token_count; k++) {
            uint32_t position = chunk->start_pos + k;
            bool ends = k + 1 == chunk->token_count && chunk->last;
            bool score = scores && !ends && position + 1 < prompt;
            bool draw = ends && position + 1 < len_max;
            size.logit_rows += score || draw ? 1 : 0;
            size.prompt_logit_rows += score ? 1 : 0;
            size.logprob_rows += score || (draw && logprobs) ? 1 : 0;
        }
        const int32_t *first = chunk->start_pos == 0 ? chunk->tokens : slot->tokens;
        *poisoned = *poisoned || first[0] == worker->poison;
    }
    return size;
}

static bool refuses(struct fake_worker *worker, const struct plan *plan) {
    bool poisoned = false;
    struct error err = {0};
    struct step_size size = size_of(worker, plan, &poisoned);
    ck_assert_msg(step_size_validate(&size, &worker->limits.envelope, &err) == STATUS_OK,
                  "a plan outside the envelope: %s", err.message);
    return poisoned || step_size_validate(&size, &worker->secret, NULL) != STATUS_OK;
}

void fake_worker_run(struct fake_worker *worker, const struct plan *plan, struct step_result *out) {
    struct error err = {0};
    ck_assert_msg(plan_validate(plan, &worker->limits, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(plan->epoch, worker->epoch);
    // Behind a refused plan others may be on their way.
    if (worker->refused && !plan_follows(plan, worker->applied)) {
        *out = (struct step_result){.group = plan->group,
                                    .epoch = plan->epoch,
                                    .seq = plan->seq,
                                    .status = RESULT_STATUS_GAP,
                                    .applied_seq = worker->applied,
                                    .message = "not the next one"};
        return;
    }
    ck_assert(plan_follows(plan, worker->applied));
    worker->refused = false;
    if (refuses(worker, plan)) {
        worker->refusals++;
        worker->refused = true;
        *out = (struct step_result){.group = plan->group,
                                    .epoch = plan->epoch,
                                    .seq = plan->seq,
                                    .status = RESULT_STATUS_REFUSED,
                                    .applied_seq = worker->applied,
                                    .message = "outside the envelope"};
        return;
    }
    worker->applied = plan->seq;
    worker->row_count = 0;
    move(worker, plan);
    retire(worker, plan);
    admit(worker, plan);
    update(worker, plan);
    uint32_t decode_rows = 0;
    for (uint32_t i = 0; i < worker->limits.envelope.seqs; i++) {
        struct fake_slot *slot = &worker->slots[i];
        if (slot->live && slot->decoding && !slot->paused) {
            compute(worker, slot, 1);
            decode_rows++;
            draw(worker, i);
        }
    }
    ck_assert_uint_eq(decode_rows, plan->decode_rows);
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        struct fake_slot *slot = slot_of(worker, chunk->ref);
        ck_assert_uint_eq(chunk->start_pos, slot->len);
        memcpy(slot->tokens + slot->len, chunk->tokens, chunk->token_count * sizeof(int32_t));
        compute(worker, slot, chunk->token_count);
        slot->known = slot->len;
        if (chunk->last) {
            draw(worker, chunk->ref.slot);
        }
    }
    resize(worker, plan);
    *out = (struct step_result){.group = plan->group,
                                .epoch = plan->epoch,
                                .seq = plan->seq,
                                .applied_seq = plan->seq,
                                .step_us = 1000,
                                .row_count = worker->row_count,
                                .rows = worker->rows,
                                .message = ""};
}
