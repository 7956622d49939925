// SPDX-License-Identifier: Apache-2.0
#include "worker/weights/safetensors.h"

#include "common/bounds.h"
#include "common/json.h"
#include "common/memory.h"
#include <stdlib.h>
#include <string.h>

struct safetensors {
    struct json_doc *header;               // owns the names
    struct safetensors_tensor *tensors;    // sorted by name
    size_t tensor_count;
};

struct type_row {
    const char *name;
    uint32_t bits;
    bool supported;
    enum dtype dtype;
};

static const struct type_row type_rows[] = {
    {"F32", 32, true, DTYPE_F32},     {"F16", 16, true, DTYPE_F16},
    {"BF16", 16, true, DTYPE_BF16},   {"BOOL", 8, false, DTYPE_F32},
    {"U8", 8, false, DTYPE_F32},      {"I8", 8, false, DTYPE_F32},
    {"F8_E4M3", 8, false, DTYPE_F32}, {"F8_E5M2", 8, false, DTYPE_F32},
    {"F8_E8M0", 8, false, DTYPE_F32}, {"I16", 16, false, DTYPE_F32},
    {"U16", 16, false, DTYPE_F32},    {"I32", 32, false, DTYPE_F32},
    {"U32", 32, false, DTYPE_F32},    {"F64", 64, false, DTYPE_F32},
    {"I64", 64, false, DTYPE_F32},    {"U64", 64, false, DTYPE_F32},
    {"C64", 64, false, DTYPE_F32},    {"F4", 4, false, DTYPE_F32},
    {"F6_E2M3", 6, false, DTYPE_F32}, {"F6_E3M2", 6, false, DTYPE_F32},
};

static const struct type_row *find_type(const char *name) {
    for (size_t i = 0; i < sizeof type_rows / sizeof type_rows[0]; i++) {
        if (strcmp(type_rows[i].name, name) == 0) {
            return &type_rows[i];
        }
    }
    return NULL;
}

static enum status corrupt(struct error *err, const char *tensor, const char *what) {
    return error_set(err, STATUS_CORRUPT, "tensor '%.200s': %s", tensor, what);
}

static enum status read_shape(const struct json *entry, struct safetensors_tensor *out,
                              uint64_t *elements, struct error *err) {
    const struct json *shape = json_get(entry, "shape");
    if (json_kind(shape) != JSON_KIND_ARRAY) {
        return corrupt(err, out->name, "'shape' must be an array");
    }
    if (json_count(shape) > SAFETENSORS_DIMS_MAX) {
        return corrupt(err, out->name, "more than 8 dimensions");
    }
    out->dim_count = (uint32_t)json_count(shape);
    *elements = 1;
    for (uint32_t i = 0; i < out->dim_count; i++) {
        const struct json *dim = json_at(shape, i);
        if (json_kind(dim) != JSON_KIND_INT || json_int(dim) < 0) {
            return corrupt(err, out->name, "a dimension is no non-negative integer");
        }
        out->shape[i] = (uint64_t)json_int(dim);
        if (__builtin_mul_overflow(*elements, out->shape[i], elements)) {
            return corrupt(err, out->name, "the shape overflows");
        }
    }
    return STATUS_OK;
}

struct data_section {
    const uint8_t *bytes;
    uint64_t byte_count;
    uint64_t file_offset;
};

static enum status read_range(const struct json *entry, const struct data_section *section,
                              struct safetensors_tensor *out, struct error *err) {
    const struct json *offsets = json_get(entry, "data_offsets");
    const struct json *begin = json_at(offsets, 0);
    const struct json *end = json_at(offsets, 1);
    if (json_kind(offsets) != JSON_KIND_ARRAY || json_count(offsets) != 2 ||
        json_kind(begin) != JSON_KIND_INT || json_kind(end) != JSON_KIND_INT) {
        return corrupt(err, out->name, "'data_offsets' must be two integers");
    }
    int64_t from = json_int(begin);
    int64_t to = json_int(end);
    if (from < 0 || to < from || (uint64_t)to > section->byte_count) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%.200s': range %lld..%lld lies outside the %llu data bytes; "
                         "is the file cut short?",
                         out->name, (long long)from, (long long)to,
                         (unsigned long long)section->byte_count);
    }
    out->byte_count = (uint64_t)(to - from);
    out->file_offset = section->file_offset + (uint64_t)from;
    out->data = section->bytes + from;
    return STATUS_OK;
}

static enum status read_tensor(const char *name, const struct json *entry,
                               const struct data_section *section, struct safetensors_tensor *out,
                               struct error *err) {
    out->name = name;
    if (json_kind(entry) != JSON_KIND_OBJECT) {
        return corrupt(err, name, "its entry must be an object");
    }
    const char *type_name = json_text(json_get(entry, "dtype"), NULL);
    const struct type_row *type = type_name == NULL ? NULL : find_type(type_name);
    if (type == NULL) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%.200s' has unknown type '%.32s'", name,
                         type_name == NULL ? "(none)" : type_name);
    }
    out->type_name = type->name;
    out->supported = type->supported;
    out->dtype = type->dtype;
    uint64_t elements = 0;
    TRY(read_shape(entry, out, &elements, err));
    TRY(read_range(entry, section, out, err));
    uint64_t bits = 0;
    if (__builtin_mul_overflow(elements, (uint64_t)type->bits, &bits) || bits % 8 != 0 ||
        bits / 8 != out->byte_count) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%.200s' at offset %llu: %llu elements of %s are not the %llu "
                         "bytes of its range",
                         name, (unsigned long long)out->file_offset, (unsigned long long)elements,
                         type->name, (unsigned long long)out->byte_count);
    }
    return STATUS_OK;
}

static int by_offset(const void *a, const void *b) {
    const struct safetensors_tensor *x = a;
    const struct safetensors_tensor *y = b;
    if (x->file_offset != y->file_offset) {
        return x->file_offset < y->file_offset ? -1 : 1;
    }
    return x->byte_count < y->byte_count ? -1 : x->byte_count > y->byte_count;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct safetensors_tensor *)a)->name,
                  ((const struct safetensors_tensor *)b)->name);
}

// Ranges must cover the data section without holes and without overlaps.
static enum status check_cover(struct safetensors *file, const struct data_section *section,
                               struct error *err) {
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, by_offset);
    uint64_t at = section->file_offset;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->file_offset != at) {
            return error_set(err, STATUS_CORRUPT,
                             "tensor '%.200s' starts at offset %llu; the data before it ends at "
                             "%llu",
                             tensor->name, (unsigned long long)tensor->file_offset,
                             (unsigned long long)at);
        }
        at += tensor->byte_count;
    }
    if (at != section->file_offset + section->byte_count) {
        return error_set(err, STATUS_CORRUPT, "%llu bytes after the last tensor belong to none",
                         (unsigned long long)(section->file_offset + section->byte_count - at));
    }
    return STATUS_OK;
}

// The JSON reader keeps the last of equal keys, so a repeated name is found in the text: the number
// of tensors in the document is then smaller than the number of `"data_offsets"` keys.
static size_t count_occurrences(const uint8_t *bytes, size_t byte_count, const char *word) {
    size_t length = strlen(word);
    size_t count = 0;
    const uint8_t *at = bytes;
    const uint8_t *end = bytes + byte_count;
    while ((at = memmem(at, (size_t)(end - at), word, length)) != NULL) {
        count++;
        at += length;
    }
    return count;
}

static enum status read_header(struct safetensors *file, const struct data_section *section,
                               const uint8_t *header_text, size_t header_bytes, struct error *err) {
    const struct json *root = json_root(file->header);
    if (json_kind(root) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_CORRUPT, "the header is no JSON object");
    }
    size_t members = json_count(root);
    if (members > BOUND_TENSORS) {
        return error_set(err, STATUS_CORRUPT, "%zu tensors; the limit is %u", members,
                         BOUND_TENSORS);
    }
    file->tensors = memory_array(members + 1, sizeof *file->tensors);
    if (file->tensors == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a table of %zu tensors", members);
    }
    for (void *it = json_iter(root); it != NULL; it = json_iter_next(root, it)) {
        const char *name = json_iter_key(it, NULL);
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        TRY(read_tensor(name, json_iter_value(it), section, &file->tensors[file->tensor_count],
                        err));
        file->tensor_count++;
    }
    if (count_occurrences(header_text, header_bytes, "\"data_offsets\"") > file->tensor_count) {
        return error_set(err, STATUS_CORRUPT, "a tensor name occurs twice in the header");
    }
    TRY(check_cover(file, section, err));
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, by_name);
    return STATUS_OK;
}

enum status safetensors_parse(const void *bytes, size_t byte_count, struct safetensors **out,
                              struct error *err) {
    const uint8_t *at = bytes;
    uint64_t header_bytes = 0;
    if (byte_count < sizeof header_bytes) {
        return error_set(err, STATUS_CORRUPT, "%zu bytes are too short for a safetensors file",
                         byte_count);
    }
    memcpy(&header_bytes, at, sizeof header_bytes);
    if (header_bytes > BOUND_SAFETENSORS_HEADER_BYTES ||
        header_bytes > byte_count - sizeof header_bytes) {
        return error_set(
            err, STATUS_CORRUPT, "the header says %llu bytes; the file has %zu and the limit is %u",
            (unsigned long long)header_bytes, byte_count, BOUND_SAFETENSORS_HEADER_BYTES);
    }
    if (header_bytes == 0 || at[8] != '{') {
        return error_set(err, STATUS_CORRUPT, "the header does not start with '{'");
    }
    struct safetensors *file = memory_zalloc(sizeof *file);
    if (file == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a safetensors header");
    }
    struct data_section section = {at + 8 + header_bytes, byte_count - 8 - header_bytes,
                                   8 + header_bytes};
    enum status status = json_parse((const char *)at + 8, header_bytes, &file->header, err);
    if (status == STATUS_INVALID) {
        status = STATUS_CORRUPT;
    }
    if (status == STATUS_OK) {
        status = read_header(file, &section, at + 8, header_bytes, err);
    }
    if (status != STATUS_OK) {
        safetensors_destroy(file);
        return status;
    }
    *out = file;
    return STATUS_OK;
}

void safetensors_destroy(struct safetensors *file) {
    if (file == NULL) {
        return;
    }
    json_destroy(file->header);
    memory_free(file->tensors);
    memory_free(file);
}

size_t safetensors_count(const struct safetensors *file) {
    return file->tensor_count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t index) {
    return index < file->tensor_count ? &file->tensors[index] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name) {
    struct safetensors_tensor key = {.name = name};
    return bsearch(&key, file->tensors, file->tensor_count, sizeof key, by_name);
}
