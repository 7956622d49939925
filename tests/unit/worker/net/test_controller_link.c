// SPDX-License-Identifier: Apache-2.0
// Goal: the controller learns why a start failed even when it was not there yet; a flood of
// messages and broken ones between good ones end nothing; a channel without room delays and loses
// nothing; a worker outlives a controller that falls silent, launching nothing meanwhile, and
// leaves when there never was one; it takes no epoch that is not larger and no welcome that is not
// for it; an abort ends what waits for other ranks; a step thread that takes no welcome ends the
// link; turns are counted for the parent while a started worker is linked.
// Method: the link on a thread of its own, over real sockets, against the controller's side.
#include "common/clock.h"
#include "common/log.h"
#include "controller/net/worker_link.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/fake_controller.h"
#include "worker/net/controller_link.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMM_ID "0123456789abcdef0123456789abcdef"

enum { FRAME_BYTES = 64 * 1024, FLOOD = 1000 };

struct fixture {
    struct fake_controller controller;
    _Atomic int stop;
    struct link_progress progress;
    struct holder_watch watch;
    struct launch_gate gate;
    struct frame_queue *to_step, *from_step;
    struct controller_link_options options;
    pthread_t thread;
    _Atomic bool ended;
    enum status status;
};

static struct fixture *f;
static struct fake_controller *c;

static void set_up(void) {
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);    // a flood is also one of log lines
    f = calloc(1, sizeof *f);
    c = &f->controller;
    fake_controller_init(c);
    ck_assert_int_eq(frame_queue_create(8, FRAME_BYTES, &f->to_step, NULL), STATUS_OK);
    ck_assert_int_eq(frame_queue_create(8, FRAME_BYTES, &f->from_step, NULL), STATUS_OK);
    launch_gate_init(&f->gate);
    f->options = (struct controller_link_options){
        .address = c->address,
        .worker_id = "worker-7",
        .model_name = "m",
        .device = "cpu",
        .model_digest = "",
        .config_digest = "",
        .world = 1,
        .gate = &f->gate,
        .to_step = f->to_step,
        .from_step = f->from_step,
        .progress = &f->progress,
        .stop = &f->stop,
    };
}

static void tear_down(void) {
    fake_controller_deinit(c);
    frame_queue_destroy(f->to_step);
    frame_queue_destroy(f->from_step);
    launch_gate_deinit(&f->gate);
    free(f);
}

static void *run_link(void *arg) {
    (void)arg;
    struct error err = {0};
    f->status = controller_link_run(&f->options, &err);
    f->ended = true;
    return NULL;
}

static void start_link(void) {
    ck_assert_int_eq(pthread_create(&f->thread, NULL, run_link, NULL), 0);
}

// ---- a failed start ----------------------------------------------------------------------------

struct heard {
    uint32_t exit_code;
    char reason[128];
};

static void on_progress(void *ctx, uint32_t group, uint32_t rank,
                        const struct message_progress *progress) {
    (void)ctx;
    (void)group;
    (void)rank;
    (void)progress;
}

static void on_ready(void *ctx, const struct worker_link_ready *ready) {
    (void)ctx;
    (void)ready;
}

static void on_lost(void *ctx, uint32_t group, const char *reason, uint32_t exit_code) {
    (void)group;
    struct heard *heard = ctx;
    heard->exit_code = exit_code;
    snprintf(heard->reason, sizeof heard->reason, "%s", reason);
}

static void on_result(void *ctx, uint32_t group, uint32_t rank, const struct step_result *result) {
    (void)ctx;
    (void)group;
    (void)rank;
    (void)result;
}

static void fail_start(void) {
    struct control_message goodbye = {.kind = MESSAGE_KIND_GOODBYE,
                                      .text = {.code = 66, .text = "model 'x': no such file"}};
    ck_assert_int_eq(codec_control_encode(&goodbye, &c->arena, &c->out, NULL), STATUS_OK);
    ck_assert_int_eq(
        frame_queue_put(f->from_step, LINK_FRAME_FAILED, c->out.data, c->out.bytes_used),
        STATUS_OK);
    frame_queue_close(f->from_step);
}

static void expect_reason(void) {
    struct heard heard = {0};
    struct worker_link_options options = {
        .run_dir = c->run_dir,
        .sink = {&heard, on_progress, on_ready, on_lost, on_result},
        .groups = 1,
        .world = 1,
        .timer_scale = 1.0,
    };
    struct worker_link *link = NULL;
    ck_assert_int_eq(worker_link_open(&options, &link, NULL), STATUS_OK);
    for (int i = 0; i < FAKE_TURNS_MAX && heard.exit_code == 0; i++) {
        worker_link_poll(link, clock_monotonic_us());
        fake_nap();
    }
    ck_assert_uint_eq(heard.exit_code, 66);
    ck_assert_str_eq(heard.reason, "model 'x': no such file");
    worker_link_close(link);
}

// The failure waits in the queue before the link runs: the first pass meets it, unconnected.
START_TEST(a_start_that_failed_before_the_link_stood_is_told) {
    fail_start();
    start_link();
    expect_reason();
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->status, STATUS_SHUTDOWN);
}
END_TEST

START_TEST(without_a_controller_a_failed_start_ends_all_the_same) {
    fail_start();
    start_link();
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->status, STATUS_SHUTDOWN);
}
END_TEST

// ---- a flood -----------------------------------------------------------------------------------

// Listens, starts the link and waits for its first word: its name has a queue from then on.
static void meet_link(void) {
    fake_controller_listen(c);
    start_link();
    fake_controller_receive(c, c->control);
    ck_assert(transport_peer_is(c->peer, "worker-7"));
}

// Takes what the step thread would take, and counts it.
static uint32_t take_frames(enum link_frame kind) {
    static uint8_t frame[FRAME_BYTES];
    uint32_t taken = 0;
    uint32_t found = 0;
    size_t byte_count = 0;
    while (frame_queue_take(f->to_step, &found, frame, &byte_count) == STATUS_OK) {
        ck_assert_uint_eq(found, kind);
        taken++;
    }
    return taken;
}

static void say(const struct control_message *message) {
    fake_controller_say(c, c->peer, message);
}

START_TEST(a_flood_with_broken_messages_in_it_is_read_to_its_end) {
    meet_link();
    for (int i = 0; i < FLOOD; i++) {
        struct control_message heartbeat = {.kind = MESSAGE_KIND_HEARTBEAT};
        say(&heartbeat);
        fake_controller_send(c->control, c->peer, "broken", (size_t)i % 6);
    }
    struct control_message welcome = {
        .kind = MESSAGE_KIND_WELCOME,
        .welcome = {.epoch = 5, .world = 1, .lease_ms = 1000, .comm_id = COMM_ID}};
    say(&welcome);
    uint32_t welcomes = 0;
    for (int i = 0; i < FAKE_TURNS_MAX && welcomes == 0; i++) {
        welcomes = take_frames(LINK_FRAME_WELCOME);
        fake_nap();
    }
    ck_assert_uint_eq(welcomes, 1);
    ck_assert(!f->ended);
    struct control_message leave = {.kind = MESSAGE_KIND_SHUTDOWN,
                                    .text = {.code = 0, .text = "drained"}};
    say(&leave);
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->status, STATUS_SHUTDOWN);
}
END_TEST

// ---- silence -----------------------------------------------------------------------------------

static void await_kind(enum message_kind kind) {
    struct message_header header;
    fake_controller_await(c, c->control, kind, &header);
}

static void end_link(void) {
    f->stop = 1;
    frame_queue_close(f->from_step);    // wakes the link
    pthread_join(f->thread, NULL);
}

static void welcome_into(uint64_t epoch, uint32_t lease_ms) {
    struct control_message welcome = {.kind = MESSAGE_KIND_WELCOME,
                                      .welcome = {.epoch = epoch,
                                                  .group = f->options.group,
                                                  .rank = f->options.rank,
                                                  .world = f->options.world,
                                                  .lease_ms = lease_ms,
                                                  .comm_id = COMM_ID}};
    say(&welcome);
}

static bool gate_is_shut(void) {
    pthread_mutex_lock(&f->gate.lock);
    bool shut = f->gate.shut;
    pthread_mutex_unlock(&f->gate.lock);
    return shut;
}

static void *pass_gate(void *arg) {
    *(bool *)arg = launch_gate_pass(&f->gate, 5);
    return NULL;
}

START_TEST(a_controller_that_fell_silent_is_greeted_again_and_waited_for) {
    meet_link();
    welcome_into(5, 200);
    await_kind(MESSAGE_KIND_HEARTBEAT);    // it took the welcome, and hears nothing more
    await_kind(MESSAGE_KIND_HELLO);
    ck_assert(gate_is_shut());
    bool passed = false;
    pthread_t step;
    ck_assert_int_eq(pthread_create(&step, NULL, pass_gate, &passed), 0);
    struct control_message heartbeat = {.kind = MESSAGE_KIND_HEARTBEAT};
    say(&heartbeat);
    pthread_join(step, NULL);    // a word is enough to go on
    ck_assert(passed);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    ck_assert(!f->ended);
    end_link();
    ck_assert_int_eq(f->status, STATUS_SHUTDOWN);
}
END_TEST

// Another process at the same address knows nothing of us: the hello tells it our last epoch.
START_TEST(a_controller_that_is_another_process_is_joined) {
    meet_link();
    welcome_into(5, 100);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    fake_controller_hang_up(c);
    fake_controller_listen(c);
    struct message_header header;
    fake_controller_await(c, c->control, MESSAGE_KIND_HELLO, &header);
    ck_assert_uint_eq(header.epoch, 5);
    welcome_into(6, 10000);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    ck_assert_uint_eq(take_frames(LINK_FRAME_WELCOME), 2);
    ck_assert(launch_gate_pass(&f->gate, 6));
    ck_assert(!launch_gate_pass(&f->gate, 5));
    end_link();
}
END_TEST

// Times a thousandth: KV is given back once, then the worker leaves.
START_TEST(an_orphan_gives_kv_back_and_leaves_in_the_end) {
    f->options.timer_scale = 0.001;
    f->options.silence_us = 20 * 1000 * 1000;
    meet_link();
    welcome_into(5, 10);
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->status, STATUS_PEER_LOST);
    static uint8_t frame[FRAME_BYTES];
    uint32_t kind = 0, released = 0;
    size_t byte_count = 0;
    while (frame_queue_take(f->to_step, &kind, frame, &byte_count) == STATUS_OK) {
        released += kind == LINK_FRAME_RELEASE_KV ? 1 : 0;
    }
    ck_assert_uint_eq(released, 1);
    ck_assert(!launch_gate_pass(&f->gate, 5));    // plans of that epoch counted on it
}
END_TEST

// ---- epochs ------------------------------------------------------------------------------------

START_TEST(a_report_that_did_not_arrive_is_sent_again) {
    meet_link();
    welcome_into(5, 10000);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    ck_assert_int_eq(frame_queue_put(f->from_step, LINK_FRAME_CAPACITY, "report", 6), STATUS_OK);
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    uint32_t reports = 0;
    buf_init(&in, FRAME_BYTES);
    for (int i = 0; i < FAKE_TURNS_MAX && reports < 2; i++) {
        reports += transport_receive(c->plan, &in, peer) == STATUS_OK ? 1 : 0;
        if (reports == 1) {
            struct control_message heartbeat = {.kind = MESSAGE_KIND_HEARTBEAT,
                                                .address = {.epoch = 5},
                                                .heartbeat = {.report_awaited = true}};
            say(&heartbeat);
        }
        poll(NULL, 0, 5);
    }
    ck_assert_uint_eq(reports, 2);
    ck_assert_uint_eq(in.bytes_used, 6);
    buf_deinit(&in);
    end_link();
}
END_TEST

START_TEST(only_a_larger_epoch_of_our_own_place_is_taken) {
    f->options.group = 3;
    f->options.rank = 1;
    f->options.world = 2;
    f->options.epoch = 7;    // of a process before us
    meet_link();
    struct message_welcome ours = {.group = 3, .rank = 1, .world = 2, .comm_id = COMM_ID};
    const struct message_welcome wrong[] = {
        {.epoch = 7, .group = 3, .rank = 1, .world = 2, .comm_id = COMM_ID},
        {.epoch = 6, .group = 3, .rank = 1, .world = 2, .comm_id = COMM_ID},
        {.epoch = 8, .group = 2, .rank = 1, .world = 2, .comm_id = COMM_ID},
        {.epoch = 8, .group = 3, .rank = 0, .world = 2, .comm_id = COMM_ID},
        {.epoch = 8, .group = 3, .rank = 1, .world = 4, .comm_id = COMM_ID},
        {.epoch = 8, .group = 3, .rank = 1, .world = 2, .comm_id = ""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct control_message message = {.kind = MESSAGE_KIND_WELCOME, .welcome = wrong[i]};
        say(&message);
    }
    ours.epoch = 9;
    struct control_message message = {.kind = MESSAGE_KIND_WELCOME, .welcome = ours};
    say(&message);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    static uint8_t frame[FRAME_BYTES];
    uint32_t kind = 0;
    size_t byte_count = 0;
    ck_assert_int_eq(frame_queue_take(f->to_step, &kind, frame, &byte_count), STATUS_OK);
    struct link_welcome welcome;
    ck_assert_uint_eq(byte_count, sizeof welcome);
    memcpy(&welcome, frame, sizeof welcome);
    ck_assert_uint_eq(welcome.epoch, 9);
    ck_assert_str_eq(welcome.comm_id, COMM_ID);
    ck_assert_int_eq(frame_queue_take(f->to_step, &kind, frame, &byte_count), STATUS_BUSY);
    end_link();
}
END_TEST

struct attaching {
    struct collective *collective;
    uint64_t epoch;
    enum status status;
};

static void *attach(void *arg) {
    struct attaching *attaching = arg;
    struct collective_epoch epoch = {.epoch = attaching->epoch,
                                     .comm_id = COMM_ID,
                                     .buffer_bytes = 65536,
                                     .patience_us = 25 * 1000 * 1000};
    attaching->status = collective_attach(attaching->collective, &epoch, NULL);
    return NULL;
}

// The step thread waits for rank 0, which never comes.
START_TEST(an_abort_ends_what_waits_for_other_ranks) {
    struct collective_options options = {.name = "shm", .rank = 1, .world = 2};
    ck_assert_int_eq(collective_create(&options, &f->options.collective, NULL), STATUS_OK);
    f->options.rank = 1;
    f->options.world = 2;
    meet_link();
    welcome_into(5, 10000);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    struct attaching attaching = {.collective = f->options.collective, .epoch = 5};
    pthread_t step;
    ck_assert_int_eq(pthread_create(&step, NULL, attach, &attaching), 0);
    // One of an epoch that we are not in says nothing.
    struct control_message abort = {.kind = MESSAGE_KIND_ABORT,
                                    .abort = {.epoch = 8, .reason = "too early"}};
    say(&abort);
    abort.abort = (struct message_abort){.epoch = 5, .reason = "rank 0 was lost"};
    say(&abort);
    pthread_join(step, NULL);
    ck_assert_int_eq(attaching.status, STATUS_CANCELLED);
    ck_assert(!launch_gate_pass(&f->gate, 5));
    ck_assert(launch_gate_pass(&f->gate, 6));
    // So does a welcome into the next epoch, where the abort was lost.
    welcome_into(6, 10000);
    attaching.epoch = 6;
    ck_assert_int_eq(pthread_create(&step, NULL, attach, &attaching), 0);
    welcome_into(7, 10000);
    pthread_join(step, NULL);
    ck_assert_int_eq(attaching.status, STATUS_CANCELLED);
    end_link();
    collective_destroy(f->options.collective);
}
END_TEST

START_TEST(a_worker_that_was_never_welcomed_leaves) {
    f->options.silence_us = 20 * 1000;
    run_link(NULL);
    ck_assert_int_eq(f->status, STATUS_PEER_LOST);
}
END_TEST

// ---- a channel without room --------------------------------------------------------------------

static _Atomic uint32_t refusals;    // of the queue, in a row

static void put_surely(enum link_frame kind, const void *bytes, size_t byte_count) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < FAKE_TURNS_MAX && status == STATUS_BUSY; i++) {
        status = frame_queue_put(f->from_step, kind, bytes, byte_count);
        refusals = status == STATUS_BUSY ? refusals + 1 : 0;
        if (status == STATUS_BUSY) {
            fake_nap();
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

// The controller takes whoever sent a capacity report for somebody who can be sent plans.
START_TEST(a_capacity_report_waits_for_the_plan_channel) {
    fake_controller_listen_control(c);
    start_link();
    fake_controller_receive(c, c->control);
    for (int i = 0; i < FLOOD; i++) {    // nobody reads these: the control channel is full
        put_surely(LINK_FRAME_PROGRESS, "progress", 8);
    }
    put_surely(LINK_FRAME_CAPACITY, "capacity", 8);
    put_surely(LINK_FRAME_RESULT, "result", 6);
    fake_controller_listen(c);
    fake_controller_receive(c, c->plan);
    ck_assert_str_eq(buf_cstr(&c->in), "capacity");
    fake_controller_receive(c, c->plan);
    ck_assert_str_eq(buf_cstr(&c->in), "result");
    ck_assert_int_eq(transport_send(c->plan, c->peer, "plan", 4), STATUS_OK);
    end_link();
}
END_TEST

// More than sockets and queues hold; refused so often in a row, nobody takes any more.
enum { SLOW_RESULTS = 600, SLOW_BYTES = 16 * 1024, STANDSTILL = 20 };

static void *put_results(void *arg) {
    (void)arg;
    static uint8_t frame[SLOW_BYTES];
    for (uint32_t i = 0; i < SLOW_RESULTS; i++) {
        memcpy(frame, &i, sizeof i);
        put_surely(LINK_FRAME_RESULT, frame, sizeof frame);
    }
    return NULL;
}

START_TEST(a_slow_controller_gets_every_result_in_order) {
    meet_link();
    pthread_t step;
    ck_assert_int_eq(pthread_create(&step, NULL, put_results, NULL), 0);
    // The step thread stands still, and with it the link's queue, before anything is read.
    for (int i = 0; i < FAKE_TURNS_MAX && refusals < STANDSTILL; i++) {
        fake_nap();
    }
    ck_assert_uint_ge(refusals, STANDSTILL);
    for (uint32_t i = 0; i < SLOW_RESULTS; i++) {
        fake_controller_receive(c, c->plan);
        ck_assert_uint_eq(c->in.bytes_used, SLOW_BYTES);
        ck_assert_int_eq(memcmp(c->in.data, &i, sizeof i), 0);
    }
    pthread_join(step, NULL);
    end_link();
}
END_TEST

// ---- what hangs --------------------------------------------------------------------------------

// The welcome is never taken: times a fiftieth.
START_TEST(a_step_thread_that_takes_no_welcome_ends_the_link) {
    f->options.timer_scale = 0.02;
    f->options.silence_us = 20 * 1000 * 1000;
    f->progress.started = true;
    meet_link();
    welcome_into(5, 60000);
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->status, STATUS_TIMEOUT);
    await_kind(MESSAGE_KIND_GOODBYE);
}
END_TEST

START_TEST(turns_are_counted_once_the_start_is_over) {
    f->options.watch = &f->watch;
    meet_link();
    welcome_into(5, 60000);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    ck_assert_uint_eq(f->watch.turns, 0);
    ck_assert_uint_eq(f->watch.patience_us, 0);
    f->progress.epoch = 5;
    f->progress.started = true;
    await_kind(MESSAGE_KIND_HEARTBEAT);
    await_kind(MESSAGE_KIND_HEARTBEAT);
    ck_assert_uint_gt(f->watch.turns, 0);
    ck_assert_uint_eq(f->watch.patience_us, HOLDER_PATIENCE_IDLE_US);
    const uint8_t plan_bytes[64] = {0};
    fake_controller_send(c->plan, c->peer, plan_bytes, sizeof plan_bytes);
    for (int i = 0; i < FAKE_TURNS_MAX && f->watch.patience_us != HOLDER_PATIENCE_US; i++) {
        fake_nap();
    }
    ck_assert_uint_eq(f->watch.patience_us, HOLDER_PATIENCE_US);
    end_link();
    ck_assert_uint_eq(f->watch.patience_us, 0);    // leaving takes as long as it takes
}
END_TEST

Suite *suite_controller_link(void) {
    Suite *suite = suite_create("worker/net/controller_link");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, a_start_that_failed_before_the_link_stood_is_told);
    tcase_add_test(tc, without_a_controller_a_failed_start_ends_all_the_same);
    tcase_add_test(tc, a_flood_with_broken_messages_in_it_is_read_to_its_end);
    tcase_add_test(tc, a_controller_that_fell_silent_is_greeted_again_and_waited_for);
    tcase_add_test(tc, a_controller_that_is_another_process_is_joined);
    tcase_add_test(tc, an_orphan_gives_kv_back_and_leaves_in_the_end);
    tcase_add_test(tc, a_report_that_did_not_arrive_is_sent_again);
    tcase_add_test(tc, only_a_larger_epoch_of_our_own_place_is_taken);
    tcase_add_test(tc, an_abort_ends_what_waits_for_other_ranks);
    tcase_add_test(tc, a_worker_that_was_never_welcomed_leaves);
    tcase_add_test(tc, a_capacity_report_waits_for_the_plan_channel);
    tcase_add_test(tc, a_slow_controller_gets_every_result_in_order);
    tcase_add_test(tc, a_step_thread_that_takes_no_welcome_ends_the_link);
    tcase_add_test(tc, turns_are_counted_once_the_start_is_over);
    suite_add_tcase(suite, tc);
    return suite;
}
