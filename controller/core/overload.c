// SPDX-License-Identifier: Apache-2.0
#include "controller/core/overload.h"

#include "common/hash.h"
#include "common/invariant.h"
#include "controller/core/prediction.h"

enum {
    RETRY_MIN_MS = 1000,
    DRAINING_RETRY_US = 5 * 1000 * 1000,    // somebody else serves by then
    SWEEP_US = 100 * 1000,
    DEADLINE_BUCKETS = 64,    // by which those that wait are ordered
};
static const double MISS_MARGIN = 1.2;    // a prediction is no promise
static const double JITTER = 0.2;

// ---- saying no ---------------------------------------------------------------------------------

static uint32_t retry_after_ms(struct request_id id, double wait_us) {
    double ms = wait_us / 1000.0;
    if (ms < 0) {
        return 0;
    }
    ms = ms > RETRY_MIN_MS ? ms : RETRY_MIN_MS;
    ms = ms < BOUND_RETRY_AFTER_MS ? ms : BOUND_RETRY_AFTER_MS;
    double dice = (double)(hash_u64(id.value) >> 11) * 0x1p-53;    // 0 to 1
    return (uint32_t)(ms * (1 - JITTER + 2 * JITTER * dice));
}

void overload_reject(struct core *core, const struct core_request *spec,
                     const struct refusal *refusal) {
    core->counters.requests_rejected[spec->class_][refusal->reason]++;
    struct core_action action = {
        .kind = CORE_ACTION_REJECTED,
        .rejected = {.id = spec->id,
                     .reason = refusal->reason,
                     .retry_after_ms = retry_after_ms(spec->id, refusal->wait_us)},
    };
    core_act(core, &action);
}

// ---- at arrival --------------------------------------------------------------------------------

// Too large for every group that is there.
static bool too_large(const struct core *core, const struct core_request *spec) {
    bool any = false;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        const struct group *group = &core->groups[i];
        if (group->ready && !scheduler_too_large(group->scheduler, spec)) {
            return false;
        }
        any = any || group->ready;
    }
    return any;
}

static uint32_t waiting_count(const struct core *core) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        count += scheduler_waiting(core->groups[i].scheduler);
    }
    return count;
}

// Between two ends of sequences, all groups together; 0 while nothing is known.
static double us_per_end(const struct core *core) {
    double ends_per_us = 0;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        double us = core->groups[i].us_per_end;
        ends_per_us += us > 0 ? 1 / us : 0;
    }
    return ends_per_us > 0 ? 1 / ends_per_us : 0;
}

// Prompt tokens that all groups compute in a microsecond; 0 while nothing is known.
static double tokens_per_us(const struct core *core) {
    double rate = 0;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        const struct group *group = &core->groups[i];
        if (group->ready && prediction_learnt(group)) {
            double us = prediction_token_us(core, group);
            rate += us > 0 ? 1 / us : 0;
        }
    }
    return rate;
}

bool overload_refuses_spec(const struct core *core, const struct core_request *spec,
                           struct refusal *out) {
    if (too_large(core, spec)) {
        *out = (struct refusal){REJECT_REASON_TOO_LARGE, -1};
        return true;
    }
    uint32_t waiting = waiting_count(core);
    if (waiting >= core->config.waiting_max) {
        double excess = waiting - core->config.waiting_max / 2.0;
        *out = (struct refusal){REJECT_REASON_QUEUE_FULL, excess * us_per_end(core)};
        return true;
    }
    return false;
}

// Uncached prompt tokens that wait, of the classes that go before a request of this one.
static uint64_t tokens_waiting(const struct core *core, enum request_class last) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        const struct waiting_line *line = scheduler_line(core->groups[i].scheduler);
        for (unsigned c = 0; c <= (unsigned)last; c++) {
            tokens += waiting_line_class_tokens(line, (enum request_class)c);
        }
    }
    return tokens;
}

// A request alone is never too many.
static bool too_many_tokens(const struct core *core, const struct core_request *spec,
                            uint32_t uncached, struct refusal *out) {
    const struct core_policy *policy = &core->config.policy;
    bool computed = policy->queued_tokens_max == CORE_QUEUED_TOKENS_AUTO;
    double target_us = policy->ttft_target_us[spec->class_];
    if (policy->queued_tokens_max == 0 || (computed && target_us <= 0)) {
        return false;
    }
    double rate = tokens_per_us(core);
    // As with deadlines: the target is what it may wait beside twice its own prompt.
    double most = computed && rate > 0 ? rate * target_us + 2.0 * spec->prompt_count
                                       : (double)policy->queued_tokens_max;
    enum request_class last = computed ? spec->class_ : REQUEST_CLASS_BATCH;
    uint64_t waiting = tokens_waiting(core, last);
    if (most <= 0 || waiting == 0 || (double)waiting + uncached <= most) {
        return false;
    }
    double excess = (double)waiting - most / 2;
    *out = (struct refusal){REJECT_REASON_QUEUE_TOKENS, rate > 0 && excess > 0 ? excess / rate : 0};
    return true;
}

static bool would_miss(struct core *core, const struct request *request, const struct group *group,
                       uint32_t uncached, struct refusal *out) {
    const struct core_request *spec = &request->spec;
    double target_us = core->config.policy.ttft_target_us[spec->class_];
    if (target_us <= 0 || !group->ready || !prediction_learnt(group)) {
        return false;
    }
    struct waiting_ahead ahead;
    waiting_line_ahead(scheduler_line(group->scheduler), spec->class_, spec->tenant, uncached,
                       &ahead);
    double us = prediction_first_token_us(core, group, &ahead, uncached);
    double allowed_us = prediction_allowed_us(group, spec, target_us);
    if (us <= MISS_MARGIN * allowed_us) {
        return false;
    }
    *out = (struct refusal){REJECT_REASON_WOULD_MISS, us - allowed_us / 2};
    return true;
}

// Since when nobody is there; 0 while somebody is, or was never.
static uint64_t away_us(const struct core *core) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        const struct group *group = &core->groups[i];
        if (group->ready) {
            return 0;
        }
        if (group->epoch != 0 && core->now_us - group->away_since_us < least) {
            least = core->now_us - group->away_since_us;
        }
    }
    return least == UINT64_MAX ? 0 : least;
}

bool overload_refuses(struct core *core, uint32_t index, struct group *group, struct refusal *out) {
    struct request *request = request_at(core->requests, index);
    const struct core_request *spec = &request->spec;
    if (group != NULL) {
        uint64_t cached =
            (uint64_t)scheduler_overlap(group->scheduler, request) * group->limits.block_tokens;
        uint32_t uncached = cached < request->known ? request->known - (uint32_t)cached : 1;
        if (too_many_tokens(core, spec, uncached, out) ||
            would_miss(core, request, group, uncached, out)) {
            return true;
        }
    }
    if (core->draining) {
        *out = (struct refusal){REJECT_REASON_DRAINING, DRAINING_RETRY_US};
        return true;
    }
    uint64_t away = away_us(core);
    if (group == NULL || away > BOUND_AWAY_US) {
        // It will take about as long again as it took so far.
        *out = (struct refusal){REJECT_REASON_UNAVAILABLE, (double)away};
        return true;
    }
    double target_us = core->config.policy.ttft_target_us[spec->class_];
    request->deadline_us =
        target_us > 0 ? core->now_us + (uint64_t)prediction_allowed_us(group, spec, target_us)
                      : UINT64_MAX;
    return false;
}

// ---- while they wait ---------------------------------------------------------------------------

// One class of one group.
struct sweep {
    struct core *core;
    struct group *group;
    const uint32_t *list;
    uint32_t count;
    double target_us, token_us;
    double prefill_us;    // of the prompts that run
    double above_us;      // of the classes above
    uint32_t tenant;      // whose fair share of the line is in `fair_us`; UINT32_MAX: nobody's
    double fair_us;
    double span_us;                       // until the last deadline
    uint64_t tokens[DEADLINE_BUCKETS];    // of those whose deadline is in it or before
};

static double left_us(const struct sweep *sweep, const struct request *request) {
    double allowed_us = prediction_allowed_us(sweep->group, &request->spec, sweep->target_us);
    return allowed_us - (double)(sweep->core->now_us - request->arrived_us);
}

static uint32_t bucket_of(const struct sweep *sweep, double left) {
    double at = left <= 0 ? 0 : left / sweep->span_us * DEADLINE_BUCKETS;
    return at < DEADLINE_BUCKETS - 1 ? (uint32_t)at : DEADLINE_BUCKETS - 1;
}

static void order_by_deadline(struct sweep *sweep) {
    sweep->span_us = 1;
    for (uint32_t i = 0; i < sweep->count; i++) {
        double left = left_us(sweep, request_at(sweep->core->requests, sweep->list[i]));
        sweep->span_us = left > sweep->span_us ? left : sweep->span_us;
    }
    for (uint32_t i = 0; i < sweep->count; i++) {
        const struct request *request = request_at(sweep->core->requests, sweep->list[i]);
        sweep->tokens[bucket_of(sweep, left_us(sweep, request))] += request->backlog;
    }
    for (uint32_t i = 1; i < DEADLINE_BUCKETS; i++) {
        sweep->tokens[i] += sweep->tokens[i - 1];
    }
}

// By how much the first token comes too late if all goes on like this; <= 0: it does not. What is
// ahead of it are earlier deadlines, but of other tenants no more than its own tenant has.
static double late_us(struct sweep *sweep, const struct request *request) {
    if (sweep->tenant != request->spec.tenant) {
        struct waiting_ahead fair;
        waiting_line_ahead(scheduler_line(sweep->group->scheduler), request->spec.class_,
                           request->spec.tenant, 0, &fair);
        sweep->tenant = request->spec.tenant;
        sweep->fair_us = (double)fair.tokens * sweep->token_us;
    }
    double left = left_us(sweep, request);
    double earlier_us = (double)sweep->tokens[bucket_of(sweep, left)] * sweep->token_us;
    double us = sweep->above_us + earlier_us;
    us = sweep->prefill_us + (sweep->fair_us < us ? sweep->fair_us : us);
    double margin_us =
        (MISS_MARGIN - 1) * prediction_allowed_us(sweep->group, &request->spec, sweep->target_us);
    return us - left - margin_us;
}

static bool cannot_keep(const struct sweep *sweep, const struct request *request) {
    return prediction_alone_us(sweep->group, request->backlog) > left_us(sweep, request);
}

static void refuse_waiting(struct sweep *sweep, uint32_t index, double late) {
    struct core *core = sweep->core;
    const struct core_request spec = request_at(core->requests, index)->spec;
    const struct refusal refusal = {REJECT_REASON_MISSED, late > 0 ? late : 0};
    scheduler_leave(sweep->group->scheduler, index);
    core_forget(core, index);
    overload_reject(core, &spec, &refusal);
}

// Whoever cannot keep its deadline, and the dearest of those that are predicted to miss it.
static void refuse_late(struct sweep *sweep) {
    uint32_t dearest = REQUEST_NONE, backlog = 0;
    double dearest_late = 0;
    for (uint32_t i = 0; i < sweep->count; i++) {
        uint32_t index = sweep->list[i];
        const struct request *request = request_at(sweep->core->requests, index);
        if (request->admitted_us != 0) {
            continue;    // it has begun once
        }
        double late = late_us(sweep, request);
        if (cannot_keep(sweep, request)) {
            refuse_waiting(sweep, index, late);
        } else if (late > 0 && request->backlog > backlog) {
            dearest = index;
            backlog = request->backlog;
            dearest_late = late;
        }
    }
    if (dearest != REQUEST_NONE) {
        refuse_waiting(sweep, dearest, dearest_late);
    }
}

static void sweep_class(struct core *core, struct group *group, enum request_class class_) {
    const struct waiting_line *line = scheduler_line(group->scheduler);
    struct sweep sweep = {.core = core,
                          .group = group,
                          .list = core->sweep_list,
                          .count = waiting_line_list(line, class_, core->sweep_list),
                          .tenant = UINT32_MAX,
                          .target_us = core->config.policy.ttft_target_us[class_],
                          .token_us = prediction_token_us(core, group)};
    if (sweep.count == 0) {
        return;
    }
    struct scheduler_load load;
    scheduler_load(group->scheduler, &load);
    sweep.prefill_us = (double)load.prefill_tokens * sweep.token_us;
    for (unsigned c = 0; c < (unsigned)class_; c++) {
        uint64_t tokens = waiting_line_class_tokens(line, (enum request_class)c);
        sweep.above_us += (double)tokens * sweep.token_us;
    }
    order_by_deadline(&sweep);
    refuse_late(&sweep);
}

void overload_sweep(struct core *core) {
    if (core->now_us - core->swept_us < SWEEP_US) {
        return;
    }
    core->swept_us = core->now_us;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        struct group *group = &core->groups[i];
        if (!group->ready || !prediction_learnt(group) ||
            scheduler_waiting(group->scheduler) == 0) {
            continue;
        }
        for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
            if (core->config.policy.ttft_target_us[c] > 0) {
                sweep_class(core, group, (enum request_class)c);
            }
        }
    }
}
