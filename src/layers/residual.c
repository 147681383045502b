/* residual.c - the stream that layers add to: in a b, out y = a + b. */
#include "layers/layers.h"

void residual_forward(struct run *r)
{
    r->ops->add(r->stream, r->in[0], r->in[1], r->out[0]);
}

void residual_backward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (tensor_is(r->din[i]))
            r->ops->axpby(r->stream, 1, r->dout[0], r->beta[i], r->din[i]);
}

int residual_record(struct graph *g, const struct segment *kind, const char *name,
                    int a, int b)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, g->value[a].dim[0], g->value[a].dim[1]);
    graph_node(g, kind, layer, LIST(a, b), LIST(y), EMPTY, NULL, 0);
    graph_keep(g, y);                   /* where recompute starts */
    return y;
}
