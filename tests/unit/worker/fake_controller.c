// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/fake_controller.h"

#include "tests/support/tiny_model.h"
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct transport *listen_on(const struct fake_controller *c, const char *name) {
    char address[128];
    snprintf(address, sizeof address, "%s/%s.sock", c->address, name);
    struct transport_options options = {
        .address = address,
        .listens = true,
        .message_bytes_max = FAKE_MESSAGE_BYTES,
        .queue_messages_max = 64,
    };
    struct transport *transport = NULL;
    ck_assert_int_eq(transport_open(&options, &transport, NULL), STATUS_OK);
    return transport;
}

void fake_controller_init(struct fake_controller *c) {
    *c = (struct fake_controller){.run_dir = "/tmp/tare-worker-XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(c->run_dir));
    snprintf(c->address, sizeof c->address, "ipc://%s", c->run_dir);
    arena_init(&c->arena, 1 << 20);
    buf_init(&c->out, FAKE_MESSAGE_BYTES);
    buf_init(&c->in, FAKE_MESSAGE_BYTES);
}

void fake_controller_listen_control(struct fake_controller *c) {
    c->control = listen_on(c, "control");
}

void fake_controller_listen(struct fake_controller *c) {
    if (c->plan == NULL) {
        c->plan = listen_on(c, "plan");
    }
    if (c->control == NULL) {
        c->control = listen_on(c, "control");
    }
}

void fake_controller_hang_up(struct fake_controller *c) {
    transport_close(c->control);
    transport_close(c->plan);
    c->control = NULL;
    c->plan = NULL;
}

void fake_controller_deinit(struct fake_controller *c) {
    fake_controller_hang_up(c);
    const char *const names[] = {"plan.sock", "control.sock", "epoch"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", c->run_dir, names[i]);
        unlink(path);
    }
    ck_assert_int_eq(rmdir(c->run_dir), 0);
    arena_deinit(&c->arena);
    buf_deinit(&c->out);
    buf_deinit(&c->in);
}

void fake_nap(void) {
    poll(NULL, 0, FAKE_TURN_MS);
}

// ---- messages ----------------------------------------------------------------------------------

void fake_controller_receive(struct fake_controller *c, struct transport *channel) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < FAKE_TURNS_MAX && status == STATUS_BUSY; i++) {
        status = transport_receive(channel, &c->in, c->peer);
        if (status == STATUS_BUSY) {
            fake_nap();
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

const uint8_t *fake_controller_await(struct fake_controller *c, struct transport *channel,
                                     enum message_kind kind, struct message_header *header) {
    const uint8_t *body = NULL;
    *header = (struct message_header){0};
    for (int i = 0; i < FAKE_TURNS_MAX && header->kind != kind; i++) {
        if (transport_receive(channel, &c->in, c->peer) == STATUS_OK) {
            ck_assert_int_eq(codec_header_decode(c->in.data, c->in.bytes_used, header, &body, NULL),
                             STATUS_OK);
        } else {
            fake_nap();
        }
    }
    ck_assert_uint_eq(header->kind, kind);
    return body;
}

void fake_controller_hear(struct fake_controller *c, struct transport *channel,
                          enum message_kind kind, struct message_header *header,
                          struct control_message *out) {
    const uint8_t *body = fake_controller_await(c, channel, kind, header);
    arena_reset(&c->arena);
    ck_assert_int_eq(codec_control_decode(header, body, &c->arena, out, NULL), STATUS_OK);
}

void fake_controller_send(struct transport *channel, const char *peer, const void *bytes,
                          size_t byte_count) {
    enum status status = STATUS_BUSY;
    for (int i = 0; i < FAKE_TURNS_MAX && status != STATUS_OK; i++) {
        status = transport_send(channel, peer, bytes, byte_count);
        if (status != STATUS_OK) {
            fake_nap();
        }
    }
    ck_assert_int_eq(status, STATUS_OK);
}

void fake_controller_say(struct fake_controller *c, const char *peer,
                         const struct control_message *message) {
    arena_reset(&c->arena);
    buf_reset(&c->out);
    ck_assert_int_eq(codec_control_encode(message, &c->arena, &c->out, NULL), STATUS_OK);
    fake_controller_send(c->control, peer, c->out.data, c->out.bytes_used);
}

void fake_controller_abort(struct fake_controller *c, const char *peer, uint64_t epoch) {
    struct control_message message = {.kind = MESSAGE_KIND_ABORT,
                                      .abort = {.epoch = epoch, .reason = "a rank was lost"}};
    fake_controller_say(c, peer, &message);
}

void fake_controller_encode_prompt(struct fake_controller *c, struct buf *out, uint64_t epoch,
                                   uint64_t seq, uint32_t undone, const int32_t tokens[3]) {
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
        .ref = {0, 1}, .token_count = 3, .tokens = tokens, .next_token = -1, .last = true};
    const struct plan plan = {.epoch = epoch,
                              .seq = seq,
                              .undone = undone,
                              .admit_count = 1,
                              .admits = &admit,
                              .prefill_count = 1,
                              .prefills = &prefill};
    arena_reset(&c->arena);
    ck_assert_int_eq(codec_plan_encode(&plan, &c->arena, out, NULL), STATUS_OK);
}

// ---- a worker ----------------------------------------------------------------------------------

void fake_worker_init(struct fake_worker *worker, const struct fake_controller *c,
                      struct model_shard shard) {
    static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, 256, 256};
    snprintf(worker->name, sizeof worker->name, "g0r%u", shard.rank);
    snprintf(worker->model, sizeof worker->model, "%s/model%u.gguf", c->run_dir, shard.rank);
    tiny_model_write(&model, worker->model);
    worker->options = (struct worker_options){
        .engine = {.model_path = worker->model,
                   .device = "cpu",
                   .isa = "auto",
                   .threads = 1,
                   .shard = shard,
                   .utilization = 1.0,
                   .kv_bytes = 1024 * 1024,
                   .kv_dtype = DTYPE_F16,
                   .block_tokens = 16,
                   .seqs = 4,
                   .step_tokens = 32,
                   .model_len = 128,
                   .weights_fd = -1,
                   .kv_fd = -1},
        .controller = c->address,
        .worker_id = worker->name,
        .model_name = "m",
        .timer_scale = 10,
        .notes = &worker->notes,
        .stop = &worker->stop,
    };
}

static void *run_worker(void *arg) {
    struct fake_worker *worker = arg;
    worker->code = worker_run(&worker->options);
    return NULL;
}

void fake_worker_start(struct fake_worker *worker) {
    ck_assert_int_eq(pthread_create(&worker->thread, NULL, run_worker, worker), 0);
}

void fake_worker_deinit(struct fake_worker *worker) {
    worker->stop = 1;
    pthread_join(worker->thread, NULL);
    ck_assert_int_eq(worker->code, worker->wanted_code);
    ck_assert(unlink(worker->model) == 0 || errno == ENOENT);
}
