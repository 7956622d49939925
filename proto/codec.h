// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include "common/arena.h"
#include "common/buf.h"
#include "proto/messages.h"

// Message structs to bytes and back. The only user of the generated protobuf code.
//
// The idea: encoders append header and body to one buffer; decoders unpack into the caller's arena,
// so that a hostile body can cost at most the arena's cap. A decoded message has passed the checks
// of the wire form (lengths of parallel arrays, known enum values); ranges against the sealed
// configuration are the validators' job in messages.h.
//
//   Owns       nothing; decoded structs point into the arena.
//   Thread     any, one per arena and buffer.
//   Allocates  from the arena; encoders through `out`.
//   Fails      CORRUPT naming what is broken, VERSION for another protocol, EXHAUSTED past the cap.

// Header frame. codec_header_decode checks version, kind, and that body_bytes equals the bytes that
// follow, and their checksum.
enum status codec_header_decode(const uint8_t *frame, size_t frame_bytes,
                                struct message_header *out, const uint8_t **body,
                                struct error *err) MUST_USE;

struct message_address {
    uint64_t group, epoch, seq;
};

enum status codec_plan_encode(const struct plan *plan, struct arena *scratch, struct buf *out,
                              struct error *err) MUST_USE;
enum status codec_plan_decode(const struct message_header *header, const uint8_t *body,
                              struct arena *arena, struct plan *out, struct error *err) MUST_USE;

enum status codec_result_encode(const struct step_result *result, struct arena *scratch,
                                struct buf *out, struct error *err) MUST_USE;
enum status codec_result_decode(const struct message_header *header, const uint8_t *body,
                                struct arena *arena, struct step_result *out,
                                struct error *err) MUST_USE;

// Control messages: one struct for any of them, told apart by `kind`.
struct control_message {
    enum message_kind kind;
    struct message_address address;
    union {
        struct message_hello hello;
        struct message_welcome welcome;
        struct message_text text;    // REFUSED, SHUTDOWN, GOODBYE
        struct message_progress progress;
        struct message_capacity capacity;
        struct message_heartbeat heartbeat;
        struct message_abort abort;
    };
};
enum status codec_control_encode(const struct control_message *message, struct arena *scratch,
                                 struct buf *out, struct error *err) MUST_USE;
enum status codec_control_decode(const struct message_header *header, const uint8_t *body,
                                 struct arena *arena, struct control_message *out,
                                 struct error *err) MUST_USE;

#endif
