// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_STATUS_H
#define CONTROLLER_CLI_STATUS_H

// `tare status`: what a running controller holds and does, from its admin socket.
// `tare get groups|workers`: one part of it as a table, a line each, for people and for awk.
//
//   Owns nothing.  Thread the main thread.  Allocates while it runs.
//   Fails with 1 no memory or an answer that is none, 2 usage, 3 no controller or several to choose
//   from, 6 the controller does not answer.

int status_run(int argc, char **argv);
int status_get_run(int argc, char **argv);

#endif
