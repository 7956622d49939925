// SPDX-License-Identifier: Apache-2.0
// Goal: workers that are ranks of one group meet with a welcome, answer plans alike and with rank
// 0's rows only; a rank whose peer never runs the plan is freed by an abort, answers with FAULT and
// goes on in the next epoch; one whose group does not form stays. Method: two workers with a tiny
// model on threads of this process, over real sockets and shared memory, against a controller that
// is the test.
#include "common/log.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/comm/group.h"
#include "worker/worker.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 256 * 1024, TURNS_MAX = 4000, TURN_MS = 5, LEASE_MS = 60000, RANKS = 2 };

struct rank {
    char name[16];
    char peer[TRANSPORT_PEER_BYTES];    // what it is called on its channels
    struct worker_options options;
    struct holder_notes notes;
    pthread_t thread;
    int code;
};

struct fixture {
    char run_dir[64], address[80], model[96];
    _Atomic int stop;
    struct rank rank[RANKS];
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

static void *run_worker(void *arg) {
    struct rank *rank = arg;
    rank->code = worker_run(&rank->options);
    return NULL;
}

static void start_rank(uint32_t index) {
    struct rank *rank = &f->rank[index];
    snprintf(rank->name, sizeof rank->name, "g0r%u", index);
    rank->options = (struct worker_options){
        .engine = {.model_path = f->model,
                   .device = "cpu",
                   .isa = "auto",
                   .threads = 1,
                   .shard = {index, RANKS},
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
        .worker_id = rank->name,
        .model_name = "m",
        .timer_scale = 10,
        .notes = &rank->notes,
        .stop = &f->stop,
    };
    ck_assert_int_eq(pthread_create(&rank->thread, NULL, run_worker, rank), 0);
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
    for (uint32_t i = 0; i < RANKS; i++) {
        start_rank(i);
    }
}

static void tear_down(void) {
    f->stop = 1;
    for (uint32_t i = 0; i < RANKS; i++) {
        pthread_join(f->rank[i].thread, NULL);
        ck_assert_int_eq(f->rank[i].code, 0);
    }
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

// The next message of this kind from whomever, in f->in; others are passed over. Says whose it is.
static uint32_t await_kind(struct transport *channel, enum message_kind kind,
                           struct message_header *header, const uint8_t **body) {
    char peer[TRANSPORT_PEER_BYTES] = "";
    memset(header, 0, sizeof *header);
    for (int i = 0; i < TURNS_MAX && header->kind != kind; i++) {
        if (transport_receive(channel, &f->in, peer) == STATUS_OK) {
            ck_assert_int_eq(codec_header_decode(f->in.data, f->in.bytes_used, header, body, NULL),
                             STATUS_OK);
        } else {
            poll(NULL, 0, TURN_MS);
        }
    }
    ck_assert_uint_eq(header->kind, kind);
    uint32_t rank = transport_peer_is(peer, "g0r0") ? 0 : 1;
    memcpy(f->rank[rank].peer, peer, sizeof peer);
    return rank;
}

// Of both ranks, in any order.
static void await_both(struct transport *channel, enum message_kind kind, uint64_t epoch) {
    uint32_t seen = 0;
    while (seen != (1u << RANKS) - 1) {
        struct message_header header;
        const uint8_t *body = NULL;
        uint32_t rank = await_kind(channel, kind, &header, &body);
        seen |= header.epoch == epoch ? 1u << rank : 0;
    }
}

static void send_to(struct transport *channel, uint32_t rank, const struct buf *message) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < TURNS_MAX && status != STATUS_OK; i++) {
        status = transport_send(channel, f->rank[rank].peer, message->data, message->bytes_used);
        if (status != STATUS_OK) {
            poll(NULL, 0, TURN_MS);
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

static void send_control(uint32_t rank, const struct control_message *message) {
    arena_reset(&f->arena);
    buf_reset(&f->out);
    ck_assert_int_eq(codec_control_encode(message, &f->arena, &f->out, NULL), STATUS_OK);
    send_to(f->control, rank, &f->out);
}

static void welcome(uint32_t rank, uint64_t epoch, const char *comm_id) {
    struct control_message message = {.kind = MESSAGE_KIND_WELCOME,
                                      .welcome = {.epoch = epoch,
                                                  .rank = rank,
                                                  .world = RANKS,
                                                  .lease_ms = LEASE_MS,
                                                  .comm_id = comm_id}};
    send_control(rank, &message);
}

static void abort_epoch(uint32_t rank, uint64_t epoch) {
    struct control_message message = {.kind = MESSAGE_KIND_ABORT,
                                      .abort = {.epoch = epoch, .reason = "a rank was lost"}};
    send_control(rank, &message);
}

// Both are welcomed into the epoch, and say what they can do once they have met.
static void form(uint64_t epoch) {
    char comm_id[COLLECTIVE_ID_BYTES];
    group_id(comm_id);
    for (uint32_t i = 0; i < RANKS; i++) {
        welcome(i, epoch, comm_id);
    }
    await_both(f->plan, MESSAGE_KIND_CAPACITY, epoch);
    ck_assert(!group_file_exists(comm_id));
}

// ---- plans -------------------------------------------------------------------------------------

static const int32_t PROMPT[3] = {7, 8, 9};

static void encode_prompt(struct buf *out, uint64_t epoch, uint64_t seq) {
    const uint32_t block = 0;
    const struct plan_admit admit = {
        .ref = {0, 1},
        .prompt_tokens = 3,
        .len_max = 12,
        .block_count = 1,
        .blocks = &block,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 5},
    };
    const struct plan_prefill prefill = {
        .ref = {0, 1}, .token_count = 3, .tokens = PROMPT, .next_token = -1, .last = true};
    const struct plan plan = {.epoch = epoch,
                              .seq = seq,
                              .admit_count = 1,
                              .admits = &admit,
                              .prefill_count = 1,
                              .prefills = &prefill};
    arena_reset(&f->arena);
    buf_reset(out);
    ck_assert_int_eq(codec_plan_encode(&plan, &f->arena, out, NULL), STATUS_OK);
}

// Both ranks' answers; rank 0's token.
static int32_t ask_both(const struct buf *plan) {
    for (uint32_t i = 0; i < RANKS; i++) {
        send_to(f->plan, i, plan);
    }
    uint64_t digest[RANKS] = {0};
    int32_t token = -1;
    for (uint32_t seen = 0; seen < RANKS; seen++) {
        struct message_header header;
        struct step_result result;
        const uint8_t *body = NULL;
        uint32_t rank = await_kind(f->plan, MESSAGE_KIND_RESULT, &header, &body);
        arena_reset(&f->arena);
        ck_assert_int_eq(codec_result_decode(&header, body, &f->arena, &result, NULL), STATUS_OK);
        ck_assert_int_eq(result.status, RESULT_STATUS_OK);
        ck_assert_uint_eq(result.row_count, rank == 0 ? 1 : 0);
        digest[rank] = result.digest;
        token = rank == 0 ? result.rows[0].token : token;
    }
    ck_assert_uint_ne(digest[0], 0);
    ck_assert_uint_eq(digest[0], digest[1]);
    return token;
}

START_TEST(ranks_answer_alike_and_one_of_them_with_rows) {
    struct buf plan;
    buf_init(&plan, MESSAGE_BYTES);
    await_both(f->control, MESSAGE_KIND_HELLO, 0);
    form(3);
    encode_prompt(&plan, 3, 1);
    int32_t token = ask_both(&plan);
    form(4);
    encode_prompt(&plan, 4, 1);
    ck_assert_int_eq(ask_both(&plan), token);
    buf_deinit(&plan);
}
END_TEST

// Only one rank gets the plan: it waits for the other one's sums.
START_TEST(an_abort_frees_a_rank_inside_a_step) {
    struct buf plan;
    buf_init(&plan, MESSAGE_BYTES);
    await_both(f->control, MESSAGE_KIND_HELLO, 0);
    for (uint64_t epoch = 3; epoch < 7; epoch++) {
        uint32_t alone = epoch % RANKS;
        form(epoch);
        encode_prompt(&plan, epoch, 1);
        send_to(f->plan, alone, &plan);
        poll(NULL, 0, (int)epoch % 3);    // inside the step, or before it: both must end
        abort_epoch(alone, epoch);
        // FAULT, or no answer where the plan had not been launched: what counts is that the next
        // epoch begins.
    }
    form(9);
    encode_prompt(&plan, 9, 1);
    ask_both(&plan);
    buf_deinit(&plan);
}
END_TEST

START_TEST(a_rank_whose_group_does_not_form_stays) {
    struct buf plan;
    char comm_id[COLLECTIVE_ID_BYTES];
    buf_init(&plan, MESSAGE_BYTES);
    await_both(f->control, MESSAGE_KIND_HELLO, 0);
    group_id(comm_id);
    welcome(0, 3, comm_id);
    while (!group_file_exists(comm_id)) {
        poll(NULL, 0, TURN_MS);
    }
    abort_epoch(0, 3);
    form(4);
    encode_prompt(&plan, 4, 1);
    ask_both(&plan);
    ck_assert(!group_file_exists(comm_id));
    buf_deinit(&plan);
}
END_TEST

Suite *suite_worker_group(void) {
    Suite *suite = suite_create("worker/worker_group");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, ranks_answer_alike_and_one_of_them_with_rows);
    tcase_add_test(tc, an_abort_frees_a_rank_inside_a_step);
    tcase_add_test(tc, a_rank_whose_group_does_not_form_stays);
    suite_add_tcase(suite, tc);
    return suite;
}
