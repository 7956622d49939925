// SPDX-License-Identifier: Apache-2.0
// Goal: a regular file is mapped as it is and everything else is named with its fault; pages that
// are given back leave, and no others.
// Method: files of a few pages; the kernel's own page map says what is present; a child process
// reads what a shrinking file has lost.
#include "common/mapped_file.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 8, CHILD_LOST_A_PAGE = 7 };

static char folder[64];
static char path[96];
static size_t page_bytes;

static void set_up(void) {
    snprintf(folder, sizeof folder, "/tmp/tare-mapped-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
}

static void tear_down(void) {
    unlink(path);
    rmdir(folder);
}

static uint8_t byte_of(size_t at) {
    return (uint8_t)(at / page_bytes * 31 + at % 251);
}

static void write_file(size_t byte_count) {
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < byte_count; i++) {
        fputc(byte_of(i), file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static struct mapped_file open_good(uint64_t bytes_max) {
    struct mapped_file file;
    struct error err = {0};
    ck_assert_msg(mapped_file_open(path, bytes_max, &file, &err) == STATUS_OK, "%s", err.message);
    return file;
}

static void refused(enum status status, const char *word) {
    struct mapped_file file;
    struct error err = {0};
    ck_assert_int_eq(mapped_file_open(path, 100, &file, &err), status);
    ck_assert_ptr_nonnull(strstr(err.message, path));
    ck_assert_msg(strstr(err.message, word) != NULL, "%s", err.message);
}

static bool same(const struct mapped_file *file) {
    for (size_t i = 0; i < file->byte_count; i++) {
        if (file->bytes[i] != byte_of(i)) {
            return false;
        }
    }
    return true;
}

START_TEST(a_file_is_mapped_up_to_the_limit) {
    write_file(100);
    struct mapped_file file = open_good(100);
    ck_assert_uint_eq(file.byte_count, 100);
    ck_assert(same(&file));
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(file.mtime_ns / 1000000000u, (uint64_t)info.st_mtim.tv_sec);
    unlink(path);
    ck_assert(same(&file));    // the mapping needs no name
    mapped_file_close(&file);
    mapped_file_close(&file);
    ck_assert_ptr_null(file.bytes);
    write_file(101);
    refused(STATUS_CORRUPT, "101 bytes; the limit is 100");
}
END_TEST

START_TEST(an_empty_file_has_bytes_to_point_at) {
    write_file(0);
    struct mapped_file file = open_good(0);
    ck_assert_uint_eq(file.byte_count, 0);
    ck_assert_ptr_nonnull(file.bytes);
    mapped_file_give_back(file.bytes, file.byte_count);
    mapped_file_close(&file);
}
END_TEST

START_TEST(what_is_no_regular_file_is_named_and_not_waited_for) {
    refused(STATUS_NOT_FOUND, "No such file");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    refused(STATUS_CORRUPT, "not a regular file");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    refused(STATUS_CORRUPT, "not a regular file");
    unlink(path);
    ck_assert_int_eq(symlink(path, path), 0);
    refused(STATUS_IO, "symbolic links");
}
END_TEST

static void on_bus(int number) {
    (void)number;
    _exit(CHILD_LOST_A_PAGE);
}

START_TEST(a_file_that_shrank_keeps_what_is_left) {
    write_file(2 * page_bytes);
    struct mapped_file file = open_good(UINT64_MAX);
    ck_assert_int_eq(truncate(path, (off_t)page_bytes), 0);
    ck_assert_uint_eq(file.bytes[page_bytes - 1], byte_of(page_bytes - 1));
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, on_bus);
        volatile const uint8_t *bytes = file.bytes;
        uint8_t byte = bytes[page_bytes];
        _exit(byte == 0 ? 1 : 2);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), CHILD_LOST_A_PAGE);
    mapped_file_close(&file);
}
END_TEST

// Which pages of the mapping are present in this process, one bit each.
static uint32_t present(const struct mapped_file *file) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    ck_assert_int_ge(fd, 0);
    uint64_t entries[PAGES];
    off_t at = (off_t)((uintptr_t)file->bytes / page_bytes * sizeof entries[0]);
    ck_assert_int_eq(pread(fd, entries, sizeof entries, at), (ssize_t)sizeof entries);
    close(fd);
    uint32_t bits = 0;
    for (uint32_t i = 0; i < PAGES; i++) {
        bits |= (uint32_t)(entries[i] >> 63) << i;
    }
    return bits;
}

START_TEST(only_whole_pages_inside_a_part_are_given_back) {
    write_file(PAGES * page_bytes);
    struct mapped_file file = open_good(UINT64_MAX);
    ck_assert(same(&file));
    ck_assert_uint_eq(present(&file), 0xFF);
    mapped_file_give_back(file.bytes + 1, page_bytes - 1);    // up to the end, not from the start
    mapped_file_give_back(file.bytes, page_bytes - 1);
    mapped_file_give_back(file.bytes + 10, 100);
    ck_assert_uint_eq(present(&file), 0xFF);
    mapped_file_give_back(file.bytes + 1, 4 * page_bytes);    // ends inside page 4
    ck_assert_uint_eq(present(&file), 0xF1);
    mapped_file_give_back(file.bytes + 6 * page_bytes, 2 * page_bytes);
    ck_assert_uint_eq(present(&file), 0x31);
    ck_assert(same(&file));
    mapped_file_close(&file);
}
END_TEST

Suite *suite_mapped_file(void) {
    Suite *suite = suite_create("common/mapped_file");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_file_is_mapped_up_to_the_limit);
    tcase_add_test(tc, an_empty_file_has_bytes_to_point_at);
    tcase_add_test(tc, what_is_no_regular_file_is_named_and_not_waited_for);
    tcase_add_test(tc, a_file_that_shrank_keeps_what_is_left);
    tcase_add_test(tc, only_whole_pages_inside_a_part_are_given_back);
    suite_add_tcase(suite, tc);
    return suite;
}
