// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/serve.h"

#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/memory.h"
#include "controller/cli/program.h"
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
    LEAVE_US = 5 * 1000 * 1000,        // patience with a child after the other one has ended
    ASK_AGAIN_US = 1 * 1000 * 1000,    // of that, until the second request
    RESTARTS_MAX = 5,                  // of the worker, within RESTART_WINDOW_US
    RESTART_WINDOW_US = 60 * 1000 * 1000,
    RESTART_DELAY_US = 500 * 1000,    // a controller that drained on its own ends meanwhile
};

struct child {
    const char *name;    // "tare-worker"
    pid_t pid;           // 0 when not running
};

struct serve {
    struct config *config;
    struct child controller, worker;
    char run_dir[PATH_BYTES];
    bool own_run_dir;
    uint64_t restarts_us[RESTARTS_MAX];    // a ring of the last ones
    uint32_t restart_count;
    uint64_t restart_due_us;    // 0: none is planned
    sigset_t watched;           // blocked everywhere here, taken with sigtimedwait
};

// ---- starting ----------------------------------------------------------------------------------

static enum status make_run_dir(struct serve *serve, struct error *err) {
    const char *given = config_string(serve->config, OPTION_RUN_DIR);
    if (given != NULL) {
        if (mkdir(given, 0700) != 0 && errno != EEXIST) {
            return error_set_os(err, STATUS_IO, "run directory '%s' cannot be made", given);
        }
        // The daemons take whole paths only.
        char whole[PATH_MAX];
        if (realpath(given, whole) == NULL) {
            return error_set_os(err, STATUS_IO, "run directory '%s'", given);
        }
        snprintf(serve->run_dir, sizeof serve->run_dir, "%.4000s", whole);
        return STATUS_OK;
    }
    snprintf(serve->run_dir, sizeof serve->run_dir, "/tmp/tare-XXXXXX");
    if (mkdtemp(serve->run_dir) == NULL) {
        error_hint(err, "name another place with --run-dir");
        return error_set_os(err, STATUS_IO, "no run directory under /tmp");
    }
    serve->own_run_dir = true;
    return STATUS_OK;
}

// The controller removes its sockets when it leaves; one that was killed could not.
static void remove_run_dir(const struct serve *serve) {
    static const char *const names[] = {"plan.sock", "control.sock", "admin.sock",
                                        "epoch",     "epoch.new",    "lock"};
    char path[PATH_BYTES + 16];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", serve->run_dir, names[i]);
        unlink(path);
    }
    rmdir(serve->run_dir);
}

// Keys travel in the environment: a command line can be read by every user of the machine.
static void export_keys(const struct config *config) {
    uint32_t count = config_list_count(config, OPTION_API_KEY);
    struct buf keys;
    buf_init(&keys, 1024 * 1024);
    for (uint32_t i = 0; i < count; i++) {
        buf_printf(&keys, "%s%s", i > 0 ? "," : "", config_list_item(config, OPTION_API_KEY, i));
    }
    if (count > 0) {
        setenv("TARE_API_KEY", buf_cstr(&keys), 1);
        unsetenv("VLLM_API_KEY");    // overruled, or already in the list
    }
    buf_deinit(&keys);
}

static enum status start_child(struct serve *serve, struct child *child,
                               enum option_program program, const char *extra_a,
                               const char *extra_b, struct error *err) {
    struct buf flags;
    buf_init(&flags, 1024 * 1024);
    config_forward(serve->config, program, &flags);
    enum status status = buf_status(&flags);
    if (status != STATUS_OK) {
        buf_deinit(&flags);
        return error_set(err, status, "the flags for '%s' are too long", child->name);
    }
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        sigprocmask(SIG_UNBLOCK, &serve->watched, NULL);
        program_exec(child->name, &flags, extra_a, extra_b);
        _exit(EXIT_CODE_OS);
    }
    buf_deinit(&flags);
    if (pid < 0) {
        return error_set_os(err, STATUS_IO, "'%s' cannot be started", child->name);
    }
    child->pid = pid;
    return STATUS_OK;
}

static enum status start_worker(struct serve *serve, struct error *err) {
    char address[PATH_BYTES + 32];
    snprintf(address, sizeof address, "--controller=ipc://%s", serve->run_dir);
    return start_child(serve, &serve->worker, OPTION_PROGRAM_WORKER, address, "--worker-id=g0r0",
                       err);
}

static enum status start_children(struct serve *serve, struct error *err) {
    char run_dir[PATH_BYTES + 16];
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", serve->run_dir);
    export_keys(serve->config);
    TRY(start_child(serve, &serve->controller, OPTION_PROGRAM_CONTROLLER, run_dir, "--banner",
                    err));
    return start_worker(serve, err);
}

// ---- watching ----------------------------------------------------------------------------------

static int exit_code_of(int status) {
    if (WIFEXITED(status)) {
        return WEXITSTATUS(status);
    }
    return EXIT_CODE_SOFTWARE;
}

// Takes one ended child, if any. True when it was `child`.
static bool reap(struct child *child, int *status) {
    if (child->pid == 0 || waitpid(child->pid, status, WNOHANG) != child->pid) {
        return false;
    }
    child->pid = 0;
    return true;
}

static void signal_child(const struct child *child, int signal) {
    if (child->pid != 0) {
        kill(child->pid, signal);
    }
}

// Ends a child: asks, waits, asks again (a controller then ends its streams with an error event
// instead of draining), insists.
static void end_child(struct serve *serve, struct child *child) {
    signal_child(child, SIGTERM);
    uint64_t again_us = clock_monotonic_us() + ASK_AGAIN_US;
    uint64_t deadline_us = clock_monotonic_us() + LEAVE_US;
    int status = 0;
    while (child->pid != 0 && !reap(child, &status)) {
        if (clock_monotonic_us() > deadline_us) {
            signal_child(child, SIGKILL);
        } else if (clock_monotonic_us() > again_us) {
            signal_child(child, SIGTERM);
            again_us = deadline_us;
        }
        struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
        sigtimedwait(&serve->watched, NULL, &slice);
    }
}

// A worker that was killed, or told to leave by somebody else than the controller's drain, is
// started again: the controller resumes its requests. Codes say that a restart cannot help.
static bool plan_restart(struct serve *serve, int status) {
    if (!WIFSIGNALED(status) && exit_code_of(status) != EXIT_CODE_OK) {
        return false;
    }
    uint64_t now_us = clock_monotonic_us();
    uint64_t *oldest_us = &serve->restarts_us[serve->restart_count % RESTARTS_MAX];
    if (serve->restart_count >= RESTARTS_MAX && now_us - *oldest_us < RESTART_WINDOW_US) {
        fprintf(stderr, "tare: the worker ended %d times within a minute\n", RESTARTS_MAX + 1);
        return false;
    }
    *oldest_us = now_us;
    serve->restart_count++;
    serve->restart_due_us = now_us + RESTART_DELAY_US;
    return true;
}

// Starts the worker again when it is time to. Returns the next signal, or -1 after a while.
static int wait_signal(struct serve *serve, struct error *err, enum status *status) {
    if (serve->restart_due_us == 0) {
        return sigwaitinfo(&serve->watched, NULL);
    }
    if (clock_monotonic_us() >= serve->restart_due_us) {
        serve->restart_due_us = 0;
        fprintf(stderr, "tare: the worker ended, starting another\n");
        *status = start_worker(serve, err);
        return -1;
    }
    struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
    return sigtimedwait(&serve->watched, NULL, &slice);
}

static void stop(struct serve *serve, int count) {
    serve->restart_due_us = 0;
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, count == 1 ? "\ntare: finishing running requests (again to end now)\n"
                                   : "\ntare: ending now\n");
    }
    signal_child(&serve->controller, SIGTERM);
}

// Until one child ends the service. Returns the exit code.
static int watch(struct serve *serve) {
    struct error err = {0};
    enum status status = STATUS_OK;
    int ended = 0;
    int stops = 0;
    bool on_terminal = isatty(STDERR_FILENO) != 0;
    while (status == STATUS_OK) {
        if (reap(&serve->controller, &ended)) {
            end_child(serve, &serve->worker);
            // Stopped before it minded signals: it had served nobody, and that is a clean end.
            bool unborn = stops > 0 && WIFSIGNALED(ended) && WTERMSIG(ended) == SIGTERM;
            return unborn ? EXIT_CODE_OK : exit_code_of(ended);
        }
        if (reap(&serve->worker, &ended) && (stops > 0 || !plan_restart(serve, ended))) {
            int code = exit_code_of(ended);
            // Told to leave by a controller that drained, or failed for good.
            if (stops == 0 || code != EXIT_CODE_OK) {
                end_child(serve, &serve->controller);
                return code == EXIT_CODE_OK ? EXIT_CODE_UNEXPECTED : code;
            }
        }
        int signal = wait_signal(serve, &err, &status);
        // A terminal that closes stops what runs on it; elsewhere SIGHUP means reload.
        if (signal == SIGINT || signal == SIGTERM || (signal == SIGHUP && on_terminal)) {
            stop(serve, ++stops);
        } else if (signal == SIGHUP) {
            signal_child(&serve->controller, SIGHUP);
        }
    }
    error_print("tare", &err);
    end_child(serve, &serve->controller);
    return EXIT_CODE_OS;
}

// ---- the command -------------------------------------------------------------------------------

static bool has_file(const char *directory, const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.3900s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static enum status check_config(const struct serve *serve, struct error *err) {
    const char *model = config_string(serve->config, OPTION_MODEL);
    if (model == NULL) {
        error_hint(err, "try: tare serve --help");
        return error_set(err, STATUS_INVALID, "no model given; usage: tare serve MODEL [options]");
    }
    if (access(model, R_OK) != 0) {
        error_hint(err, "download it first: this server makes no outgoing connections");
        return error_set_os(err, STATUS_NOT_FOUND, "model '%s'", model);
    }
    if (has_file(model, "config.json") && !has_file(model, "model.safetensors") &&
        !has_file(model, "model.safetensors.index.json")) {
        error_hint(err, "tare plan works with shapes; to serve, give a model with its weights");
        return error_set(err, STATUS_UNSUPPORTED,
                         "model '%s' has no weights, only shapes (config.json alone)", model);
    }
    return STATUS_OK;
}

static void print_notes(const struct config *config) {
    for (uint32_t i = 0; i < config_note_count(config); i++) {
        fprintf(stderr, "note     %s\n", config_note(config, i));
    }
}

// The controller checks keys, tokenizer and template, the worker the weights and their memory.
static int run_check(struct serve *serve) {
    struct error err = {0};
    struct child *const children[] = {&serve->controller, &serve->worker};
    int code = EXIT_CODE_OK;
    for (size_t i = 0; i < 2 && code == EXIT_CODE_OK; i++) {
        bool first = i == 0;
        if (start_child(serve, children[i],
                        first ? OPTION_PROGRAM_CONTROLLER : OPTION_PROGRAM_WORKER, "--check",
                        first ? "--banner" : "--worker-id=check", &err) != STATUS_OK) {
            error_print("tare", &err);
            return EXIT_CODE_OS;
        }
        int status = 0;
        waitpid(children[i]->pid, &status, 0);
        code = exit_code_of(status);
    }
    return code;
}

static int run(struct serve *serve) {
    struct error err = {0};
    signal(SIGXFSZ, SIG_IGN);    // a log file at its limit ends nobody; children inherit this
    sigemptyset(&serve->watched);
    sigaddset(&serve->watched, SIGINT);
    sigaddset(&serve->watched, SIGTERM);
    sigaddset(&serve->watched, SIGHUP);
    sigaddset(&serve->watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &serve->watched, NULL);
    if (config_bool(serve->config, OPTION_CHECK)) {
        return run_check(serve);
    }
    enum status status = make_run_dir(serve, &err);
    if (status == STATUS_OK) {
        status = start_children(serve, &err);
    }
    int code = EXIT_CODE_OS;
    if (status == STATUS_OK) {
        code = watch(serve);
    } else {
        error_print("tare", &err);
        end_child(serve, &serve->worker);
        end_child(serve, &serve->controller);
    }
    if (serve->own_run_dir) {
        remove_run_dir(serve);
    }
    return code;
}

int serve_run(int argc, char **argv) {
    struct serve serve = {.controller = {.name = "tare-controller"},
                          .worker = {.name = "tare-worker"}};
    struct config_input input = {OPTION_PROGRAM_SERVE, "tare serve", argc, argv, environ};
    struct buf text;
    struct error err = {0};
    buf_init(&text, 256 * 1024);
    enum status status = config_parse(&input, &serve.config, &text, &err);
    int code = (int)config_exit_code(status);
    if (status == STATUS_OK && serve.config == NULL) {
        fputs(buf_cstr(&text), stdout);
    } else {
        if (status == STATUS_OK) {
            status = check_config(&serve, &err);
            code = (int)exit_code_for(status);
        }
        if (status == STATUS_OK) {
            config_hide_secrets(argc, argv);
            print_notes(serve.config);
            code = run(&serve);
        } else {
            error_print("tare serve", &err);
        }
    }
    buf_deinit(&text);
    config_destroy(serve.config);
    return code;
}
