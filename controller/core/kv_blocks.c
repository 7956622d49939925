// SPDX-License-Identifier: Apache-2.0
#include "controller/core/kv_blocks.h"

#include "common/invariant.h"
#include "common/memory.h"

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_QUARANTINED, BLOCK_CLOSED, BLOCK_STATES };

#define NO_BLOCK UINT32_MAX

struct block {
    uint8_t state;
    uint32_t holders;
    uint32_t owner;
    uint32_t prev, next;    // in the list of its state: free or quarantined
    uint64_t fence;         // quarantined: the plan it waits for
};

struct list {
    uint32_t first, last, count;
};

struct kv_blocks {
    uint32_t blocks_max;
    uint32_t total;    // ids below are handed out
    uint32_t span;     // ids below have a state
    uint32_t held_count;
    uint32_t cached_count;     // free ones with a key
    uint32_t above_count;      // ids from `total` on that are held or in quarantine
    struct block *block;       // [blocks_max]
    struct list free;          // first: handed out next
    struct list quarantine;    // fences ascending
    struct prefix_index *index;
    uint64_t fence_last;
};

enum status kv_blocks_create(uint32_t blocks_max, struct kv_blocks **out, struct error *err) {
    struct kv_blocks *blocks = memory_zalloc(sizeof *blocks);
    if (blocks == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for block ids");
    }
    blocks->blocks_max = blocks_max;
    blocks->block = memory_array(blocks_max, sizeof *blocks->block);
    enum status status = STATUS_OK;
    if (blocks->block == NULL) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for %u block ids", blocks_max);
    } else {
        status = prefix_index_create(blocks_max, &blocks->index, err);
    }
    if (status != STATUS_OK) {
        kv_blocks_destroy(blocks);
        return status;
    }
    kv_blocks_reset(blocks, 0);
    *out = blocks;
    return STATUS_OK;
}

void kv_blocks_destroy(struct kv_blocks *blocks) {
    if (blocks == NULL) {
        return;
    }
    prefix_index_destroy(blocks->index);
    memory_free(blocks->block);
    memory_free(blocks);
}

// ---- lists -------------------------------------------------------------------------------------

static void append(struct kv_blocks *blocks, struct list *list, uint32_t id) {
    struct block *block = &blocks->block[id];
    block->prev = list->last;
    block->next = NO_BLOCK;
    if (list->last == NO_BLOCK) {
        list->first = id;
    } else {
        blocks->block[list->last].next = id;
    }
    list->last = id;
    list->count++;
}

static void prepend(struct kv_blocks *blocks, struct list *list, uint32_t id) {
    struct block *block = &blocks->block[id];
    block->prev = NO_BLOCK;
    block->next = list->first;
    if (list->first == NO_BLOCK) {
        list->last = id;
    } else {
        blocks->block[list->first].prev = id;
    }
    list->first = id;
    list->count++;
}

static void unlink_block(struct kv_blocks *blocks, struct list *list, uint32_t id) {
    struct block *block = &blocks->block[id];
    if (block->prev == NO_BLOCK) {
        list->first = block->next;
    } else {
        blocks->block[block->prev].next = block->next;
    }
    if (block->next == NO_BLOCK) {
        list->last = block->prev;
    } else {
        blocks->block[block->next].prev = block->prev;
    }
    list->count--;
}

// ---- states ------------------------------------------------------------------------------------

void kv_blocks_reset(struct kv_blocks *blocks, uint32_t block_count) {
    INVARIANT(block_count <= blocks->blocks_max);
    blocks->total = block_count;
    blocks->span = block_count;
    blocks->held_count = 0;
    blocks->cached_count = 0;
    blocks->above_count = 0;
    blocks->fence_last = 0;
    blocks->free = (struct list){NO_BLOCK, NO_BLOCK, 0};
    blocks->quarantine = (struct list){NO_BLOCK, NO_BLOCK, 0};
    prefix_index_reset(blocks->index, block_count);
    // Low ids first: the pool's pages are then touched from its start.
    for (uint32_t id = 0; id < block_count; id++) {
        blocks->block[id] = (struct block){.state = BLOCK_FREE, .owner = KV_OWNER_NONE};
        append(blocks, &blocks->free, id);
    }
}

static void drop_key(struct kv_blocks *blocks, uint32_t id) {
    if (prefix_index_has(blocks->index, id)) {
        prefix_index_remove(blocks->index, id);
    }
}

// What has a key is handed out last, and in the order in which it came back.
static void become_free(struct kv_blocks *blocks, uint32_t id) {
    struct block *block = &blocks->block[id];
    if (id >= blocks->total) {
        drop_key(blocks, id);
        block->state = BLOCK_CLOSED;
        blocks->above_count--;
        return;
    }
    block->state = BLOCK_FREE;
    if (prefix_index_has(blocks->index, id)) {
        append(blocks, &blocks->free, id);
        blocks->cached_count++;
    } else {
        prepend(blocks, &blocks->free, id);
    }
}

static void leave_free(struct kv_blocks *blocks, uint32_t id) {
    unlink_block(blocks, &blocks->free, id);
    blocks->cached_count -= prefix_index_has(blocks->index, id) ? 1 : 0;
}

static void hold(struct kv_blocks *blocks, uint32_t id) {
    struct block *block = &blocks->block[id];
    block->state = BLOCK_HELD;
    block->holders = 1;
    block->owner = KV_OWNER_NONE;
    blocks->held_count++;
}

enum status kv_blocks_take(struct kv_blocks *blocks, uint32_t count, uint32_t *out) {
    // All or nothing: a partial grant would have to be undone by every caller.
    if (count > blocks->free.count) {
        return STATUS_EXHAUSTED;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = blocks->free.first;
        INVARIANT(blocks->block[id].state == BLOCK_FREE);
        leave_free(blocks, id);
        drop_key(blocks, id);
        hold(blocks, id);
        out[i] = id;
    }
    return STATUS_OK;
}

// One holder less; true when it was the last.
static bool let_go(struct kv_blocks *blocks, uint32_t id) {
    INVARIANT(id < blocks->span);
    struct block *block = &blocks->block[id];
    INVARIANT(block->state == BLOCK_HELD);
    INVARIANT(block->holders > 0);
    if (--block->holders > 0) {
        return false;
    }
    block->owner = KV_OWNER_NONE;
    blocks->held_count--;
    return true;
}

void kv_blocks_retire(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count,
                      uint64_t fence) {
    if (fence < blocks->fence_last) {
        fence = blocks->fence_last;    // a refused plan's number comes twice
    }
    blocks->fence_last = fence;
    // From the end, so that the end is handed out before the beginning.
    for (uint32_t i = count; i > 0; i--) {
        uint32_t id = ids[i - 1];
        if (let_go(blocks, id)) {
            blocks->block[id].state = BLOCK_QUARANTINED;
            blocks->block[id].fence = fence;
            append(blocks, &blocks->quarantine, id);
        }
    }
}

void kv_blocks_give_back(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count) {
    for (uint32_t i = count; i > 0; i--) {
        if (let_go(blocks, ids[i - 1])) {
            become_free(blocks, ids[i - 1]);
        }
    }
}

void kv_blocks_complete(struct kv_blocks *blocks, uint64_t seq) {
    while (blocks->quarantine.count > 0 && blocks->block[blocks->quarantine.first].fence <= seq) {
        uint32_t id = blocks->quarantine.first;
        INVARIANT(blocks->block[id].state == BLOCK_QUARANTINED);
        unlink_block(blocks, &blocks->quarantine, id);
        become_free(blocks, id);
    }
    if (blocks->quarantine.count == 0) {
        blocks->fence_last = 0;
    }
}

// ---- shared blocks -----------------------------------------------------------------------------

uint32_t kv_blocks_find(const struct kv_blocks *blocks, const struct prefix_key *key) {
    return prefix_index_find(blocks->index, key);
}

void kv_blocks_share(struct kv_blocks *blocks, uint32_t id) {
    INVARIANT(id < blocks->total);
    struct block *block = &blocks->block[id];
    if (block->state == BLOCK_HELD) {
        block->holders++;
        return;
    }
    if (block->state == BLOCK_FREE) {
        leave_free(blocks, id);
    } else {
        INVARIANT(block->state == BLOCK_QUARANTINED);
        unlink_block(blocks, &blocks->quarantine, id);
    }
    hold(blocks, id);
}

void kv_blocks_publish(struct kv_blocks *blocks, uint32_t id, const struct prefix_key *key) {
    INVARIANT(blocks->block[id].state == BLOCK_HELD);
    if (id < blocks->total && !prefix_index_has(blocks->index, id)) {
        prefix_index_add(blocks->index, key, id);
    }
}

uint32_t kv_blocks_holders(const struct kv_blocks *blocks, uint32_t id) {
    INVARIANT(id < blocks->span);
    return blocks->block[id].holders;
}

bool kv_blocks_is_free(const struct kv_blocks *blocks, uint32_t id) {
    INVARIANT(id < blocks->span);
    return blocks->block[id].state == BLOCK_FREE || blocks->block[id].state == BLOCK_QUARANTINED;
}

uint32_t kv_blocks_cached(const struct kv_blocks *blocks) {
    return blocks->cached_count;
}

void kv_blocks_set_owner(struct kv_blocks *blocks, uint32_t id, uint32_t owner) {
    INVARIANT(blocks->block[id].state == BLOCK_HELD);
    blocks->block[id].owner = owner;
}

uint32_t kv_blocks_owner(const struct kv_blocks *blocks, uint32_t id) {
    return blocks->block[id].owner;
}

// ---- size --------------------------------------------------------------------------------------

void kv_blocks_close(struct kv_blocks *blocks, uint32_t total) {
    INVARIANT(total <= blocks->total);
    for (uint32_t id = total; id < blocks->total; id++) {
        struct block *block = &blocks->block[id];
        if (block->state == BLOCK_FREE) {
            leave_free(blocks, id);
            drop_key(blocks, id);
            block->state = BLOCK_CLOSED;
            continue;
        }
        // Whoever looks for it must not come to hold it again; who holds it moves it down.
        drop_key(blocks, id);
        blocks->above_count++;
    }
    blocks->total = total;
}

void kv_blocks_open(struct kv_blocks *blocks, uint32_t total) {
    INVARIANT(total >= blocks->total);
    INVARIANT(total <= blocks->blocks_max);
    prefix_index_grow(blocks->index, total);
    for (uint32_t id = total; id > blocks->total; id--) {
        struct block *block = &blocks->block[id - 1];
        bool is_new = id > blocks->span;
        if (is_new || block->state == BLOCK_CLOSED) {
            *block = (struct block){.state = BLOCK_FREE, .owner = KV_OWNER_NONE};
            prepend(blocks, &blocks->free, id - 1);
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

void kv_blocks_moved(struct kv_blocks *blocks, uint32_t from, uint32_t to) {
    struct block *old = &blocks->block[from], *new = &blocks->block[to];
    INVARIANT(old->state == BLOCK_HELD);
    INVARIANT(new->state == BLOCK_HELD &&new->holders == 1);
    new->holders = old->holders;
    new->owner = old->owner;
    if (prefix_index_has(blocks->index, from)) {
        prefix_index_move(blocks->index, from, to);
    }
    old->holders = 0;
    old->owner = KV_OWNER_NONE;
    blocks->held_count--;
    become_free(blocks, from);
}

uint32_t kv_blocks_total(const struct kv_blocks *blocks) {
    return blocks->total;
}

uint32_t kv_blocks_free(const struct kv_blocks *blocks) {
    return blocks->free.count;
}

uint32_t kv_blocks_quarantined(const struct kv_blocks *blocks) {
    return blocks->quarantine.count;
}

uint32_t kv_blocks_held(const struct kv_blocks *blocks) {
    return blocks->held_count;
}

uint64_t kv_blocks_holdings(const struct kv_blocks *blocks) {
    uint64_t holdings = 0;
    for (uint32_t id = 0; id < blocks->span; id++) {
        holdings += blocks->block[id].holders;
    }
    return holdings;
}

// ---- audit -------------------------------------------------------------------------------------

static void audit_list(const struct kv_blocks *blocks, const struct list *list, uint8_t state) {
    uint32_t count = 0, prev = NO_BLOCK;
    uint64_t fence = 0;
    for (uint32_t id = list->first; id != NO_BLOCK; id = blocks->block[id].next) {
        const struct block *block = &blocks->block[id];
        INVARIANT(block->state == state);
        INVARIANT(block->prev == prev);
        INVARIANT(block->holders == 0);
        INVARIANT(state != BLOCK_QUARANTINED || block->fence >= fence);
        fence = block->fence;
        prev = id;
        count++;
        INVARIANT(count <= list->count);
    }
    INVARIANT(list->last == prev);
    INVARIANT(count == list->count);
}

void kv_blocks_audit(const struct kv_blocks *blocks) {
    uint32_t count[BLOCK_STATES] = {0};
    uint32_t above = 0, cached = 0;
    for (uint32_t id = 0; id < blocks->span; id++) {
        const struct block *block = &blocks->block[id];
        INVARIANT(block->state < BLOCK_STATES);
        count[block->state]++;
        bool keyed = prefix_index_has(blocks->index, id);
        INVARIANT(block->state != BLOCK_FREE || id < blocks->total);
        INVARIANT(block->state != BLOCK_CLOSED || (id >= blocks->total && !keyed));
        INVARIANT((block->state == BLOCK_HELD) == (block->holders > 0));
        INVARIANT(block->state == BLOCK_HELD || block->owner == KV_OWNER_NONE);
        INVARIANT(id < blocks->total || !keyed);
        above += id >= blocks->total && block->state != BLOCK_CLOSED ? 1 : 0;
        cached += block->state == BLOCK_FREE && keyed ? 1 : 0;
    }
    INVARIANT(count[BLOCK_FREE] == blocks->free.count);
    INVARIANT(count[BLOCK_HELD] == blocks->held_count);
    INVARIANT(count[BLOCK_QUARANTINED] == blocks->quarantine.count);
    INVARIANT(above == blocks->above_count);
    INVARIANT(cached == blocks->cached_count);
    audit_list(blocks, &blocks->free, BLOCK_FREE);
    audit_list(blocks, &blocks->quarantine, BLOCK_QUARANTINED);
    prefix_index_audit(blocks->index);
}
