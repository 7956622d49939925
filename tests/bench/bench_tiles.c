// SPDX-License-Identifier: Apache-2.0
// What tiles cost: steps of one model in workspaces of half, a quarter, ... of what is taken by
// default, down to the smallest, each next to the default one in the same run, in turn. Prints one
// JSON object per workspace; a ratio is its time by the default's, 1 = no cost.
//
//   bench_tiles MODEL [REPEATS]
#include "common/clock.h"
#include "common/log.h"
#include "worker/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPT = 512,
    STREAMS = 16,
    STREAM_PROMPT = 16,
    BLOCK = 32,
    BLOCKS = PROMPT / BLOCK + 2,
    REPEATS_MAX = 101,
};

enum part { PART_PREFILL, PART_LOGPROBS, PART_DECODE, PART_COUNT };
static const char *const part_names[PART_COUNT] = {"prefill", "logprobs", "decode_16"};

struct subject {
    struct engine *engine;
    uint64_t epoch, seq;
};

static int32_t tokens[PROMPT];
static uint32_t blocks[BLOCKS];

static void die(const char *what) {
    fprintf(stderr, "bench_tiles: %s\n", what);
    exit(1);
}

static struct engine_options options_for(const char *path, uint64_t budget) {
    return (struct engine_options){
        .model_path = path,
        .device = "cpu",
        .isa = "auto",
        .kv_bytes = 64 * 1024 * 1024,
        .workspace_budget = (int64_t)budget,
        .kv_dtype = DTYPE_F16,
        .block_tokens = BLOCK,
        .utilization = 1.0,
        .seqs = STREAMS,
        .step_tokens = PROMPT,
        .model_len = PROMPT + BLOCK,
        .weights_fd = -1,
        .kv_fd = -1,
    };
}

static void run(struct subject *s, struct plan *plan) {
    struct step_result result;
    plan->epoch = s->epoch;
    plan->seq = ++s->seq;
    executor_run(engine_executor(s->engine), plan, &result);
    if (result.status != RESULT_STATUS_OK) {
        die(result.message);
    }
}

static void begin(struct subject *s) {
    executor_reset(engine_executor(s->engine), ++s->epoch);
    s->seq = 0;
}

static double prefill_s(struct subject *s, bool logprobs) {
    struct plan_admit admit = {
        .ref = {0, 1},
        .prompt_tokens = PROMPT,
        .len_max = PROMPT + 2,
        .block_count = BLOCKS - 1,
        .blocks = blocks,
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .want_prompt_logprobs = logprobs}};
    struct plan_prefill chunk = {{0, 1}, 0, PROMPT, tokens, -1, true};
    struct plan plan = {.admit_count = 1, .prefill_count = 1, .admits = &admit, .prefills = &chunk};
    begin(s);
    uint64_t start_ns = clock_monotonic_ns();
    run(s, &plan);
    return 1e-9 * (double)(clock_monotonic_ns() - start_ns);
}

static double decode_s(struct subject *s) {
    enum { STEPS = 8 };
    static struct plan_admit admits[STREAMS];
    static struct plan_prefill chunks[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++) {
        admits[i] = (struct plan_admit){.ref = {i, 1},
                                        .prompt_tokens = STREAM_PROMPT,
                                        .len_max = BLOCK,
                                        .block_count = 1,
                                        .blocks = &blocks[i],
                                        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
        chunks[i] = (struct plan_prefill){{i, 1}, 0, STREAM_PROMPT, tokens + i, -1, true};
    }
    struct plan plan = {
        .admit_count = STREAMS, .prefill_count = STREAMS, .admits = admits, .prefills = chunks};
    begin(s);
    run(s, &plan);
    uint64_t start_ns = clock_monotonic_ns();
    for (int i = 0; i < STEPS; i++) {
        plan = (struct plan){.decode_rows = STREAMS};
        run(s, &plan);
    }
    return 1e-9 * (double)(clock_monotonic_ns() - start_ns) / STEPS;
}

static double part_s(struct subject *s, enum part part) {
    return part == PART_DECODE ? decode_s(s) : prefill_s(s, part == PART_LOGPROBS);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static struct engine *start(const char *path, uint64_t budget) {
    struct engine_options options = options_for(path, budget);
    struct engine *engine = NULL;
    struct error err = {0};
    if (engine_create(&options, &engine, &err) != STATUS_OK) {
        die(err.message);
    }
    return engine;
}

static void compare_with(struct subject *whole, const char *path, uint64_t budget,
                         const struct engine_plan *plan, uint32_t repeats) {
    struct subject tiled = {.engine = start(path, budget), .epoch = 1};
    const struct tiles *t = &plan->capacity.tiles;
    printf("{\"bench\":\"tiles\",\"workspace_bytes\":%" PRIu64 ",\"logit_rows\":%u,\"mlp_rows\":%u,"
           "\"matmul_rows\":%u,\"attention_parts\":%u",
           plan->workspace_bytes, t->logit_rows, t->mlp_rows, t->matmul_rows, t->attention_parts);
    for (int part = 0; part < PART_COUNT; part++) {
        double whole_s[REPEATS_MAX], tiled_s[REPEATS_MAX];
        for (uint32_t i = 0; i < repeats; i++) {
            whole_s[i] = part_s(whole, (enum part)part);
            tiled_s[i] = part_s(&tiled, (enum part)part);
        }
        double base = median(whole_s, repeats);
        double ours = median(tiled_s, repeats);
        printf(",\"%s_ms\":%.2f,\"%s_ratio\":%.3f", part_names[part], 1e3 * ours, part_names[part],
               ours / base);
    }
    printf("}\n");
    fflush(stdout);
    engine_destroy(tiled.engine);
}

static bool plan_for(const char *path, struct weights *weights, uint64_t budget,
                     struct engine_plan *plan) {
    struct engine_options options = options_for(path, budget);
    struct error err = {0};
    return engine_plan(&options, weights, plan, &err) == STATUS_OK;
}

int main(int argc, char **argv) {
    uint32_t repeats = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 5;
    if (argc < 2 || repeats == 0 || repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: bench_tiles MODEL [REPEATS, 1 to %d]\n", REPEATS_MAX);
        return 64;
    }
    const char *path = argv[1];
    struct weights *weights = NULL;
    struct error err = {0};
    struct engine_plan plan;
    log_configure(LOG_LEVEL_WARN, LOG_FORMAT_TEXT);
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (int32_t)(i * 61 % 4096);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        blocks[i] = i;
    }
    if (weights_open(path, &weights, &err) != STATUS_OK) {
        die(err.message);
    }
    if (!plan_for(path, weights, 0, &plan)) {
        die("the model has no plan");
    }
    struct subject whole = {.engine = start(path, 0), .epoch = 1};
    uint64_t default_bytes = plan.workspace_bytes;
    uint64_t budget = default_bytes;
    while (plan_for(path, weights, budget, &plan)) {
        compare_with(&whole, path, budget, &plan, repeats);
        budget /= 2;
    }
    // The smallest there is lies between the last two.
    uint64_t low = budget, high = budget * 2;
    while (high - low > default_bytes / 1000 + 1) {
        uint64_t middle = low + (high - low) / 2;
        *(plan_for(path, weights, middle, &plan) ? &high : &low) = middle;
    }
    if (plan_for(path, weights, high, &plan)) {
        compare_with(&whole, path, high, &plan, repeats);
    }
    engine_destroy(whole.engine);
    weights_close(weights);
    return 0;
}
