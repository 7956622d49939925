// SPDX-License-Identifier: Apache-2.0
// Goal: a plan that arrives twice is answered as before and not executed again, also a refused one,
// whatever has been applied since; smaller epochs are over; a rank whose
// group does not form says so and stays. Method: a worker with a tiny model on threads of this
// process, over real sockets, against a controller that is the test.
#include "common/exit_code.h"
#include "common/log.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/fake_controller.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MESSAGE_BYTES = FAKE_MESSAGE_BYTES, LEASE_MS = 60000 };

struct fixture {
    struct fake_controller controller;
    struct fake_worker worker;
};

static struct fixture *f;
static struct fake_controller *c;

static void set_up(void) {
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    f = calloc(1, sizeof *f);
    c = &f->controller;
    fake_controller_init(c);
    fake_controller_listen(c);
    fake_worker_init(&f->worker, c, (struct model_shard){0, 1});
}

static void start(void) {
    fake_worker_start(&f->worker);
}

static void tear_down(void) {
    fake_worker_deinit(&f->worker);
    fake_controller_deinit(c);
    free(f);
}

// ---- messages ----------------------------------------------------------------------------------

static void welcome(uint64_t epoch, const char *comm_id) {
    struct control_message message = {
        .kind = MESSAGE_KIND_WELCOME,
        .welcome = {.epoch = epoch, .world = 1, .lease_ms = LEASE_MS, .comm_id = comm_id}};
    fake_controller_say(c, c->peer, &message);
}

static void await_capacity(uint64_t epoch, struct message_capacity *out) {
    struct message_header header;
    struct control_message message;
    fake_controller_hear(c, c->plan, MESSAGE_KIND_CAPACITY, &header, &message);
    ck_assert_uint_eq(header.epoch, epoch);
    *out = message.capacity;
}

static void join(uint64_t epoch, struct message_capacity *capacity) {
    struct message_header header;
    fake_controller_await(c, c->control, MESSAGE_KIND_HELLO, &header);
    welcome(epoch, "00000000000000000000000000000000");
    await_capacity(epoch, capacity);
}

// ---- plans -------------------------------------------------------------------------------------

static void encode_prompt(struct buf *out, uint64_t epoch, uint64_t seq, uint32_t undone,
                          const int32_t tokens[3]) {
    fake_controller_encode_prompt(c, out, epoch, seq, undone, tokens);
}

static void encode_decode(struct buf *out, uint64_t epoch, uint64_t seq, uint32_t decode_rows) {
    const struct plan plan = {.epoch = epoch, .seq = seq, .decode_rows = decode_rows};
    arena_reset(&c->arena);
    ck_assert_int_eq(codec_plan_encode(&plan, &c->arena, out, NULL), STATUS_OK);
}

// The answer's bytes are left in c->in.
static struct step_result answer(void) {
    struct message_header header;
    struct step_result result;
    const uint8_t *body = fake_controller_await(c, c->plan, MESSAGE_KIND_RESULT, &header);
    arena_reset(&c->arena);
    ck_assert_int_eq(codec_result_decode(&header, body, &c->arena, &result, NULL), STATUS_OK);
    return result;
}

static void send_plan(const struct buf *plan) {
    fake_controller_send(c->plan, c->peer, plan->data, plan->bytes_used);
}

static struct step_result ask(const struct buf *plan) {
    send_plan(plan);
    return answer();
}

static const int32_t PROMPT[3] = {7, 8, 9};
static const int32_t OTHER[3] = {7, 8, 10};
static const int32_t WRONG[3] = {7, 8, 5000};    // past the vocabulary

START_TEST(a_plan_that_arrives_twice_is_answered_from_the_ring) {
    struct message_capacity capacity;
    struct buf plan, decode, first;
    buf_init(&plan, MESSAGE_BYTES);
    buf_init(&decode, MESSAGE_BYTES);
    buf_init(&first, MESSAGE_BYTES);
    start();
    join(3, &capacity);
    encode_prompt(&plan, 3, 1, 0, PROMPT);
    struct step_result result = ask(&plan);
    ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    ck_assert_uint_eq(result.row_count, 1);
    buf_append(&first, c->in.data, c->in.bytes_used);
    for (uint64_t seq = 2; seq <= 5; seq++) {
        buf_reset(&decode);
        encode_decode(&decode, 3, seq, 1);
        result = ask(&decode);
        ck_assert_int_eq(result.status, RESULT_STATUS_OK);
        ck_assert_uint_eq(result.applied_seq, seq);
        ck_assert_uint_eq(result.rows[0].position, seq + 2);
    }
    // Byte for byte what was said, and nothing moved.
    result = ask(&plan);
    ck_assert_uint_eq(c->in.bytes_used, first.bytes_used);
    ck_assert_int_eq(memcmp(c->in.data, first.data, first.bytes_used), 0);
    result = ask(&decode);
    ck_assert_uint_eq(result.seq, 5);
    ck_assert_uint_eq(result.rows[0].position, 7);
    // The same number with other contents is another plan, which comes too late.
    buf_reset(&decode);
    encode_decode(&decode, 3, 4, 0);
    result = ask(&decode);
    ck_assert_int_eq(result.status, RESULT_STATUS_GAP);
    ck_assert_uint_eq(result.applied_seq, 5);
    buf_reset(&decode);
    encode_decode(&decode, 3, 6, 1);
    result = ask(&decode);
    ck_assert_uint_eq(result.rows[0].position, 8);
    buf_deinit(&plan);
    buf_deinit(&decode);
    buf_deinit(&first);
}
END_TEST

START_TEST(a_refused_plan_that_arrives_twice_is_refused_again) {
    struct message_capacity capacity;
    struct buf refused, plan, decode;
    buf_init(&refused, MESSAGE_BYTES);
    buf_init(&plan, MESSAGE_BYTES);
    buf_init(&decode, MESSAGE_BYTES);
    start();
    join(3, &capacity);
    encode_prompt(&refused, 3, 1, 0, WRONG);
    encode_prompt(&plan, 3, 2, 1, PROMPT);
    encode_decode(&decode, 3, 3, 1);
    ck_assert_int_eq(ask(&refused).status, RESULT_STATUS_REFUSED);
    ck_assert_int_eq(ask(&refused).status, RESULT_STATUS_REFUSED);
    ck_assert_int_eq(ask(&plan).status, RESULT_STATUS_OK);
    // It would not follow what was applied; it is still known.
    struct step_result result = ask(&refused);
    ck_assert_uint_eq(result.seq, 1);
    ck_assert_int_eq(result.status, RESULT_STATUS_REFUSED);
    result = ask(&decode);
    ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    ck_assert_uint_eq(result.rows[0].position, 4);
    result = ask(&plan);
    ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    ck_assert_uint_eq(result.rows[0].position, 3);
    buf_deinit(&refused);
    buf_deinit(&plan);
    buf_deinit(&decode);
}
END_TEST

// Twenty plans, then the first one again: no answer, or the next one would be it.
START_TEST(a_plan_older_than_the_ring_is_passed_over) {
    struct message_capacity capacity;
    struct buf plan, decode;
    buf_init(&plan, MESSAGE_BYTES);
    buf_init(&decode, MESSAGE_BYTES);
    start();
    join(3, &capacity);
    encode_prompt(&plan, 3, 1, 0, PROMPT);
    ck_assert_int_eq(ask(&plan).status, RESULT_STATUS_OK);
    for (uint64_t seq = 2; seq <= 21; seq++) {
        bool decodes = seq <= 9;    // the sequence is full then
        buf_reset(&decode);
        encode_decode(&decode, 3, seq, decodes ? 1 : 0);
        if (seq == 21) {
            send_plan(&plan);
        }
        struct step_result result = ask(&decode);
        ck_assert_uint_eq(result.seq, seq);
        ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    }
    buf_deinit(&plan);
    buf_deinit(&decode);
}
END_TEST

// Numbers begin again with an epoch, and so do answers.
START_TEST(a_new_epoch_forgets_answers_and_ends_older_plans) {
    struct message_capacity before, after;
    struct buf old, plan;
    buf_init(&old, MESSAGE_BYTES);
    buf_init(&plan, MESSAGE_BYTES);
    start();
    join(3, &before);
    ck_assert_uint_eq(f->worker.notes.epoch, 3);
    encode_prompt(&old, 3, 1, 0, PROMPT);
    struct step_result result = ask(&old);
    int32_t token = result.rows[0].token;
    welcome(4, "00000000000000000000000000000000");
    await_capacity(4, &after);
    ck_assert_uint_eq(f->worker.notes.epoch, 4);
    send_plan(&old);    // no answer
    welcome(2, "00000000000000000000000000000000");
    encode_prompt(&plan, 4, 1, 0, OTHER);
    result = ask(&plan);
    ck_assert_uint_eq(result.epoch, 4);
    ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    buf_reset(&plan);
    welcome(5, "00000000000000000000000000000000");
    await_capacity(5, &after);
    ck_assert_uint_ne(before.kv_stamp, 0);
    ck_assert_uint_eq(after.kv_stamp, before.kv_stamp);    // KV is as it was left
    encode_prompt(&plan, 5, 1, 0, PROMPT);
    ck_assert_int_eq(ask(&plan).rows[0].token, token);
    buf_deinit(&old);
    buf_deinit(&plan);
}
END_TEST

START_TEST(a_plan_of_an_aborted_epoch_is_not_launched) {
    struct message_capacity capacity;
    struct buf plan;
    buf_init(&plan, MESSAGE_BYTES);
    start();
    join(3, &capacity);
    fake_controller_abort(c, c->peer, 3);
    // The channels are two: plans are tried until one comes behind the abort.
    encode_prompt(&plan, 3, 1, 0, PROMPT);
    struct step_result result = ask(&plan);
    for (uint64_t seq = 2; result.status == RESULT_STATUS_OK; seq++) {
        buf_reset(&plan);
        encode_decode(&plan, 3, seq, seq <= 9 ? 1 : 0);
        result = ask(&plan);
    }
    ck_assert_int_eq(result.status, RESULT_STATUS_FAULT);
    welcome(4, "00000000000000000000000000000000");
    await_capacity(4, &capacity);
    buf_reset(&plan);
    encode_prompt(&plan, 4, 1, 0, PROMPT);
    ck_assert_int_eq(ask(&plan).status, RESULT_STATUS_OK);
    buf_deinit(&plan);
}
END_TEST

START_TEST(a_hello_says_what_the_ranks_have_in_common) {
    f->worker.options.group = 5;
    start();
    struct message_header header;
    struct control_message message;
    fake_controller_hear(c, c->control, MESSAGE_KIND_HELLO, &header, &message);
    ck_assert_uint_eq(message.hello.group, 5);
    ck_assert_uint_eq(message.hello.rank, 0);
    ck_assert_uint_eq(message.hello.world, 1);
    ck_assert_uint_eq(message.hello.pid, (uint32_t)getpid());
    ck_assert_uint_eq(strlen(message.hello.config_digest), 16);
    ck_assert_uint_gt(strlen(message.hello.model_digest), 0);
    ck_assert_uint_eq(header.epoch, 0);
}
END_TEST

// The digest that others would be compared with is missing: the start must not go on with it.
START_TEST(a_worker_without_its_model_says_so_and_ends) {
    ck_assert_int_eq(unlink(f->worker.model), 0);
    f->worker.wanted_code = EXIT_CODE_NO_INPUT;
    start();
    struct message_header header;
    struct control_message message;
    fake_controller_hear(c, c->control, MESSAGE_KIND_HELLO, &header, &message);
    ck_assert_str_eq(message.hello.model_digest, "");
    fake_controller_hear(c, c->control, MESSAGE_KIND_GOODBYE, &header, &message);
    ck_assert_uint_eq(message.text.code, EXIT_CODE_NO_INPUT);
    ck_assert_ptr_nonnull(strstr(message.text.text, f->worker.model));
}
END_TEST

// A directory whose weights are gone is still a model of shapes, and no model that others have.
START_TEST(a_worker_whose_weights_are_gone_has_no_digest) {
    ck_assert_int_eq(unlink(f->worker.model), 0);
    ck_assert_int_eq(mkdir(f->worker.model, 0700), 0);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", f->worker.model);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
          "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
          "\"vocab_size\":256,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,"
          "\"torch_dtype\":\"float32\"}",
          file);
    fclose(file);
    f->worker.wanted_code = EXIT_CODE_DATA;
    start();
    struct message_header header;
    struct control_message message;
    fake_controller_hear(c, c->control, MESSAGE_KIND_HELLO, &header, &message);
    ck_assert_str_eq(message.hello.model_digest, "");
    fake_controller_hear(c, c->control, MESSAGE_KIND_GOODBYE, &header, &message);
    ck_assert_ptr_nonnull(strstr(message.text.text, "has no weights, only shapes"));
    unlink(path);
    rmdir(f->worker.model);
}
END_TEST

Suite *suite_worker(void) {
    Suite *suite = suite_create("worker/worker");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_plan_that_arrives_twice_is_answered_from_the_ring);
    tcase_add_test(tc, a_refused_plan_that_arrives_twice_is_refused_again);
    tcase_add_test(tc, a_plan_older_than_the_ring_is_passed_over);
    tcase_add_test(tc, a_new_epoch_forgets_answers_and_ends_older_plans);
    tcase_add_test(tc, a_plan_of_an_aborted_epoch_is_not_launched);
    tcase_add_test(tc, a_hello_says_what_the_ranks_have_in_common);
    tcase_add_test(tc, a_worker_without_its_model_says_so_and_ends);
    tcase_add_test(tc, a_worker_whose_weights_are_gone_has_no_digest);
    suite_add_tcase(suite, tc);
    return suite;
}
