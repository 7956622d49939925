// SPDX-License-Identifier: Apache-2.0
#include "proto/transport.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "proto/transport_zap.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

struct transport {
    void *context;
    void *socket;
    void *monitor;    // receives what happens to connections
    struct zap *zap;
    bool listens;
    int fd, events_fd;
    size_t message_bytes_max;
    char user[LINK_NAME_BYTES];
    struct transport_faults faults;
};

#define MONITOR_ADDRESS "inproc://events"

// ---- addresses ---------------------------------------------------------------------------------

bool transport_address_is_tcp(const char *address) {
    return strncmp(address, "tcp://", 6) == 0;
}

static bool is_ipc(const char *address) {
    return strncmp(address, "ipc://", 6) == 0 && address[6] == '/';
}

// Splits tcp://HOST:PORT; the host may be [IPv6]. False when it is not of this form.
static bool split_tcp(const char *address, int *host_bytes, uint32_t *port) {
    const char *host = address + 6;
    const char *colon = strrchr(host, ':');
    bool bracketed = host[0] == '[';
    if (colon == NULL || colon == host || (bracketed && colon[-1] != ']') ||
        (!bracketed && memchr(host, ':', (size_t)(colon - host)) != NULL)) {
        return false;
    }
    size_t digits = strspn(colon + 1, "0123456789");
    *host_bytes = (int)(colon - host);
    *port = digits > 0 && digits <= 5 ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
    return colon[1 + digits] == '\0' && *port >= 1 && *port <= UINT16_MAX;
}

enum status transport_address_check(const char *address, struct error *err) {
    int host_bytes;
    uint32_t port;
    if (is_ipc(address) ||
        (transport_address_is_tcp(address) && split_tcp(address, &host_bytes, &port))) {
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "address '%.200s' is neither ipc:///PATH nor tcp://HOST:PORT", address);
}

bool transport_address_is_wildcard(const char *address) {
    static const char *const hosts[] = {"*", "0.0.0.0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]"};
    int host_bytes;
    uint32_t port;
    if (!transport_address_is_tcp(address) || !split_tcp(address, &host_bytes, &port)) {
        return false;
    }
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        if (strlen(hosts[i]) == (size_t)host_bytes &&
            strncmp(address + 6, hosts[i], (size_t)host_bytes) == 0) {
            return true;
        }
    }
    return false;
}

enum status transport_channel_address(const char *base, enum transport_channel channel,
                                      char out[TRANSPORT_ADDRESS_BYTES], struct error *err) {
    TRY(transport_address_check(base, err));
    bool plan = channel == TRANSPORT_CHANNEL_PLAN;
    if (is_ipc(base)) {
        snprintf(out, TRANSPORT_ADDRESS_BYTES, "%.4100s/%s.sock", base, plan ? "plan" : "control");
        return STATUS_OK;
    }
    int host_bytes = 0;
    uint32_t port = 0;
    bool split = split_tcp(base, &host_bytes, &port);
    INVARIANT(split);
    if (port == UINT16_MAX) {
        return error_set(err, STATUS_INVALID,
                         "address '%.200s': the port above it is needed too, and there is none",
                         base);
    }
    snprintf(out, TRANSPORT_ADDRESS_BYTES, "tcp://%.*s:%u", host_bytes, base + 6,
             plan ? port : port + 1);
    return STATUS_OK;
}

// ---- names -------------------------------------------------------------------------------------

void transport_identity(const char *name, char out[TRANSPORT_PEER_BYTES]) {
    uint32_t ending = 0;
    if (getrandom(&ending, sizeof ending, 0) != (ssize_t)sizeof ending) {
        ending = (uint32_t)getpid();
    }
    int fits = TRANSPORT_PEER_BYTES - 10;    // what is cut off makes it another name
    snprintf(out, TRANSPORT_PEER_BYTES, "%.*s~%08x", fits, name, ending);
}

bool transport_peer_is(const char *peer, const char *name) {
    const char *end = strrchr(peer, '~');
    size_t byte_count = end == NULL ? 0 : (size_t)(end - peer);
    return byte_count > 0 && strlen(name) == byte_count && memcmp(peer, name, byte_count) == 0;
}

// ---- opening -----------------------------------------------------------------------------------

// The socket lies in a directory that only we can enter: that is the authentication of ipc.
static enum status check_directory(const char *address, struct error *err) {
    char directory[4096];
    snprintf(directory, sizeof directory, "%s", address + 6);
    char *slash = strrchr(directory, '/');
    INVARIANT(slash != NULL);
    *slash = '\0';
    struct stat info;
    if (stat(directory, &info) != 0) {
        return error_set_os(err, STATUS_NOT_FOUND, "socket directory '%s'", directory);
    }
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return error_set(err, STATUS_PERMISSION,
                         "socket directory '%s' must be ours with mode 0700", directory);
    }
    return STATUS_OK;
}

// The name comes from a flag.
static enum status check_identity(const char *identity, struct error *err) {
    size_t byte_count = identity == NULL ? 0 : strlen(identity);
    if (byte_count == 0 || byte_count >= TRANSPORT_PEER_BYTES) {
        return error_set(err, STATUS_INVALID, "a worker's name has %zu bytes; 1 to %d are possible",
                         byte_count, TRANSPORT_PEER_BYTES - 1);
    }
    return STATUS_OK;
}

// Links over a network never go without keys.
static enum status check_keys(const struct transport_options *options, struct error *err) {
    bool tcp = options->bind_count > 0 || transport_address_is_tcp(options->address);
    const void *other = options->listens ? (const void *)options->allow : options->listener_key;
    if (tcp && (options->keys == NULL || other == NULL)) {
        error_hint(err, "`tare keygen NAME` makes keys; %s",
                   options->listens
                       ? "give --worker-key-file and --worker-allow-file"
                       : "give --curve-secret-file and --curve-server-key-file, or use ipc:// on "
                         "one host");
        return error_set(err, STATUS_INVALID, "tcp is refused without keys");
    }
    for (uint32_t i = 0; i < options->bind_count; i++) {
        TRY(transport_address_check(options->binds[i], err));
        if (!transport_address_is_tcp(options->binds[i])) {
            return error_set(err, STATUS_INVALID, "'%.200s' is not tcp://HOST:PORT",
                             options->binds[i]);
        }
    }
    return STATUS_OK;
}

static bool set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

// Connections over a network: dead ones end within a second or two on both sides.
static bool set_tcp_options(void *socket, bool listens) {
    return set_int(socket, ZMQ_HEARTBEAT_IVL, 200) &&
           set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, listens ? 1000 : 2000) &&
           set_int(socket, ZMQ_HEARTBEAT_TTL, listens ? 2000 : 1000) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE, 1) && set_int(socket, ZMQ_TCP_MAXRT, 2000);
}

// Of the addresses that follow.
static bool set_family(void *socket, const char *address) {
    return set_int(socket, ZMQ_IPV6, strchr(address, '[') != NULL);
}

// Every limit that libzmq leaves open by default.
static bool set_options(struct transport *transport, const struct transport_options *options) {
    void *socket = transport->socket;
    int64_t message_bytes_max = (int64_t)options->message_bytes_max;
    bool ok =
        set_int(socket, ZMQ_LINGER, options->linger_ms) &&
        set_int(socket, ZMQ_SNDHWM, options->queue_messages_max) &&
        set_int(socket, ZMQ_RCVHWM, options->queue_messages_max) &&
        set_int(socket, ZMQ_IMMEDIATE, 1) && set_int(socket, ZMQ_HANDSHAKE_IVL, 2000) &&
        set_int(socket, ZMQ_RECONNECT_IVL, 50) && set_int(socket, ZMQ_RECONNECT_IVL_MAX, 1000) &&
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_bytes_max, sizeof message_bytes_max) == 0;
    if (options->listens) {
        // Only a process itself knows the ending of its name: a second connection under it is the
        // same process, whose first one broke without our notice.
        return ok && set_int(socket, ZMQ_ROUTER_MANDATORY, 1) &&
               set_int(socket, ZMQ_ROUTER_HANDOVER, 1);
    }
    return ok && zmq_setsockopt(socket, ZMQ_ROUTING_ID, options->identity,
                                strlen(options->identity)) == 0;
}

// From here on for addresses with keys: what is bound already stays as it is.
static bool set_keys(void *socket, const struct transport_options *options) {
    const struct link_key_pair *keys = options->keys;
    bool ok =
        set_tcp_options(socket, options->listens) &&
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret_key, LINK_KEY_CHARS + 1) == 0;
    if (options->listens) {
        return ok && set_int(socket, ZMQ_CURVE_SERVER, 1) &&
               zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) == 0;
    }
    return ok &&
           zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public_key, LINK_KEY_CHARS + 1) == 0 &&
           zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, options->listener_key, LINK_KEY_CHARS + 1) ==
               0;
}

// What happens to connections arrives on a socket of its own.
static enum status open_monitor(struct transport *transport, struct error *err) {
    int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    size_t size = sizeof transport->events_fd;
    if (zmq_socket_monitor(transport->socket, MONITOR_ADDRESS, events) != 0 ||
        (transport->monitor = zmq_socket(transport->context, ZMQ_PAIR)) == NULL ||
        !set_int(transport->monitor, ZMQ_LINGER, 0) ||
        zmq_connect(transport->monitor, MONITOR_ADDRESS) != 0 ||
        zmq_getsockopt(transport->monitor, ZMQ_FD, &transport->events_fd, &size) != 0) {
        return error_set(err, STATUS_IO, "message monitor: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

static enum status listen_all(struct transport *transport, const struct transport_options *options,
                              struct error *err) {
    // A socket left behind by a controller that died is replaced; the directory is ours.
    unlink(options->address + 6);
    if (zmq_bind(transport->socket, options->address) != 0) {
        return error_set(err, STATUS_IO, "'%s': %s", options->address, zmq_strerror(errno));
    }
    chmod(options->address + 6, 0600);
    if (options->bind_count == 0) {
        return STATUS_OK;
    }
    TRY(zap_start(transport->context, options->allow, &transport->zap, err));
    if (!set_keys(transport->socket, options)) {
        return error_set(err, STATUS_IO, "keys of a message socket: %s", zmq_strerror(errno));
    }
    for (uint32_t i = 0; i < options->bind_count; i++) {
        if (!set_family(transport->socket, options->binds[i]) ||
            zmq_bind(transport->socket, options->binds[i]) != 0) {
            error_hint(err, "an address of this host is needed, and a port that nobody has");
            return error_set(err, STATUS_IO, "'%.200s': %s", options->binds[i],
                             zmq_strerror(errno));
        }
    }
    return STATUS_OK;
}

static enum status dial(struct transport *transport, const struct transport_options *options,
                        struct error *err) {
    if (transport_address_is_tcp(options->address) && !set_keys(transport->socket, options)) {
        return error_set(err, STATUS_IO, "keys of a message socket: %s", zmq_strerror(errno));
    }
    if (!set_family(transport->socket, options->address) ||
        zmq_connect(transport->socket, options->address) != 0) {
        return error_set(err, STATUS_IO, "'%s': %s", options->address, zmq_strerror(errno));
    }
    return STATUS_OK;
}

static enum status open_socket(struct transport *transport, const struct transport_options *options,
                               struct error *err) {
    transport->context = zmq_ctx_new();
    if (transport->context == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no message context: %s", zmq_strerror(errno));
    }
    transport->socket = zmq_socket(transport->context, options->listens ? ZMQ_ROUTER : ZMQ_DEALER);
    if (transport->socket == NULL || !set_options(transport, options)) {
        return error_set(err, STATUS_IO, "message socket: %s", zmq_strerror(errno));
    }
    TRY(open_monitor(transport, err));
    TRY(options->listens ? listen_all(transport, options, err) : dial(transport, options, err));
    size_t size = sizeof transport->fd;
    if (zmq_getsockopt(transport->socket, ZMQ_FD, &transport->fd, &size) != 0) {
        return error_set(err, STATUS_IO, "message descriptor: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

enum status transport_open(const struct transport_options *options, struct transport **out,
                           struct error *err) {
    TRY(transport_address_check(options->address, err));
    TRY(check_keys(options, err));
    if (is_ipc(options->address)) {
        TRY(check_directory(options->address, err));
    }
    TRY(options->listens ? STATUS_OK : check_identity(options->identity, err));
    INVARIANT(!options->listens || is_ipc(options->address));
    struct transport *transport = memory_zalloc(sizeof *transport);
    if (transport == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a message channel");
    }
    transport->listens = options->listens;
    transport->message_bytes_max = options->message_bytes_max;
    enum status status = open_socket(transport, options, err);
    if (status != STATUS_OK) {
        transport_close(transport);
        return status;
    }
    *out = transport;
    return STATUS_OK;
}

void transport_close(struct transport *transport) {
    if (transport == NULL) {
        return;
    }
    if (transport->socket != NULL) {
        zmq_close(transport->socket);
    }
    if (transport->monitor != NULL) {
        zmq_close(transport->monitor);
    }
    if (transport->zap != NULL) {
        zmq_ctx_shutdown(transport->context);    // its thread ends
        zap_stop(transport->zap);
    }
    if (transport->context != NULL) {
        zmq_ctx_term(transport->context);
    }
    memory_free(transport);
}

int transport_fd(const struct transport *transport) {
    return transport->fd;
}

int transport_events_fd(const struct transport *transport) {
    return transport->events_fd;
}

const char *transport_user(const struct transport *transport) {
    return transport->user;
}

// ---- what happens to connections ---------------------------------------------------------------

static void count_event(struct transport *transport, int event) {
    if (event == ZMQ_EVENT_DISCONNECTED) {
        transport->faults.disconnects++;
    } else {
        transport->faults.handshakes_refused++;
    }
}

// An event is two frames, the first begins with its number; the second names the address.
static void drain_events(struct transport *transport) {
    uint8_t bytes[6];
    while (zmq_recv(transport->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) >= 0) {
        uint16_t event;
        memcpy(&event, bytes, sizeof event);
        count_event(transport, event);
        int more = 0;
        size_t size = sizeof more;
        while (zmq_getsockopt(transport->monitor, ZMQ_RCVMORE, &more, &size) == 0 && more != 0 &&
               zmq_recv(transport->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) >= 0) {
        }
    }
}

void transport_faults(struct transport *transport, struct transport_faults *out) {
    drain_events(transport);
    if (transport->zap != NULL) {
        transport->faults.strangers = zap_strangers(transport->zap, transport->faults.stranger);
    }
    *out = transport->faults;
}

// ---- messages ----------------------------------------------------------------------------------

static enum status send_status(void) {
    switch (errno) {
    case EAGAIN:
        return STATUS_BUSY;
    case EHOSTUNREACH:
        return STATUS_PEER_LOST;
    default:
        return STATUS_IO;
    }
}

// libzmq learns that the other side has read only when it looks at its own commands, which a send
// does at most once a millisecond: a queue that seems full is looked at again after asking.
static void ask_again(void *socket) {
    int events = 0;
    size_t size = sizeof events;
    zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
}

// Takes `message` when it succeeds.
static bool send_message(struct transport *transport, const char *peer, zmq_msg_t *message) {
    if (transport->listens) {
        INVARIANT(peer != NULL);
        int flags = ZMQ_DONTWAIT | ZMQ_SNDMORE;
        int sent = zmq_send(transport->socket, peer, strlen(peer), flags);
        if (sent < 0 && errno == EAGAIN) {
            ask_again(transport->socket);
            sent = zmq_send(transport->socket, peer, strlen(peer), flags);
        }
        if (sent < 0) {
            return false;
        }
    }
    int sent = zmq_msg_send(message, transport->socket, ZMQ_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) {
        ask_again(transport->socket);
        sent = zmq_msg_send(message, transport->socket, ZMQ_DONTWAIT);
    }
    return sent >= 0;
}

static enum status message_init(const struct transport *transport, zmq_msg_t *message,
                                const void *bytes, size_t byte_count) {
    if (byte_count > transport->message_bytes_max) {
        return STATUS_INVALID;
    }
    if (zmq_msg_init_size(message, byte_count) != 0) {
        return STATUS_EXHAUSTED;
    }
    memcpy(zmq_msg_data(message), bytes, byte_count);
    return STATUS_OK;
}

enum status transport_send(struct transport *transport, const char *peer, const void *bytes,
                           size_t byte_count) {
    zmq_msg_t message;
    enum status status = message_init(transport, &message, bytes, byte_count);
    if (status != STATUS_OK) {
        return status;
    }
    if (!send_message(transport, peer, &message)) {
        status = send_status();
        zmq_msg_close(&message);
    }
    return status;
}

enum status transport_send_all(struct transport *transport, const char *const *peers,
                               uint32_t peer_count, const void *bytes, size_t byte_count,
                               uint32_t *sent) {
    zmq_msg_t message;
    *sent = 0;
    enum status status = message_init(transport, &message, bytes, byte_count);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < peer_count && status == STATUS_OK; i++) {
        zmq_msg_t copy;
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, &message);    // of the reference, not of the bytes
        if (send_message(transport, peers[i], &copy)) {
            (*sent)++;
        } else {
            status = send_status();
            zmq_msg_close(&copy);
        }
    }
    zmq_msg_close(&message);
    return status;
}

// One part of a message; `more` says whether another follows.
static enum status receive_part(struct transport *transport, zmq_msg_t *part, bool *more) {
    if (zmq_msg_recv(part, transport->socket, ZMQ_DONTWAIT) < 0) {
        return errno == EAGAIN || errno == EINTR ? STATUS_BUSY : STATUS_IO;
    }
    *more = zmq_msg_more(part) != 0;
    return STATUS_OK;
}

enum status transport_receive(struct transport *transport, struct buf *out,
                              char peer[TRANSPORT_PEER_BYTES]) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    buf_reset(out);
    transport->user[0] = '\0';
    if (transport->listens) {
        peer[0] = '\0';    // known from the first part on
    }
    bool more = false;
    enum status status = receive_part(transport, &part, &more);
    if (status == STATUS_OK && transport->listens) {
        size_t length = zmq_msg_size(&part);
        bool fits = length > 0 && length < TRANSPORT_PEER_BYTES && more;
        memcpy(peer, zmq_msg_data(&part), fits ? length : 0);
        peer[fits ? length : 0] = '\0';
        if (fits) {
            status = receive_part(transport, &part, &more);
        } else {
            status = STATUS_CORRUPT;
        }
    }
    if (status == STATUS_OK) {
        const char *user = zmq_msg_gets(&part, "User-Id");
        snprintf(transport->user, sizeof transport->user, "%s", user == NULL ? "" : user);
        buf_append(out, zmq_msg_data(&part), zmq_msg_size(&part));
        status = more ? STATUS_CORRUPT : buf_status(out);
    }
    // Never leave half a message behind.
    while (more && receive_part(transport, &part, &more) == STATUS_OK) {
    }
    zmq_msg_close(&part);
    if (status == STATUS_BUSY && !transport->listens) {
        drain_events(transport);    // nobody else may look, and the library waits for room there
    }
    return status;
}
