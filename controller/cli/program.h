// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_PROGRAM_H
#define CONTROLLER_CLI_PROGRAM_H

#include "common/buf.h"

// Turning this process into one of the daemons, which lie beside it.
//
//   Owns nothing.  Thread any.  Allocates never.
//   Fails: returns only when the program cannot be executed, after saying so on stderr.

enum { PROGRAM_EXTRA_MAX = 8 };

// `flags` as config_forward writes them; then the extra words, which a NULL ends.
void program_exec(const char *name, const struct buf *flags, const char *const *extra);

#endif
