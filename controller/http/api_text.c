// SPDX-License-Identifier: Apache-2.0
// The text and the logprobs of one choice, while its tokens arrive.
#include "controller/http/api_call.h"

#include "controller/http/api_scores.h"
#include "controller/text/detokenizer.h"
#include "controller/text/tokenizer.h"

static const struct tokenizer *tokenizer_of(const struct api_choice *choice) {
    return choice->call->visit.api->facts.model->tokenizer;
}

// Advances the position by visible bytes; characters are counted by their first byte.
static void count_text(struct api_choice *choice, const uint8_t *bytes, size_t byte_count) {
    choice->raw_bytes += byte_count;
    for (size_t i = 0; i < byte_count; i++) {
        choice->text_chars += (bytes[i] & 0xC0) != 0x80 ? 1 : 0;
    }
}

static void count_token(struct api_choice *choice, int32_t token) {
    size_t byte_count = 0;
    const uint8_t *bytes =
        tokenizer_token_bytes(tokenizer_of(choice), (uint32_t)token, &byte_count);
    count_text(choice, bytes, bytes == NULL ? 0 : byte_count);
}

// Records the token that begins at the current position, then moves behind it.
static void push_score(struct api_choice *choice, int32_t token, const struct result_row *row,
                       bool hidden) {
    struct api_score score = {.token = token, .text_offset = choice->text_chars};
    if (!hidden) {
        count_token(choice, token);
    }
    score.raw_end = choice->raw_bytes;
    api_scores_push(&choice->scores, &score, row);
}

bool api_text_begin(struct api_choice *choice, const struct api_params *params) {
    const struct detokenizer_options options = {.skip_special = params->skip_special,
                                                .include_stop = params->include_stop};
    detokenizer_init(&choice->detokenizer, tokenizer_of(choice), options);
    choice->detokenizing = true;
    for (uint32_t i = 0; i < params->stop_count; i++) {
        const struct http_span *stop = &params->stops[i];
        if (detokenizer_add_stop(&choice->detokenizer, stop->text, stop->byte_count, NULL) !=
            STATUS_OK) {
            return false;
        }
    }
    detokenizer_watch_stops(&choice->detokenizer, choice->call->sampling.min_tokens == 0);
    return true;
}

void api_text_deinit(struct api_choice *choice) {
    if (choice->detokenizing) {
        detokenizer_deinit(&choice->detokenizer);
        choice->detokenizing = false;
    }
}

void api_text_echo(struct api_choice *choice, bool bos_added) {
    bool scored = choice->call->sampling.want_prompt_logprobs;
    for (uint32_t i = 0; i < choice->prompt_count; i++) {
        size_t byte_count = 0;
        const uint8_t *bytes =
            tokenizer_token_bytes(tokenizer_of(choice), (uint32_t)choice->tokens[i], &byte_count);
        if (bytes != NULL && !(i == 0 && bos_added)) {
            buf_append(&choice->text, bytes, byte_count);
            count_text(choice, bytes, scored ? 0 : byte_count);
        }
    }
    if (scored) {
        push_score(choice, choice->tokens[0], NULL, bos_added);    // nothing predicts the first one
        choice->scored_count = 1;
    }
}

void api_text_score_prompt(struct api_choice *choice, const struct result_row *row) {
    // A worker that was lost is asked again for positions that are known.
    if (!choice->call->echo || row->position != choice->scored_count) {
        return;
    }
    push_score(choice, row->token, row, false);
    choice->scored_count++;
}

bool api_text_token(struct api_choice *choice, const struct result_row *row, bool hidden) {
    const struct sampling_params *sampling = &choice->call->sampling;
    bool special = tokenizer_is_special(tokenizer_of(choice), (uint32_t)row->token);
    bool visible = !hidden && !(special && choice->detokenizer.options.skip_special);
    if (sampling->want_logprobs) {
        push_score(choice, row->token, row, !visible);
    } else if (visible) {
        count_token(choice, row->token);
    }
    if (sampling->min_tokens > 0 && choice->output_count == sampling->min_tokens + 1) {
        detokenizer_watch_stops(&choice->detokenizer, true);
    }
    bool stopped = false;
    if (visible && detokenizer_push(&choice->detokenizer, (uint32_t)row->token, &choice->text,
                                    &stopped, NULL) != STATUS_OK) {
        choice->text.failed = true;    // the answer would have a hole
    }
    if (stopped) {
        choice->stop_kind = API_STOP_KIND_STRING;
        choice->stop_index = (uint32_t)detokenizer_stop_index(&choice->detokenizer);
    }
    return stopped;
}

void api_text_end(struct api_choice *choice) {
    if (detokenizer_finish(&choice->detokenizer, &choice->text, NULL) != STATUS_OK) {
        choice->text.failed = true;
    }
}

bool api_text_holds_back(const struct api_choice *choice) {
    return !choice->finished && detokenizer_held_bytes(&choice->detokenizer) > 0;
}

size_t api_text_scores_ready(const struct api_choice *choice) {
    if (choice->finished) {
        return choice->scores.bytes_used;
    }
    uint64_t held = detokenizer_held_bytes(&choice->detokenizer);
    uint64_t raw_end = choice->raw_bytes > held ? choice->raw_bytes - held : 0;
    return api_scores_ready(&choice->scores, raw_end);
}
