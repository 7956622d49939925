// SPDX-License-Identifier: Apache-2.0
#include "controller/core/waiting_line.h"

#include "common/invariant.h"
#include "common/memory.h"

// A pairing heap of requests (Fredman and others, 1986): each node leads a list of children, and
// `back` is its left sibling, or the parent for the first child.
struct node {
    struct waiting_key key;
    uint32_t child, next, back;
    bool held;
};

struct tenant {
    double served;     // virtual time
    uint32_t head;     // root of its requests
    uint32_t place;    // in the class's heap, WAITING_NONE while nobody waits
    uint32_t waiting;
    uint64_t tokens;    // of those who wait
};

struct class_line {
    struct tenant *tenants;    // [tenant_max]
    uint32_t *heap;            // [tenant_max] tenants that wait, least served first
    uint32_t heap_count;
    uint32_t waiting;
    uint64_t tokens;
    double level;     // virtual time of the least served, when somebody waited last
    double served;    // decays: what counts is the recent past
};

struct waiting_line {
    struct waiting_options options;
    struct node *nodes;    // [request_max]
    struct class_line classes[REQUEST_CLASS_COUNT];
    uint32_t count;
};

static const double SERVED_DECAY = 0.999;    // per charge

enum status waiting_line_create(const struct waiting_options *options, struct waiting_line **out,
                                struct error *err) {
    struct waiting_line *line = memory_zalloc(sizeof *line);
    if (line == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a waiting line");
    }
    line->options = *options;
    line->nodes = memory_array(options->request_max, sizeof *line->nodes);
    bool whole = line->nodes != NULL;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        struct class_line *of = &line->classes[c];
        of->tenants = memory_array(options->tenant_max, sizeof *of->tenants);
        of->heap = memory_array(options->tenant_max, sizeof *of->heap);
        whole = whole && of->tenants != NULL && of->heap != NULL;
        for (uint32_t t = 0; of->tenants != NULL && t < options->tenant_max; t++) {
            of->tenants[t].head = WAITING_NONE;
            of->tenants[t].place = WAITING_NONE;
        }
    }
    if (!whole) {
        waiting_line_destroy(line);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a line of %u requests",
                         options->request_max);
    }
    *out = line;
    return STATUS_OK;
}

void waiting_line_destroy(struct waiting_line *line) {
    if (line == NULL) {
        return;
    }
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        memory_free(line->classes[c].tenants);
        memory_free(line->classes[c].heap);
    }
    memory_free(line->nodes);
    memory_free(line);
}

// ---- requests of one tenant --------------------------------------------------------------------

static bool earlier(const struct waiting_line *line, uint32_t a, uint32_t b) {
    const struct waiting_key *x = &line->nodes[a].key, *y = &line->nodes[b].key;
    return x->deadline_us != y->deadline_us ? x->deadline_us < y->deadline_us : x->order < y->order;
}

static uint32_t meld(struct waiting_line *line, uint32_t a, uint32_t b) {
    if (a == WAITING_NONE || b == WAITING_NONE) {
        return a == WAITING_NONE ? b : a;
    }
    uint32_t top = earlier(line, a, b) ? a : b;
    uint32_t low = top == a ? b : a;
    struct node *parent = &line->nodes[top], *child = &line->nodes[low];
    child->next = parent->child;
    child->back = top;
    if (parent->child != WAITING_NONE) {
        line->nodes[parent->child].back = low;
    }
    parent->child = low;
    parent->next = WAITING_NONE;
    parent->back = WAITING_NONE;
    return top;
}

// The children of a root, as one heap: pairs from the left, then all from the right.
static uint32_t meld_children(struct waiting_line *line, uint32_t first) {
    uint32_t pairs = WAITING_NONE;    // linked by `next`, last pair first
    while (first != WAITING_NONE) {
        uint32_t second = line->nodes[first].next;
        uint32_t rest = second == WAITING_NONE ? WAITING_NONE : line->nodes[second].next;
        uint32_t pair = meld(line, first, second);
        line->nodes[pair].next = pairs;
        pairs = pair;
        first = rest;
    }
    uint32_t root = WAITING_NONE;
    while (pairs != WAITING_NONE) {
        uint32_t next = line->nodes[pairs].next;
        line->nodes[pairs].next = WAITING_NONE;
        root = meld(line, root, pairs);
        pairs = next;
    }
    if (root != WAITING_NONE) {
        line->nodes[root].back = WAITING_NONE;
        line->nodes[root].next = WAITING_NONE;
    }
    return root;
}

static void cut(struct waiting_line *line, uint32_t request) {
    struct node *node = &line->nodes[request];
    struct node *back = &line->nodes[node->back];
    if (back->child == request) {
        back->child = node->next;
    } else {
        back->next = node->next;
    }
    if (node->next != WAITING_NONE) {
        line->nodes[node->next].back = node->back;
    }
    node->next = WAITING_NONE;
    node->back = WAITING_NONE;
}

// ---- tenants of one class ----------------------------------------------------------------------

static bool less_served(const struct class_line *of, uint32_t a, uint32_t b) {
    double x = of->tenants[a].served, y = of->tenants[b].served;
    return x != y ? x < y : a < b;
}

static void put(struct class_line *of, uint32_t place, uint32_t tenant) {
    of->heap[place] = tenant;
    of->tenants[tenant].place = place;
}

static void sift_up(struct class_line *of, uint32_t place) {
    uint32_t tenant = of->heap[place];
    while (place > 0 && less_served(of, tenant, of->heap[(place - 1) / 2])) {
        put(of, place, of->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(of, place, tenant);
}

static void sift_down(struct class_line *of, uint32_t place) {
    uint32_t tenant = of->heap[place];
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= of->heap_count) {
            break;
        }
        if (child + 1 < of->heap_count && less_served(of, of->heap[child + 1], of->heap[child])) {
            child++;
        }
        if (!less_served(of, of->heap[child], tenant)) {
            break;
        }
        put(of, place, of->heap[child]);
        place = child;
    }
    put(of, place, tenant);
}

static void enter(struct class_line *of, uint32_t tenant) {
    // Nobody saves up while away.
    double least = of->heap_count > 0 ? of->tenants[of->heap[0]].served : of->level;
    if (of->tenants[tenant].served < least) {
        of->tenants[tenant].served = least;
    }
    put(of, of->heap_count++, tenant);
    sift_up(of, of->heap_count - 1);
}

static void leave(struct class_line *of, uint32_t tenant) {
    uint32_t place = of->tenants[tenant].place;
    of->tenants[tenant].place = WAITING_NONE;
    of->level = of->tenants[of->heap[0]].served;
    uint32_t last = of->heap[--of->heap_count];
    if (last != tenant) {
        put(of, place, last);
        sift_up(of, place);
        sift_down(of, of->tenants[last].place);
    }
}

// ---- the line ----------------------------------------------------------------------------------

void waiting_line_add(struct waiting_line *line, uint32_t request, const struct waiting_key *key) {
    INVARIANT(request < line->options.request_max);
    INVARIANT(key->tenant < line->options.tenant_max);
    struct node *node = &line->nodes[request];
    INVARIANT(!node->held);
    *node = (struct node){*key, WAITING_NONE, WAITING_NONE, WAITING_NONE, true};
    struct class_line *of = &line->classes[key->class_];
    struct tenant *tenant = &of->tenants[key->tenant];
    if (tenant->head == WAITING_NONE) {
        enter(of, key->tenant);
    }
    tenant->head = meld(line, tenant->head, request);
    tenant->waiting++;
    tenant->tokens += key->tokens;
    of->waiting++;
    of->tokens += key->tokens;
    line->count++;
}

void waiting_line_remove(struct waiting_line *line, uint32_t request) {
    INVARIANT(waiting_line_holds(line, request));
    struct node *node = &line->nodes[request];
    struct class_line *of = &line->classes[node->key.class_];
    struct tenant *tenant = &of->tenants[node->key.tenant];
    uint32_t rest = meld_children(line, node->child);
    node->child = WAITING_NONE;
    if (tenant->head == request) {
        tenant->head = rest;
    } else {
        cut(line, request);
        tenant->head = meld(line, tenant->head, rest);
    }
    if (tenant->head == WAITING_NONE) {
        leave(of, node->key.tenant);
    }
    node->held = false;
    tenant->waiting--;
    tenant->tokens -= node->key.tokens;
    of->waiting--;
    of->tokens -= node->key.tokens;
    line->count--;
}

bool waiting_line_holds(const struct waiting_line *line, uint32_t request) {
    INVARIANT(request < line->options.request_max);
    return line->nodes[request].held;
}

uint32_t waiting_line_count(const struct waiting_line *line) {
    return line->count;
}

uint32_t waiting_line_class_count(const struct waiting_line *line, enum request_class class_) {
    return line->classes[class_].waiting;
}

uint64_t waiting_line_class_tokens(const struct waiting_line *line, enum request_class class_) {
    return line->classes[class_].tokens;
}

// Tenants take turns: while one is served so much, each other one is served as much, if it has it.
void waiting_line_ahead(const struct waiting_line *line, enum request_class class_, uint32_t tenant,
                        uint32_t tokens, struct waiting_ahead *out) {
    *out = (struct waiting_ahead){0};
    for (unsigned c = 0; c < (unsigned)class_; c++) {
        out->tokens += line->classes[c].tokens;
        out->requests += line->classes[c].waiting;
    }
    const struct class_line *of = &line->classes[class_];
    const struct tenant *own = &of->tenants[tenant];
    for (uint32_t i = 0; i < of->heap_count; i++) {
        const struct tenant *other = &of->tenants[of->heap[i]];
        uint64_t share = own->tokens + (other == own ? 0 : tokens);
        uint32_t turns = own->waiting + (other == own ? 0 : 1);
        out->tokens += other->tokens < share ? other->tokens : share;
        out->requests += other->waiting < turns ? other->waiting : turns;
    }
}

// The parent is the `back` of the first child; that of another is its left sibling.
static uint32_t parent_of(const struct waiting_line *line, uint32_t request) {
    while (line->nodes[request].back != WAITING_NONE &&
           line->nodes[line->nodes[request].back].child != request) {
        request = line->nodes[request].back;
    }
    return line->nodes[request].back;
}

static uint32_t after(const struct waiting_line *line, uint32_t request) {
    if (line->nodes[request].child != WAITING_NONE) {
        return line->nodes[request].child;
    }
    while (request != WAITING_NONE && line->nodes[request].next == WAITING_NONE) {
        request = parent_of(line, request);
    }
    return request == WAITING_NONE ? WAITING_NONE : line->nodes[request].next;
}

uint32_t waiting_line_list(const struct waiting_line *line, enum request_class class_,
                           uint32_t *out) {
    const struct class_line *of = &line->classes[class_];
    uint32_t count = 0;
    for (uint32_t i = 0; i < of->heap_count; i++) {
        for (uint32_t request = of->tenants[of->heap[i]].head; request != WAITING_NONE;
             request = after(line, request)) {
            out[count++] = request;
        }
    }
    return count;
}

void waiting_line_charge(struct waiting_line *line, enum request_class class_, uint32_t tenant,
                         double work, double weight) {
    struct class_line *of = &line->classes[class_];
    INVARIANT(weight > 0);
    of->tenants[tenant].served += work / weight;
    if (of->tenants[tenant].place != WAITING_NONE) {
        sift_down(of, of->tenants[tenant].place);
    }
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        line->classes[c].served *= SERVED_DECAY;
    }
    of->served += work;
}

// ---- the walk ----------------------------------------------------------------------------------

// Below its promised share of what was served lately, and waiting.
static bool is_owed(const struct waiting_line *line, unsigned class_) {
    double total = 0;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        total += line->classes[c].served;
    }
    const struct class_line *of = &line->classes[class_];
    return of->waiting > 0 && of->served < line->options.share_min[class_] * total;
}

static void open_class(const struct waiting_line *line, struct waiting_walk *walk) {
    walk->candidate_count = 0;
    if (walk->class_rank < REQUEST_CLASS_COUNT &&
        line->classes[walk->order[walk->class_rank]].heap_count > 0) {
        walk->candidates[walk->candidate_count++] = 0;
    }
}

void waiting_walk_begin(const struct waiting_line *line, struct waiting_walk *walk) {
    *walk = (struct waiting_walk){0};
    uint32_t at = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
            if (is_owed(line, c) == (pass == 0)) {
                walk->order[at++] = (enum request_class)c;
            }
        }
    }
    open_class(line, walk);
}

// The least served of the heap's tenants not given yet: all of them are below places given before.
uint32_t waiting_walk_next(const struct waiting_line *line, struct waiting_walk *walk) {
    if (walk->seen == WAITING_LOOK_AHEAD) {
        return WAITING_NONE;
    }
    while (walk->candidate_count == 0) {
        if (++walk->class_rank >= REQUEST_CLASS_COUNT) {
            return WAITING_NONE;
        }
        open_class(line, walk);
    }
    const struct class_line *of = &line->classes[walk->order[walk->class_rank]];
    uint32_t best = 0;
    for (uint32_t i = 1; i < walk->candidate_count; i++) {
        if (less_served(of, of->heap[walk->candidates[i]], of->heap[walk->candidates[best]])) {
            best = i;
        }
    }
    uint32_t place = walk->candidates[best];
    walk->candidates[best] = walk->candidates[--walk->candidate_count];
    for (uint32_t child = 2 * place + 1; child <= 2 * place + 2 && child < of->heap_count;
         child++) {
        walk->candidates[walk->candidate_count++] = child;
    }
    walk->seen++;
    return of->tenants[of->heap[place]].head;
}

// ---- audit -------------------------------------------------------------------------------------

static uint32_t audit_heap(const struct waiting_line *line, uint32_t root) {
    uint32_t count = 1;
    for (uint32_t child = line->nodes[root].child; child != WAITING_NONE;
         child = line->nodes[child].next) {
        INVARIANT(line->nodes[child].held);
        INVARIANT(earlier(line, root, child));
        count += audit_heap(line, child);
    }
    return count;
}

void waiting_line_audit(const struct waiting_line *line) {
    uint32_t total = 0;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        const struct class_line *of = &line->classes[c];
        uint32_t waiting = 0;
        uint64_t tokens = 0;
        for (uint32_t place = 0; place < of->heap_count; place++) {
            const struct tenant *tenant = &of->tenants[of->heap[place]];
            INVARIANT(tenant->place == place);
            INVARIANT(place == 0 || !less_served(of, of->heap[place], of->heap[(place - 1) / 2]));
            INVARIANT(audit_heap(line, tenant->head) == tenant->waiting);
            waiting += tenant->waiting;
            tokens += tenant->tokens;
        }
        INVARIANT(waiting == of->waiting);
        INVARIANT(tokens == of->tokens);
        total += waiting;
    }
    INVARIANT(total == line->count);
}
