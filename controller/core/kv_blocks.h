// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_KV_BLOCKS_H
#define CONTROLLER_CORE_KV_BLOCKS_H

#include "common/status.h"
#include <stdint.h>

// Block ids of one group: which are free, which are held, which wait for a plan to complete.
//
// The idea: the controller counts ids, the worker's kv pool owns the memory, kernels move the
// bytes. A block that a sequence gives up may still be written by a plan in flight, so it passes
// through a quarantine that ends when the plan numbered `fence` has completed on every rank.
//
// A pool that shrinks closes the ids above its new end: they are not handed out again, and those
// that are held or in quarantine close when they come back.
//
//   free -> held        kv_blocks_take
//   held -> quarantine  kv_blocks_retire(fence)
//   quarantine -> free  kv_blocks_complete(seq >= fence)
//   held -> free        kv_blocks_give_back
//   free <-> closed     kv_blocks_close, kv_blocks_open
//
//   Owns       its tables.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      take: EXHAUSTED, all or nothing.

struct kv_blocks;

enum status kv_blocks_create(uint32_t blocks_max, struct kv_blocks **out,
                             struct error *err) MUST_USE;
void kv_blocks_destroy(struct kv_blocks *blocks);
void kv_blocks_reset(struct kv_blocks *blocks, uint32_t block_count);    // all free

enum status kv_blocks_take(struct kv_blocks *blocks, uint32_t count, uint32_t *out) MUST_USE;
// Blocks that no plan named return at once.
void kv_blocks_give_back(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count);
// A fence below the one of an earlier call is raised to it.
void kv_blocks_retire(struct kv_blocks *blocks, const uint32_t *ids, uint32_t count,
                      uint64_t fence);
void kv_blocks_complete(struct kv_blocks *blocks, uint64_t seq);

// Ids from `total` on are not handed out any more; `total` is at most what it was.
void kv_blocks_close(struct kv_blocks *blocks, uint32_t total);
// Ids up to `total` may be handed out; `total` is at least what it was.
void kv_blocks_open(struct kv_blocks *blocks, uint32_t total);
uint32_t kv_blocks_above(const struct kv_blocks *blocks);    // ids above the end, not closed yet

uint32_t kv_blocks_total(const struct kv_blocks *blocks);
uint32_t kv_blocks_free(const struct kv_blocks *blocks);
uint32_t kv_blocks_quarantined(const struct kv_blocks *blocks);
// Those above the end too.
uint32_t kv_blocks_held(const struct kv_blocks *blocks);

void kv_blocks_audit(const struct kv_blocks *blocks);

#endif
