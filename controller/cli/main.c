// SPDX-License-Identifier: Apache-2.0
// tare: the command for people. The verb comes first; each verb is one file.
#include "common/exit_code.h"
#include "common/version.h"
#include "controller/cli/keygen.h"
#include "controller/cli/plan.h"
#include "controller/cli/resize.h"
#include "controller/cli/serve.h"
#include "controller/cli/status.h"
#include <stdio.h>
#include <string.h>

static int print_help(FILE *out) {
    fputs(
        "usage: tare VERB ...\n"
        "\n"
        "  serve MODEL [options]   start a server on this host: a controller and its workers\n"
        "  plan MODEL [--json] [options]\n"
        "                          what serve with these options would weigh: memory ledger,\n"
        "                          envelope, KV tokens, what binds, what each change would give\n"
        "  status [--run-dir DIR] [--json]\n"
        "                          what a running server does: requests, KV, worker, memory\n"
        "  get groups|workers      its groups or workers as a table\n"
        "  resize kv GROUP SIZE [--no-wait] [--run-dir DIR] [--json]\n"
        "                          another size of the KV pool of a running server: blocks, bytes\n"
        "                          with a unit, or +SIZE and -SIZE\n"
        "  keygen [--out DIR] [--ids IDS] NAME ...\n"
        "                          keys for workers on other hosts\n"
        "  version                 version and commit\n"
        "  help                    this page; `tare serve --help` lists the options\n",
        out);
    return EXIT_CODE_OK;
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "help";
    if (strcmp(verb, "serve") == 0) {
        return serve_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "plan") == 0) {
        return plan_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "status") == 0) {
        return status_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "get") == 0) {
        return status_get_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "resize") == 0) {
        return resize_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "keygen") == 0) {
        return keygen_run(argc - 1, argv + 1);
    }
    if (strcmp(verb, "version") == 0 || strcmp(verb, "--version") == 0) {
        printf("tare %s (%s)\n", VERSION_NUMBER, VERSION_COMMIT);
        return EXIT_CODE_OK;
    }
    if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        return print_help(stdout);
    }
    fprintf(stderr, "tare: unknown verb '%s'\n", verb);
    print_help(stderr);
    return EXIT_CODE_USAGE;
}
