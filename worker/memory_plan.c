// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_plan.h"

#include "common/invariant.h"
#include "common/log.h"
#include "worker/step/rehearsal.h"
#include <string.h>

enum { WORKSPACE_SHARE = 4 };    // of the budget: at most one part in so many, unless it is given

static const double MIB = 1024.0 * 1024.0;

static uint32_t blocks_for(uint32_t tokens, uint32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
}

static uint64_t page_round(const struct device_table *table, const struct device *device,
                           uint64_t bytes) {
    uint64_t page = table->page_bytes(device);
    return (bytes + page - 1) / page * page;
}

static uint64_t step_seqs(const struct engine_options *o) {
    return o->seqs < o->step_tokens ? o->seqs : o->step_tokens;
}

static void set_limits(const struct engine_options *o, const struct model *model,
                       uint32_t seq_tokens, struct plan_limits *out) {
    *out = (struct plan_limits){
        .envelope = {.tokens = o->step_tokens,
                     .seqs = o->seqs,
                     .seq_tokens = seq_tokens,
                     .logit_rows = o->step_tokens,
                     .prompt_logit_rows = o->step_tokens,
                     .blocks_per_seq = blocks_for(seq_tokens, o->block_tokens),
                     .logprob_rows = o->step_tokens,
                     .attended_tokens_max = seq_tokens,
                     .attended_tokens = step_seqs(o) * seq_tokens},
        .block_tokens = o->block_tokens,
        .kv_blocks = 1,
        .vocabulary = model_config(model)->vocabulary,
    };
}

enum ledger_id memory_plan_kind_line(enum model_kind kind) {
    INVARIANT(kind > MODEL_KIND_OTHER && kind < MODEL_KIND_COUNT);
    return (enum ledger_id)(LEDGER_WEIGHTS_EMBEDDING + (kind - MODEL_KIND_EMBEDDING));
}

uint64_t memory_plan_weight_bytes(const struct memory_plan *plan) {
    uint64_t sum = plan->bytes[LEDGER_WEIGHTS];
    for (unsigned kind = MODEL_KIND_EMBEDDING; kind < MODEL_KIND_COUNT; kind++) {
        sum += plan->bytes[memory_plan_kind_line((enum model_kind)kind)];
    }
    return sum;
}

struct workspace_question {
    const struct model *model;
    const struct ops *ops;
    const struct op_ctx *ctx;
    const struct memory_plan *plan;
};

static size_t measure_workspace(void *ctx, const struct tiles *tiles) {
    const struct workspace_question *q = ctx;
    return executor_workspace_bytes(q->model, q->ops, q->ctx, &q->plan->kv, &q->plan->limits,
                                    tiles);
}

static enum status choose_tiles(const struct engine_options *o, const struct model *model,
                                const struct device_table *table, const struct device *device,
                                const struct memory_ledger *ledger, struct memory_plan *plan,
                                struct error *err) {
    bool open_ended = o->device_memory == 0 && table->kv_bytes_default > 0;
    uint64_t share = open_ended ? 0 : ledger->budget_bytes / WORKSPACE_SHARE;
    struct workspace_question measured = {model, table->ops(device), table->ctx(device), plan};
    struct tiles_question question;
    tiles_ask(&plan->limits.envelope, table->ctx(device)->thread_count,
              (uint64_t)o->workspace_budget, share, &question);
    question.measure = measure_workspace;
    question.measure_ctx = &measured;
    return tiles_choose(&question, &plan->tiles, &plan->workspace_bytes, err);
}

static void plan_graphs(const struct engine_options *o, const struct model *model,
                        const struct device_table *table, const struct device *device,
                        struct memory_plan *plan) {
    uint32_t rows_max = (uint32_t)step_seqs(o);
    plan->bucket_count = o->enforce_eager ? 0 : executor_bucket_count(rows_max);
    for (uint32_t i = 0; i < plan->bucket_count; i++) {
        uint32_t launches =
            executor_bucket_launches(model, table->ops(device), table->ctx(device), &plan->kv,
                                     executor_bucket_rows(rows_max, i), &plan->tiles);
        plan->bytes[LEDGER_GRAPH_8 + i] = table->graph_bytes(device, launches);
    }
}

// Part of the margin that the share of the device outside the budget does not cover already.
static uint64_t guard_bytes(const struct engine_options *o, const struct memory_ledger *ledger) {
    uint64_t outside = ledger->device_bytes - ledger->budget_bytes;
    uint64_t margin = (uint64_t)o->memory_margin;
    return margin > outside ? margin - outside : 0;
}

static void plan_lines(const struct engine_options *o, const struct model *model,
                       const struct device_table *table, const struct device *device,
                       const struct memory_ledger *ledger, struct memory_plan *plan) {
    const struct envelope *e = &plan->limits.envelope;
    memcpy(plan->bytes, ledger->bytes, sizeof plan->bytes);    // what opening the device took
    plan->bytes[LEDGER_WEIGHTS] =
        page_round(table, device, MEMORY_PLAN_HEAD_BYTES + model_bytes(model));
    for (unsigned kind = MODEL_KIND_EMBEDDING; kind < MODEL_KIND_COUNT; kind++) {
        uint64_t bytes = model_kind_bytes(model, (enum model_kind)kind);
        plan->bytes[LEDGER_WEIGHTS] -= bytes;
        plan->bytes[memory_plan_kind_line((enum model_kind)kind)] = bytes;
    }
    plan->bytes[LEDGER_WORKSPACE] = plan->workspace_bytes;
    plan->bytes[LEDGER_STEP] = batch_step_bytes(&plan->limits);
    plan->bytes[LEDGER_SAMPLER] = (uint64_t)e->seqs * e->seq_tokens * sizeof(int32_t);
    plan->bytes[LEDGER_COMM_ARENA] = executor_message_bytes(
        model, table->ops(device), table->ctx(device), &plan->kv, &plan->limits, &plan->tiles);
    static const enum ledger_id MAPPED[] = {LEDGER_WORKSPACE, LEDGER_STEP, LEDGER_SAMPLER,
                                            LEDGER_COMM_ARENA};
    for (unsigned i = 0; i < sizeof MAPPED / sizeof *MAPPED; i++) {
        plan->bytes[MAPPED[i]] = page_round(table, device, plan->bytes[MAPPED[i]]);
    }
    plan->bytes[LEDGER_GUARD] = guard_bytes(o, ledger);
    static const enum ledger_id FOUND[] = {LEDGER_LIBRARIES, LEDGER_COMM_CHANNELS, LEDGER_COMM_RING,
                                           LEDGER_COMM_TREE, LEDGER_COMM_NVLS};
    for (unsigned i = 0; i < sizeof FOUND / sizeof *FOUND; i++) {
        uint64_t expected = table->found_bytes(device, FOUND[i], model_view(model)->shard.world);
        uint64_t there = ledger->bytes[FOUND[i]];
        plan->bytes[FOUND[i]] = there > expected ? there : expected;
    }
    plan_graphs(o, model, table, device, plan);
}

uint64_t memory_plan_fixed_bytes(const struct memory_plan *plan) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        sum += plan->bytes[i];
    }
    return sum;
}

static void note_lines(const struct memory_plan *plan, struct memory_ledger *ledger) {
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        memory_ledger_plan(ledger, (enum ledger_id)i, plan->bytes[i]);
    }
    memory_ledger_plan(ledger, LEDGER_KV, plan->kv_bytes);
}

// Charges every line to a copy of the ledger: the first that does not fit is named.
static enum status try_lines(const struct memory_plan *plan, const struct memory_ledger *ledger,
                             struct error *err) {
    struct memory_ledger trial = *ledger;
    uint64_t weights = memory_plan_weight_bytes(plan), have = memory_ledger_free(ledger);
    if (weights > have) {
        error_hint(err, "raise --device-memory or --gpu-memory-utilization, spread the model over "
                        "more ranks with --tensor-parallel-size, or take one with smaller weights");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'weights' needs %.1f MiB, %.1f MiB of the budget of %.1f MiB "
                         "are free: %.1f MiB (%llu bytes) are missing",
                         (double)weights / MIB, (double)have / MIB,
                         (double)ledger->budget_bytes / MIB, (double)(weights - have) / MIB,
                         (unsigned long long)(weights - have));
    }
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        TRY(memory_ledger_charge(&trial, (enum ledger_id)i, plan->bytes[i] - ledger->bytes[i],
                                 err));
    }
    return STATUS_OK;
}

// KV bytes that were asked for, or that the budget leaves.
static uint64_t kv_bytes_wanted(const struct engine_options *o, const struct device_table *table,
                                const struct memory_ledger *ledger,
                                const struct memory_plan *plan) {
    if (o->kv_bytes > 0) {
        return (uint64_t)o->kv_bytes;
    }
    if (o->device_memory == 0 && table->kv_bytes_default > 0) {
        return table->kv_bytes_default;
    }
    uint64_t used = memory_plan_fixed_bytes(plan);
    return ledger->budget_bytes > used ? ledger->budget_bytes - used : 0;
}

enum status memory_plan_set_kv(struct memory_plan *plan, const struct engine_options *options,
                               uint64_t kv_bytes, struct error *err) {
    uint64_t stride = plan->kv.block_stride_bytes;
    uint64_t bytes = kv_chunk_round(&plan->chunk, kv_bytes);
    uint64_t blocks = bytes / stride;
    if (blocks > BOUND_BLOCKS) {
        blocks = BOUND_BLOCKS;
        bytes = kv_chunk_round(&plan->chunk, blocks * stride + plan->chunk.small_bytes - 1);
    }
    struct envelope *e = &plan->limits.envelope;
    uint64_t held = blocks * options->block_tokens;
    if (held < e->seq_tokens && options->model_len <= 0 && held > 0) {
        e->seq_tokens = (uint32_t)held;
    }
    if (held < e->seq_tokens) {
        uint64_t need = blocks_for(e->seq_tokens, options->block_tokens) * stride;
        error_hint(err, "lower --max-model-len, or raise --device-memory or "
                        "--kv-cache-memory-bytes");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool': one sequence of %u tokens needs %.1f MiB of KV, "
                         "%.1f MiB are left",
                         e->seq_tokens, (double)need / MIB, (double)bytes / MIB);
    }
    plan->kv_bytes = bytes;
    plan->limits.kv_blocks = (uint32_t)blocks;
    uint64_t scratch = (uint64_t)rehearsal_blocks(&plan->limits) * stride;
    scratch = kv_chunk_round(&plan->chunk, scratch + plan->chunk.small_bytes - 1);
    plan->scratch_bytes = scratch < bytes ? scratch : bytes;
    return STATUS_OK;
}

enum status memory_plan_make(const struct engine_options *options, const struct model *model,
                             const struct device_table *table, struct device *device,
                             struct memory_ledger *ledger, struct memory_plan *out,
                             struct error *err) {
    const struct engine_options *o = options;
    const struct model_config *c = model_config(model);
    uint32_t length_max = c->context < BOUND_SEQ_TOKENS ? c->context : BOUND_SEQ_TOKENS;
    if (o->model_len > (int64_t)length_max) {
        return error_set(err, STATUS_INVALID,
                         "--max-model-len %lld is above the model's limit of %u tokens",
                         (long long)o->model_len, length_max);
    }
    uint32_t length = o->model_len > 0 ? (uint32_t)o->model_len : length_max;
    *out = (struct memory_plan){0};
    model_kv_layout(model, o->kv_dtype, o->block_tokens, &out->kv);
    set_limits(o, model, length, &out->limits);
    TRY(choose_tiles(o, model, table, device, ledger, out, err));
    plan_lines(o, model, table, device, ledger, out);
    note_lines(out, ledger);
    TRY(try_lines(out, ledger, err));
    uint64_t wanted = kv_bytes_wanted(o, table, ledger, out);
    out->chunk = kv_chunk_rule(wanted, table->page_bytes(device));
    TRY(memory_plan_set_kv(out, o, wanted, err));
    if (out->limits.envelope.seq_tokens < length) {
        // A shorter context needs less of everything else.
        uint32_t shorter = out->limits.envelope.seq_tokens;
        log_warn("engine", "context lowered to what the KV pool holds from=%u to=%u", length,
                 shorter);
        set_limits(o, model, shorter, &out->limits);
        TRY(choose_tiles(o, model, table, device, ledger, out, err));
        plan_lines(o, model, table, device, ledger, out);
        TRY(memory_plan_set_kv(out, o, kv_bytes_wanted(o, table, ledger, out), err));
    }
    note_lines(out, ledger);
    return STATUS_OK;
}
