// SPDX-License-Identifier: Apache-2.0
#include "controller/input_log.h"

#include "common/arena.h"
#include "common/crc32c.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/mapped_file.h"
#include "common/memory.h"
#include "common/wire.h"
#include "controller/core/prefix_index.h"
#include "proto/codec.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RECORD_HEAD_BYTES = 9,    // length, checksum, kind
    RECORD_BYTES_MAX = 64 * 1024 * 1024,
    FLUSH_US = 200 * 1000,
    TICK_INPUTS_MAX = 65536,
};
enum record_kind { RECORD_CONFIG = 1, RECORD_TICK, RECORD_PLAN };
static const char MAGIC[16] = "tare input log 3";

// ---- both directions ---------------------------------------------------------------------------

// Numbers lie as they do in memory: a log is replayed where it was written, or on its like.

static void wire_config(struct wire *w, struct core_config *config) {
    WIRE(w, config->seqs_max);
    WIRE(w, config->waiting_max);
    WIRE(w, config->step_tokens_max);
    WIRE(w, config->blocks_max);
    WIRE(w, config->group);
    WIRE(w, config->depth);
    WIRE(w, config->groups_max);
    WIRE(w, config->ranks_max);
    WIRE(w, config->tenant_max);
    WIRE(w, config->blocks_per_seq_max);
    WIRE(w, config->policy);
    WIRE(w, config->prefix_secret);
}

// Numbers of a request; its arrays follow apart.
static void wire_request(struct wire *w, struct core_request *r) {
    struct sampling_params *s = &r->sampling;
    WIRE(w, r->id);
    WIRE(w, r->class_);
    WIRE(w, r->tenant);
    WIRE(w, r->weight);
    WIRE(w, r->prompt_count);
    WIRE(w, r->resumed_count);
    WIRE(w, r->output_max);
    WIRE(w, r->key_capacity);
    WIRE(w, r->salt);
    WIRE(w, s->temperature);
    WIRE(w, s->top_p);
    WIRE(w, s->min_p);
    WIRE(w, s->top_k);
    WIRE(w, s->repetition_penalty);
    WIRE(w, s->presence_penalty);
    WIRE(w, s->frequency_penalty);
    WIRE(w, s->seed);
    WIRE(w, s->stream);
    wire_bool(w, &s->want_logprobs);
    wire_bool(w, &s->want_prompt_logprobs);
    WIRE(w, s->top_logprobs);
    WIRE(w, s->min_tokens);
    WIRE(w, s->stop_token_count);
    WIRE(w, s->stop_tokens);
    WIRE(w, s->bias_count);
}

// ---- writing -----------------------------------------------------------------------------------

struct input_log {
    FILE *file;
    uint64_t bytes_written, bytes_max;
    uint64_t flushed_us, now_us;
    struct buf record, frame;
    struct arena arena;
    bool ended;
};

static void end_log(struct input_log *log, const char *why) {
    if (!log->ended) {
        log_warn("input_log", "the input log ends here: %s", why);
    }
    log->ended = true;
}

// Of the kind and the body.
static uint32_t checksum(uint8_t kind, const uint8_t *body, size_t body_bytes) {
    return crc32c(body, body_bytes) ^ kind;
}

static void write_record(struct input_log *log, enum record_kind kind) {
    if (log->ended) {
        return;
    }
    if (buf_status(&log->record) != STATUS_OK) {
        end_log(log, "a record is too large");
        return;
    }
    uint8_t head[RECORD_HEAD_BYTES];
    uint32_t bytes = (uint32_t)log->record.bytes_used;
    uint32_t crc = checksum((uint8_t)kind, log->record.data, bytes);
    memcpy(head, &bytes, sizeof bytes);
    memcpy(head + 4, &crc, sizeof crc);
    head[8] = (uint8_t)kind;
    if (log->bytes_written + sizeof head + bytes > log->bytes_max) {
        end_log(log, "it is as large as it may be");
    } else if (fwrite(head, 1, sizeof head, log->file) != sizeof head ||
               (bytes > 0 && fwrite(log->record.data, 1, bytes, log->file) != bytes)) {
        end_log(log, strerror(errno));
    } else {
        log->bytes_written += sizeof head + bytes;
    }
    buf_reset(&log->record);
}

static void append_array(struct wire *w, const void *bytes, size_t byte_count) {
    buf_append(w->out, bytes, byte_count);
}

// A message as it came over the wire, with its length.
static void append_frame(struct input_log *log, struct wire *w) {
    const uint8_t *frame = log->frame.data;
    uint32_t bytes = (uint32_t)log->frame.bytes_used;
    wire_run(w, &frame, &bytes);
    buf_reset(&log->frame);
    arena_reset(&log->arena);
}

static void append_ready(struct input_log *log, struct wire *w, const struct core_input *input) {
    struct control_message message = {.kind = MESSAGE_KIND_CAPACITY,
                                      .address = {.epoch = input->ready.epoch},
                                      .capacity = *input->ready.capacity};
    struct worker_id worker = input->ready.worker;
    uint64_t epoch = input->ready.epoch;
    uint32_t group = input->ready.group;
    uint32_t world = input->ready.world;
    bool kv_kept = input->ready.kv_kept;
    WIRE(w, worker);
    WIRE(w, epoch);
    WIRE(w, group);
    WIRE(w, world);
    wire_bool(w, &kv_kept);
    if (codec_control_encode(&message, &log->arena, &log->frame, NULL) != STATUS_OK) {
        end_log(log, "a capacity report cannot be encoded");
    }
    append_frame(log, w);
}

static void append_result(struct input_log *log, struct wire *w, const struct core_input *input) {
    struct worker_id worker = input->result.worker;
    uint32_t rank = input->result.rank;
    WIRE(w, worker);
    WIRE(w, rank);
    if (codec_result_encode(input->result.result, &log->arena, &log->frame, NULL) != STATUS_OK) {
        end_log(log, "a result cannot be encoded");
    }
    append_frame(log, w);
}

static void append_input(struct input_log *log, struct wire *w, const struct core_input *input) {
    uint8_t kind = (uint8_t)input->kind;
    struct core_input copy = *input;
    WIRE(w, kind);
    switch (input->kind) {
    case CORE_INPUT_REQUEST: {
        struct core_request request = *input->request;
        request.key_capacity = request.keys == NULL ? 0 : request.key_capacity;
        wire_request(w, &request);
        append_array(w, request.tokens,
                     (request.prompt_count + request.resumed_count) * sizeof *request.tokens);
        append_array(w, request.sampling.bias,
                     request.sampling.bias_count * sizeof *request.sampling.bias);
        break;
    }
    case CORE_INPUT_CANCEL:
    case CORE_INPUT_STOP:
        WIRE(w, copy.id);
        break;
    case CORE_INPUT_WORKER_READY:
        append_ready(log, w, input);
        break;
    case CORE_INPUT_WORKER_LOST:
        WIRE(w, copy.lost.worker);
        break;
    case CORE_INPUT_RESULT:
        append_result(log, w, input);
        break;
    case CORE_INPUT_RESIZE_KV:
        WIRE(w, copy.resize.operation);
        WIRE(w, copy.resize.blocks);
        WIRE(w, copy.resize.group);
        break;
    case CORE_INPUT_DRAIN:
    case CORE_INPUT_ABORT_ALL:
        break;
    }
}

void input_log_tick(struct input_log *log, uint64_t now_us, const struct core_input *inputs,
                    uint32_t input_count) {
    if (log == NULL || log->ended) {
        return;
    }
    struct wire w = {.out = &log->record};
    WIRE(&w, now_us);
    WIRE(&w, input_count);
    for (uint32_t i = 0; i < input_count; i++) {
        append_input(log, &w, &inputs[i]);
    }
    write_record(log, RECORD_TICK);
    if (now_us - log->flushed_us > FLUSH_US) {
        log->flushed_us = now_us;
        // What could not be written is dropped by the library: whatever came behind it would be
        // read as something else.
        if (fflush(log->file) != 0) {
            end_log(log, strerror(errno));
        }
    }
}

struct plan_mark {
    uint64_t group, epoch, seq, digest;
};

static enum status mark_plan(const struct plan *plan, struct arena *arena, struct buf *frame,
                             struct plan_mark *out) {
    arena_reset(arena);
    buf_reset(frame);
    enum status status = codec_plan_encode(plan, arena, frame, NULL);
    *out = (struct plan_mark){plan->group, plan->epoch, plan->seq,
                              hash_bytes(frame->data, frame->bytes_used)};
    return status;
}

void input_log_plan(struct input_log *log, const struct plan *plan) {
    if (log == NULL || log->ended) {
        return;
    }
    struct plan_mark mark;
    if (mark_plan(plan, &log->arena, &log->frame, &mark) != STATUS_OK) {
        end_log(log, "a plan cannot be encoded");
        return;
    }
    // The plan itself too: where a replay differs, both can be shown.
    buf_append(&log->record, &mark, sizeof mark);
    buf_append(&log->record, log->frame.data, log->frame.bytes_used);
    write_record(log, RECORD_PLAN);
    buf_reset(&log->frame);
}

// A file of ours alone, also where one lay there before. Nothing else: a named pipe would hold the
// loop when its reader is slow.
// The log of a controller before us, which may have died of what is in it, goes on as FILE.old.
static enum status keep_old(const char *path, struct error *err) {
    char old[PATH_MAX];
    struct stat info;
    int bytes = snprintf(old, sizeof old, "%s.old", path);
    bool there = lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    if (there && (bytes < 0 || (size_t)bytes >= sizeof old || rename(path, old) != 0)) {
        return error_set_os(err, STATUS_IO, "input log '%s' is there and cannot be renamed", path);
    }
    return STATUS_OK;
}

static enum status open_file(const char *path, FILE **out, struct error *err) {
    TRY(keep_old(path, err));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        error_hint(err, "name a regular file, in a directory that is there, with --input-log");
        return error_set_os(err, STATUS_IO, "input log '%s'", path);
    }
    struct stat info;
    enum status status = STATUS_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = error_set(err, STATUS_IO, "input log '%s' is not a regular file", path);
    } else if (fchmod(fd, 0600) != 0 || ftruncate(fd, 0) != 0) {
        status = error_set_os(err, STATUS_IO, "input log '%s'", path);
    } else if ((*out = fdopen(fd, "wb")) == NULL) {
        status = error_set_os(err, STATUS_EXHAUSTED, "input log '%s'", path);
    }
    if (status != STATUS_OK) {
        close(fd);
    }
    return status;
}

enum status input_log_create(const char *path, uint64_t bytes_max, const struct core_config *config,
                             struct input_log **out, struct error *err) {
    struct input_log *log = memory_zalloc(sizeof *log);
    if (log == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for an input log");
    }
    log->bytes_max = bytes_max;
    buf_init(&log->record, RECORD_BYTES_MAX);
    buf_init(&log->frame, RECORD_BYTES_MAX);
    arena_init(&log->arena, RECORD_BYTES_MAX);
    enum status status = open_file(path, &log->file, err);
    if (status != STATUS_OK) {
        input_log_close(log);
        return status;
    }
    struct core_config copy = *config;
    struct wire w = {.out = &log->record};
    append_array(&w, MAGIC, sizeof MAGIC);
    wire_config(&w, &copy);
    write_record(log, RECORD_CONFIG);
    *out = log;
    return STATUS_OK;
}

void input_log_close(struct input_log *log) {
    if (log == NULL) {
        return;
    }
    if (log->file != NULL) {
        fclose(log->file);
    }
    buf_deinit(&log->record);
    buf_deinit(&log->frame);
    arena_deinit(&log->arena);
    memory_free(log);
}

// ---- replay ------------------------------------------------------------------------------------

// A request's arrays, alive until its terminal action.
struct kept {
    uint64_t id;
    int32_t *tokens;
    struct prefix_key *keys;
    struct token_bias *bias;
    struct kept *next;
};

struct replay {
    struct core *core;
    struct core_config config;
    struct kept *kept;
    struct arena arena;       // of the tick: inputs and what they point to
    struct arena capacity;    // reports stay alive with the core
    struct arena plan_arena;
    struct buf frame;
    struct buf *out;
    const uint8_t *at, *end;    // records not read yet
    const uint8_t *begin;
    uint64_t ticks, inputs, plans;
    bool damaged;    // at `at`
    enum status status;
    struct error *err;
};

static void forget(struct replay *r, uint64_t id) {
    for (struct kept **at = &r->kept; *at != NULL; at = &(*at)->next) {
        struct kept *kept = *at;
        if (kept->id == id) {
            *at = kept->next;
            memory_free(kept->tokens);
            memory_free(kept->keys);
            memory_free(kept->bias);
            memory_free(kept);
            return;
        }
    }
}

// The next whole record, or false at the end of what was written, or where it is damaged: a dying
// process leaves less than a record, never another one.
static bool next_record(struct replay *r, uint8_t *kind, struct wire *out) {
    uint32_t bytes = 0, crc = 0;
    if (r->end - r->at < RECORD_HEAD_BYTES) {
        return false;
    }
    memcpy(&bytes, r->at, sizeof bytes);
    memcpy(&crc, r->at + 4, sizeof crc);
    if (bytes > (size_t)(r->end - r->at) - RECORD_HEAD_BYTES) {
        return false;
    }
    *kind = r->at[8];
    if (*kind < RECORD_CONFIG || *kind > RECORD_PLAN ||
        checksum(*kind, r->at + RECORD_HEAD_BYTES, bytes) != crc) {
        r->damaged = true;
        return false;
    }
    *out = wire_reader(r->at + RECORD_HEAD_BYTES, bytes);
    r->at += RECORD_HEAD_BYTES + bytes;
    return true;
}

static void describe(const char *when, const struct plan_mark *mark, const uint8_t *frame,
                     size_t frame_bytes, struct replay *r) {
    struct message_header header;
    const uint8_t *body = NULL;
    struct plan plan;
    arena_reset(&r->plan_arena);
    buf_printf(r->out, "%s group %llu epoch %llu seq %llu digest %016llx", when,
               (unsigned long long)mark->group, (unsigned long long)mark->epoch,
               (unsigned long long)mark->seq, (unsigned long long)mark->digest);
    if (codec_header_decode(frame, frame_bytes, &header, &body, NULL) != STATUS_OK ||
        codec_plan_decode(&header, body, &r->plan_arena, &plan, NULL) != STATUS_OK) {
        buf_append_str(r->out, " (not readable)\n");
        return;
    }
    buf_printf(r->out, ": decode %u", plan.decode_rows);
    for (uint32_t i = 0; i < plan.admit_count; i++) {
        const struct plan_admit *a = &plan.admits[i];
        buf_printf(r->out, ", admit %u.%u prompt %u blocks %u cached %u", a->ref.slot, a->ref.gen,
                   a->prompt_tokens, a->block_count, a->cached_tokens);
    }
    for (uint32_t i = 0; i < plan.update_count; i++) {
        const struct plan_update *u = &plan.updates[i];
        buf_printf(r->out, ", update %u.%u +%u%s%s", u->ref.slot, u->ref.gen, u->append_count,
                   u->pause ? " pause" : "", u->resume ? " resume" : "");
    }
    for (uint32_t i = 0; i < plan.retire_count; i++) {
        buf_printf(r->out, ", retire %u.%u", plan.retires[i].ref.slot, plan.retires[i].ref.gen);
    }
    for (uint32_t i = 0; i < plan.prefill_count; i++) {
        const struct plan_prefill *p = &plan.prefills[i];
        buf_printf(r->out, ", prompt %u.%u %u..%u", p->ref.slot, p->ref.gen, p->start_pos,
                   p->start_pos + p->token_count);
    }
    buf_append_byte(r->out, '\n');
}

static void compare_plan(struct replay *r, const struct plan *plan) {
    if (r->status != STATUS_OK) {
        return;
    }
    struct plan_mark now, was;
    if (mark_plan(plan, &r->plan_arena, &r->frame, &now) != STATUS_OK) {
        r->status = error_set(r->err, STATUS_EXHAUSTED, "a plan cannot be encoded");
        return;
    }
    uint8_t kind = 0;
    struct wire w;
    const uint8_t *before = r->at;
    if (!next_record(r, &kind, &w)) {
        return;    // the recording ended between a tick and its plan
    }
    if (kind == RECORD_PLAN) {
        WIRE(&w, was);
    }
    r->plans++;
    if (kind == RECORD_PLAN && !w.broken && memcmp(&now, &was, sizeof now) == 0) {
        return;
    }
    r->status = error_set(r->err, STATUS_INVALID,
                          "plan %llu of the replay differs from the recorded one at offset %llu",
                          (unsigned long long)r->plans, (unsigned long long)(before - r->begin));
    if (kind == RECORD_PLAN && !w.broken) {
        describe("recorded", &was, w.at, wire_left(&w), r);
    } else {
        buf_append_str(r->out, "recorded no plan here\n");
    }
    mark_plan(plan, &r->plan_arena, &r->frame, &now) == STATUS_OK
        ? describe("replayed", &now, r->frame.data, r->frame.bytes_used, r)
        : (void)0;
}

static void on_action(void *ctx, const struct core_action *action) {
    struct replay *r = ctx;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        compare_plan(r, action->send.plan);
        break;
    case CORE_ACTION_FINISHED:
        forget(r, action->finished.id.value);
        break;
    case CORE_ACTION_REJECTED:
        forget(r, action->rejected.id.value);
        break;
    default:
        break;
    }
}

static bool read_request(struct replay *r, struct wire *w, struct core_input *input) {
    struct core_request *request = arena_array(&r->arena, 1, sizeof *request);
    struct kept *kept = memory_zalloc(sizeof *kept);
    if (request == NULL || kept == NULL) {
        memory_free(kept);
        return false;
    }
    *request = (struct core_request){0};
    wire_request(w, request);
    request->token_capacity = request->prompt_count + request->output_max;
    bool sound = !w->broken && request->prompt_count > 0 && request->id.value != 0 &&
                 request->prompt_count <= BOUND_SEQ_TOKENS &&
                 request->output_max <= BOUND_SEQ_TOKENS &&
                 (request->resumed_count == 0 || request->resumed_count < request->output_max) &&
                 request->class_ < REQUEST_CLASS_COUNT && request->tenant < r->config.tenant_max &&
                 request->weight >= 0 && request->weight <= CORE_WEIGHT_MAX &&
                 request->key_capacity <= 2 * BOUND_SEQ_TOKENS / CORE_KEY_TOKENS &&
                 (request->output_max > 0 || request->sampling.want_prompt_logprobs) &&
                 request->sampling.bias_count <= BOUND_LOGIT_BIAS &&
                 request->sampling.stop_token_count <= BOUND_STOP_TOKENS;
    if (!sound) {
        memory_free(kept);
        return false;
    }
    kept->id = request->id.value;
    kept->tokens = memory_array(request->token_capacity, sizeof *kept->tokens);
    kept->keys = memory_array((size_t)request->key_capacity + 1, sizeof *kept->keys);
    kept->bias = memory_array((size_t)request->sampling.bias_count + 1, sizeof *kept->bias);
    kept->next = r->kept;
    r->kept = kept;
    if (kept->tokens == NULL || kept->keys == NULL || kept->bias == NULL) {
        return false;
    }
    wire_bytes(w, kept->tokens,
               (request->prompt_count + request->resumed_count) * sizeof *kept->tokens);
    wire_bytes(w, kept->bias, request->sampling.bias_count * sizeof *kept->bias);
    request->tokens = kept->tokens;
    request->keys = request->key_capacity > 0 ? kept->keys : NULL;
    request->sampling.bias = kept->bias;
    input->request = request;
    return !w->broken && sampling_validate(&request->sampling, INT32_MAX, NULL) == STATUS_OK;
}

static bool read_ready(struct replay *r, struct wire *w, struct core_input *input) {
    const uint8_t *frame = NULL, *body = NULL;
    uint32_t bytes = 0;
    struct message_header header;
    struct control_message message;
    WIRE(w, input->ready.worker);
    WIRE(w, input->ready.epoch);
    WIRE(w, input->ready.group);
    WIRE(w, input->ready.world);
    wire_bool(w, &input->ready.kv_kept);
    wire_run(w, &frame, &bytes);
    if (w->broken || input->ready.group >= r->config.groups_max || input->ready.world == 0 ||
        input->ready.world > r->config.ranks_max + (r->config.ranks_max == 0) ||
        codec_header_decode(frame, bytes, &header, &body, NULL) != STATUS_OK ||
        codec_control_decode(&header, body, &r->capacity, &message, NULL) != STATUS_OK ||
        message.kind != MESSAGE_KIND_CAPACITY ||
        capacity_validate(&message.capacity, NULL) != STATUS_OK) {
        return false;
    }
    struct message_capacity *capacity = arena_array(&r->capacity, 1, sizeof *capacity);
    if (capacity == NULL) {
        return false;
    }
    *capacity = message.capacity;
    input->ready.capacity = capacity;
    return true;
}

static bool read_result(struct replay *r, struct wire *w, struct core_input *input) {
    const uint8_t *frame = NULL, *body = NULL;
    uint32_t bytes = 0;
    struct message_header header;
    struct step_result *result = arena_array(&r->arena, 1, sizeof *result);
    WIRE(w, input->result.worker);
    WIRE(w, input->result.rank);
    wire_run(w, &frame, &bytes);
    if (result == NULL || w->broken ||
        codec_header_decode(frame, bytes, &header, &body, NULL) != STATUS_OK ||
        codec_result_decode(&header, body, &r->arena, result, NULL) != STATUS_OK) {
        return false;
    }
    input->result.result = result;
    return true;
}

static bool read_input(struct replay *r, struct wire *w, struct core_input *input) {
    uint8_t kind = 0;
    WIRE(w, kind);
    *input = (struct core_input){.kind = (enum core_input_kind)kind};
    switch (input->kind) {
    case CORE_INPUT_REQUEST:
        return read_request(r, w, input);
    case CORE_INPUT_CANCEL:
    case CORE_INPUT_STOP:
        WIRE(w, input->id);
        break;
    case CORE_INPUT_WORKER_READY:
        return read_ready(r, w, input);
    case CORE_INPUT_WORKER_LOST:
        WIRE(w, input->lost.worker);
        input->lost.reason = "replayed";
        break;
    case CORE_INPUT_RESULT:
        return read_result(r, w, input);
    case CORE_INPUT_RESIZE_KV:
        WIRE(w, input->resize.operation);
        WIRE(w, input->resize.blocks);
        WIRE(w, input->resize.group);
        return !w->broken && input->resize.blocks > 0 && input->resize.group < r->config.groups_max;
    case CORE_INPUT_DRAIN:
    case CORE_INPUT_ABORT_ALL:
        break;
    default:
        return false;
    }
    return !w->broken;
}

static enum status replay_tick(struct replay *r, struct wire *w, uint64_t *last_us) {
    uint64_t now_us = 0;
    uint32_t count = 0;
    WIRE(w, now_us);
    WIRE(w, count);
    arena_reset(&r->arena);
    struct core_input *inputs =
        count > TICK_INPUTS_MAX ? NULL : arena_array(&r->arena, (size_t)count + 1, sizeof *inputs);
    bool sound = !w->broken && inputs != NULL && now_us >= *last_us;
    for (uint32_t i = 0; sound && i < count; i++) {
        sound = read_input(r, w, &inputs[i]);
    }
    if (!sound) {
        return error_set(r->err, STATUS_CORRUPT, "the record before offset %llu is damaged",
                         (unsigned long long)(r->at - r->begin));
    }
    *last_us = now_us;
    r->ticks++;
    r->inputs += count;
    core_tick(r->core, now_us, inputs, count, on_action, r);
    return r->status;
}

static enum status replay_all(struct replay *r) {
    uint8_t kind = 0;
    struct wire w;
    char magic[sizeof MAGIC] = {0};
    bool begins = next_record(r, &kind, &w) && kind == RECORD_CONFIG;
    if (begins) {
        WIRE(&w, magic);
    }
    if (!begins || memcmp(magic, MAGIC, sizeof MAGIC) != 0) {
        return error_set(r->err, STATUS_VERSION, "this is no input log of this version");
    }
    wire_config(&w, &r->config);
    if (w.broken) {
        return error_set(r->err, STATUS_CORRUPT, "the log's configuration is damaged");
    }
    struct error *err = r->err;
    TRY(core_create(&r->config, &r->core, err));
    uint64_t last_us = 0;
    while (next_record(r, &kind, &w)) {
        if (kind != RECORD_TICK) {
            // A plan that the replay did not make.
            return error_set(r->err, STATUS_INVALID,
                             "the recorded plan before offset %llu is not made by the replay",
                             (unsigned long long)(r->at - r->begin));
        }
        enum status status = replay_tick(r, &w, &last_us);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (r->damaged) {
        return error_set(r->err, STATUS_CORRUPT,
                         "the record at offset %llu is damaged; %llu plans before it are equal",
                         (unsigned long long)(r->at - r->begin), (unsigned long long)r->plans);
    }
    buf_printf(r->out, "replayed %llu ticks with %llu inputs: %llu plans, all equal",
               (unsigned long long)r->ticks, (unsigned long long)r->inputs,
               (unsigned long long)r->plans);
    buf_printf(r->out, r->at < r->end ? "; the last %llu bytes are no whole record\n" : "\n",
               (unsigned long long)(r->end - r->at));
    return STATUS_OK;
}

enum status input_log_replay_bytes(const uint8_t *bytes, size_t byte_count, struct buf *out,
                                   struct error *err) {
    struct replay r = {
        .out = out, .err = err, .begin = bytes, .at = bytes, .end = bytes + byte_count};
    arena_init(&r.arena, 4 * (size_t)RECORD_BYTES_MAX);
    arena_init(&r.capacity, RECORD_BYTES_MAX);
    arena_init(&r.plan_arena, RECORD_BYTES_MAX);
    buf_init(&r.frame, RECORD_BYTES_MAX);
    enum status status = replay_all(&r);
    core_destroy(r.core);
    while (r.kept != NULL) {
        forget(&r, r.kept->id);
    }
    buf_deinit(&r.frame);
    arena_deinit(&r.arena);
    arena_deinit(&r.capacity);
    arena_deinit(&r.plan_arena);
    return status;
}

enum status input_log_replay(const char *path, struct buf *out, struct error *err) {
    struct mapped_file file = {0};
    TRY(mapped_file_open(path, UINT64_MAX / 2, &file, err));
    enum status status = input_log_replay_bytes(file.bytes, (size_t)file.byte_count, out, err);
    mapped_file_close(&file);
    return status;
}
