// SPDX-License-Identifier: Apache-2.0
// Goal: a start weighs first and gives the rest to KV: the lines and the pool fill the budget,
// every start of the same kind comes to the same block, memory that others take makes the pool
// smaller and never the process fail later, and the pool can be resized between steps without
// anybody noticing. Method: tiny models on the cpu device; the kernel's own limits take memory
// away.
#include "common/memory.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/engine.h"
#include "worker/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1024 * 1024, SEQ_TOKENS = 128 };

static const struct tiny_model model_tiny = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};

struct fixture {
    char path[64];
    char seals[64];
    struct engine_options options;
};

static void init(struct fixture *f) {
    snprintf(f->path, sizeof f->path, "/tmp/tare-test-start-%d.gguf", (int)getpid());
    tiny_model_write(&model_tiny, f->path);
    snprintf(f->seals, sizeof f->seals, "/tmp/tare-test-seals-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->seals));
    f->options = (struct engine_options){
        .model_path = f->path,
        .device = "cpu",
        .isa = "auto",
        .threads = 2,
        .device_memory = 64 * MIB,
        .utilization = 0.9,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 12,
        .step_tokens = 48,
        .model_len = SEQ_TOKENS,
        .weights_fd = -1,
        .kv_fd = -1,
    };
}

static void deinit(struct fixture *f) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->seals);
    ck_assert_int_eq(system(command), 0);
    remove(f->path);
}

static struct engine *start(const struct fixture *f) {
    struct engine *engine = NULL;
    struct error err = {0};
    enum status status = engine_create(&f->options, &engine, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    return engine;
}

static uint32_t blocks_of(const struct engine *engine) {
    return engine_capacity(engine)->kv_blocks;
}

static bool has_phase(const struct engine *engine, const char *name) {
    uint32_t count = 0;
    const struct engine_phase *phases = engine_phases(engine, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(phases[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

// ---- weighing ----------------------------------------------------------------------------------

START_TEST(the_lines_fill_the_budget) {
    struct fixture f;
    init(&f);
    for (uint32_t eager = 0; eager < 2; eager++) {
        f.options.enforce_eager = eager == 1;
        struct engine *engine = start(&f);
        const struct memory_ledger *ledger = engine_ledger(engine);
        ck_assert_uint_le(memory_ledger_free(ledger), 2 * MIB);
        ck_assert_uint_eq(ledger->bytes[LEDGER_UNACCOUNTED], 0);
        ck_assert_uint_eq(ledger->bytes[LEDGER_SCRATCH], 0);    // lent, and given to the pool
        ck_assert_int_eq(ledger->bytes[LEDGER_GRAPH_8] == 0, eager == 1);
        uint64_t pool = ledger->bytes[LEDGER_KV];
        uint64_t block = engine_capacity(engine)->kv_bytes_per_token * 16;
        ck_assert_uint_eq(blocks_of(engine), pool / block);
        engine_destroy(engine);
    }
    deinit(&f);
}
END_TEST

START_TEST(a_margin_counts_inside_what_the_share_leaves_out) {
    struct fixture f;
    init(&f);
    struct engine *plain = start(&f);
    f.options.memory_margin = 6 * MIB;    // the share leaves 6.4 MiB out
    struct engine *inside = start(&f);
    ck_assert_uint_eq(blocks_of(inside), blocks_of(plain));
    ck_assert_uint_eq(engine_ledger(inside)->bytes[LEDGER_GUARD], 0);
    f.options.memory_margin = 16 * MIB;
    struct engine *beyond = start(&f);
    const struct memory_ledger *ledger = engine_ledger(beyond);
    ck_assert_uint_eq(ledger->bytes[LEDGER_GUARD],
                      (uint64_t)16 * MIB - (ledger->device_bytes - ledger->budget_bytes));
    ck_assert_uint_lt(blocks_of(beyond), blocks_of(plain));
    engine_destroy(plain);
    engine_destroy(inside);
    engine_destroy(beyond);
    deinit(&f);
}
END_TEST

START_TEST(every_start_comes_to_the_same_block) {
    struct fixture f;
    init(&f);
    struct engine *first = start(&f);
    for (uint64_t seed = 0; seed < 6; seed++) {
        f.options.capture_order_seed = seed;
        struct engine *other = start(&f);
        ck_assert_uint_eq(blocks_of(other), blocks_of(first));
        ck_assert_int_eq(memcmp(engine_ledger(other)->bytes, engine_ledger(first)->bytes,
                                sizeof engine_ledger(first)->bytes),
                         0);
        engine_destroy(other);
    }
    engine_destroy(first);
    deinit(&f);
}
END_TEST

START_TEST(two_workers_share_a_device_in_either_order) {
    struct fixture f;
    init(&f);
    struct fixture g = f;
    g.options.device_memory = 32 * MIB;
    g.options.step_tokens = 32;
    struct engine *a = start(&f), *b = start(&g);
    uint32_t a_blocks = blocks_of(a), b_blocks = blocks_of(b);
    engine_destroy(a);
    engine_destroy(b);
    b = start(&g);
    a = start(&f);
    ck_assert_uint_eq(blocks_of(a), a_blocks);
    ck_assert_uint_eq(blocks_of(b), b_blocks);
    engine_destroy(a);
    engine_destroy(b);
    deinit(&f);
}
END_TEST

// ---- memory that is not there ------------------------------------------------------------------

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(TARE_SLOW_CHECKS)
static uint64_t writable_bytes(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "VmData: %llu", &kib) != 1) {
    }
    fclose(file);
    ck_assert_uint_gt(kib, 0);
    return kib * 1024;
}

static void limit_writable(uint64_t bytes) {
    struct rlimit limit = {bytes, bytes};
    ck_assert_int_eq(setrlimit(RLIMIT_DATA, &limit), 0);
}

// What a start in a child that may write only so much more memory comes to: its blocks, 0 when it
// was refused for want of memory, -1 for any other end.
static int64_t blocks_with_only(const struct fixture *f, uint64_t more_bytes) {
    int out[2];
    ck_assert_int_eq(pipe(out), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int64_t blocks = -1;
        struct engine *engine = NULL;
        struct error err = {0};
        ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
        limit_writable(writable_bytes() + more_bytes);
        enum status status = engine_create(&f->options, &engine, &err);
        if (status == STATUS_OK) {
            blocks = blocks_of(engine);
            engine_destroy(engine);
        } else if (status == STATUS_EXHAUSTED && err.message[0] != '\0') {
            blocks = 0;
        }
        _exit(write(out[1], &blocks, sizeof blocks) == (ssize_t)sizeof blocks ? 0 : 1);
    }
    int64_t blocks = -1;
    int status = 0;
    close(out[1]);
    bool read_all = read(out[0], &blocks, sizeof blocks) == (ssize_t)sizeof blocks;
    close(out[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(read_all && WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "a start with %llu bytes ended with status %d", (unsigned long long)more_bytes,
                  status);
    return blocks;
}

// At every size of what can be had, a start ends well or is refused, and more memory never gives
// fewer blocks.
START_TEST(others_that_take_memory_make_the_pool_smaller) {
    struct fixture f;
    init(&f);
    struct engine *engine = start(&f);
    int64_t all = blocks_of(engine);
    engine_destroy(engine);
    int64_t last = 0;
    uint32_t smaller = 0, refused = 0;
    for (uint64_t more = 0; more <= 96 * MIB; more += 3 * MIB) {
        int64_t blocks = blocks_with_only(&f, more);
        ck_assert_msg(blocks >= 0, "%llu bytes: neither a start nor a refusal",
                      (unsigned long long)more);
        ck_assert_int_ge(blocks, last);
        last = blocks;
        refused += blocks == 0 ? 1 : 0;
        smaller += blocks > 0 && blocks < all ? 1 : 0;
    }
    ck_assert_int_eq(last, all);
    ck_assert_uint_gt(refused, 0);
    ck_assert_uint_gt(smaller, 3);
    deinit(&f);
}
END_TEST

START_TEST(a_pool_that_was_asked_for_is_there_or_refused) {
    struct fixture f;
    init(&f);
    f.options.kv_bytes = 24 * MIB;
    struct engine *engine = start(&f);
    int64_t all = blocks_of(engine);
    engine_destroy(engine);
    uint32_t refused = 0;
    for (uint64_t more = 8 * MIB; more <= 64 * MIB; more += 4 * MIB) {
        int64_t blocks = blocks_with_only(&f, more);
        ck_assert(blocks == 0 || blocks == all);
        refused += blocks == 0 ? 1 : 0;
    }
    ck_assert_uint_gt(refused, 0);
    ck_assert_int_eq(blocks_with_only(&f, 128 * MIB), all);
    deinit(&f);
}
END_TEST
#endif

// ---- the seal ----------------------------------------------------------------------------------

START_TEST(an_equal_start_need_not_rehearse) {
    struct fixture f;
    init(&f);
    f.options.seal_dir = f.seals;
    struct engine *first = start(&f);
    ck_assert(!engine_proven(first));
    ck_assert(has_phase(first, "rehearsal"));
    struct engine *second = start(&f);
    ck_assert(engine_proven(second));
    ck_assert(!has_phase(second, "rehearsal"));
    ck_assert_uint_eq(blocks_of(second), blocks_of(first));
    // Another shape of step is another start, and so is one without graphs.
    f.options.step_tokens++;
    struct engine *wider = start(&f);
    ck_assert(!engine_proven(wider));
    f.options.step_tokens--;
    f.options.enforce_eager = true;
    struct engine *eager = start(&f);
    ck_assert(!engine_proven(eager));
    engine_destroy(first);
    engine_destroy(second);
    engine_destroy(wider);
    engine_destroy(eager);
    deinit(&f);
}
END_TEST

START_TEST(a_damaged_seal_proves_nothing) {
    struct fixture f;
    init(&f);
    f.options.seal_dir = f.seals;
    engine_destroy(start(&f));
    char command[256];
    static const char *const DAMAGE[] = {"truncate -s 10", "sed -i s/kv/kw/", "sed -i s/[0-9]/9/g",
                                         "cp /dev/null", "sed -i 1d"};
    for (size_t i = 0; i < sizeof DAMAGE / sizeof *DAMAGE; i++) {
        snprintf(command, sizeof command, "%s '%s'/seal-*.json", DAMAGE[i], f.seals);
        ck_assert_int_eq(system(command), 0);
        struct engine *engine = start(&f);
        ck_assert_msg(!engine_proven(engine), "after: %s", DAMAGE[i]);
        engine_destroy(engine);
        engine = start(&f);    // and is written anew
        ck_assert(engine_proven(engine));
        engine_destroy(engine);
    }
    deinit(&f);
}
END_TEST

START_TEST(planned_lines_match_to_the_byte_and_found_ones_may_only_shrink) {
    struct seal before = {.digest = "0123456789abcdef"};
    before.bytes[LEDGER_WORKSPACE] = 1000;
    before.bytes[LEDGER_GRAPH_8] = 1000;
    struct seal now = before;
    ck_assert(seal_covers(&before, &now));
    now.bytes[LEDGER_GRAPH_8] = 999;
    ck_assert(seal_covers(&before, &now));
    now.bytes[LEDGER_GRAPH_8] = 1001;
    ck_assert(!seal_covers(&before, &now));
    now = before;
    now.bytes[LEDGER_WORKSPACE] = 999;
    ck_assert(!seal_covers(&before, &now));
    now = before;
    now.digest[3] = 'x';
    ck_assert(!seal_covers(&before, &now));
}
END_TEST

// A process that attaches to memory another one filled: nothing is loaded or rehearsed, what the
// pool holds stays.
START_TEST(a_child_that_attaches_finds_weights_and_kv) {
    struct fixture f;
    init(&f);
    f.options.weights_fd = memfd_create("tare-test-weights", 0);
    f.options.kv_fd = memfd_create("tare-test-kv", 0);
    struct engine *first = start(&f);
    uint32_t blocks = blocks_of(first);
    engine_destroy(first);
    uint8_t mark[4] = {1, 2, 3, 4};
    ck_assert_int_eq(pwrite(f.options.kv_fd, mark, sizeof mark, MIB), sizeof mark);
    struct engine *second = start(&f);
    ck_assert(engine_attached(second));
    ck_assert(engine_proven(second));
    ck_assert_uint_eq(blocks_of(second), blocks);
    engine_destroy(second);
    uint8_t found[4] = {0};
    ck_assert_int_eq(pread(f.options.kv_fd, found, sizeof found, MIB), sizeof found);
    ck_assert_int_eq(memcmp(found, mark, sizeof mark), 0);
    close(f.options.weights_fd);
    close(f.options.kv_fd);
    deinit(&f);
}
END_TEST

// ---- resize ------------------------------------------------------------------------------------

// A sequence in the first blocks: prompt at step 1, one token for each further step.
static void step(struct engine *engine, uint64_t seq, struct result_row *out) {
    static const int32_t tokens[] = {3, 1, 4, 1, 5};
    static const uint32_t blocks[] = {1, 0, 2};
    struct plan_admit admit = {
        .ref = {0, 1},
        .prompt_tokens = 5,
        .len_max = 48,
        .block_count = 3,
        .blocks = blocks,
        .sampling = {.temperature = 0.8f,
                     .top_p = 0.95f,
                     .repetition_penalty = 1.0f,
                     .seed = 11,
                     .want_logprobs = true},
    };
    struct plan_prefill prefill = {{0, 1}, 0, 5, tokens, -1, true};
    bool first = seq == 1;
    struct plan plan = {.epoch = 1,
                        .seq = seq,
                        .decode_rows = first ? 0 : 1,
                        .admit_count = first ? 1 : 0,
                        .admits = &admit,
                        .prefill_count = first ? 1 : 0,
                        .prefills = &prefill};
    struct step_result result;
    executor_run(engine_executor(engine), &plan, &result);
    ck_assert_msg(result.status == RESULT_STATUS_OK, "%s", result.message);
    ck_assert_uint_eq(result.row_count, 1);
    *out = result.rows[0];
}

START_TEST(steps_do_not_notice_a_resize) {
    struct fixture f;
    init(&f);
    struct engine *still = start(&f), *resized = start(&f);
    uint32_t all = blocks_of(resized);
    struct error err = {0};
    executor_reset(engine_executor(still), 1);
    executor_reset(engine_executor(resized), 1);
    for (uint64_t seq = 1; seq <= 30; seq++) {
        struct result_row a, b;
        uint32_t after = 0;
        uint32_t wanted = seq % 2 == 0 ? all : 3 + (uint32_t)seq;
        ck_assert_int_eq(engine_resize_kv(resized, wanted, &after, &err), STATUS_OK);
        ck_assert_uint_ge(after, wanted);
        ck_assert_uint_eq(blocks_of(resized), after);
        const struct memory_ledger *ledger = engine_ledger(resized);
        ck_assert_uint_ge(ledger->bytes[LEDGER_KV],
                          (uint64_t)after * engine_capacity(resized)->kv_bytes_per_token * 16);
        step(still, seq, &a);
        step(resized, seq, &b);
        ck_assert_int_eq(a.token, b.token);
        ck_assert_int_eq(memcmp(&a.logprob, &b.logprob, sizeof a.logprob), 0);
    }
    ck_assert_uint_eq(blocks_of(resized), all);    // after step 30
    ck_assert_uint_lt(memory_ledger_free(engine_ledger(resized)), 2 * MIB);
    engine_destroy(still);
    engine_destroy(resized);
    deinit(&f);
}
END_TEST

START_TEST(a_pool_grows_only_within_the_budget) {
    struct fixture f;
    init(&f);
    struct engine *engine = start(&f);
    uint32_t all = blocks_of(engine), after = 0;
    struct error err = {0};
    ck_assert_int_eq(engine_resize_kv(engine, all + 100000, &after, &err), STATUS_EXHAUSTED);
    ck_assert_uint_eq(after, all);
    ck_assert_ptr_nonnull(strstr(err.message, "are missing"));
    // A block that was cut off may no longer be named.
    ck_assert_int_eq(engine_resize_kv(engine, 8, &after, &err), STATUS_OK);
    ck_assert_uint_lt(after, all);
    executor_reset(engine_executor(engine), 1);
    uint32_t gone = all - 1;
    struct plan_admit admit = {.ref = {0, 1},
                               .prompt_tokens = 2,
                               .len_max = 4,
                               .block_count = 1,
                               .blocks = &gone,
                               .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
    struct step_result result;
    executor_run(engine_executor(engine),
                 &(struct plan){.epoch = 1, .seq = 1, .admit_count = 1, .admits = &admit}, &result);
    ck_assert_int_eq(result.status, RESULT_STATUS_REFUSED);
    engine_destroy(engine);
    deinit(&f);
}
END_TEST

Suite *suite_engine_start(void) {
    Suite *suite = suite_create("worker/engine_start");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, the_lines_fill_the_budget);
    tcase_add_test(tc, a_margin_counts_inside_what_the_share_leaves_out);
    tcase_add_test(tc, every_start_comes_to_the_same_block);
    tcase_add_test(tc, two_workers_share_a_device_in_either_order);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(TARE_SLOW_CHECKS)
    tcase_add_test(tc, others_that_take_memory_make_the_pool_smaller);
    tcase_add_test(tc, a_pool_that_was_asked_for_is_there_or_refused);
#endif
    tcase_add_test(tc, an_equal_start_need_not_rehearse);
    tcase_add_test(tc, a_damaged_seal_proves_nothing);
    tcase_add_test(tc, planned_lines_match_to_the_byte_and_found_ones_may_only_shrink);
    tcase_add_test(tc, a_child_that_attaches_finds_weights_and_kv);
    tcase_add_test(tc, steps_do_not_notice_a_resize);
    tcase_add_test(tc, a_pool_grows_only_within_the_budget);
    suite_add_tcase(suite, tc);
    return suite;
}
