// SPDX-License-Identifier: Apache-2.0
#include "worker/engine.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/version.h"
#include "worker/device/device.h"
#include "worker/device/memory_ledger.h"
#include "worker/step/rehearsal.h"
#include "worker/step/tiles.h"
#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_KV_BYTES = 512 * 1024 * 1024,
    WORKSPACE_SHARE = 4,    // of the budget: at most one part in so many, unless it is given
    WEIGHTS_HEAD_BYTES = 4096,
};

struct line_bytes {
    uint64_t weights, workspace, step, history;
};

// First page of the weights' memory file: whose weights these are, and whether all are there.
struct weights_head {
    char magic[16];
    char build[64];
    char digest[32];
    char ops[32];
    uint64_t bytes;
    uint64_t complete;
    // Of the last start that was rehearsed: a start with the same sizes need not be.
    struct line_bytes sealed;
    uint64_t sealed_kv_bytes;
};
static const char WEIGHTS_MAGIC[16] = "tare weights 1";
_Static_assert(sizeof(struct weights_head) <= WEIGHTS_HEAD_BYTES, "the head fits its page");

struct memories {
    void *workspace, *step, *history, *kv;
};

struct engine {
    struct engine_options options;
    struct memory_ledger ledger;
    struct weights *weights;
    const struct device_table *table;
    struct device *device;
    struct model *model;
    struct op_kv_layout kv;
    struct plan_limits limits;
    struct tiles tiles;
    size_t workspace_bytes;    // that the worst step needs with these tiles
    struct batch *batch;
    struct executor *executor;
    struct message_capacity capacity;
    struct ledger_line lines[LEDGER_COUNT];
    char digest[32];
    bool attached;
    struct memories memories;
    struct weights_head *head;
    uint64_t load_start_us;
};

// ---- sizes -------------------------------------------------------------------------------------

static uint32_t blocks_for(uint32_t tokens, uint32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
}

static uint64_t step_seqs(const struct engine_options *o) {
    return o->seqs < o->step_tokens ? o->seqs : o->step_tokens;
}

static void set_limits(struct engine *engine, uint32_t seq_tokens, uint32_t kv_blocks) {
    const struct engine_options *o = &engine->options;
    engine->limits = (struct plan_limits){
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
        .kv_blocks = kv_blocks,
        .vocabulary = model_config(engine->model)->vocabulary,
    };
}

static void plan_lines(struct engine *engine, const struct line_bytes *lines) {
    memory_ledger_plan(&engine->ledger, LEDGER_WEIGHTS, lines->weights);
    memory_ledger_plan(&engine->ledger, LEDGER_WORKSPACE, lines->workspace);
    memory_ledger_plan(&engine->ledger, LEDGER_STEP, lines->step);
    memory_ledger_plan(&engine->ledger, LEDGER_HISTORY, lines->history);
}

// Charges every line to a copy of the ledger: the first that does not fit is named.
static enum status try_lines(const struct engine *engine, const struct line_bytes *lines,
                             struct error *err) {
    struct memory_ledger trial = engine->ledger;
    TRY(memory_ledger_charge(&trial, LEDGER_WEIGHTS, lines->weights, err));
    TRY(memory_ledger_charge(&trial, LEDGER_WORKSPACE, lines->workspace, err));
    TRY(memory_ledger_charge(&trial, LEDGER_STEP, lines->step, err));
    return memory_ledger_charge(&trial, LEDGER_HISTORY, lines->history, err);
}

static size_t measure_workspace(void *ctx, const struct tiles *tiles) {
    const struct engine *engine = ctx;
    return executor_workspace_bytes(engine->model, engine->table->ops(engine->device),
                                    engine->table->ctx(engine->device), &engine->kv,
                                    &engine->limits, tiles);
}

static enum status choose_tiles(struct engine *engine, struct error *err) {
    const struct engine_options *o = &engine->options;
    uint64_t share = o->device_memory > 0 ? engine->ledger.budget_bytes / WORKSPACE_SHARE : 0;
    struct tiles_question question;
    tiles_ask(&engine->limits.envelope, engine->table->ctx(engine->device)->thread_count,
              (uint64_t)o->workspace_budget, share, &question);
    question.measure = measure_workspace;
    question.measure_ctx = engine;
    return tiles_choose(&question, &engine->tiles, &engine->workspace_bytes, err);
}

static struct line_bytes planned_bytes(const struct engine *engine) {
    const struct envelope *e = &engine->limits.envelope;
    return (struct line_bytes){
        .weights = WEIGHTS_HEAD_BYTES + model_bytes(engine->model),
        .workspace = engine->workspace_bytes,
        .step = batch_step_bytes(&engine->limits),
        .history = (uint64_t)e->seqs * e->seq_tokens * sizeof(int32_t),
    };
}

static uint64_t sum_lines(const struct line_bytes *lines) {
    return lines->weights + lines->workspace + lines->step + lines->history;
}

// KV bytes that the budget leaves, or that were asked for.
static uint64_t kv_bytes_wanted(const struct engine *engine, const struct line_bytes *lines) {
    const struct engine_options *o = &engine->options;
    if (o->kv_bytes > 0) {
        return (uint64_t)o->kv_bytes;
    }
    if (o->device_memory == 0) {
        return DEFAULT_KV_BYTES;
    }
    uint64_t used = sum_lines(lines);
    uint64_t budget = engine->ledger.budget_bytes;
    return budget > used ? budget - used : 0;
}

static uint64_t kv_bytes(const struct engine *engine) {
    return (uint64_t)engine->limits.kv_blocks * engine->kv.block_stride_bytes;
}

// Sequence length and KV blocks. The length is lowered to what the pool holds unless it was given.
static enum status size_kv(struct engine *engine, struct line_bytes *lines, struct error *err) {
    const struct engine_options *o = &engine->options;
    const struct model_config *c = model_config(engine->model);
    uint32_t length_max = c->context < BOUND_SEQ_TOKENS ? c->context : BOUND_SEQ_TOKENS;
    if (o->model_len > (int64_t)length_max) {
        return error_set(err, STATUS_INVALID,
                         "--max-model-len %lld is above the model's limit of %u tokens",
                         (long long)o->model_len, length_max);
    }
    uint32_t length = o->model_len > 0 ? (uint32_t)o->model_len : length_max;
    set_limits(engine, length, 1);
    TRY(choose_tiles(engine, err));
    *lines = planned_bytes(engine);
    plan_lines(engine, lines);
    TRY(try_lines(engine, lines, err));
    uint64_t blocks = kv_bytes_wanted(engine, lines) / engine->kv.block_stride_bytes;
    blocks = blocks < BOUND_BLOCKS ? blocks : BOUND_BLOCKS;
    uint64_t held = blocks * o->block_tokens;
    if (held < length && o->model_len <= 0 && held > 0) {
        log_warn("engine", "context lowered to what the KV pool holds from=%u to=%llu", length,
                 (unsigned long long)held);
        length = (uint32_t)held;
        set_limits(engine, length, 1);
        TRY(choose_tiles(engine, err));
        *lines = planned_bytes(engine);
    }
    if (blocks == 0 || held < length) {
        uint64_t need =
            (uint64_t)blocks_for(length, o->block_tokens) * engine->kv.block_stride_bytes;
        error_hint(err, "lower --max-model-len, or raise --device-memory or "
                        "--kv-cache-memory-bytes");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line 'kv pool': one sequence of %u tokens needs %.1f MiB of KV, "
                         "%.1f MiB are left",
                         length, (double)need / 1048576.0,
                         (double)kv_bytes_wanted(engine, lines) / 1048576.0);
    }
    set_limits(engine, length, (uint32_t)blocks);
    plan_lines(engine, lines);
    memory_ledger_plan(&engine->ledger, LEDGER_KV, kv_bytes(engine));
    return STATUS_OK;
}

// ---- start-up steps ----------------------------------------------------------------------------

static enum status open_device(struct engine *engine, struct error *err) {
    const struct engine_options *o = &engine->options;
    engine->table = device_find(o->device);
    if (engine->table == NULL) {
        return error_set(err, STATUS_UNSUPPORTED, "there is no device '%s' in this build; use cpu",
                         o->device);
    }
    uint64_t present = engine->table->memory_bytes();
    uint64_t device = o->device_memory > 0 ? (uint64_t)o->device_memory : present;
    if (device > present) {
        return error_set(err, STATUS_INVALID,
                         "--device-memory %lld is more than the %llu bytes of this machine",
                         (long long)o->device_memory, (unsigned long long)present);
    }
    double share = o->device_memory > 0 ? o->utilization : 1.0;
    memory_ledger_init(&engine->ledger, device, (uint64_t)((double)device * share));
    struct device_options options = {o->threads, o->isa, &engine->ledger};
    return engine->table->open(&options, &engine->device, err);
}

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
static enum status load_weights(struct engine *engine, uint64_t bytes, struct error *err) {
    void *memory = NULL;
    TRY(engine->table->map(engine->device, LEDGER_WEIGHTS, bytes, engine->options.weights_fd,
                           &memory, err));
    struct weights_head *head = memory;
    struct weights_head want = {.bytes = bytes};
    memcpy(want.magic, WEIGHTS_MAGIC, sizeof want.magic);
    snprintf(want.build, sizeof want.build, "%s", VERSION_BUILD);
    snprintf(want.digest, sizeof want.digest, "%s", engine->digest);
    snprintf(want.ops, sizeof want.ops, "%s", engine->table->ops(engine->device)->name);
    model_bind(engine->model, (uint8_t *)memory + WEIGHTS_HEAD_BYTES);
    engine->head = head;
    engine->attached = head_matches(head, &want);
    if (engine->attached) {
        return STATUS_OK;
    }
    *head = want;
    engine->load_start_us = clock_monotonic_us();
    model_load(engine->model, engine->weights, engine->table->ctx(engine->device), report_load,
               engine);
    head->complete = 1;
    return STATUS_OK;
}

static enum status map_rest(struct engine *engine, const struct line_bytes *lines,
                            struct error *err) {
    const struct device_table *table = engine->table;
    struct memories *m = &engine->memories;
    TRY(table->map(engine->device, LEDGER_WORKSPACE, lines->workspace, -1, &m->workspace, err));
    TRY(table->map(engine->device, LEDGER_STEP, lines->step, -1, &m->step, err));
    TRY(table->map(engine->device, LEDGER_HISTORY, lines->history, -1, &m->history, err));
    TRY(table->map(engine->device, LEDGER_KV, kv_bytes(engine), engine->options.kv_fd, &m->kv,
                   err));
    struct batch_options batch = {engine->limits, m->kv, m->history};
    TRY(batch_create(&batch, m->step, &engine->batch, err));
    struct executor_options executor = {
        .model = engine->model,
        .ops = table->ops(engine->device),
        .ctx = table->ctx(engine->device),
        .kv = &engine->kv,
        .batch = engine->batch,
        .limits = engine->limits,
        .workspace = m->workspace,
        .workspace_bytes = lines->workspace,
        .tiles = engine->tiles,
    };
    return executor_create(&executor, &engine->executor, err);
}

// Every page that steps touch, but the KV pool's, exists before the first of them.
static enum status populate(struct engine *engine, const struct line_bytes *lines,
                            struct error *err) {
    const struct device_table *table = engine->table;
    struct device *device = engine->device;
    const struct memories *m = &engine->memories;
    TRY(table->populate(device, LEDGER_WORKSPACE, m->workspace, lines->workspace, err));
    TRY(table->populate(device, LEDGER_STEP, m->step, lines->step, err));
    return table->populate(device, LEDGER_HISTORY, m->history, lines->history, err);
}

static bool sealed_before(const struct engine *engine, const struct line_bytes *lines) {
    const struct weights_head *head = engine->head;
    return engine->attached && memcmp(&head->sealed, lines, sizeof *lines) == 0 &&
           head->sealed_kv_bytes == kv_bytes(engine);
}

// Worst steps before and after the KV pool exists, which comes last since it is the part that can
// be made smaller. A child that attaches to what such a start left, with the same sizes to the
// byte, has nothing to prove.
static enum status rehearse_and_seal(struct engine *engine, const struct line_bytes *lines,
                                     struct error *err) {
    TRY(populate(engine, lines, err));
    if (sealed_before(engine, lines)) {
        return STATUS_OK;
    }
    uint64_t start_us = clock_monotonic_us();
    TRY(rehearsal_run(engine->executor, &engine->limits, err));
    uint64_t rehearsed_us = clock_monotonic_us();
    TRY(engine->table->populate(engine->device, LEDGER_KV, engine->memories.kv, kv_bytes(engine),
                                err));
    uint64_t populated_us = clock_monotonic_us();
    TRY(rehearsal_run(engine->executor, &engine->limits, err));
    uint64_t end_us = clock_monotonic_us();
    log_info("engine", "rehearsed and sealed rehearsal_ms=%llu kv_ms=%llu second_ms=%llu",
             (unsigned long long)((rehearsed_us - start_us) / 1000),
             (unsigned long long)((populated_us - rehearsed_us) / 1000),
             (unsigned long long)((end_us - populated_us) / 1000));
    engine->head->sealed = *lines;
    engine->head->sealed_kv_bytes = kv_bytes(engine);
    return STATUS_OK;
}

static void write_capacity(const struct engine *engine, struct ledger_line *lines,
                           struct message_capacity *out) {
    memory_ledger_lines(&engine->ledger, lines);
    *out = (struct message_capacity){
        .envelope = engine->limits.envelope,
        .block_tokens = engine->limits.block_tokens,
        .kv_blocks = engine->limits.kv_blocks,
        .kv_bytes_per_token = engine->kv.block_stride_bytes / engine->limits.block_tokens,
        .vocabulary = engine->limits.vocabulary,
        .parameters = model_parameters(engine->model),
        .kv_dtype = engine->kv.dtype == DTYPE_F16 ? "float16" : "float32",
        .threads = engine->table->ctx(engine->device)->thread_count,
        .line_count = LEDGER_COUNT,
        .lines = lines,
    };
}

// Files, device, model and sizes: all that can be judged before memory is taken.
static enum status plan_memory(struct engine *engine, struct line_bytes *lines, struct error *err) {
    const struct engine_options *o = &engine->options;
    snprintf(engine->digest, sizeof engine->digest, "%s", weights_digest(engine->weights));
    TRY(open_device(engine, err));
    const struct ops *ops = engine->table->ops(engine->device);
    int64_t positions = o->model_len;
    if (positions <= 0) {
        struct model_config config;
        TRY(model_config_read(engine->weights, &config, err));
        positions = config.context < BOUND_SEQ_TOKENS ? config.context : BOUND_SEQ_TOKENS;
    }
    TRY(model_create(engine->weights, ops, (struct model_shard){0, 1}, (uint32_t)positions,
                     &engine->model, err));
    model_kv_layout(engine->model, o->kv_dtype, o->block_tokens, &engine->kv);
    TRY(size_kv(engine, lines, err));
    if (o->device_memory == 0) {
        // Without a given size the budget is exactly what the lines need.
        engine->ledger.budget_bytes = sum_lines(lines) + kv_bytes(engine);
        if (engine->ledger.budget_bytes > engine->ledger.device_bytes) {
            engine->ledger.budget_bytes = engine->ledger.device_bytes;
        }
    }
    return STATUS_OK;
}

static enum status start(struct engine *engine, struct error *err) {
    struct line_bytes lines = {0};
    TRY(weights_open(engine->options.model_path, &engine->weights, err));
    if (weights_shapes_only(engine->weights)) {
        error_hint(err, "tare plan works with shapes; to serve, give a model with its weights");
        return error_set(err, STATUS_UNSUPPORTED,
                         "model '%s' has no weights, only shapes (config.json alone)",
                         engine->options.model_path);
    }
    TRY(plan_memory(engine, &lines, err));
    TRY(load_weights(engine, lines.weights, err));
    weights_close(engine->weights);
    engine->weights = NULL;
    TRY(map_rest(engine, &lines, err));
    TRY(rehearse_and_seal(engine, &lines, err));
    write_capacity(engine, engine->lines, &engine->capacity);
    return capacity_validate(&engine->capacity, err);
}

// Charges every planned line, so that what does not fit is refused as a start would refuse it.
static enum status charge_plan(struct engine *engine, const struct line_bytes *lines,
                               struct error *err) {
    struct memory_ledger *ledger = &engine->ledger;
    TRY(memory_ledger_charge(ledger, LEDGER_WEIGHTS, lines->weights, err));
    TRY(memory_ledger_charge(ledger, LEDGER_WORKSPACE, lines->workspace, err));
    TRY(memory_ledger_charge(ledger, LEDGER_STEP, lines->step, err));
    TRY(memory_ledger_charge(ledger, LEDGER_HISTORY, lines->history, err));
    return memory_ledger_charge(ledger, LEDGER_KV, kv_bytes(engine), err);
}

enum status engine_plan(const struct engine_options *options, struct weights *weights,
                        struct engine_plan *out, struct error *err) {
    memset(out, 0, sizeof *out);
    struct engine *engine = memory_zalloc(sizeof *engine);
    if (engine == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for an engine");
    }
    engine->options = *options;
    engine->weights = weights;
    struct line_bytes lines = {0};
    enum status status = plan_memory(engine, &lines, err);
    out->ledger = engine->ledger;
    if (status == STATUS_OK) {
        status = charge_plan(engine, &lines, err);
    }
    if (status == STATUS_OK) {
        write_capacity(engine, out->lines, &out->capacity);
        out->ledger = engine->ledger;
        out->fixed_bytes = sum_lines(&lines);
        out->kv_bytes = kv_bytes(engine);
        out->tiles = engine->tiles;
        out->workspace_bytes = engine->workspace_bytes;
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
        return error_set(err, STATUS_EXHAUSTED, "no memory for an engine");
    }
    engine->options = *options;
    enum status status = start(engine, err);
    if (status != STATUS_OK) {
        if (status == STATUS_EXHAUSTED && engine->device != NULL) {
            struct buf table;
            buf_init(&table, 4096);
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

struct executor *engine_executor(struct engine *engine) {
    return engine->executor;
}

const struct message_capacity *engine_capacity(const struct engine *engine) {
    return &engine->capacity;
}

const char *engine_isa(const struct engine *engine) {
    return engine->table->ops(engine->device)->name;
}

bool engine_attached(const struct engine *engine) {
    return engine->attached;
}
