// SPDX-License-Identifier: Apache-2.0
#include "controller/stats.h"

#include "common/bounds.h"
#include "common/memory.h"
#include "controller/stats_internal.h"
#include <string.h>

// ---- bucket edges ------------------------------------------------------------------------------

static const double ttft_edges[] = {.02, .05, .1, .2, .35, .5, .75, 1,  1.5,
                                    2,   3,   5,  8,  13,  20, 35,  60, 120};
static const double recovery_edges[] = {.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60, 120};
static const double itl_edges[] = {.004, .006, .008, .01, .0125, .015, .02, .025, .03,
                                   .04,  .05,  .075, .1,  .15,   .25,  .5,  1,    2.5};
static const double e2e_edges[] = {.1,   .18,  .324, .583, 1.05, 1.89, 3.4, 6.12, 11,
                                   19.8, 35.7, 64.3, 116,  208,  375,  675, 1215, 1800};
static const double token_edges[] = {16,    32,     64,     128,    256,    512,
                                     1024,  2048,   4096,   8192,   16384,  32768,
                                     65536, 131072, 262144, 524288, 1048576};
static const double step_edges[] = {.002, .003, .005, .008, .0125, .02, .03,  .05,
                                    .08,  .125, .2,   .3,   .5,    .8,  1.25, 2};
static const double row_edges[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
static const double turn_edges[] = {2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                    2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2};
static const double lag_edges[] = {1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, .1, .2, .5, 1};

// ---- label values ------------------------------------------------------------------------------

static const char *const class_names[REQUEST_CLASS_COUNT] = {"realtime", "standard", "batch"};
static const char *const outcome_names[FINISH_REASON_COUNT] = {
    [FINISH_REASON_STOP] = "stop",
    [FINISH_REASON_LENGTH] = "length",
    [FINISH_REASON_CANCELLED] = "client_abort",
    [FINISH_REASON_FAULT] = "fault",
    [FINISH_REASON_SHUTDOWN] = "deadline",
    [FINISH_REASON_REFUSED] = "refused",
};
static const char *const reject_names[REJECT_REASON_COUNT] = {
    [REJECT_REASON_TOO_LARGE] = "too_large",       [REJECT_REASON_QUEUE_FULL] = "queue_requests",
    [REJECT_REASON_QUEUE_TOKENS] = "queue_tokens", [REJECT_REASON_WOULD_MISS] = "would_miss",
    [REJECT_REASON_MISSED] = "missed_in_queue",    [REJECT_REASON_DRAINING] = "draining",
    [REJECT_REASON_UNAVAILABLE] = "unavailable",
};

enum nack { NACK_REFUSED, NACK_STATE, NACK_COUNT };
static const char *const nack_names[NACK_COUNT] = {"refused", "state"};

static const char *const epoch_end_names[EPOCH_END_COUNT] = {
    [EPOCH_END_LOST] = "lost",     [EPOCH_END_LATE] = "late",         [EPOCH_END_STATE] = "state",
    [EPOCH_END_BROKEN] = "broken", [EPOCH_END_DIVERGED] = "diverged",
};

enum step_kind { STEP_KIND_DECODE, STEP_KIND_MIXED, STEP_KIND_PREFILL, STEP_KIND_COUNT };
static const char *const step_names[STEP_KIND_COUNT] = {"decode", "mixed", "prefill"};

enum row_kind { ROW_KIND_DECODE, ROW_KIND_PREFILL, ROW_KIND_COUNT };
static const char *const row_names[ROW_KIND_COUNT] = {"decode", "prefill_tokens"};

enum request_state {
    REQUEST_STATE_QUEUED,
    REQUEST_STATE_PREFILLING,
    REQUEST_STATE_DECODING,
    REQUEST_STATE_COUNT
};
static const char *const state_names[REQUEST_STATE_COUNT] = {"queued", "prefilling", "decoding"};

enum token_kind {
    TOKEN_KIND_COMPUTED,
    TOKEN_KIND_CACHED,
    TOKEN_KIND_GENERATED,
    TOKEN_KIND_RECOMPUTED,
    TOKEN_KIND_COUNT
};
static const char *const token_names[TOKEN_KIND_COUNT] = {"prompt_computed", "prompt_cached",
                                                          "generated", "recomputed"};

enum block_state { BLOCK_STATE_FREE, BLOCK_STATE_HELD, BLOCK_STATE_QUARANTINE, BLOCK_STATE_COUNT };
static const char *const block_names[BLOCK_STATE_COUNT] = {"free", "held", "quarantine"};

enum response_kind {
    RESPONSE_2XX,
    RESPONSE_4XX,
    RESPONSE_429,
    RESPONSE_499,
    RESPONSE_5XX,
    RESPONSE_COUNT
};
static const char *const response_names[RESPONSE_COUNT] = {"2xx", "4xx", "429", "499", "5xx"};

static const char *const phase_names[STATS_PHASE_COUNT] = {"ingest", "tick", "send", "total"};

// ---- the table ---------------------------------------------------------------------------------

enum { MEMORY_LINES_MAX = 64, PLANS_REMEMBERED = 4 };    // of each group

static const char *const link_refusal_names[LINK_REFUSAL_COUNT] = {
    [LINK_REFUSAL_HELLO] = "hello",
    [LINK_REFUSAL_KEY] = "key",
    [LINK_REFUSAL_HANDSHAKE] = "handshake",
};

struct remembered_plan {
    uint64_t group, seq;
    enum step_kind kind;
};

struct stats {
    struct metrics *metrics;
    char *model;
    bool compat_on;
    struct metric *requests[REQUEST_CLASS_COUNT][FINISH_REASON_COUNT];
    struct metric *rejected[REQUEST_CLASS_COUNT][REJECT_REASON_COUNT];
    struct metric *over_quota[REQUEST_CLASS_COUNT];
    struct metric *states[REQUEST_STATE_COUNT];
    struct metric *queue_tokens, *queue_oldest;
    struct metric *tokens[TOKEN_KIND_COUNT];
    struct metric *ttft[REQUEST_CLASS_COUNT], *itl[REQUEST_CLASS_COUNT], *tpot[REQUEST_CLASS_COUNT];
    struct metric *e2e[REQUEST_CLASS_COUNT], *queue[REQUEST_CLASS_COUNT];
    struct metric *prefill[REQUEST_CLASS_COUNT];
    struct metric *prompt_tokens[REQUEST_CLASS_COUNT], *output_tokens[REQUEST_CLASS_COUNT];
    struct metric *step[STEP_KIND_COUNT], *rows[ROW_KIND_COUNT];
    struct metric *turn[STATS_PHASE_COUNT], *lag, *slow_turns, *ingress_pauses, *deferred;
    struct metric *epochs_ended[EPOCH_END_COUNT], *recovery[EPOCH_END_COUNT], *mismatches;
    struct metric *plans, *plan_bytes, *plan_nacks[NACK_COUNT], *results_stale;
    struct metric *blocks[BLOCK_STATE_COUNT], *blocks_capacity, *capacity_tokens, *evictions,
        *moved;
    struct metric *refusals[LINK_REFUSAL_COUNT];
    struct metric *journal_bytes, *journal_entries, *journal_refused, *journal_failed, *resumed;
    struct metric *worker_up, *heartbeat_age, *epoch, *sealed, *resident, *after_seal;
    struct metric *device_bytes, *budget_bytes, *foreign_bytes;
    struct metric *responses[RESPONSE_COUNT], *connections;
    struct metric *memory[MEMORY_LINES_MAX];
    char *memory_names[MEMORY_LINES_MAX];
    uint32_t memory_count;
    struct stats_compat compat;
    struct remembered_plan plan_ring[BOUND_GROUPS][PLANS_REMEMBERED];
};

struct metric *stats_add(struct stats_builder *builder, const struct metric_desc *desc,
                         const struct metric_label *labels, uint32_t label_count) {
    struct metric *metric = NULL;
    if (builder->status == STATUS_OK) {
        builder->status =
            metrics_add(builder->metrics, desc, labels, label_count, &metric, builder->err);
    }
    return metric;
}

// One series with the model's label and at most one more.
static struct metric *add_one(struct stats_builder *builder, const struct metric_desc *desc,
                              const char *label, const char *value) {
    const struct metric_label labels[] = {{"model", builder->model}, {label, value}};
    return stats_add(builder, desc, labels, label == NULL ? 1 : 2);
}

static void add_each(struct stats_builder *builder, const struct metric_desc *desc,
                     const char *label, const char *const *values, uint32_t value_count,
                     struct metric **out) {
    for (uint32_t i = 0; i < value_count; i++) {
        out[i] = add_one(builder, desc, label, values[i]);
    }
}

static void add_requests(struct stats *stats, struct stats_builder *builder) {
    for (uint32_t class_ = 0; class_ < REQUEST_CLASS_COUNT; class_++) {
        struct metric_label labels[] = {
            {"model", stats->model}, {"class", class_names[class_]}, {"outcome", ""}};
        for (uint32_t i = 0; i < FINISH_REASON_COUNT; i++) {
            labels[2].value = outcome_names[i];
            stats->requests[class_][i] = stats_add(
                builder, COUNTER("tare_requests_total", "Sequences that ended, by outcome."),
                labels, 3);
        }
    }
    for (uint32_t class_ = 0; class_ < REQUEST_CLASS_COUNT; class_++) {
        struct metric_label labels[] = {
            {"model", stats->model}, {"class", class_names[class_]}, {"reason", ""}};
        for (uint32_t i = 0; i < REJECT_REASON_COUNT; i++) {
            labels[2].value = reject_names[i];
            stats->rejected[class_][i] = stats_add(
                builder,
                COUNTER("tare_requests_rejected_total", "Sequences refused before they began."),
                labels, 3);
        }
        labels[2].value = "quota";
        stats->over_quota[class_] = stats_add(
            builder,
            COUNTER("tare_requests_rejected_total", "Sequences refused before they began."), labels,
            3);
    }
    add_each(builder, GAUGE("tare_requests", "Sequences by state."), "state", state_names,
             REQUEST_STATE_COUNT, stats->states);
    stats->queue_tokens = add_one(
        builder, GAUGE("tare_queue_tokens", "Prompt tokens that wait for admission."), NULL, NULL);
    stats->queue_oldest =
        add_one(builder, GAUGE("tare_queue_oldest_seconds", "Age of the oldest waiting sequence."),
                NULL, NULL);
    add_each(builder, COUNTER("tare_tokens_total", "Tokens by what was done for them."), "kind",
             token_names, TOKEN_KIND_COUNT, stats->tokens);
    add_each(builder, COUNTER("tare_http_responses_total", "HTTP answers by group of status."),
             "code", response_names, RESPONSE_COUNT, stats->responses);
    stats->connections =
        add_one(builder, GAUGE("tare_http_connections", "Open client connections."), NULL, NULL);
}

static void add_latencies(struct stats *stats, struct stats_builder *builder) {
    add_each(builder,
             HISTOGRAM("tare_ttft_seconds", "Time from arrival to the first token.", ttft_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->ttft);
    add_each(builder,
             HISTOGRAM("tare_itl_seconds", "Time between two deliveries of a sequence.", itl_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->itl);
    add_each(builder,
             HISTOGRAM("tare_tpot_seconds", "Mean time per token after the first, by sequence.",
                       itl_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->tpot);
    add_each(builder,
             HISTOGRAM("tare_e2e_seconds", "Time from arrival to the last token.", e2e_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->e2e);
    add_each(builder,
             HISTOGRAM("tare_queue_seconds", "Time from arrival to admission.", ttft_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->queue);
    add_each(
        builder,
        HISTOGRAM("tare_prefill_seconds", "Time from admission to the first token.", ttft_edges),
        "class", class_names, REQUEST_CLASS_COUNT, stats->prefill);
    add_each(builder, HISTOGRAM("tare_prompt_tokens", "Prompt tokens of a sequence.", token_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->prompt_tokens);
    add_each(builder,
             HISTOGRAM("tare_output_tokens", "Generated tokens of a sequence.", token_edges),
             "class", class_names, REQUEST_CLASS_COUNT, stats->output_tokens);
}

static void add_journal(struct stats *stats, struct stats_builder *builder) {
    stats->journal_bytes =
        add_one(builder, GAUGE("tare_journal_bytes", "Bytes of the journal."), NULL, NULL);
    stats->journal_entries = add_one(
        builder, GAUGE("tare_journal_entries", "Responses that are journalled and unfinished."),
        NULL, NULL);
    stats->journal_refused = add_one(
        builder,
        COUNTER("tare_journal_refused_total", "Responses that the journal had no room for."), NULL,
        NULL);
    stats->journal_failed =
        add_one(builder, GAUGE("tare_journal_failed", "1 after the journal could not be written."),
                NULL, NULL);
    stats->resumed = add_one(builder,
                             COUNTER("tare_streams_resumed_total",
                                     "Responses of an earlier controller that a client took over."),
                             NULL, NULL);
}

static void add_turns(struct stats *stats, struct stats_builder *builder) {
    add_each(builder, HISTOGRAM("tare_step_seconds", "Time of a step on the worker.", step_edges),
             "kind", step_names, STEP_KIND_COUNT, stats->step);
    add_each(builder, HISTOGRAM("tare_step_rows", "Rows of a step.", row_edges), "kind", row_names,
             ROW_KIND_COUNT, stats->rows);
    add_each(builder,
             HISTOGRAM("tare_controller_turn_seconds", "Time of one turn of the controller's loop.",
                       turn_edges),
             "phase", phase_names, STATS_PHASE_COUNT, stats->turn);
    stats->lag = add_one(builder,
                         HISTOGRAM("tare_controller_loop_lag_seconds",
                                   "How late the loop's timer fired.", lag_edges),
                         NULL, NULL);
    stats->slow_turns = add_one(
        builder, COUNTER("tare_controller_slow_turns_total", "Turns of the loop longer than 2 ms."),
        NULL, NULL);
    stats->ingress_pauses =
        add_one(builder,
                COUNTER("tare_ingress_pauses_total",
                        "Times that no requests were read because turns took more than 5 ms."),
                NULL, NULL);
    stats->deferred = add_one(builder,
                              COUNTER("tare_http_requests_deferred_total",
                                      "Requests that waited for the next turn of the loop."),
                              NULL, NULL);
}

static void add_plans(struct stats *stats, struct stats_builder *builder) {
    stats->plans =
        add_one(builder, COUNTER("tare_plans_total", "Step plans sent."), "form", "delta");
    stats->plan_bytes = add_one(
        builder, COUNTER("tare_plan_bytes_total", "Bytes of step plans sent."), "form", "delta");
    add_each(builder,
             COUNTER("tare_plan_nacks_total",
                     "Plans that a worker refused; work was split (refused) or its epoch began "
                     "anew (state)."),
             "kind", nack_names, NACK_COUNT, stats->plan_nacks);
    stats->results_stale =
        add_one(builder, COUNTER("tare_results_stale_total", "Results of an epoch that is over."),
                NULL, NULL);
    add_each(builder,
             COUNTER("tare_epoch_changes_total",
                     "Epochs of groups that ended: a rank lost, a step late, states that differ, "
                     "an answer that cannot be, ranks that diverged."),
             "cause", epoch_end_names, EPOCH_END_COUNT, stats->epochs_ended);
    add_each(builder,
             HISTOGRAM("tare_recovery_seconds",
                       "Time from the end of a group's epoch until it is ready again.",
                       recovery_edges),
             "cause", epoch_end_names, EPOCH_END_COUNT, stats->recovery);
    stats->mismatches = add_one(
        builder, COUNTER("tare_digest_mismatch_total", "Steps whose ranks answered differently."),
        NULL, NULL);
}

static void add_blocks(struct stats *stats, struct stats_builder *builder) {
    add_each(builder, GAUGE("tare_kv_blocks", "KV blocks by state."), "state", block_names,
             BLOCK_STATE_COUNT, stats->blocks);
    stats->blocks_capacity =
        add_one(builder, GAUGE("tare_kv_blocks_capacity", "KV blocks in all."), NULL, NULL);
    stats->capacity_tokens =
        add_one(builder, GAUGE("tare_kv_capacity_tokens", "Tokens the KV pool holds."), NULL, NULL);
    stats->moved = add_one(
        builder, COUNTER("tare_kv_blocks_moved_total", "Blocks moved while the KV pool shrank."),
        NULL, NULL);
    stats->evictions =
        add_one(builder, COUNTER("tare_kv_evictions_total", "Sequences whose KV was given up."),
                NULL, NULL);
}

static void add_workers(struct stats *stats, struct stats_builder *builder) {
    stats->worker_up = add_one(builder, GAUGE("tare_worker_up", "A worker is ready."), "rank", "0");
    stats->heartbeat_age =
        add_one(builder, GAUGE("tare_worker_heartbeat_age_seconds", "Age of the last heartbeat."),
                "rank", "0");
    add_each(builder,
             COUNTER("tare_worker_refusals_total",
                     "Workers kept out: by what they said, by a key that is not on the list, or "
                     "before that."),
             "reason", link_refusal_names, LINK_REFUSAL_COUNT, stats->refusals);
    stats->epoch =
        add_one(builder, GAUGE("tare_epoch", "The last epoch of any group."), NULL, NULL);
    stats->sealed = add_one(builder, GAUGE("tare_mem_sealed", "The worker's allocator is sealed."),
                            "rank", "0");
    stats->resident =
        add_one(builder, GAUGE("tare_worker_resident_bytes", "Resident memory of the worker."),
                "rank", "0");
    stats->device_bytes =
        add_one(builder, GAUGE("tare_mem_device_bytes", "Memory that the worker's device has."),
                "rank", "0");
    stats->budget_bytes = add_one(
        builder, GAUGE("tare_mem_budget_bytes", "Of it, what the worker may use."), "rank", "0");
    stats->foreign_bytes = add_one(
        builder,
        GAUGE("tare_mem_foreign_bytes", "Of it, what other processes held when the worker sealed."),
        "rank", "0");
    stats->after_seal = add_one(
        builder, COUNTER("tare_mem_alloc_after_seal_total", "Device allocations after the seal."),
        "rank", "0");
}

static void add_infos(struct stats_builder *builder, const struct stats_config *config) {
    const struct metric_label build[] = {{"version", config->version}, {"commit", config->commit}};
    stats_add(builder, INFO("tare_build_info", "The version that runs."), build, COUNT_OF(build));
    const struct metric_label model[] = {{"model", config->model},
                                         {"digest", config->model_digest}};
    stats_add(builder, INFO("tare_model_info", "The model that is served."), model,
              COUNT_OF(model));
}

// ---- life cycle --------------------------------------------------------------------------------

enum status stats_create(const struct stats_config *config, struct stats **out, struct error *err) {
    struct stats *stats = memory_zalloc(sizeof *stats);
    if (stats == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for statistics");
    }
    stats->compat_on = config->compat;
    stats->model = memory_strdup(config->model);
    enum status status = metrics_create(&stats->metrics, err);
    if (stats->model == NULL) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for statistics");
    }
    struct stats_builder builder = {stats->metrics, stats->model, err, status};
    if (builder.status == STATUS_OK) {
        add_infos(&builder, config);
        add_requests(stats, &builder);
        add_latencies(stats, &builder);
        add_turns(stats, &builder);
        add_plans(stats, &builder);
        add_blocks(stats, &builder);
        add_journal(stats, &builder);
        add_workers(stats, &builder);
    }
    if (builder.status == STATUS_OK && config->compat) {
        stats_compat_add(&stats->compat, &builder);
    }
    if (builder.status != STATUS_OK) {
        stats_destroy(stats);
        return builder.status;
    }
    *out = stats;
    return STATUS_OK;
}

void stats_destroy(struct stats *stats) {
    if (stats == NULL) {
        return;
    }
    for (uint32_t i = 0; i < stats->memory_count; i++) {
        memory_free(stats->memory_names[i]);
    }
    metrics_destroy(stats->metrics);
    memory_free(stats->model);
    memory_free(stats);
}

// ---- observations ------------------------------------------------------------------------------

static double seconds(uint64_t us) {
    return (double)us * 1e-6;
}

static void observe_both(struct stats *stats, struct metric *ours, struct metric *compat,
                         double value) {
    metric_observe(ours, value);
    if (stats->compat_on) {
        metric_observe(compat, value);
    }
}

void stats_ttft(struct stats *stats, enum request_class class_, uint64_t us) {
    observe_both(stats, stats->ttft[class_], stats->compat.ttft, seconds(us));
}

void stats_itl(struct stats *stats, enum request_class class_, uint64_t us) {
    observe_both(stats, stats->itl[class_], stats->compat.itl, seconds(us));
}

void stats_queue(struct stats *stats, enum request_class class_, uint64_t us) {
    observe_both(stats, stats->queue[class_], stats->compat.queue, seconds(us));
}

void stats_prefill(struct stats *stats, enum request_class class_, uint64_t us) {
    observe_both(stats, stats->prefill[class_], stats->compat.prefill, seconds(us));
}

void stats_recovered(struct stats *stats, enum epoch_end why, uint64_t us) {
    metric_observe(stats->recovery[why], seconds(us));
}

const char *stats_epoch_end_name(enum epoch_end why) {
    return epoch_end_names[why];
}

void stats_sequence_done(struct stats *stats, const struct stats_sequence *sequence) {
    enum request_class class_ = sequence->class_;
    uint64_t decode_us = sequence->e2e_us - sequence->ttft_us;
    observe_both(stats, stats->e2e[class_], stats->compat.e2e, seconds(sequence->e2e_us));
    observe_both(stats, stats->prompt_tokens[class_], stats->compat.prompt_tokens,
                 sequence->prompt_tokens);
    observe_both(stats, stats->output_tokens[class_], stats->compat.generation_tokens,
                 sequence->output_tokens);
    if (sequence->output_tokens > 1) {
        observe_both(stats, stats->tpot[class_], stats->compat.tpot,
                     seconds(decode_us) / (sequence->output_tokens - 1));
    }
    if (stats->compat_on) {
        metric_observe(stats->compat.decode, seconds(decode_us));
    }
}

void stats_over_quota(struct stats *stats, enum request_class class_) {
    metric_increase(stats->over_quota[class_], 1);
}

void stats_response(struct stats *stats, int http_status) {
    enum response_kind kind = RESPONSE_5XX;
    if (http_status < 400) {
        kind = RESPONSE_2XX;
    } else if (http_status == 429) {
        kind = RESPONSE_429;
    } else if (http_status == 499) {
        kind = RESPONSE_499;
    } else if (http_status < 500) {
        kind = RESPONSE_4XX;
    }
    metric_increase(stats->responses[kind], 1);
}

static struct remembered_plan *place_of(struct stats *stats, uint64_t group, uint64_t seq) {
    return &stats->plan_ring[group % BOUND_GROUPS][seq % PLANS_REMEMBERED];
}

void stats_plan_sent(struct stats *stats, const struct plan *plan, uint64_t plan_bytes) {
    uint64_t prefill_tokens = 0;
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        prefill_tokens += plan->prefills[i].token_count;
    }
    enum step_kind kind = STEP_KIND_DECODE;
    if (prefill_tokens > 0) {
        kind = plan->decode_rows > 0 ? STEP_KIND_MIXED : STEP_KIND_PREFILL;
    }
    *place_of(stats, plan->group, plan->seq) =
        (struct remembered_plan){plan->group, plan->seq, kind};
    metric_observe(stats->rows[ROW_KIND_DECODE], plan->decode_rows);
    metric_observe(stats->rows[ROW_KIND_PREFILL], (double)prefill_tokens);
    metric_increase(stats->plans, 1);
    metric_increase(stats->plan_bytes, plan_bytes);
}

void stats_step_done(struct stats *stats, const struct step_result *result) {
    const struct remembered_plan *plan = place_of(stats, result->group, result->seq);
    bool known = plan->group == result->group && plan->seq == result->seq;
    if (result->status == RESULT_STATUS_OK && known) {
        metric_observe(stats->step[plan->kind], seconds(result->step_us));
    }
}

void stats_turn(struct stats *stats, enum stats_phase phase, uint64_t us) {
    metric_observe(stats->turn[phase], seconds(us));
}

void stats_ingress_paused(struct stats *stats) {
    metric_increase(stats->ingress_pauses, 1);
}

void stats_loop_lag(struct stats *stats, uint64_t us) {
    metric_observe(stats->lag, seconds(us));
}

// ---- scrape ------------------------------------------------------------------------------------

static void copy_counters(struct stats *stats, const struct core_counters *counters) {
    for (uint32_t class_ = 0; class_ < REQUEST_CLASS_COUNT; class_++) {
        for (uint32_t i = 0; i < FINISH_REASON_COUNT; i++) {
            metric_set_total(stats->requests[class_][i], counters->requests_finished[class_][i]);
        }
        for (uint32_t i = 0; i < REJECT_REASON_COUNT; i++) {
            metric_set_total(stats->rejected[class_][i], counters->requests_rejected[class_][i]);
        }
    }
    metric_set_total(stats->tokens[TOKEN_KIND_COMPUTED], counters->tokens_prompt_computed);
    metric_set_total(stats->tokens[TOKEN_KIND_CACHED], counters->tokens_prompt_cached);
    metric_set_total(stats->tokens[TOKEN_KIND_GENERATED], counters->tokens_generated);
    metric_set_total(stats->tokens[TOKEN_KIND_RECOMPUTED], counters->tokens_recomputed);
    metric_set_total(stats->plan_nacks[NACK_REFUSED], counters->plan_refusals);
    metric_set_total(stats->plan_nacks[NACK_STATE], counters->epochs_ended[EPOCH_END_STATE]);
    for (uint32_t i = 0; i < EPOCH_END_COUNT; i++) {
        metric_set_total(stats->epochs_ended[i], counters->epochs_ended[i]);
    }
    metric_set_total(stats->mismatches, counters->epochs_ended[EPOCH_END_DIVERGED]);
    metric_set_total(stats->results_stale, counters->results_stale);
    metric_set_total(stats->evictions, counters->preemptions);
    metric_set_total(stats->moved, counters->kv_blocks_moved);
}

static void copy_gauges(struct stats *stats, const struct stats_view *view) {
    const struct core_gauges *gauges = view->gauges;
    metric_set(stats->states[REQUEST_STATE_QUEUED], gauges->queued);
    metric_set(stats->states[REQUEST_STATE_PREFILLING], gauges->prefilling);
    metric_set(stats->states[REQUEST_STATE_DECODING], gauges->decoding);
    metric_set(stats->queue_tokens, (double)gauges->queued_tokens);
    metric_set(stats->queue_oldest, seconds(gauges->queue_oldest_us));
    metric_set(stats->blocks[BLOCK_STATE_FREE], gauges->kv_blocks_free);
    metric_set(stats->blocks[BLOCK_STATE_HELD], gauges->kv_blocks_held);
    metric_set(stats->blocks[BLOCK_STATE_QUARANTINE], gauges->kv_blocks_quarantined);
    metric_set(stats->blocks_capacity, gauges->kv_blocks_total);
    metric_set(stats->connections, view->connections);
    metric_set_total(stats->slow_turns, view->slow_turns);
    metric_set_total(stats->deferred, view->requests_deferred);
    metric_set(stats->epoch, (double)view->epoch);
    metric_set(stats->journal_bytes, (double)view->journal_bytes);
    metric_set(stats->journal_entries, view->journal_entries);
    metric_set_total(stats->journal_refused, view->journal_refused);
    metric_set(stats->journal_failed, view->journal_failed ? 1 : 0);
    metric_set_total(stats->resumed, view->streams_resumed);
    for (uint32_t i = 0; i < LINK_REFUSAL_COUNT; i++) {
        metric_set_total(stats->refusals[i], view->worker_refusals[i]);
    }
}

// The ledger's lines are known only once a worker has sealed; each gets its series then.
static struct metric *memory_line(struct stats *stats, const char *name) {
    for (uint32_t i = 0; i < stats->memory_count; i++) {
        if (strcmp(stats->memory_names[i], name) == 0) {
            return stats->memory[i];
        }
    }
    if (stats->memory_count >= MEMORY_LINES_MAX) {
        return NULL;
    }
    const struct metric_label labels[] = {
        {"model", stats->model}, {"rank", "0"}, {"pool", name}, {"where", "device"}};
    struct metric *metric = NULL;
    char *copy = memory_strdup(name);
    if (copy == NULL ||
        metrics_add(stats->metrics, GAUGE("tare_mem_bytes", "Device memory by ledger line."),
                    labels, COUNT_OF(labels), &metric, NULL) != STATUS_OK) {
        memory_free(copy);
        return NULL;    // this scrape lacks the line; the next one tries again
    }
    stats->memory_names[stats->memory_count] = copy;
    stats->memory[stats->memory_count++] = metric;
    return metric;
}

static void copy_worker(struct stats *stats, const struct stats_view *view) {
    const struct message_capacity *capacity = view->capacity;
    const struct message_heartbeat *heartbeat = view->heartbeat;
    metric_set(stats->worker_up, capacity != NULL && view->gauges->ready ? 1 : 0);
    metric_set(stats->sealed, capacity != NULL ? 1 : 0);
    metric_set(stats->capacity_tokens,
               capacity != NULL ? (double)capacity->kv_blocks * capacity->block_tokens : 0.0);
    metric_show(stats->device_bytes, capacity != NULL);
    metric_show(stats->budget_bytes, capacity != NULL);
    metric_show(stats->foreign_bytes, capacity != NULL);
    if (capacity != NULL) {
        metric_set(stats->device_bytes, (double)capacity->device_bytes);
        metric_set(stats->budget_bytes, (double)capacity->budget_bytes);
        metric_set(stats->foreign_bytes, (double)capacity->foreign_bytes);
    }
    metric_show(stats->heartbeat_age, heartbeat != NULL);
    metric_show(stats->resident, heartbeat != NULL);
    metric_show(stats->after_seal, heartbeat != NULL);
    if (heartbeat != NULL) {
        metric_set(stats->heartbeat_age, seconds(view->heartbeat_age_us));
        metric_set(stats->resident, (double)heartbeat->resident_bytes);
        metric_set_total(stats->after_seal, heartbeat->allocations_after_seal);
    }
    for (uint32_t i = 0; capacity != NULL && i < capacity->line_count; i++) {
        struct metric *metric = memory_line(stats, capacity->lines[i].name);
        if (metric != NULL) {
            metric_set(metric, (double)capacity->lines[i].bytes);
        }
    }
}

void stats_print(struct stats *stats, const struct stats_view *view, enum metric_format format,
                 struct buf *out) {
    copy_counters(stats, view->counters);
    copy_gauges(stats, view);
    copy_worker(stats, view);
    if (stats->compat_on) {
        stats_compat_copy(&stats->compat, view);
    }
    metrics_print(stats->metrics, format, out);
}
