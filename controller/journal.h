// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_JOURNAL_H
#define CONTROLLER_JOURNAL_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What streamed responses need to go on under a next controller, in one file that only grows.
//
// The idea: an entry is one response: a record with which it begins, one for each step of it that
// became events, one with which it ends. Records lie in the order of time, each with its length and
// checksum, so that a file that a dying process left is used up to the last whole one. They are
// collected in memory and written with one call by journal_flush, which comes before the turn's
// events leave: what a client has seen is in the file.
//
// It protects from the death of the process, not from that of the machine: what was written is the
// kernel's, and survives us without fsync, which would make every step wait for a disk. Workers,
// and with them the KV, would not survive the machine either.
//
// The file holds prompts and answers (mode 0600). An entry that has ended is gone from it at once
// when it was the last one, else when the dead make up half of the file, which is then rewritten.
//
//   Owns       the file.
//   Thread     the loop thread.
//   Allocates  by doubling: records that wait for the flush, a place per unfinished entry.
//   Fails      open: IO, PERMISSION. A file of another version, or what lies behind the last whole
//              record, is dropped with a warning. Writing that fails ends the journal with one
//              warning and removes the file, since half of a response must not be continued; all
//              functions then do nothing.

enum {
    JOURNAL_BYTES_MAX = 256 * 1024 * 1024,    // of the file: further responses are not journalled
    JOURNAL_RECORD_BYTES_MAX = 64 * 1024 * 1024,
    // Controllers that may have had an entry: one more, and it is taken for what kills them.
    JOURNAL_LIVES_MAX = 3,
};

struct journal;

// A response that an earlier controller did not finish.
struct journal_unfinished {
    uint64_t entry;
    uint32_t lives;    // controllers that had it
    const uint8_t *begin;
    size_t begin_bytes;
    // Each step as its length, a uint32_t, and its bytes.
    const uint8_t *steps;
    size_t steps_bytes;
};
// False: it is no use, and ends.
typedef bool (*journal_found_fn)(void *ctx, const struct journal_unfinished *found);

// Reads what is there, tells of unfinished entries in the order in which they began, and goes on
// behind it.
enum status journal_open(const char *path, journal_found_fn found, void *ctx, struct journal **out,
                         struct error *err) MUST_USE;
// Removes the file when nothing is unfinished in it, or with `erase`. Accepts NULL.
void journal_close(struct journal *journal, bool erase);

// The entry's id, or 0: it is not journalled. `size` bytes of `bytes` are copied.
uint64_t journal_begin(struct journal *journal, const void *bytes, size_t size);
// An entry that no longer fits is ended: false.
bool journal_step(struct journal *journal, uint64_t entry, const void *bytes, size_t size);
void journal_end(struct journal *journal, uint64_t entry);
void journal_flush(struct journal *journal);

struct journal_counters {
    uint64_t bytes;      // of the file
    uint32_t entries;    // unfinished
    uint64_t refused;    // responses that were not journalled, or no longer
    bool failed;         // writing failed: nothing is journalled any more
};
void journal_count(const struct journal *journal, struct journal_counters *out);

// ---- the bytes ---------------------------------------------------------------------------------

enum journal_kind {
    JOURNAL_KIND_BEGIN = 1,
    JOURNAL_KIND_STEP,
    JOURNAL_KIND_END,
    JOURNAL_KIND_LIFE,    // another controller has taken it over
};

struct journal_record {
    enum journal_kind kind;
    uint64_t entry;
    const uint8_t *payload;
    size_t payload_bytes;
};

enum { JOURNAL_HEAD_BYTES = 16, JOURNAL_RECORD_HEAD_BYTES = 17 };
extern const char JOURNAL_MAGIC[JOURNAL_HEAD_BYTES];

// Reads the record at `*at` and moves behind it. False at the end, or where no whole one lies.
bool journal_next(const uint8_t *bytes, size_t size, size_t *at, struct journal_record *out);
void journal_put(struct buf *out, const struct journal_record *record);

#endif
