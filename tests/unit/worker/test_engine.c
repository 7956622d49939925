// SPDX-License-Identifier: Apache-2.0
// Goal: the workspace reserved for the envelope holds every legal step and is not larger than the
// worst one needs, whatever the tiles; a plan is what a start reports; a start that runs out of
// memory at any point ends cleanly; a step allocates nothing. Method: random step shapes through
// the measure reader, tiny models on the cpu device, the n-th allocation failing for every n,
// random plans.
#include "common/memory.h"
#include "common/rng.h"
#include "kernels/sim/ops_sim.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/engine.h"
#include "worker/plan_report.h"
#include "worker/step/tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TARE_SLOW_CHECKS
enum { SHAPES = 5000, BUDGETS = 10, STEPS = 300 };
#else
enum { SHAPES = 100000, BUDGETS = 200, STEPS = 3000 };
#endif

static const struct tiny_model models[] = {
    {"llama", 2, 64, 96, 4, 2, 16, 256, 256},
    {"qwen3", 2, 48, 128, 6, 2, 16, 200, 256},
};
enum { MODEL_COUNT = sizeof models / sizeof *models };

struct fixture {
    char path[64];
    struct engine_options options;
};

static void init(struct fixture *f, const struct tiny_model *model) {
    snprintf(f->path, sizeof f->path, "/tmp/tare-test-engine-%d.gguf", (int)getpid());
    tiny_model_write(model, f->path);
    f->options = (struct engine_options){
        .model_path = f->path,
        .device = "cpu",
        .isa = "auto",
        .threads = 2,
        .device_memory = 16 * 1024 * 1024,
        .utilization = 0.9,
        .kv_bytes = 1024 * 1024,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 8,
        .step_tokens = 32,
        .model_len = 128,
        .weights_fd = -1,
        .kv_fd = -1,
    };
}

static uint32_t below(struct rng *rng, uint32_t limit) {
    return (uint32_t)rng_below(rng, limit);
}

static void deinit(struct fixture *f) {
    remove(f->path);
}

// ---- the workspace -----------------------------------------------------------------------------

// Everything a measure needs: a model on an operation table, and an envelope.
struct subject {
    const struct ops *ops;
    struct op_ctx ctx;
    struct weights *weights;
    struct model *model;
    struct op_kv_layout kv;
    struct plan_limits limits;
};

static void subject_init(struct subject *s, const char *path, const struct ops *ops,
                         uint32_t thread_count, enum dtype kv_dtype) {
    struct error err = {0};
    *s = (struct subject){.ops = ops, .ctx = {.thread_count = thread_count}};
    ck_assert_int_eq(weights_open(path, &s->weights, &err), STATUS_OK);
    ck_assert_int_eq(
        model_create(s->weights, s->ops, (struct model_shard){0, 1}, 256, &s->model, &err),
        STATUS_OK);
    model_kv_layout(s->model, kv_dtype, 16, &s->kv);
    s->limits = (struct plan_limits){.envelope = {.tokens = 600,
                                                  .seqs = 40,
                                                  .seq_tokens = 256,
                                                  .logit_rows = 300,
                                                  .prompt_logit_rows = 300,
                                                  .blocks_per_seq = 16,
                                                  .attended_tokens_max = 256},
                                     .block_tokens = 16};
}

static void subject_deinit(struct subject *s) {
    model_destroy(s->model);
    weights_close(s->weights);
}

static size_t need_of(void *ctx, const struct tiles *tiles) {
    const struct subject *s = ctx;
    return executor_workspace_bytes(s->model, s->ops, &s->ctx, &s->kv, &s->limits, tiles);
}

// A legal step of the envelope `whole`. Small steps are the common ones, the largest one the
// interesting one.
static void draw_step(struct rng *rng, uint32_t i, const struct envelope *whole,
                      struct envelope *e) {
    bool largest = i % 100 == 0;
    uint32_t tokens_max = i % 3 == 0 ? 8 : whole->tokens;
    e->tokens = largest ? whole->tokens : 1 + below(rng, tokens_max);
    uint32_t seqs_max = e->tokens < whole->seqs ? e->tokens : whole->seqs;
    e->seqs = largest ? seqs_max : 1 + below(rng, seqs_max);
    uint32_t rows_max = e->tokens < whole->logit_rows ? e->tokens : whole->logit_rows;
    e->logit_rows = largest ? rows_max : below(rng, rows_max + 1);
    uint32_t context = whole->attended_tokens_max;
    e->attended_tokens_max = largest ? context : 1 + below(rng, context);
}

// With tiles for a random budget, or for none.
static void steps_fit_what_a_budget_reserves(struct subject *s, struct rng *rng, uint32_t steps) {
    const struct envelope whole = s->limits.envelope;
    struct tiles_question question;
    tiles_ask(&whole, s->ctx.thread_count, 0, 0, &question);
    size_t least = need_of(s, &question.least);
    uint64_t budget = below(rng, 8) == 0 ? 0 : least + below(rng, (uint32_t)least);
    tiles_ask(&whole, s->ctx.thread_count, budget, 0, &question);
    question.measure = need_of;
    question.measure_ctx = s;
    struct tiles tiles;
    struct error err = {0};
    size_t reserve = 0, most = 0;
    ck_assert_int_eq(tiles_choose(&question, &tiles, &reserve, &err), STATUS_OK);
    ck_assert(budget == 0 || reserve <= budget);
    for (uint32_t i = 0; i < steps; i++) {
        draw_step(rng, i, &whole, &s->limits.envelope);
        const struct envelope *e = &s->limits.envelope;
        size_t need = need_of(s, &tiles);
        ck_assert_msg(need <= reserve, "%u tokens, %u sequences, %u rows need %zu of %zu bytes",
                      e->tokens, e->seqs, e->logit_rows, need, reserve);
        most = need > most ? need : most;
    }
    ck_assert_msg((double)most >= 0.99 * (double)reserve, "at most %zu of %zu bytes are needed",
                  most, reserve);
    s->limits.envelope = whole;
}

static void need_never_exceeds_the_reserve(const struct tiny_model *model, const struct ops *ops,
                                           uint32_t thread_count, enum dtype kv_dtype) {
    struct fixture f;
    struct subject s;
    struct rng rng;
    init(&f, model);
    subject_init(&s, f.path, ops, thread_count, kv_dtype);
    rng_init(&rng, 1);
    for (uint32_t i = 0; i < BUDGETS; i++) {
        steps_fit_what_a_budget_reserves(&s, &rng, SHAPES / BUDGETS);
    }
    subject_deinit(&s);
    deinit(&f);
}

START_TEST(every_legal_step_fits_the_workspace) {
    need_never_exceeds_the_reserve(&models[_i], ops_cpu(NULL), 3, DTYPE_F16);
    need_never_exceeds_the_reserve(&models[_i], ops_cpu("scalar"), 3, DTYPE_F32);
    need_never_exceeds_the_reserve(&models[_i], ops_sim(), 132, DTYPE_F16);
}
END_TEST

// ---- plan and start ----------------------------------------------------------------------------

START_TEST(a_plan_is_what_a_start_reports) {
    struct fixture f;
    init(&f, &models[_i]);
    struct error err = {0};
    struct weights *weights = NULL;
    struct engine *engine = NULL;
    struct engine_plan plan;
    ck_assert_int_eq(weights_open(f.path, &weights, &err), STATUS_OK);
    ck_assert_int_eq(engine_plan(&f.options, weights, &plan, &err), STATUS_OK);
    ck_assert_int_eq(engine_create(&f.options, &engine, &err), STATUS_OK);
    const struct message_capacity *got = engine_capacity(engine);
    ck_assert_int_eq(memcmp(&plan.capacity.envelope, &got->envelope, sizeof got->envelope), 0);
    ck_assert_uint_eq(plan.capacity.kv_blocks, got->kv_blocks);
    ck_assert_uint_eq(plan.capacity.line_count, got->line_count);
    uint64_t total = 0;
    for (uint32_t i = 0; i < got->line_count; i++) {
        ck_assert_uint_eq(plan.lines[i].bytes, got->lines[i].bytes);
        total += got->lines[i].bytes;
    }
    ck_assert_uint_eq(plan.fixed_bytes + plan.kv_bytes, total);
    engine_destroy(engine);
    weights_close(weights);
    deinit(&f);
}
END_TEST

START_TEST(a_plan_that_does_not_fit_names_the_line_and_the_bytes) {
    struct fixture f;
    init(&f, &models[_i]);
    f.options.device_memory = 512 * 1024;
    struct buf text;
    struct error err = {0};
    buf_init(&text, 64 * 1024);
    ck_assert_int_eq(plan_report(&f.options, PLAN_FORMAT_JSON, &text, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line '"));
    ck_assert_ptr_nonnull(strstr(err.message, "are missing"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&text), "{\"fits\":false,"));
    buf_deinit(&text);
    deinit(&f);
}
END_TEST

static enum status plan_of(const struct engine_options *options, struct engine_plan *plan,
                           struct error *err) {
    struct weights *weights = NULL;
    ck_assert_int_eq(weights_open(options->model_path, &weights, NULL), STATUS_OK);
    enum status status = engine_plan(options, weights, plan, err);
    weights_close(weights);
    return status;
}

START_TEST(a_workspace_budget_is_obeyed_or_refused) {
    struct fixture f;
    struct engine_plan plan;
    struct error err = {0};
    init(&f, &models[_i]);
    f.options.workspace_budget = 1;
    ck_assert_int_eq(plan_of(&f.options, &plan, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'workspace arena'"));
    const char *needs = strstr(err.message, "needs ");
    ck_assert_ptr_nonnull(needs);
    unsigned long long smallest = strtoull(needs + strlen("needs "), NULL, 10);
    f.options.workspace_budget = (int64_t)smallest - 1;
    ck_assert_int_eq(plan_of(&f.options, &plan, NULL), STATUS_EXHAUSTED);
    f.options.workspace_budget = (int64_t)smallest;
    ck_assert_int_eq(plan_of(&f.options, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(plan.workspace_bytes, smallest);
    deinit(&f);
}
END_TEST

START_TEST(without_a_budget_a_quarter_of_a_given_device_is_the_most) {
    struct fixture f;
    struct engine_plan plan, small;
    struct error err = {0};
    init(&f, &models[_i]);
    f.options.step_tokens = 256;
    ck_assert_int_eq(plan_of(&f.options, &plan, &err), STATUS_OK);
    f.options.device_memory = (int64_t)plan.workspace_bytes * 4;
    f.options.kv_bytes = 64 * 1024;
    ck_assert_msg(plan_of(&f.options, &small, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_lt(small.workspace_bytes, plan.workspace_bytes);
    ck_assert_uint_le(small.workspace_bytes, small.ledger.budget_bytes / 4);
    deinit(&f);
}
END_TEST

START_TEST(memory_that_ends_anywhere_ends_the_start_cleanly) {
    struct fixture f;
    init(&f, &models[_i]);
    uint64_t nth = 1;
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));    // a ledger for each failure
    for (;; nth++) {
        struct engine *engine = NULL;
        struct error err = {0};
        memory_fail_nth(nth);
        enum status status = engine_create(&f.options, &engine, &err);
        memory_fail_nth(0);
        if (status == STATUS_OK) {
            engine_destroy(engine);
            break;
        }
        ck_assert_msg(status == STATUS_EXHAUSTED, "allocation %llu: %s: %s",
                      (unsigned long long)nth, status_name(status), err.message);
        ck_assert_ptr_null(engine);
        ck_assert_msg(err.message[0] != '\0', "allocation %llu: no reason given",
                      (unsigned long long)nth);
    }
    ck_assert_uint_gt(nth, 10);    // a start that allocates nothing would prove nothing
    deinit(&f);
}
END_TEST

// ---- steps -------------------------------------------------------------------------------------

// One sequence after the other is admitted, computed in random chunks, decoded and retired.
static void run_random_steps(struct engine *engine, uint32_t steps) {
    enum { SLOTS = 4, BLOCKS_EACH = 8, PROMPT_MAX = 40, LENGTH = 60 };
    struct slot {
        uint32_t generation, prompt, done, length;
        bool live;
    } slots[SLOTS] = {{0}};
    struct executor *executor = engine_executor(engine);
    struct rng rng;
    rng_init(&rng, 3);
    int32_t tokens[PROMPT_MAX];
    uint32_t blocks[SLOTS][BLOCKS_EACH];
    for (uint32_t s = 0; s < SLOTS; s++) {
        for (uint32_t b = 0; b < BLOCKS_EACH; b++) {
            blocks[s][b] = s * BLOCKS_EACH + b;
        }
    }
    for (uint32_t i = 0; i < PROMPT_MAX; i++) {
        tokens[i] = (int32_t)below(&rng, 200);
    }
    executor_reset(executor, 1);
    for (uint64_t seq = 1; seq <= steps; seq++) {
        struct slot *slot = &slots[seq % SLOTS];
        uint32_t index = (uint32_t)(seq % SLOTS);
        struct plan_admit admit;
        struct plan_prefill prefill;
        struct plan_retire retire;
        struct plan plan = {.epoch = 1, .seq = seq};
        if (!slot->live) {
            *slot = (struct slot){slot->generation + 1, 1 + below(&rng, PROMPT_MAX), 0, 0, true};
            admit = (struct plan_admit){
                .ref = {index, slot->generation},
                .prompt_tokens = slot->prompt,
                .len_max = LENGTH,
                .block_count = BLOCKS_EACH,
                .blocks = blocks[index],
                .sampling = {
                    .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = seq}};
            plan.admit_count = 1;
            plan.admits = &admit;
        } else if (slot->length >= LENGTH - 1) {
            retire = (struct plan_retire){{index, slot->generation}};
            plan.retire_count = 1;
            plan.retires = &retire;
            slot->live = false;
        }
        if (slot->live && slot->done < slot->prompt) {
            uint32_t count = 1 + below(&rng, 12);
            count = count < slot->prompt - slot->done ? count : slot->prompt - slot->done;
            bool last = slot->done + count == slot->prompt;
            prefill = (struct plan_prefill){{index, slot->generation}, slot->done, count,
                                            tokens + slot->done,       -1,         last};
            plan.prefill_count = 1;
            plan.prefills = &prefill;
            slot->done += count;
        }
        for (uint32_t s = 0; s < SLOTS; s++) {
            bool prefills = plan.prefill_count > 0 && s == index;
            bool decodes = slots[s].live && slots[s].done == slots[s].prompt && !prefills;
            plan.decode_rows += decodes ? 1 : 0;
            slots[s].length += decodes ? 1 : 0;
            if (prefills && slots[s].done == slots[s].prompt) {
                slots[s].length = slots[s].prompt;
            }
        }
        struct step_result result;
        executor_run(executor, &plan, &result);
        ck_assert_msg(result.status == RESULT_STATUS_OK, "step %llu: %s", (unsigned long long)seq,
                      result.message);
    }
}

START_TEST(steps_allocate_nothing) {
    struct fixture f;
    init(&f, &models[_i]);
    struct engine *engine = NULL;
    struct error err = {0};
    ck_assert_int_eq(engine_create(&f.options, &engine, &err), STATUS_OK);
    uint64_t before = memory_guard_violations();
    run_random_steps(engine, STEPS);    // each under the guard, which checked builds end at
    ck_assert_uint_eq(memory_guard_violations(), before);
    engine_destroy(engine);
    deinit(&f);
}
END_TEST

Suite *suite_engine(void) {
    Suite *suite = suite_create("worker/engine");
    TCase *shapes = tcase_create("workspace");
    tcase_set_timeout(shapes, 120);
    tcase_add_loop_test(shapes, every_legal_step_fits_the_workspace, 0, MODEL_COUNT);
    suite_add_tcase(suite, shapes);
    TCase *start = tcase_create("start");
    tcase_set_timeout(start, 120);
    tcase_add_loop_test(start, a_plan_is_what_a_start_reports, 0, MODEL_COUNT);
    tcase_add_loop_test(start, a_plan_that_does_not_fit_names_the_line_and_the_bytes, 0,
                        MODEL_COUNT);
    tcase_add_loop_test(start, a_workspace_budget_is_obeyed_or_refused, 0, MODEL_COUNT);
    tcase_add_loop_test(start, without_a_budget_a_quarter_of_a_given_device_is_the_most, 0,
                        MODEL_COUNT);
    tcase_add_loop_test(start, memory_that_ends_anywhere_ends_the_start_cleanly, 0, MODEL_COUNT);
    suite_add_tcase(suite, start);
    TCase *steps = tcase_create("steps");
    tcase_set_timeout(steps, 120);
    tcase_add_loop_test(steps, steps_allocate_nothing, 0, MODEL_COUNT);
    suite_add_tcase(suite, steps);
    return suite;
}
