// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_WEIGHTS_MODEL_PATH_H
#define WORKER_WEIGHTS_MODEL_PATH_H

#include "common/status.h"

// Where a model lies: the path itself, or one of the models of shapes that are shipped.
//
// The idea: `tare plan meta-llama/Llama-3.1-70B-Instruct` should work on a machine that has no
// weights at all. What exists under the given path always wins. Otherwise the last part of the name
// is looked for among the shipped directories beside the program, without regard to case, whole or
// without the ending "-Instruct", which never changes a shape.
//
//   Owns nothing.  Thread any.  Allocates never.
//   Fails      NOT_FOUND with the shipped names; INVALID for a name too long.

enum { MODEL_PATH_BYTES = 4096 };

// Writes the path of `model` to `out`, MODEL_PATH_BYTES long.
enum status model_path_find(const char *model, char *out, struct error *err) MUST_USE;
// The same in one directory of shipped models.
enum status model_path_find_in(const char *directory, const char *model, char *out,
                               struct error *err) MUST_USE;

#endif
