// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_SAFETY_TREE_H
#define CONTROLLER_CORE_SAFETY_TREE_H

#include "common/status.h"
#include <stdint.h>

// The banker's rule for one resource, kept up to date in O(log V).
//
// The idea: every running request holds some KV blocks and may need some more to reach its end; all
// it holds returns then. The state is safe when the requests can finish in some order: by ascending
// need, need_i <= free + sum of held_j over j before i. A segment tree over need values keeps, per
// node, the sum of held and the largest shortfall d; the state is safe when root.d <= free.
//
//   Owns       its nodes.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      create: EXHAUSTED.

struct safety_tree;

enum status safety_tree_create(uint32_t need_max, struct safety_tree **out,
                               struct error *err) MUST_USE;
void safety_tree_destroy(struct safety_tree *tree);
// Empties the tree; needs up to `need_max` (at most the one of create) follow.
void safety_tree_reset(struct safety_tree *tree, uint32_t need_max);

struct safety_claim {
    uint32_t need;    // blocks still to be taken
    uint32_t held;    // blocks that return at the end
};
void safety_tree_add(struct safety_tree *tree, struct safety_claim claim);
void safety_tree_remove(struct safety_tree *tree, struct safety_claim claim);

// The smallest number of free blocks with which every request can finish; 0 when none runs.
uint32_t safety_tree_demand(const struct safety_tree *tree);

#endif
