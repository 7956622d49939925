// SPDX-License-Identifier: Apache-2.0
// Goal: a flood of messages does not keep the loop from its sockets, and none is lost by it.
// Method: a worker's side of the channel written by hand, and a sink that takes its time.
#include "common/clock.h"
#include "common/version.h"
#include "controller/net/worker_link.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include "tests/unit/suites.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MESSAGES = 20, TURNS_MAX = 4000, NAP_MS = 2 };

static char run_dir[64];
static struct transport *control;
static struct worker_link *link_under_test;
static uint32_t progresses;

static void on_progress(void *ctx, struct worker_id worker,
                        const struct message_progress *progress) {
    (void)ctx;
    (void)worker;
    ck_assert_uint_eq(progress->bytes_done, progresses);
    progresses++;
    poll(NULL, 0, NAP_MS);    // longer than a turn's share
}

static void on_ready(void *ctx, struct worker_id worker, uint64_t epoch,
                     const struct message_capacity *capacity) {
    (void)ctx;
    (void)worker;
    (void)epoch;
    (void)capacity;
}

static void on_lost(void *ctx, struct worker_id worker, const char *reason, uint32_t exit_code) {
    (void)ctx;
    (void)worker;
    (void)exit_code;
    ck_abort_msg("lost: %s", reason);
}

static void on_result(void *ctx, struct worker_id worker, const struct step_result *result) {
    (void)ctx;
    (void)worker;
    (void)result;
}

static void setup(void) {
    progresses = 0;
    snprintf(run_dir, sizeof run_dir, "/tmp/tare-link-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(run_dir));
    struct worker_link_options options = {
        .run_dir = run_dir, .sink = {NULL, on_progress, on_ready, on_lost, on_result}};
    ck_assert_int_eq(worker_link_open(&options, &link_under_test, NULL), STATUS_OK);
    char address[96];
    snprintf(address, sizeof address, "ipc://%s/control.sock", run_dir);
    struct transport_options client = {.address = address,
                                       .identity = "worker-0",
                                       .message_bytes_max = 64 * 1024,
                                       .queue_messages_max = 64};
    ck_assert_int_eq(transport_open(&client, &control, NULL), STATUS_OK);
}

static void teardown(void) {
    worker_link_close(link_under_test);
    transport_close(control);
    static const char *const names[] = {"plan.sock", "control.sock"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", run_dir, names[i]);
        unlink(path);
    }
    rmdir(run_dir);
}

static void say(const struct control_message *message) {
    struct arena arena;
    struct buf out;
    arena_init(&arena, 1 << 16);
    buf_init(&out, 1 << 16);
    ck_assert_int_eq(codec_control_encode(message, &arena, &out, NULL), STATUS_OK);
    enum status status = STATUS_BUSY;
    for (int i = 0; i < TURNS_MAX && status != STATUS_OK; i++) {
        status = transport_send(control, NULL, out.data, out.bytes_used);
        if (status != STATUS_OK) {
            poll(NULL, 0, NAP_MS);    // the connection may not stand yet
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
    arena_deinit(&arena);
    buf_deinit(&out);
}

START_TEST(a_poll_ends_in_the_middle_of_a_flood_and_says_so) {
    const struct control_message hello = {.kind = MESSAGE_KIND_HELLO,
                                          .hello = {.worker_id = "worker-0",
                                                    .build = VERSION_BUILD,
                                                    .device = "cpu",
                                                    .model_name = "m",
                                                    .model_digest = "",
                                                    .pid = 7,
                                                    .world = 1}};
    say(&hello);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        const struct control_message progress = {.kind = MESSAGE_KIND_PROGRESS,
                                                 .progress = {.phase = "load", .bytes_done = i}};
        say(&progress);
    }
    bool more = false;
    uint32_t polls_cut_short = 0;
    for (int i = 0; i < TURNS_MAX && (progresses < MESSAGES || more); i++) {
        uint32_t before = progresses;
        more = worker_link_poll(link_under_test, clock_monotonic_us());
        ck_assert_uint_le(progresses - before, 1);    // the first one took all of the poll's time
        polls_cut_short += more ? 1 : 0;
        if (!more) {
            poll(NULL, 0, NAP_MS);
        }
    }
    ck_assert_uint_eq(progresses, MESSAGES);
    ck_assert_uint_ge(polls_cut_short, MESSAGES - 1);
    ck_assert(!more);
}
END_TEST

Suite *suite_worker_link(void) {
    Suite *suite = suite_create("controller/net/worker_link");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, a_poll_ends_in_the_middle_of_a_flood_and_says_so);
    suite_add_tcase(suite, tc);
    return suite;
}
