// SPDX-License-Identifier: Apache-2.0
// Goal: messages pass whole in both directions, a missing peer and a bad address are answers.
// Method: one listener and two dialers over ipc in a directory of their own.
#include "proto/transport.h"
#include "tests/unit/suites.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];
static char address[128];

static void make_directory(void) {
    snprintf(directory, sizeof directory, "/tmp/tare-transport-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(address, sizeof address, "ipc://%s/x.sock", directory);
}

static void remove_directory(void) {
    unlink(address + 6);
    rmdir(directory);
}

static struct transport *open_end(const char *identity) {
    struct transport_options options = {address, identity == NULL, identity, 1 << 16, 8, 0};
    struct transport *transport = NULL;
    struct error err = {0};
    ck_assert_msg(transport_open(&options, &transport, &err) == STATUS_OK, "%s", err.message);
    return transport;
}

// Receives with a bound on the waiting; fails the test when nothing comes.
static void receive(struct transport *transport, struct buf *out, char *peer) {
    for (int tries = 0; tries < 200; tries++) {
        enum status status = transport_receive(transport, out, peer);
        if (status == STATUS_OK) {
            return;
        }
        ck_assert_int_eq(status, STATUS_BUSY);
        struct pollfd wait = {.fd = transport_fd(transport), .events = POLLIN};
        poll(&wait, 1, 50);
    }
    ck_abort_msg("nothing was received");
}

START_TEST(messages_pass_both_ways_and_name_their_sender) {
    make_directory();
    struct transport *listener = open_end(NULL);
    struct transport *a = open_end("worker-a");
    struct transport *b = open_end("worker-b");
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    buf_init(&in, 1 << 17);
    // A dialer has no queue before its connection stands: it says so instead of keeping the
    // message.
    while (transport_send(a, NULL, "from a", 6) == STATUS_BUSY) {
        struct pollfd wait = {.fd = transport_fd(a), .events = POLLIN};
        poll(&wait, 1, 10);
    }
    receive(listener, &in, peer);
    ck_assert_str_eq(peer, "worker-a");
    ck_assert_str_eq(buf_cstr(&in), "from a");
    while (transport_send(b, NULL, "", 0) == STATUS_BUSY) {
        struct pollfd wait = {.fd = transport_fd(b), .events = POLLIN};
        poll(&wait, 1, 10);
    }
    receive(listener, &in, peer);
    ck_assert_str_eq(peer, "worker-b");
    ck_assert_uint_eq(in.bytes_used, 0);
    ck_assert_int_eq(transport_send(listener, "worker-b", "to b", 4), STATUS_OK);
    receive(b, &in, NULL);
    ck_assert_str_eq(buf_cstr(&in), "to b");
    ck_assert_int_eq(transport_send(listener, "nobody", "x", 1), STATUS_PEER_LOST);
    static char big[(1 << 16) + 1];
    ck_assert_int_eq(transport_send(listener, "worker-a", big, sizeof big), STATUS_INVALID);
    transport_close(a);
    transport_close(b);
    transport_close(listener);
    buf_deinit(&in);
    remove_directory();
}
END_TEST

START_TEST(unsafe_addresses_are_refused) {
    struct error err = {0};
    ck_assert_int_eq(transport_address_check("tcp://127.0.0.1:5555", &err), STATUS_UNSUPPORTED);
    ck_assert(strstr(err.message, "no keys") != NULL);
    ck_assert_int_eq(transport_address_check("ipc://relative", NULL), STATUS_INVALID);
    ck_assert_int_eq(transport_address_check("/tmp/x", NULL), STATUS_INVALID);
    ck_assert_int_eq(transport_address_check("ipc:///tmp/x", NULL), STATUS_OK);
}
END_TEST

START_TEST(a_directory_that_others_can_enter_is_refused) {
    make_directory();
    ck_assert_int_eq(chmod(directory, 0755), 0);
    struct transport_options options = {address, true, NULL, 1 << 16, 8, 0};
    struct transport *transport = NULL;
    struct error err = {0};
    ck_assert_int_eq(transport_open(&options, &transport, &err), STATUS_PERMISSION);
    ck_assert(strstr(err.message, "0700") != NULL);
    remove_directory();
}
END_TEST

// The name comes from a flag: a wrong one is an answer, never an abort.
START_TEST(names_of_1_to_63_bytes_are_taken) {
    make_directory();
    char name[TRANSPORT_PEER_BYTES + 1];
    memset(name, 'w', sizeof name);
    name[TRANSPORT_PEER_BYTES] = '\0';
    struct transport_options options = {address, false, name, 1 << 16, 8, 0};
    struct transport *transport = NULL;
    struct error err = {0};
    ck_assert_int_eq(transport_open(&options, &transport, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "64 bytes"));
    name[TRANSPORT_PEER_BYTES - 1] = '\0';
    ck_assert_int_eq(transport_open(&options, &transport, NULL), STATUS_OK);
    transport_close(transport);
    name[0] = '\0';
    ck_assert_int_eq(transport_open(&options, &transport, NULL), STATUS_INVALID);
    remove_directory();
}
END_TEST

Suite *suite_transport(void) {
    Suite *suite = suite_create("proto/transport");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, messages_pass_both_ways_and_name_their_sender);
    tcase_add_test(tc, names_of_1_to_63_bytes_are_taken);
    tcase_add_test(tc, unsafe_addresses_are_refused);
    tcase_add_test(tc, a_directory_that_others_can_enter_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
