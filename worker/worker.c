// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "common/arena.h"
#include "common/buf.h"
#include "common/exit_code.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "proto/codec.h"
#include "worker/net/controller_link.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    FRAMES = 8,
    ROOM_MS = 1,    // between looks at a full queue
    FRAME_BYTES = BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES,
    RESULT_RING = 4,    // last results, for plans that arrive twice
};

struct worker {
    const struct worker_options *options;
    struct frame_queue *to_step;
    struct frame_queue *from_step;
    struct link_progress progress;
    struct engine *engine;
    struct arena arena;
    uint8_t *frame;
    struct buf out;
    struct buf results[RESULT_RING];    // encoded, by seq modulo RESULT_RING
    uint64_t result_seq[RESULT_RING];
    uint64_t epoch;
    enum status start_status;
    struct error start_error;
};

// ---- the step thread ---------------------------------------------------------------------------

static void post(struct worker *worker, enum link_frame kind, const struct buf *message) {
    enum status status;
    while ((status = frame_queue_put(worker->from_step, kind, message->data,
                                     message->bytes_used)) == STATUS_BUSY &&
           kind != LINK_FRAME_PROGRESS) {
        poll(NULL, 0, ROOM_MS);    // the link was not scheduled for a while
    }
    if (status != STATUS_OK) {
        log_debug("worker", "a frame to the link was dropped kind=%d", (int)kind);
    }
}

static void post_control(struct worker *worker, enum link_frame kind,
                         const struct control_message *message) {
    arena_reset(&worker->arena);
    buf_reset(&worker->out);
    struct error err = {0};
    if (codec_control_encode(message, &worker->arena, &worker->out, &err) != STATUS_OK) {
        log_failure("worker", &err);
        return;
    }
    post(worker, kind, &worker->out);
}

static void report_progress(void *ctx, const struct message_progress *progress) {
    struct worker *worker = ctx;
    struct control_message message = {.kind = MESSAGE_KIND_PROGRESS, .progress = *progress};
    post_control(worker, LINK_FRAME_PROGRESS, &message);
}

static void report_capacity(struct worker *worker, const char *kv_note) {
    struct control_message message = {
        .kind = MESSAGE_KIND_CAPACITY,
        .address = {.epoch = worker->epoch},
        .capacity = *engine_capacity(worker->engine),
    };
    message.capacity.kv_note = kv_note;
    post_control(worker, LINK_FRAME_CAPACITY, &message);
}

static void begin_epoch(struct worker *worker, uint64_t epoch) {
    worker->epoch = epoch;
    executor_reset(engine_executor(worker->engine), epoch);
    memset(worker->result_seq, 0, sizeof worker->result_seq);
    report_capacity(worker, "");
}

// After the step that the plan asked for: no step runs, and no slot holds a block above a lower
// end.
static void resize_pool(struct worker *worker, uint32_t kv_blocks) {
    struct error err = {0};
    uint32_t before = engine_capacity(worker->engine)->kv_blocks;
    uint32_t after = before;
    enum status status = engine_resize_kv(worker->engine, kv_blocks, &after, &err);
    log_info("worker", "kv pool resized asked=%u before=%u after=%u status=%s", kv_blocks, before,
             after, status_name(status));
    report_capacity(worker, err.message);
}

// A plan that was already carried out is answered again from the ring.
static bool answer_again(struct worker *worker, const struct message_header *header) {
    uint32_t at = (uint32_t)(header->seq % RESULT_RING);
    bool known = header->epoch == worker->epoch && header->seq != 0 &&
                 header->seq <= executor_applied_seq(engine_executor(worker->engine)) &&
                 worker->result_seq[at] == header->seq;
    if (known) {
        post(worker, LINK_FRAME_RESULT, &worker->results[at]);
    }
    return known;
}

static enum status run_plan(struct worker *worker, size_t bytes, struct error *err) {
    struct message_header header;
    const uint8_t *body = NULL;
    TRY(codec_header_decode(worker->frame, bytes, &header, &body, err));
    if (header.kind != MESSAGE_KIND_PLAN) {
        return error_set(err, STATUS_CORRUPT, "message kind %u on the plan channel", header.kind);
    }
    if (header.epoch < worker->epoch) {
        return error_set(err, STATUS_INVALID, "plan of the old epoch %llu",
                         (unsigned long long)header.epoch);
    }
    if (answer_again(worker, &header)) {
        return STATUS_OK;
    }
    struct plan plan;
    arena_reset(&worker->arena);
    TRY(codec_plan_decode(&header, body, &worker->arena, &plan, err));
    uint32_t resize_blocks = plan.kv_blocks;
    struct step_result result;
    executor_run(engine_executor(worker->engine), &plan, &result);
    worker->progress.applied_seq = result.applied_seq;
    worker->progress.completed_seq = result.applied_seq;
    uint32_t at = (uint32_t)(header.seq % RESULT_RING);
    struct buf *encoded = result.status == RESULT_STATUS_OK ? &worker->results[at] : &worker->out;
    buf_reset(encoded);
    arena_reset(&worker->arena);
    TRY(codec_result_encode(&result, &worker->arena, encoded, err));
    if (result.status == RESULT_STATUS_OK) {
        worker->result_seq[at] = header.seq;
    }
    post(worker, LINK_FRAME_RESULT, encoded);
    if (result.status == RESULT_STATUS_OK && resize_blocks > 0) {
        resize_pool(worker, resize_blocks);
    }
    return STATUS_OK;
}

static enum status start_engine(struct worker *worker) {
    struct engine_options options = worker->options->engine;
    options.progress = report_progress;
    options.progress_ctx = worker;
    return engine_create(&options, &worker->engine, &worker->start_error);
}

static void fail_start(struct worker *worker) {
    log_failure("worker", &worker->start_error);
    char text[ERROR_MESSAGE_BYTES + 300];
    snprintf(text, sizeof text, "%s%s%s", worker->start_error.message,
             worker->start_error.hint[0] == '\0' ? "" : "; ", worker->start_error.hint);
    struct control_message message = {
        .kind = MESSAGE_KIND_GOODBYE,
        .text = {.code = (uint32_t)exit_code_for(worker->start_status), .text = text},
    };
    post_control(worker, LINK_FRAME_FAILED, &message);
}

static void *step_thread(void *arg) {
    struct worker *worker = arg;
    worker->start_status = start_engine(worker);
    if (worker->start_status != STATUS_OK) {
        fail_start(worker);
        frame_queue_close(worker->from_step);
        return NULL;
    }
    log_info("worker", "engine ready isa=%s attached=%d", engine_isa(worker->engine),
             (int)engine_attached(worker->engine));
    uint32_t kind = 0;
    size_t bytes = 0;
    while (frame_queue_wait(worker->to_step, &kind, worker->frame, &bytes) == STATUS_OK) {
        struct error err = {0};
        if (kind == LINK_FRAME_WELCOME) {
            uint64_t epoch;
            INVARIANT(bytes == sizeof epoch);
            memcpy(&epoch, worker->frame, sizeof epoch);
            begin_epoch(worker, epoch);
        } else if (run_plan(worker, bytes, &err) != STATUS_OK) {
            log_failure("worker", &err);
        }
    }
    engine_destroy(worker->engine);
    worker->engine = NULL;
    return NULL;
}

// ---- the I/O thread ----------------------------------------------------------------------------

static enum status init(struct worker *worker, const struct worker_options *options,
                        struct error *err) {
    worker->options = options;
    arena_init(&worker->arena, 8 * (size_t)FRAME_BYTES);
    buf_init(&worker->out, FRAME_BYTES);
    for (int i = 0; i < RESULT_RING; i++) {
        buf_init(&worker->results[i], FRAME_BYTES);
    }
    worker->frame = memory_alloc(FRAME_BYTES);
    if (worker->frame == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for messages");
    }
    TRY(frame_queue_create(FRAMES, FRAME_BYTES, &worker->to_step, err));
    return frame_queue_create(FRAMES, FRAME_BYTES, &worker->from_step, err);
}

static void deinit(struct worker *worker) {
    frame_queue_destroy(worker->to_step);
    frame_queue_destroy(worker->from_step);
    memory_free(worker->frame);
    for (int i = 0; i < RESULT_RING; i++) {
        buf_deinit(&worker->results[i]);
    }
    buf_deinit(&worker->out);
    arena_deinit(&worker->arena);
}

static enum status run(struct worker *worker, struct error *err) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, step_thread, worker) != 0) {
        return error_set(err, STATUS_EXHAUSTED, "the step thread cannot be started");
    }
    struct controller_link_options link = {
        .address = worker->options->controller,
        .key_file = worker->options->key_file,
        .controller_key_file = worker->options->controller_key_file,
        .worker_id = worker->options->worker_id,
        .model_name = worker->options->model_name,
        .device = worker->options->engine.device,
        .to_step = worker->to_step,
        .from_step = worker->from_step,
        .progress = &worker->progress,
        .stop = worker->options->stop,
    };
    enum status status = controller_link_run(&link, err);
    frame_queue_close(worker->to_step);
    frame_queue_close(worker->from_step);    // nobody makes room any more
    pthread_join(thread, NULL);
    return worker->start_status != STATUS_OK ? worker->start_status : status;
}

int worker_run(const struct worker_options *options) {
    struct worker *worker = memory_zalloc(sizeof *worker);
    if (worker == NULL) {
        return EXIT_CODE_UNAVAILABLE;
    }
    struct error err = {0};
    enum status status = init(worker, options, &err);
    if (status == STATUS_OK) {
        status = run(worker, &err);
    }
    if (err.status != STATUS_OK && status != STATUS_SHUTDOWN) {
        log_failure("worker", &err);
    }
    deinit(worker);
    memory_free(worker);
    return status == STATUS_SHUTDOWN ? EXIT_CODE_OK : (int)exit_code_for(status);
}
