// SPDX-License-Identifier: Apache-2.0
#include "controller/net/worker_link.h"

#include "common/arena.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/exit_code.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "controller/net/epoch_file.h"
#include "controller/net/registry.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    BEAT_BUSY_US = 100 * 1000,      // our sign of life to a group with outstanding plans
    BEAT_IDLE_US = 1000 * 1000,     // to another one
    LEASE_US = 3 * BEAT_IDLE_US,    // told to the workers
    LOOP_LAG_US = 20 * 1000,        // later than this our own loop was late
    LOOK_US = 10 * 1000,            // between looks at the silence of members
    PROBE_US = 2 * 1000,            // after a connection ended, until it is asked whose it was
    PROBE_MAX_US = 500 * 1000,      // twice as long each time, up to this
    QUEUE_PLAN = 8,
    QUEUE_CONTROL = 64,
    POLL_US = 1000,    // a poll takes no further message after this, so that the loop goes on
};

// Nobody counts so far: a worker that says so is broken.
static const uint64_t EPOCH_MAX = UINT64_MAX / 2;

struct worker_link {
    struct worker_link_options options;
    struct transport *plan;
    struct transport *control;
    struct registry *registry;
    struct epoch_file epochs;
    uint64_t reported_epoch;    // the largest one that a worker knows of
    struct arena arena;         // what was received
    struct arena scratch;       // while something is encoded, also from within a call of the sink
    struct buf in, out;
    uint64_t polled_us;
    uint64_t looked_us;
    bool unreachable;           // a member is
    uint64_t disconnects;       // seen so far
    uint64_t probe_us;          // when members are asked for again
    uint64_t probe_after_us;    // and how long after that once more; 0: not any more
    uint64_t strangers_said;
    struct worker_link_counters counters;
};

// ---- life cycle --------------------------------------------------------------------------------

static enum status open_channel(const struct worker_link_options *options,
                                enum transport_channel channel, int queue, size_t bytes_max,
                                struct transport **out, struct error *err) {
    char base[TRANSPORT_ADDRESS_BYTES], address[TRANSPORT_ADDRESS_BYTES];
    char texts[TRANSPORT_BINDS_MAX][TRANSPORT_ADDRESS_BYTES];
    const char *binds[TRANSPORT_BINDS_MAX];
    snprintf(base, sizeof base, "ipc://%.4000s", options->run_dir);
    TRY(transport_channel_address(base, channel, address, err));
    for (uint32_t i = 0; i < options->bind_count; i++) {
        TRY(transport_channel_address(options->binds[i], channel, texts[i], err));
        binds[i] = texts[i];
    }
    struct transport_options transport = {
        .address = address,
        .listens = true,
        .message_bytes_max = bytes_max,
        .queue_messages_max = queue,
        .keys = options->keys,
        .allow = options->allow,
        .binds = binds,
        .bind_count = options->bind_count,
    };
    return transport_open(&transport, out, err);
}

static enum status check_binds(const struct worker_link_options *options, struct error *err) {
    if (options->bind_count > TRANSPORT_BINDS_MAX) {
        return error_set(err, STATUS_INVALID, "%u addresses for workers; the limit is %d",
                         options->bind_count, TRANSPORT_BINDS_MAX);
    }
    for (uint32_t i = 0; i < options->bind_count; i++) {
        if (transport_address_is_wildcard(options->binds[i]) && !options->wildcard_allowed) {
            error_hint(err, "name the address of the network that the workers are on; "
                            "--insecure-bind allows every network");
            return error_set(err, STATUS_INVALID,
                             "--worker-bind %.200s would listen on every network of this host",
                             options->binds[i]);
        }
    }
    return STATUS_OK;
}

static enum status open_all(struct worker_link *link, struct error *err) {
    const struct worker_link_options *options = &link->options;
    struct registry_options registry = {options->groups, options->world, options->timer_scale};
    TRY(check_binds(options, err));
    TRY(registry_create(&registry, &link->registry, err));
    TRY(epoch_file_open(&link->epochs, options->run_dir, err));
    TRY(open_channel(options, TRANSPORT_CHANNEL_PLAN, QUEUE_PLAN,
                     BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES, &link->plan, err));
    return open_channel(options, TRANSPORT_CHANNEL_CONTROL, QUEUE_CONTROL,
                        BOUND_CONTROL_BYTES + MESSAGE_HEADER_BYTES, &link->control, err);
}

enum status worker_link_open(const struct worker_link_options *options, struct worker_link **out,
                             struct error *err) {
    struct worker_link *link = memory_zalloc(sizeof *link);
    if (link == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for worker links");
    }
    link->options = *options;
    arena_init(&link->arena, 8 * (size_t)BOUND_PLAN_BYTES);
    arena_init(&link->scratch, 8 * (size_t)BOUND_PLAN_BYTES);
    buf_init(&link->in, BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    buf_init(&link->out, BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    enum status status = open_all(link, err);
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
    registry_destroy(link->registry);
    buf_deinit(&link->in);
    buf_deinit(&link->out);
    arena_deinit(&link->arena);
    arena_deinit(&link->scratch);
    memory_free(link);
}

int worker_link_fd(const struct worker_link *link, uint32_t index) {
    INVARIANT(index < WORKER_LINK_FDS);
    return index == 0   ? transport_fd(link->plan)
           : index == 1 ? transport_fd(link->control)
                        : transport_events_fd(link->control);
}

static uint64_t scaled(const struct worker_link *link, uint64_t us) {
    return (uint64_t)((double)us * link->options.timer_scale);
}

// ---- sending by the control channel ------------------------------------------------------------

static enum status send_control(struct worker_link *link, const char *name,
                                const struct control_message *message) {
    arena_reset(&link->scratch);
    buf_reset(&link->out);
    struct error err = {0};
    enum status status = codec_control_encode(message, &link->scratch, &link->out, &err);
    if (status != STATUS_OK) {
        log_failure("worker_link", &err);
        return status;
    }
    status = transport_send(link->control, name, link->out.data, link->out.bytes_used);
    if (status != STATUS_OK) {
        log_debug("worker_link", "message lost worker=%s because=%s", name, status_name(status));
    }
    return status;
}

// False when there is no connection to it any more.
static bool beat(struct worker_link *link, const struct member *member) {
    uint64_t epoch = registry_group(link->registry, member->group)->epoch;
    struct control_message message = {
        .kind = MESSAGE_KIND_HEARTBEAT,
        .address = {.epoch = epoch},
        .heartbeat = {.report_awaited = member->state == MEMBER_STATE_WELCOMED},
    };
    return send_control(link, member->peer, &message) != STATUS_PEER_LOST;
}

static void refuse(struct worker_link *link, const char *name, enum exit_code code,
                   const char *why) {
    char text[LOG_VALUE_BYTES];
    link->counters.refused++;
    log_warn("worker_link", "worker refused worker=%s because=\"%s\"", name, log_value(why, text));
    struct control_message message = {.kind = MESSAGE_KIND_REFUSED,
                                      .text = {.code = (uint32_t)code, .text = why}};
    enum status status = send_control(link, name, &message);
    (void)status;    // it says hello again, and hears it then
}

// A refused hello or welcome that gets lost is said again: the worker repeats its hello.
static void welcome(struct worker_link *link, struct member *member, uint64_t now_us) {
    const struct group_place *place = registry_group(link->registry, member->group);
    struct control_message message = {
        .kind = MESSAGE_KIND_WELCOME,
        .address = {.group = member->group, .epoch = place->epoch},
        .welcome = {.epoch = place->epoch,
                    .group = member->group,
                    .rank = member->rank,
                    .world = registry_world(link->registry),
                    .lease_ms = (uint32_t)(scaled(link, LEASE_US) / 1000),
                    .comm_id = place->comm_id},
    };
    member->welcomed_us = now_us;
    enum status status = send_control(link, member->peer, &message);
    (void)status;
}

// ---- epochs ------------------------------------------------------------------------------------

static enum status draw_comm_id(char out[MESSAGE_COMM_ID_DIGITS + 1], struct error *err) {
    uint64_t parts[2];
    if (getrandom(parts, sizeof parts, 0) != (ssize_t)sizeof parts) {
        return error_set_os(err, STATUS_IO, "no random bytes for a communicator's name");
    }
    snprintf(out, MESSAGE_COMM_ID_DIGITS + 1, "%016llx%016llx", (unsigned long long)parts[0],
             (unsigned long long)parts[1]);
    return STATUS_OK;
}

static enum status begin_epoch(struct worker_link *link, uint32_t group, struct error *err) {
    char comm_id[MESSAGE_COMM_ID_DIGITS + 1];
    uint64_t last =
        link->epochs.epoch > link->reported_epoch ? link->epochs.epoch : link->reported_epoch;
    TRY(draw_comm_id(comm_id, err));
    TRY(epoch_file_raise(&link->epochs, last + 1, err));
    link->counters.epoch = link->epochs.epoch;
    registry_begin(link->registry, group, link->epochs.epoch, comm_id);
    return STATUS_OK;
}

// Welcomes a group whose places are all taken. What cannot be written now is tried again later.
static void form(struct worker_link *link, uint32_t group, uint64_t now_us) {
    struct group_place *place = registry_group(link->registry, group);
    struct error err = {0};
    if (!registry_may_begin(link->registry, group, now_us)) {
        return;
    }
    if (begin_epoch(link, group, &err) != STATUS_OK) {
        log_failure("worker_link", &err);
        return;
    }
    log_info("worker_link", "epoch begins group=%u epoch=%llu world=%u", group,
             (unsigned long long)place->epoch, registry_world(link->registry));
    for (uint32_t r = 0; r < registry_world(link->registry); r++) {
        welcome(link, &place->members[r], now_us);
    }
}

// Whoever is there stops waiting for the others at once, and for the next welcome begins to.
static void end_epoch(struct worker_link *link, uint32_t group, bool given_up, const char *reason) {
    struct group_place *place = registry_group(link->registry, group);
    if (place->epoch == 0) {
        return;
    }
    struct control_message message = {.kind = MESSAGE_KIND_ABORT,
                                      .address = {.group = group, .epoch = place->epoch},
                                      .abort = {.epoch = place->epoch, .reason = reason}};
    for (uint32_t r = 0; r < registry_world(link->registry); r++) {
        const struct member *member = &place->members[r];
        if (member->state != MEMBER_STATE_AWAY) {
            log_debug("worker_link", "epoch ends worker=%s sent=%llu applied=%llu completed=%llu",
                      member->name, (unsigned long long)member->sent_seq,
                      (unsigned long long)member->heartbeat.applied_seq,
                      (unsigned long long)member->heartbeat.completed_seq);
            enum status status = send_control(link, member->peer, &message);
            (void)status;    // a larger epoch says the same
        }
    }
    registry_end(link->registry, group, given_up, link->polled_us);
}

static void lose(struct worker_link *link, struct member *member, const char *reason,
                 uint32_t exit_code) {
    uint32_t group = member->group;
    char text[LOG_VALUE_BYTES];
    member->state = MEMBER_STATE_AWAY;
    log_warn("worker_link", "worker lost worker=%s group=%u rank=%u pid=%u reason=\"%s\"",
             member->name, group, member->rank, member->pid, log_value(reason, text));
    end_epoch(link, group, false, reason);
    link->options.sink.lost(link->options.sink.ctx, group, reason, exit_code);
}

void worker_link_welcome_again(struct worker_link *link, uint32_t group) {
    end_epoch(link, group, true, "its state was not the controller's");
    uint64_t retry_us = registry_group(link->registry, group)->retry_us;
    form(link, group, retry_us == 0 ? clock_monotonic_us() : link->polled_us);
}

// ---- joining -----------------------------------------------------------------------------------

// Over a network, whether the key it came with may take this place.
static bool may_take(const struct worker_link *link, const char *user,
                     const struct message_hello *hello) {
    if (user[0] == '\0') {
        return true;    // by the run directory, which is ours
    }
    const struct link_entry *entry = link_allow_named(link->options.allow, user);
    return entry != NULL && link_entry_permits(entry, hello->group, hello->rank);
}

// False while the place stays with whom it has. Whether that one lives is known once it has said
// something after the other came: until then the other gets no answer, and asks again.
static bool clear_place(struct worker_link *link, struct member *member, const char *peer,
                        const struct message_hello *hello, uint64_t now_us) {
    if (member->state == MEMBER_STATE_AWAY) {
        return true;
    }
    if (!beat(link, member)) {
        lose(link, member, "its connection ended", 0);
        return true;
    }
    if (member->challenged_us == 0) {
        member->challenged_us = now_us;
    }
    if (member->heard_us > member->challenged_us) {
        char why[256];
        snprintf(why, sizeof why, "rank %u of group %u is '%.63s' (pid %u), which is alive",
                 hello->rank, hello->group, member->name, member->pid);
        member->challenged_us = 0;
        refuse(link, peer, EXIT_CODE_USAGE, why);
    }
    return false;
}

// What keeps a process from its place, whoever has it now.
static enum status judge_hello(struct worker_link *link, const char *peer, const char *user,
                               const struct control_message *message, struct error *err) {
    const struct message_hello *hello = &message->hello;
    TRY(registry_judge(link->registry, hello, err));
    if (!transport_peer_is(peer, hello->worker_id)) {
        return error_set(err, STATUS_INVALID, "it says '%.60s' and is connected as '%s'",
                         hello->worker_id, peer);
    }
    if (!may_take(link, user, hello)) {
        return error_set(err, STATUS_PERMISSION,
                         "the key '%.63s' may not be rank %u of group %u (ids= in the controller's "
                         "allow-list)",
                         user, hello->rank, hello->group);
    }
    if (message->address.epoch > EPOCH_MAX) {
        return error_set(err, STATUS_CORRUPT, "its last epoch is larger than any can be");
    }
    const struct member *before = registry_find(link->registry, peer);
    if (before != NULL && before->state != MEMBER_STATE_AWAY &&
        (before->group != hello->group || before->rank != hello->rank)) {
        return error_set(err, STATUS_INVALID, "it is rank %u of group %u already", before->rank,
                         before->group);
    }
    return STATUS_OK;
}

static void take_hello(struct worker_link *link, const char *peer, const char *user,
                       const struct control_message *message, uint64_t now_us) {
    const struct message_hello *hello = &message->hello;
    struct error err = {0};
    enum status status = judge_hello(link, peer, user, message, &err);
    if (status != STATUS_OK) {
        refuse(link, peer, exit_code_for(status), err.message);
        return;
    }
    struct member *member = registry_place(link->registry, hello);
    if (member->state != MEMBER_STATE_AWAY && strcmp(member->peer, peer) == 0) {
        registry_heard(member, now_us);
        // It did not hear us the first time. Hellos that piled up while we were busy are one.
        if (member->state != MEMBER_STATE_GREETED && member->welcomed_us != now_us) {
            welcome(link, member, now_us);
        }
        return;
    }
    if (!clear_place(link, member, peer, hello, now_us)) {
        return;
    }
    if (message->address.epoch > link->reported_epoch) {
        link->reported_epoch = message->address.epoch;
    }
    registry_take(link->registry, member, peer, user, hello);
    registry_heard(member, now_us);
    log_info("worker_link", "worker joined worker=%s group=%u rank=%u pid=%u device=%.16s key=%s",
             member->name, member->group, member->rank, hello->pid, hello->device,
             user[0] == '\0' ? "-" : user);
    form(link, member->group, now_us);
}

// ---- receiving ---------------------------------------------------------------------------------

// Given up for its silence, and there all the same: it starts anew, with its weights. A word that
// was on its way when its connection ended is no sign of life.
static void take_back(struct worker_link *link, struct member *member, uint64_t now_us) {
    if (!beat(link, member)) {
        return;
    }
    member->state = MEMBER_STATE_GREETED;
    registry_heard(member, now_us);
    log_info("worker_link", "worker is back worker=%s pid=%u", member->name, member->pid);
    form(link, member->group, now_us);
}

static enum status wrong_user(const struct member *member, const char *user, struct error *err) {
    return error_set(err, STATUS_PERMISSION, "the key '%s' speaks for '%s', which came with '%s'",
                     user, member->name, member->user);
}

static enum status take_control(struct worker_link *link, const char *name, uint64_t now_us,
                                struct error *err) {
    struct message_header header;
    const uint8_t *body = NULL;
    struct control_message message;
    const char *user = transport_user(link->control);
    arena_reset(&link->arena);
    TRY(codec_header_decode(link->in.data, link->in.bytes_used, &header, &body, err));
    TRY(codec_control_decode(&header, body, &link->arena, &message, err));
    if (message.kind == MESSAGE_KIND_HELLO) {
        take_hello(link, name, user, &message, now_us);
        return STATUS_OK;
    }
    struct member *member = registry_find(link->registry, name);
    if (member == NULL) {
        return STATUS_OK;    // of a stranger: only a hello makes it known
    }
    if (strcmp(member->user, user) != 0) {
        return wrong_user(member, user, err);
    }
    if (member->state == MEMBER_STATE_AWAY) {
        if (message.kind == MESSAGE_KIND_HEARTBEAT) {
            take_back(link, member, now_us);
        }
        return STATUS_OK;
    }
    registry_heard(member, now_us);
    switch (message.kind) {
    case MESSAGE_KIND_PROGRESS:
        link->options.sink.progress(link->options.sink.ctx, member->group, member->rank,
                                    &message.progress);
        return STATUS_OK;
    case MESSAGE_KIND_HEARTBEAT:
        member->heartbeat = message.heartbeat;
        if (header.epoch == registry_group(link->registry, member->group)->epoch) {
            member->took_welcome = true;
        }
        return STATUS_OK;
    case MESSAGE_KIND_GOODBYE:
        lose(link, member, message.text.text, message.text.code);
        return STATUS_OK;
    default:
        return error_set(err, STATUS_CORRUPT, "unexpected message kind %d", (int)message.kind);
    }
}

// Comes by the plan channel: whoever it came from can be sent plans.
static enum status take_capacity(struct worker_link *link, struct member *member,
                                 const struct message_header *header, const uint8_t *body,
                                 struct error *err) {
    struct control_message message;
    bool complete = false, kv_kept = false;
    TRY(codec_control_decode(header, body, &link->arena, &message, err));
    TRY(capacity_validate(&message.capacity, err));
    struct error problem = {0};
    enum status status =
        registry_report(link->registry, member, &message.capacity, &complete, &kv_kept, &problem);
    if (status != STATUS_OK) {
        // Trying again would end the same way.
        refuse(link, member->peer, exit_code_for(status), problem.message);
        lose(link, member, problem.message, (uint32_t)exit_code_for(status));
        return STATUS_OK;
    }
    if (complete) {
        const struct group_place *place = registry_group(link->registry, member->group);
        struct worker_link_ready ready = {
            .group = member->group,
            .epoch = place->epoch,
            .world = registry_world(link->registry),
            .capacity = &place->capacity,
            .kv_kept = kv_kept,
        };
        link->options.sink.ready(link->options.sink.ctx, &ready);
    }
    return STATUS_OK;
}

static enum status take_result(struct worker_link *link, const char *name, uint64_t now_us,
                               struct error *err) {
    struct member *member = registry_find(link->registry, name);
    if (member == NULL || member->state < MEMBER_STATE_WELCOMED) {
        return STATUS_OK;
    }
    if (strcmp(member->user, transport_user(link->plan)) != 0) {
        return wrong_user(member, transport_user(link->plan), err);
    }
    struct message_header header;
    const uint8_t *body = NULL;
    struct step_result result;
    arena_reset(&link->arena);
    TRY(codec_header_decode(link->in.data, link->in.bytes_used, &header, &body, err));
    if (header.kind != MESSAGE_KIND_RESULT && header.kind != MESSAGE_KIND_CAPACITY) {
        return error_set(err, STATUS_CORRUPT, "message kind %u on the plan channel", header.kind);
    }
    if (header.epoch != registry_group(link->registry, member->group)->epoch) {
        return STATUS_OK;    // stale: dropped before its body is decoded
    }
    registry_heard(member, now_us);
    if (header.kind == MESSAGE_KIND_CAPACITY) {
        bool again = !registry_is_new_report(member, header.seq);    // the first one was late
        return again ? STATUS_OK : take_capacity(link, member, &header, body, err);
    }
    TRY(codec_result_decode(&header, body, &link->arena, &result, err));
    if (header.seq == 0 && result.status == RESULT_STATUS_FAULT) {
        // An answer to the welcome: it cannot take part in this epoch.
        return error_set(err, STATUS_PEER_LOST, "it cannot take part in epoch %llu: %.200s",
                         (unsigned long long)header.epoch, result.message);
    }
    if (member->state != MEMBER_STATE_READY || header.seq > member->sent_seq) {
        return error_set(err, STATUS_CORRUPT, "a result of plan %llu, which was not sent",
                         (unsigned long long)header.seq);
    }
    registry_answered(member, header.seq);
    if (result.status != RESULT_STATUS_OK) {
        char why[LOG_VALUE_BYTES];
        log_warn("worker_link", "plan refused worker=%s seq=%llu status=%d because=\"%s\"", name,
                 (unsigned long long)result.seq, (int)result.status,
                 log_value(result.message, why));
    }
    uint32_t group = member->group;
    link->options.sink.result(link->options.sink.ctx, group, member->rank, &result);
    if (result.status == RESULT_STATUS_OK &&
        registry_group(link->registry, group)->epoch == header.epoch) {
        registry_believed(link->registry, group, header.seq);    // or it would be given up by now
    }
    return STATUS_OK;
}

// What it computed is lost with the message: its group's epoch starts anew.
static void forget_broken(struct worker_link *link, const char *name) {
    struct member *member = registry_find(link->registry, name);
    if (member != NULL && member->state >= MEMBER_STATE_WELCOMED) {
        uint32_t group = member->group;
        link->options.sink.lost(link->options.sink.ctx, group, "it sent a broken result", 0);
        worker_link_welcome_again(link, group);
    }
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
            char why[LOG_VALUE_BYTES];
            log_warn("worker_link", "bad message worker=%s because=\"%s\"", name,
                     err.message[0] == '\0' ? status_text(status) : log_value(err.message, why));
            if (channel == link->plan && status != STATUS_PERMISSION) {
                forget_broken(link, name);
            }
        }
    } while (clock_monotonic_us() < end_us);
    return true;
}

// ---- time --------------------------------------------------------------------------------------

// Says that we are alive, and finds out whose connection has ended.
static void beat_group(struct worker_link *link, uint32_t group, uint64_t now_us) {
    struct group_place *place = registry_group(link->registry, group);
    place->said_us = now_us;
    for (uint32_t r = 0; r < registry_world(link->registry); r++) {
        struct member *member = &place->members[r];
        if (member->state != MEMBER_STATE_AWAY && !beat(link, member)) {
            member->unreachable = true;
            link->unreachable = true;
        }
    }
}

// The end of a connection is seen before the library knows whose it was: members are asked for
// until they have surely been found.
static void probe(struct worker_link *link, uint64_t now_us) {
    struct transport_faults faults;
    transport_faults(link->control, &faults);
    if (faults.disconnects != link->disconnects) {
        link->disconnects = faults.disconnects;
        link->probe_us = now_us;
        link->probe_after_us = PROBE_US;
    }
    if (link->probe_after_us != 0 && now_us >= link->probe_us) {
        link->probe_us = now_us + link->probe_after_us;
        link->probe_after_us *= 2;
        if (link->probe_after_us > PROBE_MAX_US) {
            link->probe_after_us = 0;
        }
        for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
            beat_group(link, g, now_us);
        }
    }
    link->counters.strangers = faults.strangers;
    link->counters.handshakes_refused = faults.handshakes_refused;
}

// At most once a second, so that a stranger who keeps trying fills no log.
static void tell_of_strangers(struct worker_link *link) {
    struct transport_faults faults;
    transport_faults(link->control, &faults);
    uint64_t count = faults.strangers + faults.handshakes_refused;
    if (count != link->strangers_said && link->options.bind_count > 0) {
        link->strangers_said = count;
        log_warn("worker_link",
                 "connections refused unknown_key=%llu failed_handshake=%llu last_unknown=%s",
                 (unsigned long long)faults.strangers,
                 (unsigned long long)faults.handshakes_refused,
                 faults.stranger[0] == '\0' ? "-" : faults.stranger);
    }
}

static void beat_all(struct worker_link *link, uint64_t now_us) {
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        const struct group_place *place = registry_group(link->registry, g);
        bool busy = registry_outstanding(link->registry, g);
        uint64_t interval_us = busy ? BEAT_BUSY_US : BEAT_IDLE_US;
        if (now_us - place->said_us >= interval_us - LOOK_US) {
            beat_group(link, g, now_us);
        }
    }
}

// After everything that had come from it was read: its last words count, and whoever has dialled
// again meanwhile is not lost.
static void lose_unreachable(struct worker_link *link) {
    if (!link->unreachable) {
        return;
    }
    link->unreachable = false;
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        for (uint32_t r = 0; r < registry_world(link->registry); r++) {
            struct member *member = &registry_group(link->registry, g)->members[r];
            if (member->unreachable && member->state != MEMBER_STATE_AWAY && !beat(link, member)) {
                lose(link, member, "its connection ended", 0);
            }
            member->unreachable = false;
        }
    }
}

static void mind_silence(struct worker_link *link, uint64_t now_us) {
    if (now_us / 1000000 != link->looked_us / 1000000) {
        tell_of_strangers(link);
    }
    link->looked_us = now_us;
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        for (uint32_t r = 0; r < registry_world(link->registry); r++) {
            struct member *member = &registry_group(link->registry, g)->members[r];
            const char *suspicion = registry_suspicion(link->registry, member, now_us);
            if (suspicion != NULL) {
                lose(link, member, suspicion, 0);
            }
        }
        form(link, g, now_us);    // the last time its epoch may not have been written
    }
}

// How long our loop may sleep.
static uint64_t sleep_max_us(const struct worker_link *link) {
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        if (registry_outstanding(link->registry, g)) {
            return BEAT_BUSY_US;
        }
    }
    return BEAT_IDLE_US;
}

bool worker_link_poll(struct worker_link *link, uint64_t now_us) {
    // Silence counts only while our own loop was on time.
    uint64_t elapsed_us = now_us - link->looked_us;
    bool looks = elapsed_us >= LOOK_US;
    if (looks && now_us - link->polled_us <= sleep_max_us(link) + scaled(link, LOOP_LAG_US)) {
        registry_pass(link->registry, elapsed_us);
    }
    link->polled_us = now_us;
    probe(link, now_us);
    if (looks) {
        beat_all(link, now_us);
    }
    bool more = drain(link, link->control, take_control, now_us);
    if (!more) {
        lose_unreachable(link);
    }
    more = drain(link, link->plan, take_result, now_us) || more;
    if (looks) {
        mind_silence(link, now_us);
    }
    return more;
}

// ---- plans -------------------------------------------------------------------------------------

enum status worker_link_send_plan(struct worker_link *link, uint32_t group, const struct plan *plan,
                                  size_t *plan_bytes, struct error *err) {
    const struct group_place *place = registry_group(link->registry, group);
    uint32_t world = registry_world(link->registry);
    if (!place->ready || plan->epoch != place->epoch) {
        return error_set(err, STATUS_PEER_LOST, "group %u is not ready", group);
    }
    arena_reset(&link->scratch);
    buf_reset(&link->out);
    TRY(codec_plan_encode(plan, &link->scratch, &link->out, err));
    *plan_bytes = link->out.bytes_used;
    const char *peers[BOUND_RANKS];
    for (uint32_t r = 0; r < world; r++) {
        peers[r] = place->members[r].peer;
    }
    uint32_t sent = 0;
    enum status status =
        transport_send_all(link->plan, peers, world, link->out.data, link->out.bytes_used, &sent);
    registry_sent(link->registry, group, sent, plan->seq, clock_monotonic_us());
    if (status != STATUS_OK) {
        return error_set(err, status, "plan %llu for rank %u of group %u cannot be sent",
                         (unsigned long long)plan->seq, sent, group);
    }
    return STATUS_OK;
}

void worker_link_shutdown(struct worker_link *link) {
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        const struct group_place *place = registry_group(link->registry, g);
        struct control_message message = {.kind = MESSAGE_KIND_SHUTDOWN,
                                          .address = {.group = g, .epoch = place->epoch},
                                          .text = {.code = 0, .text = "drained"}};
        for (uint32_t r = 0; r < registry_world(link->registry); r++) {
            if (place->members[r].state != MEMBER_STATE_AWAY) {
                enum status status = send_control(link, place->members[r].peer, &message);
                (void)status;    // one that misses it finds nobody later
            }
        }
    }
}

// ---- for people --------------------------------------------------------------------------------

void worker_link_count(const struct worker_link *link, uint64_t now_us,
                       struct worker_link_counters *out) {
    *out = link->counters;
    for (uint32_t g = 0; g < registry_groups(link->registry); g++) {
        for (uint32_t r = 0; r < registry_world(link->registry); r++) {
            const struct member *member = &registry_group(link->registry, g)->members[r];
            if (member->state != MEMBER_STATE_AWAY) {
                uint64_t age = registry_age_us(member, now_us);
                out->resident_bytes += member->heartbeat.resident_bytes;
                out->allocations_after_seal += member->heartbeat.allocations_after_seal;
                out->heard_age_us = age > out->heard_age_us ? age : out->heard_age_us;
            }
        }
    }
}

void worker_link_member(const struct worker_link *link, uint32_t group, uint32_t rank,
                        uint64_t now_us, struct worker_link_member *out) {
    static const char *const states[] = {
        [MEMBER_STATE_AWAY] = "away",
        [MEMBER_STATE_GREETED] = "joining",
        [MEMBER_STATE_WELCOMED] = "loading",
        [MEMBER_STATE_READY] = "ready",
    };
    INVARIANT(rank < registry_world(link->registry));
    const struct group_place *place = registry_group(link->registry, group);
    const struct member *member = &place->members[rank];
    bool away = member->state == MEMBER_STATE_AWAY;
    *out = (struct worker_link_member){
        .name = member->name,
        .state = states[member->state],
        .device = member->device,
        .user = member->user,
        .pid = away ? 0 : member->pid,
        .epoch = member->state >= MEMBER_STATE_WELCOMED ? place->epoch : 0,
        .heard_age_us = away ? 0 : registry_age_us(member, now_us),
        .applied_seq = member->heartbeat.applied_seq,
        .completed_seq = member->heartbeat.completed_seq,
        .resident_bytes = away ? 0 : member->heartbeat.resident_bytes,
        .kv_blocks = member->state == MEMBER_STATE_READY ? member->capacity.kv_blocks : 0,
    };
}
