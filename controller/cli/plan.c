// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/plan.h"

#include "common/config.h"
#include "common/exit_code.h"
#include "common/json.h"
#include "controller/cli/program.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char HELP_JSON[] =
    "plan\n"
    "  --json                           one JSON object in place of the tables, also on failure\n";

// Takes the verb's own word out of the arguments, which otherwise are those of `tare serve`.
static bool take_word(int *argc, char **argv, const char *word) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], word) != 0) {
            argv[kept++] = argv[i];
        }
    }
    bool found = kept < *argc;
    argv[kept] = NULL;
    *argc = kept;
    return found;
}

static bool asks_for_help(int argc, char **argv) {
    return argc > 1 && (strcmp(argv[argc - 1], "--help") == 0 || strcmp(argv[argc - 1], "-h") == 0);
}

// Whoever asked for JSON gets one object, also where there is nothing to report.
static void show_failure(const struct error *err, bool json) {
    if (json) {
        struct buf text;
        buf_init(&text, 16 * 1024);
        json_write_failure(&text, err);
        printf("{\"fits\":false,%s}\n", buf_cstr(&text));
        buf_deinit(&text);
    }
    error_print("tare plan", err);
}

static int become_worker(const struct config *config, bool json, struct error *err) {
    if (config_string(config, OPTION_MODEL) == NULL) {
        (void)error_set(err, STATUS_INVALID,
                        "no model given; usage: tare plan MODEL [--json] [options of tare serve]");
        return EXIT_CODE_USAGE;
    }
    struct buf flags;
    buf_init(&flags, 1024 * 1024);
    config_forward(config, OPTION_PROGRAM_WORKER, &flags);
    if (buf_status(&flags) == STATUS_OK) {
        const char *const extra[] = {json ? "--plan=json" : "--plan=text", NULL};
        program_exec("tare-worker", &flags, extra);
        (void)error_set(err, STATUS_NOT_FOUND, "tare-worker cannot be executed");
    } else {
        (void)error_set(err, STATUS_EXHAUSTED, "the flags are too long");
    }
    buf_deinit(&flags);
    return EXIT_CODE_OS;
}

int plan_run(int argc, char **argv) {
    bool json = take_word(&argc, argv, "--json");
    struct config_input input = {OPTION_PROGRAM_SERVE, "tare plan", argc, argv, environ};
    struct config *config = NULL;
    struct buf text;
    struct error err = {0};
    buf_init(&text, 256 * 1024);
    enum status status = config_parse(&input, &config, &text, &err);
    int code = (int)config_exit_code(status);
    if (status == STATUS_OK && config == NULL) {
        fputs(buf_cstr(&text), stdout);
        if (asks_for_help(argc, argv)) {
            fputs(HELP_JSON, stdout);
        }
    } else {
        if (status == STATUS_OK) {
            code = become_worker(config, json, &err);
        }
        show_failure(&err, json);
    }
    buf_deinit(&text);
    config_destroy(config);
    return code;
}
