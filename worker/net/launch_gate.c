// SPDX-License-Identifier: Apache-2.0
#include "worker/net/launch_gate.h"

#include <string.h>

void launch_gate_init(struct launch_gate *gate) {
    memset(gate, 0, sizeof *gate);
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->moved, NULL);
}

void launch_gate_deinit(struct launch_gate *gate) {
    pthread_cond_destroy(&gate->moved);
    pthread_mutex_destroy(&gate->lock);
}

void launch_gate_set(struct launch_gate *gate, bool shut) {
    pthread_mutex_lock(&gate->lock);
    gate->shut = shut;
    pthread_cond_broadcast(&gate->moved);
    pthread_mutex_unlock(&gate->lock);
}

void launch_gate_end_epoch(struct launch_gate *gate, uint64_t epoch) {
    pthread_mutex_lock(&gate->lock);
    gate->over = epoch > gate->over ? epoch : gate->over;
    pthread_cond_broadcast(&gate->moved);
    pthread_mutex_unlock(&gate->lock);
}

void launch_gate_close(struct launch_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    gate->closing = true;
    pthread_cond_broadcast(&gate->moved);
    pthread_mutex_unlock(&gate->lock);
}

bool launch_gate_pass(struct launch_gate *gate, uint64_t epoch) {
    pthread_mutex_lock(&gate->lock);
    while (gate->shut && !gate->closing && epoch > gate->over) {
        pthread_cond_wait(&gate->moved, &gate->lock);
    }
    bool passes = !gate->closing && epoch > gate->over;
    pthread_mutex_unlock(&gate->lock);
    return passes;
}
