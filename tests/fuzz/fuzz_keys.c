// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of API keys: read or refused, and what is read lies in its bounds. The text
// has exactly its bytes and a NUL.
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/core.h"
#include "controller/keys.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = memory_zalloc(size + 1);
    struct keys *keys = memory_zalloc(sizeof *keys);
    INVARIANT(text != NULL && keys != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    struct error err = {0};
    if (keys_parse("keys", text, size, keys, &err) == STATUS_OK) {
        INVARIANT(keys->entry_count > 0);
        for (uint32_t i = 0; i < keys->entry_count; i++) {
            const struct keys_entry *entry = &keys->entries[i];
            INVARIANT(entry->weight > 0 && entry->weight <= CORE_WEIGHT_MAX);
            INVARIANT(entry->class_ < REQUEST_CLASS_COUNT);
            INVARIANT(entry->limits.requests_per_minute >= 0);
            INVARIANT(entry->limits.tokens_per_minute >= 0);
        }
    } else {
        INVARIANT(err.message[0] != '\0');
    }
    memory_free(keys);
    memory_free(text);
    return 0;
}
