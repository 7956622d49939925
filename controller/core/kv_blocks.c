// SPDX-License-Identifier: Apache-2.0
#include "controller/core/kv_blocks.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <stdbool.h>

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_QUARANTINED, BLOCK_CLOSED };
enum { BLOCK_STATES = 4 };

struct quarantined {
    uint64_t fence;
    uint32_t id;
};

struct kv_blocks {
    uint32_t blocks_max;
    uint32_t total;    // ids below are handed out
    uint32_t span;     // ids below have a state
    uint32_t held_count;
    uint32_t above_count;    // ids from `total` on that are held or in quarantine
    uint32_t *free_ids;      // stack
    uint32_t free_count;
    uint8_t *state;                    // [span]
    struct quarantined *quarantine;    // ring of blocks_max entries, fences ascending
    uint32_t quarantine_first, quarantine_count;
    uint64_t fence_last;
};

enum status kv_blocks_create(uint32_t blocks_max, struct kv_blocks **out, struct error *err) {
    struct kv_blocks *blocks = memory_zalloc(sizeof *blocks);
    if (blocks == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for block ids");
    }
    blocks->blocks_max = blocks_max;
    blocks->free_ids = memory_array(blocks_max, sizeof *blocks->free_ids);
    blocks->state = memory_array(blocks_max, sizeof *blocks->state);
    blocks->quarantine = memory_array(blocks_max, sizeof *blocks->quarantine);
    if (blocks->free_ids == NULL || blocks->state == NULL || blocks->quarantine == NULL) {
        kv_blocks_destroy(blocks);
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u block ids", blocks_max);
    }
    *out = blocks;
    return STATUS_OK;
}

void kv_blocks_destroy(struct kv_blocks *blocks) {
    if (blocks == NULL) {
        return;
    }
    memory_free(blocks->free_ids);
    memory_free(blocks->state);
    memory_free(blocks->quarantine);
    memory_free(blocks);
}

void kv_blocks_reset(struct kv_blocks *blocks, uint32_t block_count) {
    INVARIANT(block_count <= blocks->blocks_max);
    blocks->total = block_count;
    blocks->span = block_count;
    blocks->held_count = 0;
    blocks->above_count = 0;
    blocks->free_count = block_count;
    blocks->quarantine_first = 0;
    blocks->quarantine_count = 0;
    blocks->fence_last = 0;
    // Low ids on top: the pool's pages are then touched from its start.
    for (uint32_t i = 0; i < block_count; i++) {
        blocks->free_ids[i] = block_count - 1 - i;
        blocks->state[i] = BLOCK_FREE;
    }
}

enum status kv_blocks_take(struct kv_blocks *blocks, uint32_t count, uint32_t *out) {
    // All or nothing: a partial grant would have to be undone by every caller.
    if (count > blocks->free_count) {
        return STATUS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = blocks->free_ids[--blocks->free_count];
        INVARIANT(blocks->state[id] == BLOCK_FREE);
        blocks->state[id] = BLOCK_HELD;
        out[i] = id;
    }
    blocks->held_count += count;
    return STATUS_OK;
}

void kv_blocks_retire(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count,
                      uint64_t fence) {
    if (fence < blocks->fence_last) {
        fence = blocks->fence_last;    // a refused plan's number comes twice
    }
    blocks->fence_last = fence;
    for (uint32_t i = 0; i < count; i++) {
        INVARIANT(ids[i] < blocks->span);
        INVARIANT(blocks->state[ids[i]] == BLOCK_HELD);
        INVARIANT(blocks->quarantine_count < blocks->blocks_max);
        blocks->state[ids[i]] = BLOCK_QUARANTINED;
        uint32_t at = (blocks->quarantine_first + blocks->quarantine_count) % blocks->blocks_max;
        blocks->quarantine[at] = (struct quarantined){fence, ids[i]};
        blocks->quarantine_count++;
    }
    blocks->held_count -= count;
}

// Free again, or closed when the pool has become too small for it.
static void come_back(struct kv_blocks *blocks, uint32_t id) {
    if (id >= blocks->total) {
        blocks->state[id] = BLOCK_CLOSED;
        blocks->above_count--;
        return;
    }
    blocks->state[id] = BLOCK_FREE;
    blocks->free_ids[blocks->free_count++] = id;
}

void kv_blocks_give_back(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count) {
    for (uint32_t i = count; i > 0; i--) {
        INVARIANT(blocks->state[ids[i - 1]] == BLOCK_HELD);
        come_back(blocks, ids[i - 1]);
    }
    blocks->held_count -= count;
}

void kv_blocks_complete(struct kv_blocks *blocks, uint64_t seq) {
    while (blocks->quarantine_count > 0 &&
           blocks->quarantine[blocks->quarantine_first].fence <= seq) {
        uint32_t id = blocks->quarantine[blocks->quarantine_first].id;
        INVARIANT(blocks->state[id] == BLOCK_QUARANTINED);
        come_back(blocks, id);
        blocks->quarantine_first = (blocks->quarantine_first + 1) % blocks->blocks_max;
        blocks->quarantine_count--;
    }
}

void kv_blocks_close(struct kv_blocks *blocks, uint32_t total) {
    INVARIANT(total <= blocks->total);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < blocks->free_count; i++) {
        if (blocks->free_ids[i] < total) {
            blocks->free_ids[kept++] = blocks->free_ids[i];
        }
    }
    blocks->free_count = kept;
    for (uint32_t id = total; id < blocks->total; id++) {
        if (blocks->state[id] == BLOCK_FREE) {
            blocks->state[id] = BLOCK_CLOSED;
        } else {
            blocks->above_count++;
        }
    }
    blocks->total = total;
}

void kv_blocks_open(struct kv_blocks *blocks, uint32_t total) {
    INVARIANT(total >= blocks->total);
    INVARIANT(total <= blocks->blocks_max);
    for (uint32_t id = total; id > blocks->total; id--) {
        bool is_new = id > blocks->span;
        if (is_new || blocks->state[id - 1] == BLOCK_CLOSED) {
            blocks->state[id - 1] = BLOCK_FREE;
            blocks->free_ids[blocks->free_count++] = id - 1;
        } else {
            blocks->above_count--;
        }
    }
    blocks->total = total;
    blocks->span = total > blocks->span ? total : blocks->span;
}

uint32_t kv_blocks_above(const struct kv_blocks *blocks) {
    return blocks->above_count;
}

uint32_t kv_blocks_total(const struct kv_blocks *blocks) {
    return blocks->total;
}

uint32_t kv_blocks_free(const struct kv_blocks *blocks) {
    return blocks->free_count;
}

uint32_t kv_blocks_quarantined(const struct kv_blocks *blocks) {
    return blocks->quarantine_count;
}

uint32_t kv_blocks_held(const struct kv_blocks *blocks) {
    return blocks->held_count;
}

void kv_blocks_audit(const struct kv_blocks *blocks) {
    uint32_t count[BLOCK_STATES] = {0};
    uint32_t above = 0;
    for (uint32_t i = 0; i < blocks->span; i++) {
        INVARIANT(blocks->state[i] <= BLOCK_CLOSED);
        count[blocks->state[i]]++;
        INVARIANT(blocks->state[i] != BLOCK_FREE || i < blocks->total);
        INVARIANT(blocks->state[i] != BLOCK_CLOSED || i >= blocks->total);
        above += i >= blocks->total && blocks->state[i] != BLOCK_CLOSED ? 1 : 0;
    }
    INVARIANT(count[BLOCK_FREE] == blocks->free_count);
    INVARIANT(count[BLOCK_HELD] == blocks->held_count);
    INVARIANT(count[BLOCK_QUARANTINED] == blocks->quarantine_count);
    INVARIANT(above == blocks->above_count);
    for (uint32_t i = 0; i < blocks->free_count; i++) {
        INVARIANT(blocks->state[blocks->free_ids[i]] == BLOCK_FREE);
    }
    uint64_t fence = 0;
    for (uint32_t i = 0; i < blocks->quarantine_count; i++) {
        const struct quarantined *entry =
            &blocks->quarantine[(blocks->quarantine_first + i) % blocks->blocks_max];
        INVARIANT(entry->fence >= fence);
        fence = entry->fence;
    }
}
