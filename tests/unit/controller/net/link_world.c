// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/net/link_world.h"

#include "common/clock.h"
#include "common/version.h"
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURN_MS = 1, STEP_US = 50 * 1000 };

struct link_world *world;

// ---- the sink ----------------------------------------------------------------------------------

static void on_progress(void *ctx, uint32_t group, uint32_t rank,
                        const struct message_progress *progress) {
    struct link_world *w = ctx;
    (void)group;
    (void)rank;
    (void)progress;
    w->progresses++;
}

static void on_ready(void *ctx, const struct worker_link_ready *ready) {
    struct link_world *w = ctx;
    w->readies++;
    w->ready = *ready;
    w->capacity = *ready->capacity;
}

static void on_lost(void *ctx, uint32_t group, const char *reason, uint32_t exit_code) {
    struct link_world *w = ctx;
    w->losses++;
    w->lost_group = group;
    w->lost_code = exit_code;
    snprintf(w->lost_reason, sizeof w->lost_reason, "%s", reason);
}

static void on_result(void *ctx, uint32_t group, uint32_t rank, const struct step_result *result) {
    struct link_world *w = ctx;
    (void)group;
    w->results++;
    w->result_ranks |= 1u << rank;
    w->result_digest = result->digest;
}

// ---- the world ---------------------------------------------------------------------------------

void link_world_init(uint32_t groups, uint32_t ranks) {
    world = calloc(1, sizeof *world);
    snprintf(world->run_dir, sizeof world->run_dir, "/tmp/tare-link-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world->run_dir));
    arena_init(&world->arena, 1 << 20);
    buf_init(&world->out, 1 << 20);
    buf_init(&world->in, 2 << 20);
    world->options = (struct worker_link_options){
        .run_dir = world->run_dir,
        .sink = {world, on_progress, on_ready, on_lost, on_result},
        .groups = groups,
        .world = ranks,
        .timer_scale = 1.0,
    };
    // Ahead of the true time, so that it never goes back.
    world->now_us = clock_monotonic_us() + 1000000;
}

void link_world_open(void) {
    struct error err = {0};
    ck_assert_msg(worker_link_open(&world->options, &world->link, &err) == STATUS_OK, "%s",
                  err.message);
}

// Of two neighbours that nobody has at the moment, the lower one; may be taken the next.
static uint16_t free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, size), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    return ntohs(at.sin_port);
}

void link_world_open_tcp(void) {
    world->options.keys = &world->controller_keys;
    world->options.binds = world->binds;
    world->options.bind_count = 1;
    world->binds[0] = world->base;
    for (int i = 0; i < 500 && world->link == NULL; i++) {
        snprintf(world->base, sizeof world->base, "tcp://127.0.0.1:%u", free_port());
        enum status status = worker_link_open(&world->options, &world->link, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_IO);
    }
    ck_assert_ptr_nonnull(world->link);
}

void link_world_close(void) {
    worker_link_close(world->link);
    world->link = NULL;
}

void link_world_deinit(void) {
    for (int i = 0; i < LINK_WORLD_WORKERS; i++) {
        fake_leave(&world->fakes[i]);
    }
    link_world_close();
    static const char *const names[] = {"plan.sock", "control.sock", "epoch", "epoch.new"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", world->run_dir, names[i]);
        unlink(path);
    }
    rmdir(world->run_dir);
    arena_deinit(&world->arena);
    buf_deinit(&world->out);
    buf_deinit(&world->in);
    free(world);
    world = NULL;
}

void link_world_turn(void) {
    worker_link_poll(world->link, world->now_us);
    for (int i = 0; i < LINK_WORLD_WORKERS; i++) {
        if (world->fakes[i].control != NULL) {
            fake_listen(&world->fakes[i]);
        }
    }
    poll(NULL, 0, TURN_MS);    // the libraries' threads carry messages meanwhile
}

uint64_t link_world_read(void) {
    struct worker_link_counters counters;
    worker_link_count(world->link, world->now_us, &counters);
    return counters.messages_in;
}

void link_world_pass(uint64_t us) {
    for (uint64_t end_us = world->now_us + us; world->now_us < end_us;) {
        world->now_us += STEP_US;
        worker_link_poll(world->link, world->now_us);
    }
}

// ---- workers -----------------------------------------------------------------------------------

struct transport *link_world_dial(const char *peer, enum transport_channel channel) {
    char base[128], address[TRANSPORT_ADDRESS_BYTES];
    bool afar = world->base[0] != '\0';
    snprintf(base, sizeof base, "%s%s", afar ? world->base : "ipc://", afar ? "" : world->run_dir);
    ck_assert_int_eq(transport_channel_address(base, channel, address, NULL), STATUS_OK);
    struct transport_options options = {.address = address,
                                        .identity = peer,
                                        .message_bytes_max = 1 << 20,
                                        .queue_messages_max = 64,
                                        .keys = afar ? &world->keys : NULL,
                                        .listener_key =
                                            afar ? world->controller_keys.public_key : NULL};
    struct transport *out = NULL;
    ck_assert_int_eq(transport_open(&options, &out, NULL), STATUS_OK);
    return out;
}

struct fake *link_world_worker(uint32_t index, uint32_t group, uint32_t rank) {
    struct fake *fake = &world->fakes[index];
    fake_leave(fake);
    *fake = (struct fake){.group = group,
                          .rank = rank,
                          .pid = 1000 + index,
                          .model_digest = "model",
                          .config_digest = "config"};
    snprintf(fake->name, sizeof fake->name, "g%ur%u", group, rank);
    transport_identity(fake->name, fake->peer);
    fake->plan = link_world_dial(fake->peer, TRANSPORT_CHANNEL_PLAN);
    fake->control = link_world_dial(fake->peer, TRANSPORT_CHANNEL_CONTROL);
    return fake;
}

void fake_leave(struct fake *fake) {
    transport_close(fake->plan);
    transport_close(fake->control);
    fake->plan = NULL;
    fake->control = NULL;
}

static void send_out(struct transport *channel) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < 4000 && status == STATUS_BUSY; i++) {
        status = transport_send(channel, NULL, world->out.data, world->out.bytes_used);
        if (status == STATUS_BUSY) {
            poll(NULL, 0, TURN_MS);    // the connection may not stand yet
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

void fake_say(struct fake *fake, const struct control_message *message) {
    arena_reset(&world->arena);
    buf_reset(&world->out);
    ck_assert_int_eq(codec_control_encode(message, &world->arena, &world->out, NULL), STATUS_OK);
    send_out(message->kind == MESSAGE_KIND_CAPACITY ? fake->plan : fake->control);
}

void fake_hello(struct fake *fake) {
    struct control_message message = {.kind = MESSAGE_KIND_HELLO,
                                      .address = {.epoch = fake->epoch},
                                      .hello = {.worker_id = fake->name,
                                                .build = VERSION_BUILD,
                                                .device = "cpu",
                                                .model_name = "m",
                                                .model_digest = fake->model_digest,
                                                .config_digest = fake->config_digest,
                                                .pid = fake->pid,
                                                .group = fake->group,
                                                .rank = fake->rank,
                                                .world = world->options.world}};
    fake_say(fake, &message);
}

void fake_beat(struct fake *fake) {
    struct control_message message = {.kind = MESSAGE_KIND_HEARTBEAT,
                                      .address = {.epoch = fake->epoch},
                                      .heartbeat = {.applied_seq = 3, .completed_seq = 2}};
    fake_say(fake, &message);
}

void fake_capacity(struct fake *fake, uint32_t kv_blocks, uint64_t kv_stamp) {
    struct control_message message = {
        .kind = MESSAGE_KIND_CAPACITY,
        .address = {.epoch = fake->epoch},
        .capacity = {.envelope = {512, 64, 8192, 512, 512, 256, 300, 0, 8000, 500000},
                     .block_tokens = 32,
                     .kv_blocks = kv_blocks,
                     .kv_stamp = kv_stamp,
                     .kv_bytes_per_token = 100,
                     .vocabulary = 1000,
                     .kv_dtype = "float16"},
    };
    fake_say(fake, &message);
}

void fake_result(struct fake *fake, uint64_t seq, uint64_t digest) {
    struct step_result result = {
        .epoch = fake->epoch, .seq = seq, .applied_seq = seq, .message = "", .digest = digest};
    arena_reset(&world->arena);
    buf_reset(&world->out);
    ck_assert_int_eq(codec_result_encode(&result, &world->arena, &world->out, NULL), STATUS_OK);
    send_out(fake->plan);
}

static void take_control(struct fake *fake, const struct control_message *message) {
    switch (message->kind) {
    case MESSAGE_KIND_WELCOME:
        fake->welcomes++;
        fake->epoch = message->welcome.epoch;
        ck_assert_uint_eq(message->welcome.group, fake->group);
        ck_assert_uint_eq(message->welcome.rank, fake->rank);
        ck_assert_uint_eq(message->welcome.world, world->options.world);
        snprintf(fake->comm_id, sizeof fake->comm_id, "%s", message->welcome.comm_id);
        break;
    case MESSAGE_KIND_ABORT:
        fake->aborts++;
        fake->aborted_epoch = message->abort.epoch;
        break;
    case MESSAGE_KIND_REFUSED:
        fake->refusals++;
        fake->refused_code = message->text.code;
        snprintf(fake->refused, sizeof fake->refused, "%s", message->text.text);
        break;
    case MESSAGE_KIND_SHUTDOWN:
        fake->shutdowns++;
        break;
    default:
        fake->beats++;
        break;
    }
}

void fake_listen(struct fake *fake) {
    struct message_header header;
    const uint8_t *body = NULL;
    struct control_message message;
    while (transport_receive(fake->control, &world->in, NULL) == STATUS_OK) {
        arena_reset(&world->arena);
        ck_assert_int_eq(
            codec_header_decode(world->in.data, world->in.bytes_used, &header, &body, NULL),
            STATUS_OK);
        ck_assert_int_eq(codec_control_decode(&header, body, &world->arena, &message, NULL),
                         STATUS_OK);
        take_control(fake, &message);
    }
    while (fake->plan != NULL && transport_receive(fake->plan, &world->in, NULL) == STATUS_OK) {
        ck_assert_int_eq(
            codec_header_decode(world->in.data, world->in.bytes_used, &header, &body, NULL),
            STATUS_OK);
        fake->plans++;
        fake->plan_seq = header.seq;
        fake->plan_bytes = (uint32_t)world->in.bytes_used;
        size_t head = world->in.bytes_used < sizeof fake->plan_head ? world->in.bytes_used
                                                                    : sizeof fake->plan_head;
        memcpy(fake->plan_head, world->in.data, head);
    }
}

// ---- together ----------------------------------------------------------------------------------

static bool welcomed(uint32_t group) {
    for (uint32_t r = 0; r < world->options.world; r++) {
        if (world->fakes[group * world->options.world + r].welcomes == 0) {
            return false;
        }
    }
    return true;
}

void link_world_form(uint32_t group, uint32_t kv_blocks, uint64_t kv_stamp) {
    uint32_t first = group * world->options.world;
    uint32_t readies = world->readies;
    for (uint32_t r = 0; r < world->options.world; r++) {
        fake_hello(link_world_worker(first + r, group, r));
    }
    LINK_WORLD_UNTIL(welcomed(group));
    for (uint32_t r = 0; r < world->options.world; r++) {
        fake_capacity(&world->fakes[first + r], kv_blocks + r, kv_stamp);
    }
    LINK_WORLD_UNTIL(world->readies > readies);
}

enum status link_world_plan(uint32_t group, uint64_t seq, struct error *err) {
    struct plan plan = {
        .group = group + 1, .epoch = world->ready.epoch, .seq = seq, .decode_rows = 5};
    size_t bytes = 0;
    return worker_link_send_plan(world->link, group, &plan, &bytes, err);
}
