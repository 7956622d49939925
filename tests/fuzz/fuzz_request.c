// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a request: answered with an error object, or submitted within the core's
// contract and then answered whole, whatever tokens come.
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/http/api.h"
#include "controller/text/chat_template.h"
#include "tests/tiny_tokenizer.h"
#include <string.h>

enum { CONTEXT = 256, SUBMITS_MAX = 64, TOKENS_MAX = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char template_source[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// The core: remembers what was submitted and checks that it may be.
struct core_part {
    struct core_request submits[SUBMITS_MAX];
    bool live[SUBMITS_MAX];
    uint32_t count;
};

static enum status on_submit(void *ctx, const struct core_request *request) {
    struct core_part *core = ctx;
    INVARIANT(request->prompt_count >= 1);
    INVARIANT(request->prompt_count + request->output_max <= request->token_capacity);
    INVARIANT(request->prompt_count + request->output_max <= CONTEXT);
    INVARIANT(request->output_max > 0 || request->sampling.want_prompt_logprobs);
    INVARIANT(sampling_validate(&request->sampling, TINY_VOCABULARY, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < request->prompt_count; i++) {
        INVARIANT(request->tokens[i] >= 0 && request->tokens[i] < TINY_VOCABULARY);
    }
    if (core->count >= SUBMITS_MAX) {
        return STATUS_BUSY;
    }
    core->live[core->count] = true;
    core->submits[core->count++] = *request;
    return STATUS_OK;
}

static void on_id(void *ctx, struct request_id id) {
    (void)ctx;
    INVARIANT(id.value != 0);
}

static void on_metrics(void *ctx, enum metric_format format, struct buf *out) {
    (void)ctx;
    (void)format;
    (void)out;
}

static void end_sequence(struct api *api, struct core_part *core, uint32_t index,
                         enum finish_reason reason) {
    const struct core_action action = {
        .kind = CORE_ACTION_FINISHED,
        .finished = {.id = core->submits[index].id, .reason = reason}};
    core->live[index] = false;
    api_on_action(api, &action, 2);
}

// Plays every sequence to its end with tokens taken from the input.
static void play(struct api *api, struct core_part *core, const uint8_t *data, size_t size) {
    for (uint32_t step = 0; step < TOKENS_MAX; step++) {
        for (uint32_t i = 0; i < core->count; i++) {
            const struct core_request *request = &core->submits[i];
            if (!core->live[i] || step >= request->output_max) {
                continue;
            }
            uint8_t byte = data[(step * 7 + i) % size];
            const int32_t top = byte;
            const float value = -0.5f;
            const struct result_row row = {.position = request->prompt_count + step,
                                           .token = byte < 250 ? byte : byte + 6,
                                           .has_logprob = request->sampling.want_logprobs,
                                           .logprob = value,
                                           .top_count = request->sampling.top_logprobs > 0 ? 1 : 0,
                                           .top_tokens = &top,
                                           .top_logprobs = &value};
            const struct core_action action = {.kind = CORE_ACTION_TOKEN,
                                               .token = {.id = request->id, .row = &row}};
            api_on_action(api, &action, 2);
            if (step + 1 == request->output_max) {
                end_sequence(api, core, i, FINISH_REASON_LENGTH);
            }
        }
        api_turn_end(api, 2);
    }
    for (uint32_t i = 0; i < core->count; i++) {
        if (core->live[i]) {
            end_sequence(api, core, i,
                         data[i % size] % 3 == 0 ? FINISH_REASON_FAULT : FINISH_REASON_STOP);
        }
    }
    api_turn_end(api, 2);
}

static void run(struct api *api, struct core_part *core, const char *path, const uint8_t *data,
                size_t size) {
    struct http_request request = {.method = HTTP_METHOD_POST,
                                   .path = {path, strlen(path)},
                                   .version_minor = 1,
                                   .keep_alive = true,
                                   .content_length = size};
    struct http_exchange exchange;
    struct http_handler handler = api_handler(api);
    http_exchange_init(&exchange, NULL);
    http_exchange_begin(&exchange, &request, 1);
    exchange.body = (const char *)data;
    exchange.body_bytes = size;
    handler.on_request(handler.ctx, &exchange, 1);
    if (http_exchange_live(&exchange)) {
        play(api, core, data, size);
    } else {
        // Refused half-way: what was submitted is cancelled.
        for (uint32_t i = 0; i < core->count; i++) {
            end_sequence(api, core, i, FINISH_REASON_CANCELLED);
        }
        api_turn_end(api, 2);
    }
    INVARIANT(!http_exchange_live(&exchange));
    INVARIANT(exchange.status >= 200);
    INVARIANT(exchange.out.bytes_used > 0);
    INVARIANT(api_live_sequences(api) == 0);
    INVARIANT(api_open_calls(api) == 0);
    http_exchange_deinit(&exchange);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/tokenize",
                                        "/detokenize"};
    static const char *const names[] = {"tiny"};
    static struct tokenizer *tokenizer;    // once per process: building it is slow
    static struct chat_template *chat_template;
    if (tokenizer == NULL) {
        tokenizer = tiny_tokenizer();
        INVARIANT(chat_template_compile(template_source, sizeof template_source - 1, &chat_template,
                                        NULL) == STATUS_OK);
    }
    if (size < 2) {
        return 0;
    }
    struct core_part core = {.count = 0};
    const struct api_model model = {.names = names,
                                    .name_count = 1,
                                    .tokenizer = tokenizer,
                                    .chat_template = chat_template,
                                    .defaults = api_sampling_neutral()};
    struct api_config config;
    api_defaults(&config);
    config.ctx = &core;
    config.submit = on_submit;
    config.cancel = on_id;
    config.stop = on_id;
    config.metrics = on_metrics;
    struct api *api = NULL;
    INVARIANT(api_create(&config, &api, NULL) == STATUS_OK);
    const struct message_capacity capacity = {.envelope = {.seq_tokens = CONTEXT},
                                              .block_tokens = 16,
                                              .kv_blocks = 65536,
                                              .vocabulary = TINY_VOCABULARY};
    api_set_model(api, &model);
    api_on_capacity(api, &capacity);
    run(api, &core, paths[data[0] % 4], data + 1, size - 1);
    api_destroy(api);
    return 0;
}
