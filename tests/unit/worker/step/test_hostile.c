// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a controller sends, the worker stays whole. A refused plan changes nothing, an
// accepted one stays inside the envelope and the pools, no plan allocates, and legal work goes on
// with the same bits. Method: a script of legal plans at the brim of a small envelope, and between
// its steps plans that were legal before one to three of their numbers were changed, on a real
// executor over memory with guard pages behind it and canaries before it. Also: blocks that move
// between steps keep every bit.
#include "common/hash.h"
#include "common/memory.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/step/executor.h"
#include "worker/step/tiles.h"
#include "worker/weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PLANS = 200000,
    SCRIPTS = 20,
    AFTER = 10,    // changed plans on top of one that was carried out
    PAGE = 4096,
    CANARY = 0xC5,
    SEQS = 4,
    TOKENS = 16,
    SEQ_TOKENS = 64,
    BLOCK = 16,
    BLOCKS_EACH = SEQ_TOKENS / BLOCK,
    SPARE = 3,    // blocks below all that the script uses
    BLOCKS = SPARE + SEQS * BLOCKS_EACH,
    VOCABULARY = 64,
    STEPS = 40,
    // What a message could bring, past every limit.
    LIST_CAP = SEQS + 4,
    MOVES_CAP = BLOCKS + 1,
    TOKENS_CAP = TOKENS + 9,
    BLOCKS_CAP = BLOCKS_EACH + 4,
    ROWS_CAP = TOKENS,
};

static const struct tiny_model model = {"llama", 2, 32, 32, 2, 1, 16, VOCABULARY, 128};

static const struct plan_limits limits = {.envelope = {.tokens = TOKENS,
                                                       .seqs = SEQS,
                                                       .seq_tokens = SEQ_TOKENS,
                                                       .logit_rows = 6,
                                                       .prompt_logit_rows = 5,
                                                       .blocks_per_seq = BLOCKS_EACH,
                                                       .logprob_rows = 5,
                                                       .attended_tokens_max = SEQ_TOKENS,
                                                       .attended_tokens = 110},
                                          .block_tokens = BLOCK,
                                          .kv_blocks = BLOCKS,
                                          .vocabulary = VOCABULARY};

// ---- memory with an end ------------------------------------------------------------------------

struct pool {
    uint8_t *map;    // canaries, then `base`, then a page that nobody may touch
    size_t open_bytes;
    uint8_t *base;
    size_t bytes;
};

static void pool_init(struct pool *pool, size_t bytes) {
    pool->bytes = (bytes + 63) / 64 * 64;
    pool->open_bytes = (pool->bytes + 64 + PAGE - 1) / PAGE * PAGE;
    pool->map = mmap(NULL, pool->open_bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(pool->map != MAP_FAILED);
    ck_assert_int_eq(mprotect(pool->map, pool->open_bytes, PROT_READ | PROT_WRITE), 0);
    pool->base = pool->map + pool->open_bytes - pool->bytes;
    memset(pool->map, CANARY, (size_t)(pool->base - pool->map));
}

static void pool_deinit(struct pool *pool) {
    munmap(pool->map, pool->open_bytes + PAGE);
}

static void pool_check(const struct pool *pool) {
    for (const uint8_t *at = pool->map; at < pool->base; at++) {
        if (*at != CANARY) {
            ck_abort_msg("a canary before a pool is dead");
        }
    }
}

// ---- the worker --------------------------------------------------------------------------------

enum { POOL_KV, POOL_HISTORY, POOL_STEP, POOL_WORKSPACE, POOL_WEIGHTS, POOL_COUNT };

struct worker {
    struct memory_ledger ledger;
    struct weights *weights;
    struct device *device;
    struct model *model;
    struct op_kv_layout kv;
    struct batch *batch;
    struct executor *executor;
    struct pool pools[POOL_COUNT];
};

static void create_executor(struct worker *w, const struct tiles *tiles, size_t workspace_bytes) {
    struct batch_options batch = {limits, w->pools[POOL_KV].base,
                                  (int32_t *)(void *)w->pools[POOL_HISTORY].base};
    ck_assert_int_eq(batch_create(&batch, w->pools[POOL_STEP].base, &w->batch, NULL), STATUS_OK);
    struct executor_options options = {
        .model = w->model,
        .ops = device_cpu.ops(w->device),
        .ctx = device_cpu.ctx(w->device),
        .kv = &w->kv,
        .batch = w->batch,
        .limits = limits,
        .workspace = w->pools[POOL_WORKSPACE].base,
        .workspace_bytes = workspace_bytes,
        .tiles = *tiles,
    };
    ck_assert_int_eq(executor_create(&options, &w->executor, NULL), STATUS_OK);
}

static void worker_init(struct worker *w) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/tare-test-hostile-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    memset(w, 0, sizeof *w);
    memory_ledger_init(&w->ledger, 1 << 30, 1 << 30);
    struct device_options device = {.thread_count = 1, .isa = "auto", .ledger = &w->ledger};
    ck_assert_int_eq(device_cpu.open(&device, &w->device, NULL), STATUS_OK);
    const struct ops *ops = device_cpu.ops(w->device);
    const struct op_ctx *ctx = device_cpu.ctx(w->device);
    ck_assert_int_eq(weights_open(path, &w->weights, NULL), STATUS_OK);
    remove(path);
    ck_assert_int_eq(
        model_create(w->weights, ops, (struct model_shard){0, 1}, SEQ_TOKENS, &w->model, NULL),
        STATUS_OK);
    model_kv_layout(w->model, DTYPE_F16, BLOCK, &w->kv);
    const struct tiles tiles = {4, 8, 8, 4};
    size_t workspace = executor_workspace_bytes(w->model, ops, ctx, &w->kv, &limits, &tiles);
    pool_init(&w->pools[POOL_KV], BLOCKS * w->kv.block_stride_bytes);
    pool_init(&w->pools[POOL_HISTORY], (size_t)SEQS * SEQ_TOKENS * sizeof(int32_t));
    pool_init(&w->pools[POOL_STEP], batch_step_bytes(&limits));
    pool_init(&w->pools[POOL_WORKSPACE], workspace);
    pool_init(&w->pools[POOL_WEIGHTS], model_bytes(w->model));
    model_bind(w->model, w->pools[POOL_WEIGHTS].base);
    model_load(w->model, w->weights, ctx, NULL, NULL);
    create_executor(w, &tiles, workspace);
}

static void worker_deinit(struct worker *w) {
    executor_destroy(w->executor);
    batch_destroy(w->batch);
    model_destroy(w->model);
    weights_close(w->weights);
    device_cpu.close(w->device);
    for (int i = 0; i < POOL_COUNT; i++) {
        pool_deinit(&w->pools[i]);
    }
}

// All that a refused plan must leave alone.
static uint64_t state_of(const struct worker *w) {
    uint64_t state = batch_digest(w->batch) ^ executor_applied_seq(w->executor);
    for (int i = POOL_KV; i <= POOL_STEP; i++) {
        state = hash_u64(state ^ hash_bytes(w->pools[i].base, w->pools[i].bytes));
    }
    return state;
}

// ---- plans as a message could bring them -------------------------------------------------------

struct parts {
    struct plan plan;
    struct plan_admit admits[LIST_CAP];
    struct plan_update updates[LIST_CAP];
    struct plan_retire retires[LIST_CAP];
    struct plan_prefill prefills[LIST_CAP];
    struct plan_move moves[MOVES_CAP];
    uint32_t admit_blocks[LIST_CAP][BLOCKS_CAP];
    uint32_t update_blocks[LIST_CAP][BLOCKS_CAP];
    int32_t tokens[LIST_CAP][TOKENS_CAP];
    struct token_bias bias[BOUND_LOGIT_BIAS + 1];
};

// Pointers into the parts themselves, and something in every place that a count may reach.
static void parts_bind(struct parts *p) {
    p->plan.admits = p->admits;
    p->plan.updates = p->updates;
    p->plan.retires = p->retires;
    p->plan.prefills = p->prefills;
    p->plan.moves = p->moves;
    for (uint32_t i = 0; i < LIST_CAP; i++) {
        p->admits[i].blocks = p->admit_blocks[i];
        p->admits[i].sampling.bias = p->bias;
        p->updates[i].append_blocks = p->update_blocks[i];
        p->prefills[i].tokens = p->tokens[i];
    }
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t below(struct rng *rng, uint32_t limit) {
    return (uint32_t)rng_below(rng, limit);
}

// ---- the script --------------------------------------------------------------------------------

struct sequence {
    bool live, scores, logprobs;
    uint32_t gen, prompt, len_max, length, blocks;
};

struct script {
    struct parts steps[STEPS];
    struct sequence sequences[SEQS];
    struct step_size size;
};

static bool fits(struct script *s, const struct step_share *share) {
    struct step_size size = s->size;
    step_size_add(&size, share);
    if (step_size_validate(&size, &limits.envelope, NULL) != STATUS_OK) {
        return false;
    }
    s->size = size;
    return true;
}

static void write_chunk(struct script *s, struct parts *p, struct rng *rng, uint32_t slot) {
    struct sequence *q = &s->sequences[slot];
    for (uint32_t count = 1 + below(rng, TOKENS); count > 0; count--) {
        struct step_chunk chunk = {q->length, count,      q->length + count == q->prompt,
                                   q->prompt, q->len_max, q->logprobs,
                                   q->scores};
        struct step_share share = step_share_chunk(&chunk);
        if (q->length + count > q->prompt || !fits(s, &share)) {
            continue;
        }
        uint32_t at = p->plan.prefill_count++;
        bool next = q->scores && !chunk.last;
        for (uint32_t i = 0; i < count; i++) {
            p->tokens[at][i] = (int32_t)below(rng, VOCABULARY);
        }
        p->prefills[at] = (struct plan_prefill){{slot, q->gen},
                                                q->length,
                                                count,
                                                p->tokens[at],
                                                next ? (int32_t)below(rng, VOCABULARY) : -1,
                                                chunk.last};
        q->length += count;
        return;
    }
}

static void write_admission(struct script *s, struct parts *p, struct rng *rng, uint32_t slot) {
    struct sequence *q = &s->sequences[slot];
    uint32_t prompt = 1 + below(rng, 40);
    *q = (struct sequence){.live = true,
                           .scores = below(rng, 3) == 0,
                           .logprobs = below(rng, 2) == 0,
                           .gen = q->gen + 1,
                           .prompt = prompt,
                           .len_max = prompt + 1 +
                                      (below(rng, 3) == 0 ? 0 : below(rng, SEQ_TOKENS - prompt)),
                           .blocks = (prompt + BLOCK - 1) / BLOCK};
    uint32_t at = p->plan.admit_count++;
    p->admits[at] = (struct plan_admit){
        .ref = {slot, q->gen},
        .prompt_tokens = prompt,
        .len_max = q->len_max,
        .block_count = q->blocks,
        .sampling = {.temperature = below(rng, 2) == 0 ? 0.0f : 0.8f,
                     .top_p = 0.9f,
                     .repetition_penalty = 1.1f,
                     .seed = rng_u64(rng),
                     .want_logprobs = q->logprobs,
                     .want_prompt_logprobs = q->scores,
                     .top_logprobs = below(rng, 3)},
    };
    for (uint32_t i = 0; i < BLOCKS_CAP; i++) {
        p->admit_blocks[at][i] = SPARE + slot * BLOCKS_EACH + i % BLOCKS_EACH;
    }
}

// A decoding sequence goes on, with a block where it needs one, or waits for a later step.
static void write_decode(struct script *s, struct parts *p, uint32_t slot) {
    struct sequence *q = &s->sequences[slot];
    struct step_share share = step_share_decode(q->length + 1, q->logprobs);
    uint32_t at = p->plan.update_count++;
    struct plan_update *update = &p->updates[at];
    *update = (struct plan_update){.ref = {slot, q->gen}};
    if (!fits(s, &share)) {
        update->pause = true;
        return;
    }
    update->resume = true;
    if (q->length == q->blocks * BLOCK) {
        update->append_count = 1;
        p->update_blocks[at][0] = SPARE + slot * BLOCKS_EACH + q->blocks++;
    }
    q->length++;
    p->plan.decode_rows++;
}

static void write_step(struct script *s, struct parts *p, struct rng *rng, uint64_t seq) {
    p->plan.epoch = 1;
    p->plan.seq = seq;
    s->size = (struct step_size){0};
    for (uint32_t slot = 0; slot < SEQS; slot++) {
        struct sequence *q = &s->sequences[slot];
        // The last token is drawn, and never computed.
        if (q->live && q->length + 1 >= q->len_max && q->length >= q->prompt) {
            p->retires[p->plan.retire_count++].ref = (struct slot_ref){slot, q->gen};
            q->live = false;
        } else if (q->live && q->length >= q->prompt) {
            write_decode(s, p, slot);
        }
    }
    for (uint32_t slot = 0; slot < SEQS; slot++) {
        struct sequence *q = &s->sequences[slot];
        if (!q->live) {
            write_admission(s, p, rng, slot);
        }
        if (q->length < q->prompt) {
            write_chunk(s, p, rng, slot);
        }
    }
    parts_bind(p);
}

// ---- changing a plan ---------------------------------------------------------------------------

static uint32_t wild(struct rng *rng, uint32_t value, uint32_t limit) {
    switch (below(rng, 7)) {
    case 0:
        return value + 1;
    case 1:
        return value - 1;
    case 2:
        return limit;
    case 3:
        return limit - 1;
    case 4:
        return UINT32_MAX - below(rng, 2);
    case 5:
        return below(rng, limit + 2);
    default:
        return (uint32_t)rng_u64(rng);
    }
}

static float wild_real(struct rng *rng) {
    static const float values[] = {0.0f,     -1.0f, 1e30f, -0.0f,  1.0f,
                                   INFINITY, NAN,   2.5f,  1e-38f, 100.0f};
    return values[below(rng, sizeof values / sizeof *values)];
}

static void change_sampling(struct sampling_params *s, struct rng *rng) {
    float *const reals[] = {
        &s->temperature,      &s->top_p, &s->min_p, &s->repetition_penalty, &s->presence_penalty,
        &s->frequency_penalty};
    switch (below(rng, 6)) {
    case 0:
        s->top_logprobs = wild(rng, s->top_logprobs, BOUND_LOGPROBS + 1);
        break;
    case 1:
        s->stop_token_count = below(rng, 2) == 0 ? BOUND_STOP_TOKENS + 1 : 1;
        s->stop_tokens[0] = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    case 2:
        s->bias_count = below(rng, 2) == 0 ? BOUND_LOGIT_BIAS + 1 : 2;
        break;
    case 3:
        s->want_prompt_logprobs = !s->want_prompt_logprobs;
        break;
    case 4:
        s->want_logprobs = !s->want_logprobs;
        s->top_k = wild(rng, s->top_k, VOCABULARY);
        break;
    default:
        *reals[below(rng, 6)] = wild_real(rng);
        break;
    }
}

static void change_ref(struct slot_ref *ref, struct rng *rng) {
    if (below(rng, 2) == 0) {
        ref->slot = wild(rng, ref->slot, SEQS);
    } else {
        ref->gen = wild(rng, ref->gen, ref->gen + 1);
    }
}

static void change_admit(struct parts *p, uint32_t i, struct rng *rng) {
    struct plan_admit *admit = &p->admits[i];
    switch (below(rng, 6)) {
    case 0:
        change_ref(&admit->ref, rng);
        break;
    case 1:
        admit->prompt_tokens = wild(rng, admit->prompt_tokens, SEQ_TOKENS);
        break;
    case 2:
        admit->len_max = wild(rng, admit->len_max, SEQ_TOKENS + 1);
        break;
    case 3:
        admit->block_count = below(rng, BLOCKS_CAP + 1);
        break;
    case 4:
        p->admit_blocks[i][below(rng, BLOCKS_CAP)] = wild(rng, 0, BLOCKS);
        break;
    default:
        change_sampling(&admit->sampling, rng);
        break;
    }
}

static void change_update(struct parts *p, uint32_t i, struct rng *rng) {
    struct plan_update *update = &p->updates[i];
    switch (below(rng, 5)) {
    case 0:
        change_ref(&update->ref, rng);
        break;
    case 1:
        update->append_count = below(rng, BLOCKS_CAP + 1);
        break;
    case 2:
        p->update_blocks[i][below(rng, BLOCKS_CAP)] = wild(rng, 0, BLOCKS);
        break;
    case 3:
        update->pause = !update->pause;
        break;
    default:
        update->resume = !update->resume;
        break;
    }
}

static void change_chunk(struct parts *p, uint32_t i, struct rng *rng) {
    struct plan_prefill *chunk = &p->prefills[i];
    switch (below(rng, 6)) {
    case 0:
        change_ref(&chunk->ref, rng);
        break;
    case 1:
        chunk->start_pos = wild(rng, chunk->start_pos, SEQ_TOKENS);
        break;
    case 2:
        chunk->token_count = below(rng, TOKENS_CAP + 1);
        break;
    case 3:
        p->tokens[i][below(rng, TOKENS_CAP)] = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    case 4:
        chunk->next_token = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    default:
        chunk->last = !chunk->last;
        break;
    }
}

// Moves out of nowhere: now and then one that a shrinking pool could have asked for.
static void change_moves(struct parts *p, struct rng *rng) {
    p->plan.move_count = 1 + below(rng, below(rng, 16) == 0 ? MOVES_CAP : 6);
    for (uint32_t i = 0; i < p->plan.move_count; i++) {
        uint32_t slot = below(rng, SEQS);
        p->moves[i] =
            (struct plan_move){.ref = {slot, 1 + below(rng, 3)},
                               .index = below(rng, BLOCKS_EACH + 1),
                               .block = below(rng, 2) == 0 ? below(rng, 4) : wild(rng, 0, BLOCKS)};
    }
    p->plan.kv_blocks = below(rng, 2) == 0 ? 0 : wild(rng, BLOCKS, BLOCKS);
}

// A list longer or shorter than it was; what it grows by are copies of its entries, or zeroes.
static void change_count(struct parts *p, struct rng *rng) {
    uint32_t *const counts[] = {&p->plan.admit_count, &p->plan.update_count, &p->plan.retire_count,
                                &p->plan.prefill_count};
    uint32_t to = below(rng, LIST_CAP);
    uint32_t from = below(rng, LIST_CAP);
    uint32_t list = below(rng, 4);
    switch (list) {
    case 0:
        p->admits[to] = p->admits[from];
        break;
    case 1:
        p->updates[to] = p->updates[from];
        break;
    case 2:
        p->retires[to] = p->retires[from];
        break;
    default:
        p->prefills[to] = p->prefills[from];
        break;
    }
    *counts[list] = below(rng, LIST_CAP + 1);
}

// A little more work, coherent with the slots: what is wrong with it, if anything, is the sum.
static void overload(struct parts *p, struct rng *rng) {
    struct plan *plan = &p->plan;
    for (uint32_t i = 0; i < plan->update_count; i++) {
        if (plan->updates[i].pause && below(rng, 2) == 0) {
            p->updates[i].pause = false;
            p->updates[i].resume = true;
            plan->decode_rows++;
            return;
        }
    }
    if (plan->prefill_count > 0) {
        uint32_t i = below(rng, plan->prefill_count);
        p->prefills[i].token_count = smaller(p->prefills[i].token_count + 1, TOKENS_CAP);
    }
}

static void change(struct parts *p, struct rng *rng) {
    struct plan *plan = &p->plan;
    uint32_t kind = below(rng, 18);
    if (kind >= 16) {
        change_moves(p, rng);
        return;
    }
    if (kind < 4 && plan->admit_count > 0) {
        change_admit(p, below(rng, plan->admit_count), rng);
    } else if (kind < 7 && plan->update_count > 0) {
        change_update(p, below(rng, plan->update_count), rng);
    } else if (kind < 11 && plan->prefill_count > 0) {
        change_chunk(p, below(rng, plan->prefill_count), rng);
    } else if (kind < 12 && plan->retire_count > 0) {
        change_ref(&p->retires[below(rng, plan->retire_count)].ref, rng);
    } else if (kind < 13) {
        plan->decode_rows = wild(rng, plan->decode_rows, SEQS + 1);
    } else if (kind < 14) {
        plan->seq = below(rng, 2) == 0 ? rng_u64(rng) : plan->seq + 1;
    } else if (kind < 15 && below(rng, 8) == 0) {
        plan->epoch = rng_u64(rng);
    } else {
        change_count(p, rng);
    }
}

// ---- judging what happened ---------------------------------------------------------------------

// check writes a line for every assertion that holds; here millions do.
#define MUST(claim) ((claim) ? (void)0 : ck_abort_msg("%s", #claim))

// What plans must have been refused for by the end.
static const char *const reasons[] = {
    "plan of another epoch",
    "plan goes on from another one",
    "admission into a used slot",
    "update of an unknown slot",
    "too many blocks for slot",
    "prompt chunk for a wrong slot",
    "prompt chunk of slot",
    "prompt of slot",
    "slot ",
    "block count",
    "block id",
    "len_max",
    "prompt_tokens",
    "end of a prompt chunk",
    "prompt token",
    "next prompt token",
    "decode rows",
    "retirement of an unknown slot",
    "rows of the step",
    "sequences of the step",
    "logit rows of the step",
    "logprob rows of the step",
    "prompt logit rows",
    "attended context of the step",
    "temperature",
    "top_p",
    "logit_bias count",

    "two moves share",
    "move in an unknown slot",
    "move of a block that is not",
    "a block moves to",
    "KV blocks asked for",
};
enum { REASON_COUNT = sizeof reasons / sizeof *reasons };

// Counted from the step's own arrays and its results, not as the worker counted.
static void check_step(const struct worker *w, const struct step_result *result) {
    const struct op_step *step = batch_step(w->batch);
    const struct envelope *e = &limits.envelope;
    MUST(step->row_count <= e->tokens);
    MUST(step->seq_count <= e->seqs);
    MUST(result->row_count <= e->logit_rows);
    uint32_t scores = 0, logprobs = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        scores += result->rows[i].is_prompt ? 1 : 0;
        logprobs += result->rows[i].has_logprob ? 1 : 0;
        MUST(result->rows[i].token >= 0);
        MUST(result->rows[i].token < VOCABULARY);
    }
    MUST(scores <= e->prompt_logit_rows);
    MUST(logprobs <= e->logprob_rows);
    uint64_t attended = 0;
    for (uint32_t s = 0; s < step->seq_count; s++) {
        uint32_t last = step->seq_row[s + 1] - 1;
        attended += step->position[last] + 1;
        MUST(step->position[last] < SEQ_TOKENS);
        for (uint32_t k = 0; k <= step->position[last] / BLOCK; k++) {
            MUST(step->block_table[s * step->block_table_stride + k] < BLOCKS);
        }
        for (uint32_t row = step->seq_row[s]; row <= last; row++) {
            MUST(step->token[row] >= 0);
            MUST(step->token[row] < VOCABULARY);
        }
    }
    MUST(attended <= e->attended_tokens);
}

struct bits {
    uint32_t row_count;
    struct {
        uint32_t slot, position, rank;
        int32_t token;
        float logprob;
        int32_t top_token;
        float top_logprob;
    } rows[ROWS_CAP];
};

static void take_bits(const struct step_result *result, struct bits *out) {
    memset(out, 0, sizeof *out);
    out->row_count = result->row_count;
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        out->rows[i].slot = row->ref.slot;
        out->rows[i].position = row->position;
        out->rows[i].rank = row->rank;
        out->rows[i].token = row->token;
        out->rows[i].logprob = row->logprob;
        out->rows[i].top_token = row->top_count > 0 ? row->top_tokens[0] : -1;
        out->rows[i].top_logprob = row->top_count > 0 ? row->top_logprobs[0] : 0.0f;
    }
}

static void run_legal(struct worker *w, const struct parts *step, struct bits *out) {
    struct step_result result;
    executor_run(w->executor, &step->plan, &result);
    if (result.status != RESULT_STATUS_OK) {
        ck_abort_msg("a legal plan is refused: %s", result.message);
    }
    check_step(w, &result);
    take_bits(&result, out);
}

// True when the changed plan was carried out.
static bool attack(struct worker *w, const struct parts *legal, struct parts *copy, struct rng *rng,
                   uint32_t seen[REASON_COUNT]) {
    *copy = *legal;
    parts_bind(copy);
    copy->plan.seq = executor_applied_seq(w->executor) + 1;
    if (below(rng, 4) == 0) {
        overload(copy, rng);
    } else {
        for (uint32_t changes = 1 + below(rng, 3); changes > 0; changes--) {
            change(copy, rng);
        }
    }
    uint64_t before = state_of(w);
    struct step_result result;
    executor_run(w->executor, &copy->plan, &result);
    if (result.status == RESULT_STATUS_OK) {
        check_step(w, &result);
        batch_audit(w->batch);
        return true;
    }
    MUST(result.row_count == 0);
    MUST(result.message[0] != '\0');
    if (state_of(w) != before) {
        ck_abort_msg("a refused plan left a trace: %s", result.message);
    }
    for (uint32_t i = 0; i < REASON_COUNT; i++) {
        seen[i] += strncmp(result.message, reasons[i], strlen(reasons[i])) == 0 ? 1 : 0;
    }
    return false;
}

struct tally {
    uint32_t refused, accepted, whole;
    uint32_t seen[REASON_COUNT];
};

static void replay(struct worker *w, const struct script *script, const struct bits *expected) {
    struct bits bits;
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        run_legal(w, &script->steps[i], &bits);
        MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
    }
}

// One pass over the script under attack. Once a changed plan was carried out the script no longer
// fits: some attacks more, then the pass is over.
static void run_pass(struct worker *w, const struct script *script, const struct bits *expected,
                     struct rng *rng, struct tally *tally) {
    static struct parts copy;
    struct bits bits;
    executor_reset(w->executor, 1);
    uint32_t left = AFTER;
    for (uint32_t i = 0; i < STEPS && left > 0; i++) {
        for (uint32_t tries = below(rng, 12); tries > 0 && left > 0; tries--) {
            bool taken = attack(w, &script->steps[i], &copy, rng, tally->seen);
            tally->accepted += taken ? 1 : 0;
            tally->refused += taken ? 0 : 1;
            left -= taken || left < AFTER ? 1 : 0;
        }
        if (left == AFTER) {
            run_legal(w, &script->steps[i], &bits);
            MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
            tally->whole++;
        }
    }
}

START_TEST(a_hostile_controller_cannot_break_a_worker) {
    static struct worker w;
    static struct bits expected[STEPS];
    static struct tally tally;
    worker_init(&w);
    uint64_t violations = memory_guard_violations();
    for (uint32_t seed = 1; seed <= SCRIPTS; seed++) {
        static struct script script;
        memset(&script, 0, sizeof script);
        struct rng rng;
        rng_init(&rng, seed);
        executor_reset(w.executor, 1);
        for (uint32_t i = 0; i < STEPS; i++) {
            write_step(&script, &script.steps[i], &rng, i + 1);
            run_legal(&w, &script.steps[i], &expected[i]);
        }
        while (tally.refused + tally.accepted < PLANS / SCRIPTS * seed) {
            run_pass(&w, &script, expected, &rng, &tally);
        }
        replay(&w, &script, expected);    // as if nothing had been
        for (int i = 0; i < POOL_COUNT; i++) {
            pool_check(&w.pools[i]);
        }
    }
    ck_assert_uint_ge(tally.refused + tally.accepted, PLANS);
    ck_assert_uint_gt(tally.accepted, 2000);
    ck_assert_uint_gt(tally.whole, 2000);
    for (uint32_t i = 0; i < REASON_COUNT; i++) {
        ck_assert_msg(tally.seen[i] > 0, "no plan was refused for '%s'", reasons[i]);
    }
    ck_assert_uint_eq(memory_guard_violations(), violations);
    worker_deinit(&w);
}
END_TEST

// ---- moving blocks -----------------------------------------------------------------------------

// Which block of which slot lies in each spare place: slot * BLOCKS_EACH + index, or NOBODY.
enum { NOBODY = UINT16_MAX };

static bool is_retired(const struct plan *plan, uint32_t slot) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        if (plan->retires[i].ref.slot == slot) {
            return true;
        }
    }
    return false;
}

// Moves a random block of a slot into each free spare place, now and then.
static void add_moves(struct parts *p, const uint32_t *held, const uint32_t *gens,
                      uint32_t spare[SPARE], struct rng *rng) {
    p->plan.move_count = 0;
    for (uint32_t place = 0; place < SPARE; place++) {
        uint32_t slot = below(rng, SEQS);
        if (spare[place] != NOBODY || held[slot] == 0 || is_retired(&p->plan, slot)) {
            continue;
        }
        uint32_t index = below(rng, held[slot]);
        bool there = false;
        for (uint32_t k = 0; k < SPARE; k++) {
            there = there || spare[k] == slot * BLOCKS_EACH + index;
        }
        if (!there) {
            spare[place] = slot * BLOCKS_EACH + index;
            p->moves[p->plan.move_count++] = (struct plan_move){{slot, gens[slot]}, index, place};
        }
    }
}

// What the worker holds after the plan.
static void follow(const struct plan *plan, uint32_t *held, uint32_t *gens, uint32_t spare[SPARE]) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        uint32_t slot = plan->retires[i].ref.slot;
        held[slot] = 0;
        for (uint32_t k = 0; k < SPARE; k++) {
            spare[k] = spare[k] / BLOCKS_EACH == slot ? NOBODY : spare[k];
        }
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        held[plan->admits[i].ref.slot] = plan->admits[i].block_count;
        gens[plan->admits[i].ref.slot] = plan->admits[i].ref.gen;
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        held[plan->updates[i].ref.slot] += plan->updates[i].append_count;
    }
}

static uint32_t run_moving(struct worker *w, struct script *script, uint64_t seed) {
    static struct bits expected[STEPS];
    struct bits bits;
    struct rng rng;
    uint32_t held[SEQS] = {0}, gens[SEQS] = {0}, spare[SPARE];
    uint32_t moved = 0;
    rng_init(&rng, seed);
    memset(script, 0, sizeof *script);
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        write_step(script, &script->steps[i], &rng, i + 1);
        run_legal(w, &script->steps[i], &expected[i]);
    }
    for (uint32_t k = 0; k < SPARE; k++) {
        spare[k] = NOBODY;
    }
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct parts *step = &script->steps[i];
        add_moves(step, held, gens, spare, &rng);
        run_legal(w, step, &bits);
        MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
        // Nobody reads the old places any more.
        struct batch_copies copies = batch_copies(w->batch);
        MUST(copies.count == step->plan.move_count);
        for (uint32_t k = 0; k < copies.count; k++) {
            size_t stride = w->kv.block_stride_bytes;
            memset(w->pools[POOL_KV].base + copies.from[k] * stride, 0x7C, stride);
        }
        moved += copies.count;
        follow(&step->plan, held, gens, spare);
    }
    return moved;
}

START_TEST(moved_blocks_keep_every_bit) {
    static struct worker w;
    static struct script script;
    uint32_t moved = 0;
    worker_init(&w);
    for (uint64_t seed = 1; seed <= 50; seed++) {
        moved += run_moving(&w, &script, seed);
    }
    ck_assert_uint_gt(moved, 150);
    worker_deinit(&w);
}
END_TEST

Suite *suite_hostile(void) {
    Suite *suite = suite_create("worker/step/hostile");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, a_hostile_controller_cannot_break_a_worker);
    tcase_add_test(tc, moved_blocks_keep_every_bit);
    suite_add_tcase(suite, tc);
    return suite;
}
