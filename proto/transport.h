// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_TRANSPORT_H
#define PROTO_TRANSPORT_H

#include "common/buf.h"
#include "common/status.h"
#include <stddef.h>

// One channel between the controller and its workers: whole messages, bounded queues, no waiting.
//
// The idea: the controller listens, workers dial, a peer is a name chosen by the worker. Sending
// never blocks and never drops silently: a full queue is BUSY, a peer that is gone is PEER_LOST.
// Readiness is one file descriptor for the owner's loop. Its trigger is an edge (libzmq): after
// every wake-up, and after every send, receive until BUSY.
//
//   Owns       its socket and its I/O thread.
//   Thread     one, the loop that polls the descriptor.
//   Allocates  while opening, and message buffers inside the library.
//   Fails      open: INVALID for an address or a name that cannot be, UNSUPPORTED for tcp,
//   NOT_FOUND
//              or PERMISSION for the socket's directory, IO when it is taken.

struct transport;

enum { TRANSPORT_PEER_BYTES = 64 };

struct transport_options {
    const char *address;         // ipc:///run/dir/plan.sock; the directory must be 0700 and ours
    bool listens;                // controller: bind; worker: connect
    const char *identity;        // worker: its name, printable, shorter than TRANSPORT_PEER_BYTES
    size_t message_bytes_max;    // larger messages cut the connection
    int queue_messages_max;      // per peer and direction
    int linger_ms;               // how long close may wait for a peer to take what was sent
};

enum status transport_open(const struct transport_options *options, struct transport **out,
                           struct error *err) MUST_USE;
void transport_close(struct transport *transport);    // accepts NULL; drops what lingers too long

int transport_fd(const struct transport *transport);    // poll for reading

// `peer` is NULL on the dialling side. BUSY: queue full; PEER_LOST: no such peer.
enum status transport_send(struct transport *transport, const char *peer, const void *bytes,
                           size_t byte_count) MUST_USE;

// The next message into `out` (reset first) and its sender's name into `peer` (listening side).
// BUSY when nothing waits, CORRUPT or EXHAUSTED for a message that is skipped.
enum status transport_receive(struct transport *transport, struct buf *out,
                              char peer[TRANSPORT_PEER_BYTES]) MUST_USE;

// Checks an address without opening it: ipc only; tcp needs keys and is refused.
enum status transport_address_check(const char *address, struct error *err) MUST_USE;

#endif
