// SPDX-License-Identifier: Apache-2.0
// A worker under random legal steps, mixed prefill and decode, many of them replays of graphs:
// nothing is allocated or mapped, resident memory is what the ledger says, and sampled sequences
// have the tokens they have when computed alone by the scalar kernels.
//
//   soak STEPS     prints one JSON object; exit code 1 with the reason when a claim does not hold
//
// The model: llama, hidden 64, 2 layers, vocabulary 256; steps of up to 32 tokens, in the
// smallest workspace there is for them. The last step fills tokens, sequences, logit rows and KV
// blocks to the brim. Run with interpose.so preloaded, else only the heap's door is watched and
// memory is not compared.
#include "common/clock.h"
#include "common/memory.h"
#include "common/rng.h"
#include "tests/support/tiny_model.h"
#include "worker/device/device.h"
#include "worker/engine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    STEPS_MIN = 10000,    // with fewer no sequence may be checked
};
static const int64_t RSS_SLACK_BYTES = 2 * 1024 * 1024;

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
    uint64_t started, checked, tokens, scored;
    uint32_t last_rows;    // of the latest step
    uint32_t last_logit_rows;
    int64_t outside_bytes;     // resident before the engine
    int64_t furthest_bytes;    // of resident memory from the ledger, at any look
    void (*watch)(int on);
    uint64_t (*count)(const char *call);    // NULL: all
    const char *(*name)(unsigned index);
};

static void die(const char *what) {
    fprintf(stderr, "soak: %s\n", what);
    exit(1);
}

static uint32_t below(struct soak *soak, uint32_t limit) {
    return (uint32_t)rng_below(&soak->rng, limit);
}

// Anonymous and shared memory: pages of the program's own file come and go with the page cache.
static int64_t resident_bytes(void) {
    char line[256];
    int64_t sum_kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL) {
        die("/proc/self/status cannot be read");
    }
    while (fgets(line, sizeof line, file) != NULL) {
        long long kib = 0;
        if (sscanf(line, "RssAnon: %lld", &kib) == 1 || sscanf(line, "RssShmem: %lld", &kib) == 1) {
            sum_kib += kib;
        }
    }
    fclose(file);
    return sum_kib * 1024;
}

// How far resident memory is from what the ledger says this engine holds.
static void look_at_memory(struct soak *soak) {
    const struct message_capacity *capacity = engine_capacity(soak->engine);
    int64_t ledger = 0;
    for (uint32_t i = 0; i < capacity->line_count; i++) {
        ledger += (int64_t)capacity->lines[i].bytes;
    }
    int64_t apart = llabs(resident_bytes() - soak->outside_bytes - ledger);
    soak->furthest_bytes = apart > soak->furthest_bytes ? apart : soak->furthest_bytes;
}

static struct engine_options options_for(const char *path, const char *isa, uint32_t threads) {
    return (struct engine_options){
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
}

static struct engine *start(const struct engine_options *options) {
    struct engine *engine = NULL;
    struct error err = {0};
    if (engine_create(options, &engine, &err) != STATUS_OK) {
        die(err.message);
    }
    if (engine_capacity(engine)->kv_blocks < BLOCKS) {
        die("the pool has fewer blocks than the sequences need");
    }
    return engine;
}

// A workspace little larger than the smallest tiles need.
static int64_t tight_workspace(struct engine_options options) {
    struct weights *weights = NULL;
    struct engine_plan plan;
    struct error err = {0};
    if (weights_open(options.model_path, &weights, &err) != STATUS_OK) {
        die(err.message);
    }
    int64_t budget = 0;
    struct tiles tiles = {0};
    options.workspace_budget = 1024 * 1024;
    while (engine_plan(&options, weights, &plan, &err) == STATUS_OK) {
        budget = options.workspace_budget;
        tiles = plan.capacity.tiles;
        options.workspace_budget -= budget / 64;
    }
    weights_close(weights);
    if (tiles.attention_parts == 0 ||
        tiles.attention_parts >= OP_ATTENTION_PARTS_PER_THREAD * options.threads) {
        die("the workspace is not tight");
    }
    return budget;
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
        .want_prompt_logprobs = below(soak, 8) == 0,
        .top_logprobs = below(soak, 3),
    };
}

static void admit(struct soak *soak, struct parts *parts, uint32_t slot, bool brim) {
    struct sequence *s = &soak->sequences[slot];
    uint32_t gen = s->gen + 1;
    memset(s, 0, sizeof *s);
    s->live = true;
    s->gen = gen;
    s->prompt = brim ? PROMPT_MAX : 1 + below(soak, PROMPT_MAX);
    s->target = s->prompt + 1 + below(soak, LENGTH - s->prompt);
    s->sampling = random_sampling(soak);
    s->sampling.want_prompt_logprobs = brim || s->sampling.want_prompt_logprobs;
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
        int32_t next = s->sampling.want_prompt_logprobs && !last ? s->tokens[s->done + count] : -1;
        parts->prefills[parts->plan.prefill_count++] =
            (struct plan_prefill){{slot, s->gen}, s->done, count, s->tokens + s->done, next, last};
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
        // At the brim half of the slots begin the longest prompts, the others go on.
        if (s->live && (s->length >= s->target || (brim && slot < SLOTS / 2))) {
            retire(soak, parts, slot);
        }
        if (!s->live && (brim || (parts->plan.retire_count == 0 && below(soak, 3) == 0))) {
            admit(soak, parts, slot, brim);
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
        if (!known || row->position > LENGTH || row->token < 0 || row->token >= VOCABULARY) {
            die("a result row belongs to nobody");
        }
        if (row->is_prompt) {
            if (row->token != s->tokens[row->position]) {
                die("a prompt score is of another token");
            }
            soak->scored++;
            continue;
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
        first.sampling.want_prompt_logprobs = false;
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
    soak->last_rows = rows_of(&parts);
    soak->watch(1);
    executor_run(engine_executor(soak->engine), &parts.plan, &result);
    soak->watch(0);
    if (result.status != RESULT_STATUS_OK) {
        die(result.message);
    }
    soak->last_logit_rows = result.row_count;
    take_tokens(soak, &result);
    check_finished(soak);
}

// ---- the watcher is watched --------------------------------------------------------------------

static void no_watch(int on) {
    (void)on;
}

static uint64_t no_count(const char *call) {
    (void)call;
    return 0;
}

static void plant_malloc(void) {
    void *volatile memory = malloc(32);
    free(memory);
}

static void plant_calloc(void) {
    void *volatile memory = calloc(2, 16);
    free(memory);
}

static void plant_realloc(void) {
    void *volatile memory = malloc(16);
    void *larger = realloc(memory, 32);    // of NULL it would be compiled into a malloc
    free(larger == NULL ? memory : larger);
}

static void plant_aligned_alloc(void) {
    void *volatile memory = aligned_alloc(64, 64);
    free(memory);
}

static void plant_posix_memalign(void) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, 64) == 0) {
        free(memory);
    }
}

static const size_t PLANT_BYTES = 64 * 1024;

static void *plant_pages(void) {
    return mmap(NULL, PLANT_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void plant_mmap(void) {
    munmap(plant_pages(), PLANT_BYTES);
}

static void plant_mremap(void) {
    munmap(mremap(plant_pages(), PLANT_BYTES, 2 * PLANT_BYTES, MREMAP_MAYMOVE), 2 * PLANT_BYTES);
}

static void plant_mprotect(void) {
    void *pages = plant_pages();
    mprotect(pages, PLANT_BYTES, PROT_READ | PROT_WRITE);
    munmap(pages, PLANT_BYTES);
}

static void plant_madvise(void) {
    void *pages = plant_pages();
    madvise(pages, PLANT_BYTES, MADV_WILLNEED);
    munmap(pages, PLANT_BYTES);
}

static void plant_brk(void) {
    if (brk(sbrk(0)) != 0) {
        die("the program break cannot be set where it is");
    }
}

static void plant_sbrk(void) {
    sbrk(0);
}

static void plant_file(void) {
    int fd = memfd_create("planted", 0);
    if (fd < 0 || ftruncate(fd, (off_t)PLANT_BYTES) != 0 ||
        fallocate(fd, 0, 0, (off_t)PLANT_BYTES) != 0) {
        die("a memory file cannot be made");
    }
    close(fd);
}

static const struct {
    const char *call;
    void (*make)(void);
} planted_calls[] = {
    {"malloc", plant_malloc},
    {"calloc", plant_calloc},
    {"realloc", plant_realloc},
    {"aligned_alloc", plant_aligned_alloc},
    {"posix_memalign", plant_posix_memalign},
    {"mmap", plant_mmap},
    {"munmap", plant_mmap},
    {"mremap", plant_mremap},
    {"mprotect", plant_mprotect},
    {"madvise", plant_madvise},
    {"brk", plant_brk},
    {"sbrk", plant_sbrk},
    {"memfd_create", plant_file},
    {"ftruncate", plant_file},
    {"fallocate", plant_file},
};
enum { PLANTED_COUNT = sizeof planted_calls / sizeof *planted_calls };

// Each call that is watched is seen when watched and not when not, and none is left out here.
static void plant_calls(struct soak *soak) {
    for (unsigned i = 0; soak->name(i) != NULL; i++) {
        unsigned at = 0;
        while (at < PLANTED_COUNT && strcmp(planted_calls[at].call, soak->name(i)) != 0) {
            at++;
        }
        if (at == PLANTED_COUNT) {
            die("a watched call is not planted");
        }
        uint64_t before = soak->count(soak->name(i));
        planted_calls[at].make();
        uint64_t unwatched = soak->count(soak->name(i));
        soak->watch(1);
        planted_calls[at].make();
        soak->watch(0);
        if (unwatched != before || soak->count(soak->name(i)) == before) {
            fprintf(stderr, "soak: the watcher does not see a planted %s\n", soak->name(i));
            exit(1);
        }
    }
}

// ---- every call of a device that takes memory ---------------------------------------------------

struct planted_device {
    const struct device_table *table;
    struct device *device;
    struct memory_ledger ledger;
    struct device_range range;
    struct device_capture capture;
};

static enum status plant_open(struct planted_device *p, struct error *err) {
    struct device_options options = {
        .name = "cpu", .thread_count = 1, .isa = "scalar", .ledger = &p->ledger};
    return p->table->open(&options, &p->device, err);
}

static enum status plant_reserve(struct planted_device *p, struct error *err) {
    return p->table->reserve(p->device, LEDGER_KV, PLANT_BYTES, -1, &p->range, err);
}

static enum status plant_map(struct planted_device *p, struct error *err) {
    return p->table->map(p->device, &p->range, PLANT_BYTES, err);
}

static enum status plant_unmap(struct planted_device *p, struct error *err) {
    (void)err;
    p->table->unmap(p->device, &p->range, PLANT_BYTES);
    return STATUS_OK;
}

static enum status plant_capture(struct planted_device *p, struct error *err) {
    TRY(p->table->capture_begin(p->device, LEDGER_GRAPH_8, 4, &p->capture, err));
    p->table->capture_end(p->device);
    return STATUS_OK;
}

static enum status plant_close(struct planted_device *p, struct error *err) {
    (void)err;
    p->table->close(p->device);
    return STATUS_OK;
}

// In an order in which they can be made.
static const struct {
    const char *name;
    enum status (*make)(struct planted_device *planted, struct error *err);
} device_calls[] = {
    {"open", plant_open},   {"reserve", plant_reserve}, {"map", plant_map},
    {"unmap", plant_unmap}, {"capture", plant_capture}, {"close", plant_close},
};

static void plant_device_calls(struct soak *soak) {
    struct planted_device planted = {.table = device_find("cpu")};
    memory_ledger_init(&planted.ledger, 16 * PLANT_BYTES, 16 * PLANT_BYTES);
    for (unsigned i = 0; i < sizeof device_calls / sizeof *device_calls; i++) {
        struct error err = {0};
        uint64_t before = soak->count(NULL);
        soak->watch(1);
        enum status status = device_calls[i].make(&planted, &err);
        soak->watch(0);
        if (status != STATUS_OK) {
            die(err.message);
        }
        if (soak->count(NULL) == before) {
            fprintf(stderr, "soak: the watcher does not see the device's %s\n",
                    device_calls[i].name);
            exit(1);
        }
    }
}

static bool find_interposer(struct soak *soak) {
    soak->watch = no_watch;
    soak->count = no_count;
    void *watch = dlsym(RTLD_DEFAULT, "interpose_watch");
    void *count = dlsym(RTLD_DEFAULT, "interpose_count");
    void *name = dlsym(RTLD_DEFAULT, "interpose_name");
    if (watch == NULL || count == NULL || name == NULL) {
        return false;
    }
    memcpy(&soak->watch, &watch, sizeof watch);
    memcpy(&soak->count, &count, sizeof count);
    memcpy(&soak->name, &name, sizeof name);
    plant_calls(soak);
    plant_device_calls(soak);
    return true;
}

// ---- the run -----------------------------------------------------------------------------------

static void set_up(struct soak *soak) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/tare-soak-%d.gguf", (int)getpid());
    tiny_model_write(&model, path);
    rng_init(&soak->rng, 11);
    struct engine_options alone = options_for(path, "scalar", 1);
    soak->alone = start(&alone);
    struct engine_options options = options_for(path, "auto", 2);
    options.workspace_budget = tight_workspace(options);
    soak->outside_bytes = resident_bytes();
    soak->engine = start(&options);
    remove(path);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        soak->free_blocks[soak->free_count++] = i;
    }
    executor_reset(engine_executor(soak->engine), 1);
}

static void print_result(const struct soak *soak, uint64_t steps, bool interposed,
                         uint64_t allocations, double seconds) {
    printf("{\"soak\":\"steps\",\"steps\":%" PRIu64 ",\"replays\":%" PRIu64
           ",\"sequences\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"scored\":%" PRIu64
           ",\"checked\":%" PRIu64 ",\"last_step\":%u,\"last_logit_rows\":%u"
           ",\"interposed\":%s,\"allocations\":%" PRIu64 ",\"door_violations\":%" PRIu64
           ",\"furthest_from_ledger_bytes\":%" PRId64 ",\"us_per_step\":%.1f}\n",
           steps, executor_replays(engine_executor(soak->engine)), soak->started, soak->tokens,
           soak->scored, soak->checked, soak->last_rows, soak->last_logit_rows,
           interposed ? "true" : "false", allocations, memory_guard_violations(),
           soak->furthest_bytes, 1e6 * seconds / (double)steps);
}

static void check_claims(const struct soak *soak, bool interposed, uint64_t allocations) {
    if (allocations != 0 || memory_guard_violations() != 0) {
        die("a step allocated");
    }
    if (interposed && soak->furthest_bytes > RSS_SLACK_BYTES) {
        die("resident memory is more than 2 MiB from the ledger");
    }
    // All but the first of the new prompts' rows and every decoding row have logits.
    if (soak->last_rows != STEP_TOKENS || soak->last_logit_rows < STEP_TOKENS / 2 ||
        soak->free_count != 0) {
        die("the last step did not fill its budgets");
    }
    if (soak->checked == 0 || soak->scored == 0 ||
        executor_replays(engine_executor(soak->engine)) == 0) {
        die("no sequence was checked, no prompt was scored, or no step was a replay");
    }
}

int main(int argc, char **argv) {
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (steps < STEPS_MIN) {
        fprintf(stderr, "usage: soak STEPS, at least %d\n", STEPS_MIN);
        return 64;
    }
    static struct soak soak;
    set_up(&soak);
    bool interposed = find_interposer(&soak);
    uint64_t planted = soak.count(NULL);
    uint64_t begin_us = clock_monotonic_us();
    look_at_memory(&soak);
    for (uint64_t i = 1; i <= steps; i++) {
        step(&soak, i == steps);
        if (i % RSS_EVERY == 0 || i == steps) {
            look_at_memory(&soak);
        }
    }
    double seconds = (double)(clock_monotonic_us() - begin_us) / 1e6;
    uint64_t allocations = soak.count(NULL) - planted;
    print_result(&soak, steps, interposed, allocations, seconds);
    check_claims(&soak, interposed, allocations);
    engine_destroy(soak.engine);
    engine_destroy(soak.alone);
    return 0;
}
