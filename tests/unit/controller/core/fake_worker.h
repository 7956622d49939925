// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_CORE_FAKE_WORKER_H
#define TESTS_UNIT_CONTROLLER_CORE_FAKE_WORKER_H

#include "proto/messages.h"

// A worker without arithmetic for tests of the core: it keeps a slot table of its own, checks every
// plan against it and the envelope, and draws tokens that depend only on the tokens before them. So
// a test can say what each request must have received, whatever happened in between.
//
// Its KV blocks hold what was computed, so a block that is used twice, loses its contents or is
// shared by sequences that begin differently is noticed.
//
//   Owns its tables.  Thread one.  Allocates in create.  Fails by check's assertions.

struct fake_worker;

struct fake_worker *fake_worker_create(const struct plan_limits *limits);
void fake_worker_destroy(struct fake_worker *worker);
void fake_worker_reset(struct fake_worker *worker, uint64_t epoch);    // forgets every slot
// The same, and the KV stays.
void fake_worker_resume(struct fake_worker *worker, uint64_t epoch);

// Carries the plan out; `out` is alive until the next call.
void fake_worker_run(struct fake_worker *worker, const struct plan *plan, struct step_result *out);

// From now on it refuses plans whose step leaves `secret`, a part of its envelope that it did not
// tell, and plans with work of a sequence that begins with the token `poison` (-1: none).
void fake_worker_narrow(struct fake_worker *worker, const struct envelope *secret, int32_t poison);
uint64_t fake_worker_refusals(const struct fake_worker *worker);

// What a resize can give: whole chunks of so many blocks, and so many blocks at most. At first
// every size up to FAKE_BLOCKS_MAX.
enum { FAKE_BLOCKS_MAX = 160 };
void fake_worker_budget(struct fake_worker *worker, uint32_t chunk_blocks, uint32_t blocks_max);
// After a plan that asked for a resize: the blocks that there are now; 0 when none asked.
uint32_t fake_worker_resized(struct fake_worker *worker);
uint64_t fake_worker_cached(const struct fake_worker *worker);    // positions admitted computed
uint64_t fake_worker_moves(const struct fake_worker *worker);     // blocks moved so far
uint32_t fake_worker_pool(const struct fake_worker *worker);      // blocks there are

// The token that follows `count` tokens.
int32_t fake_worker_next(const int32_t *tokens, uint32_t count, uint32_t vocabulary);

#endif
