// SPDX-License-Identifier: Apache-2.0
#include "worker/step/simulate.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "kernels/sim/ops_sim.h"

struct arrays {
    uint32_t *position, *row_seq;    // [rows]
    uint32_t *seq_row;               // [seqs + 1]
    uint32_t *logit_row;             // [seqs]
    struct op_sample_row *sample;    // [seqs]
};

static void free_arrays(struct arrays *a) {
    memory_free(a->position);
    memory_free(a->row_seq);
    memory_free(a->seq_row);
    memory_free(a->logit_row);
    memory_free(a->sample);
}

static enum status make_arrays(const struct simulate_shape *shape, struct arrays *a,
                               struct error *err) {
    uint32_t rows = shape->seqs * shape->rows_each;
    *a = (struct arrays){memory_array(rows, sizeof *a->position),
                         memory_array(rows, sizeof *a->row_seq),
                         memory_array((size_t)shape->seqs + 1, sizeof *a->seq_row),
                         memory_array(shape->seqs, sizeof *a->logit_row),
                         memory_array(shape->seqs, sizeof *a->sample)};
    if (a->position == NULL || a->row_seq == NULL || a->seq_row == NULL || a->logit_row == NULL ||
        a->sample == NULL) {
        free_arrays(a);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a simulated step of %u rows", rows);
    }
    for (uint32_t i = 0; i < rows; i++) {
        a->row_seq[i] = i / shape->rows_each;
        a->position[i] = shape->context - shape->rows_each + i % shape->rows_each;
    }
    for (uint32_t s = 0; s < shape->seqs; s++) {
        a->seq_row[s + 1] = (s + 1) * shape->rows_each;
        a->logit_row[s] = (s + 1) * shape->rows_each - 1;
        a->sample[s].target = -1;
    }
    return STATUS_OK;
}

enum status simulate_step(const struct model *model, const struct ops *ops,
                          const struct op_ctx *ctx, const struct op_kv_layout *kv,
                          const struct tiles *tiles, const struct simulate_shape *shape,
                          struct simulate_result *out, struct error *err) {
    INVARIANT(shape->seqs > 0);
    INVARIANT(shape->rows_each > 0);
    INVARIANT(shape->context >= shape->rows_each);
    struct arrays a;
    TRY(make_arrays(shape, &a, err));
    struct op_step step = {.row_count = shape->seqs * shape->rows_each,
                           .seq_count = shape->seqs,
                           .logit_count = shape->seqs,
                           .context_max = shape->context,
                           .position = a.position,
                           .row_seq = a.row_seq,
                           .seq_row = a.seq_row};
    struct forward_step forward = {.step = &step,
                                   .kv = kv,
                                   .logit_row = a.logit_row,
                                   .sample_rows = a.sample,
                                   .tiles = *tiles};
    // A meter of its own: the device's is told of steps that happen.
    const struct sim_meter *device = ctx->pool;
    struct sim_meter meter = {.machine = device->machine};
    struct op_ctx metered;
    ops_sim_context(&meter, &metered);
    struct model_shard shard = model_view(model)->shard;
    struct collective group;
    struct reader reader;
    collective_init_loopback(&group, shard.rank, shard.world);
    reader_init_simulate(&reader, ops, &metered);
    reader.collective = shard.world > 1 ? &group : NULL;
    model_forward(model, &reader, &forward);
    *out = (struct simulate_result){.us = meter.us,
                                    .bytes = meter.bytes,
                                    .flops = meter.flops,
                                    .message_bytes = group.message_bytes,
                                    .message_count = group.message_count};
    free_arrays(&a);
    return STATUS_OK;
}
