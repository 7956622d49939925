// SPDX-License-Identifier: Apache-2.0
// Goal: a model gives the same logits to the bit alone and on groups of 2, 4 and 8, however prompts
// are cut and steps mixed, on every operation table; a model that cannot be cut in eight gives the
// same greedy tokens. Method: one thread for each rank, each with its own weights and KV; the
// logits of every position are kept and compared with those of one rank, the plain table and whole
// prompts.
#include "common/memory.h"
#include "tests/support/thread_group.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/thread_pool.h"
#include "worker/model/model.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SEQS = 3,
    BLOCK = 16,
    STRIDE = 4,    // blocks of one sequence
    CONTEXT = STRIDE * BLOCK,
    ROWS_MAX = 64,
    VOCABULARY = 250,    // no multiple of 64: ranks have padding, with eight some nothing else
    STEPS_MAX = 6,
};
#ifdef TARE_SLOW_CHECKS
enum { WORLD_STEP = 8 };    // groups of 1 and 8
#else
enum { WORLD_STEP = 2 };
#endif

// The first ones can be cut in eight; with 2 KV heads each is held by several ranks.
struct subject {
    struct tiny_model model;
    struct tiny_form form;
};
static const struct subject models[] = {
    {{"llama", 2, 64, 96, 8, 2, 16, VOCABULARY, CONTEXT}, {DTYPE_F32, 0, 0, 0, 0}},
    {{"llama", 2, 64, 512, 8, 8, 32, VOCABULARY, CONTEXT}, {DTYPE_Q8_0, 0, 0, 0, 0}},
    {{"qwen3", 2, 96, 1040, 8, 4, 16, VOCABULARY, CONTEXT}, {DTYPE_F32, 0, 0, 0, 0}},
    {{"qwen3moe", 2, 64, 0, 8, 4, 16, VOCABULARY, CONTEXT}, {DTYPE_F32, 16, 3, 40, 0}},
    {{"qwen3moe", 2, 64, 0, 8, 2, 32, VOCABULARY, CONTEXT}, {DTYPE_Q8_0, 24, 8, 64, 0}},
    {{"qwen3moe", 2, 64, 0, 8, 2, 32, VOCABULARY, CONTEXT}, {DTYPE_F32, 8, 2, 24, 40}},
    {{"qwen3moe", 1, 64, 0, 8, 8, 32, VOCABULARY, CONTEXT}, {DTYPE_Q8_0, 16, 3, 32, 256}},
};
enum { MODEL_COUNT = sizeof models / sizeof *models };
static const char *const tables[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = sizeof tables / sizeof *tables };

// Rows of each sequence in each step: whole prompts and then decoding; chunks beside decoding rows;
// one row at a time.
struct script {
    uint32_t step_count;
    uint32_t rows[STEPS_MAX][SEQS];
};
static const struct script scripts[] = {
    {4, {{20, 1, 37}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},
    {5, {{7, 0, 10}, {13, 1, 0}, {1, 1, 27}, {1, 1, 0}, {0, 1, 1}}},
    {6, {{1, 1, 1}, {16, 1, 30}, {3, 0, 5}, {1, 1, 1}, {1, 0, 1}, {1, 1, 1}}},
};
enum { SCRIPT_COUNT = sizeof scripts / sizeof *scripts };

static const struct tiles tiles[] = {{ROWS_MAX, 512, 512, 24}, {ROWS_MAX, 5, 3, 4}};

// Logits of every position that a script computed.
struct logits {
    bool known[SEQS][CONTEXT];
    float value[SEQS][CONTEXT][VOCABULARY];
};

struct rank {
    struct collective *collective;    // NULL: alone
    const struct ops *ops;
    struct thread_pool *pool;
    struct op_ctx ctx;
    struct model *model;
    void *memory;
    struct op_kv_layout kv;
    uint8_t *kv_memory;
    const struct script *script;
    const struct tiles *tiles;
    int32_t token[ROWS_MAX];
    uint32_t position[ROWS_MAX], row_seq[ROWS_MAX], seq_row[SEQS + 1], table[SEQS * STRIDE];
    uint32_t logit_row[ROWS_MAX];
    struct op_sample_row sample[ROWS_MAX];
    struct op_step step;
    struct logits *logits;
    size_t peak_bytes;
};

static void rank_init(struct rank *r, const struct weights *weights, struct model_shard shard,
                      const char *table, uint32_t threads) {
    struct error err = {0};
    memset(r, 0, sizeof *r);
    r->ops = ops_cpu(table);
    ck_assert_int_eq(thread_pool_create(threads, &r->pool, &err), STATUS_OK);
    r->ctx = (struct op_ctx){.parallel = thread_pool_run, .pool = r->pool, .thread_count = threads};
    ck_assert_msg(model_create(weights, r->ops, shard, CONTEXT, &r->model, &err) == STATUS_OK, "%s",
                  err.message);
    // Not zero: what loading leaves out would show.
    r->memory = memory_aligned(64, model_bytes(r->model));
    memset(r->memory, 0x7F, model_bytes(r->model));
    model_bind(r->model, r->memory);
    model_load(r->model, weights, &r->ctx, NULL, NULL);
    model_kv_layout(r->model, DTYPE_F16, BLOCK, &r->kv);
    size_t kv_bytes = SEQS * STRIDE * r->kv.block_stride_bytes;
    r->kv_memory = memory_aligned(64, kv_bytes);
    memset(r->kv_memory, 0xFF, kv_bytes);
    r->logits = memory_zalloc(sizeof *r->logits);
}

static void rank_deinit(struct rank *r) {
    memory_free(r->logits);
    memory_free(r->kv_memory);
    memory_free(r->memory);
    model_destroy(r->model);
    thread_pool_destroy(r->pool);
}

static void lay_out(struct rank *r, uint32_t *done, const uint32_t *count) {
    uint32_t rows = 0, seqs = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        if (count[s] == 0) {
            continue;
        }
        r->seq_row[seqs] = rows;
        for (uint32_t b = 0; b < STRIDE; b++) {
            r->table[seqs * STRIDE + b] = b * SEQS + s;
        }
        for (uint32_t i = 0; i < count[s]; i++, rows++) {
            uint32_t position = done[s] + i;
            r->token[rows] = (int32_t)((position * 37 + s * 91 + position * position) % VOCABULARY);
            r->position[rows] = position;
            r->row_seq[rows] = seqs;
            r->logit_row[rows] = rows;
            r->sample[rows] =
                (struct op_sample_row){.top_p = 1.0f, .repetition_penalty = 1.0f, .target = -1};
        }
        seqs++;
        done[s] += count[s];
    }
    r->seq_row[seqs] = rows;
    r->step = (struct op_step){
        .kv_base = r->kv_memory,
        .row_count = rows,
        .seq_count = seqs,
        .logit_count = rows,
        .context_max = CONTEXT,
        .token = r->token,
        .position = r->position,
        .row_seq = r->row_seq,
        .seq_row = r->seq_row,
        .block_table = r->table,
        .block_table_stride = STRIDE,
    };
}

// In an arena of exactly the measured bytes.
static void forward(struct rank *r, const uint32_t *seq_of) {
    struct forward_step step = {.step = &r->step,
                                .kv = &r->kv,
                                .logit_row = r->logit_row,
                                .sample_rows = r->sample,
                                .tiles = *r->tiles};
    struct reader reader;
    reader_init_measure(&reader, r->ops, &r->ctx);
    model_forward(r->model, &reader, &step);
    size_t bytes = reader_peak_bytes(&reader);
    uint8_t *arena = memory_aligned(64, bytes);
    memset(arena, 0xFF, bytes);
    reader_init_run(&reader, r->ops, &r->ctx, arena, bytes);
    reader.carrier = &r->collective;
    model_forward(r->model, &reader, &step);
    r->peak_bytes = reader_peak_bytes(&reader) == bytes ? bytes : 0;
    for (uint32_t i = 0; i < r->step.row_count; i++) {
        uint32_t s = seq_of[r->row_seq[i]];
        r->logits->known[s][r->position[i]] = true;
        memcpy(r->logits->value[s][r->position[i]], r->sample[i].logits,
               VOCABULARY * sizeof(float));
    }
    memory_free(arena);
}

static void *run_rank(void *arg) {
    struct rank *r = arg;
    uint32_t done[SEQS] = {0};
    memset(r->logits, 0, sizeof *r->logits);
    for (uint32_t i = 0; i < r->script->step_count; i++) {
        uint32_t seq_of[SEQS], seqs = 0;
        for (uint32_t s = 0; s < SEQS; s++) {
            if (r->script->rows[i][s] > 0) {
                seq_of[seqs++] = s;
            }
        }
        lay_out(r, done, r->script->rows[i]);
        forward(r, seq_of);
    }
    return NULL;
}

struct group {
    uint32_t world;
    struct thread_group *threads;
    struct rank ranks[8];
};

static void group_init(struct group *g, const struct subject *subject, uint32_t world,
                       const char *table, uint32_t threads) {
    char path[64];
    struct weights *weights = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "/tmp/tare-test-shards-%d.gguf", (int)getpid());
    tiny_model_write_as(&subject->model, &subject->form, path);
    ck_assert_msg(weights_open(path, &weights, &err) == STATUS_OK, "%s", err.message);
    remove(path);
    g->world = world;
    g->threads = thread_group_create(world);
    for (uint32_t i = 0; i < world; i++) {
        rank_init(&g->ranks[i], weights, (struct model_shard){i, world}, table, threads);
        g->ranks[i].collective = world > 1 ? thread_group_rank(g->threads, i) : NULL;
    }
    weights_close(weights);
}

static void group_deinit(struct group *g) {
    for (uint32_t i = 0; i < g->world; i++) {
        rank_deinit(&g->ranks[i]);
    }
    thread_group_destroy(g->threads);
}

static void group_run(struct group *g, const struct script *script, const struct tiles *t) {
    pthread_t thread[8];
    for (uint32_t i = 0; i < g->world; i++) {
        g->ranks[i].script = script;
        g->ranks[i].tiles = t;
        ck_assert_int_eq(pthread_create(&thread[i], NULL, run_rank, &g->ranks[i]), 0);
    }
    for (uint32_t i = 0; i < g->world; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_uint_gt(g->ranks[i].peak_bytes, 0);    // the arena was as large as measured
    }
}

static void expect_equal(const struct logits *got, const struct logits *want, const char *what,
                         uint32_t world, uint32_t rank) {
    uint32_t compared = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t p = 0; p < CONTEXT; p++) {
            if (!got->known[s][p] || !want->known[s][p]) {
                continue;
            }
            compared++;
            ck_assert_msg(memcmp(got->value[s][p], want->value[s][p], sizeof got->value[s][p]) == 0,
                          "%s: rank %u of %u: logits of sequence %u at %u differ", what, rank,
                          world, s, p);
        }
    }
    ck_assert_uint_gt(compared, 50);
}

static void check_finite(const struct logits *logits) {
    for (uint32_t v = 0; v < VOCABULARY; v++) {
        ck_assert(isfinite(logits->value[2][36][v]));
        ck_assert(v == 0 || logits->value[2][36][v] != logits->value[2][36][0]);
    }
}

START_TEST(groups_of_1_2_4_and_8_have_the_same_bits) {
    static struct group alone, group;
    static struct logits want;
    group_init(&alone, &models[_i], 1, "scalar", 1);
    group_run(&alone, &scripts[0], &tiles[0]);
    want = *alone.ranks[0].logits;
    check_finite(&want);
    ck_assert_uint_eq(model_view(alone.ranks[0].model)->parts, 8);
    group_deinit(&alone);
    for (uint32_t t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(tables[t]) == NULL) {
            continue;
        }
        for (uint32_t world = 1; world <= 8; world *= WORLD_STEP) {
            group_init(&group, &models[_i], world, tables[t], 1 + (world + t) % 2);
            for (uint32_t k = 0; k < SCRIPT_COUNT; k++) {
                group_run(&group, &scripts[k], &tiles[(k + t + world / 2) % 2]);
                for (uint32_t i = 0; i < world; i++) {
                    expect_equal(group.ranks[i].logits, &want, tables[t], world, i);
                }
            }
            group_deinit(&group);
        }
    }
}
END_TEST

static uint32_t largest_of(const float *logits, float *margin) {
    uint32_t best = 0;
    for (uint32_t v = 1; v < VOCABULARY; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    float second = -INFINITY;
    for (uint32_t v = 0; v < VOCABULARY; v++) {
        second = v != best && logits[v] > second ? logits[v] : second;
    }
    *margin = logits[best] - second;
    return best;
}

START_TEST(nine_heads_on_three_ranks_choose_the_same_tokens) {
    static const struct subject nine = {{"llama", 3, 72, 96, 9, 3, 16, VOCABULARY, CONTEXT},
                                        {DTYPE_F32, 0, 0, 0, 0}};
    static struct group alone, group;
    uint32_t compared = 0;
    group_init(&alone, &nine, 1, NULL, 1);
    group_run(&alone, &scripts[0], &tiles[0]);
    ck_assert_uint_eq(model_view(alone.ranks[0].model)->parts, 1);
    group_init(&group, &nine, 3, NULL, 1);
    group_run(&group, &scripts[1], &tiles[0]);
    for (uint32_t i = 1; i < 3; i++) {
        expect_equal(group.ranks[i].logits, group.ranks[0].logits, "nine heads", 3, i);
    }
    const struct logits *a = alone.ranks[0].logits, *b = group.ranks[0].logits;
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t p = 0; p < CONTEXT; p++) {
            float margin, other;
            if (!a->known[s][p] || !b->known[s][p]) {
                continue;
            }
            uint32_t token = largest_of(a->value[s][p], &margin);
            if (margin > 1e-4f) {
                ck_assert_uint_eq(largest_of(b->value[s][p], &other), token);
                compared++;
            }
        }
    }
    ck_assert_uint_gt(compared, 50);
    group_deinit(&alone);
    group_deinit(&group);
}
END_TEST

// Columns of a quantised tensor end inside a block: 96 over four ranks, blocks of 32.
START_TEST(a_cut_through_a_block_is_refused) {
    static const struct subject model = {{"llama", 1, 64, 96, 4, 4, 32, VOCABULARY, CONTEXT},
                                         {DTYPE_Q8_0, 0, 0, 0, 0}};
    char path[64];
    struct weights *weights = NULL;
    struct model *out = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "/tmp/tare-test-shards-%d.gguf", (int)getpid());
    tiny_model_write_as(&model.model, &model.form, path);
    ck_assert_int_eq(weights_open(path, &weights, &err), STATUS_OK);
    remove(path);
    struct model_shard shard = {0, 4};
    ck_assert_int_eq(model_create(weights, ops_cpu(NULL), shard, CONTEXT, &out, &err),
                     STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "blk.0.ffn_down.weight"));
    ck_assert_ptr_nonnull(strstr(err.message, "24 columns"));
    ck_assert_ptr_nonnull(strstr(err.hint, "--tensor-parallel-size"));
    weights_close(weights);
}
END_TEST

Suite *suite_shards(void) {
    Suite *suite = suite_create("worker/model/shards");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, groups_of_1_2_4_and_8_have_the_same_bits, 0, MODEL_COUNT);
    tcase_add_test(tc, nine_heads_on_three_ranks_choose_the_same_tokens);
    tcase_add_test(tc, a_cut_through_a_block_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
