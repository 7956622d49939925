// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_WORKER_COMM_GROUP_H
#define TESTS_UNIT_WORKER_COMM_GROUP_H

#include "worker/comm/collective.h"
#include <stdatomic.h>

// Groups for tests: ranks on threads or in processes that exchange random messages and compare
// every one with its definition.
//
//   Owns nothing.  Thread any.  Allocates with malloc.  Fails by check's assertions, or with an
//   exit code where ranks are processes.

// A new communicator id.
void group_id(char out[COLLECTIVE_ID_BYTES]);

struct group_rank {
    uint32_t rank, world;
    uint64_t epoch;
    const char *comm_id;
    uint64_t buffer_bytes;
    uint64_t seed;             // of the messages, the same on every rank
    uint32_t message_count;    // exchanged before the rank leaves; 0: until it is broken
    size_t floats_max;         // of one message
    _Atomic uint32_t *done;    // counts messages, NULL: nobody asks
};

enum group_end {
    GROUP_END_OK,
    GROUP_END_BROKEN,
    GROUP_END_WRONG,     // a message was not what it should be
    GROUP_END_ABSENT,    // attach failed
};

// A rank's whole life with its own collective, or in one that exists.
enum group_end group_rank_run(const struct group_rank *rank);
enum group_end group_exchange(struct collective *collective, const struct group_rank *rank);

// All ranks of `rank->world`: on threads, and in processes, each kept waiting for at most the
// test's time. The worst end.
enum group_end group_threads(const struct group_rank *rank);
enum group_end group_processes(const struct group_rank *rank);

// Whether the region of this id has a name.
bool group_file_exists(const char *id);

#endif
