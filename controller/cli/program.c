// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/program.h"

#include "common/config.h"
#include "common/invariant.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
    WORDS_MAX = OPTION_COUNT + PROGRAM_EXTRA_MAX + 2,    // each option once; program, NULL
};

// The other programs lie beside this one.
static void sibling_path(const char *name, char *out) {
    char self[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    snprintf(out, PATH_BYTES, "%.3900s%s", self, name);
}

void program_exec(const char *name, const struct buf *flags, const char *const *extra) {
    char path[PATH_BYTES];
    sibling_path(name, path);
    const char *words[WORDS_MAX];
    size_t count = 0;
    words[count++] = path;
    for (size_t at = 0; at < flags->bytes_used;) {
        const char *word = (const char *)flags->data + at;
        INVARIANT(count < WORDS_MAX - 1);
        words[count++] = word;
        at += strlen(word) + 1;
    }
    for (; *extra != NULL; extra++) {
        INVARIANT(count < WORDS_MAX - 1);
        words[count++] = *extra;
    }
    words[count] = NULL;
    execv(path, (char *const *)words);    // its type is older than const
    fprintf(stderr, "tare: '%s' cannot be started: %s\n", path, strerror(errno));
}
