// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_VERSION_H
#define COMMON_VERSION_H

// Which tare this is. Processes of different builds refuse each other.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

extern const char VERSION_NUMBER[];    // "0.1.0"
extern const char VERSION_COMMIT[];    // abbreviated commit, or "unknown"
extern const char VERSION_BUILD[];     // both, as messages carry it

#endif
