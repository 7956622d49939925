// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_GGUF_H
#define COMMON_GGUF_H

#include "common/dtype.h"
#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// Reader of a GGUF file (versions 2 and 3) that lies in memory: metadata and tensor table.
//
// The idea: gguf_parse checks everything once — each count, length, type, dimension and offset
// against the bytes that are really there — so that whoever holds a `struct gguf` may follow its
// pointers without looking again. Nothing is copied but tensor names: strings, arrays and tensor
// data point into the caller's bytes. Layout: the GGUF specification of the ggml project.
//
//   Owns       its two tables; keeps `bytes`, which must outlive it and must not change.
//   Thread     any; immutable after gguf_parse.
//   Allocates  the tables, in gguf_parse only; their size is bounded by the file's length.
//   Fails      gguf_parse: CORRUPT for bytes that contradict themselves or the file's length,
//              UNSUPPORTED for a version or tensor type that is not built, EXHAUSTED. The sentence
//              names the key or tensor and the file offset.

struct gguf;

// Value types, with the file's own numbers.
enum gguf_type {
    GGUF_TYPE_U8 = 0,
    GGUF_TYPE_I8 = 1,
    GGUF_TYPE_U16 = 2,
    GGUF_TYPE_I16 = 3,
    GGUF_TYPE_U32 = 4,
    GGUF_TYPE_I32 = 5,
    GGUF_TYPE_F32 = 6,
    GGUF_TYPE_BOOL = 7,
    GGUF_TYPE_STRING = 8,
    GGUF_TYPE_ARRAY = 9,
    GGUF_TYPE_U64 = 10,
    GGUF_TYPE_I64 = 11,
    GGUF_TYPE_F64 = 12,
    GGUF_TYPE_COUNT
};

enum { GGUF_DIMS_MAX = 4, GGUF_NAME_BYTES = 64 };

// Bytes inside the file: no terminator follows, any byte may occur, also NUL.
struct gguf_text {
    const char *bytes;
    size_t byte_count;
};

// A walk over one array value; copy it to walk again. `count` stays, `next` moves.
struct gguf_array {
    enum gguf_type type;    // of the elements; never ARRAY
    uint64_t count;
    uint64_t next;        // index of the element that the next step reads
    const uint8_t *at;    // where that element lies
};

struct gguf_tensor {
    char name[GGUF_NAME_BYTES];    // printable, NUL-terminated, unique in the file
    enum dtype dtype;
    uint32_t dim_count;            // 1..4
    uint64_t ne[GGUF_DIMS_MAX];    // ne[0] varies fastest: a PyTorch [out, in] matrix is {in, out}
    uint64_t element_count;        // product of ne
    uint64_t file_offset;          // of the first byte, from the start of the file
    uint64_t byte_count;
    const uint8_t *data;    // byte_count bytes inside the file; aligned as general.alignment says
};

// ---- life cycle --------------------------------------------------------------------------------

enum status gguf_parse(const void *bytes, size_t byte_count, struct gguf **out,
                       struct error *err) MUST_USE;
void gguf_destroy(struct gguf *gguf);    // accepts NULL

// True when the bytes start like a GGUF file of any version.
bool gguf_is_magic(const void *bytes, size_t byte_count);

// ---- metadata ----------------------------------------------------------------------------------
// As with json_field_*: an absent key leaves `*out` alone; it is OK when `found` is given, and
// CORRUPT when `found` is NULL. A value of another type, or one that does not fit, is CORRUPT too,
// with the key named.

// Any integer type whose value fits.
enum status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *out, bool *found,
                         struct error *err) MUST_USE;
enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *out, bool *found,
                         struct error *err) MUST_USE;
// f32, f64 or any integer type.
enum status gguf_get_f64(const struct gguf *gguf, const char *key, double *out, bool *found,
                         struct error *err) MUST_USE;
enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *out, bool *found,
                         struct error *err) MUST_USE;
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, bool *found,
                          struct error *err) MUST_USE;
enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_text *out,
                            bool *found, struct error *err) MUST_USE;
enum status gguf_get_array(const struct gguf *gguf, const char *key, struct gguf_array *out,
                           bool *found, struct error *err) MUST_USE;

// The next element; false at the end or when the elements are of another type. Integers of every
// width come out of gguf_array_i64 (false for a u64 above INT64_MAX), floats and integers out of
// gguf_array_f64.
bool gguf_array_string(struct gguf_array *array, struct gguf_text *out);
bool gguf_array_i64(struct gguf_array *array, int64_t *out);
bool gguf_array_f64(struct gguf_array *array, double *out);
bool gguf_array_bool(struct gguf_array *array, bool *out);

// All keys in file order, for listings and for keys with an open end (`tokenizer.chat_template.*`).
size_t gguf_key_count(const struct gguf *gguf);
struct gguf_text gguf_key_at(const struct gguf *gguf, size_t index, enum gguf_type *type);

const char *gguf_type_name(enum gguf_type type);    // "u32"

// ---- tensors -----------------------------------------------------------------------------------

size_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index);    // file order
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name);    // or NULL
uint64_t gguf_data_offset(const struct gguf *gguf);    // where tensor data starts in the file

#endif
