// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_PREDICTION_H
#define CONTROLLER_CORE_PREDICTION_H

#include "controller/core/core_internal.h"

// When a request would have its first token on a group.
//
// The idea: prompts are computed at the rate that the cost model gives a step of the present decode
// rows with as many prompt tokens as it has time for. Ahead of a request are the prompts that run,
// and those that wait and go first. Where all slots are taken it also waits for others to end, at
// the pace at which they did lately while somebody waited. The later of the two counts.
//
//   Owns       nothing; reads groups.
//   Thread     the loop thread.
//   Allocates  never.
//   Fails      never. Before the group has learnt its numbers are guesses: nobody is refused for
//              them.

bool prediction_learnt(const struct group *group);

// Of one prompt token among many, beside what the group decodes.
double prediction_token_us(const struct core *core, const struct group *group);
// Of a prompt of so many tokens on an idle group.
double prediction_alone_us(const struct group *group, uint64_t tokens);
// What a request of `known` tokens costs on a group, itself and the others: time to its first
// token, and more where slots or blocks run out, since it would wait for somebody's end there. To
// compare groups with.
double prediction_placement_us(const struct core *core, const struct group *group, uint32_t known,
                               uint32_t uncached);
// Until a request that computes `uncached` tokens and waits behind `ahead` has its first one.
double prediction_first_token_us(const struct core *core, const struct group *group,
                                 const struct waiting_ahead *ahead, uint32_t uncached);
// Until the first token of a request, and what the request computes itself, when its class is
// allowed `ttft_target_us`: a long prompt takes its time, the target is what it waits beside that.
double prediction_allowed_us(const struct group *group, const struct core_request *spec,
                             double ttft_target_us);

#endif
