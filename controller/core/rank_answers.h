// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_RANK_ANSWERS_H
#define CONTROLLER_CORE_RANK_ANSWERS_H

#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// The answers of a group's ranks to the plans that are out.
//
// The idea: every rank carries out every plan and answers with a digest of what it drew and of the
// state it is in; only rank 0 sends rows. A plan is answered when all ranks have said the same, and
// what they say is believed only then, so that no token of ranks that have diverged reaches a
// client. Rows of rank 0 that come before the other ranks' word are copied.
//
//   Owns       copies of rows, for as many plans as may be out.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      create: EXHAUSTED.

struct rank_answers;

// `rows_max`: of one result. `ranks_max` 1: nothing needs to be copied.
enum status rank_answers_create(uint32_t rows_max, uint32_t ranks_max, struct rank_answers **out,
                                struct error *err) MUST_USE;
void rank_answers_destroy(struct rank_answers *answers);    // accepts NULL

// A new epoch with so many ranks: nothing is out.
void rank_answers_reset(struct rank_answers *answers, uint32_t world);
void rank_answers_sent(struct rank_answers *answers, uint64_t seq);

// False: the plan is not out, or the rank has answered it.
bool rank_answers_await(struct rank_answers *answers, uint32_t rank, uint64_t seq);

enum rank_verdict {
    RANK_VERDICT_FINE,
    RANK_VERDICT_BROKEN,      // a rank lacks its peers or a plan; its state is not wrong
    RANK_VERDICT_DIVERGED,    // ranks differ
};
// An answer that is awaited, valid, its rows alive until rank_answers_keep.
enum rank_verdict rank_answers_take(struct rank_answers *answers, uint32_t rank,
                                    const struct step_result *result);

// The oldest plan's answer once all ranks have given it, or NULL. Its rows are alive until the next
// plan is sent.
const struct step_result *rank_answers_oldest(const struct rank_answers *answers);
void rank_answers_pop(struct rank_answers *answers);
// Before what was given to the last take goes: copies the rows that are still needed.
void rank_answers_keep(struct rank_answers *answers);

// Ranks that have not answered the oldest plan, one bit each.
uint32_t rank_answers_missing(const struct rank_answers *answers);

#endif
