// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_worker.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include <string.h>

struct sim_slot {
    bool live, decoding, paused, scores, logprobs;
    bool ended;    // by itself: the controller learns it with the result
    uint32_t gen;
    uint32_t len;      // positions with KV
    uint32_t known;    // len, and one more while it decodes
    uint32_t prompt, len_max;
    uint64_t seed;
    uint64_t chain;       // after `known` tokens
    uint64_t last_seq;    // the last plan with a row of it
    uint32_t block_count;
    uint32_t *blocks;    // [blocks_per_seq]
};

struct sim_block {
    uint32_t holders;
    uint32_t filled;         // positions
    uint64_t start, end;     // chain before the first, after the last filled position
    uint64_t touched_seq;    // the last plan with a row of a sequence that gave it up
    uint64_t writer;         // id of the sequence that computed it
};

struct sim_worker {
    struct sim_worker_options options;
    struct sim_worker_listener listener;
    struct message_capacity capacity;
    struct plan_limits limits;    // with the pool as it is
    uint64_t epoch, applied;
    struct sim_slot *slots;      // [seqs]
    struct sim_block *blocks;    // [options.limits.kv_blocks]
    uint32_t *ids;               // [seqs, blocks_per_seq]
    uint32_t slots_used;         // slots at and above this were never used in the epoch
    uint32_t live, blocks_held;
    uint32_t rows_max;    // a plan may have, 0: what the envelope says
    uint32_t chunk_blocks;
    double slow;
    struct rng rng;
    struct sim_step last;
    struct step_size size;      // of the plan being carried out
    double pairs, contexts;     // of the cost model
    uint64_t completed_seq;     // the controller knew of
    struct result_row *rows;    // the caller's
    uint32_t row_count;
};

// ---- tokens ------------------------------------------------------------------------------------

enum { SEED_ID_BITS = 40, SEED_LENGTH_BITS = 20 };

uint64_t sim_seed(uint64_t id, uint32_t natural_length, bool poison) {
    SIM_CHECK(id < 1ull << SEED_ID_BITS && natural_length < 1u << SEED_LENGTH_BITS,
              "a sequence does not fit its seed");
    return id | (uint64_t)natural_length << SEED_ID_BITS | (uint64_t)poison << 63;
}

uint64_t sim_seed_id(uint64_t seed) {
    return seed & ((1ull << SEED_ID_BITS) - 1);
}

uint32_t sim_seed_natural_length(uint64_t seed) {
    return (uint32_t)(seed >> SEED_ID_BITS) & ((1u << SEED_LENGTH_BITS) - 1);
}

bool sim_seed_poison(uint64_t seed) {
    return seed >> 63 != 0;
}

int32_t sim_next_token(uint64_t chain, uint32_t index, uint64_t seed) {
    if (index + 1 == sim_seed_natural_length(seed)) {
        return SIM_TOKEN_END;
    }
    return (int32_t)(1 + (chain >> 20) % (SIM_VOCABULARY - 1));
}

// ---- life cycle --------------------------------------------------------------------------------

struct sim_worker *sim_worker_create(const struct sim_worker_options *options) {
    const struct envelope *e = &options->limits.envelope;
    struct sim_worker *worker = memory_zalloc(sizeof *worker);
    SIM_CHECK(worker != NULL, "no memory for a worker");
    worker->options = *options;
    worker->slots = memory_array(e->seqs, sizeof *worker->slots);
    worker->blocks = memory_array(options->limits.kv_blocks, sizeof *worker->blocks);
    worker->ids = memory_array((size_t)e->seqs * e->blocks_per_seq, sizeof *worker->ids);
    SIM_CHECK(worker->slots && worker->blocks && worker->ids, "no memory for a worker's tables");
    worker->chunk_blocks = 1;
    worker->slow = 1.0;
    rng_init(&worker->rng, options->seed);
    sim_worker_reset(worker, 0, options->limits.kv_blocks);
    return worker;
}

void sim_worker_destroy(struct sim_worker *worker) {
    if (worker != NULL) {
        memory_free(worker->slots);
        memory_free(worker->blocks);
        memory_free(worker->ids);
        memory_free(worker);
    }
}

static void set_pool(struct sim_worker *worker, uint32_t kv_blocks) {
    worker->limits.kv_blocks = kv_blocks;
    worker->capacity = (struct message_capacity){
        .envelope = worker->limits.envelope,
        .block_tokens = worker->limits.block_tokens,
        .kv_blocks = kv_blocks,
        .vocabulary = worker->limits.vocabulary,
        .kv_bytes_per_token = 1,
        .kv_dtype = "none",
        .threads = 1,
    };
}

void sim_worker_resume(struct sim_worker *worker, uint64_t epoch) {
    worker->epoch = epoch;
    worker->applied = 0;
    memset(worker->slots, 0, worker->slots_used * sizeof *worker->slots);
    worker->slots_used = 0;
    worker->live = 0;
    worker->blocks_held = 0;
    for (uint32_t i = 0; i < worker->options.limits.kv_blocks; i++) {
        worker->blocks[i].holders = 0;
        worker->blocks[i].touched_seq = 0;
    }
}

void sim_worker_reset(struct sim_worker *worker, uint64_t epoch, uint32_t kv_blocks) {
    SIM_CHECK(kv_blocks <= worker->options.limits.kv_blocks, "a pool above its table");
    sim_worker_resume(worker, epoch);
    worker->limits = worker->options.limits;
    memset(worker->blocks, 0, worker->options.limits.kv_blocks * sizeof *worker->blocks);
    set_pool(worker, kv_blocks);
}

void sim_worker_narrow(struct sim_worker *worker, uint32_t rows_max) {
    worker->rows_max = rows_max;
}

void sim_worker_slow(struct sim_worker *worker, double factor) {
    worker->slow = factor;
}

void sim_worker_chunk(struct sim_worker *worker, uint32_t chunk_blocks) {
    worker->chunk_blocks = chunk_blocks;
}

void sim_worker_listen(struct sim_worker *worker, const struct sim_worker_listener *listener) {
    worker->listener = *listener;
}

uint32_t sim_worker_rows_max(const struct sim_worker *worker) {
    return worker->options.limits.envelope.logit_rows;
}

// ---- blocks ------------------------------------------------------------------------------------

static struct sim_block *block_at(struct sim_worker *worker, uint32_t id) {
    SIM_CHECK(id < worker->limits.kv_blocks, "block %u lies outside the pool", id);
    return &worker->blocks[id];
}

static struct sim_slot *slot_of(struct sim_worker *worker, struct slot_ref ref) {
    SIM_CHECK(ref.slot < worker->limits.envelope.seqs, "plan names slot %u", ref.slot);
    struct sim_slot *slot = &worker->slots[ref.slot];
    SIM_CHECK(slot->live && slot->gen == ref.gen, "plan names slot %u gen %u", ref.slot, ref.gen);
    return slot;
}

static void hold(struct sim_worker *worker, struct sim_block *block) {
    worker->blocks_held += block->holders == 0 ? 1 : 0;
    block->holders++;
}

static void let_go(struct sim_worker *worker, struct sim_block *block) {
    SIM_CHECK(block->holders > 0, "a block is given up that nobody holds");
    block->holders--;
    worker->blocks_held -= block->holders == 0 ? 1 : 0;
}

// A block for one sequence alone: nobody may hold it, and no plan in flight may touch it.
static void claim(struct sim_worker *worker, uint32_t id) {
    struct sim_block *block = block_at(worker, id);
    SIM_CHECK(block->holders == 0, "block %u is used twice", id);
    SIM_CHECK(block->touched_seq <= worker->completed_seq,
              "block %u is handed out by plan %llu while plan %llu may still touch it", id,
              (unsigned long long)worker->applied + 1, (unsigned long long)block->touched_seq);
    hold(worker, block);
    block->filled = 0;
}

static void take_blocks(struct sim_worker *worker, struct sim_slot *slot, const uint32_t *ids,
                        uint32_t count, uint32_t shared) {
    SIM_CHECK(slot->block_count + count <= worker->limits.envelope.blocks_per_seq,
              "a sequence of more blocks than the longest");
    for (uint32_t i = 0; i < count; i++) {
        if (i < shared) {
            hold(worker, block_at(worker, ids[i]));
        } else {
            claim(worker, ids[i]);
        }
        slot->blocks[slot->block_count++] = ids[i];
    }
}

// One more position of a sequence: its block must hold what came before.
static void write_kv(struct sim_worker *worker, struct sim_slot *slot, uint64_t before,
                     uint64_t after) {
    uint32_t block_tokens = worker->limits.block_tokens;
    uint32_t index = slot->len / block_tokens;
    uint32_t at = slot->len % block_tokens;
    SIM_CHECK(index < slot->block_count, "position %u has no block", slot->len);
    struct sim_block *block = block_at(worker, slot->blocks[index]);
    SIM_CHECK(block->holders == 1, "block %u is written and held %u times", slot->blocks[index],
              block->holders);
    SIM_CHECK(block->filled == at, "block %u has %u positions, not %u", slot->blocks[index],
              block->filled, at);
    if (at == 0) {
        block->start = before;
        block->writer = sim_seed_id(slot->seed);
    } else {
        SIM_CHECK(block->end == before, "block %u has lost its contents", slot->blocks[index]);
    }
    block->filled = at + 1;
    block->end = after;
    slot->len++;
}

// Block `index` of a sequence continues the one before it.
static void check_block(struct sim_worker *worker, const struct sim_slot *slot, uint32_t index) {
    const struct sim_block *block = block_at(worker, slot->blocks[index]);
    uint32_t block_tokens = worker->limits.block_tokens;
    uint32_t filled = slot->len - index * block_tokens;
    filled = filled < block_tokens ? filled : block_tokens;
    uint64_t start = index == 0 ? 0 : block_at(worker, slot->blocks[index - 1])->end;
    SIM_CHECK(block->holders > 0 && block->filled == filled && block->start == start,
              "block %u of a sequence (id %u) does not continue it", index, slot->blocks[index]);
}

static void check_sequence(struct sim_worker *worker, const struct sim_slot *slot) {
    uint32_t block_tokens = worker->limits.block_tokens;
    for (uint32_t i = 0; i * block_tokens < slot->len; i++) {
        check_block(worker, slot, i);
    }
}

// ---- a plan's changes --------------------------------------------------------------------------

static void move_blocks(struct sim_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *in = &plan->moves[i];
        struct sim_slot *slot = slot_of(worker, in->ref);
        SIM_CHECK(in->index < slot->block_count && in->block < slot->blocks[in->index],
                  "a move that does not go down");
        bool again = i > 0 && plan->moves[i - 1].block == in->block;    // of a shared block
        struct sim_block *from = block_at(worker, slot->blocks[in->index]);
        struct sim_block *to = block_at(worker, in->block);
        if (again) {
            SIM_CHECK(to->start == from->start && to->end == from->end, "a move of another block");
            hold(worker, to);
        } else {
            claim(worker, in->block);
            to->start = from->start;
            to->end = from->end;
            to->filled = from->filled;
            to->writer = from->writer;
        }
        let_go(worker, from);
        from->touched_seq = plan->seq;
        slot->blocks[in->index] = in->block;
    }
}

static void retire(struct sim_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        struct sim_slot *slot = slot_of(worker, plan->retires[i].ref);
        check_sequence(worker, slot);
        for (uint32_t k = 0; k < slot->block_count; k++) {
            struct sim_block *block = block_at(worker, slot->blocks[k]);
            let_go(worker, block);
            if (block->touched_seq < slot->last_seq) {
                block->touched_seq = slot->last_seq;
            }
        }
        slot->live = false;
        slot->decoding = false;
        worker->live--;
    }
}

// The last block of a sequence that goes on from an epoch before has so many positions, and perhaps
// some behind them of a step whose result was lost.
static void adopt_part(struct sim_worker *worker, struct sim_slot *slot, uint32_t filled) {
    if (filled == 0) {
        return;
    }
    uint64_t id = sim_seed_id(slot->seed);
    const int32_t *tokens = worker->listener.tokens(worker->listener.ctx, id) + slot->len;
    struct sim_block *block =
        block_at(worker, slot->blocks[slot->len / worker->limits.block_tokens]);
    SIM_CHECK(block->holders == 1 && block->filled >= filled && block->start == slot->chain,
              "a block of request %llu does not continue it", (unsigned long long)id);
    for (uint32_t i = 0; i < filled; i++) {
        slot->chain = sim_chain(slot->chain, tokens[i]);
    }
    SIM_CHECK(block->filled > filled || block->end == slot->chain,
              "a block of request %llu has lost its contents", (unsigned long long)id);
    block->filled = filled;
    block->end = slot->chain;
    block->writer = id;
}

// The sequence begins with what stands in its first blocks.
static void adopt(struct sim_worker *worker, struct sim_slot *slot, const struct plan_admit *in) {
    uint32_t block_tokens = worker->limits.block_tokens;
    uint64_t id = sim_seed_id(slot->seed);
    SIM_CHECK(in->cached_tokens < slot->len_max, "more is shared than the sequence has");
    slot->chain = 0;
    for (uint32_t i = 0; i < in->cached_tokens / block_tokens; i++) {
        const struct sim_block *block = block_at(worker, slot->blocks[i]);
        slot->len = (i + 1) * block_tokens;
        check_block(worker, slot, i);
        slot->chain = block->end;
        if (block->writer != id) {
            worker->listener.shares(worker->listener.ctx, id, block->writer);
        }
    }
    adopt_part(worker, slot, in->cached_tokens % block_tokens);
    slot->len = in->cached_tokens;
    slot->known = in->cached_tokens;
    uint64_t history = 0;
    for (uint32_t i = 0; i < in->history_count; i++) {
        history = sim_chain(history, in->history[i]);
    }
    uint32_t due = sampling_uses_history(&in->sampling) ? in->cached_tokens : 0;
    SIM_CHECK(in->history_count == due && (due == 0 || history == slot->chain),
              "a history that is not the shared beginning");
}

static void admit(struct sim_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *in = &plan->admits[i];
        struct sim_slot *slot = &worker->slots[in->ref.slot];
        SIM_CHECK(!slot->live, "slot %u is admitted twice", in->ref.slot);
        SIM_CHECK(in->ref.gen != slot->gen, "slot %u gen %u comes again", in->ref.slot, slot->gen);
        *slot = (struct sim_slot){
            .live = true,
            .gen = in->ref.gen,
            .len_max = in->len_max,
            .prompt = in->prompt_tokens,
            .seed = in->sampling.seed,
            .scores = in->sampling.want_prompt_logprobs,
            .logprobs = in->sampling.want_logprobs,
            .blocks = worker->ids + (size_t)in->ref.slot * worker->limits.envelope.blocks_per_seq,
        };
        worker->live++;
        if (in->ref.slot >= worker->slots_used) {
            worker->slots_used = in->ref.slot + 1;
        }
        uint32_t block_tokens = worker->limits.block_tokens;
        take_blocks(worker, slot, in->blocks, in->block_count,
                    (in->cached_tokens + block_tokens - 1) / block_tokens);
        adopt(worker, slot, in);
        worker->listener.admitted(worker->listener.ctx, sim_seed_id(slot->seed), in->cached_tokens);
    }
}

static void update(struct sim_worker *worker, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *in = &plan->updates[i];
        struct sim_slot *slot = slot_of(worker, in->ref);
        take_blocks(worker, slot, in->append_blocks, in->append_count, 0);
        slot->paused = in->pause || (slot->paused && !in->resume);
    }
}

// ---- a plan's rows -----------------------------------------------------------------------------

static struct result_row *add_row(struct sim_worker *worker, uint32_t slot, uint32_t position,
                                  int32_t token) {
    SIM_CHECK(worker->row_count < sim_worker_rows_max(worker), "more result rows than logit rows");
    struct result_row *row = &worker->rows[worker->row_count++];
    *row = (struct result_row){
        .ref = {slot, worker->slots[slot].gen}, .position = position, .token = token};
    return row;
}

static void draw(struct sim_worker *worker, uint32_t index) {
    struct sim_slot *slot = &worker->slots[index];
    slot->decoding = false;
    if (slot->known >= slot->len_max) {
        return;
    }
    int32_t token = sim_next_token(slot->chain, slot->known - slot->prompt, slot->seed);
    struct result_row *row = add_row(worker, index, slot->known, token);
    row->has_logprob = slot->logprobs;
    row->rank = slot->logprobs ? 1 : 0;
    worker->size.logit_rows++;
    worker->size.logprob_rows += slot->logprobs ? 1 : 0;
    // The drawn token is an input of the next step.
    slot->chain = sim_chain(slot->chain, token);
    slot->known++;
    slot->ended = token == SIM_TOKEN_END;
    slot->decoding = slot->known < slot->len_max && !slot->ended;
}

static void attend(struct sim_worker *worker, const struct sim_slot *slot, uint32_t tokens) {
    struct step_size *size = &worker->size;
    size->seqs++;
    size->tokens += tokens;
    size->attended_tokens += slot->len;
    if (size->attended_tokens_max < slot->len) {
        size->attended_tokens_max = slot->len;
    }
}

static void decode(struct sim_worker *worker, const struct plan *plan) {
    uint32_t ended = 0;
    for (uint32_t i = 0; i < worker->slots_used; i++) {
        struct sim_slot *slot = &worker->slots[i];
        if (!slot->decoding || slot->paused) {
            ended += slot->live && slot->ended && !slot->paused ? 1 : 0;
            continue;
        }
        uint64_t after = slot->chain;
        uint32_t at = slot->len % worker->limits.block_tokens;
        uint32_t block = slot->len / worker->limits.block_tokens;
        SIM_CHECK(block < slot->block_count, "position %u has no block", slot->len);
        // The chain before the input token is what its block, or the one before, ends with.
        uint32_t before = at > 0 ? block : block - 1;
        write_kv(worker, slot, worker->blocks[slot->blocks[before]].end, after);
        // One of its blocks in turn, so that each is looked at again and again.
        check_block(worker, slot, (uint32_t)(plan->seq % (block + 1)));
        slot->last_seq = plan->seq;
        attend(worker, slot, 1);
        worker->contexts += slot->len;
        worker->last.decode_rows++;
        draw(worker, i);
    }
    uint32_t rows = worker->last.decode_rows;
    SIM_CHECK(rows <= plan->decode_rows && plan->decode_rows <= rows + ended,
              "%u rows decode and %u have ended, the plan says %u", rows, ended, plan->decode_rows);
    worker->last.idle_rows = plan->decode_rows - rows;
}

static void compute_chunk(struct sim_worker *worker, const struct plan_prefill *chunk,
                          uint64_t seq) {
    struct sim_slot *slot = slot_of(worker, chunk->ref);
    SIM_CHECK(!slot->decoding, "a chunk of a sequence that decodes");
    SIM_CHECK(chunk->start_pos == slot->len && chunk->token_count > 0,
              "a chunk from %u where %u positions are computed", chunk->start_pos, slot->len);
    worker->pairs += (double)chunk->token_count * (slot->len + 0.5 * chunk->token_count);
    for (uint32_t i = 0; i < chunk->token_count; i++) {
        uint64_t after = sim_chain(slot->chain, chunk->tokens[i]);
        write_kv(worker, slot, slot->chain, after);
        slot->chain = after;
        slot->known = slot->len;
        bool last_row = i + 1 == chunk->token_count;
        if (slot->scores && slot->len < slot->prompt && !(last_row && chunk->last)) {
            int32_t scored = last_row ? chunk->next_token : chunk->tokens[i + 1];
            struct result_row *row = add_row(worker, chunk->ref.slot, slot->len, scored);
            row->is_prompt = true;
            row->has_logprob = true;
            row->rank = 1;
            worker->size.logit_rows++;
            worker->size.prompt_logit_rows++;
            worker->size.logprob_rows++;
        }
    }
    slot->last_seq = seq;
    attend(worker, slot, chunk->token_count);
    worker->last.prefill_tokens += chunk->token_count;
    worker->listener.computed(worker->listener.ctx, sim_seed_id(slot->seed), chunk->token_count);
    if (chunk->last) {
        SIM_CHECK(slot->len >= slot->prompt, "the last chunk ends before the prompt");
        check_sequence(worker, slot);
        draw(worker, chunk->ref.slot);
    }
}

// Whole chunks, and never under somebody's feet.
static void resize(struct sim_worker *worker, const struct plan *plan) {
    if (plan->kv_blocks == 0) {
        return;
    }
    uint32_t chunk = worker->chunk_blocks;
    uint32_t blocks = (plan->kv_blocks + chunk - 1) / chunk * chunk;
    if (blocks > worker->options.limits.kv_blocks) {
        blocks = worker->limits.kv_blocks;
    }
    for (uint32_t i = plan->kv_blocks; i < worker->limits.kv_blocks; i++) {
        SIM_CHECK(worker->blocks[i].holders == 0, "block %u is unmapped while in use", i);
    }
    set_pool(worker, blocks);
    worker->last.resized = true;
}

static uint32_t step_us(struct sim_worker *worker) {
    const struct sim_cost *cost = &worker->options.cost;
    double us = cost->step_us + cost->prefill_token_us * worker->last.prefill_tokens +
                cost->decode_row_us * worker->last.decode_rows +
                cost->prefill_pair_us * worker->pairs + cost->decode_context_us * worker->contexts;
    us *= worker->slow * (1.0 + cost->noise * (2.0 * rng_unit(&worker->rng) - 1.0));
    return us < 1.0 ? 1 : (uint32_t)us;
}

static bool refuses(const struct sim_worker *worker, const struct plan *plan) {
    uint32_t rows = plan->decode_rows;
    bool poison = false;
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        uint64_t seed = worker->slots[chunk->ref.slot].seed;
        for (uint32_t k = 0; k < plan->admit_count; k++) {
            if (plan->admits[k].ref.slot == chunk->ref.slot) {
                seed = plan->admits[k].sampling.seed;
            }
        }
        rows += chunk->token_count;
        poison = poison || sim_seed_poison(seed);
    }
    return poison || (worker->rows_max > 0 && rows > worker->rows_max);
}

static void answer(const struct sim_worker *worker, const struct plan *plan,
                   enum result_status status, struct step_result *out) {
    *out = (struct step_result){
        .group = plan->group,
        .epoch = plan->epoch,
        .seq = plan->seq,
        .status = status,
        .applied_seq = worker->applied,
        .rows = worker->rows,
        .message = status == RESULT_STATUS_OK ? "" : "simulated",
    };
}

void sim_worker_run(struct sim_worker *worker, const struct plan *plan, uint64_t completed_seq,
                    struct result_row *rows, struct step_result *out) {
    struct error err = {0};
    enum status valid = plan_validate(plan, &worker->limits, &err);
    SIM_CHECK(valid == STATUS_OK, "an invalid plan: %s", err.message);
    SIM_CHECK(plan->epoch == worker->epoch, "a plan of another epoch");
    worker->last = (struct sim_step){0};
    worker->size = (struct step_size){0};
    worker->pairs = 0;
    worker->contexts = 0;
    worker->row_count = 0;
    worker->rows = rows;
    worker->completed_seq = completed_seq;
    if (!plan_follows(plan, worker->applied)) {
        answer(worker, plan, RESULT_STATUS_GAP, out);
        return;
    }
    if (refuses(worker, plan)) {
        answer(worker, plan, RESULT_STATUS_REFUSED, out);
        return;
    }
    move_blocks(worker, plan);
    retire(worker, plan);
    admit(worker, plan);
    update(worker, plan);
    decode(worker, plan);
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        compute_chunk(worker, &plan->prefills[i], plan->seq);
    }
    enum status fits = step_size_validate(&worker->size, &worker->limits.envelope, &err);
    SIM_CHECK(fits == STATUS_OK, "a plan outside the envelope: %s", err.message);
    resize(worker, plan);
    worker->applied = plan->seq;
    worker->last.seqs = worker->size.seqs;
    answer(worker, plan, RESULT_STATUS_OK, out);
    out->step_us = step_us(worker);
    out->row_count = worker->row_count;
    for (uint32_t i = 0; i < worker->row_count; i++) {
        out->digest = sim_chain(out->digest ^ rows[i].position, rows[i].token);
    }
}

// ---- queries -----------------------------------------------------------------------------------

const struct sim_step *sim_worker_last(const struct sim_worker *worker) {
    return &worker->last;
}

const struct message_capacity *sim_worker_capacity(const struct sim_worker *worker) {
    return &worker->capacity;
}

uint32_t sim_worker_blocks_held(const struct sim_worker *worker) {
    return worker->blocks_held;
}

uint32_t sim_worker_live(const struct sim_worker *worker) {
    return worker->live;
}

uint32_t sim_worker_ids(const struct sim_worker *worker, uint64_t *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < worker->slots_used; i++) {
        if (worker->slots[i].live) {
            out[count++] = sim_seed_id(worker->slots[i].seed);
        }
    }
    return count;
}

void sim_worker_audit(const struct sim_worker *worker) {
    uint64_t holders = 0;
    uint64_t holdings = 0;
    uint32_t held = 0;
    uint32_t live = 0;
    for (uint32_t i = 0; i < worker->options.limits.kv_blocks; i++) {
        holders += worker->blocks[i].holders;
        held += worker->blocks[i].holders > 0 ? 1 : 0;
    }
    for (uint32_t i = 0; i < worker->slots_used; i++) {
        live += worker->slots[i].live ? 1 : 0;
        holdings += worker->slots[i].live ? worker->slots[i].block_count : 0;
    }
    SIM_CHECK(holders == holdings, "blocks are held %llu times, sequences name %llu",
              (unsigned long long)holders, (unsigned long long)holdings);
    SIM_CHECK(held == worker->blocks_held && live == worker->live, "a worker's counts are wrong");
}
