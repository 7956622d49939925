// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_KEYS_H
#define CONTROLLER_KEYS_H

#include "common/bounds.h"
#include "common/config.h"
#include "controller/http/api_gate.h"

// API keys from flags, environment and key file, kept as digests only.
//
//   Owns       the digests and the names of keys.
//   Thread     the loop thread.
//   Allocates  while loading.
//   Fails      NOT_FOUND, INVALID naming file and line.

struct keys {
    struct api_key keys[BOUND_API_KEYS];
    char names[BOUND_API_KEYS][64];
    uint32_t count;
};

// --api-key values and the lines of --api-key-file: `KEY`, or `name:KEY`, '#' comments.
enum status keys_load(const struct config *config, struct keys *out, struct error *err) MUST_USE;

#endif
