// SPDX-License-Identifier: Apache-2.0
// Goal: a plan that arrives twice is answered as before and not executed again, also a refused one,
// whatever has been applied since; smaller epochs are over; a rank whose
// group does not form says so and stays. Method: a worker with a tiny model on threads of this
// process, over real sockets, against a controller that is the test.
#include "common/log.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/worker.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 256 * 1024, TURNS_MAX = 4000, TURN_MS = 5, LEASE_MS = 60000 };

struct fixture {
    char run_dir[64], address[80], model[96];
    char peer[TRANSPORT_PEER_BYTES];    // what the worker is called on its channels
    struct worker_options options;
    struct holder_notes notes;
    _Atomic int stop;
    pthread_t thread;
    int code;
    struct transport *plan, *control;
    struct arena arena;
    struct buf out, in;
};

static struct fixture *f;

static struct transport *listen_on(const char *name) {
    char address[128];
    snprintf(address, sizeof address, "%s/%s.sock", f->address, name);
    struct transport_options options = {
        .address = address,
        .listens = true,
        .message_bytes_max = MESSAGE_BYTES,
        .queue_messages_max = 64,
    };
    struct transport *transport = NULL;
    ck_assert_int_eq(transport_open(&options, &transport, NULL), STATUS_OK);
    return transport;
}

static void set_up(void) {
    static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    f = calloc(1, sizeof *f);
    snprintf(f->run_dir, sizeof f->run_dir, "/tmp/tare-worker-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->run_dir));
    snprintf(f->address, sizeof f->address, "ipc://%s", f->run_dir);
    snprintf(f->model, sizeof f->model, "%s/model.gguf", f->run_dir);
    tiny_model_write(&model, f->model);
    arena_init(&f->arena, 1 << 20);
    buf_init(&f->out, MESSAGE_BYTES);
    buf_init(&f->in, MESSAGE_BYTES);
    f->plan = listen_on("plan");
    f->control = listen_on("control");
    f->options = (struct worker_options){
        .engine = {.model_path = f->model,
                   .device = "cpu",
                   .isa = "auto",
                   .threads = 1,
                   .utilization = 1.0,
                   .kv_bytes = 1024 * 1024,
                   .kv_dtype = DTYPE_F16,
                   .block_tokens = 16,
                   .seqs = 4,
                   .step_tokens = 32,
                   .model_len = 128,
                   .weights_fd = -1,
                   .kv_fd = -1},
        .controller = f->address,
        .worker_id = "g0r0",
        .model_name = "m",
        .timer_scale = 10,
        .notes = &f->notes,
        .stop = &f->stop,
    };
}

static void *run_worker(void *arg) {
    (void)arg;
    f->code = worker_run(&f->options);
    return NULL;
}

static void start(void) {
    ck_assert_int_eq(pthread_create(&f->thread, NULL, run_worker, NULL), 0);
}

static void tear_down(void) {
    f->stop = 1;
    pthread_join(f->thread, NULL);
    ck_assert_int_eq(f->code, 0);
    transport_close(f->plan);
    transport_close(f->control);
    const char *const names[] = {"plan.sock", "control.sock", "model.gguf"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", f->run_dir, names[i]);
        unlink(path);
    }
    ck_assert_int_eq(rmdir(f->run_dir), 0);
    arena_deinit(&f->arena);
    buf_deinit(&f->out);
    buf_deinit(&f->in);
    free(f);
}

// ---- messages ----------------------------------------------------------------------------------

// The next message of this kind, in f->in; others are passed over.
static const uint8_t *await_kind(struct transport *channel, enum message_kind kind,
                                 struct message_header *header) {
    const uint8_t *body = NULL;
    memset(header, 0, sizeof *header);
    for (int i = 0; i < TURNS_MAX && header->kind != kind; i++) {
        if (transport_receive(channel, &f->in, f->peer) == STATUS_OK) {
            ck_assert_int_eq(codec_header_decode(f->in.data, f->in.bytes_used, header, &body, NULL),
                             STATUS_OK);
        } else {
            poll(NULL, 0, TURN_MS);
        }
    }
    ck_assert_uint_eq(header->kind, kind);
    return body;
}

static void send_to(struct transport *channel, const struct buf *message) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < TURNS_MAX && status != STATUS_OK; i++) {
        status = transport_send(channel, f->peer, message->data, message->bytes_used);
        if (status != STATUS_OK) {
            poll(NULL, 0, TURN_MS);
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

static void send_control(const struct control_message *message) {
    arena_reset(&f->arena);
    buf_reset(&f->out);
    ck_assert_int_eq(codec_control_encode(message, &f->arena, &f->out, NULL), STATUS_OK);
    send_to(f->control, &f->out);
}

static void welcome(uint64_t epoch, const char *comm_id) {
    struct control_message message = {
        .kind = MESSAGE_KIND_WELCOME,
        .welcome = {.epoch = epoch,
                    .rank = f->options.engine.shard.rank,
                    .world = f->options.engine.shard.world > 1 ? f->options.engine.shard.world : 1,
                    .lease_ms = LEASE_MS,
                    .comm_id = comm_id}};
    send_control(&message);
}

static void join(uint64_t epoch, struct message_capacity *capacity) {
    struct message_header header;
    await_kind(f->control, MESSAGE_KIND_HELLO, &header);
    welcome(epoch, "00000000000000000000000000000000");
    const uint8_t *body = await_kind(f->plan, MESSAGE_KIND_CAPACITY, &header);
    ck_assert_uint_eq(header.epoch, epoch);
    struct control_message message;
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_control_decode(&header, body, &f->arena, &message, NULL), STATUS_OK);
    *capacity = message.capacity;
}

// ---- plans -------------------------------------------------------------------------------------

// A prompt of three tokens into a slot, which draws its first token.
static void encode_prompt(struct buf *out, uint64_t epoch, uint64_t seq, uint32_t undone,
                          const int32_t tokens[3]) {
    const uint32_t slot = 0;
    const uint32_t block = slot;
    const struct plan_admit admit = {
        .ref = {slot, 1},
        .prompt_tokens = 3,
        .len_max = 12,
        .block_count = 1,
        .blocks = &block,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 5},
    };
    const struct plan_prefill prefill = {
        .ref = {slot, 1}, .token_count = 3, .tokens = tokens, .next_token = -1, .last = true};
    const struct plan plan = {.epoch = epoch,
                              .seq = seq,
                              .undone = undone,
                              .admit_count = 1,
                              .admits = &admit,
                              .prefill_count = 1,
                              .prefills = &prefill};
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_plan_encode(&plan, &f->arena, out, NULL), STATUS_OK);
}

static void encode_decode(struct buf *out, uint64_t epoch, uint64_t seq, uint32_t decode_rows) {
    const struct plan plan = {.epoch = epoch, .seq = seq, .decode_rows = decode_rows};
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_plan_encode(&plan, &f->arena, out, NULL), STATUS_OK);
}

// The answer's bytes are left in f->in.
static struct step_result answer(void) {
    struct message_header header;
    struct step_result result;
    const uint8_t *body = await_kind(f->plan, MESSAGE_KIND_RESULT, &header);
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_result_decode(&header, body, &f->arena, &result, NULL), STATUS_OK);
    return result;
}

static struct step_result ask(const struct buf *plan) {
    send_to(f->plan, plan);
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
    buf_append(&first, f->in.data, f->in.bytes_used);
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
    ck_assert_uint_eq(f->in.bytes_used, first.bytes_used);
    ck_assert_int_eq(memcmp(f->in.data, first.data, first.bytes_used), 0);
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
            send_to(f->plan, &plan);
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
    ck_assert_uint_eq(f->notes.epoch, 3);
    encode_prompt(&old, 3, 1, 0, PROMPT);
    struct step_result result = ask(&old);
    int32_t token = result.rows[0].token;
    struct message_header header;
    welcome(4, "00000000000000000000000000000000");
    await_kind(f->plan, MESSAGE_KIND_CAPACITY, &header);
    ck_assert_uint_eq(header.epoch, 4);
    ck_assert_uint_eq(f->notes.epoch, 4);
    send_to(f->plan, &old);    // no answer
    welcome(2, "00000000000000000000000000000000");
    encode_prompt(&plan, 4, 1, 0, OTHER);
    result = ask(&plan);
    ck_assert_uint_eq(result.epoch, 4);
    ck_assert_int_eq(result.status, RESULT_STATUS_OK);
    buf_reset(&plan);
    welcome(5, "00000000000000000000000000000000");
    const uint8_t *body = await_kind(f->plan, MESSAGE_KIND_CAPACITY, &header);
    struct control_message message;
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_control_decode(&header, body, &f->arena, &message, NULL), STATUS_OK);
    after = message.capacity;
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
    struct control_message abort = {.kind = MESSAGE_KIND_ABORT,
                                    .abort = {.epoch = 3, .reason = "a rank was lost"}};
    send_control(&abort);
    // The channels are two: plans are tried until one comes behind the abort.
    encode_prompt(&plan, 3, 1, 0, PROMPT);
    struct step_result result = ask(&plan);
    for (uint64_t seq = 2; result.status == RESULT_STATUS_OK; seq++) {
        buf_reset(&plan);
        encode_decode(&plan, 3, seq, seq <= 9 ? 1 : 0);
        result = ask(&plan);
    }
    ck_assert_int_eq(result.status, RESULT_STATUS_FAULT);
    struct message_header header;
    welcome(4, "00000000000000000000000000000000");
    await_kind(f->plan, MESSAGE_KIND_CAPACITY, &header);
    buf_reset(&plan);
    encode_prompt(&plan, 4, 1, 0, PROMPT);
    ck_assert_int_eq(ask(&plan).status, RESULT_STATUS_OK);
    buf_deinit(&plan);
}
END_TEST

START_TEST(a_hello_says_what_the_ranks_have_in_common) {
    f->options.group = 5;
    start();
    struct message_header header;
    struct control_message message;
    const uint8_t *body = await_kind(f->control, MESSAGE_KIND_HELLO, &header);
    arena_reset(&f->arena);
    ck_assert_int_eq(codec_control_decode(&header, body, &f->arena, &message, NULL), STATUS_OK);
    ck_assert_uint_eq(message.hello.group, 5);
    ck_assert_uint_eq(message.hello.rank, 0);
    ck_assert_uint_eq(message.hello.world, 1);
    ck_assert_uint_eq(message.hello.pid, (uint32_t)getpid());
    ck_assert_uint_eq(strlen(message.hello.config_digest), 16);
    ck_assert_uint_gt(strlen(message.hello.model_digest), 0);
    ck_assert_uint_eq(header.epoch, 0);
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
    suite_add_tcase(suite, tc);
    return suite;
}
