// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_SIM_PAGES_H
#define WORKER_DEVICE_SIM_PAGES_H

#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Device memory of a device that does not exist, under the rules of CUDA's virtual memory calls
// (device-memory.md 1.1).
//
// The idea: code that obeys these rules here obeys them on a GPU. Memory comes as handles of whole
// granules; a handle is mapped whole, at offset 0, into a reserved range where nothing is; a
// mapping gives no access until it is set; a range is unmapped by whole mappings. Addresses are
// those of this process: reserved ones fault, mapped ones with access can be written (the few
// arrays that the host fills are), and what is never touched costs nothing.
//
//   Owns       ranges and handles.
//   Thread     one at a time.
//   Allocates  its tables in create; addresses in reserve.
//   Fails      INVALID naming the broken rule, EXHAUSTED when the device is full. A broken rule
//              changes nothing.

enum { SIM_PAGES_GRANULE = 2 * 1024 * 1024 };

struct sim_pages;
struct sim_handle {    // one piece of device memory
    uint32_t index;
};

enum status sim_pages_create(uint64_t device_bytes, struct sim_pages **out,
                             struct error *err) MUST_USE;
void sim_pages_destroy(struct sim_pages *pages);    // with every range; accepts NULL

// Addresses; no device memory.
enum status sim_pages_reserve(struct sim_pages *pages, size_t bytes, uint8_t **out,
                              struct error *err) MUST_USE;
// Device memory; no address. `free_bytes`: what the device can still give.
enum status sim_pages_new(struct sim_pages *pages, size_t bytes, uint64_t free_bytes,
                          struct sim_handle *out, struct error *err) MUST_USE;
enum status sim_pages_map(struct sim_pages *pages, uint8_t *at, size_t bytes, size_t offset,
                          struct sim_handle handle, struct error *err) MUST_USE;
enum status sim_pages_set_access(struct sim_pages *pages, uint8_t *at, size_t bytes,
                                 struct error *err) MUST_USE;
// Whole mappings; their handles are released with them.
enum status sim_pages_unmap(struct sim_pages *pages, uint8_t *at, size_t bytes,
                            struct error *err) MUST_USE;

uint64_t sim_pages_bytes(const struct sim_pages *pages);    // of all handles

#endif
