// SPDX-License-Identifier: Apache-2.0
// A worker that fails on demand: the product's own objects, with some calls led through here by the
// linker (--wrap; tests/tests.mk lists them).
//
// The idea: a file named after the rank (g0r1) in the directory FAULTS_DIR holds one word, the
// place and the kind of the failure. Whoever comes to that place takes the file away and fails; a
// word that ends with '!' stays, and fails again and again.
//
//   start, load, started      killed before the engine is made, while weights load, once it is made
//   attach, attached          killed when the group is to meet, once it has met
//   prefill, decode           killed when such a plan comes
//   message                   killed inside a step, before its second message to the other ranks
//   hang                      the step thread stands still inside a step
//   digest, token             answers with another digest; with a token that no model has
//   noise                     answers with bytes that are no message
//
//   Owns       nothing.
//   Thread     that of each call.
//   Allocates  never.
//   Fails      that is what it is for.
#include "proto/codec.h"
#include "worker/comm/collective.h"
#include "worker/engine.h"
#include "worker/step/executor.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status __real_engine_create(const struct engine_options *options, struct engine **out,
                                 struct error *err);
enum status __real_collective_attach(struct collective *collective,
                                     const struct collective_epoch *epoch, struct error *err);
void __real_collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                                      uint32_t rows, uint32_t cols);
void __real_executor_run(struct executor *executor, const struct plan *plan,
                         struct step_result *out);
enum status __real_codec_result_encode(const struct step_result *result, struct arena *scratch,
                                       struct buf *out, struct error *err);
int __real_worker_run(const struct worker_options *options);

enum status __wrap_engine_create(const struct engine_options *options, struct engine **out,
                                 struct error *err);
enum status __wrap_collective_attach(struct collective *collective,
                                     const struct collective_epoch *epoch, struct error *err);
void __wrap_collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                                      uint32_t rows, uint32_t cols);
void __wrap_executor_run(struct executor *executor, const struct plan *plan,
                         struct step_result *out);
enum status __wrap_codec_result_encode(const struct step_result *result, struct arena *scratch,
                                       struct buf *out, struct error *err);
int __wrap_worker_run(const struct worker_options *options);

static char path[256];    // of this rank's file
static bool in_step;
static uint32_t messages;    // of this step

// True when this place's turn has come.
static bool fails(const char *place) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    char word[32] = "";
    ssize_t length = read(fd, word, sizeof word - 1);
    close(fd);
    bool stays = length > 0 && word[length - 1] == '!';
    if (stays) {
        word[length - 1] = '\0';
    }
    return strcmp(word, place) == 0 && (stays || unlink(path) == 0);
}

static void die_at(const char *place) {
    if (fails(place)) {
        raise(SIGKILL);
    }
}

int __wrap_worker_run(const struct worker_options *options) {
    const char *directory = getenv("FAULTS_DIR");
    snprintf(path, sizeof path, "%.200s/g%ur%u", directory == NULL ? "/nowhere" : directory,
             options->group, options->engine.shard.rank);
    return __real_worker_run(options);
}

static void on_load(void *ctx, const struct message_progress *progress) {
    die_at("load");
    const struct engine_options *options = ctx;
    options->progress(options->progress_ctx, progress);
}

enum status __wrap_engine_create(const struct engine_options *options, struct engine **out,
                                 struct error *err) {
    die_at("start");
    static struct engine_options theirs;
    theirs = *options;
    struct engine_options ours = *options;
    ours.progress = on_load;
    ours.progress_ctx = &theirs;
    enum status status = __real_engine_create(&ours, out, err);
    die_at("started");
    return status;
}

enum status __wrap_collective_attach(struct collective *collective,
                                     const struct collective_epoch *epoch, struct error *err) {
    die_at("attach");
    enum status status = __real_collective_attach(collective, epoch, err);
    die_at("attached");
    return status;
}

void __wrap_collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                                      uint32_t rows, uint32_t cols) {
    if (in_step && messages++ == 1) {
        die_at("message");
        while (fails("hang")) {
            for (;;) {
                pause();
            }
        }
    }
    __real_collective_all_reduce_add(collective, part, y, rows, cols);
}

void __wrap_executor_run(struct executor *executor, const struct plan *plan,
                         struct step_result *out) {
    if (plan->prefill_count > 0) {
        die_at("prefill");
    } else if (plan->decode_rows > 0) {
        die_at("decode");
    }
    in_step = true;
    messages = 0;
    __real_executor_run(executor, plan, out);
    in_step = false;
    if (out->status != RESULT_STATUS_OK) {
        return;
    }
    if (fails("digest")) {
        out->digest ^= 1;
    }
    if (out->row_count > 0 && fails("token")) {
        ((struct result_row *)(uintptr_t)out->rows)[0].token = INT32_MAX;
    }
}

enum status __wrap_codec_result_encode(const struct step_result *result, struct arena *scratch,
                                       struct buf *out, struct error *err) {
    enum status status = __real_codec_result_encode(result, scratch, out, err);
    if (status == STATUS_OK && fails("noise")) {
        memset(out->data, 0xA5, out->bytes_used);
    }
    return status;
}
