/* units.c - weights and their gradients: where they are, when they come and go.
 *
 * Stands alone because where one rank holds everything all of this is nothing, and
 * where ranks share storage it is all that changes. */
#include "plan/builder.h"

enum { EVEN = 16 };                     /* elements: shards stay aligned */

unsigned unit_holder_axes(const struct unit *u)
{
    return holder_axes(u->split);
}

unsigned unit_shard_axes(const struct unit *u)
{
    return unit_holder_axes(u) & ~ON(AXIS_REPLICATE);
}

enum dtype unit_gradient(const struct plan *p, int unit)
{
    return p->graph->unit[unit].wide ? DTYPE_F32 : p->precision.gradient;
}

enum dtype unit_wire(const struct plan *p, int unit)
{
    enum dtype d = unit_gradient(p, unit);
    return p->graph->unit[unit].wide || d != DTYPE_F32 ? d : p->wire;
}

struct flat unit_flat(const struct plan *p, int unit)
{
    return flat_make(p->graph->unit[unit].count, p->ways[unit], EVEN);
}

/* ---- whose a param is ---- */

/* Along which ranks store the same of the unit. */
static unsigned copy_axes(const struct plan *p, int unit)
{
    return p->ways[unit] > 1 ? ON(AXIS_REPLICATE)
                             : unit_holder_axes(&p->graph->unit[unit]);
}

struct stretch param_own(const struct plan *p, int param)
{
    const struct graph *g = p->graph;
    const struct param *x = &g->param[param];
    const struct unit *u = &g->unit[x->unit];
    struct flat f = unit_flat(p, x->unit);
    int at = 0;
    if (p->weight[x->unit] < 0)
        return (struct stretch){0, 0};
    if (f.shards > 1)
        at = view_group_index(mesh_view(g->mesh, u->experts), g->rank,
                              unit_shard_axes(u));
    return flat_part(&f, at, x->offset, x->count);
}

struct stretch param_duty(const struct plan *p, int param)
{
    enum { LEAST = 1 << 12 };           /* elements: fewer are one rank's */
    const struct graph *g = p->graph;
    int unit = g->param[param].unit;
    struct stretch own = param_own(p, param);
    if (p->home[unit] != p->stage)
        return (struct stretch){0, 0};
    if (!g->mesh)
        return own;
    const struct view *v = mesh_view(g->mesh, g->unit[unit].experts);
    unsigned along = copy_axes(p, unit);
    int ranks = view_group_size(v, along);
    struct flat f = flat_make(own.to - own.from, ranks, LEAST);
    int at = (view_group_index(v, g->rank, along) + param) % ranks;
    struct stretch share = flat_part(&f, at, 0, f.count);
    return (struct stretch){own.from + share.from, own.from + share.to};
}

bool param_speaks(const struct plan *p, int param)
{
    const struct graph *g = p->graph;
    int unit = g->param[param].unit;
    return p->home[unit] == p->stage &&
           (!g->mesh || view_group_index(mesh_view(g->mesh, g->unit[unit].experts),
                                         g->rank, copy_axes(p, unit)) == 0);
}

/* ---- how many divide it ---- */

/* Ranks of the unit's view along these axes. */
static int unit_ways(const struct builder *b, int u, unsigned along)
{
    const struct graph *g = b->g;
    return g->mesh ? view_group_size(mesh_view(g->mesh, g->unit[u].experts), along) : 1;
}

static bool divided(const struct builder *b, int u)
{
    return b->p->ways[u] > 1;
}

static int buffer_of_unit(struct builder *b, enum memory kind, int u, bool gradient,
                          enum dtype dtype, int64_t count)
{
    return buffer_new(b, (struct buffer){
        .kind = kind, .name = b->g->unit[u].name, .value = -1, .unit = u, .mb = -1,
        .gradient = gradient, .dtype = dtype, .bytes = count * dtype_bytes(dtype)});
}

/* Room for all shards together, brought or to be taken by the ranks that have them. */
static int buffer_of_shards(struct builder *b, int u, bool gradient)
{
    struct flat f = unit_flat(b->p, u);
    return buffer_of_unit(b, MEMORY_MESSAGE, u, gradient,
                          gradient ? unit_gradient(b->p, u) : unit_dtype(b->g, u),
                          flat_padded(&f));
}

static struct step *step_of_unit(struct builder *b, enum step_kind kind, int u,
                                 int param)
{
    const struct unit *x = &b->g->unit[u];
    struct step *s = step_new(b, kind, LANE_STATE, x->name, part_name[x->part], false);
    s->unit = u;
    s->param = param;
    return s;
}

/* ---- weights: gathered some visits ahead, dropped after use ---- */

static void acquire_unit(struct builder *b, int u)
{
    if (b->weight[u] >= 0)
        return;
    b->weight[u] = b->p->sharding.weights ? buffer_of_shards(b, u, false)
                                          : b->p->weight[u];
    struct step *s = step_of_unit(b, STEP_GATHER, u, -1);
    s->in[0] = b->p->weight[u];
    s->out[0] = b->weight[u];
    s->along = unit_shard_axes(&b->g->unit[u]);
}

void units_acquire(struct builder *b, int layer, enum direction way)
{
    const struct unit_list *list = &b->need.read[way];
    for (int i = list->first[layer]; i < list->first[layer + 1]; i++)
        acquire_unit(b, list->unit[i]);
}

void units_acquire_node(struct builder *b, const struct node *n)
{
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE)
            acquire_unit(b, b->g->param[n->w[i]].unit);
}

void unit_release(struct builder *b, int u)
{
    if (divided(b, u) && b->p->sharding.weights)
        b->weight[u] = -1;
}

void fill_w(const struct builder *b, struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE)
            s->w[i] = b->weight[b->g->param[n->w[i]].unit];
}

/* ---- gradients: summed over holders after each microbatch or the last ---- */

/* A gradient that nothing wrote is zero, and says so. */
static void zero_rest(struct builder *b, int u)
{
    for (int i = b->param[u]; i >= 0; i = b->param_next[i]) {
        if (!b->g->param[i].trainable || b->written[i])
            continue;
        struct step *s = step_of_unit(b, STEP_ZERO, u, i);
        s->dw[0] = b->wgrad[u];
    }
}

/* A sum of `gradient` over ranks, which may be rounded for the way. */
static struct step *step_of_sum(struct builder *b, int u, int gradient)
{
    struct step *s = step_of_unit(b, STEP_REDUCE, u, -1);
    struct buffer x = b->p->buffer[gradient];
    s->in[0] = gradient;
    s->wire = unit_wire(b->p, u);
    if (s->wire != x.dtype)
        s->work = buffer_of_unit(b, MEMORY_WORKSPACE, u, false, s->wire,
                                 x.bytes / dtype_bytes(x.dtype));
    return s;
}

/* This rank's shard of the sum. */
static void reduce_scatter(struct builder *b, int u)
{
    zero_rest(b, u);
    struct step *s = step_of_sum(b, u, b->wgrad[u]);
    s->out[0] = b->p->gradient[u];
    s->beta[0] = b->reduced[u];
    s->along = unit_shard_axes(&b->g->unit[u]);
    b->reduced[u] = true;
    b->wgrad[u] = -1;
    for (int k = b->param[u]; k >= 0; k = b->param_next[k])
        b->written[k] = false;
}

static void all_reduce(struct builder *b, int u, unsigned along)
{
    if (unit_ways(b, u, along) == 1)
        return;
    struct step *s = step_of_sum(b, u, b->p->gradient[u]);
    s->out[0] = b->p->gradient[u];
    s->along = along;
}

void units_expect(struct builder *b, int layer)
{
    const struct unit_list *list = &b->need.written;
    for (int i = list->first[layer]; i < list->first[layer + 1]; i++)
        b->left[list->unit[i]]++;
}

void units_reduce(struct builder *b, int layer)
{
    const struct unit_list *list = &b->need.written;
    for (int i = list->first[layer]; i < list->first[layer + 1]; i++) {
        int u = list->unit[i];
        if (b->p->gradient[u] < 0)
            continue;                   /* frozen */
        bool last = --b->left[u] == 0;
        if (divided(b, u)) {
            if (b->wgrad[u] >= 0 && (last || b->p->sharding.each))
                reduce_scatter(b, u);
            if (last)
                all_reduce(b, u, ON(AXIS_REPLICATE));
        } else if (last) {
            zero_rest(b, u);
            all_reduce(b, u, unit_holder_axes(&b->g->unit[u]));
        }
    }
}

/* Weight gradients add up over microbatches and over nodes that share a parameter. */
void fill_dw(struct builder *b, struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nw; i++) {
        if (n->w[i] == NONE || !b->g->param[n->w[i]].trainable)
            continue;
        int u = b->g->param[n->w[i]].unit;
        if (b->wgrad[u] < 0)
            b->wgrad[u] = buffer_of_shards(b, u, true);
        s->dw[i] = b->wgrad[u];
        s->beta_w[i] = b->written[n->w[i]];
        b->written[n->w[i]] = true;
    }
}

/* Stages that use the same weights have a share of the gradient each.  All have the
 * same units in the same order, so none waits for two others crosswise. */
static void tie_all(struct builder *b)
{
    for (int u = 0; b->p->stages && u < b->g->nunit; u++) {
        if (b->p->gradient[u] < 0 || !b->need.portion.tied[u])
            continue;
        struct step *s = step_of_unit(b, STEP_TIE, u, -1);
        s->in[0] = s->out[0] = b->p->gradient[u];
        s->wire = unit_gradient(b->p, u);
    }
}

void units_end(struct builder *b)
{
    for (int u = 0; u < b->g->nunit; u++) {
        if (b->p->gradient[u] < 0)
            continue;
        if (!divided(b, u)) {
            zero_rest(b, u);
        } else if (!b->reduced[u]) {
            struct step *s = step_of_unit(b, STEP_ZERO, u, -1);
            s->dw[0] = b->p->gradient[u];
        }
    }
    tie_all(b);
}

/* ---- whole-run memory ---- */

static bool unit_trains(const struct builder *b, int u)
{
    for (int i = b->param[u]; i >= 0; i = b->param_next[i])
        if (b->g->param[i].trainable)
            return true;
    return false;
}

static int buffer_whole(struct builder *b, enum memory kind, const char *name, int u,
                        enum dtype dtype, bool shard)
{
    struct flat f = unit_flat(b->p, u);
    int i = buffer_of_unit(b, kind, u, kind == MEMORY_GRADIENT, dtype,
                           shard ? f.each : flat_padded(&f));
    b->p->buffer[i].whole = true;
    b->p->buffer[i].shard = shard;
    b->p->buffer[i].name = name;
    return i;
}

/* What never changes is only divided to save its memory. */
static void ways_set(struct builder *b)
{
    const struct sharding *x = &b->p->sharding;
    REQUIRE(x->state || !x->weights);
    for (int u = 0; u < b->g->nunit; u++) {
        bool divide = x->weights || (x->state && unit_trains(b, u));
        b->p->ways[u] =
            divide ? unit_ways(b, u, unit_shard_axes(&b->g->unit[u])) : 1;
    }
}

static void state_make(struct builder *b, const struct plan_options *o, bool backward)
{
    struct plan *p = b->p;
    const struct graph *g = b->g;
    p->moments = o->moments;
    p->precision = o->precision;
    ways_set(b);
    const bool *here = b->need.portion.unit;
    for (int u = 0; u < g->nunit; u++)
        if (here[u])
            p->weight[u] = buffer_whole(b, MEMORY_WEIGHT, "weight", u, unit_dtype(g, u),
                                        p->sharding.weights);
    for (int u = 0; u < g->nunit; u++)
        if (here[u] && backward && unit_trains(b, u))
            p->gradient[u] = buffer_whole(b, MEMORY_GRADIENT, "gradient", u,
                                          unit_gradient(p, u), true);
    for (int k = 0; k < o->moments; k++)
        for (int u = 0; u < g->nunit; u++)
            if (here[u] && unit_trains(b, u))
                p->moment[k][u] =
                    buffer_whole(b, MEMORY_OPTIMIZER, "moment", u,
                                 g->unit[u].wide ? DTYPE_F32 : p->precision.moment,
                                 true);
    for (int u = 0; u < g->nunit && o->moments > 0 && p->precision.masters; u++)
        if (here[u] && unit_trains(b, u) && unit_dtype(g, u) != DTYPE_F32)
            p->master[u] =
                buffer_whole(b, MEMORY_OPTIMIZER, "master", u, DTYPE_F32, true);
}

/* The same places as in another plan of the same parameters. */
static void state_share(struct builder *b, const struct plan *from)
{
    const struct graph *g = b->g, *h = from->graph;
    REQUIRE(g->nunit == h->nunit && g->nparam == h->nparam);
    for (int i = 0; i < g->nparam; i++)
        if (strcmp(g->param[i].name, h->param[i].name) != 0 ||
            g->param[i].unit != h->param[i].unit || g->dtype != h->dtype ||
            g->param[i].offset != h->param[i].offset)
            BUG("plan: parameter %s stands where the shared state has %s",
                g->param[i].name, h->param[i].name);
    struct plan *p = b->p;
    size_t size = sizeof *p->weight * (size_t)g->nunit;
    for (int64_t i = 0; i < from->nbuffer && from->buffer[i].whole; i++)
        if (from->buffer[i].unit >= 0)
            buffer_new(b, from->buffer[i]);
    p->moments = from->moments;
    p->sharding = from->sharding;
    p->precision = from->precision;
    memcpy(p->ways, from->ways, size);
    memcpy(p->master, from->master, size);
    memcpy(p->weight, from->weight, size);
    for (int u = 0; u < g->nunit; u++)
        if ((p->weight[u] >= 0) != b->need.portion.unit[u])
            BUG("plan: unit %s is on another stage than in the shared state",
                g->unit[u].name);
    memcpy(p->gradient, from->gradient, size);
    for (int k = 0; k < 2; k++)
        memcpy(p->moment[k], from->moment[k], size);
}

void units_begin(struct builder *b, struct arena *scratch, const struct plan_options *o,
                 bool backward)
{
    const struct graph *g = b->g;
    b->param = builder_ids(scratch, g->nunit);
    b->param_next = builder_ids(scratch, g->nparam);
    for (int i = (int)g->nparam; i-- > 0;) {
        b->param_next[i] = b->param[g->param[i].unit];
        b->param[g->param[i].unit] = i;
    }
    b->weight = builder_ids(scratch, g->nunit);
    b->wgrad = builder_ids(scratch, g->nunit);
    b->written = NEW(scratch, bool, g->nparam);
    b->reduced = NEW(scratch, bool, g->nunit);
    b->left = NEW(scratch, int, g->nunit);
    if (o->state)
        state_share(b, o->state);
    else
        state_make(b, o, backward);
    for (int u = 0; u < g->nunit; u++)
        if (!divided(b, u)) {
            b->weight[u] = b->p->weight[u];
            b->wgrad[u] = b->p->gradient[u];
        }
}
