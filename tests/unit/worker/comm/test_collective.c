// SPDX-License-Identifier: Apache-2.0
// Goal: every message has the bits of its definition, on every rank, for any world, size and
// buffer; ranks that part and calls without a group do what the header says.
// Method: ranks on threads and in processes exchange random messages (group.c).
#include "common/rng.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/comm/group.h"
#include "worker/comm/ordered_sum.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint32_t WORLDS[] = {1, 2, 3, 4, 8};
enum { WORLDS_COUNT = sizeof WORLDS / sizeof WORLDS[0] };

// A buffer so small that a message has tens of chunks, and one that holds a message whole.
static const struct {
    uint64_t buffer_bytes;
    size_t floats_max;
    uint32_t message_count;
} SIZES[] = {{0, 5000, 120}, {64 * 1024, 20000, 80}, {8 * 1024 * 1024, 400000, 12}};

START_TEST(threads_get_the_bits_of_the_definition) {
    uint32_t world = WORLDS[_i % WORLDS_COUNT];
    int size = _i / WORLDS_COUNT;
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct group_rank rank = {.world = world,
                              .epoch = 1,
                              .comm_id = id,
                              .buffer_bytes = SIZES[size].buffer_bytes,
                              .seed = (uint64_t)_i + 1,
                              .message_count = SIZES[size].message_count,
                              .floats_max = SIZES[size].floats_max};
    ck_assert_int_eq(group_threads(&rank), GROUP_END_OK);
}
END_TEST

START_TEST(processes_get_the_bits_of_the_definition) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct group_rank rank = {.world = WORLDS[_i],
                              .epoch = 1,
                              .comm_id = id,
                              .buffer_bytes = SIZES[1].buffer_bytes,
                              .seed = (uint64_t)_i + 77,
                              .message_count = SIZES[1].message_count,
                              .floats_max = SIZES[1].floats_max};
    ck_assert_int_eq(group_processes(&rank), GROUP_END_OK);
}
END_TEST

// ---- calls without a group ---------------------------------------------------------------------

static struct collective *create(uint32_t rank, uint32_t world) {
    struct collective_options options = {.name = "shm", .rank = rank, .world = world};
    struct collective *collective = NULL;
    ck_assert_int_eq(collective_create(&options, &collective, NULL), STATUS_OK);
    return collective;
}

START_TEST(the_loopback_sees_its_own_part_and_waits_for_nobody) {
    struct collective loopback, *c = &loopback;
    collective_init_loopback(c, 1, 2);
    const float part[6] = {1, 2, 3, 4, 5, 6};
    float y[8] = {10, 10, 10, 10, 10, 10};
    collective_all_reduce_add(c, part, y, 2, 3);
    ck_assert(y[5] == 16);
    float gathered[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    collective_all_gather(c,
                          &(struct collective_gather){
                              .x = part, .y = gathered, .row_count = 2, .x_cols = 2, .y_cols = 3});
    ck_assert(gathered[2] == 1);
    ck_assert(gathered[5] == 3);
    ck_assert(gathered[0] == 0);
    ck_assert(gathered[6] == 9);
    float own[3] = {0};
    collective_reduce_scatter_add(c, part, own, 2, 3);
    ck_assert(own[0] == 4);
    collective_broadcast(c, 0, y, sizeof y);
    collective_send(c, 0, y, sizeof y);
    collective_receive(c, 0, y, sizeof y);
    ck_assert(!collective_broken(c));
}
END_TEST

START_TEST(what_is_not_attached_is_broken_and_waits_for_nobody) {
    struct collective *c = create(1, 2);
    const float part[2] = {1, 2};
    float y[4] = {5, 5, 5, 5};
    collective_all_reduce_add(c, part, y, 1, 2);
    collective_reduce_scatter_add(c, part, y, 2, 1);
    collective_all_gather(c, &(struct collective_gather){
                                 .x = part, .y = y, .row_count = 1, .x_cols = 2, .y_cols = 4});
    collective_broadcast(c, 0, y, sizeof y);
    collective_send(c, 0, y, sizeof y);
    collective_receive(c, 0, y, sizeof y);
    collective_abort(c, 7);
    ck_assert(collective_broken(c));
    ck_assert(y[0] == 5);
    collective_destroy(c);
    collective_destroy(NULL);
}
END_TEST

START_TEST(what_cannot_be_created_is_refused) {
    struct collective *c = NULL;
    struct error err = {0};
    struct collective_options options = {.name = "shm", .rank = 2, .world = 2};
    ck_assert_int_eq(collective_create(&options, &c, &err), STATUS_INVALID);
    options = (struct collective_options){.name = "shm", .rank = 0, .world = 0};
    ck_assert_int_eq(collective_create(&options, &c, NULL), STATUS_INVALID);
    options.world = 9;
    ck_assert_int_eq(collective_create(&options, &c, NULL), STATUS_INVALID);
    options = (struct collective_options){.name = "smoke", .rank = 0, .world = 2};
    error_reset(&err);
    ck_assert_int_eq(collective_create(&options, &c, &err), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "smoke"));
    ck_assert_ptr_null(c);
}
END_TEST

START_TEST(shares_cover_all_rows_once) {
    for (uint32_t world = 1; world <= 8; world++) {
        for (uint32_t rows = 0; rows < 40; rows++) {
            uint32_t next = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                struct collective_rows own = collective_share(rows, rank, world);
                ck_assert_uint_eq(own.first, next);
                next += own.count;
            }
            ck_assert_uint_eq(next, rows);
        }
    }
    ck_assert_uint_eq(collective_share(UINT32_MAX, 7, 8).first, 7u << 29);
}
END_TEST

// ---- ranks that parted -------------------------------------------------------------------------

struct parted {
    struct collective *c;
    const char *id;
    bool attached, broken;
};

static bool attach(struct collective *c, uint64_t epoch, const char *id) {
    struct collective_epoch at = {
        .epoch = epoch, .comm_id = id, .buffer_bytes = 65536, .patience_us = 20 * 1000 * 1000};
    return collective_attach(c, &at, NULL) == STATUS_OK;
}

static void *run_parted(void *arg) {
    struct parted *rank = arg;
    static float part[2][100], y[2][100];
    uint32_t me = rank->c->rank;
    rank->attached = attach(rank->c, 1, rank->id);
    collective_all_reduce_add(rank->c, part[me], y[me], me == 0 ? 10 : 9, 10);
    rank->broken = collective_broken(rank->c);
    // Broken: at once, also what waits for everybody.
    collective_all_reduce_add(rank->c, part[me], y[me], 10, 10);
    return NULL;
}

START_TEST(ranks_in_different_messages_break_off) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct parted ranks[2];
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = (struct parted){.c = create(i, 2), .id = id};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_parted, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(ranks[i].attached);
        ck_assert(ranks[i].broken);
        ck_assert(collective_broken(ranks[i].c));
        collective_detach(ranks[i].c);
        collective_destroy(ranks[i].c);
    }
}
END_TEST

// ---- sums --------------------------------------------------------------------------------------

// (a + b) + (c + d) is not ((a + b) + c) + d for these.
START_TEST(parts_are_added_in_pairs_for_two_four_and_eight) {
    const float values[8] = {1e8f, 1.0f, -1e8f, 1.0f, 3.0f, 1e8f, 5.0f, -1e8f};
    float room[8][70], out[70], y[70];
    const float *part[8];
    for (int p = 0; p < 8; p++) {
        part[p] = room[p];
        for (int i = 0; i < 70; i++) {
            room[p][i] = values[(p + i) % 8];
        }
    }
    for (size_t count = 0; count <= 70; count += 7) {
        memset(y, 0, sizeof y);
        ordered_sum(part, 4, out, count);
        for (size_t i = 0; i < count; i++) {
            float want = (room[0][i] + room[1][i]) + (room[2][i] + room[3][i]);
            ck_assert(out[i] == want);
        }
        ordered_sum_add(part, 8, y, count);
        for (size_t i = 0; i < count; i++) {
            float low = (room[0][i] + room[1][i]) + (room[2][i] + room[3][i]);
            float high = (room[4][i] + room[5][i]) + (room[6][i] + room[7][i]);
            ck_assert(y[i] == low + high);
        }
        ordered_sum(part, 5, out, count);
        for (size_t i = 0; i < count; i++) {
            float want = (((room[0][i] + room[1][i]) + room[2][i]) + room[3][i]) + room[4][i];
            ck_assert(out[i] == want);
        }
    }
}
END_TEST

Suite *suite_collective(void) {
    Suite *suite = suite_create("worker/comm/collective");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, threads_get_the_bits_of_the_definition, 0, WORLDS_COUNT * 3);
    tcase_add_loop_test(tc, processes_get_the_bits_of_the_definition, 0, WORLDS_COUNT);
    tcase_add_test(tc, the_loopback_sees_its_own_part_and_waits_for_nobody);
    tcase_add_test(tc, what_is_not_attached_is_broken_and_waits_for_nobody);
    tcase_add_test(tc, what_cannot_be_created_is_refused);
    tcase_add_test(tc, shares_cover_all_rows_once);
    tcase_add_test(tc, ranks_in_different_messages_break_off);
    tcase_add_test(tc, parts_are_added_in_pairs_for_two_four_and_eight);
    suite_add_tcase(suite, tc);
    return suite;
}
