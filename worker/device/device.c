// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device.h"

#include "worker/device/device_sim.h"

#include <stdio.h>
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

enum status device_unknown(const char *name, struct error *err) {
    char known[200] = "";
    size_t used = 0;
    const struct sim_spec *spec;
    for (uint32_t i = 0; (spec = sim_spec_at(i)) != NULL && used < sizeof known - 40; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 spec->name);
    }
    error_hint(err, "use cpu; tare plan also knows %s", known);
    return error_set(err, STATUS_UNSUPPORTED, "there is no device '%s' in this build", name);
}
