// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: refused with a sentence, or every value and tensor lies inside the
// bytes.
#include "common/gguf.h"
#include "common/invariant.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Reads a byte at each end, so that the sanitizer sees a range that reaches outside.
static unsigned touch(const void *bytes, size_t byte_count) {
    const uint8_t *at = bytes;
    return byte_count == 0 ? 0 : (unsigned)at[0] + at[byte_count - 1];
}

static unsigned walk_array(struct gguf_array array) {
    unsigned sum = 0;
    uint64_t steps = 0;
    struct gguf_text text;
    int64_t integer = 0;
    double number = 0;
    bool flag = false;
    if (array.type == GGUF_TYPE_STRING) {
        while (gguf_array_string(&array, &text)) {
            sum += touch(text.bytes, text.byte_count);
            steps++;
        }
    } else if (array.type == GGUF_TYPE_BOOL) {
        while (gguf_array_bool(&array, &flag)) {
            steps++;
        }
    } else {
        struct gguf_array again = array;
        while (gguf_array_f64(&array, &number)) {
            steps++;
        }
        while (gguf_array_i64(&again, &integer)) {
            sum += (unsigned)integer;
        }
    }
    INVARIANT(steps == array.count);
    return sum;
}

static unsigned walk_key(const struct gguf *gguf, const char *key, enum gguf_type type) {
    struct gguf_array array;
    struct gguf_text text;
    uint64_t integer = 0;
    uint32_t small = 0;
    double number = 0;
    bool flag = false;
    bool found = false;
    if (type == GGUF_TYPE_ARRAY) {
        INVARIANT(gguf_get_array(gguf, key, &array, NULL, NULL) == STATUS_OK);
        return walk_array(array);
    }
    if (type == GGUF_TYPE_STRING) {
        INVARIANT(gguf_get_string(gguf, key, &text, NULL, NULL) == STATUS_OK);
        return touch(text.bytes, text.byte_count);
    }
    enum status status = gguf_get_bool(gguf, key, &flag, &found, NULL);
    INVARIANT((status == STATUS_OK) == (type == GGUF_TYPE_BOOL));
    if (gguf_get_u64(gguf, key, &integer, &found, NULL) == STATUS_OK) {
        status = gguf_get_u32(gguf, key, &small, &found, NULL);
        INVARIANT((status == STATUS_OK) == (integer <= UINT32_MAX));
    }
    status = gguf_get_f64(gguf, key, &number, &found, NULL);
    INVARIANT((status == STATUS_OK) == (type != GGUF_TYPE_BOOL));
    return small;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf *gguf = NULL;
    struct error err = {0};
    if (gguf_parse(data, size, &gguf, &err) != STATUS_OK) {
        INVARIANT(err.message[0] != '\0');
        INVARIANT(memchr(err.message, '\n', strlen(err.message)) == NULL);
        return 0;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < gguf_key_count(gguf); i++) {
        enum gguf_type type;
        char key[2048];
        struct gguf_text text = gguf_key_at(gguf, i, &type);
        INVARIANT(text.byte_count < sizeof key);
        memcpy(key, text.bytes, text.byte_count);
        key[text.byte_count] = '\0';
        if (strlen(key) == text.byte_count) {    // keys with NUL cannot be asked for
            sum += walk_key(gguf, key, type);
        }
    }
    uint64_t end = gguf_data_offset(gguf);
    for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        INVARIANT(gguf_tensor_find(gguf, tensor->name) == tensor);
        INVARIANT(tensor->file_offset >= end);
        INVARIANT(tensor->file_offset + tensor->byte_count <= size);
        end = tensor->file_offset + tensor->byte_count;
        sum += touch(tensor->data, tensor->byte_count);
    }
    gguf_destroy(gguf);
    return sum == 0xFFFFFFFF ? 1 : 0;
}
