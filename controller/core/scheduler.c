// SPDX-License-Identifier: Apache-2.0
#include "controller/core/scheduler.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/scheduler_internal.h"

enum { SPLIT_PLANS = 16 };    // that pass before a lowered row count is doubled

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *err) {
    struct scheduler *s = memory_zalloc(sizeof *s);
    if (s == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a scheduler");
    }
    s->options = *options;
    s->slots = memory_array(options->seqs_max, sizeof *s->slots);
    s->free_slots = memory_array(options->seqs_max, sizeof *s->free_slots);
    s->order = memory_array(options->seqs_max, sizeof *s->order);
    // Touched only as far as sequences grow: most of it never becomes resident.
    s->block_ids =
        memory_array((size_t)options->seqs_max * options->blocks_per_seq_max, sizeof *s->block_ids);
    bool whole =
        s->slots != NULL && s->free_slots != NULL && s->order != NULL && s->block_ids != NULL;
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX; i++) {
        struct flight *flight = &s->flights[i];
        flight->chunks = memory_array(options->seqs_max, sizeof *flight->chunks);
        flight->told = memory_array(options->seqs_max, sizeof *flight->told);
        whole = whole && flight->chunks != NULL && flight->told != NULL;
    }
    enum status status = safety_tree_create(options->blocks_per_seq_max, &s->safety, err);
    if (status == STATUS_OK && !whole) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for %u slots", options->seqs_max);
    }
    if (status != STATUS_OK) {
        scheduler_destroy(s);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

void scheduler_destroy(struct scheduler *s) {
    if (s == NULL) {
        return;
    }
    safety_tree_destroy(s->safety);
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX; i++) {
        memory_free(s->flights[i].chunks);
        memory_free(s->flights[i].told);
    }
    memory_free(s->slots);
    memory_free(s->free_slots);
    memory_free(s->order);
    memory_free(s->block_ids);
    memory_free(s);
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// Free: without a request, and unknown to the worker. The lowest is on top.
static void list_free_slots(struct scheduler *s) {
    s->free_slot_count = 0;
    s->retire_count = 0;
    for (uint32_t i = s->envelope.seqs; i > 0; i--) {
        const struct slot *slot = &s->slots[i - 1];
        if (slot->request != REQUEST_NONE) {
            continue;
        }
        if (slot->told.present) {
            s->retire_count++;
        } else {
            s->free_slots[s->free_slot_count++] = i - 1;
        }
    }
}

void scheduler_start(struct scheduler *s, const struct message_capacity *capacity) {
    const struct envelope *e = &capacity->envelope;
    INVARIANT(s->running == 0);
    INVARIANT(e->blocks_per_seq <= s->options.blocks_per_seq_max);
    s->envelope = *e;
    s->envelope.seqs = smaller(e->seqs, s->options.seqs_max);
    s->envelope.tokens = smaller(e->tokens, s->options.step_tokens_max);
    // A longer sequence could be admitted, but not reach its end.
    s->envelope.seq_tokens = smaller(e->seq_tokens, e->attended_tokens_max);
    s->block_tokens = capacity->block_tokens;
    s->retire_count = 0;
    s->flight_count = 0;
    s->pool_phase = POOL_STEADY;
    s->move_count = 0;
    s->move_blocks = 0;
    s->split = (struct split){.seqs = s->envelope.seqs, .tokens = s->envelope.tokens};
    kv_blocks_reset(s->options.blocks, capacity->kv_blocks);
    safety_tree_reset(s->safety, e->blocks_per_seq);
    for (uint32_t i = 0; i < s->envelope.seqs; i++) {
        s->slots[i] = (struct slot){.request = REQUEST_NONE};
    }
    list_free_slots(s);
}

uint32_t scheduler_owner(const struct scheduler *s, struct slot_ref ref) {
    if (ref.slot >= s->envelope.seqs || s->slots[ref.slot].gen != ref.gen) {
        return REQUEST_NONE;
    }
    return s->slots[ref.slot].request;
}

uint32_t scheduler_slot_request(const struct scheduler *s, uint32_t slot) {
    return slot < s->envelope.seqs ? s->slots[slot].request : REQUEST_NONE;
}

// The last token of a sequence is drawn but never computed, so its position needs no block.
static uint32_t positions_max(uint32_t len_max, uint32_t prompt) {
    return len_max > prompt ? len_max - 1 : len_max;
}

// Steps without place for a row that scores or tells logprobs never have one.
static bool rows_lack(const struct scheduler *s, const struct sampling_params *sampling) {
    const struct envelope *e = &s->envelope;
    bool tells = sampling->want_logprobs || sampling->want_prompt_logprobs;
    return (tells && e->logprob_rows == 0) ||
           (sampling->want_prompt_logprobs && e->prompt_logit_rows == 0);
}

bool scheduler_too_large(const struct scheduler *s, const struct core_request *spec) {
    if (rows_lack(s, &spec->sampling)) {
        return true;
    }
    uint64_t len = (uint64_t)spec->prompt_count + spec->output_max;
    return len > s->envelope.seq_tokens ||
           scheduler_blocks_for(s, (uint32_t)len) > kv_blocks_total(s->options.blocks);
}

bool scheduler_misfit(const struct scheduler *s, const struct request *request) {
    uint64_t len = (uint64_t)request->spec.prompt_count + request->spec.output_max;
    uint32_t len_max = scheduler_length_max(s, &request->spec);
    bool no_room = request->known > len_max || (request->known == len_max && len > len_max);
    return no_room || rows_lack(s, &request->spec.sampling) ||
           scheduler_blocks_for(s, len_max) > kv_blocks_total(s->options.blocks);
}

// ---- claims ------------------------------------------------------------------------------------

static struct safety_claim claim_of(const struct scheduler *s, const struct request *request) {
    uint32_t total =
        scheduler_blocks_for(s, positions_max(request->len_max, request->spec.prompt_count));
    INVARIANT(request->block_count <= total);
    return (struct safety_claim){total - request->block_count, request->exclusive};
}

static void set_claim(struct scheduler *s, struct request *request) {
    request->claim = claim_of(s, request);
    safety_tree_add(s->safety, request->claim);
}

// What will be free in the end without anybody finishing: quarantine is already coming back, and
// what lives above the end of a shrinking pool will take places below it.
static uint32_t reachable_free(const struct scheduler *s) {
    INVARIANT(scheduler_live_blocks(s) <= kv_blocks_total(s->options.blocks));
    return kv_blocks_total(s->options.blocks) - scheduler_live_blocks(s);
}

// Takes `count` blocks for the request if they are free and everybody can still finish then.
static bool take_blocks(struct scheduler *s, struct request *request, uint32_t slot,
                        uint32_t count) {
    if (kv_blocks_free(s->options.blocks) < count || reachable_free(s) < count) {
        return false;
    }
    bool registered = request->state != REQUEST_WAITING;
    if (registered) {
        safety_tree_remove(s->safety, request->claim);
    }
    request->block_count += count;
    request->exclusive += count;
    set_claim(s, request);
    if (safety_tree_demand(s->safety) > reachable_free(s) - count) {
        safety_tree_remove(s->safety, request->claim);
        request->block_count -= count;
        request->exclusive -= count;
        if (registered) {
            set_claim(s, request);
        }
        return false;
    }
    uint32_t *ids = scheduler_blocks(s, slot) + request->block_count - count;
    enum status status = kv_blocks_take(s->options.blocks, count, ids);
    INVARIANT(status == STATUS_OK);
    for (uint32_t i = 0; i < count; i++) {
        kv_blocks_set_owner(s->options.blocks, ids[i], s->slots[slot].request);
    }
    return true;
}

// ---- what a step may hold ----------------------------------------------------------------------

// While suspects are left, steps are theirs alone.
static bool any_suspect(const struct scheduler *s) {
    for (uint32_t i = 0; i < s->running; i++) {
        if (request_at(s->options.requests, s->slots[s->order[i]].request)->suspect) {
            return true;
        }
    }
    // Suspects whose admission was refused wait at the front.
    uint32_t first = request_waiting_first(s->options.requests);
    return first != REQUEST_NONE && request_at(s->options.requests, first)->suspect;
}

static void open_step(struct scheduler *s) {
    s->size = (struct step_size){0};
    s->change_count = 0;
    s->prompt_waits = false;
    s->history_left = BOUND_STEP_TOKENS;
    s->allowed = s->envelope;
    s->allowed.tokens = s->split.tokens;
    s->suspects_only = any_suspect(s);
    if (s->suspects_only) {
        s->allowed.seqs = s->split.changes_only ? 0 : s->split.seqs;
    }
}

static bool fits(const struct scheduler *s, const struct step_share *share) {
    struct step_size size = s->size;
    step_size_add(&size, share);
    return step_size_fits(&size, &s->allowed);
}

static bool may_run(const struct scheduler *s, const struct request *request) {
    return !s->suspects_only || request->suspect;
}

// ---- decoding ----------------------------------------------------------------------------------

// The slot's `told` changes with the plan being made.
static struct told *tell(struct scheduler *s, uint32_t slot) {
    struct flight *flight = &s->flights[(s->flight_first + s->flight_count) % SCHEDULER_DEPTH_MAX];
    if (s->slots[slot].told_step != s->step) {
        s->slots[slot].told_step = s->step;
        flight->told[flight->told_count++].slot = slot;
    }
    return &s->slots[slot].told;
}

static void pause_slot(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    scheduler_request(s, slot)->paused = true;
    if (!s->slots[slot].told.paused) {
        tell(s, slot)->paused = true;
        s->change_count++;
        step_plan_update(plan, &(struct plan_update){.ref = scheduler_ref(s, slot), .pause = true});
    }
}

// One more position for a decoding sequence: a new block when it crosses a border, else a pause.
static bool make_room(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    const struct told *told = &s->slots[slot].told;
    bool crosses = request->planned >= request->block_count * s->block_tokens;
    if (crosses && !take_blocks(s, request, slot, 1)) {
        pause_slot(s, plan, slot);
        return false;
    }
    struct plan_update update = {
        .ref = scheduler_ref(s, slot),
        .append_count = request->block_count - told->blocks,
        .append_blocks = scheduler_blocks(s, slot) + told->blocks,
        .resume = told->paused,
    };
    if (update.append_count > 0 || update.resume) {
        step_plan_update(plan, &update);
        tell(s, slot)->blocks = request->block_count;
        tell(s, slot)->paused = false;
    }
    request->paused = false;
    return true;
}

// All running sequences that decode, in order of admission: the oldest gets its block first.
static uint32_t plan_decodes(struct scheduler *s, struct step_plan *plan) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        struct request *request = scheduler_request(s, slot);
        // Its last token may be on its way.
        if (request->state != REQUEST_DECODING || request->planned + 1 >= request->len_max) {
            continue;
        }
        // Envelope: whoever the step has no place for waits, and so is paused for one step.
        struct step_share share =
            step_share_decode(request->planned + 1, request->spec.sampling.want_logprobs);
        if (!may_run(s, request) || !fits(s, &share)) {
            pause_slot(s, plan, slot);
        } else if (make_room(s, plan, slot)) {
            step_size_add(&s->size, &share);
            request->planned++;
            rows++;
        }
    }
    return rows;
}

// ---- prompts -----------------------------------------------------------------------------------

static struct step_share share_of_chunk(const struct request *request, uint32_t tokens) {
    const struct sampling_params *sampling = &request->spec.sampling;
    struct step_chunk chunk = {
        .start = request->planned,
        .count = tokens,
        .last = request->planned + tokens == request->prefill_end,
        .prompt_tokens = request->spec.prompt_count,
        .len_max = request->len_max,
        .want_logprobs = sampling->want_logprobs,
        .want_prompt_logprobs = sampling->want_prompt_logprobs,
    };
    return step_share_chunk(&chunk);
}

// The most of `tokens` that the step has place for: shares grow with the chunk.
static uint32_t chunk_that_fits(const struct scheduler *s, const struct request *request,
                                uint32_t tokens) {
    uint32_t good = 0;
    uint32_t bad = tokens + 1;
    uint32_t next = tokens;    // most often all of it fits
    while (good + 1 < bad) {
        struct step_share share = share_of_chunk(request, next);
        if (fits(s, &share)) {
            good = next;
        } else {
            bad = next;
        }
        next = good + (bad - good) / 2;
    }
    return good;
}

static void plan_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                       uint32_t tokens) {
    struct request *request = scheduler_request(s, slot);
    uint32_t start = request->planned;
    bool last = start + tokens == request->prefill_end;
    bool scored = request->spec.sampling.want_prompt_logprobs && !last;
    struct step_share share = share_of_chunk(request, tokens);
    step_size_add(&s->size, &share);
    request->planned += tokens;
    request->chunk_step = s->step;
    request->state = last ? REQUEST_DECODING : REQUEST_PREFILLING;
    struct flight *flight = &s->flights[(s->flight_first + s->flight_count) % SCHEDULER_DEPTH_MAX];
    flight->chunks[flight->chunk_count++] =
        (struct flight_chunk){slot, s->slots[slot].gen, request->planned};
    step_plan_prefill(plan, &(struct plan_prefill){
                                .ref = scheduler_ref(s, slot),
                                .start_pos = start,
                                .token_count = tokens,
                                .tokens = request->spec.tokens + start,
                                .next_token = scored ? request->spec.tokens[start + tokens] : -1,
                                .last = last,
                            });
}

// First come, first served, until the step's prompt tokens are used up. Returns what is left.
static uint32_t plan_prefills(struct scheduler *s, struct step_plan *plan, uint32_t from,
                              uint32_t budget) {
    for (uint32_t i = from; i < s->running && budget > 0; i++) {
        struct request *request = scheduler_request(s, s->order[i]);
        if (request->state != REQUEST_PREFILLING || request->chunk_step == s->step ||
            !may_run(s, request)) {
            continue;
        }
        uint32_t tokens = smaller(request->prefill_end - request->planned, budget);
        tokens = chunk_that_fits(s, request, tokens);
        if (tokens > 0) {
            plan_chunk(s, plan, s->order[i], tokens);
            budget -= tokens;
        } else {
            s->prompt_waits = true;
        }
    }
    return budget;
}

// ---- cached beginnings -------------------------------------------------------------------------

// Keys of all full blocks of the log, continued from those made before.
static void make_keys(struct scheduler *s, struct request *request) {
    uint32_t full = smaller(request->known / s->block_tokens, request->spec.key_capacity);
    struct prefix_chain chain = {s->options.prefix_secret, request->spec.salt, s->block_tokens};
    prefix_keys(&chain, request->spec.tokens, full * s->block_tokens, request->keys_known,
                request->spec.keys);
    request->keys_known = full;
}

// Blocks of the sequence's beginning that are there already, at most so many that a token is left
// to compute. Scores of a prompt need every position computed.
static uint32_t find_cached(struct scheduler *s, struct request *request, uint32_t *out) {
    const struct sampling_params *sampling = &request->spec.sampling;
    if (request->spec.keys == NULL || sampling->want_prompt_logprobs) {
        return 0;
    }
    make_keys(s, request);
    uint32_t most = smaller((request->known - 1) / s->block_tokens, request->keys_known);
    uint32_t found = 0;
    while (found < most) {
        out[found] = kv_blocks_find(s->options.blocks, &request->spec.keys[found]);
        if (out[found] == PREFIX_NONE) {
            break;
        }
        found++;
    }
    // Where penalties count them, the tokens travel with the admission.
    if (sampling_uses_history(sampling) && found * s->block_tokens > s->history_left) {
        return 0;
    }
    return found;
}

// Blocks that come to be shared no longer return with the one who computed them.
static void disown(struct scheduler *s, const uint32_t *ids, uint32_t count, bool back) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t owner = kv_blocks_owner(s->options.blocks, ids[i]);
        if (owner == KV_OWNER_NONE) {
            continue;
        }
        struct request *request = request_at(s->options.requests, owner);
        safety_tree_remove(s->safety, request->claim);
        request->exclusive += back ? 1 : UINT32_MAX;
        set_claim(s, request);
    }
}

static uint32_t count_free(const struct scheduler *s, const uint32_t *ids, uint32_t count) {
    uint32_t free_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        free_count += kv_blocks_is_free(s->options.blocks, ids[i]) ? 1 : 0;
    }
    return free_count;
}

// The blocks that a waiting request begins with: `found` shared ones, written to `ids` already, and
// new ones behind them. All or nothing, and only where everybody can still finish.
static bool take_first_blocks(struct scheduler *s, struct request *request, uint32_t index,
                              uint32_t *ids, uint32_t found) {
    struct kv_blocks *blocks = s->options.blocks;
    uint32_t fresh = scheduler_blocks_for(s, request->known) - found;
    uint32_t revived = count_free(s, ids, found);
    uint32_t leaves = fresh + revived;
    if (kv_blocks_free(blocks) < leaves || reachable_free(s) < leaves) {
        return false;
    }
    disown(s, ids, found, false);
    request->block_count = found + fresh;
    request->exclusive = fresh;
    set_claim(s, request);
    if (safety_tree_demand(s->safety) > reachable_free(s) - leaves) {
        safety_tree_remove(s->safety, request->claim);
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

// Full blocks whose KV is computed can be found from now on.
static void publish(struct scheduler *s, struct request *request) {
    uint32_t full = request->computed / s->block_tokens;
    if (request->spec.keys == NULL || request->published >= full) {
        return;
    }
    make_keys(s, request);
    full = smaller(full, request->keys_known);
    const uint32_t *ids = scheduler_blocks(s, request->slot);
    for (; request->published < full; request->published++) {
        kv_blocks_publish(s->options.blocks, ids[request->published],
                          &request->spec.keys[request->published]);
    }
}

// ---- admission ---------------------------------------------------------------------------------

static bool try_admit(struct scheduler *s, struct step_plan *plan, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    if (s->free_slot_count == 0) {
        return false;
    }
    uint32_t slot = s->free_slots[s->free_slot_count - 1];
    uint32_t *ids = scheduler_blocks(s, slot);
    uint32_t found = find_cached(s, request, ids);
    if (!take_first_blocks(s, request, index, ids, found)) {
        return false;
    }
    request_waiting_leave(s->options.requests, index);
    s->free_slot_count--;
    s->order[s->running++] = slot;
    request->state = REQUEST_PREFILLING;
    request->slot = slot;
    request->cached = found * s->block_tokens;
    request->computed = request->cached;
    request->planned = request->cached;
    request->published = found;
    request->paused = false;
    s->slots[slot].request = index;
    s->slots[slot].gen++;
    *tell(s, slot) =
        (struct told){.present = true, .gen = s->slots[slot].gen, .blocks = request->block_count};
    s->change_count++;
    uint32_t history = sampling_uses_history(&request->spec.sampling) ? request->cached : 0;
    s->history_left -= history;
    step_plan_admit(plan, &(struct plan_admit){
                              .ref = scheduler_ref(s, slot),
                              .prompt_tokens = request->spec.prompt_count,
                              .len_max = request->len_max,
                              .block_count = request->block_count,
                              .blocks = ids,
                              .cached_tokens = request->cached,
                              .history_count = history,
                              .history = request->spec.tokens,
                              .sampling = request->spec.sampling,
                          });
    return true;
}

// Strict order: the head of the line is never overtaken in this version. Nobody is admitted while a
// running sequence is paused for lack of blocks.
static bool anybody_paused(const struct scheduler *s) {
    for (uint32_t i = 0; i < s->running; i++) {
        if (request_at(s->options.requests, s->slots[s->order[i]].request)->paused) {
            return true;
        }
    }
    return false;
}

// A step without place for one of its tokens admits nobody: it would hold blocks for nothing.
static bool has_place(const struct scheduler *s, struct request *request) {
    request->planned = 0;
    request->prefill_end = request->known;
    request->len_max = scheduler_length_max(s, &request->spec);
    return chunk_that_fits(s, request, 1) > 0;
}

static uint32_t admit_some(struct scheduler *s, struct step_plan *plan, uint32_t budget) {
    // While work is split, sequences pause for it, and only suspects come in.
    // A prompt that the step has no place for would be overtaken without end.
    if (budget == 0 || s->prompt_waits || (anybody_paused(s) && !s->suspects_only)) {
        return budget;
    }
    uint32_t index = request_waiting_first(s->options.requests);
    while (index != REQUEST_NONE && budget > 0) {
        uint32_t next = request_waiting_next(s->options.requests, index);
        uint32_t first = s->running;
        struct request *request = request_at(s->options.requests, index);
        if (!may_run(s, request) || !has_place(s, request) || !try_admit(s, plan, index)) {
            break;
        }
        budget = plan_prefills(s, plan, first, budget);
        index = next;
    }
    return budget;
}

// ---- the step ----------------------------------------------------------------------------------

static void plan_retirements(struct scheduler *s, struct step_plan *plan) {
    for (uint32_t i = 0; i < s->envelope.seqs && s->retire_count > 0; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->request == REQUEST_NONE && slot->told.present) {
            step_plan_retire(plan, (struct slot_ref){i, slot->told.gen});
            *tell(s, i) = (struct told){0};
            s->change_count++;
            s->retire_count--;
            s->free_slots[s->free_slot_count++] = i;
        }
    }
}

static void clear_suspects(struct scheduler *s) {
    s->split.changes_only = false;
    for (uint32_t i = 0; i < s->running; i++) {
        scheduler_request(s, s->order[i])->suspect = false;
    }
    for (uint32_t i = request_waiting_first(s->options.requests); i != REQUEST_NONE;
         i = request_waiting_next(s->options.requests, i)) {
        request_at(s->options.requests, i)->suspect = false;
    }
}

static void plan_step(struct scheduler *s, struct step_plan *plan) {
    open_step(s);
    plan_retirements(s, plan);
    uint32_t rows = plan_decodes(s, plan);
    step_plan_decode_rows(plan, rows);
    scheduler_plan_pool(s, plan);    // before prompts and admissions, which could take the places
    uint32_t budget = s->allowed.tokens - rows;
    if (rows > 0) {
        budget = smaller(budget, BOUND_PREFILL_CONTENDED_TOKENS);
    }
    budget = plan_prefills(s, plan, 0, budget);
    admit_some(s, plan, budget);
}

uint32_t scheduler_outstanding(const struct scheduler *s) {
    return s->flight_count;
}

// A plan made behind others would be wrong where their answers decide what it says: what is divided
// after a refusal, and where blocks are while they move.
static bool must_wait(const struct scheduler *s) {
    bool alone = s->split.changes_only || s->split.tokens < s->envelope.tokens ||
                 s->split.seqs < s->envelope.seqs || s->pool_phase != POOL_STEADY || any_suspect(s);
    return s->flight_count == SCHEDULER_DEPTH_MAX || (s->flight_count > 0 && alone);
}

static void open_flight(struct scheduler *s, struct flight *flight) {
    s->step++;
    flight->chunk_count = 0;
    flight->told_count = 0;
}

bool scheduler_plan(struct scheduler *s, struct step_plan *plan, uint64_t seq) {
    if (must_wait(s)) {
        return false;
    }
    struct flight *flight = &s->flights[(s->flight_first + s->flight_count) % SCHEDULER_DEPTH_MAX];
    open_flight(s, flight);
    plan_step(s, plan);
    if (step_plan_empty(plan) && s->suspects_only) {
        // Suspects wait for blocks that others hold: the step is everybody's again.
        clear_suspects(s);
        open_flight(s, flight);
        plan_step(s, plan);
    }
    INVARIANT(step_size_fits(&s->size, &s->envelope));
    if (step_plan_empty(plan)) {
        return false;
    }
    flight->seq = seq;
    flight->size = s->size;
    flight->change_count = s->change_count;
    for (uint32_t i = 0; i < flight->told_count; i++) {
        flight->told[i].told = s->slots[flight->told[i].slot].told;
    }
    s->flight_count++;
    return true;
}

// ---- answers -----------------------------------------------------------------------------------

// Plans that pass give back what a refused one took.
static void grow_back(struct scheduler *s) {
    struct split *split = &s->split;
    split->changes_only = false;
    split->seqs = smaller(2 * split->seqs, s->envelope.seqs);
    if (split->tokens < s->envelope.tokens && ++split->passed >= SPLIT_PLANS) {
        split->passed = 0;
        split->tokens = smaller(2 * split->tokens, s->envelope.tokens);
    }
}

void scheduler_advance(struct scheduler *s, uint32_t index, uint32_t position) {
    struct request *request = request_at(s->options.requests, index);
    INVARIANT(position <= request->planned);
    request->suspect = false;
    if (position > request->computed) {
        request->computed = position;
        publish(s, request);
    }
}

void scheduler_complete(struct scheduler *s, uint64_t seq) {
    INVARIANT(s->flight_count > 0);
    const struct flight *flight = &s->flights[s->flight_first];
    INVARIANT(flight->seq == seq);
    kv_blocks_complete(s->options.blocks, seq);
    scheduler_finish_moves(s, seq);
    grow_back(s);
    for (uint32_t i = 0; i < flight->told_count; i++) {
        s->slots[flight->told[i].slot].applied = flight->told[i].told;
    }
    for (uint32_t i = 0; i < flight->chunk_count; i++) {
        const struct flight_chunk *chunk = &flight->chunks[i];
        uint32_t index = scheduler_owner(s, (struct slot_ref){chunk->slot, chunk->gen});
        if (index != REQUEST_NONE) {
            scheduler_advance(s, index, chunk->end);
        }
    }
    s->flight_first = (s->flight_first + 1) % SCHEDULER_DEPTH_MAX;
    s->flight_count--;
}

static void leave_slot(struct request *request) {
    request->slot = REQUEST_NONE;
    request->block_count = 0;
    request->exclusive = 0;
    request->computed = 0;
    request->cached = 0;
    request->published = 0;
    request->planned = 0;
    request->paused = false;
}

// Its admission was refused: back to the front of the line. The worker never saw its blocks.
static void take_back(struct scheduler *s, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    safety_tree_remove(s->safety, request->claim);
    kv_blocks_give_back(s->options.blocks, scheduler_blocks(s, slot), request->block_count);
    leave_slot(request);
    request_waiting_enter_front(s->options.requests, s->slots[slot].request);
    s->slots[slot].request = REQUEST_NONE;
}

// Everybody who runs falls back to what the worker knows and has computed; whose admission it never
// took goes back to the line.
static void fall_back(struct scheduler *s, uint32_t *suspect, uint32_t *admissions) {
    *suspect = REQUEST_NONE;
    *admissions = 0;
    // From the last admitted to the first, so that those who go back to the line keep their order.
    for (uint32_t i = s->running; i > 0; i--) {
        uint32_t slot = s->order[i - 1];
        struct request *request = scheduler_request(s, slot);
        const struct told *applied = &s->slots[slot].applied;
        bool known = applied->present && applied->gen == s->slots[slot].gen;
        if (request->planned > request->computed) {
            request->suspect = true;
            *suspect = s->slots[slot].request;
            *admissions += known ? 0 : 1;
        }
        request->planned = request->computed;
        request->state =
            request->computed < request->prefill_end ? REQUEST_PREFILLING : REQUEST_DECODING;
        if (!known) {
            take_back(s, slot);
            s->running--;
            INVARIANT(i - 1 == s->running);    // admissions are the last in the order
        }
    }
    for (uint32_t i = 0; i < s->envelope.seqs; i++) {
        s->slots[i].told = s->slots[i].applied;
    }
    list_free_slots(s);
}

enum scheduler_refusal scheduler_refuse(struct scheduler *s, uint32_t *guilty) {
    INVARIANT(s->flight_count > 0);
    const struct flight *flight = &s->flights[s->flight_first];
    bool alone = s->flight_count == 1;
    uint32_t seqs = flight->size.seqs, rows = flight->size.tokens;
    uint32_t admissions = 0;
    scheduler_undo_moves(s);
    fall_back(s, guilty, &admissions);
    uint32_t other_changes = flight->change_count - (alone ? admissions : 0);
    s->flight_count = 0;
    s->split.passed = 0;
    s->split.seqs = seqs > 1 ? seqs / 2 : 1;
    s->split.tokens = rows > 1 ? rows / 2 : 1;
    if (rows == 0) {
        return SCHEDULER_REFUSAL_STATE;
    }
    if (rows > 1 || !alone) {
        return SCHEDULER_REFUSAL_SPLIT;
    }
    s->split.changes_only = other_changes > 0;
    // Its request may have ended meanwhile: then the slot's retirement follows.
    return other_changes > 0 || *guilty == REQUEST_NONE ? SCHEDULER_REFUSAL_SPLIT
                                                        : SCHEDULER_REFUSAL_GUILTY;
}

static void leave_order(struct scheduler *s, uint32_t slot) {
    uint32_t at = 0;
    while (s->order[at] != slot) {
        at++;
        INVARIANT(at < s->running);
    }
    for (; at + 1 < s->running; at++) {
        s->order[at] = s->order[at + 1];
    }
    s->running--;
}

void scheduler_release(struct scheduler *s, uint32_t index, uint64_t next_seq) {
    struct request *request = request_at(s->options.requests, index);
    INVARIANT(request->state == REQUEST_PREFILLING || request->state == REQUEST_DECODING);
    uint32_t slot = request->slot;
    safety_tree_remove(s->safety, request->claim);
    kv_blocks_retire(s->options.blocks, scheduler_blocks(s, slot), request->block_count, next_seq);
    leave_order(s, slot);
    s->slots[slot].request = REQUEST_NONE;
    s->retire_count++;
    leave_slot(request);
}

void scheduler_stop(struct scheduler *s) {
    // From the last admitted to the first, each to the front: the old order is kept.
    while (s->running > 0) {
        uint32_t slot = s->order[--s->running];
        uint32_t index = s->slots[slot].request;
        struct request *request = request_at(s->options.requests, index);
        leave_slot(request);
        request->keys_known = 0;    // the next worker may have other blocks
        s->slots[slot].request = REQUEST_NONE;
        request_waiting_enter_front(s->options.requests, index);
    }
    clear_suspects(s);    // of the worker that is gone
    s->flight_count = 0;
    s->move_count = 0;
    s->move_blocks = 0;
    s->pool_phase = POOL_STEADY;
    kv_blocks_reset(s->options.blocks, 0);
    safety_tree_reset(s->safety, 0);
    s->envelope.seqs = 0;
    s->free_slot_count = 0;
    s->retire_count = 0;
}

void scheduler_count(const struct scheduler *s, struct scheduler_counts *out) {
    *out = (struct scheduler_counts){0};
    for (uint32_t i = 0; i < s->running; i++) {
        const struct request *request =
            request_at(s->options.requests, s->slots[s->order[i]].request);
        out->prefilling += request->state == REQUEST_PREFILLING ? 1 : 0;
        out->decoding += request->state == REQUEST_DECODING ? 1 : 0;
        out->paused += request->paused ? 1 : 0;
    }
}

void scheduler_audit(const struct scheduler *s) {
    kv_blocks_audit(s->options.blocks);
    uint64_t held = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        INVARIANT(slot < s->envelope.seqs);
        const struct request *request = request_at(s->options.requests, s->slots[slot].request);
        INVARIANT(request->slot == slot);
        INVARIANT(request->known <= request->len_max);
        INVARIANT(request->computed <= request->planned);
        INVARIANT(request->planned <= request->block_count * s->block_tokens);
        INVARIANT(request->planned < request->known + s->flight_count ||
                  request->planned == request->computed || request->state == REQUEST_PREFILLING);
        INVARIANT(s->slots[slot].told.present);
        INVARIANT(s->slots[slot].told.gen == s->slots[slot].gen);
        INVARIANT(s->slots[slot].told.blocks <= request->block_count);
        held += request->block_count;
        INVARIANT(request->exclusive <= request->block_count);
        INVARIANT(request->claim.held == request->exclusive);
        uint32_t owned = 0;
        for (uint32_t k = 0; k < request->block_count; k++) {
            uint32_t id = s->block_ids[(size_t)slot * s->options.blocks_per_seq_max + k];
            uint32_t owner = kv_blocks_owner(s->options.blocks, id);
            owned += owner == s->slots[slot].request ? 1 : 0;
            INVARIANT(owner == KV_OWNER_NONE || kv_blocks_holders(s->options.blocks, id) == 1);
        }
        INVARIANT(owned == request->exclusive);
    }
    INVARIANT(held + s->move_blocks == kv_blocks_holdings(s->options.blocks));
    INVARIANT(kv_blocks_above(s->options.blocks) == 0 || s->pool_phase == POOL_MOVING);
    INVARIANT(s->running + s->free_slot_count + s->retire_count == s->envelope.seqs);
    // The promise: everybody who runs can finish.
    INVARIANT(s->envelope.seqs == 0 || safety_tree_demand(s->safety) <= reachable_free(s));
}
