// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_SERVE_H
#define CONTROLLER_CLI_SERVE_H

// `tare serve MODEL`: a controller and its workers on this host, one terminal, one Ctrl-C.
//
// The idea: this process only starts, watches and ends its children: one controller, and for each
// of --groups groups --tensor-parallel-size workers, which share the threads. They run in process
// groups of their own, so a Ctrl-C reaches this process alone, which asks the controller to drain;
// workers leave when the controller tells them to. A child that is killed is started again, the
// controller with its run directory, where its journal lies; a worker that cannot start ends the
// service unless another group goes on without it.
//
//   Owns       the children and, unless given, a fresh run directory (0700), removed at the end.
//   Thread     the main thread.
//   Allocates  at start.
//   Fails      with the exit code of the child that ended the service.

int serve_run(int argc, char **argv);

#endif
