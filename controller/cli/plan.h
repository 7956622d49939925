// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_PLAN_H
#define CONTROLLER_CLI_PLAN_H

// `tare plan MODEL`: what `tare serve` with the same options would weigh, before it is tried.
//
// The idea: this process becomes the worker in planning mode. The numbers are those of the code
// that would serve; there is no arithmetic here.
//
//   Owns nothing.  Thread the main thread.  Allocates at start.
//   Fails with the worker's exit code: 0 fits, 69 does not fit, 64 to 66 for flags and files.

int plan_run(int argc, char **argv);

#endif
