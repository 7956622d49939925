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
// The idea: everything above asks a table of functions and never a runtime. Addresses and memory
// are two things: a range is reserved once and keeps its addresses for life, so that captured
// graphs stay right; memory comes behind it later, piece by piece, charged to the range's ledger
// line and refused when the budget says no, on the cpu device too, so that what does not fit fails
// there exactly as it would on a GPU. Reading or writing where no memory is ends the process.
//
//   Owns       its threads, ranges and graphs; keeps the ledger.
//   Thread     the step thread.
//   Allocates  in open, reserve, map and capture.
//   Fails      open: INVALID, UNSUPPORTED; reserve, map, capture: EXHAUSTED naming the ledger line.

struct device;
struct device_graph;
struct sim_costs;

struct device_options {
    const char *name;         // as given: "cpu", "sim:h200"
    uint32_t thread_count;    // 0: one per core this process may use
    const char *isa;          // "auto", "scalar", "avx2", "avx512"
    struct memory_ledger *ledger;
    const struct sim_costs *sim;    // tests of simulated devices; NULL: as its table says
};

// Addresses [base, base + reserved_bytes), of which the first mapped_bytes have memory.
struct device_range {
    enum ledger_id line;    // where map charges and unmap credits
    uint8_t *base;
    size_t reserved_bytes;
    size_t mapped_bytes;
    int fd;    // memory file whose pages these are, or -1
};

// Operations called with these are recorded instead of run.
struct device_capture {
    const struct ops *ops;
    const struct op_ctx *ctx;
};

struct device_table {
    const char *name;    // of the device, or of its kind: "sim" for "sim:h200"
    // Bytes of memory that a fresh device of this name has, before any option; 0: no such device.
    uint64_t (*memory_bytes)(const char *name);
    // KV when nothing says how much: bytes, or 0 for all that is left of the budget.
    uint64_t kv_bytes_default;
    // False: memory has no contents worth loading (sim).
    bool computes;
    // Libraries take memory when they are first used: every start must use them, also one that a
    // seal proves.
    bool takes_on_first_use;
    enum status (*open)(const struct device_options *options, struct device **out,
                        struct error *err);
    void (*close)(struct device *device);    // with all ranges and graphs

    // Unit of map and unmap.
    size_t (*page_bytes)(const struct device *device);
    // Addresses without memory. With a file descriptor >= 0 what is mapped later are that (memory)
    // file's pages, so that they survive this process.
    enum status (*reserve)(struct device *device, enum ledger_id line, size_t bytes, int fd,
                           struct device_range *out, struct error *err);
    // Memory behind the next `bytes` of the range, whole pages, all of which exist when it returns.
    // Zeroes, or what the file held.
    enum status (*map)(struct device *device, struct device_range *range, size_t bytes,
                       struct error *err);
    // Takes back the last `bytes`: one or more whole earlier maps. No step may be running.
    void (*unmap)(struct device *device, struct device_range *range, size_t bytes);
    // What this process holds of the device as the device counts it, and what could still be had.
    uint64_t (*own_bytes)(const struct device *device);
    uint64_t (*free_bytes)(const struct device *device);

    // For planning, what found lines should take: a graph of so many launches; a line of libraries
    // or communicators in a group of `world` ranks. Nothing is known of a line: 0.
    uint64_t (*graph_bytes)(const struct device *device, uint32_t launch_count);
    uint64_t (*found_bytes)(const struct device *device, enum ledger_id line, uint32_t world);
    // Until capture_end, operations called through `out` become a graph charged to `line`.
    enum status (*capture_begin)(struct device *device, enum ledger_id line, uint32_t launch_count,
                                 struct device_capture *out, struct error *err);
    struct device_graph *(*capture_end)(struct device *device);
    void (*replay)(struct device *device, const struct device_graph *graph);

    const struct ops *(*ops)(const struct device *device);
    const struct op_ctx *(*ctx)(const struct device *device);
};

// By a device's name or its kind ("sim:h200"); NULL when there is no such device in this build.
const struct device_table *device_find(const char *name);
// UNSUPPORTED: says that there is no such device, and which there are.
enum status device_unknown(const char *name, struct error *err);
extern const struct device_table device_cpu;
extern const struct device_table device_sim;

#endif
