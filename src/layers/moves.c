/* moves.c - rows of tokens between the ranks of a tensor-parallel group.
 *
 * Between blocks each rank holds t = T / tp of the rows, and norms, residuals and
 * routing work on those alone; products whose weights are divided need all T.  So rows
 * are gathered before such a pair of products and the partial sums it leaves are
 * scattered after it.  Each is the other's backward. */
#include "layers/layers.h"

/* ---- gather: in x [t,D], out y [T,D] ---- */

void gather_forward(struct run *r)
{
    comm_all_gather(r->comm, r->in[0].dtype, r->in[0].data, r->out[0].data,
                    tensor_count(r->in[0]));
}

void gather_backward(struct run *r)
{
    comm_reduce_scatter(r->comm, r->dout[0].dtype, r->dout[0].data, r->beta[0],
                        r->din[0].data, tensor_count(r->din[0]));
}

/* ---- scatter: in x [T,D] of which every rank has a part, out y [t,D] ---- */

void scatter_forward(struct run *r)
{
    comm_reduce_scatter(r->comm, r->in[0].dtype, r->in[0].data, 0, r->out[0].data,
                        tensor_count(r->out[0]));
}

void scatter_backward(struct run *r)
{
    REQUIRE(r->beta[0] == 0);           /* the product's only reader */
    comm_all_gather(r->comm, r->dout[0].dtype, r->dout[0].data, r->din[0].data,
                    tensor_count(r->dout[0]));
}

static int move_record(struct graph *g, const struct segment *kind, const char *name,
                       int x, int64_t rows)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, rows, g->value[x].dim[1]);
    graph_node(g, kind, layer, LIST(x), LIST(y), EMPTY, NULL, 0);
    graph_group(g, false, ON(AXIS_TP));
    return y;
}

int gather_record(struct graph *g, const struct segment *kind, int x)
{
    int ways = graph_ways(g, false, AXIS_TP);
    if (ways == 1)
        return x;
    const char *name = arena_text(g->arena, "%s_all", g->value[x].name);
    return move_record(g, kind, name, x, g->value[x].dim[0] * ways);
}

int scatter_record(struct graph *g, const struct segment *kind, const char *name, int x)
{
    int ways = graph_ways(g, false, AXIS_TP);
    return ways == 1 ? x : move_record(g, kind, name, x, g->value[x].dim[0] / ways);
}

/* ---- bias: in x, out y = x + b, weight b.  Where partial sums meet, for each rank
 * would add it once more. ---- */

void bias_forward(struct run *r)
{
    r->ops->bias(r->stream, r->in[0], r->w[0], r->out[0]);
}

void bias_backward(struct run *r)
{
    r->ops->axpby(r->stream, 1, r->dout[0], r->beta[0], r->din[0]);
}

void bias_weight(struct run *r)
{
    r->ops->bias_weight(r->stream, r->dout[0], r->beta_w[0], r->dw[0]);
}

int linear_scatter_record(struct graph *g, const struct segment *product,
                          const struct segment *scatter, const struct segment *bias,
                          const char *name, int x, int w, int b)
{
    if (graph_ways(g, false, AXIS_TP) == 1)
        return linear_record(g, product, name, x, w, b);
    int part = linear_record(g, product, arena_text(g->arena, "%s_part", name), x, w,
                             NONE);
    int y = scatter_record(g, scatter, name, part);
    if (b == NONE)
        return y;
    int layer = g->layers - 1;
    int sum = graph_value(g, arena_text(g->arena, "%s_bias", name), layer,
                          g->value[y].dim[0], g->value[y].dim[1]);
    graph_node(g, bias, layer, LIST(y), LIST(sum), LIST(b), NULL, 0);
    return sum;
}
