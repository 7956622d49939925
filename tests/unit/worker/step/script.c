// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/step/script.h"

#include "tests/support/tiny_model.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, CANARY = 0xC5 };

static const struct tiny_model model = {"llama", 2, 32, 32, 2, 1, 16, VOCABULARY, 128};

const struct plan_limits script_limits = {.envelope = {.tokens = TOKENS,
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

static void pool_init(struct script_pool *pool, size_t bytes) {
    pool->bytes = (bytes + 63) / 64 * 64;
    pool->open_bytes = (pool->bytes + 64 + PAGE - 1) / PAGE * PAGE;
    pool->map = mmap(NULL, pool->open_bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(pool->map != MAP_FAILED);
    ck_assert_int_eq(mprotect(pool->map, pool->open_bytes, PROT_READ | PROT_WRITE), 0);
    pool->base = pool->map + pool->open_bytes - pool->bytes;
    memset(pool->map, CANARY, (size_t)(pool->base - pool->map));
}

static void pool_deinit(struct script_pool *pool) {
    munmap(pool->map, pool->open_bytes + PAGE);
}

static void pool_check(const struct script_pool *pool) {
    for (const uint8_t *at = pool->map; at < pool->base; at++) {
        if (*at != CANARY) {
            ck_abort_msg("a canary before a pool is dead");
        }
    }
}

// ---- the worker --------------------------------------------------------------------------------

static void create_executor(struct script_worker *w, const struct tiles *tiles,
                            size_t workspace_bytes) {
    struct batch_options batch = {script_limits, w->pools[POOL_KV].base,
                                  (int32_t *)(void *)w->pools[POOL_HISTORY].base};
    ck_assert_int_eq(batch_create(&batch, w->pools[POOL_STEP].base, &w->batch, NULL), STATUS_OK);
    struct executor_options options = {
        .model = w->model,
        .ops = device_cpu.ops(w->device),
        .ctx = device_cpu.ctx(w->device),
        .kv = &w->kv,
        .batch = w->batch,
        .limits = script_limits,
        .workspace = w->pools[POOL_WORKSPACE].base,
        .workspace_bytes = workspace_bytes,
        .tiles = *tiles,
    };
    ck_assert_int_eq(executor_create(&options, &w->executor, NULL), STATUS_OK);
}

void script_worker_init(struct script_worker *w) {
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
    size_t workspace = executor_workspace_bytes(w->model, ops, ctx, &w->kv, &script_limits, &tiles);
    pool_init(&w->pools[POOL_KV], BLOCKS * w->kv.block_stride_bytes);
    pool_init(&w->pools[POOL_HISTORY], (size_t)SEQS * SEQ_TOKENS * sizeof(int32_t));
    pool_init(&w->pools[POOL_STEP], batch_step_bytes(&script_limits));
    pool_init(&w->pools[POOL_WORKSPACE], workspace);
    pool_init(&w->pools[POOL_WEIGHTS], model_bytes(w->model));
    model_bind(w->model, w->pools[POOL_WEIGHTS].base);
    model_load(w->model, w->weights, ctx, NULL, NULL);
    create_executor(w, &tiles, workspace);
}

void script_worker_deinit(struct script_worker *w) {
    executor_destroy(w->executor);
    batch_destroy(w->batch);
    model_destroy(w->model);
    weights_close(w->weights);
    device_cpu.close(w->device);
    for (int i = 0; i < POOL_COUNT; i++) {
        pool_deinit(&w->pools[i]);
    }
}

void script_worker_check(const struct script_worker *w) {
    for (int i = 0; i < POOL_COUNT; i++) {
        pool_check(&w->pools[i]);
    }
}

// ---- the script --------------------------------------------------------------------------------

static uint32_t below(struct rng *rng, uint32_t limit) {
    return (uint32_t)rng_below(rng, limit);
}

void script_parts_bind(struct script_parts *p) {
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

static bool fits(struct script *s, const struct step_share *share) {
    struct step_size size = s->size;
    step_size_add(&size, share);
    if (step_size_validate(&size, &script_limits.envelope, NULL) != STATUS_OK) {
        return false;
    }
    s->size = size;
    return true;
}

static void write_chunk(struct script *s, struct script_parts *p, struct rng *rng, uint32_t slot) {
    struct script_sequence *q = &s->sequences[slot];
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

static void write_admission(struct script *s, struct script_parts *p, struct rng *rng,
                            uint32_t slot) {
    struct script_sequence *q = &s->sequences[slot];
    uint32_t prompt = 1 + below(rng, 40);
    *q = (struct script_sequence){
        .live = true,
        .scores = below(rng, 3) == 0,
        .logprobs = below(rng, 2) == 0,
        .gen = q->gen + 1,
        .prompt = prompt,
        .len_max = prompt + 1 + (below(rng, 3) == 0 ? 0 : below(rng, SEQ_TOKENS - prompt)),
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
static void write_decode(struct script *s, struct script_parts *p, uint32_t slot) {
    struct script_sequence *q = &s->sequences[slot];
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

void script_write(struct script *s, struct script_parts *p, struct rng *rng, uint64_t seq) {
    p->plan.epoch = 1;
    p->plan.seq = seq;
    s->size = (struct step_size){0};
    for (uint32_t slot = 0; slot < SEQS; slot++) {
        struct script_sequence *q = &s->sequences[slot];
        // The last token is drawn, and never computed.
        if (q->live && q->length + 1 >= q->len_max && q->length >= q->prompt) {
            p->retires[p->plan.retire_count++].ref = (struct slot_ref){slot, q->gen};
            q->live = false;
        } else if (q->live && q->length >= q->prompt) {
            write_decode(s, p, slot);
        }
    }
    for (uint32_t slot = 0; slot < SEQS; slot++) {
        struct script_sequence *q = &s->sequences[slot];
        if (!q->live) {
            write_admission(s, p, rng, slot);
        }
        if (q->length < q->prompt) {
            write_chunk(s, p, rng, slot);
        }
    }
    script_parts_bind(p);
}

// ---- running it --------------------------------------------------------------------------------

void script_check(const struct script_worker *w, const struct step_result *result) {
    const struct op_step *step = batch_step(w->batch);
    const struct envelope *e = &script_limits.envelope;
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

static void take_bits(const struct step_result *result, struct script_bits *out) {
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

void script_run(struct script_worker *w, const struct script_parts *step, struct script_bits *out) {
    struct step_result result;
    executor_run(w->executor, &step->plan, &result);
    if (result.status != RESULT_STATUS_OK) {
        ck_abort_msg("a legal plan is refused: %s", result.message);
    }
    script_check(w, &result);
    take_bits(&result, out);
}
