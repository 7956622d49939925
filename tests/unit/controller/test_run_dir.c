// SPDX-License-Identifier: Apache-2.0
// Goal: one controller at a time has a run directory; a dead one's is taken over.
// Method: two takers in one process, and one in a child that is killed.
#include "controller/run_dir.h"
#include "tests/unit/suites.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char parent[64], path[96];

static void setup(void) {
    snprintf(parent, sizeof parent, "/tmp/tare-run-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(parent));
    snprintf(path, sizeof path, "%s/run", parent);
}

static void teardown(void) {
    char lock[128];
    snprintf(lock, sizeof lock, "%s/lock", path);
    unlink(lock);
    rmdir(path);
    rmdir(parent);
}

START_TEST(a_living_controller_keeps_its_directory) {
    struct run_dir *first = NULL, *second = NULL;
    struct error err = {0};
    char pid[32];
    snprintf(pid, sizeof pid, "(pid %ld)", (long)getpid());
    ck_assert_int_eq(run_dir_take(path, &first, NULL), STATUS_OK);
    ck_assert_int_eq(run_dir_take(path, &second, &err), STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(err.message, pid));
    ck_assert_ptr_nonnull(strstr(err.hint, "--run-dir"));
    run_dir_leave(first);
    ck_assert_int_eq(run_dir_take(path, &second, NULL), STATUS_OK);
    run_dir_leave(second);
}
END_TEST

START_TEST(a_killed_controller_leaves_nothing_in_the_way) {
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct run_dir *taken = NULL;
        char byte = run_dir_take(path, &taken, NULL) == STATUS_OK ? 'y' : 'n';
        (void)!write(ready[1], &byte, 1);
        pause();
        _exit(0);
    }
    char byte = 0;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'y');
    struct run_dir *mine = NULL;
    ck_assert_int_eq(run_dir_take(path, &mine, NULL), STATUS_BUSY);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ck_assert_int_eq(run_dir_take(path, &mine, NULL), STATUS_OK);
    run_dir_leave(mine);
    close(ready[0]);
    close(ready[1]);
}
END_TEST

Suite *suite_run_dir(void) {
    Suite *suite = suite_create("controller/run_dir");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_living_controller_keeps_its_directory);
    tcase_add_test(tc, a_killed_controller_leaves_nothing_in_the_way);
    suite_add_tcase(suite, tc);
    return suite;
}
