// SPDX-License-Identifier: Apache-2.0
#include "controller/net/registry.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "common/version.h"
#include <stdio.h>
#include <string.h>

enum {
    SILENCE_BUSY_US = 300 * 1000,         // three heartbeats of a worker that has plans
    SILENCE_IDLE_US = 3 * 1000 * 1000,    // three of an idle one
    WELCOME_US = 5 * 1000 * 1000,         // until a WELCOME is taken
    REPORT_BYTES = 4 * BOUND_CONTROL_BYTES,
};

struct registry {
    struct registry_options options;
    struct group_place *groups;
    struct member *members;    // [groups][world]
    uint32_t member_count;
    // Open addressing by name: index + 1, 0 for nobody. Twice as many places as members, or more.
    uint32_t *names;
    uint32_t name_mask;
};

// ---- life cycle --------------------------------------------------------------------------------

static enum status allocate(struct registry *registry, struct error *err) {
    uint32_t places = 4;
    while (places < 2 * registry->member_count) {
        places *= 2;
    }
    registry->name_mask = places - 1;
    registry->groups = memory_array(registry->options.groups, sizeof *registry->groups);
    registry->members = memory_array(registry->member_count, sizeof *registry->members);
    registry->names = memory_array(places, sizeof *registry->names);
    if (registry->groups == NULL || registry->members == NULL || registry->names == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u groups of %u",
                         registry->options.groups, registry->options.world);
    }
    for (uint32_t g = 0; g < registry->options.groups; g++) {
        struct group_place *group = &registry->groups[g];
        group->members = &registry->members[g * registry->options.world];
        arena_init(&group->arena, REPORT_BYTES);
        for (uint32_t r = 0; r < registry->options.world; r++) {
            group->members[r].group = g;
            group->members[r].rank = r;
            arena_init(&group->members[r].arena, REPORT_BYTES);
        }
    }
    return STATUS_OK;
}

enum status registry_create(const struct registry_options *options, struct registry **out,
                            struct error *err) {
    INVARIANT(options->groups >= 1 && options->groups <= BOUND_GROUPS);
    INVARIANT(options->world >= 1 && options->world <= BOUND_RANKS);
    struct registry *registry = memory_zalloc(sizeof *registry);
    if (registry == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the registry of workers");
    }
    registry->options = *options;
    registry->member_count = options->groups * options->world;
    enum status status = allocate(registry, err);
    if (status != STATUS_OK) {
        registry_destroy(registry);
        return status;
    }
    *out = registry;
    return STATUS_OK;
}

void registry_destroy(struct registry *registry) {
    if (registry == NULL) {
        return;
    }
    for (uint32_t i = 0; registry->members != NULL && i < registry->member_count; i++) {
        arena_deinit(&registry->members[i].arena);
    }
    for (uint32_t i = 0; registry->groups != NULL && i < registry->options.groups; i++) {
        arena_deinit(&registry->groups[i].arena);
    }
    memory_free(registry->groups);
    memory_free(registry->members);
    memory_free(registry->names);
    memory_free(registry);
}

uint32_t registry_groups(const struct registry *registry) {
    return registry->options.groups;
}

uint32_t registry_world(const struct registry *registry) {
    return registry->options.world;
}

struct group_place *registry_group(struct registry *registry, uint32_t group) {
    INVARIANT(group < registry->options.groups);
    return &registry->groups[group];
}

// ---- names -------------------------------------------------------------------------------------

// FNV-1a; names are chosen by workers that may join, and the table is at most half full.
static uint32_t name_hash(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    }
    return hash;
}

struct member *registry_find(struct registry *registry, const char *peer) {
    for (uint32_t at = name_hash(peer);; at++) {
        uint32_t index = registry->names[at & registry->name_mask];
        if (index == 0) {
            return NULL;
        }
        if (strcmp(registry->members[index - 1].peer, peer) == 0) {
            return &registry->members[index - 1];
        }
    }
}

// Names change rarely: all are put in again.
static void index_names(struct registry *registry) {
    memset(registry->names, 0, ((size_t)registry->name_mask + 1) * sizeof *registry->names);
    for (uint32_t i = 0; i < registry->member_count; i++) {
        const char *name = registry->members[i].peer;
        if (name[0] != '\0') {
            uint32_t at = name_hash(name);
            while (registry->names[at & registry->name_mask] != 0) {
                at++;
            }
            registry->names[at & registry->name_mask] = i + 1;
        }
    }
}

// ---- joining -----------------------------------------------------------------------------------

// Whoever could not open its model has no digest, and leaves with the reason.
static bool models_differ(const char *digest, const char *other) {
    return digest[0] != '\0' && other[0] != '\0' && strcmp(digest, other) != 0;
}

// All workers of a controller serve one model, and all ranks of a group have one configuration:
// whoever is there already sets them.
static enum status judge_digests(const struct registry *registry, const struct message_hello *hello,
                                 struct error *err) {
    for (uint32_t i = 0; i < registry->member_count; i++) {
        const struct member *other = &registry->members[i];
        bool itself = other->group == hello->group && other->rank == hello->rank;
        if (other->state == MEMBER_STATE_AWAY || itself) {
            continue;
        }
        if (models_differ(other->model_digest, hello->model_digest)) {
            return error_set(err, STATUS_VERSION,
                             "its model has digest '%.32s', that of '%s' has '%.32s': give all "
                             "workers the same model",
                             hello->model_digest, other->name, other->model_digest);
        }
        if (other->group == hello->group &&
            strcmp(other->config_digest, hello->config_digest) != 0) {
            return error_set(
                err, STATUS_VERSION,
                "its options have digest '%.32s', those of '%s' in the same group have "
                "'%.32s': give all ranks of a group the same options",
                hello->config_digest, other->name, other->config_digest);
        }
    }
    return STATUS_OK;
}

enum status registry_judge(struct registry *registry, const struct message_hello *hello,
                           struct error *err) {
    const struct registry_options *options = &registry->options;
    if (strcmp(hello->build, VERSION_BUILD) != 0) {
        return error_set(err, STATUS_VERSION, "worker build %.80s, controller build %s",
                         hello->build, VERSION_BUILD);
    }
    TRY(hello_validate(hello, err));
    if (hello->group >= options->groups) {
        return error_set(err, STATUS_INVALID,
                         "it names group %u, the controller drives groups 0 to %u (--groups)",
                         hello->group, options->groups - 1);
    }
    if (hello->world != options->world) {
        return error_set(err, STATUS_INVALID,
                         "it is one of %u ranks, the controller expects groups of %u "
                         "(--tensor-parallel-size)",
                         hello->world, options->world);
    }
    if (strlen(hello->worker_id) >= MEMBER_NAME_BYTES) {
        return error_set(err, STATUS_INVALID, "its name is longer than %d characters",
                         MEMBER_NAME_BYTES - 1);
    }
    if (strlen(hello->model_digest) >= MEMBER_DIGEST_BYTES ||
        strlen(hello->config_digest) >= MEMBER_DIGEST_BYTES) {
        return error_set(err, STATUS_INVALID, "its digests are longer than %d characters",
                         MEMBER_DIGEST_BYTES - 1);
    }
    return judge_digests(registry, hello, err);
}

struct member *registry_place(struct registry *registry, const struct message_hello *hello) {
    return &registry_group(registry, hello->group)->members[hello->rank];
}

void registry_take(struct registry *registry, struct member *member, const char *peer,
                   const char *user, const struct message_hello *hello) {
    INVARIANT(member->state == MEMBER_STATE_AWAY);
    // A process that took another place before has left it.
    struct member *before = registry_find(registry, peer);
    if (before != NULL && before != member) {
        INVARIANT(before->state == MEMBER_STATE_AWAY);
        before->peer[0] = '\0';
    }
    snprintf(member->peer, sizeof member->peer, "%s", peer);
    snprintf(member->name, sizeof member->name, "%s", hello->worker_id);
    snprintf(member->user, sizeof member->user, "%s", user);
    snprintf(member->device, sizeof member->device, "%.31s", hello->device);
    snprintf(member->model_digest, sizeof member->model_digest, "%s", hello->model_digest);
    snprintf(member->config_digest, sizeof member->config_digest, "%s", hello->config_digest);
    member->pid = hello->pid;
    member->state = MEMBER_STATE_GREETED;
    member->took_welcome = false;
    member->unreachable = false;
    member->challenged_us = 0;
    member->heartbeat = (struct message_heartbeat){0};
    struct group_place *place = registry_group(registry, member->group);
    place->fruitless = 0;    // what was wrong may have been the process before
    place->retry_us = place->futile > REGISTRY_FUTILE_EPOCHS ? place->retry_us : 0;
    index_names(registry);
}

bool registry_complete(const struct registry *registry, uint32_t group) {
    const struct group_place *place = &registry->groups[group];
    for (uint32_t r = 0; r < registry->options.world; r++) {
        const struct member *member = &place->members[r];
        if (member->state == MEMBER_STATE_AWAY || member->model_digest[0] == '\0') {
            return false;
        }
    }
    return true;
}

// ---- epochs ------------------------------------------------------------------------------------

bool registry_may_begin(const struct registry *registry, uint32_t group, uint64_t now_us) {
    const struct group_place *place = &registry->groups[group];
    return place->epoch == 0 && registry_complete(registry, group) && now_us >= place->retry_us;
}

void registry_begin(struct registry *registry, uint32_t group, uint64_t epoch,
                    const char *comm_id) {
    struct group_place *place = registry_group(registry, group);
    INVARIANT(registry_complete(registry, group) && epoch > place->epoch);
    place->epoch = epoch;
    place->ready = false;
    place->answered = false;
    snprintf(place->comm_id, sizeof place->comm_id, "%s", comm_id);
    for (uint32_t r = 0; r < registry->options.world; r++) {
        struct member *member = &place->members[r];
        member->state = MEMBER_STATE_WELCOMED;
        member->took_welcome = false;
        member->reported = false;
        member->reports = 0;
        member->unanswered_us = 0;
        member->sent_seq = 0;
        member->answered_seq = 0;
    }
}

static uint64_t wait_us(uint32_t epochs, uint32_t allowed) {
    if (epochs <= allowed) {
        return 0;
    }
    uint32_t doublings = epochs - allowed - 1;
    doublings = doublings < REGISTRY_RETRY_DOUBLINGS ? doublings : REGISTRY_RETRY_DOUBLINGS;
    return (uint64_t)REGISTRY_RETRY_US << doublings;
}

// A few epochs may end before they are ready, of ranks that die one after the other. Where it goes
// on so, something is wrong that another epoch at once would not change; and so it is where epochs
// are ready and no step of theirs is answered.
static void count_end(struct group_place *place, bool given_up, uint64_t now_us) {
    place->futile = place->ready ? 0 : place->futile + 1;
    place->fruitless += place->ready && given_up && !place->answered ? 1 : 0;
    uint64_t futile_us = wait_us(place->futile, REGISTRY_FUTILE_EPOCHS);
    uint64_t fruitless_us = given_up ? wait_us(place->fruitless, REGISTRY_FRUITLESS_EPOCHS) : 0;
    uint64_t longer_us = futile_us > fruitless_us ? futile_us : fruitless_us;
    place->retry_us = longer_us > 0 ? now_us + longer_us : 0;
}

void registry_end(struct registry *registry, uint32_t group, bool given_up, uint64_t now_us) {
    struct group_place *place = registry_group(registry, group);
    count_end(place, given_up, now_us);
    place->epoch = 0;
    place->ready = false;
    for (uint32_t r = 0; r < registry->options.world; r++) {
        if (place->members[r].state != MEMBER_STATE_AWAY) {
            place->members[r].state = MEMBER_STATE_GREETED;
        }
    }
}

// ---- plans -------------------------------------------------------------------------------------

void registry_sent(struct registry *registry, uint32_t group, uint32_t rank_count, uint64_t seq,
                   uint64_t now_us) {
    struct group_place *place = registry_group(registry, group);
    INVARIANT(rank_count <= registry->options.world);
    place->plan_us = now_us;
    for (uint32_t r = 0; r < rank_count; r++) {
        struct member *member = &place->members[r];
        if (member->sent_seq == member->answered_seq) {
            member->silent_us = 0;    // idle it beat slower
        }
        member->sent_seq = seq;
    }
}

void registry_answered(struct member *member, uint64_t seq) {
    if (seq > member->answered_seq) {
        member->answered_seq = seq;
    }
}

void registry_believed(struct registry *registry, uint32_t group, uint64_t seq) {
    struct group_place *place = registry_group(registry, group);
    for (uint32_t r = 0; r < registry->options.world; r++) {
        if (place->members[r].answered_seq < seq) {
            return;
        }
    }
    place->answered = true;
    place->fruitless = 0;
}

bool registry_outstanding(const struct registry *registry, uint32_t group) {
    const struct group_place *place = &registry->groups[group];
    for (uint32_t r = 0; r < registry->options.world; r++) {
        if (place->members[r].sent_seq > place->members[r].answered_seq) {
            return true;
        }
    }
    return false;
}

// ---- capacity ----------------------------------------------------------------------------------

// The report's strings and lines lie in the codec's arena: copies of them in `arena`.
static bool copy_report(const struct message_capacity *from, struct arena *arena,
                        struct message_capacity *to) {
    arena_reset(arena);
    *to = *from;
    const char *note = from->kv_note == NULL ? "" : from->kv_note;
    struct ledger_line *lines = arena_array(arena, from->line_count, sizeof *lines);
    to->kv_note = arena_strndup(arena, note, strlen(note));
    to->kv_dtype = arena_strndup(arena, from->kv_dtype, strlen(from->kv_dtype));
    if (lines == NULL || to->kv_note == NULL || to->kv_dtype == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < from->line_count; i++) {
        lines[i] = from->lines[i];
        lines[i].name = arena_strndup(arena, from->lines[i].name, strlen(from->lines[i].name));
        if (lines[i].name == NULL) {
            return false;
        }
    }
    to->lines = lines;
    return true;
}

static void lower(uint32_t *least, uint32_t value) {
    *least = value < *least ? value : *least;
}

static void lower_envelope(struct envelope *least, const struct envelope *other) {
    lower(&least->tokens, other->tokens);
    lower(&least->seqs, other->seqs);
    lower(&least->seq_tokens, other->seq_tokens);
    lower(&least->logit_rows, other->logit_rows);
    lower(&least->prompt_logit_rows, other->prompt_logit_rows);
    lower(&least->blocks_per_seq, other->blocks_per_seq);
    lower(&least->logprob_rows, other->logprob_rows);
    lower(&least->draft_tokens, other->draft_tokens);
    lower(&least->attended_tokens_max, other->attended_tokens_max);
    if (other->attended_tokens < least->attended_tokens) {
        least->attended_tokens = other->attended_tokens;
    }
}

static enum status lower_capacity(struct message_capacity *least, const struct member *member,
                                  struct error *err) {
    const struct message_capacity *other = &member->capacity;
    if (least->block_tokens != other->block_tokens || least->vocabulary != other->vocabulary ||
        strcmp(least->kv_dtype, other->kv_dtype) != 0) {
        return error_set(err, STATUS_INVALID,
                         "rank %u reports %u tokens to a block, %u words and KV in %.20s, rank 0 "
                         "%u, %u and %.20s",
                         member->rank, other->block_tokens, other->vocabulary, other->kv_dtype,
                         least->block_tokens, least->vocabulary, least->kv_dtype);
    }
    lower_envelope(&least->envelope, &other->envelope);
    if (other->kv_blocks < least->kv_blocks) {
        least->kv_blocks = other->kv_blocks;
        least->kv_note = other->kv_note;
    }
    return STATUS_OK;
}

// Every rank says that its pool's bytes are those it last reported, and how many.
static bool kv_is_kept(const struct group_place *place, uint32_t world) {
    for (uint32_t r = 0; r < world; r++) {
        const struct member *member = &place->members[r];
        if (member->known_stamp == 0 || member->capacity.kv_stamp != member->known_stamp ||
            member->capacity.kv_blocks != member->known_blocks) {
            return false;
        }
    }
    return true;
}

static enum status make_ready(struct group_place *place, uint32_t world, bool *kv_kept,
                              struct error *err) {
    struct message_capacity least = place->members[0].capacity;
    for (uint32_t r = 1; r < world; r++) {
        TRY(lower_capacity(&least, &place->members[r], err));
    }
    TRY(capacity_validate(&least, err));
    if (!copy_report(&least, &place->arena, &place->capacity)) {
        return error_set(err, STATUS_EXHAUSTED, "no room for a capacity report");
    }
    *kv_kept = kv_is_kept(place, world);
    for (uint32_t r = 0; r < world; r++) {
        struct member *member = &place->members[r];
        member->known_stamp = member->capacity.kv_stamp;
        member->known_blocks = member->capacity.kv_blocks;
        member->reported = false;    // after a resize all report again
    }
    place->ready = true;
    return STATUS_OK;
}

bool registry_is_new_report(struct member *member, uint64_t number) {
    if (number != 0 && number <= member->reports) {
        return false;
    }
    member->reports = number;
    return true;
}

enum status registry_report(struct registry *registry, struct member *member,
                            const struct message_capacity *capacity, bool *complete, bool *kv_kept,
                            struct error *err) {
    INVARIANT(member->state >= MEMBER_STATE_WELCOMED);
    struct group_place *place = registry_group(registry, member->group);
    *complete = false;
    if (!copy_report(capacity, &member->arena, &member->capacity)) {
        return error_set(err, STATUS_EXHAUSTED, "no room for a capacity report");
    }
    member->state = MEMBER_STATE_READY;
    member->took_welcome = true;
    member->reported = true;
    for (uint32_t r = 0; r < registry->options.world; r++) {
        if (!place->members[r].reported) {
            return STATUS_OK;
        }
    }
    TRY(make_ready(place, registry->options.world, kv_kept, err));
    *complete = true;
    return STATUS_OK;
}

// ---- silence -----------------------------------------------------------------------------------

void registry_heard(struct member *member, uint64_t now_us) {
    member->silent_us = 0;
    member->heard_us = now_us;
}

uint64_t registry_age_us(const struct member *member, uint64_t now_us) {
    return now_us > member->heard_us ? now_us - member->heard_us : 0;
}

void registry_pass(struct registry *registry, uint64_t elapsed_us) {
    for (uint32_t i = 0; i < registry->member_count; i++) {
        struct member *member = &registry->members[i];
        if (member->state == MEMBER_STATE_AWAY) {
            continue;
        }
        member->silent_us += elapsed_us;
        bool waits = member->state == MEMBER_STATE_WELCOMED && !member->took_welcome;
        member->unanswered_us = waits ? member->unanswered_us + elapsed_us : 0;
    }
}

static bool is_over(const struct registry *registry, uint64_t us, uint64_t limit_us) {
    return (double)us > (double)limit_us * registry->options.timer_scale;
}

const char *registry_suspicion(const struct registry *registry, const struct member *member,
                               uint64_t now_us) {
    const struct group_place *place = &registry->groups[member->group];
    bool outstanding = member->sent_seq > member->answered_seq;
    bool paced = outstanding && now_us < place->plan_us + REGISTRY_PACE_US;
    if (member->state == MEMBER_STATE_AWAY) {
        return NULL;
    }
    if (is_over(registry, member->silent_us, paced ? SILENCE_BUSY_US : SILENCE_IDLE_US)) {
        return "no word from it";
    }
    if (is_over(registry, member->unanswered_us, WELCOME_US)) {
        return "it did not take its welcome";
    }
    return NULL;
}
