// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/serve.h"

#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/memory.h"
#include "common/stop_signal.h"
#include "controller/cli/program.h"
#include <errno.h>
#include <limits.h>
#include <sched.h>
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
    LEAVE_US = 5 * 1000 * 1000,        // patience with a child that should be gone
    LOOK_US = 50 * 1000,               // between looks at what time brings
    ASK_AGAIN_US = 1 * 1000 * 1000,    // of that, until the second request
    RESTARTS_MAX = 5,                  // of one child, within RESTART_WINDOW_US
    RESTART_WINDOW_US = 60 * 1000 * 1000,
    // Of a worker that left: a controller that drained on its own ends meanwhile.
    RESTART_DELAY_US = 500 * 1000,
};

// Signals that end a child, in turn.
enum { ASK, ASK_AGAIN, KILL, END_STEPS };
static const uint64_t end_step_us[END_STEPS] = {0, ASK_AGAIN_US, LEAVE_US};
static const int controller_end_signals[END_STEPS] = {STOP_SIGNAL_DRAIN, STOP_SIGNAL_END, SIGKILL};
static const int worker_end_signals[END_STEPS] = {SIGTERM, SIGTERM, SIGKILL};

struct child {
    const char *name;    // "tare-worker"
    const int *end_signals;
    pid_t pid;    // 0 when not running
};

struct restarts {
    uint64_t at_us[RESTARTS_MAX];    // a ring of the last ones
    uint32_t count;
    uint64_t due_us;    // 0: none is planned
};

struct worker_child {
    struct child child;
    uint32_t group, rank;
    struct restarts restarts;
    bool given_up;    // it ended in a way that another start will not change
};

// Which `epoch` file lies in the run directory: each epoch of a group brings another, so another
// one than before says that a controller served meanwhile.
struct epoch_mark {
    ino_t inode;    // 0: none does
    struct timespec at;
};

struct serve {
    struct config *config;
    struct child controller;
    struct restarts controller_restarts;
    uint64_t controller_leaves_by_us;    // 0: it may stay
    uint32_t stops;                      // that were asked for
    // At the start, and when a controller was killed last.
    struct epoch_mark epoch_first, epoch_killed;
    bool cut;    // at the first stop: one was killed that had served, and no other has since
    struct worker_child *workers;    // [groups][world]
    uint32_t worker_count, world;
    uint32_t threads;    // of each worker; 0: it takes what there is
    char run_dir[PATH_BYTES];
    bool own_run_dir;
    sigset_t watched;    // blocked here, as are a controller's own; taken with sigtimedwait
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
    static const char *const names[] = {"plan.sock", "control.sock", "admin.sock", "epoch",
                                        "epoch.new", "lock",         "journal",    "journal.new"};
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

// In a child that was just forked.
static void become_child(const struct serve *serve, const struct child *child) {
    setpgid(0, 0);
    // Without this process nobody brings workers back: a controller has nothing to drain for.
    prctl(PR_SET_PDEATHSIG, child->end_signals[ASK_AGAIN]);
    sigset_t open;
    stop_signal_set(&open);
    if (child == &serve->controller) {
        sigemptyset(&open);    // it opens them itself once it minds them
    }
    sigaddset(&open, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &open, NULL);
}

static enum status start_child(struct serve *serve, struct child *child,
                               enum option_program program, const char *const *extra,
                               struct error *err) {
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
        become_child(serve, child);
        program_exec(child->name, &flags, extra);
        _exit(EXIT_CODE_OS);
    }
    buf_deinit(&flags);
    if (pid < 0) {
        return error_set_os(err, STATUS_IO, "'%s' cannot be started", child->name);
    }
    child->pid = pid;
    return STATUS_OK;
}

static enum status start_worker(struct serve *serve, struct worker_child *worker,
                                struct error *err) {
    char address[PATH_BYTES + 32], group[32], rank[32], threads[32];
    snprintf(address, sizeof address, "--controller=ipc://%s", serve->run_dir);
    snprintf(group, sizeof group, "--group=%u", worker->group);
    snprintf(rank, sizeof rank, "--rank=%u", worker->rank);
    snprintf(threads, sizeof threads, "--threads=%u", serve->threads);
    const char *const extra[] = {address, group, rank, threads, NULL};
    return start_child(serve, &worker->child, OPTION_PROGRAM_WORKER, extra, err);
}

// Workers of one host share its cores, or as many threads as were asked for.
static uint32_t share_of_threads(const struct serve *serve) {
    uint32_t threads = (uint32_t)config_int(serve->config, OPTION_THREADS);
    if (serve->worker_count == 1) {
        return threads;
    }
    if (threads == 0) {
        cpu_set_t cores;
        threads = sched_getaffinity(0, sizeof cores, &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 1;
    }
    return threads > serve->worker_count ? threads / serve->worker_count : 1;
}

static enum status plan_workers(struct serve *serve, struct error *err) {
    serve->world = (uint32_t)config_int(serve->config, OPTION_TENSOR_PARALLEL_SIZE);
    uint32_t count = serve->world * (uint32_t)config_int(serve->config, OPTION_GROUPS);
    serve->workers = memory_array(count, sizeof *serve->workers);
    if (serve->workers == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u workers", count);
    }
    serve->worker_count = count;
    serve->threads = share_of_threads(serve);
    for (uint32_t i = 0; i < serve->worker_count; i++) {
        serve->workers[i] = (struct worker_child){
            .child = {.name = "tare-worker", .end_signals = worker_end_signals},
            .group = i / serve->world,
            .rank = i % serve->world};
    }
    return STATUS_OK;
}

static enum status start_controller(struct serve *serve, struct error *err) {
    char run_dir[PATH_BYTES + 16];
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", serve->run_dir);
    const char *const extra[] = {run_dir, "--banner", NULL};
    return start_child(serve, &serve->controller, OPTION_PROGRAM_CONTROLLER, extra, err);
}

static enum status start_children(struct serve *serve, struct error *err) {
    export_keys(serve->config);
    TRY(start_controller(serve, err));
    for (uint32_t i = 0; i < serve->worker_count; i++) {
        TRY(start_worker(serve, &serve->workers[i], err));
    }
    return STATUS_OK;
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

// The controller, then the workers.
static struct child *child_at(struct serve *serve, uint32_t index) {
    return index == 0 ? &serve->controller : &serve->workers[index - 1].child;
}

static bool any_left(struct serve *serve, uint32_t first, uint32_t count) {
    bool left = false;
    int status = 0;
    for (uint32_t i = first; i < first + count; i++) {
        struct child *child = child_at(serve, i);
        left = (child->pid != 0 && !reap(child, &status)) || left;
    }
    return left;
}

// Ends children, all at once: asks, waits, asks again (a controller then ends its streams with an
// error event instead of draining), insists.
static void end_children(struct serve *serve, uint32_t first, uint32_t count) {
    uint64_t begin_us = clock_monotonic_us();
    int step = 0;
    while (any_left(serve, first, count)) {
        if (step < END_STEPS && clock_monotonic_us() - begin_us >= end_step_us[step]) {
            for (uint32_t i = first; i < first + count; i++) {
                signal_child(child_at(serve, i), child_at(serve, i)->end_signals[step]);
            }
            step++;
        }
        struct timespec slice = {.tv_nsec = LOOK_US * 1000};
        sigtimedwait(&serve->watched, NULL, &slice);
    }
}

static void end_controller(struct serve *serve) {
    end_children(serve, 0, 1);
}

static void end_workers(struct serve *serve) {
    end_children(serve, 1, serve->worker_count);
}

// False when it has ended too often.
static bool plan_restart(struct restarts *restarts, const char *name, uint64_t delay_us) {
    uint64_t now_us = clock_monotonic_us();
    uint64_t *oldest_us = &restarts->at_us[restarts->count % RESTARTS_MAX];
    if (restarts->count >= RESTARTS_MAX && now_us - *oldest_us < RESTART_WINDOW_US) {
        fprintf(stderr, "tare: %s ended %d times within a minute\n", name, RESTARTS_MAX + 1);
        return false;
    }
    *oldest_us = now_us;
    restarts->count++;
    restarts->due_us = now_us + delay_us;
    return true;
}

// A worker that was killed, or told to leave by somebody else than the controller's drain, is
// started again: the controller resumes its requests. Codes say that a restart cannot help.
static bool plan_worker(struct worker_child *worker, int status) {
    char name[32];
    snprintf(name, sizeof name, "worker g%ur%u", worker->group, worker->rank);
    bool killed = WIFSIGNALED(status);
    return (killed || exit_code_of(status) == EXIT_CODE_OK) &&
           plan_restart(&worker->restarts, name, killed ? 0 : RESTART_DELAY_US);
}

static struct epoch_mark mark_epoch(const struct serve *serve) {
    char path[PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/epoch", serve->run_dir);
    struct stat file;
    return stat(path, &file) == 0 ? (struct epoch_mark){file.st_ino, file.st_mtim}
                                  : (struct epoch_mark){0};
}

static bool same_epoch(const struct epoch_mark *a, const struct epoch_mark *b) {
    return a->inode == b->inode && a->at.tv_sec == b->at.tv_sec && a->at.tv_nsec == b->at.tv_nsec;
}

// Workers wait for the next controller with what they have, and its journal has the streams.
static bool plan_controller(struct serve *serve, int status) {
    serve->epoch_killed = mark_epoch(serve);
    return WIFSIGNALED(status) && serve->stops == 0 &&
           plan_restart(&serve->controller_restarts, "the controller", 0);
}

// Starts the children again whose time has come. True while others wait for theirs.
static bool start_due(struct serve *serve, struct error *err, enum status *status) {
    bool waits = false;
    if (serve->controller_restarts.due_us != 0) {
        serve->controller_restarts.due_us = 0;
        fprintf(stderr, "tare: the controller was killed, starting another\n");
        *status = start_controller(serve, err);
    }
    for (uint32_t i = 0; i < serve->worker_count && *status == STATUS_OK; i++) {
        struct worker_child *worker = &serve->workers[i];
        if (worker->restarts.due_us != 0 && clock_monotonic_us() >= worker->restarts.due_us) {
            worker->restarts.due_us = 0;
            fprintf(stderr, "tare: worker g%ur%u ended, starting another\n", worker->group,
                    worker->rank);
            *status = start_worker(serve, worker, err);
        }
        waits = waits || worker->restarts.due_us != 0;
    }
    return waits;
}

// The next signal, or -1 after a while.
static int wait_signal(struct serve *serve, struct error *err, enum status *status) {
    if (!start_due(serve, err, status) && serve->controller_leaves_by_us == 0) {
        return *status == STATUS_OK ? sigwaitinfo(&serve->watched, NULL) : -1;
    }
    struct timespec slice = {.tv_nsec = LOOK_US * 1000};
    return sigtimedwait(&serve->watched, NULL, &slice);
}

// Some group has all its workers, or will have.
static bool goes_on(const struct serve *serve) {
    for (uint32_t first = 0; first < serve->worker_count; first += serve->world) {
        bool whole = true;
        for (uint32_t r = 0; r < serve->world; r++) {
            whole = whole && !serve->workers[first + r].given_up;
        }
        if (whole) {
            return true;
        }
    }
    return false;
}

// A worker has ended. True when the service ends with it, with `*code`.
static bool worker_ended(struct serve *serve, struct worker_child *worker, int status, int *code) {
    if (serve->stops > 1) {
        return false;    // the controller ends everything, and needs nobody for it
    }
    *code = exit_code_of(status);
    if (plan_worker(worker, status)) {
        return false;
    }
    worker->given_up = true;
    bool others = goes_on(serve);
    fprintf(stderr, "tare: worker g%ur%u is not started again (exit code %d): %s\n", worker->group,
            worker->rank, *code, others ? "the other groups go on" : "the service ends");
    if (others) {
        return false;
    }
    *code = *code == EXIT_CODE_OK ? EXIT_CODE_UNEXPECTED : *code;
    return true;
}

// The controller has ended for good. Returns the service's exit code. An early stop waits until it
// is minded (stop_signal_set), so a signal that ended it was never one of ours.
static int controller_ended(const struct serve *serve, int status) {
    int code = exit_code_of(status);
    bool killed = serve->stops > 0 && WIFSIGNALED(status);
    if (killed || (code == EXIT_CODE_OK && serve->cut)) {
        fprintf(stderr, "tare: the controller was killed %s: what it had accepted is cut off\n",
                killed ? "before it had drained" : "just before the stop");
        return EXIT_CODE_SOFTWARE;
    }
    return code;
}

static void stop_first(struct serve *serve) {
    uint64_t now_us = clock_monotonic_us();
    struct epoch_mark epoch = mark_epoch(serve);
    serve->cut = serve->controller_restarts.count > 0 &&
                 !same_epoch(&serve->epoch_killed, &serve->epoch_first) &&
                 same_epoch(&serve->epoch_killed, &epoch);
    serve->controller_leaves_by_us =
        now_us + (uint64_t)config_int(serve->config, OPTION_SHUTDOWN_TIMEOUT) * 1000000 + LEAVE_US;
    // Requests that run may need them. None comes from a controller that drained on its own.
    for (uint32_t i = 0; i < serve->worker_count; i++) {
        struct restarts *restarts = &serve->workers[i].restarts;
        restarts->due_us = restarts->due_us > now_us ? now_us : restarts->due_us;
    }
}

static void stop_again(struct serve *serve) {
    uint64_t leaves_by_us = clock_monotonic_us() + LEAVE_US;
    if (leaves_by_us < serve->controller_leaves_by_us) {
        serve->controller_leaves_by_us = leaves_by_us;
    }
    for (uint32_t i = 0; i < serve->worker_count; i++) {
        serve->workers[i].restarts.due_us = 0;
    }
}

static void stop(struct serve *serve) {
    serve->stops++;
    bool first = serve->stops == 1;
    if (first) {
        stop_first(serve);
    } else {
        stop_again(serve);
    }
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, first ? "\ntare: finishing running requests (again to end now)\n"
                              : "\ntare: ending now\n");
    }
    signal_child(&serve->controller, first ? STOP_SIGNAL_DRAIN : STOP_SIGNAL_END);
}

// A controller that stands still can neither drain nor end.
static void mind_deadline(struct serve *serve) {
    if (serve->controller_leaves_by_us != 0 &&
        clock_monotonic_us() > serve->controller_leaves_by_us) {
        serve->controller_leaves_by_us = 0;
        fprintf(stderr, "tare: the controller did not end in time and is killed\n");
        signal_child(&serve->controller, SIGKILL);
    }
}

// Until a child ends the service. Returns the exit code.
static int watch(struct serve *serve) {
    struct error err = {0};
    enum status status = STATUS_OK;
    int ended = 0, code = EXIT_CODE_OK;
    bool on_terminal = isatty(STDERR_FILENO) != 0;
    while (status == STATUS_OK) {
        if (reap(&serve->controller, &ended) && !plan_controller(serve, ended)) {
            end_workers(serve);
            return controller_ended(serve, ended);
        }
        for (uint32_t i = 0; i < serve->worker_count; i++) {
            if (reap(&serve->workers[i].child, &ended) &&
                worker_ended(serve, &serve->workers[i], ended, &code)) {
                end_controller(serve);
                end_workers(serve);
                return code;
            }
        }
        mind_deadline(serve);
        int signal = wait_signal(serve, &err, &status);
        // A terminal that closes stops what runs on it; elsewhere SIGHUP means reload.
        if (signal == SIGINT || signal == SIGTERM || (signal == SIGHUP && on_terminal)) {
            stop(serve);
        } else if (signal == SIGHUP) {
            signal_child(&serve->controller, SIGHUP);
        }
    }
    error_print("tare", &err);
    end_controller(serve);
    end_workers(serve);
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
    static const char *const extra[] = {"--check", NULL};
    struct error err = {0};
    const struct {
        struct child *child;
        enum option_program program;
    } parts[] = {{&serve->controller, OPTION_PROGRAM_CONTROLLER},
                 {&serve->workers[0].child, OPTION_PROGRAM_WORKER}};
    int code = EXIT_CODE_OK;
    for (size_t i = 0; i < 2 && code == EXIT_CODE_OK; i++) {
        if (start_child(serve, parts[i].child, parts[i].program, extra, &err) != STATUS_OK) {
            error_print("tare", &err);
            return EXIT_CODE_OS;
        }
        int status = 0;
        waitpid(parts[i].child->pid, &status, 0);
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
    sigset_t minded;
    stop_signal_set(&minded);
    sigprocmask(SIG_BLOCK, &minded, NULL);
    enum status status = plan_workers(serve, &err);
    if (status == STATUS_OK && config_bool(serve->config, OPTION_CHECK)) {
        return run_check(serve);
    }
    if (status == STATUS_OK) {
        status = make_run_dir(serve, &err);
        serve->epoch_first = mark_epoch(serve);
    }
    if (status == STATUS_OK) {
        status = start_children(serve, &err);
    }
    int code = EXIT_CODE_OS;
    if (status == STATUS_OK) {
        code = watch(serve);
    } else {
        error_print("tare", &err);
        end_workers(serve);
        end_controller(serve);
    }
    if (serve->own_run_dir) {
        remove_run_dir(serve);
    }
    return code;
}

int serve_run(int argc, char **argv) {
    struct serve serve = {
        .controller = {.name = "tare-controller", .end_signals = controller_end_signals}};
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
    memory_free(serve.workers);
    config_destroy(serve.config);
    return code;
}
