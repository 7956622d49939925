// SPDX-License-Identifier: Apache-2.0
// Goal: every request ends exactly once, with exactly the tokens it should have had, whatever is
// lost, cancelled or refused on the way; no block leaks; what is admitted finishes. Method: the
// core driven by a worker without arithmetic, invented time and a seed; core_audit after every
// tick.
#include "common/memory.h"
#include "common/rng.h"
#include "controller/core/core.h"
#include "controller/core/prefix_index.h"
#include "controller/core/scheduler.h"
#include "tests/unit/controller/core/fake_worker.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

enum {
    SEQS = 6,
    WAITING = 20,
    STEP_TOKENS = 24,
    SEQ_TOKENS = 192,
    BLOCK_TOKENS = 16,
    KV_BLOCKS = 24,
    VOCABULARY = 100,
    CLIENTS = 100,
    ROWS_MAX = 200,
};

struct client {
    bool open;
    uint64_t id;
    int32_t tokens[SEQ_TOKENS + 1];
    struct prefix_key keys[SEQ_TOKENS / CORE_KEY_TOKENS + 1];
    bool penalised;
    uint32_t cached;
    uint32_t prompt_count, output_max;
    uint32_t received;
    int32_t stop_token;
    bool admitted;
};

struct world {
    struct core *core;
    struct fake_worker *worker;
    struct message_capacity capacity;
    struct client clients[CLIENTS];
    uint64_t now_us, next_id, epoch;
    bool plan_waits;              // the worker holds a plan it has not answered
    struct step_result result;    // its answer to the oldest
    struct pending {
        struct step_result result;
        struct result_row rows[ROWS_MAX];
        uint32_t resized;
    } pending[SCHEDULER_DEPTH_MAX], answered;
    uint32_t pending_count, depth, deepest;
    bool resync;
    uint32_t asked_resizes, told_resizes;
    struct core_action resized;    // the last
    char note[64];
    bool loses;    // random events include lost workers
    uint64_t salt;
    bool drained;
    uint32_t finished[FINISH_REASON_COUNT], rejected[REJECT_REASON_COUNT];
};

static struct client *client_of(struct world *w, uint64_t id) {
    for (int i = 0; i < CLIENTS; i++) {
        if (w->clients[i].open && w->clients[i].id == id) {
            return &w->clients[i];
        }
    }
    ck_abort_msg("action for request %llu, which is not open", (unsigned long long)id);
    return NULL;
}

static void show_oldest(struct world *w) {
    w->plan_waits = w->pending_count > 0;
    w->pending[0].result.rows = w->pending[0].rows;
    w->result = w->pending[0].result;
}

// The oldest answer is on its way; what a test changed in `result` goes with it.
static uint32_t take_answer(struct world *w) {
    ck_assert_uint_gt(w->pending_count, 0);
    w->answered = w->pending[0];
    w->answered.result = w->result;
    if (w->result.rows == w->pending[0].rows) {
        w->answered.result.rows = w->answered.rows;
    }
    memmove(w->pending, w->pending + 1, --w->pending_count * sizeof *w->pending);
    show_oldest(w);
    return w->answered.resized;
}

static void on_token(struct world *w, const struct core_action *action) {
    struct client *client = client_of(w, action->token.id.value);
    uint32_t at = client->prompt_count + client->received;
    ck_assert_uint_eq(action->token.row->position, at);
    ck_assert_int_eq(action->token.row->token, fake_worker_next(client->tokens, at, VOCABULARY));
    ck_assert_int_eq(client->tokens[at], action->token.row->token);
    ck_assert(client->admitted);
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

// The worker carries it out at once; its answer waits until the test gives it.
static void take_plan(struct world *w, const struct plan *plan) {
    ck_assert_uint_lt(w->pending_count, w->depth);
    struct pending *pending = &w->pending[w->pending_count++];
    fake_worker_run(w->worker, plan, &pending->result);
    ck_assert_uint_le(pending->result.row_count, ROWS_MAX);
    if (pending->result.row_count > 0) {
        memcpy(pending->rows, pending->result.rows,
               pending->result.row_count * sizeof *pending->rows);
    }
    pending->resized = fake_worker_resized(w->worker);
    w->deepest = w->pending_count > w->deepest ? w->pending_count : w->deepest;
    show_oldest(w);
}

static void on_action(void *ctx, const struct core_action *action) {
    struct world *w = ctx;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        take_plan(w, action->send.plan);
        break;
    case CORE_ACTION_TOKEN:
        on_token(w, action);
        break;
    case CORE_ACTION_FINISHED:
        on_finished(w, action);
        break;
    case CORE_ACTION_REJECTED:
        w->rejected[action->rejected.reason]++;
        client_of(w, action->rejected.id.value)->open = false;
        break;
    case CORE_ACTION_ADMITTED:
        ck_assert(!client_of(w, action->admitted.id.value)->admitted);
        client_of(w, action->admitted.id.value)->admitted = true;
        client_of(w, action->admitted.id.value)->cached = action->admitted.cached_tokens;
        break;
    case CORE_ACTION_DRAINED:
        w->drained = true;
        break;
    case CORE_ACTION_RESYNC:
        w->resync = true;
        break;
    case CORE_ACTION_RESIZED:
        w->told_resizes++;
        w->resized = *action;
        snprintf(w->note, sizeof w->note, "%s",
                 action->resized.note == NULL ? "" : action->resized.note);
        break;
    }
}

static void tick(struct world *w, const struct core_input *input) {
    w->now_us += 1000;
    core_tick(w->core, w->now_us, input, input == NULL ? 0 : 1, on_action, w);
    core_audit(w->core);
}

static void worker_ready(struct world *w) {
    fake_worker_reset(w->worker, ++w->epoch);
    w->capacity.kv_blocks = fake_worker_pool(w->worker);
    w->pending_count = 0;
    show_oldest(w);
    struct core_input input = {.kind = CORE_INPUT_WORKER_READY,
                               .ready = {{0}, &w->capacity, w->epoch}};
    tick(w, &input);
}

static void worker_lost(struct world *w) {
    w->pending_count = 0;
    show_oldest(w);
    struct core_input input = {.kind = CORE_INPUT_WORKER_LOST, .lost = {{0}, "test"}};
    tick(w, &input);
}

static void answer(struct world *w) {
    uint32_t blocks = take_answer(w);
    struct core_input input = {.kind = CORE_INPUT_RESULT, .result = {{0}, &w->answered.result}};
    tick(w, &input);
    if (blocks > 0) {
        // The capacity report follows the result, in the same epoch.
        w->capacity.kv_blocks = blocks;
        w->capacity.kv_note = "the test's note";
        struct core_input report = {.kind = CORE_INPUT_WORKER_READY,
                                    .ready = {{0}, &w->capacity, w->epoch}};
        tick(w, &report);
    }
}

static void resize(struct world *w, uint32_t blocks) {
    struct core_input input = {.kind = CORE_INPUT_RESIZE_KV,
                               .resize = {++w->asked_resizes, blocks}};
    tick(w, &input);
}

static void expect_resized(const struct world *w, enum resize_outcome outcome, uint32_t after) {
    ck_assert_uint_eq(w->told_resizes, w->asked_resizes);
    ck_assert_uint_eq(w->resized.resized.operation, w->asked_resizes);
    ck_assert_int_eq(w->resized.resized.outcome, outcome);
    ck_assert_uint_eq(w->resized.resized.after, after);
}

static struct client *arrive(struct world *w, uint32_t prompt, uint32_t output) {
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
    client->prompt_count = prompt;
    client->output_max = output;
    client->stop_token = -1;
    for (uint32_t i = 0; i < prompt; i++) {
        client->tokens[i] = (int32_t)((client->id * 31 + i * 7) % VOCABULARY);
    }
    return client;
}

static void submit(struct world *w, struct client *client) {
    struct core_request request = {
        .id = {client->id},
        .class_ = REQUEST_CLASS_STANDARD,
        .tokens = client->tokens,
        .token_capacity = SEQ_TOKENS + 1,
        .prompt_count = client->prompt_count,
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

static void world_init_depth(struct world *w, uint32_t depth) {
    memset(w, 0, sizeof *w);
    w->depth = depth;
    struct core_config config = {.seqs_max = SEQS,
                                 .waiting_max = WAITING,
                                 .step_tokens_max = STEP_TOKENS,
                                 .blocks_max = FAKE_BLOCKS_MAX,
                                 .group = 1,
                                 .depth = depth,
                                 .groups_max = 1,
                                 .tenant_max = 4,
                                 .prefix_secret = "a test's secret"};
    core_policy_defaults(&config.policy);
    ck_assert_int_eq(core_create(&config, &w->core, NULL), STATUS_OK);
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
    w->worker = fake_worker_create(&limits);
}

static void world_init(struct world *w) {
    world_init_depth(w, 1);
}

static void world_deinit(struct world *w) {
    core_destroy(w->core);
    fake_worker_destroy(w->worker);
}

static uint32_t open_count(const struct world *w) {
    uint32_t open = 0;
    for (int i = 0; i < CLIENTS; i++) {
        open += w->clients[i].open ? 1 : 0;
    }
    return open;
}

// Answers plans until nothing is outstanding; bounded by the work that can exist.
static void run_dry(struct world *w) {
    for (int i = 0; i < 100000 && w->plan_waits; i++) {
        answer(w);
    }
    ck_assert(!w->plan_waits);
}

START_TEST(one_request_gets_all_its_tokens_and_returns_its_blocks) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 50, 40));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_free, KV_BLOCKS);
    ck_assert_uint_eq(gauges.kv_blocks_quarantined, 0);
    world_deinit(&w);
}
END_TEST

START_TEST(a_stop_token_ends_with_stop_and_is_counted) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    struct client *client = arrive(&w, 10, 100);
    int32_t tokens[200];
    memcpy(tokens, client->tokens, 10 * sizeof tokens[0]);
    for (uint32_t i = 10; i < 15; i++) {
        tokens[i] = fake_worker_next(tokens, i, VOCABULARY);
    }
    client->stop_token = tokens[14];
    submit(&w, client);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_STOP], 1);
    ck_assert_uint_le(client->received, 5);
    world_deinit(&w);
}
END_TEST

START_TEST(before_a_worker_requests_are_unavailable) {
    struct world w;
    world_init(&w);
    submit(&w, arrive(&w, 5, 5));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_UNAVAILABLE], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(the_line_is_bounded_and_one_past_it_is_refused) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    // The first admission is sent at once; nothing else moves while its step is out.
    submit(&w, arrive(&w, 20, 100));
    for (int i = 0; i < WAITING; i++) {
        submit(&w, arrive(&w, 20, 20));
    }
    ck_assert_uint_eq(w.rejected[REJECT_REASON_QUEUE_FULL], 0);
    submit(&w, arrive(&w, 20, 20));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_QUEUE_FULL], 1);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], WAITING + 1);
    world_deinit(&w);
}
END_TEST

START_TEST(what_can_never_fit_is_refused_and_the_largest_that_fits_is_served) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, SEQ_TOKENS - 10, 10));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    submit(&w, arrive(&w, SEQ_TOKENS - 10, 11));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_TOO_LARGE], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(cancel_in_every_state_frees_everything) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int steps = 0; steps < 12; steps++) {
        struct client *other = arrive(&w, 30, 5);
        submit(&w, other);
        struct client *client = arrive(&w, 60, 30);
        struct core_input cancel = {.kind = CORE_INPUT_CANCEL, .id = {client->id}};
        submit(&w, client);
        for (int i = 0; i < steps && w.plan_waits; i++) {
            answer(&w);
        }
        tick(&w, &cancel);
        tick(&w, &cancel);    // twice: the second finds nothing
        run_dry(&w);
        struct core_gauges gauges;
        core_gauges(w.core, w.now_us, &gauges);
        ck_assert_uint_eq(gauges.kv_blocks_free, KV_BLOCKS);
    }
    ck_assert_uint_eq(open_count(&w), 0);
    ck_assert_uint_eq(w.finished[FINISH_REASON_CANCELLED], 12);
    world_deinit(&w);
}
END_TEST

START_TEST(a_lost_worker_costs_no_token) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 5; i++) {
        submit(&w, arrive(&w, 40, 60));
    }
    for (int loss = 0; loss < 3; loss++) {
        for (int i = 0; i < 10; i++) {
            answer(&w);
        }
        worker_lost(&w);
        worker_ready(&w);
    }
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 5);
    world_deinit(&w);
}
END_TEST

// A worker that comes back with half the context: what fits goes on to its own end, what is already
// longer or can never fit the pool fails, and nothing stays in the line.
START_TEST(a_worker_that_comes_back_smaller_fails_only_what_no_longer_fits) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 40, 20));
    submit(&w, arrive(&w, 96, 30));
    submit(&w, arrive(&w, 97, 30));
    worker_lost(&w);
    submit(&w, arrive(&w, 150, 10));    // while nobody can judge it
    w.capacity.envelope.seq_tokens = 96;
    w.capacity.envelope.attended_tokens_max = 96;
    w.capacity.envelope.blocks_per_seq = 96 / BLOCK_TOKENS;
    worker_ready(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_FAULT], 3);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_eq(open_count(&w), 0);

    submit(&w, arrive(&w, 40, 20));
    worker_lost(&w);
    w.capacity.vocabulary = VOCABULARY - 1;
    worker_ready(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_FAULT], 4);
    ck_assert_uint_eq(open_count(&w), 0);
    world_deinit(&w);
}
END_TEST

START_TEST(a_request_lost_too_often_fails_once) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 40, 60));
    for (uint32_t loss = 0; loss <= BOUND_RESUMES; loss++) {
        ck_assert_uint_eq(w.finished[FINISH_REASON_FAULT], 0);
        worker_lost(&w);
        worker_ready(&w);
    }
    ck_assert_uint_eq(w.finished[FINISH_REASON_FAULT], 1);
    ck_assert_uint_eq(open_count(&w), 0);
    world_deinit(&w);
}
END_TEST

START_TEST(a_broken_result_starts_a_new_epoch_and_costs_no_token) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 10, 20));
    answer(&w);
    struct result_row rows[2] = {w.result.rows[0], w.result.rows[0]};
    w.result.rows = rows;
    w.result.row_count = 2;    // the same sequence twice
    answer(&w);
    ck_assert(w.resync);
    worker_ready(&w);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(a_result_that_never_comes_starts_a_new_epoch_and_costs_no_token) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 10, 20));
    answer(&w);
    ck_assert(w.plan_waits);
    for (int seconds = 0; seconds < 120 && !w.resync; seconds++) {
        w.now_us += 1000 * 1000;
        tick(&w, NULL);
    }
    ck_assert(w.resync);
    worker_ready(&w);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(drain_finishes_what_runs_and_refuses_what_comes) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 10, 20));
    struct core_input drain = {.kind = CORE_INPUT_DRAIN};
    tick(&w, &drain);
    ck_assert(!w.drained);
    submit(&w, arrive(&w, 10, 20));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_DRAINING], 1);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert(w.drained);
    world_deinit(&w);
}
END_TEST

START_TEST(abort_all_ends_everything_at_once) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 12; i++) {
        submit(&w, arrive(&w, 20, 50));
    }
    struct core_input abort_all = {.kind = CORE_INPUT_ABORT_ALL};
    tick(&w, &abort_all);
    ck_assert_uint_eq(w.finished[FINISH_REASON_SHUTDOWN], 12);
    ck_assert(w.drained);
    world_deinit(&w);
}
END_TEST

// Six sequences that may each grow to half the pool: only pausing in place lets all finish.
START_TEST(memory_pressure_pauses_and_never_loses) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 6; i++) {
        submit(&w, arrive(&w, 16, 176));
    }
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 6);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    world_deinit(&w);
}
END_TEST

static void expect_all_blocks_free(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_free, KV_BLOCKS);
    ck_assert_uint_eq(gauges.kv_blocks_quarantined, 0);
}

// One limit of the worker's that it did not tell, at half of what steps would reach.
START_TEST(refused_plans_are_split_and_cost_no_token) {
    struct world w;
    world_init(&w);
    struct envelope secret = w.capacity.envelope;
    switch (_i) {
    case 0:
        secret.tokens = 3;
        break;
    case 1:
        secret.seqs = 2;
        break;
    case 2:
        secret.logit_rows = 2;
        break;
    case 3:
        secret.logprob_rows = 1;
        break;
    case 4:
        secret.prompt_logit_rows = 2;
        break;
    default:
        secret.attended_tokens = 150;
        break;
    }
    fake_worker_narrow(w.worker, &secret, -1);
    worker_ready(&w);
    for (int i = 0; i < 15; i++) {
        submit(&w, arrive(&w, 40, 50));
    }
    run_dry(&w);
    ck_assert_uint_gt(core_counters(w.core)->plan_refusals, 0);
    ck_assert_uint_eq(core_counters(w.core)->plan_refusals, fake_worker_refusals(w.worker));
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 15);
    ck_assert(!w.resync);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(what_no_step_has_a_row_for_is_refused_at_once) {
    struct world w;
    world_init(&w);
    w.capacity.envelope.logprob_rows = 0;
    worker_ready(&w);
    for (int i = 0; i < 15; i++) {
        submit(&w, arrive(&w, 10, 10));    // every third and every fifth wants logprobs
    }
    ck_assert_uint_eq(w.rejected[REJECT_REASON_TOO_LARGE], 7);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 8);
    world_deinit(&w);
}
END_TEST

START_TEST(a_long_prompt_is_not_overtaken_without_end) {
    struct world w;
    world_init(&w);
    w.capacity.envelope.attended_tokens = SEQ_TOKENS;
    struct plan_limits limits = {w.capacity.envelope, BLOCK_TOKENS, KV_BLOCKS, VOCABULARY};
    fake_worker_destroy(w.worker);
    w.worker = fake_worker_create(&limits);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 20));
    struct client *client = arrive(&w, 180, 5);    // attends to nearly all a step may attend to
    submit(&w, client);
    // Short ones go on coming as fast as they end.
    for (int i = 0; i < 400 && client->received == 0; i++) {
        if (open_count(&w) < 6) {
            submit(&w, arrive(&w, 20, 10));
        }
        answer(&w);
    }
    ck_assert_uint_gt(client->received, 0);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

// Mapping may take long, and what waits behind it is not lost.
START_TEST(a_slow_resize_is_no_lost_step) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 20));
    answer(&w);
    resize(&w, 30);
    answer(&w);
    uint32_t blocks = 0;
    while (blocks == 0) {
        blocks = take_answer(&w);
        struct core_input input = {.kind = CORE_INPUT_RESULT, .result = {{0}, &w.answered.result}};
        tick(&w, &input);
    }
    ck_assert(w.plan_waits);
    for (int seconds = 0; seconds < 120; seconds++) {
        w.now_us += 1000 * 1000;
        tick(&w, NULL);
    }
    ck_assert(!w.resync);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.step_overdue_us, 0);
    w.capacity.kv_blocks = blocks;
    struct core_input report = {.kind = CORE_INPUT_WORKER_READY,
                                .ready = {{0}, &w.capacity, w.epoch}};
    tick(&w, &report);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.step_overdue_us, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(a_request_that_is_always_refused_fails_alone) {
    struct world w;
    world_init(&w);
    fake_worker_narrow(w.worker, &w.capacity.envelope, 77);
    worker_ready(&w);
    for (int i = 0; i < 12; i++) {
        struct client *client = arrive(&w, 40, 50);
        client->tokens[0] = i == 3 || i == 9 ? 77 : 5;
        submit(&w, client);
    }
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_REFUSED], 2);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 10);
    ck_assert(!w.resync);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

// A worker that refuses whatever comes is not cured by failing one request after another.
START_TEST(a_worker_that_refuses_everything_gets_a_new_epoch) {
    struct world w;
    world_init(&w);
    struct envelope nothing = w.capacity.envelope;
    nothing.tokens = 0;
    worker_ready(&w);
    for (int i = 0; i < 4; i++) {
        submit(&w, arrive(&w, 10, 50));
    }
    answer(&w);
    fake_worker_narrow(w.worker, &nothing, -1);
    for (int i = 0; i < 200 && !w.resync; i++) {
        answer(&w);
    }
    ck_assert(w.resync);
    ck_assert_uint_le(w.finished[FINISH_REASON_REFUSED], 1);
    fake_worker_narrow(w.worker, &w.capacity.envelope, -1);
    worker_ready(&w);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH] + w.finished[FINISH_REASON_REFUSED], 4);
    world_deinit(&w);
}
END_TEST

// ---- another size of the pool ------------------------------------------------------------------

static uint32_t pool_of(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    return gauges.kv_blocks_total;
}

static uint32_t running(const struct world *w) {
    struct core_gauges gauges;
    core_gauges(w->core, w->now_us, &gauges);
    return gauges.prefilling + gauges.decoding;
}

START_TEST(an_idle_pool_shrinks_and_grows) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    resize(&w, 14);
    ck_assert_uint_eq(pool_of(&w), 14);    // at once
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 14);
    resize(&w, 40);
    ck_assert_uint_eq(pool_of(&w), 14);    // not before the memory is there
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 40);
    ck_assert_uint_eq(pool_of(&w), 40);
    ck_assert_str_eq(w.note, "the test's note");
    submit(&w, arrive(&w, 100, 90));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

// Sequences spread over the pool, whoever sits low ends, and the rest moves down.
START_TEST(a_busy_pool_shrinks_by_moving_blocks) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 3; i++) {
        submit(&w, arrive(&w, 40, 8));
    }
    for (int i = 0; i < 3; i++) {
        submit(&w, arrive(&w, 40, 60));
    }
    while (w.finished[FINISH_REASON_LENGTH] < 3) {
        answer(&w);
    }
    ck_assert_uint_eq(running(&w), 3);
    resize(&w, 1);
    uint32_t end = pool_of(&w);
    ck_assert_uint_lt(end, KV_BLOCKS);
    ck_assert_uint_gt(end,
                      6);    // each of three needs seven blocks in the end, one after the other
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_NEEDED, end);
    ck_assert_uint_gt(fake_worker_moves(w.worker), 0);
    ck_assert_uint_eq(core_counters(w.core)->kv_blocks_moved, fake_worker_moves(w.worker));
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 6);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    world_deinit(&w);
}
END_TEST

START_TEST(admissions_follow_the_pool) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    resize(&w, 12);
    run_dry(&w);
    // Each needs all of it: one at a time. The largest still fits, one token more does not.
    submit(&w, arrive(&w, 180, 12));
    submit(&w, arrive(&w, 180, 12));
    answer(&w);
    ck_assert_uint_eq(running(&w), 1);
    resize(&w, 30);
    for (int i = 0; i < 10; i++) {
        answer(&w);    // until the first prompt leaves tokens of a step to the second
    }
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    ck_assert_uint_eq(running(&w), 2);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 2);
    resize(&w, 6);
    run_dry(&w);
    submit(&w, arrive(&w, 90, 7));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_TOO_LARGE], 1);
    submit(&w, arrive(&w, 90, 6));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 3);
    world_deinit(&w);
}
END_TEST

START_TEST(who_waits_keeps_the_room_it_was_promised) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 10));
    submit(&w, arrive(&w, 150, 42));    // twelve blocks, still in the line
    resize(&w, 3);
    ck_assert_uint_eq(pool_of(&w), 12);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_NEEDED, 12);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 2);
    world_deinit(&w);
}
END_TEST

START_TEST(chunks_and_budgets_are_the_workers_word) {
    struct world w;
    world_init(&w);
    fake_worker_budget(w.worker, 5, 30);
    worker_ready(&w);
    resize(&w, 11);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_ROUNDED, 15);
    ck_assert_uint_eq(pool_of(&w), 15);
    resize(&w, 31);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_SHORT, 15);
    ck_assert_uint_eq(pool_of(&w), 15);
    resize(&w, 30);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    world_deinit(&w);
}
END_TEST

START_TEST(one_resize_at_a_time_and_none_without_a_worker) {
    struct world w;
    world_init(&w);
    resize(&w, 10);
    expect_resized(&w, RESIZE_OUTCOME_UNAVAILABLE, 0);
    worker_ready(&w);
    resize(&w, 12);
    resize(&w, 20);
    ck_assert_uint_eq(w.told_resizes, 2);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_BUSY);
    ck_assert_uint_eq(w.resized.resized.operation, 3);
    run_dry(&w);
    ck_assert_uint_eq(w.told_resizes, 3);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_DONE);
    ck_assert_uint_eq(w.resized.resized.operation, 2);
    world_deinit(&w);
}
END_TEST

START_TEST(a_worker_lost_during_a_resize_tells_its_size_anew) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 4; i++) {
        submit(&w, arrive(&w, 40, 60));
    }
    for (int i = 0; i < 8; i++) {
        answer(&w);
    }
    resize(&w, 13);
    worker_lost(&w);
    expect_resized(&w, RESIZE_OUTCOME_LOST, KV_BLOCKS);
    worker_ready(&w);
    ck_assert_uint_eq(pool_of(&w), KV_BLOCKS);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 4);
    world_deinit(&w);
}
END_TEST

// A client whose prompt begins with the first `count` tokens of another one's sequence.
static struct client *arrive_after(struct world *w, const int32_t *begin, uint32_t count,
                                   uint32_t prompt, uint32_t output) {
    struct client *client = arrive(w, prompt, output);
    ck_assert_ptr_nonnull(client);
    memcpy(client->tokens, begin, count * sizeof *begin);
    submit(w, client);
    return client;
}

// More sequences than a plan copies blocks share the beginning of a prompt, in a block above the
// new end: one copy, told to all of them.
START_TEST(a_block_of_very_many_sequences_moves) {
    enum { MANY = 96, TOKENS = 512, BLOCKS = 150 };
    struct world w;
    world_init(&w);
    world_deinit(&w);
    struct core_config config = {.seqs_max = MANY,
                                 .waiting_max = MANY,
                                 .step_tokens_max = TOKENS,
                                 .blocks_max = FAKE_BLOCKS_MAX,
                                 .group = 1,
                                 .depth = w.depth,
                                 .groups_max = 1,
                                 .tenant_max = 1};
    core_policy_defaults(&config.policy);
    ck_assert_int_eq(core_create(&config, &w.core, NULL), STATUS_OK);
    struct envelope *e = &w.capacity.envelope;
    e->seqs = MANY;
    e->tokens = e->logit_rows = e->prompt_logit_rows = e->logprob_rows = TOKENS;
    e->attended_tokens = MANY * SEQ_TOKENS;
    struct plan_limits limits = {*e, BLOCK_TOKENS, BLOCKS, VOCABULARY};
    w.worker = fake_worker_create(&limits);
    worker_ready(&w);
    // These take the low blocks, and leave once somebody has begun above them.
    uint64_t first = w.next_id + 1;
    for (int i = 0; i < 9; i++) {
        submit(&w, arrive(&w, 180, 12));
    }
    int32_t begin[SEQ_TOKENS] = {1, 2, 3, 4, 5};
    struct client *head = arrive_after(&w, begin, BLOCK_TOKENS, 20, 60);
    while (head->received < 8) {
        answer(&w);
    }
    for (uint64_t id = first; id < first + 9; id++) {
        struct core_input cancel = {.kind = CORE_INPUT_CANCEL, .id = {id}};
        tick(&w, &cancel);
    }
    for (int i = 0; i < 85; i++) {
        arrive_after(&w, begin, BLOCK_TOKENS, 20, 12);
    }
    for (int i = 0; i < 4; i++) {
        answer(&w);
    }
    ck_assert_uint_gt(running(&w), BOUND_KV_COPIES);
    resize(&w, 20);
    run_dry(&w);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_NEEDED);
    ck_assert_uint_lt(w.resized.resized.after, BLOCKS);
    ck_assert_uint_gt(core_counters(w.core)->kv_blocks_moved, 0);
    ck_assert_uint_gt(fake_worker_moves(w.worker), BOUND_KV_COPIES);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH] + w.finished[FINISH_REASON_CANCELLED], 95);
    world_deinit(&w);
}
END_TEST

START_TEST(a_beginning_that_was_computed_is_not_computed_again) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    struct client *first = arrive(&w, 80, 20);
    first->id = w.next_id = 1;    // no prompt scores
    submit(&w, first);
    run_dry(&w);
    int32_t log[100];
    memcpy(log, first->tokens, sizeof log);
    // While it is free, and again while somebody holds it; outputs count as well as prompts.
    struct client *second = arrive_after(&w, log, 80, 100, 20);
    struct client *third = arrive_after(&w, log, 97, 100, 20);
    run_dry(&w);
    ck_assert_uint_eq(second->cached, 80);
    ck_assert_uint_eq(third->cached, 96);
    ck_assert_uint_eq(core_counters(w.core)->tokens_prompt_cached, 176);
    ck_assert_uint_eq(fake_worker_cached(w.worker), 176);
    // All but the last token at most: one must be computed to draw from.
    struct client *same = arrive_after(&w, log, 64, 64, 4);
    run_dry(&w);
    ck_assert_uint_eq(same->cached, 48);
    // Others share nothing.
    w.salt = 9;
    struct client *stranger = arrive_after(&w, log, 80, 100, 4);
    run_dry(&w);
    ck_assert_uint_eq(stranger->cached, 0);
    world_deinit(&w);
}
END_TEST

START_TEST(cached_blocks_go_when_room_is_needed_the_end_of_a_sequence_first) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    struct client *first = arrive(&w, 160, 1);
    first->id = w.next_id = 1;
    submit(&w, first);
    run_dry(&w);
    int32_t log[160];
    memcpy(log, first->tokens, sizeof log);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_cached, 10);
    ck_assert_uint_eq(gauges.kv_blocks_free, KV_BLOCKS);
    // 24 blocks, 10 of them cached: 19 for two others cost the last five.
    submit(&w, arrive(&w, 150, 2));
    submit(&w, arrive(&w, 130, 2));
    run_dry(&w);
    struct client *again = arrive_after(&w, log, 160, 170, 2);
    run_dry(&w);
    ck_assert_uint_eq(again->cached, 5 * BLOCK_TOKENS);
    world_deinit(&w);
}
END_TEST

static void random_event(struct world *w, struct rng *rng) {
    uint64_t dice = rng_below(rng, 100);
    if (dice < 25) {
        uint32_t prompt = 1 + (uint32_t)rng_below(rng, 100);
        struct client *client =
            arrive(w, prompt, 1 + (uint32_t)rng_below(rng, SEQ_TOKENS - prompt));
        if (client != NULL) {
            client->stop_token = rng_below(rng, 4) == 0 ? (int32_t)rng_below(rng, VOCABULARY) : -1;
            client->penalised = rng_below(rng, 4) == 0;
            // Few beginnings, and some whole logs of others.
            const struct client *other = &w->clients[rng_below(rng, CLIENTS)];
            uint32_t known = other->prompt_count + other->received;
            if (rng_below(rng, 2) == 0) {
                for (uint32_t i = 0; i < prompt / 2; i++) {
                    client->tokens[i] = 3;
                }
            } else if (known > 0 && other != client) {
                memcpy(client->tokens, other->tokens,
                       (known < prompt ? known : prompt) * sizeof *client->tokens);
            }
            submit(w, client);
        }
    } else if (dice < 32) {
        struct client *client = &w->clients[rng_below(rng, CLIENTS)];
        if (client->open) {
            enum core_input_kind kind =
                rng_below(rng, 2) == 0 ? CORE_INPUT_CANCEL : CORE_INPUT_STOP;
            client->stop_token = -1;
            tick(w, &(struct core_input){.kind = kind, .id = {client->id}});
        }
    } else if (dice < 33) {
        resize(w, 1 + (uint32_t)rng_below(rng, 40));
    } else if (dice == 33 && w->loses) {
        worker_lost(w);
        worker_ready(w);
    } else if (w->plan_waits) {
        answer(w);
    } else {
        tick(w, NULL);
    }
}

// Every third worker tells a small envelope, which its controller must never leave; every other one
// is in truth smaller than it told, and refuses.
static void random_envelope(struct world *w, struct rng *rng, int kind) {
    struct envelope *e = &w->capacity.envelope;
    struct envelope smaller = *e;
    smaller.tokens = 1 + (uint32_t)rng_below(rng, STEP_TOKENS);
    smaller.logit_rows = 1 + (uint32_t)rng_below(rng, STEP_TOKENS);
    smaller.prompt_logit_rows = 1 + (uint32_t)rng_below(rng, STEP_TOKENS);
    smaller.logprob_rows = 1 + (uint32_t)rng_below(rng, STEP_TOKENS);
    smaller.attended_tokens = SEQ_TOKENS + rng_below(rng, SEQ_TOKENS);
    if (kind % 3 == 1) {
        *e = smaller;
        struct plan_limits limits = {*e, BLOCK_TOKENS, KV_BLOCKS, VOCABULARY};
        fake_worker_destroy(w->worker);
        w->worker = fake_worker_create(&limits);
    } else if (kind % 3 == 2) {
        fake_worker_narrow(w->worker, &smaller, 7);
    }
}

START_TEST(random_histories_keep_every_promise) {
    struct world w;
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    world_init_depth(&w, 1 + (uint32_t)_i / 3 % SCHEDULER_DEPTH_MAX);
    random_envelope(&w, &rng, _i);
    w.loses = _i % 2 == 0;
    worker_ready(&w);
    for (int i = 0; i < 4000; i++) {
        random_event(&w, &rng);
    }
    run_dry(&w);
    ck_assert_uint_eq(open_count(&w), 0);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_free, w.capacity.kv_blocks);
    ck_assert_uint_eq(gauges.kv_blocks_total, w.capacity.kv_blocks);
    ck_assert_uint_eq(w.told_resizes, w.asked_resizes);
    ck_assert_uint_gt(fake_worker_moves(w.worker), 0);
    ck_assert_uint_eq(w.deepest, w.depth);
    ck_assert_uint_gt(fake_worker_cached(w.worker), 0);
    // Nobody who was accepted is failed for a smaller pool.
    ck_assert(w.loses || w.finished[FINISH_REASON_FAULT] == 0);
    ck_assert(w.loses || core_counters(w.core)->tokens_recomputed == 0);
    uint32_t ended = 0;
    for (int i = 0; i < FINISH_REASON_COUNT; i++) {
        ended += w.finished[i];
    }
    for (int i = 0; i < REJECT_REASON_COUNT; i++) {
        ended += w.rejected[i];
    }
    ck_assert_uint_eq(ended, w.next_id);
    ck_assert(!w.resync);
    // Some were answered by a worker that was lost with its answer.
    ck_assert_uint_le(core_counters(w.core)->plan_refusals, fake_worker_refusals(w.worker));
    ck_assert(_i % 3 != 2 || fake_worker_refusals(w.worker) > 0);
    world_deinit(&w);
}
END_TEST

Suite *suite_core(void) {
    Suite *suite = suite_create("controller/core");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, one_request_gets_all_its_tokens_and_returns_its_blocks);
    tcase_add_test(tc, a_stop_token_ends_with_stop_and_is_counted);
    tcase_add_test(tc, a_beginning_that_was_computed_is_not_computed_again);
    tcase_add_test(tc, cached_blocks_go_when_room_is_needed_the_end_of_a_sequence_first);
    tcase_add_test(tc, before_a_worker_requests_are_unavailable);
    tcase_add_test(tc, the_line_is_bounded_and_one_past_it_is_refused);
    tcase_add_test(tc, what_can_never_fit_is_refused_and_the_largest_that_fits_is_served);
    tcase_add_test(tc, cancel_in_every_state_frees_everything);
    tcase_add_test(tc, a_lost_worker_costs_no_token);
    tcase_add_test(tc, a_worker_that_comes_back_smaller_fails_only_what_no_longer_fits);
    tcase_add_test(tc, a_request_lost_too_often_fails_once);
    tcase_add_test(tc, a_broken_result_starts_a_new_epoch_and_costs_no_token);
    tcase_add_test(tc, a_result_that_never_comes_starts_a_new_epoch_and_costs_no_token);
    tcase_add_test(tc, drain_finishes_what_runs_and_refuses_what_comes);
    tcase_add_test(tc, abort_all_ends_everything_at_once);
    tcase_add_test(tc, memory_pressure_pauses_and_never_loses);
    tcase_add_loop_test(tc, refused_plans_are_split_and_cost_no_token, 0, 6);
    tcase_add_test(tc, a_request_that_is_always_refused_fails_alone);
    tcase_add_test(tc, a_worker_that_refuses_everything_gets_a_new_epoch);
    tcase_add_test(tc, what_no_step_has_a_row_for_is_refused_at_once);
    tcase_add_test(tc, a_long_prompt_is_not_overtaken_without_end);
    tcase_add_test(tc, a_slow_resize_is_no_lost_step);
    tcase_add_test(tc, an_idle_pool_shrinks_and_grows);
    tcase_add_test(tc, a_busy_pool_shrinks_by_moving_blocks);
    tcase_add_test(tc, a_block_of_very_many_sequences_moves);
    tcase_add_test(tc, admissions_follow_the_pool);
    tcase_add_test(tc, who_waits_keeps_the_room_it_was_promised);
    tcase_add_test(tc, chunks_and_budgets_are_the_workers_word);
    tcase_add_test(tc, one_resize_at_a_time_and_none_without_a_worker);
    tcase_add_test(tc, a_worker_lost_during_a_resize_tells_its_size_anew);
    tcase_add_loop_test(tc, random_histories_keep_every_promise, 0, 30);
    suite_add_tcase(suite, tc);
    return suite;
}
