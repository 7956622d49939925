// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_KEYGEN_H
#define CONTROLLER_CLI_KEYGEN_H

// `tare keygen [--out DIR] NAME ...`: keys for links over a network.
//
// The idea: each end gets a pair of its own. NAME.secret stays where it is used, NAME.pub may go
// anywhere, and the line that lets a worker in is printed, to be appended to the allow-list of the
// controller. Nothing that exists is ever overwritten.
//
//   Owns nothing.  Thread one.  Allocates never.
//   Fails      with an exit code, after a sentence on standard error.

int keygen_run(int argc, char **argv);

#endif
