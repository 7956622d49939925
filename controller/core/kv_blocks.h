// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_KV_BLOCKS_H
#define CONTROLLER_CORE_KV_BLOCKS_H

#include "common/status.h"
#include "controller/core/prefix_index.h"
#include <stdbool.h>
#include <stdint.h>

// Block ids of one group: which are free, which are held and how often, which wait for a plan to
// complete, and which free ones still hold KV worth finding.
//
// The idea: the controller counts ids, the worker's kv pool owns the memory, kernels move the
// bytes. Sequences with the same beginning hold the same blocks. A block that nobody holds any more
// may still be written by a plan in flight, so it passes through a quarantine that ends when the
// plan numbered `fence` has completed on every rank. A free block keeps its key until it is handed
// out again, the least recently used first and of one sequence the last block first, so that what
// stays can still be reached from the start of a prompt.
//
// A pool that shrinks closes the ids above its new end: they are not handed out again, and those
// that are held or in quarantine close when they come back.
//
//   free -> held        kv_blocks_take (loses its key), kv_blocks_share (keeps it)
//   held -> quarantine  kv_blocks_retire(fence), by the last holder
//   quarantine -> held  kv_blocks_share
//   quarantine -> free  kv_blocks_complete(seq >= fence)
//   held -> free        kv_blocks_give_back, by the last holder
//   free <-> closed     kv_blocks_close, kv_blocks_open
//
//   Owns       its tables and the prefix index.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      take: EXHAUSTED, all or nothing.

struct kv_blocks;

enum status kv_blocks_create(uint32_t blocks_max, struct kv_blocks **out,
                             struct error *err) MUST_USE;
void kv_blocks_destroy(struct kv_blocks *blocks);
void kv_blocks_reset(struct kv_blocks *blocks, uint32_t block_count);    // all free, no keys

enum status kv_blocks_take(struct kv_blocks *blocks, uint32_t count, uint32_t *out) MUST_USE;
// Blocks that no plan named return at once.
void kv_blocks_give_back(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count);
// `ids` in the order of a sequence. A fence below the one of an earlier call is raised to it.
void kv_blocks_retire(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count,
                      uint64_t fence);
void kv_blocks_complete(struct kv_blocks *blocks, uint64_t seq);

// ---- shared blocks -----------------------------------------------------------------------------

// The block with this key, or PREFIX_NONE. Closed blocks and those above the end have none.
uint32_t kv_blocks_find(const struct kv_blocks *blocks, const struct prefix_key *key);
// One more holder of a block that kv_blocks_find named.
void kv_blocks_share(struct kv_blocks *blocks, uint32_t id);
// A held block whose every position is computed gets its key, unless another block has it.
void kv_blocks_publish(struct kv_blocks *blocks, uint32_t id, const struct prefix_key *key);
uint32_t kv_blocks_holders(const struct kv_blocks *blocks, uint32_t id);
uint32_t kv_blocks_cached(const struct kv_blocks *blocks);              // free ones that have a key
bool kv_blocks_is_free(const struct kv_blocks *blocks, uint32_t id);    // or in quarantine

// A mark on a held block for whoever counts holdings; gone when the block comes back.
void kv_blocks_set_owner(struct kv_blocks *blocks, uint32_t id, uint32_t owner);
#define KV_OWNER_NONE UINT32_MAX
uint32_t kv_blocks_owner(const struct kv_blocks *blocks, uint32_t id);

// ---- size --------------------------------------------------------------------------------------

// Ids from `total` on are not handed out any more; `total` is at most what it was.
void kv_blocks_close(struct kv_blocks *blocks, uint32_t total);
// Ids up to `total` may be handed out; `total` is at least what it was.
void kv_blocks_open(struct kv_blocks *blocks, uint32_t total);
uint32_t kv_blocks_above(const struct kv_blocks *blocks);    // ids above the end, not closed yet
// The contents of `from` are in `to`, which was taken for it: holders, key and owner go over, and
// `from` returns at once.
void kv_blocks_moved(struct kv_blocks *blocks, uint32_t from, uint32_t to);

uint32_t kv_blocks_total(const struct kv_blocks *blocks);
uint32_t kv_blocks_free(const struct kv_blocks *blocks);
uint32_t kv_blocks_quarantined(const struct kv_blocks *blocks);
// Each counted once, those above the end too.
uint32_t kv_blocks_held(const struct kv_blocks *blocks);
uint64_t kv_blocks_holdings(const struct kv_blocks *blocks);    // each as often as it is held

void kv_blocks_audit(const struct kv_blocks *blocks);

#endif
