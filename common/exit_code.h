// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_EXIT_CODE_H
#define COMMON_EXIT_CODE_H

#include "common/status.h"

// Process exit codes of the daemons, the numbers of sysexits(3).
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum exit_code {
    EXIT_CODE_OK = 0,              // drained and stopped
    EXIT_CODE_UNEXPECTED = 1,      // restart may help
    EXIT_CODE_USAGE = 64,          // bad flags
    EXIT_CODE_DATA = 65,           // model files unreadable or inconsistent
    EXIT_CODE_NO_INPUT = 66,       // file or directory not found
    EXIT_CODE_UNAVAILABLE = 69,    // resources do not fit: memory, ports, file limits
    EXIT_CODE_SOFTWARE = 70,       // internal invariant
    EXIT_CODE_OS = 71,             // operating system or driver refused
    EXIT_CODE_TEMPORARY = 75,      // peer missing, try again
    EXIT_CODE_PROTOCOL = 76,       // the peer is another build
    EXIT_CODE_PERMISSION = 77,
    EXIT_CODE_CONFIG = 78,    // configuration file
};

static inline enum exit_code exit_code_for(enum status status) {
    switch (status) {
    case STATUS_OK:
    case STATUS_SHUTDOWN:
    case STATUS_CANCELLED:
        return EXIT_CODE_OK;
    case STATUS_INVALID:
        return EXIT_CODE_USAGE;
    case STATUS_CORRUPT:
    case STATUS_UNSUPPORTED:
        return EXIT_CODE_DATA;
    case STATUS_NOT_FOUND:
        return EXIT_CODE_NO_INPUT;
    case STATUS_EXHAUSTED:
        return EXIT_CODE_UNAVAILABLE;
    case STATUS_IO:
    case STATUS_DEVICE:
        return EXIT_CODE_OS;
    case STATUS_BUSY:
    case STATUS_TIMEOUT:
    case STATUS_PEER_LOST:
        return EXIT_CODE_TEMPORARY;
    case STATUS_PERMISSION:
        return EXIT_CODE_PERMISSION;
    case STATUS_VERSION:
        return EXIT_CODE_PROTOCOL;
    case STATUS_COUNT:
        break;
    }
    return EXIT_CODE_UNEXPECTED;
}

#endif
