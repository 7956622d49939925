// SPDX-License-Identifier: Apache-2.0
// tare-worker: one daemon per device. The parent holds memory, the child computes.
#include "common/config.h"
#include "common/exit_code.h"
#include "common/json.h"
#include "common/log.h"
#include "worker/device/device_sim.h"
#include "worker/holder.h"
#include "worker/plan_report.h"
#include "worker/seal.h"
#include "worker/step_budget.h"
#include "worker/worker.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int stop_requested;    // the stop flag set by a signal

static void on_stop(int signal) {
    (void)signal;
    stop_requested = 1;
}

static void install_signals(void) {
    // No SA_RESTART: waiting calls return and look at the flag.
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

static enum dtype kv_dtype(const struct config *config) {
    bool wide = strcmp(config_string(config, OPTION_KV_CACHE_DTYPE), "float32") == 0;
    return wide ? DTYPE_F32 : DTYPE_F16;
}

static enum engine_role role(const struct config *config) {
    const char *name = config_string(config, OPTION_ROLE);
    if (strcmp(name, "prefill") == 0) {
        return ENGINE_ROLE_PREFILL;
    }
    return strcmp(name, "decode") == 0 ? ENGINE_ROLE_DECODE : ENGINE_ROLE_MIXED;
}

enum { SEAL_DIR_BYTES = 64 };

// NULL when seals are not kept. `room` holds a default's name.
static const char *seal_dir(const struct config *config, char room[SEAL_DIR_BYTES]) {
    const char *given = config_string(config, OPTION_SEAL_DIR);
    if (given != NULL) {
        return given[0] == '\0' || strcmp(given, "off") == 0 ? NULL : given;
    }
    return seal_default_dir(room, SEAL_DIR_BYTES) ? room : NULL;
}

static struct engine_options engine_options(const struct config *config,
                                            const struct holder_fds *fds) {
    return (struct engine_options){
        .model_path = config_string(config, OPTION_MODEL),
        .device = config_string(config, OPTION_DEVICE),
        .isa = config_string(config, OPTION_CPU_ISA),
        .threads = (uint32_t)config_int(config, OPTION_THREADS),
        .device_memory = config_int(config, OPTION_DEVICE_MEMORY),
        .utilization = config_real(config, OPTION_GPU_MEMORY_UTILIZATION),
        .kv_bytes = config_int(config, OPTION_KV_CACHE_MEMORY_BYTES),
        .workspace_budget = config_int(config, OPTION_WORKSPACE_BUDGET),
        .kv_dtype = kv_dtype(config),
        .block_tokens = (uint32_t)config_int(config, OPTION_BLOCK_SIZE),
        .seqs = (uint32_t)config_int(config, OPTION_MAX_NUM_SEQS),
        .shard = {(uint32_t)config_int(config, OPTION_RANK),
                  (uint32_t)config_int(config, OPTION_TENSOR_PARALLEL_SIZE)},
        .role = role(config),
        .model_len = config_int(config, OPTION_MAX_MODEL_LEN),
        .memory_margin = config_int(config, OPTION_MEMORY_MARGIN),
        .enforce_eager = config_bool(config, OPTION_ENFORCE_EAGER),
        .weights_fd = fds->weights,
        .kv_fd = fds->kv,
    };
}

// The tokens of a step: as given, or as many as fit.
static enum status choose_step_tokens(const struct config *config, struct engine_options *options,
                                      struct error *err) {
    int64_t given = config_int(config, OPTION_MAX_NUM_BATCHED_TOKENS);
    if (given > 0) {
        options->step_tokens = (uint32_t)given;
        return STATUS_OK;
    }
    struct weights *weights = NULL;
    TRY(weights_open(options->model_path, &weights, err));
    enum status status = step_budget_find(options, weights, &options->step_tokens, err);
    weights_close(weights);
    return status;
}

enum { WORKER_ID_BYTES = 32 };

// `room` holds a default's name.
static const char *worker_id(const struct config *config, char room[WORKER_ID_BYTES]) {
    const char *given = config_string(config, OPTION_WORKER_ID);
    snprintf(room, WORKER_ID_BYTES, "g%lldr%lld", (long long)config_int(config, OPTION_GROUP),
             (long long)config_int(config, OPTION_RANK));
    return given != NULL ? given : room;
}

static int run_child(const struct config *config, const struct holder_fds *fds) {
    char id[WORKER_ID_BYTES];
    struct worker_options options = {
        .engine = engine_options(config, fds),
        .controller = config_string(config, OPTION_CONTROLLER),
        .key_file = config_string(config, OPTION_CURVE_SECRET_FILE),
        .controller_key_file = config_string(config, OPTION_CURVE_SERVER_KEY_FILE),
        .worker_id = worker_id(config, id),
        .model_name = config_string(config, OPTION_MODEL),
        .group = (uint32_t)config_int(config, OPTION_GROUP),
        .timer_scale = config_real(config, OPTION_TIMER_SCALE),
        .stop = &stop_requested,
    };
    char room[SEAL_DIR_BYTES];
    options.engine.seal_dir = seal_dir(config, room);
    struct error err = {0};
    if (holder_notes_open(fds->notes, &options.notes, &err) != STATUS_OK) {
        log_failure("worker", &err);
        return (int)exit_code_for(err.status);
    }
    if (choose_step_tokens(config, &options.engine, &err) != STATUS_OK) {
        // The start says the same in its own words, to the controller too.
        options.engine.step_tokens = options.engine.seqs;
    }
    return worker_run(&options);
}

static bool plans_as_json(const struct config *config) {
    return strcmp(config_string(config, OPTION_PLAN), "json") == 0;
}

// Whoever asked for JSON gets one object, also where there is nothing to report.
static void print_failure(const struct error *err) {
    struct buf text;
    buf_init(&text, 16 * 1024);
    json_write_failure(&text, err);
    printf("{\"fits\":false,%s}\n", buf_cstr(&text));
    buf_deinit(&text);
}

// --check and --plan: the model and the memory it would take, nothing loaded.
static int run_plan(const struct config *config) {
    struct holder_fds none = {-1, -1, -1};
    struct engine_options options = engine_options(config, &none);
    char name[SIM_NAME_BYTES], room[SEAL_DIR_BYTES];
    const struct sim_spec *spec = sim_spec_find(options.device);
    if (spec != NULL) {
        snprintf(name, sizeof name, "sim:%s", spec->name);
        options.device = name;
    }
    options.seal_dir = seal_dir(config, room);
    bool json = plans_as_json(config);
    struct buf text;
    struct error err = {0};
    buf_init(&text, 256 * 1024);
    enum status status = STATUS_OK;
    if (strcmp(config_string(config, OPTION_PLAN), "off") == 0) {
        status = engine_startable(&options, &err);    // --check of a start
    }
    if (status == STATUS_OK) {
        status = choose_step_tokens(config, &options, &err);
    }
    if (status == STATUS_OK) {
        status = plan_report(&options, json ? PLAN_FORMAT_JSON : PLAN_FORMAT_TEXT, &text, &err);
    }
    if (status != STATUS_OK && json && text.bytes_used == 0) {
        print_failure(&err);
    }
    fputs(buf_cstr(&text), stdout);
    buf_deinit(&text);
    if (status != STATUS_OK) {
        error_print("tare-worker", &err);
    }
    return (int)exit_code_for(status);
}

static bool plans_only(const struct config *config) {
    return config_bool(config, OPTION_CHECK) ||
           strcmp(config_string(config, OPTION_PLAN), "off") != 0;
}

static enum status check(const struct config *config, struct error *err) {
    if (config_string(config, OPTION_MODEL) == NULL) {
        return error_set(err, STATUS_INVALID,
                         "no model given; usage: tare-worker MODEL "
                         "--controller ipc:///DIR");
    }
    if (config_string(config, OPTION_CONTROLLER) == NULL && !plans_only(config)) {
        return error_set(err, STATUS_INVALID,
                         "--controller is missing: the run directory of the "
                         "controller, as ipc:///DIR, or its --worker-bind address");
    }
    int64_t world = config_int(config, OPTION_TENSOR_PARALLEL_SIZE);
    if (config_int(config, OPTION_RANK) >= world) {
        return error_set(err, STATUS_INVALID, "--rank %lld: a group of %lld has ranks 0 to %lld",
                         (long long)config_int(config, OPTION_RANK), (long long)world,
                         (long long)world - 1);
    }
    int64_t model_len = config_int(config, OPTION_MAX_MODEL_LEN);
    if (model_len == 0 || model_len == 1) {
        return error_set(err, STATUS_INVALID,
                         "--max-model-len %lld: a prompt and its answer need at least 2 tokens; -1 "
                         "is the model's limit",
                         (long long)model_len);
    }
    if (config_int(config, OPTION_MAX_NUM_BATCHED_TOKENS) == 0) {
        return error_set(err, STATUS_INVALID,
                         "--max-num-batched-tokens 0: a step has at least one row; 'auto' takes as "
                         "many as fit");
    }
    int64_t block = config_int(config, OPTION_BLOCK_SIZE);
    if ((block & (block - 1)) != 0) {
        return error_set(err, STATUS_INVALID, "--block-size %lld: use 16, 32, 64, 128 or 256",
                         (long long)block);
    }
    return STATUS_OK;
}

int main(int argc, char **argv) {
    struct holder_fds fds = {-1, -1, -1};
    bool child = holder_is_child(&argc, argv, &fds);
    struct config_input input = {OPTION_PROGRAM_WORKER, "tare-worker", argc, argv, environ};
    struct config *config = NULL;
    struct buf text;
    struct error err = {0};
    buf_init(&text, 256 * 1024);
    enum status status = config_parse(&input, &config, &text, &err);
    if (status == STATUS_OK && config == NULL) {
        fputs(buf_cstr(&text), stdout);
        buf_deinit(&text);
        return EXIT_CODE_OK;
    }
    buf_deinit(&text);
    int code = (int)config_exit_code(status);
    if (status == STATUS_OK) {
        status = check(config, &err);
        code = EXIT_CODE_USAGE;
    }
    if (status != STATUS_OK) {
        if (config != NULL && plans_as_json(config)) {
            print_failure(&err);
        }
        error_print("tare-worker", &err);
        config_destroy(config);
        return code;
    }
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_AUTO;
    log_level_parse(config_string(config, OPTION_LOG_LEVEL), &level);
    log_format_parse(config_string(config, OPTION_LOG_FORMAT), &format);
    if (plans_only(config) && level > LOG_LEVEL_ERROR && level < LOG_LEVEL_DEBUG) {
        level = LOG_LEVEL_ERROR;    // what a plan has to say is in its report
    }
    log_configure(level, format);
    if (plans_only(config)) {
        code = run_plan(config);
        config_destroy(config);
        return code;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);    // a limit on file sizes is an error to be named (ulimit -f)
    if (child) {
        install_signals();
        holder_unblock_signals();
        code = run_child(config, &fds);
    } else {
        code = holder_run(argv);    // without handlers: a signal before it waits for one ends it
    }
    config_destroy(config);
    return code;
}
