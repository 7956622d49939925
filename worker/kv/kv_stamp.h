// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_KV_KV_STAMP_H
#define WORKER_KV_KV_STAMP_H

#include <stdint.h>

// Whether the KV pool's bytes are those that the last process left.
//
// The idea: a random number lies beside the pool, in memory that outlives the process that computes
// (holder.h). A process that finds the pool as it was keeps the number; whoever writes anything but
// steps into the pool, or changes where blocks lie, first takes the number away. So a controller
// that knows a stamp knows what the blocks hold.
//
//   Owns       nothing: the struct lies in the holder's memory, or in the engine's.
//   Thread     the step thread.
//   Allocates  never.
//   Fails      never. Without random numbers there is no stamp (0), and nothing is kept.

enum { KV_STAMP_LAYOUT_BYTES = 32 };

struct kv_stamp {
    uint64_t value;                        // 0: the bytes mean nothing
    uint64_t bytes;                        // of the pool
    char layout[KV_STAMP_LAYOUT_BYTES];    // digest of whatever decides what a byte means
};

void kv_stamp_spoil(struct kv_stamp *stamp);
// The pool is ready: as it was, when the stamp says the same; else under a new one.
uint64_t kv_stamp_settle(struct kv_stamp *stamp, uint64_t bytes, const char *layout);
// The pool has another size, and its blocks below both sizes are untouched.
void kv_stamp_resize(struct kv_stamp *stamp, uint64_t bytes);

#endif
