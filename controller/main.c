// SPDX-License-Identifier: Apache-2.0
// tare-controller: parse options, build, run the loop, drain, exit.
#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/stop_signal.h"
#include "controller/controller.h"
#include "controller/input_log.h"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <uv.h>

enum { TIMER_BUSY_MS = 100, TIMER_IDLE_MS = 1000, SIGNALS = 5 };

static const int signal_numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP, STOP_SIGNAL_DRAIN,
                                            STOP_SIGNAL_END};

struct app {
    uv_loop_t loop;
    uv_poll_t polls[CONTROLLER_FDS];
    uv_prepare_t prepare;
    uv_idle_t again;    // runs while a turn left work: the loop then looks at its sockets only
    uv_timer_t timer;
    uv_signal_t signals[SIGNALS];
    uint32_t asked_to_stop;    // by people and service managers
    uint64_t timer_due_us;
    uint64_t turn_end_ns,
        idle_ns;    // at the end of the last turn: its time, and time slept so far
    struct controller *controller;
};

// A stop that comes now is obeyed already, and must not end the process with another code: without
// a handler it would. Blocked first, for the moment in between.
static void close_signals(struct app *app) {
    sigset_t minded;
    stop_signal_set(&minded);
    sigprocmask(SIG_BLOCK, &minded, NULL);
    for (int i = 0; i < SIGNALS; i++) {
        uv_close((uv_handle_t *)&app->signals[i], NULL);
        signal(signal_numbers[i], SIG_IGN);    // other threads may have it open
    }
}

// When the controller is done, every handle is closed and the loop ends by itself.
static void close_if_done(struct app *app) {
    int code;
    if (!controller_done(app->controller, &code) || uv_is_closing((uv_handle_t *)&app->timer)) {
        return;
    }
    for (int i = 0; i < CONTROLLER_FDS; i++) {
        uv_close((uv_handle_t *)&app->polls[i], NULL);
    }
    close_signals(app);
    uv_close((uv_handle_t *)&app->prepare, NULL);
    uv_close((uv_handle_t *)&app->again, NULL);
    uv_close((uv_handle_t *)&app->timer, NULL);
    uv_stop(&app->loop);
}

// A descriptor that became readable only wakes the loop: its turn comes before the loop sleeps
// again.
static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)poll;
    (void)status;
    (void)events;
}

static void on_again(uv_idle_t *again) {
    (void)again;
}

static void on_prepare(uv_prepare_t *prepare) {
    struct app *app = prepare->data;
    bool more = controller_turn(app->controller);
    controller_turned(app->controller);
    // Neither fails for a handle that is initialised.
    (void)(more ? uv_idle_start(&app->again, on_again) : uv_idle_stop(&app->again));
    close_if_done(app);
}

static void on_timer(uv_timer_t *timer);

static void start_timer(struct app *app, uint64_t ms) {
    app->timer_due_us = clock_monotonic_us() + ms * 1000;
    // Fails only for a handle that is closing.
    int code = uv_timer_start(&app->timer, on_timer, ms, 0);
    INVARIANT(code == 0);
}

static void on_timer(uv_timer_t *timer) {
    struct app *app = timer->data;
    uint64_t now_us = clock_monotonic_us();
    uint64_t late_us = now_us > app->timer_due_us ? now_us - app->timer_due_us : 0;
    bool busy = controller_timer(app->controller, late_us);
    start_timer(app, busy ? TIMER_BUSY_MS : TIMER_IDLE_MS);
    close_if_done(app);
}

static void on_signal(uv_signal_t *handle, int signal) {
    struct app *app = handle->data;
    bool asked = signal == SIGTERM || signal == SIGINT;
    app->asked_to_stop += asked;
    if (signal == SIGHUP) {
        controller_reload(app->controller);
    } else if (signal == STOP_SIGNAL_END || (asked && app->asked_to_stop > 1)) {
        controller_end(app->controller);
    } else {
        controller_drain(app->controller);
    }
    close_if_done(app);
}

// 0, or the first error of libuv: it has no descriptors left, say.
static int start_handles(struct app *app) {
    int code = 0;
    for (uint32_t i = 0; i < CONTROLLER_FDS && code == 0; i++) {
        code = uv_poll_init(&app->loop, &app->polls[i], controller_fd(app->controller, i));
        code = code == 0 ? uv_poll_start(&app->polls[i], UV_READABLE, on_poll) : code;
    }
    code = code == 0 ? uv_prepare_init(&app->loop, &app->prepare) : code;
    code = code == 0 ? uv_idle_init(&app->loop, &app->again) : code;
    app->prepare.data = app;
    code = code == 0 ? uv_prepare_start(&app->prepare, on_prepare) : code;
    code = code == 0 ? uv_timer_init(&app->loop, &app->timer) : code;
    app->timer.data = app;
    for (int i = 0; i < SIGNALS && code == 0; i++) {
        code = uv_signal_init(&app->loop, &app->signals[i]);
        app->signals[i].data = app;
        code = code == 0 ? uv_signal_start(&app->signals[i], on_signal, signal_numbers[i]) : code;
    }
    sigset_t minded;
    stop_signal_set(&minded);
    sigprocmask(SIG_UNBLOCK, &minded, NULL);
    return code;
}

static int libuv_failed(int code) {
    fprintf(stderr, "tare-controller: the event loop cannot start: %s\n", uv_strerror(code));
    return EXIT_CODE_OS;
}

static int report(enum status status, const struct error *err) {
    error_print("tare-controller", err);
    return (int)exit_code_for(status);
}

static int replay(const char *path) {
    struct buf text;
    struct error err = {0};
    buf_init(&text, 1024 * 1024);
    enum status status = input_log_replay(path, &text, &err);
    fputs(buf_cstr(&text), stdout);
    buf_deinit(&text);
    return status == STATUS_OK ? EXIT_CODE_OK : report(status, &err);
}

static int run(const struct config *config) {
    struct app app = {0};
    struct error err = {0};
    if (config_string(config, OPTION_REPLAY) != NULL) {
        return replay(config_string(config, OPTION_REPLAY));
    }
    if (config_bool(config, OPTION_CHECK)) {
        enum status checked = controller_check(config, &err);
        return checked == STATUS_OK ? EXIT_CODE_OK : report(checked, &err);
    }
    int failed = uv_loop_init(&app.loop);
    if (failed != 0) {
        return libuv_failed(failed);
    }
    enum status status = controller_create(config, &app.loop, &app.controller, &err);
    if (status != STATUS_OK) {
        int code = report(status, &err);
        // A port that is taken is a resource that does not fit.
        return code == EXIT_CODE_OS ? EXIT_CODE_UNAVAILABLE : code;
    }
    failed = start_handles(&app);
    if (failed != 0) {
        return libuv_failed(failed);    // the process ends: its memory and descriptors go with it
    }
    start_timer(&app, TIMER_BUSY_MS);
    uv_run(&app.loop, UV_RUN_DEFAULT);
    int code = EXIT_CODE_UNEXPECTED;
    controller_done(app.controller, &code);
    controller_destroy(app.controller);
    // Closing callbacks of the last handles.
    uv_run(&app.loop, UV_RUN_NOWAIT);
    if (uv_loop_close(&app.loop) != 0) {
        log_debug("controller", "the event loop still had handles at the end");
    }
    return code;
}

int main(int argc, char **argv) {
    struct config_input input = {OPTION_PROGRAM_CONTROLLER, "tare-controller", argc, argv, environ};
    struct config *config = NULL;
    struct buf text;
    struct error err = {0};
    buf_init(&text, 256 * 1024);
    enum status status = config_parse(&input, &config, &text, &err);
    if (status != STATUS_OK) {
        error_print("tare-controller", &err);
        buf_deinit(&text);
        return (int)config_exit_code(status);
    }
    if (config == NULL) {
        fputs(buf_cstr(&text), stdout);
        buf_deinit(&text);
        return EXIT_CODE_OK;
    }
    buf_deinit(&text);
    config_hide_secrets(argc, argv);
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_AUTO;
    log_level_parse(config_string(config, OPTION_LOG_LEVEL), &level);
    log_format_parse(config_string(config, OPTION_LOG_FORMAT), &format);
    log_configure(level, format);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);    // until there is something to reload
    int code = run(config);
    config_destroy(config);
    return code;
}
