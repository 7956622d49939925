// SPDX-License-Identifier: Apache-2.0
#include "common/gguf.h"

#include "common/bounds.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "common/wire.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

// Both tables are an array in file order plus a hash set of slots that hold index + 1 (0 = free),
// at most half full, so a lookup and a duplicate check cost one short probe.

struct entry {
    struct gguf_text key;
    enum gguf_type type;
    struct gguf_array array;    // when type is ARRAY
    const uint8_t *value;       // first byte of the value; strings include their length
};

struct slots {
    uint32_t *index;
    uint32_t mask;
};

struct gguf {
    const uint8_t *bytes;
    size_t byte_count;
    uint32_t version;
    uint32_t alignment;
    uint64_t data_offset;
    struct entry *entries;
    size_t entry_count;
    struct slots entry_slots;
    struct gguf_tensor *tensors;
    size_t tensor_count;
    struct slots tensor_slots;
};

#define corrupt(err, ...) error_set(err, STATUS_CORRUPT, __VA_ARGS__)

// ---- value types -------------------------------------------------------------------------------

struct type_row {
    const char *name;
    uint32_t bytes;    // 0: of variable size
};

static const struct type_row type_rows[GGUF_TYPE_COUNT] = {
    [GGUF_TYPE_U8] = {"u8", 1},         [GGUF_TYPE_I8] = {"i8", 1},
    [GGUF_TYPE_U16] = {"u16", 2},       [GGUF_TYPE_I16] = {"i16", 2},
    [GGUF_TYPE_U32] = {"u32", 4},       [GGUF_TYPE_I32] = {"i32", 4},
    [GGUF_TYPE_F32] = {"f32", 4},       [GGUF_TYPE_BOOL] = {"bool", 1},
    [GGUF_TYPE_STRING] = {"string", 0}, [GGUF_TYPE_ARRAY] = {"array", 0},
    [GGUF_TYPE_U64] = {"u64", 8},       [GGUF_TYPE_I64] = {"i64", 8},
    [GGUF_TYPE_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type type) {
    INVARIANT((unsigned)type < GGUF_TYPE_COUNT);
    return type_rows[type].name;
}

// Sign and magnitude in one place: any integer of the format is -2^63 .. 2^64-1.
static bool load_integer(const uint8_t *at, enum gguf_type type, bool *negative, uint64_t *out) {
    uint32_t bytes = type_rows[type].bytes;
    switch (type) {
    case GGUF_TYPE_U8:
    case GGUF_TYPE_U16:
    case GGUF_TYPE_U32:
    case GGUF_TYPE_U64:
        *negative = false;
        *out = wire_get_le(at, bytes);
        return true;
    case GGUF_TYPE_I8:
    case GGUF_TYPE_I16:
    case GGUF_TYPE_I32:
    case GGUF_TYPE_I64: {
        uint64_t raw = wire_get_le(at, bytes);
        uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
        *negative = (raw & sign) != 0;
        *out = (raw ^ sign) - sign;    // sign-extended
        return true;
    }
    case GGUF_TYPE_F32:
    case GGUF_TYPE_BOOL:
    case GGUF_TYPE_STRING:
    case GGUF_TYPE_ARRAY:
    case GGUF_TYPE_F64:
    case GGUF_TYPE_COUNT:
        break;
    }
    return false;
}

static bool load_number(const uint8_t *at, enum gguf_type type, double *out) {
    if (type == GGUF_TYPE_F32) {
        uint32_t bits = (uint32_t)wire_get_le(at, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        *out = (double)value;
        return true;
    }
    if (type == GGUF_TYPE_F64) {
        uint64_t bits = wire_get_le(at, 8);
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    bool negative = false;
    uint64_t raw = 0;
    if (!load_integer(at, type, &negative, &raw)) {
        return false;
    }
    *out = negative ? (double)(int64_t)raw : (double)raw;
    return true;
}

// ---- reading with a bound ----------------------------------------------------------------------

struct reader {
    const uint8_t *bytes;
    size_t byte_count;
    size_t at;    // never above byte_count
    struct error *err;
};

static size_t left(const struct reader *r) {
    return r->byte_count - r->at;
}

static enum status read_uint(struct reader *r, uint32_t bytes, const char *what, uint64_t *out) {
    if (left(r) < bytes) {
        return error_set(r->err, STATUS_CORRUPT, "the file ends inside %s at offset %zu", what,
                         r->at);
    }
    *out = wire_get_le(r->bytes + r->at, bytes);
    r->at += bytes;
    return STATUS_OK;
}

static enum status read_u32(struct reader *r, const char *what, uint32_t *out) {
    uint64_t value = 0;
    enum status status = read_uint(r, 4, what, &value);
    *out = (uint32_t)value;
    return status;
}

static enum status read_text(struct reader *r, const char *what, struct gguf_text *out) {
    struct error *err = r->err;
    size_t start = r->at;
    uint64_t length = 0;
    TRY(read_uint(r, 8, what, &length));
    if (length > left(r)) {
        return corrupt(err, "%s at offset %zu says it has %llu bytes, but only %zu follow", what,
                       start, (unsigned long long)length, left(r));
    }
    out->bytes = (const char *)(r->bytes + r->at);
    out->byte_count = (size_t)length;
    r->at += (size_t)length;
    return STATUS_OK;
}

// A copy for error sentences: control bytes would let a file write its own log lines.
struct printable {
    char text[96];
};

static struct printable printable(struct gguf_text text) {
    struct printable out;
    size_t count = text.byte_count < sizeof out.text - 1 ? text.byte_count : sizeof out.text - 1;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text.bytes[i];
        out.text[i] = c < 0x20 || c >= 0x7F ? '?' : (char)c;
    }
    out.text[count] = '\0';
    return out;
}

// ---- hash sets ---------------------------------------------------------------------------------

static enum status slots_create(struct slots *slots, size_t count, struct error *err) {
    uint32_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    slots->index = memory_array(size, sizeof *slots->index);
    slots->mask = size - 1;
    if (slots->index == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a table of %zu names", count);
    }
    return STATUS_OK;
}

static bool same(struct gguf_text a, struct gguf_text b) {
    return a.byte_count == b.byte_count && memcmp(a.bytes, b.bytes, a.byte_count) == 0;
}

static struct gguf_text text_of(const char *name) {
    return (struct gguf_text){.bytes = name, .byte_count = strlen(name)};
}

// The slot that holds `key`, or the free one where it belongs.
static uint32_t *entry_slot(const struct gguf *gguf, struct gguf_text key) {
    const struct slots *slots = &gguf->entry_slots;
    uint32_t i = (uint32_t)hash_bytes(key.bytes, key.byte_count) & slots->mask;
    while (slots->index[i] != 0 && !same(gguf->entries[slots->index[i] - 1].key, key)) {
        i = (i + 1) & slots->mask;
    }
    return &slots->index[i];
}

static uint32_t *tensor_slot(const struct gguf *gguf, const char *name) {
    const struct slots *slots = &gguf->tensor_slots;
    uint32_t i = (uint32_t)hash_bytes(name, strlen(name)) & slots->mask;
    while (slots->index[i] != 0 && strcmp(gguf->tensors[slots->index[i] - 1].name, name) != 0) {
        i = (i + 1) & slots->mask;
    }
    return &slots->index[i];
}

// ---- metadata ----------------------------------------------------------------------------------

static enum status read_type(struct reader *r, struct gguf_text key, enum gguf_type *out) {
    struct error *err = r->err;
    size_t start = r->at;
    uint32_t number = 0;
    TRY(read_u32(r, "a value type", &number));
    if (number >= GGUF_TYPE_COUNT) {
        return corrupt(err, "key '%s' has value type %u at offset %zu; 12 is the highest known",
                       printable(key).text, number, start);
    }
    *out = (enum gguf_type)number;
    return STATUS_OK;
}

static enum status check_bool(const uint8_t *at, size_t offset, struct gguf_text key,
                              struct error *err) {
    if (*at > 1) {
        return corrupt(err, "key '%s' has %u at offset %zu where a bool must be 0 or 1",
                       printable(key).text, *at, offset);
    }
    return STATUS_OK;
}

static enum status read_array(struct reader *r, struct entry *entry) {
    struct error *err = r->err;
    struct gguf_array *array = &entry->array;
    TRY(read_type(r, entry->key, &array->type));
    if (array->type == GGUF_TYPE_ARRAY) {
        return error_set(err, STATUS_UNSUPPORTED, "key '%s' is an array of arrays at offset %zu",
                         printable(entry->key).text, r->at);
    }
    size_t start = r->at;
    TRY(read_uint(r, 8, "an array's length", &array->count));
    array->at = r->bytes + r->at;
    // A string takes at least the 8 bytes of its length: so the count is bounded before the walk.
    uint32_t least = array->type == GGUF_TYPE_STRING ? 8 : type_rows[array->type].bytes;
    if (array->count > left(r) / least) {
        return corrupt(
            err, "key '%s' says at offset %zu that it has %llu elements, but only %zu bytes follow",
            printable(entry->key).text, start, (unsigned long long)array->count, left(r));
    }
    if (array->type == GGUF_TYPE_STRING) {
        for (uint64_t i = 0; i < array->count; i++) {
            struct gguf_text text;
            TRY(read_text(r, "a string in an array", &text));
        }
        return STATUS_OK;
    }
    if (array->type == GGUF_TYPE_BOOL) {
        for (uint64_t i = 0; i < array->count; i++) {
            TRY(check_bool(array->at + i, r->at + (size_t)i, entry->key, err));
        }
    }
    r->at += (size_t)array->count * least;
    return STATUS_OK;
}

static enum status read_value(struct reader *r, struct entry *entry) {
    struct error *err = r->err;
    TRY(read_type(r, entry->key, &entry->type));
    entry->value = r->bytes + r->at;
    if (entry->type == GGUF_TYPE_ARRAY) {
        return read_array(r, entry);
    }
    if (entry->type == GGUF_TYPE_STRING) {
        struct gguf_text text;
        return read_text(r, "a string value", &text);
    }
    uint64_t raw = 0;
    size_t start = r->at;
    TRY(read_uint(r, type_rows[entry->type].bytes, "a value", &raw));
    if (entry->type == GGUF_TYPE_BOOL) {
        return check_bool(entry->value, start, entry->key, err);
    }
    return STATUS_OK;
}

static enum status read_entry(struct gguf *gguf, struct reader *r) {
    struct error *err = r->err;
    struct entry *entry = &gguf->entries[gguf->entry_count];
    size_t start = r->at;
    TRY(read_text(r, "a key", &entry->key));
    if (entry->key.byte_count == 0 || entry->key.byte_count > BOUND_GGUF_KEY_BYTES) {
        return corrupt(err, "the key at offset %zu has %zu bytes; 1 to %u are allowed", start,
                       entry->key.byte_count, BOUND_GGUF_KEY_BYTES);
    }
    uint32_t *slot = entry_slot(gguf, entry->key);
    if (*slot != 0) {
        return corrupt(err, "key '%s' occurs twice, again at offset %zu",
                       printable(entry->key).text, start);
    }
    enum status status = read_value(r, entry);
    if (status != STATUS_OK) {
        error_context(err, "key '%s'", printable(entry->key).text);
        return status;
    }
    gguf->entry_count++;
    *slot = (uint32_t)gguf->entry_count;
    return STATUS_OK;
}

static enum status read_metadata(struct gguf *gguf, struct reader *r, uint64_t count) {
    struct error *err = r->err;
    // The smallest entry: an empty key (8), a type (4), one byte.
    if (count > BOUND_GGUF_KEYS || count > left(r) / 13) {
        return corrupt(
            err,
            "the header says %llu metadata keys; the file has room for %zu and the limit is %u",
            (unsigned long long)count, left(r) / 13, BOUND_GGUF_KEYS);
    }
    gguf->entries = memory_array((size_t)count, sizeof *gguf->entries);
    if (gguf->entries == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %llu metadata keys",
                         (unsigned long long)count);
    }
    TRY(slots_create(&gguf->entry_slots, (size_t)count, err));
    for (uint64_t i = 0; i < count; i++) {
        TRY(read_entry(gguf, r));
    }
    return STATUS_OK;
}

static enum status read_alignment(struct gguf *gguf, struct error *err) {
    gguf->alignment = 32;
    bool found = false;
    TRY(gguf_get_u32(gguf, "general.alignment", &gguf->alignment, &found, err));
    uint32_t alignment = gguf->alignment;
    bool power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (!power_of_two || alignment > BOUND_GGUF_ALIGNMENT_BYTES) {
        return corrupt(err, "general.alignment is %u; it must be a power of two up to %u",
                       alignment, BOUND_GGUF_ALIGNMENT_BYTES);
    }
    return STATUS_OK;
}

// ---- tensors -----------------------------------------------------------------------------------

static enum status read_tensor_name(struct gguf *gguf, struct reader *r,
                                    struct gguf_tensor *tensor) {
    struct error *err = r->err;
    size_t start = r->at;
    struct gguf_text name;
    TRY(read_text(r, "a tensor name", &name));
    if (name.byte_count == 0 || name.byte_count >= GGUF_NAME_BYTES) {
        return corrupt(err, "the tensor name '%s' at offset %zu has %zu bytes; 1 to %d are allowed",
                       printable(name).text, start, name.byte_count, GGUF_NAME_BYTES - 1);
    }
    memcpy(tensor->name, name.bytes, name.byte_count);
    if (strcmp(tensor->name, printable(name).text) != 0) {
        return corrupt(err,
                       "the tensor name '%s' at offset %zu has bytes that are not printable ASCII",
                       printable(name).text, start);
    }
    uint32_t *slot = tensor_slot(gguf, tensor->name);
    if (*slot != 0) {
        return corrupt(err, "tensor '%s' occurs twice, again at offset %zu", tensor->name, start);
    }
    *slot = (uint32_t)gguf->tensor_count + 1;
    return STATUS_OK;
}

static enum status read_shape(struct reader *r, struct gguf_tensor *tensor) {
    struct error *err = r->err;
    size_t start = r->at;
    TRY(read_u32(r, "a number of dimensions", &tensor->dim_count));
    if (tensor->dim_count == 0 || tensor->dim_count > GGUF_DIMS_MAX) {
        return corrupt(err, "it has %u dimensions at offset %zu; 1 to %d are allowed",
                       tensor->dim_count, start, GGUF_DIMS_MAX);
    }
    tensor->element_count = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        tensor->ne[i] = 1;
        if (i >= tensor->dim_count) {
            continue;
        }
        start = r->at;
        TRY(read_uint(r, 8, "a dimension", &tensor->ne[i]));
        // Signed 64 bits hold every index and byte count that anybody computes from a shape.
        bool overflow =
            __builtin_mul_overflow(tensor->element_count, tensor->ne[i], &tensor->element_count);
        if (tensor->ne[i] == 0 || overflow || tensor->element_count > INT64_MAX) {
            return corrupt(err, "its dimension %u is %llu at offset %zu: %s", i,
                           (unsigned long long)tensor->ne[i], start,
                           tensor->ne[i] == 0 ? "zero is not allowed" : "the product overflows");
        }
    }
    return STATUS_OK;
}

static enum status read_storage(struct reader *r, struct gguf_tensor *tensor, uint64_t *offset) {
    struct error *err = r->err;
    size_t start = r->at;
    uint32_t type = 0;
    TRY(read_u32(r, "a tensor type", &type));
    if (!dtype_from_gguf(type, &tensor->dtype)) {
        error_set(err, STATUS_UNSUPPORTED,
                  "it has ggml type %u at offset %zu, which is not supported", type, start);
        error_hint(err, "convert the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, "
                        "Q5_K or Q6_K");
        return STATUS_UNSUPPORTED;
    }
    uint64_t row_bytes = 0;
    if (!dtype_row_bytes(tensor->dtype, tensor->ne[0], &row_bytes)) {
        return corrupt(err, "its rows of %llu elements do not fill whole %s blocks of %u",
                       (unsigned long long)tensor->ne[0], dtype_name(tensor->dtype),
                       dtype_block_elements(tensor->dtype));
    }
    uint64_t rows = tensor->element_count / tensor->ne[0];
    if (__builtin_mul_overflow(row_bytes, rows, &tensor->byte_count)) {
        return corrupt(err, "its size in bytes overflows");
    }
    return read_uint(r, 8, "a tensor offset", offset);
}

// `offset` counts from the data section, whose place is known only after the last tensor info: it
// is kept in file_offset until place_tensors adds the rest.
static enum status read_tensor(struct gguf *gguf, struct reader *r, uint64_t *expected) {
    struct error *err = r->err;
    struct gguf_tensor *tensor = &gguf->tensors[gguf->tensor_count];
    TRY(read_tensor_name(gguf, r, tensor));
    size_t start = r->at;
    enum status status = read_shape(r, tensor);
    if (status == STATUS_OK) {
        start = r->at;
        status = read_storage(r, tensor, &tensor->file_offset);
    }
    // Tensors lie one after the other, each padded: any other offset is a hole or an overlap.
    if (status == STATUS_OK && tensor->file_offset != *expected) {
        status =
            corrupt(err,
                    "it says at file offset %zu that its data starts at %llu of the data section, "
                    "but the tensors before it end at %llu",
                    start, (unsigned long long)tensor->file_offset, (unsigned long long)*expected);
    }
    uint64_t padded = 0;
    if (status == STATUS_OK &&
        (__builtin_add_overflow(tensor->byte_count, gguf->alignment - 1, &padded) ||
         __builtin_add_overflow(*expected, padded & ~(uint64_t)(gguf->alignment - 1), expected))) {
        status = corrupt(err, "the sizes of the tensors up to it overflow");
    }
    if (status != STATUS_OK) {
        error_context(err, "tensor '%s'", tensor->name);
        return status;
    }
    gguf->tensor_count++;
    return STATUS_OK;
}

static enum status read_tensors(struct gguf *gguf, struct reader *r, uint64_t count) {
    struct error *err = r->err;
    // The smallest info: a name (8), one dimension (4 + 8), a type (4), an offset (8).
    if (count > BOUND_TENSORS || count > left(r) / 32) {
        return corrupt(
            err, "the header says %llu tensors; the file has room for %zu and the limit is %u",
            (unsigned long long)count, left(r) / 32, BOUND_TENSORS);
    }
    gguf->tensors = memory_array((size_t)count, sizeof *gguf->tensors);
    if (gguf->tensors == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %llu tensor infos",
                         (unsigned long long)count);
    }
    TRY(slots_create(&gguf->tensor_slots, (size_t)count, err));
    uint64_t expected = 0;
    for (uint64_t i = 0; i < count; i++) {
        TRY(read_tensor(gguf, r, &expected));
    }
    return STATUS_OK;
}

static enum status place_tensors(struct gguf *gguf, const struct reader *r) {
    uint64_t mask = gguf->alignment - 1;
    gguf->data_offset = (r->at + mask) & ~mask;    // both are far below 2^63
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        uint64_t begin = 0;
        uint64_t end = 0;
        bool fits = !__builtin_add_overflow(tensor->file_offset, gguf->data_offset, &begin) &&
                    !__builtin_add_overflow(begin, tensor->byte_count, &end) &&
                    end <= gguf->byte_count;
        if (!fits) {
            error_set(r->err, STATUS_CORRUPT,
                      "tensor '%s' needs %llu bytes at offset %llu, but the file ends at %zu",
                      tensor->name, (unsigned long long)tensor->byte_count,
                      (unsigned long long)begin, gguf->byte_count);
            error_hint(r->err, "the file is cut short: fetch it again");
            return STATUS_CORRUPT;
        }
        tensor->file_offset = begin;
        tensor->data = gguf->bytes + begin;
    }
    return STATUS_OK;
}

// ---- the whole file ----------------------------------------------------------------------------

static enum status read_version(struct gguf *gguf, struct reader *r) {
    struct error *err = r->err;
    if (!gguf_is_magic(r->bytes, r->byte_count)) {
        return corrupt(err, "not a GGUF file: it does not start with 'GGUF'");
    }
    r->at = 4;
    TRY(read_u32(r, "the version", &gguf->version));
    if ((gguf->version & 0xFFFF) == 0) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "a big-endian GGUF file; convert it to little-endian");
    }
    if (gguf->version != 2 && gguf->version != 3) {
        return error_set(err, STATUS_UNSUPPORTED, "GGUF version %u; versions 2 and 3 are supported",
                         gguf->version);
    }
    return STATUS_OK;
}

static enum status parse(struct gguf *gguf, struct reader *r) {
    struct error *err = r->err;
    uint64_t tensor_count = 0;
    uint64_t key_count = 0;
    TRY(read_version(gguf, r));
    TRY(read_uint(r, 8, "the tensor count", &tensor_count));
    TRY(read_uint(r, 8, "the metadata count", &key_count));
    TRY(read_metadata(gguf, r, key_count));
    TRY(read_alignment(gguf, err));
    TRY(read_tensors(gguf, r, tensor_count));
    return place_tensors(gguf, r);
}

enum status gguf_parse(const void *bytes, size_t byte_count, struct gguf **out, struct error *err) {
    struct gguf *gguf = memory_zalloc(sizeof *gguf);
    if (gguf == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a GGUF table");
    }
    gguf->bytes = bytes;
    gguf->byte_count = byte_count;
    struct reader reader = {.bytes = bytes, .byte_count = byte_count, .err = err};
    enum status status = parse(gguf, &reader);
    if (status != STATUS_OK) {
        gguf_destroy(gguf);
        return status;
    }
    *out = gguf;
    return STATUS_OK;
}

void gguf_destroy(struct gguf *gguf) {
    if (gguf == NULL) {
        return;
    }
    memory_free(gguf->entries);
    memory_free(gguf->entry_slots.index);
    memory_free(gguf->tensors);
    memory_free(gguf->tensor_slots.index);
    memory_free(gguf);
}

bool gguf_is_magic(const void *bytes, size_t byte_count) {
    return byte_count >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

// ---- typed getters -----------------------------------------------------------------------------

static enum status find(const struct gguf *gguf, const char *key, bool *found,
                        const struct entry **out, struct error *err) {
    uint32_t index = *entry_slot(gguf, text_of(key));
    *out = index == 0 ? NULL : &gguf->entries[index - 1];
    if (found != NULL) {
        *found = index != 0;
    } else if (index == 0) {
        return error_set(err, STATUS_CORRUPT, "the GGUF file has no key '%s'", key);
    }
    return STATUS_OK;
}

static enum status wrong_type(const char *key, const struct entry *entry, const char *wanted,
                              struct error *err) {
    return corrupt(err, "GGUF key '%s' is of type %s where %s is wanted", key,
                   gguf_type_name(entry->type), wanted);
}

enum status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *out, bool *found,
                         struct error *err) {
    const struct entry *entry = NULL;
    TRY(find(gguf, key, found, &entry, err));
    if (entry == NULL) {
        return STATUS_OK;
    }
    bool negative = false;
    uint64_t value = 0;
    if (!load_integer(entry->value, entry->type, &negative, &value)) {
        return wrong_type(key, entry, "an integer", err);
    }
    if (negative) {
        return corrupt(err, "GGUF key '%s' is negative", key);
    }
    *out = value;
    return STATUS_OK;
}

enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *out, bool *found,
                         struct error *err) {
    uint64_t value = UINT64_MAX;
    TRY(gguf_get_u64(gguf, key, &value, found, err));
    bool present = found == NULL || *found;
    if (present && value > UINT32_MAX) {
        return corrupt(err, "GGUF key '%s' is %llu, which does not fit 32 bits", key,
                       (unsigned long long)value);
    }
    if (present) {
        *out = (uint32_t)value;
    }
    return STATUS_OK;
}

enum status gguf_get_f64(const struct gguf *gguf, const char *key, double *out, bool *found,
                         struct error *err) {
    const struct entry *entry = NULL;
    TRY(find(gguf, key, found, &entry, err));
    if (entry != NULL && !load_number(entry->value, entry->type, out)) {
        return wrong_type(key, entry, "a number", err);
    }
    return STATUS_OK;
}

enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *out, bool *found,
                         struct error *err) {
    double value = 0.0;
    TRY(gguf_get_f64(gguf, key, &value, found, err));
    if (found == NULL || *found) {
        *out = (float)value;
    }
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, bool *found,
                          struct error *err) {
    const struct entry *entry = NULL;
    TRY(find(gguf, key, found, &entry, err));
    if (entry == NULL) {
        return STATUS_OK;
    }
    if (entry->type != GGUF_TYPE_BOOL) {
        return wrong_type(key, entry, "a bool", err);
    }
    *out = *entry->value != 0;
    return STATUS_OK;
}

static struct gguf_text text_at(const uint8_t *at) {
    return (struct gguf_text){.bytes = (const char *)(at + 8), .byte_count = wire_get_le(at, 8)};
}

enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_text *out,
                            bool *found, struct error *err) {
    const struct entry *entry = NULL;
    TRY(find(gguf, key, found, &entry, err));
    if (entry == NULL) {
        return STATUS_OK;
    }
    if (entry->type != GGUF_TYPE_STRING) {
        return wrong_type(key, entry, "a string", err);
    }
    *out = text_at(entry->value);
    return STATUS_OK;
}

enum status gguf_get_array(const struct gguf *gguf, const char *key, struct gguf_array *out,
                           bool *found, struct error *err) {
    const struct entry *entry = NULL;
    TRY(find(gguf, key, found, &entry, err));
    if (entry == NULL) {
        return STATUS_OK;
    }
    if (entry->type != GGUF_TYPE_ARRAY) {
        return wrong_type(key, entry, "an array", err);
    }
    *out = entry->array;
    return STATUS_OK;
}

// ---- walking arrays ----------------------------------------------------------------------------

static bool array_at_end(const struct gguf_array *array) {
    return array->next >= array->count;
}

static void array_advance(struct gguf_array *array, size_t bytes) {
    array->at += bytes;
    array->next++;
}

bool gguf_array_string(struct gguf_array *array, struct gguf_text *out) {
    if (array_at_end(array) || array->type != GGUF_TYPE_STRING) {
        return false;
    }
    *out = text_at(array->at);
    array_advance(array, 8 + out->byte_count);
    return true;
}

bool gguf_array_i64(struct gguf_array *array, int64_t *out) {
    bool negative = false;
    uint64_t value = 0;
    if (array_at_end(array) || !load_integer(array->at, array->type, &negative, &value) ||
        (!negative && value > INT64_MAX)) {
        return false;
    }
    *out = (int64_t)value;
    array_advance(array, type_rows[array->type].bytes);
    return true;
}

bool gguf_array_f64(struct gguf_array *array, double *out) {
    if (array_at_end(array) || !load_number(array->at, array->type, out)) {
        return false;
    }
    array_advance(array, type_rows[array->type].bytes);
    return true;
}

bool gguf_array_bool(struct gguf_array *array, bool *out) {
    if (array_at_end(array) || array->type != GGUF_TYPE_BOOL) {
        return false;
    }
    *out = *array->at != 0;
    array_advance(array, 1);
    return true;
}

// ---- listings ----------------------------------------------------------------------------------

size_t gguf_key_count(const struct gguf *gguf) {
    return gguf->entry_count;
}

struct gguf_text gguf_key_at(const struct gguf *gguf, size_t index, enum gguf_type *type) {
    INVARIANT(index < gguf->entry_count);
    if (type != NULL) {
        *type = gguf->entries[index].type;
    }
    return gguf->entries[index].key;
}

size_t gguf_tensor_count(const struct gguf *gguf) {
    return gguf->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index) {
    INVARIANT(index < gguf->tensor_count);
    return &gguf->tensors[index];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name) {
    uint32_t index = *tensor_slot(gguf, name);
    return index == 0 ? NULL : &gguf->tensors[index - 1];
}

uint64_t gguf_data_offset(const struct gguf *gguf) {
    return gguf->data_offset;
}
