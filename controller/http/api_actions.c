// SPDX-License-Identifier: Apache-2.0
// What the core says of a call's sequences: tokens, ends, refusals; and the end of a turn, when
// what they brought is written.
#include "controller/http/api_call.h"

#include "controller/http/api_journal.h"

enum { RETRY_MS = 1000 };

static void observe_token(struct api_choice *choice, uint64_t now_us) {
    struct api_call *call = choice->call;
    struct stats *stats = call->visit.api->config.stats;
    choice->output_count++;
    if (choice->output_count == 1) {
        choice->first_us = now_us;
    }
    if (stats != NULL && call->kind != API_CALL_KIND_CANARY) {
        uint64_t arrived_us = call->exchange->arrived_us;
        if (choice->output_count > 1) {
            stats_itl(stats, call->class_, now_us - choice->last_us);
        } else if (!call->resumed) {    // or its client waited longer than we know
            stats_ttft(stats, call->class_, now_us - arrived_us);
        }
    }
    choice->last_us = now_us;
}

// Which of the stop tokens it was: the model's own end is no "stop that fired".
static void note_stop_token(struct api_choice *choice, int32_t token) {
    const struct sampling_params *sampling = &choice->call->sampling;
    for (uint32_t i = choice->call->eos_count; i < sampling->stop_token_count; i++) {
        if (sampling->stop_tokens[i] == token) {
            choice->stop_kind = API_STOP_KIND_TOKEN;
            choice->stop_index = (uint32_t)token;
        }
    }
    for (uint32_t i = 0; i < choice->call->eos_count; i++) {
        if (sampling->stop_tokens[i] == token) {
            choice->stop_kind = API_STOP_KIND_NONE;
        }
    }
}

// True when a stop string matched: the choice is finished.
static bool take_token(struct api_choice *choice, const struct result_row *row,
                       bool is_stop_token) {
    if (is_stop_token) {
        note_stop_token(choice, row->token);
    }
    bool matched = api_text_token(choice, row, is_stop_token);
    choice->dirty = true;
    api_call_touch(choice->call);
    if (matched) {
        api_choice_finish(choice, "stop");
    }
    return matched;
}

static void on_token(struct api_choice *choice, const struct core_action *action, uint64_t now_us) {
    struct api_call *call = choice->call;
    struct api *api = call->visit.api;
    const struct result_row *row = action->token.row;
    if (call->exchange == NULL || choice->finished) {
        return;    // nobody waits for it any more
    }
    call->visit.now_us = now_us;
    api_journal_note_token(choice, row, action->token.is_stop_token);
    if (row->is_prompt) {
        api_text_score_prompt(choice, row);
        return;
    }
    observe_token(choice, now_us);
    if (take_token(choice, row, action->token.is_stop_token)) {
        api->config.stop(api->config.ctx, (struct request_id){choice->id});
    }
}

static void fail_by_reason(struct api_call *call, enum finish_reason reason) {
    struct api_failure failure = {0};
    switch (reason) {
    case FINISH_REASON_FAULT:
        api_fail(&failure, API_CODE_INSTANCE_LOST, NULL,
                 "The worker that computed this request was lost.");
        break;
    case FINISH_REASON_REFUSED:
        api_fail(&failure, API_CODE_INTERNAL, NULL,
                 "The worker refuses to compute this request; the server's log says why.");
        break;
    case FINISH_REASON_SHUTDOWN:
        api_fail(&failure, API_CODE_DRAINING, NULL, "The server is shutting down.");
        break;
    default:
        api_fail(&failure, API_CODE_UNAVAILABLE, NULL, "The request was ended by the operator.");
        break;
    }
    failure.retry_after_ms = reason == FINISH_REASON_REFUSED ? 0 : RETRY_MS;
    api_call_fail(call, &failure);
}

static void observe_end(const struct api_choice *choice, uint64_t now_us) {
    const struct api_call *call = choice->call;
    struct stats *stats = call->visit.api->config.stats;
    if (stats == NULL || call->exchange == NULL || choice->output_count == 0 ||
        call->kind == API_CALL_KIND_CANARY || call->resumed) {
        return;    // or its times are not to be had
    }
    uint64_t arrived_us = call->exchange->arrived_us;
    const struct stats_sequence sequence = {.class_ = call->class_,
                                            .prompt_tokens = choice->prompt_count,
                                            .output_tokens = choice->output_count,
                                            .ttft_us = choice->first_us - arrived_us,
                                            .e2e_us = now_us - arrived_us};
    stats_sequence_done(stats, &sequence);
}

static void take_finish(struct api_choice *choice, enum finish_reason reason) {
    api_text_end(choice);
    api_choice_finish(choice, reason == FINISH_REASON_STOP ? "stop" : "length");
}

static void on_finished(struct api_choice *choice, enum finish_reason reason, uint64_t now_us) {
    struct api_call *call = choice->call;
    api_slot_give_back(call->visit.api, choice);
    call->visit.now_us = now_us;
    observe_end(choice, now_us);
    if (call->exchange != NULL && !choice->finished) {
        if (reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH) {
            struct api_item item = {.kind = API_ITEM_KIND_FINISH, .reason = reason};
            api_journal_note(choice, &item);
            take_finish(choice, reason);
        } else {
            fail_by_reason(call, reason);
        }
    }
    api_call_touch(call);    // it may be time to free it
}

static void on_rejected(struct api_choice *choice, const struct core_action *action,
                        uint64_t now_us) {
    struct api_call *call = choice->call;
    struct api_failure failure = {0};
    api_slot_give_back(call->visit.api, choice);
    call->visit.now_us = now_us;
    switch (action->rejected.reason) {
    case REJECT_REASON_QUEUE_FULL:
        api_fail(&failure, API_CODE_QUEUE_FULL, NULL, "Too many requests wait already.");
        break;
    case REJECT_REASON_QUEUE_TOKENS:
        api_fail(&failure, API_CODE_QUEUE_FULL, NULL, "Too many prompt tokens wait already.");
        break;
    case REJECT_REASON_WOULD_MISS:
        api_fail(&failure, API_CODE_WOULD_MISS, NULL,
                 "The first token would come later than this class of requests is allowed.");
        break;
    case REJECT_REASON_MISSED:
        api_fail(&failure, API_CODE_WOULD_MISS, NULL,
                 "The request waited, and its first token can no longer come in time.");
        break;
    case REJECT_REASON_TOO_LARGE:
        api_fail(&failure, API_CODE_TOO_LARGE, NULL,
                 "The prompt and the tokens asked for exceed the whole KV cache.");
        break;
    case REJECT_REASON_DRAINING:
        api_fail(&failure, API_CODE_DRAINING, NULL, "The server is shutting down.");
        break;
    default:
        api_fail(&failure, API_CODE_UNAVAILABLE, NULL, "No worker is ready.");
        break;
    }
    failure.retry_after_ms = action->rejected.retry_after_ms;
    failure.retryable = failure.retryable && action->rejected.retry_after_ms > 0;
    api_call_refund(call);
    if (call->kind == API_CALL_KIND_CANARY && api_code_http(failure.code) == 429) {
        api_canary_answer(call, "queue_full");    // others are being served: alive
    } else {
        api_call_fail(call, &failure);
    }
    api_call_touch(call);
}

void api_on_action(struct api *api, const struct core_action *action, uint64_t now_us) {
    struct api_choice *choice = NULL;
    switch (action->kind) {
    case CORE_ACTION_ADMITTED:
        choice = api_slot_find(api, action->admitted.id);
        if (choice != NULL && choice->output_count == 0) {
            struct api_item item = {.kind = API_ITEM_KIND_CACHED,
                                    .cached_tokens = action->admitted.cached_tokens};
            choice->cached_tokens = action->admitted.cached_tokens;
            api_journal_note(choice, &item);
        }
        break;
    case CORE_ACTION_TOKEN:
        choice = api_slot_find(api, action->token.id);
        if (choice != NULL) {
            on_token(choice, action, now_us);
        }
        break;
    case CORE_ACTION_FINISHED:
        choice = api_slot_find(api, action->finished.id);
        if (choice != NULL) {
            on_finished(choice, action->finished.reason, now_us);
        }
        break;
    case CORE_ACTION_REJECTED:
        choice = api_slot_find(api, action->rejected.id);
        if (choice != NULL) {
            on_rejected(choice, action, now_us);
        }
        break;
    default:
        break;
    }
}

// ---- once more ---------------------------------------------------------------------------------

static bool replay_token(struct api_choice *choice, const struct api_item *item) {
    struct api_call *call = choice->call;
    const struct result_row *row = &item->row;
    if (row->token < 0 || (uint32_t)row->token >= call->visit.api->facts.vocabulary) {
        return false;
    }
    if (row->is_prompt) {
        api_text_score_prompt(choice, row);
        return true;
    }
    if (choice->output_count >= choice->output_max) {
        return false;
    }
    choice->tokens[choice->prompt_count + choice->output_count] = row->token;
    choice->output_count++;
    choice->last_us = call->visit.now_us;
    (void)take_token(choice, row, item->is_stop_token);    // there is nothing to stop
    return true;
}

bool api_call_replay(struct api_call *call, const uint8_t *items, size_t byte_count) {
    struct api_item item;
    size_t at = 0;
    while (at < byte_count) {
        if (!api_item_next(items, byte_count, &at, &item) || item.choice >= call->choice_count ||
            call->choices[item.choice].finished) {
            return false;
        }
        struct api_choice *choice = &call->choices[item.choice];
        switch (item.kind) {
        case API_ITEM_KIND_TOKEN:
            if (!replay_token(choice, &item)) {
                return false;
            }
            break;
        case API_ITEM_KIND_FINISH:
            take_finish(choice, item.reason);
            break;
        case API_ITEM_KIND_CACHED:
            choice->cached_tokens = item.cached_tokens;
            break;
        }
    }
    api_render_events(call);
    return true;
}

// ---- turns -------------------------------------------------------------------------------------

static void turn_call(struct api_call *call) {
    if (call->exchange != NULL) {
        if (call->kind == API_CALL_KIND_CANARY) {
            if (call->unfinished_count == 0) {
                api_canary_answer(call, NULL);
            }
        } else if (call->stream) {
            api_render_events(call);
        } else if (call->unfinished_count == 0) {
            api_render_body(call);
        }
    }
}

void api_turn_end(struct api *api, uint64_t now_us) {
    struct api_call *call;
    while ((call = api->dirty) != NULL) {
        api->dirty = call->next_dirty;
        if (api->dirty == NULL) {
            api->dirty_end = &api->dirty;
        }
        call->dirty = false;
        call->visit.now_us = now_us;
        turn_call(call);
        if (call->cancel_wanted) {
            api_call_cancel(call);
        }
        if (call->exchange == NULL && call->live_count == 0 && !call->dirty) {
            api_call_destroy(call);
        }
    }
}
