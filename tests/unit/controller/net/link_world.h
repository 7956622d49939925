// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_NET_LINK_WORLD_H
#define TESTS_UNIT_CONTROLLER_NET_LINK_WORLD_H

#include "controller/net/worker_link.h"
#include "proto/codec.h"
#include "proto/transport.h"

// A worker_link over real sockets, with workers written by hand around it and invented time.
//
// Owns a run directory of its own.  Thread one.  Allocates at will.  Fails the test.

enum { LINK_WORLD_WORKERS = 9 };

// The worker's side of both channels.
struct fake {
    char name[32], peer[TRANSPORT_PEER_BYTES];
    struct transport *plan, *control;
    uint32_t group, rank, pid;
    const char *model_digest, *config_digest;
    uint64_t epoch;    // as welcomed, or as a test wants to have it
    char comm_id[MESSAGE_COMM_ID_DIGITS + 1];
    uint32_t welcomes, aborts, refusals, beats, shutdowns;
    uint64_t aborted_epoch;
    uint32_t refused_code;
    char refused[512];
    uint32_t plans;
    uint64_t plan_seq;
    uint32_t plan_bytes;
    uint8_t plan_head[64];    // first bytes of the last plan
};

struct link_world {
    char run_dir[64];
    struct worker_link_options options;
    struct worker_link *link;
    uint64_t now_us;    // handed to the link
    struct fake fakes[LINK_WORLD_WORKERS];
    struct arena arena;
    struct buf out, in;
    // How workers dial, when not by the run directory.
    char base[64];
    const char *binds[1];
    struct link_key_pair controller_keys, keys;    // `keys` of the next worker
    // Heard by the sink.
    uint32_t readies, losses, progresses, results;
    struct worker_link_ready ready;
    struct message_capacity capacity;    // of the last READY
    uint32_t lost_group, lost_code;
    char lost_reason[256];
    uint32_t result_ranks;    // bit of each rank that answered
    uint64_t result_digest;
};

extern struct link_world *world;

// A link that expects this; opened unless `closed`.
void link_world_init(uint32_t groups, uint32_t ranks);
void link_world_deinit(void);
void link_world_open(void);
void link_world_close(void);
// The same, listening on this host's network too, where workers dial with `keys` from now on.
void link_world_open_tcp(void);

struct transport *link_world_dial(const char *peer, enum transport_channel channel);
struct fake *link_world_worker(uint32_t index, uint32_t group,
                               uint32_t rank);    // connected, silent
void fake_leave(struct fake *fake);               // as a killed process
void fake_say(struct fake *fake, const struct control_message *message);
void fake_hello(struct fake *fake);
void fake_beat(struct fake *fake);
void fake_capacity(struct fake *fake, uint32_t kv_blocks, uint64_t kv_stamp);
void fake_result(struct fake *fake, uint64_t seq, uint64_t digest);
void fake_listen(struct fake *fake);    // takes what has come

// Polls the link at this time, and lets all workers take what has come, until the condition holds;
// fails the test when it never does.
#define LINK_WORLD_UNTIL(condition)                                                                \
    do {                                                                                           \
        int turns = 0;                                                                             \
        while (!(condition)) {                                                                     \
            ck_assert_msg(turns++ < 4000, "never: %s", #condition);                                \
            link_world_turn();                                                                     \
        }                                                                                          \
    } while (0)
void link_world_turn(void);
uint64_t link_world_read(void);    // messages that the link has taken
// Time passes without a word, in turns that the link takes as its own being on time.
void link_world_pass(uint64_t us);

// Every rank of a group is there, welcomed and ready, with so many blocks.
void link_world_form(uint32_t group, uint32_t kv_blocks, uint64_t kv_stamp);
enum status link_world_plan(uint32_t group, uint64_t seq, struct error *err);

#endif
