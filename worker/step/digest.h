// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_DIGEST_H
#define WORKER_STEP_DIGEST_H

#include "kernels/ops.h"
#include "proto/messages.h"
#include <stdint.h>

// Numbers over what a step reads and leaves, by which ranks see that they went different ways.
//
// The idea: equal on every rank that was given the same, so they are made of values, never of
// memory with its gaps and addresses. The digest of a block list is a sum over its places, so it
// follows a change without reading the list again.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

uint64_t digest_mix(uint64_t digest, uint64_t value);

uint64_t digest_block(uint32_t index, uint32_t block);    // one place of a list
// Places [first, first + count) of a list; a whole list is the sum of its runs.
uint64_t digest_blocks(const uint32_t *blocks, uint32_t first, uint32_t count);

// `bias`: [sampling->bias_count]; the struct's own pointer is not read.
uint64_t digest_sampling(const struct sampling_params *sampling, const struct op_token_bias *bias);

// Slot, generation, position and token of each.
uint64_t digest_rows(const struct result_row *rows, uint32_t count);

#endif
