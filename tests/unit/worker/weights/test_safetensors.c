// SPDX-License-Identifier: Apache-2.0
// Goal: each field of a safetensors header is judged, and every lie about sizes is refused by name.
// Method: small files built in memory, one wrong thing at a time; every truncation.
#include "common/memory.h"
#include "tests/unit/suites.h"
#include "worker/weights/safetensors.h"

#include <stdio.h>
#include <string.h>

static uint8_t file_bytes[4096];

static size_t build(const char *header, size_t data_bytes) {
    uint64_t header_bytes = strlen(header);
    memcpy(file_bytes, &header_bytes, 8);
    memcpy(file_bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        file_bytes[8 + header_bytes + i] = (uint8_t)i;
    }
    return 8 + header_bytes + data_bytes;
}

// Parses an exact copy on the heap, so that the sanitizer sees a read past the end.
static enum status parse(size_t byte_count, struct safetensors **out, struct error *err) {
    static uint8_t *kept;    // bytes of the file that a caller still reads
    uint8_t *copy = memory_alloc(byte_count);
    memcpy(copy, file_bytes, byte_count);
    struct safetensors *file = NULL;
    enum status status = safetensors_parse(copy, byte_count, &file, err);
    if (out != NULL) {
        *out = file;
        memory_free(kept);
        kept = copy;
        return status;
    }
    safetensors_destroy(file);
    memory_free(copy);
    return status;
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
                           "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]}}  ";

START_TEST(a_good_file_is_read) {
    struct safetensors *file = NULL;
    struct error err = {0};
    ck_assert_msg(parse(build(good, 40), &file, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(safetensors_count(file), 3);
    const struct safetensors_tensor *a = safetensors_find(file, "a");
    ck_assert_uint_eq(a->dim_count, 2);
    ck_assert_uint_eq(a->shape[1], 3);
    ck_assert_uint_eq(a->data[0], 0);
    const struct safetensors_tensor *b = safetensors_find(file, "b");
    ck_assert_int_eq(b->dtype, DTYPE_BF16);
    ck_assert_uint_eq(b->data[0], 24);
    ck_assert(!safetensors_find(file, "c")->supported);
    ck_assert_ptr_null(safetensors_find(file, "d"));
    safetensors_destroy(file);
}
END_TEST

struct bad {
    const char *header;
    size_t data_bytes;
    const char *word;
};

static const struct bad bads[] = {
    {"", 0, "does not start"},
    {"[]", 0, "does not start"},
    {"{", 0, "JSON"},
    {"{\"a\":1}", 0, "must be an object"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "outside"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "belong to none"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "are not the"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "non-negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "non-negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "must be an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "8 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,4]}}", 4,
     "overflows"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]}}", 4,
     "are not the"},
    {"{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown type"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown type"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "outside"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "outside"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "are not the"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, "starts at"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "starts at"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, "twice"},
};

START_TEST(lies_are_refused_by_name) {
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct error err = {0};
        enum status status = parse(build(bads[i].header, bads[i].data_bytes), NULL, &err);
        ck_assert_msg(status == STATUS_CORRUPT || status == STATUS_UNSUPPORTED, "%s: accepted",
                      bads[i].header);
        ck_assert_msg(strstr(err.message, bads[i].word) != NULL, "%s: '%s' lacks '%s'",
                      bads[i].header, err.message, bads[i].word);
    }
}
END_TEST

START_TEST(every_truncation_is_refused) {
    size_t whole = build(good, 40);
    for (size_t length = 0; length < whole; length++) {
        ck_assert_int_eq(parse(length, NULL, NULL), STATUS_CORRUPT);
    }
}
END_TEST

START_TEST(a_header_length_past_the_file_or_the_limit_is_refused) {
    size_t whole = build(good, 40);
    uint64_t lengths[] = {whole, UINT64_MAX, UINT64_MAX - 7, 100000001};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(file_bytes, &lengths[i], 8);
        ck_assert_int_eq(parse(whole, NULL, NULL), STATUS_CORRUPT);
    }
}
END_TEST

Suite *suite_safetensors(void) {
    Suite *suite = suite_create("worker/weights/safetensors");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, a_good_file_is_read);
    tcase_add_test(tc, lies_are_refused_by_name);
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_test(tc, a_header_length_past_the_file_or_the_limit_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
