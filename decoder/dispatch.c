/* dispatch.c - tokens to the experts that were chosen for them, and back.
 *
 * Stands alone because the experts only see rows sorted by expert: how these came to
 * this rank is one of three ways (a star talks to other ranks).
 *
 *     alone      sort, dispatch                              .. combine
 *     allgather  route*, dispatch*, sort, permute            .. unpermute, combine*
 *     alltoall   sort, route*, meet, permute, dispatch*, arrange
 *                                           .. restore, combine*, unpermute
 *
 * An expert's rows are in order of source rank, then token.  Ranks that have a part of
 * each expert (etp) need the same tokens: allgather takes both groups as one; with
 * alltoall the tokens of the etp group are gathered before, and sums are scattered
 * after (etp_*).  Counts are values on the device (bounds), no business of a plan. */
#include "decoder/parts.h"

#include <math.h>

const char *const dispatcher_name[DISPATCHERS] = {"alltoall", "allgather"};

/* ---- sort: in index, out place source slot bound ---- */

static void sort_forward(struct run *r)
{
    r->ops->sort_rows(r->stream, r->in[0], (int)r->out[3].dim[0] - 1, r->out[0],
                      r->out[1], r->out[2], r->out[3]);
}

static const struct segment sort = {
    .name = "sort", COMPUTE("router"), .always = true,
    .no_grad_in = 1, .no_grad_out = 15, .forward = sort_forward,
};

/* The same for own experts: in index overflow, out place source slot bound overflow */

struct own { int first; };              /* expert of this rank */

static void sort_own_forward(struct run *r)
{
    const struct own *a = r->attr;
    r->ops->sort_own(r->stream, r->in[0], a->first, r->in[1], r->out[0], r->out[1],
                     r->out[2], r->out[3], r->out[4]);
}

static const struct segment sort_own = {
    .name = "sort", COMPUTE("router"), .always = true,
    .no_grad_in = 3, .no_grad_out = 31, .wide_out = 16, .forward = sort_own_forward,
};

/* ---- tokens to rows: in m source place, out rows ---- */

static void permute_forward(struct run *r)
{
    r->ops->take(r->stream, r->in[1], r->in[0], 0, r->out[0]);
}

static void permute_backward(struct run *r)
{
    r->ops->gather_sum(r->stream, r->in[2], r->dout[0], r->beta[0], r->din[0]);
}

#define PERMUTE                                                                        \
    COMPUTE("experts"), .no_grad_in = 6, .back_in = 4, .forward = permute_forward,     \
    .backward = permute_backward

static const struct segment dispatch = {.name = "dispatch", PERMUTE};
static const struct segment permute = {.name = "permute", PERMUTE};

/* ---- rows to tokens: in y weight place source slot, out mlp ---- */

static void unpermute_forward(struct run *r)
{
    r->ops->combine(r->stream, r->in[0], r->in[2], r->in[1], r->out[0]);
}

static void unpermute_backward(struct run *r)
{
    for (int i = 0; i < 2; i++)         /* each one's only reader */
        REQUIRE(!tensor_is(r->din[i]) || r->beta[i] == 0);
    r->ops->combine_back(r->stream, r->in[0], r->in[2], r->in[1], r->in[3], r->in[4],
                         r->dout[0], r->din[0], r->din[1]);
}

#define UNPERMUTE                                                                      \
    COMPUTE("experts"), .no_grad_in = 28, .back_in = 31, .forward = unpermute_forward, \
    .backward = unpermute_backward

static const struct segment combine = {.name = "combine", UNPERMUTE};
static const struct segment unpermute = {.name = "unpermute", UNPERMUTE};

/* ---- every rank's tokens to all: in m, out all ---- */

static const struct segment dispatch_gather = {
    .name = "dispatch", .component = "experts", GATHER,
};

static const struct segment etp_dispatch = {
    .name = "etp_dispatch", .component = "experts", GATHER,
};

/* ---- the choices of all: in index weight, out index weight.  Never again, as topk.
 * ---- */

static void route_forward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        comm_all_gather(r->comm, r->in[i].dtype, r->in[i].data, r->out[i].data,
                        tensor_count(r->in[i]));
}

static void route_backward(struct run *r)
{
    comm_reduce_scatter(r->comm, r->dout[1].dtype, r->dout[1].data, r->beta[1],
                        r->din[1].data, tensor_count(r->din[1]));
}

#define ROUTE                                                                          \
    .lane = LANE_LAYER, .component = "router", .always = true, .no_grad_in = 1,        \
    .no_grad_out = 1, .wide_out = 2, .forward = route_forward,                         \
    .backward = route_backward

static const struct segment route = {.name = "route", ROUTE};
static const struct segment etp_route = {.name = "etp_route", ROUTE};

/* ---- sums a token, of which every rank has a part: in all, out y ---- */

static const struct segment combine_scatter = {
    .name = "combine", .component = "experts", SCATTER,
};

static const struct segment etp_combine = {
    .name = "etp_combine", .component = "experts", SCATTER,
};

/* ---- the bounds of all ranks' sorted rows: in bound, out bounds ---- */

static const struct segment route_bounds = {
    .name = "route", .lane = LANE_LAYER, .component = "router", .always = true,
    .no_grad_in = 1, .no_grad_out = 1, .forward = gather_forward,
};

/* ---- meet: in bounds overflow, out leave arrive order undo bound overflow ---- */

struct meeting { int rank; };           /* in the ep group */

static void meet_forward(struct run *r)
{
    const struct meeting *a = r->attr;
    r->ops->meet_rows(r->stream, r->in[0], a->rank, r->in[1], r->out[0], r->out[1],
                      r->out[2], r->out[3], r->out[4], r->out[5]);
}

static const struct segment meet = {
    .name = "meet", COMPUTE("router"), .always = true,
    .no_grad_in = 3, .no_grad_out = 63, .wide_out = 32, .forward = meet_forward,
};

/* ---- rows to other ranks and back, and each way sorted by expert ---- */

static const struct segment dispatch_rows = {
    .name = "dispatch", .component = "experts", EXCHANGE,
};

static const struct segment combine_rows = {
    .name = "combine", .component = "experts", EXCHANGE,
};

static const struct segment arrange = {.name = "arrange", COMPUTE("experts"), PICK};
static const struct segment restore = {.name = "restore", COMPUTE("experts"), PICK};

/* ---- recording ---- */

static int list(struct graph *g, const char *name, int64_t n)
{
    return graph_value_of(g, name, g->layers - 1, DTYPE_I32, 1, (int64_t[]){n});
}

static int grid(struct graph *g, const char *name, int64_t rows, int64_t columns)
{
    return graph_value_of(g, name, g->layers - 1, DTYPE_I32, 2,
                          (int64_t[]){rows, columns});
}

static void node(struct graph *g, const struct segment *kind, const int *in,
                 const int *out, const void *attr)
{
    graph_node(g, kind, g->layers - 1, in, out, EMPTY, attr, 0);
}

static void sorted(struct graph *g, struct dispatch *d, int64_t rows, int64_t experts)
{
    const int64_t *dim = g->value[d->index].dim;
    d->place = grid(g, "place", dim[0], dim[1]);
    d->source = list(g, "source", rows);
    d->slot = list(g, "slot", rows);
    d->bound = list(g, "bound", experts + 1);
}

/* Rows of width like x's. */
static int rows_like(struct graph *g, const char *name, int64_t rows, int x)
{
    return graph_value(g, name, g->layers - 1, rows, g->value[x].dim[1]);
}

static int permuted(struct graph *g, const struct dispatch *d,
                    const struct segment *kind, int m)
{
    int x = rows_like(g, "routed", g->value[d->source].dim[0], m);
    node(g, kind, LIST(m, d->source, d->place), LIST(x), NULL);
    return x;
}

static int unpermuted(struct graph *g, const struct dispatch *d,
                      const struct segment *kind, int y)
{
    int out = rows_like(g, "mlp", g->value[d->weight].dim[0], y);
    node(g, kind, LIST(y, d->weight, d->place, d->source, d->slot), LIST(out), NULL);
    return out;
}

static int exchanged(struct graph *g, const struct segment *kind, const char *name,
                     int x, int leave, int arrive, int64_t rows)
{
    int64_t even = MIN(g->value[x].dim[0], rows) / graph_ways(g, true, AXIS_EP);
    int y = exchange_record(g, kind, name, x, leave, arrive, rows, even);
    graph_group(g, true, ON(AXIS_EP));
    return y;
}

static int last_node(const struct graph *g)
{
    return (int)g->nnode - 1;
}

/* The tokens and choices of all ranks along d->along. */
static int gathered(struct graph *g, struct dispatch *d, int m,
                    const struct segment *routing, const struct segment *tokens)
{
    int64_t A = g->value[d->index].dim[1], T = g->value[m].dim[0] * d->gathers;
    int index = grid(g, "index_all", T, A);
    int weight = graph_value(g, "weight_all", g->layers - 1, T, A);
    node(g, routing, LIST(d->index, d->weight), LIST(index, weight), NULL);
    graph_group(g, true, d->along);
    d->index = index;
    d->weight = weight;
    int all = rows_like(g, "m_all", T, m);
    node(g, tokens, LIST(m), LIST(all), NULL);
    graph_group(g, true, d->along);
    d->go = last_node(g);
    return all;
}

static int scattered(struct graph *g, struct dispatch *d, const struct segment *kind,
                     int y)
{
    int out = rows_like(g, "mlp", g->value[y].dim[0] / d->gathers, y);
    node(g, kind, LIST(y), LIST(out), NULL);
    graph_group(g, true, d->along);
    d->back = d->back == NONE ? last_node(g) : d->back;
    return out;
}

/* Rows of own experts at most: of `tokens` of all ranks, A experts each. */
static int64_t room(const struct decoder_layer *l, int64_t tokens, int ways)
{
    const struct decoder_config *c = l->config;
    int64_t worst = tokens * MIN(c->active, c->experts / ways), rows = worst;
    double wanted = l->options->capacity * (double)(tokens * c->active) / ways;
    if (l->options->capacity > 0 && wanted < (double)worst)
        rows = MAX(1, (int64_t)ceil(wanted));
    REQUIRE(rows <= INT32_MAX);
    return rows;
}

static void by_alltoall(const struct decoder_layer *l, struct dispatch *d, int m,
                        int *overflow)
{
    struct graph *g = l->scope.g;
    int ways = graph_ways(g, true, AXIS_EP), own = l->config->experts / ways;
    int64_t pairs = value_count(&g->value[d->index]);
    int64_t rows = room(l, g->value[m].dim[0] * ways, ways);
    REQUIRE(pairs <= INT32_MAX);
    sorted(g, d, pairs, l->config->experts);
    node(g, &sort, LIST(d->index), LIST(d->place, d->source, d->slot, d->bound), NULL);
    int bounds = grid(g, "bounds", ways, l->config->experts + 1);
    node(g, &route_bounds, LIST(d->bound), LIST(bounds), NULL);
    graph_group(g, true, ON(AXIS_EP));

    struct meeting a = {graph_at(g, true, AXIS_EP)};
    int over = graph_value(g, "overflow", g->layers - 1, 1, 1);
    d->leave = list(g, "leave", ways + 1);
    d->arrive = list(g, "arrive", ways + 1);
    d->order = list(g, "order", rows);
    d->undo = list(g, "undo", rows);
    d->bound = list(g, "own_bound", own + 1);
    node(g, &meet, LIST(bounds, *overflow),
         LIST(d->leave, d->arrive, d->order, d->undo, d->bound, over),
         graph_attr(g, &a, sizeof a));
    *overflow = over;
    int x = permuted(g, d, &permute, m);
    x = exchanged(g, &dispatch_rows, "arrived", x, d->leave, d->arrive, rows);
    d->go = last_node(g);
    d->rows = pick_record(g, &arrange, "arranged", x, d->order, d->undo);
    g->value[x].room = g->value[d->rows].room = true;
}

static void by_allgather(const struct decoder_layer *l, struct dispatch *d, int m,
                         int *overflow)
{
    struct graph *g = l->scope.g;
    int ways = graph_ways(g, true, AXIS_EP), own = l->config->experts / ways;
    struct own a = {graph_at(g, true, AXIS_EP) * own};
    int over = graph_value(g, "overflow", g->layers - 1, 1, 1);
    sorted(g, d, room(l, g->value[m].dim[0], ways), own);
    node(g, &sort_own, LIST(d->index, *overflow),
         LIST(d->place, d->source, d->slot, d->bound, over),
         graph_attr(g, &a, sizeof a));
    *overflow = over;
    d->rows = permuted(g, d, &permute, m);
    g->value[d->rows].room = true;
}

static void alone(const struct decoder_layer *l, struct dispatch *d, int m)
{
    struct graph *g = l->scope.g;
    sorted(g, d, value_count(&g->value[d->index]), l->config->experts);
    node(g, &sort, LIST(d->index), LIST(d->place, d->source, d->slot, d->bound), NULL);
    d->rows = permuted(g, d, &dispatch, m);
}

struct dispatch decoder_dispatch(const struct decoder_layer *l, int m, int index,
                                 int weight, int *overflow)
{
    struct graph *g = l->scope.g;
    int ep = graph_ways(g, true, AXIS_EP), etp = graph_ways(g, true, AXIS_ETP);
    struct dispatch d = {.index = index, .weight = weight, .along = ON(AXIS_ETP),
                         .gathers = etp, .begin = (int)g->nnode, .go = NONE,
                         .back = NONE};
    if (ep > 1)
        d.way = l->options->dispatcher == DISPATCHER_ALLGATHER ? ALLGATHER : ALLTOALL;
    if (d.way == ALLGATHER) {
        d.along |= ON(AXIS_EP);
        d.gathers *= ep;
        m = gathered(g, &d, m, &route, &dispatch_gather);
        by_allgather(l, &d, m, overflow);
        return d;
    }
    if (etp > 1)
        m = gathered(g, &d, m, &etp_route, &etp_dispatch);
    if (d.way == ALLTOALL)
        by_alltoall(l, &d, m, overflow);
    else
        alone(l, &d, m);
    return d;
}

int decoder_combine(const struct decoder_layer *l, struct dispatch *d, int y)
{
    struct graph *g = l->scope.g;
    if (d->way == ALLTOALL) {
        y = pick_record(g, &restore, "restored", y, d->undo, d->order);
        g->value[y].room = true;
        y = exchanged(g, &combine_rows, "returned", y, d->arrive, d->leave,
                      g->value[d->source].dim[0]);
        d->back = last_node(g);
    }
    y = unpermuted(g, d, d->way == ALONE ? &combine : &unpermute, y);
    if (d->gathers == 1)
        return y;
    return scattered(g, d, d->way == ALLGATHER ? &combine_scatter : &etp_combine, y);
}
