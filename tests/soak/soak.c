// SPDX-License-Identifier: Apache-2.0
// A worker under random legal steps, mixed prefill and decode: nothing is allocated on the step
// thread, resident memory stays where it was, and sampled sequences have the tokens they have when
// computed alone by the scalar kernels.
//
//   soak STEPS     prints one JSON object; exit code 1 with the reason when a claim does not hold
//
// The model: llama, hidden 64, 2 layers, vocabulary 256; steps of up to 32 tokens. The last step
// fills the budget to the brim. Run with interpose.so preloaded, else only the heap's door is
// watched.
#include "common/clock.h"
#include "common/memory.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "worker/engine.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SLOTS = 8,
    STEP_TOKENS = 32,
    LENGTH = 96,    // longest sequence
    BLOCK = 16,
    BLOCKS_EACH = LENGTH / BLOCK,
    BLOCKS = SLOTS * BLOCKS_EACH,
    PROMPT_MAX = 64,
    VOCABULARY = 256,
    CHECK_EVERY = 512,    // sequences between two that are computed again
    RSS_EVERY = 1000,     // steps
};
static const uint64_t RSS_SLACK_BYTES = 2 * 1024 * 1024;

static const struct tiny_model model = {"llama", 2, 64, 96, 4, 2, 16, VOCABULARY, 128};

struct sequence {
    bool live;
    uint32_t gen;
    uint32_t prompt;    // tokens
    uint32_t target;    // prompt + output at which it is retired
    uint32_t done;      // prompt tokens computed
    uint32_t length;    // prompt + drawn tokens
    struct sampling_params sampling;
    int32_t tokens[LENGTH + 1];
    uint32_t blocks[BLOCKS_EACH];
};

struct soak {
    struct engine *engine;
    struct engine *alone;    // scalar kernels, one sequence at a time
    struct rng rng;
    struct sequence sequences[SLOTS];
    uint32_t free_blocks[BLOCKS];
    uint32_t free_count;
    uint64_t seq;
    uint64_t alone_epoch;
    uint64_t started, checked, tokens, fullest;
    void (*watch)(int on);
    uint64_t (*count)(void);
};

static void die(const char *what) {
    fprintf(stderr, "soak: %s\n", what);
    exit(1);
}

static uint32_t below(struct soak *soak, uint32_t limit) {
    return (uint32_t)rng_below(&soak->rng, limit);
}

static uint64_t resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu %lu", &total, &resident) != 2) {
        die("/proc/self/statm cannot be read");
    }
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGE_SIZE);
}

static struct engine *start(const char *path, const char *isa, uint32_t threads) {
    struct engine_options options = {
        .model_path = path,
        .device = "cpu",
        .isa = isa,
        .threads = threads,
        .device_memory = 16 * 1024 * 1024,
        .utilization = 1.0,
        .kv_bytes = (int64_t)BLOCKS * BLOCK * 2 * 2 * 2 * 16 * 2,    // layers, K and V, heads, dims
        .kv_dtype = DTYPE_F16,
        .block_tokens = BLOCK,
        .seqs = SLOTS,
        .step_tokens = STEP_TOKENS,
        .model_len = LENGTH,
        .weights_fd = -1,
        .kv_fd = -1,
    };
    struct engine *engine = NULL;
    struct error err = {0};
    if (engine_create(&options, &engine, &err) != STATUS_OK) {
        die(err.message);
    }
    if (engine_capacity(engine)->kv_blocks < BLOCKS) {
        die("the pool has fewer blocks than the sequences need");
    }
    return engine;
}

// ---- one random plan ---------------------------------------------------------------------------

struct parts {
    struct plan plan;
    struct plan_admit admits[SLOTS];
    struct plan_retire retires[SLOTS];
    struct plan_prefill prefills[SLOTS];
};

static struct sampling_params random_sampling(struct soak *soak) {
    static const float TEMPERATURES[] = {0.0f, 0.7f, 1.3f};
    return (struct sampling_params){
        .temperature = TEMPERATURES[below(soak, 3)],
        .top_p = below(soak, 2) == 0 ? 1.0f : 0.9f,
        .top_k = below(soak, 3) == 0 ? 20 : 0,
        .repetition_penalty = below(soak, 4) == 0 ? 1.2f : 1.0f,
        .seed = rng_below(&soak->rng, UINT64_MAX),
        .want_logprobs = below(soak, 4) == 0,
        .top_logprobs = below(soak, 3),
    };
}

static void admit(struct soak *soak, struct parts *parts, uint32_t slot) {
    struct sequence *s = &soak->sequences[slot];
    uint32_t gen = s->gen + 1;
    memset(s, 0, sizeof *s);
    s->live = true;
    s->gen = gen;
    s->prompt = 1 + below(soak, PROMPT_MAX);
    s->target = s->prompt + 1 + below(soak, LENGTH - s->prompt);
    s->sampling = random_sampling(soak);
    for (uint32_t i = 0; i < s->prompt; i++) {
        s->tokens[i] = (int32_t)below(soak, VOCABULARY);
    }
    for (uint32_t i = 0; i < BLOCKS_EACH; i++) {
        uint32_t pick = below(soak, soak->free_count);
        s->blocks[i] = soak->free_blocks[pick];
        soak->free_blocks[pick] = soak->free_blocks[--soak->free_count];
    }
    parts->admits[parts->plan.admit_count++] = (struct plan_admit){
        .ref = {slot, gen},
        .prompt_tokens = s->prompt,
        .len_max = LENGTH,
        .block_count = BLOCKS_EACH,
        .blocks = s->blocks,
        .sampling = s->sampling,
    };
    soak->started++;
}

static void retire(struct soak *soak, struct parts *parts, uint32_t slot) {
    struct sequence *s = &soak->sequences[slot];
    parts->retires[parts->plan.retire_count++] = (struct plan_retire){{slot, s->gen}};
    for (uint32_t i = 0; i < BLOCKS_EACH; i++) {
        soak->free_blocks[soak->free_count++] = s->blocks[i];
    }
    s->live = false;
}

// Chunks of random sizes in what decode leaves of the budget; with `brim`, as much as fits.
static void prefill(struct soak *soak, struct parts *parts, uint32_t room, bool brim) {
    for (uint32_t slot = 0; slot < SLOTS && room > 0; slot++) {
        struct sequence *s = &soak->sequences[slot];
        if (!s->live || s->done == s->prompt || (!brim && below(soak, 4) == 0)) {
            continue;
        }
        uint32_t most = s->prompt - s->done < room ? s->prompt - s->done : room;
        uint32_t count = brim ? most : 1 + below(soak, most);
        bool last = s->done + count == s->prompt;
        parts->prefills[parts->plan.prefill_count++] =
            (struct plan_prefill){{slot, s->gen}, s->done, count, s->tokens + s->done, -1, last};
        s->done += count;
        room -= count;
    }
}

static void make_plan(struct soak *soak, struct parts *parts, bool brim) {
    memset(parts, 0, sizeof *parts);
    parts->plan.epoch = 1;
    parts->plan.seq = ++soak->seq;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct sequence *s = &soak->sequences[slot];
        if (s->live && s->length >= s->target) {
            retire(soak, parts, slot);
        } else if (!s->live && (brim || below(soak, 3) == 0)) {
            admit(soak, parts, slot);
        }
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct sequence *s = &soak->sequences[slot];
        parts->plan.decode_rows += s->live && s->done == s->prompt ? 1 : 0;
    }
    prefill(soak, parts, STEP_TOKENS - parts->plan.decode_rows, brim);
    parts->plan.admits = parts->admits;
    parts->plan.retires = parts->retires;
    parts->plan.prefills = parts->prefills;
}

static uint32_t rows_of(const struct parts *parts) {
    uint32_t rows = parts->plan.decode_rows;
    for (uint32_t i = 0; i < parts->plan.prefill_count; i++) {
        rows += parts->prefills[i].token_count;
    }
    return rows;
}

// ---- running and checking ----------------------------------------------------------------------

static void take_tokens(struct soak *soak, const struct step_result *result) {
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        struct sequence *s = &soak->sequences[row->ref.slot];
        bool known = row->ref.slot < SLOTS && s->live && s->gen == row->ref.gen;
        if (!known || row->is_prompt || row->position > LENGTH || row->token < 0 ||
            row->token >= VOCABULARY) {
            die("a result row belongs to nobody");
        }
        s->tokens[row->position] = row->token;
        s->length = row->position + 1;
        soak->tokens++;
    }
}

// The same sequence by itself: the prompt in one piece as far as a step holds it, scalar kernels.
static void check_alone(struct soak *soak, const struct sequence *s) {
    static const uint32_t FIRST_BLOCKS[BLOCKS_EACH] = {0, 1, 2, 3, 4, 5};
    struct executor *executor = engine_executor(soak->alone);
    executor_reset(executor, ++soak->alone_epoch);
    uint32_t done = 0;
    uint32_t length = s->prompt;
    for (uint64_t seq = 1; length < s->length; seq++) {
        struct plan_admit first = {.ref = {0, 1},
                                   .prompt_tokens = s->prompt,
                                   .len_max = LENGTH,
                                   .block_count = BLOCKS_EACH,
                                   .blocks = FIRST_BLOCKS,
                                   .sampling = s->sampling};
        uint32_t count = s->prompt - done < STEP_TOKENS ? s->prompt - done : STEP_TOKENS;
        struct plan_prefill chunk = {{0, 1},           done, count,
                                     s->tokens + done, -1,   done + count == s->prompt};
        struct plan plan = {.epoch = soak->alone_epoch,
                            .seq = seq,
                            .decode_rows = count == 0 ? 1 : 0,
                            .admit_count = seq == 1 ? 1 : 0,
                            .prefill_count = count > 0 ? 1 : 0,
                            .admits = &first,
                            .prefills = &chunk};
        struct step_result result;
        executor_run(executor, &plan, &result);
        if (result.status != RESULT_STATUS_OK) {
            die(result.message);
        }
        done += count;
        for (uint32_t i = 0; i < result.row_count; i++) {
            if (result.rows[i].token != s->tokens[result.rows[i].position]) {
                die("a sequence has other tokens when it is computed alone");
            }
            length = result.rows[i].position + 1;
        }
    }
    soak->checked++;
}

static void check_finished(struct soak *soak) {
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct sequence *s = &soak->sequences[slot];
        if (s->live && s->length >= s->target && (soak->started + slot) % CHECK_EVERY < SLOTS) {
            check_alone(soak, s);
        }
    }
}

static void step(struct soak *soak, bool brim) {
    struct parts parts;
    struct step_result result;
    make_plan(soak, &parts, brim);
    uint32_t rows = rows_of(&parts);
    soak->fullest = rows > soak->fullest ? rows : soak->fullest;
    soak->watch(1);
    executor_run(engine_executor(soak->engine), &parts.plan, &result);
    soak->watch(0);
    if (result.status != RESULT_STATUS_OK) {
        die(result.message);
    }
    take_tokens(soak, &result);
    check_finished(soak);
}

static void no_watch(int on) {
    (void)on;
}

static uint64_t no_count(void) {
    return 0;
}

// Planted once, so that a watcher that sees nothing fails the run.
static bool find_interposer(struct soak *soak) {
    soak->watch = no_watch;
    soak->count = no_count;
    void *watch = dlsym(RTLD_DEFAULT, "interpose_watch");
    void *count = dlsym(RTLD_DEFAULT, "interpose_count");
    if (watch == NULL || count == NULL) {
        return false;
    }
    memcpy(&soak->watch, &watch, sizeof watch);
    memcpy(&soak->count, &count, sizeof count);
    soak->watch(1);
    void *planted = memory_alloc(32);
    soak->watch(0);
    memory_free(planted);
    if (soak->count() == 0) {
        die("the interposer does not see a planted allocation");
    }
    return true;
}

int main(int argc, char **argv) {
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (steps < 1000) {
        fprintf(stderr, "usage: soak STEPS, at least 1000\n");
        return 64;
    }
    static struct soak soak;
    char path[64];
    snprintf(path, sizeof path, "/tmp/tare-soak-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    rng_init(&soak.rng, 11);
    soak.engine = start(path, "auto", 2);
    soak.alone = start(path, "scalar", 1);
    remove(path);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        soak.free_blocks[soak.free_count++] = i;
    }
    executor_reset(engine_executor(soak.engine), 1);
    bool interposed = find_interposer(&soak);
    uint64_t planted = soak.count();
    uint64_t begin_us = clock_monotonic_us();
    uint64_t sealed_rss = 0, most_rss = 0;
    for (uint64_t i = 0; i < steps; i++) {
        step(&soak, i + 64 >= steps);
        if (i == RSS_EVERY) {
            sealed_rss = resident_bytes();    // every block and code path was used by now
        } else if (i > RSS_EVERY && i % RSS_EVERY == 0) {
            uint64_t rss = resident_bytes();
            most_rss = rss > most_rss ? rss : most_rss;
        }
    }
    double seconds = (double)(clock_monotonic_us() - begin_us) / 1e6;
    uint64_t growth = most_rss > sealed_rss ? most_rss - sealed_rss : 0;
    printf("{\"soak\":\"steps\",\"steps\":%" PRIu64 ",\"sequences\":%" PRIu64 ",\"tokens\":%" PRIu64
           ",\"checked\":%" PRIu64 ",\"fullest_step\":%" PRIu64
           ",\"interposed\":%s,\"allocations\":%" PRIu64 ",\"door_violations\":%" PRIu64
           ",\"resident_growth_bytes\":%" PRIu64 ",\"us_per_step\":%.1f}\n",
           steps, soak.started, soak.tokens, soak.checked, soak.fullest,
           interposed ? "true" : "false", soak.count() - planted, memory_guard_violations(), growth,
           1e6 * seconds / (double)steps);
    if (soak.count() != planted || memory_guard_violations() != 0) {
        die("a step allocated");
    }
    if (growth > RSS_SLACK_BYTES) {
        die("resident memory grew by more than 2 MiB");
    }
    if (soak.fullest != STEP_TOKENS || soak.checked == 0) {
        die("no step was full, or no sequence was checked");
    }
    engine_destroy(soak.engine);
    engine_destroy(soak.alone);
    return 0;
}
