// SPDX-License-Identifier: Apache-2.0
// Goal: addresses and memory of the cpu device are two things: a range has memory only where it was
// mapped, every byte of it is charged to a line and stays within the budget, and what is unmapped
// goes back to the machine. Method: real ranges, children that touch what is not theirs.
#include "common/rng.h"
#include "tests/unit/suites.h"
#include "worker/device/device.h"
#include "worker/kv/kv_pool.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1024 * 1024 };

struct fixture {
    struct memory_ledger ledger;
    struct device *device;
    struct kv_pool pool;
};

static void init(struct fixture *f, uint64_t device_bytes, uint64_t budget_bytes) {
    memory_ledger_init(&f->ledger, device_bytes, budget_bytes);
    struct device_options options = {
        .name = "cpu", .thread_count = 1, .isa = "auto", .ledger = &f->ledger};
    struct error err = {0};
    ck_assert_int_eq(device_cpu.open(&options, &f->device, &err), STATUS_OK);
}

static void deinit(struct fixture *f) {
    device_cpu.close(f->device);
}

// How a child ends that writes one byte there: 0, or the signal that ended it.
static int touch(uint8_t *at) {
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile uint8_t *)at = 1;
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

START_TEST(a_range_has_memory_only_where_it_was_mapped) {
    struct fixture f;
    init(&f, 64 * MIB, 64 * MIB);
    struct device_range range;
    struct error err = {0};
    ck_assert_int_eq(device_cpu.reserve(f.device, LEDGER_KV, 64 * MIB, -1, &range, &err),
                     STATUS_OK);
    ck_assert_uint_eq(memory_ledger_used(&f.ledger), 0);
    ck_assert_int_ne(touch(range.base), 0);
    ck_assert_int_eq(device_cpu.map(f.device, &range, 2 * MIB, &err), STATUS_OK);
    ck_assert_int_eq(touch(range.base), 0);
    ck_assert_int_eq(touch(range.base + 2 * MIB - 1), 0);
    ck_assert_int_ne(touch(range.base + 2 * MIB), 0);
    ck_assert_uint_eq(f.ledger.bytes[LEDGER_KV], 2 * MIB);
    ck_assert_uint_eq(device_cpu.own_bytes(f.device), 2 * MIB);
    device_cpu.unmap(f.device, &range, 2 * MIB);
    ck_assert_int_ne(touch(range.base), 0);
    ck_assert_uint_eq(memory_ledger_used(&f.ledger), 0);
    deinit(&f);
}
END_TEST

START_TEST(the_budget_is_a_limit_and_the_line_is_named) {
    struct fixture f;
    init(&f, 8 * MIB, 3 * MIB);
    struct device_range range;
    struct error err = {0};
    ck_assert_int_eq(device_cpu.reserve(f.device, LEDGER_WORKSPACE, 8 * MIB, -1, &range, &err),
                     STATUS_OK);
    ck_assert_int_eq(device_cpu.map(f.device, &range, 2 * MIB, &err), STATUS_OK);
    ck_assert_int_eq(device_cpu.map(f.device, &range, 2 * MIB, &err), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.message, "'workspace arena'"));
    ck_assert_ptr_nonnull(strstr(err.message, "1048576 bytes"));
    ck_assert_uint_eq(range.mapped_bytes, 2 * MIB);    // the refused map left nothing behind
    ck_assert_int_ne(touch(range.base + 2 * MIB), 0);
    deinit(&f);
}
END_TEST

START_TEST(what_is_unmapped_goes_back_and_what_stays_keeps_its_contents) {
    struct fixture f;
    init(&f, 64 * MIB, 64 * MIB);
    int fd = memfd_create("tare-test-range", 0);
    ck_assert_int_ge(fd, 0);
    struct kv_chunk_rule rule = kv_chunk_rule(128 * MIB, 4096);
    ck_assert_uint_eq(rule.small_bytes, MIB / 2);
    struct error err = {0};
    ck_assert_int_eq(kv_pool_init(&f.pool, &device_cpu, f.device, &rule, 64 * MIB, fd, &err),
                     STATUS_OK);
    ck_assert_int_eq(kv_pool_grow(&f.pool, LEDGER_KV, 18 * MIB, &err), STATUS_OK);
    ck_assert_uint_eq(f.pool.chunk_count, 1 + 4);    // one large chunk, four small ones
    uint8_t *base = f.pool.range.base;
    memset(base, 7, 18 * MIB);
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_uint_ge((uint64_t)info.st_blocks * 512, 18 * MIB);
    kv_pool_shrink(&f.pool, 17 * MIB - 1);    // whole chunks only
    ck_assert_uint_eq(kv_pool_bytes(&f.pool), 17 * MIB);
    kv_pool_shrink(&f.pool, 3 * MIB);    // the large chunk does not fit what may go
    ck_assert_uint_eq(kv_pool_bytes(&f.pool), 16 * MIB);
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_uint_le((uint64_t)info.st_blocks * 512, 16 * MIB);
    ck_assert_uint_eq(base[16 * MIB - 1], 7);
    ck_assert_int_eq(kv_pool_grow(&f.pool, LEDGER_KV, 2 * MIB, &err), STATUS_OK);
    ck_assert_uint_eq(base[17 * MIB], 0);    // comes back as zeroes, at the same address
    ck_assert_uint_eq(base[0], 7);
    deinit(&f);
    close(fd);
}
END_TEST

START_TEST(any_order_of_growing_and_shrinking_returns_to_the_same_byte) {
    struct fixture f;
    init(&f, 64 * MIB, 64 * MIB);
    struct kv_chunk_rule rule = kv_chunk_rule(8 * MIB, 4096);
    struct error err = {0};
    ck_assert_int_eq(kv_pool_init(&f.pool, &device_cpu, f.device, &rule, 64 * MIB, -1, &err),
                     STATUS_OK);
    struct rng rng;
    rng_init(&rng, 5);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t have = kv_pool_bytes(&f.pool);
        if (rng_below(&rng, 2) == 0) {
            uint64_t more = kv_chunk_round(&rule, rng_below(&rng, 16 * MIB));
            bool fits = have + more <= 64 * MIB;
            if (fits) {
                ck_assert_int_eq(kv_pool_grow(&f.pool, LEDGER_KV, more, &err), STATUS_OK);
                ck_assert_uint_eq(kv_pool_bytes(&f.pool), have + more);
            }
        } else {
            uint64_t least = rng_below(&rng, have + 1);
            kv_pool_shrink(&f.pool, least);
            ck_assert_uint_ge(kv_pool_bytes(&f.pool), least);
            ck_assert_uint_lt(kv_pool_bytes(&f.pool) - least, rule.large_bytes);
        }
        ck_assert_uint_eq(f.ledger.bytes[LEDGER_KV], kv_pool_bytes(&f.pool));
        ck_assert_uint_eq(device_cpu.own_bytes(f.device), kv_pool_bytes(&f.pool));
    }
    kv_pool_shrink(&f.pool, 0);
    ck_assert_uint_eq(memory_ledger_used(&f.ledger), 0);
    deinit(&f);
}
END_TEST

START_TEST(a_pool_gives_back_what_others_need_and_little_more) {
    struct fixture f;
    init(&f, 256 * MIB, 256 * MIB);
    struct kv_chunk_rule rule = kv_chunk_rule(512 * MIB, 4096);
    ck_assert_uint_eq(rule.large_bytes, 64 * MIB);
    struct error err = {0};
    ck_assert_int_eq(kv_pool_init(&f.pool, &device_cpu, f.device, &rule, 256 * MIB, -1, &err),
                     STATUS_OK);
    ck_assert_int_eq(kv_pool_grow(&f.pool, LEDGER_KV, 128 * MIB, &err), STATUS_OK);
    kv_pool_give(&f.pool, 5 * MIB);
    ck_assert_uint_eq(kv_pool_bytes(&f.pool), 122 * MIB);
    kv_pool_give(&f.pool, 500 * (uint64_t)MIB);
    ck_assert_uint_eq(kv_pool_bytes(&f.pool), 0);
    deinit(&f);
}
END_TEST

START_TEST(a_line_above_its_plan_is_named) {
    struct fixture f;
    init(&f, 64 * MIB, 64 * MIB);
    struct error err = {0};
    memory_ledger_plan(&f.ledger, LEDGER_STEP, 4096);
    ck_assert_int_eq(memory_ledger_charge(&f.ledger, LEDGER_GRAPH_8, 100, &err), STATUS_OK);
    ck_assert_int_eq(memory_ledger_charge(&f.ledger, LEDGER_STEP, 4096, &err), STATUS_OK);
    ck_assert_int_eq(memory_ledger_check(&f.ledger, &err), STATUS_OK);    // graphs are only found
    ck_assert_int_eq(memory_ledger_charge(&f.ledger, LEDGER_STEP, 1, &err), STATUS_OK);
    ck_assert_int_eq(memory_ledger_check(&f.ledger, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "'step descriptor'"));
    ck_assert_ptr_nonnull(strstr(err.message, "4097"));
    deinit(&f);
}
END_TEST

START_TEST(what_does_not_fit_says_what_to_change_for_its_line) {
    static const struct {
        enum ledger_id line;
        const char *remedy;
    } cases[] = {{LEDGER_KV, "lower --kv-cache-memory-bytes"},
                 {LEDGER_GUARD, "lower --memory-margin"},
                 {LEDGER_STEP, "lower --max-num-batched-tokens"}};
    struct memory_ledger ledger;
    memory_ledger_init(&ledger, 1000, 1000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = {0};
        ck_assert_int_eq(memory_ledger_charge(&ledger, cases[i].line, 1001, &err),
                         STATUS_EXHAUSTED);
        ck_assert_ptr_nonnull(strstr(err.message, "(1 bytes) are missing"));
        ck_assert_ptr_nonnull(strstr(err.hint, cases[i].remedy));
    }
}
END_TEST

START_TEST(a_printed_scratch_chunk_is_not_counted_in_the_pool_again) {
    struct memory_ledger ledger;
    struct buf table;
    memory_ledger_init(&ledger, 100 * (uint64_t)MIB, 100 * (uint64_t)MIB);
    memory_ledger_plan(&ledger, LEDGER_KV, 100 * (uint64_t)MIB);
    ck_assert_int_eq(memory_ledger_charge(&ledger, LEDGER_SCRATCH, 10 * (uint64_t)MIB, NULL),
                     STATUS_OK);
    buf_init(&table, 4096);
    memory_ledger_print(&ledger, &table);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&table), "kv pool                         90.00"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&table), "total                          100.00"));
    buf_deinit(&table);
}
END_TEST

Suite *suite_device_cpu(void) {
    Suite *suite = suite_create("worker/device/device_cpu");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_range_has_memory_only_where_it_was_mapped);
    tcase_add_test(tc, the_budget_is_a_limit_and_the_line_is_named);
    tcase_add_test(tc, what_is_unmapped_goes_back_and_what_stays_keeps_its_contents);
    tcase_add_test(tc, any_order_of_growing_and_shrinking_returns_to_the_same_byte);
    tcase_add_test(tc, a_pool_gives_back_what_others_need_and_little_more);
    tcase_add_test(tc, a_line_above_its_plan_is_named);
    tcase_add_test(tc, a_printed_scratch_chunk_is_not_counted_in_the_pool_again);
    tcase_add_test(tc, what_does_not_fit_says_what_to_change_for_its_line);
    suite_add_tcase(suite, tc);
    return suite;
}
