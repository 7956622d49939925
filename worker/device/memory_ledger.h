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
// printed then, so an operator sees at once what is too large. Lines are *planned* (known before)
// or *found* (only measured).
//
//   Owns       its lines.
//   Thread     one at a time.
//   Allocates  never.
//   Fails      charge: EXHAUSTED naming the line, the bytes missing, and what to change.

#define LEDGER_TABLE(X)                                                                            \
    X(CONTEXT, "context", false)                                                                   \
    X(WEIGHTS, "weights", true)                                                                    \
    X(WORKSPACE, "workspace arena", true)                                                          \
    X(STEP, "step descriptor", true)                                                               \
    X(HISTORY, "token history", true)                                                              \
    X(KV, "kv pool", true)

enum ledger_id {
#define X(id, name, planned) LEDGER_##id,
    LEDGER_TABLE(X)
#undef X
        LEDGER_COUNT
};

struct memory_ledger {
    uint64_t device_bytes;             // what the device has
    uint64_t budget_bytes;             // what may be used of it
    uint64_t bytes[LEDGER_COUNT];      // charged
    uint64_t planned[LEDGER_COUNT];    // foreseen; shown for lines that are not charged yet
};

void memory_ledger_init(struct memory_ledger *ledger, uint64_t device_bytes, uint64_t budget_bytes);
enum status memory_ledger_charge(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes,
                                 struct error *err) MUST_USE;
// What a line will need. Changes no budget.
void memory_ledger_plan(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes);
uint64_t memory_ledger_used(const struct memory_ledger *ledger);
uint64_t memory_ledger_free(const struct memory_ledger *ledger);
const char *memory_ledger_name(enum ledger_id id);

// The lines as they travel in the capacity report; `out` has LEDGER_COUNT entries.
void memory_ledger_lines(const struct memory_ledger *ledger, struct ledger_line *out);
// A table for people: name, MiB, planned or found, of lines that hold anything; then total, free,
// budget.
void memory_ledger_print(const struct memory_ledger *ledger, struct buf *out);

#endif
