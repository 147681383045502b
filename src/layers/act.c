/* act.c - activations between two products; backward reads only their input. */
#include "layers/layers.h"

/* ---- swiglu: in gate | up, out y ---- */

void swiglu_forward(struct run *r)
{
    r->ops->swiglu(r->stream, r->in[0], r->out[0]);
}

void swiglu_backward(struct run *r)
{
    r->ops->swiglu_back(r->stream, r->in[0], r->dout[0], r->beta[0], r->din[0]);
}

int swiglu_record(struct graph *g, const struct segment *kind, const char *name, int gu)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, g->value[gu].dim[0], g->value[gu].dim[1] / 2);
    graph_node(g, kind, layer, LIST(gu), LIST(y), EMPTY, NULL, 0);
    return y;
}

/* ---- gelu: in x, out y; exact (erf) or the tanh form ---- */

struct gelu { bool exact; };

static bool is_exact(const struct run *r)
{
    return ((const struct gelu *)r->attr)->exact;
}

void gelu_forward(struct run *r)
{
    r->ops->gelu(r->stream, r->in[0], is_exact(r), r->out[0]);
}

void gelu_backward(struct run *r)
{
    r->ops->gelu_back(r->stream, r->in[0], is_exact(r), r->dout[0], r->beta[0],
                      r->din[0]);
}

int gelu_record(struct graph *g, const struct segment *kind, const char *name, int x,
                bool exact)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, g->value[x].dim[0], g->value[x].dim[1]);
    graph_node(g, kind, layer, LIST(x), LIST(y), EMPTY,
               graph_attr(g, &(struct gelu){exact}, sizeof(struct gelu)), 0);
    return y;
}
