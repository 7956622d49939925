// SPDX-License-Identifier: Apache-2.0
// What people and scrapers ask of the controller: metrics, status, resizes, signals.
#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "controller/controller_internal.h"
#include "controller/http/http_server.h"
#include "controller/net/worker_link.h"
#include "controller/resume.h"
#include "controller/stats.h"
#include "controller/status_json.h"
#include <stdio.h>
#include <string.h>

enum { ADMIN_CONNECTIONS_MAX = 16 };

// ---- metrics and status ------------------------------------------------------------------------

// What scrapes and operators see of the core and the link, at one moment.
struct snapshot {
    struct core_gauges gauges;
    struct message_heartbeat heartbeat;
    struct stats_view view;    // points into this struct
};

static void take_snapshot(struct controller *c, struct snapshot *out) {
    uint64_t now_us = clock_monotonic_us();
    core_gauges(c->core, now_us, &out->gauges);
    struct worker_link_counters link;
    worker_link_count(c->link, now_us, &link);
    out->heartbeat = (struct message_heartbeat){
        .resident_bytes = link.resident_bytes,
        .allocations_after_seal = link.allocations_after_seal,
    };
    out->view = (struct stats_view){
        .counters = core_counters(c->core),
        .gauges = &out->gauges,
        .capacity = core_capacity(c->core),
        .heartbeat = &out->heartbeat,
        .heartbeat_age_us = link.heard_age_us,
        .epoch = link.epoch,
        .worker_refusals = {[LINK_REFUSAL_HELLO] = link.refused,
                            [LINK_REFUSAL_KEY] = link.strangers,
                            [LINK_REFUSAL_HANDSHAKE] = link.handshakes_refused},
        .connections = http_server_counters(c->server)->open,
        .requests_deferred = http_server_counters(c->server)->deferred,
        .slow_turns = c->turns.slow,
    };
    resume_count(c->resume, c->api, &out->view);
}

void controller_operator_metrics(void *ctx, enum metric_format format, struct buf *out) {
    struct controller *c = ctx;
    struct snapshot snapshot;
    take_snapshot(c, &snapshot);
    stats_print(c->stats, &snapshot.view, format, out);
}

static const char *state_name(const struct controller *c, const struct core_gauges *gauges) {
    if (gauges->draining) {
        return "draining";
    }
    if (gauges->ready) {
        return "ready";
    }
    return c->announced ? "recovering" : "loading";
}

static bool is_doubted(void *ctx, uint32_t group) {
    const struct controller *c = ctx;
    struct core_gauges gauges;
    core_group_gauges(c->core, group, clock_monotonic_us(), &gauges);
    return gauges.doubted;
}

static void describe_worker(void *ctx, uint32_t group, uint32_t rank, struct status_worker *out) {
    struct controller *c = ctx;
    struct worker_link_member member;
    worker_link_member(c->link, group, rank, clock_monotonic_us(), &member);
    *out = (struct status_worker){
        .name = member.name,
        .state = member.state,
        .device = member.device,
        .key = member.user,
        .pid = member.pid,
        .epoch = member.epoch,
        .heartbeat_age_us = member.heard_age_us,
        .applied_seq = member.applied_seq,
        .completed_seq = member.completed_seq,
        .resident_bytes = member.resident_bytes,
        .kv_blocks = member.kv_blocks,
    };
}

static void on_status(void *ctx, struct buf *out) {
    struct controller *c = ctx;
    struct snapshot snapshot;
    take_snapshot(c, &snapshot);
    char address[PATH_BYTES + 32];
    const char *uds = config_string(c->config, OPTION_UDS);
    if (uds != NULL) {
        snprintf(address, sizeof address, "unix:%s", uds);
    } else {
        snprintf(address, sizeof address, "http://%.1000s:%u",
                 config_string(c->config, OPTION_HOST), http_server_port(c->server));
    }
    struct status_view view = {
        .model = c->names[0],
        .address = address,
        .state = state_name(c, &snapshot.gauges),
        .uptime_us = clock_monotonic_us() - c->start_us,
        .now_unix_ms = clock_unix_ms(),
        .stats = &snapshot.view,
        .groups = c->groups,
        .world = (uint32_t)config_int(c->config, OPTION_TENSOR_PARALLEL_SIZE),
        .ctx = c,
        .worker = describe_worker,
        .doubted = is_doubted,
    };
    status_json(&view, out);
}

// ---- the KV pool's size ------------------------------------------------------------------------

static uint64_t block_bytes(const struct controller *c) {
    const struct message_capacity *capacity = core_capacity(c->core);
    return capacity == NULL ? 0 : capacity->kv_bytes_per_token * capacity->block_tokens;
}

static enum status group_asked(const struct controller *c, const char *name, uint32_t *out,
                               struct error *err) {
    char own[16];
    for (uint32_t g = 0; g < c->groups; g++) {
        snprintf(own, sizeof own, "%u", g);
        if (strcmp(name, own) == 0) {
            *out = g;
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_NOT_FOUND, "there is no group '%.64s'; `tare status` names them",
                     name);
}

// Blocks that the group's pool is to have. Bytes are a limit: what they hold, in whole blocks.
static enum status blocks_asked(const struct controller *c, const struct admin_resize *ask,
                                uint32_t group, uint32_t *out, struct error *err) {
    struct core_gauges gauges;
    core_group_gauges(c->core, group, clock_monotonic_us(), &gauges);
    int64_t unit = ask->bytes ? (int64_t)block_bytes(c) : 1;
    if (unit == 0) {
        return error_set(err, STATUS_BUSY, "no worker has told its blocks yet");
    }
    const int64_t most = (int64_t)BOUND_BLOCKS * unit;
    if (ask->amount > most || ask->amount < -most) {
        return error_set(err, STATUS_INVALID, "%lld %s are more than a pool can have",
                         (long long)ask->amount, ask->bytes ? "bytes" : "blocks");
    }
    int64_t wanted = ask->amount + (ask->relative ? gauges.kv_blocks_total * unit : 0);
    int64_t blocks = wanted / unit;
    if (wanted < unit || blocks > (int64_t)BOUND_BLOCKS) {
        return error_set(err, STATUS_INVALID,
                         "the pool has %u blocks of %llu bytes; it can have 1 to %u blocks",
                         gauges.kv_blocks_total, (unsigned long long)block_bytes(c), BOUND_BLOCKS);
    }
    *out = (uint32_t)blocks;
    return STATUS_OK;
}

static enum status on_resize_kv(void *ctx, const struct admin_resize *ask, struct error *err) {
    struct controller *c = ctx;
    uint32_t group = 0;
    uint32_t blocks = 0;
    TRY(group_asked(c, ask->group, &group, err));
    TRY(blocks_asked(c, ask, group, &blocks, err));
    char why[LOG_VALUE_BYTES];
    log_info("controller", "kv resize asked operation=%llu group=%u blocks=%u because=\"%s\"",
             (unsigned long long)ask->operation, group, blocks, log_value(ask->reason, why));
    struct core_input input = {.kind = CORE_INPUT_RESIZE_KV,
                               .resize = {ask->operation, blocks, group}};
    controller_enqueue(c, &input);
    controller_tick(c);
    controller_follow_pool(c);
    return STATUS_OK;
}

void controller_operator_resized(struct controller *c, const struct core_action *action) {
    bool nothing = action->resized.after == action->resized.before;
    const char *part = nothing ? "refused" : "partial";
    const struct {
        const char *state, *reason;
    } texts[] = {
        [RESIZE_OUTCOME_DONE] = {"done", ""},
        [RESIZE_OUTCOME_ROUNDED] = {nothing ? "refused" : "done",
                                    "memory comes and goes in whole chunks"},
        [RESIZE_OUTCOME_NEEDED] = {part,
                                   "requests that were accepted need the rest: try again when "
                                   "they have finished"},
        [RESIZE_OUTCOME_SHORT] = {part, action->resized.note},
        [RESIZE_OUTCOME_BUSY] = {"refused", "another resize is under way"},
        [RESIZE_OUTCOME_UNAVAILABLE] = {"unavailable", "no worker is ready"},
        [RESIZE_OUTCOME_LOST] = {"unavailable",
                                 "the worker was lost on the way; its next start tells its size"},
    };
    const char *reason = texts[action->resized.outcome].reason;
    struct admin_outcome outcome = {
        .operation = action->resized.operation,
        .state = texts[action->resized.outcome].state,
        .blocks_asked = action->resized.asked,
        .blocks_before = action->resized.before,
        .blocks_after = action->resized.after,
        .block_bytes = block_bytes(c),
        .reason = reason == NULL ? "" : reason,
    };
    char why[LOG_VALUE_BYTES];
    log_info("controller",
             "kv resize ended operation=%llu state=%s asked=%u before=%u after=%u reason=\"%s\"",
             (unsigned long long)outcome.operation, outcome.state, outcome.blocks_asked,
             outcome.blocks_before, outcome.blocks_after, log_value(outcome.reason, why));
    admin_resized(c->admin, &outcome);
}

// ---- the admin socket --------------------------------------------------------------------------

// Operators reach us through the run directory, which only we may enter.
enum status controller_operator_open(struct controller *c, struct uv_loop_s *loop,
                                     struct error *err) {
    struct admin_config admin = {c, on_status, on_resize_kv};
    TRY(admin_create(&admin, &c->admin, err));
    struct http_server_config config;
    http_server_defaults(&config);
    config.handler = admin_handler(c->admin);
    config.connections_max = ADMIN_CONNECTIONS_MAX;
    TRY(http_server_create(loop, &config, &c->admin_server, err));
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/admin.sock", c->run_dir);
    return http_server_listen_unix(c->admin_server, path, err);
}

// ---- signals -----------------------------------------------------------------------------------

void controller_reload(struct controller *c) {
    struct error err = {0};
    if (keys_load(c->config, &c->keys, &err) != STATUS_OK) {
        char why[LOG_VALUE_BYTES];
        log_error("controller", "API keys stay as they were because=\"%s\"",
                  log_value(err.message, why));
        return;
    }
    api_set_keys(c->api, c->keys.keys, c->keys.count);
    log_info("controller", "API keys read again count=%u", c->keys.count);
}

static void take_stop(struct controller *c, enum core_input_kind kind) {
    struct core_input input = {.kind = kind};
    controller_enqueue(c, &input);
    controller_tick(c);
    (void)controller_turn(c);    // the loop goes on
}

void controller_drain(struct controller *c) {
    if (c->draining) {
        return;
    }
    c->draining = true;
    int64_t seconds = config_int(c->config, OPTION_SHUTDOWN_TIMEOUT);
    log_info("controller", "draining deadline_s=%lld", (long long)seconds);
    api_set_draining(c->api);
    c->deadline_us = clock_monotonic_us() + (uint64_t)seconds * 1000000 + 1;
    take_stop(c, CORE_INPUT_DRAIN);
}

void controller_end(struct controller *c) {
    controller_drain(c);
    take_stop(c, CORE_INPUT_ABORT_ALL);
}
