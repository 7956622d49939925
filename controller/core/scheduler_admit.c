// SPDX-License-Identifier: Apache-2.0
// Who comes in, with which blocks, and who has to leave for them.
#include "common/invariant.h"
#include "controller/core/scheduler_internal.h"

// What a tenant is charged for (serving.md 1.6): a drawn token takes a step of its own.
static const double WORK_PROMPT_TOKEN = 1.0, WORK_OUTPUT_TOKEN = 4.0;

// ---- claims ------------------------------------------------------------------------------------

// The last token of a sequence is drawn but never computed, so its position needs no block.
static uint32_t positions_max(const struct request *request) {
    bool draws = request->len_max > request->spec.prompt_count;
    return draws ? request->len_max - 1 : request->len_max;
}

static uint32_t more_expected(const struct request *request) {
    return request->expected > request->block_count ? request->expected - request->block_count : 0;
}

static void add_claim(struct scheduler *s, struct request *request) {
    uint32_t total = scheduler_blocks_for(s, positions_max(request));
    INVARIANT(request->block_count <= total);
    request->claim = (struct safety_claim){total - request->block_count, request->exclusive};
    if (request->guaranteed) {
        safety_tree_add(s->safety, request->claim);
        s->expected_more += more_expected(request);
    } else {
        s->best_effort += request->exclusive;
        s->expected_more_best_effort += more_expected(request);
    }
}

void scheduler_drop_claim(struct scheduler *s, struct request *request) {
    if (request->guaranteed) {
        safety_tree_remove(s->safety, request->claim);
        s->expected_more -= more_expected(request);
    } else {
        s->best_effort -= request->claim.held;
        s->expected_more_best_effort -= more_expected(request);
    }
}

// What is free, what will be without anybody finishing (quarantine is already coming back, and what
// lives above the end of a shrinking pool will take places below it), and what can be taken from
// best-effort requests.
uint32_t scheduler_reachable_free(const struct scheduler *s) {
    // A claim may be counted before its blocks are taken.
    uint64_t reachable = (uint64_t)kv_blocks_total(s->options.blocks) + s->best_effort;
    INVARIANT(scheduler_live_blocks(s) <= reachable);
    return (uint32_t)(reachable - scheduler_live_blocks(s));
}

// Free, or free without anybody's doing.
static uint32_t coming(const struct scheduler *s) {
    return kv_blocks_free(s->options.blocks) + kv_blocks_quarantined(s->options.blocks);
}

static bool is_safe_without(const struct scheduler *s, uint32_t blocks) {
    return (uint64_t)safety_tree_demand(s->safety) + blocks <= scheduler_reachable_free(s);
}

bool scheduler_take_block(struct scheduler *s, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    scheduler_drop_claim(s, request);
    request->block_count++;
    request->exclusive++;
    add_claim(s, request);
    bool safe = is_safe_without(s, 1);
    if (!safe || kv_blocks_free(s->options.blocks) == 0) {
        scheduler_drop_claim(s, request);
        request->block_count--;
        request->exclusive--;
        add_claim(s, request);
        // Others may have to leave for it; where it is not safe, that would not help.
        s->wanted_blocks += safe && request->guaranteed ? 1 : 0;
        s->best_effort_short = s->best_effort_short || !request->guaranteed;
        return false;
    }
    uint32_t *id = scheduler_blocks(s, slot) + request->block_count - 1;
    enum status status = kv_blocks_take(s->options.blocks, 1, id);
    INVARIANT(status == STATUS_OK);
    kv_blocks_set_owner(s->options.blocks, *id, s->owners[slot].request);
    return true;
}

// ---- cached beginnings -------------------------------------------------------------------------

// Keys of all full blocks of the log, continued from those made before.
static void make_keys(struct scheduler *s, struct request *request) {
    uint32_t full = u32_min(request->known / s->block_tokens, request->spec.key_capacity);
    struct prefix_chain chain = {s->options.prefix_secret, request->spec.salt, s->block_tokens};
    prefix_keys(&chain, request->spec.tokens, full * s->block_tokens, request->keys_known,
                request->spec.keys);
    request->keys_known = full;
}

// Blocks of the sequence's beginning that are there already, at most so many that a token is left
// to compute; `out` may be NULL. Scores of a prompt need every position computed.
static uint32_t find_cached(struct scheduler *s, struct request *request, uint32_t *out) {
    if (request->spec.keys == NULL || request->spec.sampling.want_prompt_logprobs) {
        return 0;
    }
    make_keys(s, request);
    uint32_t most = u32_min((request->known - 1) / s->block_tokens, request->keys_known);
    uint32_t found = 0;
    for (; found < most; found++) {
        uint32_t id = kv_blocks_find(s->options.blocks, &request->spec.keys[found]);
        if (id == PREFIX_NONE) {
            break;
        }
        if (out != NULL) {
            out[found] = id;
        }
    }
    return found;
}

uint32_t scheduler_overlap(struct scheduler *s, struct request *request) {
    return s->envelope.seqs == 0 ? 0 : find_cached(s, request, NULL);
}

// Blocks that come to be shared no longer return with the one who computed them.
static void disown(struct scheduler *s, const uint32_t *ids, uint32_t count, bool back) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t owner = kv_blocks_owner(s->options.blocks, ids[i]);
        if (owner == KV_OWNER_NONE) {
            continue;
        }
        struct request *request = request_at(s->options.requests, owner);
        scheduler_drop_claim(s, request);
        request->exclusive += back ? 1 : UINT32_MAX;
        add_claim(s, request);
    }
}

// Full blocks whose KV is computed can be found from now on.
void scheduler_publish(struct scheduler *s, struct request *request) {
    uint32_t full = request->computed / s->block_tokens;
    if (request->spec.keys == NULL || request->published >= full) {
        return;
    }
    make_keys(s, request);
    full = u32_min(full, request->keys_known);
    const uint32_t *ids = scheduler_blocks(s, request->slot);
    for (; request->published < full; request->published++) {
        kv_blocks_publish(s->options.blocks, ids[request->published],
                          &request->spec.keys[request->published]);
    }
    request->publish_at = (request->published + 1) * s->block_tokens;
}

// ---- the line ----------------------------------------------------------------------------------

void scheduler_enter(struct scheduler *s, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    request->state = REQUEST_WAITING;
    request->guaranteed = request->spec.class_ != REQUEST_CLASS_BATCH ||
                          request->evictions >= s->options.policy.evictions_max;
    request->held_us = 0;
    uint32_t cached = scheduler_overlap(s, request) * s->block_tokens;
    request->backlog = request->known - u32_min(cached, request->known);
    s->waiting_tokens += request->backlog;
    waiting_line_add(s->waiting, index,
                     &(struct waiting_key){.class_ = request->spec.class_,
                                           .tenant = request->spec.tenant,
                                           .deadline_us = request->deadline_us,
                                           .order = request->order,
                                           .tokens = request->backlog});
}

const struct waiting_line *scheduler_line(const struct scheduler *s) {
    return s->waiting;
}

void scheduler_charge(struct scheduler *s, uint32_t index, uint32_t prompt_tokens,
                      uint32_t output_tokens) {
    const struct core_request *spec = &request_at(s->options.requests, index)->spec;
    double work = WORK_PROMPT_TOKEN * prompt_tokens + WORK_OUTPUT_TOKEN * output_tokens;
    waiting_line_charge(s->waiting, spec->class_, spec->tenant, work,
                        spec->weight > 0 ? (double)spec->weight : 1.0);
}

static void leave_line(struct scheduler *s, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    waiting_line_remove(s->waiting, index);
    s->waiting_tokens -= request->backlog;
    if (s->ticket == index) {
        s->ticket = REQUEST_NONE;
    }
}

void scheduler_leave(struct scheduler *s, uint32_t index) {
    leave_line(s, index);
    scheduler_set_suspect(s, request_at(s->options.requests, index), false);
}

uint32_t scheduler_waiting(const struct scheduler *s) {
    return waiting_line_count(s->waiting);
}

// ---- admission ---------------------------------------------------------------------------------

static uint32_t count_free(const struct scheduler *s, const uint32_t *ids, uint32_t count) {
    uint32_t free_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        free_count += kv_blocks_is_free(s->options.blocks, ids[i]) ? 1 : 0;
    }
    return free_count;
}

// Blocks at the end of a sequence like others of its class.
static uint32_t expected_blocks(const struct scheduler *s, const struct request *request) {
    double output = s->mean_output[request->spec.class_];
    uint32_t most = positions_max(request);
    if (output == 0 && !request->guaranteed) {
        return scheduler_blocks_for(s, most);    // nothing is known: it may take all it asks for
    }
    double tokens = request->spec.prompt_count + output;
    tokens = tokens < request->known ? request->known : tokens;
    return scheduler_blocks_for(s, tokens < most ? (uint32_t)tokens : most);
}

// More is expected of those who run than will be free: it could be admitted, but others would
// pause.
static bool is_crowded(const struct scheduler *s, const struct request *request, uint32_t leaves) {
    double guard = s->options.policy.guard[request->spec.class_];
    uint64_t more = s->expected_more;
    double left = (double)scheduler_reachable_free(s) - leaves;
    if (!request->guaranteed) {
        // What others of its kind hold is not free for it.
        more += s->expected_more_best_effort;
        left = (double)coming(s) - leaves;
    }
    return guard > 0 && s->running > 0 && (double)more > guard * left;
}

// Another one waits for memory with a ticket: those of its class and below leave it what it needs.
static bool must_leave_alone(const struct scheduler *s, uint32_t index, uint32_t leaves) {
    if (s->ticket == REQUEST_NONE || s->ticket == index) {
        return false;
    }
    enum request_class holder = request_at(s->options.requests, s->ticket)->spec.class_;
    return request_at(s->options.requests, index)->spec.class_ >= holder &&
           kv_blocks_free(s->options.blocks) < leaves + s->ticket_blocks;
}

// The blocks that a waiting request begins with: `found` shared ones, written to `ids` already, and
// new ones behind them. All or nothing, and only where everybody can still finish.
static bool take_first_blocks(struct scheduler *s, uint32_t index, uint32_t *ids, uint32_t found) {
    struct request *request = request_at(s->options.requests, index);
    struct kv_blocks *blocks = s->options.blocks;
    uint32_t fresh = scheduler_blocks_for(s, request->known) - found;
    uint32_t leaves = fresh + count_free(s, ids, found);
    if (must_leave_alone(s, index, leaves)) {
        return false;
    }
    disown(s, ids, found, false);
    request->block_count = found + fresh;
    request->exclusive = fresh;
    request->expected = expected_blocks(s, request);
    add_claim(s, request);
    bool safe = is_safe_without(s, leaves) && !is_crowded(s, request, leaves);
    if (!safe || kv_blocks_free(blocks) < leaves) {
        s->wanted_blocks += safe && request->guaranteed ? leaves : 0;
        scheduler_drop_claim(s, request);
        request->block_count = 0;
        request->exclusive = 0;
        disown(s, ids, found, true);
        return false;
    }
    for (uint32_t i = 0; i < found; i++) {
        kv_blocks_share(blocks, ids[i]);
        kv_blocks_set_owner(blocks, ids[i], KV_OWNER_NONE);
    }
    enum status status = kv_blocks_take(blocks, fresh, ids + found);
    INVARIANT(status == STATUS_OK);
    for (uint32_t i = found; i < found + fresh; i++) {
        kv_blocks_set_owner(blocks, ids[i], index);
    }
    return true;
}

// What an admission takes of a plan.
static uint32_t admission_bytes(const struct request *request, uint32_t blocks) {
    enum { FIXED_BYTES = 128, BIAS_BYTES = 10, ID_BYTES = 4 };
    return FIXED_BYTES + BIAS_BYTES * request->spec.sampling.bias_count + ID_BYTES * blocks;
}

bool scheduler_admission_fits(const struct scheduler *s, const struct request *request,
                              uint32_t blocks, uint32_t history) {
    return history <= s->history_left && admission_bytes(request, blocks) <= s->admit_bytes_left;
}

void scheduler_tell_admission(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                              uint32_t cached) {
    struct request *request = scheduler_request(s, slot);
    uint32_t history = sampling_uses_history(&request->spec.sampling) ? cached : 0;
    s->history_left -= history;
    s->admit_bytes_left -= admission_bytes(request, request->block_count);
    s->change_count++;
    *scheduler_tell(s, slot) =
        (struct told){.present = true, .gen = s->owners[slot].gen, .blocks = request->block_count};
    step_plan_admit(plan, &(struct plan_admit){
                              .ref = scheduler_ref(s, slot),
                              .prompt_tokens = request->spec.prompt_count,
                              .len_max = request->len_max,
                              .block_count = request->block_count,
                              .blocks = scheduler_blocks(s, slot),
                              .cached_tokens = cached,
                              .history_count = history,
                              .history = request->spec.tokens,
                              .sampling = request->spec.sampling,
                          });
}

static bool try_admit(struct scheduler *s, struct step_plan *plan, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    INVARIANT(s->free_slot_count > 0);
    uint32_t slot = s->free_slots[s->free_slot_count - 1];
    uint32_t *ids = scheduler_blocks(s, slot);
    uint32_t found = find_cached(s, request, ids);
    // Where penalties count them, the tokens travel with the admission.
    if (sampling_uses_history(&request->spec.sampling) &&
        found * s->block_tokens > s->history_left) {
        found = 0;
    }
    if (!take_first_blocks(s, index, ids, found)) {
        return false;
    }
    leave_line(s, index);
    s->free_slot_count--;
    s->slots[slot].order_at = s->order_count;
    s->order[s->order_count++] = slot;
    s->running++;
    request->state = REQUEST_PREFILLING;
    request->slot = slot;
    request->cached = found * s->block_tokens;
    request->computed = request->cached;
    request->planned = request->cached;
    request->published = found;
    request->answered_seq = 0;    // numbers of plans begin anew with an epoch
    request->publish_at = request->spec.keys == NULL ? UINT32_MAX : (found + 1) * s->block_tokens;
    s->prefill_tokens += request->prefill_end - request->planned;
    s->owners[slot].request = index;
    s->owners[slot].gen++;
    if (request->admitted_us == 0) {
        scheduler_charge(s, index, request->known - request->cached, 0);
    }
    scheduler_tell_admission(s, plan, slot, request->cached);
    return true;
}

// Passed by others from now on; after a while it gets the ticket.
static void hold(struct scheduler *s, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    if (request->held_us == 0) {
        request->held_us = s->now_us;
    }
    uint64_t patience = s->options.policy.hold_us;
    if (request->deadline_us != UINT64_MAX &&
        (request->deadline_us - request->arrived_us) / 2 < patience) {
        patience = (request->deadline_us - request->arrived_us) / 2;
    }
    if (s->ticket == REQUEST_NONE && s->now_us - request->held_us >= patience) {
        s->ticket = index;
        s->ticket_blocks = scheduler_blocks_for(s, request->known);
    }
}

// A step without place for one of its tokens, or time for a block of them, admits nobody: it would
// hold blocks for nothing.
static bool has_place(const struct scheduler *s, struct request *request) {
    request->planned = 0;
    request->prefill_end = request->known;
    request->len_max = scheduler_length_max(s, &request->spec);
    uint32_t least = u32_min(s->block_tokens, request->known);
    return scheduler_admission_fits(s, request, scheduler_blocks_for(s, request->known), 0) &&
           scheduler_chunk_that_fits(s, request, 1) > 0 &&
           scheduler_chunk_in_time(s, request, least) == least;
}

// While work is split, only suspects come in, the earliest first.
static uint32_t next_suspect(const struct scheduler *s) {
    uint32_t best = REQUEST_NONE;
    for (uint32_t i = 0; i < request_table_max(s->options.requests); i++) {
        if (!waiting_line_holds(s->waiting, i)) {
            continue;
        }
        const struct request *request = request_at(s->options.requests, i);
        bool earlier =
            best == REQUEST_NONE || request->order < request_at(s->options.requests, best)->order;
        if (request->suspect && earlier) {
            best = i;
        }
    }
    return best;
}

static uint32_t admit_suspects(struct scheduler *s, struct step_plan *plan, uint32_t budget) {
    while (budget > 0 && s->free_slot_count > 0) {
        uint32_t index = next_suspect(s);
        if (index == REQUEST_NONE || !has_place(s, request_at(s->options.requests, index)) ||
            !try_admit(s, plan, index)) {
            break;
        }
        budget = scheduler_first_chunk(s, plan, s->order[s->order_count - 1], budget);
    }
    return budget;
}

// Where all slots are taken, best-effort requests have to leave theirs to who waits.
static void want_slots(struct scheduler *s) {
    if (s->free_slot_count > 0 || s->best_effort == 0) {
        return;
    }
    struct waiting_walk walk;
    waiting_walk_begin(s->waiting, &walk);
    for (;;) {
        uint32_t index = waiting_walk_next(s->waiting, &walk);
        if (index == WAITING_NONE || !request_at(s->options.requests, index)->guaranteed) {
            return;
        }
        s->wanted_slots++;
    }
}

// Nobody is admitted while a guaranteed request is paused, or while a prompt waits for which the
// step has no place: it would be overtaken without end.
uint32_t scheduler_admit(struct scheduler *s, struct step_plan *plan, uint32_t budget) {
    if (s->suspects_only) {
        return s->prompt_waits ? budget : admit_suspects(s, plan, budget);
    }
    if (s->prompt_waits || s->paused_count > 0) {
        return budget;
    }
    uint32_t holder = s->ticket;
    if (holder != REQUEST_NONE && budget > 0 && s->free_slot_count > 0 &&
        has_place(s, request_at(s->options.requests, holder)) && try_admit(s, plan, holder)) {
        budget = scheduler_first_chunk(s, plan, s->order[s->order_count - 1], budget);
    }
    struct waiting_walk walk;
    waiting_walk_begin(s->waiting, &walk);
    while (budget > 0 && s->free_slot_count > 0) {
        uint32_t index = waiting_walk_next(s->waiting, &walk);
        if (index == WAITING_NONE || !has_place(s, request_at(s->options.requests, index))) {
            break;
        }
        if (try_admit(s, plan, index)) {
            budget = scheduler_first_chunk(s, plan, s->order[s->order_count - 1], budget);
            waiting_walk_begin(s->waiting, &walk);
        } else {
            hold(s, index);
        }
    }
    want_slots(s);
    return budget;
}

// ---- eviction ----------------------------------------------------------------------------------

static bool loses_less(const struct request *a, const struct request *b) {
    if (a->evictions != b->evictions) {
        return a->evictions < b->evictions;
    }
    return a->computed != b->computed ? a->computed < b->computed : a->block_count > b->block_count;
}

// The best-effort request that loses least: of those evicted least often the one that is computed
// least, and holds most.
static uint32_t choose_victim(struct scheduler *s, uint32_t spared) {
    uint32_t best = REQUEST_NONE;
    for (uint32_t i = 0; i < s->order_count; i++) {
        if (s->order[i] == SLOT_NONE) {
            continue;
        }
        uint32_t index = s->owners[s->order[i]].request;
        const struct request *request = request_at(s->options.requests, index);
        if (request->guaranteed || index == spared) {
            continue;
        }
        const struct request *least =
            best == REQUEST_NONE ? NULL : request_at(s->options.requests, best);
        if (least == NULL || loses_less(request, least)) {
            best = index;
        }
    }
    return best;
}

static uint32_t oldest_best_effort(struct scheduler *s) {
    uint32_t oldest = REQUEST_NONE;
    for (uint32_t i = 0; i < s->order_count; i++) {
        if (s->order[i] == SLOT_NONE) {
            continue;
        }
        uint32_t index = s->owners[s->order[i]].request;
        const struct request *request = request_at(s->options.requests, index);
        if (!request->guaranteed &&
            (oldest == REQUEST_NONE ||
             request->order < request_at(s->options.requests, oldest)->order)) {
            oldest = index;
        }
    }
    return oldest;
}

static void evict(struct scheduler *s, uint32_t index, uint64_t seq) {
    struct request *request = request_at(s->options.requests, index);
    s->evictions++;
    s->evicted_tokens += request->computed;
    request->evictions++;
    scheduler_release(s, index, seq);
    // Others of its tenant have their turn before it is in the way again.
    request_go_behind(s->options.requests, index);
    scheduler_enter(s, index);
}

void scheduler_evict(struct scheduler *s, uint64_t seq) {
    uint32_t victim;
    uint32_t slots = s->free_slot_count + s->retire_count;
    while ((coming(s) < s->wanted_blocks || slots < s->wanted_slots) &&
           (victim = choose_victim(s, REQUEST_NONE)) != REQUEST_NONE) {
        evict(s, victim, seq);
        slots++;
    }
    // Best-effort requests among themselves: the oldest goes on, so that they do not wait for each
    // other.
    if (s->best_effort_short && coming(s) == 0) {
        victim = choose_victim(s, oldest_best_effort(s));
        if (victim != REQUEST_NONE) {
            evict(s, victim, seq);
        }
    }
    s->wanted_blocks = 0;
    s->wanted_slots = 0;
    s->best_effort_short = false;
}
