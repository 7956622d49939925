// SPDX-License-Identifier: Apache-2.0
// Goal: every task runs exactly once, on a thread that exists, before run returns; idle threads
// cost nothing. Method: many jobs of odd sizes over several pool sizes, counters per task.
#include "common/bounds.h"
#include "tests/unit/suites.h"
#include "worker/device/thread_pool.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { TASKS_MAX = 1000 };

struct tally {
    atomic_uint runs[TASKS_MAX];
    atomic_uint bad_threads;
    uint32_t thread_count;
    uint64_t plain;    // written by task 0 only: the join must make it visible
};

static void count_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct tally *tally = arg;
    atomic_fetch_add(&tally->runs[task_index], 1);
    if (thread_index >= tally->thread_count) {
        atomic_fetch_add(&tally->bad_threads, 1);
    }
    if (task_index == 0) {
        tally->plain++;
    }
}

static void check_jobs(uint32_t thread_count, uint32_t jobs) {
    struct thread_pool *pool;
    struct error err = {0};
    ck_assert_int_eq(thread_pool_create(thread_count, &pool, &err), STATUS_OK);
    ck_assert_uint_eq(thread_pool_thread_count(pool), thread_count);
    static struct tally tally;
    memset(&tally, 0, sizeof tally);
    tally.thread_count = thread_count;
    uint32_t expected[TASKS_MAX] = {0};
    uint64_t starts = 0;
    for (uint32_t job = 0; job < jobs; job++) {
        uint32_t task_count = job * 7 % 41;
        if (job % 100 == 99) {
            task_count = TASKS_MAX;
        }
        thread_pool_run(pool, task_count, count_task, &tally);
        starts += task_count > 0;
        ck_assert_uint_eq(tally.plain, starts);
        for (uint32_t i = 0; i < task_count; i++) {
            expected[i]++;
            ck_assert_uint_eq(atomic_load(&tally.runs[i]), expected[i]);
        }
    }
    ck_assert_uint_eq(atomic_load(&tally.bad_threads), 0);
    thread_pool_destroy(pool);
}

START_TEST(each_task_runs_once_before_run_returns) {
    check_jobs(1, 500);
    check_jobs(2, 5000);
    check_jobs(3, 2000);
    check_jobs(9, 1000);
}
END_TEST

START_TEST(refuses_counts_outside_the_bound) {
    struct thread_pool *pool = (struct thread_pool *)&pool;
    struct error err = {0};
    ck_assert_int_eq(thread_pool_create(0, &pool, &err), STATUS_INVALID);
    ck_assert_ptr_null(pool);
    error_reset(&err);
    ck_assert_int_eq(thread_pool_create(BOUND_WORKER_THREADS + 1, &pool, &err), STATUS_INVALID);
    ck_assert_ptr_null(pool);
    thread_pool_destroy(NULL);
}
END_TEST

static uint64_t process_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// The threads must stop using the processor by themselves within a bound: wait until 100 ms of
// quiet are seen, at most 20 times.
START_TEST(idle_threads_sleep) {
    struct thread_pool *pool;
    struct error err = {0};
    ck_assert_int_eq(thread_pool_create(4, &pool, &err), STATUS_OK);
    static struct tally tally;
    tally.thread_count = 4;
    thread_pool_run(pool, 40, count_task, &tally);
    struct timespec window = {.tv_nsec = 100 * 1000 * 1000};
    uint64_t used = UINT64_MAX;
    for (int i = 0; i < 20 && used > 1000000; i++) {
        uint64_t before = process_cpu_ns();
        nanosleep(&window, NULL);
        used = process_cpu_ns() - before;
    }
    ck_assert_uint_le(used, 1000000);                 // 1 % of one core
    thread_pool_run(pool, 40, count_task, &tally);    // and they wake up again
    ck_assert_uint_eq(atomic_load(&tally.runs[39]), 2);
    thread_pool_destroy(pool);
}
END_TEST

Suite *suite_thread_pool(void) {
    Suite *suite = suite_create("worker/device/thread_pool");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, each_task_runs_once_before_run_returns);
    tcase_add_test(tc, refuses_counts_outside_the_bound);
    tcase_add_test(tc, idle_threads_sleep);
    suite_add_tcase(suite, tc);
    return suite;
}
