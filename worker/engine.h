// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "proto/messages.h"
#include "worker/device/memory_ledger.h"
#include "worker/step/executor.h"
#include "worker/weights/weights.h"
#include <stdint.h>

// Everything that computes, brought up in order: files, device, weights, workspace, KV, rehearsal,
// capacity.
//
// The idea: each start-up step is a charge on the ledger, KV gets what is left of the budget, and
// the capacity report is written last, from what exists and was rehearsed (step/rehearsal.h). If a
// line does not fit, the start ends there with the ledger printed.
//
//   Owns       model files, device and all device memory.
//   Thread     the step thread creates, uses and destroys it.
//   Allocates  in create; afterwards a step allocates nothing.
//   Fails      NOT_FOUND, CORRUPT, UNSUPPORTED for the model; EXHAUSTED with the ledger line.

struct engine;

struct engine_options {
    const char *model_path;
    const char *device;          // "cpu"
    const char *isa;             // "auto", ...
    uint32_t threads;            // 0: one per core
    int64_t device_memory;       // bytes; 0: what is needed plus the default KV
    double utilization;          // share of device_memory that may be used
    int64_t kv_bytes;            // explicit KV bytes, 0: what is left
    int64_t workspace_budget;    // bytes for the step's buffers, 0: see step/tiles.h
    enum dtype kv_dtype;
    uint32_t block_tokens;
    uint32_t seqs;
    uint32_t step_tokens;
    int64_t model_len;    // -1: the model's own limit
    int weights_fd;       // memory file that survives this process, or -1
    int kv_fd;
    void (*progress)(void *ctx, const struct message_progress *progress);
    void *progress_ctx;
};

enum status engine_create(const struct engine_options *options, struct engine **out,
                          struct error *err) MUST_USE;
void engine_destroy(struct engine *engine);    // accepts NULL

// What a start with these options would report, without loading or mapping anything: the same code
// sizes both, so the two are equal to the byte.
struct engine_plan {
    struct memory_ledger ledger;         // planned lines; filled as far as planning came
    struct message_capacity capacity;    // `lines` points into this struct
    struct ledger_line lines[LEDGER_COUNT];
    uint64_t fixed_bytes;    // every line but the KV pool
    uint64_t kv_bytes;
    struct tiles tiles;          // of the step's buffers
    uint64_t workspace_bytes;    // what these need
    const char *isa;             // operation table that would run
};
// `weights`: an open model, kept by the caller. EXHAUSTED when it does not fit, naming the line.
enum status engine_plan(const struct engine_options *options, struct weights *weights,
                        struct engine_plan *out, struct error *err) MUST_USE;

struct executor *engine_executor(struct engine *engine);
// Alive as long as the engine.
const struct message_capacity *engine_capacity(const struct engine *engine);
const char *engine_isa(const struct engine *engine);
bool engine_attached(
    const struct engine *engine);    // weights were already there, nothing was loaded

#endif
