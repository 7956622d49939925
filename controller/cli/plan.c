// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/plan.h"

#include "common/config.h"
#include "common/exit_code.h"
#include "controller/cli/program.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Takes the verb's own word out of the arguments, which otherwise are those of `tare serve`.
static bool take_word(int *argc, char **argv, const char *word) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            memmove(argv + i, argv + i + 1, (size_t)(*argc - i) * sizeof *argv);
            --*argc;
            return true;
        }
    }
    return false;
}

static int become_worker(const struct config *config, const char *format) {
    if (config_string(config, OPTION_MODEL) == NULL) {
        fputs("tare plan: no model given; "
              "usage: tare plan MODEL [--json] [options of tare serve]\n",
              stderr);
        return EXIT_CODE_USAGE;
    }
    struct buf flags;
    buf_init(&flags, 1024 * 1024);
    config_forward(config, OPTION_PROGRAM_WORKER, &flags);
    if (buf_status(&flags) == STATUS_OK) {
        program_exec("tare-worker", &flags, format, NULL);
    } else {
        fputs("tare plan: the flags are too long\n", stderr);
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
    } else if (status != STATUS_OK) {
        error_print("tare plan", &err);
    } else {
        code = become_worker(config, json ? "--plan=json" : "--plan=text");
    }
    buf_deinit(&text);
    config_destroy(config);
    return code;
}
