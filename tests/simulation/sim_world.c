// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_world.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include "tests/simulation/sim_link.h"
#include <string.h>

enum {
    REJOIN_US = 50 * 1000,              // after the core has given a worker up
    RESULT_FAR_US = 5 * 1000 * 1000,    // a result that is later than this: a stall
};

static void on_plan(void *ctx, uint32_t group, const struct plan *plan);
static void on_admitted(void *ctx, uint64_t id, uint32_t cached_tokens);
static void on_token(void *ctx, uint64_t id, const struct result_row *row);
static void on_ended(void *ctx, uint64_t id, enum sim_end end, uint32_t output_count,
                     uint32_t retry_after_ms);
static void on_resync(void *ctx, uint32_t connection);
static void on_resized(void *ctx, uint32_t blocks);
static void on_drained(void *ctx);
static void on_worker_admitted(void *ctx, uint64_t id, uint32_t cached_tokens);
static void on_worker_computed(void *ctx, uint64_t id, uint32_t tokens);
static void on_worker_shares(void *ctx, uint64_t id, uint64_t writer);
static const int32_t *tokens_of(void *ctx, uint64_t id);

// ---- life cycle --------------------------------------------------------------------------------

static double spread(struct sim_world *world, double value) {
    double part = 2.0 * rng_unit(&world->rng) - 1.0;
    return value * (1.0 + world->options.spread * part);
}

static void create_group(struct sim_world *world, uint32_t index) {
    const struct sim_world_options *options = &world->options;
    struct sim_group *group = &world->groups[index];
    struct sim_worker_options machine = {
        .limits = options->machine,
        .cost = {.step_us = spread(world, options->cost.step_us),
                 .prefill_token_us = spread(world, options->cost.prefill_token_us),
                 .decode_row_us = spread(world, options->cost.decode_row_us),
                 .prefill_pair_us = spread(world, options->cost.prefill_pair_us),
                 .decode_context_us = spread(world, options->cost.decode_context_us),
                 .noise = options->cost.noise},
        .seed = rng_u64(&world->rng),
    };
    group->index = index;
    group->worker = sim_worker_create(&machine);
    group->running = memory_array(options->machine.envelope.seqs, sizeof *group->running);
    group->slots = memory_array(options->machine.envelope.seqs, sizeof *group->slots);
    SIM_CHECK(group->running != NULL && group->slots != NULL, "no memory for a group");
    sim_worker_listen(group->worker,
                      &(struct sim_worker_listener){world, on_worker_admitted, on_worker_computed,
                                                    on_worker_shares, tokens_of});
    group->state = SIM_GROUP_JOINING;
    sim_events_add(&world->events, 0, SIM_EVENT_JOIN, index, NULL);
}

struct sim_world *sim_world_create(const struct sim_world_options *options) {
    struct sim_world *world = memory_zalloc(sizeof *world);
    SIM_CHECK(world != NULL, "no memory for a world");
    world->options = *options;
    if (world->options.audit_every == 0) {
        world->options.audit_every = 1;
    }
    if (world->options.ranks == 0) {
        world->options.ranks = 1;
    }
    const struct plan_limits *machine = &options->machine;
    rng_init(&world->rng, options->seed ^ 0x776f726c64u);
    world->groups = memory_array(options->groups, sizeof *world->groups);
    world->ids = memory_array(machine->envelope.seqs, sizeof *world->ids);
    world->must_end =
        memory_array(machine->envelope.seqs + options->waiting_max + 1024, sizeof *world->must_end);
    SIM_CHECK(world->groups && world->ids && world->must_end, "no memory for a world");
    world->core = sim_core_create(
        &(struct sim_core_options){
            .seqs_max = machine->envelope.seqs,
            .waiting_max = options->waiting_max,
            .step_tokens_max = machine->envelope.tokens,
            .blocks_max = machine->kv_blocks,
            .depth = options->depth,
            .groups = options->groups,
            .ranks = world->options.ranks,
            .tenants = SIM_TENANTS,
            .blocks_per_seq = machine->envelope.blocks_per_seq,
            .time_scale = options->time_scale > 0 ? options->time_scale : 1.0,
            .ttft_target_s = options->ttft_target_s,
            .no_guard = options->no_guard,
        },
        &(struct sim_listener){world, on_plan, on_admitted, on_token, on_ended, on_resync,
                               on_resized, on_drained});
    for (uint32_t i = 0; i < options->groups; i++) {
        create_group(world, i);
    }
    sim_fault_start(world);
    return world;
}

void sim_world_destroy(struct sim_world *world) {
    if (world == NULL) {
        return;
    }
    sim_link_deinit(world);
    sim_events_deinit(&world->events);
    sim_core_destroy(world->core);
    sim_clients_deinit(&world->clients);
    for (uint32_t i = 0; i < world->options.groups; i++) {
        sim_worker_destroy(world->groups[i].worker);
        memory_free(world->groups[i].running);
        memory_free(world->groups[i].slots);
    }
    memory_free(world->groups);
    memory_free(world->ids);
    memory_free(world->must_end);
    memory_free(world);
}

// ---- who runs where ----------------------------------------------------------------------------

static void place(struct sim_world *world, uint32_t group_index, uint32_t client_index,
                  uint32_t slot) {
    struct sim_group *group = &world->groups[group_index];
    struct sim_client *client = sim_client_at(&world->clients, client_index);
    SIM_CHECK(client->group == SIM_NEVER, "a request runs twice");
    SIM_CHECK(group->running_count < world->options.machine.envelope.seqs, "too many run");
    client->group = group_index;
    client->slot = slot;
    group->slots[slot] = client_index;
    client->place = group->running_count;
    group->running[group->running_count++] = client_index;
}

static void unplace(struct sim_world *world, struct sim_client *client) {
    if (client->group == SIM_NEVER) {
        return;
    }
    struct sim_group *group = &world->groups[client->group];
    uint32_t last = group->running[--group->running_count];
    group->running[client->place] = last;
    sim_client_at(&world->clients, last)->place = client->place;
    client->group = SIM_NEVER;
}

// The core gives up what ran there, or must.
static void lose_running(struct sim_world *world, struct sim_group *group) {
    while (group->running_count > 0) {
        struct sim_client *client =
            sim_client_at(&world->clients, group->running[group->running_count - 1]);
        client->losses++;
        unplace(world, client);
    }
    world->fault_us = world->now_us;
}

// Whether something happened to the groups that excuses the failure of this request.
static bool fault_is_due(const struct sim_world *world, const struct sim_client *client) {
    uint32_t block_tokens = world->options.machine.block_tokens;
    uint32_t tokens = client->spec.prompt_count + client->spec.output_max;
    uint32_t need = (tokens + block_tokens - 1) / block_tokens;
    if (tokens > world->options.machine.envelope.seq_tokens) {
        return true;    // it came while nobody could say that it is too long
    }
    bool up = false, awaited = false;
    for (uint32_t i = 0; i < world->options.groups; i++) {
        const struct sim_group *group = &world->groups[i];
        bool is_up = group->state == SIM_GROUP_UP;
        if (is_up && need <= sim_worker_capacity(group->worker)->kv_blocks) {
            return false;    // it can run there
        }
        up = up || is_up;
        awaited = awaited || (!is_up && world->now_us - group->away_us < sim_core_recovery_us());
    }
    return up || !awaited;    // those that are there are too small, or nobody comes back
}

// ---- what the core says ------------------------------------------------------------------------

static uint64_t fold_plan(uint64_t digest, const struct plan *plan) {
    digest = sim_fold(digest, plan->group ^ (uint64_t)plan->undone << 32);
    digest = sim_fold(digest, plan->epoch);
    digest = sim_fold(digest, plan->seq);
    digest = sim_fold(digest, (uint64_t)plan->decode_rows << 32 | plan->kv_blocks);
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const struct plan_admit *admit = &plan->admits[i];
        digest = sim_fold(digest, (uint64_t)admit->ref.slot << 32 | admit->ref.gen);
        digest = sim_fold(digest, admit->sampling.seed);
        digest = sim_fold(digest, admit->cached_tokens);
        digest = sim_fold(digest, (uint64_t)admit->prompt_tokens << 32 | admit->len_max);
        for (uint32_t k = 0; k < admit->block_count; k++) {
            digest = sim_fold(digest, admit->blocks[k]);
        }
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        const struct plan_update *update = &plan->updates[i];
        digest = sim_fold(digest, (uint64_t)update->ref.slot << 32 | update->ref.gen);
        digest = sim_fold(digest, (uint64_t)update->pause << 1 | (uint64_t)update->resume);
        for (uint32_t k = 0; k < update->append_count; k++) {
            digest = sim_fold(digest, update->append_blocks[k]);
        }
    }
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        const struct slot_ref *ref = &plan->retires[i].ref;
        digest = sim_fold(digest, (uint64_t)ref->slot << 32 | ref->gen);
    }
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        const struct plan_prefill *chunk = &plan->prefills[i];
        digest = sim_fold(digest, (uint64_t)chunk->ref.slot << 32 | chunk->start_pos);
        digest = sim_fold(digest, (uint64_t)chunk->token_count << 1 | (uint64_t)chunk->last);
    }
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct plan_move *move = &plan->moves[i];
        digest = sim_fold(digest, (uint64_t)move->ref.slot << 32 | move->index);
        digest = sim_fold(digest, move->block);
    }
    return digest;
}

// A slot is taken from one that lives: it was evicted for others.
static void note_evictions(struct sim_world *world, uint32_t group_index, const struct plan *plan) {
    struct sim_group *group = &world->groups[group_index];
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        uint32_t slot = plan->retires[i].ref.slot;
        struct sim_client *client = sim_client_at(&world->clients, group->slots[slot]);
        if (client->group != group_index || client->slot != slot) {
            continue;    // it has ended, or a refused plan is said again
        }
        client->evictions++;
        world->evictions++;
        SIM_CHECK(client->evictions <= sim_core_evictions_max(client->spec.class_),
                  "request %u of class %d is evicted %u times", group->slots[slot] + 1,
                  (int)client->spec.class_, client->evictions);
        unplace(world, client);
    }
}

static void note_admissions(struct sim_world *world, uint32_t group, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        uint64_t id = sim_seed_id(plan->admits[i].sampling.seed);
        struct sim_client *client = sim_client_of(&world->clients, id);
        SIM_CHECK(client->state == SIM_CLIENT_LIVES, "request %llu is admitted and has ended",
                  (unsigned long long)id);
        place(world, group, (uint32_t)id - 1, plan->admits[i].ref.slot);
        client->admitted++;
        client->admit_seq = plan->seq;
        SIM_CHECK(client->admitted <= 1 + client->losses + client->evictions,
                  "request %llu is admitted %u times after %u losses and %u evictions",
                  (unsigned long long)id, client->admitted, client->losses, client->evictions);
    }
}

// A refused plan never happened, nor those sent behind it: whom they admitted waits again, once the
// core knows of all.
static void undo_admissions(struct sim_world *world, struct sim_group *group, uint64_t seq) {
    for (uint32_t i = group->running_count; i > 0; i--) {
        struct sim_client *client = sim_client_at(&world->clients, group->running[i - 1]);
        if (client->admit_seq >= seq) {
            unplace(world, client);
            client->admitted--;
        }
    }
}

// Whoever has a slot after a plan lives.
static void check_no_zombies(struct sim_world *world, struct sim_group *group) {
    uint32_t count = sim_worker_ids(group->worker, world->ids);
    for (uint32_t i = 0; i < count; i++) {
        SIM_CHECK(sim_client_of(&world->clients, world->ids[i])->state == SIM_CLIENT_LIVES,
                  "request %llu has ended and keeps its slot after the next plan",
                  (unsigned long long)world->ids[i]);
    }
}

static void on_plan(void *ctx, uint32_t group_index, const struct plan *plan) {
    struct sim_world *world = ctx;
    struct sim_group *group = &world->groups[group_index];
    world->digest = fold_plan(world->digest, plan);
    group->sent_seq = plan->seq;
    note_evictions(world, group_index, plan);
    note_admissions(world, group_index, plan);
    if (group->state != SIM_GROUP_UP || group->deaf) {
        group->silent = true;
        group->deaf = false;
        return;
    }
    SIM_CHECK(plan->epoch == group->epoch, "a plan of epoch %llu in %llu",
              (unsigned long long)plan->epoch, (unsigned long long)group->epoch);
    struct sim_message *message = sim_link_message(world, group);
    sim_worker_run(group->worker, plan, group->completed_seq, message->rows, &message->result);
    const struct sim_step *step = sim_worker_last(group->worker);
    message->resized = step->resized;
    message->capacity = *sim_worker_capacity(group->worker);
    if (message->result.status == RESULT_STATUS_OK) {
        check_no_zombies(world, group);
        group->steps += step->seqs > 0 ? 1 : 0;
        group->decode_steps += step->decode_rows > 0 ? 1 : 0;
        group->decode_rows += step->decode_rows;
        group->idle_rows += step->idle_rows;
        group->prefill_tokens += step->prefill_tokens;
    }
    sim_link_send(world, group, message);
}

static void on_worker_admitted(void *ctx, uint64_t id, uint32_t cached_tokens) {
    struct sim_world *world = ctx;
    sim_client_of(&world->clients, id)->cached = cached_tokens;
}

static void on_worker_computed(void *ctx, uint64_t id, uint32_t tokens) {
    struct sim_world *world = ctx;
    struct sim_client *client = sim_client_of(&world->clients, id);
    client->prefilled += tokens;
    SIM_CHECK(client->losses + client->evictions > 0 ||
                  client->prefilled + client->cached <= client->spec.prompt_count,
              "request %llu: %u tokens are computed of a prompt of %u, and %u were found",
              (unsigned long long)id, client->prefilled, client->spec.prompt_count, client->cached);
}

static const int32_t *tokens_of(void *ctx, uint64_t id) {
    struct sim_world *world = ctx;
    return sim_client_of(&world->clients, id)->tokens;
}

// Tenants that keep to themselves see nothing of each other.
static void on_worker_shares(void *ctx, uint64_t id, uint64_t writer) {
    struct sim_world *world = ctx;
    const struct sim_spec *reads = &sim_client_of(&world->clients, id)->spec;
    const struct sim_spec *wrote = &sim_client_of(&world->clients, writer)->spec;
    SIM_CHECK(reads->cache && wrote->cache && reads->salt == wrote->salt &&
                  !reads->want_prompt_logprobs,
              "request %llu shares a block of request %llu", (unsigned long long)id,
              (unsigned long long)writer);
}

static void on_admitted(void *ctx, uint64_t id, uint32_t cached_tokens) {
    struct sim_world *world = ctx;
    struct sim_client *client = sim_client_of(&world->clients, id);
    SIM_CHECK(!client->announced && client->state == SIM_CLIENT_LIVES,
              "request %llu is announced twice", (unsigned long long)id);
    client->announced = true;
    client->admitted_us = world->now_us;
    world->admitted_tokens += client->spec.prompt_count;
    world->found_tokens += cached_tokens;
    client->found = cached_tokens;
}

static void on_token(void *ctx, uint64_t id, const struct result_row *row) {
    struct sim_world *world = ctx;
    struct sim_client *client = sim_client_of(&world->clients, id);
    sim_client_token(client, row, id, world->now_us);
    world->tokens++;
    if (row->is_prompt) {
        return;
    }
    // It takes a moment until the front end says so, and tokens go on.
    uint64_t later = world->now_us + rng_below(&world->rng, 300 * 1000);
    if (client->outputs == client->spec.cancel_outputs) {
        sim_events_add(&world->events, later, SIM_EVENT_CANCEL, (uint32_t)id - 1, NULL);
    }
    if (client->outputs == client->spec.stop_outputs) {
        sim_events_add(&world->events, later, SIM_EVENT_STOP, (uint32_t)id - 1, NULL);
    }
}

static void on_ended(void *ctx, uint64_t id, enum sim_end end, uint32_t output_count,
                     uint32_t retry_after_ms) {
    struct sim_world *world = ctx;
    struct sim_client *client = sim_client_of(&world->clients, id);
    bool due = world->aborted || fault_is_due(world, client);
    sim_client_end(&world->clients, client, end, output_count, due,
                   world->options.machine.envelope.seq_tokens);
    client->ended_us = world->now_us;
    client->retry_after_ms = retry_after_ms;
    unplace(world, client);
    world->digest = sim_fold(world->digest, id << 8 | (uint64_t)end);
}

static void on_resync(void *ctx, uint32_t connection) {
    struct sim_world *world = ctx;
    uint32_t group_index = 0;
    while (world->groups[group_index].connection != connection) {
        group_index++;
        SIM_CHECK(group_index < world->options.groups, "a worker that is not there begins again");
    }
    struct sim_group *group = &world->groups[group_index];
    lose_running(world, group);
    if (group->state != SIM_GROUP_UP) {
        return;    // it is away, and joins by itself
    }
    group->state = SIM_GROUP_JOINING;
    group->away_us = world->now_us;
    group->join_us = world->now_us + REJOIN_US;
    if (group->join_us < group->stall_until) {
        group->join_us = group->stall_until;    // it does not hear that it is to begin again
    }
    group->kept = true;
    sim_events_add(&world->events, group->join_us, SIM_EVENT_JOIN, group_index, NULL);
}

static void on_resized(void *ctx, uint32_t blocks) {
    struct sim_world *world = ctx;
    world->digest = sim_fold(world->digest, blocks);
}

static void on_drained(void *ctx) {
    struct sim_world *world = ctx;
    SIM_CHECK(world->clients.live == 0, "drained with %u requests", world->clients.live);
    SIM_CHECK(!world->drained, "drained twice");
    world->drained = true;
}

// ---- events ------------------------------------------------------------------------------------

static void arm_timer(struct sim_world *world) {
    if (!world->timer) {
        world->timer = true;
        sim_events_add(&world->events, world->now_us + world->options.tick_us, SIM_EVENT_TIMER, 0,
                       NULL);
    }
}

uint32_t sim_world_submit(struct sim_world *world, const struct sim_spec *spec) {
    SIM_CHECK(spec->at_us >= world->now_us, "a client from the past");
    uint32_t index = sim_clients_add(&world->clients, spec);
    struct sim_client *client = sim_client_at(&world->clients, index);
    client->spec.at_us += spec->at_us == 0 ? 1 : 0;    // no clock that runs says 0
    sim_events_add(&world->events, client->spec.at_us, SIM_EVENT_ARRIVAL, index, NULL);
    return index;
}

static void ask_source(struct sim_world *world) {
    struct sim_spec spec;
    if (world->source.next != NULL && world->source.next(world->source.ctx, &spec)) {
        spec.at_us = spec.at_us < world->now_us ? world->now_us : spec.at_us;
        sim_world_submit(world, &spec);
        sim_events_add(&world->events, spec.at_us, SIM_EVENT_SOURCE, 0, NULL);
    }
}

void sim_world_source(struct sim_world *world, const struct sim_source *source) {
    bool first = world->source.next == NULL;
    world->source = *source;
    if (first) {
        ask_source(world);
    }
}

static void arrive(struct sim_world *world, uint32_t index) {
    struct sim_request request;
    struct sim_client *client = sim_client_at(&world->clients, index);
    if (world->clients.live == 0) {
        world->progress_us = world->now_us;
    }
    sim_client_arrive(&world->clients, index, &request);
    sim_core_request(world->core, &request);
    if (client->spec.cancel_after_us > 0) {
        sim_events_add(&world->events, world->now_us + client->spec.cancel_after_us,
                       SIM_EVENT_CANCEL, index, NULL);
    }
    arm_timer(world);
}

void sim_world_cancel(struct sim_world *world, uint32_t index) {
    struct sim_client *client = sim_client_at(&world->clients, index);
    if (client->state != SIM_CLIENT_LIVES || client->cancelled) {
        return;
    }
    client->cancelled = true;
    world->must_end[world->must_end_count++] = index;
    sim_core_cancel(world->core, (uint64_t)index + 1);
}

static void stop(struct sim_world *world, uint32_t index) {
    struct sim_client *client = sim_client_at(&world->clients, index);
    if (client->state == SIM_CLIENT_LIVES && !client->cancelled) {
        client->stopped = true;
        world->must_end[world->must_end_count++] = index;
        sim_core_stop(world->core, (uint64_t)index + 1);
    }
}

static void take_result(struct sim_world *world, struct sim_message *message) {
    struct sim_group *group = &world->groups[message->group];
    bool current = group->state == SIM_GROUP_UP && message->connection == group->connection &&
                   message->result.epoch == group->epoch;
    current = current && message->completes;
    if (current && message->result.status == RESULT_STATUS_OK &&
        message->result.seq > group->completed_seq) {
        group->completed_seq = message->result.seq;
        uint64_t pause_us = world->now_us - world->progress_us;
        world->pause_us_max = pause_us > world->pause_us_max ? pause_us : world->pause_us_max;
        world->progress_us = world->now_us;
    }
    if (current && message->result.status == RESULT_STATUS_REFUSED && group->refused_seq == 0) {
        group->refused_seq = message->result.seq;
    }
    if (current && group->refused_seq > 0 && message->result.seq == group->sent_seq) {
        undo_admissions(world, group, group->refused_seq);
        group->refused_seq = 0;
    }
    sim_link_deliver(world, message);
    sim_core_result(world->core, message->connection, message->rank, &message->result);
    if (message->resized && current && !sim_core_full(world->core)) {
        sim_core_ready(world->core, &(struct sim_ready){message->group, message->connection,
                                                        message->result.epoch, world->options.ranks,
                                                        true, &message->capacity});
    }
}

static void join(struct sim_world *world, uint32_t index) {
    struct sim_group *group = &world->groups[index];
    if (group->state == SIM_GROUP_UP || group->join_us != world->now_us) {
        return;    // it joined, or will later
    }
    lose_running(world, group);    // the core need not have seen the loss
    bool first = group->epoch == 0;
    if (group->state == SIM_GROUP_AWAY || first) {    // else it is told to begin again
        group->connection = ++world->connection;
    }
    group->state = SIM_GROUP_UP;
    group->epoch = ++world->epoch;
    group->completed_seq = 0;
    group->refused_seq = 0;
    group->silent = false;
    group->deaf = false;
    group->last_arrival = world->now_us;
    group->busy_until = world->now_us;
    const struct message_capacity *capacity = sim_worker_capacity(group->worker);
    if (group->kept) {
        sim_worker_resume(group->worker, group->epoch);
    } else {
        sim_worker_reset(group->worker, group->epoch, capacity->kv_blocks);
    }
    sim_core_ready(world->core, &(struct sim_ready){index, group->connection, group->epoch,
                                                    world->options.ranks, group->kept, capacity});
    group->kept = true;    // until a death that takes it along
    world->progress_us = world->now_us;
    world->fault_us = first ? world->fault_us : world->now_us;
}

void sim_world_kill(struct sim_world *world, uint32_t index, uint64_t away_us, uint32_t blocks) {
    struct sim_group *group = &world->groups[index];
    world->fault_us = world->now_us;
    if (group->state == SIM_GROUP_UP) {
        group->away_us = world->now_us;
    }
    group->state = SIM_GROUP_AWAY;
    // A loss is seen at once by a link of this machine, later on others, and sometimes its next
    // connection comes first.
    uint64_t seen_us = rng_below(&world->rng, 2) == 0 ? 10 * 1000 : 300 * 1000;
    sim_events_add(&world->events, world->now_us + seen_us, SIM_EVENT_LOST, group->connection,
                   NULL);
    group->join_us = world->now_us + away_us;
    group->kept = group->kept && blocks == sim_worker_capacity(group->worker)->kv_blocks &&
                  rng_unit(&world->rng) >= world->options.faults.kv_lost;
    if (group->kept) {
        sim_worker_resume(group->worker, 0);
    } else {
        sim_worker_reset(group->worker, 0, blocks);
    }
    sim_events_add(&world->events, group->join_us, SIM_EVENT_JOIN, index, NULL);
    arm_timer(world);
}

static void lost(struct sim_world *world, uint32_t connection) {
    for (uint32_t i = 0; i < world->options.groups; i++) {
        if (world->groups[i].connection == connection && world->groups[i].state != SIM_GROUP_UP) {
            lose_running(world, &world->groups[i]);
        }
    }
    sim_core_lost(world->core, connection);
}

void sim_world_resize(struct sim_world *world, uint32_t group, uint32_t blocks) {
    sim_core_resize(world->core, group, blocks);
}

void sim_world_finish(struct sim_world *world, bool abort) {
    world->source.next = NULL;
    if (abort) {
        world->aborted = true;
        sim_core_abort_all(world->core);
    } else {
        sim_core_drain(world->core);
    }
    arm_timer(world);
}

// Whether something is wrong at this moment.
static bool is_troubled(const struct sim_world *world) {
    for (uint32_t i = 0; i < world->options.groups; i++) {
        const struct sim_group *group = &world->groups[i];
        if (group->state != SIM_GROUP_UP || group->silent || group->odd ||
            group->stall_until > world->now_us ||
            group->last_arrival > world->now_us + RESULT_FAR_US) {
            return true;
        }
    }
    return false;
}

static void look_around(struct sim_world *world) {
    const struct sim_world_options *options = &world->options;
    if (is_troubled(world)) {
        world->fault_us = world->now_us;
    }
    // A lost plan is found by its deadline: at most half a minute and as much again.
    uint64_t calm_us = 2 * sim_core_step_lost_us() + 10 * 1000 * 1000;
    uint64_t pause_us = 3 * sim_world_step_us_max(world) + 4 * options->link_us +
                        2 * options->tick_us + 1000 * 1000;
    bool calm = world->now_us - world->fault_us > calm_us || world->faults == 0;
    SIM_CHECK(!calm || world->clients.live == 0 || world->now_us - world->progress_us <= pause_us,
              "%u requests live and no step has ended for %llu us", world->clients.live,
              (unsigned long long)(world->now_us - world->progress_us));
    if (world->clients.live > 0 || is_troubled(world)) {
        arm_timer(world);
    }
}

static void handle(struct sim_world *world, const struct sim_event *event) {
    world->events_done++;
    switch (event->kind) {
    case SIM_EVENT_ARRIVAL:
        arrive(world, event->index);
        break;
    case SIM_EVENT_SOURCE:
        ask_source(world);
        break;
    case SIM_EVENT_CANCEL:
        sim_world_cancel(world, event->index);
        break;
    case SIM_EVENT_STOP:
        stop(world, event->index);
        break;
    case SIM_EVENT_RESULT:
        take_result(world, event->data);
        break;
    case SIM_EVENT_JOIN:
        join(world, event->index);
        break;
    case SIM_EVENT_LOST:
        lost(world, event->index);
        break;
    case SIM_EVENT_FAULT:
        sim_fault_event(world, event->index);
        break;
    case SIM_EVENT_TIMER:
        world->timer = false;
        look_around(world);
        break;
    }
}

// ---- the tick and its checks -------------------------------------------------------------------

static void audit_group(struct sim_world *world, uint32_t index) {
    const struct sim_group *group = &world->groups[index];
    sim_worker_audit(group->worker);
    if (group->state != SIM_GROUP_UP || group->silent) {
        return;    // the worker does not have what the core has sent
    }
    struct sim_core_state state;
    sim_core_group_state(world->core, index, world->now_us, &state);
    uint32_t held = sim_worker_blocks_held(group->worker);
    SIM_CHECK(held <= state.blocks_held + state.blocks_quarantined,
              "the worker of group %u holds %u blocks, the core knows of %u and %u", index, held,
              state.blocks_held, state.blocks_quarantined);
}

static void audit(struct sim_world *world) {
    const struct sim_world_options *options = &world->options;
    if (world->ticks % options->audit_every != 0) {
        return;
    }
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    uint32_t known = state.queued + state.prefilling + state.decoding;
    SIM_CHECK(known == world->clients.live, "the core knows %u requests, %u live", known,
              world->clients.live);
    SIM_CHECK(state.queued <=
                  options->waiting_max + options->machine.envelope.seqs * options->groups,
              "%u requests wait", state.queued);
    SIM_CHECK(state.prefix_queries == world->admitted_tokens &&
                  state.prefix_hits == world->found_tokens,
              "cached tokens are counted other than once, at admission");
    sim_core_audit(world->core);
    for (uint32_t i = 0; i < options->groups; i++) {
        audit_group(world, i);
    }
}

static void tick(struct sim_world *world) {
    world->ticks++;
    sim_core_tick(world->core, world->now_us);
    sim_link_delivered(world);
    for (uint32_t i = 0; i < world->must_end_count; i++) {
        SIM_CHECK(sim_client_at(&world->clients, world->must_end[i])->state == SIM_CLIENT_ENDED,
                  "request %u was cancelled and lives", world->must_end[i] + 1);
    }
    world->must_end_count = 0;
    audit(world);
}

void sim_world_run(struct sim_world *world, uint64_t until_us) {
    uint64_t at;
    while (sim_events_next(&world->events, &at) && at <= until_us) {
        world->now_us = at;
        sim_running.now_us = at;
        do {
            struct sim_event event = sim_events_take(&world->events);
            handle(world, &event);
        } while (sim_events_next(&world->events, &at) && at == world->now_us &&
                 !sim_core_full(world->core));
        tick(world);
    }
    world->now_us = until_us > world->now_us ? until_us : world->now_us;
}

void sim_world_step(struct sim_world *world) {
    uint64_t at;
    bool more = sim_events_next(&world->events, &at);
    SIM_CHECK(more, "%u requests live and nothing will happen", world->clients.live);
    sim_world_run(world, at);
}

void sim_world_run_until(struct sim_world *world, uint32_t client, enum sim_client_state state,
                         uint64_t bound_us) {
    uint64_t start = world->now_us;
    while (sim_client_at(&world->clients, client)->state != state) {
        SIM_CHECK(world->now_us - start <= bound_us, "client %u is not there after %llu us", client,
                  (unsigned long long)(world->now_us - start));
        sim_world_step(world);
    }
}

// ---- the end -----------------------------------------------------------------------------------

uint64_t sim_world_step_us_max(const struct sim_world *world) {
    const struct sim_cost *cost = &world->options.cost;
    const struct envelope *e = &world->options.machine.envelope;
    double us = cost->step_us + cost->prefill_token_us * e->tokens + cost->decode_row_us * e->seqs +
                cost->prefill_pair_us * (double)e->tokens * e->seq_tokens +
                cost->decode_context_us * (double)e->attended_tokens;
    return (uint64_t)(us * (1.0 + cost->noise) * (1.0 + world->options.spread)) + 1;
}

uint64_t sim_world_serial_us(const struct sim_world *world) {
    uint32_t chunk = world->options.machine.envelope.tokens;
    chunk = chunk < BOUND_PREFILL_CONTENDED_TOKENS ? chunk : BOUND_PREFILL_CONTENDED_TOKENS;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < world->clients.count; i++) {
        const struct sim_client *client = sim_client_at(&world->clients, i);
        if (client->state != SIM_CLIENT_ENDED) {
            steps += 2 + client->spec.prompt_count / chunk + client->spec.output_max;
        }
    }
    uint64_t step_us = sim_world_step_us_max(world) + 2 * world->options.link_us;
    return 200ull * 1000 * 1000 + 2 * steps * step_us;
}

static void check_nothing_left(struct sim_world *world) {
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    SIM_CHECK(state.queued == 0 && state.prefilling == 0 && state.decoding == 0,
              "requests are left in the core");
    SIM_CHECK(state.blocks_held == 0 && state.blocks_quarantined == 0 &&
                  state.blocks_free == state.blocks_total,
              "blocks leak: %u held, %u in quarantine, %u of %u free", state.blocks_held,
              state.blocks_quarantined, state.blocks_free, state.blocks_total);
    for (uint32_t i = 0; i < world->options.groups; i++) {
        const struct sim_group *group = &world->groups[i];
        SIM_CHECK(group->state == SIM_GROUP_UP, "group %u is not back", i);
        SIM_CHECK(sim_worker_live(group->worker) == 0, "group %u keeps %u slots", i,
                  sim_worker_live(group->worker));
        SIM_CHECK(sim_worker_blocks_held(group->worker) == 0, "group %u keeps blocks", i);
    }
}

uint64_t sim_world_drain(struct sim_world *world, uint64_t bound_us) {
    uint64_t start = world->now_us;
    world->source.next = NULL;
    sim_fault_end(world);
    arm_timer(world);
    while (world->clients.live > 0 || is_troubled(world)) {
        SIM_CHECK(world->now_us - start <= bound_us, "%u requests live %llu us after the last",
                  world->clients.live, (unsigned long long)(world->now_us - start));
        sim_world_step(world);
    }
    uint64_t took_us = world->now_us - start;
    // The last plan, which takes slots back, and results that come late.
    sim_world_run(world, world->now_us + 10ull * 1000 * 1000);
    check_nothing_left(world);
    return took_us;
}
