// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_NET_EPOCH_FILE_H
#define CONTROLLER_NET_EPOCH_FILE_H

#include "common/status.h"
#include <stdint.h>

// The last epoch that was ever used, on disk before it is used.
//
// The idea: whatever an older epoch says is dropped, so no epoch may come twice, not even after the
// machine lost power in the middle. One record of 16 bytes, written beside the old one, flushed,
// and put in its place in one move: there is always a whole one.
//
//   record     magic (4 bytes), CRC-32C of the epoch (4), epoch (8), little-endian
//
//   Owns       nothing but a copy of the path.
//   Thread     one.
//   Allocates  never.
//   Fails      open: CORRUPT naming file and remedy, IO; raise: IO, and the epoch is then not used.

enum { EPOCH_FILE_PATH_BYTES = 4200 };

struct epoch_file {
    char path[EPOCH_FILE_PATH_BYTES];
    uint64_t epoch;    // the last one that is on disk
};

// The file `epoch` in `directory`; without one the last epoch is 0.
enum status epoch_file_open(struct epoch_file *file, const char *directory,
                            struct error *err) MUST_USE;
// Keeps `epoch`, which is larger than all before.
enum status epoch_file_raise(struct epoch_file *file, uint64_t epoch, struct error *err) MUST_USE;

#endif
