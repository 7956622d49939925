// SPDX-License-Identifier: Apache-2.0
// Goal: every request ends exactly once, with exactly the tokens it should have had, whatever is
// lost, cancelled or refused on the way; no block leaks; what is admitted finishes. Method: the
// core driven by a worker without arithmetic, invented time and a seed; core_audit after every
// tick.
#include "common/rng.h"
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <string.h>

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
        submit(&w, client);
        for (int i = 0; i < steps && w.lanes[0].plan_waits; i++) {
            answer(&w);
        }
        cancel(&w, client);
        cancel(&w, client);    // twice: the second finds nothing
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

// Wherever they are: queued, in a prompt, decoding, paused, with plans out. Nobody runs from that
// tick on, and the next plan gives the memory back.
START_TEST(cancelled_sequences_are_gone_with_the_next_plan) {
    struct world w;
    struct rng rng;
    rng_init(&rng, 400 + (uint64_t)_i);
    world_init_depth(&w, 1 + (uint32_t)_i % SCHEDULER_DEPTH_MAX);
    worker_ready(&w);
    for (int round = 0; round < 40; round++) {
        uint32_t count = 1 + (uint32_t)rng_below(&rng, 14);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t prompt = 1 + (uint32_t)rng_below(&rng, 120);
            struct client *client = arrive(&w, prompt, 60);
            client->class_ = (enum request_class)rng_below(&rng, REQUEST_CLASS_COUNT);
            submit(&w, client);
        }
        for (uint64_t steps = rng_below(&rng, 40); steps > 0 && w.lanes[0].plan_waits; steps--) {
            answer(&w);
        }
        for (int i = 0; i < CLIENTS; i++) {
            if (w.clients[i].open) {
                cancel(&w, &w.clients[i]);
            }
        }
        ck_assert_uint_eq(open_count(&w), 0);
        ck_assert_uint_eq(running(&w), 0);
        // The plans that were out, and the one that retires their slots.
        for (uint32_t i = 0; i < w.depth + 1 && w.lanes[0].plan_waits; i++) {
            answer(&w);
        }
        ck_assert(!w.lanes[0].plan_waits);
        expect_all_blocks_free(&w);
    }
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
    struct result_row rows[2] = {w.lanes[0].result.rows[0], w.lanes[0].result.rows[0]};
    w.lanes[0].result.rows = rows;
    w.lanes[0].result.row_count = 2;    // the same sequence twice
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
    ck_assert(w.lanes[0].plan_waits);
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
    ck_assert_uint_eq(fake_worker_cached(w.lanes[0].worker), 176);
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

START_TEST(a_long_prompt_is_not_overtaken_without_end) {
    struct world w;
    world_init(&w);
    w.capacity.envelope.attended_tokens = SEQ_TOKENS;
    struct plan_limits limits = {w.capacity.envelope, BLOCK_TOKENS, KV_BLOCKS, VOCABULARY};
    fake_worker_destroy(w.lanes[0].worker);
    w.lanes[0].worker = fake_worker_create(&limits);
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
    } else if (dice == 33 && w->loses && w->keeps && rng_below(rng, 4) > 0) {
        if (rng_below(rng, 4) > 0) {
            worker_lost(w);    // else nobody has seen it go
        }
        lane_back(w, 0);
    } else if (dice == 33 && w->loses) {
        worker_lost(w);
        worker_ready(w);
    } else if (w->lanes[0].plan_waits) {
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
        fake_worker_destroy(w->lanes[0].worker);
        w->lanes[0].worker = fake_worker_create(&limits);
    } else if (kind % 3 == 2) {
        fake_worker_narrow(w->lanes[0].worker, &smaller, 7);
    }
}

// Each depth with each kind of envelope, once or more.
#ifdef TARE_SLOW_CHECKS
enum { HISTORIES = 9, EVENTS = 1500 };
#else
enum { HISTORIES = 30, EVENTS = 4000 };
#endif

START_TEST(random_histories_keep_every_promise) {
    struct world w;
    struct rng rng;
    rng_init(&rng, (uint64_t)_i + 1);
    world_init_depth(&w, 1 + (uint32_t)_i / 3 % SCHEDULER_DEPTH_MAX);
    random_envelope(&w, &rng, _i);
    w.loses = _i % 2 == 0;
    w.keeps = _i % 4 == 0;
    w.world = 1 + (uint32_t)_i / 2 % 4;
    worker_ready(&w);
    for (int i = 0; i < EVENTS; i++) {
        random_event(&w, &rng);
    }
    run_dry(&w);
    ck_assert_uint_eq(open_count(&w), 0);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.kv_blocks_free, w.capacity.kv_blocks);
    ck_assert_uint_eq(gauges.kv_blocks_total, w.capacity.kv_blocks);
    ck_assert_uint_eq(w.told_resizes, w.asked_resizes);
    ck_assert_uint_gt(fake_worker_moves(w.lanes[0].worker), 0);
    ck_assert_uint_eq(w.deepest, w.depth);
    ck_assert_uint_gt(fake_worker_cached(w.lanes[0].worker), 0);
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
    ck_assert_uint_le(core_counters(w.core)->plan_refusals,
                      fake_worker_refusals(w.lanes[0].worker));
    ck_assert(_i % 3 != 2 || fake_worker_refusals(w.lanes[0].worker) > 0);
    world_deinit(&w);
}
END_TEST

Suite *suite_core(void) {
    Suite *suite = suite_create("controller/core");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, one_request_gets_all_its_tokens_and_returns_its_blocks);
    tcase_add_test(tc, a_stop_token_ends_with_stop_and_is_counted);
    tcase_add_test(tc, before_a_worker_requests_are_unavailable);
    tcase_add_test(tc, the_line_is_bounded_and_one_past_it_is_refused);
    tcase_add_test(tc, what_can_never_fit_is_refused_and_the_largest_that_fits_is_served);
    tcase_add_test(tc, cancel_in_every_state_frees_everything);
    tcase_add_loop_test(tc, cancelled_sequences_are_gone_with_the_next_plan, 0, 9);
    tcase_add_test(tc, a_lost_worker_costs_no_token);
    tcase_add_test(tc, a_worker_that_comes_back_smaller_fails_only_what_no_longer_fits);
    tcase_add_test(tc, a_request_lost_too_often_fails_once);
    tcase_add_test(tc, a_broken_result_starts_a_new_epoch_and_costs_no_token);
    tcase_add_test(tc, a_result_that_never_comes_starts_a_new_epoch_and_costs_no_token);
    tcase_add_test(tc, drain_finishes_what_runs_and_refuses_what_comes);
    tcase_add_test(tc, abort_all_ends_everything_at_once);
    tcase_add_test(tc, memory_pressure_pauses_and_never_loses);
    tcase_add_test(tc, a_beginning_that_was_computed_is_not_computed_again);
    tcase_add_test(tc, cached_blocks_go_when_room_is_needed_the_end_of_a_sequence_first);
    tcase_add_test(tc, a_long_prompt_is_not_overtaken_without_end);
    tcase_add_loop_test(tc, random_histories_keep_every_promise, 0, HISTORIES);
    suite_add_tcase(suite, tc);
    return suite;
}
