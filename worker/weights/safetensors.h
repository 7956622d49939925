// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_WEIGHTS_SAFETENSORS_H
#define WORKER_WEIGHTS_SAFETENSORS_H

#include "common/dtype.h"
#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// Reader of a safetensors file that lies in memory.
//
// The idea: the header is judged once, as a whole: names unique, shapes and types consistent with
// their ranges, ranges contiguous from 0 to the end of the file. After that a tensor is a view.
// Tensors of element types that we cannot compute with (integers, FP8) are kept in the table as
// unsupported, so that asking for one names it.
//
//   Owns       its table; keeps `bytes`, which must outlive it.
//   Thread     any; immutable after parse.
//   Allocates  the table, bounded by the header's length.
//   Fails      CORRUPT naming tensor and offset; EXHAUSTED.

enum { SAFETENSORS_DIMS_MAX = 8 };

struct safetensors_tensor {
    const char *name;
    const char *type_name;    // as in the file
    bool supported;           // dtype is set
    enum dtype dtype;
    uint32_t dim_count;
    uint64_t shape[SAFETENSORS_DIMS_MAX];    // row-major, last varies fastest
    uint64_t file_offset;
    uint64_t byte_count;
    const uint8_t *data;    // no alignment beyond a byte is promised
};

struct safetensors;

enum status safetensors_parse(const void *bytes, size_t byte_count, struct safetensors **out,
                              struct error *err) MUST_USE;
void safetensors_destroy(struct safetensors *file);    // accepts NULL

size_t safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t index);
const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name);    // or NULL

#endif
