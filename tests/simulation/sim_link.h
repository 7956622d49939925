// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_LINK_H
#define TESTS_SIMULATION_SIM_LINK_H

#include "tests/simulation/sim_world.h"

// The links by which results come to the core.
//
// The idea: they behave as the transport does, in order and complete while a connection lasts. A
// message is lost only with its connection, or with a process that stops reading; what was on its
// way when a connection ended may still come, late. What a worker answers is a message for each
// rank, and a message is an event at the time at which it arrives. Where the options say so, one
// comes a second time, up to five seconds later, and with it what an earlier epoch said to a plan
// of the same number (a *ghost*). The part of a rank that is mute is lost; one that has diverged
// says something else. Plans arrive at once or never: sim_world looks whether the group is deaf.
//
//   Owns       messages: those on their way, in the world's lists, and the groups' ghosts.
//   Thread     one.
//   Allocates  as messages are more than ever before.
//   Fails      by sim_fail.

// A result on its way, with the connection it came by.
struct sim_message {
    struct sim_message *next;
    uint32_t group, connection;
    uint32_t rank;
    bool completes;    // all ranks have answered then
    bool resized;      // a capacity report follows
    struct message_capacity capacity;
    struct step_result result;
    struct result_row rows[];
};

// An empty one, with room for the rows of this group's worker, by the connection it has.
struct sim_message *sim_link_message(struct sim_world *world, struct sim_group *group);
// The worker begins the step when it has ended those before, and answers after it: events of kind
// SIM_EVENT_RESULT follow, with messages of their own. Takes `message`.
void sim_link_send(struct sim_world *world, struct sim_group *group, struct sim_message *message);

// It has arrived, and is an input of the core until the tick is over.
void sim_link_deliver(struct sim_world *world, struct sim_message *message);
// The tick is over.
void sim_link_delivered(struct sim_world *world);

// Frees every message, wherever it is: no event is left.
void sim_link_deinit(struct sim_world *world);

#endif
