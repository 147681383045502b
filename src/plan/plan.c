/* plan.c - the whole list: what is visited when, and then the passes over it.
 *
 * Stands alone because order, prefetch and interleaving are decided here.  What a visit
 * emits is emit.c's and units.c's; memory (place.c) and waits (waits.c) are derived
 * afterwards from what each step touches. */
#include "plan/builder.h"

const char *const step_name[STEP_KINDS] = {
    "forward", "backward", "weight", "zero", "gather", "reduce", "load",
    "offload", "fetch", "send", "recv", "send_grad", "recv_grad",
};
const char *const memory_name[MEMORIES] = {
    "weights", "gradients", "optimizer", "activations", "inputs", "workspace", "host",
};

/* ---- visits: one layer, one microbatch, one direction ---- */

struct visit {
    bool backward;
    int mb, layer;
    int left;                           /* nodes of the layer still to emit */
};

/* Emit the visit's next segment.  Returns false when none is left; *collective tells
 * whether the rest of the visit now waits for other ranks. */
static bool visit_advance(struct builder *b, struct visit *v, bool *collective)
{
    const struct need *d = &b->need;
    while (v->left > 0) {
        int n = v->backward ? d->layer_node[v->layer] + --v->left
                            : d->layer_node[v->layer + 1] - v->left--;
        if (v->backward ? !d->backward[n] && !d->weight[n] : !d->forward[n])
            continue;
        if (v->backward)
            emit_backward(b, n, v->mb);
        else
            emit_forward(b, n, v->mb);
        *collective = b->g->node[n].kind->lane == LANE_LAYER;
        return true;
    }
    return false;
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
    for (int i = 0; i < layers; i++) {
        int l = item.backward ? layers - 1 - i : i;
        if (item.backward ? b->need.layer_backward[l] : b->need.layer_forward[l])
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
        bool pair = b->policy.weave && k + 1 < o->count && o->item[k].backward &&
                    !o->item[k + 1].backward;
        int length[2] = {item_layers(b, o->item[k], layer[0]), 0};
        if (pair)
            length[1] = item_layers(b, o->item[k + 1], layer[1]);
        for (int i = 0; i < MAX(length[0], length[1]); i++) {
            GROW(a, slot, n, room);
            slot[n] = (struct slot){.begin = i == 0 ? k : -1, .items = 1 + pair};
            for (int j = 0; j <= pair; j++) {
                if (i >= length[j])
                    continue;
                const int *first = &b->need.layer_node[layer[j][i]];
                slot[n].visit[slot[n].width++] = (struct visit){
                    .backward = o->item[k + j].backward, .mb = o->item[k + j].mb,
                    .layer = layer[j][i], .left = first[1] - first[0]};
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
static void load_item(struct builder *b, int64_t item, bool *loaded)
{
    if (item >= b->order->count || b->order->item[item].backward ||
        loaded[b->order->item[item].mb])
        return;
    loaded[b->order->item[item].mb] = true;
    for (int v = 0; v < b->g->nvalue; v++)
        if (b->g->value[v].node < 0 && b->need.last_reader[v] >= 0)
            emit_load(b, v, b->order->item[item].mb);
}

static void slot_begin(struct builder *b, const struct slot *s, const struct slot *next,
                       bool *loaded)
{
    for (int i = 0; s->begin >= 0 && i <= s->items; i++)
        load_item(b, s->begin + i, loaded);
    for (int j = 0; j < s->width; j++)
        units_acquire(b, s->visit[j].layer, s->visit[j].backward);
    for (int j = 0; next && j < next->width; j++)       /* ahead, before the release */
        units_acquire(b, next->visit[j].layer, next->visit[j].backward);
    for (int j = 0; j < s->width; j++)
        if (s->visit[j].backward)
            emit_fetch_layer(b, s->visit[j].layer, s->visit[j].mb);
    for (int j = 0; next && j < next->width; j++)
        if (next->visit[j].backward)
            emit_fetch_layer(b, next->visit[j].layer, next->visit[j].mb);
}

static bool slot_reads(const struct builder *b, const struct slot *s, int u)
{
    for (int j = 0; s && j < s->width; j++) {
        const struct unit_list *list = &b->need.read[s->visit[j].backward];
        int layer = s->visit[j].layer;
        for (int i = list->first[layer]; i < list->first[layer + 1]; i++)
            if (list->unit[i] == u)
                return true;
    }
    return false;
}

static void release(struct builder *b, const struct visit *v, const struct slot *next)
{
    const struct unit_list *list = &b->need.read[v->backward];
    for (int i = list->first[v->layer]; i < list->first[v->layer + 1]; i++)
        if (!b->policy.keep_weights && !slot_reads(b, next, list->unit[i]))
            unit_release(b, list->unit[i]);
}

static void emit_all(struct builder *b, struct arena *scratch)
{
    int64_t count;
    struct slot *slot = slots_make(b, scratch, &count);
    bool *loaded = NEW(scratch, bool, b->order->mbs);
    for (int64_t k = 0; k < count; k++) {
        const struct slot *next = k + 1 < count ? &slot[k + 1] : NULL;
        slot_begin(b, &slot[k], next, loaded);
        slot_weave(b, &slot[k]);
        for (int j = 0; j < slot[k].width; j++) {
            if (slot[k].visit[j].backward)
                units_reduce(b, slot[k].visit[j].layer);
            release(b, &slot[k].visit[j], next);
        }
    }
}

/* ---- build ---- */

static void outputs_keep(struct builder *b)
{
    struct plan *p = b->p;
    for (int mb = 0; mb < p->mbs; mb++)
        for (int i = 0; i < p->outputs; i++) {
            int buffer = b->now[builder_at(b, mb, p->output[i])];
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
        backward |= order->item[i].backward;
    *p = (struct plan){
        .graph = g, .mbs = order->mbs, .outputs = options->outputs,
        .weight = builder_ids(a, g->nunit), .gradient = builder_ids(a, g->nunit),
        .moment = {builder_ids(a, g->nunit), builder_ids(a, g->nunit)},
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
        .shards = options->shards,
        .now = builder_ids(&scratch, cells), .grad = builder_ids(&scratch, cells),
        .host = builder_ids(&scratch, cells), .stale = NEW(&scratch, bool, cells),
    };
    b.need = need_make(&scratch, g, &b.policy, backward, options->output,
                       options->outputs);
    units_begin(&b, &scratch, options, backward);
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
