// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_ENGINE_INTERNAL_H
#define WORKER_ENGINE_INTERNAL_H

#include "worker/device/device.h"
#include "worker/engine.h"
#include "worker/kv/kv_pool.h"
#include "worker/memory_plan.h"
#include "worker/seal.h"

// What the files of the engine share: engine_plan.c opens the device and says what a start would
// weigh, engine_weights.c has the weights and what is remembered beside them, engine.c starts,
// rehearses and resizes. Nobody else includes this.
//
//   Owns, Thread, Allocates, Fails as engine.h.

// First page of the weights' memory file: whose weights these are, and whether all are there.
struct weights_head {
    char magic[16];
    char build[64];
    char digest[32];
    char ops[32];
    uint32_t rank, world;    // whose part of the weights
    uint64_t bytes;
    uint64_t complete;
    struct seal seal;    // of the last start that was sealed over these weights
};
_Static_assert(sizeof(struct weights_head) <= MEMORY_PLAN_HEAD_BYTES, "the head fits its page");

struct engine {
    struct engine_options options;
    struct memory_ledger ledger;
    struct weights *weights;
    const struct device_table *table;
    struct device *device;
    struct model *model;
    struct memory_plan plan;
    struct device_range weights_range, workspace, step, sampler;
    struct kv_pool pool;
    struct batch *batch;
    struct executor *executor;
    struct message_capacity capacity;
    struct ledger_line lines[LEDGER_COUNT];
    char digest[32];
    bool attached;    // weights were there
    bool proven;      // by a sealed start of the same sizes
    struct kv_stamp own_stamp;
    struct kv_stamp *stamp;     // of the options, or the own one
    uint64_t released_bytes;    // of a pool that was given back; 0: it is there
    struct weights_head *head;
    struct engine_phase phases[ENGINE_PHASES_MAX];
    uint32_t phase_count;
    uint64_t phase_start_us;
    uint64_t load_start_us;
};

// ---- engine_plan.c -----------------------------------------------------------------------------

// Takes `bytes` for a line: addresses and memory at once. `fd`: a memory file behind it, or -1.
enum status engine_map_new(struct engine *engine, enum ledger_id line, uint64_t bytes, int fd,
                           struct device_range *out, struct error *err) MUST_USE;
// What the device says we hold beyond what is named.
uint64_t engine_unnamed_bytes(const struct engine *engine);
// It belongs to `line`.
enum status engine_settle(struct engine *engine, enum ledger_id line, struct error *err) MUST_USE;
// What other processes hold of the device by now.
void engine_look_at_others(struct engine *engine);
// Files, device, model and sizes: all that can be judged before memory is taken.
enum status engine_plan_memory(struct engine *engine, struct error *err) MUST_USE;
// The report to the controller; `lines` [LEDGER_COUNT] is what it points to.
void engine_write_capacity(struct engine *engine, struct ledger_line *lines,
                           struct message_capacity *out);

// ---- engine_weights.c --------------------------------------------------------------------------

// Attaches to weights that a process before us loaded, or loads them; closes the files.
enum status engine_load_weights(struct engine *engine, struct error *err) MUST_USE;
// The seal of a start of these options with the ledger as it is.
void engine_seal_now(const struct engine *engine, struct seal *out);
// Before the pool is mapped: would a start like this one end as one that was sealed?
bool engine_sealed_before(const struct engine *engine);
// Beside the weights, and in --seal-dir; a directory that cannot be written is a warning.
void engine_write_seal(struct engine *engine);

#endif
