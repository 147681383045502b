/* block.c - one pre-norm block of the vision tower, 11 segments.
 *
 *     x = x + proj(attention(rope(qkv(LN(x)))))
 *     x = x + fc2(gelu_tanh(fc1(LN(x))))
 *
 * Heads and hidden columns are divided over tp ranks, rows between them. */
#include "vision/parts.h"

static const struct segment gather = {
    .name = "gather", .component = "vision", GATHER,
};

static const struct segment scatter = {
    .name = "scatter", .component = "vision", SCATTER,
};

static const struct segment bias = {
    .name = "bias", COMPUTE("vision"), BIAS,
};

static const struct segment norm = {
    .name = "norm", COMPUTE("vision"), LAYERNORM,
};

/* ---- qkv: in n bound, out qk v; one weight q | k | v of equally many rows, and its
 * bias ---- */

static struct tensor slice(struct tensor w, bool v)
{
    if (!tensor_is(w))
        return w;
    int64_t D = w.dim[0] / 3;
    return v ? tensor_rows(w, 2 * D, D) : tensor_rows(w, 0, 2 * D);
}

static void qkv_forward(struct run *r)
{
    for (int v = 0; v < 2; v++)
        r->ops->linear(r->stream, r->in[0], slice(r->w[0], v), slice(r->w[1], v), 0,
                       tensor_live(r->out[v], r->in[1], 1));
}

static void qkv_backward(struct run *r)
{
    float beta = r->beta[0];
    for (int v = 0; v < 2; v++) {
        r->ops->linear_back(r->stream, tensor_live(r->dout[v], r->in[1], 1),
                            slice(r->w[0], v), beta, r->din[0]);
        beta = 1;
    }
}

static void qkv_weight(struct run *r)
{
    REQUIRE(r->beta_w[0] == r->beta_w[1]);      /* one unit, written together */
    for (int v = 0; v < 2; v++)
        r->ops->linear_weight(r->stream, tensor_live(r->dout[v], r->in[1], 1), r->in[0],
                              r->beta_w[0], slice(r->dw[0], v), slice(r->dw[1], v));
}

static const struct segment qkv = {
    .name = "qkv", COMPUTE("vision"), .no_grad_in = 2, .back_in = 2, .weight_in = 3,
    .forward = qkv_forward, .backward = qkv_backward, .weight = qkv_weight,
};

static const struct segment rope = {
    .name = "rope", COMPUTE("vision"), ROPE,
};

static const struct segment core_attn = {
    .name = "core_attn", COMPUTE("vision"), ATTENTION,
};

static const struct segment attn_proj = {
    .name = "attn_proj", COMPUTE("vision"), LINEAR,
};

static const struct segment residual = {
    .name = "residual", COMPUTE("vision"), RESIDUAL,
};

static const struct segment mlp_norm = {
    .name = "mlp_norm", COMPUTE("vision"), LAYERNORM,
};

static const struct segment mlp_up = {
    .name = "mlp_up", COMPUTE("vision"), LINEAR,
};

static const struct segment act = {
    .name = "act", COMPUTE("vision"), GELU,
};

static const struct segment mlp_down = {
    .name = "mlp_down", COMPUTE("vision"), LINEAR,
};

int vision_block(struct graph *g, const struct vision_config *c, int index, int x,
                 int image, struct rotary t)
{
    int64_t D = c->width, F = c->hidden;
    int layer = graph_layer(g), heads = c->heads / graph_ways(g, false, AXIS_TP);
    struct scope s = {
        g, graph_unit(g, "block", layer, PART_VISION, 0, false),
        arena_text(g->arena, "model.visual.blocks.%d", index), VISION_DEVIATION,
    };
    struct scope d = scope_divided(&s);
    int w_norm = param_vector(&s, "norm1.weight", D, INITIAL_ONE);
    int b_norm = param_vector(&s, "norm1.bias", D, INITIAL_ZERO);
    int w_qkv = param_blocks(&d, "attn.qkv.weight", 3, 3 * D, D);
    int b_qkv = param_vector_blocks(&d, "attn.qkv.bias", 3, 3 * D, INITIAL_ZERO);
    int w_proj = param_matrix(&d, "attn.proj.weight", D, D, 1);
    int b_proj = param_vector(&s, "attn.proj.bias", D, INITIAL_ZERO);
    int w_mlp = param_vector(&s, "norm2.weight", D, INITIAL_ONE);
    int b_mlp = param_vector(&s, "norm2.bias", D, INITIAL_ZERO);
    int w_up = param_matrix(&d, "mlp.linear_fc1.weight", F, D, 0);
    int b_up = param_vector(&d, "mlp.linear_fc1.bias", F, INITIAL_ZERO);
    int w_down = param_matrix(&d, "mlp.linear_fc2.weight", D, F, 1);
    int b_down = param_vector(&s, "mlp.linear_fc2.bias", D, INITIAL_ZERO);

    int n = layernorm_record(g, &norm, "n", x, D, w_norm, b_norm, c->eps);
    n = gather_record(g, &gather, n);
    int64_t P = g->value[n].dim[0], own = g->param[w_proj].rows[1];
    int qk = graph_value(g, "qk", layer, P, 2 * own);
    int v = graph_value(g, "v", layer, P, own);
    graph_node(g, &qkv, layer, LIST(n, graph_live_of(g, n)), LIST(qk, v),
               LIST(w_qkv, b_qkv), NULL, 0);
    int turned = rope_record(g, &rope, "qk_rope", qk, t);
    int o = attention_record(g, &core_attn, turned, v, image, &(struct attention){
        .heads = heads, .groups = heads, .head_width = c->width / c->heads,
    });
    int a = linear_scatter_record(g, &attn_proj, &scatter, &bias, "attn", o, w_proj,
                                  b_proj);
    int h = residual_record(g, &residual, "h", x, a);

    int m = layernorm_record(g, &mlp_norm, "m", h, D, w_mlp, b_mlp, c->eps);
    m = gather_record(g, &gather, m);
    int up = linear_record(g, &mlp_up, "up", m, w_up, b_up);
    int hidden = gelu_record(g, &act, "act", up, false);
    int down = linear_scatter_record(g, &mlp_down, &scatter, &bias, "mlp", hidden,
                                     w_down, b_down);
    return residual_record(g, &residual, "x", h, down);
}
