// SPDX-License-Identifier: Apache-2.0
// Goal: every page rule of device-memory.md 1.1 is kept: what breaks one is refused and changes
// nothing, and memory faults where a GPU's would. Method: each rule broken once beside its use.
#include "tests/unit/suites.h"
#include "worker/device/sim_pages.h"

#include <string.h>
#include <unistd.h>

enum { GRANULE = SIM_PAGES_GRANULE, GRANULES = 16 };

static struct sim_pages *pages;
static uint8_t *range;
static struct error err;

static void set_up(void) {
    err = (struct error){0};
    ck_assert_int_eq(sim_pages_create((uint64_t)GRANULES * GRANULE, &pages, &err), STATUS_OK);
    ck_assert_int_eq(sim_pages_reserve(pages, (size_t)4 * GRANULES * GRANULE, &range, &err),
                     STATUS_OK);
    ck_assert_uint_eq(sim_pages_bytes(pages), 0);    // addresses are no memory
}

static void tear_down(void) {
    sim_pages_destroy(pages);
}

static struct sim_handle piece(size_t granules) {
    struct sim_handle handle;
    ck_assert_int_eq(sim_pages_new(pages, granules * GRANULE, UINT64_MAX, &handle, &err),
                     STATUS_OK);
    return handle;
}

static uint8_t *at(size_t granules) {
    return range + granules * GRANULE;
}

static enum status map(size_t where, size_t granules, size_t offset, struct sim_handle handle) {
    err = (struct error){0};
    return sim_pages_map(pages, at(where), granules * GRANULE, offset, handle, &err);
}

static enum status unmap(size_t where, size_t granules) {
    err = (struct error){0};
    return sim_pages_unmap(pages, at(where), granules * GRANULE, &err);
}

static enum status access_to(size_t where, size_t granules) {
    err = (struct error){0};
    return sim_pages_set_access(pages, at(where), granules * GRANULE, &err);
}

START_TEST(memory_comes_in_granules_until_the_device_is_full) {
    struct sim_handle handle;
    ck_assert_int_eq(sim_pages_new(pages, GRANULE - 1, UINT64_MAX, &handle, &err), STATUS_INVALID);
    ck_assert_int_eq(sim_pages_new(pages, 0, UINT64_MAX, &handle, &err), STATUS_INVALID);
    piece(GRANULES - 1);
    err = (struct error){0};
    ck_assert_int_eq(sim_pages_new(pages, (size_t)2 * GRANULE, UINT64_MAX, &handle, &err),
                     STATUS_EXHAUSTED);
    ck_assert_int_eq(sim_pages_new(pages, GRANULE, GRANULE - 1, &handle, &err), STATUS_EXHAUSTED);
    ck_assert_uint_eq(sim_pages_bytes(pages), (uint64_t)(GRANULES - 1) * GRANULE);
    uint8_t *unused;
    ck_assert_int_eq(sim_pages_reserve(pages, GRANULE + 4096, &unused, &err), STATUS_INVALID);
}
END_TEST

START_TEST(a_piece_is_mapped_whole_from_its_beginning_into_free_addresses) {
    struct sim_handle a = piece(2);
    struct sim_handle b = piece(2);
    ck_assert_int_eq(map(0, 2, GRANULE, a), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "from its beginning"));
    ck_assert_int_eq(map(0, 1, 0, a), STATUS_INVALID);
    ck_assert_int_eq(map(4 * GRANULES, 2, 0, a), STATUS_INVALID);        // past the range
    ck_assert_int_eq(map(4 * GRANULES - 1, 2, 0, a), STATUS_INVALID);    // over its end
    ck_assert_int_eq(map(0, 2, 0, a), STATUS_OK);
    ck_assert_int_eq(map(4, 2, 0, a), STATUS_INVALID);    // mapped already
    ck_assert_int_eq(map(1, 2, 0, b), STATUS_INVALID);    // over the first
    ck_assert_int_eq(map(2, 2, 0, b), STATUS_OK);
}
END_TEST

START_TEST(access_is_set_over_whole_mappings_only) {
    ck_assert_int_eq(map(0, 2, 0, piece(2)), STATUS_OK);
    ck_assert_int_eq(map(2, 1, 0, piece(1)), STATUS_OK);
    ck_assert_int_eq(access_to(0, 4), STATUS_INVALID);    // the last granule has no memory
    ck_assert_int_eq(access_to(0, 1), STATUS_INVALID);    // half of the first
    ck_assert_int_eq(access_to(0, 3), STATUS_OK);         // many mappings at once
    at(0)[0] = 1;
    at(3)[-1] = 2;
    ck_assert_uint_eq(at(0)[0] + at(3)[-1], 3);
}
END_TEST

START_TEST(whole_mappings_are_unmapped_and_their_memory_is_free_again) {
    ck_assert_int_eq(map(0, 2, 0, piece(2)), STATUS_OK);
    ck_assert_int_eq(map(2, 2, 0, piece(2)), STATUS_OK);
    ck_assert_int_eq(access_to(0, 4), STATUS_OK);
    ck_assert_int_eq(unmap(0, 1), STATUS_INVALID);
    ck_assert_int_eq(unmap(1, 2), STATUS_INVALID);
    ck_assert_int_eq(unmap(2, 3), STATUS_INVALID);    // one granule more than is there
    ck_assert_uint_eq(sim_pages_bytes(pages), (uint64_t)4 * GRANULE);
    at(2)[5] = 9;
    ck_assert_int_eq(unmap(2, 2), STATUS_OK);
    ck_assert_uint_eq(sim_pages_bytes(pages), (uint64_t)2 * GRANULE);
    // New memory at the old addresses needs access again, and holds nothing of the old.
    ck_assert_int_eq(map(2, 2, 0, piece(2)), STATUS_OK);
    ck_assert_int_eq(access_to(2, 2), STATUS_OK);
    ck_assert_uint_eq(at(2)[5], 0);
}
END_TEST

// What the kernel says of an address, without taking the signal.
static bool can_be_read(const uint8_t *address) {
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    bool good = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return good;
}

START_TEST(addresses_without_memory_or_access_fault) {
    ck_assert(!can_be_read(at(0)));
    ck_assert_int_eq(map(0, 1, 0, piece(1)), STATUS_OK);
    ck_assert(!can_be_read(at(0)));
    ck_assert_int_eq(access_to(0, 1), STATUS_OK);
    ck_assert(can_be_read(at(0)));
    ck_assert(can_be_read(at(1) - 1));
    ck_assert(!can_be_read(at(1)));
    ck_assert_int_eq(unmap(0, 1), STATUS_OK);
    ck_assert(!can_be_read(at(0)));
}
END_TEST

Suite *suite_sim_pages(void) {
    Suite *suite = suite_create("worker/device/sim_pages");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, memory_comes_in_granules_until_the_device_is_full);
    tcase_add_test(tc, a_piece_is_mapped_whole_from_its_beginning_into_free_addresses);
    tcase_add_test(tc, access_is_set_over_whole_mappings_only);
    tcase_add_test(tc, whole_mappings_are_unmapped_and_their_memory_is_free_again);
    tcase_add_test(tc, addresses_without_memory_or_access_fault);
    suite_add_tcase(suite, tc);
    return suite;
}
