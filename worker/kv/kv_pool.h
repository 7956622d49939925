// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_KV_KV_POOL_H
#define WORKER_KV_KV_POOL_H

#include "common/bounds.h"
#include "worker/device/device.h"

// The memory behind the KV blocks: one address range for life, chunks mapped from its beginning.
//
// The idea: the range is as large as the device, so that a block's address never changes; how much
// of it has memory is decided after everything else was weighed, and may change between steps.
// Chunks are the unit that comes and goes (device-memory.md 1.2): large ones for speed, small ones
// for the remainder. Blocks lie one after the other and may straddle chunks.
//
//   Owns       the range.
//   Thread     the step thread, no step running.
//   Allocates  device memory in grow; nothing else.
//   Fails      grow: EXHAUSTED naming the ledger line; what was mapped before it failed stays.

struct kv_chunk_rule {
    // 2 MiB, less for a pool below 512 MiB, so that a resize of an eighth gives something; never
    // below the device's page.
    size_t small_bytes;
    size_t large_bytes;    // 32 small ones
};
enum { KV_CHUNK_RATIO = 32, KV_CHUNK_SMALL_MAX = 2 * 1024 * 1024, KV_CHUNKS_LARGE_MIN = 8 };

struct kv_chunk_rule kv_chunk_rule(uint64_t pool_bytes, size_t page_bytes);
uint64_t kv_chunk_round(const struct kv_chunk_rule *rule, uint64_t bytes);    // down

struct kv_pool {
    const struct device_table *table;
    struct device *device;
    struct device_range range;
    struct kv_chunk_rule rule;
    uint32_t chunk_count;
    uint8_t is_large[BOUND_KV_CHUNKS];
};

// Reserves addresses for `bytes_max`; the range has no memory yet. `fd` as device_table.reserve.
enum status kv_pool_init(struct kv_pool *pool, const struct device_table *table,
                         struct device *device, const struct kv_chunk_rule *rule,
                         uint64_t bytes_max, int fd, struct error *err) MUST_USE;

// Maps chunks for `bytes` more (a multiple of the small chunk), charged to `line`.
enum status kv_pool_grow(struct kv_pool *pool, enum ledger_id line, uint64_t bytes,
                         struct error *err) MUST_USE;
// Unmaps the last chunks while at least `bytes_min` stay; credits the line they were charged to.
void kv_pool_shrink(struct kv_pool *pool, uint64_t bytes_min);
// Start-up only, contents are lost: gives back at least `bytes`, or all there is; no more than a
// small chunk more, unless others take what a large one left before small ones are mapped there.
void kv_pool_give(struct kv_pool *pool, uint64_t bytes);

static inline uint64_t kv_pool_bytes(const struct kv_pool *pool) {
    return pool->range.mapped_bytes;
}

#endif
