// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_NET_LAUNCH_GATE_H
#define WORKER_NET_LAUNCH_GATE_H

#include "common/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// Whether the step thread may launch the next plan.
//
// The idea: plans are on their way to the step thread when the I/O thread learns that they must not
// run: the controller is silent for longer than its lease, or their epoch is over. So the step
// thread asks at the last moment, before each launch. A shut gate holds a plan back, and a
// controller that comes back in time loses nothing; an epoch that is over drops it.
//
//   Owns       a lock and a condition.
//   Thread     the I/O thread moves it, the step thread waits at it.
//   Allocates  never.
//   Fails      never.

struct launch_gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool shut;
    bool closing;
    uint64_t over;    // plans of this epoch and of older ones are not launched
};

void launch_gate_init(struct launch_gate *gate);
void launch_gate_deinit(struct launch_gate *gate);

void launch_gate_set(struct launch_gate *gate, bool shut);
void launch_gate_end_epoch(struct launch_gate *gate, uint64_t epoch);
void launch_gate_close(struct launch_gate *gate);    // ends every wait, for good

// Waits while the gate is shut. False when a plan of this epoch is not to be launched at all.
bool launch_gate_pass(struct launch_gate *gate, uint64_t epoch);

#endif
