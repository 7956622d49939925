// SPDX-License-Identifier: Apache-2.0
#include "worker/device/memory_ledger.h"

#include "common/invariant.h"
#include <string.h>

static const struct {
    const char *name;
    bool planned;
} ledger_rows[LEDGER_COUNT] = {
#define X(id, name, planned) {name, planned},
    LEDGER_TABLE(X)
#undef X
};

static const double MIB = 1024.0 * 1024.0;

void memory_ledger_init(struct memory_ledger *ledger, uint64_t device_bytes,
                        uint64_t budget_bytes) {
    INVARIANT(budget_bytes <= device_bytes);
    memset(ledger, 0, sizeof *ledger);
    ledger->device_bytes = device_bytes;
    ledger->budget_bytes = budget_bytes;
}

uint64_t memory_ledger_used(const struct memory_ledger *ledger) {
    uint64_t used = 0;
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        used += ledger->bytes[i];
    }
    return used;
}

uint64_t memory_ledger_free(const struct memory_ledger *ledger) {
    uint64_t used = memory_ledger_used(ledger);
    INVARIANT(used <= ledger->budget_bytes);
    return ledger->budget_bytes - used;
}

static const char *what_to_lower(enum ledger_id id) {
    switch (id) {
    case LEDGER_KV:
        return "--kv-cache-memory-bytes";
    case LEDGER_GUARD:
        return "--memory-margin";
    default:
        return "--max-num-batched-tokens, --max-num-seqs or --max-model-len";
    }
}

enum status memory_ledger_charge(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes,
                                 struct error *err) {
    uint64_t have = memory_ledger_free(ledger);
    if (bytes > have) {
        error_hint(err, "raise --device-memory or --gpu-memory-utilization, or lower %s",
                   what_to_lower(id));
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line '%s' needs %.1f MiB, %.1f MiB of the budget of %.1f MiB are "
                         "free: %.1f MiB (%llu bytes) are missing",
                         ledger_rows[id].name, (double)bytes / MIB, (double)have / MIB,
                         (double)ledger->budget_bytes / MIB, (double)(bytes - have) / MIB,
                         (unsigned long long)(bytes - have));
    }
    ledger->bytes[id] += bytes;
    return STATUS_OK;
}

void memory_ledger_release(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes) {
    INVARIANT(ledger->bytes[id] >= bytes);
    ledger->bytes[id] -= bytes;
}

void memory_ledger_move(struct memory_ledger *ledger, enum ledger_id from, enum ledger_id to,
                        uint64_t bytes) {
    memory_ledger_release(ledger, from, bytes);
    ledger->bytes[to] += bytes;
}

enum status memory_ledger_check(const struct memory_ledger *ledger, struct error *err) {
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        if (ledger_rows[i].planned && ledger->bytes[i] > ledger->planned[i]) {
            error_hint(err, "report this with the table above; --memory-margin leaves room until "
                            "it is corrected");
            return error_set(err, STATUS_INVALID,
                             "ledger line '%s' was planned with %llu bytes and took %llu",
                             ledger_rows[i].name, (unsigned long long)ledger->planned[i],
                             (unsigned long long)ledger->bytes[i]);
        }
    }
    return STATUS_OK;
}

void memory_ledger_plan(struct memory_ledger *ledger, enum ledger_id id, uint64_t bytes) {
    ledger->planned[id] = bytes;
}

const char *memory_ledger_name(enum ledger_id id) {
    return ledger_rows[id].name;
}

void memory_ledger_lines(const struct memory_ledger *ledger, struct ledger_line *out) {
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        out[i] =
            (struct ledger_line){ledger_rows[i].name, ledger->bytes[i], ledger_rows[i].planned};
    }
}

// What a table shows: what is there, else what will be. The scratch chunk becomes part of the pool,
// so until then it is not counted a second time there.
static uint64_t shown_bytes(const struct memory_ledger *ledger, enum ledger_id id) {
    if (ledger->bytes[id] > 0) {
        return ledger->bytes[id];
    }
    uint64_t lent = id == LEDGER_KV ? ledger->bytes[LEDGER_SCRATCH] : 0;
    return ledger->planned[id] > lent ? ledger->planned[id] - lent : 0;
}

void memory_ledger_print(const struct memory_ledger *ledger, struct buf *out) {
    uint64_t total = 0;
    buf_append_str(out, "memory ledger                    MiB\n");
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        uint64_t bytes = shown_bytes(ledger, (enum ledger_id)i);
        total += bytes;
        if (bytes == 0) {
            continue;    // a device that has no such cost
        }
        buf_printf(out, "  %-26s %10.2f  %s\n", ledger_rows[i].name, (double)bytes / MIB,
                   ledger_rows[i].planned ? "planned" : "found");
    }
    buf_printf(out, "  %-26s %10.2f\n", "total", (double)total / MIB);
    buf_printf(out, "  %-26s %10.2f\n", "free",
               ((double)ledger->budget_bytes - (double)total) / MIB);
    buf_printf(out, "  %-26s %10.2f  of %.2f MiB device memory\n", "budget",
               (double)ledger->budget_bytes / MIB, (double)ledger->device_bytes / MIB);
    if (ledger->foreign_bytes > 0) {
        buf_printf(out, "  %-26s %10.2f  by other processes, not ours\n", "foreign use",
                   (double)ledger->foreign_bytes / MIB);
    }
}
