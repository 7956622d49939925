// SPDX-License-Identifier: Apache-2.0
#include "worker/step/rehearsal.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "common/memory.h"

struct script {
    uint32_t seqs;
    uint32_t chunk;    // prompt tokens of each sequence; the first has `rest` more
    uint32_t rest;
    bool decodes;               // the context has room for a token after the first drawn one
    uint32_t blocks_longest;    // of the first sequence
    uint32_t blocks_each;       // of the others
    uint32_t spare;             // 1: block 0 is nobody's, so that a block can move there; else 0
    int32_t *tokens;            // [longest prompt]
    uint32_t *blocks;           // [blocks_longest + (seqs - 1) * blocks_each]
    struct plan_admit *admits;
    struct plan_prefill *prefills;
};

static uint32_t blocks_for(const struct plan_limits *limits, uint32_t tokens) {
    return (tokens + limits->block_tokens - 1) / limits->block_tokens;
}

static uint32_t length_of(const struct script *script, uint32_t prompt) {
    return prompt + (script->decodes ? 2 : 1);
}

// As many sequences as a step may have rows for, sharing its tokens.
static void choose_shape(const struct plan_limits *limits, struct script *script) {
    const struct envelope *e = &limits->envelope;
    script->seqs = u32_min(e->seqs, e->tokens);
    script->decodes = e->seq_tokens > 2;
    uint32_t prompt_max = script->decodes ? e->seq_tokens - 2 : 1;
    script->chunk = u32_min(e->tokens / script->seqs, prompt_max);
    uint32_t left = e->tokens - script->chunk * script->seqs;
    script->rest = u32_min(left, prompt_max - script->chunk);
    script->blocks_each = blocks_for(limits, length_of(script, script->chunk));
    script->blocks_longest = blocks_for(limits, length_of(script, script->chunk + script->rest));
}

// Fewer when the pool has not the blocks for all.
static void limit_shape(const struct plan_limits *limits, struct script *script) {
    INVARIANT(limits->kv_blocks >= script->blocks_longest);    // else the start was refused
    uint32_t others = (limits->kv_blocks - script->blocks_longest) / script->blocks_each;
    script->seqs = u32_min(script->seqs, 1 + others);
    uint32_t used = script->blocks_longest + (script->seqs - 1) * script->blocks_each;
    script->spare = limits->kv_blocks > used ? 1 : 0;
}

uint32_t rehearsal_blocks(const struct plan_limits *limits) {
    struct script script = {0};
    if (limits->envelope.seq_tokens < 2) {
        return 0;
    }
    choose_shape(limits, &script);
    return script.blocks_longest + (script.seqs - 1) * script.blocks_each;
}

static void write_plans(struct script *script) {
    uint32_t block = 0;    // index
    for (uint32_t i = 0; i < script->seqs; i++) {
        uint32_t prompt = script->chunk + (i == 0 ? script->rest : 0);
        uint32_t block_count = i == 0 ? script->blocks_longest : script->blocks_each;
        struct slot_ref ref = {i, 1};
        script->admits[i] = (struct plan_admit){
            .ref = ref,
            .prompt_tokens = prompt,
            .len_max = length_of(script, prompt),
            .block_count = block_count,
            .blocks = script->blocks + block,
            // Logits exist a tile of rows at a time and scratch is a thread's own: every sequence
            // draws, one of them takes every path, and that is the most there ever is.
            .sampling = {.temperature = i == 0 ? 1.0f : 0.0f,
                         .top_p = 0.9f,
                         .repetition_penalty = 1.0f,
                         .presence_penalty = i == 0 ? 0.5f : 0.0f,
                         .want_logprobs = true,
                         .want_prompt_logprobs = i == 0,
                         .top_logprobs = i == 0 ? BOUND_LOGPROBS : 0},
        };
        script->prefills[i] = (struct plan_prefill){ref, 0, prompt, script->tokens, -1, true};
        for (uint32_t b = 0; b < block_count; b++) {
            script->blocks[block] = script->spare + block;
            block++;
        }
    }
}

static enum status run_plan(struct executor *executor, const struct plan *plan, struct error *err) {
    uint64_t before = memory_guard_violations();
    struct step_result result;
    executor_run(executor, plan, &result);
    if (result.status != RESULT_STATUS_OK) {
        return error_set(err, STATUS_INVALID, "the worst step of the envelope is refused: %.200s",
                         result.message);
    }
    if (memory_guard_violations() != before) {
        return error_set(err, STATUS_EXHAUSTED, "the worst step of the envelope allocates memory");
    }
    return STATUS_OK;
}

static enum status run_script(struct executor *executor, const struct script *script,
                              struct error *err) {
    struct plan fill = {
        .epoch = 1,
        .seq = 1,
        .admit_count = script->seqs,
        .prefill_count = script->seqs,
        .admits = script->admits,
        .prefills = script->prefills,
    };
    // As when the pool shrinks under running sequences.
    const struct plan_move move = {.ref = {0, 1}, .index = 0, .block = 0};
    struct plan decode = {.epoch = 1,
                          .seq = 2,
                          .decode_rows = script->seqs,
                          .move_count = script->spare,
                          .moves = &move};
    // Nobody waits: the other ranks may rehearse at another time, or not at all.
    executor_rehearse(executor, true);
    executor_reset(executor, 1);
    executor_limit_layers(executor, 1);
    enum status status = run_plan(executor, &fill, err);
    if (status == STATUS_OK && script->decodes) {
        status = run_plan(executor, &decode, err);
    }
    executor_limit_layers(executor, 0);
    executor_reset(executor, 0);
    executor_rehearse(executor, false);
    return status;
}

enum status rehearsal_run(struct executor *executor, const struct plan_limits *limits,
                          struct error *err) {
    struct script script = {0};
    if (limits->envelope.seq_tokens < 2) {
        return STATUS_OK;    // no request fits such a context, so no step ever runs
    }
    choose_shape(limits, &script);
    limit_shape(limits, &script);
    uint32_t longest = script.chunk + script.rest;
    script.tokens = memory_array(longest, sizeof *script.tokens);
    script.blocks =
        memory_array(script.blocks_longest + (size_t)(script.seqs - 1) * script.blocks_each,
                     sizeof *script.blocks);
    script.admits = memory_array(script.seqs, sizeof *script.admits);
    script.prefills = memory_array(script.seqs, sizeof *script.prefills);
    enum status status;
    if (script.tokens == NULL || script.blocks == NULL || script.admits == NULL ||
        script.prefills == NULL) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for a rehearsal");
    } else {
        write_plans(&script);
        status = run_script(executor, &script, err);
    }
    memory_free(script.tokens);
    memory_free(script.blocks);
    memory_free(script.admits);
    memory_free(script.prefills);
    return status;
}
