// SPDX-License-Identifier: Apache-2.0
// Goal: a seal is written whole or not at all, whatever lies in its directory, and touches nothing
// else. Method: real directories with links, pipes and strangers in them, and several processes
// that write the same seal.
#include "common/bounds.h"
#include "tests/unit/suites.h"
#include "worker/seal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS = 4, ROUNDS = 200 };

static char dir[64], path[128];
static struct seal seal;

static void set_up(void) {
    snprintf(dir, sizeof dir, "/tmp/tare-test-seal-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    seal = (struct seal){.digest = "0123456789abcdef"};
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        seal.bytes[i] = 1000 * i;
    }
    snprintf(path, sizeof path, "%s/seal-%s.json", dir, seal.digest);
}

static void tear_down(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static void check_reads_back(const char *where) {
    struct seal back;
    ck_assert(seal_read(where, seal.digest, &back));
    ck_assert(seal_covers(&seal, &back));
    ck_assert(seal_covers(&back, &seal));
}

static unsigned entries(const char *where) {
    unsigned count = 0;
    DIR *open_dir = opendir(where);
    ck_assert_ptr_nonnull(open_dir);
    for (struct dirent *entry = readdir(open_dir); entry != NULL; entry = readdir(open_dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(open_dir);
    return count;
}

START_TEST(what_was_written_is_read_and_nothing_else_is_left) {
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seal_write(dir, &seal, NULL), STATUS_OK);
        check_reads_back(dir);
        ck_assert_uint_eq(entries(dir), 1);
    }
    struct seal other;
    ck_assert(!seal_read(dir, "0000000000000000", &other));
}
END_TEST

START_TEST(a_missing_directory_is_made_for_the_user_alone) {
    char below[96];
    snprintf(below, sizeof below, "%s/new", dir);
    ck_assert_int_eq(seal_write(below, &seal, NULL), STATUS_OK);
    check_reads_back(below);
    struct stat info;
    ck_assert_int_eq(stat(below, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
}
END_TEST

START_TEST(a_link_in_its_place_is_replaced_and_not_followed) {
    char victim[96];
    snprintf(victim, sizeof victim, "%s/victim", dir);
    FILE *file = fopen(victim, "w");
    ck_assert_ptr_nonnull(file);
    fputs("precious", file);
    fclose(file);
    ck_assert_int_eq(symlink(victim, path), 0);
    struct seal back;
    ck_assert(!seal_read(dir, seal.digest, &back));
    ck_assert_int_eq(seal_write(dir, &seal, NULL), STATUS_OK);
    check_reads_back(dir);
    char text[16] = "";
    file = fopen(victim, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(text, 1, sizeof text - 1, file), strlen("precious"));
    fclose(file);
    ck_assert_str_eq(text, "precious");
}
END_TEST

START_TEST(a_pipe_in_its_place_holds_nobody_up) {
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    struct seal back;
    ck_assert(!seal_read(dir, seal.digest, &back));
    ck_assert_int_eq(seal_write(dir, &seal, NULL), STATUS_OK);
    check_reads_back(dir);
}
END_TEST

START_TEST(what_cannot_be_written_leaves_nothing_behind) {
    ck_assert_int_eq(mkdir(path, 0700), 0);    // a file cannot take a directory's place
    struct error err = {0};
    ck_assert_int_eq(seal_write(dir, &seal, &err), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.message, path));
    ck_assert_uint_eq(entries(dir), 1);
    err = (struct error){0};
    ck_assert_int_eq(seal_write("/proc/self/fd", &seal, &err), STATUS_IO);
}
END_TEST

START_TEST(many_writers_of_one_seal_all_succeed) {
    for (int i = 0; i < WRITERS; i++) {
        pid_t writer = fork();
        ck_assert_int_ge(writer, 0);
        if (writer == 0) {
            bool good = true;
            for (int round = 0; round < ROUNDS && good; round++) {
                struct seal back;
                good = seal_write(dir, &seal, NULL) == STATUS_OK &&
                       seal_read(dir, seal.digest, &back) && seal_covers(&seal, &back);
            }
            _exit(good ? 0 : 1);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status = 0;
        ck_assert_int_ge(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    check_reads_back(dir);
    ck_assert_uint_eq(entries(dir), 1);
}
END_TEST

START_TEST(the_newest_are_kept) {
    for (unsigned i = 0; i < BOUND_SEALS + 3; i++) {
        snprintf(seal.digest, sizeof seal.digest, "%016x", i);
        ck_assert_int_eq(seal_write(dir, &seal, NULL), STATUS_OK);
        // Their times may be equal: an order that does not depend on the clock's steps.
        snprintf(path, sizeof path, "%s/seal-%s.json", dir, seal.digest);
        struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    ck_assert_uint_eq(entries(dir), BOUND_SEALS);
    struct seal back;
    for (unsigned i = 0; i < BOUND_SEALS + 3; i++) {
        char digest[SEAL_DIGEST_BYTES];
        snprintf(digest, sizeof digest, "%016x", i);
        ck_assert(seal_read(dir, digest, &back) == (i >= 3));
    }
}
END_TEST

Suite *suite_seal(void) {
    Suite *suite = suite_create("worker/seal");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, what_was_written_is_read_and_nothing_else_is_left);
    tcase_add_test(tc, a_missing_directory_is_made_for_the_user_alone);
    tcase_add_test(tc, a_link_in_its_place_is_replaced_and_not_followed);
    tcase_add_test(tc, a_pipe_in_its_place_holds_nobody_up);
    tcase_add_test(tc, what_cannot_be_written_leaves_nothing_behind);
    tcase_add_test(tc, the_newest_are_kept);
    tcase_add_test(tc, many_writers_of_one_seal_all_succeed);
    suite_add_tcase(suite, tc);
    return suite;
}
