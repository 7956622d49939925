// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_CODEC_INTERNAL_H
#define PROTO_CODEC_INTERNAL_H

#include "proto/codec.h"
#include <protobuf-c/protobuf-c.h>

// What the files of the codec share: codec.c has frames, plans and results, codec_control.c the
// control messages. Nobody else includes this.
//
//   Owns, Thread, Allocates, Fails as codec.h.

// Appends header and packed body.
enum status codec_frame_encode(enum message_kind kind, const struct message_address *address,
                               const ProtobufCMessage *message, struct buf *out,
                               struct error *err) MUST_USE;
// The body as a message in the arena; NULL when it is broken, or the arena is full.
ProtobufCMessage *codec_unpack(const ProtobufCMessageDescriptor *descriptor,
                               const struct message_header *header, const uint8_t *body,
                               struct arena *arena);

// EXHAUSTED, and CORRUPT with what is broken.
enum status codec_no_memory(struct error *err) MUST_USE;
enum status codec_broken(struct error *err, const char *what) MUST_USE;

// An array of `count` pointers to structs of `bytes` each, contiguous, from the arena: `items`.
void *codec_pointer_array(struct arena *arena, size_t count, size_t bytes, void **items);
// protobuf-c's structs hold mutable pointers even where packing only reads them.
void *codec_mutable(const void *pointer);

#endif
