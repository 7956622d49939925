// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_RESIZE_H
#define CONTROLLER_CLI_RESIZE_H

// `tare resize kv GROUP SIZE`: another size of a running group's KV pool.
//
//   Owns nothing.  Thread the main thread.  Allocates while it runs.
//   Fails with 1 a broken answer, 2 usage, 3 no such group or server, 4 refused by state or budget,
//   6 unreachable or no worker, 7 not ended in time, 8 ended with less than was asked.

int resize_run(int argc, char **argv);

#endif
