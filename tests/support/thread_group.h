// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUPPORT_THREAD_GROUP_H
#define TESTS_SUPPORT_THREAD_GROUP_H

#include "worker/comm/collective.h"

// The ranks of a group as threads of one process, for tests of what ranks compute.
//
// The idea: each rank shows where its part lies, waits for the others, and reads all parts itself
// in the order that collective.h promises.
//
//   Owns       itself, until destroyed.
//   Thread     a rank's collective belongs to one thread at a time; break and send from any.
//   Allocates  in create.
//   Fails      by ending the process when there is no memory.

struct thread_group;

struct thread_group *thread_group_create(uint32_t world);
void thread_group_destroy(struct thread_group *group);
struct collective *thread_group_rank(struct thread_group *group, uint32_t rank);

// Messages so far and from now on carry nothing: who waits goes on at once.
void thread_group_break(struct thread_group *group);
// The same, as soon as a rank says its message number `count` (0 is its first).
void thread_group_break_at(struct thread_group *group, uint64_t count);

#endif
