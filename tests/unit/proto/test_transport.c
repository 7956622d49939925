// SPDX-License-Identifier: Apache-2.0
// Goal: messages pass whole in both directions, a missing peer and a bad address are answers.
// Over a network only known keys come in. Method: one listener and dialers over ipc in a directory
// of their own, and over tcp on this host with keys.
#include "proto/transport.h"
#include "tests/unit/suites.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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
    struct transport_options options = {.address = address,
                                        .listens = identity == NULL,
                                        .identity = identity,
                                        .message_bytes_max = 1 << 16,
                                        .queue_messages_max = 8};
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

START_TEST(one_message_goes_to_many) {
    make_directory();
    struct transport *listener = open_end(NULL);
    struct transport *ends[2] = {open_end("worker-a"), open_end("worker-b")};
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    buf_init(&in, 1 << 17);
    for (int i = 0; i < 2; i++) {
        while (transport_send(ends[i], NULL, "hello", 5) == STATUS_BUSY) {
            struct pollfd wait = {.fd = transport_fd(ends[i]), .events = POLLIN};
            poll(&wait, 1, 10);
        }
        receive(listener, &in, peer);
    }
    static char bytes[5000];
    memset(bytes, 'p', sizeof bytes);
    const char *const peers[] = {"worker-b", "worker-a", "nobody", "worker-a"};
    uint32_t sent = 0;
    ck_assert_int_eq(transport_send_all(listener, peers, 2, bytes, sizeof bytes, &sent), STATUS_OK);
    ck_assert_uint_eq(sent, 2);
    for (int i = 0; i < 2; i++) {
        receive(ends[i], &in, NULL);
        ck_assert_uint_eq(in.bytes_used, sizeof bytes);
        ck_assert_mem_eq(in.data, bytes, sizeof bytes);
    }
    ck_assert_int_eq(transport_send_all(listener, peers, 4, bytes, sizeof bytes, &sent),
                     STATUS_PEER_LOST);
    ck_assert_uint_eq(sent, 2);    // and none behind the one that is missing
    transport_close(ends[0]);
    transport_close(ends[1]);
    transport_close(listener);
    buf_deinit(&in);
    remove_directory();
}
END_TEST

// A connection that broke without notice must not keep its process from dialling again.
START_TEST(the_newest_connection_has_the_name) {
    make_directory();
    struct transport *listener = open_end(NULL);
    struct transport *ends[2];
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    buf_init(&in, 1 << 17);
    for (int i = 0; i < 2; i++) {
        ends[i] = open_end("worker-a~1");
        while (transport_send(ends[i], NULL, i == 0 ? "first" : "second", 6) == STATUS_BUSY) {
            poll(NULL, 0, 5);
        }
        receive(listener, &in, peer);
        ck_assert_str_eq(peer, "worker-a~1");
    }
    ck_assert_str_eq(buf_cstr(&in), "second");
    ck_assert_int_eq(transport_send(listener, "worker-a~1", "you", 3), STATUS_OK);
    receive(ends[1], &in, NULL);
    ck_assert_str_eq(buf_cstr(&in), "you");
    transport_close(ends[0]);
    transport_close(ends[1]);
    transport_close(listener);
    buf_deinit(&in);
    remove_directory();
}
END_TEST

// ---- addresses ---------------------------------------------------------------------------------

START_TEST(addresses_are_judged) {
    static const char *const good[] = {"ipc:///tmp/x", "tcp://127.0.0.1:5555", "tcp://node-7:1",
                                       "tcp://[fe80::1]:65535", "tcp://0.0.0.0:80"};
    static const char *const bad[] = {"ipc://relative",      "/tmp/x",
                                      "tcp://127.0.0.1",     "tcp://:5555",
                                      "tcp://127.0.0.1:0",   "tcp://127.0.0.1:65536",
                                      "tcp://127.0.0.1:80x", "tcp://fe80::1:80",
                                      "tcp://[fe80::1:80",   "udp://127.0.0.1:80",
                                      "tcp://127.0.0.1:*",   ""};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_int_eq(transport_address_check(good[i], NULL), STATUS_OK);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error err = {0};
        ck_assert_msg(transport_address_check(bad[i], &err) == STATUS_INVALID, "%s", bad[i]);
        ck_assert_ptr_nonnull(strstr(err.message, "tcp://HOST:PORT"));
    }
    ck_assert(transport_address_is_wildcard("tcp://0.0.0.0:80"));
    ck_assert(transport_address_is_wildcard("tcp://*:80"));
    ck_assert(transport_address_is_wildcard("tcp://[::]:80"));
    ck_assert(!transport_address_is_wildcard("tcp://10.0.0.1:80"));
    ck_assert(!transport_address_is_wildcard("ipc:///tmp/x"));
}
END_TEST

START_TEST(channels_of_a_controller_have_their_places) {
    char out[TRANSPORT_ADDRESS_BYTES];
    struct error err = {0};
    ck_assert_int_eq(transport_channel_address("ipc:///run/x", TRANSPORT_CHANNEL_PLAN, out, NULL),
                     STATUS_OK);
    ck_assert_str_eq(out, "ipc:///run/x/plan.sock");
    ck_assert_int_eq(
        transport_channel_address("ipc:///run/x", TRANSPORT_CHANNEL_CONTROL, out, NULL), STATUS_OK);
    ck_assert_str_eq(out, "ipc:///run/x/control.sock");
    ck_assert_int_eq(
        transport_channel_address("tcp://[::1]:700", TRANSPORT_CHANNEL_PLAN, out, NULL), STATUS_OK);
    ck_assert_str_eq(out, "tcp://[::1]:700");
    ck_assert_int_eq(
        transport_channel_address("tcp://node:700", TRANSPORT_CHANNEL_CONTROL, out, NULL),
        STATUS_OK);
    ck_assert_str_eq(out, "tcp://node:701");
    ck_assert_int_eq(
        transport_channel_address("tcp://node:65535", TRANSPORT_CHANNEL_CONTROL, out, &err),
        STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "port above"));
}
END_TEST

START_TEST(tcp_never_goes_without_keys) {
    make_directory();
    const char *const binds[] = {"tcp://127.0.0.1:5555"};
    struct link_key_pair keys;
    ck_assert_int_eq(link_key_pair_create(&keys, NULL), STATUS_OK);
    struct transport_options cases[] = {
        {.address = "tcp://127.0.0.1:5555", .identity = "w"},
        {.address = "tcp://127.0.0.1:5555", .identity = "w", .keys = &keys},
        {.address = address, .listens = true, .binds = binds, .bind_count = 1},
        {.address = address, .listens = true, .binds = binds, .bind_count = 1, .keys = &keys},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct transport *transport = NULL;
        struct error err = {0};
        cases[i].message_bytes_max = 1 << 16;
        cases[i].queue_messages_max = 8;
        ck_assert_int_eq(transport_open(&cases[i], &transport, &err), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(err.message, "without keys"));
        ck_assert_ptr_nonnull(strstr(err.hint, "tare keygen"));
    }
    remove_directory();
}
END_TEST

// ---- keys --------------------------------------------------------------------------------------

struct keyed {
    struct link_key_pair server, alice, stranger;
    struct link_allow *allow;
    char bind[64];
    const char *binds[1];
    struct transport *listener;
};

// A port that nobody has at the moment.
static uint16_t free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, size), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void keyed_open(struct keyed *k) {
    make_directory();
    ck_assert_int_eq(link_key_pair_create(&k->server, NULL), STATUS_OK);
    ck_assert_int_eq(link_key_pair_create(&k->alice, NULL), STATUS_OK);
    ck_assert_int_eq(link_key_pair_create(&k->stranger, NULL), STATUS_OK);
    char text[256];
    snprintf(text, sizeof text, "alice %s role=worker ids=g0r0\n", k->alice.public_key);
    ck_assert_int_eq(link_allow_parse("list", text, &k->allow, NULL), STATUS_OK);
    snprintf(k->bind, sizeof k->bind, "tcp://127.0.0.1:%u", free_port());
    k->binds[0] = k->bind;
    struct transport_options options = {.address = address,
                                        .listens = true,
                                        .message_bytes_max = 1 << 16,
                                        .queue_messages_max = 8,
                                        .keys = &k->server,
                                        .allow = k->allow,
                                        .binds = k->binds,
                                        .bind_count = 1};
    struct error err = {0};
    ck_assert_msg(transport_open(&options, &k->listener, &err) == STATUS_OK, "%s", err.message);
}

static void keyed_close(struct keyed *k) {
    transport_close(k->listener);
    link_allow_destroy(k->allow);
    remove_directory();
}

static struct transport *keyed_dial(const struct keyed *k, const struct link_key_pair *pair,
                                    const char *server_key) {
    struct transport_options options = {.address = k->bind,
                                        .identity = "worker-a",
                                        .message_bytes_max = 1 << 16,
                                        .queue_messages_max = 8,
                                        .keys = pair,
                                        .listener_key = server_key};
    struct transport *transport = NULL;
    struct error err = {0};
    ck_assert_msg(transport_open(&options, &transport, &err) == STATUS_OK, "%s", err.message);
    return transport;
}

START_TEST(a_key_on_the_list_comes_in_under_its_name) {
    struct keyed k = {0};
    keyed_open(&k);
    struct transport *alice = keyed_dial(&k, &k.alice, k.server.public_key);
    struct transport *local = open_end("worker-b");
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    buf_init(&in, 1 << 17);
    for (int i = 0; transport_send(alice, NULL, "from afar", 9) == STATUS_BUSY; i++) {
        ck_assert_int_lt(i, 2000);
        poll(NULL, 0, 5);
    }
    receive(k.listener, &in, peer);
    ck_assert_str_eq(peer, "worker-a");
    ck_assert_str_eq(buf_cstr(&in), "from afar");
    ck_assert_str_eq(transport_user(k.listener), "alice");
    ck_assert_int_eq(transport_send(k.listener, "worker-a", "back", 4), STATUS_OK);
    receive(alice, &in, NULL);
    ck_assert_str_eq(buf_cstr(&in), "back");
    // The run directory needs no keys beside it.
    while (transport_send(local, NULL, "from here", 9) == STATUS_BUSY) {
        poll(NULL, 0, 5);
    }
    receive(k.listener, &in, peer);
    ck_assert_str_eq(peer, "worker-b");
    ck_assert_str_eq(transport_user(k.listener), "");
    struct transport_faults faults;
    transport_faults(k.listener, &faults);
    ck_assert_uint_eq(faults.strangers, 0);
    transport_close(alice);
    transport_close(local);
    buf_deinit(&in);
    keyed_close(&k);
}
END_TEST

START_TEST(a_key_that_is_not_on_the_list_stays_outside) {
    struct keyed k = {0};
    keyed_open(&k);
    struct transport *stranger = keyed_dial(&k, &k.stranger, k.server.public_key);
    struct transport_faults faults = {0}, own = {0};
    for (int i = 0; faults.strangers == 0 || own.handshakes_refused == 0; i++) {
        ck_assert_int_lt(i, 2000);
        ck_assert_int_eq(transport_send(stranger, NULL, "x", 1), STATUS_BUSY);
        poll(NULL, 0, 5);
        transport_faults(k.listener, &faults);
        transport_faults(stranger, &own);
    }
    ck_assert_str_eq(faults.stranger, "127.0.0.1");
    transport_close(stranger);
    keyed_close(&k);
}
END_TEST

START_TEST(whoever_expects_another_controller_stays_outside) {
    struct keyed k = {0};
    keyed_open(&k);
    struct transport *alice = keyed_dial(&k, &k.alice, k.stranger.public_key);
    struct transport_faults faults = {0};
    for (int i = 0; faults.handshakes_refused == 0; i++) {
        ck_assert_int_lt(i, 2000);
        ck_assert_int_eq(transport_send(alice, NULL, "x", 1), STATUS_BUSY);
        poll(NULL, 0, 5);
        transport_faults(k.listener, &faults);
    }
    ck_assert_uint_eq(faults.strangers, 0);
    transport_close(alice);
    keyed_close(&k);
}
END_TEST

// Neither bytes that are no handshake nor a peer without keys reach the owner.
START_TEST(plain_connections_stay_outside) {
    struct keyed k = {0};
    keyed_open(&k);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)strtoul(strrchr(k.bind, ':') + 1, NULL, 10));
    // A ZMTP 3.0 greeting with mechanism NULL.
    uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(write(fd, greeting, sizeof greeting), (ssize_t)sizeof greeting);
    struct transport_faults faults = {0};
    struct buf in;
    char peer[TRANSPORT_PEER_BYTES];
    buf_init(&in, 1 << 17);
    for (int i = 0; faults.handshakes_refused == 0; i++) {
        ck_assert_int_lt(i, 2000);
        ck_assert_int_eq(transport_receive(k.listener, &in, peer), STATUS_BUSY);
        poll(NULL, 0, 5);
        transport_faults(k.listener, &faults);
    }
    close(fd);
    buf_deinit(&in);
    keyed_close(&k);
}
END_TEST

START_TEST(a_directory_that_others_can_enter_is_refused) {
    make_directory();
    ck_assert_int_eq(chmod(directory, 0755), 0);
    struct transport_options options = {
        .address = address, .listens = true, .message_bytes_max = 1 << 16, .queue_messages_max = 8};
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
    struct transport_options options = {.address = address,
                                        .identity = name,
                                        .message_bytes_max = 1 << 16,
                                        .queue_messages_max = 8};
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

START_TEST(a_name_gets_another_ending_each_time) {
    char a[TRANSPORT_PEER_BYTES], b[TRANSPORT_PEER_BYTES], name[2 * TRANSPORT_PEER_BYTES];
    transport_identity("g0r1", a);
    transport_identity("g0r1", b);
    ck_assert_str_ne(a, b);
    ck_assert(transport_peer_is(a, "g0r1") && transport_peer_is(b, "g0r1"));
    ck_assert(!transport_peer_is(a, "g0r") && !transport_peer_is(a, "g0r1~"));
    ck_assert(!transport_peer_is("g0r1", "g0r1") && !transport_peer_is("~1234", ""));
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    transport_identity(name, a);
    ck_assert_uint_eq(strlen(a), TRANSPORT_PEER_BYTES - 1);
    ck_assert(!transport_peer_is(a, name));
}
END_TEST

Suite *suite_transport(void) {
    Suite *suite = suite_create("proto/transport");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, messages_pass_both_ways_and_name_their_sender);
    tcase_add_test(tc, names_of_1_to_63_bytes_are_taken);
    tcase_add_test(tc, a_name_gets_another_ending_each_time);
    tcase_add_test(tc, the_newest_connection_has_the_name);
    tcase_add_test(tc, one_message_goes_to_many);
    tcase_add_test(tc, addresses_are_judged);
    tcase_add_test(tc, channels_of_a_controller_have_their_places);
    tcase_add_test(tc, tcp_never_goes_without_keys);
    tcase_add_test(tc, a_key_on_the_list_comes_in_under_its_name);
    tcase_add_test(tc, a_key_that_is_not_on_the_list_stays_outside);
    tcase_add_test(tc, whoever_expects_another_controller_stays_outside);
    tcase_add_test(tc, plain_connections_stay_outside);
    tcase_add_test(tc, a_directory_that_others_can_enter_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
