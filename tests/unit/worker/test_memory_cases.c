// SPDX-License-Identifier: Apache-2.0
// Goal: faults that other engines met in service are weighed before it here, to the byte where the
// case says so: M2 and M3 (accumulators of a sparse decode kernel), M5 (logprobs of long prompts),
// M6 (scratch that follows the context). Method: operations that ask for scratch as those kernels
// do, registered in a table of the test's own and read by the real measure reader.
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/engine.h"
#include "worker/step/tiles.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef TARE_SLOW_CHECKS
enum { STEPS = 5000 };
#else
enum { STEPS = 100000 };
#endif

static const size_t MIB = 1024 * 1024;

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// ---- M2, M3: sparse decode, padded heads, split accumulators ------------------------------------

// What the kernel and its device are; a table of operations has no argument for them.
static struct {
    uint32_t multiprocessors;
    uint32_t heads_padded;          // the kernel exists for so many heads
    size_t accumulator_rounding;    // bytes
} sparse;

enum { D_QK = 576, D_V = 512 };

// (B + P) * s_q * h * (dv + 1) * 4 bytes, P = max(SM / s_q / (h / 64), 1): float32 sums of dv
// values and one log-sum-exp for each query token, head and part. The tile bounds the query tokens
// whose sums exist at once. Counts are the most there may be, so every number of sequences up to
// B is asked.
static size_t sparse_decode_scratch(const struct op_ctx *ctx,
                                    const struct op_attention_args *args) {
    (void)ctx;
    const struct op_step *step = args->step;
    uint64_t rows_most = 0;
    for (uint32_t batch = 1; batch <= step->seq_count; batch++) {
        uint32_t s_q = step->row_count / batch;
        if (s_q == 0) {
            break;
        }
        uint32_t parts = max_u32(sparse.multiprocessors / s_q / (sparse.heads_padded / 64), 1);
        uint64_t rows = (uint64_t)(batch + parts) * s_q;
        rows_most = rows > rows_most ? rows : rows_most;
    }
    if (args->parts > 0 && rows_most > args->parts) {
        rows_most = args->parts;
    }
    size_t sums = (size_t)rows_most * sparse.heads_padded * D_V * sizeof(float);
    size_t rounding = sparse.accumulator_rounding;
    size_t lse = (size_t)rows_most * sparse.heads_padded * sizeof(float);
    return (sums + rounding - 1) / rounding * rounding + lse;
}

struct sparse_step {
    struct op_step step;
    bool padded_query;       // a copy of the query, bf16
    uint32_t index_topk;     // 0: indices are made elsewhere
    size_t output_bytes;     // of the last reading: output and log-sum-exp
    size_t scratch_bytes;    // of the last reading
};

// A layer's attention as a family would write it.
static void sparse_forward(struct sparse_step *s, struct reader *reader, uint32_t parts) {
    size_t rows = s->step.row_count;
    size_t heads = rows * sparse.heads_padded;
    struct op_attention_args args = {.step = &s->step, .q_head_count = 8, .parts = parts};
    void *query = s->padded_query ? reader_take(reader, heads * D_QK * 2) : NULL;
    void *index = s->index_topk > 0 ? reader_take(reader, rows * s->index_topk * 4) : NULL;
    size_t before = reader_peak_bytes(reader);
    void *output = reader_take(reader, heads * D_V * 2);
    void *lse = reader_take(reader, heads * sizeof(float));
    s->output_bytes = reader_peak_bytes(reader) - before;
    reader_attention(reader, &args);
    s->scratch_bytes = reader_peak_bytes(reader) - before - s->output_bytes;
    reader_drop(reader, lse);
    reader_drop(reader, output);
    if (index != NULL) {
        reader_drop(reader, index);
    }
    if (query != NULL) {
        reader_drop(reader, query);
    }
}

static size_t sparse_need(void *ctx, const struct tiles *tiles) {
    static struct ops ops;    // the test's own table
    const struct op_ctx one = {.thread_count = 1};
    struct reader reader;
    ops = *ops_cpu("scalar");
    ops.attention_scratch = sparse_decode_scratch;
    reader_init_measure(&reader, &ops, &one);
    sparse_forward(ctx, &reader, tiles->attention_parts);
    return reader_peak_bytes(&reader);
}

static void check_mib(size_t bytes, const char *want) {
    char text[32];
    snprintf(text, sizeof text, "%.4f", (double)bytes / (double)MIB);
    ck_assert_str_eq(text, want);
}

START_TEST(m3_scratch_is_right_to_the_byte) {
    const struct tiles untiled = {0};
    struct sparse_step s = {.step = {.row_count = 132, .seq_count = 1}};
    sparse.multiprocessors = 132;
    sparse.heads_padded = 64;
    sparse.accumulator_rounding = 1;
    sparse_need(&s, &untiled);
    ck_assert_uint_eq(s.scratch_bytes, 34670592);
    check_mib(s.scratch_bytes, "33.0645");
    sparse.accumulator_rounding = 2 * MIB;
    size_t all = sparse_need(&s, &untiled);
    ck_assert_uint_eq(s.scratch_bytes, 34 * MIB + 67584);
    check_mib(s.scratch_bytes, "34.0645");
    ck_assert_uint_eq(s.output_bytes, 8684544);
    check_mib(s.output_bytes, "8.2822");
    ck_assert_uint_eq(all, 44403712);
    check_mib(all, "42.3467");
}
END_TEST

static struct sparse_step widest_step(uint32_t heads, uint32_t index_topk) {
    sparse.multiprocessors = 132;
    sparse.heads_padded = heads;
    sparse.accumulator_rounding = 2 * MIB;
    return (struct sparse_step){.step = {.row_count = 32768, .seq_count = 1},
                                .padded_query = true,
                                .index_topk = index_topk};
}

START_TEST(m2_accumulators_follow_the_kernel_and_nothing_else) {
    const struct tiles untiled = {0};
    const size_t lse = (size_t)2 * 64 * 32768 * 4;
    struct sparse_step s = widest_step(64, 2048);
    size_t all = sparse_need(&s, &untiled);
    ck_assert_uint_eq(s.scratch_bytes - lse, (size_t)2 * 64 * 32768 * 512 * 4);
    ck_assert_uint_eq(s.scratch_bytes - lse, 8 * 1024 * MIB);
    ck_assert(all > 12500 * MIB && all < 13000 * MIB);                       // about 12.5 GiB
    ck_assert_uint_eq((all - s.scratch_bytes) / MIB, 4 * 1024 + 512 + 8);    // about 4.5 GiB
    // Half the indices: their own buffer shrinks, the accumulators stay.
    s = widest_step(64, 1024);
    ck_assert_uint_eq(all - sparse_need(&s, &untiled), (size_t)32768 * 1024 * 4);
    ck_assert_uint_eq(s.scratch_bytes - lse, 8 * 1024 * MIB);
    s = widest_step(128, 2048);
    sparse_need(&s, &untiled);
    ck_assert_uint_eq(s.scratch_bytes - 2 * lse, 16 * 1024 * MIB);
}
END_TEST

// The full step is what is reserved, in tiles below the budget, whoever was measured before.
START_TEST(m2_the_step_is_tiled_below_the_budget) {
    const uint64_t budget = 5 * 1024 * (uint64_t)MIB;
    struct sparse_step s = widest_step(64, 2048);
    struct tiles_question q = {.measure = sparse_need,
                               .measure_ctx = &s,
                               .step_tokens = 32768,
                               .least = {1, 1, 1, 64},
                               .most = {1, 1, 1, 2 * 32768},
                               .limit_bytes = budget,
                               .required = true};
    struct tiles tiles;
    size_t arena = 0;
    struct error err = {0};
    ck_assert_int_eq(tiles_choose(&q, &tiles, &arena, &err), STATUS_OK);
    ck_assert_uint_le(arena, budget);
    ck_assert_uint_ge(arena, budget - 4 * MIB);    // a part more would be 2 MiB more
    struct rng rng;
    rng_init(&rng, 2);
    for (uint32_t i = 0; i < STEPS; i++) {
        s.step.row_count = 1 + (uint32_t)rng_below(&rng, 32768);
        s.step.seq_count = 1 + (uint32_t)rng_below(&rng, min_u32(s.step.row_count, 32));
        ck_assert_uint_le(sparse_need(&s, &tiles), arena);
    }
    s = widest_step(64, 2048);
    ck_assert_uint_eq(sparse_need(&s, &tiles), arena);
    q.limit_bytes = 4 * 1024 * (uint64_t)MIB;
    ck_assert_int_eq(tiles_choose(&q, &tiles, &arena, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'workspace arena'"));
}
END_TEST

// ---- a model on the measure reader -------------------------------------------------------------

struct subject {
    struct ops ops;
    struct op_ctx ctx;
    struct weights *weights;
    struct model *model;
    struct op_kv_layout kv;
    struct plan_limits limits;
};

static void subject_init(struct subject *s, const struct tiny_model *model,
                         const struct envelope *envelope) {
    char path[64];
    struct error err = {0};
    snprintf(path, sizeof path, "/tmp/tare-test-memory-%d.gguf", (int)getpid());
    tiny_model_write(model, path);
    *s = (struct subject){.ops = *ops_cpu(NULL),
                          .ctx = {.thread_count = 2},
                          .limits = {.envelope = *envelope, .block_tokens = 16}};
    ck_assert_int_eq(weights_open(path, &s->weights, &err), STATUS_OK);
    remove(path);
    ck_assert_int_eq(
        model_create(s->weights, &s->ops, (struct model_shard){0, 1}, 256, &s->model, &err),
        STATUS_OK);
    model_kv_layout(s->model, DTYPE_F16, 16, &s->kv);
}

static void subject_deinit(struct subject *s) {
    model_destroy(s->model);
    weights_close(s->weights);
}

static size_t subject_need(void *ctx, const struct tiles *tiles) {
    struct subject *s = ctx;
    return executor_workspace_bytes(s->model, &s->ops, &s->ctx, &s->kv, &s->limits, tiles);
}

// ---- M6: scratch that follows the context ------------------------------------------------------

// Scores of every row against every position it may attend to.
static size_t context_scratch(const struct op_ctx *ctx, const struct op_attention_args *args) {
    (void)ctx;
    return (size_t)args->step->row_count * args->step->context_max * sizeof(float);
}

// Few rows are split along positions for the sake of 132 multiprocessors: fewer rows of longer
// context may need more than many. The question is asked for the most there may be of both.
static size_t split_scratch(const struct op_ctx *ctx, const struct op_attention_args *args) {
    (void)ctx;
    uint64_t most = 0;
    for (uint32_t rows = 1; rows <= args->step->row_count; rows++) {
        uint64_t splits = min_u32(max_u32(132 / rows, 1), args->step->context_max / 512 + 1);
        most = rows * splits > most ? rows * splits : most;
    }
    return (size_t)most * D_V * sizeof(float);
}

enum { M6_TOKENS = 2048, M6_COLD = 72 * M6_TOKENS, M6_WIDEST = 248899 };
static const struct tiny_model m6_model = {"llama", 1, 128, 96, 8, 8, 16, 256, 256};
static const struct tiles m6_tiles = {1, 16, 16, 1};

static void m6_init(struct subject *s, uint32_t tokens) {
    const struct envelope envelope = {
        .tokens = tokens, .seqs = 4, .attended_tokens_max = M6_WIDEST, .logit_rows = 4};
    subject_init(s, &m6_model, &envelope);
    s->ops.attention_scratch = context_scratch;
}

// What one real step needs.
static size_t step_need(struct subject *s, uint32_t rows, uint32_t seqs, uint32_t context) {
    struct op_step step = {
        .row_count = rows, .seq_count = seqs, .logit_count = 1, .context_max = context};
    struct forward_step forward = {.step = &step, .kv = &s->kv, .tiles = m6_tiles};
    struct reader reader;
    reader_init_measure(&reader, &s->ops, &s->ctx);
    model_forward(s->model, &reader, &forward);
    return reader_peak_bytes(&reader);
}

START_TEST(m6_the_arena_is_that_of_the_widest_legal_step) {
    struct subject s;
    m6_init(&s, M6_TOKENS);
    size_t arena = subject_need(&s, &m6_tiles);
    size_t cold = 0;
    for (uint32_t done = 0; done < M6_COLD; done += M6_TOKENS) {
        size_t need = step_need(&s, M6_TOKENS, 1, done + M6_TOKENS);
        cold = need > cold ? need : cold;
    }
    check_mib(cold, "1157.0000");    // what the rehearsal of one growing prompt found
    ck_assert_uint_eq(arena * 100 / MIB, 194952);
    ck_assert_uint_eq(arena, step_need(&s, M6_TOKENS, 1, M6_WIDEST));
    subject_deinit(&s);
}
END_TEST

static void no_legal_step_exceeds(struct subject *s, uint32_t tokens, size_t arena, struct rng *rng,
                                  uint32_t steps) {
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t rows = 1 + (uint32_t)rng_below(rng, tokens);
        uint32_t seqs = 1 + (uint32_t)rng_below(rng, min_u32(rows, 4));
        uint32_t context = rows + (uint32_t)rng_below(rng, M6_WIDEST - rows + 1);
        size_t need = step_need(s, rows, seqs, context);
        ck_assert_msg(need <= arena, "%u of %u rows, context %u: %zu of %zu bytes", rows, tokens,
                      context, need, arena);
    }
}

START_TEST(m6_no_legal_step_exceeds_the_arena_of_any_token_budget) {
    enum { BUDGETS = 100 };
    struct subject s;
    struct rng rng;
    rng_init(&rng, 6);
    m6_init(&s, M6_TOKENS);
    for (uint32_t i = 0; i < BUDGETS; i++) {
        uint32_t tokens = i == 0 ? M6_TOKENS : 1 + (uint32_t)rng_below(&rng, M6_TOKENS);
        s.limits.envelope.tokens = tokens;
        s.limits.envelope.logit_rows = min_u32(tokens, 4);
        s.ops.attention_scratch = i % 2 == 0 ? context_scratch : split_scratch;
        no_legal_step_exceeds(&s, tokens, subject_need(&s, &m6_tiles), &rng, STEPS / BUDGETS);
    }
    subject_deinit(&s);
}
END_TEST

// ---- M5: logprobs of long prompts --------------------------------------------------------------

// Logits as 16-bit values, and nothing else: the slack of the report.
static size_t bf16_logits_need(void *ctx, const struct tiles *tiles) {
    const struct op_ctx one = {.thread_count = 1};
    struct reader reader;
    reader_init_measure(&reader, ops_cpu("scalar"), &one);
    void *logits = reader_take(&reader, (size_t)tiles->logit_rows * *(uint32_t *)ctx * 2);
    reader_drop(&reader, logits);
    return reader_peak_bytes(&reader);
}

START_TEST(m5_rows_of_logits_are_chosen_to_fit_the_slack) {
    uint32_t vocabulary = 154880;
    struct tiles_question q = {.measure = bf16_logits_need,
                               .measure_ctx = &vocabulary,
                               .step_tokens = 1024,
                               .least = {1, 1, 1, 1},
                               .most = {1024, 1, 1, 1},
                               .limit_bytes = (uint64_t)(218.81 * 1048576.0),
                               .required = true};
    struct tiles tiles;
    size_t bytes = 0;
    ck_assert_uint_eq(bf16_logits_need(&vocabulary, &q.most), (size_t)(302.5 * 1048576.0));
    ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, NULL), STATUS_OK);
    ck_assert_uint_eq(tiles.logit_rows, 740);
}
END_TEST

static void choose_for(uint32_t vocabulary, uint32_t rows, uint64_t budget, struct tiles *tiles,
                       size_t *whole, size_t *bytes) {
    const struct tiny_model model = {"llama", 1, 16, 32, 1, 1, 16, vocabulary, 256};
    const struct envelope envelope = {
        .tokens = rows, .seqs = 1, .attended_tokens_max = rows, .logit_rows = rows};
    struct subject s;
    struct error err = {0};
    subject_init(&s, &model, &envelope);
    struct tiles_question q;
    tiles_ask(&envelope, s.ctx.thread_count, budget, 0, &q);
    q.measure = subject_need;
    q.measure_ctx = &s;
    *whole = subject_need(&s, &q.most);
    ck_assert_int_eq(tiles_choose(&q, tiles, bytes, &err), STATUS_OK);
    subject_deinit(&s);
}

START_TEST(m5_logits_of_the_cpu_device_obey_the_budget) {
    struct tiles tiles;
    size_t whole = 0, bytes = 0;
    const uint64_t slack = (uint64_t)(218.81 * 1048576.0);
    choose_for(154880, 1024, slack, &tiles, &whole, &bytes);
    ck_assert_uint_gt(whole, slack);
    ck_assert_uint_le(bytes, slack);
    ck_assert_uint_le(tiles.logit_rows, 740);
    ck_assert_uint_ge(tiles.logit_rows, 350);    // float32 here: about half of 740
    const uint64_t room = (uint64_t)(3.22 * 1073741824.0);
    choose_for(163840, 6259, room, &tiles, &whole, &bytes);
    ck_assert_uint_gt(whole, (size_t)6259 * 163840 * 4);    // 3.82 GiB and what is beside it
    ck_assert_uint_le(bytes, room);
    ck_assert_uint_ge(tiles.logit_rows, 5000);    // chunked, in two passes
    ck_assert_uint_lt(tiles.logit_rows, 6259);
}
END_TEST

enum { LONG_PROMPT = 3000, LONG_STEP = 1024, LONG_BLOCKS = 190 };

// All prompt logprobs and the first token, with the workspace that `budget` gives.
static struct tiles run_long_prompt(int64_t budget, struct result_row *out) {
    static const struct tiny_model model = {"qwen3", 2, 48, 512, 3, 1, 16, 2000, 4096};
    static int32_t tokens[LONG_PROMPT];
    static uint32_t blocks[LONG_BLOCKS];
    char path[64];
    struct engine *engine = NULL;
    struct engine_plan plan;
    struct weights *weights = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "/tmp/tare-test-memory-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    struct engine_options options = {.model_path = path,
                                     .device = "cpu",
                                     .isa = "auto",
                                     .threads = 2,
                                     .workspace_budget = budget,
                                     .kv_bytes = 4 * 1024 * 1024,
                                     .kv_dtype = DTYPE_F16,
                                     .block_tokens = 16,
                                     .seqs = 2,
                                     .step_tokens = LONG_STEP,
                                     .model_len = 3040,
                                     .weights_fd = -1,
                                     .kv_fd = -1};
    ck_assert_int_eq(weights_open(path, &weights, &err), STATUS_OK);
    ck_assert_int_eq(engine_plan(&options, weights, &plan, &err), STATUS_OK);
    weights_close(weights);
    ck_assert_msg(engine_create(&options, &engine, &err) == STATUS_OK, "%s", err.message);
    remove(path);
    ck_assert(budget == 0 || plan.workspace_bytes <= (uint64_t)budget);
    for (uint32_t i = 0; i < LONG_PROMPT; i++) {
        tokens[i] = (int32_t)(i * 17 % 2000);
    }
    for (uint32_t i = 0; i < LONG_BLOCKS; i++) {
        blocks[i] = LONG_BLOCKS - 1 - i;
    }
    struct plan_admit admit = {.ref = {0, 1},
                               .prompt_tokens = LONG_PROMPT,
                               .len_max = LONG_PROMPT + 1,
                               .block_count = LONG_BLOCKS,
                               .blocks = blocks,
                               .sampling = {.top_p = 1.0f,
                                            .repetition_penalty = 1.0f,
                                            .want_logprobs = true,
                                            .want_prompt_logprobs = true}};
    executor_reset(engine_executor(engine), 1);
    uint32_t count = 0;
    for (uint32_t done = 0, seq = 1; done < LONG_PROMPT; seq++) {
        uint32_t rows = min_u32(LONG_PROMPT - done, LONG_STEP);
        bool last = done + rows == LONG_PROMPT;
        struct plan_prefill chunk = {{0, 1}, done, rows, tokens + done, -1, last};
        chunk.next_token = last ? -1 : tokens[done + rows];
        struct plan step = {.epoch = 1,
                            .seq = seq,
                            .admit_count = seq == 1 ? 1 : 0,
                            .prefill_count = 1,
                            .admits = &admit,
                            .prefills = &chunk};
        struct step_result result;
        executor_run(engine_executor(engine), &step, &result);
        ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
        memcpy(out + count, result.rows, result.row_count * sizeof *out);
        count += result.row_count;
        done += rows;
    }
    ck_assert_uint_eq(count, LONG_PROMPT);    // every token but the first, and the drawn one
    engine_destroy(engine);
    return plan.capacity.tiles;
}

START_TEST(m5_a_long_prompt_has_the_same_logprobs_in_any_workspace) {
    static struct result_row want[LONG_PROMPT], got[LONG_PROMPT];
    // The buffers that no tile bounds: the residual stream and the attention's inputs.
    const int64_t floor = (int64_t)LONG_STEP * (48 + 48 + 16 + 16 + 48) * 4;
    struct tiles whole = run_long_prompt(64 * 1024 * 1024, want);
    struct tiles tiny = run_long_prompt(floor + 192 * 1024, got);
    ck_assert_uint_eq(whole.logit_rows, LONG_STEP);
    ck_assert_uint_eq(whole.mlp_rows, LONG_STEP);
    ck_assert_uint_lt(tiny.logit_rows, LONG_STEP / 4);
    ck_assert_uint_lt(tiny.mlp_rows, LONG_STEP / 4);
    for (uint32_t i = 0; i < LONG_PROMPT; i++) {
        ck_assert_int_eq(got[i].token, want[i].token);
        ck_assert_uint_eq(got[i].rank, want[i].rank);
        ck_assert_msg(memcmp(&got[i].logprob, &want[i].logprob, sizeof want[i].logprob) == 0,
                      "position %u: %.9g, not %.9g", i, (double)got[i].logprob,
                      (double)want[i].logprob);
    }
}
END_TEST

Suite *suite_memory_cases(void) {
    Suite *suite = suite_create("worker/memory_cases");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, m2_accumulators_follow_the_kernel_and_nothing_else);
    tcase_add_test(tc, m2_the_step_is_tiled_below_the_budget);
    tcase_add_test(tc, m3_scratch_is_right_to_the_byte);
    tcase_add_test(tc, m5_rows_of_logits_are_chosen_to_fit_the_slack);
    tcase_add_test(tc, m5_logits_of_the_cpu_device_obey_the_budget);
    tcase_add_test(tc, m5_a_long_prompt_has_the_same_logprobs_in_any_workspace);
    tcase_add_test(tc, m6_the_arena_is_that_of_the_widest_legal_step);
    tcase_add_test(tc, m6_no_legal_step_exceeds_the_arena_of_any_token_budget);
    suite_add_tcase(suite, tc);
    return suite;
}
