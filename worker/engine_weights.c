// SPDX-License-Identifier: Apache-2.0
// Weights that outlive the process, and what is remembered of the start over them.
#include "common/clock.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/version.h"
#include "worker/engine_internal.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char WEIGHTS_MAGIC[16] = "tare weights 3";

// ---- weights -----------------------------------------------------------------------------------

static void report_load(void *ctx, uint64_t bytes_done, uint64_t bytes_total) {
    struct engine *engine = ctx;
    if (engine->options.progress == NULL) {
        return;
    }
    uint64_t elapsed_us = clock_monotonic_us() - engine->load_start_us;
    struct message_progress progress = {
        .phase = "load",
        .bytes_done = bytes_done,
        .bytes_total = bytes_total,
        .bytes_per_s = elapsed_us == 0 ? 0 : bytes_done * 1000000 / elapsed_us,
    };
    engine->options.progress(engine->options.progress_ctx, &progress);
}

static bool head_matches(const struct weights_head *head, const struct weights_head *want) {
    return memcmp(head, want, offsetof(struct weights_head, complete)) == 0 && head->complete == 1;
}

// Attaches to weights that a process before us loaded, or loads them.
enum status engine_load_weights(struct engine *engine, struct error *err) {
    const struct memory_plan *plan = &engine->plan;
    uint64_t bytes = memory_plan_weight_bytes(plan);
    TRY(engine_map_new(engine, LEDGER_WEIGHTS, bytes, engine->options.weights_fd,
                       &engine->weights_range, err));
    for (unsigned kind = MODEL_KIND_EMBEDDING; kind < MODEL_KIND_COUNT; kind++) {
        enum ledger_id line = memory_plan_kind_line((enum model_kind)kind);
        memory_ledger_move(&engine->ledger, LEDGER_WEIGHTS, line, plan->bytes[line]);
    }
    uint8_t *memory = engine->weights_range.base;
    struct weights_head *head = (struct weights_head *)(void *)memory;
    struct weights_head want = {.bytes = bytes};
    memcpy(want.magic, WEIGHTS_MAGIC, sizeof want.magic);
    snprintf(want.build, sizeof want.build, "%s", VERSION_BUILD);
    snprintf(want.digest, sizeof want.digest, "%s", engine->digest);
    snprintf(want.ops, sizeof want.ops, "%s", engine->table->ops(engine->device)->name);
    want.rank = model_view(engine->model)->shard.rank;
    want.world = model_view(engine->model)->shard.world;
    model_bind(engine->model, memory + MEMORY_PLAN_HEAD_BYTES);
    engine->head = head;
    engine->attached = head_matches(head, &want);
    if (!engine->attached) {
        *head = want;
        engine->load_start_us = clock_monotonic_us();
        if (engine->table->computes) {
            model_load(engine->model, engine->weights, engine->table->ctx(engine->device),
                       report_load, engine);
        }
        head->complete = 1;
    }
    weights_close(engine->weights);
    engine->weights = NULL;
    return STATUS_OK;
}

// ---- the seal ----------------------------------------------------------------------------------

// Whatever may change what a start weighs, in one text.
void engine_seal_now(const struct engine *engine, struct seal *out) {
    const struct engine_options *o = &engine->options;
    const struct envelope *e = &engine->plan.limits.envelope;
    char text[1024];
    int bytes = snprintf(
        text, sizeof text, "%s|%s|%u|%u|%s|%s|%u|%llu|%llu|%lld|%lld|%d|%u|%u|%u|%u|%u|%lld|%d",
        VERSION_BUILD, engine->digest, model_view(engine->model)->shard.rank,
        model_view(engine->model)->shard.world, o->device, engine->table->ops(engine->device)->name,
        engine->table->ctx(engine->device)->thread_count,
        (unsigned long long)engine->ledger.device_bytes,
        (unsigned long long)engine->ledger.budget_bytes, (long long)o->kv_bytes,
        (long long)o->memory_margin, (int)o->kv_dtype, o->block_tokens, e->tokens, e->seqs,
        e->seq_tokens, e->logit_rows, (long long)o->workspace_budget, (int)o->enforce_eager);
    INVARIANT(bytes > 0 && (size_t)bytes < sizeof text);
    memset(out, 0, sizeof *out);
    snprintf(out->digest, sizeof out->digest, "%016llx",
             (unsigned long long)hash_bytes(text, (size_t)bytes));
    memcpy(out->bytes, engine->ledger.bytes, sizeof out->bytes);
}

// Before the pool is mapped: would a start like this one end as one that was sealed?
bool engine_sealed_before(const struct engine *engine) {
    struct seal now, before;
    engine_seal_now(engine, &now);
    now.bytes[LEDGER_KV] = engine->plan.kv_bytes;
    now.bytes[LEDGER_GUARD] = engine->plan.bytes[LEDGER_GUARD];
    if (engine->attached && seal_covers(&engine->head->seal, &now)) {
        return true;
    }
    const char *dir = engine->options.seal_dir;
    return dir != NULL && seal_read(dir, now.digest, &before) && seal_covers(&before, &now);
}

void engine_write_seal(struct engine *engine) {
    struct seal seal;
    engine_seal_now(engine, &seal);
    engine->head->seal = seal;
    struct error err = {0};
    if (engine->options.seal_dir != NULL && !engine->proven &&
        seal_write(engine->options.seal_dir, &seal, &err) != STATUS_OK) {
        log_warn("engine", "the next start rehearses again: %s", err.message);
    }
}
