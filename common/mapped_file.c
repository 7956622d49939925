// SPDX-License-Identifier: Apache-2.0
#include "common/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t NO_BYTES[1] = {0};

static enum status map(int fd, const char *path, uint64_t bytes_max, struct mapped_file *out,
                       struct error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return error_set(err, STATUS_CORRUPT, "'%s' is not a regular file", path);
    }
    uint64_t byte_count = (uint64_t)info.st_size;
    if (byte_count > bytes_max) {
        return error_set(err, STATUS_CORRUPT, "'%s' has %llu bytes; the limit is %llu", path,
                         (unsigned long long)byte_count, (unsigned long long)bytes_max);
    }
    void *mapping = NULL;
    if (byte_count > 0) {
        mapping = mmap(NULL, byte_count, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapping == MAP_FAILED) {
            return error_set_os(err, STATUS_IO, "'%s' cannot be mapped", path);
        }
    }
    *out = (struct mapped_file){
        .bytes = mapping == NULL ? NO_BYTES : mapping,
        .byte_count = byte_count,
        .mtime_ns = (uint64_t)info.st_mtim.tv_sec * 1000000000u + (uint64_t)info.st_mtim.tv_nsec,
        .mapping = mapping,
    };
    return STATUS_OK;
}

enum status mapped_file_open(const char *path, uint64_t bytes_max, struct mapped_file *out,
                             struct error *err) {
    // Without O_NONBLOCK a named pipe would hold us until somebody writes into it.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_set_os(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO,
                            "'%s' cannot be opened", path);
    }
    enum status status = map(fd, path, bytes_max, out, err);
    close(fd);
    return status;
}

void mapped_file_close(struct mapped_file *file) {
    if (file->mapping != NULL) {
        munmap(file->mapping, file->byte_count);
    }
    memset(file, 0, sizeof *file);
}

void mapped_file_give_back(const uint8_t *part, uint64_t byte_count) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)part + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)part + byte_count) & ~(page - 1);
    if (end > begin) {
        madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}
