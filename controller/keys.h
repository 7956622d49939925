// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_KEYS_H
#define CONTROLLER_KEYS_H

#include "common/bounds.h"
#include "common/config.h"
#include "controller/http/api_gate.h"

// API keys from flags, environment and key file, kept as digests only, and what each stands for.
//
// The idea: a key is a digest and an account. Read again, a key that is still there keeps its
// account with what it used, under the limits of the new file; an account whose key is gone stays
// until its place is needed, since calls that are open name it. So there is room for twice as many
// accounts as keys, and the one that is gone longest makes place.
//
//   Owns       the digests and the accounts.
//   Thread     the loop thread.
//   Allocates  while a file is read; large itself.
//   Fails      NOT_FOUND, INVALID naming file and line; what was loaded before stays.

enum { KEYS_ACCOUNTS = 2 * BOUND_API_KEYS };

// A key as it was written.
struct keys_entry {
    uint8_t digest[HASH_SHA256_BYTES];
    char name[API_ACCOUNT_NAME_BYTES];
    enum request_class class_;
    float weight;
    struct api_limits limits;
};

struct keys {
    struct api_key keys[BOUND_API_KEYS];
    uint32_t count;
    struct keys_entry entries[BOUND_API_KEYS];    // that are being read
    uint32_t entry_count;
    struct api_account accounts[KEYS_ACCOUNTS];    // tenant is the index + 1
    uint8_t digests[KEYS_ACCOUNTS][HASH_SHA256_BYTES];
    uint64_t listed[KEYS_ACCOUNTS];    // by the load with this number last; 0: never taken
    uint64_t loads;
};

// --api-key values and the lines of --api-key-file: [NAME:]KEY [ATTRIBUTE=VALUE ...], '#' comments.
// Attributes: class (standard), weight (1), concurrency, requests-per-minute, tokens-per-minute (no
// limit). `keys` is zero before the first load.
enum status keys_load(const struct config *config, struct keys *keys, struct error *err) MUST_USE;

// The lines of a file: `text` has a NUL behind its `text_bytes`, and is written into; its keys are
// added to those that are being read. For keys_load and tests.
enum status keys_parse(const char *name, char *text, size_t text_bytes, struct keys *keys,
                       struct error *err) MUST_USE;

#endif
