// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_COMM_SHARED_REGION_H
#define WORKER_COMM_SHARED_REGION_H

#include "common/bounds.h"
#include "common/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Memory that the ranks of one group share for one epoch, and how they wait for each other in it.
//
// The idea: rank 0 makes the region without a name, fills its head, and gives it a name made of the
// epoch's random id once it is complete, so nobody ever sees half of one. Whoever has it open holds
// a lock on the byte of its rank, which the kernel drops when the process ends however it ends: a
// lock that is gone is a rank that is gone. The name goes as soon as all are there; a file whose
// name is left over and on which nobody holds a lock belongs to a run that died in between, and the
// next rank 0 removes it.
//
// Waiting is counting: a word of the head grows by 2 with each arrival and never falls, and its
// lowest bit says that the region is aborted. A waiter sleeps in the kernel (futex), after a short
// spin where every rank has a core and spinning helped lately, and looks after its peers whenever
// it has slept for SHARED_REGION_LOOK_MS. Words wrap around; only differences count.
//
//   Owns       the mapping and a descriptor.
//   Thread     one rank's step thread; shared_region_abort from any while the region is open.
//   Allocates  while opening: every page exists when it is open.
//   Fails      opening, with a sentence. Waiting fails when the region is aborted or a peer gone.

enum {
    SHARED_REGION_WORDS = 8,    // for the user, each with a cache line of its own
    SHARED_REGION_LOOK_MS = 50,
    SHARED_REGION_LINE_BYTES = 64,
    SHARED_REGION_NAME_BYTES = 80,
};

// A word that ranks count on, and how many sleep on it: nobody is woken where nobody sleeps.
struct shared_word {
    _Alignas(SHARED_REGION_LINE_BYTES) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

// What a rank says about the message it is in, so that ranks that have parted do not mix bytes.
struct shared_tag {
    _Alignas(SHARED_REGION_LINE_BYTES) _Atomic uint64_t value[SHARED_REGION_WORDS];
};

struct shared_region_head {
    char magic[16];
    uint32_t world;
    uint32_t head_bytes;
    uint64_t body_bytes;
    struct shared_word attached;
    struct shared_word word[SHARED_REGION_WORDS];
    struct shared_tag tag[BOUND_RANKS];
    struct shared_word sent[BOUND_RANKS][BOUND_RANKS];     // [from][to]
    struct shared_word taken[BOUND_RANKS][BOUND_RANKS];    // [from][to]
    // For the user, written by rank 0 before the region has a name.
    uint8_t note[256];
};

struct shared_region {
    int fd;    // -1: closed
    uint32_t rank, world;
    uint64_t bytes;
    struct shared_region_head *head;
    uint8_t *body;
    uint32_t spins_max;                     // 0: ranks share cores
    uint32_t spins;                         // how long the next wait spins
    char name[SHARED_REGION_NAME_BYTES];    // "" once it is known to be gone
};

struct shared_region_options {
    const char *id;    // hex digits
    uint32_t rank, world;
    uint64_t body_bytes;
    const void *note;    // rank 0: copied into the head; NULL: zeroes
    size_t note_bytes;
    uint64_t deadline_us;    // clock_monotonic_us
    // Opening ends with CANCELLED when this gives true.
    bool (*cancelled)(void *ctx);
    void *ctx;
};

// Makes the region (rank 0), or waits for its name and joins. TIMEOUT, CORRUPT for a file that is
// no such region or one of another size, PERMISSION for one that is not ours, BUSY when the rank is
// taken, EXHAUSTED when memory is.
enum status shared_region_open(struct shared_region *region,
                               const struct shared_region_options *options,
                               struct error *err) MUST_USE;
// Until every rank is there; then the name is gone. A failure aborts the region for all.
enum status shared_region_meet(struct shared_region *region,
                               const struct shared_region_options *options,
                               struct error *err) MUST_USE;
void shared_region_close(struct shared_region *region);    // accepts a closed one

// Counts this rank into a word; whoever completes the count wakes the others.
void shared_region_arrive(struct shared_region *region, struct shared_word *word, uint32_t goal);
// Until the word has reached `goal`. False when the region is aborted or a peer is gone: then the
// region is aborted for all.
bool shared_region_wait(struct shared_region *region, struct shared_word *word, uint32_t goal);

// A rank that met the others has its region open no more.
bool shared_region_peer_gone(const struct shared_region *region);
void shared_region_abort(struct shared_region *region);
bool shared_region_aborted(const struct shared_region *region);

// Removes what died between making a region and meeting. Returns how many.
uint32_t shared_region_sweep(void);

#endif
