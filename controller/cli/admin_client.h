// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_ADMIN_CLIENT_H
#define CONTROLLER_CLI_ADMIN_CLIENT_H

#include "common/buf.h"

// One call to a running controller, through the admin socket of its run directory.
//
//   Owns nothing.  Thread the main thread.  Allocates while it runs, and in `answer`.
//   Fails with an exit code, after saying why on stderr.

// Exit codes of one who asks; those in common/exit_code.h say what a start lacked.
enum admin_exit {
    ADMIN_EXIT_DONE = 0,
    ADMIN_EXIT_FAILED = 1,
    ADMIN_EXIT_USAGE = 2,
    ADMIN_EXIT_NOT_FOUND = 3,
    ADMIN_EXIT_REFUSED = 4,    // by state or budget
    ADMIN_EXIT_UNREACHABLE = 6,
    ADMIN_EXIT_TIMED_OUT = 7,    // the operation goes on
    ADMIN_EXIT_PARTIAL = 8,
};

struct admin_call {
    const char *verb;       // for messages
    const char *run_dir;    // NULL: of the only server of ours on this host
    const char *path;       // "/admin/v1/..."
    const char *body;       // a JSON object to POST; NULL: GET
    long timeout_ms;
};

// DONE once there is an answer, whatever its HTTP status.
int admin_client_call(const struct admin_call *call, struct buf *answer, long *status);

#endif
