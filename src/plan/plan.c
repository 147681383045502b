/* plan.c - the whole list: what is visited when, and then the passes over it.
 *
 * Stands alone because order, prefetch and interleaving are decided here.  What a visit
 * emits is emit.c's and units.c's; memory (place.c) and waits (waits.c) are derived
 * afterwards from what each step touches. */
#include "plan/builder.h"

const char *const step_name[STEP_KINDS] = {
    "forward", "backward", "weight", "zero", "gather", "reduce", "load",
    "offload", "fetch", "send", "recv", "send_dx", "recv_dx", "add", "tie",
};
const char *const memory_name[MEMORIES] = {
    "weights", "gradients", "optimizer", "activations",
    "inputs", "workspace", "messages", "host",
};

/* ---- visits: one layer, one microbatch, one direction ---- */

struct visit {
    enum direction way;
    int chunk, mb, layer;
    int at, end;                        /* places in its sequence still to emit */
    int due;                            /* from here on weight passes are, too */
};

static void leave(struct builder *b, const struct crossings *x, int first, int mb,
                  void (*emit)(struct builder *b, const struct crossing *c, int mb))
{
    for (int i = first; i >= 0; i = x->next[i])
        emit(b, &x->at[i], mb);
}

static int visit_at(const struct builder *b, const struct visit *v, int place)
{
    return b->need.sequence[v->way == FORWARD ? FORWARD : BACKWARD][place];
}

/* One segment's pass, and what other stages wait for. */
static void visit_node(struct builder *b, const struct visit *v, int n)
{
    const struct portion *own = &b->need.portion;
    switch (v->way) {
    case FORWARD:
        emit_forward(b, n, v->mb);
        leave(b, &own->value, own->value.leave[n], v->mb, emit_send);
        return;
    case BACKWARD:
        emit_backward(b, n, v->mb);
        leave(b, &own->gradient, own->gradient.leave[n], v->mb, emit_send_grad);
        return;
    case WEIGHT: case DIRECTIONS:
        emit_weight(b, n, v->mb);
    }
}

/* The weight passes that a backward visit owes, of what it has emitted. */
static void visit_pay(struct builder *b, struct visit *v)
{
    for (; v->due < v->at && v->way == BACKWARD && !b->order->split; v->due++) {
        int n = visit_at(b, v, v->due);
        if (b->need.portion.chunk[n] == v->chunk)
            emit_weight(b, n, v->mb);
    }
}

static bool visit_wants(const struct builder *b, const struct visit *v, int n)
{
    const struct need *d = &b->need;
    if (d->portion.chunk[n] != v->chunk)
        return false;
    return v->way == FORWARD ? d->forward[n]
           : v->way == WEIGHT ? d->weight[n]
                              : d->backward[n] || (d->weight[n] && !b->order->split);
}

/* Are weight passes due after node n?  While a collective is under way. */
static bool visit_pays(const struct builder *b, int n)
{
    const struct node *x = &b->g->node[n];
    return !b->policy.delay || x->kind->lane == LANE_LAYER ||
           (b->policy.overlap && x->beside[BACKWARD] != NONE);
}

/* Emit the visit's next segment.  Returns false when none is left; *collective tells
 * whether the rest of the visit now waits for other ranks. */
static bool visit_advance(struct builder *b, struct visit *v, bool *collective)
{
    while (v->at < v->end) {
        int n = visit_at(b, v, v->at++);
        if (!visit_wants(b, v, n))
            continue;
        visit_node(b, v, n);
        *collective = b->g->node[n].kind->lane == LANE_LAYER;
        if (visit_pays(b, n))
            visit_pay(b, v);
        return true;
    }
    visit_pay(b, v);
    return false;
}

/* Is this the visit that writes its layer's weight gradients, or the last of those? */
static bool visit_writes(const struct builder *b, const struct visit *v)
{
    const bool *weight = &b->need.busy[WEIGHT][(int64_t)v->chunk * b->g->layers];
    return v->way == WEIGHT ||
           (v->way == BACKWARD && !(b->order->split && weight[v->layer]));
}

/* One visit, or two that run together. */
struct slot {
    int width;
    struct visit visit[2];
    int64_t begin;                      /* the order item this slot begins, -1 none */
    int items;                          /* how many begin here */
};

/* Emit a slot's visits.  Each runs until it issues a collective, then the other takes
 * over: one's communication hides behind the other's math. */
static void slot_weave(struct builder *b, struct slot *s)
{
    bool more[2] = {true, s->width > 1}, collective;
    for (int i = 0; more[0] || more[1]; i = !i)
        do {
            collective = false;
            more[i] = more[i] && visit_advance(b, &s->visit[i], &collective);
        } while (more[i] && !collective);
}

/* The layers that one order item visits, first to last. */
static int item_layers(const struct builder *b, struct order_item item, int *layer)
{
    int count = 0, layers = b->g->layers;
    const bool *const *busy = (const bool *const *)b->need.busy;
    for (int i = 0; i < layers; i++) {
        int l = item.way == FORWARD ? i : layers - 1 - i;
        int64_t at = (int64_t)item.chunk * layers + l;
        if (busy[item.way][at] ||
            (item.way == BACKWARD && !b->order->split && busy[WEIGHT][at]))
            layer[count++] = l;
    }
    return count;
}

static struct slot *slots_make(const struct builder *b, struct arena *a, int64_t *count)
{
    const struct order *o = b->order;
    struct slot *slot = NULL;
    int64_t n = 0, room = 0;
    int *layer[2] = {NEW(a, int, b->g->layers), NEW(a, int, b->g->layers)};
    for (int64_t k = 0; k < o->count; k++) {
        bool pair = b->policy.weave && k + 1 < o->count &&
                    o->item[k].way == BACKWARD && o->item[k + 1].way == FORWARD;
        int length[2] = {item_layers(b, o->item[k], layer[0]), 0};
        if (pair)
            length[1] = item_layers(b, o->item[k + 1], layer[1]);
        for (int i = 0; i < MAX(1, MAX(length[0], length[1])); i++) {
            GROW(a, slot, n, room);
            slot[n] = (struct slot){.begin = i == 0 ? k : -1, .items = 1 + pair};
            for (int j = 0; j <= pair; j++) {
                if (i >= length[j])
                    continue;
                const struct order_item *x = &o->item[k + j];
                const int *first = &b->need.layer_node[layer[j][i]];
                slot[n].visit[slot[n].width++] = (struct visit){
                    .way = x->way, .chunk = x->chunk, .mb = x->mb,
                    .layer = layer[j][i], .at = first[0], .end = first[1],
                    .due = first[0]};
            }
            n++;
        }
        k += pair;
    }
    *count = n;
    return slot;
}

/* ---- the whole step ---- */

/* What a forward reads from its batch: loaded one order item ahead, so that the copy
 * hides behind the item before. */
static void load_item(struct builder *b, int64_t i, bool *loaded)
{
    const struct order_item *x = i < b->order->count ? &b->order->item[i] : NULL;
    if (!x || x->way != FORWARD || loaded[i])
        return;
    loaded[i] = true;
    for (int v = 0; v < b->g->nvalue; v++)
        if (b->need.portion.input[v] == x->chunk)
            emit_load(b, v, x->mb);
}

/* What other stages have for an item: wanted now, as its first segment may read it. */
static void arrive_item(struct builder *b, const struct order_item *x)
{
    const struct portion *own = &b->need.portion;
    const struct crossings *value = &own->value, *gradient = &own->gradient;
    if (x->way == FORWARD)
        leave(b, value, value->arrive[x->chunk], x->mb, emit_recv);
    if (x->way != BACKWARD)
        return;
    leave(b, gradient, gradient->arrive[x->chunk], x->mb, emit_recv_grad);
    leave(b, gradient, gradient->early[x->chunk], x->mb, emit_send_grad);
}

/* `ahead`: the slot and those after it whose weights are wanted now. */
static void slot_begin(struct builder *b, const struct slot *s, int64_t ahead,
                       const struct slot *next, bool *loaded)
{
    for (int i = 0; s->begin >= 0 && i <= s->items; i++)
        load_item(b, s->begin + i, loaded);
    for (int i = 0; s->begin >= 0 && i < s->items; i++)
        arrive_item(b, &b->order->item[s->begin + i]);
    for (int64_t k = 0; k < ahead; k++)                 /* before the release */
        for (int j = 0; j < s[k].width; j++)
            units_acquire(b, s[k].visit[j].layer, s[k].visit[j].way);
    for (int j = 0; j < s->width; j++)
        if (s->visit[j].way == BACKWARD)
            emit_fetch_layer(b, s->visit[j].layer, s->visit[j].mb);
    for (int j = 0; next && j < next->width; j++)
        if (next->visit[j].way == BACKWARD)
            emit_fetch_layer(b, next->visit[j].layer, next->visit[j].mb);
}

static bool slot_reads(const struct builder *b, const struct slot *s, int u)
{
    for (int j = 0; j < s->width; j++) {
        const struct unit_list *list = &b->need.read[s->visit[j].way];
        int layer = s->visit[j].layer;
        for (int i = list->first[layer]; i < list->first[layer + 1]; i++)
            if (list->unit[i] == u)
                return true;
    }
    return false;
}

/* Drop the visit's weights, but those that the `ahead` slots from `next` on want. */
static void release(struct builder *b, const struct visit *v, const struct slot *next,
                    int64_t ahead)
{
    enum direction way = v->way == FORWARD ? FORWARD : BACKWARD;
    const struct unit_list *list = &b->need.read[way];
    for (int i = list->first[v->layer]; i < list->first[v->layer + 1]; i++) {
        bool wanted = b->policy.keep_weights;
        for (int64_t k = 0; k < ahead && !wanted; k++)
            wanted = slot_reads(b, &next[k], list->unit[i]);
        if (!wanted)
            unit_release(b, list->unit[i]);
    }
}

static void emit_all(struct builder *b, struct arena *scratch)
{
    int64_t count;
    struct slot *slot = slots_make(b, scratch, &count);
    bool *loaded = NEW(scratch, bool, b->order->count);
    for (int64_t k = 0; k < count; k++)
        for (int j = 0; j < slot[k].width; j++)
            if (visit_writes(b, &slot[k].visit[j]))
                units_expect(b, slot[k].visit[j].layer);
    for (int64_t k = 0; k < count; k++) {
        const struct slot *next = k + 1 < count ? &slot[k + 1] : NULL;
        int64_t ahead = MIN(b->p->sharding.prefetch, count - 1 - k);
        slot_begin(b, &slot[k], 1 + ahead, next, loaded);
        slot_weave(b, &slot[k]);
        for (int j = 0; j < slot[k].width; j++) {
            if (visit_writes(b, &slot[k].visit[j]))
                units_reduce(b, slot[k].visit[j].layer);
            release(b, &slot[k].visit[j], next, ahead);
        }
    }
}

/* ---- build ---- */

static void outputs_keep(struct builder *b)
{
    struct plan *p = b->p;
    for (int mb = 0; mb < p->mbs; mb++)
        for (int i = 0; i < p->outputs; i++) {
            int node = b->g->value[p->output[i]].node;
            int buffer = b->now[builder_at(b, mb, p->output[i])];
            if (b->need.portion.chunk[node] < 0)
                continue;               /* another stage's */
            REQUIRE(buffer >= 0);
            p->output_buffer[mb * p->outputs + i] = buffer;
        }
}

struct plan *plan_build(struct arena *a, const struct graph *g,
                        const struct plan_options *options)
{
    const struct order *order = options->order;
    struct arena scratch = arena_make("plan");
    struct plan *p = NEW(a, struct plan, 1);
    bool backward = false;
    for (int64_t i = 0; i < order->count; i++)
        backward |= order->item[i].way == BACKWARD;
    *p = (struct plan){
        .graph = g, .stages = options->stages, .stage = options->stage,
        .mbs = order->mbs, .outputs = options->outputs,
        .sharding = options->sharding ? *options->sharding : (struct sharding){0},
        .wire = options->wire,
        .home = NEW(a, int, g->nunit), .ways = builder_ids(a, g->nunit),
        .weight = builder_ids(a, g->nunit), .gradient = builder_ids(a, g->nunit),
        .moment = {builder_ids(a, g->nunit), builder_ids(a, g->nunit)},
        .master = builder_ids(a, g->nunit),
        .output = NEW(a, int, options->outputs),
        .output_buffer = builder_ids(a, (int64_t)order->mbs * options->outputs),
    };
    for (int i = 0; i < options->outputs; i++) {
        REQUIRE(g->value[options->output[i]].node >= 0);
        p->output[i] = options->output[i];
    }

    int64_t cells = (int64_t)order->mbs * g->nvalue;
    struct builder b = {
        .p = p, .arena = a, .g = g, .order = order,
        .policy = options->policy ? *options->policy : policy_plain(),
        .now = builder_ids(&scratch, cells), .grad = builder_ids(&scratch, cells),
        .host = builder_ids(&scratch, cells), .stale = NEW(&scratch, bool, cells),
    };
    b.need = need_make(&scratch, g, &b.policy, &(struct need_options){
        .backward = backward, .output = options->output, .outputs = options->outputs,
        .stages = options->stages, .rank = options->stage});
    REQUIRE(MAX(order->chunks, 1) == b.need.chunks);
    memcpy(p->home, b.need.portion.home, sizeof *p->home * (size_t)g->nunit);
    units_begin(&b, &scratch, options, backward);
    emit_held(&b);
    emit_all(&b, &scratch);
    if (backward)
        units_end(&b);
    outputs_keep(&b);
    plan_lifetimes(p);
    plan_place(p, b.policy.slack);
    plan_waits(p);
    arena_free(&scratch);
    return p;
}
