// SPDX-License-Identifier: Apache-2.0
#include "controller/run_dir.h"

#include "common/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

struct run_dir {
    int fd;
    char path[PATH_BYTES];
};

static enum status lock(struct run_dir *run_dir, struct error *err) {
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/lock", run_dir->path);
    run_dir->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (run_dir->fd < 0) {
        return error_set_os(err, errno == EACCES ? STATUS_PERMISSION : STATUS_IO,
                            "run directory: '%s'", path);
    }
    if (flock(run_dir->fd, LOCK_EX | LOCK_NB) != 0) {
        char text[16] = "";
        ssize_t length = read(run_dir->fd, text, sizeof text - 1);
        error_hint(err, "stop it first, or give this one another --run-dir");
        return error_set(err, STATUS_BUSY,
                         "run directory '%s' belongs to a controller that runs (pid %ld)",
                         run_dir->path, length > 0 ? strtol(text, NULL, 10) : 0);
    }
    // For people and for the message above; the lock is what counts.
    if (ftruncate(run_dir->fd, 0) != 0 || dprintf(run_dir->fd, "%ld\n", (long)getpid()) < 0) {
        return error_set_os(err, STATUS_IO, "run directory: '%s' cannot be written", path);
    }
    return STATUS_OK;
}

enum status run_dir_take(const char *path, struct run_dir **out, struct error *err) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return error_set_os(err, STATUS_IO, "run directory '%s' cannot be made", path);
    }
    struct run_dir *run_dir = memory_zalloc(sizeof *run_dir);
    if (run_dir == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the run directory");
    }
    run_dir->fd = -1;
    snprintf(run_dir->path, sizeof run_dir->path, "%s", path);
    enum status status = lock(run_dir, err);
    if (status != STATUS_OK) {
        if (run_dir->fd >= 0) {
            close(run_dir->fd);
        }
        memory_free(run_dir);
        return status;
    }
    *out = run_dir;
    return STATUS_OK;
}

void run_dir_leave(struct run_dir *run_dir) {
    if (run_dir == NULL) {
        return;
    }
    static const char *const names[] = {"plan.sock", "control.sock", "admin.sock"};
    char path[PATH_BYTES + 32];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", run_dir->path, names[i]);
        unlink(path);
    }
    close(run_dir->fd);    // and with it the lock
    memory_free(run_dir);
}
