// SPDX-License-Identifier: Apache-2.0
// Goal: a good file reads back exactly, and every field of a bad one is refused by name and offset.
// Method: build files in memory, change one field at a time, stand at each bound and one past it.
#include "common/bounds.h"
#include "common/buf.h"
#include "common/gguf.h"
#include "common/memory.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

// ---- a small writer ----------------------------------------------------------------------------

static void put(struct buf *b, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) {
        buf_append_byte(b, (uint8_t)(i < 8 ? value >> (8 * i) : 0));
    }
}

static void put_text(struct buf *b, const char *text) {
    put(b, strlen(text), 8);
    buf_append_str(b, text);
}

static void put_header(struct buf *b, uint64_t tensors, uint64_t keys) {
    buf_init(b, 1 << 24);
    buf_append_str(b, "GGUF");
    put(b, 3, 4);
    put(b, tensors, 8);
    put(b, keys, 8);
}

static void put_u32(struct buf *b, const char *key, uint32_t value) {
    put_text(b, key);
    put(b, GGUF_TYPE_U32, 4);
    put(b, value, 4);
}

static void put_tensor(struct buf *b, const char *name, uint64_t columns, uint64_t rows,
                       uint32_t type, uint64_t offset) {
    put_text(b, name);
    put(b, 2, 4);
    put(b, columns, 8);
    put(b, rows, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void pad(struct buf *b, size_t alignment) {
    while (b->bytes_used % alignment != 0) {
        buf_append_byte(b, 0);
    }
}

static enum status parse(struct buf *b, struct gguf **gguf, struct error *err) {
    ck_assert_int_eq(buf_status(b), STATUS_OK);
    memset(err, 0, sizeof *err);
    *gguf = NULL;
    // A copy of the exact length, so that the address sanitizer sees one byte too many.
    uint8_t *exact = memory_alloc(b->bytes_used);
    memcpy(exact, b->data, b->bytes_used);
    enum status status = gguf_parse(exact, b->bytes_used, gguf, err);
    if (status == STATUS_OK) {
        gguf_destroy(*gguf);
        *gguf = NULL;
    }
    memory_free(exact);
    return status;
}

static void expect(struct buf *b, enum status want, const char *sentence) {
    struct gguf *gguf = NULL;
    struct error err;
    enum status got = parse(b, &gguf, &err);
    ck_assert_msg(got == want, "wanted %s, got %s: %s", status_name(want), status_name(got),
                  err.message);
    if (sentence != NULL) {
        ck_assert_msg(strstr(err.message, sentence) != NULL, "'%s' not in '%s'", sentence,
                      err.message);
    }
    buf_deinit(b);
}

// Two tensors: F32 [3, 2] of 24 bytes, Q8_0 [32, 2] of 68 bytes at 32.
static void put_two_tensors(struct buf *b) {
    put_header(b, 2, 0);
    put_tensor(b, "a.weight", 3, 2, 0, 0);
    put_tensor(b, "b.weight", 32, 2, 8, 32);
    pad(b, 32);
}

// ---- good files --------------------------------------------------------------------------------

START_TEST(reads_every_value_type) {
    struct buf b;
    put_header(&b, 0, 14);
    static const struct {
        const char *key;
        enum gguf_type type;
        uint64_t raw;
        uint32_t bytes;
    } rows[] = {
        {"u8", GGUF_TYPE_U8, 200, 1},           {"i8", GGUF_TYPE_I8, 0xFE, 1},
        {"u16", GGUF_TYPE_U16, 65535, 2},       {"i16", GGUF_TYPE_I16, 0x8000, 2},
        {"u32", GGUF_TYPE_U32, 4000000000u, 4}, {"i32", GGUF_TYPE_I32, 0xFFFFFFFF, 4},
        {"f32", GGUF_TYPE_F32, 0x3FC00000, 4},  {"bool", GGUF_TYPE_BOOL, 1, 1},
        {"u64", GGUF_TYPE_U64, UINT64_MAX, 8},  {"i64", GGUF_TYPE_I64, 7, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_text(&b, rows[i].key);
        put(&b, rows[i].type, 4);
        put(&b, rows[i].raw, rows[i].bytes);
    }
    put_text(&b, "f64");
    put(&b, GGUF_TYPE_F64, 4);
    put(&b, 0x3FF8000000000000u, 8);
    put_text(&b, "s");
    put(&b, GGUF_TYPE_STRING, 4);
    put_text(&b, "text");
    put_text(&b, "as");
    put(&b, GGUF_TYPE_ARRAY, 4);
    put(&b, GGUF_TYPE_STRING, 4);
    put(&b, 3, 8);
    put_text(&b, "x");
    put_text(&b, "");
    put_text(&b, "yz");
    put_text(&b, "ai");
    put(&b, GGUF_TYPE_ARRAY, 4);
    put(&b, GGUF_TYPE_I16, 4);
    put(&b, 2, 8);
    put(&b, 0xFFFF, 2);
    put(&b, 5, 2);

    struct gguf *g = NULL;
    struct error err = {0};
    ck_assert_int_eq(gguf_parse(b.data, b.bytes_used, &g, &err), STATUS_OK);
    uint64_t u = 0;
    double d = 0;
    float f = 0;
    bool flag = false;
    ck_assert_int_eq(gguf_get_u64(g, "u8", &u, NULL, &err), STATUS_OK);
    ck_assert_uint_eq(u, 200);
    ck_assert_int_eq(gguf_get_u64(g, "u64", &u, NULL, &err), STATUS_OK);
    ck_assert_uint_eq(u, UINT64_MAX);
    ck_assert_int_eq(gguf_get_u64(g, "i64", &u, NULL, &err), STATUS_OK);
    ck_assert_uint_eq(u, 7);
    ck_assert_int_eq(gguf_get_f64(g, "i16", &d, NULL, &err), STATUS_OK);
    ck_assert(d == -32768.0);
    ck_assert_int_eq(gguf_get_f64(g, "f64", &d, NULL, &err), STATUS_OK);
    ck_assert(d == 1.5);
    ck_assert_int_eq(gguf_get_f32(g, "f32", &f, NULL, &err), STATUS_OK);
    ck_assert(f == 1.5f);
    ck_assert_int_eq(gguf_get_bool(g, "bool", &flag, NULL, &err), STATUS_OK);
    ck_assert(flag);
    struct gguf_text text;
    ck_assert_int_eq(gguf_get_string(g, "s", &text, NULL, &err), STATUS_OK);
    ck_assert_mem_eq(text.bytes, "text", 4);
    struct gguf_array array;
    ck_assert_int_eq(gguf_get_array(g, "as", &array, NULL, &err), STATUS_OK);
    ck_assert_uint_eq(array.count, 3);
    size_t lengths[] = {1, 0, 2};
    for (int i = 0; i < 3; i++) {
        ck_assert(gguf_array_string(&array, &text));
        ck_assert_uint_eq(text.byte_count, lengths[i]);
    }
    ck_assert(!gguf_array_string(&array, &text));
    ck_assert_int_eq(gguf_get_array(g, "ai", &array, NULL, &err), STATUS_OK);
    int64_t n = 0;
    ck_assert(!gguf_array_string(&array, &text));
    ck_assert(gguf_array_i64(&array, &n) && n == -1);
    ck_assert(gguf_array_f64(&array, &d) && d == 5.0);
    ck_assert(!gguf_array_i64(&array, &n));
    ck_assert_uint_eq(gguf_key_count(g), 14);
    enum gguf_type type;
    ck_assert_mem_eq(gguf_key_at(g, 1, &type).bytes, "i8", 2);
    ck_assert_int_eq(type, GGUF_TYPE_I8);
    gguf_destroy(g);
    buf_deinit(&b);
}
END_TEST

START_TEST(getters_name_what_is_missing_or_wrong) {
    struct buf b;
    put_header(&b, 0, 2);
    put_text(&b, "negative");
    put(&b, GGUF_TYPE_I32, 4);
    put(&b, 0xFFFFFFFF, 4);
    put_text(&b, "big");
    put(&b, GGUF_TYPE_U64, 4);
    put(&b, (uint64_t)UINT32_MAX + 1, 8);
    struct gguf *g = NULL;
    struct error err = {0};
    ck_assert_int_eq(gguf_parse(b.data, b.bytes_used, &g, &err), STATUS_OK);
    uint64_t u = 42;
    uint32_t small = 43;
    bool found = true;
    ck_assert_int_eq(gguf_get_u64(g, "none", &u, &found, &err), STATUS_OK);
    ck_assert(!found);
    ck_assert_uint_eq(u, 42);
    ck_assert_int_eq(gguf_get_u32(g, "none", &small, &found, &err), STATUS_OK);
    ck_assert_uint_eq(small, 43);
    ck_assert_int_eq(gguf_get_u64(g, "none", &u, NULL, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.message, "'none'"));
    ck_assert_int_eq(gguf_get_u64(g, "negative", &u, &found, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(gguf_get_u32(g, "big", &small, &found, NULL), STATUS_CORRUPT);
    bool flag = false;
    struct gguf_text text;
    struct gguf_array array;
    double d = 0;
    ck_assert_int_eq(gguf_get_bool(g, "big", &flag, &found, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(gguf_get_string(g, "big", &text, &found, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(gguf_get_array(g, "big", &array, &found, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(gguf_get_f64(g, "big", &d, &found, NULL), STATUS_OK);
    gguf_destroy(g);
    buf_deinit(&b);
}
END_TEST

START_TEST(places_tensors_in_the_data_section) {
    struct buf b;
    put_two_tensors(&b);
    size_t data = b.bytes_used;
    buf_extend(&b, 32 + 68);    // the last tensor needs no padding
    struct gguf *g = NULL;
    struct error err = {0};
    ck_assert_int_eq(gguf_parse(b.data, b.bytes_used, &g, &err), STATUS_OK);
    ck_assert_uint_eq(gguf_tensor_count(g), 2);
    ck_assert_uint_eq(gguf_data_offset(g), data);
    const struct gguf_tensor *t = gguf_tensor_find(g, "b.weight");
    ck_assert_ptr_eq(t, gguf_tensor_at(g, 1));
    ck_assert_int_eq(t->dtype, DTYPE_Q8_0);
    ck_assert_uint_eq(t->ne[0], 32);
    ck_assert_uint_eq(t->ne[1], 2);
    ck_assert_uint_eq(t->ne[2], 1);
    ck_assert_uint_eq(t->element_count, 64);
    ck_assert_uint_eq(t->byte_count, 68);
    ck_assert_uint_eq(t->file_offset, data + 32);
    ck_assert_ptr_eq(t->data, b.data + data + 32);
    ck_assert_ptr_null(gguf_tensor_find(g, "c.weight"));
    gguf_destroy(g);
    buf_deinit(&b);
}
END_TEST

// ---- bad files ---------------------------------------------------------------------------------

START_TEST(every_cut_of_a_good_file_is_refused) {
    struct buf b;
    put_header(&b, 1, 3);
    put_u32(&b, "general.alignment", 64);
    put_text(&b, "s");
    put(&b, GGUF_TYPE_ARRAY, 4);
    put(&b, GGUF_TYPE_STRING, 4);
    put(&b, 2, 8);
    put_text(&b, "one");
    put_text(&b, "two");
    put_text(&b, "f");
    put(&b, GGUF_TYPE_BOOL, 4);
    put(&b, 0, 1);
    put_tensor(&b, "t", 4, 1, 0, 0);
    pad(&b, 64);
    buf_extend(&b, 16);
    size_t whole = b.bytes_used;
    for (size_t cut = 0; cut < whole; cut++) {
        struct gguf *g = NULL;
        struct error err;
        b.bytes_used = cut;
        ck_assert_msg(parse(&b, &g, &err) == STATUS_CORRUPT, "cut at %zu of %zu: %s", cut, whole,
                      err.message);
    }
    b.bytes_used = whole;
    expect(&b, STATUS_OK, NULL);
}
END_TEST

START_TEST(refuses_other_files_and_versions) {
    struct buf b;
    buf_init(&b, 1024);
    buf_append_str(&b, "GGML");
    put(&b, 3, 4);
    expect(&b, STATUS_CORRUPT, "not a GGUF file");
    static const struct {
        uint32_t version;
        enum status want;
        const char *sentence;
    } rows[] = {
        {1, STATUS_UNSUPPORTED, "version 1"},
        {2, STATUS_OK, NULL},
        {3, STATUS_OK, NULL},
        {4, STATUS_UNSUPPORTED, "version 4"},
        {3u << 24, STATUS_UNSUPPORTED, "big-endian"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        buf_init(&b, 1024);
        buf_append_str(&b, "GGUF");
        put(&b, rows[i].version, 4);
        put(&b, 0, 16);
        expect(&b, rows[i].want, rows[i].sentence);
    }
}
END_TEST

START_TEST(counts_are_checked_before_anything_is_allocated) {
    struct buf b;
    put_header(&b, 0, UINT64_MAX);
    expect(&b, STATUS_CORRUPT, "metadata keys");
    put_header(&b, UINT64_MAX, 0);
    expect(&b, STATUS_CORRUPT, "tensors");
    put_header(&b, 0, BOUND_GGUF_KEYS + 1);
    buf_extend(&b, (BOUND_GGUF_KEYS + 1) * 13);
    expect(&b, STATUS_CORRUPT, "metadata keys");
}
END_TEST

START_TEST(as_many_keys_as_the_bound_are_read) {
    struct buf b;
    put_header(&b, 0, BOUND_GGUF_KEYS);
    for (uint32_t i = 0; i < BOUND_GGUF_KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        put_text(&b, key);
        put(&b, GGUF_TYPE_BOOL, 4);
        put(&b, 1, 1);
    }
    expect(&b, STATUS_OK, NULL);
}
END_TEST

START_TEST(keys_have_a_length_and_occur_once) {
    struct buf b;
    char key[BOUND_GGUF_KEY_BYTES + 2];
    memset(key, 'k', sizeof key);
    key[BOUND_GGUF_KEY_BYTES + 1] = '\0';
    put_header(&b, 0, 1);
    put_u32(&b, key, 1);
    expect(&b, STATUS_CORRUPT, "1025 bytes");
    key[BOUND_GGUF_KEY_BYTES] = '\0';
    put_header(&b, 0, 1);
    put_u32(&b, key, 1);
    expect(&b, STATUS_OK, NULL);
    put_header(&b, 0, 1);
    put_u32(&b, "", 1);
    expect(&b, STATUS_CORRUPT, "0 bytes");
    put_header(&b, 0, 2);
    put_u32(&b, "twice", 1);
    put_u32(&b, "twice", 1);
    expect(&b, STATUS_CORRUPT, "key 'twice' occurs twice");
}
END_TEST

START_TEST(value_types_and_bools_are_checked) {
    struct buf b;
    put_header(&b, 0, 1);
    put_text(&b, "k");
    put(&b, GGUF_TYPE_COUNT, 4);
    put(&b, 0, 8);
    expect(&b, STATUS_CORRUPT, "key 'k' has value type 13 at offset 33");
    put_header(&b, 0, 1);
    put_text(&b, "k\n");
    put(&b, GGUF_TYPE_BOOL, 4);
    put(&b, 2, 1);
    expect(&b, STATUS_CORRUPT, "key 'k?' has 2 at offset");
    put_header(&b, 0, 1);
    put_text(&b, "k");
    put(&b, GGUF_TYPE_ARRAY, 4);
    put(&b, GGUF_TYPE_ARRAY, 4);
    put(&b, 0, 8);
    expect(&b, STATUS_UNSUPPORTED, "array of arrays");
}
END_TEST

START_TEST(lengths_that_lie_are_refused) {
    struct buf b;
    put_header(&b, 0, 1);
    put(&b, UINT64_MAX, 8);
    put(&b, 0, 8);
    expect(&b, STATUS_CORRUPT, "a key at offset 24 says it has 18446744073709551615 bytes");
    for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++) {
        if (type == GGUF_TYPE_ARRAY) {
            continue;
        }
        put_header(&b, 0, 1);
        put_text(&b, "k");
        put(&b, GGUF_TYPE_ARRAY, 4);
        put(&b, type, 4);
        put(&b, (uint64_t)1 << 61, 8);    // times 8 it would wrap to zero
        put(&b, 0, 64);
        expect(&b, STATUS_CORRUPT, "elements, but only 64 bytes follow");
    }
}
END_TEST

START_TEST(alignment_is_a_power_of_two_within_its_bound) {
    static const uint32_t bad[] = {0, 3, 48, BOUND_GGUF_ALIGNMENT_BYTES * 2};
    struct buf b;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_header(&b, 0, 1);
        put_u32(&b, "general.alignment", bad[i]);
        expect(&b, STATUS_CORRUPT, "general.alignment");
    }
    static const uint32_t good[] = {1, 8, BOUND_GGUF_ALIGNMENT_BYTES};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        put_header(&b, 1, 1);
        put_u32(&b, "general.alignment", good[i]);
        put_tensor(&b, "t", 4, 1, 0, 0);
        pad(&b, good[i]);
        buf_extend(&b, 16);
        expect(&b, STATUS_OK, NULL);
    }
}
END_TEST

START_TEST(tensor_names_have_a_length_are_printable_and_occur_once) {
    struct buf b;
    char name[GGUF_NAME_BYTES + 1];
    memset(name, 'n', sizeof name);
    name[GGUF_NAME_BYTES] = '\0';
    put_header(&b, 1, 0);
    put_tensor(&b, name, 4, 1, 0, 0);
    expect(&b, STATUS_CORRUPT, "64 bytes");
    name[GGUF_NAME_BYTES - 1] = '\0';
    put_header(&b, 1, 0);
    put_tensor(&b, name, 4, 1, 0, 0);
    pad(&b, 32);
    buf_extend(&b, 16);
    expect(&b, STATUS_OK, NULL);
    put_header(&b, 1, 0);
    put_tensor(&b, "", 4, 1, 0, 0);
    expect(&b, STATUS_CORRUPT, "0 bytes");
    put_header(&b, 1, 0);
    put_tensor(&b, "bad\nname", 4, 1, 0, 0);
    expect(&b, STATUS_CORRUPT, "'bad?name' at offset 24");
    put_header(&b, 2, 0);
    put_tensor(&b, "t", 4, 1, 0, 0);
    put_tensor(&b, "t", 4, 1, 0, 32);
    expect(&b, STATUS_CORRUPT, "tensor 't' occurs twice");
}
END_TEST

START_TEST(shapes_are_checked) {
    struct buf b;
    for (uint32_t dims = 0; dims <= 5; dims++) {
        put_header(&b, 1, 0);
        put_text(&b, "t");
        put(&b, dims, 4);
        for (uint32_t i = 0; i < dims; i++) {
            put(&b, 2, 8);
        }
        put(&b, 0, 4);
        put(&b, 0, 8);
        pad(&b, 32);
        buf_extend(&b, 64);
        bool good = dims >= 1 && dims <= 4;
        expect(&b, good ? STATUS_OK : STATUS_CORRUPT, good ? NULL : "dimensions at offset 33");
    }
    put_header(&b, 1, 0);
    put_tensor(&b, "t", 4, 0, 0, 0);
    expect(&b, STATUS_CORRUPT, "tensor 't': its dimension 1 is 0 at offset 45");
    put_header(&b, 1, 0);
    put_tensor(&b, "t", (uint64_t)1 << 32, (uint64_t)1 << 32, 0, 0);
    expect(&b, STATUS_CORRUPT, "the product overflows");
    put_header(&b, 1, 0);
    put_tensor(&b, "t", (uint64_t)1 << 32, (uint64_t)1 << 31, 0, 0);
    expect(&b, STATUS_CORRUPT, "the product overflows");
    put_header(&b, 1, 0);
    put_tensor(&b, "t", (uint64_t)1 << 32, (uint64_t)1 << 30, 0, 0);    // 2^62 elements, 2^64 bytes
    expect(&b, STATUS_CORRUPT, "its size in bytes overflows");
    put_header(&b, 1, 0);
    put_tensor(&b, "t", 33, 1, 8, 0);
    expect(&b, STATUS_CORRUPT, "whole Q8_0 blocks of 32");
}
END_TEST

START_TEST(unknown_tensor_types_are_refused_by_name) {
    struct buf b;
    static const uint32_t types[] = {4, 16, 26, 39, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        put_header(&b, 1, 0);
        put_tensor(&b, "blk.0.x", 32, 1, types[i], 0);
        expect(&b, STATUS_UNSUPPORTED, "tensor 'blk.0.x': it has ggml type");
    }
}
END_TEST

START_TEST(offsets_follow_each_other_and_stay_inside_the_file) {
    struct buf b;
    static const uint64_t wrong[] = {0, 24, 31, 64, UINT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        put_header(&b, 2, 0);
        put_tensor(&b, "a", 3, 2, 0, 0);
        put_tensor(&b, "b", 4, 1, 0, wrong[i]);
        pad(&b, 32);
        buf_extend(&b, 256);
        expect(&b, STATUS_CORRUPT, "tensor 'b': it says at file offset");
    }
    put_two_tensors(&b);
    buf_extend(&b, 32 + 67);
    expect(&b, STATUS_CORRUPT, "tensor 'b.weight' needs 68 bytes at offset");
    // Sizes whose sum wraps: each alone would still be representable.
    put_header(&b, 3, 0);
    put_tensor(&b, "a", (uint64_t)1 << 61, 1, 0, 0);
    put_tensor(&b, "b", (uint64_t)1 << 61, 1, 0, (uint64_t)1 << 63);
    put_tensor(&b, "c", 1, 1, 0, 0);
    expect(&b, STATUS_CORRUPT, "overflow");
}
END_TEST

START_TEST(every_failed_allocation_ends_in_a_status) {
    struct buf b;
    put_two_tensors(&b);
    buf_extend(&b, 100);
    enum status status = STATUS_EXHAUSTED;
    for (uint64_t nth = 1; status != STATUS_OK; nth++) {
        struct gguf *g = NULL;
        memory_fail_nth(nth);
        status = gguf_parse(b.data, b.bytes_used, &g, NULL);
        memory_fail_nth(0);
        ck_assert(status == STATUS_OK || status == STATUS_EXHAUSTED);
        ck_assert_uint_lt(nth, 100);
        gguf_destroy(g);
    }
    buf_deinit(&b);
}
END_TEST

Suite *suite_gguf(void) {
    Suite *suite = suite_create("common/gguf");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, reads_every_value_type);
    tcase_add_test(tc, getters_name_what_is_missing_or_wrong);
    tcase_add_test(tc, places_tensors_in_the_data_section);
    tcase_add_test(tc, every_cut_of_a_good_file_is_refused);
    tcase_add_test(tc, refuses_other_files_and_versions);
    tcase_add_test(tc, counts_are_checked_before_anything_is_allocated);
    tcase_add_test(tc, as_many_keys_as_the_bound_are_read);
    tcase_add_test(tc, keys_have_a_length_and_occur_once);
    tcase_add_test(tc, value_types_and_bools_are_checked);
    tcase_add_test(tc, lengths_that_lie_are_refused);
    tcase_add_test(tc, alignment_is_a_power_of_two_within_its_bound);
    tcase_add_test(tc, tensor_names_have_a_length_are_printable_and_occur_once);
    tcase_add_test(tc, shapes_are_checked);
    tcase_add_test(tc, unknown_tensor_types_are_refused_by_name);
    tcase_add_test(tc, offsets_follow_each_other_and_stay_inside_the_file);
    tcase_add_test(tc, every_failed_allocation_ends_in_a_status);
    suite_add_tcase(suite, tc);
    return suite;
}
