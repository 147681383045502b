/* mlp.c - the MLP of a dense decoder layer: down(silu(gate m) * (up m)). */
#include "decoder/parts.h"

static const struct segment gather = {
    .name = "gather", .component = "mlp", GATHER,
};

static const struct segment scatter = {
    .name = "scatter", .component = "mlp", SCATTER,
};

/* ---- mlp_up: in m, out gu = gate | up, weights gate up ---- */

static struct tensor half(struct tensor gu, int i)
{
    int64_t F = gu.dim[1] / 2;
    return tensor_columns(gu, i * F, F);
}

static void up_forward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        r->ops->linear(r->stream, r->in[0], r->w[i], tensor_none(), 0,
                       half(r->out[0], i));
}

static void up_backward(struct run *r)
{
    float beta = r->beta[0];
    for (int i = 0; i < 2; i++) {
        r->ops->linear_back(r->stream, half(r->dout[0], i), r->w[i], beta, r->din[0]);
        beta = 1;
    }
}

static void up_weight(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (tensor_is(r->dw[i]))
            r->ops->linear_weight(r->stream, half(r->dout[0], i), r->in[0],
                                  r->beta_w[i], r->dw[i], tensor_none());
}

static const struct segment mlp_up = {
    .name = "mlp_up", COMPUTE("mlp"), .weight_in = 1,
    .forward = up_forward, .backward = up_backward, .weight = up_weight,
};

static const struct segment act = {
    .name = "act", COMPUTE("mlp"), SWIGLU,
};

static const struct segment mlp_down = {
    .name = "mlp_down", COMPUTE("mlp"), LINEAR,
};

int decoder_mlp(const struct decoder_layer *l, int m)
{
    const struct scope *s = &l->divided;
    struct graph *g = s->g;
    int layer = g->layers - 1;
    int64_t D = l->config->width, F = l->config->hidden;
    int w_gate = param_matrix(s, "mlp.gate_proj.weight", F, D, 0);
    int w_up = param_matrix(s, "mlp.up_proj.weight", F, D, 0);
    int w_down = param_matrix(s, "mlp.down_proj.weight", D, F, 1);

    m = gather_record(g, &gather, m);
    int64_t T = g->value[m].dim[0], own = g->param[w_up].rows[0];
    int gu = graph_value(g, "gu", layer, T, 2 * own);
    graph_node(g, &mlp_up, layer, LIST(m), LIST(gu), LIST(w_gate, w_up), NULL, 0);
    int hidden = swiglu_record(g, &act, "act", gu);
    return linear_scatter_record(g, &mlp_down, &scatter, NULL, "mlp", hidden, w_down,
                                 NONE);
}
