// SPDX-License-Identifier: Apache-2.0
// What a start would weigh: the device, the lines of its ledger, and the report on them.
#include "common/integers.h"
#include "common/memory.h"
#include "worker/engine_internal.h"
#include <stdio.h>
#include <string.h>

// ---- the device --------------------------------------------------------------------------------

enum status engine_map_new(struct engine *engine, enum ledger_id line, uint64_t bytes, int fd,
                           struct device_range *out, struct error *err) {
    TRY(engine->table->reserve(engine->device, line, bytes, fd, out, err));
    return engine->table->map(engine->device, out, bytes, err);
}

// What the device says we hold beyond what is named. Guard and the cpu's messages are not held.
uint64_t engine_unnamed_bytes(const struct engine *engine) {
    uint64_t own = engine->table->own_bytes(engine->device);
    const uint64_t *bytes = engine->ledger.bytes;
    uint64_t others =
        bytes[LEDGER_GUARD] + (engine->table->computes ? bytes[LEDGER_COMM_ARENA] : 0);
    uint64_t named = memory_ledger_used(&engine->ledger) - others;
    return own > named ? own - named : 0;
}

// It belongs to the step that just ended.
enum status engine_settle(struct engine *engine, enum ledger_id line, struct error *err) {
    return memory_ledger_charge(&engine->ledger, line, engine_unnamed_bytes(engine), err);
}

// What other processes hold of the device by now: never ours, and never part of the budget.
void engine_look_at_others(struct engine *engine) {
    struct memory_ledger *ledger = &engine->ledger;
    uint64_t seen =
        engine->table->free_bytes(engine->device) + engine->table->own_bytes(engine->device);
    ledger->foreign_bytes = ledger->device_bytes > seen ? ledger->device_bytes - seen : 0;
}

static enum status open_device(struct engine *engine, struct error *err) {
    const struct engine_options *o = &engine->options;
    engine->table = device_find(o->device);
    if (engine->table == NULL) {
        return device_unknown(o->device, err);
    }
    uint64_t present = engine->table->memory_bytes(o->device);
    uint64_t device = o->device_memory > 0 ? (uint64_t)o->device_memory : present;
    if (device > present) {
        return error_set(err, STATUS_INVALID,
                         "--device-memory %lld is more than the %llu bytes of device '%s'",
                         (long long)o->device_memory, (unsigned long long)present, o->device);
    }
    // Where a default says how much KV there is, the budget follows from the lines.
    bool open_ended = o->device_memory == 0 && engine->table->kv_bytes_default > 0;
    double share = open_ended ? 1.0 : o->utilization;
    memory_ledger_init(&engine->ledger, device, (uint64_t)((double)device * share));
    struct device_options options = {o->device, o->threads, o->isa, &engine->ledger, o->sim};
    TRY(engine->table->open(&options, &engine->device, err));
    engine_look_at_others(engine);
    return engine_settle(engine, LEDGER_CONTEXT, err);
}

// Files, device, model and sizes: all that can be judged before memory is taken.
enum status engine_plan_memory(struct engine *engine, struct error *err) {
    const struct engine_options *o = &engine->options;
    snprintf(engine->digest, sizeof engine->digest, "%s", weights_digest(engine->weights));
    TRY(open_device(engine, err));
    int64_t positions = o->model_len;
    if (positions <= 0) {
        struct model_config config;
        TRY(model_config_read(engine->weights, &config, err));
        positions = config.context < BOUND_SEQ_TOKENS ? config.context : BOUND_SEQ_TOKENS;
    }
    TRY(model_create(engine->weights, engine->table->ops(engine->device),
                     o->shard.world > 1 ? o->shard : (struct model_shard){0, 1},
                     (uint32_t)positions, &engine->model, err));
    struct memory_plan *plan = &engine->plan;
    TRY(memory_plan_make(o, engine->model, engine->table, engine->device, &engine->ledger, plan,
                         err));
    if (o->device_memory == 0 && engine->table->kv_bytes_default > 0) {
        // The budget is exactly what the lines need.
        uint64_t need = memory_plan_fixed_bytes(plan) + plan->kv_bytes;
        uint64_t device = engine->ledger.device_bytes;
        engine->ledger.budget_bytes = need < device ? need : device;
    }
    return STATUS_OK;
}

// ---- capacity ----------------------------------------------------------------------------------

void engine_write_capacity(struct engine *engine, struct ledger_line *lines,
                           struct message_capacity *out) {
    const struct memory_plan *plan = &engine->plan;
    memory_ledger_lines(&engine->ledger, lines);
    *out = (struct message_capacity){
        .envelope = plan->limits.envelope,
        .block_tokens = plan->limits.block_tokens,
        .kv_blocks = plan->limits.kv_blocks,
        .kv_bytes_per_token = plan->kv.block_stride_bytes / plan->limits.block_tokens,
        .vocabulary = plan->limits.vocabulary,
        .parameters = model_parameters(engine->model),
        .kv_dtype = plan->kv.dtype == DTYPE_F16 ? "float16" : "float32",
        .threads = engine->table->ctx(engine->device)->thread_count,
        .device_bytes = engine->ledger.device_bytes,
        .budget_bytes = engine->ledger.budget_bytes,
        .foreign_bytes = engine->ledger.foreign_bytes,
        .tiles = plan->tiles,
        .kv_stamp = engine->stamp->value,
        .line_count = LEDGER_COUNT,
        .lines = lines,
    };
}

// ---- a plan alone ------------------------------------------------------------------------------

static void apply_role(struct engine_options *o) {
    if (o->role == ENGINE_ROLE_PREFILL) {
        o->enforce_eager = true;
    }
    if (o->role == ENGINE_ROLE_DECODE && o->step_tokens > o->seqs) {
        o->step_tokens = o->seqs;
    }
}

// Charges every planned line, so that what does not fit is refused as a start would refuse it.
static enum status charge_plan(struct engine *engine, struct error *err) {
    const struct memory_plan *plan = &engine->plan;
    struct memory_ledger *ledger = &engine->ledger;
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        uint64_t bytes = i == LEDGER_KV ? plan->kv_bytes : plan->bytes[i] - ledger->bytes[i];
        TRY(memory_ledger_charge(ledger, (enum ledger_id)i, bytes, err));
    }
    return STATUS_OK;
}

// What a sealed start of the same digest found out is better than what a table expects. Where the
// budget follows from the lines, nothing is left to correct.
static enum status take_seal(struct engine *engine, bool *taken, struct error *err) {
    const struct engine_options *o = &engine->options;
    struct memory_plan *plan = &engine->plan;
    struct seal now, before;
    bool open_ended = o->device_memory == 0 && engine->table->kv_bytes_default > 0;
    engine_seal_now(engine, &now);
    if (o->seal_dir == NULL || open_ended || !seal_read(o->seal_dir, now.digest, &before)) {
        return STATUS_OK;
    }
    struct ledger_line lines[LEDGER_COUNT];
    memory_ledger_lines(&engine->ledger, lines);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        uint64_t there = engine->ledger.bytes[i];    // taken by opening the device
        if (!lines[i].planned) {
            plan->bytes[i] = before.bytes[i] > there ? before.bytes[i] : there;
        }
    }
    *taken = true;
    uint64_t used = memory_plan_fixed_bytes(plan);
    uint64_t budget = engine->ledger.budget_bytes;
    uint64_t left = budget > used ? budget - used : 0;
    return o->kv_bytes > 0 ? STATUS_OK : memory_plan_set_kv(plan, o, left, err);
}

// What the planned steps would take.
static enum status simulate_steps(const struct engine *engine, struct engine_times *out,
                                  struct error *err) {
    if (engine->table->computes) {
        return STATUS_OK;
    }
    const struct memory_plan *plan = &engine->plan;
    const struct envelope *e = &plan->limits.envelope;
    const struct ops *ops = engine->table->ops(engine->device);
    const struct op_ctx *ctx = engine->table->ctx(engine->device);
    uint32_t seqs = u32_min(u32_min(e->seqs, e->tokens), plan->limits.kv_blocks);
    uint32_t each = plan->limits.kv_blocks / seqs;
    each = u32_min(each, BOUND_SEQ_TOKENS / plan->limits.block_tokens);
    uint32_t rows = u32_min(e->tokens, e->seq_tokens);
    out->decode =
        (struct simulate_shape){seqs, 1, u32_min(each * plan->limits.block_tokens, e->seq_tokens)};
    out->prefill = (struct simulate_shape){1, rows, rows};
    TRY(simulate_step(engine->model, ops, ctx, &plan->kv, &plan->tiles, &out->decode,
                      &out->decode_cost, err));
    return simulate_step(engine->model, ops, ctx, &plan->kv, &plan->tiles, &out->prefill,
                         &out->prefill_cost, err);
}

enum status engine_plan(const struct engine_options *options, struct weights *weights,
                        struct engine_plan *out, struct error *err) {
    memset(out, 0, sizeof *out);
    struct engine *engine = memory_zalloc(sizeof *engine);
    if (engine == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for an engine");
    }
    engine->options = *options;
    engine->stamp = &engine->own_stamp;
    apply_role(&engine->options);
    engine->weights = weights;
    enum status status = engine_plan_memory(engine, err);
    if (status == STATUS_OK) {
        status = take_seal(engine, &out->from_seal, err);
    }
    out->ledger = engine->ledger;
    if (status == STATUS_OK) {
        status = charge_plan(engine, err);
    }
    if (status == STATUS_OK) {
        status = simulate_steps(engine, &out->times, err);
    }
    if (status == STATUS_OK) {
        engine_write_capacity(engine, out->lines, &out->capacity);
        out->ledger = engine->ledger;
        out->fixed_bytes = memory_plan_fixed_bytes(&engine->plan);
        out->kv_bytes = engine->plan.kv_bytes;
        out->workspace_bytes = engine->plan.workspace_bytes;
        out->isa = engine_isa(engine);
        status = capacity_validate(&out->capacity, err);
    }
    engine->weights = NULL;    // the caller's
    engine_destroy(engine);
    return status;
}
