// SPDX-License-Identifier: Apache-2.0
// Goal: the stamp stays the same exactly when the pool's bytes are those that the last process
// left: over a restart with the same options, and a new epoch; not after a rehearsal, with another
// size or layout, with fresh memory, or after the memory was given back. Method: engines with a
// tiny model, one after the other, over the same memory files.
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/engine.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char MARK[] = "bytes of the last process";
enum { MARK_AT = 12345 };

struct fixture {
    char path[64];
    struct kv_stamp stamp;
    struct engine_options options;
};

static void init(struct fixture *f) {
    static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};
    snprintf(f->path, sizeof f->path, "/tmp/tare-test-stamp-%d.gguf", (int)getpid());
    tiny_model_write(&model, f->path);
    f->stamp = (struct kv_stamp){0};
    f->options = (struct engine_options){
        .model_path = f->path,
        .device = "cpu",
        .isa = "auto",
        .threads = 1,
        .utilization = 1.0,
        .kv_bytes = 1024 * 1024,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .seqs = 4,
        .step_tokens = 32,
        .model_len = 128,
        .weights_fd = memfd_create("weights", 0),
        .kv_fd = memfd_create("kv", 0),
        .kv_stamp = &f->stamp,
    };
    ck_assert_int_ge(f->options.weights_fd, 0);
    ck_assert_int_ge(f->options.kv_fd, 0);
}

static void deinit(struct fixture *f) {
    close(f->options.weights_fd);
    close(f->options.kv_fd);
    remove(f->path);
}

static struct engine *start(const struct fixture *f) {
    struct engine *engine = NULL;
    struct error err = {0};
    enum status status = engine_create(&f->options, &engine, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    return engine;
}

// A start and its end; the stamp that it reports.
static uint64_t live(const struct fixture *f) {
    struct engine *engine = start(f);
    uint64_t stamp = engine_capacity(engine)->kv_stamp;
    engine_destroy(engine);
    ck_assert_uint_ne(stamp, 0);
    return stamp;
}

static void write_mark(const struct fixture *f) {
    ck_assert_int_eq(pwrite(f->options.kv_fd, MARK, sizeof MARK, MARK_AT), sizeof MARK);
}

static bool mark_is_there(const struct fixture *f) {
    char text[sizeof MARK] = "";
    ck_assert_int_eq(pread(f->options.kv_fd, text, sizeof text, MARK_AT), sizeof text);
    return strcmp(text, MARK) == 0;
}

START_TEST(a_restart_over_kept_memory_keeps_the_stamp) {
    struct fixture f;
    init(&f);
    uint64_t first = live(&f);
    write_mark(&f);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(live(&f), first);
        ck_assert(mark_is_there(&f));
    }
    deinit(&f);
}
END_TEST

START_TEST(a_start_that_rehearses_has_another_stamp) {
    struct fixture f;
    init(&f);
    uint64_t first = live(&f);
    // What it would weigh is not known: it rehearses, in the pool.
    f.options.enforce_eager = true;
    uint64_t second = live(&f);
    ck_assert_uint_ne(second, first);
    ck_assert_uint_eq(live(&f), second);
    deinit(&f);
}
END_TEST

START_TEST(another_size_has_another_stamp) {
    struct fixture f;
    init(&f);
    uint64_t first = live(&f);
    f.options.kv_bytes = 2 * 1024 * 1024;
    uint64_t second = live(&f);
    ck_assert_uint_ne(second, first);
    f.options.block_tokens = 32;    // the same bytes mean something else
    ck_assert_uint_ne(live(&f), second);
    deinit(&f);
}
END_TEST

START_TEST(fresh_memory_has_another_stamp) {
    struct fixture f;
    init(&f);
    uint64_t first = live(&f);
    close(f.options.kv_fd);
    close(f.options.weights_fd);
    f.options.kv_fd = memfd_create("kv", 0);
    f.options.weights_fd = memfd_create("weights", 0);
    ck_assert_uint_ne(live(&f), first);
    deinit(&f);
}
END_TEST

START_TEST(a_resize_keeps_the_stamp_until_the_process_ends) {
    struct fixture f;
    init(&f);
    struct engine *engine = start(&f);
    uint64_t first = engine_capacity(engine)->kv_stamp;
    uint32_t blocks = engine_capacity(engine)->kv_blocks, after = 0;
    ck_assert_int_eq(engine_resize_kv(engine, blocks / 2, &after, NULL), STATUS_OK);
    ck_assert_uint_lt(after, blocks);
    ck_assert_uint_eq(engine_capacity(engine)->kv_stamp, first);    // the lower blocks are there
    engine_destroy(engine);
    ck_assert_uint_ne(live(&f), first);    // half of the pool is new
    deinit(&f);
}
END_TEST

START_TEST(memory_given_back_comes_back_under_another_stamp) {
    struct fixture f;
    init(&f);
    struct engine *engine = start(&f);
    uint64_t first = engine_capacity(engine)->kv_stamp;
    uint32_t blocks = engine_capacity(engine)->kv_blocks;
    write_mark(&f);
    ck_assert_int_eq(engine_reclaim_kv(engine, NULL), STATUS_OK);    // nothing was given
    ck_assert_uint_eq(engine_capacity(engine)->kv_stamp, first);
    engine_release_kv(engine);
    engine_release_kv(engine);
    ck_assert_uint_eq(engine_ledger(engine)->bytes[LEDGER_KV], 0);
    ck_assert(!mark_is_there(&f));
    ck_assert_int_eq(engine_reclaim_kv(engine, NULL), STATUS_OK);
    ck_assert_uint_eq(engine_capacity(engine)->kv_blocks, blocks);
    ck_assert_uint_ne(engine_capacity(engine)->kv_stamp, first);
    ck_assert_uint_ne(engine_capacity(engine)->kv_stamp, 0);
    engine_destroy(engine);
    deinit(&f);
}
END_TEST

Suite *suite_kv_stamp(void) {
    Suite *suite = suite_create("worker/kv/kv_stamp");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_restart_over_kept_memory_keeps_the_stamp);
    tcase_add_test(tc, a_start_that_rehearses_has_another_stamp);
    tcase_add_test(tc, another_size_has_another_stamp);
    tcase_add_test(tc, fresh_memory_has_another_stamp);
    tcase_add_test(tc, a_resize_keeps_the_stamp_until_the_process_ends);
    tcase_add_test(tc, memory_given_back_comes_back_under_another_stamp);
    suite_add_tcase(suite, tc);
    return suite;
}
