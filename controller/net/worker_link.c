// SPDX-License-Identifier: Apache-2.0
#include "controller/net/worker_link.h"

#include "common/arena.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/exit_code.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/version.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    WORKERS_MAX = 1,                  // one group of one rank in this version
    HEARTBEAT_US = 1000 * 1000,       // ours to the worker, a sign of life
    SILENCE_US = 5 * 1000 * 1000,     // a worker without a word for so long is lost
    LOOP_LAG_MAX_US = 1000 * 1000,    // a gap in our own polling that forgives silence
    QUEUE_PLAN = 8,
    QUEUE_CONTROL = 64,
    POLL_US = 1000,    // a poll takes no further message after this, so that the loop goes on
};

struct peer {
    char name[TRANSPORT_PEER_BYTES];
    bool present;
    uint32_t pid;
    uint64_t epoch;
    uint64_t heard_us;
    uint64_t welcomed_us;    // time of the poll that answered its last repeated hello
    uint64_t resident_bytes;
    uint64_t allocations_after_seal;
    struct arena capacity_arena;
};

struct worker_link {
    struct worker_link_sink sink;
    struct transport *plan;
    struct transport *control;
    struct arena arena;
    struct buf in, out;
    struct peer peers[WORKERS_MAX];
    uint64_t last_epoch;
    uint64_t polled_us;
    uint64_t said_us;
    struct worker_link_counters counters;
};

static enum status open_channel(const char *run_dir, const char *name, int queue, size_t bytes_max,
                                struct transport **out, struct error *err) {
    char address[4200];
    snprintf(address, sizeof address, "ipc://%.4000s/%s.sock", run_dir, name);
    struct transport_options options = {
        .address = address,
        .listens = true,
        .message_bytes_max = bytes_max,
        .queue_messages_max = queue,
    };
    return transport_open(&options, out, err);
}

enum status worker_link_open(const struct worker_link_options *options, struct worker_link **out,
                             struct error *err) {
    struct worker_link *link = memory_zalloc(sizeof *link);
    if (link == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for worker links");
    }
    link->sink = options->sink;
    link->last_epoch = options->first_epoch;
    arena_init(&link->arena, 8 * (size_t)BOUND_PLAN_BYTES);
    buf_init(&link->in, BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    buf_init(&link->out, BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        arena_init(&link->peers[i].capacity_arena, BOUND_CONTROL_BYTES * 4);
    }
    enum status status = open_channel(options->run_dir, "plan", QUEUE_PLAN,
                                      BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES, &link->plan, err);
    if (status == STATUS_OK) {
        status = open_channel(options->run_dir, "control", QUEUE_CONTROL,
                              BOUND_CONTROL_BYTES + MESSAGE_HEADER_BYTES, &link->control, err);
    }
    if (status != STATUS_OK) {
        worker_link_close(link);
        return status;
    }
    *out = link;
    return STATUS_OK;
}

void worker_link_close(struct worker_link *link) {
    if (link == NULL) {
        return;
    }
    transport_close(link->plan);
    transport_close(link->control);
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        arena_deinit(&link->peers[i].capacity_arena);
    }
    buf_deinit(&link->in);
    buf_deinit(&link->out);
    arena_deinit(&link->arena);
    memory_free(link);
}

int worker_link_fd(const struct worker_link *link, uint32_t index) {
    INVARIANT(index < WORKER_LINK_FDS);
    return transport_fd(index == 0 ? link->plan : link->control);
}

// ---- peers -------------------------------------------------------------------------------------

static struct peer *find_peer(struct worker_link *link, const char *name) {
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        if (link->peers[i].present && strcmp(link->peers[i].name, name) == 0) {
            return &link->peers[i];
        }
    }
    return NULL;
}

// A name that was here before and was given up, e.g. for its silence.
static struct peer *find_lost_peer(struct worker_link *link, const char *name) {
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        if (!link->peers[i].present && strcmp(link->peers[i].name, name) == 0) {
            return &link->peers[i];
        }
    }
    return NULL;
}

static struct worker_id id_of(const struct worker_link *link, const struct peer *peer) {
    return (struct worker_id){(uint32_t)(peer - link->peers)};
}

static void send_control(struct worker_link *link, const char *name,
                         const struct control_message *message) {
    arena_reset(&link->arena);
    buf_reset(&link->out);
    struct error err = {0};
    enum status status = codec_control_encode(message, &link->arena, &link->out, &err);
    if (status != STATUS_OK) {
        log_failure("worker_link", &err);
        return;
    }
    status = transport_send(link->control, name, link->out.data, link->out.bytes_used);
    if (status != STATUS_OK) {
        log_debug("worker_link", "message lost worker=%s because=%s", name, status_name(status));
    }
}

static void lose(struct worker_link *link, struct peer *peer, const char *reason,
                 uint32_t exit_code) {
    peer->present = false;
    log_warn("worker_link", "worker lost worker=%s pid=%u reason=\"%s\"", peer->name, peer->pid,
             reason);
    link->sink.lost(link->sink.ctx, id_of(link, peer), reason, exit_code);
}

static void draw_comm_id(char out[MESSAGE_COMM_ID_DIGITS + 1]) {
    uint64_t parts[2] = {0};
    if (getrandom(parts, sizeof parts, 0) != (ssize_t)sizeof parts) {
        parts[0] = clock_monotonic_ns();    // a name, no secret: the directory is ours
        parts[1] = (uint64_t)getpid();
    }
    snprintf(out, MESSAGE_COMM_ID_DIGITS + 1, "%016llx%016llx", (unsigned long long)parts[0],
             (unsigned long long)parts[1]);
}

static void welcome(struct worker_link *link, struct peer *peer) {
    peer->epoch = ++link->last_epoch;
    char comm_id[MESSAGE_COMM_ID_DIGITS + 1];
    draw_comm_id(comm_id);
    link->counters.epoch = peer->epoch;
    struct control_message message = {
        .kind = MESSAGE_KIND_WELCOME,
        .address = {.epoch = peer->epoch},
        .welcome = {.epoch = peer->epoch,
                    .world = 1,
                    .lease_ms = SILENCE_US / 1000,
                    .comm_id = comm_id},
    };
    send_control(link, peer->name, &message);
}

void worker_link_welcome_again(struct worker_link *link, struct worker_id worker) {
    INVARIANT(worker.value < WORKERS_MAX);
    struct peer *peer = &link->peers[worker.value];
    if (peer->present) {
        welcome(link, peer);
    }
}

static void refuse(struct worker_link *link, const char *name, const char *why) {
    log_warn("worker_link", "worker refused worker=%s because=\"%s\"", name, why);
    struct control_message message = {.kind = MESSAGE_KIND_REFUSED,
                                      .text = {.code = EXIT_CODE_USAGE, .text = why}};
    send_control(link, name, &message);
}

static void take_hello(struct worker_link *link, const char *name,
                       const struct message_hello *hello, uint64_t now_us) {
    if (strcmp(hello->build, VERSION_BUILD) != 0) {
        char why[256];
        snprintf(why, sizeof why, "worker build %.80s, controller build %s", hello->build,
                 VERSION_BUILD);
        refuse(link, name, why);
        return;
    }
    struct peer *peer = find_peer(link, name);
    if (peer != NULL && peer->pid == hello->pid) {
        peer->heard_us = now_us;
        // It did not hear us the first time. Hellos that piled up while we were busy are one.
        if (peer->welcomed_us != now_us) {
            welcome(link, peer);
            peer->welcomed_us = now_us;
        }
        return;
    }
    if (peer != NULL) {
        lose(link, peer, "another process took its name", 0);
    }
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        if (!link->peers[i].present) {
            peer = &link->peers[i];
            snprintf(peer->name, sizeof peer->name, "%s", name);
            peer->present = true;
            peer->pid = hello->pid;
            peer->heard_us = now_us;
            log_info("worker_link", "worker joined worker=%s pid=%u device=%.16s", name, hello->pid,
                     hello->device);
            welcome(link, peer);
            return;
        }
    }
    refuse(link, name, "this controller drives one worker, and it is already there");
}

// ---- receiving ---------------------------------------------------------------------------------

static enum status take_control(struct worker_link *link, const char *name, uint64_t now_us,
                                struct error *err) {
    struct message_header header;
    const uint8_t *body = NULL;
    struct control_message message;
    arena_reset(&link->arena);
    TRY(codec_header_decode(link->in.data, link->in.bytes_used, &header, &body, err));
    TRY(codec_control_decode(&header, body, &link->arena, &message, err));
    if (message.kind == MESSAGE_KIND_HELLO) {
        take_hello(link, name, &message.hello, now_us);
        return STATUS_OK;
    }
    struct peer *peer = find_peer(link, name);
    if (peer == NULL) {
        peer = find_lost_peer(link, name);
        if (peer != NULL && message.kind == MESSAGE_KIND_HEARTBEAT) {
            // It was only silent: it starts anew, with its weights.
            peer->present = true;
            peer->heard_us = now_us;
            log_info("worker_link", "worker is back worker=%s pid=%u", peer->name, peer->pid);
            welcome(link, peer);
        }
        return STATUS_OK;    // of a stranger: only a hello makes it known
    }
    peer->heard_us = now_us;
    switch (message.kind) {
    case MESSAGE_KIND_PROGRESS:
        link->sink.progress(link->sink.ctx, id_of(link, peer), &message.progress);
        return STATUS_OK;
    case MESSAGE_KIND_HEARTBEAT:
        peer->resident_bytes = message.heartbeat.resident_bytes;
        peer->allocations_after_seal = message.heartbeat.allocations_after_seal;
        return STATUS_OK;
    case MESSAGE_KIND_GOODBYE:
        lose(link, peer, message.text.text, message.text.code);
        return STATUS_OK;
    default:
        return error_set(err, STATUS_CORRUPT, "unexpected message kind %d", (int)message.kind);
    }
}

// Comes by the plan channel: whoever it came from can be sent plans.
static enum status take_capacity(struct worker_link *link, struct peer *peer,
                                 const struct message_header *header, const uint8_t *body,
                                 struct error *err) {
    struct control_message message;
    arena_reset(&peer->capacity_arena);
    TRY(codec_control_decode(header, body, &peer->capacity_arena, &message, err));
    TRY(capacity_validate(&message.capacity, err));
    // The message struct goes; the arena keeps a copy of the report.
    struct message_capacity *kept = arena_alloc(&peer->capacity_arena, sizeof *kept);
    if (kept == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no room for a capacity report");
    }
    *kept = message.capacity;
    link->sink.ready(link->sink.ctx, id_of(link, peer), peer->epoch, kept);
    return STATUS_OK;
}

static enum status take_result(struct worker_link *link, const char *name, uint64_t now_us,
                               struct error *err) {
    struct peer *peer = find_peer(link, name);
    if (peer == NULL) {
        return STATUS_OK;
    }
    struct message_header header;
    const uint8_t *body = NULL;
    struct step_result result;
    arena_reset(&link->arena);
    TRY(codec_header_decode(link->in.data, link->in.bytes_used, &header, &body, err));
    if (header.kind != MESSAGE_KIND_RESULT && header.kind != MESSAGE_KIND_CAPACITY) {
        return error_set(err, STATUS_CORRUPT, "message kind %u on the plan channel", header.kind);
    }
    if (header.epoch != peer->epoch) {
        return STATUS_OK;    // stale: dropped before its body is decoded
    }
    peer->heard_us = now_us;
    if (header.kind == MESSAGE_KIND_CAPACITY) {
        return take_capacity(link, peer, &header, body, err);
    }
    TRY(codec_result_decode(&header, body, &link->arena, &result, err));
    if (result.status != RESULT_STATUS_OK) {
        log_warn("worker_link", "plan refused worker=%s seq=%llu status=%d because=\"%.200s\"",
                 name, (unsigned long long)result.seq, (int)result.status, result.message);
    }
    link->sink.result(link->sink.ctx, id_of(link, peer), &result);
    return STATUS_OK;
}

typedef enum status (*take_fn)(struct worker_link *link, const char *name, uint64_t now_us,
                               struct error *err);

// False when nothing is left.
static bool drain(struct worker_link *link, struct transport *channel, take_fn take,
                  uint64_t now_us) {
    char name[TRANSPORT_PEER_BYTES];
    uint64_t end_us = clock_monotonic_us() + POLL_US;
    do {
        enum status status = transport_receive(channel, &link->in, name);
        if (status == STATUS_BUSY) {
            return false;
        }
        link->counters.messages_in++;
        struct error err = {0};
        if (status == STATUS_OK) {
            status = take(link, name, now_us, &err);
        }
        if (status != STATUS_OK) {
            link->counters.messages_bad++;
            log_warn("worker_link", "bad message worker=%s because=\"%s\"", name,
                     err.message[0] == '\0' ? status_text(status) : err.message);
            struct peer *peer = find_peer(link, name);
            if (peer != NULL && channel == link->plan) {
                // What it computed is lost with the message: its epoch starts anew.
                link->sink.lost(link->sink.ctx, id_of(link, peer), "it sent a broken result", 0);
                welcome(link, peer);
            }
        }
    } while (clock_monotonic_us() < end_us);
    return true;
}

bool worker_link_poll(struct worker_link *link, uint64_t now_us) {
    bool more = drain(link, link->control, take_control, now_us);
    more = drain(link, link->plan, take_result, now_us) || more;
    // Silence counts only while our own loop was on time.
    bool late = now_us - link->polled_us > LOOP_LAG_MAX_US;
    link->polled_us = now_us;
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        struct peer *peer = &link->peers[i];
        if (!peer->present) {
            continue;
        }
        if (late) {
            peer->heard_us = now_us;
        } else if (now_us > peer->heard_us + SILENCE_US) {
            lose(link, peer, "no word from it", 0);
        }
    }
    if (now_us - link->said_us > HEARTBEAT_US) {
        link->said_us = now_us;
        for (uint32_t i = 0; i < WORKERS_MAX; i++) {
            if (link->peers[i].present) {
                struct control_message message = {.kind = MESSAGE_KIND_HEARTBEAT,
                                                  .address = {.epoch = link->peers[i].epoch}};
                send_control(link, link->peers[i].name, &message);
            }
        }
    }
    return more;
}

// ---- sending -----------------------------------------------------------------------------------

enum status worker_link_send_plan(struct worker_link *link, struct worker_id worker,
                                  const struct plan *plan, size_t *plan_bytes, struct error *err) {
    INVARIANT(worker.value < WORKERS_MAX);
    const struct peer *peer = &link->peers[worker.value];
    if (!peer->present) {
        return error_set(err, STATUS_PEER_LOST, "worker %u is gone", worker.value);
    }
    arena_reset(&link->arena);
    buf_reset(&link->out);
    TRY(codec_plan_encode(plan, &link->arena, &link->out, err));
    *plan_bytes = link->out.bytes_used;
    enum status status =
        transport_send(link->plan, peer->name, link->out.data, link->out.bytes_used);
    if (status != STATUS_OK) {
        return error_set(err, status, "plan %llu for worker '%s' cannot be sent",
                         (unsigned long long)plan->seq, peer->name);
    }
    return STATUS_OK;
}

void worker_link_shutdown(struct worker_link *link) {
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        if (link->peers[i].present) {
            struct control_message message = {.kind = MESSAGE_KIND_SHUTDOWN,
                                              .address = {.epoch = link->peers[i].epoch},
                                              .text = {.code = 0, .text = "drained"}};
            send_control(link, link->peers[i].name, &message);
        }
    }
}

void worker_link_count(const struct worker_link *link, uint64_t now_us,
                       struct worker_link_counters *out) {
    *out = link->counters;
    const struct peer *peer = &link->peers[0];
    if (peer->present) {
        out->resident_bytes = peer->resident_bytes;
        out->allocations_after_seal = peer->allocations_after_seal;
        out->heard_age_us = now_us > peer->heard_us ? now_us - peer->heard_us : 0;
    }
}
