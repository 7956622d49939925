// SPDX-License-Identifier: Apache-2.0
#include "controller/net/epoch_file.h"

#include "common/crc32c.h"
#include "common/invariant.h"
#include "common/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_BYTES = 16, MAGIC_BYTES = 4 };
static const uint8_t magic[MAGIC_BYTES] = {'T', 'E', 'P', '1'};

static bool decode(const uint8_t *record, uint64_t *epoch) {
    *epoch = wire_get_le(record + 8, 8);
    return memcmp(record, magic, MAGIC_BYTES) == 0 &&
           wire_get_le(record + 4, 4) == crc32c(record + 8, 8);
}

enum status epoch_file_open(struct epoch_file *file, const char *directory, struct error *err) {
    snprintf(file->path, sizeof file->path, "%.4000s/epoch", directory);
    file->epoch = 0;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);    // a pipe would hold us
    if (fd < 0) {
        return errno == ENOENT ? STATUS_OK
                               : error_set_os(err, STATUS_IO, "epoch file '%s'", file->path);
    }
    uint8_t record[RECORD_BYTES + 1];
    ssize_t byte_count = read(fd, record, sizeof record);
    close(fd);
    if (byte_count != RECORD_BYTES || !decode(record, &file->epoch)) {
        error_hint(err, "which epochs were used is unknown: stop all workers of this controller, "
                        "then remove the file");
        return error_set(err, STATUS_CORRUPT, "epoch file '%s' is damaged", file->path);
    }
    return STATUS_OK;
}

static bool write_record(const char *path, const uint8_t record[RECORD_BYTES]) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    bool ok = write(fd, record, RECORD_BYTES) == RECORD_BYTES && fsync(fd) == 0;
    int code = errno;
    close(fd);
    errno = code;
    return ok;
}

// The move itself is on disk once the directory is.
static bool flush_directory(const char *path) {
    char directory[EPOCH_FILE_PATH_BYTES];
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = '\0';
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool ok = fsync(fd) == 0;
    int code = errno;
    close(fd);
    errno = code;
    return ok;
}

enum status epoch_file_raise(struct epoch_file *file, uint64_t epoch, struct error *err) {
    INVARIANT(epoch > file->epoch);
    uint8_t record[RECORD_BYTES];
    memcpy(record, magic, MAGIC_BYTES);
    wire_put_le(record + 8, epoch, 8);
    wire_put_le(record + 4, crc32c(record + 8, 8), 4);
    char beside[EPOCH_FILE_PATH_BYTES + 8];
    snprintf(beside, sizeof beside, "%s.new", file->path);
    if (!write_record(beside, record) || rename(beside, file->path) != 0 ||
        !flush_directory(file->path)) {
        error_hint(err, "no new epoch can begin before there is room and permission to write it");
        return error_set_os(err, STATUS_IO, "epoch file '%s' cannot be written", file->path);
    }
    file->epoch = epoch;
    return STATUS_OK;
}
