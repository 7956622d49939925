// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_JSON_H
#define COMMON_JSON_H

#include "common/buf.h"
#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// The door to JSON: strict bounded reading, typed getters whose errors name the path, and writing.
//
// The idea: a parsed document is immutable and is read through `struct json` handles that live as
// long as the document. `null` means absent for every optional field, an integer may be written
// 256.0, duplicate keys: the last wins, lone surrogate escapes become U+FFFD. Getters that take
// `required` fail with "field 'a.b' ..." sentences fit for a client.
//
//   Owns       json_doc owns every value; handles are borrowed.
//   Thread     one at a time per document.
//   Allocates  parsing, through common/memory.
//   Fails      INVALID with the position or the path; EXHAUSTED without memory.

struct json_doc;
struct json;    // one value of a document

enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_INT,    // fits int64 exactly (256.0 counts)
    JSON_KIND_REAL,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT,
};

// Parses `bytes` (UTF-8, one value, nothing after it). Depth above BOUND_JSON_DEPTH is INVALID.
enum status json_parse(const char *bytes, size_t byte_count, struct json_doc **out,
                       struct error *err) MUST_USE;
void json_destroy(struct json_doc *doc);
const struct json *json_root(const struct json_doc *doc);

enum json_kind json_kind(const struct json *value);    // NULL handle reads as JSON_KIND_NULL
const char *json_kind_name(enum json_kind kind);       // "an object"
bool json_absent(const struct json *value);            // absent or null

bool json_bool(const struct json *value);        // false unless a bool
int64_t json_int(const struct json *value);      // 0 unless JSON_KIND_INT
double json_number(const struct json *value);    // 0 unless INT or REAL
// Bytes may contain NUL; NULL unless a string.
const char *json_text(const struct json *value, size_t *byte_count);

size_t json_count(const struct json *value);    // elements of an array or object
const struct json *json_at(const struct json *array, size_t index);
const struct json *json_get(const struct json *object, const char *key);    // NULL when absent

// An object whose keys were looked at once: most keys that it lacks are told so without a search.
// For readers that ask one object for dozens of optional keys.
struct json_fields {
    const struct json *object;
    uint64_t seen;    // a bit for each hash of a key
};
struct json_fields json_fields_of(const struct json *object);
const struct json *json_fields_get(const struct json_fields *fields, const char *key);

// Walks an object in file order: for (it = json_iter(o); it; it = json_iter_next(o, it)).
void *json_iter(const struct json *object);
void *json_iter_next(const struct json *object, void *iter);
const char *json_iter_key(void *iter, size_t *byte_count);
const struct json *json_iter_value(void *iter);

// Typed fields. Absent or null leaves `*out` alone and is OK unless `required`; a wrong type or a
// value outside [min, max] is INVALID with the field named. `found` may be NULL.
struct json_range_int {
    int64_t min, max;
};
struct json_range_real {
    double min, max;
};
enum status json_field_bool(const struct json *object, const char *key, bool *out, bool *found,
                            struct error *err) MUST_USE;
enum status json_field_int(const struct json *object, const char *key, struct json_range_int range,
                           int64_t *out, bool *found, struct error *err) MUST_USE;
enum status json_field_real(const struct json *object, const char *key,
                            struct json_range_real range, double *out, bool *found,
                            struct error *err) MUST_USE;
enum status json_field_string(const struct json *object, const char *key, const char **out,
                              size_t *byte_count, bool *found, struct error *err) MUST_USE;

// Serialises any value compactly; non-ASCII stays UTF-8, the three line separators U+0085, U+2028,
// U+2029 and all controls are escaped (see json_write_string). Keys keep file order, or are sorted.
enum json_style { JSON_STYLE_COMPACT, JSON_STYLE_SPACED /* ", " and ": " as Python's dumps */ };
struct json_write_options {
    enum json_style style;
    bool sort_keys;
    bool ascii_only;    // \uXXXX for everything above U+007F
    uint32_t indent;    // spaces per level, 0 = one line
};
void json_write(const struct json *value, const struct json_write_options *options,
                struct buf *out);

// The one escape function: writes `"..."` for UTF-8 `bytes`. Invalid UTF-8 becomes U+FFFD.
void json_write_string(struct buf *out, const char *bytes, size_t byte_count);
// Shortest text that reads back as the same float32 with 9 significant digits at most; not finite
// becomes -9999.0 or 9999.0, NaN becomes null.
void json_write_float(struct buf *out, float value);
void json_write_double(struct buf *out, double value);    // 17 digits at most
// Members of an object that says why something failed: "code", "reason" and, where there is one,
// "hint".
void json_write_failure(struct buf *out, const struct error *err);

#endif
