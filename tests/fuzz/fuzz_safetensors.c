// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: parsed or refused, and what is parsed lies inside the file.
#include "common/invariant.h"
#include "worker/weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors *file = NULL;
    if (safetensors_parse(data, size, &file, NULL) == STATUS_OK) {
        uint64_t sum = 0;
        for (size_t i = 0; i < safetensors_count(file); i++) {
            const struct safetensors_tensor *tensor = safetensors_at(file, i);
            INVARIANT(tensor->file_offset + tensor->byte_count <= size);
            for (uint64_t k = 0; k < tensor->byte_count; k++) {
                sum += tensor->data[k];
            }
        }
        (void)sum;
        safetensors_destroy(file);
    }
    return 0;
}
