/* norm.c - RMSNorm and LayerNorm.  Both keep row statistics, never x normalised. */
#include "layers/layers.h"

struct norm { float eps; };

static float eps_of(const struct run *r)
{
    return ((const struct norm *)r->attr)->eps;
}

static const void *norm_attr(struct graph *g, double eps)
{
    return graph_attr(g, &(struct norm){(float)eps}, sizeof(struct norm));
}

/* ---- rmsnorm: in x, out y r, weight w ---- */

void rmsnorm_forward(struct run *r)
{
    r->ops->rmsnorm(r->stream, r->in[0], r->w[0], eps_of(r), r->out[0], r->out[1]);
}

void rmsnorm_backward(struct run *r)
{
    r->ops->rmsnorm_back(r->stream, r->in[0], r->w[0], r->out[1], r->dout[0],
                         r->beta[0], r->din[0]);
}

void rmsnorm_weight(struct run *r)
{
    r->ops->rmsnorm_weight(r->stream, r->in[0], r->out[1], r->dout[0], r->beta_w[0],
                           r->dw[0]);
}

int rmsnorm_record(struct graph *g, const struct segment *kind, const char *name, int x,
                   int w, double eps)
{
    int layer = g->layers - 1;
    int64_t T = g->value[x].dim[0];
    int y = graph_value(g, name, layer, T, g->value[x].dim[1]);
    int rms = graph_value(g, arena_text(g->arena, "%s_r", name), layer, T, 1);
    graph_node(g, kind, layer, LIST(x), LIST(y, rms), LIST(w), norm_attr(g, eps), 0);
    return y;
}

/* ---- layernorm: in x, out y m r, weights w b.  There are as many rows as statistics,
 * whatever rows x and y have: a merger's norm is declared in the shape its product
 * reads. ---- */

static struct tensor by_row(const struct run *r, struct tensor t)
{
    int64_t rows = r->out[1].dim[0];
    return tensor_as_2d(t, rows, tensor_count(t) / rows);
}

void layernorm_forward(struct run *r)
{
    r->ops->layernorm(r->stream, by_row(r, r->in[0]), r->w[0], r->w[1], eps_of(r),
                      by_row(r, r->out[0]), r->out[1], r->out[2]);
}

void layernorm_backward(struct run *r)
{
    r->ops->layernorm_back(r->stream, by_row(r, r->in[0]), r->w[0], r->out[1],
                           r->out[2], by_row(r, r->dout[0]), r->beta[0],
                           by_row(r, r->din[0]));
}

void layernorm_weight(struct run *r)
{
    REQUIRE(r->beta_w[0] == r->beta_w[1]);      /* one unit, written together */
    r->ops->layernorm_weight(r->stream, by_row(r, r->in[0]), r->out[1], r->out[2],
                             by_row(r, r->dout[0]), r->beta_w[0], r->dw[0], r->dw[1]);
}

int layernorm_record(struct graph *g, const struct segment *kind, const char *name,
                     int x, int64_t cols, int w, int b, double eps)
{
    int layer = g->layers - 1;
    int64_t count = value_count(&g->value[x]), rows = count / g->param[w].rows[0];
    int y = graph_value(g, name, layer, count / cols, cols);
    int mean = graph_value(g, arena_text(g->arena, "%s_m", name), layer, rows, 1);
    int rms = graph_value(g, arena_text(g->arena, "%s_r", name), layer, rows, 1);
    graph_node(g, kind, layer, LIST(x), LIST(y, mean, rms), LIST(w, b),
               norm_attr(g, eps), 0);
    return y;
}
