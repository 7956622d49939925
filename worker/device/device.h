// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_DEVICE_H
#define WORKER_DEVICE_DEVICE_H

#include "common/status.h"
#include "kernels/ops.h"
#include "worker/device/memory_ledger.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A device: memory under a budget, operations, and who runs them.
//
// The idea: everything above asks a table of functions and never a runtime. Memory is asked for by
// ledger line and is refused when the budget says no, on the cpu device too, so that what does not
// fit fails there exactly as it would on a GPU.
//
//   Owns       its threads and mappings; keeps the ledger.
//   Thread     the step thread.
//   Allocates  in open and map.
//   Fails      open: INVALID, UNSUPPORTED; map, populate: EXHAUSTED naming the ledger line.

struct device;

struct device_options {
    uint32_t thread_count;    // 0: one per core this process may use
    const char *isa;          // "auto", "scalar", "avx2", "avx512"
    struct memory_ledger *ledger;
};

struct device_table {
    const char *name;
    // What a fresh device offers, before any option: bytes of memory.
    uint64_t (*memory_bytes)(void);
    enum status (*open)(const struct device_options *options, struct device **out,
                        struct error *err);
    void (*close)(struct device *device);
    // `bytes` of memory charged to `line`. With a file descriptor >= 0 the memory is that of the
    // (memory) file, grown to fit, so that it survives this process.
    enum status (*map)(struct device *device, enum ledger_id line, size_t bytes, int fd, void **out,
                       struct error *err);
    // Makes every page of `line`'s memory exist now, so that none is missed later.
    enum status (*populate)(struct device *device, enum ledger_id line, void *memory, size_t bytes,
                            struct error *err);
    const struct ops *(*ops)(const struct device *device);
    const struct op_ctx *(*ctx)(const struct device *device);
};

// NULL when there is no such device in this build.
const struct device_table *device_find(const char *name);
extern const struct device_table device_cpu;

#endif
