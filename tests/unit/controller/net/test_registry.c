// SPDX-License-Identifier: Apache-2.0
// Goal: an epoch begins when every rank is there with its model and none is under way, epochs that
// are never ready, or never answer, come slower and slower up to a bound, and what ranks have not
// answered is known. Method: places taken by hand, time as a number.
#include "controller/net/registry.h"

#include "common/version.h"
#include "tests/unit/suites.h"

#include <stdio.h>

enum { START_US = 1000 * 1000 };

static struct registry *registry;
static uint64_t epoch;

static void open_registry(uint32_t world) {
    struct registry_options options = {.groups = 1, .world = world, .timer_scale = 1};
    struct error err = {0};
    ck_assert_int_eq(registry_create(&options, &registry, &err), STATUS_OK);
    epoch = 0;
}

static struct member *member_at(uint32_t rank) {
    return &registry_group(registry, 0)->members[rank];
}

// Its name is kept, as the hello's pointers are.
static struct message_hello hello_of(uint32_t rank, const char *model_digest) {
    static char names[8][16];
    snprintf(names[rank], sizeof names[rank], "w%u", rank);
    return (struct message_hello){.worker_id = names[rank],
                                  .build = VERSION_BUILD,
                                  .rank = rank,
                                  .world = registry_world(registry),
                                  .pid = 100 + rank,
                                  .device = "cpu",
                                  .model_digest = model_digest,
                                  .config_digest = "c"};
}

static void join_with(uint32_t rank, const char *model_digest) {
    struct message_hello hello = hello_of(rank, model_digest);
    registry_take(registry, registry_place(registry, &hello), hello.worker_id, "", &hello);
}

static void join(uint32_t rank) {
    join_with(rank, "m");
}

static void begin(void) {
    registry_begin(registry, 0, ++epoch, "0123456789abcdef0123456789abcdef");
}

// Its rank says what it can do: a group of one is ready.
static void make_ready(void) {
    struct message_capacity capacity = {
        .envelope = {512, 64, 8192, 512, 512, 256, 300, 0, 8000, 500000},
        .kv_blocks = 100,
        .kv_bytes_per_token = 1024,
        .block_tokens = 32,
        .kv_dtype = "f16",
        .vocabulary = 512,
        .threads = 1,
    };
    bool complete = false, kv_kept = false;
    struct error err = {0};
    enum status status =
        registry_report(registry, member_at(0), &capacity, &complete, &kv_kept, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    ck_assert(complete);
}

// How long the next epoch has to wait after one that ended now.
static uint64_t wait_after(uint64_t now_us) {
    uint64_t wait_us = 0;
    while (!registry_may_begin(registry, 0, now_us + wait_us)) {
        wait_us += REGISTRY_RETRY_US / 2;
    }
    ck_assert(wait_us == 0 || !registry_may_begin(registry, 0, now_us + wait_us - 1));
    return wait_us;
}

// An epoch that ends before it is ready.
static uint64_t futile_epoch(uint64_t now_us) {
    begin();
    registry_end(registry, 0, false, now_us);
    return wait_after(now_us);
}

// One that is ready, and is given up with its first step unanswered.
static uint64_t fruitless_epoch(uint64_t now_us) {
    begin();
    make_ready();
    registry_sent(registry, 0, 1, 1, now_us);
    registry_end(registry, 0, true, now_us);
    return wait_after(now_us);
}

START_TEST(a_report_that_is_said_again_is_known) {
    open_registry(1);
    join(0);
    begin();
    ck_assert(registry_is_new_report(member_at(0), 1));
    ck_assert(!registry_is_new_report(member_at(0), 1));
    ck_assert(registry_is_new_report(member_at(0), 2));    // of a resize
    ck_assert(!registry_is_new_report(member_at(0), 1));
    registry_end(registry, 0, false, START_US);
    begin();
    ck_assert(registry_is_new_report(member_at(0), 1));
    registry_destroy(registry);
}
END_TEST

// ---- epochs ------------------------------------------------------------------------------------

START_TEST(an_epoch_begins_when_every_rank_is_there) {
    open_registry(3);
    join(0);
    join(2);
    ck_assert(!registry_may_begin(registry, 0, START_US));
    join(1);
    ck_assert(registry_may_begin(registry, 0, START_US));
    begin();
    ck_assert(!registry_may_begin(registry, 0, START_US));    // one is under way
    member_at(1)->state = MEMBER_STATE_AWAY;
    registry_end(registry, 0, false, START_US);
    ck_assert(!registry_may_begin(registry, 0, START_US));
    join(1);
    ck_assert(registry_may_begin(registry, 0, START_US));
    registry_destroy(registry);
}
END_TEST

START_TEST(a_few_futile_epochs_follow_each_other_at_once) {
    open_registry(1);
    join(0);
    for (uint32_t i = 0; i < REGISTRY_FUTILE_EPOCHS; i++) {
        ck_assert_uint_eq(futile_epoch(START_US), 0);
    }
    ck_assert_uint_eq(futile_epoch(START_US), REGISTRY_RETRY_US);
    registry_destroy(registry);
}
END_TEST

START_TEST(more_wait_twice_as_long_each_time_up_to_a_bound) {
    open_registry(1);
    join(0);
    uint64_t now_us = START_US;
    for (uint32_t i = 0; i < REGISTRY_FUTILE_EPOCHS; i++) {
        futile_epoch(now_us);
    }
    for (uint64_t wait_us = REGISTRY_RETRY_US; wait_us <= REGISTRY_RETRY_MAX_US; wait_us *= 2) {
        ck_assert_uint_eq(futile_epoch(now_us), wait_us);
        now_us += wait_us;
    }
    for (int i = 0; i < 100; i++) {    // also where a shift by their number would overflow
        ck_assert_uint_eq(futile_epoch(now_us), REGISTRY_RETRY_MAX_US);
        now_us += REGISTRY_RETRY_MAX_US;
    }
    registry_destroy(registry);
}
END_TEST

START_TEST(an_epoch_that_was_ready_ends_the_row) {
    open_registry(1);
    join(0);
    for (uint32_t i = 0; i <= REGISTRY_FUTILE_EPOCHS; i++) {
        futile_epoch(START_US);
    }
    begin();
    make_ready();
    registry_end(registry, 0, false, START_US);
    ck_assert(registry_may_begin(registry, 0, START_US));
    for (uint32_t i = 0; i < REGISTRY_FUTILE_EPOCHS; i++) {
        ck_assert_uint_eq(futile_epoch(START_US), 0);
    }
    ck_assert_uint_eq(futile_epoch(START_US), REGISTRY_RETRY_US);
    registry_destroy(registry);
}
END_TEST

START_TEST(epochs_without_an_answer_wait_longer_each_time) {
    open_registry(1);
    join(0);
    uint64_t now_us = START_US;
    for (uint32_t i = 0; i < REGISTRY_FRUITLESS_EPOCHS; i++) {
        ck_assert_uint_eq(fruitless_epoch(now_us), 0);
    }
    for (uint64_t wait_us = REGISTRY_RETRY_US; wait_us <= REGISTRY_RETRY_MAX_US; wait_us *= 2) {
        ck_assert_uint_eq(fruitless_epoch(now_us), wait_us);
        now_us += wait_us;
    }
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_eq(fruitless_epoch(now_us), REGISTRY_RETRY_MAX_US);
        now_us += REGISTRY_RETRY_MAX_US;
    }
    // A step that is answered ends the row.
    begin();
    make_ready();
    registry_sent(registry, 0, 1, 1, now_us);
    registry_answered(member_at(0), 1);
    registry_believed(registry, 0, 1);
    registry_end(registry, 0, true, now_us);
    ck_assert_uint_eq(wait_after(now_us), 0);
    ck_assert_uint_eq(fruitless_epoch(now_us), 0);
    ck_assert_uint_eq(fruitless_epoch(now_us), REGISTRY_RETRY_US);
    registry_destroy(registry);
}
END_TEST

START_TEST(a_lost_rank_makes_nobody_wait) {
    open_registry(1);
    join(0);
    for (uint32_t i = 0; i < 10; i++) {
        fruitless_epoch(START_US);
    }
    begin();
    make_ready();
    registry_end(registry, 0, false, START_US);
    ck_assert_uint_eq(wait_after(START_US), 0);
    // The one that was at fault goes, and another process comes.
    ck_assert_uint_gt(fruitless_epoch(START_US), 0);
    member_at(0)->state = MEMBER_STATE_AWAY;
    join(0);
    ck_assert_uint_eq(wait_after(START_US), 0);
    ck_assert_uint_eq(fruitless_epoch(START_US), 0);
    registry_destroy(registry);
}
END_TEST

START_TEST(a_step_is_answered_when_all_ranks_have) {
    open_registry(2);
    join(0);
    join(1);
    begin();
    registry_sent(registry, 0, 2, 1, START_US);
    registry_answered(member_at(0), 1);
    registry_believed(registry, 0, 1);
    ck_assert(!registry_group(registry, 0)->answered);
    registry_answered(member_at(1), 1);
    registry_believed(registry, 0, 1);
    ck_assert(registry_group(registry, 0)->answered);
    registry_end(registry, 0, true, START_US);
    begin();
    ck_assert(!registry_group(registry, 0)->answered);
    registry_destroy(registry);
}
END_TEST

// ---- models ------------------------------------------------------------------------------------

START_TEST(a_worker_without_its_model_is_let_in_and_never_welcomed) {
    open_registry(2);
    join(0);
    struct error err = {0};
    struct message_hello hello = hello_of(1, "");
    ck_assert_int_eq(registry_judge(registry, &hello, &err), STATUS_OK);
    hello = hello_of(1, "other");
    ck_assert_int_eq(registry_judge(registry, &hello, &err), STATUS_VERSION);
    join_with(1, "");
    ck_assert(!registry_complete(registry, 0));
    ck_assert(!registry_may_begin(registry, 0, START_US));
    // It says nothing about the model of others.
    member_at(0)->state = MEMBER_STATE_AWAY;
    hello = hello_of(0, "m");
    ck_assert_int_eq(registry_judge(registry, &hello, NULL), STATUS_OK);
    registry_destroy(registry);
}
END_TEST

// ---- plans -------------------------------------------------------------------------------------

START_TEST(a_plan_is_outstanding_until_all_who_got_it_have_answered) {
    open_registry(3);
    for (uint32_t r = 0; r < 3; r++) {
        join(r);
    }
    begin();
    ck_assert(!registry_outstanding(registry, 0));
    registry_sent(registry, 0, 2, 1, START_US);    // the third could not be reached
    ck_assert(registry_outstanding(registry, 0));
    registry_answered(member_at(1), 1);
    ck_assert(registry_outstanding(registry, 0));
    registry_answered(member_at(0), 1);
    ck_assert(!registry_outstanding(registry, 0));
    registry_sent(registry, 0, 3, 3, START_US);
    registry_answered(member_at(2), 3);
    registry_answered(member_at(2), 2);    // an older answer takes nothing back
    ck_assert_uint_eq(member_at(2)->answered_seq, 3);
    registry_end(registry, 0, false, START_US);
    begin();
    ck_assert(!registry_outstanding(registry, 0));    // of an epoch that is over
    registry_destroy(registry);
}
END_TEST

START_TEST(silence_counts_anew_with_the_first_plan_of_an_idle_rank) {
    open_registry(2);
    join(0);
    join(1);
    begin();
    registry_sent(registry, 0, 1, 1, START_US);
    registry_pass(registry, 1000);
    registry_sent(registry, 0, 2, 2, START_US + 1000);
    ck_assert_uint_eq(member_at(0)->silent_us, 1000);    // it owes an answer all the time
    ck_assert_uint_eq(member_at(1)->silent_us, 0);
    registry_destroy(registry);
}
END_TEST

Suite *suite_registry(void) {
    Suite *suite = suite_create("controller/net/registry");
    TCase *tc = tcase_create("all");
    const TTest *const tests[] = {
        an_epoch_begins_when_every_rank_is_there,
        a_few_futile_epochs_follow_each_other_at_once,
        more_wait_twice_as_long_each_time_up_to_a_bound,
        an_epoch_that_was_ready_ends_the_row,
        epochs_without_an_answer_wait_longer_each_time,
        a_lost_rank_makes_nobody_wait,
        a_step_is_answered_when_all_ranks_have,
        a_worker_without_its_model_is_let_in_and_never_welcomed,
        a_plan_is_outstanding_until_all_who_got_it_have_answered,
        silence_counts_anew_with_the_first_plan_of_an_idle_rank,
        a_report_that_is_said_again_is_known,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(tc, tests[i]);
    }
    suite_add_tcase(suite, tc);
    return suite;
}
