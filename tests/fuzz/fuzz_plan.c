// SPDX-License-Identifier: Apache-2.0
// Any bytes as a frame between the daemons: header, plan, result and control decoders, then the
// validators, then the worker's slot table. The body's checksum is made right, so that the fuzzer
// reaches what lies behind it.
#include "common/crc32c.h"
#include "common/memory.h"
#include "proto/codec.h"
#include "worker/step/batch.h"
#include <string.h>

enum { FRAME_MAX = 64 * 1024, SEQS = 4, TOKENS = 32, SEQ_TOKENS = 64 };

static const struct plan_limits limits = {
    {TOKENS, SEQS, SEQ_TOKENS, TOKENS, TOKENS, 4, TOKENS, 0, SEQ_TOKENS, SEQS *SEQ_TOKENS},
    16,
    8,
    50};

struct target {
    struct arena arena;
    struct batch *batch;
    struct result_row rows[TOKENS];
};

static struct target *target_get(void) {
    static struct target target;
    if (target.batch == NULL) {
        arena_init(&target.arena, 1 << 20);
        struct batch_options options = {limits, NULL,
                                        memory_array((size_t)SEQS * SEQ_TOKENS, sizeof(int32_t))};
        void *step = memory_aligned(64, batch_step_bytes(&limits));
        if (batch_create(&options, step, &target.batch, NULL) != STATUS_OK) {
            return NULL;
        }
    }
    return &target;
}

static void run_plan(struct target *t, const struct plan *plan) {
    if (batch_apply(t->batch, plan, NULL) != STATUS_OK) {
        return;
    }
    for (uint32_t i = 0; i < batch_logit_count(t->batch); i++) {
        batch_sample_rows(t->batch)[i].token = (int32_t)(i % limits.vocabulary);
    }
    batch_commit(t->batch, t->rows);
    batch_audit(t->batch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct target *t = target_get();
    if (t == NULL || size > FRAME_MAX) {
        return 0;
    }
    uint8_t *frame = memory_alloc(size);
    memcpy(frame, data, size);
    if (size >= MESSAGE_HEADER_BYTES) {
        uint32_t fields[2] = {(uint32_t)(size - MESSAGE_HEADER_BYTES),
                              crc32c(frame + MESSAGE_HEADER_BYTES, size - MESSAGE_HEADER_BYTES)};
        memcpy(frame + 32, fields, sizeof fields);
    }
    struct message_header header;
    const uint8_t *body = NULL;
    arena_reset(&t->arena);
    if (codec_header_decode(frame, size, &header, &body, NULL) == STATUS_OK) {
        struct plan plan;
        struct step_result result;
        struct control_message control;
        if (header.kind == MESSAGE_KIND_PLAN) {
            if (codec_plan_decode(&header, body, &t->arena, &plan, NULL) == STATUS_OK) {
                run_plan(t, &plan);
            }
        } else if (header.kind == MESSAGE_KIND_RESULT) {
            if (codec_result_decode(&header, body, &t->arena, &result, NULL) == STATUS_OK) {
                enum status judged = result_validate(&result, &limits, NULL);
                (void)judged;
            }
        } else if (codec_control_decode(&header, body, &t->arena, &control, NULL) == STATUS_OK) {
            enum status judged =
                control.kind == MESSAGE_KIND_CAPACITY ? capacity_validate(&control.capacity, NULL)
                : control.kind == MESSAGE_KIND_HELLO  ? hello_validate(&control.hello, NULL)
                                                      : STATUS_OK;
            (void)judged;
        }
    }
    memory_free(frame);
    return 0;
}
