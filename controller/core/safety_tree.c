// SPDX-License-Identifier: Apache-2.0
#include "controller/core/safety_tree.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

struct node {
    int64_t held;         // sum over the claims below
    int64_t shortfall;    // max over i of need_i - held before i; negative infinity when empty
};

static const int64_t NOTHING = INT64_MIN / 4;

struct safety_tree {
    struct node *nodes;       // [2 * leaf_count], root at 1
    uint32_t *claim_count;    // [leaf_max] claims with this need
    uint32_t leaf_count;      // power of two in use
    uint32_t leaf_max;
};

static uint32_t leaves_for(uint32_t need_max) {
    uint32_t leaves = 1;
    while (leaves < need_max + 1) {
        leaves *= 2;
    }
    return leaves;
}

enum status safety_tree_create(uint32_t need_max, struct safety_tree **out, struct error *err) {
    struct safety_tree *tree = memory_zalloc(sizeof *tree);
    if (tree == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a safety tree");
    }
    tree->leaf_max = leaves_for(need_max);
    tree->nodes = memory_array(2 * (size_t)tree->leaf_max, sizeof *tree->nodes);
    tree->claim_count = memory_array(tree->leaf_max, sizeof *tree->claim_count);
    if (tree->nodes == NULL || tree->claim_count == NULL) {
        safety_tree_destroy(tree);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a safety tree of %u leaves",
                         leaves_for(need_max));
    }
    safety_tree_reset(tree, 0);
    *out = tree;
    return STATUS_OK;
}

void safety_tree_destroy(struct safety_tree *tree) {
    if (tree == NULL) {
        return;
    }
    memory_free(tree->nodes);
    memory_free(tree->claim_count);
    memory_free(tree);
}

void safety_tree_reset(struct safety_tree *tree, uint32_t need_max) {
    tree->leaf_count = leaves_for(need_max);
    INVARIANT(tree->leaf_count <= tree->leaf_max);
    for (uint32_t i = 0; i < 2 * tree->leaf_count; i++) {
        tree->nodes[i] = (struct node){0, NOTHING};
    }
    memset(tree->claim_count, 0, tree->leaf_count * sizeof *tree->claim_count);
}

static void update(struct safety_tree *tree, uint32_t need, int64_t held_change) {
    uint32_t at = tree->leaf_count + need;
    tree->nodes[at].held += held_change;
    tree->nodes[at].shortfall = tree->claim_count[need] > 0 ? (int64_t)need : NOTHING;
    for (at /= 2; at >= 1; at /= 2) {
        const struct node *left = &tree->nodes[2 * at];
        const struct node *right = &tree->nodes[2 * at + 1];
        int64_t behind = right->shortfall - left->held;
        tree->nodes[at].held = left->held + right->held;
        tree->nodes[at].shortfall = left->shortfall > behind ? left->shortfall : behind;
    }
}

void safety_tree_add(struct safety_tree *tree, struct safety_claim claim) {
    INVARIANT(claim.need < tree->leaf_count);
    tree->claim_count[claim.need]++;
    update(tree, claim.need, claim.held);
}

void safety_tree_remove(struct safety_tree *tree, struct safety_claim claim) {
    INVARIANT(claim.need < tree->leaf_count);
    INVARIANT(tree->claim_count[claim.need] > 0);
    tree->claim_count[claim.need]--;
    update(tree, claim.need, -(int64_t)claim.held);
}

uint32_t safety_tree_demand(const struct safety_tree *tree) {
    // A tree of one leaf has its root at that leaf.
    int64_t shortfall = tree->nodes[1].shortfall;
    return shortfall < 0 ? 0 : (uint32_t)shortfall;
}
