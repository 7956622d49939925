// SPDX-License-Identifier: Apache-2.0
// The simulator's program: one run of one scenario, or as many random ones as time allows.
//
//   run --scenario NAME --seed N [--full] [--hours H] [--traces DIR] [--twice]
//   run --campaign --seconds S [--jobs J] [--full] [--hours H] [--first N]
//   run --list
//
// One JSON line per run. Exit code 1 with seed, commit, time and command when something does not
// hold. --twice runs a seed again and compares the digests of all plans.
#include "tests/simulation/scenario.h"
#include "tests/simulation/sim_fail.h"

#include "common/clock.h"
#include "common/version.h"
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct options {
    const char *scenario;
    const char *traces;
    uint64_t seed, first;
    double seconds, hours;
    uint32_t jobs;
    bool full, twice, campaign, list;
};

enum { CAMPAIGN_TWICE = 64 };    // of so many seeds one runs twice

static uint64_t now_us(void) {
    return clock_monotonic_ns() / 1000;
}

static void run_once(const struct options *options, const struct scenario *scenario, uint64_t seed,
                     struct scenario_run *out) {
    *out = (struct scenario_run){.seed = seed,
                                 .full_rate = options->full,
                                 .hours = options->hours,
                                 .traces = options->traces};
    sim_running.seed = seed;
    sim_running.scenario = scenario->name;
    sim_running.now_us = 0;
    scenario->run(out);
}

static void print_run(const struct scenario *scenario, const struct scenario_run *run,
                      uint64_t wall_us) {
    printf("{\"scenario\": \"%s\", \"seed\": %" PRIu64 ", \"commit\": \"%s\", \"digest\": "
           "\"%016" PRIx64 "\", \"group_hours\": %.3f, \"ticks\": %" PRIu64 ", \"faults\": %" PRIu64
           ", \"clients\": %" PRIu64 ", \"tokens\": %" PRIu64,
           scenario->name, run->seed, VERSION_COMMIT, run->digest, run->group_hours, run->ticks,
           run->faults, run->clients, run->tokens);
    for (uint32_t i = 0; i < run->figure_count; i++) {
        const struct scenario_figure *figure = &run->figures[i];
        printf(", \"%s\": %.6g", figure->name, figure->value);
        if (figure->bounded) {
            printf(", \"%s_bound\": %.6g", figure->name, figure->bound);
        }
    }
    printf(", \"wall_s\": %.3f}\n", (double)wall_us / 1e6);
}

static void run_checked(const struct options *options, const struct scenario *scenario,
                        uint64_t seed, bool twice, struct scenario_run *out) {
    run_once(options, scenario, seed, out);
    if (twice) {
        struct scenario_run again;
        run_once(options, scenario, seed, &again);
        SIM_CHECK(again.digest == out->digest,
                  "two runs of one seed differ: digests %016" PRIx64 " and %016" PRIx64,
                  out->digest, again.digest);
    }
}

// ---- campaign ----------------------------------------------------------------------------------

struct sums {
    uint64_t seeds, ticks, faults, clients, tokens, digest;
    double group_hours;
};

static void work(const struct options *options, const struct scenario *scenario, uint32_t job,
                 int out) {
    struct sums sums = {0};
    uint64_t deadline = now_us() + (uint64_t)(options->seconds * 1e6);
    for (uint64_t seed = options->first + job; now_us() < deadline; seed += options->jobs) {
        struct scenario_run run;
        run_checked(options, scenario, seed, seed % CAMPAIGN_TWICE == 0, &run);
        sums.seeds++;
        sums.ticks += run.ticks;
        sums.faults += run.faults;
        sums.clients += run.clients;
        sums.tokens += run.tokens;
        sums.group_hours += run.group_hours;
    }
    ssize_t written = write(out, &sums, sizeof sums);
    _exit(written == (ssize_t)sizeof sums ? 0 : 3);
}

static int campaign(const struct options *options, const struct scenario *scenario) {
    int pipes[2];
    if (pipe(pipes) != 0) {
        perror("pipe");
        return 3;
    }
    fflush(stdout);
    uint64_t start = now_us();
    for (uint32_t job = 0; job < options->jobs; job++) {
        pid_t child = fork();
        if (child == 0) {
            work(options, scenario, job, pipes[1]);
        }
        if (child < 0) {
            perror("fork");
            return 3;
        }
    }
    int worst = 0;
    struct sums all = {0};
    for (uint32_t job = 0; job < options->jobs; job++) {
        int status = 0;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            worst = 1;
            continue;
        }
        struct sums sums;
        if (read(pipes[0], &sums, sizeof sums) != (ssize_t)sizeof sums) {
            return 3;
        }
        all.seeds += sums.seeds;
        all.ticks += sums.ticks;
        all.faults += sums.faults;
        all.clients += sums.clients;
        all.tokens += sums.tokens;
        all.group_hours += sums.group_hours;
    }
    printf("{\"campaign\": \"%s\", \"rate\": \"%s\", \"commit\": \"%s\", \"first_seed\": %" PRIu64
           ", \"seeds\": %" PRIu64 ", \"group_hours\": %.1f, \"ticks\": %" PRIu64
           ", \"faults\": %" PRIu64 ", \"requests\": %" PRIu64 ", \"tokens\": %" PRIu64
           ", \"wall_s\": %.1f, \"jobs\": %u, \"ok\": %s}\n",
           scenario->name, options->full ? "full" : "coarse", VERSION_COMMIT, options->first,
           all.seeds, all.group_hours, all.ticks, all.faults, all.clients, all.tokens,
           (double)(now_us() - start) / 1e6, options->jobs, worst == 0 ? "true" : "false");
    return worst;
}

// ---- command line ------------------------------------------------------------------------------

static int usage(void) {
    fprintf(stderr, "usage: run --scenario NAME --seed N [--full] [--hours H] [--traces DIR] "
                    "[--twice]\n"
                    "       run --campaign --seconds S [--scenario NAME] [--jobs J] [--full] "
                    "[--hours H] [--first N]\n"
                    "       run --list\n");
    return 64;
}

static bool parse(int argc, char **argv, struct options *options) {
    static const struct option names[] = {
        {"scenario", required_argument, NULL, 's'}, {"seed", required_argument, NULL, 'n'},
        {"traces", required_argument, NULL, 't'},   {"seconds", required_argument, NULL, 'S'},
        {"hours", required_argument, NULL, 'H'},    {"jobs", required_argument, NULL, 'j'},
        {"first", required_argument, NULL, 'f'},    {"full", no_argument, NULL, 'F'},
        {"twice", no_argument, NULL, '2'},          {"campaign", no_argument, NULL, 'c'},
        {"list", no_argument, NULL, 'l'},           {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (option) {
        case 's':
            options->scenario = optarg;
            break;
        case 'n':
            options->seed = strtoull(optarg, NULL, 0);
            break;
        case 't':
            options->traces = optarg;
            break;
        case 'S':
            options->seconds = strtod(optarg, NULL);
            break;
        case 'H':
            options->hours = strtod(optarg, NULL);
            break;
        case 'j':
            options->jobs = (uint32_t)strtoul(optarg, NULL, 0);
            break;
        case 'f':
            options->first = strtoull(optarg, NULL, 0);
            break;
        case 'F':
            options->full = true;
            break;
        case '2':
            options->twice = true;
            break;
        case 'c':
            options->campaign = true;
            break;
        case 'l':
            options->list = true;
            break;
        default:
            return false;
        }
    }
    return optind == argc && options->jobs > 0 && options->hours > 0;
}

// What a replay needs beside seed and scenario.
static const char *replay_options(const struct options *options) {
    static char text[256];
    snprintf(text, sizeof text, " --hours %g%s", options->hours, options->full ? " --full" : "");
    return text;
}

int main(int argc, char **argv) {
    struct options options = {
        .scenario = "swarm", .traces = "tests/simulation", .seconds = 60, .hours = 1, .jobs = 1};
    if (!parse(argc, argv, &options)) {
        return usage();
    }
    if (options.list) {
        for (uint32_t i = 0; i < scenario_count; i++) {
            printf("%-20s %-4s %s\n", scenarios[i].name, scenarios[i].open ? "open" : "holds",
                   scenarios[i].claim);
        }
        return 0;
    }
    const struct scenario *scenario = scenario_find(options.scenario);
    if (scenario == NULL) {
        fprintf(stderr, "run: no scenario is called %s; see run --list\n", options.scenario);
        return 64;
    }
    sim_running.program = argv[0];
    sim_running.options = replay_options(&options);
    sim_fail_install();
    if (options.campaign) {
        return campaign(&options, scenario);
    }
    struct scenario_run run;
    uint64_t start = now_us();
    run_checked(&options, scenario, options.seed, options.twice, &run);
    print_run(scenario, &run, now_us() - start);
    return 0;
}
