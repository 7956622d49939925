// SPDX-License-Identifier: Apache-2.0
// Goal: ranks that start alone and then run the same plans answer with the same rows and digests,
// which are also those of one worker with the whole model; a group that breaks answers every rank
// with a fault and counts nothing as applied; a new epoch goes on. Method: engines of one process,
// a thread each, messages through memory; captured and eager steps.
#include "common/log.h"
#include "tests/support/thread_group.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORLD_MAX = 8, SLOTS = 4, BLOCKS_EACH = 3, PROMPT = 21, DECODES = 12, ROWS_MAX = 16 };

struct subject {
    struct tiny_model model;
    struct tiny_form form;
};
static const struct subject subjects[] = {
    {{"llama", 2, 64, 96, 8, 2, 16, 250, 64}, {.dtype = DTYPE_F32}},
    {{"qwen3moe", 2, 64, 0, 8, 4, 32, 250, 64}, {DTYPE_Q8_0, 16, 4, 32, 256}},
};
enum { SUBJECT_COUNT = sizeof subjects / sizeof *subjects };

struct rank {
    struct engine *engine;
    struct step_result result;    // rows copied
    struct result_row rows[ROWS_MAX];
    const struct plan *plan;
};

struct group {
    char path[64];
    uint32_t world;
    struct thread_group *threads;
    struct rank ranks[WORLD_MAX];
};

static struct engine *start(const char *path, struct model_shard shard, bool eager, int fd,
                            enum status want) {
    struct engine_options options = {
        .model_path = path,
        .device = "cpu",
        .isa = "auto",
        .threads = 1,
        .shard = shard,
        .kv_bytes = 1024 * 1024,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = SLOTS,
        .step_tokens = 64,
        .model_len = 48,
        .enforce_eager = eager,
        .weights_fd = fd,
        .kv_fd = -1,
    };
    struct engine *engine = NULL;
    struct error err = {0};
    enum status status = engine_create(&options, &engine, &err);
    ck_assert_msg(status == want, "%s", err.message);
    return engine;
}

// A group that has formed: every rank started and rehearsed by itself.
static void group_init(struct group *g, const struct subject *subject, uint32_t world, bool eager) {
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    memset(g, 0, sizeof *g);
    g->world = world;
    snprintf(g->path, sizeof g->path, "/tmp/tare-test-group-%d.gguf", (int)getpid());
    tiny_model_write_as(&subject->model, &subject->form, g->path);
    g->threads = thread_group_create(world);
    for (uint32_t i = 0; i < world; i++) {
        g->ranks[i].engine = start(g->path, (struct model_shard){i, world}, eager, -1, STATUS_OK);
        struct executor *executor = engine_executor(g->ranks[i].engine);
        executor_set_collective(executor, world > 1 ? thread_group_rank(g->threads, i) : NULL);
        executor_reset(executor, 1);
    }
}

static void group_deinit(struct group *g) {
    for (uint32_t i = 0; i < g->world; i++) {
        engine_destroy(g->ranks[i].engine);
    }
    thread_group_destroy(g->threads);
    remove(g->path);
}

static void *run_rank(void *arg) {
    struct rank *rank = arg;
    executor_run(engine_executor(rank->engine), rank->plan, &rank->result);
    for (uint32_t i = 0; i < rank->result.row_count && i < ROWS_MAX; i++) {
        rank->rows[i] = rank->result.rows[i];
    }
    return NULL;
}

// All ranks answer alike.
static const struct rank *group_run(struct group *g, const struct plan *plan) {
    pthread_t thread[WORLD_MAX];
    for (uint32_t i = 0; i < g->world; i++) {
        g->ranks[i].plan = plan;
        ck_assert_int_eq(pthread_create(&thread[i], NULL, run_rank, &g->ranks[i]), 0);
    }
    for (uint32_t i = 0; i < g->world; i++) {
        pthread_join(thread[i], NULL);
    }
    const struct step_result *first = &g->ranks[0].result;
    ck_assert_uint_le(first->row_count, ROWS_MAX);
    for (uint32_t i = 1; i < g->world; i++) {
        const struct step_result *r = &g->ranks[i].result;
        ck_assert_int_eq(r->status, first->status);
        ck_assert_uint_eq(r->digest, first->digest);
        ck_assert_uint_eq(r->row_count, first->row_count);
        for (uint32_t k = 0; k < r->row_count; k++) {
            ck_assert_int_eq(g->ranks[i].rows[k].token, g->ranks[0].rows[k].token);
        }
    }
    return &g->ranks[0];
}

// Admits one more sequence with its whole prompt; the others decode beside it.
static const struct rank *admit(struct group *g, uint64_t epoch, uint64_t seq, uint32_t slot) {
    static int32_t tokens[PROMPT];
    uint32_t blocks[BLOCKS_EACH];
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (int32_t)((slot * 53 + i * i * 7 + 1) % 250);
    }
    for (uint32_t b = 0; b < BLOCKS_EACH; b++) {
        blocks[b] = b * SLOTS + slot;
    }
    struct plan_admit admission = {
        .ref = {slot, 1},
        .prompt_tokens = PROMPT,
        .len_max = 48,
        .block_count = BLOCKS_EACH,
        .blocks = blocks,
        .sampling = {.temperature = slot % 2 == 0 ? 0.8f : 0.0f,
                     .top_p = 0.95f,
                     .repetition_penalty = 1.0f,
                     .seed = slot,
                     .want_logprobs = true},
    };
    struct plan_prefill prefill = {{slot, 1}, 0, PROMPT, tokens, -1, true};
    struct plan plan = {.epoch = epoch,
                        .seq = seq,
                        .decode_rows = slot,
                        .admit_count = 1,
                        .admits = &admission,
                        .prefill_count = 1,
                        .prefills = &prefill};
    return group_run(g, &plan);
}

struct answer {
    uint64_t digest;
    uint32_t count;
    struct {
        int32_t token;
        float logprob;
    } row[ROWS_MAX];
};

static struct answer keep(const struct rank *rank) {
    struct answer a = {.digest = rank->result.digest, .count = rank->result.row_count};
    ck_assert_msg(rank->result.status == RESULT_STATUS_OK, "%s", rank->result.message);
    for (uint32_t i = 0; i < a.count; i++) {
        a.row[i].token = rank->rows[i].token;
        a.row[i].logprob = rank->rows[i].logprob;
    }
    return a;
}

// Slots one after the other, then steps in which all decode. Returns the number of answers.
static uint32_t run_script(struct group *g, uint64_t epoch, struct answer *out) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        out[count] = keep(admit(g, epoch, count + 1, slot));
        count++;
    }
    for (uint32_t i = 0; i < DECODES; i++) {
        struct plan plan = {.epoch = epoch, .seq = count + 1, .decode_rows = SLOTS};
        out[count] = keep(group_run(g, &plan));
        count++;
    }
    return count;
}

static void expect_same(const struct answer *a, const struct answer *b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(a[i].digest, b[i].digest);
        ck_assert_uint_eq(a[i].count, b[i].count);
        ck_assert_int_eq(memcmp(a[i].row, b[i].row, a[i].count * sizeof a[i].row[0]), 0);
    }
}

START_TEST(groups_answer_like_one_worker) {
    static struct group g;
    struct answer want[SLOTS + DECODES], got[SLOTS + DECODES];
    group_init(&g, &subjects[_i], 1, false);
    uint32_t count = run_script(&g, 1, want);
    group_deinit(&g);
    for (uint32_t i = 1; i < count; i++) {
        ck_assert_uint_ne(want[i].digest, want[i - 1].digest);
    }
    for (uint32_t world = 2; world <= WORLD_MAX; world *= 2) {
        bool eager = world == 4;
        group_init(&g, &subjects[_i], world, eager);
        uint64_t rehearsed = executor_replays(engine_executor(g.ranks[0].engine));
        ck_assert_uint_eq(run_script(&g, 1, got), count);
        expect_same(got, want, count);
        for (uint32_t i = 0; i < world; i++) {
            uint64_t replays = executor_replays(engine_executor(g.ranks[i].engine));
            ck_assert_uint_eq(replays - rehearsed, eager ? 0 : DECODES);
        }
        group_deinit(&g);
    }
}
END_TEST

// At the first message of a step, at a later one, and in a captured step.
START_TEST(a_broken_group_faults_and_a_new_epoch_goes_on) {
    static struct group g;
    static const uint64_t breaks[] = {0, 2, 9};
    struct answer want[SLOTS + DECODES], got[SLOTS + DECODES];
    group_init(&g, &subjects[_i % SUBJECT_COUNT], 2, false);
    uint32_t count = run_script(&g, 1, want);
    for (uint32_t k = 0; k < sizeof breaks / sizeof *breaks; k++) {
        struct thread_group *fresh = thread_group_create(2);
        uint64_t epoch = 2 + k;
        for (uint32_t i = 0; i < 2; i++) {
            executor_set_collective(engine_executor(g.ranks[i].engine),
                                    thread_group_rank(fresh, i));
            executor_reset(engine_executor(g.ranks[i].engine), epoch);
        }
        thread_group_break_at(fresh, breaks[k]);
        const struct rank *rank = admit(&g, epoch, 1, 0);
        if (breaks[k] >= 6) {
            ck_assert_int_eq(rank->result.status, RESULT_STATUS_OK);
            rank = group_run(&g, &(struct plan){.epoch = epoch, .seq = 2, .decode_rows = 1});
        }
        uint64_t applied = breaks[k] >= 6 ? 1 : 0;
        for (uint32_t i = 0; i < 2; i++) {
            const struct step_result *r = &g.ranks[i].result;
            ck_assert_int_eq(r->status, RESULT_STATUS_FAULT);
            ck_assert_uint_eq(r->row_count, 0);
            ck_assert_uint_eq(r->applied_seq, applied);
            ck_assert_ptr_nonnull(strstr(r->message, "lost a rank"));
            ck_assert_uint_eq(executor_applied_seq(engine_executor(g.ranks[i].engine)), applied);
        }
        // The plan once more, in the same epoch: nobody computes.
        struct plan again = {.epoch = epoch, .seq = applied + 1, .decode_rows = 1};
        rank = group_run(&g, &again);
        ck_assert_int_eq(rank->result.status, RESULT_STATUS_FAULT);
        for (uint32_t i = 0; i < 2; i++) {
            executor_set_collective(engine_executor(g.ranks[i].engine),
                                    thread_group_rank(g.threads, i));
            executor_reset(engine_executor(g.ranks[i].engine), 100 + epoch);
        }
        thread_group_destroy(fresh);
        ck_assert_uint_eq(run_script(&g, 100 + epoch, got), count);
        expect_same(got, want, count);
    }
    group_deinit(&g);
}
END_TEST

START_TEST(a_rank_without_a_group_computes_nothing) {
    static struct group g;
    group_init(&g, &subjects[0], 2, false);
    executor_set_collective(engine_executor(g.ranks[0].engine), NULL);
    struct rank *rank = &g.ranks[0];
    rank->plan = &(struct plan){.epoch = 1, .seq = 1};
    run_rank(rank);
    ck_assert_int_eq(rank->result.status, RESULT_STATUS_FAULT);
    ck_assert_ptr_nonnull(strstr(rank->result.message, "no group"));
    group_deinit(&g);
}
END_TEST

// The memory file of another rank, or of another size of group, is not taken over.
START_TEST(weights_of_another_rank_are_loaded_again) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/tare-test-group-%d.gguf", (int)getpid());
    tiny_model_write_as(&subjects[0].model, &subjects[0].form, path);
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    int fd = memfd_create("weights", 0);
    ck_assert_int_ge(fd, 0);
    static const struct model_shard shards[] = {{1, 2}, {1, 2}, {0, 2}, {1, 2}, {1, 4}, {0, 1}};
    static const bool attached[] = {false, true, false, false, false, false};
    for (uint32_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        struct engine *engine = start(path, shards[i], false, fd, STATUS_OK);
        ck_assert_int_eq(engine_attached(engine), attached[i]);
        engine_destroy(engine);
    }
    close(fd);
    remove(path);
}
END_TEST

Suite *suite_engine_group(void) {
    Suite *suite = suite_create("worker/engine_group");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, groups_answer_like_one_worker, 0, SUBJECT_COUNT);
    tcase_add_loop_test(tc, a_broken_group_faults_and_a_new_epoch_goes_on, 0, SUBJECT_COUNT);
    tcase_add_test(tc, a_rank_without_a_group_computes_nothing);
    tcase_add_test(tc, weights_of_another_rank_are_loaded_again);
    suite_add_tcase(suite, tc);
    return suite;
}
