// SPDX-License-Identifier: Apache-2.0
// Goal: a recorded history leads to the same plans again, whatever happened in it; a file that ends
// anywhere is used up to there; one byte that differs is either noticed as damage or as another
// plan. Method: a core with a worker without arithmetic, recorded under random events, and the file
// cut and changed.
#include "common/crc32c.h"
#include "common/memory.h"
#include "common/rng.h"
#include "controller/core/prefix_index.h"
#include "controller/input_log.h"
#include "tests/unit/controller/core/fake_worker.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEQS = 6, SEQ_TOKENS = 128, BLOCK_TOKENS = 16, TOKENS = 32, CLIENTS = 40, EVENTS = 1500 };

struct client {
    bool open;
    int32_t tokens[SEQ_TOKENS + 1];
    struct prefix_key keys[SEQ_TOKENS / CORE_KEY_TOKENS + 1];
    struct token_bias bias;
};

struct world {
    char path[64];
    struct core *core;
    struct input_log *log;
    struct fake_worker *worker;
    struct message_capacity capacity;
    struct client clients[CLIENTS];
    struct step_result result;
    struct result_row rows[TOKENS + SEQS];
    uint64_t now_us, next_id, epoch;
    bool plan_waits;
};

static void on_action(void *ctx, const struct core_action *action) {
    struct world *w = ctx;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        input_log_plan(w->log, action->send.plan);
        fake_worker_run(w->worker, action->send.plan, &w->result);
        if (w->result.row_count > 0) {
            memcpy(w->rows, w->result.rows, w->result.row_count * sizeof *w->rows);
        }
        w->result.rows = w->rows;
        w->plan_waits = true;
        break;
    case CORE_ACTION_FINISHED:
        w->clients[action->finished.id.value % CLIENTS].open = false;
        break;
    case CORE_ACTION_REJECTED:
        w->clients[action->rejected.id.value % CLIENTS].open = false;
        break;
    default:
        break;
    }
}

static void tick(struct world *w, const struct core_input *input) {
    w->now_us += 1000;
    input_log_tick(w->log, w->now_us, input, input == NULL ? 0 : 1);
    core_tick(w->core, w->now_us, input, input == NULL ? 0 : 1, on_action, w);
}

static void worker_ready(struct world *w) {
    fake_worker_reset(w->worker, ++w->epoch);
    w->plan_waits = false;
    tick(w, &(struct core_input){.kind = CORE_INPUT_WORKER_READY,
                                 .ready = {{3}, &w->capacity, w->epoch, 0, 1, false}});
}

static void submit(struct world *w, struct rng *rng) {
    uint64_t id = ++w->next_id;
    struct client *client = &w->clients[id % CLIENTS];
    if (client->open) {
        return;
    }
    client->open = true;
    uint32_t prompt = 1 + (uint32_t)rng_below(rng, 60);
    for (uint32_t i = 0; i < prompt; i++) {
        client->tokens[i] = (int32_t)(i * (1 + rng_below(rng, 2)) % 90);
    }
    client->bias = (struct token_bias){7, 0.5f};
    struct core_request request = {
        .id = {id},
        .class_ = (enum request_class)rng_below(rng, REQUEST_CLASS_COUNT),
        .tenant = (uint32_t)rng_below(rng, 3),
        .weight = (float)rng_below(rng, 5),
        .tokens = client->tokens,
        .token_capacity = SEQ_TOKENS + 1,
        .prompt_count = prompt,
        .output_max = 1 + (uint32_t)rng_below(rng, 40),
        .keys = client->keys,
        .key_capacity = SEQ_TOKENS / CORE_KEY_TOKENS + 1,
        .salt = rng_below(rng, 2),
        .sampling = {.temperature = 0.5f,
                     .top_p = 0.9f,
                     .repetition_penalty = 1.0f,
                     .seed = id,
                     .bias_count = 1,
                     .bias = &client->bias},
    };
    tick(w, &(struct core_input){.kind = CORE_INPUT_REQUEST, .request = &request});
}

static void event(struct world *w, struct rng *rng) {
    uint64_t dice = rng_below(rng, 100);
    if (dice < 30) {
        submit(w, rng);
    } else if (dice < 35) {
        enum core_input_kind kind = dice == 30 ? CORE_INPUT_STOP : CORE_INPUT_CANCEL;
        tick(w, &(struct core_input){.kind = kind, .id = {1 + rng_below(rng, w->next_id + 1)}});
    } else if (dice == 35) {
        tick(w, &(struct core_input){.kind = CORE_INPUT_WORKER_LOST, .lost = {{3}, "test"}});
        worker_ready(w);
    } else if (w->plan_waits) {
        struct core_input input = {.kind = CORE_INPUT_RESULT, .result = {{3}, 0, &w->result}};
        w->plan_waits = false;
        tick(w, &input);
    } else {
        tick(w, NULL);
    }
}

static void record(struct world *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    snprintf(w->path, sizeof w->path, "/tmp/tare-test-input-log-%d", (int)getpid());
    struct core_config config = {.seqs_max = SEQS,
                                 .waiting_max = 20,
                                 .step_tokens_max = TOKENS,
                                 .blocks_max = FAKE_BLOCKS_MAX,
                                 .group = 1,
                                 .depth = 1,
                                 .groups_max = 1,
                                 .tenant_max = 3,
                                 .prefix_secret = "secret"};
    core_policy_defaults(&config.policy);
    struct error err = {0};
    ck_assert_int_eq(core_create(&config, &w->core, &err), STATUS_OK);
    ck_assert_int_eq(input_log_create(w->path, 1 << 30, &config, &w->log, &err), STATUS_OK);
    w->capacity = (struct message_capacity){
        .envelope = {.tokens = TOKENS,
                     .seqs = SEQS,
                     .seq_tokens = SEQ_TOKENS,
                     .logit_rows = TOKENS,
                     .prompt_logit_rows = TOKENS,
                     .blocks_per_seq = SEQ_TOKENS / BLOCK_TOKENS,
                     .logprob_rows = TOKENS,
                     .attended_tokens_max = SEQ_TOKENS,
                     .attended_tokens = SEQS * SEQ_TOKENS},
        .block_tokens = BLOCK_TOKENS,
        .kv_blocks = 30,
        .kv_bytes_per_token = 64,
        .vocabulary = 90,
        .parameters = 1,
        .kv_dtype = "float16",
        .threads = 1,
    };
    struct plan_limits limits = {w->capacity.envelope, BLOCK_TOKENS, 30, 90};
    w->worker = fake_worker_create(&limits);
    struct rng rng;
    rng_init(&rng, seed);
    worker_ready(w);
    for (uint32_t i = 0; i < EVENTS; i++) {
        event(w, &rng);
    }
    input_log_close(w->log);
    core_destroy(w->core);
    fake_worker_destroy(w->worker);
}

static enum status replay(const char *path, struct buf *out, struct error *err) {
    buf_reset(out);
    *err = (struct error){0};
    return input_log_replay(path, out, err);
}

static size_t read_all(const char *path, uint8_t **out) {
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    *out = memory_alloc(bytes);
    ck_assert_uint_eq(fread(*out, 1, bytes, file), bytes);
    fclose(file);
    return bytes;
}

static void write_all(const char *path, const uint8_t *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

START_TEST(a_history_leads_to_the_same_plans) {
    static struct world w;
    struct buf out;
    struct error err;
    buf_init(&out, 1 << 20);
    record(&w, (uint64_t)_i + 1);
    ck_assert_msg(replay(w.path, &out, &err) == STATUS_OK, "%s: %s", err.message, buf_cstr(&out));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "plans, all equal"));
    buf_deinit(&out);
    remove(w.path);
}
END_TEST

START_TEST(a_file_that_ends_anywhere_is_used_up_to_there) {
    static struct world w;
    struct buf out;
    struct error err;
    uint8_t *data = NULL;
    buf_init(&out, 1 << 20);
    record(&w, 50);
    size_t bytes = read_all(w.path, &data);
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 97) {
        write_all(w.path, data, cut);
        enum status status = replay(w.path, &out, &err);
        // Without its head it is no log at all; cut between a tick and its plan it still is equal.
        ck_assert_msg(status == STATUS_OK || (status == STATUS_VERSION && cut < 400), "%zu: %s",
                      cut, err.message);
    }
    memory_free(data);
    buf_deinit(&out);
    remove(w.path);
}
END_TEST

START_TEST(a_changed_byte_is_noticed) {
    static struct world w;
    struct buf out;
    struct error err;
    uint8_t *data = NULL;
    buf_init(&out, 1 << 20);
    record(&w, 51);
    size_t bytes = read_all(w.path, &data);
    // A record whose checksum is wrong is said to be damaged; one whose length grew past the end of
    // the file is what a dying process leaves.
    for (size_t at = 400; at < bytes; at += 1 + bytes / 61) {
        data[at] ^= 1;
        write_all(w.path, data, bytes);
        data[at] ^= 1;
        enum status status = replay(w.path, &out, &err);
        ck_assert(status == STATUS_CORRUPT
                      ? strstr(err.message, "is damaged; ") != NULL
                      : status == STATUS_OK && strstr(buf_cstr(&out), "no whole record") != NULL);
    }
    // One whose checksum was mended differs, or is damaged in a way that is said.
    uint32_t noticed = 0, tried = 0;
    for (size_t at = 0; at + 9 < bytes;) {
        uint32_t length = 0;
        memcpy(&length, data + at, sizeof length);
        bool is_plan = data[at + 8] == 3;
        if (is_plan && length > 40) {
            uint8_t *body = data + at + 9;
            uint32_t crc, was;
            body[24] ^= 1;    // of the digest
            crc = crc32c(body, length) ^ 3;
            memcpy(&was, data + at + 4, sizeof was);
            memcpy(data + at + 4, &crc, sizeof crc);
            write_all(w.path, data, bytes);
            body[24] ^= 1;
            memcpy(data + at + 4, &was, sizeof was);
            tried++;
            noticed += replay(w.path, &out, &err) == STATUS_INVALID &&
                       strstr(buf_cstr(&out), "recorded ") != NULL &&
                       strstr(buf_cstr(&out), "replayed ") != NULL;
            if (tried == 20) {
                break;
            }
        }
        at += 9 + length;
    }
    ck_assert_uint_eq(tried, 20);
    ck_assert_uint_eq(noticed, tried);
    memory_free(data);
    buf_deinit(&out);
    remove(w.path);
}
END_TEST

// Pages that a file system lost are zeros.
START_TEST(zeros_are_no_records) {
    static struct world w;
    struct buf out;
    struct error err;
    uint8_t *data = NULL;
    buf_init(&out, 1 << 20);
    record(&w, 52);
    size_t bytes = read_all(w.path, &data);
    uint32_t length = 0;
    memcpy(&length, data, sizeof length);
    memset(data + 9 + length, 0, bytes - 9 - length);
    write_all(w.path, data, bytes);
    ck_assert_int_eq(replay(w.path, &out, &err), STATUS_CORRUPT);
    ck_assert_msg(strstr(err.message, "0 plans before it are equal") != NULL, "%s", err.message);
    memory_free(data);
    buf_deinit(&out);
    remove(w.path);
}
END_TEST

START_TEST(the_file_is_ours_alone_and_a_file) {
    struct core_config config = {.seqs_max = SEQS};
    struct input_log *log = NULL;
    char path[] = "/tmp/tare-test-input-log-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fchmod(fd, 0644), 0);
    ck_assert_int_eq(input_log_create(path, 1 << 20, &config, &log, NULL), STATUS_OK);
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    input_log_close(log);
    close(fd);
    // The next one keeps it.
    ck_assert_int_eq(stat(path, &info), 0);
    off_t before = info.st_size;
    ck_assert_int_eq(input_log_create(path, 1 << 20, &config, &log, NULL), STATUS_OK);
    input_log_close(log);
    char old[sizeof path + 4];
    snprintf(old, sizeof old, "%s.old", path);
    ck_assert_int_eq(stat(old, &info), 0);
    ck_assert_int_eq(info.st_size, before);
    ck_assert_int_gt(before, 0);
    remove(old);
    remove(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(input_log_create(path, 1 << 20, &config, &log, NULL), STATUS_IO);
    remove(path);
    ck_assert_int_eq(input_log_create("/dev/full", 1 << 20, &config, &log, NULL), STATUS_IO);
}
END_TEST

Suite *suite_input_log(void) {
    Suite *suite = suite_create("controller/input_log");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_history_leads_to_the_same_plans, 0, 8);
    tcase_add_test(tc, a_file_that_ends_anywhere_is_used_up_to_there);
    tcase_add_test(tc, a_changed_byte_is_noticed);
    tcase_add_test(tc, zeros_are_no_records);
    tcase_add_test(tc, the_file_is_ours_alone_and_a_file);
    suite_add_tcase(suite, tc);
    return suite;
}
