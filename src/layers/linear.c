/* linear.c - products with a weight.  The input gradient needs no activation at all,
 * the weight gradient needs only the input. */
#include "layers/layers.h"

static struct tensor live(const struct run *r, struct tensor y)
{
    return tensor_live(y, r->in[1], *(const int64_t *)r->attr);
}

void linear_forward(struct run *r)
{
    r->ops->linear(r->stream, r->in[0], r->w[0], r->w[1], 0, live(r, r->out[0]));
}

void linear_backward(struct run *r)
{
    r->ops->linear_back(r->stream, live(r, r->dout[0]), r->w[0], r->beta[0], r->din[0]);
}

void linear_weight(struct run *r)
{
    bool both = tensor_is(r->dw[0]) && tensor_is(r->dw[1]);
    REQUIRE(!both || r->beta_w[0] == r->beta_w[1]);     /* one unit, written together */
    float beta = tensor_is(r->dw[0]) ? r->beta_w[0] : r->beta_w[1];
    r->ops->linear_weight(r->stream, live(r, r->dout[0]), r->in[0], beta, r->dw[0],
                          r->dw[1]);
}

int linear_record(struct graph *g, const struct segment *kind, const char *name, int x,
                  int w, int b)
{
    const int64_t *rows = g->param[w].rows;
    int layer = g->layers - 1, bound = graph_live_of(g, x);
    int y = graph_value(g, name, layer, value_count(&g->value[x]) / rows[1], rows[0]);
    const void *per = graph_attr(g, &g->live.per, sizeof g->live.per);
    graph_node(g, kind, layer, LIST(x, bound), LIST(y),
               b == NONE ? LIST(w) : LIST(w, b), per, 0);
    return y;
}
