// SPDX-License-Identifier: Apache-2.0
// Goal: each field is accepted in its range, refused by name outside, never silently dropped when
// it would restrict the output; null is absence. Method: small bodies, each with its verdict.
#include "common/memory.h"
#include "controller/http/api_params.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

static const uint32_t eos[] = {7, 8};
static struct api_params_rules rules;
static struct api_params params;
static struct api_failure failure;

static void setup(void) {
    rules = (struct api_params_rules){.defaults = api_sampling_neutral(),
                                      .vocabulary = 100,
                                      .logprobs_max = 20,
                                      .eos = eos,
                                      .eos_count = 2};
}

// Parses; the results lie in `params` and `failure`.
static bool parse(enum api_endpoint endpoint, const char *body) {
    struct json_doc *doc = NULL;
    struct error err = {0};
    ck_assert_msg(json_parse(body, strlen(body), &doc, &err) == STATUS_OK, "%s: %s", body,
                  err.message);
    rules.endpoint = endpoint;
    memset(&failure, 0, sizeof failure);
    const struct json_fields fields = json_fields_of(json_root(doc));
    bool fine = api_params_parse(&fields, &rules, &params, &failure);
    json_destroy(doc);    // stop strings are dead now; tests that need them keep the document
    api_params_deinit(&params);
    ck_assert(fine != api_failed(&failure));
    return fine;
}

static const struct {
    const char *body;
    const char *code;    // NULL = accepted by both endpoints
    const char *param;
} verdicts[] = {
    {"{}", NULL, NULL},
    {"{\"temperature\":0}", NULL, NULL},
    {"{\"temperature\":100}", NULL, NULL},
    {"{\"temperature\":100.1}", "invalid_value", "temperature"},
    {"{\"temperature\":-0.1}", "invalid_value", "temperature"},
    {"{\"temperature\":\"1\"}", "invalid_type", "temperature"},
    {"{\"top_p\":1}", NULL, NULL},
    {"{\"top_p\":0}", "invalid_value", "top_p"},
    {"{\"top_p\":1e-60}", "invalid_value", "top_p"},
    {"{\"top_p\":1.01}", "invalid_value", "top_p"},
    {"{\"min_p\":0}", NULL, NULL},
    {"{\"min_p\":1}", NULL, NULL},
    {"{\"min_p\":1.5}", "invalid_value", "min_p"},
    {"{\"top_k\":-1}", NULL, NULL},
    {"{\"top_k\":0}", NULL, NULL},
    {"{\"top_k\":2147483647}", NULL, NULL},
    {"{\"top_k\":-2}", "invalid_value", "top_k"},
    {"{\"top_k\":1.5}", "invalid_type", "top_k"},
    {"{\"repetition_penalty\":10}", NULL, NULL},
    {"{\"repetition_penalty\":0}", "invalid_value", "repetition_penalty"},
    {"{\"repetition_penalty\":10.5}", "invalid_value", "repetition_penalty"},
    {"{\"presence_penalty\":-2,\"frequency_penalty\":2}", NULL, NULL},
    {"{\"presence_penalty\":2.1}", "invalid_value", "presence_penalty"},
    {"{\"frequency_penalty\":-2.1}", "invalid_value", "frequency_penalty"},
    {"{\"seed\":9223372036854775807}", NULL, NULL},
    {"{\"seed\":-9223372036854775808}", NULL, NULL},
    {"{\"seed\":1.5}", "invalid_type", "seed"},
    {"{\"max_tokens\":1}", NULL, NULL},
    {"{\"max_tokens\":256.0}", NULL, NULL},
    {"{\"max_tokens\":0}", "invalid_value", "max_tokens"},
    {"{\"max_tokens\":-1}", "invalid_value", "max_tokens"},
    {"{\"max_tokens\":99999999999}", NULL, NULL},
    {"{\"max_tokens\":5,\"min_tokens\":5}", NULL, NULL},
    {"{\"max_tokens\":5,\"min_tokens\":6}", "invalid_value", "min_tokens"},
    {"{\"min_tokens\":-1}", "invalid_value", "min_tokens"},
    {"{\"n\":64}", NULL, NULL},
    {"{\"n\":65}", "invalid_value", "n"},
    {"{\"n\":0}", "invalid_value", "n"},
    {"{\"n\":2,\"best_of\":2}", NULL, NULL},
    {"{\"n\":2,\"best_of\":3}", "unsupported_value", "best_of"},
    {"{\"stop\":\"x\"}", NULL, NULL},
    {"{\"stop\":[]}", NULL, NULL},
    {"{\"stop\":\"\"}", "invalid_value", "stop"},
    {"{\"stop\":[\"a\",1]}", "invalid_type", "stop"},
    {"{\"stop\":7}", "invalid_type", "stop"},
    {"{\"stop_token_ids\":[0,99]}", NULL, NULL},
    {"{\"stop_token_ids\":[100]}", "invalid_value", "stop_token_ids"},
    {"{\"stop_token_ids\":[-1]}", "invalid_value", "stop_token_ids"},
    {"{\"stop_token_ids\":5}", "invalid_type", "stop_token_ids"},
    {"{\"stop_token_ids\":[0,1,2,3,4,5,6,9,10,11,12,13,14,15]}", NULL, NULL},
    {"{\"stop_token_ids\":[0,1,2,3,4,5,6,9,10,11,12,13,14,15,16]}", "too_large", "stop_token_ids"},
    {"{\"ignore_eos\":1}", "invalid_type", "ignore_eos"},
    {"{\"logit_bias\":{\"5\":100,\"99\":-100}}", NULL, NULL},
    {"{\"logit_bias\":{}}", NULL, NULL},
    {"{\"logit_bias\":{\"100\":1}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":{\"-1\":1}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":{\"x\":1}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":{\"\":1}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":{\"5\":100.5}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":{\"5\":\"1\"}}", "invalid_value", "logit_bias"},
    {"{\"logit_bias\":[1]}", "invalid_type", "logit_bias"},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":true}}", NULL, NULL},
    {"{\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":false,"
     "\"include_obfuscation\":false,\"future\":1}}",
     NULL, NULL},
    {"{\"stream_options\":{\"include_usage\":true}}", "invalid_value", "stream_options"},
    {"{\"stream\":false,\"stream_options\":{}}", "invalid_value", "stream_options"},
    {"{\"stream\":true,\"stream_options\":1}", "invalid_type", "stream_options"},
    {"{\"stream\":\"yes\"}", "invalid_type", "stream"},
    {"{\"truncate_prompt_tokens\":-1}", NULL, NULL},
    {"{\"truncate_prompt_tokens\":-2}", "invalid_value", "truncate_prompt_tokens"},
    {"{\"skip_special_tokens\":false,\"include_stop_str_in_output\":true}", NULL, NULL},
    {"{\"parallel_tool_calls\":false,\"spaces_between_special_tokens\":true}", NULL, NULL},
    // Refused by name: they would restrict or change the output.
    {"{\"response_format\":{\"type\":\"text\"}}", NULL, NULL},
    {"{\"response_format\":{\"type\":\"json_object\"}}", "unsupported_parameter",
     "response_format"},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", "unsupported_parameter",
     "response_format"},
    {"{\"response_format\":{\"type\":\"new\"}}", "unsupported_parameter", "response_format"},
    {"{\"response_format\":{}}", "unsupported_parameter", "response_format"},
    {"{\"response_format\":\"text\"}", "invalid_type", "response_format"},
    {"{\"tools\":[]}", NULL, NULL},
    {"{\"tools\":[{\"type\":\"function\"}]}", "unsupported_parameter", "tools"},
    {"{\"tool_choice\":\"none\"}", NULL, NULL},
    {"{\"tool_choice\":\"auto\"}", NULL, NULL},
    {"{\"tool_choice\":\"required\"}", "unsupported_parameter", "tool_choice"},
    {"{\"tool_choice\":{\"type\":\"function\"}}", "unsupported_parameter", "tool_choice"},
    {"{\"functions\":[{}]}", "unsupported_parameter", "functions"},
    {"{\"function_call\":\"auto\"}", "unsupported_parameter", "function_call"},
    {"{\"grammar\":\"root ::= x\"}", "unsupported_parameter", "grammar"},
    {"{\"regex\":\"a\"}", "unsupported_parameter", "regex"},
    {"{\"ebnf\":\"a\"}", "unsupported_parameter", "ebnf"},
    {"{\"json_schema\":{}}", "unsupported_parameter", "json_schema"},
    {"{\"structural_tag\":\"a\"}", "unsupported_parameter", "structural_tag"},
    {"{\"guided_json\":{}}", "unsupported_parameter", "guided_json"},
    {"{\"guided_regex\":\"a\"}", "unsupported_parameter", "guided_regex"},
    {"{\"guided_choice\":[\"a\"]}", "unsupported_parameter", "guided_choice"},
    {"{\"guided_grammar\":\"a\"}", "unsupported_parameter", "guided_grammar"},
    {"{\"structured_outputs\":{\"json\":{}}}", "unsupported_parameter", "structured_outputs"},
    {"{\"structured_outputs\":{}}", NULL, NULL},
    {"{\"allowed_token_ids\":[1]}", "unsupported_parameter", "allowed_token_ids"},
    {"{\"bad_words\":[\"a\"]}", "unsupported_parameter", "bad_words"},
    {"{\"bad_words\":[]}", NULL, NULL},
    {"{\"logits_processors\":[\"a\"]}", "unsupported_parameter", "logits_processors"},
    {"{\"use_beam_search\":true}", "unsupported_parameter", "use_beam_search"},
    {"{\"use_beam_search\":false}", NULL, NULL},
    {"{\"suffix\":\"\"}", NULL, NULL},
    {"{\"suffix\":\"x\"}", "unsupported_parameter", "suffix"},
    {"{\"chat_template\":\"x\"}", "unsupported_parameter", "chat_template"},
    {"{\"prompt_logprobs\":1}", "unsupported_parameter", "prompt_logprobs"},
    {"{\"modalities\":[\"text\"]}", NULL, NULL},
    {"{\"modalities\":[\"text\",\"audio\"]}", "unsupported_parameter", "modalities"},
    {"{\"audio\":{}}", "unsupported_parameter", "audio"},
    {"{\"prediction\":{}}", "unsupported_parameter", "prediction"},
    {"{\"web_search_options\":{}}", "unsupported_parameter", "web_search_options"},
    {"{\"priority\":0}", NULL, NULL},
    {"{\"priority\":1}", "unsupported_parameter", "priority"},
    // Accepted without effect.
    {"{\"user\":\"u\",\"metadata\":{},\"store\":true,\"service_tier\":\"auto\",\"verbosity\":"
     "\"low\","
     "\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"prompt_cache_retention\":\"24h\"}",
     NULL, NULL},
    {"{\"mirostat\":2,\"typical_p\":0.5,\"samplers\":[]}", NULL, NULL},
    {"{\"anything_else\":[1,2,3]}", NULL, NULL},
    // null is absence, for every field.
    {"{\"temperature\":null,\"top_p\":null,\"top_k\":null,\"min_p\":null,\"seed\":null,\"n\":null,"
     "\"repetition_penalty\":null,\"presence_penalty\":null,\"frequency_penalty\":null,"
     "\"max_tokens\":null,\"max_completion_tokens\":null,\"min_tokens\":null,\"ignore_eos\":null,"
     "\"stop\":null,\"stop_token_ids\":null,\"include_stop_str_in_output\":null,"
     "\"skip_special_tokens\":null,\"best_of\":null,\"use_beam_search\":null,\"logit_bias\":null,"
     "\"logprobs\":null,\"top_logprobs\":null,\"echo\":null,\"stream\":null,\"stream_options\":"
     "null,"
     "\"response_format\":null,\"structured_outputs\":null,\"guided_json\":null,\"regex\":null,"
     "\"grammar\":null,\"tools\":null,\"tool_choice\":null,\"functions\":null,\"suffix\":null,"
     "\"chat_template\":null,\"priority\":null,\"modalities\":null,\"prompt_logprobs\":null,"
     "\"truncate_prompt_tokens\":null,\"sse_ping_interval\":null,\"parallel_tool_calls\":null,"
     "\"add_special_tokens\":null,\"add_generation_prompt\":null,\"bad_words\":null}",
     NULL, NULL},
};

START_TEST(every_field_has_its_verdict_for_both_endpoints) {
    for (int endpoint = 0; endpoint < 2; endpoint++) {
        bool fine = parse((enum api_endpoint)endpoint, verdicts[_i].body);
        ck_assert_msg(fine == (verdicts[_i].code == NULL), "%s: %s", verdicts[_i].body,
                      failure.message);
        if (!fine) {
            ck_assert_str_eq(api_code_name(failure.code), verdicts[_i].code);
            ck_assert_str_eq(failure.param, verdicts[_i].param);
            ck_assert_int_eq(api_code_http(failure.code), 400);
        }
    }
}
END_TEST

START_TEST(defaults_are_the_models_and_requests_win) {
    rules.defaults = (struct api_sampling_defaults){0.6f, 0.9f, 0.05f, 1.1f, 20};
    ck_assert(parse(API_ENDPOINT_CHAT, "{}"));
    ck_assert(params.sampling.temperature == 0.6f);
    ck_assert(params.sampling.top_p == 0.9f);
    ck_assert(params.sampling.min_p == 0.05f);
    ck_assert(params.sampling.repetition_penalty == 1.1f);
    ck_assert_uint_eq(params.sampling.top_k, 20);
    ck_assert_uint_eq(params.choice_count, 1);
    ck_assert(params.skip_special && !params.stream && !params.seed_given && !params.max_given);
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"temperature\":0,\"top_k\":-1,\"seed\":-5}"));
    ck_assert(params.sampling.temperature == 0);
    ck_assert_uint_eq(params.sampling.top_k, 0);
    ck_assert(params.seed_given);
    ck_assert_uint_eq(params.sampling.seed, (uint64_t)-5);
}
END_TEST

START_TEST(stop_set_is_the_models_and_the_requests) {
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"stop_token_ids\":[3]}"));
    ck_assert_uint_eq(params.sampling.stop_token_count, 3);
    ck_assert_int_eq(params.sampling.stop_tokens[0], 7);
    ck_assert_int_eq(params.sampling.stop_tokens[2], 3);
    ck_assert_uint_eq(params.eos_count, 2);
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"stop_token_ids\":[3],\"ignore_eos\":true}"));
    ck_assert_uint_eq(params.sampling.stop_token_count, 1);
    ck_assert_uint_eq(params.eos_count, 0);
}
END_TEST

START_TEST(stop_strings_fit_their_bounds_and_no_more) {
    char body[8192] = "{\"stop\":[";
    for (unsigned i = 0; i < BOUND_STOP_STRINGS; i++) {
        strncat(body, i == 0 ? "\"a\"" : ",\"a\"", 8);
    }
    size_t end = strlen(body);
    memcpy(body + end, "]}", 3);
    ck_assert(parse(API_ENDPOINT_CHAT, body));
    ck_assert_uint_eq(params.stop_count, BOUND_STOP_STRINGS);
    memcpy(body + end, ",\"a\"]}", 7);
    ck_assert(!parse(API_ENDPOINT_CHAT, body));
    ck_assert_str_eq(api_code_name(failure.code), "too_large");
    char text[BOUND_STOP_STRING_BYTES + 2];
    memset(text, 'x', sizeof text);
    text[BOUND_STOP_STRING_BYTES] = '\0';
    snprintf(body, sizeof body, "{\"stop\":\"%s\"}", text);
    ck_assert(parse(API_ENDPOINT_CHAT, body));
    text[BOUND_STOP_STRING_BYTES] = 'x';
    text[BOUND_STOP_STRING_BYTES + 1] = '\0';
    snprintf(body, sizeof body, "{\"stop\":\"%s\"}", text);
    ck_assert(!parse(API_ENDPOINT_CHAT, body));
}
END_TEST

START_TEST(bias_fits_its_bound_and_not_one_more) {
    static char body[65536];
    rules.vocabulary = 10000;
    for (unsigned count = BOUND_LOGIT_BIAS; count <= BOUND_LOGIT_BIAS + 1; count++) {
        size_t used = (size_t)snprintf(body, sizeof body, "{\"logit_bias\":{");
        for (unsigned i = 0; i < count; i++) {
            used += (size_t)snprintf(body + used, sizeof body - used, "%s\"%u\":1",
                                     i > 0 ? "," : "", i);
        }
        snprintf(body + used, sizeof body - used, "}}");
        ck_assert(parse(API_ENDPOINT_CHAT, body) == (count == BOUND_LOGIT_BIAS));
    }
}
END_TEST

START_TEST(logprobs_differ_by_endpoint) {
    ck_assert(parse(API_ENDPOINT_COMPLETIONS, "{\"logprobs\":0}"));
    ck_assert(params.sampling.want_logprobs && !params.sampling.want_prompt_logprobs);
    ck_assert(parse(API_ENDPOINT_COMPLETIONS, "{\"logprobs\":20,\"echo\":true}"));
    ck_assert(params.sampling.want_prompt_logprobs && params.echo);
    ck_assert_uint_eq(params.sampling.top_logprobs, 20);
    ck_assert(!parse(API_ENDPOINT_COMPLETIONS, "{\"logprobs\":21}"));
    ck_assert(!parse(API_ENDPOINT_COMPLETIONS, "{\"logprobs\":true}"));
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"logprobs\":true}"));
    ck_assert(params.sampling.want_logprobs);
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"logprobs\":true,\"top_logprobs\":20}"));
    ck_assert_uint_eq(params.sampling.top_logprobs, 20);
    ck_assert(!parse(API_ENDPOINT_CHAT, "{\"logprobs\":true,\"top_logprobs\":21}"));
    ck_assert(!parse(API_ENDPOINT_CHAT, "{\"top_logprobs\":1}"));
    ck_assert_str_eq(failure.param, "top_logprobs");
    ck_assert(!parse(API_ENDPOINT_CHAT, "{\"logprobs\":false,\"top_logprobs\":0}"));
    ck_assert(!parse(API_ENDPOINT_CHAT, "{\"logprobs\":1}"));
    ck_assert(!parse(API_ENDPOINT_CHAT, "{\"echo\":true}"));
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"echo\":false}"));
    rules.logprobs_max = 5;
    ck_assert(!parse(API_ENDPOINT_COMPLETIONS, "{\"logprobs\":6}"));
}
END_TEST

START_TEST(limits_of_output_differ_by_endpoint) {
    ck_assert(parse(API_ENDPOINT_COMPLETIONS, "{\"echo\":true,\"max_tokens\":0}"));
    ck_assert(params.max_given && params.max_tokens == 0);
    ck_assert(!parse(API_ENDPOINT_COMPLETIONS, "{\"max_tokens\":0}"));
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"max_tokens\":5,\"max_completion_tokens\":9}"));
    ck_assert_uint_eq(params.max_tokens, 9);
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"max_tokens\":5,\"max_completion_tokens\":null}"));
    ck_assert_uint_eq(params.max_tokens, 5);
    ck_assert(parse(API_ENDPOINT_COMPLETIONS, "{\"max_tokens\":5,\"max_completion_tokens\":9}"));
    ck_assert_uint_eq(params.max_tokens, 5);
    ck_assert(parse(API_ENDPOINT_COMPLETIONS, "{}"));
    ck_assert(params.add_special);
    ck_assert(parse(API_ENDPOINT_CHAT, "{}"));
    ck_assert(!params.add_special);
}
END_TEST

START_TEST(ignored_samplers_are_named_for_a_warning) {
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"mirostat\":1}"));
    ck_assert_str_eq(params.ignored, "mirostat");
    ck_assert(parse(API_ENDPOINT_CHAT, "{\"mirostat\":null}"));
    ck_assert_ptr_null(params.ignored);
}
END_TEST

Suite *suite_api_params(void) {
    Suite *suite = suite_create("controller/http/api_params");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, every_field_has_its_verdict_for_both_endpoints, 0,
                        (int)(sizeof verdicts / sizeof verdicts[0]));
    tcase_add_test(tc, defaults_are_the_models_and_requests_win);
    tcase_add_test(tc, stop_set_is_the_models_and_the_requests);
    tcase_add_test(tc, stop_strings_fit_their_bounds_and_no_more);
    tcase_add_test(tc, bias_fits_its_bound_and_not_one_more);
    tcase_add_test(tc, logprobs_differ_by_endpoint);
    tcase_add_test(tc, limits_of_output_differ_by_endpoint);
    tcase_add_test(tc, ignored_samplers_are_named_for_a_warning);
    suite_add_tcase(suite, tc);
    return suite;
}
