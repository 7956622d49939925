// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_WEIGHTS_WEIGHTS_H
#define WORKER_WEIGHTS_WEIGHTS_H

#include "common/dtype.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/status.h"
#include <stdbool.h>
#include <stdint.h>

// The files of a model, mapped: where tensors are found by name, whatever the container.
//
// The idea: a GGUF file, a safetensors file and a set of shards answer the same two questions:
// which tensor has this name, and how is the model configured. Pages are given back tensor by
// tensor once their packed form exists, so the file never stays in memory twice. A directory that
// has config.json and no weights is a model of *shapes only*: it has no tensors to find, its
// family's own list says what they would be (model.c). It can be planned, not computed.
//
//   Owns       the mappings and parsed headers.
//   Thread     one at a time.
//   Allocates  tables while opening.
//   Fails      NOT_FOUND, IO, CORRUPT, UNSUPPORTED; the sentence names file, tensor and offset.

enum weights_container {
    WEIGHTS_CONTAINER_GGUF,
    WEIGHTS_CONTAINER_SAFETENSORS,
};

// A matrix [rows, cols] or a vector (rows = 1) as the file stores it, row-major.
struct weights_tensor {
    enum dtype dtype;
    uint64_t rows;
    uint64_t cols;
    const uint8_t *data;
    uint64_t byte_count;
};

struct weights;

// `model` is a GGUF file, a .safetensors file's directory with config.json, such a directory with
// model.safetensors.index.json, one with config.json alone, or the name of one of those that are
// shipped (model_path.h).
enum status weights_open(const char *model, struct weights **out, struct error *err) MUST_USE;
void weights_close(struct weights *weights);    // accepts NULL

enum weights_container weights_container(const struct weights *weights);
const struct gguf *weights_gguf(const struct weights *weights);      // GGUF only, else NULL
const struct json *weights_config(const struct weights *weights);    // config.json, else NULL
// Identity of the files (sizes, headers, modification times), 16 hex digits.
const char *weights_digest(const struct weights *weights);

// CORRUPT with the name when absent; UNSUPPORTED for a type we cannot compute with. `out` of a
// tensor with more than two dimensions is CORRUPT here: weights_find_stack is for three.
enum status weights_find(const struct weights *weights, const char *name,
                         struct weights_tensor *out, struct error *err) MUST_USE;
bool weights_has(const struct weights *weights, const char *name);
// A tensor of three dimensions: `count` matrices of one shape, one after the other. `first` is the
// first of them; the others follow at multiples of its byte_count. CORRUPT and UNSUPPORTED as
// above.
enum status weights_find_stack(const struct weights *weights, const char *name,
                               struct weights_tensor *first, uint64_t *count,
                               struct error *err) MUST_USE;
bool weights_shapes_only(const struct weights *weights);    // find and has know no tensor then

// The tensor's pages are not needed again: returns them to the page cache.
void weights_release(const struct weights *weights, const struct weights_tensor *tensor);

#endif
