// SPDX-License-Identifier: Apache-2.0
// Goal: a model directory and a GGUF file open with the right file winning, and whatever is missing
// or wrong is named with a remedy. Method: small models written into a temporary directory.
#include "common/buf.h"
#include "common/memory.h"
#include "controller/model_text.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void setup(void) {
    snprintf(folder, sizeof folder, "/tmp/tare-model-text-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static const char *const names[] = {"tokenizer.json",         "tokenizer_config.json",
                                    "generation_config.json", "config.json",
                                    "chat_template.jinja",    "model.gguf"};

static void teardown(void) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void put_file(const char *name, const void *bytes, size_t byte_count) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, byte_count, file), byte_count);
    ck_assert_int_eq(fclose(file), 0);
}

static void put(const char *name, const char *text) {
    put_file(name, text, strlen(text));
}

static const char tokenizer_json[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":4,\"content\":\"<e>\",\"special\":true},{\"id\":5,\"content\":\"<f>\",\"special\":"
    "true}],\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

static void put_folder(void) {
    put("tokenizer.json", tokenizer_json);
    put("config.json", "{\"max_position_embeddings\":2048,\"vocab_size\":8,\"eos_token_id\":4,"
                       "\"model_type\":\"llama\"}");
}

static struct model_text *open_good(const char *path, const char *chat_template) {
    struct model_text *text = NULL;
    struct error err = {0};
    enum status status = model_text_open(path, chat_template, &text, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    return text;
}

static void refuse(const char *path, enum status want, const char *sentence, const char *hint) {
    struct model_text *text = NULL;
    struct error err = {0};
    enum status status = model_text_open(path, NULL, &text, &err);
    ck_assert_msg(status == want, "%s: %s", status_name(status), err.message);
    ck_assert_msg(strstr(err.message, sentence) != NULL, "'%s' not in '%s'", sentence, err.message);
    ck_assert_msg(strstr(err.hint, hint) != NULL, "'%s' not in '%s'", hint, err.hint);
}

START_TEST(a_bare_folder_opens_with_the_defaults_of_the_api) {
    put_folder();
    struct model_text *text = open_good(folder, NULL);
    struct model_text_sampling d = model_text_sampling(text);
    ck_assert(d.temperature == 1.0f && d.top_p == 1.0f && d.min_p == 0.0f && d.top_k == 0 &&
              d.repetition_penalty == 1.0f);
    ck_assert_uint_eq(model_text_context_tokens(text), 2048);
    ck_assert_uint_eq(model_text_logit_rows(text), 8);
    ck_assert_str_eq(model_text_name(text), strrchr(folder, '/') + 1);
    ck_assert_str_eq(model_text_architecture(text), "llama");
    ck_assert_str_eq(model_text_bos_token(text), "");
    ck_assert_ptr_null(model_text_template(text));
    ck_assert_ptr_null(model_text_template_source(text));
    ck_assert(tokenizer_is_eos(model_text_tokenizer(text), 4));
    model_text_close(text);
}
END_TEST

START_TEST(each_setting_comes_from_the_file_that_wins) {
    put_folder();
    put("generation_config.json",
        "{\"eos_token_id\":[5,1],\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":null,"
        "\"repetition_penalty\":1.05,\"do_sample\":true}");
    put("tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"<e>\",\"add_bos_token\":true,"
        "\"chat_template\":\"from config {{ bos_token }}{{ eos_token }}\"}");
    struct model_text *text = open_good(folder, NULL);
    const struct tokenizer *tokenizer = model_text_tokenizer(text);
    struct model_text_sampling d = model_text_sampling(text);
    ck_assert(d.temperature == 0.6f && d.top_p == 0.95f && d.top_k == 20 && d.min_p == 0.0f &&
              d.repetition_penalty == 1.05f);
    uint32_t count = 0;
    const uint32_t *eos = tokenizer_eos(tokenizer, &count);
    ck_assert_uint_eq(count, 3);    // both of generation_config, and the tokenizer's own
    ck_assert(eos[0] == 4 && eos[1] == 5 && eos[2] == 1);
    uint32_t bos = 0;
    ck_assert(tokenizer_bos(tokenizer, &bos) && bos == 3);
    ck_assert(tokenizer_adds_bos(tokenizer));
    ck_assert_str_eq(model_text_bos_token(text), "<s>");
    ck_assert_str_eq(model_text_eos_token(text), "<e>");
    ck_assert_str_eq(model_text_template_source(text),
                     "from config {{ bos_token }}{{ eos_token }}");
    ck_assert_ptr_nonnull(model_text_template(text));
    model_text_close(text);

    put("chat_template.jinja", "from file");
    text = open_good(folder, NULL);
    ck_assert_str_eq(model_text_template_source(text), "from file");
    model_text_close(text);

    text = open_good(folder, "{{ 'flag' }}");
    ck_assert_str_eq(model_text_template_source(text), "{{ 'flag' }}");
    model_text_close(text);
    char path[128];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    text = open_good(folder, path);
    ck_assert_str_eq(model_text_template_source(text), "from file");
    model_text_close(text);
}
END_TEST

START_TEST(wrapped_configurations_and_named_templates_are_read) {
    put_folder();
    put("config.json", "{\"text_config\":{\"max_position_embeddings\":64,\"vocab_size\":6,"
                       "\"eos_token_id\":[4]}}");
    put("tokenizer_config.json",
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\","
        "\"template\":\"yes\"}]}");
    struct model_text *text = open_good(folder, NULL);
    ck_assert_uint_eq(model_text_context_tokens(text), 64);
    ck_assert_str_eq(model_text_template_source(text), "yes");
    model_text_close(text);
}
END_TEST

START_TEST(what_is_missing_is_named_with_a_remedy) {
    char path[128];
    snprintf(path, sizeof path, "%s/nothing", folder);
    refuse(path, STATUS_NOT_FOUND, "nothing", "GGUF file or a directory");
    refuse(folder, STATUS_NOT_FOUND, "tokenizer.json", "save the tokenizer");
    put("tokenizer.json", tokenizer_json);
    refuse(folder, STATUS_NOT_FOUND, "config.json", "beside its weights");
    put("config.json", "{\"max_position_embeddings\":2048}");
    refuse(folder, STATUS_CORRUPT, "no token that ends a text", "generation_config.json");
    put("config.json", "{\"eos_token_id\":4}");
    refuse(folder, STATUS_CORRUPT, "how long its context", "");
}
END_TEST

START_TEST(what_is_wrong_is_named_with_its_file) {
    put_folder();
    static const struct {
        const char *file;
        const char *text;
        enum status status;
        const char *sentence;
        const char *hint;
    } rows[] = {
        {"tokenizer.json", "{", STATUS_CORRUPT, "/tokenizer.json: not valid JSON", "fetch it"},
        {"tokenizer.json", "[]", STATUS_CORRUPT, "no JSON object", "fetch it"},
        {"tokenizer.json", "", STATUS_CORRUPT, "/tokenizer.json", "fetch it"},
        {"tokenizer.json", "{\"model\":{\"type\":\"Unigram\"}}", STATUS_UNSUPPORTED, "'Unigram'",
         ""},
        {"tokenizer.json", tokenizer_json, STATUS_OK, "", ""},
        {"config.json", "{\"max_position_embeddings\":0,\"eos_token_id\":4}", STATUS_CORRUPT,
         "/config.json: field 'max_position_embeddings'", ""},
        {"config.json", "{\"max_position_embeddings\":8,\"eos_token_id\":\"x\"}", STATUS_CORRUPT,
         "eos_token_id", ""},
        {"config.json", "{\"max_position_embeddings\":8,\"eos_token_id\":77}", STATUS_CORRUPT, "77",
         ""},
        {"config.json", "{\"max_position_embeddings\":8,\"eos_token_id\":4,\"vocab_size\":3}",
         STATUS_CORRUPT, "3 rows", ""},
        {"config.json", "{\"max_position_embeddings\":8,\"eos_token_id\":4}", STATUS_OK, "", ""},
        {"generation_config.json", "{\"temperature\":-1}", STATUS_CORRUPT,
         "/generation_config.json: field 'temperature'", ""},
        {"generation_config.json", "{\"top_p\":1.5}", STATUS_CORRUPT, "'top_p'", ""},
        {"generation_config.json", "{\"top_k\":\"x\"}", STATUS_CORRUPT, "'top_k'", ""},
        {"generation_config.json", "{}", STATUS_OK, "", ""},
        {"tokenizer_config.json", "{\"chat_template\":\"{{ 1 +\"}", STATUS_CORRUPT,
         "chat template, line 1", "--chat-template"},
        {"chat_template.jinja", "\n{% if %}", STATUS_CORRUPT,
         "chat_template.jinja: chat template, line 2", "--chat-template"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put(rows[i].file, rows[i].text);
        if (rows[i].status == STATUS_OK) {
            model_text_close(open_good(folder, NULL));
        } else {
            refuse(folder, rows[i].status, rows[i].sentence, rows[i].hint);
        }
    }
    struct model_text *text = NULL;
    struct error err = {0};
    put("chat_template.jinja", "x");
    ck_assert_int_eq(model_text_open(folder, "/no/file", &text, &err), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "/no/file"));
}
END_TEST

// ---- GGUF --------------------------------------------------------------------------------------

static void put_le(struct buf *b, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) {
        buf_append_byte(b, (uint8_t)(value >> (8 * i)));
    }
}

static void put_key(struct buf *b, const char *key, uint32_t type) {
    put_le(b, strlen(key), 8);
    buf_append_str(b, key);
    put_le(b, type, 4);
}

static void put_string(struct buf *b, const char *key, const char *value) {
    put_key(b, key, 8);
    put_le(b, strlen(value), 8);
    buf_append_str(b, value);
}

static void put_strings(struct buf *b, const char *key, const char *const *values, size_t count) {
    put_key(b, key, 9);
    put_le(b, 8, 4);
    put_le(b, count, 8);
    for (size_t i = 0; i < count; i++) {
        put_le(b, strlen(values[i]), 8);
        buf_append_str(b, values[i]);
    }
}

static void put_gguf(const char *tmpl, uint32_t top_p_bits) {
    static const char *const tokens[] = {"a", "b", "ab", "<s>", "<e>"};
    static const char *const merges[] = {"a b"};
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_append_str(&b, "GGUF");
    put_le(&b, 3, 4);
    put_le(&b, 0, 8);
    put_le(&b, 12, 8);
    put_string(&b, "general.architecture", "llama");
    put_string(&b, "general.name", "Small One");
    put_string(&b, "tokenizer.ggml.model", "gpt2");
    put_string(&b, "tokenizer.ggml.pre", "gpt-2");
    put_strings(&b, "tokenizer.ggml.tokens", tokens, 5);
    put_strings(&b, "tokenizer.ggml.merges", merges, 1);
    put_key(&b, "tokenizer.ggml.token_type", 9);
    put_le(&b, 5, 4);
    put_le(&b, 5, 8);
    static const uint32_t types[] = {1, 1, 1, 3, 3};
    for (int i = 0; i < 5; i++) {
        put_le(&b, types[i], 4);
    }
    put_key(&b, "tokenizer.ggml.bos_token_id", 4);
    put_le(&b, 3, 4);
    put_key(&b, "tokenizer.ggml.eos_token_id", 4);
    put_le(&b, 4, 4);
    put_key(&b, "llama.context_length", 4);
    put_le(&b, 512, 4);
    put_key(&b, "general.sampling.top_p", 6);
    put_le(&b, top_p_bits, 4);
    put_string(&b, "tokenizer.chat_template", tmpl);
    ck_assert_int_eq(buf_status(&b), STATUS_OK);
    put_file("model.gguf", b.data, b.bytes_used);
    buf_deinit(&b);
}

START_TEST(a_gguf_file_gives_the_same_things) {
    char path[128];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    put_gguf("{{ eos_token }}", 0x3F000000);    // 0.5
    struct model_text *text = open_good(path, NULL);
    ck_assert_str_eq(model_text_name(text), "model");
    ck_assert_str_eq(model_text_architecture(text), "llama");
    ck_assert_str_eq(model_text_bos_token(text), "<s>");
    ck_assert_str_eq(model_text_eos_token(text), "<e>");
    ck_assert_uint_eq(model_text_context_tokens(text), 512);
    ck_assert_uint_eq(model_text_logit_rows(text), 5);
    ck_assert_str_eq(model_text_template_source(text), "{{ eos_token }}");
    ck_assert(model_text_sampling(text).top_p == 0.5f);
    model_text_close(text);
    put_gguf("{{ 1 +", 0x3F000000);
    refuse(path, STATUS_CORRUPT, "model.gguf: chat template, line 1", "--chat-template");
    put_gguf("x", 0x40000000);    // 2.0
    refuse(path, STATUS_CORRUPT, "general.sampling.top_p", "");
    put("model.gguf", "GGUF\3");
    refuse(path, STATUS_CORRUPT, "model.gguf: the file ends", "");
    put("model.gguf", "");
    refuse(path, STATUS_CORRUPT, "not a GGUF file", "tokenizer.json and config.json");
}
END_TEST

// ---- the demo model ----------------------------------------------------------------------------

static const char demo_path[] = "models/smollm2-135m-instruct-q4_1.gguf";

// `make test` fetches the file first; a bare `make unit` may run without it.
static bool demo_is_here(void) {
    bool here = access(demo_path, R_OK) == 0;
    if (!here) {
        printf("the demo model is not here (make model): its recorded ids are not checked\n");
    }
    return here;
}

static struct json_doc *read_vectors(void) {
    FILE *file = fopen("tests/golden/tokenizer_vectors.json", "rb");
    ck_assert_msg(file != NULL, "run the tests from the top of the tree");
    static char text[65536];
    size_t byte_count = fread(text, 1, sizeof text, file);
    fclose(file);
    struct json_doc *doc = NULL;
    ck_assert_int_eq(json_parse(text, byte_count, &doc, NULL), STATUS_OK);
    return doc;
}

START_TEST(the_demo_model_gives_the_ids_of_the_reference) {
    if (!demo_is_here()) {
        return;
    }
    struct model_text *text = open_good(demo_path, NULL);
    struct json_doc *doc = read_vectors();
    const struct json *cases = json_get(json_root(doc), "cases");
    ck_assert_uint_ge(json_count(cases), 20);
    for (size_t i = 0; i < json_count(cases); i++) {
        size_t byte_count = 0;
        const char *input = json_text(json_get(json_at(cases, i), "text"), &byte_count);
        const struct json *want = json_get(json_at(cases, i), "ids");
        struct token_list got;
        token_list_init(&got, 1000);
        ck_assert_int_eq(tokenizer_encode(model_text_tokenizer(text), input, byte_count,
                                          (struct tokenizer_options){.parse_special = true}, &got,
                                          NULL),
                         STATUS_OK);
        ck_assert_msg(got.count == json_count(want), "'%s': %zu tokens", input, got.count);
        for (size_t k = 0; k < got.count; k++) {
            ck_assert_msg(got.ids[k] == (uint32_t)json_int(json_at(want, k)), "'%s' at %zu", input,
                          k);
        }
        token_list_deinit(&got);
    }
    json_destroy(doc);
    model_text_close(text);
}
END_TEST

START_TEST(the_demo_model_chats) {
    if (!demo_is_here()) {
        return;
    }
    struct model_text *text = open_good(demo_path, NULL);
    struct json_doc *doc = NULL;
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    ck_assert_int_eq(json_parse(talk, sizeof talk - 1, &doc, NULL), STATUS_OK);
    struct buf out;
    buf_init(&out, 10000);
    struct chat_template_input input = {.messages = json_root(doc), .add_generation_prompt = true};
    ck_assert_int_eq(chat_template_render(model_text_template(text), &input, &out, NULL),
                     STATUS_OK);
    ck_assert_str_eq(buf_cstr(&out),
                     "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                     "Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                     "<|im_start|>assistant\n");
    ck_assert_uint_eq(model_text_context_tokens(text), 8192);
    ck_assert_uint_eq(model_text_logit_rows(text), 49152);
    ck_assert(tokenizer_is_eos(model_text_tokenizer(text), 2));
    buf_deinit(&out);
    json_destroy(doc);
    model_text_close(text);
}
END_TEST

Suite *suite_model_text(void) {
    Suite *suite = suite_create("controller/model_text");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_bare_folder_opens_with_the_defaults_of_the_api);
    tcase_add_test(tc, each_setting_comes_from_the_file_that_wins);
    tcase_add_test(tc, wrapped_configurations_and_named_templates_are_read);
    tcase_add_test(tc, what_is_missing_is_named_with_a_remedy);
    tcase_add_test(tc, what_is_wrong_is_named_with_its_file);
    tcase_add_test(tc, a_gguf_file_gives_the_same_things);
    tcase_add_test(tc, the_demo_model_gives_the_ids_of_the_reference);
    tcase_add_test(tc, the_demo_model_chats);
    suite_add_tcase(suite, tc);
    return suite;
}
