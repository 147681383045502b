/* units.c - weights and their gradients: where they are, when they come and go.
 *
 * Stands alone because where one rank holds everything all of this is nothing, and
 * where ranks share storage it is all that changes. */
#include "plan/builder.h"

static int buffer_of_unit(struct builder *b, enum memory kind, int u, int64_t count)
{
    return buffer_new(b, (struct buffer){
        .kind = kind, .name = b->g->unit[u].name, .value = -1, .unit = u, .mb = -1,
        .gradient = kind == MEMORY_GRADIENT, .bytes = count * dtype_bytes(DTYPE_F32)});
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

/* ---- gathered one visit ahead, dropped after use ---- */

static bool sharded(const struct builder *b, int u)
{
    return b->shards && b->shards[u] > 1;
}

static void acquire_unit(struct builder *b, int u)
{
    if (b->weight[u] >= 0)
        return;
    struct step *s = step_of_unit(b, STEP_GATHER, u, -1);
    s->in[0] = b->p->weight[u];
    s->out[0] = b->weight[u] = buffer_of_unit(b, MEMORY_WEIGHT, u, b->g->unit[u].count);
}

void units_acquire(struct builder *b, int layer, bool backward)
{
    const struct unit_list *list = &b->need.read[backward];
    for (int i = list->first[layer]; i < list->first[layer + 1]; i++)
        acquire_unit(b, list->unit[i]);
}

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

void units_reduce(struct builder *b, int layer)
{
    const struct unit_list *list = &b->need.written;
    for (int i = list->first[layer]; i < list->first[layer + 1]; i++) {
        int u = list->unit[i];
        if (!sharded(b, u) || b->wgrad[u] < 0)
            continue;
        zero_rest(b, u);
        struct step *s = step_of_unit(b, STEP_REDUCE, u, -1);
        s->in[0] = b->wgrad[u];
        s->out[0] = b->p->gradient[u];
        s->beta[0] = b->reduced[u];
        b->reduced[u] = true;
        b->wgrad[u] = -1;
        for (int k = b->param[u]; k >= 0; k = b->param_next[k])
            b->written[k] = false;
    }
}

void unit_release(struct builder *b, int u)
{
    if (sharded(b, u))
        b->weight[u] = -1;
}

/* Weight gradients add up over microbatches and over nodes that share a parameter. */
void fill_dw(struct builder *b, struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nw; i++) {
        if (n->w[i] == NONE || !b->g->param[n->w[i]].trainable)
            continue;
        int u = b->g->param[n->w[i]].unit;
        if (b->wgrad[u] < 0)
            b->wgrad[u] = buffer_of_unit(b, MEMORY_GRADIENT, u, b->g->unit[u].count);
        s->dw[i] = b->wgrad[u];
        s->beta_w[i] = b->written[n->w[i]];
        b->written[n->w[i]] = true;
    }
}

void fill_w(const struct builder *b, struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE)
            s->w[i] = b->weight[b->g->param[n->w[i]].unit];
}

void units_acquire_node(struct builder *b, const struct node *n)
{
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE)
            acquire_unit(b, b->g->param[n->w[i]].unit);
}

void units_end(struct builder *b)
{
    for (int u = 0; u < b->g->nunit; u++) {
        if (b->p->gradient[u] < 0)
            continue;
        if (!sharded(b, u)) {
            zero_rest(b, u);
        } else if (!b->reduced[u]) {
            struct step *s = step_of_unit(b, STEP_ZERO, u, -1);
            s->dw[0] = b->p->gradient[u];
        }
    }
}

/* ---- whole-run memory ---- */

static bool unit_trains(const struct builder *b, int u)
{
    for (int i = b->param[u]; i >= 0; i = b->param_next[i])
        if (b->g->param[i].trainable)
            return true;
    return false;
}

static int buffer_whole(struct builder *b, enum memory kind, const char *name, int u)
{
    enum { EVEN = 16 };                 /* shards are equal and stay aligned */
    int shards = sharded(b, u) ? b->shards[u] : 1;
    int64_t part = (b->g->unit[u].count + shards - 1) / shards;
    int i = buffer_of_unit(b, kind, u, (part + EVEN - 1) / EVEN * EVEN);
    b->p->buffer[i].whole = true;
    b->p->buffer[i].name = name;
    return i;
}

static void state_make(struct builder *b, int moments, bool backward)
{
    struct plan *p = b->p;
    p->moments = moments;
    for (int u = 0; u < b->g->nunit; u++)
        p->weight[u] = buffer_whole(b, MEMORY_WEIGHT, "weight", u);
    for (int u = 0; u < b->g->nunit; u++)
        if (backward && unit_trains(b, u))
            p->gradient[u] = buffer_whole(b, MEMORY_GRADIENT, "gradient", u);
    for (int k = 0; k < moments; k++)
        for (int u = 0; u < b->g->nunit; u++)
            if (unit_trains(b, u))
                p->moment[k][u] = buffer_whole(b, MEMORY_OPTIMIZER, "moment", u);
}

/* The same places as in another plan of the same parameters. */
static void state_share(struct builder *b, const struct plan *from)
{
    const struct graph *g = b->g, *h = from->graph;
    REQUIRE(g->nunit == h->nunit && g->nparam == h->nparam);
    for (int i = 0; i < g->nparam; i++)
        if (strcmp(g->param[i].name, h->param[i].name) != 0 ||
            g->param[i].unit != h->param[i].unit ||
            g->param[i].offset != h->param[i].offset)
            BUG("plan: parameter %s stands where the shared state has %s",
                g->param[i].name, h->param[i].name);
    struct plan *p = b->p;
    size_t size = sizeof *p->weight * (size_t)g->nunit;
    for (int64_t i = 0; i < from->nbuffer && from->buffer[i].whole; i++)
        buffer_new(b, from->buffer[i]);
    p->moments = from->moments;
    memcpy(p->weight, from->weight, size);
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
    if (o->state)
        state_share(b, o->state);
    else
        state_make(b, o->moments, backward);
    for (int u = 0; u < g->nunit; u++)
        if (!sharded(b, u)) {
            b->weight[u] = b->p->weight[u];
            b->wgrad[u] = b->p->gradient[u];
        }
}
