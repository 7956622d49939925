// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device.h"

#include <string.h>

static const struct device_table *const devices[] = {&device_cpu, &device_sim};

const struct device_table *device_find(const char *name) {
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        size_t kind_bytes = strlen(devices[i]->name);
        bool named = strncmp(name, devices[i]->name, kind_bytes) == 0 &&
                     (name[kind_bytes] == '\0' || name[kind_bytes] == ':');
        if (named && devices[i]->memory_bytes(name) > 0) {
            return devices[i];
        }
    }
    return NULL;
}
