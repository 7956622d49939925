// SPDX-License-Identifier: Apache-2.0
#include "worker/holder.h"

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "worker/comm/shared_region.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 512 };
enum {
    // A child that attaches is at work within some hundredths of a second.
    SHORT_LIFE_US = 1000 * 1000,
    LOOK_US = 250 * 1000,    // between looks at a child's turns
    LAG_US = 20 * 1000,      // a look that is later counts as if it were not
};

static const char CHILD_WORD[] = "--held-memory=";

bool holder_is_child(int *argc, char **argv, struct holder_fds *fds) {
    if (*argc < 2 || strncmp(argv[1], CHILD_WORD, sizeof CHILD_WORD - 1) != 0) {
        return false;
    }
    if (sscanf(argv[1] + sizeof CHILD_WORD - 1, "%d,%d,%d", &fds->weights, &fds->kv, &fds->notes) !=
        3) {
        return false;
    }
    // Executed through /proc/self/exe: without this the process list would say "exe".
    prctl(PR_SET_NAME, "tare-worker");
    for (int i = 1; i + 1 <= *argc; i++) {
        argv[i] = argv[i + 1];    // argv ends with NULL
    }
    --*argc;
    return true;
}

static const char NOTES_MAGIC[16] = "tare notes 1";

enum status holder_notes_open(int fd, struct holder_notes **out, struct error *err) {
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (fd >= 0 && ftruncate(fd, sizeof(struct holder_notes)) != 0) {
        return error_set_os(err, STATUS_IO, "the holder's notes");
    }
    void *memory = mmap(NULL, sizeof(struct holder_notes), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) {
        return error_set_os(err, STATUS_EXHAUSTED, "the holder's notes");
    }
    struct holder_notes *notes = memory;
    if (memcmp(notes->magic, NOTES_MAGIC, sizeof notes->magic) != 0) {
        memset(notes, 0, sizeof *notes);
        memcpy(notes->magic, NOTES_MAGIC, sizeof notes->magic);
    }
    *out = notes;
    return STATUS_OK;
}

// Signals that the parent waits for; they are blocked, so that none is missed between two looks.
static void watched_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGCHLD);
}

void holder_unblock_signals(void) {
    sigset_t watched;
    watched_signals(&watched);
    sigprocmask(SIG_UNBLOCK, &watched, NULL);
}

static void become_child(char **argv, const struct holder_fds *fds, pid_t parent) {
    // Without the parent nobody holds the memory: the child goes with it, also where the parent
    // went before it was asked for.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(EXIT_CODE_OS);
    }
    // Signals stay blocked across the exec, until its handlers stand (holder_unblock_signals): one
    // that came in between would be forgotten.
    char word[64];
    snprintf(word, sizeof word, "%s%d,%d,%d", CHILD_WORD, fds->weights, fds->kv, fds->notes);
    char *words[WORDS_MAX];
    size_t count = 0;
    words[count++] = argv[0];
    words[count++] = word;
    for (size_t i = 1; argv[i] != NULL; i++) {
        if (count == WORDS_MAX - 1) {
            log_error("holder", "more than %d words on the command line", WORDS_MAX - 2);
            _exit(EXIT_CODE_USAGE);
        }
        words[count++] = argv[i];
    }
    words[count] = NULL;
    execv("/proc/self/exe", words);
    _exit(EXIT_CODE_OS);
}

_Noreturn void holder_end_child(int exit_code) {
    _exit(exit_code);
}

// ---- a child that stands still -----------------------------------------------------------------

struct watchdog {
    struct holder_watch *watch;
    uint64_t turns;        // seen last
    uint64_t silent_us;    // since then, by looks that were on time
    uint64_t looked_us;
};

static bool is_debugged(pid_t child) {
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/%d/status", (int)child);
    FILE *file = fopen(path, "r");
    int tracer = 0;
    while (file != NULL && tracer == 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "TracerPid: %d", &tracer) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return tracer != 0;
}

static void look_at(struct watchdog *dog, pid_t child) {
    uint64_t now_us = clock_monotonic_us();
    uint64_t elapsed_us = now_us - dog->looked_us;
    dog->looked_us = now_us;
    uint64_t turns = dog->watch->turns;
    uint64_t patience_us = dog->watch->patience_us;
    if (turns != dog->turns || patience_us == 0) {
        dog->turns = turns;
        dog->silent_us = 0;
        return;
    }
    dog->silent_us += elapsed_us < LOOK_US + LAG_US ? elapsed_us : LOOK_US + LAG_US;
    if (dog->silent_us > patience_us && !is_debugged(child)) {
        log_warn("holder", "child stands still: killed pid=%d silent_ms=%llu", (int)child,
                 (unsigned long long)dog->silent_us / 1000);
        kill(child, SIGKILL);
        dog->silent_us = 0;
    }
}

// Waits for the child, passing a stop signal on once. Returns its wait status.
static int wait_for(pid_t child, struct holder_watch *watch, bool *stopping) {
    sigset_t watched;
    watched_signals(&watched);
    struct watchdog dog = {.watch = watch, .looked_us = clock_monotonic_us()};
    const struct timespec pause = {.tv_nsec = LOOK_US * 1000};
    int status = 0;
    while (waitpid(child, &status, WNOHANG) != child) {
        int signal = sigtimedwait(&watched, NULL, &pause);
        if ((signal == SIGTERM || signal == SIGINT) && !*stopping) {
            *stopping = true;
            kill(child, SIGTERM);
        }
        look_at(&dog, child);
    }
    return status;
}

// ---- lives -------------------------------------------------------------------------------------

// A restart helps against crashes; it does not help against bad flags, files or sizes.
static bool worth_a_restart(int wait_status) {
    if (WIFSIGNALED(wait_status)) {
        return true;
    }
    int code = WEXITSTATUS(wait_status);
    return code == EXIT_CODE_UNEXPECTED || code == EXIT_CODE_SOFTWARE || code == EXIT_CODE_OS;
}

static int exit_code_of(int wait_status) {
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : EXIT_CODE_SOFTWARE;
}

// Runs one child to its end. False when none could be started.
static bool run_child(char **argv, const struct holder_fds *fds, struct holder_watch *watch,
                      bool *stopping, int *wait_status) {
    watch->plans = 0;
    watch->turns = 0;
    watch->patience_us = 0;
    pid_t self = getpid();
    pid_t child = fork();
    if (child < 0) {
        log_error("holder", "no child process: %s", strerror(errno));
        return false;
    }
    if (child == 0) {
        become_child(argv, fds, self);
    }
    log_info("holder", "child started pid=%d", (int)child);
    *wait_status = wait_for(child, watch, stopping);
    if (!*stopping && worth_a_restart(*wait_status)) {
        log_warn("holder", "child died pid=%d signal=%d code=%d", (int)child,
                 WIFSIGNALED(*wait_status) ? WTERMSIG(*wait_status) : 0,
                 WIFEXITED(*wait_status) ? WEXITSTATUS(*wait_status) : 0);
    }
    return true;
}

static int supervise(char **argv, const struct holder_fds *fds, struct holder_watch *watch) {
    bool stopping = false;
    uint32_t futile_lives = 0;    // one after the other
    for (;;) {
        uint64_t born_us = clock_monotonic_us();
        int status = 0;
        if (!run_child(argv, fds, watch, &stopping, &status)) {
            return EXIT_CODE_OS;
        }
        if (stopping || !worth_a_restart(status)) {
            return stopping && WIFSIGNALED(status) ? EXIT_CODE_OK : exit_code_of(status);
        }
        bool short_life = clock_monotonic_us() - born_us < SHORT_LIFE_US;
        bool served = watch->plans > 0 || (watch->turns > 0 && !short_life);
        futile_lives = served ? 0 : futile_lives + 1;
        if (futile_lives > HOLDER_FUTILE_LIVES_MAX) {
            log_error("holder", "%u children in a row died before they served; giving up",
                      futile_lives);
            return EXIT_CODE_SOFTWARE;
        }
    }
}

int holder_run(char **argv) {
    sigset_t watched;
    watched_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    struct holder_fds fds = {memfd_create("tare-weights", 0), memfd_create("tare-kv", 0),
                             memfd_create("tare-notes", 0)};
    struct holder_notes *notes = NULL;
    struct error err = {0};
    int code = EXIT_CODE_OS;
    if (fds.weights < 0 || fds.kv < 0 || fds.notes < 0) {
        log_error("holder", "no memory files: %s", strerror(errno));
    } else if (holder_notes_open(fds.notes, &notes, &err) != STATUS_OK) {
        log_failure("holder", &err);
    } else {
        code = supervise(argv, &fds, &notes->watch);
    }
    const int all[] = {fds.weights, fds.kv, fds.notes};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] >= 0) {
            close(all[i]);
        }
    }
    // A child that was killed while its group met has left the group's memory under its name.
    shared_region_sweep();
    return code;
}
