// SPDX-License-Identifier: Apache-2.0
#include "worker/engine.h"

#include "common/clock.h"
#include "common/integers.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/rng.h"
#include "worker/engine_internal.h"
#include "worker/step/rehearsal.h"
#include <stdio.h>
#include <string.h>

enum { SHRINKS_MAX = 8 };    // rounds of giving KV back while others take memory

static const double MIB = 1024.0 * 1024.0;

// ---- phases ------------------------------------------------------------------------------------

// A step of the start is over: what it took goes to `line`, its time to the table.
static enum status end_phase(struct engine *engine, const char *name, enum ledger_id line,
                             struct error *err) {
    TRY(engine_settle(engine, line, err));
    INVARIANT(engine->phase_count < ENGINE_PHASES_MAX);
    uint64_t now_us = clock_monotonic_us();
    engine->phases[engine->phase_count++] = (struct engine_phase){
        .name = name,
        .us = now_us - engine->phase_start_us,
        .own_bytes = engine->table->own_bytes(engine->device),
    };
    engine->phase_start_us = now_us;
    return STATUS_OK;
}

static void log_start(const struct engine *engine) {
    for (uint32_t i = 0; i < engine->phase_count; i++) {
        const struct engine_phase *phase = &engine->phases[i];
        log_info("engine", "start phase=\"%s\" ms=%.1f held_mib=%.2f", phase->name,
                 (double)phase->us / 1000.0, (double)phase->own_bytes / MIB);
    }
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        if (engine->lines[i].bytes > 0) {
            log_info("engine", "ledger line=\"%s\" mib=%.2f kind=%s", engine->lines[i].name,
                     (double)engine->lines[i].bytes / MIB,
                     engine->lines[i].planned ? "planned" : "found");
        }
    }
    const struct tiles *tiles = &engine->plan.tiles;
    log_info("engine", "tiles logit_rows=%u mlp_rows=%u matmul_rows=%u attention_parts=%u",
             tiles->logit_rows, tiles->mlp_rows, tiles->matmul_rows, tiles->attention_parts);
    log_info("engine", "sealed budget_mib=%.2f unaccounted_mib=%.2f foreign_mib=%.2f",
             (double)engine->ledger.budget_bytes / MIB,
             (double)engine->lines[LEDGER_UNACCOUNTED].bytes / MIB,
             (double)engine->ledger.foreign_bytes / MIB);
}

// ---- steps, graphs and rehearsals --------------------------------------------------------------

// Messages' buffers, and on a device without arithmetic what a library would take; on the cpu all
// of it is the group's shared memory, made when it forms.
static enum status take_communicators(struct engine *engine, struct error *err) {
    struct memory_ledger *ledger = &engine->ledger;
    const uint64_t *bytes = engine->plan.bytes;
    if (engine->table->computes) {
        return memory_ledger_charge(ledger, LEDGER_COMM_ARENA, bytes[LEDGER_COMM_ARENA], err);
    }
    for (unsigned i = LEDGER_COMM_CHANNELS; i <= LEDGER_COMM_ARENA; i++) {
        struct device_range range;    // until the device closes
        uint64_t more = bytes[i] > ledger->bytes[i] ? bytes[i] - ledger->bytes[i] : 0;
        TRY(more > 0 ? engine_map_new(engine, (enum ledger_id)i, more, -1, &range, err)
                     : STATUS_OK);
    }
    return STATUS_OK;
}

static enum status map_workspace(struct engine *engine, struct error *err) {
    const uint64_t *bytes = engine->plan.bytes;
    TRY(engine_map_new(engine, LEDGER_WORKSPACE, bytes[LEDGER_WORKSPACE], -1, &engine->workspace,
                       err));
    TRY(engine_map_new(engine, LEDGER_STEP, bytes[LEDGER_STEP], -1, &engine->step, err));
    return engine_map_new(engine, LEDGER_SAMPLER, bytes[LEDGER_SAMPLER], -1, &engine->sampler, err);
}

// Addresses for all the KV there could ever be, and so much memory as the first rehearsal uses.
static enum status reserve_kv(struct engine *engine, struct error *err) {
    struct memory_plan *plan = &engine->plan;
    uint64_t most = engine->ledger.device_bytes;
    if (!engine->proven || !engine->attached) {
        kv_stamp_spoil(engine->stamp);    // rehearsals write there, or it is nobody's yet
    }
    TRY(kv_pool_init(&engine->pool, engine->table, engine->device, &plan->chunk,
                     most > plan->kv_bytes ? most : plan->kv_bytes, engine->options.kv_fd, err));
    if (engine->proven) {
        return STATUS_OK;
    }
    return kv_pool_grow(&engine->pool, LEDGER_SCRATCH, plan->scratch_bytes, err);
}

static enum status create_executor(struct engine *engine, struct error *err) {
    const struct device_table *table = engine->table;
    struct plan_limits limits = engine->plan.limits;
    limits.kv_blocks =
        (uint32_t)(kv_pool_bytes(&engine->pool) / engine->plan.kv.block_stride_bytes);
    struct batch_options batch = {limits, engine->pool.range.base,
                                  (int32_t *)(void *)engine->sampler.base};
    TRY(batch_create(&batch, engine->step.base, &engine->batch, err));
    struct executor_options executor = {
        .model = engine->model,
        .ops = table->ops(engine->device),
        .ctx = table->ctx(engine->device),
        .kv = &engine->plan.kv,
        .batch = engine->batch,
        .limits = limits,
        .workspace = engine->workspace.base,
        .workspace_bytes = engine->workspace.mapped_bytes,
        .tiles = engine->plan.tiles,
        .table = table,
        .device = engine->device,
    };
    return executor_create(&executor, &engine->executor, err);
}

// Largest first, so that what does not fit shows early; tests shuffle.
static enum status capture_graphs(struct engine *engine, struct error *err) {
    uint32_t order[LEDGER_GRAPHS];
    uint32_t count = engine->plan.bucket_count;
    for (uint32_t i = 0; i < count; i++) {
        order[i] = count - 1 - i;
    }
    struct rng rng;
    rng_init(&rng, engine->options.capture_order_seed);
    for (uint32_t i = count; i > 1 && engine->options.capture_order_seed != 0; i--) {
        uint32_t other = (uint32_t)rng_below(&rng, i);
        uint32_t held = order[i - 1];
        order[i - 1] = order[other];
        order[other] = held;
    }
    for (uint32_t i = 0; i < count; i++) {
        TRY(executor_capture(engine->executor, order[i], err));
        TRY(engine_settle(engine, (enum ledger_id)(LEDGER_GRAPH_8 + order[i]), err));
    }
    return STATUS_OK;
}

static enum status rehearse(struct engine *engine, struct error *err) {
    struct plan_limits limits = engine->plan.limits;
    limits.kv_blocks =
        (uint32_t)(kv_pool_bytes(&engine->pool) / engine->plan.kv.block_stride_bytes);
    executor_set_pool(engine->executor, limits.kv_blocks, limits.envelope.seq_tokens);
    return rehearsal_run(engine->executor, &limits, err);
}

// ---- the pool ----------------------------------------------------------------------------------

static bool kv_is_explicit(const struct engine *engine) {
    return engine->options.kv_bytes > 0;
}

// Bytes the device can still give, beside what the scratch chunk holds and the margin.
static uint64_t free_for_kv(const struct engine *engine) {
    uint64_t free_bytes = engine->table->free_bytes(engine->device) + kv_pool_bytes(&engine->pool);
    uint64_t margin = (uint64_t)engine->options.memory_margin;
    return free_bytes > margin ? free_bytes - margin : 0;
}

// Everything else exists: what is left of the budget, and of the device, is KV.
static enum status weigh(struct engine *engine, struct error *err) {
    struct memory_plan *plan = &engine->plan;
    struct memory_ledger *ledger = &engine->ledger;
    TRY(memory_ledger_charge(ledger, LEDGER_GUARD, plan->bytes[LEDGER_GUARD], err));
    uint64_t others = memory_ledger_used(ledger) - ledger->bytes[LEDGER_SCRATCH];
    uint64_t left = ledger->budget_bytes > others ? ledger->budget_bytes - others : 0;
    bool fixed = kv_is_explicit(engine) ||
                 (engine->options.device_memory == 0 && engine->table->kv_bytes_default > 0);
    uint64_t wanted = fixed && plan->kv_bytes < left ? plan->kv_bytes : left;
    if (kv_is_explicit(engine) && wanted < plan->kv_bytes) {
        error_hint(err, "lower --kv-cache-memory-bytes, or raise --device-memory or "
                        "--gpu-memory-utilization");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool' needs %.1f MiB, %.1f MiB of the budget are free: "
                         "%llu bytes are missing",
                         (double)plan->kv_bytes / MIB, (double)left / MIB,
                         (unsigned long long)(plan->kv_bytes - left));
    }
    uint64_t free_bytes = free_for_kv(engine);
    if (wanted > free_bytes && !engine->proven && !kv_is_explicit(engine)) {
        log_warn("engine",
                 "KV pool made smaller: the device has less left from_mib=%.1f "
                 "to_mib=%.1f",
                 (double)wanted / MIB, (double)free_bytes / MIB);
        wanted = free_bytes;
    }
    return memory_plan_set_kv(plan, &engine->options, wanted, err);
}

// Takes over what was mapped: the numbers of the plan follow the pool.
static enum status take_pool(struct engine *engine, struct error *err) {
    struct memory_plan *plan = &engine->plan;
    TRY(memory_plan_set_kv(plan, &engine->options, kv_pool_bytes(&engine->pool), err));
    executor_set_pool(engine->executor, plan->limits.kv_blocks, plan->limits.envelope.seq_tokens);
    return STATUS_OK;
}

static enum status map_pool(struct engine *engine, struct error *err) {
    struct memory_ledger *ledger = &engine->ledger;
    struct kv_pool *pool = &engine->pool;
    uint64_t wanted = engine->plan.kv_bytes;
    kv_pool_shrink(pool, wanted);    // the scratch chunk may be larger than what is left
    memory_ledger_move(ledger, LEDGER_SCRATCH, LEDGER_KV, ledger->bytes[LEDGER_SCRATCH]);
    pool->range.line = LEDGER_KV;
    struct error why = {0};
    if (kv_pool_bytes(pool) < wanted &&
        kv_pool_grow(pool, LEDGER_KV, wanted - kv_pool_bytes(pool), &why) != STATUS_OK) {
        if (kv_is_explicit(engine) || kv_pool_bytes(pool) == 0) {
            *err = why;
            return why.status;
        }
        log_warn("engine", "KV pool made smaller: %s", why.message);
    }
    return take_pool(engine, err);
}

// The device may have less left than the margin by now, or we may hold more than the budget: the
// pool is the part that gives way. What it gives, others may take again: `times` as much is given.
static enum status keep_margin(struct engine *engine, uint64_t times, bool *changed,
                               struct error *err) {
    struct kv_pool *pool = &engine->pool;
    uint64_t excess = engine_unnamed_bytes(engine);
    uint64_t room = memory_ledger_free(&engine->ledger);
    uint64_t over = excess > room ? excess - room : 0;
    uint64_t margin = (uint64_t)engine->options.memory_margin;
    uint64_t free_bytes = engine->table->free_bytes(engine->device);
    uint64_t pressure = free_bytes < margin ? margin - free_bytes : 0;
    uint64_t give = over > pressure ? over : pressure;
    *changed = false;
    if (give == 0) {
        return STATUS_OK;
    }
    if (kv_is_explicit(engine)) {
        error_hint(err, "lower --kv-cache-memory-bytes or end other programs");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool' of %.1f MiB was asked for; %.1f MiB of it are "
                         "needed elsewhere by now",
                         (double)kv_pool_bytes(pool) / MIB, (double)give / MIB);
    }
    uint64_t before = kv_pool_bytes(pool);
    kv_stamp_spoil(engine->stamp);
    kv_pool_give(pool, give * times);
    log_warn("engine", "KV pool made smaller after the second rehearsal from_mib=%.1f to_mib=%.1f",
             (double)before / MIB, (double)kv_pool_bytes(pool) / MIB);
    *changed = true;
    return take_pool(engine, err);
}

static enum status second_rehearsal(struct engine *engine, struct error *err) {
    bool changed = true;
    for (int round = 0; changed && round < SHRINKS_MAX; round++) {
        if (!engine->proven) {
            TRY(rehearse(engine, err));
        }
        TRY(keep_margin(engine, 1ull << round, &changed, err));
    }
    if (changed) {
        error_hint(err, "end them, or lower --memory-margin");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool': other processes took what it gave, %d times",
                         SHRINKS_MAX);
    }
    return STATUS_OK;
}

// ---- life cycle --------------------------------------------------------------------------------

enum status engine_startable(const struct engine_options *options, struct error *err) {
    if (options->role != ENGINE_ROLE_MIXED) {
        error_hint(err, "tare plan works with any role; to serve, leave --role out");
        return error_set(err, STATUS_UNSUPPORTED,
                         "roles of groups come with disaggregation: not built yet");
    }
    return STATUS_OK;
}

static enum status refuse_plans(const struct engine *engine, struct error *err) {
    const struct engine_options *o = &engine->options;
    TRY(engine_startable(o, err));
    const struct device_table *table = device_find(o->device);
    if (!weights_shapes_only(engine->weights) || (table != NULL && !table->computes)) {
        return STATUS_OK;
    }
    error_hint(err, "tare plan works with shapes; to serve, give a model with its weights");
    return error_set(err, STATUS_UNSUPPORTED,
                     "model '%s' has no weights, only shapes (config.json alone)", o->model_path);
}

static enum status start(struct engine *engine, struct error *err) {
    engine->phase_start_us = clock_monotonic_us();
    if (engine->weights == NULL) {
        TRY(weights_open(engine->options.model_path, &engine->weights, err));
    }
    TRY(refuse_plans(engine, err));
    TRY(engine_plan_memory(engine, err));
    TRY(end_phase(engine, "device", LEDGER_LIBRARIES, err));
    TRY(take_communicators(engine, err));
    TRY(engine_load_weights(engine, err));
    TRY(end_phase(engine, "weights", LEDGER_UNACCOUNTED, err));
    TRY(map_workspace(engine, err));
    TRY(end_phase(engine, "workspace", LEDGER_UNACCOUNTED, err));
    engine->proven = !engine->table->takes_on_first_use && engine_sealed_before(engine);
    TRY(reserve_kv(engine, err));
    TRY(create_executor(engine, err));
    TRY(end_phase(engine, "addresses and scratch", LEDGER_UNACCOUNTED, err));
    if (!engine->proven) {
        TRY(rehearse(engine, err));    // eagerly: every kernel and library path is taken once
        TRY(end_phase(engine, "warm-up", LEDGER_LIBRARIES, err));
    }
    TRY(capture_graphs(engine, err));
    TRY(end_phase(engine, "capture", LEDGER_UNACCOUNTED, err));
    if (!engine->proven) {
        TRY(rehearse(engine, err));
        TRY(end_phase(engine, "rehearsal", LEDGER_UNACCOUNTED, err));
    }
    TRY(weigh(engine, err));
    TRY(map_pool(engine, err));
    TRY(end_phase(engine, "kv pool", LEDGER_UNACCOUNTED, err));
    TRY(second_rehearsal(engine, err));
    TRY(memory_ledger_check(&engine->ledger, err));
    TRY(end_phase(engine, "second rehearsal", LEDGER_UNACCOUNTED, err));
    engine_look_at_others(engine);
    engine_write_seal(engine);
    kv_stamp_settle(engine->stamp, kv_pool_bytes(&engine->pool), engine->head->seal.digest);
    engine_write_capacity(engine, engine->lines, &engine->capacity);
    TRY(capacity_validate(&engine->capacity, err));
    log_start(engine);
    return STATUS_OK;
}

enum status engine_create(const struct engine_options *options, struct engine **out,
                          struct error *err) {
    struct engine *engine = memory_zalloc(sizeof *engine);
    if (engine == NULL) {
        weights_close(options->weights);
        return error_set(err, STATUS_EXHAUSTED, "no memory for an engine");
    }
    engine->options = *options;
    engine->weights = options->weights;
    engine->stamp = options->kv_stamp != NULL ? options->kv_stamp : &engine->own_stamp;
    enum status status = start(engine, err);
    if (status != STATUS_OK) {
        if (engine->device != NULL && (status == STATUS_EXHAUSTED || engine->phase_count > 1)) {
            struct buf table;
            buf_init(&table, 8192);
            memory_ledger_print(&engine->ledger, &table);
            fputs(buf_cstr(&table), stderr);
            buf_deinit(&table);
        }
        engine_destroy(engine);
        return status;
    }
    *out = engine;
    return STATUS_OK;
}

void engine_destroy(struct engine *engine) {
    if (engine == NULL) {
        return;
    }
    executor_destroy(engine->executor);
    batch_destroy(engine->batch);
    model_destroy(engine->model);
    if (engine->device != NULL) {
        engine->table->close(engine->device);
    }
    weights_close(engine->weights);
    memory_free(engine);
}

// ---- resize ------------------------------------------------------------------------------------

static enum status grow_pool(struct engine *engine, uint64_t bytes, struct error *err) {
    struct memory_ledger *ledger = &engine->ledger;
    struct kv_pool *pool = &engine->pool;
    if (engine->options.device_memory == 0 && engine->table->kv_bytes_default > 0) {
        // A pool whose size was nobody's choice: the operator chooses now, up to the device.
        uint64_t most = ledger->device_bytes;
        uint64_t need = memory_ledger_used(ledger) + bytes;
        ledger->budget_bytes = need < most ? need : most;
    }
    uint64_t budget_free = memory_ledger_free(ledger);
    uint64_t free_bytes = engine->table->free_bytes(engine->device);
    uint64_t margin = (uint64_t)engine->options.memory_margin;
    free_bytes = free_bytes > margin ? free_bytes - margin : 0;
    uint64_t have = budget_free < free_bytes ? budget_free : free_bytes;
    if (bytes > have) {
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool' would grow by %llu bytes, %llu are free in the "
                         "%s: %llu are missing",
                         (unsigned long long)bytes, (unsigned long long)have,
                         budget_free < free_bytes ? "budget" : "device",
                         (unsigned long long)(bytes - have));
    }
    return kv_pool_grow(pool, LEDGER_KV, bytes, err);
}

// The pool is as large as it is: plans are checked against it, and the next report says it.
static void follow_pool(struct engine *engine) {
    struct memory_plan *plan = &engine->plan;
    uint64_t blocks = kv_pool_bytes(&engine->pool) / plan->kv.block_stride_bytes;
    plan->kv_bytes = kv_pool_bytes(&engine->pool);
    plan->limits.kv_blocks = (uint32_t)(blocks < BOUND_BLOCKS ? blocks : BOUND_BLOCKS);
    executor_set_pool(engine->executor, plan->limits.kv_blocks, plan->limits.envelope.seq_tokens);
    engine_look_at_others(engine);
    engine_write_capacity(engine, engine->lines, &engine->capacity);
}

enum status engine_resize_kv(struct engine *engine, uint32_t kv_blocks, uint32_t *after,
                             struct error *err) {
    struct memory_plan *plan = &engine->plan;
    struct kv_pool *pool = &engine->pool;
    uint64_t small = pool->rule.small_bytes;
    uint64_t target = (uint64_t)kv_blocks * plan->kv.block_stride_bytes;
    target = (target + small - 1) / small * small;
    enum status status = STATUS_OK;
    if (target > kv_pool_bytes(pool)) {
        status = grow_pool(engine, target - kv_pool_bytes(pool), err);
    } else {
        kv_pool_shrink(pool, target);
    }
    kv_stamp_resize(engine->stamp, kv_pool_bytes(pool));
    follow_pool(engine);
    *after = plan->limits.kv_blocks;
    return status;
}

void engine_release_kv(struct engine *engine) {
    if (engine->released_bytes > 0) {
        return;
    }
    engine->released_bytes = kv_pool_bytes(&engine->pool);
    kv_stamp_spoil(engine->stamp);
    kv_pool_shrink(&engine->pool, 0);
}

enum status engine_reclaim_kv(struct engine *engine, struct error *err) {
    struct kv_pool *pool = &engine->pool;
    uint64_t missing = engine->released_bytes - kv_pool_bytes(pool);
    if (engine->released_bytes == 0) {
        return STATUS_OK;
    }
    if (missing > 0) {
        TRY(kv_pool_grow(pool, LEDGER_KV, missing, err));
    }
    engine->released_bytes = 0;
    kv_stamp_settle(engine->stamp, kv_pool_bytes(pool), engine->head->seal.digest);
    follow_pool(engine);
    return STATUS_OK;
}

// ---- queries -----------------------------------------------------------------------------------

struct executor *engine_executor(struct engine *engine) {
    return engine->executor;
}

const struct message_capacity *engine_capacity(const struct engine *engine) {
    return &engine->capacity;
}

const struct memory_ledger *engine_ledger(const struct engine *engine) {
    return &engine->ledger;
}

const struct engine_phase *engine_phases(const struct engine *engine, uint32_t *count) {
    *count = engine->phase_count;
    return engine->phases;
}

const char *engine_isa(const struct engine *engine) {
    return engine->table->ops(engine->device)->name;
}

bool engine_attached(const struct engine *engine) {
    return engine->attached;
}

bool engine_proven(const struct engine *engine) {
    return engine->proven;
}
