/* linear.c - products with a weight.  The input gradient needs no activation at all,
 * the weight gradient needs only the input. */
#include "layers/layers.h"

void linear_forward(struct run *r)
{
    r->ops->linear(r->stream, r->in[0], r->w[0], r->w[1], 0, r->out[0]);
}

void linear_backward(struct run *r)
{
    r->ops->linear_back(r->stream, r->dout[0], r->w[0], r->beta[0], r->din[0]);
}

void linear_weight(struct run *r)
{
    bool both = tensor_is(r->dw[0]) && tensor_is(r->dw[1]);
    REQUIRE(!both || r->beta_w[0] == r->beta_w[1]);     /* one unit, written together */
    float beta = tensor_is(r->dw[0]) ? r->beta_w[0] : r->beta_w[1];
    r->ops->linear_weight(r->stream, r->dout[0], r->in[0], beta, r->dw[0], r->dw[1]);
}

int linear_record(struct graph *g, const struct segment *kind, const char *name, int x,
                  int w, int b)
{
    const int64_t *rows = g->param[w].rows;
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, value_count(&g->value[x]) / rows[1], rows[0]);
    graph_node(g, kind, layer, LIST(x), LIST(y), b == NONE ? LIST(w) : LIST(w, b), NULL,
               0);
    return y;
}
