// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_NET_CONTROLLER_LINK_H
#define WORKER_NET_CONTROLLER_LINK_H

#include "common/status.h"
#include "worker/comm/collective.h"
#include "worker/holder.h"
#include "worker/net/frame_queue.h"
#include "worker/net/launch_gate.h"
#include <stdbool.h>
#include <stdint.h>

// The worker's side of the links: the I/O thread's whole life.
//
// The idea: a loop over three descriptors (plan channel, control channel, frames from the step
// thread). It says HELLO until it is welcomed, carries frames both ways without reading their
// bodies, sends heartbeats from counters that the step thread publishes, and leaves when it is told
// to, when the step thread says so, or when no controller ever welcomed it.
//
//   greeting ──WELCOME──► joined ──no word for a lease──► orphan ──LINK_ORPHAN_EXIT_US──► leaves
//                           ▲                               │
//                           └──────── any word ─────────────┘
//
//   joined   into one epoch, the largest it was ever welcomed into: smaller ones are not looked at.
//   orphan   the step that runs is finished and no other launched (launch_gate); weights and KV
//            stay. It says HELLO to whatever controller comes back at the address, in this process
//            or another: a word in the same epoch lets it go on, a WELCOME into a larger one begins
//            anew. After LINK_ORPHAN_KEEP_US the KV memory is given back, and the epoch is over
//            with it.
//
// Silence is counted only while this loop is on time: what a process that stood still did not hear
// says nothing about the controller. ABORT, and every WELCOME, end the waits of older epochs at
// once, from this thread: the step thread may be inside one.
//
// A step thread that takes no welcome for LINK_STEP_HANGS_US hangs in a step that nobody waits for
// any more: its waits for other ranks were ended before. The link ends then, and the process with
// it, so that another one takes its place. Whether this loop itself turns is watched by the parent
// (holder.h).
//
//   Owns       its two channels; keeps the queues.
//   Thread     the I/O thread.
//   Allocates  while opening.
//   Fails      PEER_LOST when there is no controller, VERSION when it refuses us; INVALID,
//   NOT_FOUND,
//              PERMISSION, CORRUPT for address and key files.

enum link_frame {
    LINK_FRAME_PLAN = 1,      // to the step thread: a whole plan message
    LINK_FRAME_WELCOME,       // to the step thread: a struct link_welcome
    LINK_FRAME_RELEASE_KV,    // to the step thread: nobody came for so long; no bytes
    LINK_FRAME_RESULT,        // from the step thread: a whole result message
    LINK_FRAME_CAPACITY,      // from the step thread: a CAPACITY message, for the plan channel
    LINK_FRAME_PROGRESS,    // from the step thread: a PROGRESS message; may be lost, others follow
    LINK_FRAME_FAILED,      // from the step thread: start-up failed; a GOODBYE message, then leave
};

struct link_welcome {
    uint64_t epoch;
    char comm_id[COLLECTIVE_ID_BYTES];    // "" in a group of one
};

enum {
    LINK_LEASE_US = 1000 * 1000,    // where the WELCOME names none
    LINK_ORPHAN_KEEP_US = 60 * 1000 * 1000,
    LINK_ORPHAN_EXIT_US = 600 * 1000 * 1000,
    LINK_STEP_HANGS_US = 5 * 1000 * 1000,
};

// Published by the step thread, read by the link.
struct link_progress {
    _Atomic uint64_t applied_seq;
    _Atomic uint64_t completed_seq;
    _Atomic bool started;      // frames are taken from now on
    _Atomic uint64_t epoch;    // the last one that was begun
};

struct controller_link_options {
    const char *address;                // ipc:///dir, or tcp://host:port with both files
    const char *key_file;               // our own keys, a secret; NULL on one host
    const char *controller_key_file;    // the controller's public key
    const char *worker_id;
    const char *model_name;
    const char *device;
    const char *model_digest, *config_digest;    // what all ranks of a group must agree on
    uint32_t group, rank, world;
    uint64_t epoch;                   // the last one of a process before us; 0: none
    struct collective *collective;    // NULL in a group of one
    struct launch_gate *gate;
    struct frame_queue *to_step;
    struct frame_queue *from_step;
    struct link_progress *progress;
    struct holder_watch *watch;    // NULL: nobody looks whether the loop turns
    const _Atomic int *stop;
    double timer_scale;     // of every time that says something about the controller; 0: 1
    uint64_t silence_us;    // never welcomed for so long, it leaves; 0: 10 s
};

// Runs until the end and says why: SHUTDOWN (asked by controller or signal, or the start failed),
// PEER_LOST, VERSION (refused), TIMEOUT (the step thread hangs: it cannot be joined). A failed
// start is told to the controller even before the link stands, with patience of a few seconds.
enum status controller_link_run(const struct controller_link_options *options,
                                struct error *err) MUST_USE;

#endif
