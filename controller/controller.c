// SPDX-License-Identifier: Apache-2.0
#include "controller/controller.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/version.h"
#include "controller/controller_internal.h"
#include "controller/http/background.h"
#include "controller/http/http_server.h"
#include "controller/input_log.h"
#include "controller/model_text.h"
#include "controller/net/worker_link.h"
#include "controller/policy.h"
#include "controller/resume.h"
#include "controller/run_dir.h"
#include "controller/stats.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { CLOSE_GRACE_US = 2 * 1000 * 1000 };

// ---- queue and tick ----------------------------------------------------------------------------

static bool enqueue(struct controller *c, const struct core_input *input) {
    struct input_queue *queue = &c->queues[c->filling];
    bool is_request = input->kind == CORE_INPUT_REQUEST;
    if (queue->count == INPUTS_MAX || (is_request && queue->request_count == SUBMITS_MAX)) {
        return false;
    }
    queue->inputs[queue->count] = *input;
    if (is_request) {
        struct core_request *copy = &queue->requests[queue->request_count++];
        *copy = *input->request;
        queue->inputs[queue->count].request = copy;
    }
    queue->count++;
    return true;
}

static void want_resync(struct controller *c, struct worker_id group) {
    INVARIANT(group.value < c->groups);
    c->resync_wanted = true;
    c->resync[group.value] = true;
}

static void say_given_up(const struct core_action *action) {
    uint32_t group = action->resync.worker.value;
    log_warn("controller", "epoch given up group=%u cause=%s late_ranks=0x%x", group,
             stats_epoch_end_name(action->resync.why), action->resync.missing);
    if (action->resync.doubted) {
        log_error("controller",
                  "ranks of group %u answered differently twice within an hour: it gets requests "
                  "only where other groups are late; look for a faulty device",
                  group);
    }
}

static void on_action(void *ctx, const struct core_action *action) {
    struct controller *c = ctx;
    uint64_t now_us = c->tick_us;
    struct error err = {0};
    size_t plan_bytes = 0;
    switch (action->kind) {
    case CORE_ACTION_ADMITTED:
        stats_queue(c->stats, action->admitted.class_, action->admitted.queue_us);
        api_on_action(c->api, action, now_us);
        break;
    case CORE_ACTION_SEND_PLAN:
        input_log_plan(c->input_log, action->send.plan);
        if (worker_link_send_plan(c->link, action->send.worker.value, action->send.plan,
                                  &plan_bytes, &err) == STATUS_OK) {
            stats_plan_sent(c->stats, action->send.plan, plan_bytes);
        } else {
            log_failure("controller", &err);
            want_resync(c, action->send.worker);
        }
        break;
    case CORE_ACTION_RESYNC:
        say_given_up(action);
        want_resync(c, action->resync.worker);
        break;
    case CORE_ACTION_RECOVERED:
        log_info("controller", "group is back group=%u after_ms=%.0f cause=%s kv=%s",
                 action->recovered.worker.value, (double)action->recovered.away_us / 1000,
                 stats_epoch_end_name(action->recovered.why),
                 action->recovered.kv_kept ? "kept" : "lost");
        stats_recovered(c->stats, action->recovered.why, action->recovered.away_us);
        break;
    case CORE_ACTION_RESIZED:
        controller_operator_resized(c, action);
        break;
    case CORE_ACTION_DRAINED:
        c->drained = true;
        break;
    case CORE_ACTION_TOKEN:
        if (action->token.prefill_us > 0) {
            stats_prefill(c->stats, action->token.class_, action->token.prefill_us);
        }
        api_on_action(c->api, action, now_us);
        break;
    case CORE_ACTION_FINISHED:
    case CORE_ACTION_REJECTED:
        api_on_action(c->api, action, now_us);
        break;
    }
}

// A group was lost: others that are ready go on serving.
static void say_lost(struct controller *c) {
    struct core_gauges gauges;
    core_gauges(c->core, clock_monotonic_us(), &gauges);
    if (!gauges.ready) {
        api_on_worker_lost(c->api);
    }
}

// New epochs for groups whose state is not ours.
static void resync(struct controller *c) {
    if (!c->resync_wanted) {
        return;
    }
    c->resync_wanted = false;
    for (uint32_t g = 0; g < c->groups; g++) {
        if (c->resync[g]) {
            c->resync[g] = false;
            struct core_input lost = {.kind = CORE_INPUT_WORKER_LOST,
                                      .lost = {{g}, "its state was not ours"}};
            enqueue(c, &lost);
            worker_link_welcome_again(c->link, g);
            say_lost(c);
        }
    }
}

// Ticks until nothing is left to take in. What actions enqueue is taken in the next round.
void controller_tick(struct controller *c) {
    if (c->ticking) {
        return;
    }
    c->ticking = true;
    enum { ROUNDS_MAX = 64 };
    for (int round = 0; round < ROUNDS_MAX; round++) {
        struct input_queue *queue = &c->queues[c->filling];
        c->filling = 1 - c->filling;
        uint64_t begin_us = clock_monotonic_us();
        c->tick_us = begin_us;
        input_log_tick(c->input_log, begin_us, queue->inputs, queue->count);
        core_tick(c->core, begin_us, queue->inputs, queue->count, on_action, c);
        queue->count = 0;
        queue->request_count = 0;
        uint64_t end_us = clock_monotonic_us();
        stats_turn(c->stats, STATS_PHASE_TICK, end_us - begin_us);
        resync(c);
        api_turn_end(c->api, end_us);
        if (c->queues[c->filling].count == 0) {
            break;
        }
    }
    c->ticking = false;
}

// ---- from the API ------------------------------------------------------------------------------

static enum status on_submit(void *ctx, const struct core_request *request) {
    struct core_input input = {.kind = CORE_INPUT_REQUEST, .request = request};
    return enqueue(ctx, &input) ? STATUS_OK : STATUS_BUSY;
}

// What must not be lost. Room is never a question: cancels and stops belong to requests that were
// enqueued once, workers say little, and a full queue is ticked first.
void controller_enqueue(struct controller *c, const struct core_input *input) {
    if (!enqueue(c, input)) {
        controller_tick(c);
        bool stored = enqueue(c, input);
        INVARIANT(stored);
    }
}

static void enqueue_id(struct controller *c, enum core_input_kind kind, struct request_id id) {
    controller_enqueue(c, &(struct core_input){.kind = kind, .id = id});
}

static void on_cancel(void *ctx, struct request_id id) {
    enqueue_id(ctx, CORE_INPUT_CANCEL, id);
}

static void on_stop(void *ctx, struct request_id id) {
    enqueue_id(ctx, CORE_INPUT_STOP, id);
}

static void on_access(void *ctx, const struct api_access *access) {
    struct controller *c = ctx;
    if (access->probe || !config_bool(c->config, OPTION_ACCESS_LOG)) {
        return;
    }
    access_log_add(&c->access_log, access);
}

// ---- from the workers --------------------------------------------------------------------------

// Ranks start alike: the first one speaks for all.
static void on_progress(void *ctx, uint32_t group, uint32_t rank,
                        const struct message_progress *progress) {
    struct controller *c = ctx;
    if (group != 0 || rank != 0) {
        return;
    }
    api_on_progress(c->api, progress);
    if (c->banner) {
        struct buf text;
        buf_init(&text, 1024);
        startup_bar_draw(&c->bar, progress, &text);
        fputs(buf_cstr(&text), stderr);
        buf_deinit(&text);
    }
}

static void announce(struct controller *c, const struct message_capacity *capacity) {
    struct startup_facts facts = {
        .model_name = c->names[0],
        .host = config_string(c->config, OPTION_HOST),
        .port = http_server_port(c->server),
        .uds = config_string(c->config, OPTION_UDS),
        .api_key_hint = c->keys.count > 0 ? "$TARE_API_KEY" : NULL,
        .start_seconds = (double)(clock_monotonic_us() - c->start_us) / 1e6,
        .capacity = capacity,
    };
    struct buf text;
    buf_init(&text, 16 * 1024);
    if (config_bool(c->config, OPTION_QUIET)) {
        startup_ready_line(&facts, &text);
    } else {
        startup_ready(&facts, &text);
    }
    if (c->banner) {
        fputs(buf_cstr(&text), stderr);
    }
    buf_deinit(&text);
    c->announced = true;
}

void controller_follow_pool(struct controller *c) {
    struct core_gauges gauges;
    core_gauges(c->core, clock_monotonic_us(), &gauges);
    if (gauges.ready) {
        struct message_capacity capacity = *core_capacity(c->core);
        capacity.kv_blocks = 0;
        for (uint32_t g = 0; g < c->groups; g++) {    // the largest may serve the longest
            core_group_gauges(c->core, g, clock_monotonic_us(), &gauges);
            if (gauges.kv_blocks_total > capacity.kv_blocks) {
                capacity.kv_blocks = gauges.kv_blocks_total;
            }
        }
        api_on_capacity(c->api, &capacity);
    }
}

static void on_ready(void *ctx, const struct worker_link_ready *ready) {
    struct controller *c = ctx;
    const struct message_capacity *capacity = ready->capacity;
    struct core_input input = {
        .kind = CORE_INPUT_WORKER_READY,
        .ready =
            {{ready->group}, capacity, ready->epoch, ready->group, ready->world, ready->kv_kept},
    };
    controller_enqueue(c, &input);
    controller_tick(c);
    controller_follow_pool(c);
    log_info("controller",
             "ready group=%u epoch=%llu world=%u kv_kept=%d kv_tokens=%llu context=%u threads=%u",
             ready->group, (unsigned long long)ready->epoch, ready->world, (int)ready->kv_kept,
             (unsigned long long)capacity->kv_blocks * capacity->block_tokens,
             capacity->envelope.seq_tokens, capacity->threads);
    if (!c->announced) {
        announce(c, capacity);
    }
}

static void on_lost(void *ctx, uint32_t group, const char *reason, uint32_t exit_code) {
    struct controller *c = ctx;
    struct core_input input = {.kind = CORE_INPUT_WORKER_LOST, .lost = {{group}, reason}};
    controller_enqueue(c, &input);
    controller_tick(c);
    say_lost(c);
    // A start that failed for a reason that another try will not change ends the service, unless
    // other groups may come.
    if (exit_code != 0 && !c->announced && c->groups == 1) {
        char why[LOG_VALUE_BYTES];
        log_error("controller", "a worker cannot start group=%u reason=\"%s\"", group,
                  log_value(reason, why));
        api_set_failed(c->api, reason);
        c->exit_code = (int)exit_code;
        c->closed = true;
    }
}

// All ranks answer, the first one with what was drawn.
static void on_result(void *ctx, uint32_t group, uint32_t rank, const struct step_result *result) {
    struct controller *c = ctx;
    if (rank == 0) {
        stats_step_done(c->stats, result);
    }
    struct core_input input = {.kind = CORE_INPUT_RESULT, .result = {{group}, rank, result}};
    controller_enqueue(c, &input);
    controller_tick(c);    // the result is alive during this call only
}

// ---- start-up ----------------------------------------------------------------------------------

static enum status take_list(const struct controller *c, enum option_id option,
                             const char *out[BOUND_NAMES], uint32_t *count, struct error *err) {
    *count = config_list_count(c->config, option);
    if (*count > BOUND_NAMES) {
        return error_set(err, STATUS_INVALID, "--%s has %u items; the limit is %u",
                         config_name(option), *count, BOUND_NAMES);
    }
    for (uint32_t i = 0; i < *count; i++) {
        out[i] = config_list_item(c->config, option, i);
    }
    return STATUS_OK;
}

static enum status load_text(struct controller *c, struct error *err) {
    const char *path = config_string(c->config, OPTION_MODEL);
    if (path == NULL) {
        return error_set(err, STATUS_INVALID, "no model given; usage: tare-controller MODEL");
    }
    TRY(model_text_open(path, config_string(c->config, OPTION_CHAT_TEMPLATE), &c->text, err));
    uint32_t count = 0;
    TRY(take_list(c, OPTION_SERVED_MODEL_NAME, c->names, &count, err));
    if (count == 0) {
        c->names[0] = model_text_name(c->text);
        count = 1;
    }
    struct model_text_sampling own = model_text_sampling(c->text);
    bool neutral = strcmp(config_string(c->config, OPTION_GENERATION_CONFIG), "vllm") == 0;
    c->model = (struct api_model){
        .names = c->names,
        .name_count = count,
        .tokenizer = model_text_tokenizer(c->text),
        .chat_template = model_text_template(c->text),
        .defaults =
            neutral ? api_sampling_neutral()
                    : (struct api_sampling_defaults){.temperature = own.temperature,
                                                     .top_p = own.top_p,
                                                     .min_p = own.min_p,
                                                     .repetition_penalty = own.repetition_penalty,
                                                     .top_k = own.top_k},
        .created_unix_s = clock_unix_s(),
    };
    return STATUS_OK;
}

// A restarted controller finds nothing that an earlier one computed: keys are its own.
static enum status draw_secret(uint8_t *out, size_t bytes, struct error *err) {
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) {
        return error_set_os(err, STATUS_IO, "no random bytes for the keys of cached blocks");
    }
    return STATUS_OK;
}

static enum status create_core(struct controller *c, struct error *err) {
    // auto: the worker decides, and its envelope says so.
    int64_t step_tokens = config_int(c->config, OPTION_MAX_NUM_BATCHED_TOKENS);
    struct core_config config = {
        .seqs_max = (uint32_t)config_int(c->config, OPTION_MAX_NUM_SEQS),
        .waiting_max = (uint32_t)config_int(c->config, OPTION_MAX_NUM_QUEUED),
        .step_tokens_max = step_tokens < 0 ? BOUND_STEP_TOKENS : (uint32_t)step_tokens,
        .blocks_max = BOUND_BLOCKS,
        .group = 1,
        .depth = (uint32_t)config_int(c->config, OPTION_PIPELINE_DEPTH),
        .groups_max = c->groups,
        .ranks_max = (uint32_t)config_int(c->config, OPTION_TENSOR_PARALLEL_SIZE),
        .tenant_max = KEYS_ACCOUNTS + 1,
    };
    TRY(policy_load(c->config, &config.policy, err));
    TRY(draw_secret(config.prefix_secret, sizeof config.prefix_secret, err));
    const char *path = config_string(c->config, OPTION_INPUT_LOG);
    if (path != NULL) {
        uint64_t bytes = (uint64_t)config_int(c->config, OPTION_INPUT_LOG_BYTES);
        TRY(input_log_create(path, bytes, &config, &c->input_log, err));
    }
    return core_create(&config, &c->core, err);
}

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

static enum status fill_gate(struct controller *c, struct api_gate *gate, struct error *err) {
    TRY(keys_load(c->config, &c->keys, err));
    const char *host = config_string(c->config, OPTION_HOST);
    // A socket file is guarded by its mode, and no web page can make a browser call it.
    bool file = config_string(c->config, OPTION_UDS) != NULL;
    bool open = c->keys.count == 0 && !file && !is_loopback(host);
    if (open && config_bool(c->config, OPTION_REQUIRE_AUTH)) {
        error_hint(err, "give --api-key or --api-key-file, or listen on 127.0.0.1");
        return error_set(err, STATUS_INVALID, "--require-auth: no key for host %s", host);
    }
    if (open) {
        log_warn("controller", "no API key: everybody who reaches this server may use it host=%s",
                 host);
    }
    uint32_t origins = 0;
    TRY(take_list(c, OPTION_ALLOWED_ORIGINS, c->origins, &origins, err));
    bool named = gethostname(c->host_name, sizeof c->host_name - 1) == 0;
    *gate = (struct api_gate){
        .keys = c->keys.keys,
        .key_count = c->keys.count,
        .metrics_require_key = config_bool(c->config, OPTION_METRICS_REQUIRE_KEY),
        .loopback_only = !file && is_loopback(host),
        .host_name = named ? c->host_name : NULL,
        .origins = c->origins,
        .origin_count = origins,
        .allow_credentials = config_bool(c->config, OPTION_ALLOW_CREDENTIALS),
    };
    return STATUS_OK;
}

static uint64_t random_u64(void) {
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
        value = clock_monotonic_ns();
    }
    return value;
}

static enum status create_api(struct controller *c, struct uv_loop_s *loop, struct error *err) {
    c->background = background_create(loop);
    if (c->background == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for helper threads");
    }
    struct stats_config stats = {
        .model = c->names[0],
        .version = VERSION_NUMBER,
        .commit = VERSION_COMMIT,
        .model_digest = "",
        .compat = config_bool(c->config, OPTION_METRICS_COMPAT),
    };
    TRY(stats_create(&stats, &c->stats, err));
    struct api_config config;
    api_defaults(&config);
    config.ctx = c;
    config.submit = on_submit;
    config.cancel = on_cancel;
    config.stop = on_stop;
    config.metrics = controller_operator_metrics;
    config.access = on_access;
    config.stats = c->stats;
    config.background = c->background;
    config.version = VERSION_NUMBER;
    config.commit = VERSION_COMMIT;
    config.group_ranks = (uint32_t)config_int(c->config, OPTION_TENSOR_PARALLEL_SIZE);
    config.server_header = config_bool(c->config, OPTION_SERVER_HEADER);
    config.any_model_name = config_bool(c->config, OPTION_ANY_MODEL_NAME);
    config.strict_max_tokens = config_bool(c->config, OPTION_STRICT_MAX_TOKENS);
    config.prefix_caching = config_bool(c->config, OPTION_ENABLE_PREFIX_CACHING);
    config.sequences_max = (uint32_t)config_int(c->config, OPTION_MAX_NUM_QUEUED);
    config.logprobs_max = (uint32_t)config_int(c->config, OPTION_MAX_LOGPROBS);
    int64_t seed = config_int(c->config, OPTION_SEED);
    config.seed = seed != 0 ? (uint64_t)seed : random_u64();
    config.id_seed = random_u64();
    config.keepalive_us = (uint64_t)config_int(c->config, OPTION_SSE_KEEPALIVE) * 1000000;
    c->resume = resume_create(config_bool(c->config, OPTION_JOURNAL),
                              (uint64_t)config_int(c->config, OPTION_JOURNAL_TTL) * 1000000);
    if (c->resume == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a journal");
    }
    resume_journal(c->resume, &config.journal);
    TRY(fill_gate(c, &config.gate, err));
    TRY(api_create(&config, &c->api, err));
    api_set_model(c->api, &c->model);
    return STATUS_OK;
}

static enum status open_server(struct controller *c, struct uv_loop_s *loop, struct error *err) {
    struct http_server_config config;
    http_server_defaults(&config);
    config.handler = api_handler(c->api);
    config.connections_max = (uint32_t)config_int(c->config, OPTION_MAX_CONNECTIONS);
    TRY(http_server_create(loop, &config, &c->server, err));
    const char *path = config_string(c->config, OPTION_UDS);
    if (path != NULL) {
        return http_server_listen_unix(c->server, path, err);
    }
    enum status status = http_server_listen_tcp(c->server, config_string(c->config, OPTION_HOST),
                                                (uint16_t)config_int(c->config, OPTION_PORT), err);
    if (status != STATUS_OK) {
        error_hint(err, "choose another --port, or 0 for any free one");
    }
    return status;
}

// Workers of other hosts come with keys.
static enum status load_link_keys(struct controller *c, uint32_t *bind_count, struct error *err) {
    const char *secret = config_string(c->config, OPTION_WORKER_KEY_FILE);
    const char *allow = config_string(c->config, OPTION_WORKER_ALLOW_FILE);
    TRY(take_list(c, OPTION_WORKER_BIND, c->binds, bind_count, err));
    if (secret != NULL) {
        TRY(link_key_file_read(secret, true, &c->link_keys, err));
    }
    return allow != NULL ? link_allow_load(allow, &c->link_allow, err) : STATUS_OK;
}

static enum status open_links(struct controller *c, struct error *err) {
    const char *run_dir = config_string(c->config, OPTION_RUN_DIR);
    if (run_dir == NULL) {
        return error_set(err, STATUS_INVALID,
                         "--run-dir is missing: a directory for the worker's sockets");
    }
    TRY(run_dir_take(run_dir, &c->run_dir_lock, err));
    snprintf(c->run_dir, sizeof c->run_dir, "%s", run_dir);
    resume_open(c->resume, run_dir, c->api);
    struct worker_link_options options = {
        .run_dir = run_dir,
        .sink = {c, on_progress, on_ready, on_lost, on_result},
        .groups = c->groups,
        .world = (uint32_t)config_int(c->config, OPTION_TENSOR_PARALLEL_SIZE),
        .timer_scale = config_real(c->config, OPTION_TIMER_SCALE),
        .binds = c->binds,
        .wildcard_allowed = config_bool(c->config, OPTION_INSECURE_BIND),
    };
    TRY(load_link_keys(c, &options.bind_count, err));
    options.keys = c->link_keys.secret_key[0] != '\0' ? &c->link_keys : NULL;
    options.allow = c->link_allow;
    return worker_link_open(&options, &c->link, err);
}

enum status controller_create(const struct config *config, struct uv_loop_s *loop,
                              struct controller **out, struct error *err) {
    struct controller *c = memory_zalloc(sizeof *c);
    if (c == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a controller");
    }
    c->config = config;
    c->groups = (uint32_t)config_int(config, OPTION_GROUPS);
    c->start_us = clock_monotonic_us();
    c->banner = config_bool(config, OPTION_BANNER);
    startup_bar_init(&c->bar, isatty(STDERR_FILENO) == 1);
    access_log_init(&c->access_log);
    enum status status = load_text(c, err);
    if (status == STATUS_OK) {
        status = create_core(c, err);
    }
    if (status == STATUS_OK) {
        status = create_api(c, loop, err);
    }
    if (status == STATUS_OK) {
        status = open_server(c, loop, err);
    }
    if (status == STATUS_OK) {
        status = open_links(c, err);
    }
    if (status == STATUS_OK) {
        status = controller_operator_open(c, loop, err);
    }
    if (status != STATUS_OK) {
        c->closed = true;
        controller_destroy(c);
        return status;
    }
    *out = c;
    return STATUS_OK;
}

void controller_destroy(struct controller *c) {
    if (c == NULL) {
        return;
    }
    // The server first: whoever still waits is told, and that may reach the core and the link.
    http_server_destroy(c->server);
    http_server_destroy(c->admin_server);
    background_destroy(c->background);
    access_log_deinit(&c->access_log);
    admin_destroy(c->admin);
    worker_link_close(c->link);
    run_dir_leave(c->run_dir_lock);
    link_allow_destroy(c->link_allow);
    explicit_bzero(&c->link_keys, sizeof c->link_keys);
    api_destroy(c->api);
    resume_close(c->resume, c->drained);
    stats_destroy(c->stats);
    core_destroy(c->core);
    input_log_close(c->input_log);
    model_text_close(c->text);
    memory_free(c);
}

// ---- turns -------------------------------------------------------------------------------------

int controller_fd(const struct controller *c, uint32_t index) {
    return worker_link_fd(c->link, index);
}

static void on_server_closed(void *ctx) {
    struct controller *c = ctx;
    c->closed = true;
}

// Once the core holds nothing, the worker may go and the server closes.
static void finish_drain(struct controller *c) {
    if (c->drained && !c->closing) {
        c->closing = true;
        log_info("controller", "drained");
        worker_link_shutdown(c->link);
        http_server_close(c->server, CLOSE_GRACE_US, on_server_closed, c);
    }
}

bool controller_turn(struct controller *c) {
    uint64_t now_us = clock_monotonic_us();
    bool more = worker_link_poll(c->link, now_us);
    more = api_streams_turn(c->api, now_us) || more;
    bool ticked = c->queues[c->filling].count > 0;
    if (ticked) {
        controller_tick(c);
    }
    resume_flush(c->resume);    // what a client will have seen
    http_server_flush(c->server);
    http_server_flush(c->admin_server);    // operations that ended
    if (ticked) {
        // Sending may have hidden an arrival.
        more = worker_link_poll(c->link, clock_monotonic_us()) || more;
    }
    resume_flush(c->resume);    // tokens of the second look, and answers that are delivered
    access_log_write(&c->access_log);
    finish_drain(c);
    return more;
}

// Back-pressure while turns take too long: requests wait in the kernel, answers go on.
static void protect_loop(struct controller *c, uint64_t now_us) {
    bool pause = turn_watch_overloaded(&c->turns, now_us) && !c->closing;
    if (pause != c->paused) {
        c->paused = pause;
        http_server_pause(c->server, pause);
        if (pause) {
            stats_ingress_paused(c->stats);
            log_debug("controller", "turns take too long: no requests are read for a moment");
        }
    }
}

// What the thread computed since the last one: neither its sleep, nor what others had the core for,
// which fewer requests would not change.
void controller_turned(struct controller *c) {
    uint64_t now_us = clock_monotonic_us();
    uint64_t computed_us = clock_thread_us();
    uint64_t busy_us = c->computed_us == 0 ? 0 : computed_us - c->computed_us;
    c->computed_us = computed_us;
    stats_turn(c->stats, STATS_PHASE_TOTAL, busy_us);
    turn_watch_add(&c->turns, now_us, busy_us);
    protect_loop(c, now_us);
}

bool controller_timer(struct controller *c, uint64_t late_us) {
    stats_loop_lag(c->stats, late_us);
    uint64_t now_us = clock_monotonic_us();
    if (c->deadline_us != 0 && now_us > c->deadline_us) {
        c->deadline_us = 0;
        log_warn("controller", "drain deadline reached: ending what still runs");
        struct core_input input = {.kind = CORE_INPUT_ABORT_ALL};
        controller_enqueue(c, &input);
    }
    struct core_gauges gauges;
    core_gauges(c->core, now_us, &gauges);
    api_set_overdue(c->api, gauges.step_overdue_us > 0);
    controller_tick(c);
    protect_loop(c, now_us);
    return c->paused || gauges.queued + gauges.prefilling + gauges.decoding > 0;
}

enum status controller_check(const struct config *config, struct error *err) {
    struct controller *c = memory_zalloc(sizeof *c);
    if (c == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a controller");
    }
    c->config = config;
    struct core_policy policy;
    enum status status = policy_load(config, &policy, err);
    if (status == STATUS_OK) {
        status = keys_load(config, &c->keys, err);
    }
    if (status == STATUS_OK) {
        status = load_text(c, err);
    }
    model_text_close(c->text);
    memory_free(c);
    return status;
}

bool controller_done(const struct controller *c, int *exit_code) {
    *exit_code = c->exit_code;
    return c->closed;
}
