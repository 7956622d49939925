// SPDX-License-Identifier: Apache-2.0
// Goal: tiles change no bit of any result, and the ones that are chosen are the largest that a
// budget buys. Method: one forward function run with a grid of tiles, in an arena of exactly the
// measured bytes, on every operation table, against the scalar one with everything at once; replays
// of captured steps against eager ones; then choices for every budget of a model whose need is
// measured, each tile tried one larger.
#include "worker/step/tiles.h"

#include "common/memory.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/thread_pool.h"
#include "worker/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SEQS = 3,
    BLOCK = 16,
    STRIDE = 24,    // blocks of one sequence
    ROWS_MAX = 512,
    TOP = 3,
    CONTEXT = STRIDE * BLOCK,
};
#ifdef TARE_SLOW_CHECKS
enum { GRID_STEP = 4 };
#else
enum { GRID_STEP = 1 };
#endif
// Rows of each sequence in the first step: one with positions past the first span of attention.
static const uint32_t lengths[SEQS] = {70, 1, 333};
static const struct tiny_model models[] = {
    {"llama", 2, 64, 96, 4, 2, 16, 256, CONTEXT},
    {"qwen3", 2, 48, 128, 6, 2, 16, 200, CONTEXT},
};
enum { MODEL_COUNT = sizeof models / sizeof *models };
static const char *const tables[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = sizeof tables / sizeof *tables };

struct score {
    int32_t token;
    float logprob;
    uint32_t rank;
    int32_t top_token[TOP];
    float top_logprob[TOP];
};

struct world {
    const struct ops *ops;
    struct thread_pool *pool;
    struct op_ctx ctx;
    struct weights *weights;
    struct model *model;
    void *memory;
    struct op_kv_layout kv;
    uint8_t *kv_memory;
    int32_t token[ROWS_MAX];
    uint32_t position[ROWS_MAX], row_seq[ROWS_MAX], seq_row[SEQS + 1], table[SEQS * STRIDE];
    uint32_t logit_row[ROWS_MAX];
    struct op_sample_row sample[ROWS_MAX];
    struct op_step step;
};

static void world_init(struct world *w, const struct tiny_model *model, const char *table,
                       uint32_t threads) {
    char path[64];
    struct error err = {0};
    memset(w, 0, sizeof *w);
    w->ops = ops_cpu(table);
    ck_assert_int_eq(thread_pool_create(threads, &w->pool, &err), STATUS_OK);
    w->ctx = (struct op_ctx){.parallel = thread_pool_run, .pool = w->pool, .thread_count = threads};
    snprintf(path, sizeof path, "/tmp/tare-test-tiles-%d.gguf", (int)getpid());
    tiny_model_write(model, path);
    ck_assert_int_eq(weights_open(path, &w->weights, &err), STATUS_OK);
    remove(path);
    ck_assert_int_eq(
        model_create(w->weights, w->ops, (struct model_shard){0, 1}, CONTEXT, &w->model, &err),
        STATUS_OK);
    w->memory = memory_aligned(64, model_bytes(w->model));
    model_bind(w->model, w->memory);
    model_load(w->model, w->weights, &w->ctx, NULL, NULL);
    model_kv_layout(w->model, DTYPE_F16, BLOCK, &w->kv);
    w->kv_memory = memory_aligned(64, SEQS * STRIDE * w->kv.block_stride_bytes);
}

static void world_deinit(struct world *w) {
    memory_free(w->kv_memory);
    memory_free(w->memory);
    model_destroy(w->model);
    weights_close(w->weights);
    thread_pool_destroy(w->pool);
}

// `count[s]` rows of sequence s from position `done[s]` on; every row has logits and is scored.
static void lay_out(struct world *w, const uint32_t *done, const uint32_t *count) {
    uint32_t rows = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        w->seq_row[s] = rows;
        for (uint32_t b = 0; b < STRIDE; b++) {
            w->table[s * STRIDE + b] = b * SEQS + s;
        }
        for (uint32_t i = 0; i < count[s]; i++, rows++) {
            w->token[rows] = (int32_t)((rows * 37 + s * 11) % 200);
            w->position[rows] = done[s] + i;
            w->row_seq[rows] = s;
            w->logit_row[rows] = rows;
            w->sample[rows] = (struct op_sample_row){
                .top_p = 1.0f,
                .repetition_penalty = 1.0f,
                .target = rows % 2 == 0 ? (int32_t)(rows % 200) : -1,
                .want_logprob = true,
                .top_count = TOP,
            };
        }
    }
    w->seq_row[SEQS] = rows;
    w->step = (struct op_step){
        .kv_base = w->kv_memory,
        .row_count = rows,
        .seq_count = SEQS,
        .logit_count = rows,
        .context_max = CONTEXT,
        .token = w->token,
        .position = w->position,
        .row_seq = w->row_seq,
        .seq_row = w->seq_row,
        .block_table = w->table,
        .block_table_stride = STRIDE,
    };
}

static void forward(struct world *w, const struct tiles *tiles, struct score *out) {
    struct forward_step step = {.step = &w->step,
                                .kv = &w->kv,
                                .logit_row = w->logit_row,
                                .sample_rows = w->sample,
                                .tiles = *tiles};
    struct reader reader;
    reader_init_measure(&reader, w->ops, &w->ctx);
    model_forward(w->model, &reader, &step);
    size_t bytes = reader_peak_bytes(&reader);
    uint8_t *arena = memory_aligned(64, bytes);
    memset(arena, 0xFF, bytes);
    reader_init_run(&reader, w->ops, &w->ctx, arena, bytes);
    model_forward(w->model, &reader, &step);
    ck_assert_uint_eq(reader_peak_bytes(&reader), bytes);
    memory_free(arena);
    for (uint32_t r = 0; r < w->step.row_count; r++) {
        const struct op_sample_row *row = &w->sample[r];
        out[r] = (struct score){.token = row->token, .logprob = row->logprob, .rank = row->rank};
        memcpy(out[r].top_token, row->top_token, sizeof out[r].top_token);
        memcpy(out[r].top_logprob, row->top_logprob, sizeof out[r].top_logprob);
    }
}

// Whole prompts in one step, then one more token of each. Returns the number of scores.
static uint32_t run(struct world *w, const struct tiles *tiles, struct score *out) {
    static const uint32_t nothing[SEQS] = {0}, one[SEQS] = {1, 1, 1};
    memset(w->kv_memory, 0xFF, SEQS * STRIDE * w->kv.block_stride_bytes);
    lay_out(w, nothing, lengths);
    forward(w, tiles, out);
    uint32_t rows = w->step.row_count;
    lay_out(w, lengths, one);
    forward(w, tiles, out + rows);
    return rows + SEQS;
}

static const struct tiles grid[] = {
    {404, 404, 404, 24}, {1, 1, 1, 1},      {64, 512, 512, 2},   {1, 404, 404, 24},
    {404, 1, 404, 24},   {404, 404, 1, 24}, {404, 404, 404, 3},  {7, 5, 3, 4},
    {64, 16, 16, 5},     {100, 33, 50, 7},  {403, 403, 403, 12}, {2, 8, 2, 1},
    {13, 130, 17, 9},    {512, 7, 128, 36}, {31, 64, 32, 6},
};
enum { GRID_COUNT = sizeof grid / sizeof *grid };

START_TEST(every_tile_size_gives_the_same_bits) {
    static struct world w;
    static struct score want[ROWS_MAX], got[ROWS_MAX];
    world_init(&w, &models[_i], "scalar", 1);
    uint32_t count = run(&w, &grid[0], want);
    world_deinit(&w);
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(tables[t]) == NULL) {
            continue;
        }
        world_init(&w, &models[_i], tables[t], t == 1 ? 3 : 2);
        for (uint32_t g = 1; g < GRID_COUNT; g += GRID_STEP) {
            const struct tiles *tiles = &grid[g];
            ck_assert_uint_eq(run(&w, tiles, got), count);
            for (uint32_t r = 0; r < count; r++) {
                ck_assert_msg(memcmp(&got[r], &want[r], sizeof want[r]) == 0,
                              "%s: score %u differs with tiles %u %u %u %u", tables[t], r,
                              tiles->logit_rows, tiles->mlp_rows, tiles->matmul_rows,
                              tiles->attention_parts);
            }
        }
        world_deinit(&w);
    }
}
END_TEST

// ---- captured steps ----------------------------------------------------------------------------

enum { STREAMS = 20, STREAM_PROMPT = 5, DECODES = 10, STREAM_ROWS = STREAMS * (DECODES + 1) };
static const struct tiny_model wide_model = {"llama", 2, 64, 640, 4, 2, 16, 6000, 256};

static struct engine *start(const char *path, int64_t budget, bool eager, struct tiles *tiles) {
    struct engine_options options = {
        .model_path = path,
        .device = "cpu",
        .isa = "auto",
        .threads = 2,
        .workspace_budget = budget,
        .kv_bytes = 1024 * 1024,
        .kv_dtype = DTYPE_F16,
        .block_tokens = BLOCK,
        .seqs = STREAMS,
        .step_tokens = STREAMS * STREAM_PROMPT,
        .model_len = 2 * BLOCK,
        .enforce_eager = eager,
        .weights_fd = -1,
        .kv_fd = -1,
    };
    struct engine *engine = NULL;
    struct engine_plan plan;
    struct weights *weights = NULL;
    struct error err = {0};
    ck_assert_int_eq(weights_open(path, &weights, &err), STATUS_OK);
    ck_assert_msg(engine_plan(&options, weights, &plan, &err) == STATUS_OK, "%s", err.message);
    weights_close(weights);
    ck_assert_msg(engine_create(&options, &engine, &err) == STATUS_OK, "%s", err.message);
    *tiles = plan.capacity.tiles;
    return engine;
}

static uint32_t take_rows(struct executor *executor, struct plan *plan, struct result_row *out) {
    struct step_result result;
    executor_run(executor, plan, &result);
    ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
    memcpy(out, result.rows, result.row_count * sizeof *out);
    return result.row_count;
}

// All prompts at once, then steps in which one sequence after the other ends.
static uint32_t run_streams(struct engine *engine, struct result_row *out) {
    struct executor *executor = engine_executor(engine);
    struct plan_admit admits[STREAMS];
    struct plan_prefill chunks[STREAMS];
    int32_t tokens[STREAM_PROMPT + STREAMS];
    uint32_t blocks[STREAMS];
    for (uint32_t i = 0; i < STREAM_PROMPT + STREAMS; i++) {
        tokens[i] = (int32_t)(i * 131 % 6000);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        blocks[i] = STREAMS - 1 - i;
        admits[i] = (struct plan_admit){.ref = {i, 1},
                                        .prompt_tokens = STREAM_PROMPT,
                                        .len_max = BLOCK,
                                        .block_count = 1,
                                        .blocks = &blocks[i],
                                        .sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.9f,
                                                     .top_p = 0.95f,
                                                     .repetition_penalty = 1.0f,
                                                     .seed = i,
                                                     .want_logprobs = true}};
        chunks[i] = (struct plan_prefill){{i, 1}, 0, STREAM_PROMPT, tokens + i, -1, true};
    }
    struct plan plan = {.epoch = 1,
                        .seq = 1,
                        .admit_count = STREAMS,
                        .prefill_count = STREAMS,
                        .admits = admits,
                        .prefills = chunks};
    executor_reset(executor, 1);
    uint32_t count = take_rows(executor, &plan, out);
    for (uint32_t i = 1; i < DECODES; i++) {
        struct plan_retire ended = {{i, 1}};
        plan = (struct plan){.epoch = 1,
                             .seq = i + 1,
                             .decode_rows = STREAMS - i,
                             .retire_count = 1,
                             .retires = &ended};
        count += take_rows(executor, &plan, out + count);
    }
    return count;
}

START_TEST(captured_steps_in_tiles_have_the_same_bits) {
    static struct result_row want[STREAM_ROWS], got[STREAM_ROWS];
    char path[64];
    struct tiles whole, tiled;
    snprintf(path, sizeof path, "/tmp/tare-test-tiles-%d.gguf", (int)getpid());
    tiny_model_write(&wide_model, path);
    struct engine *engine = start(path, 64 * 1024 * 1024, true, &whole);
    uint32_t count = run_streams(engine, want);
    ck_assert_uint_eq(executor_replays(engine_executor(engine)), 0);
    engine_destroy(engine);
    engine = start(path, 320 * 1024, false, &tiled);
    remove(path);
    ck_assert_uint_ge(whole.logit_rows, STREAMS);
    ck_assert_uint_lt(tiled.logit_rows, STREAMS / 2);
    ck_assert_uint_lt(tiled.mlp_rows, STREAMS * STREAM_PROMPT / 2);
    uint64_t rehearsed = executor_replays(engine_executor(engine));
    ck_assert_uint_eq(run_streams(engine, got), count);
    ck_assert_uint_eq(executor_replays(engine_executor(engine)) - rehearsed, DECODES - 1);
    engine_destroy(engine);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(got[i].token, want[i].token);
        ck_assert_uint_eq(got[i].rank, want[i].rank);
        ck_assert_mem_eq(&got[i].logprob, &want[i].logprob, sizeof want[i].logprob);
    }
}
END_TEST

// ---- the choice --------------------------------------------------------------------------------

// Phases of a step, of which the largest counts, beside what is there throughout.
static size_t invented_need(void *ctx, const struct tiles *tiles) {
    (*(uint32_t *)ctx)++;
    size_t logits = (size_t)tiles->logit_rows * 5000 + (size_t)tiles->matmul_rows * 64;
    size_t mlp = (size_t)tiles->mlp_rows * 300 + (size_t)tiles->matmul_rows * 64;
    size_t attention = 7000 + (size_t)tiles->attention_parts * 512;
    size_t most = logits > mlp ? logits : mlp;
    return 100000 + (most > attention ? most : attention);
}

static struct tiles_question question_of(uint64_t budget, uint64_t share, uint32_t *asked) {
    const struct envelope envelope = {.tokens = 1000, .logit_rows = 700};
    struct tiles_question q;
    tiles_ask(&envelope, 2, budget, share, &q);
    q.measure = invented_need;
    q.measure_ctx = asked;
    return q;
}

static void check_largest(const struct tiles_question *q, const struct tiles *tiles) {
    for (int t = 0; t < 4; t++) {
        struct tiles more = *tiles;
        uint32_t *tile = t == 0   ? &more.logit_rows
                         : t == 1 ? &more.mlp_rows
                         : t == 2 ? &more.matmul_rows
                                  : &more.attention_parts;
        uint32_t most = t == 0   ? q->most.logit_rows
                        : t == 1 ? q->most.mlp_rows
                        : t == 2 ? q->most.matmul_rows
                                 : q->most.attention_parts;
        ck_assert_uint_le(*tile, most);
        if (*tile < most) {
            (*tile)++;
            ck_assert_msg(q->measure(q->measure_ctx, &more) > q->limit_bytes,
                          "tile %d could be one larger", t);
        }
    }
}

START_TEST(a_budget_buys_the_largest_tiles) {
    uint32_t asked = 0;
    for (uint64_t budget = 108500; budget < 4000000; budget += budget / 97) {
        struct tiles_question q = question_of(budget, 0, &asked);
        struct tiles tiles, again;
        size_t bytes = 0;
        struct error err = {0};
        asked = 0;
        ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, &err), STATUS_OK);
        ck_assert_uint_le(asked, 80);    // a search, not a walk
        ck_assert_uint_le(bytes, budget);
        ck_assert_uint_eq(bytes, invented_need(&asked, &tiles));
        check_largest(&q, &tiles);
        ck_assert_int_eq(tiles_choose(&q, &again, &bytes, &err), STATUS_OK);
        ck_assert_mem_eq(&tiles, &again, sizeof tiles);
    }
}
END_TEST

START_TEST(a_large_budget_buys_the_whole_step) {
    uint32_t asked = 0;
    struct tiles_question q = question_of(UINT64_C(1) << 40, 0, &asked);
    struct tiles tiles;
    size_t bytes = 0;
    ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, NULL), STATUS_OK);
    ck_assert_uint_eq(tiles.logit_rows, 700);
    ck_assert_uint_eq(tiles.mlp_rows, 1000);
    ck_assert_uint_eq(tiles.matmul_rows, OP_MATMUL_PASS_ROWS);
    ck_assert_uint_eq(tiles.attention_parts, 2 * OP_ATTENTION_PARTS_PER_THREAD);
}
END_TEST

START_TEST(without_a_budget_tiles_end_where_speed_does) {
    uint32_t asked = 0;
    struct tiles_question q = question_of(0, 0, &asked);
    struct tiles tiles, shared;
    size_t bytes = 0, shared_bytes = 0;
    ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, NULL), STATUS_OK);
    ck_assert_uint_lt(tiles.logit_rows, 700);
    ck_assert_uint_lt(tiles.mlp_rows, 1000);
    // A share of the device lowers them; one that is too small refuses nothing.
    q = question_of(0, bytes - 1, &asked);
    ck_assert_int_eq(tiles_choose(&q, &shared, &shared_bytes, NULL), STATUS_OK);
    ck_assert_uint_lt(shared_bytes, bytes);
    q = question_of(0, 1, &asked);
    ck_assert_int_eq(tiles_choose(&q, &shared, &shared_bytes, NULL), STATUS_OK);
    ck_assert_mem_eq(&shared, &q.least, sizeof shared);
}
END_TEST

START_TEST(a_budget_below_the_smallest_tiles_is_refused) {
    uint32_t asked = 0;
    struct tiles_question q = question_of(1, 0, &asked);
    size_t need = invented_need(&asked, &q.least);
    struct tiles tiles;
    size_t bytes = 0;
    struct error err = {0};
    char text[32];
    q = question_of(need - 1, 0, &asked);
    ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ledger line 'workspace arena'"));
    snprintf(text, sizeof text, "needs %zu bytes", need);
    ck_assert_ptr_nonnull(strstr(err.message, text));
    ck_assert_ptr_nonnull(strstr(err.hint, "--workspace-budget"));
    q = question_of(need, 0, &asked);
    ck_assert_int_eq(tiles_choose(&q, &tiles, &bytes, &err), STATUS_OK);
    ck_assert_uint_eq(bytes, need);
}
END_TEST

Suite *suite_tiles(void) {
    Suite *suite = suite_create("worker/step/tiles");
    TCase *bits = tcase_create("bits");
    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(bits, every_tile_size_gives_the_same_bits, 0, MODEL_COUNT);
    tcase_add_test(bits, captured_steps_in_tiles_have_the_same_bits);
    suite_add_tcase(suite, bits);
    TCase *choice = tcase_create("choice");
    tcase_add_test(choice, a_budget_buys_the_largest_tiles);
    tcase_add_test(choice, a_large_budget_buys_the_whole_step);
    tcase_add_test(choice, without_a_budget_tiles_end_where_speed_does);
    tcase_add_test(choice, a_budget_below_the_smallest_tiles_is_refused);
    suite_add_tcase(suite, choice);
    return suite;
}
