// SPDX-License-Identifier: Apache-2.0
// Goal: what was flushed comes back, whole or not at all, whatever became of the file.
// Method: real files in a directory of their own, cut at every byte, with every bit turned over.
#include "controller/journal.h"

#include "common/memory.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES_MAX = 16, TEXT_BYTES = 4096 };

static char directory[64], path[96];

// What an opened journal told of, steps joined by '|'.
static struct {
    uint64_t entry;
    uint32_t lives;
    char begin[TEXT_BYTES], steps[TEXT_BYTES];
} found[ENTRIES_MAX];
static uint32_t found_count;
static bool useless;    // nothing is of use

static bool on_found(void *ctx, const struct journal_unfinished *unfinished) {
    ck_assert_ptr_null(ctx);
    ck_assert_uint_lt(found_count, ENTRIES_MAX);
    ck_assert_uint_lt(unfinished->begin_bytes, TEXT_BYTES);
    found[found_count].entry = unfinished->entry;
    found[found_count].lives = unfinished->lives;
    memset(found[found_count].begin, 0, TEXT_BYTES);
    if (unfinished->begin_bytes > 0) {
        memcpy(found[found_count].begin, unfinished->begin, unfinished->begin_bytes);
    }
    char *out = found[found_count].steps;
    for (size_t at = 0; at < unfinished->steps_bytes;) {
        uint32_t length = 0;
        memcpy(&length, unfinished->steps + at, sizeof length);
        ck_assert_uint_lt((size_t)(out - found[found_count].steps) + length + 2, TEXT_BYTES);
        memcpy(out, unfinished->steps + at + sizeof length, length);
        out += length;
        *out++ = '|';
        at += sizeof length + length;
    }
    *out = '\0';
    found_count++;
    return !useless;
}

static struct journal *open_journal(void) {
    struct journal *journal = NULL;
    struct error err = {0};
    found_count = 0;
    ck_assert_msg(journal_open(path, on_found, NULL, &journal, &err) == STATUS_OK, "%s",
                  err.message);
    return journal;
}

static uint64_t begin(struct journal *journal, const char *text) {
    return journal_begin(journal, text, strlen(text));
}

static bool step(struct journal *journal, uint64_t entry, const char *text) {
    return journal_step(journal, entry, text, strlen(text));
}

static struct journal_counters count(const struct journal *journal) {
    struct journal_counters counters;
    journal_count(journal, &counters);
    return counters;
}

static size_t file_size(void) {
    struct stat st;
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

static void write_file(const uint8_t *bytes, size_t byte_count) {
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, byte_count, file), byte_count);
    ck_assert_int_eq(fclose(file), 0);
}

static void put(struct buf *out, enum journal_kind kind, uint64_t entry, const char *text) {
    const struct journal_record record = {kind, entry, (const uint8_t *)text, strlen(text)};
    journal_put(out, &record);
}

static void setup(void) {
    snprintf(directory, sizeof directory, "/tmp/tare-journal-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/journal", directory);
    useless = false;
}

static void teardown(void) {
    unlink(path);
    ck_assert_int_eq(rmdir(directory), 0);    // nothing else stays
}

START_TEST(what_is_unfinished_comes_back) {
    struct journal *journal = open_journal();
    ck_assert_uint_eq(found_count, 0);
    uint64_t a = begin(journal, "a");
    uint64_t b = begin(journal, "b");
    ck_assert(step(journal, b, "b1") && step(journal, a, "a1"));
    uint64_t c = begin(journal, "c");
    ck_assert(step(journal, a, "a2") && step(journal, c, ""));
    journal_end(journal, b);
    ck_assert(!step(journal, b, "b2"));
    journal_end(journal, b);
    ck_assert_uint_eq(count(journal).entries, 2);
    journal_close(journal, false);

    journal = open_journal();
    ck_assert_uint_eq(found_count, 2);
    ck_assert_uint_eq(found[0].entry, a);
    ck_assert_str_eq(found[0].begin, "a");
    ck_assert_str_eq(found[0].steps, "a1|a2|");
    ck_assert_uint_eq(found[0].lives, 1);
    ck_assert_uint_eq(found[1].entry, c);
    ck_assert_str_eq(found[1].steps, "|");
    // It goes on where it was, and new ones are others.
    ck_assert(step(journal, a, "a3"));
    uint64_t d = begin(journal, "d");
    ck_assert(d != a && d != b && d != c);
    journal_end(journal, c);
    journal_close(journal, false);

    journal = open_journal();
    ck_assert_uint_eq(found_count, 2);
    ck_assert_str_eq(found[0].steps, "a1|a2|a3|");
    ck_assert_uint_eq(found[0].lives, 2);
    ck_assert_str_eq(found[1].begin, "d");
    ck_assert_uint_eq(found[1].lives, 1);
    journal_close(journal, false);
}
END_TEST

START_TEST(what_kills_every_controller_is_dropped) {
    struct journal *journal = open_journal();
    begin(journal, "poison");
    for (uint32_t life = 1; life < JOURNAL_LIVES_MAX; life++) {
        journal_close(journal, false);
        journal = open_journal();
        ck_assert_uint_eq(found_count, 1);
        ck_assert_uint_eq(found[0].lives, life);
    }
    journal_close(journal, false);
    journal = open_journal();
    ck_assert_uint_eq(found_count, 0);
    ck_assert_uint_eq(count(journal).entries, 0);
    journal_close(journal, false);
    ck_assert_uint_eq(file_size(), 0);
}
END_TEST

START_TEST(what_is_of_no_use_ends) {
    struct journal *journal = open_journal();
    begin(journal, "of a key that is gone");
    journal_close(journal, false);
    useless = true;
    journal = open_journal();
    ck_assert_uint_eq(found_count, 1);
    ck_assert_uint_eq(count(journal).entries, 0);
    journal_close(journal, false);
}
END_TEST

START_TEST(a_flush_is_a_write_and_the_last_end_erases) {
    struct journal *journal = open_journal();
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    uint64_t a = begin(journal, "prompt");
    ck_assert_uint_eq(file_size(), JOURNAL_HEAD_BYTES);
    journal_flush(journal);
    size_t size = file_size();
    ck_assert_uint_eq(size, JOURNAL_HEAD_BYTES + JOURNAL_RECORD_HEAD_BYTES + 6);
    ck_assert_uint_eq(count(journal).bytes, size);
    step(journal, a, "xy");
    ck_assert_uint_eq(file_size(), size);
    journal_flush(journal);
    ck_assert_uint_eq(file_size(), size + JOURNAL_RECORD_HEAD_BYTES + 2);
    uint64_t b = begin(journal, "other");
    journal_end(journal, a);
    journal_flush(journal);
    ck_assert_uint_gt(file_size(), size);
    journal_end(journal, b);
    journal_flush(journal);
    ck_assert_uint_eq(file_size(), JOURNAL_HEAD_BYTES);
    // One that ends before the flush is never written.
    journal_end(journal, begin(journal, "short"));
    journal_flush(journal);
    ck_assert_uint_eq(file_size(), JOURNAL_HEAD_BYTES);
    a = begin(journal, "again");
    journal_close(journal, true);
    ck_assert_int_ne(stat(path, &st), 0);
}
END_TEST

// Three entries, one of them ended; returns where each record ends.
static uint32_t sample(struct buf *out, size_t ends[16]) {
    static const struct {
        enum journal_kind kind;
        unsigned entry;
        const char *text;
    } records[] = {{JOURNAL_KIND_BEGIN, 0, "first request"},
                   {JOURNAL_KIND_STEP, 0, "one"},
                   {JOURNAL_KIND_BEGIN, 1, "second"},
                   {JOURNAL_KIND_STEP, 1, "uno"},
                   {JOURNAL_KIND_STEP, 0, "two"},
                   {JOURNAL_KIND_END, 1, ""},
                   {JOURNAL_KIND_BEGIN, 2, "third"},
                   {JOURNAL_KIND_STEP, 0, "three"}};
    buf_append(out, JOURNAL_MAGIC, JOURNAL_HEAD_BYTES);
    uint32_t n = 0;
    for (; n < sizeof records / sizeof records[0]; n++) {
        uint64_t entry = (uint64_t)(records[n].entry + 1) << 20 | records[n].entry;
        put(out, records[n].kind, entry, records[n].text);
        ends[n] = out->bytes_used;
    }
    return n;
}

// The first entry's steps must be a beginning of these.
static void check_beginning(void) {
    for (uint32_t i = 0; i < found_count; i++) {
        bool first = strcmp(found[i].begin, "first request") == 0;
        bool known =
            first || strcmp(found[i].begin, "second") == 0 || strcmp(found[i].begin, "third") == 0;
        ck_assert_msg(known, "an entry that nobody wrote: %s", found[i].begin);
        const char *all = first ? "one|two|three|" : "uno|";
        ck_assert_msg(strncmp(all, found[i].steps, strlen(found[i].steps)) == 0,
                      "steps that nobody wrote: %s", found[i].steps);
    }
}

START_TEST(a_file_that_is_cut_anywhere_counts_up_to_the_last_whole_record) {
    struct buf bytes;
    size_t ends[16];
    buf_init(&bytes, 1 << 20);
    uint32_t records = sample(&bytes, ends);
    for (size_t size = 0; size <= bytes.bytes_used; size++) {
        write_file(bytes.data, size);
        struct journal *journal = open_journal();
        uint32_t whole = 0;
        while (whole < records && ends[whole] <= size) {
            whole++;
        }
        static const uint32_t entries[] = {0, 1, 1, 2, 2, 2, 1, 2, 2};
        static const char *const steps[] = {
            "", "", "one|", "one|", "one|", "one|two|", "one|two|", "one|two|", "one|two|three|"};
        ck_assert_uint_eq(found_count, entries[whole]);
        ck_assert_str_eq(found_count > 0 ? found[0].steps : "", steps[whole]);
        check_beginning();
        // What is written now lies behind whole records.
        uint64_t mine = begin(journal, "mine");
        journal_close(journal, false);
        journal = open_journal();
        ck_assert_uint_eq(found_count, entries[whole] + 1);
        ck_assert_uint_eq(found[found_count - 1].entry, mine);
        ck_assert_str_eq(found[found_count - 1].begin, "mine");
        journal_close(journal, true);
    }
    buf_deinit(&bytes);
}
END_TEST

START_TEST(a_bit_that_is_turned_over_invents_nothing) {
    struct buf bytes;
    size_t ends[16];
    buf_init(&bytes, 1 << 20);
    sample(&bytes, ends);
    for (size_t bit = 0; bit < bytes.bytes_used * 8; bit++) {
        bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        write_file(bytes.data, bytes.bytes_used);
        bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct journal *journal = open_journal();
        check_beginning();
        uint32_t before = 0;    // records in front of the damage
        while (bit / 8 >= JOURNAL_HEAD_BYTES && ends[before] <= bit / 8) {
            before++;
        }
        ck_assert_uint_eq(found_count > 0, before > 0);
        journal_close(journal, true);
    }
    buf_deinit(&bytes);
}
END_TEST

START_TEST(records_that_cannot_be_end_the_file) {
    static const uint64_t first = 1u << 20, second = 2u << 20 | 1;
    static const struct {
        enum journal_kind kind;
        uint64_t entry;
    } bad[] = {{JOURNAL_KIND_BEGIN, first},           // again
               {JOURNAL_KIND_BEGIN, 0},               // nobody's
               {JOURNAL_KIND_BEGIN, 3u << 20},        // the place of another
               {JOURNAL_KIND_BEGIN, 1u << 20 | 5},    // a serial number that was
               {(enum journal_kind)9, second}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct buf bytes;
        buf_init(&bytes, 1 << 20);
        buf_append(&bytes, JOURNAL_MAGIC, JOURNAL_HEAD_BYTES);
        put(&bytes, JOURNAL_KIND_BEGIN, first, "a");
        put(&bytes, JOURNAL_KIND_STEP, second, "of nobody");    // harmless
        put(&bytes, JOURNAL_KIND_END, second, "");
        put(&bytes, bad[i].kind, bad[i].entry, "bad");
        put(&bytes, JOURNAL_KIND_STEP, first, "behind");
        write_file(bytes.data, bytes.bytes_used);
        buf_deinit(&bytes);
        struct journal *journal = open_journal();
        ck_assert_uint_eq(found_count, 1);
        ck_assert_str_eq(found[0].begin, "a");
        ck_assert_str_eq(found[0].steps, "");
        journal_close(journal, true);
    }
}
END_TEST

START_TEST(a_file_of_another_version_is_begun_anew) {
    write_file((const uint8_t *)"tare journal 0\n\0and more of it", 30);
    struct journal *journal = open_journal();
    ck_assert_uint_eq(found_count, 0);
    begin(journal, "mine");
    journal_close(journal, false);
    journal = open_journal();
    ck_assert_uint_eq(found_count, 1);
    journal_close(journal, true);
}
END_TEST

START_TEST(no_journal_where_a_link_or_a_directory_lies) {
    struct journal *journal = NULL;
    struct error err = {0};
    ck_assert_int_eq(symlink("/dev/null", path), 0);
    ck_assert_int_eq(journal_open(path, on_found, NULL, &journal, &err), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.message, path));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(journal_open(path, on_found, NULL, &journal, &err), STATUS_IO);
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_file_of_the_dead_is_rewritten) {
    enum { STEP_BYTES = 64 * 1024, ROUNDS = 200 };
    char *bytes = calloc(1, STEP_BYTES);
    struct journal *journal = open_journal();
    uint64_t stays = begin(journal, "stays");
    size_t most = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t goes = begin(journal, "goes");
        ck_assert(journal_step(journal, goes, bytes, STEP_BYTES));
        if (i % 20 == 0) {
            step(journal, stays, "s");
        }
        journal_end(journal, goes);
        journal_flush(journal);
        ck_assert_uint_eq(file_size(), count(journal).bytes);
        most = file_size() > most ? file_size() : most;
    }
    ck_assert_uint_lt(most, 1024 * 1024 + 2 * STEP_BYTES);
    step(journal, stays, "last");    // into the new file
    journal_close(journal, false);
    journal = open_journal();
    ck_assert_uint_eq(found_count, 1);
    ck_assert_uint_eq(found[0].entry, stays);
    ck_assert_str_eq(found[0].steps, "s|s|s|s|s|s|s|s|s|s|last|");
    journal_close(journal, true);
    free(bytes);
}
END_TEST

START_TEST(a_full_disk_ends_the_journal_and_nothing_else) {
    signal(SIGXFSZ, SIG_IGN);
    struct journal *journal = open_journal();
    uint64_t a = begin(journal, "a");
    journal_flush(journal);
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    struct rlimit small = {file_size() + 10, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert(step(journal, a, "more than there is room for"));
    journal_flush(journal);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert(count(journal).failed);
    ck_assert_uint_eq(count(journal).entries, 0);
    ck_assert_int_ne(access(path, F_OK), 0);    // half a response must not be continued
    ck_assert(!step(journal, a, "b"));
    ck_assert_uint_eq(begin(journal, "c"), 0);
    journal_end(journal, a);
    journal_flush(journal);
    journal_close(journal, false);
}
END_TEST

START_TEST(what_is_too_large_is_not_journalled) {
    struct journal *journal = open_journal();
    uint64_t a = begin(journal, "a");
    char byte = 0;
    ck_assert_uint_eq(journal_begin(journal, &byte, JOURNAL_RECORD_BYTES_MAX + 1), 0);
    ck_assert_uint_eq(count(journal).refused, 1);
    ck_assert(!journal_step(journal, a, &byte, JOURNAL_RECORD_BYTES_MAX + 1));
    ck_assert_uint_eq(count(journal).entries, 0);    // a hole must not be continued
    ck_assert_uint_eq(count(journal).refused, 2);
    ck_assert(!count(journal).failed);
    journal_close(journal, false);
}
END_TEST

START_TEST(many_at_once_keep_apart) {
    enum { MANY = 3000 };
    uint64_t *entries = calloc(MANY, sizeof *entries);
    struct journal *journal = open_journal();
    for (uint32_t i = 0; i < MANY; i++) {
        entries[i] = begin(journal, "x");
    }
    for (uint32_t i = 0; i < MANY; i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", i);
        ck_assert(step(journal, entries[i], text));
    }
    for (uint32_t i = 0; i < MANY; i++) {
        if (i % 1000 != 7) {
            journal_end(journal, entries[i]);
        }
    }
    ck_assert_uint_eq(count(journal).entries, 3);
    journal_close(journal, false);
    journal = open_journal();
    ck_assert_uint_eq(found_count, 3);
    ck_assert_str_eq(found[0].steps, "7|");
    ck_assert_str_eq(found[1].steps, "1007|");
    ck_assert_str_eq(found[2].steps, "2007|");
    journal_close(journal, true);
    free(entries);
}
END_TEST

START_TEST(without_memory_it_opens_or_says_so) {
    struct buf bytes;
    size_t ends[16];
    buf_init(&bytes, 1 << 20);
    sample(&bytes, ends);
    bool opened = false;
    for (uint64_t nth = 1; !opened; nth++) {
        ck_assert_uint_lt(nth, 100);
        write_file(bytes.data, bytes.bytes_used);
        struct journal *journal = NULL;
        struct error err = {0};
        found_count = 0;
        memory_fail_nth(nth);
        enum status status = journal_open(path, on_found, NULL, &journal, &err);
        memory_fail_nth(0);
        ck_assert(status == STATUS_OK || status == STATUS_EXHAUSTED);
        check_beginning();
        opened = status == STATUS_OK && found_count == 2 && !count(journal).failed;
        if (status == STATUS_OK) {
            journal_close(journal, true);
        }
    }
    buf_deinit(&bytes);
}
END_TEST

START_TEST(nothing_is_a_journal_too) {
    journal_flush(NULL);
    ck_assert_uint_eq(journal_begin(NULL, "a", 1), 0);
    ck_assert(!journal_step(NULL, 1, "a", 1));
    journal_end(NULL, 1);
    ck_assert_uint_eq(count(NULL).bytes, 0);
    journal_close(NULL, true);
}
END_TEST

Suite *suite_journal(void) {
    Suite *suite = suite_create("controller/journal");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_is_unfinished_comes_back);
    tcase_add_test(tcase, what_kills_every_controller_is_dropped);
    tcase_add_test(tcase, what_is_of_no_use_ends);
    tcase_add_test(tcase, a_flush_is_a_write_and_the_last_end_erases);
    tcase_add_test(tcase, a_file_that_is_cut_anywhere_counts_up_to_the_last_whole_record);
    tcase_add_test(tcase, a_bit_that_is_turned_over_invents_nothing);
    tcase_add_test(tcase, records_that_cannot_be_end_the_file);
    tcase_add_test(tcase, a_file_of_another_version_is_begun_anew);
    tcase_add_test(tcase, no_journal_where_a_link_or_a_directory_lies);
    tcase_add_test(tcase, a_file_of_the_dead_is_rewritten);
    tcase_add_test(tcase, a_full_disk_ends_the_journal_and_nothing_else);
    tcase_add_test(tcase, what_is_too_large_is_not_journalled);
    tcase_add_test(tcase, many_at_once_keep_apart);
    tcase_add_test(tcase, without_memory_it_opens_or_says_so);
    tcase_add_test(tcase, nothing_is_a_journal_too);
    suite_add_tcase(suite, tcase);
    return suite;
}
