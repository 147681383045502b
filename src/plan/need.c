/* need.c - dataflow facts: what runs, and what stays between forward and backward.
 *
 * Stands alone because freezing and selective recompute are nothing but these facts;
 * the list that plan.c emits follows from them. */
#include "plan/need.h"

bool need_din(const struct need *d, const struct node *n, int i)
{
    return n->in[i] != NONE && !(n->kind->no_grad_in >> i & 1) && d->wants[n->in[i]];
}

static void mark_backward(struct need *d)
{
    const struct graph *g = d->graph;
    graph_wants(g, d->wants);
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        bool leads = false, din = false, dw = false;
        for (int i = 0; i < n->nout; i++)
            leads |= n->out[i] != NONE && d->wants[n->out[i]];
        for (int i = 0; i < n->nin; i++)
            din |= need_din(d, n, i);
        for (int i = 0; i < n->nw; i++)
            dw |= n->w[i] != NONE && g->param[n->w[i]].trainable;
        d->backward[k] = leads && n->kind->backward && (din || (dw && n->kind->fused));
        d->weight[k] = leads && n->kind->weight && dw;
    }
}

/* A forward runs if something reads what it makes. */
static void mark_forward(struct need *d, struct arena *scratch)
{
    const struct graph *g = d->graph;
    struct arena_mark m = arena_mark(scratch);
    bool *read = NEW(scratch, bool, g->nvalue);
    memcpy(read, d->output, sizeof *read * (size_t)g->nvalue);
    for (int64_t k = g->nnode; k-- > 0;) {
        const struct node *n = &g->node[k];
        d->forward[k] = d->backward[k] || d->weight[k];
        for (int i = 0; i < n->nout; i++)
            d->forward[k] |= n->out[i] != NONE && read[n->out[i]];
        for (int i = 0; i < n->nin && d->forward[k]; i++)
            if (n->in[i] != NONE)
                read[n->in[i]] = true;
    }
    arena_reset(scratch, m);
}

/* Of the whole graph only this rank's part is left. */
static void mark_portion(struct need *d, struct arena *a, const struct stages *stages,
                      int rank)
{
    const struct graph *g = d->graph;
    struct stages whole = {1, 1, NULL};
    if (!stages)
        whole.of = NEW(a, int, g->layers);
    d->chunks = stages ? stages->chunks : 1;
    d->portion = portion_make(a, d, stages ? stages : &whole, rank);
    for (int64_t k = 0; k < g->nnode; k++) {
        bool here = d->portion.chunk[k] >= 0;
        d->forward[k] &= here;
        d->backward[k] &= here;
        d->weight[k] &= here;
    }
}

/* A layer's nodes as recorded, or from the last one back; of those that may run beside
 * another, if they shall, each follows that one instead. */
static void sequence_layer(const struct need *d, int layer, enum direction way,
                           bool overlap)
{
    const struct node *node = d->graph->node;
    int first = d->layer_node[layer], last = d->layer_node[layer + 1];
    int *to = &d->sequence[way][first], step = way == FORWARD ? 1 : -1;
    int from = way == FORWARD ? first : last - 1;
    for (int k = from; k >= first && k < last; k += step) {
        if (overlap && node[k].beside[way] != NONE)
            continue;
        *to++ = k;
        for (int i = from; i >= first && i < last && overlap; i += step)
            if (node[i].beside[way] == k)
                *to++ = i;
    }
    REQUIRE(to == &d->sequence[way][last]);
}

static void list_sequence(struct need *d, bool overlap)
{
    const struct graph *g = d->graph;
    int k = 0;
    for (int l = 0; l < g->layers; l++) {
        d->layer_node[l] = k;
        while (k < g->nnode && g->node[k].layer == l)
            k++;
    }
    REQUIRE(k == g->nnode);
    d->layer_node[g->layers] = k;
    for (int l = 0; l < g->layers; l++)
        for (enum direction way = FORWARD; way <= BACKWARD; way++)
            sequence_layer(d, l, way, overlap);
}

static void mark_last_reader(struct need *d)
{
    const struct graph *g = d->graph;
    memset(d->last_reader, -1, sizeof *d->last_reader * (size_t)g->nvalue);
    for (int64_t at = g->nnode; at-- > 0;) {
        int k = d->sequence[FORWARD][at];
        const struct node *n = &g->node[k];
        for (int i = 0; i < n->nout && d->forward[k]; i++)
            if (n->out[i] != NONE && d->last_reader[n->out[i]] < 0)
                d->last_reader[n->out[i]] = k;
        for (int i = 0; i < n->nin && d->forward[k]; i++)
            if (n->in[i] != NONE && d->last_reader[n->in[i]] < 0)
                d->last_reader[n->in[i]] = k;
    }
}

static enum stay stay_of(const struct need *d, const struct policy *policy, int v)
{
    const struct value *x = &d->graph->value[v];
    bool offload = policy->offload && policy->offload[v];
    if (d->output[v])
        return STAY_KEEP;
    if (x->node < 0)
        return offload ? STAY_RELOAD : STAY_KEEP;
    if (policy->recompute && policy->recompute[v] && !x->keep && d->forward[x->node] &&
        !d->graph->node[x->node].kind->always)
        return STAY_AGAIN;
    return offload ? STAY_PARK : STAY_KEEP;
}

/* first[v]: the highest layer whose backward reads v, itself or to make another value
 * again; -1 none.  Backward meets layers from the highest down. */
static void mark_stay(struct need *d, const struct policy *policy, int *first)
{
    const struct graph *g = d->graph;
    memset(first, -1, sizeof *first * (size_t)g->nvalue);
    for (int64_t k = g->nnode; k-- > 0;) {
        const struct node *n = &g->node[k];
        const struct segment *s = n->kind;
        bool back = d->backward[k], weight = d->weight[k];
        unsigned in = (back ? s->back_in : 0) | (weight ? s->weight_in : 0);
        unsigned out = (back ? s->back_out : 0) | (weight ? s->weight_out : 0);
        int again = -1;
        for (int i = 0; i < n->nout; i++) {
            int v = n->out[i];
            if (v == NONE)
                continue;
            if (out >> i & 1)
                first[v] = MAX(first[v], n->layer);
            if (first[v] >= 0)
                d->stay[v] = stay_of(d, policy, v);
            if (d->stay[v] == STAY_AGAIN)
                again = MAX(again, first[v]);
        }
        for (int i = 0; i < n->nin; i++) {
            if (n->in[i] == NONE)
                continue;
            int *at = &first[n->in[i]];
            if (in >> i & 1)
                *at = MAX(*at, n->layer);
            *at = MAX(*at, again);
        }
    }
    for (int v = 0; v < g->nvalue; v++)
        if (g->value[v].node < 0 && first[v] >= 0)
            d->stay[v] = stay_of(d, policy, v);
}

static void list_moves(struct need *d, const int *first)
{
    const struct graph *g = d->graph;
    memset(d->park, -1, sizeof *d->park * (size_t)g->nnode);
    memset(d->fetch, -1, sizeof *d->fetch * (size_t)g->layers);
    for (int v = (int)g->nvalue; v-- > 0;) {
        if (d->stay[v] != STAY_PARK && d->stay[v] != STAY_RELOAD)
            continue;
        int *park = &d->park[d->last_reader[v]], *fetch = &d->fetch[first[v]];
        d->park_next[v] = *park;
        *park = v;
        d->fetch_next[v] = *fetch;
        *fetch = v;
    }
}

static void mark_busy(struct need *d)
{
    const struct graph *g = d->graph;
    for (int64_t k = 0; k < g->nnode; k++) {
        if (d->portion.chunk[k] < 0)
            continue;
        int64_t at = (int64_t)d->portion.chunk[k] * g->layers + g->node[k].layer;
        d->busy[FORWARD][at] |= d->forward[k];
        d->busy[BACKWARD][at] |= d->backward[k];
        d->busy[WEIGHT][at] |= d->weight[k];
    }
}

static bool runs_again(const struct need *d, const struct node *n)
{
    for (int i = 0; i < n->nout; i++)
        if (n->out[i] != NONE && d->stay[n->out[i]] == STAY_AGAIN)
            return true;
    return false;
}

/* Units of the nodes that `in_list` marks, each once a layer. */
static struct unit_list list_units(const struct need *d, struct arena *a,
                                   const bool *in_list)
{
    const struct graph *g = d->graph;
    struct unit_list list = {.first = NEW(a, int, g->layers + 1)};
    int *seen = NEW(a, int, g->nunit);  /* layer + 1 that listed the unit last */
    int64_t count = 0, room = 0;
    for (int l = 0; l < g->layers; l++) {
        list.first[l] = (int)count;
        for (int k = d->layer_node[l]; k < d->layer_node[l + 1]; k++) {
            const struct node *n = &g->node[k];
            for (int i = 0; i < n->nw && in_list[k]; i++) {
                int u = n->w[i] != NONE ? g->param[n->w[i]].unit : NONE;
                if (u == NONE || seen[u] == l + 1)
                    continue;
                seen[u] = l + 1;
                GROW(a, list.unit, count, room);
                list.unit[count++] = u;
            }
        }
    }
    list.first[g->layers] = (int)count;
    return list;
}

static void list_all_units(struct need *d, struct arena *a)
{
    const struct graph *g = d->graph;
    bool *read = NEW(a, bool, g->nnode), *written = NEW(a, bool, g->nnode);
    for (int64_t k = 0; k < g->nnode; k++) {
        read[k] = d->backward[k] || runs_again(d, &g->node[k]);
        written[k] = d->weight[k] || (d->backward[k] && g->node[k].kind->fused);
    }
    d->read[FORWARD] = list_units(d, a, d->forward);
    d->read[BACKWARD] = list_units(d, a, read);
    d->read[WEIGHT] = list_units(d, a, NEW(a, bool, g->nnode));
    d->written = list_units(d, a, written);
}

struct need need_make(struct arena *a, const struct graph *g,
                      const struct policy *policy, const struct need_options *options)
{
    struct need d = {
        .graph = g,
        .wants = NEW(a, bool, g->nvalue), .output = NEW(a, bool, g->nvalue),
        .forward = NEW(a, bool, g->nnode), .backward = NEW(a, bool, g->nnode),
        .weight = NEW(a, bool, g->nnode), .stay = NEW(a, enum stay, g->nvalue),
        .last_reader = NEW(a, int, g->nvalue),
        .park = NEW(a, int, g->nnode), .park_next = NEW(a, int, g->nvalue),
        .fetch = NEW(a, int, g->layers), .fetch_next = NEW(a, int, g->nvalue),
        .layer_node = NEW(a, int, g->layers + 1),
        .sequence = {NEW(a, int, g->nnode), NEW(a, int, g->nnode)},
    };
    int *first = NEW(a, int, g->nvalue);
    for (int i = 0; i < options->outputs; i++)
        d.output[options->output[i]] = true;
    for (int v = 0; v < g->nvalue; v++)
        d.output[v] |= g->value[v].held;
    if (options->backward)
        mark_backward(&d);
    mark_forward(&d, a);
    mark_portion(&d, a, options->stages, options->rank);
    for (int i = 0; i < DIRECTIONS; i++)
        d.busy[i] = NEW(a, bool, (int64_t)d.chunks * g->layers);
    list_sequence(&d, policy->overlap);
    mark_last_reader(&d);
    mark_stay(&d, policy, first);
    list_moves(&d, first);
    mark_busy(&d);
    list_all_units(&d, a);
    return d;
}
