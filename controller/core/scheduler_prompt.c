// SPDX-License-Identifier: Apache-2.0
// Whose prompt goes on in a step, and how far.
#include "common/invariant.h"
#include "controller/core/scheduler_internal.h"

enum {
    STARVED_STEPS = 8,        // without a chunk: then a prompt gets a block of the next step
    CHUNK_CANDIDATES = 64,    // prompts among which a step's tokens are divided
};

// ---- a chunk -----------------------------------------------------------------------------------

static bool fits(const struct scheduler *s, const struct step_share *share) {
    struct step_size size = s->size;
    step_size_add(&size, share);
    return step_size_fits(&size, &s->allowed);
}

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
uint32_t scheduler_chunk_that_fits(const struct scheduler *s, const struct request *request,
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

void scheduler_plan_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                          uint32_t tokens) {
    struct request *request = scheduler_request(s, slot);
    uint32_t start = request->planned;
    bool last = start + tokens == request->prefill_end;
    bool scored = request->spec.sampling.want_prompt_logprobs && !last;
    struct step_share share = share_of_chunk(request, tokens);
    step_size_add(&s->size, &share);
    cost_shape_add_chunk(&s->shape, start, tokens);
    s->prefill_tokens -= tokens;
    request->planned += tokens;
    request->chunk_step = s->step;
    request->state = last ? REQUEST_DECODING : REQUEST_PREFILLING;
    struct flight *flight = scheduler_open_flight(s);
    flight->chunks[flight->chunk_count++] =
        (struct flight_chunk){slot, s->owners[slot].gen, request->planned};
    step_plan_prefill(plan, &(struct plan_prefill){
                                .ref = scheduler_ref(s, slot),
                                .start_pos = start,
                                .token_count = tokens,
                                .tokens = request->spec.tokens + start,
                                .next_token = scored ? request->spec.tokens[start + tokens] : -1,
                                .last = last,
                            });
}

// ---- how much of which prompt ------------------------------------------------------------------

// Until the cost model has learnt, prompts beside decode rows are bounded by a number.
uint32_t scheduler_open_prompts(struct scheduler *s, uint32_t rows) {
    const struct core_policy *policy = &s->options.policy;
    uint32_t tokens_max = s->allowed.tokens - rows;
    s->time_us = 0;
    if (s->cost.steps < COST_LEARNT_STEPS) {
        return rows == 0 ? tokens_max : u32_min(tokens_max, BOUND_PREFILL_CONTENDED_TOKENS);
    }
    s->time_us = rows == 0 ? policy->prefill_step_us : policy->itl_target_us;
    return tokens_max;
}

// The most of `tokens` that the step has time for; the context before a chunk costs too. Something
// goes on in any case: prompts are not put off by decode rows that take all the time.
uint32_t scheduler_chunk_in_time(const struct scheduler *s, const struct request *request,
                                 uint32_t tokens) {
    if (s->time_us == 0) {
        return tokens;
    }
    uint32_t fitting = cost_model_chunk(&s->cost, &s->shape, request->planned, tokens, s->time_us);
    uint32_t least = s->shape.prefill_tokens == 0 ? u32_min(s->block_tokens, tokens) : 0;
    return fitting > least ? fitting : least;
}

// Chunks end with blocks unless they end the prompt, or are smaller than one.
static uint32_t whole_blocks(const struct scheduler *s, const struct request *request,
                             uint32_t tokens) {
    uint32_t end = request->planned + tokens;
    uint32_t over = end % s->block_tokens;
    return end == request->prefill_end || over >= tokens ? tokens : tokens - over;
}

// A chunk of at most `tokens`; returns its size.
static uint32_t plan_part(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                          uint32_t tokens) {
    struct request *request = scheduler_request(s, slot);
    tokens = scheduler_chunk_in_time(s, request,
                                     u32_min(tokens, request->prefill_end - request->planned));
    uint32_t fitting = scheduler_chunk_that_fits(s, request, tokens);
    s->prompt_waits = s->prompt_waits || (tokens > 0 && fitting == 0);
    if (fitting == 0) {
        return 0;
    }
    tokens = whole_blocks(s, request, fitting);
    scheduler_plan_chunk(s, plan, slot, tokens);
    return tokens;
}

uint32_t scheduler_first_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                               uint32_t budget) {
    return budget - plan_part(s, plan, slot, budget);
}

struct candidate {
    uint32_t slot, rest;
    uint64_t deadline_us, order;
    bool starved;
};

static uint32_t list_candidates(struct scheduler *s, struct candidate *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->prompt_slot_count && count < CHUNK_CANDIDATES; i++) {
        uint32_t slot = s->prompt_slots[i];
        const struct request *request = scheduler_request(s, slot);
        bool told = s->slots[slot].told.present;
        if (request->state != REQUEST_PREFILLING || !told || !scheduler_may_run(s, request)) {
            continue;
        }
        out[count++] =
            (struct candidate){.slot = slot,
                               .rest = request->prefill_end - request->planned,
                               .deadline_us = request->deadline_us,
                               .order = request->order,
                               .starved = request->chunk_step + STARVED_STEPS <= s->step};
    }
    return count;
}

static bool is_more_urgent(const struct candidate *a, const struct candidate *b) {
    return a->deadline_us != b->deadline_us ? a->deadline_us < b->deadline_us : a->order < b->order;
}

// The most urgent prompt gets half of the tokens, whoever had none for some steps a block, and the
// rest goes to those that are finished soonest (serving.md 1.6 step 5). Alone it gets all.
uint32_t scheduler_plan_prompts(struct scheduler *s, struct step_plan *plan, uint32_t budget) {
    struct candidate list[CHUNK_CANDIDATES];
    uint32_t count = list_candidates(s, list);
    if (count == 0 || budget == 0) {
        return budget;
    }
    uint32_t urgent = 0;
    for (uint32_t i = 1; i < count; i++) {
        urgent = is_more_urgent(&list[i], &list[urgent]) ? i : urgent;
    }
    // What is divided is what there is time for.
    uint32_t unused = budget;
    budget = scheduler_chunk_in_time(s, scheduler_request(s, list[urgent].slot), budget);
    unused -= budget;
    // What those who are finished soonest, and those who come in, can use.
    uint32_t others = s->paused_count > 0 || s->free_slot_count == 0
                          ? 0
                          : (uint32_t)(s->waiting_tokens < budget ? s->waiting_tokens : budget);
    for (uint32_t i = 0; i < count; i++) {
        others += i != urgent ? u32_min(list[i].rest, budget) : 0;
        others = u32_min(others, budget);
    }
    uint32_t half = others == 0 ? budget : budget - budget / 2;
    // What nobody else can use is the most urgent one's too.
    uint32_t share = half > budget - others ? half : budget - others;
    uint32_t taken = plan_part(s, plan, list[urgent].slot, share);
    budget -= taken;
    list[urgent].rest = 0;
    for (uint32_t i = 0; i < count && budget > 0; i++) {
        if (list[i].starved && list[i].rest > 0) {
            budget -= plan_part(s, plan, list[i].slot, u32_min(budget, s->block_tokens));
            list[i].rest = 0;
        }
    }
    for (uint32_t left = count; left > 0 && budget > 0; left--) {
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            bool shorter = best == count || list[i].rest < list[best].rest;
            best = list[i].rest > 0 && shorter ? i : best;
        }
        if (best == count) {
            break;
        }
        budget -= plan_part(s, plan, list[best].slot, budget);
        list[best].rest = 0;
    }
    return budget + unused;
}
