// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "common/arena.h"
#include "common/buf.h"
#include "common/exit_code.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "proto/codec.h"
#include "worker/comm/collective.h"
#include "worker/net/controller_link.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    FRAMES = 8,
    ROOM_MS = 1,    // between looks at a full queue
    FRAME_BYTES = BOUND_PLAN_BYTES + MESSAGE_HEADER_BYTES,
    ANSWERS = 16,    // last ones, for plans that arrive twice
    DIGEST_BYTES = 32,
    FAILURE_BYTES = ERROR_MESSAGE_BYTES + 300,
    ATTACH_US = 600 * 1000 * 1000,    // other ranks may still load; an ABORT ends it at once
    JOIN_S = 5,    // patience with the step thread at the end: it may load, or hang
};

// The answer to a plan, encoded.
struct answer {
    uint64_t seq;    // 0: none
    uint32_t body_crc32c;
    struct buf bytes;
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
    struct answer answers[ANSWERS];    // of applied and refused plans, by seq modulo ANSWERS
    uint64_t epoch;
    uint64_t reports;    // of capacity, in this epoch
    uint32_t rank, world;
    struct collective *collective;    // NULL in a group of one
    struct launch_gate gate;
    struct weights *weights;    // until the engine takes them
    char model_digest[DIGEST_BYTES], config_digest[DIGEST_BYTES];
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

static struct message_address address_of(const struct worker *worker) {
    return (struct message_address){.group = worker->options->group, .epoch = worker->epoch};
}

static void report_capacity(struct worker *worker, const char *kv_note) {
    struct control_message message = {
        .kind = MESSAGE_KIND_CAPACITY,
        .address = address_of(worker),
        .capacity = *engine_capacity(worker->engine),
    };
    message.address.seq = ++worker->reports;
    message.capacity.kv_note = kv_note;
    post_control(worker, LINK_FRAME_CAPACITY, &message);
}

// Sentence and hint, for the controller.
static const char *write_failure(const struct error *err, char out[FAILURE_BYTES]) {
    snprintf(out, FAILURE_BYTES, "%s%s%s", err->message, err->hint[0] == '\0' ? "" : "; ",
             err->hint);
    return out;
}

// ---- epochs ------------------------------------------------------------------------------------

// This rank cannot go on in its epoch: the controller begins another one. Number 0, which no plan
// has, where no plan is to be answered.
static void report_fault(struct worker *worker, uint64_t seq, const char *why) {
    struct step_result result = {.group = worker->options->group,
                                 .epoch = worker->epoch,
                                 .seq = seq,
                                 .status = RESULT_STATUS_FAULT,
                                 .message = why};
    struct error err = {0};
    arena_reset(&worker->arena);
    buf_reset(&worker->out);
    if (codec_result_encode(&result, &worker->arena, &worker->out, &err) != STATUS_OK) {
        log_failure("worker", &err);
        return;
    }
    post(worker, LINK_FRAME_RESULT, &worker->out);
}

// Waits for the other ranks, in a group that has some.
static enum status join_group(struct worker *worker, const struct link_welcome *welcome,
                              struct error *err) {
    if (worker->collective == NULL) {
        return STATUS_OK;
    }
    double scale = worker->options->timer_scale;
    struct collective_epoch epoch = {
        .epoch = welcome->epoch,
        .comm_id = welcome->comm_id,
        .buffer_bytes = engine_ledger(worker->engine)->bytes[LEDGER_COMM_ARENA],
        .patience_us = (uint64_t)(ATTACH_US * (scale > 1 ? scale : 1)),
    };
    executor_set_collective(engine_executor(worker->engine), NULL);
    TRY(collective_attach(worker->collective, &epoch, err));
    executor_set_collective(engine_executor(worker->engine), worker->collective);
    log_info("worker", "group formed epoch=%llu rank=%u world=%u",
             (unsigned long long)welcome->epoch, worker->rank, worker->world);
    return STATUS_OK;
}

// The host has no room for the group's memory, and it is not known to have had some: a start that
// failed. Once a group was there, others may have taken the room for a while.
static bool never_fits(const struct worker *worker, enum status status) {
    bool host = status == STATUS_EXHAUSTED || status == STATUS_IO;
    return host && !worker->options->notes->joined;
}

static void forget_answers(struct worker *worker) {
    for (int i = 0; i < ANSWERS; i++) {
        worker->answers[i].seq = 0;
    }
}

static void begin_epoch(struct worker *worker, const struct link_welcome *welcome) {
    worker->epoch = welcome->epoch;
    worker->progress.epoch = welcome->epoch;    // taken: waiting for the others is no hanging
    worker->options->notes->epoch = welcome->epoch;
    worker->progress.applied_seq = 0;
    worker->progress.completed_seq = 0;
    worker->reports = 0;
    executor_reset(engine_executor(worker->engine), welcome->epoch);
    forget_answers(worker);
    struct error err = {0};
    enum status status = engine_reclaim_kv(worker->engine, &err);
    if (status == STATUS_OK) {
        status = join_group(worker, welcome, &err);
    }
    if (status == STATUS_CANCELLED) {
        log_info("worker", "the group did not form: %s",
                 err.message);    // the next WELCOME follows
    } else if (status != STATUS_OK && never_fits(worker, status)) {
        worker->start_status = status;
        worker->start_error = err;
    } else if (status != STATUS_OK) {
        char text[FAILURE_BYTES];
        log_failure("worker", &err);
        report_fault(worker, 0, write_failure(&err, text));
    } else {
        worker->options->notes->joined = true;
        report_capacity(worker, "");
    }
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

// ---- plans -------------------------------------------------------------------------------------

// True for a plan that was here before: it is answered as it was then, unless it is so old that
// nobody can be waiting for it. Other contents under an answered number are no plan of ours: the
// executor says so.
static bool answer_again(struct worker *worker, const struct message_header *header) {
    const struct answer *answer = &worker->answers[header->seq % ANSWERS];
    if (header->seq == 0 || answer->seq < header->seq) {
        return false;
    }
    if (answer->seq == header->seq) {
        bool same = answer->body_crc32c == header->body_crc32c;
        if (same) {
            post(worker, LINK_FRAME_RESULT, &answer->bytes);
        }
        return same;
    }
    return true;    // plans on their way are fewer by far than the ring holds
}

// Where the answer to this plan is encoded: kept when the plan was applied or refused.
static struct buf *keep_answer(struct worker *worker, const struct message_header *header,
                               enum result_status status) {
    if (header->seq == 0 || (status != RESULT_STATUS_OK && status != RESULT_STATUS_REFUSED)) {
        return &worker->out;
    }
    struct answer *answer = &worker->answers[header->seq % ANSWERS];
    answer->seq = header->seq;
    answer->body_crc32c = header->body_crc32c;
    return &answer->bytes;
}

static enum status run_plan(struct worker *worker, size_t bytes, struct error *err) {
    struct message_header header;
    const uint8_t *body = NULL;
    TRY(codec_header_decode(worker->frame, bytes, &header, &body, err));
    if (header.kind != MESSAGE_KIND_PLAN) {
        return error_set(err, STATUS_CORRUPT, "message kind %u on the plan channel", header.kind);
    }
    if (header.epoch != worker->epoch) {
        return error_set(err, STATUS_INVALID, "plan of epoch %llu in epoch %llu",
                         (unsigned long long)header.epoch, (unsigned long long)worker->epoch);
    }
    if (!launch_gate_pass(&worker->gate, header.epoch)) {
        report_fault(worker, header.seq, "not launched: the epoch is over");
        return STATUS_OK;
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
    if (worker->rank > 0) {
        result.row_count = 0;    // the same as rank 0's: the digest says so
    }
    struct buf *encoded = keep_answer(worker, &header, result.status);
    buf_reset(encoded);
    arena_reset(&worker->arena);
    TRY(codec_result_encode(&result, &worker->arena, encoded, err));
    post(worker, LINK_FRAME_RESULT, encoded);
    worker->options->notes->watch.plans += result.status == RESULT_STATUS_OK ? 1 : 0;
    if (result.status == RESULT_STATUS_OK && resize_blocks > 0) {
        resize_pool(worker, resize_blocks);
    }
    return STATUS_OK;
}

// ---- the step thread's life --------------------------------------------------------------------

static enum status start_engine(struct worker *worker) {
    if (worker->weights == NULL) {
        return worker->start_error.status;    // another try would start with what nobody compared
    }
    struct engine_options options = worker->options->engine;
    options.progress = report_progress;
    options.progress_ctx = worker;
    options.weights = worker->weights;
    options.kv_stamp = &worker->options->notes->kv;
    worker->weights = NULL;
    return engine_create(&options, &worker->engine, &worker->start_error);
}

static void fail_start(struct worker *worker) {
    log_failure("worker", &worker->start_error);
    char text[FAILURE_BYTES];
    struct control_message message = {
        .kind = MESSAGE_KIND_GOODBYE,
        .text = {.code = (uint32_t)exit_code_for(worker->start_status),
                 .text = write_failure(&worker->start_error, text)},
    };
    post_control(worker, LINK_FRAME_FAILED, &message);
    frame_queue_close(worker->from_step);
}

static void *step_thread(void *arg) {
    struct worker *worker = arg;
    worker->start_status = start_engine(worker);
    if (worker->start_status != STATUS_OK) {
        fail_start(worker);
        return NULL;
    }
    log_info("worker", "engine ready isa=%s attached=%d", engine_isa(worker->engine),
             (int)engine_attached(worker->engine));
    worker->progress.started = true;
    uint32_t kind = 0;
    size_t bytes = 0;
    while (worker->start_status == STATUS_OK &&
           frame_queue_wait(worker->to_step, &kind, worker->frame, &bytes) == STATUS_OK) {
        struct error err = {0};
        if (kind == LINK_FRAME_WELCOME) {
            struct link_welcome welcome;
            INVARIANT(bytes == sizeof welcome);
            memcpy(&welcome, worker->frame, sizeof welcome);
            begin_epoch(worker, &welcome);
        } else if (kind == LINK_FRAME_RELEASE_KV) {
            log_warn("worker", "no controller for long: the KV memory is given back");
            engine_release_kv(worker->engine);
        } else if (run_plan(worker, bytes, &err) != STATUS_OK) {
            log_failure("worker", &err);
        }
    }
    if (worker->start_status != STATUS_OK) {
        fail_start(worker);
    }
    engine_destroy(worker->engine);
    worker->engine = NULL;
    return NULL;
}

// ---- the I/O thread ----------------------------------------------------------------------------

// Shapes alone serve on a device that does not compute.
static bool has_weights(const struct worker *worker) {
    const struct device_table *table = device_find(worker->options->engine.device);
    return !weights_shapes_only(worker->weights) || (table != NULL && !table->computes);
}

// What the ranks of a group must have in common, for the HELLO. A model that cannot be opened, or
// whose weights are gone, has no digest: the start tells why, in its own words.
static void introduce(struct worker *worker) {
    const struct engine_options *o = &worker->options->engine;
    worker->rank = o->shard.rank;
    worker->world = o->shard.world > 1 ? o->shard.world : 1;
    if (weights_open(o->model_path, &worker->weights, &worker->start_error) == STATUS_OK &&
        has_weights(worker)) {
        snprintf(worker->model_digest, sizeof worker->model_digest, "%s",
                 weights_digest(worker->weights));
    }
    char text[512];
    int bytes = snprintf(text, sizeof text, "%s|%u|%u|%u|%u|%d|%lld|%lld|%lld|%d", o->device,
                         worker->world, o->seqs, o->step_tokens, o->block_tokens, (int)o->kv_dtype,
                         (long long)o->model_len, (long long)o->workspace_budget,
                         (long long)o->device_memory, (int)o->enforce_eager);
    INVARIANT(bytes > 0);
    size_t length = (size_t)bytes < sizeof text ? (size_t)bytes : sizeof text - 1;
    snprintf(worker->config_digest, sizeof worker->config_digest, "%016llx",
             (unsigned long long)hash_bytes(text, length));
}

static enum status init(struct worker *worker, const struct worker_options *options,
                        struct error *err) {
    worker->options = options;
    arena_init(&worker->arena, 8 * (size_t)FRAME_BYTES);
    buf_init(&worker->out, FRAME_BYTES);
    for (int i = 0; i < ANSWERS; i++) {
        buf_init(&worker->answers[i].bytes, FRAME_BYTES);
    }
    launch_gate_init(&worker->gate);
    introduce(worker);
    worker->frame = memory_alloc(FRAME_BYTES);
    if (worker->frame == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for messages");
    }
    if (worker->world > 1) {
        struct collective_options group = {
            .name = "shm", .rank = worker->rank, .world = worker->world};
        TRY(collective_create(&group, &worker->collective, err));
    }
    TRY(frame_queue_create(FRAMES, FRAME_BYTES, &worker->to_step, err));
    return frame_queue_create(FRAMES, FRAME_BYTES, &worker->from_step, err);
}

static void deinit(struct worker *worker) {
    frame_queue_destroy(worker->to_step);
    frame_queue_destroy(worker->from_step);
    memory_free(worker->frame);
    collective_destroy(worker->collective);
    launch_gate_deinit(&worker->gate);
    weights_close(worker->weights);
    for (int i = 0; i < ANSWERS; i++) {
        buf_deinit(&worker->answers[i].bytes);
    }
    buf_deinit(&worker->out);
    arena_deinit(&worker->arena);
}

// Waits for the step thread, which was told to end. One that does not must not keep the process:
// what it holds is gone with it, and nobody waits for what it computes.
static void join_step_thread(const struct worker *worker, pthread_t thread, enum status status) {
    int code = status == STATUS_TIMEOUT ? EXIT_CODE_UNEXPECTED : (int)exit_code_for(status);
    double scale = worker->options->timer_scale;
    struct timespec limit = {0};
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += (time_t)(JOIN_S * (scale > 1 ? scale : 1));
    if (status == STATUS_TIMEOUT || pthread_timedjoin_np(thread, NULL, &limit) != 0) {
        log_warn("worker", "the process ends without its step thread code=%d", code);
        holder_end_child(code);
    }
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
        .model_digest = worker->model_digest,
        .config_digest = worker->config_digest,
        .group = worker->options->group,
        .rank = worker->rank,
        .world = worker->world,
        .epoch = worker->options->notes->epoch,
        .collective = worker->collective,
        .gate = &worker->gate,
        .timer_scale = worker->options->timer_scale,
        .to_step = worker->to_step,
        .from_step = worker->from_step,
        .progress = &worker->progress,
        .watch = &worker->options->notes->watch,
        .stop = worker->options->stop,
    };
    enum status status = controller_link_run(&link, err);
    // Whatever the step thread waits for, it waits no longer.
    launch_gate_close(&worker->gate);
    if (worker->collective != NULL) {
        collective_abort(worker->collective, UINT64_MAX);
    }
    frame_queue_close(worker->to_step);
    frame_queue_close(worker->from_step);    // nobody makes room any more
    if (status == STATUS_TIMEOUT) {
        log_failure("worker", err);
    }
    join_step_thread(worker, thread, status);
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
