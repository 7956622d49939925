// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MODEL_MODEL_ITEMS_H
#define WORKER_MODEL_MODEL_ITEMS_H

#include "worker/model/model.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Inside of a model, for the files that make it one: the list of its weights (model_list.c), their
// packing (model_load.c), life cycle and questions (model.c).
//
//   Owns nothing.  Thread one at a time.  Allocates never.  Fails as model.h says.

enum { MODEL_NAME_BYTES = 128, MODEL_WEIGHT_ALIGNMENT = 64 };

// The experts' projection of a layer: what it is called in which container, alone or fused with its
// sister along the rows. A fused tensor has `fused_parts` of them, this one at `fused_index`.
struct model_expert_name {
    const char *gguf, *hf;
    const char *gguf_fused, *hf_fused;    // NULL: never fused
    uint32_t fused_parts, fused_index;
};

// One tensor of the model: where it comes from, where it goes.
struct model_item {
    char name[MODEL_NAME_BYTES];
    struct op_weight *weight;      // matrix, or
    struct op_experts *experts;    // a matrix for each expert of the rank, or
    const float **vector;          // float32 vector
    enum model_split split;
    enum model_kind kind;
    uint32_t rows, cols;              // of this rank; of one expert
    uint32_t row_begin, col_begin;    // where the rank's part begins in the whole
    struct weights_tensor source;     // of the whole model; no data in a model of shapes only
    // Experts: `source` is the first one of the model; the others lie `stride` bytes apart, or,
    // where that is 0, under names of their own.
    const struct model_expert_name *expert_name;
    int layer;
    uint32_t expert_begin;    // of the rank
    uint64_t stride;
    size_t offset;
    size_t bytes;
};

struct model {
    struct model_config config;    // whole
    struct model_config part;      // of this rank
    const struct ops *ops;
    struct model_view view;
    struct model_layer *layers;
    struct op_weight embed, output;
    const float *output_norm;
    const float *rope_divisors;    // in the file, NULL unless ROPE_SCALING_TABLE
    struct model_item *items;
    uint32_t item_count, item_max;
    uint32_t position_count;
    size_t rope_offset;
    size_t bytes;
    size_t kind_bytes[MODEL_KIND_COUNT];
    bool eighths;    // no weight met so far stands in the way of eight equal parts
    uint8_t *memory;
    uint64_t parameters, source_bytes;
};

// Most tensors that a model of so many layers lists.
uint32_t model_list_max(uint32_t layer_count);
// Finds and checks every tensor of the family and lays the rank's packed weights out.
enum status model_list(struct model *model, const struct weights *weights,
                       struct error *err) MUST_USE;
// Expert `expert` of the whole model, as the file has it.
enum status model_find_expert(const struct weights *weights, const struct model_item *item,
                              uint32_t expert, struct weights_tensor *out,
                              struct error *err) MUST_USE;

#endif
