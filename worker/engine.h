// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "proto/messages.h"
#include "worker/device/memory_ledger.h"
#include "worker/kv/kv_stamp.h"
#include "worker/step/executor.h"
#include "worker/step/simulate.h"
#include "worker/weights/weights.h"
#include <stdint.h>

// Everything that computes, brought up in order: device, weights, workspace, addresses for KV,
// warm-up, graphs, worst steps; then weighed; then KV, the worst steps again, and the seal.
//
// The idea: KV is what is left when everything else exists (design.md section 3). Each step of the
// start leaves its bytes on the ledger and its time in the phase table; the capacity report is
// written last, from what exists and was rehearsed. If a line does not fit, the start ends there
// with the ledger printed. A start of the same digest, sizes and device as a sealed one need not
// rehearse (seal.h).
//
//   Owns       model files, device and all device memory.
//   Thread     the step thread creates, uses and destroys it.
//   Allocates  in create and, device memory only, in resize; a step allocates nothing.
//   Fails      NOT_FOUND, CORRUPT, UNSUPPORTED for the model; EXHAUSTED with the ledger line.

struct engine;

enum engine_role {
    ENGINE_ROLE_MIXED,
    ENGINE_ROLE_PREFILL,    // never decodes: no decode steps are captured
    ENGINE_ROLE_DECODE,     // never computes prompts: a step has one row a sequence
};

struct engine_options {
    const char *model_path;
    struct weights *weights;        // the same, opened already and taken over; NULL: not yet
    const char *device;             // "cpu"
    const char *isa;                // "auto", ...
    uint32_t threads;               // 0: one per core
    int64_t device_memory;          // bytes; 0: all there are, on the cpu what is needed
    struct model_shard shard;       // world 0 or 1: the whole model
    enum engine_role role;          // others than mixed can only be planned
    const struct sim_costs *sim;    // as in device_options
    double utilization;             // share of device_memory that may be used
    int64_t kv_bytes;               // explicit KV bytes, 0: what is left
    int64_t workspace_budget;       // bytes for the step's buffers, 0: see step/tiles.h
    enum dtype kv_dtype;
    uint32_t block_tokens;
    uint32_t seqs;
    uint32_t step_tokens;
    int64_t model_len;              // -1: the model's own limit
    int64_t memory_margin;          // bytes of the device that stay free
    bool enforce_eager;             // no graphs
    uint64_t capture_order_seed;    // tests: 0 captures the largest first, else in a random order
    const char *seal_dir;           // where seals are kept, NULL: nowhere
    int weights_fd;                 // memory file that survives this process, or -1
    int kv_fd;
    struct kv_stamp *kv_stamp;    // lies with kv_fd and is kept; NULL where nothing survives
    void (*progress)(void *ctx, const struct message_progress *progress);
    void *progress_ctx;
};

// UNSUPPORTED for options that can be planned and not started yet.
enum status engine_startable(const struct engine_options *options, struct error *err) MUST_USE;
enum status engine_create(const struct engine_options *options, struct engine **out,
                          struct error *err) MUST_USE;
void engine_destroy(struct engine *engine);    // accepts NULL

// How long steps would take on a device that does not compute; zeroes elsewhere.
struct engine_times {
    struct simulate_shape decode;    // every sequence, as long as the pool holds for all
    struct simulate_result decode_cost;
    struct simulate_shape prefill;    // one sequence with all tokens of a step
    struct simulate_result prefill_cost;
};

// What a start with these options would report, without loading or mapping anything: the same code
// sizes both, so the two are equal to the byte.
struct engine_plan {
    struct memory_ledger ledger;         // planned lines; filled as far as planning came
    struct message_capacity capacity;    // `lines` points into this struct
    struct ledger_line lines[LEDGER_COUNT];
    uint64_t fixed_bytes;    // every line but the KV pool
    uint64_t kv_bytes;
    uint64_t workspace_bytes;    // what the tiles of the capacity report need
    bool from_seal;              // found lines are those of the last sealed start like this one
    struct engine_times times;
    const char *isa;    // operation table that would run
};
// `weights`: an open model, kept by the caller. EXHAUSTED when it does not fit, naming the line.
enum status engine_plan(const struct engine_options *options, struct weights *weights,
                        struct engine_plan *out, struct error *err) MUST_USE;

// One step of the start: how long it took and what this process held of the device after it.
struct engine_phase {
    const char *name;
    uint64_t us;
    uint64_t own_bytes;
};
enum { ENGINE_PHASES_MAX = 16 };

// Between steps: makes the pool hold `kv_blocks`, in whole chunks, so `after` may be more. Nobody
// uses the blocks above `after` any more. EXHAUSTED when it cannot grow so far: the sentence names
// the missing bytes, and `after` says what there is.
enum status engine_resize_kv(struct engine *engine, uint32_t kv_blocks, uint32_t *after,
                             struct error *err) MUST_USE;

// Between steps: gives the pool's memory back, with what it holds; and takes as much again.
// EXHAUSTED when others have it by now.
void engine_release_kv(struct engine *engine);
enum status engine_reclaim_kv(struct engine *engine, struct error *err) MUST_USE;

struct executor *engine_executor(struct engine *engine);
const struct memory_ledger *engine_ledger(const struct engine *engine);
const struct engine_phase *engine_phases(const struct engine *engine, uint32_t *count);
// Alive as long as the engine.
const struct message_capacity *engine_capacity(const struct engine *engine);
const char *engine_isa(const struct engine *engine);
// Weights were already there, nothing was loaded.
bool engine_attached(const struct engine *engine);
// A sealed start had the same sizes, nothing was rehearsed.
bool engine_proven(const struct engine *engine);

#endif
