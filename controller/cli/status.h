// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_STATUS_H
#define CONTROLLER_CLI_STATUS_H

// `tare status`: what a running controller holds and does, from its admin socket.
//
//   Owns nothing.  Thread the main thread.  Allocates while it runs.
//   Fails with 2 usage, 3 several or no controllers to choose from, 6 the controller does not
//   answer.

int status_run(int argc, char **argv);

#endif
