// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_STATS_H
#define CONTROLLER_STATS_H

#include "common/buf.h"
#include "common/metrics.h"
#include "common/status.h"
#include "controller/core/core.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// The controller's metrics: every name that /metrics shows, in one place.
//
// The idea: what the core already counts is copied when somebody scrapes; what only the shell sees
// (times between arrivals, deliveries and steps) is observed as it happens, at the price of a
// binary search. The same observations also feed a block under vLLM's names, because routers,
// autoscalers and dashboards look for those strings; it can be turned off.
//
//   Owns       the registry.
//   Thread     the loop thread.
//   Allocates  in create, and when a scrape first sees a ledger line or the KV cache's shape.
//   Fails      create: EXHAUSTED.

struct stats;

struct stats_config {
    const char *model;    // first served name
    const char *version;
    const char *commit;
    const char *model_digest;    // "" when unknown
    bool compat;                 // the vllm:* block
};

enum status stats_create(const struct stats_config *config, struct stats **out,
                         struct error *err) MUST_USE;
void stats_destroy(struct stats *stats);

// ---- observations ------------------------------------------------------------------------------

void stats_ttft(struct stats *stats, enum request_class class_, uint64_t us);
// Time between two deliveries of one sequence.
void stats_itl(struct stats *stats, enum request_class class_, uint64_t us);
void stats_queue(struct stats *stats, enum request_class class_, uint64_t us);
void stats_prefill(struct stats *stats, enum request_class class_, uint64_t us);

void stats_recovered(struct stats *stats, enum epoch_end why, uint64_t us);    // a group is back
const char *stats_epoch_end_name(enum epoch_end why);    // as logs and labels have it

// One sequence has ended with at least one token.
struct stats_sequence {
    enum request_class class_;
    uint32_t prompt_tokens, output_tokens;
    uint64_t ttft_us, e2e_us;
};
void stats_sequence_done(struct stats *stats, const struct stats_sequence *sequence);
void stats_over_quota(struct stats *stats, enum request_class class_);    // a refused request
void stats_response(struct stats *stats, int http_status);    // one HTTP answer, streams included

// A plan went out: its kind is remembered by group and seq until its result comes.
void stats_plan_sent(struct stats *stats, const struct plan *plan, uint64_t plan_bytes);
void stats_step_done(struct stats *stats, const struct step_result *result);

enum stats_phase {
    STATS_PHASE_INGEST,    // results and requests into inputs
    STATS_PHASE_TICK,      // core_tick
    STATS_PHASE_SEND,      // plans and events out
    STATS_PHASE_TOTAL,
    STATS_PHASE_COUNT,
};
void stats_turn(struct stats *stats, enum stats_phase phase, uint64_t us);
void stats_ingress_paused(struct stats *stats);
void stats_loop_lag(struct stats *stats, uint64_t us);    // how late a timer fired

// ---- scrape ------------------------------------------------------------------------------------

enum link_refusal {
    LINK_REFUSAL_HELLO,        // it said something that does not fit, or takes another's place
    LINK_REFUSAL_KEY,          // its key is not on the list
    LINK_REFUSAL_HANDSHAKE,    // it never got so far
    LINK_REFUSAL_COUNT,
};

struct stats_view {
    const struct core_counters *counters;
    const struct core_gauges *gauges;
    const struct message_capacity *capacity;      // NULL while no worker is ready
    const struct message_heartbeat *heartbeat;    // last one; NULL before the first
    uint64_t heartbeat_age_us;
    uint64_t epoch;
    uint64_t worker_refusals[LINK_REFUSAL_COUNT];
    uint32_t connections;    // open client connections
    uint64_t requests_deferred, slow_turns;
    uint64_t journal_bytes, journal_refused, streams_resumed;
    uint32_t journal_entries;
    bool journal_failed;
};
void stats_print(struct stats *stats, const struct stats_view *view, enum metric_format format,
                 struct buf *out);

#endif
