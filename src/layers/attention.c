/* attention.c - rotary positions and the attention core, of both towers.
 *
 * Queries and keys travel together (q | k, one rotation for all heads), values apart:
 * so every value has one consumer and no gradient buffer two writers. */
#include "layers/layers.h"

#include <math.h>

/* ---- rope_table: in position, out cos sin ---- */

void rope_table_forward(struct run *r)
{
    r->ops->rope_table(r->stream, r->in[0], *(const struct rope_shape *)r->attr,
                       r->out[0], r->out[1]);
}

struct rotary rope_table_record(struct graph *g, const struct segment *kind,
                                int position, const struct rope_shape *shape)
{
    int layer = g->layers - 1;
    int64_t T = g->value[position].dim[0];
    struct rotary t = {graph_value(g, "cos", layer, T, shape->heads_width / 2),
                       graph_value(g, "sin", layer, T, shape->heads_width / 2)};
    graph_keep(g, t.cos);               /* small, and every layer reads them */
    graph_keep(g, t.sin);
    graph_node(g, kind, layer, LIST(position), LIST(t.cos, t.sin), EMPTY,
               graph_attr(g, shape, sizeof *shape), 0);
    return t;
}

/* ---- rope: in x cos sin, out y ---- */

void rope_forward(struct run *r)
{
    r->ops->rope(r->stream, r->in[0], r->in[1], r->in[2], 1, 0, r->out[0]);
}

void rope_backward(struct run *r)
{
    r->ops->rope(r->stream, r->dout[0], r->in[1], r->in[2], -1, r->beta[0], r->din[0]);
}

int rope_record(struct graph *g, const struct segment *kind, const char *name, int x,
                struct rotary t)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, g->value[x].dim[0], g->value[x].dim[1]);
    graph_node(g, kind, layer, LIST(x, t.cos, t.sin), LIST(y), EMPTY, NULL, 0);
    return y;
}

/* ---- attention: in qk v segment, out o lse ---- */

static struct tensor queries(const struct attention *a, struct tensor qk)
{
    return tensor_columns(qk, 0, (int64_t)a->heads * a->head_width);
}

static struct tensor keys(const struct attention *a, struct tensor qk)
{
    return tensor_columns(qk, (int64_t)a->heads * a->head_width,
                          (int64_t)a->groups * a->head_width);
}

static float attention_scale(const struct attention *a)
{
    return (float)(1 / sqrt(a->head_width));
}

void attention_forward(struct run *r)
{
    const struct attention *a = r->attr;
    r->ops->attention(r->stream, queries(a, r->in[0]), keys(a, r->in[0]), r->in[1],
                      r->in[2], a->heads, a->groups, a->causal, attention_scale(a),
                      r->out[0], r->out[1]);
}

void attention_backward(struct run *r)
{
    const struct attention *a = r->attr;
    /* q, k and v come from one node: wanted together; and this is their only reader. */
    REQUIRE(tensor_is(r->din[0]) && tensor_is(r->din[1]));
    REQUIRE(r->beta[0] == 0 && r->beta[1] == 0);
    r->ops->attention_back(r->stream, queries(a, r->in[0]), keys(a, r->in[0]), r->in[1],
                           r->in[2], r->out[0], r->out[1], r->dout[0], a->heads,
                           a->groups, a->causal, attention_scale(a),
                           queries(a, r->din[0]), keys(a, r->din[0]), r->din[1]);
}

int attention_record(struct graph *g, const struct segment *kind, int qk, int v,
                     int segment, const struct attention *shape)
{
    int layer = g->layers - 1;
    int64_t T = g->value[qk].dim[0];
    int o = graph_value(g, "o", layer, T, (int64_t)shape->heads * shape->head_width);
    int lse = graph_value(g, "lse", layer, T, shape->heads);
    graph_node(g, kind, layer, LIST(qk, v, segment), LIST(o, lse), EMPTY,
               graph_attr(g, shape, sizeof *shape), 0);
    return o;
}
