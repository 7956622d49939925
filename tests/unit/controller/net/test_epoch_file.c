// SPDX-License-Identifier: Apache-2.0
// Goal: an epoch is on disk before it counts, a damaged file is an error with a remedy, never an
// epoch. Method: the file written, read again, and damaged in each byte and at each length.
#include "controller/net/epoch_file.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];
static struct epoch_file file;

static void setup(void) {
    snprintf(directory, sizeof directory, "/tmp/tare-epoch-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(epoch_file_open(&file, directory, NULL), STATUS_OK);
}

static void teardown(void) {
    char beside[sizeof file.path + 8];
    snprintf(beside, sizeof beside, "%s.new", file.path);
    unlink(beside);
    unlink(file.path);
    rmdir(directory);
}

static void write_bytes(const uint8_t *bytes, size_t byte_count) {
    int fd = open(file.path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, bytes, byte_count), (ssize_t)byte_count);
    close(fd);
}

START_TEST(the_last_epoch_is_found_again) {
    ck_assert_uint_eq(file.epoch, 0);
    ck_assert_int_eq(epoch_file_raise(&file, 1, NULL), STATUS_OK);
    ck_assert_int_eq(epoch_file_raise(&file, UINT64_MAX - 1, NULL), STATUS_OK);
    struct epoch_file again;
    ck_assert_int_eq(epoch_file_open(&again, directory, NULL), STATUS_OK);
    ck_assert_uint_eq(again.epoch, UINT64_MAX - 1);
    struct stat info;
    ck_assert_int_eq(stat(file.path, &info), 0);
    ck_assert_int_eq(info.st_size, 16);
    ck_assert_int_eq(info.st_mode & 0777, 0600);
}
END_TEST

START_TEST(every_damage_is_an_error_with_a_remedy) {
    ck_assert_int_eq(epoch_file_raise(&file, 0x0102030405060708, NULL), STATUS_OK);
    uint8_t record[17] = {0};
    int fd = open(file.path, O_RDONLY);
    ck_assert_int_eq(read(fd, record, sizeof record), 16);
    close(fd);
    struct epoch_file again;
    for (size_t at = 0; at < 16; at++) {
        record[at] ^= 0x40;
        write_bytes(record, 16);
        struct error err = {0};
        ck_assert_int_eq(epoch_file_open(&again, directory, &err), STATUS_CORRUPT);
        ck_assert_ptr_nonnull(strstr(err.message, file.path));
        ck_assert_ptr_nonnull(strstr(err.hint, "remove the file"));
        record[at] ^= 0x40;
    }
    for (size_t length = 0; length <= sizeof record; length++) {
        write_bytes(record, length);
        ck_assert_int_eq(epoch_file_open(&again, directory, NULL),
                         length == 16 ? STATUS_OK : STATUS_CORRUPT);
    }
}
END_TEST

// One in its place would hold the loop until somebody writes into it.
START_TEST(a_pipe_is_no_epoch_file) {
    ck_assert_int_eq(mkfifo(file.path, 0600), 0);
    struct epoch_file again;
    ck_assert_int_eq(epoch_file_open(&again, directory, NULL), STATUS_CORRUPT);
}
END_TEST

// What cannot be kept is not used.
START_TEST(an_epoch_that_cannot_be_written_does_not_count) {
    ck_assert_int_eq(epoch_file_raise(&file, 5, NULL), STATUS_OK);
    char path[sizeof file.path];
    memcpy(path, file.path, sizeof path);
    snprintf(file.path, sizeof file.path, "%s/nowhere/epoch", directory);
    struct error err = {0};
    ck_assert_int_eq(epoch_file_raise(&file, 6, &err), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "nowhere"));
    ck_assert_uint_eq(file.epoch, 5);
    memcpy(file.path, path, sizeof path);
}
END_TEST

Suite *suite_epoch_file(void) {
    Suite *suite = suite_create("controller/net/epoch_file");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_last_epoch_is_found_again);
    tcase_add_test(tc, every_damage_is_an_error_with_a_remedy);
    tcase_add_test(tc, a_pipe_is_no_epoch_file);
    tcase_add_test(tc, an_epoch_that_cannot_be_written_does_not_count);
    suite_add_tcase(suite, tc);
    return suite;
}
