// SPDX-License-Identifier: Apache-2.0
// Goal: a flag means one thing from every source, sources override each other in the written order,
// and whatever is wrong is refused with its name, its source and a remedy. Method: small command
// lines.
#include "common/config.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_MAX = 16 };

struct outcome {
    struct config *config;
    struct buf text;
    struct error err;
    enum status status;
};

// Parses "a b c" as `tare serve a b c`. `environment` may be NULL.
static struct outcome parse(const char *line, char **environment) {
    static char words[WORDS_MAX][256];
    static char *argv[WORDS_MAX + 1];
    int argc = 0;
    snprintf(words[argc], sizeof words[0], "tare");
    argv[argc] = words[argc];
    argc++;
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", line);
    char *save = NULL;
    for (char *at = strtok_r(copy, " ", &save); at != NULL; at = strtok_r(NULL, " ", &save)) {
        snprintf(words[argc], sizeof words[0], "%s", at);
        argv[argc] = words[argc];
        argc++;
    }
    argv[argc] = NULL;
    struct outcome o = {0};
    buf_init(&o.text, 1 << 18);
    struct config_input input = {OPTION_PROGRAM_SERVE, "tare serve", argc, argv, environment};
    o.status = config_parse(&input, &o.config, &o.text, &o.err);
    return o;
}

static void done(struct outcome *o) {
    config_destroy(o->config);
    buf_deinit(&o->text);
}

START_TEST(underscores_equals_and_human_integers) {
    struct outcome o = parse("model.gguf --max_model_len=8k --max-num-seqs 1K", NULL);
    ck_assert_msg(o.status == STATUS_OK, "%s", o.err.message);
    ck_assert_str_eq(config_string(o.config, OPTION_MODEL), "model.gguf");
    ck_assert_int_eq(config_int(o.config, OPTION_MAX_MODEL_LEN), 8000);
    ck_assert_int_eq(config_int(o.config, OPTION_MAX_NUM_SEQS), 1024);
    ck_assert_int_eq(config_int(o.config, OPTION_PORT), 8000);
    done(&o);
}
END_TEST

START_TEST(human_integers_are_exact) {
    static const struct {
        const char *text;
        int64_t value;
        bool good;
    } rows[] = {{"25.6k", 25600, true},
                {"2M", 2097152, true},
                {"1g", 1000000000, true},
                {"-1", -1, true},
                {"1.5", 0, false},
                {"8kk", 0, false},
                {"", 0, false},
                {"k", 0, false},
                {"1e3", 1000, true},
                {"9223372036854775807", INT64_MAX, true},
                {"9223372036854775808", 0, false},
                {"nan", 0, false},
                {"0.0001k", 0, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = 0;
        ck_assert_msg(config_human_int(rows[i].text, &value) == rows[i].good, "%s", rows[i].text);
        if (rows[i].good) {
            ck_assert_int_eq(value, rows[i].value);
        }
    }
}
END_TEST

START_TEST(booleans_may_be_negated_and_lists_repeat) {
    struct outcome o =
        parse("m --no-metrics-compat --api-key a,b --api-key c --enable-prefix-caching", NULL);
    ck_assert_msg(o.status == STATUS_OK, "%s", o.err.message);
    ck_assert(!config_bool(o.config, OPTION_METRICS_COMPAT));
    ck_assert(config_bool(o.config, OPTION_ENABLE_PREFIX_CACHING));
    ck_assert_uint_eq(config_list_count(o.config, OPTION_API_KEY), 3);
    ck_assert_str_eq(config_list_item(o.config, OPTION_API_KEY, 2), "c");
    done(&o);
    o = parse("m --api-key se[c'ret --allowed-origins [\"http://a\",'http://b']", NULL);
    ck_assert_uint_eq(config_list_count(o.config, OPTION_API_KEY), 1);
    ck_assert_str_eq(config_list_item(o.config, OPTION_API_KEY, 0), "se[c'ret");
    ck_assert_uint_eq(config_list_count(o.config, OPTION_ALLOWED_ORIGINS), 2);
    ck_assert_str_eq(config_list_item(o.config, OPTION_ALLOWED_ORIGINS, 1), "http://b");
    done(&o);
    o = parse("m --allowed-origins http://[::1]:80,http://c", NULL);
    ck_assert_str_eq(config_list_item(o.config, OPTION_ALLOWED_ORIGINS, 0), "http://[::1]:80");
    ck_assert_str_eq(config_list_item(o.config, OPTION_ALLOWED_ORIGINS, 1), "http://c");
    done(&o);
}
END_TEST

static void refused_as(const char *line, const char *word, enum exit_code code) {
    struct outcome o = parse(line, NULL);
    ck_assert_msg(o.status != STATUS_OK, "accepted: %s", line);
    ck_assert_int_eq(config_exit_code(o.status), code);
    char all[ERROR_MESSAGE_BYTES + 300];
    snprintf(all, sizeof all, "%s; %s", o.err.message, o.err.hint);
    ck_assert_msg(strstr(all, word) != NULL, "'%s' lacks '%s'", all, word);
    done(&o);
}

static void refused(const char *line, const char *word) {
    refused_as(line, word, EXIT_CODE_USAGE);
}

START_TEST(wrong_lines_are_refused_with_the_remedy) {
    refused("m --max-model-ln 5", "--max-model-len");
    refused("m --port 65536", "0..65535");
    refused("m --port x", "8k");
    refused("m --port", "needs a value");
    refused("m n", "one word too many");
    refused("m --gpu-memory-utilization 1.01", "0.01..1");
    refused("m --kv-cache-dtype fp8", "float16");
    refused("m --require-auth=maybe", "true or false");
    refused("m --pipeline-parallel-size 8", "not built");
    refused_as("m -tp 9", "it must lie in 1..8", EXIT_CODE_USAGE);
    refused("m --lora-modules x", "adapters");
    refused("m --api-key=", "--api-key is empty");
    refused("m --api-key ,,", "--api-key is empty");
    refused("m --no-port", "unknown option");
}
END_TEST

START_TEST(foreign_flags_are_noted_or_translated) {
    struct outcome o = parse("-m m -c 2048 --trust-remote-code -np 8 --load-format gguf", NULL);
    ck_assert_msg(o.status == STATUS_OK, "%s", o.err.message);
    ck_assert_int_eq(config_int(o.config, OPTION_MAX_MODEL_LEN), 2048);
    ck_assert_int_eq(config_int(o.config, OPTION_MAX_NUM_SEQS), 8);
    ck_assert_uint_eq(config_note_count(o.config), 2);
    ck_assert(strstr(config_note(o.config, 0), "trust-remote-code") != NULL);
    done(&o);
}
END_TEST

static char *write_file(const char *text) {
    static char path[] = "/tmp/tare-config-XXXXXX";
    snprintf(path, sizeof path, "/tmp/tare-config-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

START_TEST(flag_beats_environment_beats_file_beats_default) {
    char *path = write_file("port: 1\nhost: file\nmax_num_seqs: 3\napi-key: [x, y]\n");
    char line[256];
    snprintf(line, sizeof line, "m --port 2 --config %s", path);
    char env_port[] = "TARE_PORT=4";
    char env_host[] = "TARE_HOST=env";
    char other[] = "TARE_OF_ANOTHER_VERSION=1";
    char *environment[] = {env_port, env_host, other, NULL};
    struct outcome o = parse(line, environment);
    ck_assert_msg(o.status == STATUS_OK, "%s", o.err.message);
    ck_assert_int_eq(config_int(o.config, OPTION_PORT), 2);
    ck_assert_str_eq(config_string(o.config, OPTION_HOST), "env");
    ck_assert_int_eq(config_int(o.config, OPTION_MAX_NUM_SEQS), 3);
    ck_assert_uint_eq(config_list_count(o.config, OPTION_API_KEY), 2);
    ck_assert_str_eq(config_source(o.config, OPTION_HOST), "TARE_HOST");
    done(&o);
    unlink(path);
}
END_TEST

START_TEST(files_are_refused_with_the_line) {
    static const struct {
        const char *text, *word;
    } rows[] = {{"port: [1, 2\n", "line"},
                {"port: 8000\nprot: 1\n", "line 2"},
                {"- a\n", "line 1"},
                {"port: {a: 1}\n", "maps inside"},
                {"require-auth: yes\n", "true or false"},
                {"a: &x 1\nport: *x\n", "line 1"},
                {"just text\n", "line 1"},
                {"pipeline-parallel-size: 8\n", "not built"},
                {"config: other.yaml\n", "inside"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *path = write_file(rows[i].text);
        char line[256];
        snprintf(line, sizeof line, "m --config %s", path);
        refused_as(line, rows[i].word, EXIT_CODE_CONFIG);
        unlink(path);
    }
    refused_as("m --config /nowhere/x.yaml", "cannot be opened", EXIT_CODE_CONFIG);
}
END_TEST

START_TEST(help_version_and_print_config_write_text_and_no_config) {
    struct outcome o = parse("--help", NULL);
    ck_assert(o.status == STATUS_OK && o.config == NULL);
    ck_assert(strstr(buf_cstr(&o.text), "--max-num-batched-tokens") != NULL);
    ck_assert(strstr(buf_cstr(&o.text), "--worker-id") == NULL);
    done(&o);
    o = parse("--help=memory", NULL);
    ck_assert(strstr(buf_cstr(&o.text), "--block-size") != NULL);
    ck_assert(strstr(buf_cstr(&o.text), "--port") == NULL);
    done(&o);
    o = parse("--help=pipeline-parallel-size", NULL);
    ck_assert(strstr(buf_cstr(&o.text), "refused: not built: see --tensor-parallel-size") != NULL);
    done(&o);
    refused("--help=nonsense", "no option or group 'nonsense'");
    o = parse("--version", NULL);
    ck_assert(strncmp(buf_cstr(&o.text), "tare ", 5) == 0);
    done(&o);
    o = parse("m --print-config --api-key secret", NULL);
    ck_assert(strstr(buf_cstr(&o.text), "secret") == NULL);
    ck_assert(strstr(buf_cstr(&o.text), "port: 8000    # default") != NULL);
    done(&o);
}
END_TEST

START_TEST(children_get_what_was_given_and_nothing_secret_is_shown) {
    struct outcome o = parse("m --port 5 --threads 3 --config-typo-free-flag", NULL);
    done(&o);
    o = parse("m --port 5 --threads 3", NULL);
    ck_assert_int_eq(o.status, STATUS_OK);
    struct buf flags;
    buf_init(&flags, 4096);
    config_forward(o.config, OPTION_PROGRAM_WORKER, &flags);
    static const char want[] = "--model=m\0--threads=3";
    ck_assert_uint_eq(flags.bytes_used, sizeof want);
    ck_assert_mem_eq(flags.data, want, sizeof want);
    done(&o);
    o = parse("m --api-key s --seed 4", NULL);
    buf_reset(&flags);
    config_forward(o.config, OPTION_PROGRAM_CONTROLLER, &flags);
    static const char no_secret[] = "--model=m\0--seed=4";
    ck_assert_uint_eq(flags.bytes_used, sizeof no_secret);
    ck_assert_mem_eq(flags.data, no_secret, sizeof no_secret);
    buf_deinit(&flags);
    done(&o);
    char a[] = "tare", b[] = "--api-key=abc", c[] = "--api-key", d[] = "def";
    char *argv[] = {a, b, c, d, NULL};
    config_hide_secrets(4, argv);
    ck_assert_str_eq(argv[1], "--api-key=xxx");
    ck_assert_str_eq(argv[3], "xxx");
}
END_TEST

Suite *suite_config(void) {
    Suite *suite = suite_create("common/config");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, underscores_equals_and_human_integers);
    tcase_add_test(tc, human_integers_are_exact);
    tcase_add_test(tc, booleans_may_be_negated_and_lists_repeat);
    tcase_add_test(tc, wrong_lines_are_refused_with_the_remedy);
    tcase_add_test(tc, foreign_flags_are_noted_or_translated);
    tcase_add_test(tc, flag_beats_environment_beats_file_beats_default);
    tcase_add_test(tc, files_are_refused_with_the_line);
    tcase_add_test(tc, help_version_and_print_config_write_text_and_no_config);
    tcase_add_test(tc, children_get_what_was_given_and_nothing_secret_is_shown);
    suite_add_tcase(suite, tc);
    return suite;
}
