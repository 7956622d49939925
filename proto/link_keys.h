// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_LINK_KEYS_H
#define PROTO_LINK_KEYS_H

#include "common/bounds.h"
#include "common/status.h"
#include <stdbool.h>
#include <stdint.h>

// Keys of links over a network (CURVE), their files, and the list of those who may come.
//
// The idea: each end has a pair of keys. A worker knows the controller's public key, the controller
// a list with the public key of everybody who may connect, and for each of them which places in
// which groups it may take: whoever holds one node's key cannot act as another node.
//
//   key file    `public KEY`, and in a secret one (mode 0600, ours) `secret KEY`
//   allow-list  one line each: NAME KEY role=worker|admin ids=g0r0,g0r1,g1r*,... or ids=*
//   both        lines that begin with '#' are comments; keys are 40 characters (Z85, ZeroMQ RFC 32)
//
//   Owns       the list; pairs are the caller's.
//   Thread     any.
//   Allocates  while loading.
//   Fails      NOT_FOUND, PERMISSION, CORRUPT naming file, line and remedy.

enum { LINK_KEY_CHARS = 40, LINK_NAME_BYTES = 64, LINK_IDS_MAX = 16 };

struct link_key_pair {
    char public_key[LINK_KEY_CHARS + 1];
    char secret_key[LINK_KEY_CHARS + 1];    // "" where only the public one is known
};

enum status link_key_pair_create(struct link_key_pair *out, struct error *err) MUST_USE;
// Reads `public` and, where `secret` is set, `secret` too: then others must not be able to read the
// file, and the keys must belong together.
enum status link_key_file_read(const char *path, bool secret, struct link_key_pair *out,
                               struct error *err) MUST_USE;

// ---- the allow-list ----------------------------------------------------------------------------

enum link_role { LINK_ROLE_WORKER, LINK_ROLE_ADMIN };

// Places in groups: one, or all of a kind.
struct link_ids {
    bool any_group, any_rank;
    uint32_t group, rank;
};

struct link_entry {
    char name[LINK_NAME_BYTES];
    char public_key[LINK_KEY_CHARS + 1];
    enum link_role role;
    uint32_t id_count;
    struct link_ids ids[LINK_IDS_MAX];
};

struct link_allow {
    uint32_t count;
    struct link_entry entries[];
};

enum status link_allow_load(const char *path, struct link_allow **out, struct error *err) MUST_USE;
// The same from text: `name` stands in messages for the file.
enum status link_allow_parse(const char *name, char *text, struct link_allow **out,
                             struct error *err) MUST_USE;
void link_allow_destroy(struct link_allow *allow);    // accepts NULL
// NULL when nobody has this key or this name.
const struct link_entry *link_allow_find(const struct link_allow *allow, const char *public_key);
const struct link_entry *link_allow_named(const struct link_allow *allow, const char *name);
// Whether it may take this place.
bool link_entry_permits(const struct link_entry *entry, uint32_t group, uint32_t rank);

// Letters, digits, '.', '_' and '-', shorter than LINK_NAME_BYTES, no leading '.' or '-': it
// becomes a file's name.
bool link_name_ok(const char *name);
// "g0r0,g1r*" or "*".
enum status link_ids_parse(const char *text, struct link_entry *entry, struct error *err) MUST_USE;

#endif
