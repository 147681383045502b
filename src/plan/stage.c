/* stage.c - which part of the whole graph one rank of a pipeline runs, and what it gets
 * from and gives to others.
 *
 * Stands alone because everything about pipelines that depends on the model is here,
 * and it is nothing but: made before a cut, read after it. */
#include "plan/stage.h"

#include "plan/need.h"

#include <stdlib.h>

static int stage_of(const struct stages *s, const struct graph *g, int64_t node)
{
    return s->of[g->node[node].layer];
}

/* ---- nodes ---- */

/* Made of inputs alone, without weights or ranks to ask: cheaper to repeat than to
 * send. */
static bool *free_nodes(struct arena *a, const struct need *d)
{
    const struct graph *g = d->graph;
    bool *is_free = NEW(a, bool, g->nnode);
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        is_free[k] = n->nw == 0 && n->along == 0 && n->kind->lane == LANE_COMPUTE &&
                     !d->backward[k];
        for (int i = 0; i < n->nin; i++) {
            int maker = n->in[i] != NONE ? g->value[n->in[i]].node : -1;
            is_free[k] &= maker < 0 || is_free[maker];
        }
    }
    return is_free;
}

static void chunk_lower(int *chunk, int to)
{
    if (*chunk < 0 || *chunk > to)
        *chunk = to;
}

/* Nodes of this rank's layers; then, from the readers up, what they need repeated. */
static void place_nodes(struct portion *p, const struct need *d,
                        const struct stages *s, int rank, const bool *is_free)
{
    const struct graph *g = d->graph;
    for (int64_t k = g->nnode; k-- > 0;) {
        const struct node *n = &g->node[k];
        bool home = stage_of(s, g, k) % s->ranks == rank, asked = false;
        for (int i = 0; i < n->nout; i++)
            asked |= n->out[i] != NONE && d->output[n->out[i]];
        if (home && d->forward[k] && (!is_free[k] || asked))
            chunk_lower(&p->chunk[k], stage_of(s, g, k) / s->ranks);
        for (int i = 0; i < n->nin && p->chunk[k] >= 0; i++) {
            int maker = n->in[i] != NONE ? g->value[n->in[i]].node : -1;
            if (maker >= 0 && is_free[maker])
                chunk_lower(&p->chunk[maker], p->chunk[k]);
            else if (maker < 0 && n->in[i] != NONE)
                chunk_lower(&p->input[n->in[i]], p->chunk[k]);
        }
    }
}

/* ---- crossings ---- */

/* The first stage of rank r after stage s. */
static int stage_after(const struct stages *s, int stage, int r)
{
    return stage + (r - stage % s->ranks + s->ranks) % s->ranks;
}

struct finder {
    struct arena *arena;
    const struct stages *stages;
    int rank;
    struct crossings *all;
    int *first, *next;                  /* [values], [crossings]: of one value */
    int64_t room;
};

static struct crossing *crossing_find(struct finder *f, int value, int node, int from,
                                      int to)
{
    for (int i = f->first[value]; i >= 0; i = f->next[i])
        if (f->all->at[i].to == to)
            return &f->all->at[i];
    struct crossings *all = f->all;
    GROW(f->arena, all->at, all->count, all->room);
    GROW(f->arena, f->next, all->count, f->room);
    all->at[all->count] = (struct crossing){value, node, from, to, NONE};
    f->next[all->count] = f->first[value];
    f->first[value] = (int)all->count;
    return &all->at[all->count++];
}

/* Node k reads its input i: does that come from another rank, and is this one of the
 * two? */
static void crossing_add(struct finder *f, const struct need *d, int k, int i)
{
    const struct graph *g = d->graph;
    const struct node *n = &g->node[k];
    int maker = g->value[n->in[i]].node, ranks = f->stages->ranks;
    int from = stage_of(f->stages, g, maker), at = stage_of(f->stages, g, k);
    if (from % ranks == at % ranks ||
        (from % ranks != f->rank && at % ranks != f->rank))
        return;
    int to = stage_after(f->stages, from, at % ranks);
    struct crossing *c = crossing_find(f, n->in[i], maker, from, to);
    if (!d->backward[k] || !need_din(d, n, i))
        return;
    if (at == to && (c->back == NONE || c->back == EARLY))
        c->back = k;                    /* the lowest node: backward meets it last */
    else if (c->back == NONE)
        c->back = EARLY;
}

static void find_crossings(struct portion *p, struct arena *a, const struct need *d,
                           const struct stages *s, int rank, const bool *is_free)
{
    const struct graph *g = d->graph;
    struct finder f = {.arena = a, .stages = s, .rank = rank, .all = &p->value,
                       .first = NEW(a, int, g->nvalue)};
    memset(f.first, -1, sizeof *f.first * (size_t)g->nvalue);
    for (int k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        for (int i = 0; i < n->nin && d->forward[k] && !is_free[k]; i++) {
            int maker = n->in[i] != NONE ? g->value[n->in[i]].node : -1;
            if (maker >= 0 && !is_free[maker])
                crossing_add(&f, d, k, i);
        }
    }
}

static int ascend(int a, int b)
{
    return (a > b) - (a < b);
}

/* Values: as they are made. */
static int by_making(const void *x, const void *y)
{
    const struct crossing *a = x, *b = y;
    int order = ascend(a->node, b->node);
    order = order ? order : ascend(a->value, b->value);
    return order ? order : ascend(a->to, b->to);
}

/* Gradients: as backward gives them; of several readers' the last one's first. */
static int by_giving(const void *x, const void *y)
{
    const struct crossing *a = x, *b = y;
    int order = ascend(b->to, a->to);
    order = order ? order : ascend(b->back, a->back);
    return order ? order : by_making(x, y);
}

static int *heads(struct arena *a, int64_t count)
{
    int *list = NEW(a, int, count);
    memset(list, -1, sizeof *list * (size_t)count);
    return list;
}

static void crossings_list(struct crossings *x, struct arena *a, const struct need *d,
                           const struct stages *s, int rank, bool gradient)
{
    x->leave = heads(a, d->graph->nnode);
    x->early = heads(a, s->chunks);
    x->arrive = heads(a, s->chunks);
    x->next = heads(a, x->count);
    for (int i = (int)x->count; i-- > 0;) {
        const struct crossing *c = &x->at[i];
        int leaves = gradient ? c->to : c->from, arrives = gradient ? c->from : c->to;
        int *list = arrives % s->ranks == rank       ? &x->arrive[arrives / s->ranks]
                    : gradient && c->back == EARLY   ? &x->early[leaves / s->ranks]
                                                     : &x->leave[gradient ? c->back
                                                                          : c->node];
        x->next[i] = *list;
        *list = i;
    }
}

static void split_gradients(struct portion *p, struct arena *a)
{
    for (int64_t i = 0; i < p->value.count; i++) {
        if (p->value.at[i].back == NONE)
            continue;
        GROW(a, p->gradient.at, p->gradient.count, p->gradient.room);
        p->gradient.at[p->gradient.count++] = p->value.at[i];
    }
}

static void sort(struct crossings *x, int (*by)(const void *, const void *))
{
    if (x->count > 0)
        qsort(x->at, (size_t)x->count, sizeof *x->at, by);
}

/* ---- the part ---- */

int stages_holders(const struct stages *s, const struct graph *g, int unit, int *rank)
{
    struct arena scratch = arena_make("stage holders");
    bool *has = NEW(&scratch, bool, s->ranks);
    int count = 0;
    has[s->of[g->unit[unit].layer] % s->ranks] = true;
    for (int64_t k = 0; k < g->nnode; k++)
        for (int i = 0; i < g->node[k].nw; i++)
            if (g->node[k].w[i] != NONE && g->param[g->node[k].w[i]].unit == unit)
                has[stage_of(s, g, k) % s->ranks] = true;
    for (int r = 0; r < s->ranks; r++) {
        if (has[r] && rank)
            rank[count] = r;
        count += has[r];
    }
    arena_free(&scratch);
    return count;
}

static void place_units(struct portion *p, const struct graph *g,
                        const struct stages *s, int rank)
{
    for (int64_t u = 0; u < g->nunit; u++) {
        p->home[u] = s->of[g->unit[u].layer] % s->ranks;
        p->unit[u] = p->home[u] == rank;
    }
    for (int64_t k = 0; k < g->nnode; k++)
        for (int i = 0; i < g->node[k].nw; i++) {
            if (g->node[k].w[i] == NONE)
                continue;
            int u = g->param[g->node[k].w[i]].unit, at = stage_of(s, g, k) % s->ranks;
            p->unit[u] |= at == rank;
            p->tied[u] |= at != p->home[u];
            p->home[u] = MIN(p->home[u], at);
        }
}

struct portion portion_make(struct arena *a, const struct need *d,
                            const struct stages *s, int rank)
{
    const struct graph *g = d->graph;
    REQUIRE(rank >= 0 && rank < s->ranks);
    struct portion p = {.chunk = heads(a, g->nnode), .input = heads(a, g->nvalue),
                        .unit = NEW(a, bool, g->nunit), .tied = NEW(a, bool, g->nunit),
                        .home = NEW(a, int, g->nunit)};
    bool *is_free = free_nodes(a, d);
    place_nodes(&p, d, s, rank, is_free);
    place_units(&p, g, s, rank);
    find_crossings(&p, a, d, s, rank, is_free);
    split_gradients(&p, a);
    sort(&p.value, by_making);
    sort(&p.gradient, by_giving);
    crossings_list(&p.value, a, d, s, rank, false);
    crossings_list(&p.gradient, a, d, s, rank, true);
    return p;
}
