// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_OVERLOAD_H
#define CONTROLLER_CORE_OVERLOAD_H

#include "controller/core/core_internal.h"

// Who is refused, when, and after what time it is worth asking again.
//
// The idea: no is said early, in the order of serving.md 1.8: what can never fit; as many requests
// or uncached prompt tokens wait as may; the first token would come later than 1.2 times what its
// class is allowed; nobody is there to serve it. While requests wait the same is asked again, ten
// times a second: who cannot keep its deadline whatever happens is refused then, and of those that
// are predicted to miss it only the dearest of a class at a time, since that may save the others.
// Nobody is refused once it began, nor for a prediction before the group's cost model has learnt.
//
// The time told is the one until the backlog is half of what was exceeded, within 1..60 s,
// scattered by a fifth so that clients do not return together; by the request's id, so that a
// replay says the same.
//
//   Owns       nothing of its own: works on the core.
//   Thread     the loop thread.
//   Allocates  never.
//   Fails      never.

struct refusal {
    enum reject_reason reason;
    double wait_us;    // until it is worth trying again; < 0: never
};

// Before it is in the table: what can be said from its sizes and the counts alone.
bool overload_refuses_spec(const struct core *core, const struct core_request *spec,
                           struct refusal *out);
// In the table, not in the line, and for `group` if it is taken. Sets its deadline.
bool overload_refuses(struct core *core, uint32_t index, struct group *group, struct refusal *out);
// The action, and its count. The request is in no table any more.
void overload_reject(struct core *core, const struct core_request *spec,
                     const struct refusal *refusal);
// Of those that wait. Looks at them when it is time to.
void overload_sweep(struct core *core);

#endif
