// SPDX-License-Identifier: Apache-2.0
// Goal: the table of devices can be asked by both forms of a name and is plausible, and what a
// group's communicators take follows the formulas of device-memory.md 2.6. Method: every row, the
// worked numbers of that page.
#include "tests/unit/suites.h"
#include "worker/device/device_sim.h"

#include <stdio.h>
#include <string.h>

static const uint64_t MIB = 1024 * 1024;

START_TEST(every_row_is_complete_and_found_by_both_names) {
    uint32_t count = 0;
    for (const struct sim_spec *spec; (spec = sim_spec_at(count)) != NULL; count++) {
        char name[64];
        snprintf(name, sizeof name, "sim:%s", spec->name);
        ck_assert_ptr_eq(sim_spec_find(spec->name), spec);
        ck_assert_ptr_eq(sim_spec_find(name), spec);
        for (unsigned fact = 0; fact < SIM_FACT_COUNT; fact++) {
            ck_assert(sim_fact_value(spec, (enum sim_fact)fact) > 0);
            ck_assert_uint_gt(strlen(sim_fact_name((enum sim_fact)fact)), 0);
        }
        ck_assert_uint_lt(spec->context_bytes + spec->library_bytes, spec->memory_bytes / 16);
    }
    ck_assert_uint_ge(count, 8);
    ck_assert_ptr_null(sim_spec_find("h201"));
    ck_assert_ptr_null(sim_spec_find("cpu"));
    ck_assert_ptr_null(sim_spec_find("sim:"));
    ck_assert_ptr_null(sim_spec_find(""));
}
END_TEST

START_TEST(known_devices_have_their_known_memory) {
    ck_assert_uint_eq(sim_spec_find("h200")->memory_bytes, 150110011392u);
    double laptop = (double)sim_spec_find("rtx5090-laptop")->memory_bytes / (1024.0 * (double)MIB);
    ck_assert(laptop > 23.455 && laptop < 23.465);
}
END_TEST

START_TEST(communicators_follow_the_formulas) {
    const struct sim_spec *h200 = sim_spec_find("h200");
    struct sim_comm eight = sim_comm_bytes(h200, 8);
    ck_assert_uint_eq(eight.ring, 32 * MIB);
    ck_assert_uint_eq(eight.tree, 32 * MIB);
    ck_assert_uint_eq(eight.nvls, 128 * MIB);
    ck_assert_uint_eq(eight.channels, (48 + 16) * MIB);    // NVLS peers have their own
    struct sim_comm one = sim_comm_bytes(h200, 1);
    ck_assert_uint_eq(one.channels + one.ring + one.tree + one.nvls, 0);
    struct sim_comm two = sim_comm_bytes(sim_spec_find("rtx5090"), 2);
    ck_assert_uint_eq(two.nvls, 0);
    ck_assert_uint_eq(two.channels, 48 * MIB);
}
END_TEST

Suite *suite_sim_specs(void) {
    Suite *suite = suite_create("worker/device/sim_specs");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, every_row_is_complete_and_found_by_both_names);
    tcase_add_test(tc, known_devices_have_their_known_memory);
    tcase_add_test(tc, communicators_follow_the_formulas);
    suite_add_tcase(suite, tc);
    return suite;
}
