// SPDX-License-Identifier: Apache-2.0
// The controller's turn: results of eight ranks decoded, committed, the next step planned, encoded
// and handed to eight in-process transports. Sequences end and others come, so that as many run as
// before. One JSON line per size; under callgrind (--turns N) the instructions of a turn are those
// of the function `turn`. With all sizes it also times a worker's decoding of a plan and, on an
// idle core, one admission whose 128 blocks are all in the cache (arrival to a plan that is not
// encoded yet) and one cancellation while that plan is out.
//
//   bench_core [--turns N] [--running N]
#include "common/arena.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/memory.h"
#include "common/rng.h"
#include "controller/core/core.h"
#include "controller/core/prefix_index.h"
#include "proto/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 8,
    RING = 4,
    BLOCK_TOKENS = 64,
    PROMPT = 192,
    OUTPUT_MEAN = 384,
    SEQ_TOKENS = 2048,
    VOCABULARY = 151552,
    WARM_TURNS = 600,
};

struct client {
    int32_t tokens[PROMPT + 2 * OUTPUT_MEAN];
    struct prefix_key keys[(PROMPT + 2 * OUTPUT_MEAN) / CORE_KEY_TOKENS];
};

// What the worker knows of a slot, to answer plans as one would; not part of a turn.
struct slot {
    bool live, decoding, paused;
    uint32_t gen, len, len_max;
};

struct bench {
    struct core *core;
    uint32_t running;
    uint64_t now_us;
    struct client *clients;    // [2 * running]
    uint32_t *free_clients;
    uint32_t free_count, ended;
    struct slot *slots;
    struct result_row *rows;
    struct buf results[RANKS];        // encoded
    struct buf rings[RANKS][RING];    // where sends go
    uint32_t ring_at;
    struct arena arena, scratch;
    struct buf frame;
    struct plan plan;    // the last one, decoded as a worker would
    struct arena plan_arena;
    bool planned;
    struct rng rng;
    uint64_t tokens, plans;
    uint64_t decode_ns;     // of the last plan, by a worker
    uint64_t planned_ns;    // when the last plan was there, not encoded yet
};

static void fail(const char *what, const struct error *err) {
    fprintf(stderr, "bench_core: %s: %s\n", what, err->message);
    exit(1);
}

// ---- the turn ----------------------------------------------------------------------------------

static void send_plan(struct bench *b, const struct plan *plan) {
    struct error err = {0};
    buf_reset(&b->frame);
    arena_reset(&b->scratch);
    if (codec_plan_encode(plan, &b->scratch, &b->frame, &err) != STATUS_OK) {
        fail("encode", &err);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct buf *place = &b->rings[rank][b->ring_at % RING];
        buf_reset(place);
        buf_append(place, b->frame.data, b->frame.bytes_used);
    }
    b->ring_at++;
    b->plans++;
    b->planned = true;
}

static double microseconds(uint64_t ns) {
    return (double)ns / 1000.0;
}

static void on_action(void *ctx, const struct core_action *action) {
    struct bench *b = ctx;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        send_plan(b, action->send.plan);
        break;
    case CORE_ACTION_TOKEN:
        b->tokens++;
        break;
    case CORE_ACTION_FINISHED:
        b->free_clients[b->free_count++] = (uint32_t)(action->finished.id.value >> 32) - 1;
        b->ended++;
        break;
    case CORE_ACTION_REJECTED:    // the line was full: it comes again
        b->free_clients[b->free_count++] = (uint32_t)(action->rejected.id.value >> 32) - 1;
        b->ended++;
        break;
    default:
        break;
    }
}

// Results of a step, of all ranks. The one with the tokens comes now first, now last: rows that
// come early are copied.
static void take_results(struct bench *b, core_action_fn act) {
    struct error err = {0};
    struct core_input result = {.kind = CORE_INPUT_RESULT};
    uint32_t first = (uint32_t)(b->plans % RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct message_header header;
        const uint8_t *body = NULL;
        struct step_result decoded;
        uint32_t rank = (first + i) % RANKS;
        arena_reset(&b->arena);
        const struct buf *in = &b->results[rank];
        if (codec_header_decode((const uint8_t *)in->data, in->bytes_used, &header, &body, &err) !=
                STATUS_OK ||
            codec_result_decode(&header, body, &b->arena, &decoded, &err) != STATUS_OK) {
            fail("decode", &err);
        }
        result.result.rank = rank;
        result.result.result = &decoded;
        core_tick(b->core, b->now_us, &result, 1, act, b);
    }
}

// Everything that a controller does between the arrival of a step's results and the next wait.
static __attribute__((noinline)) void turn(struct bench *b, const struct core_input *arrivals,
                                           uint32_t arrival_count) {
    take_results(b, on_action);
    if (arrival_count > 0) {
        core_tick(b->core, b->now_us, arrivals, arrival_count, on_action, b);
    }
}

// ---- the other side ----------------------------------------------------------------------------

static void apply(struct bench *b) {
    struct error err = {0};
    struct message_header header;
    const uint8_t *body = NULL;
    arena_reset(&b->plan_arena);
    uint64_t start = clock_monotonic_ns();
    if (codec_header_decode((const uint8_t *)b->frame.data, b->frame.bytes_used, &header, &body,
                            &err) != STATUS_OK ||
        codec_plan_decode(&header, body, &b->plan_arena, &b->plan, &err) != STATUS_OK) {
        fail("plan", &err);
    }
    b->decode_ns = clock_monotonic_ns() - start;
    const struct plan *plan = &b->plan;
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        b->slots[plan->retires[i].ref.slot].live = false;
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *admit = &plan->admits[i];
        b->slots[admit->ref.slot] = (struct slot){.live = true,
                                                  .gen = admit->ref.gen,
                                                  .len = admit->cached_tokens,
                                                  .len_max = admit->len_max};
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        struct slot *slot = &b->slots[plan->updates[i].ref.slot];
        slot->paused = plan->updates[i].pause || (slot->paused && !plan->updates[i].resume);
    }
}

static void draw(struct bench *b, uint32_t index, uint32_t *row_count) {
    struct slot *slot = &b->slots[index];
    b->rows[(*row_count)++] = (struct result_row){
        .ref = {index, slot->gen},
        .position = slot->len,
        .token = (int32_t)(rng_below(&b->rng, VOCABULARY)),
    };
    slot->decoding = slot->len + 1 < slot->len_max;
}

// Carries the last plan out and encodes what eight ranks would say.
static void answer(struct bench *b) {
    struct error err = {0};
    uint32_t row_count = 0;
    apply(b);
    for (uint32_t i = 0; i < b->running; i++) {
        struct slot *slot = &b->slots[i];
        if (slot->live && slot->decoding && !slot->paused) {
            slot->len++;
            draw(b, i, &row_count);
        }
    }
    uint32_t rows = row_count;
    for (uint32_t i = 0; i < b->plan.prefill_count; i++) {
        const struct plan_prefill *chunk = &b->plan.prefills[i];
        b->slots[chunk->ref.slot].len += chunk->token_count;
        rows += chunk->token_count;
        if (chunk->last) {
            draw(b, chunk->ref.slot, &row_count);
        }
    }
    uint32_t step_us = 8000 + 4 * rows;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct step_result result = {.group = b->plan.group,
                                     .epoch = b->plan.epoch,
                                     .seq = b->plan.seq,
                                     .applied_seq = b->plan.seq,
                                     .step_us = step_us,
                                     .row_count = rank == 0 ? row_count : 0,
                                     .rows = b->rows,
                                     .message = ""};
        buf_reset(&b->results[rank]);
        arena_reset(&b->scratch);
        if (codec_result_encode(&result, &b->scratch, &b->results[rank], &err) != STATUS_OK) {
            fail("result", &err);
        }
    }
    b->now_us += step_us;
    b->planned = false;
}

// As many requests as ended come anew.
static uint32_t arrive(struct bench *b, uint32_t count, struct core_input *inputs,
                       struct core_request *requests) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = b->free_clients[--b->free_count];
        struct client *client = &b->clients[index];
        for (uint32_t k = 0; k < PROMPT; k++) {
            client->tokens[k] = (int32_t)rng_below(&b->rng, VOCABULARY);
        }
        uint32_t output = 1 + (uint32_t)rng_below(&b->rng, 2 * OUTPUT_MEAN);
        static uint32_t serial;
        requests[i] = (struct core_request){
            .id = {((uint64_t)(index + 1) << 32) | ++serial},
            .class_ = REQUEST_CLASS_STANDARD,
            .tokens = client->tokens,
            .token_capacity = PROMPT + 2 * OUTPUT_MEAN,
            .prompt_count = PROMPT,
            .output_max = output,
            .keys = client->keys,
            .key_capacity = (PROMPT + 2 * OUTPUT_MEAN) / CORE_KEY_TOKENS,
            .sampling = {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f},
        };
        inputs[i] = (struct core_input){.kind = CORE_INPUT_REQUEST, .request = &requests[i]};
    }
    return count;
}

// ---- a size ------------------------------------------------------------------------------------

static void init(struct bench *b, uint32_t running, uint32_t seq_tokens) {
    struct error err = {0};
    memset(b, 0, sizeof *b);
    b->running = running;
    rng_init(&b->rng, running);
    arena_init(&b->arena, 64 * 1024 * 1024);
    arena_init(&b->scratch, 64 * 1024 * 1024);
    arena_init(&b->plan_arena, 64 * 1024 * 1024);
    buf_init(&b->frame, 8 * 1024 * 1024);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        buf_init(&b->results[rank], 8 * 1024 * 1024);
        for (uint32_t i = 0; i < RING; i++) {
            buf_init(&b->rings[rank][i], 8 * 1024 * 1024);
        }
    }
    b->clients = memory_array(2 * running, sizeof *b->clients);
    b->free_clients = memory_array(2 * running, sizeof *b->free_clients);
    b->slots = memory_array(running, sizeof *b->slots);
    b->rows = memory_array(2 * running, sizeof *b->rows);
    for (uint32_t i = 0; i < 2 * running; i++) {
        b->free_clients[b->free_count++] = i;
    }
    uint32_t blocks = running * (seq_tokens / BLOCK_TOKENS);
    struct core_config config = {.seqs_max = running,
                                 .waiting_max = BOUND_WAITING,
                                 .step_tokens_max = BOUND_STEP_TOKENS,
                                 .blocks_max = blocks,
                                 .group = 1,
                                 .depth = 1,
                                 .groups_max = 1,
                                 .ranks_max = RANKS,
                                 .tenant_max = 1,
                                 .blocks_per_seq_max = seq_tokens / BLOCK_TOKENS};
    core_policy_defaults(&config.policy);
    if (core_create(&config, &b->core, &err) != STATUS_OK) {
        fail("core", &err);
    }
    struct message_capacity capacity = {
        .envelope = {.tokens = running + 4096,
                     .seqs = running,
                     .seq_tokens = seq_tokens,
                     .logit_rows = running + 4096,
                     .prompt_logit_rows = running,
                     .blocks_per_seq = seq_tokens / BLOCK_TOKENS,
                     .logprob_rows = running,
                     .attended_tokens_max = seq_tokens,
                     .attended_tokens = (uint64_t)running * seq_tokens},
        .block_tokens = BLOCK_TOKENS,
        .kv_blocks = blocks,
        .vocabulary = VOCABULARY,
    };
    struct core_input ready = {.kind = CORE_INPUT_WORKER_READY,
                               .ready = {{0}, &capacity, 1, 0, RANKS, false}};
    core_tick(b->core, b->now_us, &ready, 1, on_action, b);
}

static void deinit(struct bench *b) {
    core_destroy(b->core);
    memory_free(b->clients);
    memory_free(b->free_clients);
    memory_free(b->slots);
    memory_free(b->rows);
    arena_deinit(&b->arena);
    arena_deinit(&b->scratch);
    arena_deinit(&b->plan_arena);
    buf_deinit(&b->frame);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        buf_deinit(&b->results[rank]);
        for (uint32_t i = 0; i < RING; i++) {
            buf_deinit(&b->rings[rank][i]);
        }
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void run_size(uint32_t running, uint32_t turns, bool timed) {
    struct bench b;
    init(&b, running, SEQ_TOKENS);
    struct core_input *inputs = memory_array(running, sizeof *inputs);
    struct core_request *requests = memory_array(running, sizeof *requests);
    double *us = memory_array(turns, sizeof *us);
    double *decode_us = memory_array(turns, sizeof *decode_us);
    // The line is bounded, so they come in parts; then sequences are of every age.
    uint32_t missing = running;
    for (uint32_t i = 0; i < WARM_TURNS; i++) {
        uint32_t count = missing < BOUND_WAITING / 2 ? missing : BOUND_WAITING / 2;
        missing -= count;
        arrive(&b, count, inputs, requests);
        core_tick(b.core, b.now_us, inputs, count, on_action, &b);
        if (b.planned) {
            answer(&b);
            take_results(&b, on_action);
        }
        missing += b.ended;
        b.ended = 0;
    }
    uint64_t tokens = b.tokens;
    for (uint32_t i = 0; i < turns; i++) {
        if (!b.planned) {
            fail("no plan", &(struct error){.message = "nothing runs"});
        }
        answer(&b);
        decode_us[i] = microseconds(b.decode_ns);
        uint32_t count = arrive(&b, b.ended, inputs, requests);
        b.ended = 0;
        uint64_t start = clock_monotonic_ns();
        turn(&b, inputs, count);
        us[i] = microseconds(clock_monotonic_ns() - start);
    }
    struct core_gauges gauges;
    core_gauges(b.core, b.now_us, &gauges);
    if (timed) {
        qsort(us, turns, sizeof *us, by_value);
        qsort(decode_us, turns, sizeof *decode_us, by_value);
        printf("{\"bench\":\"core\",\"running\":%u,\"turn_us_p50\":%.1f,\"turn_us_p99\":%.1f,"
               "\"turns\":%u,\"tokens_per_turn\":%.1f,\"decoding\":%u,\"plan_bytes\":%zu,"
               "\"plan_decode_us_p50\":%.1f}\n",
               running, us[turns / 2], us[turns * 99 / 100], turns,
               (double)(b.tokens - tokens) / turns, gauges.decoding, b.frame.bytes_used,
               decode_us[turns / 2]);
    } else {
        printf("%u %u\n", running, turns);
    }
    fflush(stdout);
    memory_free(inputs);
    memory_free(requests);
    memory_free(us);
    memory_free(decode_us);
    deinit(&b);
}

// ---- one request -------------------------------------------------------------------------------

static void on_single(void *ctx, const struct core_action *action) {
    struct bench *b = ctx;
    if (action->kind == CORE_ACTION_SEND_PLAN) {
        b->planned_ns = clock_monotonic_ns();
        send_plan(b, action->send.plan);
    }
}

static void run_single(uint32_t rounds) {
    enum { BLOCKS = 128, LENGTH = BLOCKS * BLOCK_TOKENS + 8, ROOM = LENGTH + BLOCK_TOKENS };
    struct bench b;
    init(&b, 64, 2 * BLOCKS * BLOCK_TOKENS);
    int32_t *tokens = memory_array(ROOM, sizeof *tokens);
    struct prefix_key *keys = memory_array(ROOM / CORE_KEY_TOKENS, sizeof *keys);
    double *admit_us = memory_array(rounds, sizeof *admit_us);
    double *abort_us = memory_array(rounds, sizeof *abort_us);
    for (uint32_t i = 0; i < LENGTH; i++) {
        tokens[i] = (int32_t)rng_below(&b.rng, VOCABULARY);
    }
    struct core_request request = {
        .class_ = REQUEST_CLASS_STANDARD,
        .tokens = tokens,
        .token_capacity = ROOM,
        .prompt_count = LENGTH,
        .output_max = 2,
        .keys = keys,
        .key_capacity = ROOM / CORE_KEY_TOKENS,
        .sampling = {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f},
    };
    struct core_input arrival = {.kind = CORE_INPUT_REQUEST, .request = &request};
    struct core_input cancel = {.kind = CORE_INPUT_CANCEL};
    for (uint32_t i = 0; i < rounds + 1; i++) {    // the first one fills the cache
        request.id.value = cancel.id.value = i + 1;
        uint64_t start = clock_monotonic_ns();
        core_tick(b.core, b.now_us, &arrival, 1, on_single, &b);
        if (!b.planned) {
            fail("admission", &(struct error){.message = "no plan"});
        }
        if (i > 0) {
            admit_us[i - 1] = microseconds(b.planned_ns - start);
            start = clock_monotonic_ns();
            core_tick(b.core, b.now_us, &cancel, 1, on_single, &b);
            abort_us[i - 1] = microseconds(clock_monotonic_ns() - start);
        }
        while (b.planned) {
            answer(&b);
            take_results(&b, on_single);
        }
    }
    uint64_t cached = core_counters(b.core)->tokens_prompt_cached;
    qsort(admit_us, rounds, sizeof *admit_us, by_value);
    qsort(abort_us, rounds, sizeof *abort_us, by_value);
    printf("{\"bench\":\"core_single\",\"cached_blocks\":%.1f,\"admit_us_p50\":%.1f,"
           "\"admit_us_p99\":%.1f,\"abort_us_p50\":%.2f,\"abort_us_p99\":%.2f}\n",
           (double)cached / rounds / BLOCK_TOKENS, admit_us[rounds / 2],
           admit_us[rounds * 99 / 100], abort_us[rounds / 2], abort_us[rounds * 99 / 100]);
    memory_free(tokens);
    memory_free(keys);
    memory_free(admit_us);
    memory_free(abort_us);
    deinit(&b);
}

int main(int argc, char **argv) {
    static const uint32_t SIZES[] = {256, 1024, 8192};
    uint32_t turns = 0, only = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--turns") == 0) {
            turns = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--running") == 0) {
            only = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        }
    }
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        if (only == 0 || only == SIZES[i]) {
            uint32_t count = turns > 0 ? turns : 2000000 / SIZES[i];
            run_size(SIZES[i], count, turns == 0);
        }
    }
    if (turns == 0 && only == 0) {
        run_single(2000);
    }
    return 0;
}
