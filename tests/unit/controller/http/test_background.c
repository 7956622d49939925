// SPDX-License-Identifier: Apache-2.0
// Goal: work happens off the loop, its end on it, and the line is bounded. Method: jobs that wait
// until the test lets them go, on a real loop.
#include "common/bounds.h"
#include "controller/http/background.h"
#include "tests/unit/suites.h"

#include <pthread.h>
#include <semaphore.h>
#include <uv.h>

enum { JOBS = BOUND_BACKGROUND_RUNNING + BOUND_BACKGROUND_WAITING };

struct held_job {
    struct background_job job;
    pthread_t worked_on, done_on;
    bool worked, done;
};

static uv_loop_t loop;
static struct background *background;
static sem_t gate;
static struct held_job jobs[JOBS + 1];

static void work(struct background_job *job) {
    struct held_job *held = (struct held_job *)(void *)job;
    sem_wait(&gate);
    held->worked_on = pthread_self();
    held->worked = true;
}

static void done(struct background_job *job, uint64_t now_us) {
    struct held_job *held = (struct held_job *)(void *)job;
    ck_assert_uint_gt(now_us, 0);
    held->done_on = pthread_self();
    held->done = true;
}

static void setup(void) {
    uv_loop_init(&loop);
    background = background_create(&loop);
    ck_assert_ptr_nonnull(background);
    sem_init(&gate, 0, 0);
    for (int i = 0; i <= JOBS; i++) {
        jobs[i] = (struct held_job){.job = {.work = work, .done = done}};
    }
}

static void open_gate(int count) {
    for (int i = 0; i < count; i++) {
        sem_post(&gate);
    }
}

static void teardown(void) {
    background_destroy(background);
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    sem_destroy(&gate);
}

START_TEST(work_is_done_elsewhere_and_its_end_told_here) {
    ck_assert(background_submit(background, &jobs[0].job));
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert(!jobs[0].done);
    open_gate(1);
    while (!jobs[0].done) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    ck_assert(jobs[0].worked);
    ck_assert(!pthread_equal(jobs[0].worked_on, pthread_self()));
    ck_assert(pthread_equal(jobs[0].done_on, pthread_self()));
}
END_TEST

START_TEST(a_full_line_refuses_and_all_that_was_taken_ends) {
    for (int i = 0; i < JOBS; i++) {
        ck_assert(background_submit(background, &jobs[i].job));
    }
    ck_assert(!background_submit(background, &jobs[JOBS].job));
    open_gate(JOBS);
    background_destroy(background);
    for (int i = 0; i < JOBS; i++) {
        ck_assert(jobs[i].done);
    }
    ck_assert(!jobs[JOBS].worked);
    background = NULL;
}
END_TEST

START_TEST(what_waits_can_be_dropped_what_runs_cannot) {
    enum { FIRST_WAITING = BOUND_BACKGROUND_RUNNING, LAST = FIRST_WAITING + 2 };
    for (int i = 0; i <= LAST; i++) {
        ck_assert(background_submit(background, &jobs[i].job));
    }
    ck_assert(!background_drop(background, &jobs[0].job));
    ck_assert(background_drop(background, &jobs[FIRST_WAITING].job));
    ck_assert(background_drop(background, &jobs[LAST].job));
    ck_assert(!background_drop(background, &jobs[LAST].job));
    ck_assert(background_submit(background, &jobs[JOBS].job));    // the line's end is still linked
    open_gate(LAST);
    background_destroy(background);
    background = NULL;
    ck_assert(jobs[0].done && jobs[FIRST_WAITING + 1].done && jobs[JOBS].done);
    ck_assert(!jobs[FIRST_WAITING].worked && !jobs[LAST].worked);
}
END_TEST

Suite *suite_background(void) {
    Suite *suite = suite_create("controller/http/background");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, work_is_done_elsewhere_and_its_end_told_here);
    tcase_add_test(tc, a_full_line_refuses_and_all_that_was_taken_ends);
    tcase_add_test(tc, what_waits_can_be_dropped_what_runs_cannot);
    suite_add_tcase(suite, tc);
    return suite;
}
