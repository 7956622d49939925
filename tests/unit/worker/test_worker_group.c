// SPDX-License-Identifier: Apache-2.0
// Goal: workers that are ranks of one group meet with a welcome, answer plans alike and with rank
// 0's rows only; a rank whose peer never runs the plan is freed by an abort, answers with FAULT and
// goes on in the next epoch; one whose group does not form stays, but for a start whose group
// finds no memory. Method: two workers with a tiny
// model on threads of this process, over real sockets and shared memory, against a controller that
// is the test.
#include "common/exit_code.h"
#include "common/log.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/comm/group.h"
#include "tests/unit/worker/fake_controller.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MESSAGE_BYTES = FAKE_MESSAGE_BYTES, LEASE_MS = 60000, RANKS = 2 };

struct fixture {
    struct fake_controller controller;
    struct fake_worker workers[RANKS];
    char peers[RANKS][TRANSPORT_PEER_BYTES];    // what they are called on their channels
};

static struct fixture *f;
static struct fake_controller *c;

static void set_up(void) {
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    f = calloc(1, sizeof *f);
    c = &f->controller;
    fake_controller_init(c);
    fake_controller_listen(c);
    for (uint32_t i = 0; i < RANKS; i++) {
        fake_worker_init(&f->workers[i], c, (struct model_shard){i, RANKS});
        fake_worker_start(&f->workers[i]);
    }
}

static void tear_down(void) {
    for (uint32_t i = 0; i < RANKS; i++) {
        f->workers[i].stop = 1;    // all at once: none waits for another
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        fake_worker_deinit(&f->workers[i]);
    }
    fake_controller_deinit(c);
    free(f);
}

// ---- messages ----------------------------------------------------------------------------------

// The next message of this kind from whomever. Says whose it is.
static uint32_t await_kind(struct transport *channel, enum message_kind kind,
                           struct message_header *header, const uint8_t **body) {
    *body = fake_controller_await(c, channel, kind, header);
    uint32_t rank = transport_peer_is(c->peer, "g0r0") ? 0 : 1;
    memcpy(f->peers[rank], c->peer, sizeof c->peer);
    return rank;
}

// Of both ranks, in any order.
static void await_both(struct transport *channel, enum message_kind kind, uint64_t epoch) {
    uint32_t seen = 0;
    while (seen != (1u << RANKS) - 1) {
        struct message_header header;
        const uint8_t *body = NULL;
        uint32_t rank = await_kind(channel, kind, &header, &body);
        seen |= header.epoch == epoch ? 1u << rank : 0;
    }
}

static void send_plan(uint32_t rank, const struct buf *plan) {
    fake_controller_send(c->plan, f->peers[rank], plan->data, plan->bytes_used);
}

static void welcome(uint32_t rank, uint64_t epoch, const char *comm_id) {
    struct control_message message = {.kind = MESSAGE_KIND_WELCOME,
                                      .welcome = {.epoch = epoch,
                                                  .rank = rank,
                                                  .world = RANKS,
                                                  .lease_ms = LEASE_MS,
                                                  .comm_id = comm_id}};
    fake_controller_say(c, f->peers[rank], &message);
}

static void abort_epoch(uint32_t rank, uint64_t epoch) {
    fake_controller_abort(c, f->peers[rank], epoch);
}

// Both are welcomed into the epoch, and say what they can do once they have met.
static void form(uint64_t epoch) {
    char comm_id[COLLECTIVE_ID_BYTES];
    group_id(comm_id);
    for (uint32_t i = 0; i < RANKS; i++) {
        welcome(i, epoch, comm_id);
    }
    await_both(c->plan, MESSAGE_KIND_CAPACITY, epoch);
    ck_assert(!group_file_exists(comm_id));
}

// ---- plans -------------------------------------------------------------------------------------

static const int32_t PROMPT[3] = {7, 8, 9};

static void encode_prompt(struct buf *out, uint64_t epoch, uint64_t seq) {
    buf_reset(out);
    fake_controller_encode_prompt(c, out, epoch, seq, 0, PROMPT);
}

// Both ranks' answers; rank 0's token.
static int32_t ask_both(const struct buf *plan) {
    for (uint32_t i = 0; i < RANKS; i++) {
        send_plan(i, plan);
    }
    uint64_t digest[RANKS] = {0};
    int32_t token = -1;
    for (uint32_t seen = 0; seen < RANKS; seen++) {
        struct message_header header;
        struct step_result result;
        const uint8_t *body = NULL;
        uint32_t rank = await_kind(c->plan, MESSAGE_KIND_RESULT, &header, &body);
        arena_reset(&c->arena);
        ck_assert_int_eq(codec_result_decode(&header, body, &c->arena, &result, NULL), STATUS_OK);
        ck_assert_int_eq(result.status, RESULT_STATUS_OK);
        ck_assert_uint_eq(result.row_count, rank == 0 ? 1 : 0);
        digest[rank] = result.digest;
        token = rank == 0 ? result.rows[0].token : token;
    }
    ck_assert_uint_ne(digest[0], 0);
    ck_assert_uint_eq(digest[0], digest[1]);
    return token;
}

START_TEST(ranks_answer_alike_and_one_of_them_with_rows) {
    struct buf plan;
    buf_init(&plan, MESSAGE_BYTES);
    await_both(c->control, MESSAGE_KIND_HELLO, 0);
    form(3);
    encode_prompt(&plan, 3, 1);
    int32_t token = ask_both(&plan);
    form(4);
    encode_prompt(&plan, 4, 1);
    ck_assert_int_eq(ask_both(&plan), token);
    buf_deinit(&plan);
}
END_TEST

// Only one rank gets the plan: it waits for the other one's sums.
START_TEST(an_abort_frees_a_rank_inside_a_step) {
    struct buf plan;
    buf_init(&plan, MESSAGE_BYTES);
    await_both(c->control, MESSAGE_KIND_HELLO, 0);
    for (uint64_t epoch = 3; epoch < 7; epoch++) {
        uint32_t alone = epoch % RANKS;
        form(epoch);
        encode_prompt(&plan, epoch, 1);
        send_plan(alone, &plan);
        poll(NULL, 0, (int)epoch % 3);    // inside the step, or before it: both must end
        abort_epoch(alone, epoch);
        // FAULT, or no answer where the plan had not been launched: what counts is that the next
        // epoch begins.
    }
    form(9);
    encode_prompt(&plan, 9, 1);
    ask_both(&plan);
    buf_deinit(&plan);
}
END_TEST

START_TEST(a_rank_whose_group_does_not_form_stays) {
    struct buf plan;
    char comm_id[COLLECTIVE_ID_BYTES];
    buf_init(&plan, MESSAGE_BYTES);
    await_both(c->control, MESSAGE_KIND_HELLO, 0);
    group_id(comm_id);
    welcome(0, 3, comm_id);
    while (!group_file_exists(comm_id)) {
        fake_nap();
    }
    abort_epoch(0, 3);
    form(4);
    encode_prompt(&plan, 4, 1);
    ask_both(&plan);
    ck_assert(!group_file_exists(comm_id));
    buf_deinit(&plan);
}
END_TEST

// No file of ours can become as large as the group's memory: /dev/shm is full.
static void fill_up(bool full) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 4096 : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(a_start_whose_group_finds_no_memory_fails) {
    char comm_id[COLLECTIVE_ID_BYTES];
    struct message_header header;
    struct control_message message;
    await_both(c->control, MESSAGE_KIND_HELLO, 0);
    group_id(comm_id);
    fill_up(true);
    f->workers[0].wanted_code = EXIT_CODE_UNAVAILABLE;
    welcome(0, 3, comm_id);
    welcome(1, 3, comm_id);
    fake_controller_hear(c, c->control, MESSAGE_KIND_GOODBYE, &header, &message);
    fill_up(false);
    ck_assert_uint_eq(message.text.code, EXIT_CODE_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(message.text.text, "make /dev/shm larger"));
    abort_epoch(1, 3);
}
END_TEST

// What others took they may give back: a rank that was ready before stays.
START_TEST(a_group_that_was_ready_waits_for_memory) {
    struct buf plan;
    char comm_id[COLLECTIVE_ID_BYTES];
    buf_init(&plan, MESSAGE_BYTES);
    await_both(c->control, MESSAGE_KIND_HELLO, 0);
    form(3);
    group_id(comm_id);
    fill_up(true);
    welcome(0, 4, comm_id);
    struct message_header header;
    struct step_result result;
    const uint8_t *body = NULL;
    ck_assert_uint_eq(await_kind(c->plan, MESSAGE_KIND_RESULT, &header, &body), 0);
    fill_up(false);
    arena_reset(&c->arena);
    ck_assert_int_eq(codec_result_decode(&header, body, &c->arena, &result, NULL), STATUS_OK);
    ck_assert_int_eq(result.status, RESULT_STATUS_FAULT);
    ck_assert_ptr_nonnull(strstr(result.message, "make /dev/shm larger"));
    form(5);
    encode_prompt(&plan, 5, 1);
    ask_both(&plan);
    buf_deinit(&plan);
}
END_TEST

Suite *suite_worker_group(void) {
    Suite *suite = suite_create("worker/worker_group");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, ranks_answer_alike_and_one_of_them_with_rows);
    tcase_add_test(tc, an_abort_frees_a_rank_inside_a_step);
    tcase_add_test(tc, a_rank_whose_group_does_not_form_stays);
    tcase_add_test(tc, a_start_whose_group_finds_no_memory_fails);
    tcase_add_test(tc, a_group_that_was_ready_waits_for_memory);
    suite_add_tcase(suite, tc);
    return suite;
}
