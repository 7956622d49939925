// SPDX-License-Identifier: Apache-2.0
// Goal: the walk gives each tenant's most urgent request, least served tenants first, classes in
// their order, and service is shared whatever is sent. Method: random lines against sorting; then
// long backlogs and who was served.
#include "common/rng.h"
#include "controller/core/waiting_line.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { REQUESTS = 300, TENANTS = 12 };

static struct waiting_line *create(double batch_share) {
    struct waiting_options options = {REQUESTS, TENANTS, {[REQUEST_CLASS_BATCH] = batch_share}};
    struct waiting_line *line = NULL;
    ck_assert_int_eq(waiting_line_create(&options, &line, NULL), STATUS_OK);
    return line;
}

struct model {
    struct waiting_key key[REQUESTS];
    bool held[REQUESTS];
};

static uint32_t head_of(const struct model *m, enum request_class class_, uint32_t tenant) {
    uint32_t best = WAITING_NONE;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct waiting_key *k = &m->key[i];
        if (!m->held[i] || k->class_ != class_ || k->tenant != tenant) {
            continue;
        }
        const struct waiting_key *b = best == WAITING_NONE ? NULL : &m->key[best];
        if (b == NULL || k->deadline_us < b->deadline_us ||
            (k->deadline_us == b->deadline_us && k->order < b->order)) {
            best = i;
        }
    }
    return best;
}

// Nothing was charged, so all who came in first are equal and the smaller tenant goes first.
static void expect_walk(const struct waiting_line *line, const struct model *m) {
    struct waiting_walk walk;
    waiting_walk_begin(line, &walk);
    uint32_t given = 0;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        for (uint32_t t = 0; t < TENANTS && given < WAITING_LOOK_AHEAD; t++) {
            uint32_t want = head_of(m, (enum request_class)c, t);
            if (want != WAITING_NONE) {
                ck_assert_uint_eq(waiting_walk_next(line, &walk), want);
                given++;
            }
        }
    }
    ck_assert_uint_eq(waiting_walk_next(line, &walk), WAITING_NONE);
}

// Everybody of a class once, tenant by tenant, and what is ahead of one that would come now.
static void expect_counts(const struct waiting_line *line, const struct model *m,
                          enum request_class class_, uint32_t tenant, uint32_t tokens) {
    uint32_t list[REQUESTS];
    bool seen[REQUESTS] = {false};
    uint32_t count = waiting_line_list(line, class_, list);
    ck_assert_uint_eq(count, waiting_line_class_count(line, class_));
    uint64_t of_tenant[TENANTS] = {0}, above = 0;
    for (uint32_t i = 0; i < count; i++) {
        ck_assert(m->held[list[i]] && !seen[list[i]]);
        ck_assert_int_eq(m->key[list[i]].class_, class_);
        seen[list[i]] = true;
        of_tenant[m->key[list[i]].tenant] += m->key[list[i]].tokens;
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        above += m->held[i] && m->key[i].class_ < class_ ? m->key[i].tokens : 0;
    }
    struct waiting_ahead ahead;
    waiting_line_ahead(line, class_, tenant, tokens, &ahead);
    uint64_t want = above + of_tenant[tenant];
    for (uint32_t t = 0; t < TENANTS; t++) {
        uint64_t most = of_tenant[tenant] + tokens;
        want += t == tenant ? 0 : of_tenant[t] < most ? of_tenant[t] : most;
    }
    ck_assert_uint_eq(ahead.tokens, want);
}

START_TEST(heads_are_the_most_urgent_of_each_tenant) {
    struct waiting_line *line = create(0);
    struct model m;
    memset(&m, 0, sizeof m);
    struct rng rng;
    rng_init(&rng, 31);
    uint64_t order = 0;
    for (uint32_t i = 0; i < 6000; i++) {
        uint32_t request = (uint32_t)rng_below(&rng, REQUESTS);
        if (m.held[request]) {
            waiting_line_remove(line, request);
            m.held[request] = false;
        } else {
            m.key[request] = (struct waiting_key){
                .class_ = (enum request_class)rng_below(&rng, REQUEST_CLASS_COUNT),
                .tenant = (uint32_t)rng_below(&rng, TENANTS),
                .deadline_us = rng_below(&rng, 4) == 0 ? UINT64_MAX : rng_below(&rng, 50),
                .order = order++,
                .tokens = (uint32_t)rng_below(&rng, 1000)};
            waiting_line_add(line, request, &m.key[request]);
            m.held[request] = true;
        }
        ck_assert_int_eq(waiting_line_holds(line, request), m.held[request]);
        if (i % 20 == 0) {
            waiting_line_audit(line);
            expect_walk(line, &m);
            expect_counts(line, &m, (enum request_class)rng_below(&rng, REQUEST_CLASS_COUNT),
                          (uint32_t)rng_below(&rng, TENANTS), (uint32_t)rng_below(&rng, 2000));
        }
    }
    waiting_line_destroy(line);
}
END_TEST

static uint32_t first_of(const struct waiting_line *line) {
    struct waiting_walk walk;
    waiting_walk_begin(line, &walk);
    return waiting_walk_next(line, &walk);
}

// Serves the head and puts an equal request in its place: an endless backlog.
static void serve(struct waiting_line *line, struct waiting_key *keys, double *served, double work,
                  uint64_t *order) {
    uint32_t request = first_of(line);
    struct waiting_key *key = &keys[request];
    waiting_line_remove(line, request);
    waiting_line_charge(line, key->class_, key->tenant, work, 1);
    served[key->tenant] += work;
    key->order = (*order)++;
    waiting_line_add(line, request, key);
}

START_TEST(tenants_share_whatever_they_send) {
    struct waiting_line *line = create(0);
    struct waiting_key keys[100];
    double served[TENANTS] = {0};
    uint64_t order = 0;
    // Tenant 0 sends ninety requests, tenant 1 nine, tenant 2 one; those of tenant 1 cost ten
    // times.
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t tenant = i < 90 ? 0 : i < 99 ? 1 : 2;
        keys[i] = (struct waiting_key){REQUEST_CLASS_STANDARD, tenant, UINT64_MAX, order++, 1};
        waiting_line_add(line, i, &keys[i]);
    }
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t tenant = keys[first_of(line)].tenant;
        serve(line, keys, served, tenant == 1 ? 10 : 1, &order);
        double most = served[0], least = served[0];
        for (uint32_t t = 1; t < 3; t++) {
            most = served[t] > most ? served[t] : most;
            least = served[t] < least ? served[t] : least;
        }
        ck_assert_double_le(most - least, 10);    // one request of the dearest
    }
    // Whoever was away has saved nothing up.
    keys[0] = (struct waiting_key){REQUEST_CLASS_STANDARD, 5, UINT64_MAX, order++, 1};
    waiting_line_remove(line, 0);
    waiting_line_add(line, 0, &keys[0]);
    double before = served[0] + served[1] + served[2];
    for (uint32_t i = 0; i < 400; i++) {
        serve(line, keys, served, 1, &order);
    }
    ck_assert_double_le(served[5], 400.0 / 4 + 11);
    ck_assert_double_ge(served[0] + served[1] + served[2], before + 280);
    waiting_line_destroy(line);
}
END_TEST

START_TEST(a_lower_class_gets_what_it_is_promised_and_no_more) {
    struct waiting_line *line = create(0.05);
    struct waiting_key keys[40];
    double served[TENANTS] = {0};
    uint64_t order = 0;
    for (uint32_t i = 0; i < 40; i++) {
        enum request_class class_ = i < 20 ? REQUEST_CLASS_STANDARD : REQUEST_CLASS_BATCH;
        keys[i] = (struct waiting_key){class_, i < 20 ? 0 : 1, UINT64_MAX, order++, 1};
        waiting_line_add(line, i, &keys[i]);
    }
    for (uint32_t i = 0; i < 10000; i++) {
        serve(line, keys, served, 1, &order);
    }
    ck_assert_double_ge(served[1] / 10000, 0.045);
    ck_assert_double_le(served[1] / 10000, 0.055);
    waiting_line_destroy(line);
}
END_TEST

Suite *suite_waiting_line(void) {
    Suite *suite = suite_create("controller/core/waiting_line");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, heads_are_the_most_urgent_of_each_tenant);
    tcase_add_test(tc, tenants_share_whatever_they_send);
    tcase_add_test(tc, a_lower_class_gets_what_it_is_promised_and_no_more);
    suite_add_tcase(suite, tc);
    return suite;
}
