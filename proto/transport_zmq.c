// SPDX-License-Identifier: Apache-2.0
#include "proto/transport.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

struct transport {
    void *context;
    void *socket;
    bool listens;
    int fd;
    size_t message_bytes_max;
};

enum status transport_address_check(const char *address, struct error *err) {
    if (strncmp(address, "ipc://", 6) == 0 && address[6] == '/') {
        return STATUS_OK;
    }
    if (strncmp(address, "tcp://", 6) == 0) {
        error_hint(err, "use ipc:// on one host");
        return error_set(err, STATUS_UNSUPPORTED,
                         "address '%.200s': tcp is refused while links have no keys", address);
    }
    return error_set(err, STATUS_INVALID, "address '%.200s' is not ipc:///path", address);
}

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

static bool set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
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
        return ok && set_int(socket, ZMQ_ROUTER_MANDATORY, 1) &&
               set_int(socket, ZMQ_ROUTER_HANDOVER, 0);
    }
    return ok && zmq_setsockopt(socket, ZMQ_ROUTING_ID, options->identity,
                                strlen(options->identity)) == 0;
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
    int failed;
    if (options->listens) {
        // A socket left behind by a controller that died is replaced; the directory is ours.
        unlink(options->address + 6);
        failed = zmq_bind(transport->socket, options->address);
        if (failed == 0) {
            chmod(options->address + 6, 0600);
        }
    } else {
        failed = zmq_connect(transport->socket, options->address);
    }
    if (failed != 0) {
        return error_set(err, STATUS_IO, "'%s': %s", options->address, zmq_strerror(errno));
    }
    size_t size = sizeof transport->fd;
    if (zmq_getsockopt(transport->socket, ZMQ_FD, &transport->fd, &size) != 0) {
        return error_set(err, STATUS_IO, "message descriptor: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

enum status transport_open(const struct transport_options *options, struct transport **out,
                           struct error *err) {
    TRY(transport_address_check(options->address, err));
    TRY(check_directory(options->address, err));
    TRY(options->listens ? STATUS_OK : check_identity(options->identity, err));
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
    if (transport->context != NULL) {
        zmq_ctx_term(transport->context);
    }
    memory_free(transport);
}

int transport_fd(const struct transport *transport) {
    return transport->fd;
}

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
static int send_part(void *socket, const void *bytes, size_t byte_count, int flags) {
    int sent = zmq_send(socket, bytes, byte_count, flags);
    if (sent < 0 && errno == EAGAIN) {
        int events = 0;
        size_t size = sizeof events;
        zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
        sent = zmq_send(socket, bytes, byte_count, flags);
    }
    return sent;
}

enum status transport_send(struct transport *transport, const char *peer, const void *bytes,
                           size_t byte_count) {
    if (byte_count > transport->message_bytes_max) {
        return STATUS_INVALID;
    }
    if (transport->listens) {
        INVARIANT(peer != NULL);
        if (send_part(transport->socket, peer, strlen(peer), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
            return send_status();
        }
    }
    return send_part(transport->socket, bytes, byte_count, ZMQ_DONTWAIT) < 0 ? send_status()
                                                                             : STATUS_OK;
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
        buf_append(out, zmq_msg_data(&part), zmq_msg_size(&part));
        status = more ? STATUS_CORRUPT : buf_status(out);
    }
    // Never leave half a message behind.
    while (more && receive_part(transport, &part, &more) == STATUS_OK) {
    }
    zmq_msg_close(&part);
    return status;
}
