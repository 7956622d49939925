// SPDX-License-Identifier: Apache-2.0
#include "worker/kv/kv_pool.h"

#include "common/invariant.h"
#include <string.h>

struct kv_chunk_rule kv_chunk_rule(uint64_t pool_bytes, size_t page_bytes) {
    size_t small = KV_CHUNK_SMALL_MAX;
    while (small > page_bytes && small > pool_bytes / (KV_CHUNK_RATIO * KV_CHUNKS_LARGE_MIN)) {
        small /= 2;
    }
    small = small < page_bytes ? page_bytes : small;
    return (struct kv_chunk_rule){small, small * KV_CHUNK_RATIO};
}

uint64_t kv_chunk_round(const struct kv_chunk_rule *rule, uint64_t bytes) {
    return bytes / rule->small_bytes * rule->small_bytes;
}

enum status kv_pool_init(struct kv_pool *pool, const struct device_table *table,
                         struct device *device, const struct kv_chunk_rule *rule,
                         uint64_t bytes_max, int fd, struct error *err) {
    memset(pool, 0, sizeof *pool);
    pool->table = table;
    pool->device = device;
    pool->rule = *rule;
    return table->reserve(device, LEDGER_KV, bytes_max, fd, &pool->range, err);
}

static size_t chunk_bytes(const struct kv_pool *pool, bool large) {
    return large ? pool->rule.large_bytes : pool->rule.small_bytes;
}

enum status kv_pool_grow(struct kv_pool *pool, enum ledger_id line, uint64_t bytes,
                         struct error *err) {
    INVARIANT(bytes % pool->rule.small_bytes == 0);
    pool->range.line = line;
    while (bytes > 0) {
        bool large = bytes >= pool->rule.large_bytes;
        if (pool->chunk_count == BOUND_KV_CHUNKS) {
            return error_set(err, STATUS_EXHAUSTED, "ledger line '%s': more than %u chunks",
                             memory_ledger_name(line), BOUND_KV_CHUNKS);
        }
        size_t chunk = chunk_bytes(pool, large);
        TRY(pool->table->map(pool->device, &pool->range, chunk, err));
        pool->is_large[pool->chunk_count++] = large;
        bytes -= chunk;
    }
    return STATUS_OK;
}

static void drop_last(struct kv_pool *pool) {
    size_t chunk = chunk_bytes(pool, pool->is_large[pool->chunk_count - 1]);
    pool->table->unmap(pool->device, &pool->range, chunk);
    pool->chunk_count--;
}

void kv_pool_give(struct kv_pool *pool, uint64_t bytes) {
    uint64_t have = pool->range.mapped_bytes;
    uint64_t target = kv_chunk_round(&pool->rule, have > bytes ? have - bytes : 0);
    while (pool->range.mapped_bytes > target) {
        drop_last(pool);
    }
    struct error err;
    uint64_t more = target - pool->range.mapped_bytes;
    if (kv_pool_grow(pool, pool->range.line, more, &err) != STATUS_OK) {
        return;    // others took it; the pool is smaller then
    }
}

void kv_pool_shrink(struct kv_pool *pool, uint64_t bytes_min) {
    while (pool->chunk_count > 0) {
        size_t last = chunk_bytes(pool, pool->is_large[pool->chunk_count - 1]);
        if (pool->range.mapped_bytes < bytes_min + last) {
            return;
        }
        drop_last(pool);
    }
}
