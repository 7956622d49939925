// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_MEMORY_LEDGER_H
#define WORKER_DEVICE_MEMORY_LEDGER_H

#include "common/buf.h"
#include "common/status.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// The ledger: who holds how many bytes of the device, against one budget.
//
// The idea: every byte of device memory is charged to a named line before it exists. A charge that
// would leave the budget is refused with the line and the missing bytes, and the whole table can be
// printed then, so an operator sees at once what is too large. Lines are *planned* (known before;
// more than planned is a fault of ours) or *found* (only measured: libraries, graphs). What other
// processes hold of the device is no line: it is shown beside the budget and never counted as ours.
//
//   Owns       its lines.
//   Thread     one at a time.
//   Allocates  never.
//   Fails      charge: EXHAUSTED naming the line, the bytes missing, and what to change; check:
//              INVALID naming the line that took more than was planned for it.

// One list for logs, metrics, `tare plan` and `tare status`. Weights are charged to WEIGHTS and
// then handed to their kinds; what stays there are norms and tables. SCRATCH is empty after the
// start: it lends its bytes to the KV pool.
#define LEDGER_TABLE(X)                                                                            \
    X(CONTEXT, "context", false)                                                                   \
    X(LIBRARIES, "library handles", false)                                                         \
    X(COMM_CHANNELS, "communicators: channels", false)                                             \
    X(COMM_RING, "communicators: ring", false)                                                     \
    X(COMM_TREE, "communicators: tree", false)                                                     \
    X(COMM_NVLS, "communicators: nvls", false)                                                     \
    X(COMM_P2P, "communicators: send/recv", false)                                                 \
    X(COMM_ARENA, "communicators: arena", true)                                                    \
    X(WEIGHTS, "weights: other", true)                                                             \
    X(WEIGHTS_EMBEDDING, "weights: embedding", true)                                               \
    X(WEIGHTS_ATTENTION, "weights: attention", true)                                               \
    X(WEIGHTS_MLP, "weights: mlp", true)                                                           \
    X(WEIGHTS_EXPERTS, "weights: experts", true)                                                   \
    X(WORKSPACE, "workspace arena", true)                                                          \
    X(SAMPLER, "sampler", true)                                                                    \
    X(STEP, "step descriptor", true)                                                               \
    X(STAGING, "staging", true)                                                                    \
    X(HOST, "host pinned", true)                                                                   \
    X(STATES, "recurrent states", true)                                                            \
    X(GRAPH_8, "graph: 8 rows", false)                                                             \
    X(GRAPH_16, "graph: 16 rows", false)                                                           \
    X(GRAPH_32, "graph: 32 rows", false)                                                           \
    X(GRAPH_64, "graph: 64 rows", false)                                                           \
    X(GRAPH_128, "graph: 128 rows", false)                                                         \
    X(GRAPH_256, "graph: 256 rows", false)                                                         \
    X(GRAPH_512, "graph: 512 rows", false)                                                         \
    X(GRAPH_1024, "graph: 1024 rows", false)                                                       \
    X(SCRATCH, "scratch chunk", true)                                                              \
    X(GUARD, "guard", true)                                                                        \
    X(UNACCOUNTED, "unaccounted", false)                                                           \
    X(KV, "kv pool", true)

enum ledger_id {
#define X(id, name, planned) LEDGER_##id,
    LEDGER_TABLE(X)
#undef X
        LEDGER_COUNT
};
// Lines of graphs by bucket index: LEDGER_GRAPH_8 + index.
enum { LEDGER_GRAPHS = LEDGER_GRAPH_1024 - LEDGER_GRAPH_8 + 1, LEDGER_GRAPH_ROWS_MIN = 8 };

struct memory_ledger {
    uint64_t device_bytes;             // what the device has
    uint64_t budget_bytes;             // what may be used of it
    uint64_t foreign_bytes;            // what other processes held of it at the last look
    uint64_t bytes[LEDGER_COUNT];      // charged
    uint64_t planned[LEDGER_COUNT];    // foreseen; shown for lines that are not charged yet
};

void memory_ledger_init(struct memory_ledger *ledger, uint64_t device_bytes, uint64_t budget_bytes);
enum status memory_ledger_charge(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes,
                                 struct error *err) MUST_USE;
void memory_ledger_release(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes);
// Hands bytes of one line to another: their sum stays.
void memory_ledger_move(struct memory_ledger *ledger, enum ledger_id from, enum ledger_id to,
                        uint64_t bytes);
// What a line will need. Changes no budget.
void memory_ledger_plan(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes);
// No planned line holds more than was planned.
enum status memory_ledger_check(const struct memory_ledger *ledger, struct error *err) MUST_USE;
uint64_t memory_ledger_used(const struct memory_ledger *ledger);
uint64_t memory_ledger_free(const struct memory_ledger *ledger);
const char *memory_ledger_name(enum ledger_id id);

// The lines as they travel in the capacity report; `out` has LEDGER_COUNT entries.
void memory_ledger_lines(const struct memory_ledger *ledger, struct ledger_line *out);
// A table for people: name, MiB, planned or found, of lines that hold anything; then total, free,
// budget and what others hold.
void memory_ledger_print(const struct memory_ledger *ledger, struct buf *out);

#endif
