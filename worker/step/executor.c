// SPDX-License-Identifier: Apache-2.0
#include "worker/step/executor.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <stdio.h>

struct executor {
    struct executor_options options;
    struct result_row *rows;    // [tokens]
    uint64_t epoch;
    uint64_t applied_seq;
    uint32_t layer_limit;
    const struct device_graph *graphs[LEDGER_GRAPHS];    // by bucket; NULL: not captured
    uint64_t replays;
    struct collective alone;       // the loopback
    struct collective *group;      // NULL: there is none yet
    struct collective *carrier;    // of messages between the ranks: one of those two
    bool broken;                   // the group was lost in this epoch
    char message[256];
};

// ---- sizes -------------------------------------------------------------------------------------

uint32_t executor_bucket_count(uint32_t rows_max) {
    uint32_t count = 1;
    while (count < LEDGER_GRAPHS && (uint32_t)LEDGER_GRAPH_ROWS_MIN << (count - 1) < rows_max) {
        count++;
    }
    return count;
}

uint32_t executor_bucket_rows(uint32_t rows_max, uint32_t bucket) {
    uint32_t rows = (uint32_t)LEDGER_GRAPH_ROWS_MIN << bucket;
    return rows < rows_max ? rows : rows_max;
}

uint32_t executor_bucket_launches(const struct model *model, const struct ops *ops,
                                  const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                  uint32_t rows, const struct tiles *tiles) {
    struct op_step step = {.row_count = rows, .seq_count = rows, .logit_count = rows};
    struct forward_step forward = {.step = &step, .kv = kv, .tiles = *tiles};
    struct reader reader;
    reader_init_measure(&reader, ops, ctx);
    model_forward(model, &reader, &forward);
    return reader_launch_count(&reader);
}

// The worst step of the envelope, measured.
static void measure(const struct model *model, const struct ops *ops, const struct op_ctx *ctx,
                    const struct op_kv_layout *kv, const struct plan_limits *limits,
                    const struct tiles *tiles, struct collective *group, struct reader *reader) {
    const struct envelope *e = &limits->envelope;
    struct op_step step = {
        .row_count = e->tokens,
        .seq_count = e->seqs < e->tokens ? e->seqs : e->tokens,
        .logit_count = e->logit_rows,
        .context_max = e->attended_tokens_max,
        .block_table_stride = e->blocks_per_seq,
    };
    struct forward_step forward = {
        .step = &step,
        .kv = kv,
        .tiles = *tiles,
    };
    reader_init_measure(reader, ops, ctx);
    reader->collective = group;
    model_forward(model, reader, &forward);
}

size_t executor_workspace_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles) {
    struct reader reader;
    measure(model, ops, ctx, kv, limits, tiles, NULL, &reader);
    return reader_peak_bytes(&reader);
}

uint64_t executor_message_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles) {
    struct model_shard shard = model_view(model)->shard;
    if (shard.world == 1) {
        return 0;
    }
    struct collective group;
    struct reader reader;
    collective_init_loopback(&group, shard.rank, shard.world);
    measure(model, ops, ctx, kv, limits, tiles, &group, &reader);
    return collective_buffer_bytes(&group);
}

enum status executor_create(const struct executor_options *options, struct executor **out,
                            struct error *err) {
    struct executor *executor = memory_zalloc(sizeof *executor);
    if (executor == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for an executor");
    }
    executor->options = *options;
    executor->rows = memory_array(options->limits.envelope.tokens, sizeof *executor->rows);
    if (executor->rows == NULL) {
        executor_destroy(executor);
        return error_set(err, STATUS_EXHAUSTED, "no memory for result rows");
    }
    struct model_shard shard = model_view(options->model)->shard;
    collective_init_loopback(&executor->alone, shard.rank, shard.world);
    *out = executor;
    return STATUS_OK;
}

void executor_destroy(struct executor *executor) {
    if (executor == NULL) {
        return;
    }
    memory_free(executor->rows);
    memory_free(executor);
}

void executor_reset(struct executor *executor, uint64_t epoch) {
    executor->epoch = epoch;
    executor->applied_seq = 0;
    executor->broken = false;
    batch_reset(executor->options.batch);
}

const struct op_sample_row *executor_sample_rows(const struct executor *executor) {
    return batch_sample_rows(executor->options.batch);
}

void executor_limit_layers(struct executor *executor, uint32_t layer_count) {
    executor->layer_limit = layer_count;
}

void executor_set_collective(struct executor *executor, struct collective *collective) {
    executor->group = collective;
    executor->carrier = collective;
}

void executor_rehearse(struct executor *executor, bool on) {
    executor->carrier = on ? &executor->alone : executor->group;
}

uint64_t executor_replays(const struct executor *executor) {
    return executor->replays;
}

void executor_set_pool(struct executor *executor, uint32_t kv_blocks, uint32_t seq_tokens) {
    struct plan_limits *limits = &executor->options.limits;
    INVARIANT(seq_tokens <= limits->envelope.seq_tokens);
    limits->kv_blocks = kv_blocks;
    limits->envelope.seq_tokens = seq_tokens;
    batch_set_pool(executor->options.batch, kv_blocks, seq_tokens);
}

uint64_t executor_applied_seq(const struct executor *executor) {
    return executor->applied_seq;
}

static void refuse(struct executor *executor, enum result_status status, const char *why,
                   struct step_result *out) {
    snprintf(executor->message, sizeof executor->message, "%.200s", why);
    out->status = status;
    out->message = executor->message;
}

// Sequences that can decode in one step.
static uint32_t decode_rows_max(const struct executor *executor) {
    const struct envelope *e = &executor->options.limits.envelope;
    return e->seqs < e->tokens ? e->seqs : e->tokens;
}

// ---- one step ----------------------------------------------------------------------------------

// The forward function over the batch's present descriptor, through `ops`.
static void forward(const struct executor *executor, const struct ops *ops,
                    const struct op_ctx *ctx, uint32_t layer_limit) {
    const struct executor_options *o = &executor->options;
    struct forward_step step = {
        .step = batch_step(o->batch),
        .kv = o->kv,
        .logit_row = batch_logit_rows(o->batch),
        .sample_rows = batch_sample_rows(o->batch),
        .tiles = o->tiles,
        .layer_limit = layer_limit,
    };
    struct reader reader;
    reader_init_run(&reader, ops, ctx, o->workspace, o->workspace_bytes);
    reader.carrier = &executor->carrier;
    model_forward(o->model, &reader, &step);
}

enum status executor_capture(struct executor *executor, uint32_t bucket, struct error *err) {
    const struct executor_options *o = &executor->options;
    INVARIANT(o->table != NULL);
    INVARIANT(executor->graphs[bucket] == NULL);
    uint32_t rows = executor_bucket_rows(decode_rows_max(executor), bucket);
    uint32_t launches = executor_bucket_launches(o->model, o->ops, o->ctx, o->kv, rows, &o->tiles);
    struct device_capture capture;
    TRY(o->table->capture_begin(o->device, (enum ledger_id)(LEDGER_GRAPH_8 + bucket), launches,
                                &capture, err));
    batch_pose(o->batch, rows);
    forward(executor, capture.ops, capture.ctx, 0);
    executor->graphs[bucket] = o->table->capture_end(o->device);
    return STATUS_OK;
}

// The smallest captured step that holds the batch, or NULL.
static const struct device_graph *graph_for(const struct executor *executor) {
    const struct executor_options *o = &executor->options;
    if (!batch_only_decodes(o->batch)) {
        return NULL;
    }
    uint32_t rows = batch_step(o->batch)->row_count;
    uint32_t bucket = 0;
    while (bucket < LEDGER_GRAPHS &&
           executor_bucket_rows(decode_rows_max(executor), bucket) < rows) {
        bucket++;
    }
    return bucket < LEDGER_GRAPHS ? executor->graphs[bucket] : NULL;
}

static void compute(struct executor *executor) {
    const struct executor_options *o = &executor->options;
    const struct device_graph *graph = graph_for(executor);
    if (graph == NULL) {
        forward(executor, o->ops, o->ctx, executor->layer_limit);
        return;
    }
    o->table->replay(o->device, graph);
    executor->replays++;
}

// Blocks that the plan moves, before the step reads them at their new places.
static void copy_blocks(const struct executor *executor) {
    const struct executor_options *o = &executor->options;
    struct batch_copies copies = batch_copies(o->batch);
    if (copies.count > 0) {
        o->ops->kv_copy(o->ctx, &(struct op_kv_copy_args){.step = batch_step(o->batch),
                                                          .kv = o->kv,
                                                          .from = copies.from,
                                                          .to = copies.to,
                                                          .count = copies.count});
    }
}

// A rank whose sums would be missing the others' parts.
static bool lacks_group(const struct executor *executor) {
    const struct executor_options *o = &executor->options;
    bool arithmetic = o->ops->weight_pack != NULL;
    return executor->carrier == NULL && arithmetic && executor->alone.world > 1;
}

static void run(struct executor *executor, const struct plan *plan, struct step_result *out) {
    const struct executor_options *o = &executor->options;
    *out = (struct step_result){.group = plan->group,
                                .epoch = plan->epoch,
                                .seq = plan->seq,
                                .applied_seq = executor->applied_seq,
                                .rows = executor->rows,
                                .message = ""};
    if (plan->epoch != executor->epoch) {
        refuse(executor, RESULT_STATUS_REFUSED, "plan of another epoch", out);
        return;
    }
    if (executor->broken || lacks_group(executor)) {
        refuse(executor, RESULT_STATUS_FAULT,
               executor->broken ? "the group was lost in this epoch" : "no group has formed", out);
        return;
    }
    if (!plan_follows(plan, executor->applied_seq)) {
        refuse(executor, RESULT_STATUS_GAP, "plan goes on from another one", out);
        return;
    }
    if (executor->broken || lacks_group(executor)) {
        refuse(executor, RESULT_STATUS_FAULT,
               executor->broken ? "the group was lost in this epoch" : "no group has formed", out);
        return;
    }
    uint64_t start_us = clock_monotonic_us();
    struct error err = {0};
    if (batch_apply(o->batch, plan, &err) != STATUS_OK) {
        refuse(executor, RESULT_STATUS_REFUSED, err.message, out);
        return;
    }
    copy_blocks(executor);
    if (batch_step(o->batch)->row_count > 0) {
        compute(executor);
    }
    if (executor->carrier != NULL && collective_broken(executor->carrier)) {
        // What was computed is worth nothing, and the slots stand between two plans: only a new
        // epoch, which frees them, goes on from here.
        executor->broken = true;
        refuse(executor, RESULT_STATUS_FAULT, "the group lost a rank during the step", out);
        return;
    }
    executor->applied_seq = plan->seq;
    out->applied_seq = plan->seq;
    batch_commit(o->batch, executor->rows);
    out->row_count = batch_logit_count(o->batch);
    out->digest = batch_step_digest(o->batch, executor->rows, out->row_count);
    out->step_us = (uint32_t)(clock_monotonic_us() - start_us);
}

void executor_run(struct executor *executor, const struct plan *plan, struct step_result *out) {
    memory_guard_begin("step");
    run(executor, plan, out);
    memory_guard_end();
}
