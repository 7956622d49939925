// SPDX-License-Identifier: Apache-2.0
// Goal: the API's journal lies in the run directory, and its absence is never a failure.
// Method: a real directory, and an API that is given what is found.
#include "controller/resume.h"

#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[64], path[96];
static struct api_fixture *f;

static void setup(void) {
    snprintf(directory, sizeof directory, "/tmp/tare-resume-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/journal", directory);
    f = calloc(1, sizeof *f);
    api_fixture_init(f, NULL);
}

static void teardown(void) {
    api_fixture_deinit(f);
    free(f);
    unlink(path);
    ck_assert_int_eq(rmdir(directory), 0);
}

static struct stats_view count(const struct resume *resume) {
    struct stats_view view = {0};
    resume_count(resume, f->api, &view);
    return view;
}

START_TEST(what_the_api_says_lies_in_the_run_directory) {
    struct api_journal journal;
    struct resume *resume = resume_create(true, 1000000);
    resume_journal(resume, &journal);
    ck_assert_uint_eq(journal.begin(journal.ctx, "early", 5), 0);    // not open yet
    resume_open(resume, directory, f->api);
    uint64_t entry = journal.begin(journal.ctx, "request", 7);
    ck_assert_uint_ne(entry, 0);
    ck_assert(journal.step(journal.ctx, entry, "step", 4));
    ck_assert_uint_eq(count(resume).journal_entries, 1);
    resume_close(resume, false);
    ck_assert_int_eq(access(path, F_OK), 0);
    // No request that can be read: it ends, and the file is as good as empty.
    resume = resume_create(true, 1000000);
    resume_open(resume, directory, f->api);
    ck_assert_uint_eq(count(resume).journal_entries, 0);
    resume_flush(resume);
    ck_assert_uint_eq(count(resume).journal_bytes, 16);
    resume_close(resume, true);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(who_wants_none_finds_none_and_leaves_none) {
    struct api_journal journal;
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    struct resume *resume = resume_create(false, 1000000);
    resume_journal(resume, &journal);
    ck_assert(journal.begin == NULL);
    resume_open(resume, directory, f->api);
    ck_assert_int_ne(access(path, F_OK), 0);
    resume_flush(resume);
    ck_assert_uint_eq(count(resume).journal_bytes, 0);
    resume_close(resume, true);
}
END_TEST

START_TEST(a_journal_that_cannot_be_is_a_warning) {
    struct api_journal journal;
    struct resume *resume = resume_create(true, 1000000);
    resume_journal(resume, &journal);
    resume_open(resume, "/nowhere/at/all", f->api);
    ck_assert_uint_eq(journal.begin(journal.ctx, "request", 7), 0);
    ck_assert(!journal.step(journal.ctx, 1, "step", 4));
    journal.end(journal.ctx, 1);
    resume_flush(resume);
    resume_close(resume, true);
    char *long_path = calloc(1, 8192);
    memset(long_path, 'x', 8000);
    resume = resume_create(true, 1000000);
    resume_open(resume, long_path, f->api);
    resume_close(resume, false);
    free(long_path);
}
END_TEST

Suite *suite_resume(void) {
    Suite *suite = suite_create("controller/resume");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, what_the_api_says_lies_in_the_run_directory);
    tcase_add_test(tcase, who_wants_none_finds_none_and_leaves_none);
    tcase_add_test(tcase, a_journal_that_cannot_be_is_a_warning);
    suite_add_tcase(suite, tcase);
    return suite;
}
