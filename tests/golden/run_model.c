// SPDX-License-Identifier: Apache-2.0
// Runs token ids through the worker's own engine and prints what it computed, for comparison with
// an independent implementation.
//
//   run_model MODEL MODE [isa=auto] [kv=float32] [chunk=512] [threads=2] [generate=0]  < ids
//
//   MODE logits:  one line per prompt position with the raw logits as hexadecimal float32 words
//   MODE score:   one line per prompt position but the first: id, natural-log probability
//   MODE greedy:  the `generate` most likely next ids, one per line
#include "common/memory.h"
#include "worker/engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 32768 };

struct settings {
    const char *mode;
    const char *isa;
    bool wide_kv;
    uint32_t chunk, threads, generate;
};

static void fail(const char *what, const struct error *err) {
    fprintf(stderr, "run_model: %s: %s\n", what, err == NULL ? "" : err->message);
    exit(1);
}

static void parse_setting(const char *word, struct settings *s) {
    if (strncmp(word, "isa=", 4) == 0) {
        s->isa = word + 4;
    } else if (strncmp(word, "kv=", 3) == 0) {
        s->wide_kv = strcmp(word + 3, "float32") == 0;
    } else if (strncmp(word, "chunk=", 6) == 0) {
        s->chunk = (uint32_t)strtoul(word + 6, NULL, 10);
    } else if (strncmp(word, "threads=", 8) == 0) {
        s->threads = (uint32_t)strtoul(word + 8, NULL, 10);
    } else if (strncmp(word, "generate=", 9) == 0) {
        s->generate = (uint32_t)strtoul(word + 9, NULL, 10);
    } else {
        fail(word, NULL);
    }
}

static void print_logits(const struct step_result *result, uint32_t vocabulary,
                         const struct op_sample_row *rows) {
    for (uint32_t i = 0; i < result->row_count; i++) {
        printf("%u", result->rows[i].position - 1);
        for (uint32_t k = 0; k < vocabulary; k++) {
            uint32_t word;
            memcpy(&word, &rows[i].logits[k], sizeof word);
            printf(" %08x", word);
        }
        printf("\n");
    }
}

static void print_rows(const struct settings *s, const struct step_result *result, int32_t *next) {
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        if (row->is_prompt && strcmp(s->mode, "score") == 0) {
            printf("%d %.9g\n", row->token, (double)row->logprob);
        } else if (!row->is_prompt) {
            *next = row->token;
            if (strcmp(s->mode, "greedy") == 0) {
                printf("%d\n", row->token);
            }
        }
    }
}

static void run(struct engine *engine, const struct settings *s, const int32_t *tokens,
                uint32_t count) {
    const struct message_capacity *capacity = engine_capacity(engine);
    uint32_t blocks[TOKENS_MAX / 16];
    uint32_t block_count = (count + s->generate) / capacity->block_tokens + 1;
    for (uint32_t i = 0; i < block_count; i++) {
        blocks[i] = i;
    }
    struct plan_admit admit = {
        .ref = {0, 1},
        .prompt_tokens = count,
        .len_max = count + (s->generate > 0 ? s->generate : 1),
        .block_count = block_count,
        .blocks = blocks,
        .sampling = {.top_p = 1.0f,
                     .repetition_penalty = 1.0f,
                     .want_prompt_logprobs = strcmp(s->mode, "greedy") != 0},
    };
    struct executor *executor = engine_executor(engine);
    executor_reset(executor, 1);
    uint64_t seq = 0;
    int32_t next = -1;
    for (uint32_t at = 0; at < count;) {
        uint32_t n = count - at < s->chunk ? count - at : s->chunk;
        bool last = at + n == count;
        struct plan_prefill chunk = {
            {0, 1},
            at,
            n,
            tokens + at,
            last || !admit.sampling.want_prompt_logprobs ? -1 : tokens[at + n],
            last};
        struct plan plan = {.epoch = 1,
                            .seq = ++seq,
                            .admit_count = at == 0 ? 1 : 0,
                            .admits = &admit,
                            .prefill_count = 1,
                            .prefills = &chunk};
        struct step_result result;
        executor_run(executor, &plan, &result);
        if (result.status != RESULT_STATUS_OK) {
            fail(result.message, NULL);
        }
        if (strcmp(s->mode, "logits") == 0) {
            print_logits(&result, capacity->vocabulary, executor_sample_rows(executor));
        }
        print_rows(s, &result, &next);
        at += n;
    }
    for (uint32_t i = 1; i < s->generate; i++) {
        struct plan plan = {.epoch = 1, .seq = ++seq, .decode_rows = 1};
        struct step_result result;
        executor_run(executor, &plan, &result);
        if (result.status != RESULT_STATUS_OK) {
            fail(result.message, NULL);
        }
        print_rows(s, &result, &next);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: run_model MODEL logits|score|greedy [name=value]... < ids\n");
        return 64;
    }
    struct settings s = {
        .mode = argv[2], .isa = "auto", .wide_kv = true, .chunk = 64, .threads = 2};
    for (int i = 3; i < argc; i++) {
        parse_setting(argv[i], &s);
    }
    int32_t *tokens = memory_array(TOKENS_MAX, sizeof *tokens);
    uint32_t count = 0;
    while (count < TOKENS_MAX && scanf("%d", &tokens[count]) == 1) {
        count++;
    }
    struct engine_options options = {
        .model_path = argv[1],
        .device = "cpu",
        .isa = s.isa,
        .threads = s.threads,
        .kv_dtype = s.wide_kv ? DTYPE_F32 : DTYPE_F16,
        .block_tokens = 32,
        .seqs = 1,
        // At most one tile of logits, so that every row's logits still exist after the step.
        .step_tokens = s.chunk,
        .model_len = -1,
        .weights_fd = -1,
        .kv_fd = -1,
        .utilization = 1.0,
    };
    struct engine *engine = NULL;
    struct error err = {0};
    if (count == 0 || engine_create(&options, &engine, &err) != STATUS_OK) {
        fail("start", &err);
    }
    run(engine, &s, tokens, count);
    engine_destroy(engine);
    memory_free(tokens);
    return 0;
}
