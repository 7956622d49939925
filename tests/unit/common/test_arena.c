// SPDX-License-Identifier: Apache-2.0
// Goal: arena memory is zeroed, aligned and capped. Method: odd sizes, the bound and one past it.
#include "common/arena.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(memory_is_zeroed_and_aligned_after_reset_too) {
    struct arena arena;
    arena_init(&arena, 1 << 20);
    for (int round = 0; round < 3; round++) {
        for (size_t size = 0; size < 300; size += 7) {
            uint8_t *memory = arena_alloc(&arena, size);
            ck_assert_ptr_nonnull(memory);
            ck_assert_uint_eq((uintptr_t)memory % 16, 0);
            for (size_t i = 0; i < size; i++) {
                ck_assert_uint_eq(memory[i], 0);
            }
            memset(memory, 0xAA, size);
        }
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}
END_TEST

START_TEST(cap_refuses_without_breaking) {
    struct arena arena;
    arena_init(&arena, 64);
    ck_assert_ptr_nonnull(arena_alloc(&arena, 64));
    ck_assert_ptr_null(arena_alloc(&arena, 1));
    ck_assert_ptr_null(arena_alloc(&arena, SIZE_MAX));
    ck_assert_ptr_null(arena_array(&arena, SIZE_MAX, 2));
    arena_reset(&arena);
    arena_deinit(&arena);
}
END_TEST

Suite *suite_arena(void) {
    Suite *suite = suite_create("common/arena");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, memory_is_zeroed_and_aligned_after_reset_too);
    tcase_add_test(tc, cap_refuses_without_breaking);
    suite_add_tcase(suite, tc);
    return suite;
}
