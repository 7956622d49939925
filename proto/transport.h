// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_TRANSPORT_H
#define PROTO_TRANSPORT_H

#include "common/buf.h"
#include "common/status.h"
#include "proto/link_keys.h"
#include <stddef.h>
#include <stdint.h>

// One channel between the controller and its workers: whole messages, bounded queues, no waiting.
//
// The idea: the controller listens, workers dial, a peer is a name chosen by the worker. Sending
// never blocks and never drops silently: a full queue is BUSY, a peer that is gone is PEER_LOST.
// Each process dials under its name and a random ending: a name belongs to one connection, the last
// one that came with it, and nobody else can know the whole of it.
// Readiness is one file descriptor for the owner's loop. Its trigger is an edge (libzmq): after
// every wake-up, and after every send, receive until BUSY.
//
// On one host (ipc) the directory is the authentication: nobody else may enter it. Over a network
// (tcp) both ends have keys: the dialer knows the listener's public key, and the listener a list of
// those who may come. What a connection's key is called in that list comes with every message.
//
//   Owns       its socket, its I/O thread, and with keys a thread that judges newcomers.
//   Thread     one, the loop that polls the descriptor.
//   Allocates  while opening, and message buffers inside the library.
//   Fails      open: INVALID for an address or a name that cannot be, or tcp without keys;
//   NOT_FOUND
//              or PERMISSION for the socket's directory, IO when it is taken.

struct transport;

enum { TRANSPORT_PEER_BYTES = 64, TRANSPORT_ADDRESS_BYTES = 4200, TRANSPORT_BINDS_MAX = 16 };

struct transport_options {
    const char *address;         // ipc:///run/dir/plan.sock; the directory must be 0700 and ours
    bool listens;                // controller: bind; worker: connect
    const char *identity;        // worker: as transport_identity makes it
    size_t message_bytes_max;    // larger messages cut the connection
    int queue_messages_max;      // per peer and direction
    int linger_ms;               // how long close may wait for a peer to take what was sent
    // With tcp: our own pair, and of the other side the public key (worker) or the list of those
    // who may connect (controller). Alive as long as the transport.
    const struct link_key_pair *keys;
    const char *listener_key;
    const struct link_allow *allow;
    // Controller: tcp addresses to listen on besides `address`.
    const char *const *binds;
    uint32_t bind_count;
};

// What a process is called on its channels: "g0r1~5f3a09c2", other after each call.
void transport_identity(const char *name, char out[TRANSPORT_PEER_BYTES]);
// Whether a peer dialled under this name.
bool transport_peer_is(const char *peer, const char *name);

enum status transport_open(const struct transport_options *options, struct transport **out,
                           struct error *err) MUST_USE;
void transport_close(struct transport *transport);    // accepts NULL; drops what lingers too long

int transport_fd(const struct transport *transport);    // poll for reading
// Readable when a connection ended or could not be made: look at transport_faults then.
int transport_events_fd(const struct transport *transport);

// `peer` is NULL on the dialling side. BUSY: queue full; PEER_LOST: no such peer.
enum status transport_send(struct transport *transport, const char *peer, const void *bytes,
                           size_t byte_count) MUST_USE;
// The same bytes to several peers, kept once. Ends at the first that cannot be sent to; `*sent`
// have it then.
enum status transport_send_all(struct transport *transport, const char *const *peers,
                               uint32_t peer_count, const void *bytes, size_t byte_count,
                               uint32_t *sent) MUST_USE;

// The next message into `out` (reset first) and its sender's name into `peer` (listening side).
// BUSY when nothing waits, CORRUPT or EXHAUSTED for a message that is skipped.
enum status transport_receive(struct transport *transport, struct buf *out,
                              char peer[TRANSPORT_PEER_BYTES]) MUST_USE;
// What the allow-list calls the key by which the last received message came; "" without keys.
const char *transport_user(const struct transport *transport);

// Since the start. Also empties the queue behind transport_events_fd.
struct transport_faults {
    uint64_t disconnects;           // connections that ended
    uint64_t strangers;             // listener: keys that are not on the list
    uint64_t handshakes_refused;    // the other side does not know our key, or is another one
    char stranger[TRANSPORT_PEER_BYTES];    // address of the last one whose key is not on the list
};
void transport_faults(struct transport *transport, struct transport_faults *out);

// ---- addresses ---------------------------------------------------------------------------------

enum transport_channel { TRANSPORT_CHANNEL_PLAN, TRANSPORT_CHANNEL_CONTROL };

// Where a channel of a controller is: ipc:///DIR has plan.sock and control.sock in DIR;
// tcp://HOST:PORT has the plan channel at PORT and the control channel one above.
enum status transport_channel_address(const char *base, enum transport_channel channel,
                                      char out[TRANSPORT_ADDRESS_BYTES],
                                      struct error *err) MUST_USE;
// Checks an address without opening it: ipc:///PATH, or tcp://HOST:PORT.
enum status transport_address_check(const char *address, struct error *err) MUST_USE;
bool transport_address_is_tcp(const char *address);
// Of a listener: whether it would listen on every interface of the host.
bool transport_address_is_wildcard(const char *address);

#endif
