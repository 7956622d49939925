// SPDX-License-Identifier: Apache-2.0
#include "worker/net/controller_link.h"

#include "common/arena.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/version.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HEARTBEAT_US = 100 * 1000,
    HEARTBEAT_IDLE_US = 1000 * 1000,    // no plan for BUSY_US
    BUSY_US = 10 * 1000 * 1000,
    HELLO_US = 200 * 1000,
    HELLO_FIRST_US = 1000,            // a channel needs a moment to stand: twice as long each time
    SILENCE_US = 10 * 1000 * 1000,    // unless the options say otherwise
    LAG_US = 20 * 1000,               // a turn that is later was not on time
    QUEUE_PLAN = 8,
    QUEUE_CONTROL = 64,
    HELD_MS = 5,                       // until the next try with a channel that had no room
    HELD_MAX_US = 10 * 1000 * 1000,    // patience with it while the controller is heard
    REPORT_AGAIN_US = 1000 * 1000,     // before a report that is awaited is sent again
    RECEIVE_MAX = 256,                 // messages taken from one channel in one pass
    FAREWELL_US = 2 * 1000 * 1000,     // patience with a controller that has not taken our failure
    FAREWELL_STEP_MS = 20,
    LINGER_MS = 1000,    // after that, for a message on its way
};

struct link {
    const struct controller_link_options *options;
    struct transport *plan;
    struct transport *control;
    struct arena arena;
    struct buf out;    // messages being written
    struct buf in;     // messages being read
    char identity[TRANSPORT_PEER_BYTES];
    struct link_key_pair keys, controller_keys;
    uint8_t *frame;    // frames from the step thread, BOUND_PLAN_BYTES
    uint32_t held;     // kind of the frame that its channel had no room for; 0: none
    size_t held_bytes;
    uint64_t moved_us;    // when the plan channel last took something, or had no need to
    uint8_t *report;      // the last capacity report that was sent, and when
    size_t report_bytes;
    uint64_t report_us, report_epoch;
    uint64_t epoch;    // of the last welcome, 0 for none
    bool joined;       // welcomed since this process began
    uint64_t lease_us;
    uint64_t heard_us;      // last word from the controller
    uint64_t due_us;        // when this turn should have begun
    uint64_t sent_us;       // last hello or heartbeat
    uint64_t hello_us;      // until the next try with a hello that no channel took
    uint64_t plan_us;       // last plan
    uint64_t turn_us;       // when this turn began
    uint64_t untaken_us;    // a welcome waits for the step thread, while our turns were on time
    bool orphan;
    bool released;    // KV memory was given back since the last word
    bool leaving;
    bool bid_farewell;    // the step thread's last words went out, or nobody was there to take them
};

static enum status open_channel(struct link *link, enum transport_channel channel, int queue,
                                int linger_ms, size_t bytes_max, struct transport **out,
                                struct error *err) {
    char address[TRANSPORT_ADDRESS_BYTES];
    TRY(transport_channel_address(link->options->address, channel, address, err));
    struct transport_options options = {
        .address = address,
        .listens = false,
        .identity = link->identity,
        .message_bytes_max = bytes_max,
        .queue_messages_max = queue,
        .linger_ms = linger_ms,
        .keys = link->options->key_file != NULL ? &link->keys : NULL,
        .listener_key =
            link->options->controller_key_file != NULL ? link->controller_keys.public_key : NULL,
    };
    return transport_open(&options, out, err);
}

static enum status load_keys(struct link *link, struct error *err) {
    const struct controller_link_options *options = link->options;
    if (options->key_file != NULL) {
        TRY(link_key_file_read(options->key_file, true, &link->keys, err));
    }
    if (options->controller_key_file != NULL) {
        TRY(link_key_file_read(options->controller_key_file, false, &link->controller_keys, err));
    }
    return STATUS_OK;
}

// Over a network nobody answers whose key is wrong; the library tells only that it was so.
static void explain_silence(struct link *link, struct error *err) {
    struct transport_faults faults;
    transport_faults(link->control, &faults);
    if (faults.handshakes_refused > 0 && err != NULL) {
        error_reset(err);
        error_hint(err, "add this worker's line to the controller's --worker-allow-file, and look "
                        "whether --curve-server-key-file has the controller's public key");
        enum status status =
            error_set(err, STATUS_PEER_LOST,
                      "the controller at '%.200s' refuses this worker's key, or is "
                      "not the one whose key was given",
                      link->options->address);
        (void)status;
    }
}

// BUSY when the channel is full or does not stand yet.
static enum status send_control(struct link *link, const struct control_message *message) {
    arena_reset(&link->arena);
    buf_reset(&link->out);
    struct error err = {0};
    enum status status = codec_control_encode(message, &link->arena, &link->out, &err);
    if (status != STATUS_OK) {
        log_failure("link", &err);    // no memory, or a name from a flag that no message can hold
        return status;
    }
    return transport_send(link->control, NULL, link->out.data, link->out.bytes_used);
}

static uint64_t resident_bytes(void) {
    unsigned long pages_total = 0, pages_resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) {
        return 0;
    }
    int fields = fscanf(file, "%lu %lu", &pages_total, &pages_resident);
    fclose(file);
    return fields == 2 ? (uint64_t)pages_resident * 4096 : 0;
}

// Of the times that say something about the controller.
static uint64_t scaled(const struct link *link, uint64_t us) {
    double scale = link->options->timer_scale;
    return scale > 0 ? (uint64_t)((double)us * scale) : us;
}

// Until the next hello or heartbeat: often where a stalled step has to be noticed.
static uint64_t interval_us(const struct link *link, uint64_t now_us) {
    if (!link->joined || link->orphan) {
        return link->hello_us;
    }
    return now_us - link->plan_us < BUSY_US ? HEARTBEAT_US : HEARTBEAT_IDLE_US;
}

static enum status send_hello(struct link *link) {
    struct control_message message = {
        .kind = MESSAGE_KIND_HELLO,
        .address = {.group = link->options->group, .epoch = link->epoch},
        .hello =
            {
                .worker_id = link->options->worker_id,
                .build = VERSION_BUILD,
                .device = link->options->device,
                .model_name = link->options->model_name,
                .model_digest = link->options->model_digest,
                .config_digest = link->options->config_digest,
                .pid = (uint32_t)getpid(),
                .group = link->options->group,
                .rank = link->options->rank,
                .world = link->options->world,
            },
    };
    return send_control(link, &message);
}

static enum status send_heartbeat(struct link *link) {
    struct control_message message = {
        .kind = MESSAGE_KIND_HEARTBEAT,
        .address = {.group = link->options->group, .epoch = link->epoch},
        .heartbeat =
            {
                .applied_seq = link->options->progress->applied_seq,
                .completed_seq = link->options->progress->completed_seq,
                .resident_bytes = resident_bytes(),
                .allocations_after_seal = memory_guard_violations(),
            },
    };
    return send_control(link, &message);
}

// Best effort: a controller that misses it notices the silence.
static void send_goodbye(struct link *link, const char *why) {
    struct control_message message = {
        .kind = MESSAGE_KIND_GOODBYE,
        .address = {.group = link->options->group, .epoch = link->epoch},
        .text = {.code = 0, .text = why},
    };
    enum status status = send_control(link, &message);
    (void)status;
}

static void say_something(struct link *link, uint64_t now_us) {
    if (now_us - link->sent_us < interval_us(link, now_us)) {
        return;
    }
    bool hello = !link->joined || link->orphan;
    link->sent_us = now_us;
    // A full or absent channel loses a hello or a heartbeat; the next one follows soon.
    enum status status = hello ? send_hello(link) : send_heartbeat(link);
    uint64_t later_us = status == STATUS_BUSY ? 2 * link->hello_us : HELLO_US;
    link->hello_us = later_us < HELLO_US ? later_us : HELLO_US;
}

static void keep_report(struct link *link, size_t bytes) {
    memcpy(link->report, link->frame, bytes);
    link->report_bytes = bytes;
    link->report_epoch = link->epoch;
    link->report_us = clock_monotonic_us();
}

// The controller waits for a report that was sent: without it the group never begins.
static void report_again(struct link *link, uint64_t epoch) {
    uint64_t now_us = clock_monotonic_us();
    if (link->report_bytes == 0 || link->report_epoch != epoch || link->epoch != epoch ||
        now_us - link->report_us < REPORT_AGAIN_US) {
        return;
    }
    enum status status = transport_send(link->plan, NULL, link->report, link->report_bytes);
    log_warn("link", "the controller has not had the capacity report, sent again epoch=%llu %s",
             (unsigned long long)epoch, status_name(status));
    link->report_us = now_us;
}

// ---- from the controller -----------------------------------------------------------------------

// Whatever of these epochs waits for other ranks, or to be launched, ends.
static void end_epochs(struct link *link, uint64_t last) {
    launch_gate_end_epoch(link->options->gate, last);
    if (link->options->collective != NULL) {
        collective_abort(link->options->collective, last);
    }
}

static void hear(struct link *link) {
    link->heard_us = clock_monotonic_us();
    link->released = false;
    if (link->orphan) {
        log_info("link", "the controller is back");
        link->orphan = false;
        link->sent_us = 0;
        launch_gate_set(link->options->gate, false);
    }
}

// Only the largest epoch counts, for good. It is known only once the step thread has it: until
// then hellos ask for another welcome.
static enum status take_welcome(struct link *link, const struct message_welcome *welcome,
                                struct error *err) {
    const struct controller_link_options *o = link->options;
    if (welcome->epoch <= link->epoch) {
        return STATUS_OK;
    }
    if (welcome->group != o->group || welcome->rank != o->rank || welcome->world != o->world) {
        return error_set(err, STATUS_INVALID,
                         "welcomed as rank %u of %u in group %u, being rank %u of %u in group %u",
                         welcome->rank, welcome->world, welcome->group, o->rank, o->world,
                         o->group);
    }
    struct link_welcome frame = {.epoch = welcome->epoch};
    size_t id_bytes = strlen(welcome->comm_id);
    if (o->world > 1 && id_bytes != sizeof frame.comm_id - 1) {
        return error_set(err, STATUS_INVALID, "a welcome whose communicator id has %zu digits",
                         id_bytes);
    }
    if (o->world > 1) {
        memcpy(frame.comm_id, welcome->comm_id, id_bytes);
    }
    end_epochs(link, welcome->epoch - 1);
    TRY(frame_queue_put(o->to_step, LINK_FRAME_WELCOME, &frame, sizeof frame));
    link->epoch = welcome->epoch;
    link->joined = true;
    link->sent_us = 0;    // a heartbeat says at once that the welcome was taken
    link->lease_us =
        welcome->lease_ms > 0 ? (uint64_t)welcome->lease_ms * 1000 : scaled(link, LINK_LEASE_US);
    log_info("link", "welcomed epoch=%llu", (unsigned long long)link->epoch);
    return STATUS_OK;
}

static enum status handle_control(struct link *link, struct error *err) {
    struct message_header header;
    const uint8_t *body = NULL;
    struct control_message message;
    arena_reset(&link->arena);
    TRY(codec_header_decode(link->in.data, link->in.bytes_used, &header, &body, err));
    TRY(codec_control_decode(&header, body, &link->arena, &message, err));
    hear(link);
    switch (message.kind) {
    case MESSAGE_KIND_WELCOME:
        return take_welcome(link, &message.welcome, err);
    case MESSAGE_KIND_ABORT:
        if (message.abort.epoch <= link->epoch) {
            char why[LOG_VALUE_BYTES];
            log_warn("link", "epoch aborted epoch=%llu because=\"%s\"",
                     (unsigned long long)message.abort.epoch, log_value(message.abort.reason, why));
            end_epochs(link, message.abort.epoch);
        }
        return STATUS_OK;
    case MESSAGE_KIND_REFUSED:
        return error_set(err, STATUS_VERSION, "the controller refuses this worker: %.200s",
                         message.text.text);
    case MESSAGE_KIND_SHUTDOWN:
        link->leaving = true;
        return STATUS_OK;
    case MESSAGE_KIND_HEARTBEAT:
        if (message.heartbeat.report_awaited) {
            report_again(link, header.epoch);
        }
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

// The next message. False when none is left, which is what the descriptor's edge is owed before
// anybody sleeps on it; a message that was skipped is none to handle, but others may follow it.
static bool take(struct transport *channel, struct buf *in, enum status *status) {
    *status = transport_receive(channel, in, NULL);
    return *status != STATUS_BUSY && *status != STATUS_IO;
}

// At most RECEIVE_MAX messages, so that heartbeats and results go on under a flood. `*left` is set
// when the limit ended the pass. What can be wrong with one message ends that message, not the
// worker.
static enum status drain_control(struct link *link, bool *left, struct error *err) {
    enum status status;
    for (int i = 0; i < RECEIVE_MAX; i++) {
        if (!take(link->control, &link->in, &status)) {
            return STATUS_OK;
        }
        struct error problem = {0};
        if (status == STATUS_OK) {
            status = handle_control(link, &problem);
        }
        if (status == STATUS_VERSION) {
            *err = problem;
            return status;
        }
        if (status != STATUS_OK) {
            char why[LOG_VALUE_BYTES];
            log_warn("link", "a message was dropped because=\"%s\"",
                     problem.message[0] == '\0' ? status_text(status)
                                                : log_value(problem.message, why));
        }
    }
    *left = true;
    return STATUS_OK;
}

static void drain_plans(struct link *link, bool *left) {
    enum status status;
    for (int i = 0; i < RECEIVE_MAX; i++) {
        if (!take(link->plan, &link->in, &status)) {
            return;
        }
        if (status == STATUS_OK) {
            hear(link);
            link->plan_us = link->heard_us;
            status = frame_queue_put(link->options->to_step, LINK_FRAME_PLAN, link->in.data,
                                     link->in.bytes_used);
        }
        if (status != STATUS_OK) {
            log_warn("link", "a plan was dropped because=%s", status_name(status));
        }
    }
    *left = true;
}

// ---- from the step thread ----------------------------------------------------------------------

// The step thread's last words, a GOODBYE message in link->frame, must not be lost only because the
// start failed before the link stood: the controller would wait for a worker that never comes. It
// listens to a goodbye only from a worker it knows, so a hello goes first when none was answered.
static void say_farewell(struct link *link, size_t byte_count) {
    uint64_t begin_us = clock_monotonic_us();
    bool known = link->joined;
    enum status status = STATUS_BUSY;
    while (status == STATUS_BUSY && *link->options->stop == 0 &&
           clock_monotonic_us() - begin_us < FAREWELL_US) {
        if (!known) {
            known = send_hello(link) == STATUS_OK;
        }
        if (known) {
            status = transport_send(link->control, NULL, link->frame, byte_count);
        }
        if (status == STATUS_BUSY) {
            poll(NULL, 0, FAREWELL_STEP_MS);
        }
    }
    if (status != STATUS_OK) {
        log_warn("link", "the controller was not told why the start failed because=%s",
                 status_name(status));
    }
}

static enum status next_frame(struct link *link, uint32_t *kind, size_t *bytes) {
    if (link->held == 0) {
        return frame_queue_take(link->options->from_step, kind, link->frame, bytes);
    }
    *kind = link->held;
    *bytes = link->held_bytes;
    link->held = 0;
    return STATUS_OK;
}

// A capacity report or a result that got lost would be waited for without end, so a channel without
// room, or one that does not stand yet, holds up whatever follows.
static void drain_step(struct link *link) {
    uint32_t kind = 0;
    size_t bytes = 0;
    enum status status;
    while ((status = next_frame(link, &kind, &bytes)) == STATUS_OK) {
        if (kind == LINK_FRAME_FAILED) {
            say_farewell(link, bytes);
            link->bid_farewell = true;
            link->leaving = true;
            return;
        }
        struct transport *channel = kind == LINK_FRAME_PROGRESS ? link->control : link->plan;
        enum status sent = transport_send(channel, NULL, link->frame, bytes);
        if (sent == STATUS_OK && kind == LINK_FRAME_CAPACITY) {
            keep_report(link, bytes);
        }
        if (sent == STATUS_OK || kind == LINK_FRAME_PROGRESS) {
            link->moved_us = clock_monotonic_us();
            continue;
        }
        if (sent == STATUS_BUSY) {
            link->held = kind;
            link->held_bytes = bytes;
            return;
        }
        log_warn("link", "a message to the controller was lost because=%s", status_name(sent));
    }
    if (status == STATUS_SHUTDOWN) {
        link->leaving = true;
    }
}

// ---- the loop ----------------------------------------------------------------------------------

// The whole process stood still, or had no core: what did not come meanwhile says nothing.
static bool is_late(const struct link *link, uint64_t now_us) {
    uint64_t lag_us = scaled(link, LAG_US);
    return now_us > link->due_us + (lag_us > LAG_US ? lag_us : LAG_US);
}

// Says to the parent that this loop turns, once a start is over.
static void count_turn(const struct link *link, uint64_t now_us) {
    struct holder_watch *watch = link->options->watch;
    if (watch == NULL || !link->options->progress->started) {
        return;
    }
    bool busy = now_us - link->plan_us < BUSY_US;
    watch->patience_us = scaled(link, busy ? HOLDER_PATIENCE_US : HOLDER_PATIENCE_IDLE_US);
    watch->turns++;
}

static enum status mind_step_thread(struct link *link, uint64_t now_us, struct error *err) {
    const struct link_progress *progress = link->options->progress;
    // By how much we were late does not count.
    uint64_t end_us = is_late(link, now_us) ? link->due_us : now_us;
    uint64_t elapsed_us = end_us > link->turn_us ? end_us - link->turn_us : 0;
    link->turn_us = now_us;
    if (!link->joined || !progress->started || progress->epoch >= link->epoch) {
        link->untaken_us = 0;
        return STATUS_OK;
    }
    link->untaken_us += elapsed_us;
    if (link->untaken_us <= scaled(link, LINK_STEP_HANGS_US)) {
        return STATUS_OK;
    }
    return error_set(err, STATUS_TIMEOUT,
                     "the step thread hangs in epoch %llu: it did not come to epoch %llu within "
                     "%llu ms",
                     (unsigned long long)progress->epoch, (unsigned long long)link->epoch,
                     (unsigned long long)link->untaken_us / 1000);
}

// The controller is heard, and its plan channel takes nothing: another process dials anew. The time
// of a controller that is away, or of our own standstill, does not count.
static enum status mind_channel(struct link *link, uint64_t now_us, struct error *err) {
    if (link->held == 0 || link->orphan || is_late(link, now_us)) {
        link->moved_us = now_us;
        return STATUS_OK;
    }
    if (now_us - link->moved_us <= scaled(link, HELD_MAX_US)) {
        return STATUS_OK;
    }
    return error_set(err, STATUS_TIMEOUT, "the plan channel has taken nothing for %llu ms",
                     (unsigned long long)(now_us - link->moved_us) / 1000);
}

// A controller that never spoke is not there. One that fell silent is stopped, busy or being
// restarted, and a worker that left would take its weights along.
static enum status mind_silence(struct link *link, uint64_t now_us, struct error *err) {
    if (is_late(link, now_us)) {
        link->heard_us = now_us;
    }
    uint64_t silent_us = now_us - link->heard_us;
    if (!link->joined) {
        uint64_t limit_us =
            link->options->silence_us > 0 ? link->options->silence_us : scaled(link, SILENCE_US);
        if (silent_us <= limit_us) {
            return STATUS_OK;
        }
        error_hint(err, "start tare-controller, or name its run directory with --controller");
        return error_set(err, STATUS_PEER_LOST, "no word from the controller for %llu s",
                         (unsigned long long)limit_us / 1000000);
    }
    if (silent_us > link->lease_us && !link->orphan) {
        log_warn("link", "no word from the controller for %.1f s: no further step begins",
                 (double)silent_us / 1e6);
        link->orphan = true;
        link->sent_us = 0;
        launch_gate_set(link->options->gate, true);
    }
    if (silent_us > scaled(link, LINK_ORPHAN_KEEP_US) && !link->released) {
        // No plan may count on what it held. Tried again with the next turn where the queue is
        // full.
        end_epochs(link, link->epoch);
        link->released =
            frame_queue_put(link->options->to_step, LINK_FRAME_RELEASE_KV, "", 0) == STATUS_OK;
    }
    if (silent_us > scaled(link, LINK_ORPHAN_EXIT_US)) {
        return error_set(err, STATUS_PEER_LOST, "no controller came back for %llu s",
                         (unsigned long long)silent_us / 1000000);
    }
    return STATUS_OK;
}

// Until something is to be said, or a silent controller's lease ends. A welcome taken since
// `now_us` is answered at once.
static int sleep_ms(const struct link *link, uint64_t now_us) {
    uint64_t said_us = now_us - link->sent_us;
    uint64_t pause_us = interval_us(link, now_us);
    uint64_t sleep_us = pause_us > said_us ? pause_us - said_us : 0;
    uint64_t silent_us = now_us - link->heard_us;
    if (link->joined && !link->orphan && link->lease_us > silent_us &&
        link->lease_us - silent_us < sleep_us) {
        sleep_us = link->lease_us - silent_us + 1000;
    }
    return (int)((sleep_us + 999) / 1000);
}

static enum status loop(struct link *link, struct error *err) {
    link->heard_us = clock_monotonic_us();
    link->due_us = link->heard_us;
    link->turn_us = link->heard_us;
    while (!link->leaving) {
        // First what has come: after a long stop of this process silence would be imagined.
        bool left = false;
        TRY(drain_control(link, &left, err));
        drain_plans(link, &left);
        drain_step(link);
        if (link->leaving) {
            break;    // whatever followed a farewell would make the controller welcome us again
        }
        uint64_t now_us = clock_monotonic_us();
        TRY(mind_silence(link, now_us, err));
        TRY(mind_step_thread(link, now_us, err));
        TRY(mind_channel(link, now_us, err));
        count_turn(link, now_us);
        say_something(link, now_us);
        if (*link->options->stop != 0) {
            break;
        }
        struct pollfd wait[3] = {
            {.fd = transport_fd(link->plan), .events = POLLIN},
            {.fd = transport_fd(link->control), .events = POLLIN},
            {.fd = frame_queue_fd(link->options->from_step), .events = POLLIN},
        };
        // Descriptors of the channels are edge-triggered, and sending eats edges: look again before
        // sleeping, and do not sleep while anything is left.
        left = false;
        TRY(drain_control(link, &left, err));
        drain_plans(link, &left);
        int wait_ms = sleep_ms(link, now_us);
        if (link->held != 0) {
            wait[2].fd = -1;    // more frames are no reason to wake
            wait_ms = HELD_MS;
        }
        wait_ms = left || link->leaving ? 0 : wait_ms;
        link->due_us = clock_monotonic_us() + (uint64_t)wait_ms * 1000;
        poll(wait, 3, wait_ms);
    }
    return STATUS_SHUTDOWN;
}

enum status controller_link_run(const struct controller_link_options *options, struct error *err) {
    struct link link = {.options = options, .epoch = options->epoch, .hello_us = HELLO_FIRST_US};
    transport_identity(options->worker_id, link.identity);
    arena_init(&link.arena, 4 * (size_t)BOUND_PLAN_BYTES);
    buf_init(&link.out, BOUND_CONTROL_BYTES + MESSAGE_HEADER_BYTES);
    buf_init(&link.in, BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    link.frame = memory_alloc(BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    link.report = memory_alloc(BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES);
    enum status status = link.frame == NULL || link.report == NULL
                             ? error_set(err, STATUS_EXHAUSTED, "no memory for a link")
                             : STATUS_OK;
    if (status == STATUS_OK) {
        status = load_keys(&link, err);
    }
    if (status == STATUS_OK) {
        status = open_channel(&link, TRANSPORT_CHANNEL_PLAN, QUEUE_PLAN, 0,
                              BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES, &link.plan, err);
    }
    if (status == STATUS_OK) {
        status = open_channel(&link, TRANSPORT_CHANNEL_CONTROL, QUEUE_CONTROL, LINGER_MS,
                              BOUND_CONTROL_BYTES + MESSAGE_HEADER_BYTES, &link.control, err);
    }
    if (status == STATUS_OK) {
        status = loop(&link, err);
        if (options->watch != NULL) {
            options->watch->patience_us = 0;
        }
        if (status == STATUS_TIMEOUT) {
            send_goodbye(&link, link.held != 0 ? "its plan channel stands still"
                                               : "its step thread hangs");
        } else if (status == STATUS_SHUTDOWN && !link.bid_farewell) {
            send_goodbye(&link, "leaving");
        }
        if (status == STATUS_PEER_LOST) {
            explain_silence(&link, err);
        }
    }
    explicit_bzero(&link.keys, sizeof link.keys);
    transport_close(link.plan);
    transport_close(link.control);
    memory_free(link.frame);
    memory_free(link.report);
    buf_deinit(&link.in);
    buf_deinit(&link.out);
    arena_deinit(&link.arena);
    return status;
}
