// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_COMM_COLLECTIVE_H
#define WORKER_COMM_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the ranks of a group say to each other inside a step.
//
// The idea: a forward function asks its reader for a sum over the ranks or for everybody's columns,
// and the same call that will run it says how large the message is. So the memory that messages
// need follows from the model's own code, like the workspace. The loopback is a group seen from one
// rank without the others: it notes messages, waits for nobody, and so serves rehearsals. A group
// of one has no collective.
//
//   Owns       nothing.
//   Thread     the step thread.
//   Allocates  never.
//   Fails      never.

struct collective;
struct collective_gather;

// Who carries the messages of a group.
struct collective_table {
    void (*all_reduce_add)(struct collective *collective, const float *part, float *y,
                           uint32_t rows, uint32_t cols);
    void (*all_gather)(struct collective *collective, const struct collective_gather *args);
    bool (*broken)(const struct collective *collective);
};

struct collective {
    const struct collective_table *table;    // NULL: the loopback
    uint32_t rank, world;
    // Recorded so far:
    uint64_t message_bytes_max;    // largest single message, over all ranks' parts
    uint64_t message_bytes;        // of all messages
    uint32_t message_count;
};

// Columns of every rank side by side: rank r's x[i, c] becomes y[i, r * x_cols + c]; columns at and
// past y_cols, padding of the last ranks, are left out.
struct collective_gather {
    const float *x;    // [rows, x_cols]
    float *y;          // [rows, y_cols]
    uint32_t row_count, x_cols, y_cols;
};

void collective_init_loopback(struct collective *collective, uint32_t rank, uint32_t world);

// y[i] += the sum over the ranks of their part[i], [rows, cols]. Groups of 2, 4 and 8 add the parts
// by pairs, ((p0 + p1) + (p2 + p3)) + ..., others from left to right; every rank gets the same
// bits. The loopback adds its own part.
void collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols);
// The loopback leaves zeros where the others' columns would be.
void collective_all_gather(struct collective *collective, const struct collective_gather *args);
// A rank was lost or the epoch ended: messages since then carried nothing and waited for nobody.
bool collective_broken(const struct collective *collective);

// Notes a message: its sum, or its gathered form, has `bytes`.
void collective_note(struct collective *collective, uint64_t bytes);

// Device memory that the recorded messages need at their largest: two buffers, since the next
// message may be written while peers still read the last one (device-memory.md section 3).
uint64_t collective_buffer_bytes(const struct collective *collective);

#endif
