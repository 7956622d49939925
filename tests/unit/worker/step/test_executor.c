// SPDX-License-Identifier: Apache-2.0
// Goal: a captured step computes what the forward function computes, bit for bit, for every number
// of sequences a bucket may hold, and never enters model code. Method: two executors over one
// model, one with graphs and one without, run the same plans; then the forward function of the
// first is replaced by one that ends the process.
#include "common/memory.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/device/launch_list.h"
#include "worker/step/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQS = 20, TOKENS = 64, SEQ_TOKENS = 64, BLOCKS_EACH = 4, PROMPT = 3, MIB = 1024 * 1024 };

static const struct tiny_model models[] = {
    {"llama", 2, 64, 96, 4, 2, 16, 256, 256},
    {"qwen3", 2, 48, 128, 6, 2, 16, 200, 256},
};
enum { MODEL_COUNT = sizeof models / sizeof *models };

struct side {
    struct device_range kv, workspace, step, history;
    struct batch *batch;
    struct executor *executor;
};

struct fixture {
    char path[64];
    struct memory_ledger ledger;
    struct device *device;
    struct device_range weights_range;
    struct model *model;
    struct op_kv_layout kv;
    struct plan_limits limits;
    struct tiles tiles;
    struct side captured, eager;
};

static uint8_t *map_new(struct fixture *f, enum ledger_id line, size_t bytes,
                        struct device_range *out) {
    struct error err = {0};
    ck_assert_int_eq(device_cpu.reserve(f->device, line, bytes, -1, out, &err), STATUS_OK);
    ck_assert_int_eq(device_cpu.map(f->device, out, bytes, &err), STATUS_OK);
    return out->base;
}

static void init_side(struct fixture *f, struct side *side, bool captures) {
    struct error err = {0};
    const struct ops *ops = device_cpu.ops(f->device);
    const struct op_ctx *ctx = device_cpu.ctx(f->device);
    size_t workspace = executor_workspace_bytes(f->model, ops, ctx, &f->kv, &f->limits, &f->tiles);
    map_new(f, LEDGER_KV, f->kv.block_stride_bytes * f->limits.kv_blocks, &side->kv);
    map_new(f, LEDGER_WORKSPACE, workspace, &side->workspace);
    map_new(f, LEDGER_STEP, batch_step_bytes(&f->limits), &side->step);
    map_new(f, LEDGER_SAMPLER, (size_t)SEQS * SEQ_TOKENS * sizeof(int32_t), &side->history);
    struct batch_options batch = {f->limits, side->kv.base, (int32_t *)(void *)side->history.base};
    ck_assert_int_eq(batch_create(&batch, side->step.base, &side->batch, &err), STATUS_OK);
    struct executor_options options = {
        .model = f->model,
        .ops = ops,
        .ctx = ctx,
        .kv = &f->kv,
        .batch = side->batch,
        .limits = f->limits,
        .workspace = side->workspace.base,
        .workspace_bytes = side->workspace.mapped_bytes,
        .tiles = f->tiles,
        .table = captures ? &device_cpu : NULL,
        .device = captures ? f->device : NULL,
    };
    ck_assert_int_eq(executor_create(&options, &side->executor, &err), STATUS_OK);
    for (uint32_t i = 0; captures && i < executor_bucket_count(SEQS); i++) {
        ck_assert_int_eq(executor_capture(side->executor, i, &err), STATUS_OK);
    }
    executor_reset(side->executor, 1);
}

static void init(struct fixture *f, const struct tiny_model *tiny) {
    memset(f, 0, sizeof *f);
    struct error err = {0};
    snprintf(f->path, sizeof f->path, "/tmp/tare-test-executor-%d.gguf", (int)getpid());
    tiny_model_write(tiny, f->path);
    memory_ledger_init(&f->ledger, 64 * MIB, 64 * MIB);
    struct device_options options = {
        .name = "cpu", .thread_count = 2, .isa = "auto", .ledger = &f->ledger};
    ck_assert_int_eq(device_cpu.open(&options, &f->device, &err), STATUS_OK);
    struct weights *weights = NULL;
    ck_assert_int_eq(weights_open(f->path, &weights, &err), STATUS_OK);
    ck_assert_int_eq(model_create(weights, device_cpu.ops(f->device), (struct model_shard){0, 1},
                                  SEQ_TOKENS, &f->model, &err),
                     STATUS_OK);
    model_bind(f->model, map_new(f, LEDGER_WEIGHTS, model_bytes(f->model), &f->weights_range));
    model_load(f->model, weights, device_cpu.ctx(f->device), NULL, NULL);
    weights_close(weights);
    model_kv_layout(f->model, DTYPE_F16, 16, &f->kv);
    f->limits = (struct plan_limits){
        .envelope = {.tokens = TOKENS,
                     .seqs = SEQS,
                     .seq_tokens = SEQ_TOKENS,
                     .logit_rows = TOKENS,
                     .prompt_logit_rows = TOKENS,
                     .logprob_rows = TOKENS,
                     .attended_tokens_max = SEQ_TOKENS,
                     .attended_tokens = SEQS * SEQ_TOKENS,
                     .blocks_per_seq = BLOCKS_EACH},
        .block_tokens = 16,
        .kv_blocks = SEQS * BLOCKS_EACH,
        .vocabulary = model_config(f->model)->vocabulary,
    };
    // Smaller than a bucket, so that a captured step has several passes over the logits.
    f->tiles =
        (struct tiles){.logit_rows = 6, .matmul_rows = 16, .mlp_rows = 16, .attention_parts = 8};
    init_side(f, &f->captured, true);
    init_side(f, &f->eager, false);
}

static void deinit_side(struct side *side) {
    executor_destroy(side->executor);
    batch_destroy(side->batch);
}

static void deinit(struct fixture *f) {
    deinit_side(&f->captured);
    deinit_side(&f->eager);
    model_destroy(f->model);
    device_cpu.close(f->device);
    remove(f->path);
}

static void expect_equal_rows(const struct step_result *a, const struct step_result *b) {
    ck_assert_uint_eq(a->row_count, b->row_count);
    for (uint32_t i = 0; i < a->row_count; i++) {
        ck_assert_int_eq(a->rows[i].token, b->rows[i].token);
        ck_assert_uint_eq(a->rows[i].rank, b->rows[i].rank);
        ck_assert_int_eq(memcmp(&a->rows[i].logprob, &b->rows[i].logprob, sizeof(float)), 0);
        ck_assert_uint_eq(a->rows[i].top_count, b->rows[i].top_count);
        ck_assert_int_eq(memcmp(a->rows[i].top_logprobs, b->rows[i].top_logprobs,
                                a->rows[i].top_count * sizeof(float)),
                         0);
    }
}

static void run_both(struct fixture *f, const struct plan *plan) {
    struct step_result captured, eager;
    executor_run(f->captured.executor, plan, &captured);
    ck_assert_msg(captured.status == RESULT_STATUS_OK, "%s", captured.message);
    executor_run(f->eager.executor, plan, &eager);
    ck_assert_msg(eager.status == RESULT_STATUS_OK, "%s", eager.message);
    expect_equal_rows(&captured, &eager);
}

// Admits one more sequence with its whole prompt; the others decode beside it.
static void admit(struct fixture *f, uint64_t seq, uint32_t slot) {
    int32_t tokens[PROMPT] = {1, (int32_t)slot + 2, 5};
    uint32_t blocks[BLOCKS_EACH];
    for (uint32_t b = 0; b < BLOCKS_EACH; b++) {
        blocks[b] = slot * BLOCKS_EACH + b;
    }
    struct plan_admit admit = {
        .ref = {slot, 1},
        .prompt_tokens = PROMPT,
        .len_max = SEQ_TOKENS,
        .block_count = BLOCKS_EACH,
        .blocks = blocks,
        .sampling = {.temperature = slot % 2 == 0 ? 0.9f : 0.0f,
                     .top_p = 0.9f,
                     .repetition_penalty = slot % 3 == 0 ? 1.2f : 1.0f,
                     .seed = slot,
                     .want_logprobs = true,
                     .top_logprobs = slot % 5},
    };
    struct plan_prefill prefill = {{slot, 1}, 0, PROMPT, tokens, -1, true};
    run_both(f, &(struct plan){.epoch = 1,
                               .seq = seq,
                               .decode_rows = slot,
                               .admit_count = 1,
                               .admits = &admit,
                               .prefill_count = 1,
                               .prefills = &prefill});
}

START_TEST(replays_equal_eager_steps_bit_for_bit) {
    struct fixture f;
    init(&f, &models[_i]);
    uint64_t seq = 1, decodes = 0;
    // Every number of decoding sequences, two steps of each.
    for (uint32_t slot = 0; slot < SEQS; slot++) {
        admit(&f, seq++, slot);
        for (uint32_t i = 0; i < 2; i++) {
            run_both(&f, &(struct plan){.epoch = 1, .seq = seq++, .decode_rows = slot + 1});
            decodes++;
        }
    }
    ck_assert_uint_eq(executor_replays(f.captured.executor), decodes);
    ck_assert_uint_eq(executor_replays(f.eager.executor), 0);
    deinit(&f);
}
END_TEST

static void no_forward(const struct model *model, struct reader *reader,
                       const struct forward_step *step) {
    (void)model, (void)reader, (void)step;
    abort();
}

// The model's family, with a forward function that ends the process.
static void forbid_forward(struct model *model, struct model_family *room) {
    const struct model_view *view = model_view(model);
    *room = *view->family;
    room->forward = no_forward;
    size_t at = offsetof(struct model_view, family);
    const struct model_family *family = room;
    union {
        const struct model_view *from;
        char *to;
    } open = {.from = view};
    memcpy(open.to + at, &family, sizeof family);
}

START_TEST(a_replay_never_enters_model_code) {
    struct fixture f;
    init(&f, &models[_i]);
    uint64_t seq = 1;
    for (uint32_t slot = 0; slot < 9; slot++) {
        admit(&f, seq++, slot);
    }
    struct model_family family;
    forbid_forward(f.model, &family);
    uint64_t before = memory_guard_violations();
    for (uint32_t i = 0; i < 20; i++) {
        struct step_result result;
        executor_run(f.captured.executor,
                     &(struct plan){.epoch = 1, .seq = seq++, .decode_rows = 9}, &result);
        ck_assert_int_eq(result.status, RESULT_STATUS_OK);
        ck_assert_uint_eq(result.row_count, 9);
    }
    ck_assert_uint_eq(memory_guard_violations(), before);
    deinit(&f);
}
END_TEST

// The other half of the claim above: an eager step does enter it.
START_TEST(an_eager_step_does) {
    struct fixture f;
    init(&f, &models[0]);
    admit(&f, 1, 0);
    struct model_family family;
    forbid_forward(f.model, &family);
    struct step_result result;
    executor_run(f.eager.executor, &(struct plan){.epoch = 1, .seq = 2, .decode_rows = 1}, &result);
}
END_TEST

START_TEST(buckets_hold_every_number_of_rows) {
    for (uint32_t rows_max = 1; rows_max <= 1024; rows_max++) {
        uint32_t count = executor_bucket_count(rows_max);
        ck_assert_uint_le(count, LEDGER_GRAPHS);
        ck_assert_uint_eq(executor_bucket_rows(rows_max, count - 1), rows_max);
        for (uint32_t i = 1; i < count; i++) {
            ck_assert_uint_lt(executor_bucket_rows(rows_max, i - 1),
                              executor_bucket_rows(rows_max, i));
        }
    }
}
END_TEST

START_TEST(a_graph_has_the_launches_that_were_measured) {
    struct fixture f;
    init(&f, &models[_i]);
    for (uint32_t i = 0; i < executor_bucket_count(SEQS); i++) {
        uint32_t launches =
            executor_bucket_launches(f.model, device_cpu.ops(f.device), device_cpu.ctx(f.device),
                                     &f.kv, executor_bucket_rows(SEQS, i), &f.tiles);
        ck_assert_uint_ge(f.ledger.bytes[LEDGER_GRAPH_8 + i], launch_list_bytes(launches));
        ck_assert_uint_eq(f.ledger.bytes[LEDGER_GRAPH_8 + i],
                          device_cpu.graph_bytes(f.device, launches));
    }
    deinit(&f);
}
END_TEST

Suite *suite_executor(void) {
    Suite *suite = suite_create("worker/step/executor");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, replays_equal_eager_steps_bit_for_bit, 0, MODEL_COUNT);
    tcase_add_loop_test(tc, a_replay_never_enters_model_code, 0, MODEL_COUNT);
    tcase_add_test_raise_signal(tc, an_eager_step_does, 6);
    tcase_add_test(tc, buckets_hold_every_number_of_rows);
    tcase_add_loop_test(tc, a_graph_has_the_launches_that_were_measured, 0, MODEL_COUNT);
    suite_add_tcase(suite, tc);
    return suite;
}
