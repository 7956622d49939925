// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/core/core_world.h"

#include "common/memory.h"
#include <stdio.h>
#include <string.h>

// ---- actions -----------------------------------------------------------------------------------

static struct client *client_of(struct world *w, uint64_t id) {
    for (int i = 0; i < CLIENTS; i++) {
        if (w->clients[i].open && w->clients[i].id == id) {
            return &w->clients[i];
        }
    }
    ck_abort_msg("action for request %llu, which is not open", (unsigned long long)id);
    return NULL;
}

static void show_oldest(struct lane *lane) {
    lane->plan_waits = lane->pending_count > 0;
    lane->pending[0].result.rows = lane->pending[0].rows;
    lane->result = lane->pending[0].result;
}

static uint32_t take_lane_answer(struct lane *lane) {
    ck_assert_uint_gt(lane->pending_count, 0);
    lane->answered = lane->pending[0];
    lane->answered.result = lane->result;
    if (lane->result.rows == lane->pending[0].rows) {
        lane->answered.result.rows = lane->answered.rows;
    }
    memmove(lane->pending, lane->pending + 1, --lane->pending_count * sizeof *lane->pending);
    show_oldest(lane);
    return lane->answered.resized;
}

uint32_t take_answer(struct world *w) {
    return take_lane_answer(&w->lanes[0]);
}

static void on_token(struct world *w, const struct core_action *action) {
    struct client *client = client_of(w, action->token.id.value);
    uint32_t at = client->prompt_count + client->received;
    ck_assert_uint_eq(action->token.row->position, at);
    ck_assert_int_eq(action->token.row->token, fake_worker_next(client->tokens, at, VOCABULARY));
    ck_assert_int_eq(client->tokens[at], action->token.row->token);
    ck_assert(client->admitted);
    client->first_us = client->received == 0 ? w->now_us : client->first_us;
    client->lane = w->ticked_lane;
    client->received++;
}

static void on_finished(struct world *w, const struct core_action *action) {
    struct client *client = client_of(w, action->finished.id.value);
    w->finished[action->finished.reason]++;
    ck_assert_uint_eq(action->finished.output_count, client->received);
    if (action->finished.reason == FINISH_REASON_LENGTH) {
        ck_assert_uint_eq(client->received, client->output_max);
    }
    if (action->finished.reason == FINISH_REASON_STOP && client->stop_token >= 0) {
        ck_assert_int_eq(client->tokens[client->prompt_count + client->received - 1],
                         client->stop_token);
    }
    client->open = false;
}

static void on_rejected(struct world *w, const struct core_action *action) {
    struct client *client = client_of(w, action->rejected.id.value);
    ck_assert(!client->admitted);    // never once it began
    w->rejected[action->rejected.reason]++;
    client->rejected = true;
    client->reason = action->rejected.reason;
    client->retry_after_ms = action->rejected.retry_after_ms;
    client->open = false;
}

// The worker carries it out at once; its answer waits until the test gives it.
static void take_plan(struct world *w, const struct core_action *action) {
    struct lane *lane = &w->lanes[action->send.worker.value];
    ck_assert_uint_lt(lane->pending_count, w->depth);
    struct pending *pending = &lane->pending[lane->pending_count++];
    fake_worker_run(lane->worker, action->send.plan, &pending->result);
    ck_assert_uint_le(pending->result.row_count, ROWS_MAX);
    if (pending->result.row_count > 0) {
        memcpy(pending->rows, pending->result.rows,
               pending->result.row_count * sizeof *pending->rows);
    }
    if (w->token_us > 0) {
        uint32_t rows = action->send.plan->decode_rows;
        for (uint32_t i = 0; i < action->send.plan->prefill_count; i++) {
            rows += action->send.plan->prefills[i].token_count;
        }
        pending->result.step_us = rows * w->token_us;
    }
    pending->resized = fake_worker_resized(lane->worker);
    w->deepest = lane->pending_count > w->deepest ? lane->pending_count : w->deepest;
    show_oldest(lane);
}

static void on_admitted(struct world *w, const struct core_action *action) {
    struct client *client = client_of(w, action->admitted.id.value);
    ck_assert(!client->admitted);
    client->admitted = true;
    client->cached = action->admitted.cached_tokens;
    client->place = w->admissions++;
}

static void on_action(void *ctx, const struct core_action *action) {
    struct world *w = ctx;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        take_plan(w, action);
        break;
    case CORE_ACTION_TOKEN:
        on_token(w, action);
        break;
    case CORE_ACTION_FINISHED:
        on_finished(w, action);
        break;
    case CORE_ACTION_REJECTED:
        on_rejected(w, action);
        break;
    case CORE_ACTION_ADMITTED:
        on_admitted(w, action);
        break;
    case CORE_ACTION_DRAINED:
        w->drained = true;
        break;
    case CORE_ACTION_RESYNC:
        w->resync = true;
        w->missing = action->resync.missing;
        w->doubted = action->resync.doubted;
        break;
    case CORE_ACTION_RECOVERED:
        w->recovered++;
        w->recovery = *action;
        break;
    case CORE_ACTION_RESIZED:
        w->told_resizes++;
        w->resized = *action;
        snprintf(w->note, sizeof w->note, "%s",
                 action->resized.note == NULL ? "" : action->resized.note);
        break;
    }
}

// ---- inputs ------------------------------------------------------------------------------------

void tick(struct world *w, const struct core_input *input) {
    w->now_us += 1000;
    core_tick(w->core, w->now_us, input, input == NULL ? 0 : 1, on_action, w);
    core_audit(w->core);
}

static void tell_ready(struct world *w, uint32_t index, bool kv_kept) {
    struct lane *lane = &w->lanes[index];
    w->capacity.kv_blocks = fake_worker_pool(lane->worker);
    lane->pending_count = 0;
    show_oldest(lane);
    struct core_input input = {
        .kind = CORE_INPUT_WORKER_READY,
        .ready = {{index}, &w->capacity, lane->epoch, index, w->world, kv_kept}};
    tick(w, &input);
}

void lane_ready(struct world *w, uint32_t index) {
    struct lane *lane = &w->lanes[index];
    fake_worker_reset(lane->worker, ++lane->epoch);
    tell_ready(w, index, false);
}

void lane_back(struct world *w, uint32_t index) {
    struct lane *lane = &w->lanes[index];
    fake_worker_resume(lane->worker, ++lane->epoch);
    tell_ready(w, index, true);
}

void lane_lost(struct world *w, uint32_t index) {
    w->lanes[index].pending_count = 0;
    show_oldest(&w->lanes[index]);
    struct core_input input = {.kind = CORE_INPUT_WORKER_LOST, .lost = {{index}, "test"}};
    tick(w, &input);
}

void worker_ready(struct world *w) {
    lane_ready(w, 0);
}

void worker_lost(struct world *w) {
    lane_lost(w, 0);
}

// Only the first rank sends rows, and what it sent goes as soon as it was taken.
static void tell_answer(struct world *w, uint32_t index, uint32_t rank, uint64_t digest) {
    struct lane *lane = &w->lanes[index];
    struct step_result result = lane->answered.result;
    struct result_row *rows = NULL;
    result.digest = digest;
    result.row_count = rank == 0 ? result.row_count : 0;
    if (result.row_count > 0) {
        rows = memory_array(result.row_count, sizeof *rows);
        memcpy(rows, result.rows, result.row_count * sizeof *rows);
        result.rows = rows;
    }
    struct core_input input = {.kind = CORE_INPUT_RESULT, .result = {{index}, rank, &result}};
    tick(w, &input);
    memory_free(rows);
}

void lane_rank_answer(struct world *w, uint32_t index, uint32_t rank, uint64_t digest) {
    w->ticked_lane = index;
    tell_answer(w, index, rank, digest);
}

void lane_answer(struct world *w, uint32_t index) {
    struct lane *lane = &w->lanes[index];
    uint32_t blocks = take_lane_answer(lane);
    w->ticked_lane = index;
    w->now_us += w->token_us > 0 ? lane->answered.result.step_us : 0;
    uint32_t first = (uint32_t)(w->now_us / 1000) % w->world;    // now this one, now that one
    for (uint32_t i = 0; i < w->world; i++) {
        tell_answer(w, index, (first + i) % w->world, lane->answered.result.digest);
    }
    if (blocks > 0) {
        // The capacity report follows the result, in the same epoch.
        w->capacity.kv_blocks = blocks;
        w->capacity.kv_note = "the test's note";
        struct core_input report = {
            .kind = CORE_INPUT_WORKER_READY,
            .ready = {{index}, &w->capacity, lane->epoch, index, w->world, true}};
        tick(w, &report);
    }
}

void answer(struct world *w) {
    lane_answer(w, 0);
}

void run_dry(struct world *w) {
    bool any = true;
    for (int i = 0; i < 100000 && any; i++) {
        any = false;
        for (uint32_t lane = 0; lane < w->config.groups_max; lane++) {
            if (w->lanes[lane].plan_waits) {
                lane_answer(w, lane);
                any = true;
            }
        }
    }
    ck_assert(!any);
}

void resize(struct world *w, uint32_t blocks) {
    struct core_input input = {.kind = CORE_INPUT_RESIZE_KV,
                               .resize = {++w->asked_resizes, blocks, 0}};
    tick(w, &input);
}

void expect_resized(const struct world *w, enum resize_outcome outcome, uint32_t after) {
    ck_assert_uint_eq(w->told_resizes, w->asked_resizes);
    ck_assert_uint_eq(w->resized.resized.operation, w->asked_resizes);
    ck_assert_int_eq(w->resized.resized.outcome, outcome);
    ck_assert_uint_eq(w->resized.resized.after, after);
}

// ---- clients -----------------------------------------------------------------------------------

struct client *arrive(struct world *w, uint32_t prompt, uint32_t output) {
    struct client *client = NULL;
    for (int i = 0; i < CLIENTS && client == NULL; i++) {
        client = w->clients[i].open ? NULL : &w->clients[i];
    }
    if (client == NULL) {
        return NULL;
    }
    memset(client, 0, sizeof *client);
    client->open = true;
    client->id = ++w->next_id;
    client->class_ = REQUEST_CLASS_STANDARD;
    client->prompt_count = prompt;
    client->output_max = output;
    client->stop_token = -1;
    for (uint32_t i = 0; i < prompt; i++) {
        client->tokens[i] = (int32_t)((client->id * 31 + i * 7) % VOCABULARY);
    }
    return client;
}

void submit(struct world *w, struct client *client) {
    struct core_request request = {
        .id = {client->id},
        .class_ = client->class_,
        .tenant = client->tenant,
        .weight = client->weight,
        .tokens = client->tokens,
        .token_capacity = SEQ_TOKENS + 1,
        .prompt_count = client->prompt_count,
        .resumed_count = client->received,
        .output_max = client->output_max,
        .keys = client->keys,
        .key_capacity = SEQ_TOKENS / CORE_KEY_TOKENS + 1,
        .salt = w->salt,
        .sampling = {.top_p = 1.0f,
                     .repetition_penalty = client->penalised ? 1.1f : 1.0f,
                     .want_logprobs = client->id % 3 == 0,
                     .want_prompt_logprobs = client->id % 5 == 0},
    };
    if (client->stop_token >= 0) {
        request.sampling.stop_token_count = 1;
        request.sampling.stop_tokens[0] = client->stop_token;
    }
    struct core_input input = {.kind = CORE_INPUT_REQUEST, .request = &request};
    tick(w, &input);
}

struct client *arrive_after(struct world *w, const int32_t *begin, uint32_t count, uint32_t prompt,
                            uint32_t output) {
    struct client *client = arrive(w, prompt, output);
    ck_assert_ptr_nonnull(client);
    memcpy(client->tokens, begin, count * sizeof *begin);
    submit(w, client);
    return client;
}

void cancel(struct world *w, const struct client *client) {
    struct core_input input = {.kind = CORE_INPUT_CANCEL, .id = {client->id}};
    tick(w, &input);
}

// ---- life cycle --------------------------------------------------------------------------------

static void world_create(struct world *w) {
    ck_assert_int_eq(core_create(&w->config, &w->core, NULL), STATUS_OK);
    w->capacity = (struct message_capacity){
        .envelope = {.tokens = STEP_TOKENS,
                     .seqs = SEQS,
                     .seq_tokens = SEQ_TOKENS,
                     .logit_rows = STEP_TOKENS,
                     .prompt_logit_rows = STEP_TOKENS,
                     .blocks_per_seq = SEQ_TOKENS / BLOCK_TOKENS,
                     .logprob_rows = STEP_TOKENS,
                     .attended_tokens_max = SEQ_TOKENS,
                     .attended_tokens = (uint64_t)SEQS * SEQ_TOKENS},
        .block_tokens = BLOCK_TOKENS,
        .kv_blocks = KV_BLOCKS,
        .vocabulary = VOCABULARY,
    };
    struct plan_limits limits = {w->capacity.envelope, BLOCK_TOKENS, KV_BLOCKS, VOCABULARY};
    for (uint32_t i = 0; i < w->config.groups_max; i++) {
        w->lanes[i].worker = fake_worker_create(&limits);
    }
}

static void world_prepare(struct world *w, uint32_t depth) {
    memset(w, 0, sizeof *w);
    w->depth = depth;
    w->world = 1;
    w->config = (struct core_config){.seqs_max = SEQS,
                                     .waiting_max = WAITING,
                                     .step_tokens_max = STEP_TOKENS,
                                     .blocks_max = FAKE_BLOCKS_MAX,
                                     .group = 1,
                                     .depth = depth,
                                     .groups_max = 1,
                                     .ranks_max = BOUND_RANKS,
                                     .tenant_max = TENANTS,
                                     .prefix_secret = "a test's secret"};
    core_policy_defaults(&w->config.policy);
}

void world_init_depth(struct world *w, uint32_t depth) {
    world_prepare(w, depth);
    world_create(w);
}

void world_init(struct world *w) {
    world_init_depth(w, 1);
}

void world_init_with(struct world *w, void (*configure)(struct core_config *config)) {
    world_prepare(w, 1);
    configure(&w->config);
    ck_assert_uint_le(w->config.groups_max, LANES);
    world_create(w);
}

void world_deinit(struct world *w) {
    core_destroy(w->core);
    for (uint32_t i = 0; i < w->config.groups_max; i++) {
        fake_worker_destroy(w->lanes[i].worker);
    }
}

// ---- looks -------------------------------------------------------------------------------------

uint32_t open_count(const struct world *w) {
    uint32_t open = 0;
    for (int i = 0; i < CLIENTS; i++) {
        open += w->clients[i].open ? 1 : 0;
    }
    return open;
}

uint32_t pool_of(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    return gauges.kv_blocks_total;
}

uint32_t running(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    return gauges.prefilling + gauges.decoding;
}

void expect_all_blocks_free(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_free, gauges.kv_blocks_total);
    ck_assert_uint_eq(gauges.kv_blocks_quarantined, 0);
}
