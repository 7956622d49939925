// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_TILES_H
#define WORKER_STEP_TILES_H

#include "common/status.h"
#include "proto/messages.h"
#include "worker/model/model.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The sizes of tiles that a workspace budget buys.
//
// The idea: a tile's bytes are never computed here. The worst step of the envelope is measured with
// the tiles in question (the measure reader over the same forward function that runs), and the
// largest tiles whose need obeys the budget are found by bisection: first all of them together as a
// number of rows, then each alone in what is left. More rows never need
// fewer bytes, so the answer is one that no tile can exceed, and the same for the same question.
//
//   Owns       nothing.
//   Thread     any.
//   Allocates  never.
//   Fails      EXHAUSTED when the smallest tiles need more than a given budget: names the ledger
//              line, the bytes and the options.

// Workspace bytes of the worst step with these tiles.
typedef size_t (*tiles_measure_fn)(void *ctx, const struct tiles *tiles);

struct tiles_question {
    tiles_measure_fn measure;
    void *measure_ctx;
    uint32_t step_tokens;    // of the envelope, for the text of a refusal
    struct tiles least, most;
    uint64_t limit_bytes;    // 0: none
    bool required;           // the limit was given: more than it is refused
};

// Fills all but the measure. With a budget (--workspace-budget) tiles go up to the whole step.
// Without one (0) they end where speed no longer rises, at most `share_bytes` (0: no limit) are
// wanted for them, and the smallest are taken where these are too many: a device too small for
// them is the ledger's to refuse.
void tiles_ask(const struct envelope *envelope, uint32_t thread_count, uint64_t budget_bytes,
               uint64_t share_bytes, struct tiles_question *out);

// `bytes` is what the chosen tiles need.
enum status tiles_choose(const struct tiles_question *question, struct tiles *out, size_t *bytes,
                         struct error *err) MUST_USE;

#endif
