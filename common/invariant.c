// SPDX-License-Identifier: Apache-2.0
#include "common/invariant.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static invariant_handler_fn handler_installed;

void invariant_handler_set(invariant_handler_fn handler) {
    handler_installed = handler;
}

_Noreturn void invariant_failed(const char *expression, const char *file, int line,
                                const char *function) {
    if (handler_installed != NULL) {
        handler_installed(expression, file, line, function);
    }
    fprintf(stderr, "invariant broken: %s (%s:%d, %s)\n", expression, file, line, function);
    abort();
}
