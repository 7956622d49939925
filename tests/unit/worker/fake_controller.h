// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_WORKER_FAKE_CONTROLLER_H
#define TESTS_UNIT_WORKER_FAKE_CONTROLLER_H

#include "proto/codec.h"
#include "proto/transport.h"
#include "worker/worker.h"
#include <pthread.h>

// The controller's side of the channels, moved by a test, and workers on threads of its process.
//
// The idea: a test says and awaits one message after the other over real sockets, so what a worker
// does between two of them has happened. Whoever spoke last is `peer`, what it said is in `in`.
//
// Owns a run directory of its own.  Thread one, besides its workers'.  Allocates at will.  Fails
// the test.

enum { FAKE_MESSAGE_BYTES = 256 * 1024, FAKE_TURNS_MAX = 4000, FAKE_TURN_MS = 5 };

struct fake_controller {
    char run_dir[64], address[80];       // `address` is what workers dial
    struct transport *plan, *control;    // NULL while it does not listen there
    char peer[TRANSPORT_PEER_BYTES];
    struct arena arena;    // what was encoded or decoded last points here
    struct buf out, in;
};

void fake_controller_init(struct fake_controller *c);    // does not listen yet
// The workers have ended, and left nothing in the directory.
void fake_controller_deinit(struct fake_controller *c);
void fake_controller_listen(struct fake_controller *c);    // on the channels where it does not
void fake_controller_listen_control(struct fake_controller *c);    // on this one alone
void fake_controller_hang_up(struct fake_controller *c);
void fake_nap(void);    // a turn

// The next message, of whatever kind.
void fake_controller_receive(struct fake_controller *c, struct transport *channel);
// The next one of this kind, and its body; others are passed over.
const uint8_t *fake_controller_await(struct fake_controller *c, struct transport *channel,
                                     enum message_kind kind, struct message_header *header);
// The same, decoded, for kinds of the control channel.
void fake_controller_hear(struct fake_controller *c, struct transport *channel,
                          enum message_kind kind, struct message_header *header,
                          struct control_message *out);

// Until the channel has room.
void fake_controller_send(struct transport *channel, const char *peer, const void *bytes,
                          size_t byte_count);
void fake_controller_say(struct fake_controller *c, const char *peer,
                         const struct control_message *message);
void fake_controller_abort(struct fake_controller *c, const char *peer, uint64_t epoch);

// A prompt of three tokens into slot 0, which draws its first token; appended to `out`.
void fake_controller_encode_prompt(struct fake_controller *c, struct buf *out, uint64_t epoch,
                                   uint64_t seq, uint32_t undone, const int32_t tokens[3]);

// ---- a worker ----------------------------------------------------------------------------------

// With a tiny model, on a thread of its own.
struct fake_worker {
    char name[16], model[96];
    struct worker_options options;
    struct holder_notes notes;
    _Atomic int stop;
    pthread_t thread;
    int code, wanted_code;    // with which it ends, and is to
};

// Rank `shard.rank` of group 0 at this controller; `options` may be changed before it starts.
void fake_worker_init(struct fake_worker *worker, const struct fake_controller *c,
                      struct model_shard shard);
void fake_worker_start(struct fake_worker *worker);
// Stops it, ends with the code that it is to end with, and removes its model.
void fake_worker_deinit(struct fake_worker *worker);

#endif
