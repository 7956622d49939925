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
    char message[256];
};

size_t executor_workspace_bytes(const struct model *model, const struct ops *ops,
                                const struct op_ctx *ctx, const struct op_kv_layout *kv,
                                const struct plan_limits *limits, const struct tiles *tiles) {
    const struct envelope *e = &limits->envelope;
    struct op_step step = {
        .row_count = e->tokens,
        .seq_count = e->seqs < e->tokens ? e->seqs : e->tokens,
        .logit_count = e->logit_rows,
        .context_max = e->seq_tokens,
        .block_table_stride = e->blocks_per_seq,
    };
    struct forward_step forward = {
        .step = &step,
        .kv = kv,
        .tiles = *tiles,
    };
    struct reader reader;
    reader_init_measure(&reader, ops, ctx);
    model_forward(model, &reader, &forward);
    return reader_peak_bytes(&reader);
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
    batch_reset(executor->options.batch);
}

const struct op_sample_row *executor_sample_rows(const struct executor *executor) {
    return batch_sample_rows(executor->options.batch);
}

void executor_limit_layers(struct executor *executor, uint32_t layer_count) {
    executor->layer_limit = layer_count;
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
    if (plan->seq != executor->applied_seq + 1) {
        refuse(executor, RESULT_STATUS_GAP, "plan is not the next one", out);
        return;
    }
    uint64_t start_us = clock_monotonic_us();
    struct error err = {0};
    if (batch_apply(o->batch, plan, &err) != STATUS_OK) {
        refuse(executor, RESULT_STATUS_REFUSED, err.message, out);
        return;
    }
    executor->applied_seq = plan->seq;
    out->applied_seq = plan->seq;
    if (batch_step(o->batch)->row_count > 0) {
        struct forward_step forward = {
            .step = batch_step(o->batch),
            .kv = o->kv,
            .logit_row = batch_logit_rows(o->batch),
            .sample_rows = batch_sample_rows(o->batch),
            .tiles = o->tiles,
            .layer_limit = executor->layer_limit,
        };
        struct reader reader;
        reader_init_run(&reader, o->ops, o->ctx, o->workspace, o->workspace_bytes);
        model_forward(o->model, &reader, &forward);
    }
    batch_commit(o->batch, executor->rows);
    out->row_count = batch_logit_count(o->batch);
    out->step_us = (uint32_t)(clock_monotonic_us() - start_us);
}

void executor_run(struct executor *executor, const struct plan *plan, struct step_result *out) {
    memory_guard_begin("step");
    run(executor, plan, out);
    memory_guard_end();
}
