// SPDX-License-Identifier: Apache-2.0
// Goal: templates give what the reference gives, messages are prepared as promised, and no template
// can take more than its bounds. Method: answers recorded from Jinja by
// tests/golden/template_compare.py; templates that try each bound.
#include "common/bounds.h"
#include "common/memory.h"
#include "controller/text/chat_template.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

struct setup {
    const char *template;
    const char *messages;    // JSON
    const char *kwargs;      // JSON
    bool generate;
    bool go_on;
    int64_t now;
    int32_t offset;
};

static struct json_doc *parse(const char *text) {
    struct json_doc *doc = NULL;
    struct error err = {0};
    enum status status = json_parse(text, strlen(text), &doc, &err);
    ck_assert_msg(status == STATUS_OK, "%s: %s", text, err.message);
    return doc;
}

static enum status run(struct setup s, struct buf *out, struct error *err) {
    struct chat_template *tmpl = NULL;
    buf_init(out, BOUND_TEMPLATE_OUTPUT_BYTES);
    enum status status = chat_template_compile(s.template, strlen(s.template), &tmpl, err);
    if (status != STATUS_OK) {
        return status;
    }
    struct json_doc *messages = parse(s.messages ? s.messages : "[]");
    struct json_doc *kwargs = parse(s.kwargs ? s.kwargs : "{}");
    struct chat_template_input input = {
        .messages = json_root(messages),
        .kwargs = json_root(kwargs),
        .bos_token = "<bos>",
        .add_generation_prompt = s.generate,
        .continue_final_message = s.go_on,
        .now_unix_s = s.now,
        .utc_offset_s = s.offset,
    };
    status = chat_template_render(tmpl, &input, out, err);
    json_destroy(messages);
    json_destroy(kwargs);
    chat_template_destroy(tmpl);
    return status;
}

static void expect(struct setup s, const char *want) {
    struct buf out;
    struct error err = {0};
    enum status status = run(s, &out, &err);
    ck_assert_msg(status == STATUS_OK, "%s: %s", s.template, err.message);
    ck_assert_str_eq(buf_cstr(&out), want);
    buf_deinit(&out);
}

static void refuse(struct setup s, const char *sentence) {
    struct buf out;
    struct error err = {0};
    enum status status = run(s, &out, &err);
    ck_assert_msg(status == STATUS_INVALID, "%.100s: %s", s.template, status_name(status));
    ck_assert_msg(strstr(err.message, sentence) != NULL, "'%s' not in '%s'", sentence, err.message);
    buf_deinit(&out);
}

// ---- against the reference ---------------------------------------------------------------------

static void check_case(const struct chat_template *tmpl, const char *name, const struct json *row) {
    struct buf out;
    struct error err = {0};
    buf_init(&out, BOUND_TEMPLATE_OUTPUT_BYTES);
    struct chat_template_input input = {
        .messages = json_get(row, "messages"),
        .tools = json_get(row, "tools"),
        .kwargs = json_get(row, "kwargs"),
        .bos_token = strncmp(name, "snippet", 7) == 0 ? "" : "<|begin_of_text|>",
        .eos_token = strncmp(name, "snippet", 7) == 0 ? "" : "<|end|>",
        .add_generation_prompt = true,
        .now_unix_s = 1721993445,
    };
    const char *label = json_text(json_get(row, "name"), NULL);
    enum status status = chat_template_render(tmpl, &input, &out, &err);
    const char *want = json_text(json_get(row, "prompt"), NULL);
    if (want == NULL) {
        const char *raised = json_text(json_get(row, "refused"), NULL);
        ck_assert_msg(status == STATUS_INVALID, "%s, %s: not refused", name, label);
        ck_assert_msg(raised == NULL || strcmp(raised, err.message) == 0, "%s, %s: %s", name, label,
                      err.message);
    } else {
        ck_assert_msg(status == STATUS_OK, "%s, %s: %s", name, label, err.message);
        ck_assert_msg(strcmp(want, buf_cstr(&out)) == 0, "%s, %s: '%s' not '%s'", name, label,
                      buf_cstr(&out), want);
    }
    buf_deinit(&out);
}

static char *read_file(const char *path, size_t *byte_count) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: run the tests from the top of the tree", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *bytes = memory_alloc((size_t)size);
    *byte_count = fread(bytes, 1, (size_t)size, file);
    ck_assert_int_eq((long)*byte_count, size);
    fclose(file);
    return bytes;
}

START_TEST(recorded_prompts_of_the_reference_are_met) {
    size_t byte_count = 0;
    char *text = read_file("tests/golden/template_vectors.json", &byte_count);
    struct json_doc *doc = NULL;
    ck_assert_int_eq(json_parse(text, byte_count, &doc, NULL), STATUS_OK);
    const struct json *vectors = json_root(doc);
    size_t cases = 0;
    for (size_t i = 0; i < json_count(vectors); i++) {
        const struct json *vector = json_at(vectors, i);
        const struct json *rows = json_get(vector, "cases");
        const char *name = json_text(json_get(vector, "name"), NULL);
        size_t source_bytes = 0;
        const char *source = json_text(json_get(vector, "template"), &source_bytes);
        struct chat_template *tmpl = NULL;
        struct error err = {0};
        enum status status = chat_template_compile(source, source_bytes, &tmpl, &err);
        for (size_t k = 0; status == STATUS_OK && k < json_count(rows); k++) {
            check_case(tmpl, name, json_at(rows, k));
        }
        // A template that does not compile was refused by the reference too.
        bool refused = json_get(json_at(rows, 0), "prompt") == NULL;
        ck_assert_msg(status == STATUS_OK || refused, "%s: %s", name, err.message);
        cases += json_count(rows);
        chat_template_destroy(tmpl);
    }
    ck_assert_uint_ge(cases, 200);
    json_destroy(doc);
    memory_free(text);
}
END_TEST

// ---- errors ------------------------------------------------------------------------------------

START_TEST(errors_name_the_line_and_raised_sentences_stand_alone) {
    refuse((struct setup){.template = "a\nb\n{{ 1 +\n }}"}, "chat template, line 4");
    refuse((struct setup){.template = "a\n{% if x %}\n"}, "the template ends inside a block");
    refuse((struct setup){.template = "\n\n{% include 'x' %}"},
           "line 3: an unknown or unsupported");
    refuse((struct setup){.template = "{% for x in [1] recursive %}{% endfor %}"}, "recursive");
    refuse((struct setup){.template = "{% break %}"}, "outside a loop");
    refuse((struct setup){.template = "{# never closed"}, "is not closed");
    refuse((struct setup){.template = "{{ 'open }}"}, "is not closed");
    refuse((struct setup){.template = "{{ 99999999999999999999 }}"}, "does not fit 64 bits");
    refuse((struct setup){.template = "{{ f(*x) }}"}, "not supported");
    refuse((struct setup){.template = "a\n{% for x in [1] %}\n{{ x.y.z }}{% endfor %}"},
           "chat template, line 3: 'y' is undefined");
    struct buf out;
    struct error err = {0};
    ck_assert_int_eq(
        run((struct setup){.template = "\n{{ raise_exception('just this') }}"}, &out, &err),
        STATUS_INVALID);
    ck_assert_str_eq(err.message, "just this");
    buf_deinit(&out);
}
END_TEST

START_TEST(broken_and_oversized_sources_are_refused) {
    refuse((struct setup){.template = "\xFF"}, "not valid UTF-8");
    size_t bytes = BOUND_TEMPLATE_BYTES + 1;
    char *source = memory_alloc(bytes);
    memset(source, 'x', bytes);
    struct chat_template *tmpl = NULL;
    ck_assert_int_eq(chat_template_compile(source, bytes, &tmpl, NULL), STATUS_INVALID);
    ck_assert_int_eq(chat_template_compile(source, bytes - 1, &tmpl, NULL), STATUS_OK);
    chat_template_destroy(tmpl);
    memory_free(source);
}
END_TEST

// ---- bounds ------------------------------------------------------------------------------------

static void repeat(struct buf *out, const char *open, size_t times, const char *middle,
                   const char *close) {
    buf_init(out, BOUND_TEMPLATE_BYTES);
    for (size_t i = 0; i < times; i++) {
        buf_append_str(out, open);
    }
    buf_append_str(out, middle);
    for (size_t i = 0; i < times; i++) {
        buf_append_str(out, close);
    }
}

START_TEST(nesting_of_sources_is_bounded) {
    struct buf source;
    repeat(&source, "{{ (", 1, "1", ") }}");
    expect((struct setup){.template = buf_cstr(&source)}, "1");
    buf_deinit(&source);
    static const struct {
        const char *open, *middle, *close;
        size_t good;
    } rows[] = {
        {"(", "1", ")", 90},
        {"[", "1", "]", 90},
        {"not ", "1", "", 150},
        {"-", "1", "", 150},
        {"{% if 1 %}", "x", "{% endif %}", 190},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int deep = 0; deep < 2; deep++) {
            bool statement = rows[i].open[0] == '{';
            struct buf inner;
            struct buf whole;
            repeat(&inner, rows[i].open, deep ? 5000 : rows[i].good, rows[i].middle, rows[i].close);
            buf_init(&whole, BOUND_TEMPLATE_BYTES);
            buf_printf(&whole, statement ? "%s" : "{{ %s }}", buf_cstr(&inner));
            struct setup s = {.template = buf_cstr(&whole)};
            struct buf out;
            if (deep) {
                refuse(s, "nesting is too deep");
            } else {
                ck_assert_int_eq(run(s, &out, NULL), STATUS_OK);
                buf_deinit(&out);
            }
            buf_deinit(&inner);
            buf_deinit(&whole);
        }
    }
}
END_TEST

START_TEST(long_chains_end_in_a_status) {
    static const char *const links[] = {" + 1", " ~ 'x'", " and 1", " | string", ".upper", "[0]"};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        struct buf source;
        buf_init(&source, BOUND_TEMPLATE_BYTES);
        buf_append_str(&source, "{{ n");
        for (int k = 0; k < 30000; k++) {
            buf_append_str(&source, links[i]);
        }
        buf_append_str(&source, " }}");
        refuse((struct setup){.template = buf_cstr(&source), .kwargs = "{\"n\": 1}"},
               "more than 2000 evaluations");
        buf_deinit(&source);
    }
}
END_TEST

START_TEST(names_are_bounded) {
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct buf source;
        buf_init(&source, BOUND_TEMPLATE_BYTES);
        // Two names are the interpreter's own.
        for (uint32_t i = 0; i < BOUND_TEMPLATE_NAMES - 2 + extra; i++) {
            buf_printf(&source, "{{ v%u }}", i);
        }
        if (extra) {
            refuse((struct setup){.template = buf_cstr(&source)}, "more than 4096 names");
        } else {
            expect((struct setup){.template = buf_cstr(&source)}, "");
        }
        buf_deinit(&source);
    }
}
END_TEST

START_TEST(steps_memory_output_and_recursion_are_bounded) {
    struct buf sum;
    repeat(&sum, "1 + ", 500, "1", "");
    struct buf loop;
    buf_init(&loop, BOUND_TEMPLATE_BYTES);
    buf_printf(&loop, "{%% for a in range(100000) %%}{%% set x = %s %%}{%% endfor %%}",
               buf_cstr(&sum));
    refuse((struct setup){.template = buf_cstr(&loop)}, "more than 20000000 steps");
    buf_deinit(&sum);
    buf_deinit(&loop);
    refuse((struct setup){.template = "{% for a in range(100000) %}{% for b in range(100000) %}"
                                      "{% endfor %}{% endfor %}"},
           "more than 256 MiB");
    refuse((struct setup){.template = "{% set ns = namespace(x='12345678') %}{% for i in range(99)"
                                      "%}{% set ns.x = ns.x + ns.x %}{% endfor %}"},
           "more than 256 MiB");
    refuse((struct setup){.template = "{{ 'x' * 999999999 }}"}, "more than 256 MiB");
    refuse((struct setup){.template = "{{ [1] * 999999999 }}"}, "more than 256 MiB");
    refuse((struct setup){.template = "{% for a in range(100000) %}{{ 'x' * 100 }}{% endfor %}"},
           "writes more than 8388608 bytes");
    refuse((struct setup){.template = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
           "more than 2000 evaluations");
    refuse((struct setup){.template = "{{ range(100001) }}"}, "more than 100000 elements");
    refuse((struct setup){.template = "{{ range(-9223372036854775807, 9223372036854775807) }}"},
           "more than 100000 elements");
    refuse((struct setup){.template = "{{ 9223372036854775807 + 1 }}"}, "does not fit 64 bits");
    refuse((struct setup){.template = "{{ 10 ** 30 }}"}, "does not fit 64 bits");
    refuse((struct setup){.template = "{{ (-9223372036854775807 - 1) // -1 }}"}, "does not fit");
    expect((struct setup){.template = "{{ (-9223372036854775807 - 1) % -1 }}{{ (-1) ** 99999 }}"},
           "0-1");
}
END_TEST

START_TEST(values_that_nest_or_share_without_end_are_harmless) {
    // A list in a list, a hundred thousand times.
    refuse((struct setup){.template = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}"
                                      "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}"},
           "nested deeper than 256");
    struct buf out;
    ck_assert_int_eq(
        run((struct setup){.template = "{% set ns = namespace(x=[]) %}"
                                       "{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
                                       "{% endfor %}{{ ns.x }}{{ ns.x == [ns.x] }}"},
            &out, NULL),
        STATUS_OK);
    buf_deinit(&out);
    // Two to the sixty paths through sixty small lists.
    refuse((struct setup){.template = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
                                      "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"},
           "more than 8388608 bytes");
    // A namespace that holds itself prints as an object.
    ck_assert_int_eq(run((struct setup){.template = "{% set ns = namespace() %}{% set ns.x = [ns]"
                                                    "%}{{ ns.x == [ns] }}{{ ns }}"},
                         &out, NULL),
                     STATUS_OK);
    buf_deinit(&out);
}
END_TEST

// ---- messages ----------------------------------------------------------------------------------

static const char dump[] = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}";

START_TEST(messages_are_prepared_as_templates_expect) {
    expect((struct setup){.template = dump,
                          .messages = "[{\"role\": \"developer\", \"content\": null,"
                                      " \"name\": null, \"x\": 1.0}]"},
           "{\"role\": \"system\", \"content\": \"\", \"x\": 1.0}\n");
    expect((struct setup){.template = "{# developer #}{{ messages[0].role }}",
                          .messages = "[{\"role\": \"developer\"}]"},
           "developer");
    expect((struct setup){.template = dump,
                          .messages = "[{\"role\": \"assistant\", \"reasoning\": \"r\"}]"},
           "{\"role\": \"assistant\", \"reasoning\": \"r\", \"content\": \"\","
           " \"reasoning_content\": \"r\"}\n");
    expect((struct setup){.template = "{{ messages[0].tool_calls | tojson }}",
                          .messages = "[{\"role\": \"assistant\", \"tool_calls\": [{\"id\": null,"
                                      "\"function\": {\"name\": \"f\", \"arguments\": "
                                      "\"{\\\"b\\\": 1, \\\"a\\\": [2.50]}\"}}]}]"},
           "[{\"function\": {\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [2.5]}}}]");
    expect((struct setup){.template = "{{ messages[0].tool_calls[0].function.arguments }}",
                          .messages = "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\":"
                                      " {\"arguments\": \"[1]\"}}]}]"},
           "[1]");
}
END_TEST

static const char parts[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\":"
                            " \"a\"}, \"b\", {\"type\": \"input_text\", \"text\": \"c\"}]}]";

START_TEST(parts_are_joined_unless_the_template_takes_lists) {
    expect((struct setup){.template = "{{ messages[0].content }}", .messages = parts}, "a\nb\nc");
    expect((struct setup){.template = "{{ 'x' + messages[0].content }}", .messages = parts},
           "xa\nb\nc");
    expect((struct setup){.template =
                              "{% for p in messages[0].content %}<{{ p.type }} {{ p.text }}>"
                              "{% endfor %}",
                          .messages = parts},
           "<text a><text b><text c>");
}
END_TEST

START_TEST(messages_of_the_wrong_shape_are_named) {
    static const struct {
        const char *messages;
        const char *sentence;
    } rows[] = {
        {"{}", "'messages' must be an array"},
        {"[1]", "messages[0] must be an object with a role"},
        {"[{\"role\": \"user\"}, {\"content\": \"x\"}]", "messages[1] must be"},
        {"[{\"role\": \"user\", \"content\": [1]}]", "messages[0].content[0]"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", "'image_url'"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", "content[0].text must be"},
        {"[{\"role\": \"user\", \"tool_calls\": 1}]", "tool_calls must be an array"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        refuse((struct setup){.template = "x", .messages = rows[i].messages}, rows[i].sentence);
    }
    refuse((struct setup){.template = "x", .kwargs = "[]"}, "chat_template_kwargs");
}
END_TEST

START_TEST(counts_of_messages_and_parts_are_bounded) {
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct buf text;
        struct buf out;
        buf_init(&text, 1 << 22);
        for (uint32_t i = 0; i < BOUND_MESSAGES_PER_REQUEST + extra; i++) {
            buf_append_str(&text, i == 0 ? "[{\"role\":\"user\"}" : ",{\"role\":\"user\"}");
        }
        buf_append_str(&text, "]");
        enum status status =
            run((struct setup){.template = "x", .messages = buf_cstr(&text)}, &out, NULL);
        ck_assert_int_eq(status, extra ? STATUS_INVALID : STATUS_OK);
        buf_deinit(&out);
        buf_reset(&text);
        for (uint32_t i = 0; i < BOUND_PARTS_PER_MESSAGE + extra; i++) {
            buf_append_str(&text, i == 0 ? "[{\"role\":\"user\",\"content\":[\"a\"" : ",\"a\"");
        }
        buf_append_str(&text, "]}]");
        status = run((struct setup){.template = "x", .messages = buf_cstr(&text)}, &out, NULL);
        ck_assert_int_eq(status, extra ? STATUS_INVALID : STATUS_OK);
        buf_deinit(&out);
        buf_deinit(&text);
    }
}
END_TEST

START_TEST(a_message_with_many_keys_takes_linear_time) {
    struct buf text;
    struct buf out;
    buf_init(&text, 1 << 24);
    buf_append_str(&text, "[{\"role\":\"user\"");
    for (uint32_t i = 0; i < 300000; i++) {
        buf_printf(&text, ",\"k%u\":1", i);
    }
    buf_append_str(&text, "}]");
    ck_assert_int_eq(run((struct setup){.template = "x", .messages = buf_cstr(&text)}, &out, NULL),
                     STATUS_OK);
    buf_deinit(&out);
    buf_deinit(&text);
}
END_TEST

// ---- the other inputs --------------------------------------------------------------------------

START_TEST(variables_are_undefined_unless_given) {
    expect((struct setup){.template = "{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}"
                                      "{{ enable_thinking is defined }}{{ add_generation_prompt }}",
                          .generate = true},
           "<bos>FalseTrueFalseTrue");
    expect((struct setup){.template = "{{ enable_thinking }}{{ x }}{{ messages | length }}",
                          .kwargs = "{\"enable_thinking\": false, \"x\": null, \"messages\": 7}"},
           "FalseNone0");
}
END_TEST

START_TEST(a_final_message_can_be_continued) {
    static const char tmpl[] = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
                               "{% if add_generation_prompt %}more{% endif %}";
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"aXa\"},"
                               "{\"role\":\"assistant\",\"content\":\" Xa \"}]";
    expect((struct setup){.template = tmpl, .messages = talk, .go_on = true}, "<aXa>< Xa ");
    refuse((struct setup){.template = tmpl, .messages = talk, .go_on = true, .generate = true},
           "exclude each other");
    refuse((struct setup){.template = tmpl, .messages = "[]", .go_on = true}, "needs a last");
    refuse((struct setup){.template = "x", .messages = talk, .go_on = true}, "does not show");
    refuse((struct setup){.template = tmpl, .messages = "[{\"role\":\"user\"}]", .go_on = true},
           "does not show");
}
END_TEST

START_TEST(time_is_an_argument) {
    static const struct {
        int64_t now;
        int32_t offset;
        const char *want;
    } rows[] = {
        {0, 0, "1970-01-01 00:00:00 Thu 001 +0000"},
        {951782400, 0, "2000-02-29 00:00:00 Tue 060 +0000"},
        {1709251199, 3600, "2024-03-01 00:59:59 Fri 061 +0100"},
        {-1, 0, "1969-12-31 23:59:59 Wed 365 +0000"},
        {4102444799, -19800, "2099-12-31 18:29:59 Thu 365 -0530"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect((struct setup){.template = "{{ strftime_now('%Y-%m-%d %H:%M:%S %a %j %z') }}",
                              .now = rows[i].now,
                              .offset = rows[i].offset},
               rows[i].want);
    }
    expect((struct setup){.template = "{{ strftime_now('%-d %-m %F %T') }}"},
           "1 1 1970-01-01 00:00:00");
    refuse((struct setup){.template = "{{ strftime_now('%Q') }}"}, "does not know '%Q'");
}
END_TEST

START_TEST(every_failed_allocation_ends_in_a_status) {
    static const char tmpl[] =
        "{% macro m(a) %}[{{ a }}]{% endmacro %}{% set ns = namespace(x=1) %}"
        "{% for k, v in {'a': [1, 2], 'b': 's'} | items %}{{ m(v | tojson) ~ k }}{% set ns.y = v %}"
        "{% endfor %}{{ messages[0].tool_calls | tojson }}{{ 'a b'.split() | join('-') }}";
    static const char talk[] = "[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"arguments\":"
                               "\"{\\\"a\\\":1}\"}}]}]";
    struct json_doc *doc = parse(talk);
    enum status status = STATUS_EXHAUSTED;
    for (uint64_t nth = 1; status != STATUS_OK; nth++) {
        struct chat_template *t = NULL;
        struct buf out;
        buf_init(&out, 100000);
        struct chat_template_input input = {.messages = json_root(doc)};
        memory_fail_nth(nth);
        status = chat_template_compile(tmpl, sizeof tmpl - 1, &t, NULL);
        if (status == STATUS_OK) {
            status = chat_template_render(t, &input, &out, NULL);
        }
        memory_fail_nth(0);
        ck_assert_uint_lt(nth, 10000);
        chat_template_destroy(t);
        buf_deinit(&out);
    }
    json_destroy(doc);
}
END_TEST

Suite *suite_chat_template(void) {
    Suite *suite = suite_create("controller/text/chat_template");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, recorded_prompts_of_the_reference_are_met);
    tcase_add_test(tc, errors_name_the_line_and_raised_sentences_stand_alone);
    tcase_add_test(tc, broken_and_oversized_sources_are_refused);
    tcase_add_test(tc, nesting_of_sources_is_bounded);
    tcase_add_test(tc, long_chains_end_in_a_status);
    tcase_add_test(tc, names_are_bounded);
    tcase_add_test(tc, steps_memory_output_and_recursion_are_bounded);
    tcase_add_test(tc, values_that_nest_or_share_without_end_are_harmless);
    tcase_add_test(tc, messages_are_prepared_as_templates_expect);
    tcase_add_test(tc, parts_are_joined_unless_the_template_takes_lists);
    tcase_add_test(tc, messages_of_the_wrong_shape_are_named);
    tcase_add_test(tc, counts_of_messages_and_parts_are_bounded);
    tcase_add_test(tc, a_message_with_many_keys_takes_linear_time);
    tcase_add_test(tc, variables_are_undefined_unless_given);
    tcase_add_test(tc, a_final_message_can_be_continued);
    tcase_add_test(tc, time_is_an_argument);
    tcase_add_test(tc, every_failed_allocation_ends_in_a_status);
    suite_add_tcase(suite, tc);
    return suite;
}
