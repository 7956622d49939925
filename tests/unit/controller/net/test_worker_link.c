// SPDX-License-Identifier: Apache-2.0
// Goal: ranks become a group, a lost one loses the group and is missed at once, epochs only rise,
// and who does not belong is told why. Method: workers written by hand over real sockets, invented
// time; a flood of messages against the loop's share of time.
#include "common/clock.h"
#include "common/exit_code.h"
#include "common/version.h"
#include "tests/unit/controller/net/link_world.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fake *fake_at(uint32_t index) {
    return &world->fakes[index];
}

static void make_pair(void) {
    link_world_init(1, 2);
    link_world_open();
    link_world_form(0, 100, 7);
}

START_TEST(a_group_is_ready_when_all_its_ranks_are) {
    link_world_init(2, 2);
    link_world_open();
    fake_hello(link_world_worker(2, 1, 0));
    LINK_WORLD_UNTIL(link_world_read() == 1);    // alone it is only greeted
    ck_assert_uint_eq(fake_at(2)->welcomes, 0);
    fake_hello(link_world_worker(3, 1, 1));
    LINK_WORLD_UNTIL(fake_at(2)->welcomes == 1 && fake_at(3)->welcomes == 1);
    ck_assert_uint_eq(fake_at(2)->epoch, fake_at(3)->epoch);
    ck_assert_uint_ge(fake_at(2)->epoch, 1);
    ck_assert_str_eq(fake_at(2)->comm_id, fake_at(3)->comm_id);
    fake_capacity(fake_at(3), 90, 7);
    LINK_WORLD_UNTIL(link_world_read() == 3);
    ck_assert_uint_eq(world->readies, 0);
    fake_capacity(fake_at(2), 100, 7);
    LINK_WORLD_UNTIL(world->readies == 1);
    ck_assert_uint_eq(world->ready.group, 1);
    ck_assert_uint_eq(world->ready.world, 2);
    ck_assert_uint_eq(world->ready.epoch, fake_at(2)->epoch);
    ck_assert_uint_eq(world->capacity.kv_blocks, 90);
    ck_assert(!world->ready.kv_kept);
    link_world_deinit();
}
END_TEST

START_TEST(every_rank_gets_the_same_plan_and_answers) {
    link_world_init(1, 8);
    link_world_open();
    link_world_form(0, 100, 7);
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    for (uint32_t r = 0; r < 8; r++) {
        LINK_WORLD_UNTIL(fake_at(r)->plans == 1);
        ck_assert_uint_eq(fake_at(r)->plan_bytes, fake_at(0)->plan_bytes);
        ck_assert_mem_eq(fake_at(r)->plan_head, fake_at(0)->plan_head, 40);
        fake_result(fake_at(r), 1, 0xabcdef);
    }
    LINK_WORLD_UNTIL(world->results == 8);
    ck_assert_uint_eq(world->result_ranks, 0xff);
    ck_assert_uint_eq(world->result_digest, 0xabcdef);
    ck_assert_uint_eq(world->losses, 0);
    link_world_deinit();
}
END_TEST

START_TEST(a_rank_that_dies_loses_the_group_and_the_others_hear_at_once) {
    make_pair();
    uint64_t epoch = fake_at(0)->epoch;
    char comm_id[sizeof fake_at(0)->comm_id];
    memcpy(comm_id, fake_at(0)->comm_id, sizeof comm_id);
    fake_leave(fake_at(1));
    // No time passes for the link: the end of the connection is enough, but for the probes.
    for (int i = 0; world->losses == 0; i++) {
        ck_assert_int_lt(i, 500);
        world->now_us += 1000;
        link_world_turn();
    }
    ck_assert_uint_eq(world->lost_group, 0);
    LINK_WORLD_UNTIL(fake_at(0)->aborts == 1);
    ck_assert_uint_eq(fake_at(0)->aborted_epoch, epoch);
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_PEER_LOST);
    // Another process comes in its place: both begin a new epoch under a new name.
    struct fake *again = link_world_worker(1, 0, 1);
    again->pid = 77;
    fake_hello(again);
    LINK_WORLD_UNTIL(again->welcomes == 1 && fake_at(0)->welcomes == 2);
    ck_assert_uint_gt(again->epoch, epoch);
    ck_assert_uint_eq(again->epoch, fake_at(0)->epoch);
    ck_assert_str_ne(again->comm_id, comm_id);
    link_world_deinit();
}
END_TEST

START_TEST(kv_is_kept_when_every_stamp_and_size_is_known) {
    static const struct {
        uint64_t stamps[2];
        uint32_t blocks;    // of rank 1
        bool kept;
    } cases[] = {
        {{7, 7}, 101, true}, {{7, 8}, 101, false}, {{0, 0}, 101, false}, {{7, 7}, 99, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_pair();
        worker_link_welcome_again(world->link, 0);
        LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2 && fake_at(1)->welcomes == 2);
        ck_assert_uint_eq(fake_at(0)->aborts, 1);
        fake_capacity(fake_at(0), 100, cases[i].stamps[0]);
        fake_capacity(fake_at(1), cases[i].blocks, cases[i].stamps[1]);
        LINK_WORLD_UNTIL(world->readies == 2);
        ck_assert_int_eq(world->ready.kv_kept, cases[i].kept);
        link_world_deinit();
    }
}
END_TEST

// Nothing is known of a stamp that was 0 before either.
START_TEST(memory_without_a_stamp_is_never_kept) {
    link_world_init(1, 1);
    link_world_open();
    link_world_form(0, 100, 0);
    worker_link_welcome_again(world->link, 0);
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2);
    fake_capacity(fake_at(0), 100, 0);
    LINK_WORLD_UNTIL(world->readies == 2);
    ck_assert(!world->ready.kv_kept);
    link_world_deinit();
}
END_TEST

START_TEST(a_resize_is_over_when_every_rank_has_said_so) {
    make_pair();
    uint64_t read = link_world_read();
    fake_capacity(fake_at(0), 50, 7);
    LINK_WORLD_UNTIL(link_world_read() == read + 1);
    ck_assert_uint_eq(world->readies, 1);
    fake_capacity(fake_at(1), 60, 7);
    LINK_WORLD_UNTIL(world->readies == 2);
    ck_assert_uint_eq(world->capacity.kv_blocks, 50);
    ck_assert_uint_eq(world->ready.epoch, fake_at(0)->epoch);
    ck_assert_uint_eq(fake_at(0)->welcomes, 1);
    link_world_deinit();
}
END_TEST

START_TEST(ranks_that_disagree_cannot_be_a_group) {
    link_world_init(1, 2);
    link_world_open();
    fake_hello(link_world_worker(0, 0, 0));
    fake_hello(link_world_worker(1, 0, 1));
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 1 && fake_at(1)->welcomes == 1);
    fake_capacity(fake_at(0), 100, 7);
    struct control_message other = {
        .kind = MESSAGE_KIND_CAPACITY,
        .address = {.epoch = fake_at(1)->epoch},
        .capacity = {.envelope = {512, 64, 8192, 512, 512, 512, 300, 0, 8000, 500000},
                     .block_tokens = 16,
                     .kv_blocks = 100,
                     .vocabulary = 1000,
                     .kv_dtype = "float16"},
    };
    fake_say(fake_at(1), &other);
    LINK_WORLD_UNTIL(world->losses == 1);
    ck_assert_uint_eq(world->lost_code, EXIT_CODE_USAGE);
    ck_assert_ptr_nonnull(strstr(world->lost_reason, "16 tokens to a block"));
    ck_assert_uint_eq(world->readies, 0);
    link_world_deinit();
}
END_TEST

// ---- silence -----------------------------------------------------------------------------------

START_TEST(silence_under_a_step_is_suspect_after_three_beats) {
    make_pair();
    link_world_pass(900000);    // idle: beats are rare
    ck_assert_uint_eq(world->losses, 0);
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    link_world_pass(300000);
    ck_assert_uint_eq(world->losses, 0);
    link_world_pass(100000);
    ck_assert_uint_ge(world->losses, 1);
    ck_assert_str_eq(world->lost_reason, "no word from it");
    // They were only silent: each says so, and both start anew with what they have.
    fake_beat(fake_at(0));
    fake_beat(fake_at(1));
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2 && fake_at(1)->welcomes == 2);
    link_world_deinit();
}
END_TEST

START_TEST(an_idle_worker_may_beat_slowly) {
    make_pair();
    link_world_pass(2900000);
    ck_assert_uint_eq(world->losses, 0);
    uint64_t read = link_world_read();
    fake_beat(fake_at(0));
    fake_beat(fake_at(1));
    LINK_WORLD_UNTIL(link_world_read() == read + 2);
    link_world_pass(2900000);
    ck_assert_uint_eq(world->losses, 0);
    link_world_pass(200000);
    ck_assert_uint_ge(world->losses, 1);
    link_world_deinit();
}
END_TEST

START_TEST(our_own_lateness_is_no_silence_of_theirs) {
    make_pair();
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    for (int i = 0; i < 20; i++) {
        world->now_us += 2000000;    // we were away
        worker_link_poll(world->link, world->now_us);
    }
    ck_assert_uint_eq(world->losses, 0);
    link_world_deinit();
}
END_TEST

START_TEST(timers_stretch) {
    link_world_init(1, 1);
    world->options.timer_scale = 10.0;
    link_world_open();
    link_world_form(0, 100, 7);
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    link_world_pass(2900000);
    ck_assert_uint_eq(world->losses, 0);
    link_world_pass(300000);
    ck_assert_uint_eq(world->losses, 1);
    link_world_deinit();
}
END_TEST

START_TEST(a_welcome_that_is_not_taken_is_a_loss) {
    link_world_init(1, 1);
    link_world_open();
    fake_hello(link_world_worker(0, 0, 0));
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 1);
    fake_at(0)->epoch = 0;    // it beats, and knows of no epoch
    for (int i = 0; i < 6 && world->losses == 0; i++) {
        uint64_t read = link_world_read();
        fake_beat(fake_at(0));
        LINK_WORLD_UNTIL(link_world_read() == read + 1);
        link_world_pass(1000000);
    }
    ck_assert_uint_ge(world->losses, 1);
    ck_assert_str_eq(world->lost_reason, "it did not take its welcome");
    link_world_deinit();
}
END_TEST

// ---- who does not belong -----------------------------------------------------------------------

static void refused(struct fake *fake, const char *because) {
    fake_hello(fake);
    LINK_WORLD_UNTIL(fake->refusals > 0);
    ck_assert_msg(strstr(fake->refused, because) != NULL, "%s", fake->refused);
    ck_assert_uint_ne(fake->refused_code, 0);
    ck_assert_uint_eq(fake->welcomes, 0);
    fake_leave(fake);
}

START_TEST(what_differs_is_named) {
    link_world_init(2, 2);
    link_world_open();
    fake_hello(link_world_worker(0, 0, 0));
    LINK_WORLD_UNTIL(link_world_read() == 1);
    refused(link_world_worker(1, 2, 0), "group 2, the controller drives groups 0 to 1");
    refused(link_world_worker(1, 0, 2), "rank 2 of a group of 2");
    struct fake *fake = link_world_worker(1, 0, 1);
    fake->model_digest = "other";
    refused(fake, "'other'");
    fake = link_world_worker(1, 0, 1);
    fake->config_digest = "odd";
    refused(fake, "'odd'");
    fake = link_world_worker(1, 0, 1);
    fake->epoch = UINT64_MAX;
    refused(fake, "last epoch");
    // In another group another configuration is allowed.
    fake = link_world_worker(1, 1, 1);
    fake->config_digest = "odd";
    uint64_t read = link_world_read();
    fake_hello(fake);
    LINK_WORLD_UNTIL(link_world_read() == read + 1);
    ck_assert_uint_eq(fake->refusals, 0);
    fake_hello(link_world_worker(2, 1, 0));
    LINK_WORLD_UNTIL(fake_at(2)->refusals == 1);    // not within one
    link_world_deinit();
}
END_TEST

// Its model is gone: it takes its place all the same, or nobody would hear why it leaves.
START_TEST(a_worker_without_its_model_says_why_it_leaves) {
    make_pair();
    fake_leave(fake_at(1));
    for (int i = 0; world->losses == 0; i++) {
        ck_assert_int_lt(i, 500);
        world->now_us += 1000;
        link_world_turn();
    }
    struct fake *fake = link_world_worker(1, 0, 1);
    fake->model_digest = "";
    fake_hello(fake);
    fake_say(fake, &(struct control_message){
                       .kind = MESSAGE_KIND_GOODBYE,
                       .text = {.code = EXIT_CODE_NO_INPUT, .text = "model 'm': not there"}});
    LINK_WORLD_UNTIL(world->losses == 2);
    ck_assert_str_eq(world->lost_reason, "model 'm': not there");
    ck_assert_uint_eq(world->lost_code, EXIT_CODE_NO_INPUT);
    ck_assert_uint_eq(fake->refusals, 0);
    ck_assert_uint_eq(fake->welcomes, 0);
    ck_assert_uint_eq(fake_at(0)->welcomes, 1);
    link_world_deinit();
}
END_TEST

// A rank that answers, and what it says is never believed: epochs come later and later. One whose
// step was answered is followed at once.
START_TEST(a_group_that_is_given_up_again_and_again_waits) {
    link_world_init(1, 1);
    link_world_open();
    link_world_form(0, 100, 7);
    struct fake *fake = fake_at(0);
    for (uint32_t i = 1; i <= 3; i++) {
        ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
        worker_link_welcome_again(world->link, 0);
        if (i > 1) {
            for (int turn = 0; turn < 20; turn++) {
                link_world_turn();
            }
            ck_assert_uint_eq(fake->welcomes, i);
            world->now_us += 200 * 1000;
        }
        LINK_WORLD_UNTIL(fake->welcomes == i + 1);
        fake_capacity(fake, 100, 7);
        LINK_WORLD_UNTIL(world->readies == i + 1);
    }
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    fake_result(fake, 1, 0xabc);
    LINK_WORLD_UNTIL(world->results == 1);
    worker_link_welcome_again(world->link, 0);
    LINK_WORLD_UNTIL(fake->welcomes == 5);
    link_world_deinit();
}
END_TEST

START_TEST(another_build_or_size_is_refused) {
    link_world_init(1, 2);
    link_world_open();
    struct fake *fake = link_world_worker(0, 0, 0);
    struct control_message hello = {.kind = MESSAGE_KIND_HELLO,
                                    .hello = {.worker_id = "g0r0",
                                              .build = "0.0.1 (of yesterday)",
                                              .device = "cpu",
                                              .model_name = "m",
                                              .model_digest = "",
                                              .world = 2}};
    fake_say(fake, &hello);
    LINK_WORLD_UNTIL(fake->refusals == 1);
    ck_assert_ptr_nonnull(strstr(fake->refused, "of yesterday"));
    hello.hello.build = VERSION_BUILD;
    hello.hello.world = 4;
    fake_say(fake, &hello);
    LINK_WORLD_UNTIL(fake->refusals == 2);
    ck_assert_ptr_nonnull(strstr(fake->refused, "expects groups of 2"));
    hello.hello.world = 2;
    hello.hello.worker_id = "g0r1";
    fake_say(fake, &hello);
    LINK_WORLD_UNTIL(fake->refusals == 3);
    ck_assert_ptr_nonnull(strstr(fake->refused, "connected as 'g0r0~"));
    link_world_deinit();
}
END_TEST

START_TEST(a_place_belongs_to_whoever_lives_there) {
    make_pair();
    struct fake *thief = link_world_worker(2, 0, 1);
    uint64_t read = link_world_read();
    fake_hello(thief);
    LINK_WORLD_UNTIL(link_world_read() == read + 1);
    ck_assert_uint_eq(thief->refusals, 0);    // the other one may be dead, and nobody has noticed
    world->now_us += 1000;
    fake_beat(fake_at(1));
    LINK_WORLD_UNTIL(link_world_read() == read + 2);
    fake_hello(thief);
    LINK_WORLD_UNTIL(thief->refusals == 1);
    ck_assert_ptr_nonnull(strstr(thief->refused, "rank 1 of group 0 is 'g0r1' (pid 1001)"));
    ck_assert_uint_eq(world->losses, 0);
    // Once that one is gone, the place is free, also when it was never seen to go.
    fake_leave(fake_at(1));
    for (int i = 0; world->losses == 0; i++) {
        ck_assert_int_lt(i, 500);
        world->now_us += 1000;
        fake_hello(thief);
        link_world_turn();
    }
    LINK_WORLD_UNTIL(thief->welcomes == 1);
    ck_assert_uint_eq(world->losses, 1);
    link_world_deinit();
}
END_TEST

// In containers processes have the same numbers again and again.
START_TEST(a_process_is_known_by_its_connection) {
    link_world_init(1, 1);
    link_world_open();
    link_world_form(0, 100, 7);
    uint64_t epoch = fake_at(0)->epoch;
    world->now_us += 1000;
    fake_hello(fake_at(0));    // it only asks again
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2);
    ck_assert_uint_eq(fake_at(0)->epoch, epoch);
    struct fake *next = link_world_worker(0, 0, 0);    // same name, same number
    for (int i = 0; next->welcomes == 0; i++) {
        ck_assert_int_lt(i, 500);
        world->now_us += 1000;
        fake_hello(next);
        link_world_turn();
    }
    ck_assert_uint_gt(next->epoch, epoch);
    ck_assert_uint_eq(world->losses, 1);
    link_world_deinit();
}
END_TEST

// ---- broken and stale messages -----------------------------------------------------------------

START_TEST(a_broken_result_ends_the_epoch_of_its_group) {
    make_pair();
    ck_assert_int_eq(link_world_plan(0, 1, NULL), STATUS_OK);
    ck_assert_int_eq(transport_send(fake_at(1)->plan, NULL, "rubbish", 7), STATUS_OK);
    LINK_WORLD_UNTIL(world->losses == 1);
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2 && fake_at(1)->welcomes == 2);
    ck_assert_uint_eq(fake_at(0)->aborts, 1);
    link_world_deinit();
}
END_TEST

START_TEST(a_result_of_no_plan_ends_the_epoch_too) {
    make_pair();
    fake_result(fake_at(0), 1, 0);
    LINK_WORLD_UNTIL(world->losses == 1);
    ck_assert_uint_eq(world->results, 0);
    link_world_deinit();
}
END_TEST

// A rank that can never take part: epochs follow each other, and soon not at once.
START_TEST(epochs_that_are_never_ready_come_slower) {
    link_world_init(1, 1);
    link_world_open();
    struct fake *fake = link_world_worker(0, 0, 0);
    fake_hello(fake);
    for (uint32_t i = 1; i <= 4; i++) {
        LINK_WORLD_UNTIL(fake->welcomes == i);
        fake_result(fake, 0, 0);
        LINK_WORLD_UNTIL(fake->aborts == i);
    }
    for (int i = 0; i < 20; i++) {
        worker_link_poll(world->link, world->now_us);
        fake_listen(fake);
    }
    ck_assert_uint_eq(fake->welcomes, 4);
    world->now_us += 60 * 1000;
    LINK_WORLD_UNTIL(fake->welcomes == 5);
    fake_capacity(fake, 100, 1);
    LINK_WORLD_UNTIL(world->readies == 1);
    worker_link_welcome_again(world->link, 0);    // one that was ready counts as none
    LINK_WORLD_UNTIL(fake->welcomes == 6);
    link_world_deinit();
}
END_TEST

START_TEST(what_an_older_epoch_says_is_dropped) {
    make_pair();
    uint64_t old = fake_at(0)->epoch;
    worker_link_welcome_again(world->link, 0);
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2 && fake_at(1)->welcomes == 2);
    uint64_t new_epoch = fake_at(0)->epoch;
    fake_at(0)->epoch = old;
    fake_result(fake_at(0), 1, 0);
    fake_capacity(fake_at(0), 1, 7);
    fake_at(0)->epoch = new_epoch;
    fake_capacity(fake_at(0), 100, 7);
    fake_capacity(fake_at(1), 101, 7);
    LINK_WORLD_UNTIL(world->readies == 2);
    ck_assert_uint_eq(world->capacity.kv_blocks, 100);
    ck_assert_uint_eq(world->results, 0);
    ck_assert_uint_eq(world->losses, 0);
    link_world_deinit();
}
END_TEST

START_TEST(a_worker_that_leaves_says_why) {
    make_pair();
    struct control_message goodbye = {.kind = MESSAGE_KIND_GOODBYE,
                                      .text = {.code = 69, .text = "no memory for weights"}};
    fake_say(fake_at(1), &goodbye);
    LINK_WORLD_UNTIL(world->losses == 1);
    ck_assert_uint_eq(world->lost_code, 69);
    ck_assert_str_eq(world->lost_reason, "no memory for weights");
    worker_link_shutdown(world->link);
    LINK_WORLD_UNTIL(fake_at(0)->shutdowns == 1);
    link_world_deinit();
}
END_TEST

// ---- epochs over restarts ----------------------------------------------------------------------

START_TEST(epochs_go_on_above_those_of_the_dead_controller) {
    make_pair();
    uint64_t epoch = fake_at(0)->epoch;
    link_world_close();
    link_world_open();
    // Its workers are still there: the connections come back by themselves, and they say hello.
    for (uint32_t i = 0; i < 2; i++) {
        fake_hello(fake_at(i));
    }
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 2 && fake_at(1)->welcomes == 2);
    ck_assert_uint_gt(fake_at(0)->epoch, epoch);
    link_world_deinit();
}
END_TEST

START_TEST(epochs_go_on_above_what_any_worker_knows) {
    link_world_init(1, 2);
    link_world_open();
    link_world_worker(0, 0, 0)->epoch = 5000;
    link_world_worker(1, 0, 1)->epoch = 400;
    fake_hello(fake_at(0));
    fake_hello(fake_at(1));
    LINK_WORLD_UNTIL(fake_at(0)->welcomes == 1 && fake_at(1)->welcomes == 1);
    ck_assert_uint_eq(fake_at(0)->epoch, 5001);
    link_world_deinit();
}
END_TEST

// ---- over a network ----------------------------------------------------------------------------

static struct link_allow *allow_two(struct link_key_pair nodes[2]) {
    char text[512];
    struct link_allow *allow = NULL;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(link_key_pair_create(&nodes[i], NULL), STATUS_OK);
    }
    ck_assert_int_eq(link_key_pair_create(&world->controller_keys, NULL), STATUS_OK);
    snprintf(text, sizeof text, "node-1 %s role=worker ids=g0r*\nnode-2 %s role=worker ids=g1r0\n",
             nodes[0].public_key, nodes[1].public_key);
    ck_assert_int_eq(link_allow_parse("list", text, &allow, NULL), STATUS_OK);
    world->options.allow = allow;
    return allow;
}

START_TEST(a_key_opens_its_own_places_only) {
    struct link_key_pair nodes[2];
    link_world_init(2, 1);
    struct link_allow *allow = allow_two(nodes);
    link_world_open_tcp();
    world->keys = nodes[0];
    link_world_form(0, 100, 7);
    struct worker_link_member member;
    worker_link_member(world->link, 0, 0, world->now_us, &member);
    ck_assert_str_eq(member.user, "node-1");
    ck_assert_str_eq(member.state, "ready");
    struct fake *other = link_world_worker(1, 1, 0);    // the place of node-2
    fake_hello(other);
    LINK_WORLD_UNTIL(other->refusals == 1);
    ck_assert_ptr_nonnull(strstr(other->refused, "the key 'node-1' may not be rank 0 of group 1"));
    ck_assert_uint_eq(other->refused_code, EXIT_CODE_PERMISSION);
    struct worker_link_counters counters;
    worker_link_count(world->link, world->now_us, &counters);
    ck_assert_uint_eq(counters.refused, 1);
    world->keys = nodes[1];
    link_world_form(1, 100, 7);
    link_world_deinit();
    link_allow_destroy(allow);
}
END_TEST

// Not even under the other's name on a channel that it has not dialled yet.
START_TEST(nobody_speaks_for_another_key) {
    struct link_key_pair nodes[2];
    link_world_init(1, 1);
    struct link_allow *allow = allow_two(nodes);
    link_world_open_tcp();
    world->keys = nodes[0];
    struct fake *victim = link_world_worker(0, 0, 0);
    transport_close(victim->plan);
    victim->plan = NULL;
    fake_hello(victim);
    LINK_WORLD_UNTIL(victim->welcomes == 1);
    world->keys = nodes[1];
    victim->plan = link_world_dial(victim->peer, TRANSPORT_CHANNEL_PLAN);
    uint64_t read = link_world_read();
    fake_capacity(victim, 100, 7);
    LINK_WORLD_UNTIL(link_world_read() > read);
    ck_assert_uint_eq(world->readies, 0);
    ck_assert_uint_eq(world->losses, 0);
    struct worker_link_counters counters;
    worker_link_count(world->link, world->now_us, &counters);
    ck_assert_uint_eq(counters.messages_bad, 1);
    link_world_deinit();
    link_allow_destroy(allow);
}
END_TEST

START_TEST(a_stranger_is_counted) {
    struct link_key_pair nodes[2];
    link_world_init(1, 1);
    struct link_allow *allow = allow_two(nodes);
    link_world_open_tcp();
    ck_assert_int_eq(link_key_pair_create(&world->keys, NULL), STATUS_OK);
    link_world_worker(0, 0, 0);
    struct worker_link_counters counters = {0};
    for (int i = 0; counters.strangers == 0 || counters.handshakes_refused == 0; i++) {
        ck_assert_int_lt(i, 4000);
        link_world_turn();
        worker_link_count(world->link, world->now_us, &counters);
    }
    ck_assert_uint_eq(counters.messages_in, 0);
    link_world_deinit();
    link_allow_destroy(allow);
}
END_TEST

START_TEST(every_network_at_once_must_be_asked_for) {
    struct link_key_pair nodes[2];
    link_world_init(1, 1);
    struct link_allow *allow = allow_two(nodes);
    const char *const binds[] = {"tcp://0.0.0.0:1"};
    world->options.binds = binds;
    world->options.bind_count = 1;
    world->options.keys = &world->controller_keys;
    struct error err = {0};
    ck_assert_int_eq(worker_link_open(&world->options, &world->link, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "every network"));
    ck_assert_ptr_nonnull(strstr(err.hint, "--insecure-bind"));
    link_world_deinit();
    link_allow_destroy(allow);
}
END_TEST

// ---- a flood -----------------------------------------------------------------------------------

enum { MESSAGES = 20, NAP_MS = 2 };

static void slow_progress(void *ctx, uint32_t group, uint32_t rank,
                          const struct message_progress *progress) {
    (void)ctx;
    (void)group;
    (void)rank;
    ck_assert_uint_eq(progress->bytes_done, world->progresses);
    world->progresses++;
    poll(NULL, 0, NAP_MS);    // longer than a turn's share
}

START_TEST(a_poll_ends_in_the_middle_of_a_flood_and_says_so) {
    link_world_init(1, 1);
    world->options.sink.progress = slow_progress;
    link_world_open();
    fake_hello(link_world_worker(0, 0, 0));
    for (uint64_t i = 0; i < MESSAGES; i++) {
        const struct control_message progress = {.kind = MESSAGE_KIND_PROGRESS,
                                                 .progress = {.phase = "load", .bytes_done = i}};
        fake_say(fake_at(0), &progress);
    }
    bool more = false;
    uint32_t polls_cut_short = 0;
    for (int i = 0; i < 4000 && (world->progresses < MESSAGES || more); i++) {
        uint32_t before = world->progresses;
        more = worker_link_poll(world->link, world->now_us);
        ck_assert_uint_le(world->progresses - before, 1);    // the first one took all of the time
        polls_cut_short += more ? 1 : 0;
        if (!more) {
            poll(NULL, 0, NAP_MS);
        }
    }
    ck_assert_uint_eq(world->progresses, MESSAGES);
    ck_assert_uint_ge(polls_cut_short, MESSAGES - 1);
    ck_assert(!more);
    link_world_deinit();
}
END_TEST

Suite *suite_worker_link(void) {
    Suite *suite = suite_create("controller/net/worker_link");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    const TTest *const tests[] = {
        a_group_is_ready_when_all_its_ranks_are,
        every_rank_gets_the_same_plan_and_answers,
        a_rank_that_dies_loses_the_group_and_the_others_hear_at_once,
        kv_is_kept_when_every_stamp_and_size_is_known,
        memory_without_a_stamp_is_never_kept,
        a_resize_is_over_when_every_rank_has_said_so,
        ranks_that_disagree_cannot_be_a_group,
        silence_under_a_step_is_suspect_after_three_beats,
        an_idle_worker_may_beat_slowly,
        our_own_lateness_is_no_silence_of_theirs,
        timers_stretch,
        a_welcome_that_is_not_taken_is_a_loss,
        what_differs_is_named,
        a_worker_without_its_model_says_why_it_leaves,
        a_group_that_is_given_up_again_and_again_waits,
        another_build_or_size_is_refused,
        a_place_belongs_to_whoever_lives_there,
        a_process_is_known_by_its_connection,
        a_broken_result_ends_the_epoch_of_its_group,
        a_result_of_no_plan_ends_the_epoch_too,
        epochs_that_are_never_ready_come_slower,
        what_an_older_epoch_says_is_dropped,
        a_worker_that_leaves_says_why,
        epochs_go_on_above_those_of_the_dead_controller,
        epochs_go_on_above_what_any_worker_knows,
        a_key_opens_its_own_places_only,
        nobody_speaks_for_another_key,
        a_stranger_is_counted,
        every_network_at_once_must_be_asked_for,
        a_poll_ends_in_the_middle_of_a_flood_and_says_so,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(tc, tests[i]);
    }
    suite_add_tcase(suite, tc);
    return suite;
}
