// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_COMM_COLLECTIVE_H
#define WORKER_COMM_COLLECTIVE_H

#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the ranks of a group say to each other inside a step.
//
// The idea: a forward function asks its reader for a sum over the ranks or for everybody's columns,
// and the same call that will run it says how large the message is. So the memory that messages
// need follows from the model's own code, like the workspace. A collective is one object for the
// life of a worker, whose address may be captured; an epoch attaches it to the other ranks and the
// next one attaches it anew.
//
//   broken ──attach──► attached ──abort, or a lost peer──► broken
//
//   attached   the calls wait for the other ranks; all of them make the same calls in the same
//              order.
//   broken     and before the first attach: the calls return at once, and what they were to write
//              is undefined. Whoever runs a step looks once, after it (collective_broken).
//
// Sums are added in one fixed order on every rank, and every rank gets the same bits: worlds of 2,
// 4 and 8 in pairs, ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)), others from rank 0 upwards; the sum is
// added to y last.
//
//   loopback   a group seen from one rank without the others: sums are its own part, others'
//              columns are zeros, nobody is waited for. A rank rehearses with it; and it notes
//              messages, for their sizes.
//   shm        processes of one host, through shared memory; the cpu device.
//   nccl       devices of one host; compiled where nccl.h is found, and part of the CUDA plug-in,
//   so
//              that programs run without the library.
//
//   Owns       what its implementation needs; the buffers' memory is planned on the ledger.
//   Thread     the step thread; collective_abort from any.
//   Allocates  in create and attach.
//   Fails      attach, with a sentence. A message never fails: it breaks the collective.

struct collective;

// One rank's view of a group. The first members are the caller's to read.
struct collective {
    const struct collective_table *table;
    uint32_t rank, world;
    // Noted so far (collective_note):
    uint64_t message_bytes_max;    // largest single message, over all ranks' parts
    uint64_t message_bytes;        // of all messages
    uint32_t message_count;
};

// Columns of every rank side by side: rank r's x[i, c] becomes y[i, r * x_cols + c]; columns at and
// past y_cols, padding of the last ranks, are left out.
struct collective_gather {
    const float *x;    // [rows, x_cols]
    float *y;          // [rows, y_cols], not overlapping x
    uint32_t row_count, x_cols, y_cols;
};

// Rows that rank r keeps of `rows`: all ranks the same number, the last ones less or none.
struct collective_rows {
    uint32_t first, count;
};
struct collective_rows collective_share(uint32_t rows, uint32_t rank, uint32_t world);

// ---- life cycle --------------------------------------------------------------------------------

// Nothing to attach or to destroy.
void collective_init_loopback(struct collective *collective, uint32_t rank, uint32_t world);

// On a device that is not the host, what an implementation needs of it.
struct collective_device {
    void *stream;    // every message is ordered on it
    void *arena;     // device memory of collective_buffer_bytes, one mapping that is never remapped
    size_t arena_bytes;
    // y[i] += x[i], on the stream.
    void (*add)(void *ctx, const float *x, float *y, size_t count);
    void *ctx;
};

struct collective_options {
    const char *name;                        // "shm"
    const struct collective_table *table;    // of a plug-in; NULL: the one of that name
    uint32_t rank, world;
    const struct collective_device *device;    // kept; NULL: the host
};
// Broken, since it is not attached. INVALID for a rank or a world that cannot be, NOT_FOUND for a
// name that is not built in.
enum status collective_create(const struct collective_options *options, struct collective **out,
                              struct error *err) MUST_USE;
void collective_destroy(struct collective *collective);    // accepts NULL

enum { COLLECTIVE_ID_BYTES = 33 };    // 32 hex digits and a NUL

struct collective_epoch {
    uint64_t epoch;
    const char *comm_id;      // 32 hex digits, the same on every rank and new in every epoch
    uint64_t buffer_bytes;    // collective_buffer_bytes, the same on every rank
    uint64_t patience_us;     // how long the other ranks may take to come
};
// Waits for all ranks. Leaves what it was attached to before. INVALID for an id that is none,
// TIMEOUT naming how many came, CORRUPT or PERMISSION for a foreign region, CANCELLED when the
// epoch was aborted meanwhile, PEER_LOST when another rank gave up.
enum status collective_attach(struct collective *collective, const struct collective_epoch *epoch,
                              struct error *err) MUST_USE;
void collective_detach(struct collective *collective);

// From any thread: whatever waits in this epoch or an older one returns, on every rank, and no
// attach of such an epoch succeeds any more. Epochs above it are not touched.
void collective_abort(struct collective *collective, uint64_t epoch);

// Not attached, aborted, or a peer was lost or broke off.
bool collective_broken(const struct collective *collective);

// ---- messages ----------------------------------------------------------------------------------

// y += the sum over the ranks of part, both [rows, cols], not overlapping.
void collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols);
// The same for this rank's rows only (collective_share): part is [rows, cols], y has those rows.
// Where the share is padded (rows is no multiple of the world), nccl reads part's padding too.
void collective_reduce_scatter_add(struct collective *collective, const float *part, float *y,
                                   uint32_t rows, uint32_t cols);
void collective_all_gather(struct collective *collective, const struct collective_gather *args);
// The root's bytes to everybody's.
void collective_broadcast(struct collective *collective, uint32_t root, void *bytes,
                          size_t byte_count);
// From one rank to another: both make their call, each pair in its own order.
void collective_send(struct collective *collective, uint32_t peer, const void *bytes,
                     size_t byte_count);
void collective_receive(struct collective *collective, uint32_t peer, void *bytes,
                        size_t byte_count);

// ---- sizes -------------------------------------------------------------------------------------

// Notes a message: its sum, or its gathered form, has `bytes`.
void collective_note(struct collective *collective, uint64_t bytes);

// Device memory that the recorded messages need at their largest: two buffers, since the next
// message may be written while peers still read the last one (device-memory.md section 3).
uint64_t collective_buffer_bytes(const struct collective *collective);

// ---- implementations ---------------------------------------------------------------------------

struct collective_table {
    const char *name;
    enum status (*create)(const struct collective_options *options, struct collective **out,
                          struct error *err);
    void (*destroy)(struct collective *collective);
    enum status (*attach)(struct collective *collective, const struct collective_epoch *epoch,
                          struct error *err);
    void (*detach)(struct collective *collective);
    void (*abort)(struct collective *collective, uint64_t epoch);
    bool (*broken)(const struct collective *collective);
    void (*all_reduce_add)(struct collective *collective, const float *part, float *y,
                           uint32_t rows, uint32_t cols);
    void (*reduce_scatter_add)(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols);
    void (*all_gather)(struct collective *collective, const struct collective_gather *args);
    void (*broadcast)(struct collective *collective, uint32_t root, void *bytes, size_t byte_count);
    void (*send)(struct collective *collective, uint32_t peer, const void *bytes,
                 size_t byte_count);
    void (*receive)(struct collective *collective, uint32_t peer, void *bytes, size_t byte_count);
};

extern const struct collective_table collective_shm;
extern const struct collective_table collective_nccl;    // in the CUDA plug-in

// NULL when no implementation of that name is built into this program.
const struct collective_table *collective_find(const char *name);

#endif
