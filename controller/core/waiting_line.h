// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_WAITING_LINE_H
#define CONTROLLER_CORE_WAITING_LINE_H

#include "controller/core/core.h"
#include <stdint.h>

// Who may be admitted next: classes by rank, tenants by what they were served, requests by
// deadline.
//
// The idea: a tenant's virtual time grows with the work done for it, and the tenant with the least
// goes first, so that each gets its share whatever it sends (the virtual token counter of fair
// serving, OSDI 2024); who was idle re-enters at the least time of those who wait and cannot save
// up. Inside a tenant the earliest deadline goes first, then the earliest arrival. A lower class
// goes before a higher one only while it has had less than the share it is promised.
//
//   Owns       its heaps. Requests are known by index.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      never after create.

struct waiting_line;

struct waiting_options {
    uint32_t request_max;
    uint32_t tenant_max;
    double share_min[REQUEST_CLASS_COUNT];    // of the work served, promised to each class
};

struct waiting_key {
    enum request_class class_;
    uint32_t tenant;         // < tenant_max
    uint64_t deadline_us;    // UINT64_MAX: none
    uint64_t order;          // of arrival; unique
    uint32_t tokens;         // to be computed when it is admitted
};

#define WAITING_NONE UINT32_MAX

enum status waiting_line_create(const struct waiting_options *options, struct waiting_line **out,
                                struct error *err) MUST_USE;
void waiting_line_destroy(struct waiting_line *line);    // accepts NULL

void waiting_line_add(struct waiting_line *line, uint32_t request, const struct waiting_key *key);
void waiting_line_remove(struct waiting_line *line, uint32_t request);
bool waiting_line_holds(const struct waiting_line *line, uint32_t request);
uint32_t waiting_line_count(const struct waiting_line *line);
uint32_t waiting_line_class_count(const struct waiting_line *line, enum request_class class_);

uint64_t waiting_line_class_tokens(const struct waiting_line *line, enum request_class class_);

// What is served before a request of `tokens` of a tenant that would come now: the classes above,
// what its tenant has waiting, and of the others in its class what fairness gives them meanwhile.
struct waiting_ahead {
    uint64_t tokens;
    uint32_t requests;
};
void waiting_line_ahead(const struct waiting_line *line, enum request_class class_, uint32_t tenant,
                        uint32_t tokens, struct waiting_ahead *out);

// All of a class, tenant by tenant; `out` has room for the whole line. Returns how many.
uint32_t waiting_line_list(const struct waiting_line *line, enum request_class class_,
                           uint32_t *out);

// Work was done for a tenant of a class, in any unit kept to. A tenant of twice the weight (> 0)
// gets twice as much.
void waiting_line_charge(struct waiting_line *line, enum request_class class_, uint32_t tenant,
                         double work, double weight);

// The head of each tenant, best first; each tenant at most once in a walk. Adding, removing or
// charging ends the walk: start again.
enum { WAITING_LOOK_AHEAD = 8 };    // heads of one walk (serving.md 1.6 step 4)
struct waiting_walk {
    uint32_t class_rank;                            // in the order of this moment
    uint32_t seen;                                  // heads given so far
    uint32_t candidates[WAITING_LOOK_AHEAD + 1];    // places in the tenant heap
    uint32_t candidate_count;
    enum request_class order[REQUEST_CLASS_COUNT];
};
void waiting_walk_begin(const struct waiting_line *line, struct waiting_walk *walk);
uint32_t waiting_walk_next(const struct waiting_line *line, struct waiting_walk *walk);

void waiting_line_audit(const struct waiting_line *line);

#endif
