// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_SERVE_H
#define CONTROLLER_CLI_SERVE_H

// `tare serve MODEL`: one controller and one worker on this host, one terminal, one Ctrl-C.
//
// The idea: this process only starts, watches and ends two children. They run in process groups of
// their own, so a Ctrl-C reaches this process alone, which asks the controller to drain; the worker
// leaves when the controller tells it to.
//
//   Owns       the children and, unless given, a fresh run directory (0700), removed at the end.
//   Thread     the main thread.
//   Allocates  at start.
//   Fails      with the exit code of the child that ended the service.

int serve_run(int argc, char **argv);

#endif
