// SPDX-License-Identifier: Apache-2.0
// A plan to the ranks of a group: encoded once, one message that all share, against one rank, and
// against encoding and copying it for each. Over ipc, the receivers in this process.
//   send_us    of the loop's thread: encode and hand over to every rank (its computing time)
//   round_us   until the last rank has the plan
// One JSON line per case, medians of ROUNDS plans, the cases taking turns within one run; then the
// ratios.
#include "common/arena.h"
#include "common/clock.h"
#include "proto/codec.h"
#include "proto/transport.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 8, ROUNDS = 3000, WARM = 200, ADMITS = 4, BLOCKS = 64, CHUNK = 512, CASES = 3 };

struct bench {
    char directory[64], address[128];
    struct transport *listener;
    struct transport *ends[RANKS];
    char names[RANKS][TRANSPORT_PEER_BYTES];
    const char *peers[RANKS];
    struct arena arena;
    struct buf out, in;
    struct plan plan;
    struct plan_admit admits[ADMITS];
    struct plan_prefill prefill;
    uint32_t blocks[BLOCKS];
    int32_t tokens[CHUNK];
};

static void fail(const char *what, enum status status) {
    fprintf(stderr, "bench_fanout: %s: %s\n", what, status_name(status));
    exit(1);
}

// Four admissions of 2,048 tokens and a chunk of 512: a busy step. Steady decode is far smaller.
static void make_plan(struct bench *b) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        b->blocks[i] = i * 7;
    }
    for (int32_t i = 0; i < CHUNK; i++) {
        b->tokens[i] = i * 31;
    }
    for (uint32_t i = 0; i < ADMITS; i++) {
        b->admits[i] = (struct plan_admit){
            .ref = {i, 9},
            .prompt_tokens = 2000,
            .len_max = 2048,
            .block_count = BLOCKS,
            .blocks = b->blocks,
            .sampling = {.temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1.0f, .seed = i},
        };
    }
    b->prefill = (struct plan_prefill){{0, 9}, 0, CHUNK, b->tokens, -1, false};
    b->plan = (struct plan){.group = 1,
                            .epoch = 3,
                            .decode_rows = 200,
                            .admit_count = ADMITS,
                            .admits = b->admits,
                            .prefill_count = 1,
                            .prefills = &b->prefill};
}

static void open_all(struct bench *b) {
    snprintf(b->directory, sizeof b->directory, "/tmp/tare-fanout-XXXXXX");
    if (mkdtemp(b->directory) == NULL) {
        fail("directory", STATUS_IO);
    }
    snprintf(b->address, sizeof b->address, "ipc://%s/plan.sock", b->directory);
    struct transport_options options = {.address = b->address,
                                        .listens = true,
                                        .message_bytes_max = BOUND_PLAN_BYTES,
                                        .queue_messages_max = 8};
    enum status status = transport_open(&options, &b->listener, NULL);
    if (status != STATUS_OK) {
        fail("listen", status);
    }
    options.listens = false;
    for (uint32_t r = 0; r < RANKS; r++) {
        char name[16];
        snprintf(name, sizeof name, "g0r%u", r);
        transport_identity(name, b->names[r]);
        b->peers[r] = b->names[r];
        options.identity = b->names[r];
        status = transport_open(&options, &b->ends[r], NULL);
        if (status != STATUS_OK) {
            fail("dial", status);
        }
        while (transport_send(b->ends[r], NULL, "hello", 5) == STATUS_BUSY) {
            poll(NULL, 0, 1);
        }
        char peer[TRANSPORT_PEER_BYTES];
        while (transport_receive(b->listener, &b->in, peer) != STATUS_OK) {
            poll(NULL, 0, 1);
        }
    }
}

static void close_all(struct bench *b) {
    for (uint32_t r = 0; r < RANKS; r++) {
        transport_close(b->ends[r]);
    }
    transport_close(b->listener);
    unlink(b->address + 6);
    rmdir(b->directory);
    buf_deinit(&b->out);
    buf_deinit(&b->in);
    arena_deinit(&b->arena);
}

static void encode(struct bench *b) {
    arena_reset(&b->arena);
    buf_reset(&b->out);
    b->plan.seq++;
    enum status status = codec_plan_encode(&b->plan, &b->arena, &b->out, NULL);
    if (status != STATUS_OK) {
        fail("encode", status);
    }
}

struct taken {
    double send_us, round_us;
};

static struct taken round_trip(struct bench *b, uint32_t ranks, bool shared) {
    uint64_t begin_ns = clock_monotonic_ns(), computed_us = clock_thread_us();
    if (shared) {
        uint32_t sent = 0;
        encode(b);
        enum status status =
            transport_send_all(b->listener, b->peers, ranks, b->out.data, b->out.bytes_used, &sent);
        if (status != STATUS_OK) {
            fail("send", status);
        }
    } else {
        for (uint32_t r = 0; r < ranks; r++) {
            encode(b);
            enum status status =
                transport_send(b->listener, b->peers[r], b->out.data, b->out.bytes_used);
            if (status != STATUS_OK) {
                fail("send", status);
            }
        }
    }
    struct taken taken = {.send_us = (double)(clock_thread_us() - computed_us)};
    for (uint32_t r = 0; r < ranks; r++) {
        while (transport_receive(b->ends[r], &b->in, NULL) == STATUS_BUSY) {
            struct pollfd wait = {.fd = transport_fd(b->ends[r]), .events = POLLIN};
            poll(&wait, 1, 100);
        }
    }
    taken.round_us = (double)(clock_monotonic_ns() - begin_ns) / 1e3;
    return taken;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    static struct bench b;
    static double send_us[CASES][ROUNDS], round_us[CASES][ROUNDS];
    static const struct {
        const char *name;
        uint32_t ranks;
        bool shared;
    } cases[CASES] = {{"one rank", 1, true}, {"shared", RANKS, true}, {"apiece", RANKS, false}};
    arena_init(&b.arena, 1 << 22);
    buf_init(&b.out, BOUND_PLAN_BYTES);
    buf_init(&b.in, 2 * BOUND_PLAN_BYTES);
    make_plan(&b);
    open_all(&b);
    for (int i = -WARM; i < ROUNDS; i++) {
        for (int k = 0; k < CASES; k++) {
            struct taken taken = round_trip(&b, cases[k].ranks, cases[k].shared);
            if (i >= 0) {
                send_us[k][i] = taken.send_us;
                round_us[k][i] = taken.round_us;
            }
        }
    }
    for (int k = 0; k < CASES; k++) {
        qsort(send_us[k], ROUNDS, sizeof send_us[k][0], by_value);
        qsort(round_us[k], ROUNDS, sizeof round_us[k][0], by_value);
        printf("{\"bench\":\"fanout\",\"case\":\"%s\",\"ranks\":%u,\"plan_bytes\":%zu,"
               "\"send_us_p50\":%.1f,\"round_us_p50\":%.1f,\"round_us_p99\":%.1f}\n",
               cases[k].name, cases[k].ranks, b.out.bytes_used, send_us[k][ROUNDS / 2],
               round_us[k][ROUNDS / 2], round_us[k][ROUNDS * 99 / 100]);
    }
    printf("{\"bench\":\"fanout_ratio\",\"send_8_to_1\":%.2f,\"round_8_to_1\":%.2f,"
           "\"send_apiece_to_shared\":%.2f}\n",
           send_us[1][ROUNDS / 2] / send_us[0][ROUNDS / 2],
           round_us[1][ROUNDS / 2] / round_us[0][ROUNDS / 2],
           send_us[2][ROUNDS / 2] / send_us[1][ROUNDS / 2]);
    close_all(&b);
    return 0;
}
