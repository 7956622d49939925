// SPDX-License-Identifier: Apache-2.0
// Goal: who goes first: classes by rank with what is promised to each, tenants by what they were
// served, deadlines inside a tenant; who lacks memory is passed for a while only; best effort gives
// way and still ends. Method: backlogs through a worker without arithmetic, in the order of
// admissions; core_audit after every tick.
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <string.h>

static void defaults(struct core_config *config) {
    config->policy.queued_tokens_max = 0;
}

static void nothing_promised(struct core_config *config) {
    defaults(config);
    memset(config->policy.share_min, 0, sizeof config->policy.share_min);
}

static struct client *submit_as(struct world *w, enum request_class class_, uint32_t tenant,
                                uint32_t prompt, uint32_t output) {
    struct client *client = arrive(w, prompt, output);
    ck_assert_ptr_nonnull(client);
    client->class_ = class_;
    client->tenant = tenant;
    submit(w, client);
    ck_assert(!client->rejected);
    return client;
}

static void fill_slots(struct world *w) {
    for (int i = 0; i < SEQS; i++) {
        submit_as(w, REQUEST_CLASS_STANDARD, 0, 4, 30);
        answer(w);
    }
    ck_assert_uint_eq(running(w), SEQS);
}

START_TEST(higher_classes_go_first) {
    struct world w;
    world_init_with(&w, nothing_promised);
    worker_ready(&w);
    fill_slots(&w);
    struct client *batch = submit_as(&w, REQUEST_CLASS_BATCH, 0, 20, 5);
    struct client *standard = submit_as(&w, REQUEST_CLASS_STANDARD, 0, 20, 5);
    struct client *realtime = submit_as(&w, REQUEST_CLASS_REALTIME, 0, 20, 5);
    run_dry(&w);
    ck_assert_uint_lt(realtime->place, standard->place);
    ck_assert_uint_lt(standard->place, batch->place);
    world_deinit(&w);
}
END_TEST

static void batch_fifth(struct core_config *config) {
    defaults(config);
    config->policy.share_min[REQUEST_CLASS_BATCH] = 0.2;
}

// An endless backlog of realtime, and one of batch behind it.
START_TEST(a_lower_class_gets_its_promised_share_under_an_endless_backlog) {
    struct world w;
    world_init_with(&w, batch_fifth);
    worker_ready(&w);
    uint32_t waiting[REQUEST_CLASS_COUNT] = {0};
    uint64_t began[REQUEST_CLASS_COUNT] = {0};
    for (int i = 0; i < 3000; i++) {
        for (int c = 0; c < REQUEST_CLASS_COUNT; c += REQUEST_CLASS_BATCH) {
            waiting[c] = 0;
            for (int k = 0; k < CLIENTS; k++) {
                const struct client *client = &w.clients[k];
                waiting[c] += client->open && !client->admitted && (int)client->class_ == c ? 1 : 0;
            }
            while (waiting[c] < 4) {
                submit_as(&w, (enum request_class)c, 0, 20, 10);
                waiting[c]++;
                began[c]++;
            }
        }
        answer(&w);
    }
    double share = (double)began[REQUEST_CLASS_BATCH] /
                   (double)(began[REQUEST_CLASS_BATCH] + began[REQUEST_CLASS_REALTIME]);
    ck_assert_double_ge(share, 0.15);
    ck_assert_double_le(share, 0.27);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

// Keeps `sent[t]` requests of each tenant in the line; how many of each were admitted.
static void serve_tenants(const uint32_t sent[3], const uint32_t output[3], const float weight[3],
                          uint64_t drawn[3]) {
    struct world w;
    world_init_with(&w, defaults);
    worker_ready(&w);
    for (int i = 0; i < 3000; i++) {
        for (uint32_t t = 0; t < 3; t++) {
            uint32_t waiting = 0;
            for (int k = 0; k < CLIENTS; k++) {
                const struct client *client = &w.clients[k];
                waiting += client->open && !client->admitted && client->tenant == t ? 1 : 0;
            }
            for (; waiting < sent[t]; waiting++) {
                struct client *client = arrive(&w, 10, output[t]);
                client->tenant = t;
                client->weight = weight[t];
                submit(&w, client);
                ck_assert(!client->rejected);
                drawn[t] += 10 + 4 * output[t];
            }
        }
        answer(&w);
    }
    run_dry(&w);
    world_deinit(&w);
}

START_TEST(tenants_are_served_alike_whatever_they_send) {
    uint64_t served[3] = {0};
    serve_tenants((uint32_t[]){14, 2, 2}, (uint32_t[]){10, 10, 70}, (float[]){0, 0, 0}, served);
    double total = (double)(served[0] + served[1] + served[2]);
    for (int t = 0; t < 3; t++) {
        ck_assert_double_ge((double)served[t] / total, 0.25);
        ck_assert_double_le((double)served[t] / total, 0.42);
    }
}
END_TEST

START_TEST(a_tenant_of_more_weight_is_served_more) {
    uint64_t served[3] = {0};
    serve_tenants((uint32_t[]){6, 6, 6}, (uint32_t[]){10, 10, 10}, (float[]){1, 1, 4}, served);
    double total = (double)(served[0] + served[1] + served[2]);
    ck_assert_double_ge((double)served[2] / total, 0.55);
    ck_assert_double_le((double)served[2] / total, 0.75);
    ck_assert_double_ge((double)served[0] / total, 0.12);
    ck_assert_double_ge((double)served[1] / total, 0.12);
}
END_TEST

static void with_deadlines(struct core_config *config) {
    defaults(config);
    config->policy.ttft_target_us[REQUEST_CLASS_STANDARD] = 10.0 * 1000 * 1000;
}

// A long prompt is allowed more time, so the short one that came after it is due first.
START_TEST(the_earliest_deadline_of_a_tenant_goes_first) {
    struct world w;
    world_init_with(&w, with_deadlines);
    worker_ready(&w);
    fill_slots(&w);
    struct client *large = submit_as(&w, REQUEST_CLASS_STANDARD, 0, 150, 5);
    struct client *small = submit_as(&w, REQUEST_CLASS_STANDARD, 0, 5, 5);
    run_dry(&w);
    ck_assert_uint_lt(small->place, large->place);
    world_deinit(&w);
}
END_TEST

// A small one comes or a step ends.
static void go_on(struct world *w) {
    if (open_count(w) < 10) {
        uint32_t id = (uint32_t)w->next_id;
        submit_as(w, REQUEST_CLASS_STANDARD, 2 + id % 2, 50 + id % 20, 10 + id * 7 % 30);
    } else {
        answer(w);
    }
}

// Small ones keep coming and each fits; the large one needs half of the pool at once.
START_TEST(a_large_request_is_passed_for_a_while_and_then_admitted) {
    struct world w;
    world_init_with(&w, defaults);
    worker_ready(&w);
    w.token_us = 1000;
    for (int i = 0; i < 300; i++) {
        go_on(&w);
    }
    struct client *large = submit_as(&w, REQUEST_CLASS_STANDARD, 1, 186, 6);
    uint32_t place = w.admissions;
    uint64_t begin_us = w.now_us;
    while (!large->admitted && w.now_us - begin_us < 60ull * 1000 * 1000) {
        go_on(&w);
    }
    ck_assert(large->admitted);
    ck_assert_uint_gt(large->place, place + 5);    // passed
    // Patience, and the ends of those who ran then.
    ck_assert_uint_le(w.now_us - begin_us, w.config.policy.hold_us + 4ull * 1000 * 1000);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(best_effort_gives_way_and_still_gets_every_token) {
    struct world w;
    world_init_with(&w, defaults);
    worker_ready(&w);
    for (int i = 0; i < 3; i++) {
        submit_as(&w, REQUEST_CLASS_BATCH, 0, 100, 60);    // 30 of 24 blocks
    }
    for (int i = 0; i < 30; i++) {
        answer(&w);
    }
    ck_assert_uint_eq(core_counters(w.core)->preemptions, 0);
    struct client *client = submit_as(&w, REQUEST_CLASS_STANDARD, 1, 170, 20);
    uint64_t begin_us = w.now_us;
    while (!client->admitted) {
        answer(&w);
        ck_assert_uint_le(w.now_us - begin_us, 10 * 1000);    // a few steps, nobody's end
    }
    ck_assert_uint_gt(core_counters(w.core)->preemptions, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 4);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

// Guaranteed ones come without end, each of them wants what best effort holds.
START_TEST(best_effort_is_evicted_at_most_twice_and_ends) {
    struct world w;
    world_init_with(&w, defaults);
    worker_ready(&w);
    struct client *batch = submit_as(&w, REQUEST_CLASS_BATCH, 0, 100, 80);
    uint64_t id = batch->id;
    for (int i = 0; i < 20000 && batch->open && batch->id == id; i++) {
        if (open_count(&w) < 5) {
            submit_as(&w, REQUEST_CLASS_STANDARD, 1, 100, 80);
        }
        answer(&w);
    }
    ck_assert(!batch->open || batch->id != id);
    ck_assert_uint_gt(core_counters(w.core)->preemptions, 0);
    ck_assert_uint_le(core_counters(w.core)->preemptions, w.config.policy.evictions_max);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

// Each may need half of the pool, none is guaranteed, and all hold what the others lack.
START_TEST(best_effort_requests_do_not_wait_for_each_other) {
    struct world w;
    world_init_with(&w, defaults);
    worker_ready(&w);
    for (int i = 0; i < 12; i++) {
        submit_as(&w, REQUEST_CLASS_BATCH, (uint32_t)i % TENANTS, 16, 170);
    }
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 12);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

Suite *suite_core_sharing(void) {
    Suite *suite = suite_create("controller/core/sharing");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, higher_classes_go_first);
    tcase_add_test(tc, a_lower_class_gets_its_promised_share_under_an_endless_backlog);
    tcase_add_test(tc, tenants_are_served_alike_whatever_they_send);
    tcase_add_test(tc, a_tenant_of_more_weight_is_served_more);
    tcase_add_test(tc, the_earliest_deadline_of_a_tenant_goes_first);
    tcase_add_test(tc, a_large_request_is_passed_for_a_while_and_then_admitted);
    tcase_add_test(tc, best_effort_gives_way_and_still_gets_every_token);
    tcase_add_test(tc, best_effort_is_evicted_at_most_twice_and_ends);
    tcase_add_test(tc, best_effort_requests_do_not_wait_for_each_other);
    suite_add_tcase(suite, tc);
    return suite;
}
