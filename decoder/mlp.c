/* mlp.c - down(silu(gate m) * (up m)): the MLP of a dense decoder layer, and the one
 * inside a shared expert (shared.c). */
#include "decoder/parts.h"

static const struct segment gather = {
    .name = "gather", .component = "mlp", GATHER,
};

static const struct segment scatter = {
    .name = "scatter", .component = "mlp", SCATTER,
};

/* ---- mlp_up: in m bound, out gu = gate | up, weights gate up ---- */

static struct tensor half(const struct run *r, struct tensor gu, int i)
{
    int64_t F = gu.dim[1] / 2;
    return tensor_live(tensor_columns(gu, i * F, F), r->in[1], 1);
}

void mlp_up_forward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        r->ops->linear(r->stream, r->in[0], r->w[i], tensor_none(), 0,
                       half(r, r->out[0], i));
}

void mlp_up_backward(struct run *r)
{
    float beta = r->beta[0];
    for (int i = 0; i < 2; i++) {
        r->ops->linear_back(r->stream, half(r, r->dout[0], i), r->w[i], beta,
                            r->din[0]);
        beta = 1;
    }
}

void mlp_up_weight(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (tensor_is(r->dw[i]))
            r->ops->linear_weight(r->stream, half(r, r->dout[0], i), r->in[0],
                                  r->beta_w[i], r->dw[i], tensor_none());
}

static const struct segment mlp_up = {
    .name = "mlp_up", COMPUTE("mlp"), MLP_UP,
};

static const struct segment act = {
    .name = "act", COMPUTE("mlp"), SWIGLU,
};

static const struct segment mlp_down = {
    .name = "mlp_down", COMPUTE("mlp"), LINEAR,
};

int mlp_record(const struct scope *s, const struct mlp *kind, int64_t F, int m)
{
    struct graph *g = s->g;
    int layer = g->layers - 1;
    int64_t D = g->value[m].dim[1];
    int w_gate = param_matrix(s, "gate_proj.weight", F, D, 0);
    int w_up = param_matrix(s, "up_proj.weight", F, D, 0);
    int w_down = param_matrix(s, "down_proj.weight", D, F, 1);

    m = gather_record(g, kind->gather, m);
    int64_t T = g->value[m].dim[0], own = g->param[w_up].rows[0];
    int gu = graph_value(g, kind->gu, layer, T, 2 * own);
    graph_node(g, kind->up, layer, LIST(m, graph_live_of(g, m)), LIST(gu),
               LIST(w_gate, w_up), NULL, 0);
    int hidden = swiglu_record(g, kind->act, kind->hidden, gu);
    return linear_scatter_record(g, kind->down, kind->scatter, NULL, kind->out, hidden,
                                 w_down, NONE);
}

int decoder_mlp(const struct decoder_layer *l, int m)
{
    static const struct mlp dense = {
        &gather, &mlp_up, &act, &mlp_down, &scatter, "gu", "act", "mlp",
    };
    struct scope s = l->divided;
    s.prefix = arena_text(s.g->arena, "%s.mlp", s.prefix);
    return mlp_record(&s, &dense, l->config->hidden, m);
}
