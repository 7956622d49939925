// SPDX-License-Identifier: Apache-2.0
#include "common/invariant.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void invariant_failed(const char *expression, const char *file, int line,
                                const char *function) {
    fprintf(stderr, "invariant broken: %s (%s:%d, %s)\n", expression, file, line, function);
    abort();
}
