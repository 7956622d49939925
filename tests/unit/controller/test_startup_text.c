// SPDX-License-Identifier: Apache-2.0
// Goal: what is printed at the end of a start can be pasted, wherever the server listens.
// Method: the text for each kind of address, searched for the words that matter.
#include "controller/startup_text.h"
#include "tests/unit/suites.h"

#include <string.h>

static const struct ledger_line lines[] = {
    {"context", 0, false}, {"weights", 3 << 20, true}, {"kv pool", 1 << 20, true}};
static const struct message_capacity capacity = {
    .envelope = {.seq_tokens = 64},
    .block_tokens = 32,
    .kv_blocks = 4,
    .kv_bytes_per_token = 8192,
    .line_count = 3,
    .lines = lines,
};

static struct buf text;

static const char *ready(const char *host, const char *uds, const char *key) {
    struct startup_facts facts = {
        .model_name = "m",
        .host = host,
        .port = 8000,
        .uds = uds,
        .api_key_hint = key,
        .start_seconds = 0.5,
        .capacity = &capacity,
    };
    buf_deinit(&text);
    buf_init(&text, 1 << 16);
    startup_ready(&facts, &text);
    return buf_cstr(&text);
}

static void expect(const char *got, const char *part) {
    ck_assert_msg(strstr(got, part) != NULL, "'%s' is not in\n%s", part, got);
}

START_TEST(addresses_are_urls_that_a_client_reaches) {
    expect(ready("127.0.0.1", NULL, NULL), "ready    http://127.0.0.1:8000/v1   model m");
    expect(ready("0.0.0.0", NULL, NULL), "curl http://127.0.0.1:8000/v1/chat/completions -H");
    expect(ready("::", NULL, NULL), "ready    http://127.0.0.1:8000/v1 ");
    expect(ready("::1", NULL, NULL), "curl http://[::1]:8000/v1/chat/completions -H");
    expect(ready("127.0.0.1", NULL, "$KEY"), " -H \"Authorization: Bearer $KEY\" ");
}
END_TEST

START_TEST(a_unix_socket_is_named_and_quoted_for_the_shell) {
    const char *got = ready("127.0.0.1", "/run/tare/x.sock", NULL);
    expect(got, "ready    http://localhost/v1 on /run/tare/x.sock   model m");
    expect(got,
           "try      curl --unix-socket /run/tare/x.sock http://localhost/v1/chat/completions ");
    expect(ready("::", "it's here", NULL),
           "curl --unix-socket 'it'\\''s here' http://localhost/v1/");
}
END_TEST

START_TEST(the_ledger_shows_lines_that_hold_something) {
    const char *got = ready("::1", NULL, NULL);
    ck_assert_ptr_null(strstr(got, "context"));
    expect(got, "weights                    3.00  planned\n");
    expect(got, "total                      4.00\n");
    expect(got, "kv       1.0 MiB = 128 tokens = 2.0 requests of 64 ");
}
END_TEST

Suite *suite_startup_text(void) {
    Suite *suite = suite_create("controller/startup_text");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, addresses_are_urls_that_a_client_reaches);
    tcase_add_test(tc, a_unix_socket_is_named_and_quoted_for_the_shell);
    tcase_add_test(tc, the_ledger_shows_lines_that_hold_something);
    suite_add_tcase(suite, tc);
    return suite;
}
