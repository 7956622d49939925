// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_HTTP_TWO_LIVES_H
#define TESTS_UNIT_CONTROLLER_HTTP_TWO_LIVES_H

#include "controller/http/api_streams.h"
#include "tests/unit/controller/http/api_fixture.h"

// Two APIs, one after the other: what the first one journalled is given to the second one.
//
// The idea: `a` is played by a test; its journal lies in memory, so any part of it can be what a
// dead controller left. `b` is the controller that follows, and may begin anew as often as a test
// wants.
//
// Owns both, and their journals.  Thread one.  Allocates at will.  Fails the test.

enum { TWO_LIVES_ENTRIES_MAX = 8, TWO_LIVES_LATER_US = 60 * 1000 * 1000 };

struct journal_entry {
    struct buf begin, steps;
    bool open;
};

struct memory_journal {
    struct journal_entry entries[TWO_LIVES_ENTRIES_MAX];
    uint32_t count, ends;
    bool refuse_begin, refuse_step;
};

struct two_lives {
    struct memory_journal first_journal, second_journal;
    struct api_fixture *a, *b;
    struct api_key keys[2];
    struct api_account accounts[2];
    uint32_t key_count;
};

extern struct two_lives lives;

void two_lives_setup(void);    // a worker is at `a`, none yet at `b`
void two_lives_teardown(void);
void two_lives_begin_second(void);
void two_lives_end_second(void);

// Gives the second API the first one's entry with so many bytes of its steps.
bool two_lives_give(size_t steps_bytes, uint64_t expires_us);
void two_lives_give_all(void);

// A response of two events, and one more to come.
void two_lives_begin_one(const char *extra);
void two_lives_resume_one(void);

// The id of the first API's response.
const char *two_lives_body_id(void);
// The second one is asked for it.
void two_lives_ask_as(const char *id, const char *after, const char *key);
void two_lives_ask(const char *id, uint32_t after);
void two_lives_expect_failure(int status, const char *code);

#endif
