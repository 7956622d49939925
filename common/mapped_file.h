// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_MAPPED_FILE_H
#define COMMON_MAPPED_FILE_H

#include "common/status.h"
#include <stdint.h>

// A whole regular file as bytes in memory, read-only.
//
// The idea: parsers take (bytes, length) and never touch files; this is the one place that turns a
// path into both. Pages come from the page cache when they are read, so a model of any size costs
// nothing before. A file that shrinks while it is mapped ends the process that reads the lost part
// (SIGBUS). Opening never waits, whatever lies at the path.
//
//   Owns       the mapping.
//   Thread     any; immutable after open.
//   Allocates  never.
//   Fails      NOT_FOUND when absent, CORRUPT when no regular file or past `bytes_max`, IO. The
//              sentence names the path.

struct mapped_file {
    const uint8_t *bytes;    // "" for an empty file, never NULL once open
    uint64_t byte_count;
    uint64_t mtime_ns;
    void *mapping;    // NULL for an empty file
};

enum status mapped_file_open(const char *path, uint64_t bytes_max, struct mapped_file *out,
                             struct error *err) MUST_USE;
void mapped_file_close(struct mapped_file *file);    // accepts a zeroed one

// A part of a mapped file that will not be read soon: the whole pages inside it leave this process,
// and come back from the file should anybody read them after all. Neighbours stay.
void mapped_file_give_back(const uint8_t *part, uint64_t byte_count);

#endif
