// SPDX-License-Identifier: Apache-2.0
// What daemons say beside plans and results: who they are, what they can do, that they live.
#include "proto/codec_internal.h"

#include "common/invariant.h"
#include "proto/control.pb-c.h"
#include <string.h>

static enum status hello_encode(const struct control_message *message, struct buf *out,
                                struct error *err) {
    const struct message_hello *in = &message->hello;
    Tare__Hello hello = TARE__HELLO__INIT;
    hello.worker_id = codec_mutable(in->worker_id);
    hello.build = codec_mutable(in->build);
    hello.device = codec_mutable(in->device);
    hello.model_name = codec_mutable(in->model_name);
    hello.model_digest = codec_mutable(in->model_digest);
    hello.pid = in->pid;
    hello.rank = in->rank;
    hello.world = in->world;
    hello.group = in->group;
    hello.config_digest = codec_mutable(in->config_digest == NULL ? "" : in->config_digest);
    return codec_frame_encode(message->kind, &message->address, &hello.base, out, err);
}

static enum status capacity_encode(const struct control_message *message, struct arena *scratch,
                                   struct buf *out, struct error *err) {
    const struct message_capacity *in = &message->capacity;
    Tare__Envelope envelope = TARE__ENVELOPE__INIT;
    envelope.tokens = in->envelope.tokens;
    envelope.seqs = in->envelope.seqs;
    envelope.seq_tokens = in->envelope.seq_tokens;
    envelope.logit_rows = in->envelope.logit_rows;
    envelope.prompt_logit_rows = in->envelope.prompt_logit_rows;
    envelope.blocks_per_seq = in->envelope.blocks_per_seq;
    envelope.logprob_rows = in->envelope.logprob_rows;
    envelope.draft_tokens = in->envelope.draft_tokens;
    envelope.attended_tokens_max = in->envelope.attended_tokens_max;
    envelope.attended_tokens = in->envelope.attended_tokens;
    Tare__Capacity capacity = TARE__CAPACITY__INIT;
    capacity.envelope = &envelope;
    capacity.block_tokens = in->block_tokens;
    capacity.kv_blocks = in->kv_blocks;
    capacity.kv_bytes_per_token = in->kv_bytes_per_token;
    capacity.vocabulary = in->vocabulary;
    capacity.parameters = in->parameters;
    capacity.kv_dtype = codec_mutable(in->kv_dtype);
    capacity.threads = in->threads;
    Tare__Tiles tiles = TARE__TILES__INIT;
    tiles.logit_rows = in->tiles.logit_rows;
    tiles.mlp_rows = in->tiles.mlp_rows;
    tiles.matmul_rows = in->tiles.matmul_rows;
    tiles.attention_parts = in->tiles.attention_parts;
    capacity.tiles = &tiles;
    capacity.kv_note = codec_mutable(in->kv_note == NULL ? "" : in->kv_note);
    capacity.device_bytes = in->device_bytes;
    capacity.budget_bytes = in->budget_bytes;
    capacity.foreign_bytes = in->foreign_bytes;
    capacity.kv_stamp = in->kv_stamp;
    void *items = NULL;
    capacity.n_lines = in->line_count;
    capacity.lines = codec_pointer_array(scratch, in->line_count, sizeof **capacity.lines, &items);
    if (capacity.lines == NULL) {
        return codec_no_memory(err);
    }
    for (uint32_t i = 0; i < in->line_count; i++) {
        tare__ledger_line__init(capacity.lines[i]);
        capacity.lines[i]->name = codec_mutable(in->lines[i].name);
        capacity.lines[i]->bytes = in->lines[i].bytes;
        capacity.lines[i]->planned = in->lines[i].planned;
    }
    return codec_frame_encode(message->kind, &message->address, &capacity.base, out, err);
}

static enum status small_encode(const struct control_message *message, struct buf *out,
                                struct error *err) {
    Tare__Welcome welcome = TARE__WELCOME__INIT;
    Tare__Text text = TARE__TEXT__INIT;
    Tare__Progress progress = TARE__PROGRESS__INIT;
    Tare__Heartbeat heartbeat = TARE__HEARTBEAT__INIT;
    Tare__Abort abort = TARE__ABORT__INIT;
    const ProtobufCMessage *body = NULL;
    switch (message->kind) {
    case MESSAGE_KIND_WELCOME:
        welcome.epoch = message->welcome.epoch;
        welcome.rank = message->welcome.rank;
        welcome.world = message->welcome.world;
        welcome.lease_ms = message->welcome.lease_ms;
        welcome.group = message->welcome.group;
        welcome.comm_id =
            codec_mutable(message->welcome.comm_id == NULL ? "" : message->welcome.comm_id);
        body = &welcome.base;
        break;
    case MESSAGE_KIND_REFUSED:
    case MESSAGE_KIND_GOODBYE:
    case MESSAGE_KIND_SHUTDOWN:
        text.code = message->text.code;
        text.text = codec_mutable(message->text.text == NULL ? "" : message->text.text);
        body = &text.base;
        break;
    case MESSAGE_KIND_PROGRESS:
        progress.phase = codec_mutable(message->progress.phase);
        progress.bytes_done = message->progress.bytes_done;
        progress.bytes_total = message->progress.bytes_total;
        progress.bytes_per_s = message->progress.bytes_per_s;
        body = &progress.base;
        break;
    case MESSAGE_KIND_HEARTBEAT:
        heartbeat.applied_seq = message->heartbeat.applied_seq;
        heartbeat.completed_seq = message->heartbeat.completed_seq;
        heartbeat.resident_bytes = message->heartbeat.resident_bytes;
        heartbeat.allocations_after_seal = message->heartbeat.allocations_after_seal;
        heartbeat.report_awaited = message->heartbeat.report_awaited;
        body = &heartbeat.base;
        break;
    case MESSAGE_KIND_ABORT:
        abort.epoch = message->abort.epoch;
        abort.reason = codec_mutable(message->abort.reason == NULL ? "" : message->abort.reason);
        body = &abort.base;
        break;
    case MESSAGE_KIND_HELLO:
    case MESSAGE_KIND_CAPACITY:
    case MESSAGE_KIND_PLAN:
    case MESSAGE_KIND_RESULT:
    case MESSAGE_KIND_COUNT:
        UNREACHABLE();
    }
    return codec_frame_encode(message->kind, &message->address, body, out, err);
}

enum status codec_control_encode(const struct control_message *message, struct arena *scratch,
                                 struct buf *out, struct error *err) {
    switch (message->kind) {
    case MESSAGE_KIND_HELLO:
        return hello_encode(message, out, err);
    case MESSAGE_KIND_CAPACITY:
        return capacity_encode(message, scratch, out, err);
    default:
        return small_encode(message, out, err);
    }
}

static enum status hello_decode(const Tare__Hello *in, struct control_message *out) {
    out->hello = (struct message_hello){
        .worker_id = in->worker_id,
        .build = in->build,
        .device = in->device,
        .model_name = in->model_name,
        .model_digest = in->model_digest,
        .pid = in->pid,
        .rank = in->rank,
        .world = in->world,
        .group = in->group,
        .config_digest = in->config_digest,
    };
    return STATUS_OK;
}

// The id becomes a name in the file system.
static bool is_comm_id(const char *text) {
    return strlen(text) == MESSAGE_COMM_ID_DIGITS &&
           strspn(text, "0123456789abcdef") == MESSAGE_COMM_ID_DIGITS;
}

static enum status welcome_decode(const Tare__Welcome *in, struct control_message *out,
                                  struct error *err) {
    if (in->world == 0 || in->world > BOUND_RANKS || in->rank >= in->world ||
        in->group >= BOUND_GROUPS) {
        return codec_broken(err, "a welcome to a rank or a group that cannot be");
    }
    if (!is_comm_id(in->comm_id)) {
        return codec_broken(err, "a welcome whose communicator id is not 32 hex digits");
    }
    out->welcome = (struct message_welcome){
        .epoch = in->epoch,
        .group = in->group,
        .rank = in->rank,
        .world = in->world,
        .lease_ms = in->lease_ms,
        .comm_id = in->comm_id,
    };
    return STATUS_OK;
}

static enum status capacity_decode(const Tare__Capacity *in, struct arena *arena,
                                   struct control_message *out, struct error *err) {
    if (in->envelope == NULL || in->tiles == NULL || in->n_lines > BOUND_LEDGER_LINES) {
        return codec_broken(err,
                            "a capacity report without envelope or tiles, or with too many ledger "
                            "lines");
    }
    struct ledger_line *lines = arena_array(arena, in->n_lines, sizeof *lines);
    if (lines == NULL) {
        return codec_no_memory(err);
    }
    for (size_t i = 0; i < in->n_lines; i++) {
        lines[i] =
            (struct ledger_line){in->lines[i]->name, in->lines[i]->bytes, in->lines[i]->planned};
    }
    out->capacity = (struct message_capacity){
        .envelope = {.tokens = in->envelope->tokens,
                     .seqs = in->envelope->seqs,
                     .seq_tokens = in->envelope->seq_tokens,
                     .logit_rows = in->envelope->logit_rows,
                     .prompt_logit_rows = in->envelope->prompt_logit_rows,
                     .blocks_per_seq = in->envelope->blocks_per_seq,
                     .logprob_rows = in->envelope->logprob_rows,
                     .draft_tokens = in->envelope->draft_tokens,
                     .attended_tokens_max = in->envelope->attended_tokens_max,
                     .attended_tokens = in->envelope->attended_tokens},
        .block_tokens = in->block_tokens,
        .kv_blocks = in->kv_blocks,
        .kv_bytes_per_token = in->kv_bytes_per_token,
        .vocabulary = in->vocabulary,
        .parameters = in->parameters,
        .kv_dtype = in->kv_dtype,
        .threads = in->threads,
        .tiles = {.logit_rows = in->tiles->logit_rows,
                  .mlp_rows = in->tiles->mlp_rows,
                  .matmul_rows = in->tiles->matmul_rows,
                  .attention_parts = in->tiles->attention_parts},
        .kv_note = in->kv_note,
        .device_bytes = in->device_bytes,
        .budget_bytes = in->budget_bytes,
        .foreign_bytes = in->foreign_bytes,
        .kv_stamp = in->kv_stamp,
        .line_count = (uint32_t)in->n_lines,
        .lines = lines,
    };
    return STATUS_OK;
}

static const ProtobufCMessageDescriptor *control_descriptor(uint32_t kind) {
    switch ((enum message_kind)kind) {
    case MESSAGE_KIND_HELLO:
        return &tare__hello__descriptor;
    case MESSAGE_KIND_WELCOME:
        return &tare__welcome__descriptor;
    case MESSAGE_KIND_REFUSED:
    case MESSAGE_KIND_GOODBYE:
    case MESSAGE_KIND_SHUTDOWN:
        return &tare__text__descriptor;
    case MESSAGE_KIND_PROGRESS:
        return &tare__progress__descriptor;
    case MESSAGE_KIND_CAPACITY:
        return &tare__capacity__descriptor;
    case MESSAGE_KIND_HEARTBEAT:
        return &tare__heartbeat__descriptor;
    case MESSAGE_KIND_ABORT:
        return &tare__abort__descriptor;
    case MESSAGE_KIND_PLAN:
    case MESSAGE_KIND_RESULT:
    case MESSAGE_KIND_COUNT:
        break;
    }
    return NULL;
}

enum status codec_control_decode(const struct message_header *header, const uint8_t *body,
                                 struct arena *arena, struct control_message *out,
                                 struct error *err) {
    const ProtobufCMessageDescriptor *descriptor = control_descriptor(header->kind);
    if (descriptor == NULL) {
        return codec_broken(err, "not a control message");
    }
    const ProtobufCMessage *in = codec_unpack(descriptor, header, body, arena);
    if (in == NULL) {
        return codec_broken(err, descriptor->short_name);
    }
    *out = (struct control_message){
        .kind = (enum message_kind)header->kind,
        .address = {header->group, header->epoch, header->seq},
    };
    if (descriptor == &tare__hello__descriptor) {
        return hello_decode((const Tare__Hello *)in, out);
    }
    if (descriptor == &tare__capacity__descriptor) {
        return capacity_decode((const Tare__Capacity *)in, arena, out, err);
    }
    if (descriptor == &tare__welcome__descriptor) {
        return welcome_decode((const Tare__Welcome *)in, out, err);
    }
    if (descriptor == &tare__text__descriptor) {
        const Tare__Text *text = (const Tare__Text *)in;
        out->text = (struct message_text){text->code, text->text};
    } else if (descriptor == &tare__progress__descriptor) {
        const Tare__Progress *progress = (const Tare__Progress *)in;
        out->progress = (struct message_progress){progress->phase, progress->bytes_done,
                                                  progress->bytes_total, progress->bytes_per_s};
    } else if (descriptor == &tare__abort__descriptor) {
        const Tare__Abort *abort = (const Tare__Abort *)in;
        out->abort = (struct message_abort){abort->epoch, abort->reason};
    } else {
        const Tare__Heartbeat *heartbeat = (const Tare__Heartbeat *)in;
        out->heartbeat = (struct message_heartbeat){
            heartbeat->applied_seq, heartbeat->completed_seq, heartbeat->resident_bytes,
            heartbeat->allocations_after_seal, heartbeat->report_awaited != 0};
    }
    return STATUS_OK;
}
