// SPDX-License-Identifier: Apache-2.0
// The one object that is compiled again with every commit.
#include "common/version.h"

const char VERSION_NUMBER[] = TARE_VERSION;
const char VERSION_COMMIT[] = TARE_COMMIT;
const char VERSION_BUILD[] = TARE_VERSION "-" TARE_COMMIT;
