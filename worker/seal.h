// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_SEAL_H
#define WORKER_SEAL_H

#include "worker/device/memory_ledger.h"
#include <stdbool.h>

// What a start weighed when it was sealed, so that the next one can be compared with it.
//
// The idea: a start that rehearsed its worst steps has proved a set of sizes. Another start of the
// same build, model, flags and device that comes to the same planned bytes and needs no more for
// anything found has nothing to prove. Seals lie as small JSON files in a directory of the user's,
// one per digest; a missing, foreign or damaged file only means that rehearsals run.
//
//   Owns       nothing.
//   Thread     any.
//   Allocates  while reading and writing.
//   Fails      write: IO naming the path. A seal that cannot be read is no failure: false.

enum { SEAL_DIGEST_BYTES = 17 };    // 16 hex digits and the end

struct seal {
    char digest[SEAL_DIGEST_BYTES];    // of build, model, flags and device
    uint64_t bytes[LEDGER_COUNT];
};

// Same digest, planned lines equal to the byte, found lines of `now` no larger than `before`.
bool seal_covers(const struct seal *before, const struct seal *now);

// Directory of the running user for seals, mode 0700; false when there is none to be had.
bool seal_default_dir(char *out, size_t out_bytes);

bool seal_read(const char *dir, const char *digest, struct seal *out);
// Makes the directory where it is missing, mode 0700. Replaces the file whole: a reader sees the
// old or the new one.
enum status seal_write(const char *dir, const struct seal *seal, struct error *err) MUST_USE;

#endif
