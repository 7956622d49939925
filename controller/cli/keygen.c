// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/keygen.h"

#include "common/exit_code.h"
#include "common/status.h"
#include "controller/cli/words.h"
#include "proto/link_keys.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, TEXT_BYTES = 512, NAMES_MAX = 256 };

struct options {
    const char *out;     // directory
    const char *ids;     // of the printed lines; NULL: by the name
    const char *role;    // "worker"
    const char *names[NAMES_MAX];
    int name_count;
    bool help;
};

static const char USAGE[] =
    "usage: tare keygen [--out DIR] [--role worker|admin] [--ids IDS] NAME ...\n"
    "  writes NAME.secret (mode 0600) and NAME.pub for each name, prints the lines for the\n"
    "  controller's --worker-allow-file, and overwrites nothing\n"
    "  --out DIR    where the files go (default: here)\n"
    "  --role ROLE  worker (default) or admin\n"
    "  --ids IDS    which places a worker may take: g0r0,g1r* or * (default: the name, where it "
    "is\n"
    "               such a place, else *)\n"
    "for a controller and one node with the ranks of group 0:\n"
    "  tare keygen controller\n"
    "  tare keygen --ids 'g0r*' node-1 >>allowed\n"
    "  tare serve MODEL --worker-bind tcp://10.0.0.1:7000 --worker-key-file controller.secret \\\n"
    "      --worker-allow-file allowed\n"
    "  tare-worker MODEL --controller tcp://10.0.0.1:7000 --curve-secret-file node-1.secret \\\n"
    "      --curve-server-key-file controller.pub\n";

// ---- files -------------------------------------------------------------------------------------

static bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

// Whole or not at all, and never in the place of another one.
static enum status write_new(const char *path, mode_t mode, const char *text, struct error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) {
        error_hint(err, errno == EEXIST ? "move it away first: whoever uses it would be locked out"
                                        : "name another directory with --out");
        return error_set_os(err, STATUS_IO, "'%s'", path);
    }
    size_t byte_count = strlen(text);
    bool ok = write(fd, text, byte_count) == (ssize_t)byte_count && fsync(fd) == 0;
    enum status status =
        ok ? STATUS_OK : error_set_os(err, STATUS_IO, "'%s' cannot be written", path);
    close(fd);
    if (!ok) {
        unlink(path);
    }
    return status;
}

static void file_path(const struct options *options, const char *name, const char *ending,
                      char out[PATH_BYTES]) {
    snprintf(out, PATH_BYTES, "%.3900s/%s.%s", options->out, name, ending);
}

static enum status write_pair(const struct options *options, const char *name,
                              const struct link_key_pair *pair, struct error *err) {
    char secret_path[PATH_BYTES], public_path[PATH_BYTES], text[TEXT_BYTES];
    file_path(options, name, "secret", secret_path);
    file_path(options, name, "pub", public_path);
    snprintf(text, sizeof text, "# secret key of %s: for its eyes only\npublic %s\nsecret %s\n",
             name, pair->public_key, pair->secret_key);
    enum status status = write_new(secret_path, 0600, text, err);
    explicit_bzero(text, sizeof text);
    TRY(status);
    snprintf(text, sizeof text, "# public key of %s\npublic %s\n", name, pair->public_key);
    status = write_new(public_path, 0644, text, err);
    if (status != STATUS_OK) {
        unlink(secret_path);    // a half is of no use
    }
    return status;
}

// ---- the command -------------------------------------------------------------------------------

static void print_line(const struct options *options, const char *name,
                       const struct link_key_pair *pair) {
    struct link_entry entry = {0};
    const char *ids = options->ids;
    if (ids == NULL) {
        ids = link_ids_parse(name, &entry, NULL) == STATUS_OK ? name : "*";
    }
    bool admin = strcmp(options->role, "admin") == 0;
    printf("%s %s role=%s%s%s\n", name, pair->public_key, options->role,
           admin ? "" : " ids=", admin ? "" : ids);
}

// All names, before anything is written.
static enum status check(const struct options *options, struct error *err) {
    struct link_entry entry;
    char path[PATH_BYTES];
    if (strcmp(options->role, "worker") != 0 && strcmp(options->role, "admin") != 0) {
        return error_set(err, STATUS_INVALID, "--role %s: worker or admin", options->role);
    }
    if (options->ids != NULL && link_ids_parse(options->ids, &entry, err) != STATUS_OK) {
        return STATUS_INVALID;
    }
    for (int i = 0; i < options->name_count; i++) {
        const char *name = options->names[i];
        if (!link_name_ok(name)) {
            return error_set(err, STATUS_INVALID,
                             "'%.100s' is no name: letters, digits, '.', '_' and '-', at most %d",
                             name, LINK_NAME_BYTES - 1);
        }
        static const char *const endings[] = {"secret", "pub"};
        for (int k = 0; k < 2; k++) {
            file_path(options, name, endings[k], path);
            if (exists(path)) {
                error_hint(err, "move it away first: whoever uses it would be locked out");
                return error_set(err, STATUS_INVALID, "'%s' is there already", path);
            }
        }
    }
    return STATUS_OK;
}

static bool parse(int argc, char **argv, struct options *out) {
    struct words words = {.verb = "keygen", .argc = argc, .argv = argv};
    for (words.at = 1; words.at < argc && !words.wrong; words.at++) {
        const char *word = argv[words.at];
        if (words_take(&words, "--out", &out->out) || words_take(&words, "--ids", &out->ids) ||
            words_take(&words, "--role", &out->role)) {
            continue;
        }
        if (words_are(&words, "--help", "-h")) {
            out->help = true;
        } else if (word[0] != '-' && out->name_count < NAMES_MAX) {
            out->names[out->name_count++] = word;
        } else if (word[0] != '-') {
            fprintf(stderr, "tare keygen: '%s' is one name too many: %d at once\n", word,
                    NAMES_MAX);
            words.wrong = true;
        } else {
            words_unknown(&words);
        }
    }
    if (words.wrong) {
        fputs(USAGE, stderr);
        return false;
    }
    if (out->name_count == 0 && !out->help) {
        fprintf(stderr, "tare keygen: whose keys? Give a name\n%s", USAGE);
        return false;
    }
    return true;
}

int keygen_run(int argc, char **argv) {
    struct options options = {.out = ".", .role = "worker"};
    if (!parse(argc, argv, &options)) {
        return EXIT_CODE_USAGE;
    }
    if (options.help) {
        fputs(USAGE, stdout);
        return EXIT_CODE_OK;
    }
    struct error err = {0};
    enum status status = check(&options, &err);
    for (int i = 0; i < options.name_count && status == STATUS_OK; i++) {
        struct link_key_pair pair;
        status = link_key_pair_create(&pair, &err);
        if (status == STATUS_OK) {
            status = write_pair(&options, options.names[i], &pair, &err);
        }
        if (status == STATUS_OK) {
            print_line(&options, options.names[i], &pair);
        }
        explicit_bzero(&pair, sizeof pair);
    }
    if (status != STATUS_OK) {
        error_print("tare keygen", &err);
    }
    return (int)exit_code_for(status);
}
