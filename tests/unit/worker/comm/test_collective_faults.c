// SPDX-License-Identifier: Apache-2.0
// Goal: nobody hangs. An abort and a killed peer end every wait on every rank, at any moment, the
// meeting included; afterwards the survivors meet again; whatever lies in shared memory under the
// group's name is refused or removed, and nothing of ours stays there.
// Method: ranks on threads or in processes exchange random messages until they are broken; the
// moment of the fault is a number of messages, so that it falls anywhere inside one.
#include "common/clock.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/comm/group.h"
#include "worker/comm/shared_region.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 3, ROUNDS = 6, LONG_US = 20 * 1000 * 1000, SHORT_US = 100 * 1000 };

static struct collective *create(uint32_t rank, uint32_t world) {
    struct collective_options options = {.name = "shm", .rank = rank, .world = world};
    struct collective *collective = NULL;
    ck_assert_int_eq(collective_create(&options, &collective, NULL), STATUS_OK);
    return collective;
}

static enum status attach(struct collective *c, uint64_t epoch, const char *id,
                          uint64_t patience_us, struct error *err) {
    struct collective_epoch at = {
        .epoch = epoch, .comm_id = id, .buffer_bytes = 65536, .patience_us = patience_us};
    return collective_attach(c, &at, err);
}

// ---- abort -------------------------------------------------------------------------------------

struct member {
    struct collective *c;
    pthread_t thread;
    struct group_rank rank;
    char id[ROUNDS][COLLECTIVE_ID_BYTES];
    _Atomic uint32_t rounds;
    enum status attached[ROUNDS];
    enum group_end end[ROUNDS];
};

// One collective for all epochs, as in a worker.
static void *live(void *arg) {
    struct member *member = arg;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct group_rank rank = member->rank;
        rank.message_count = round + 1 == ROUNDS ? 5 : 0;
        rank.seed += round;
        member->attached[round] = attach(member->c, round + 1, member->id[round], LONG_US, NULL);
        if (member->attached[round] == STATUS_OK) {
            member->end[round] = group_exchange(member->c, &rank);
        }
        atomic_fetch_add(&member->rounds, 1);
    }
    return NULL;
}

static void nap(void) {
    poll(NULL, 0, 1);
}

START_TEST(an_abort_ends_every_wait_and_the_next_epoch_begins) {
    static struct member member[WORLD];
    static _Atomic uint32_t done;
    char id[ROUNDS][COLLECTIVE_ID_BYTES];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        group_id(id[round]);
    }
    for (uint32_t i = 0; i < WORLD; i++) {
        member[i].c = create(i, WORLD);
        member[i].rank = (struct group_rank){
            .rank = i, .world = WORLD, .seed = 3, .floats_max = 9000, .done = &done};
        memcpy(member[i].id, id, sizeof id);
        ck_assert_int_eq(pthread_create(&member[i].thread, NULL, live, &member[i]), 0);
    }
    for (uint32_t round = 0; round + 1 < ROUNDS; round++) {
        uint32_t begin = done;
        // The first rounds are aborted while the ranks meet, or before.
        while (round > 1 && done - begin < round * 7) {
            nap();
        }
        // Once they have met, one rank that hears of it is enough: the others learn it from the
        // region.
        for (uint32_t i = 0; i < WORLD; i++) {
            if (round <= 1 || i == round % WORLD) {
                collective_abort(member[i].c, round + 1);
            }
        }
        for (uint32_t i = 0; i < WORLD; i++) {
            while (member[i].rounds <= round) {
                nap();
            }
        }
    }
    for (uint32_t i = 0; i < WORLD; i++) {
        pthread_join(member[i].thread, NULL);
        for (uint32_t round = 2; round < ROUNDS; round++) {
            ck_assert_int_eq(member[i].attached[round], STATUS_OK);
            ck_assert_int_eq(member[i].end[round],
                             round + 1 < ROUNDS ? GROUP_END_BROKEN : GROUP_END_OK);
        }
        collective_destroy(member[i].c);
    }
}
END_TEST

START_TEST(an_epoch_that_was_aborted_is_never_attached) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct collective *c = create(rank, 2);
        collective_abort(c, 5);
        ck_assert_int_eq(attach(c, 5, id, LONG_US, NULL), STATUS_CANCELLED);
        ck_assert_int_eq(attach(c, 4, id, LONG_US, NULL), STATUS_CANCELLED);
        collective_abort(c, 3);    // older than what was aborted: changes nothing
        ck_assert_int_eq(attach(c, 5, id, LONG_US, NULL), STATUS_CANCELLED);
        ck_assert_int_eq(attach(c, 6, id, 0, NULL), STATUS_TIMEOUT);
        collective_destroy(c);
    }
    ck_assert(!group_file_exists(id));
}
END_TEST

// ---- killed peers ------------------------------------------------------------------------------

// Messages counted over the processes.
static _Atomic uint32_t *shared_counter(void) {
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

START_TEST(a_killed_peer_hangs_nobody) {
    static const uint32_t WORLDS[] = {2, 3, 4, 8};
    uint32_t world = WORLDS[_i % 4];
    _Atomic uint32_t *done = shared_counter();
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    pid_t pids[8];
    for (uint32_t i = 0; i < world; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0) {
            struct group_rank rank = {.rank = i,
                                      .world = world,
                                      .epoch = 1,
                                      .comm_id = id,
                                      .buffer_bytes = 65536,
                                      .seed = (uint64_t)_i,
                                      .floats_max = 9000,
                                      .done = done};
            _exit((int)group_rank_run(&rank));
        }
    }
    uint32_t messages = (uint32_t)(_i * 37 % 101) + 1;
    while (*done < messages) {
        nap();
    }
    uint32_t victim = (uint32_t)_i % world;
    kill(pids[victim], SIGKILL);
    for (uint32_t i = 0; i < world; i++) {
        int status = 0;
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert(i == victim ? WIFSIGNALED(status) : WEXITSTATUS(status) == GROUP_END_BROKEN);
    }
    ck_assert(!group_file_exists(id));
}
END_TEST

// A rank 0 that dies while it waits for the others leaves its file; the next one removes it.
START_TEST(what_a_dead_rank_left_is_removed_by_the_next_group) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        attach(create(0, 2), 1, id, LONG_US, NULL);
        _exit(0);
    }
    while (!group_file_exists(id)) {
        nap();
    }
    shared_region_sweep();
    ck_assert(group_file_exists(id));    // it lives
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    char dead[COLLECTIVE_ID_BYTES];
    memcpy(dead, id, sizeof dead);
    group_id(id);
    struct group_rank rank = {.world = 2,
                              .epoch = 2,
                              .comm_id = id,
                              .buffer_bytes = 65536,
                              .message_count = 4,
                              .floats_max = 100};
    ck_assert_int_eq(group_threads(&rank), GROUP_END_OK);
    ck_assert(!group_file_exists(dead));
    ck_assert(!group_file_exists(id));
}
END_TEST

struct comer {
    struct collective *c;
    uint32_t rank, world;
    const char *id;
    enum status status;
};

static void *come(void *arg) {
    struct comer *comer = arg;
    comer->c = create(comer->rank, comer->world);
    comer->status = attach(comer->c, 1, comer->id, SHORT_US, NULL);
    collective_destroy(comer->c);
    return NULL;
}

START_TEST(a_group_that_is_not_complete_ends_in_time_for_all) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct comer comers[2] = {{.rank = 0, .world = 3, .id = id}, {.rank = 2, .world = 3, .id = id}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, come, &comers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(comers[i].status == STATUS_TIMEOUT || comers[i].status == STATUS_PEER_LOST);
    }
    ck_assert(!group_file_exists(id));
}
END_TEST

// ---- what else may lie there -------------------------------------------------------------------

static void path_of(const char *id, char out[128]) {
    snprintf(out, 128, "/dev/shm/tare-group-%s", id);
}

// A region of a group of two as rank 0 makes it, with a lock as if it lived, changed by `spoil`.
struct fake {
    struct shared_region region;
    struct shared_region_options options;
    char path[128];
};

static bool never(void *ctx) {
    (void)ctx;
    return false;
}

static void *await_abort(void *arg) {
    struct comer *comer = arg;
    comer->status = attach(comer->c, 1, comer->id, LONG_US, NULL);
    return NULL;
}

// As large as a true one: what rank 0 makes.
static uint64_t body_bytes_of(const char *id) {
    struct comer comer = {.c = create(0, 2), .id = id};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, await_abort, &comer), 0);
    char path[128];
    path_of(id, path);
    struct stat info;
    while (stat(path, &info) != 0) {
        nap();
    }
    collective_abort(comer.c, 1);
    pthread_join(thread, NULL);
    ck_assert_int_eq(comer.status, STATUS_CANCELLED);
    collective_destroy(comer.c);
    return (uint64_t)info.st_size - 16 * 1024;
}

static void make_fake(struct fake *fake, const char *id) {
    fake->options = (struct shared_region_options){.id = id,
                                                   .world = 2,
                                                   .body_bytes = body_bytes_of(id),
                                                   .deadline_us = UINT64_MAX,
                                                   .cancelled = never};
    path_of(id, fake->path);
    ck_assert_int_eq(shared_region_open(&fake->region, &fake->options, NULL), STATUS_OK);
}

static enum status join_fake(const char *id, struct error *err) {
    struct collective *c = create(1, 2);
    enum status status = attach(c, 1, id, SHORT_US, err);
    collective_destroy(c);
    return status;
}

START_TEST(a_region_that_is_none_is_refused) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct fake fake;
    struct error err = {0};
    make_fake(&fake, id);
    fake.region.head->world = 4;
    ck_assert_int_eq(join_fake(id, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.message, "4 ranks"));
    fake.region.head->world = 2;
    fake.region.head->magic[3] = 'x';
    ck_assert_int_eq(join_fake(id, NULL), STATUS_CORRUPT);
    fake.region.head->magic[3] = 'e';
    fake.region.head->body_bytes--;
    ck_assert_int_eq(join_fake(id, NULL), STATUS_CORRUPT);
    fake.region.head->body_bytes++;
    ck_assert_int_eq(chmod(fake.path, 0644), 0);
    error_reset(&err);
    ck_assert_int_eq(join_fake(id, &err), STATUS_PERMISSION);
    ck_assert_ptr_nonnull(strstr(err.message, "0600"));
    ck_assert_int_eq(chmod(fake.path, 0600), 0);
    ck_assert_int_eq(truncate(fake.path, 20000), 0);
    error_reset(&err);
    ck_assert_int_eq(join_fake(id, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.message, "20000 bytes"));
    shared_region_close(&fake.region);
    ck_assert_int_eq(symlink("/etc/passwd", fake.path), 0);
    ck_assert_int_eq(join_fake(id, NULL), STATUS_IO);
    unlink(fake.path);
    ck_assert_int_eq(mkdir(fake.path, 0700), 0);
    ck_assert_int_eq(join_fake(id, NULL), STATUS_IO);
    rmdir(fake.path);
}
END_TEST

START_TEST(a_rank_comes_once) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct fake fake;
    make_fake(&fake, id);
    struct shared_region first;
    struct shared_region_options options = fake.options;
    options.rank = 1;
    ck_assert_int_eq(shared_region_open(&first, &options, NULL), STATUS_OK);
    struct error err = {0};
    ck_assert_int_eq(join_fake(id, &err), STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(err.message, "rank 1"));
    shared_region_close(&first);
    shared_region_close(&fake.region);
}
END_TEST

// After 2^31 arrivals a word begins again.
START_TEST(counting_goes_on_past_the_end_of_a_word) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct fake fake;
    make_fake(&fake, id);
    struct shared_word *word = &fake.region.head->word[0];
    atomic_store(&word->value, UINT32_MAX - 3);
    uint32_t goal = 0;    // two arrivals later
    shared_region_arrive(&fake.region, word, goal);
    ck_assert_uint_eq(atomic_load(&word->value), UINT32_MAX - 1);
    shared_region_arrive(&fake.region, word, goal);
    ck_assert_uint_eq(atomic_load(&word->value), 0);
    ck_assert(shared_region_wait(&fake.region, word, goal));
    // Nobody else is there: the next count is never complete, and is not taken for the last one.
    ck_assert(!shared_region_wait(&fake.region, word, goal + 4));
    ck_assert(shared_region_aborted(&fake.region));
    ck_assert(!shared_region_wait(&fake.region, word, goal));
    shared_region_close(&fake.region);
}
END_TEST

START_TEST(rank_zero_takes_no_name_that_exists) {
    char id[COLLECTIVE_ID_BYTES];
    group_id(id);
    struct fake fake;
    make_fake(&fake, id);
    struct comer comer = {.rank = 0, .world = 2, .id = id};
    come(&comer);
    ck_assert_int_eq(comer.status, STATUS_IO);
    ck_assert(group_file_exists(id));    // it was not ours to remove
    shared_region_close(&fake.region);
    ck_assert(!group_file_exists(id));
}
END_TEST

START_TEST(an_id_that_is_none_is_refused) {
    static const char *const IDS[] = {"", "00", "../../../../etc/passwd-0123456789",
                                      "0123456789ABCDEF0123456789abcdef",
                                      "0123456789abcdef0123456789abcdef0"};
    struct collective *c = create(0, 2);
    for (size_t i = 0; i < sizeof IDS / sizeof IDS[0]; i++) {
        ck_assert_int_eq(attach(c, 1, IDS[i], SHORT_US, NULL), STATUS_INVALID);
    }
    collective_destroy(c);
}
END_TEST

Suite *suite_collective_faults(void) {
    Suite *suite = suite_create("worker/comm/collective_faults");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, an_abort_ends_every_wait_and_the_next_epoch_begins);
    tcase_add_test(tc, an_epoch_that_was_aborted_is_never_attached);
    tcase_add_loop_test(tc, a_killed_peer_hangs_nobody, 0, 12);
    tcase_add_test(tc, what_a_dead_rank_left_is_removed_by_the_next_group);
    tcase_add_test(tc, a_group_that_is_not_complete_ends_in_time_for_all);
    tcase_add_test(tc, a_rank_comes_once);
    tcase_add_test(tc, a_region_that_is_none_is_refused);
    tcase_add_test(tc, counting_goes_on_past_the_end_of_a_word);
    tcase_add_test(tc, rank_zero_takes_no_name_that_exists);
    tcase_add_test(tc, an_id_that_is_none_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
