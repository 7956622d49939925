// SPDX-License-Identifier: Apache-2.0
// Any bytes as an allow-list: parsed or refused, and what is parsed names places that can be.
#include "common/invariant.h"
#include "common/memory.h"
#include "proto/link_keys.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = memory_zalloc(size + 1);
    memcpy(text, data, size);
    struct link_allow *allow = NULL;
    if (link_allow_parse("list", text, &allow, NULL) == STATUS_OK) {
        for (uint32_t i = 0; i < allow->count; i++) {
            const struct link_entry *entry = &allow->entries[i];
            INVARIANT(link_name_ok(entry->name) && entry->id_count <= LINK_IDS_MAX);
            INVARIANT(link_allow_find(allow, entry->public_key) == entry);
            for (uint32_t k = 0; k < entry->id_count; k++) {
                INVARIANT(entry->ids[k].group < BOUND_GROUPS && entry->ids[k].rank < BOUND_RANKS);
            }
        }
        link_allow_destroy(allow);
    }
    memory_free(text);
    return 0;
}
