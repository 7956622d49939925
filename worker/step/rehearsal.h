// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_REHEARSAL_H
#define WORKER_STEP_REHEARSAL_H

#include "worker/step/executor.h"

// The worst steps of the envelope, run before anybody depends on them.
//
// The idea: what a worker has run once at its largest, it can run again. A step with every token
// and every sequence, each drawing a token, then one in which all sequences decode, and a block
// moves where the pool has one to spare; both as plans through the executor like any other. One
// layer of the model is enough, since all layers use the same offsets; so a rehearsal costs little
// more than the logits.
//
//   Owns       nothing; leaves the executor as it was before its first epoch.
//   Thread     the step thread.
//   Allocates  the plans, for the time of the call.
//   Fails      EXHAUSTED for the plans; INVALID when a step is refused: a bug of ours, not the
//              user's, that would have come up later; EXHAUSTED when a step allocated memory.

// KV blocks that a rehearsal uses when it has them; with fewer it has fewer sequences.
uint32_t rehearsal_blocks(const struct plan_limits *limits);

enum status rehearsal_run(struct executor *executor, const struct plan_limits *limits,
                          struct error *err) MUST_USE;

#endif
