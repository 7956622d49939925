// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_STOP_SIGNAL_H
#define COMMON_STOP_SIGNAL_H

#include <signal.h>

// What `tare serve` says to its controller, apart from what anybody says to it.
//
// The idea: who stops a service as a whole, as systemd does, signals every process of it. With one
// signal for both, the controller would take the word that `tare serve` passes on for a second one,
// which ends everything now. So its words are signals of their own, each means one thing, and both
// may come again.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum {
    STOP_SIGNAL_DRAIN = SIGUSR1,
    STOP_SIGNAL_END = SIGUSR2,    // now: streams get an error event
};

// All that the controller minds. Blocked from before its start until its handlers stand, so that an
// early stop is an orderly one too.
static inline void stop_signal_set(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, STOP_SIGNAL_DRAIN);
    sigaddset(set, STOP_SIGNAL_END);
}

#endif
