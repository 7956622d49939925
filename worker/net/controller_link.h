// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_NET_CONTROLLER_LINK_H
#define WORKER_NET_CONTROLLER_LINK_H

#include "common/status.h"
#include "worker/net/frame_queue.h"
#include <stdbool.h>
#include <stdint.h>

// The worker's side of the links: the I/O thread's whole life.
//
// The idea: a loop over three descriptors (plan channel, control channel, frames from the step
// thread). It says HELLO until it is welcomed, carries frames both ways without reading their
// bodies, sends heartbeats from counters that the step thread publishes, and leaves when it is told
// to, when the step thread says so, or when no controller ever welcomed it. A controller that falls
// silent later is waited for.
//
//   Owns       its two channels; keeps the queues.
//   Thread     the I/O thread.
//   Allocates  while opening.
//   Fails      PEER_LOST when there is no controller, VERSION when it refuses us; INVALID,
//   NOT_FOUND,
//              PERMISSION, CORRUPT for address and key files.

enum link_frame {
    LINK_FRAME_PLAN = 1,    // to the step thread: a whole plan message
    LINK_FRAME_WELCOME,     // to the step thread: a new epoch, 8 bytes
    LINK_FRAME_RESULT,      // from the step thread: a whole result message
    LINK_FRAME_CAPACITY,    // from the step thread: a CAPACITY message, for the plan channel
    LINK_FRAME_PROGRESS,    // from the step thread: a PROGRESS message; may be lost, others follow
    LINK_FRAME_FAILED,      // from the step thread: start-up failed; a GOODBYE message, then leave
};

// Published by the step thread, read by the link.
struct link_progress {
    _Atomic uint64_t applied_seq;
    _Atomic uint64_t completed_seq;
};

struct controller_link_options {
    const char *address;                // ipc:///dir, or tcp://host:port with both files
    const char *key_file;               // our own keys, a secret; NULL on one host
    const char *controller_key_file;    // the controller's public key
    const char *worker_id;
    const char *model_name;
    const char *device;
    struct frame_queue *to_step;
    struct frame_queue *from_step;
    struct link_progress *progress;
    const _Atomic int *stop;
    uint64_t silence_us;    // without a word for so long the controller counts as silent; 0: 10 s
};

// Runs until the end and says why: SHUTDOWN (asked by controller or signal, or the start failed),
// PEER_LOST, VERSION. A failed start is told to the controller even before the link stands, with
// patience of a few seconds.
enum status controller_link_run(const struct controller_link_options *options,
                                struct error *err) MUST_USE;

#endif
