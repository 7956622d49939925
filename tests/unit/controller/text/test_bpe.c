// SPDX-License-Identifier: Apache-2.0
// Goal: merging gives what the definition says, for short and long words, in n log n.
// Method: random small vocabularies against a merge loop written straight from the definition.
#include "common/bounds.h"
#include "common/memory.h"
#include "common/rng.h"
#include "controller/text/bpe.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

enum { LETTERS = 4, MERGES_MAX = 60 };

struct pair {
    uint32_t left, right, merged;
};

struct world {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct pair pairs[MERGES_MAX];    // rank = index
    uint32_t pair_count;
};

// Tokens are words over a, b, c, d; each merge joins two earlier tokens.
static void world_init(struct world *world, struct rng *rng) {
    char text[MERGES_MAX + LETTERS][64];
    uint32_t token_count = LETTERS;
    memset(world, 0, sizeof *world);
    vocabulary_init(&world->vocabulary);
    for (uint32_t i = 0; i < LETTERS; i++) {
        snprintf(text[i], sizeof text[i], "%c", 'a' + (int)i);
    }
    while (world->pair_count < MERGES_MAX) {
        uint32_t left = (uint32_t)rng_below(rng, token_count);
        uint32_t right = (uint32_t)rng_below(rng, token_count);
        char joint[130];
        snprintf(joint, sizeof joint, "%s%s", text[left], text[right]);
        bool known = strlen(joint) > 40;
        for (uint32_t i = 0; i < token_count; i++) {
            known = known || strcmp(text[i], joint) == 0;
        }
        if (known && rng_below(rng, 200) != 0) {
            continue;
        }
        if (known) {
            break;
        }
        snprintf(text[token_count], sizeof text[0], "%.60s", joint);
        world->pairs[world->pair_count++] =
            (struct pair){.left = left, .right = right, .merged = token_count};
        token_count++;
    }
    for (uint32_t i = 0; i < token_count; i++) {
        ck_assert_int_eq(
            vocabulary_set_spelled(&world->vocabulary, i, text[i], strlen(text[i]), 0, NULL),
            STATUS_OK);
    }
    ck_assert_int_eq(vocabulary_seal(&world->vocabulary, NULL), STATUS_OK);
    ck_assert_int_eq(bpe_init(&world->bpe, &world->vocabulary, world->pair_count, NULL), STATUS_OK);
    for (uint32_t i = 0; i < world->pair_count; i++) {
        const char *left = text[world->pairs[i].left];
        const char *right = text[world->pairs[i].right];
        ck_assert_int_eq(
            bpe_add_merge(&world->bpe, i, left, strlen(left), right, strlen(right), NULL),
            STATUS_OK);
    }
}

static void world_deinit(struct world *world) {
    bpe_deinit(&world->bpe);
    vocabulary_deinit(&world->vocabulary);
}

// The definition: again and again the pair of lowest rank, leftmost first.
static size_t by_definition(const struct world *world, const char *word, uint32_t *ids) {
    size_t count = strlen(word);
    for (size_t i = 0; i < count; i++) {
        ids[i] = (uint32_t)(word[i] - 'a');
    }
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (uint32_t r = 0; r < world->pair_count && r < best; r++) {
                if (world->pairs[r].left == ids[i] && world->pairs[r].right == ids[i + 1]) {
                    best = r;
                    at = i;
                }
            }
        }
        if (best == UINT32_MAX) {
            return count;
        }
        ids[at] = world->pairs[best].merged;
        memmove(&ids[at + 1], &ids[at + 2], (count - at - 2) * sizeof *ids);
        count--;
    }
}

static void compare(const struct world *world, const char *word) {
    uint32_t want[512];
    size_t want_count = by_definition(world, word, want);
    struct token_list got;
    token_list_init(&got, 512);
    ck_assert_int_eq(bpe_word(&world->bpe, (const uint8_t *)word, strlen(word), &got, NULL),
                     STATUS_OK);
    ck_assert_uint_eq(got.count, want_count);
    ck_assert_mem_eq(got.ids, want, want_count * sizeof *want);
    token_list_deinit(&got);
}

START_TEST(merges_as_the_definition_says) {
    struct rng rng;
    rng_init(&rng, 11);
    for (int round = 0; round < 60; round++) {
        struct world world;
        world_init(&world, &rng);
        for (int i = 0; i < 60; i++) {
            char word[300];
            // Both paths, and both sides of the border between them.
            size_t length = 1 + (size_t)rng_below(&rng, i % 3 == 0 ? 280 : 12);
            if (i < 3) {
                length = BPE_SHORT - 1 + (size_t)i;
            }
            uint64_t letters = 1 + rng_below(&rng, LETTERS);
            for (size_t k = 0; k < length; k++) {
                word[k] = (char)('a' + (int)rng_below(&rng, letters));
            }
            word[length] = '\0';
            compare(&world, word);
        }
        world_deinit(&world);
    }
}
END_TEST

// aa, aaaa, ... up to 2^20 times a: every merge touches the heap.
START_TEST(a_megabyte_in_one_word_takes_no_quadratic_time) {
    struct vocabulary vocabulary;
    struct bpe bpe;
    vocabulary_init(&vocabulary);
    char letters[4096];
    memset(letters, 'a', sizeof letters);
    uint32_t count = 0;
    for (size_t length = 1; length <= 2048; length *= 2) {
        ck_assert_int_eq(vocabulary_set_spelled(&vocabulary, count++, letters, length, 0, NULL),
                         STATUS_OK);
    }
    ck_assert_int_eq(vocabulary_seal(&vocabulary, NULL), STATUS_OK);
    ck_assert_int_eq(bpe_init(&bpe, &vocabulary, count, NULL), STATUS_OK);
    for (uint32_t i = 0; i + 1 < count; i++) {
        size_t half = (size_t)1 << i;
        ck_assert_int_eq(bpe_add_merge(&bpe, i, letters, half, letters, half, NULL), STATUS_OK);
    }
    size_t bytes = 1 << 20;
    uint8_t *word = memory_alloc(bytes);
    memset(word, 'a', bytes);
    struct token_list got;
    token_list_init(&got, bytes);
    ck_assert_int_eq(bpe_word(&bpe, word, bytes, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.count, bytes / 2048);
    token_list_deinit(&got);
    // A cap that is just enough changes nothing; below it the word is refused before the merging.
    token_list_init(&got, bytes / 2048);
    ck_assert_int_eq(bpe_word(&bpe, word, bytes, &got, NULL), STATUS_OK);
    token_list_deinit(&got);
    token_list_init(&got, bytes / 2048 - 1);
    ck_assert_int_eq(bpe_word(&bpe, word, bytes, &got, NULL), STATUS_INVALID);
    ck_assert_uint_eq(got.count, 0);
    token_list_deinit(&got);
    memory_free(word);
    bpe_deinit(&bpe);
    vocabulary_deinit(&vocabulary);
}
END_TEST

static void small_vocabulary(struct vocabulary *vocabulary) {
    vocabulary_init(vocabulary);
    static const char *const words[] = {"a", "b", "ab", "xyz"};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(vocabulary_set_spelled(vocabulary, i, words[i], strlen(words[i]), 0, NULL),
                         STATUS_OK);
    }
    ck_assert_int_eq(vocabulary_seal(vocabulary, NULL), STATUS_OK);
}

START_TEST(merges_of_unknown_tokens_are_refused) {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct error err = {0};
    small_vocabulary(&vocabulary);
    ck_assert_int_eq(bpe_init(&bpe, &vocabulary, 8, NULL), STATUS_OK);
    ck_assert_int_eq(bpe_add_merge(&bpe, 5, "a", 1, "c", 1, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.message, "merge 5"));
    ck_assert_int_eq(bpe_add_merge(&bpe, 0, "c", 1, "a", 1, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(bpe_add_merge(&bpe, 0, "b", 1, "a", 1, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(bpe_add_merge(&bpe, 0, " ", 1, "a", 1, NULL), STATUS_CORRUPT);
    ck_assert_int_eq(bpe_add_merge(&bpe, 0, "a", 1, "b", 1, NULL), STATUS_OK);
    bpe_deinit(&bpe);
    ck_assert_int_eq(bpe_init(&bpe, &vocabulary, BOUND_MERGES + 1, &err), STATUS_CORRUPT);
    vocabulary_deinit(&vocabulary);
}
END_TEST

START_TEST(bytes_without_a_token_vanish_or_become_unknown) {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct token_list got;
    small_vocabulary(&vocabulary);
    ck_assert_int_eq(bpe_init(&bpe, &vocabulary, 1, NULL), STATUS_OK);
    ck_assert_int_eq(bpe_add_merge(&bpe, 0, "a", 1, "b", 1, NULL), STATUS_OK);
    static const struct {
        uint32_t unknown;
        bool fuse;
        size_t count;
        uint32_t ids[4];
    } rows[] = {
        {BPE_NO_TOKEN, false, 1, {2}},
        {3, false, 4, {0, 3, 3, 1}},
        {3, true, 3, {0, 3, 1}},
    };
    for (size_t i = 0; i < 3; i++) {
        bpe.unknown = rows[i].unknown;
        bpe.fuse_unknown = rows[i].fuse;
        token_list_init(&got, 100);
        ck_assert_int_eq(bpe_word(&bpe,
                                  (const uint8_t *)"a\xFF\xFE"
                                                   "b",
                                  4, &got, NULL),
                         STATUS_OK);
        ck_assert_uint_eq(got.count, rows[i].count);
        ck_assert_mem_eq(got.ids, rows[i].ids, got.count * sizeof(uint32_t));
        token_list_deinit(&got);
    }
    bpe_deinit(&bpe);
    vocabulary_deinit(&vocabulary);
}
END_TEST

START_TEST(ignoring_merges_takes_the_whole_word_but_never_a_control_token) {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct token_list got;
    small_vocabulary(&vocabulary);
    ck_assert_int_eq(vocabulary_set_spelled(&vocabulary, 4, "ba", 2, TOKEN_SPECIAL, NULL),
                     STATUS_OK);
    ck_assert_int_eq(vocabulary_seal(&vocabulary, NULL), STATUS_OK);
    ck_assert_int_eq(bpe_init(&bpe, &vocabulary, 1, NULL), STATUS_OK);
    token_list_init(&got, 100);
    ck_assert_int_eq(bpe_word(&bpe, (const uint8_t *)"ab", 2, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.count, 2);
    bpe.ignore_merges = true;
    ck_assert_int_eq(bpe_word(&bpe, (const uint8_t *)"ab", 2, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.count, 3);
    ck_assert_uint_eq(got.ids[2], 2);
    ck_assert_int_eq(bpe_word(&bpe, (const uint8_t *)"ba", 2, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.count, 5);
    token_list_deinit(&got);
    bpe_deinit(&bpe);
    vocabulary_deinit(&vocabulary);
}
END_TEST

START_TEST(a_list_stops_at_its_cap) {
    struct token_list list;
    struct error err = {0};
    token_list_init(&list, 2);
    ck_assert_int_eq(token_list_push(&list, 1, &err), STATUS_OK);
    ck_assert_int_eq(token_list_push(&list, 2, &err), STATUS_OK);
    ck_assert_int_eq(token_list_push(&list, 3, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "more than 2 tokens"));
    ck_assert_uint_eq(list.count, 2);
    token_list_deinit(&list);
}
END_TEST

START_TEST(the_byte_alphabet_is_a_bijection) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t spelled[2];
        uint8_t back[2];
        size_t count = 0;
        uint32_t length = byte_alphabet_encode((uint8_t)byte, spelled);
        ck_assert(byte_alphabet_decode((const char *)spelled, length, back, &count));
        ck_assert_uint_eq(count, 1);
        ck_assert_uint_eq(back[0], byte);
    }
    uint8_t out[8];
    size_t count = 0;
    ck_assert(byte_alphabet_decode("\u0120\u010a\u0109\u0143", 8, out, &count));
    ck_assert_uint_eq(count, 4);
    ck_assert_mem_eq(out, " \n\t\xAD", 4);
    ck_assert(!byte_alphabet_decode("\u0144", 2, out, &count));
    ck_assert(!byte_alphabet_decode(" ", 1, out, &count));
    ck_assert(!byte_alphabet_decode("\xFF", 1, out, &count));
}
END_TEST

START_TEST(vocabulary_bounds_hold) {
    struct vocabulary vocabulary;
    static uint8_t bytes[BOUND_TOKEN_BYTES + 1];
    vocabulary_init(&vocabulary);
    ck_assert_int_eq(vocabulary_set(&vocabulary, 0, bytes, BOUND_TOKEN_BYTES, 0, NULL), STATUS_OK);
    ck_assert_int_eq(vocabulary_set(&vocabulary, 1, bytes, BOUND_TOKEN_BYTES + 1, 0, NULL),
                     STATUS_CORRUPT);
    ck_assert_int_eq(vocabulary_set(&vocabulary, BOUND_VOCABULARY_TOKENS, bytes, 1, 0, NULL),
                     STATUS_CORRUPT);
    ck_assert_int_eq(vocabulary_set(&vocabulary, BOUND_VOCABULARY_TOKENS - 1, bytes, 1, 0, NULL),
                     STATUS_OK);
    size_t count = 0;
    ck_assert_ptr_null(vocabulary_bytes(&vocabulary, 5, &count));
    ck_assert_ptr_null(vocabulary_bytes(&vocabulary, BOUND_VOCABULARY_TOKENS, &count));
    ck_assert_ptr_nonnull(vocabulary_bytes(&vocabulary, 0, &count));
    ck_assert_uint_eq(count, BOUND_TOKEN_BYTES);
    vocabulary_deinit(&vocabulary);
}
END_TEST

Suite *suite_bpe(void) {
    Suite *suite = suite_create("controller/text/bpe");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, merges_as_the_definition_says);
    tcase_add_test(tc, a_megabyte_in_one_word_takes_no_quadratic_time);
    tcase_add_test(tc, merges_of_unknown_tokens_are_refused);
    tcase_add_test(tc, bytes_without_a_token_vanish_or_become_unknown);
    tcase_add_test(tc, ignoring_merges_takes_the_whole_word_but_never_a_control_token);
    tcase_add_test(tc, a_list_stops_at_its_cap);
    tcase_add_test(tc, the_byte_alphabet_is_a_bijection);
    tcase_add_test(tc, vocabulary_bounds_hold);
    suite_add_tcase(suite, tc);
    return suite;
}
