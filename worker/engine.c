// SPDX-License-Identifier: Apache-2.0
#include "worker/engine.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/integers.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/rng.h"
#include "common/version.h"
#include "worker/device/device.h"
#include "worker/kv/kv_pool.h"
#include "worker/memory_plan.h"
#include "worker/seal.h"
#include "worker/step/rehearsal.h"
#include <stdio.h>
#include <string.h>

enum { SHRINKS_MAX = 8 };    // rounds of giving KV back while others take memory

static const double MIB = 1024.0 * 1024.0;

// First page of the weights' memory file: whose weights these are, and whether all are there.
struct weights_head {
    char magic[16];
    char build[64];
    char digest[32];
    char ops[32];
    uint32_t rank, world;    // whose part of the weights
    uint64_t bytes;
    uint64_t complete;
    struct seal seal;    // of the last start that was sealed over these weights
};
static const char WEIGHTS_MAGIC[16] = "tare weights 3";
_Static_assert(sizeof(struct weights_head) <= MEMORY_PLAN_HEAD_BYTES, "the head fits its page");

struct engine {
    struct engine_options options;
    struct memory_ledger ledger;
    struct weights *weights;
    const struct device_table *table;
    struct device *device;
    struct model *model;
    struct memory_plan plan;
    struct device_range weights_range, workspace, step, sampler;
    struct kv_pool pool;
    struct batch *batch;
    struct executor *executor;
    struct message_capacity capacity;
    struct ledger_line lines[LEDGER_COUNT];
    char digest[32];
    bool attached;    // weights were there
    bool proven;      // by a sealed start of the same sizes
    struct kv_stamp own_stamp;
    struct kv_stamp *stamp;     // of the options, or the own one
    uint64_t released_bytes;    // of a pool that was given back; 0: it is there
    struct weights_head *head;
    struct engine_phase phases[ENGINE_PHASES_MAX];
    uint32_t phase_count;
    uint64_t phase_start_us;
    uint64_t load_start_us;
};

// ---- phases ------------------------------------------------------------------------------------

// What the device says we hold beyond what is named. Guard and the cpu's messages are not held.
static uint64_t unnamed_bytes(const struct engine *engine) {
    uint64_t own = engine->table->own_bytes(engine->device);
    const uint64_t *bytes = engine->ledger.bytes;
    uint64_t others =
        bytes[LEDGER_GUARD] + (engine->table->computes ? bytes[LEDGER_COMM_ARENA] : 0);
    uint64_t named = memory_ledger_used(&engine->ledger) - others;
    return own > named ? own - named : 0;
}

// It belongs to the step that just ended.
static enum status settle(struct engine *engine, enum ledger_id line, struct error *err) {
    return memory_ledger_charge(&engine->ledger, line, unnamed_bytes(engine), err);
}

// A step of the start is over: what it took goes to `line`, its time to the table.
static enum status end_phase(struct engine *engine, const char *name, enum ledger_id line,
                             struct error *err) {
    TRY(settle(engine, line, err));
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

// ---- device and plan ---------------------------------------------------------------------------

// What other processes hold of the device by now: never ours, and never part of the budget.
static void look_at_others(struct engine *engine) {
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
    look_at_others(engine);
    return settle(engine, LEDGER_CONTEXT, err);
}

// Files, device, model and sizes: all that can be judged before memory is taken.
static enum status plan_memory(struct engine *engine, struct error *err) {
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

static enum status map_new(struct engine *engine, enum ledger_id line, uint64_t bytes, int fd,
                           struct device_range *out, struct error *err) {
    TRY(engine->table->reserve(engine->device, line, bytes, fd, out, err));
    return engine->table->map(engine->device, out, bytes, err);
}

// Attaches to weights that a process before us loaded, or loads them.
static enum status load_weights(struct engine *engine, struct error *err) {
    const struct memory_plan *plan = &engine->plan;
    uint64_t bytes = memory_plan_weight_bytes(plan);
    TRY(map_new(engine, LEDGER_WEIGHTS, bytes, engine->options.weights_fd, &engine->weights_range,
                err));
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
static void seal_now(const struct engine *engine, struct seal *out) {
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
static bool sealed_before(const struct engine *engine) {
    struct seal now, before;
    seal_now(engine, &now);
    now.bytes[LEDGER_KV] = engine->plan.kv_bytes;
    now.bytes[LEDGER_GUARD] = engine->plan.bytes[LEDGER_GUARD];
    if (engine->attached && seal_covers(&engine->head->seal, &now)) {
        return true;
    }
    const char *dir = engine->options.seal_dir;
    return dir != NULL && seal_read(dir, now.digest, &before) && seal_covers(&before, &now);
}

static void write_seal(struct engine *engine) {
    struct seal seal;
    seal_now(engine, &seal);
    engine->head->seal = seal;
    struct error err = {0};
    if (engine->options.seal_dir != NULL && !engine->proven &&
        seal_write(engine->options.seal_dir, &seal, &err) != STATUS_OK) {
        log_warn("engine", "the next start rehearses again: %s", err.message);
    }
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
        TRY(more > 0 ? map_new(engine, (enum ledger_id)i, more, -1, &range, err) : STATUS_OK);
    }
    return STATUS_OK;
}

static enum status map_workspace(struct engine *engine, struct error *err) {
    const uint64_t *bytes = engine->plan.bytes;
    TRY(map_new(engine, LEDGER_WORKSPACE, bytes[LEDGER_WORKSPACE], -1, &engine->workspace, err));
    TRY(map_new(engine, LEDGER_STEP, bytes[LEDGER_STEP], -1, &engine->step, err));
    return map_new(engine, LEDGER_SAMPLER, bytes[LEDGER_SAMPLER], -1, &engine->sampler, err);
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
        TRY(settle(engine, (enum ledger_id)(LEDGER_GRAPH_8 + order[i]), err));
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
    uint64_t excess = unnamed_bytes(engine);
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

// ---- capacity ----------------------------------------------------------------------------------

static void write_capacity(struct engine *engine, struct ledger_line *lines,
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

// ---- life cycle --------------------------------------------------------------------------------

static void apply_role(struct engine_options *o) {
    if (o->role == ENGINE_ROLE_PREFILL) {
        o->enforce_eager = true;
    }
    if (o->role == ENGINE_ROLE_DECODE && o->step_tokens > o->seqs) {
        o->step_tokens = o->seqs;
    }
}

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
    TRY(plan_memory(engine, err));
    TRY(end_phase(engine, "device", LEDGER_LIBRARIES, err));
    TRY(take_communicators(engine, err));
    TRY(load_weights(engine, err));
    TRY(end_phase(engine, "weights", LEDGER_UNACCOUNTED, err));
    TRY(map_workspace(engine, err));
    TRY(end_phase(engine, "workspace", LEDGER_UNACCOUNTED, err));
    engine->proven = !engine->table->takes_on_first_use && sealed_before(engine);
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
    look_at_others(engine);
    write_seal(engine);
    kv_stamp_settle(engine->stamp, kv_pool_bytes(&engine->pool), engine->head->seal.digest);
    write_capacity(engine, engine->lines, &engine->capacity);
    TRY(capacity_validate(&engine->capacity, err));
    log_start(engine);
    return STATUS_OK;
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
    seal_now(engine, &now);
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
    enum status status = plan_memory(engine, err);
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
        write_capacity(engine, out->lines, &out->capacity);
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
    look_at_others(engine);
    write_capacity(engine, engine->lines, &engine->capacity);
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
