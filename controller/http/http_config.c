// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_config.h"

#include "common/bounds.h"

enum { TICK_MS_MAX = 100, TICK_MS_MIN = 5 };

void http_server_defaults(struct http_server_config *config) {
    *config = (struct http_server_config){
        .limits = {.head_bytes_max = BOUND_HTTP_HEAD_BYTES,
                   .field_count_max = BOUND_HTTP_HEADER_FIELDS,
                   .body_bytes_max = BOUND_HTTP_BODY_BYTES},
        .connections_max = BOUND_HTTP_CONNECTIONS,
        .turn_requests_max = BOUND_HTTP_TURN_REQUESTS,
        .readahead_bytes_max = BOUND_HTTP_READAHEAD_BYTES,
        .unsent_bytes_max = BOUND_HTTP_UNSENT_BYTES,
        .bodies_bytes_max = BOUND_HTTP_BODIES_BYTES,
        .idle_us = BOUND_HTTP_IDLE_US,
        .head_us = BOUND_HTTP_HEAD_US,
        .body_us = BOUND_HTTP_BODY_US,
        .slow_client_us = BOUND_HTTP_SLOW_CLIENT_US,
        .linger_us = BOUND_HTTP_LINGER_US,
    };
}

uint64_t http_server_tick_ms(const struct http_server_config *config) {
    const uint64_t limits_us[] = {config->idle_us, config->head_us, config->body_us,
                                  config->slow_client_us, config->linger_us};
    uint64_t tick_ms = TICK_MS_MAX;
    for (size_t i = 0; i < sizeof limits_us / sizeof limits_us[0]; i++) {
        uint64_t quarter_ms = limits_us[i] / 4000;
        tick_ms = quarter_ms < tick_ms ? quarter_ms : tick_ms;
    }
    return tick_ms < TICK_MS_MIN ? TICK_MS_MIN : tick_ms;
}
