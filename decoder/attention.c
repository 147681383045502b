/* attention.c - the attention half of a decoder layer, 7 segments.
 *
 *     n = norm(x)                                       [T,D]
 *     qk, v = n Wq' | n Wk', n Wv'                      [T,(H+G)K], [T,GK]
 *     qk = rope(norm of every head(qk))
 *     x = x + attention(qk, v) Wo'
 */
#include "decoder/parts.h"

static const struct segment norm = {
    .name = "norm", COMPUTE("attention"), RMSNORM,
};

/* Which heads of qk are queries, which keys: q is part 0, k is part 1. */
static struct tensor heads(const struct run *r, struct tensor qk, int part)
{
    const struct attention *a = r->attr;
    int64_t q = (int64_t)a->heads * a->head_width,
            k = (int64_t)a->groups * a->head_width;
    return part == 0 ? tensor_columns(qk, 0, q) : tensor_columns(qk, q, k);
}

/* ---- qkv: in n, out qk v, weights q k v: three on disk, q and k in one value ---- */

static void qkv_forward(struct run *r)
{
    const struct tensor y[3] = {heads(r, r->out[0], 0), heads(r, r->out[0], 1),
                                r->out[1]};
    for (int i = 0; i < 3; i++)
        r->ops->linear(r->stream, r->in[0], r->w[i], tensor_none(), 0, y[i]);
}

static void qkv_backward(struct run *r)
{
    const struct tensor dy[3] = {heads(r, r->dout[0], 0), heads(r, r->dout[0], 1),
                                 r->dout[1]};
    float beta = r->beta[0];
    for (int i = 0; i < 3; i++) {
        r->ops->linear_back(r->stream, dy[i], r->w[i], beta, r->din[0]);
        beta = 1;
    }
}

static void qkv_weight(struct run *r)
{
    const struct tensor dy[3] = {heads(r, r->dout[0], 0), heads(r, r->dout[0], 1),
                                 r->dout[1]};
    for (int i = 0; i < 3; i++)
        if (tensor_is(r->dw[i]))
            r->ops->linear_weight(r->stream, dy[i], r->in[0], r->beta_w[i], r->dw[i],
                                  tensor_none());
}

static const struct segment qkv = {
    .name = "qkv", COMPUTE("attention"), .weight_in = 1,
    .forward = qkv_forward, .backward = qkv_backward, .weight = qkv_weight,
};

/* ---- qk_norm: in qk, out normed, r of q, r of k; weights q_norm k_norm, each shared
 * by its heads ---- */

struct qk_norm { struct attention shape; float eps; };  /* shape first: see heads() */

static void qk_norm_forward(struct run *r)
{
    float eps = ((const struct qk_norm *)r->attr)->eps;
    for (int i = 0; i < 2; i++)
        r->ops->rmsnorm(r->stream, heads(r, r->in[0], i), r->w[i], eps,
                        heads(r, r->out[0], i), r->out[1 + i]);
}

static void qk_norm_backward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        r->ops->rmsnorm_back(r->stream, heads(r, r->in[0], i), r->w[i], r->out[1 + i],
                             heads(r, r->dout[0], i), r->beta[0],
                             heads(r, r->din[0], i));
}

static void qk_norm_weight(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (tensor_is(r->dw[i]))
            r->ops->rmsnorm_weight(r->stream, heads(r, r->in[0], i), r->out[1 + i],
                                   heads(r, r->dout[0], i), r->beta_w[i], r->dw[i]);
}

static const struct segment qk_norm = {
    .name = "qk_norm", COMPUTE("attention"), .no_grad_out = 6,
    .back_in = 1, .back_out = 6, .weight_in = 1, .weight_out = 6,
    .forward = qk_norm_forward, .backward = qk_norm_backward, .weight = qk_norm_weight,
};

static const struct segment rope = {
    .name = "rope", COMPUTE("attention"), ROPE,
};

static const struct segment core_attn = {
    .name = "core_attn", COMPUTE("attention"), ATTENTION,
};

static const struct segment attn_proj = {
    .name = "attn_proj", COMPUTE("attention"), LINEAR,
};

static const struct segment residual = {
    .name = "residual", COMPUTE("attention"), RESIDUAL,
};

int decoder_attention(const struct decoder_layer *l, int x, int segment,
                      struct rotary t)
{
    const struct decoder_config *c = l->config;
    const struct scope *s = &l->scope;
    struct graph *g = s->g;
    int layer = g->layers - 1;
    int64_t T = g->value[x].dim[0], D = c->width, H = c->heads, G = c->groups,
            K = c->head_width;
    struct qk_norm shape = {{c->heads, c->groups, c->head_width, true}, (float)c->eps};
    const void *attr = graph_attr(g, &shape, sizeof shape);
    int w_norm = param_vector(s, "input_layernorm.weight", D, INITIAL_ONE);
    int w_q = param_matrix(s, "self_attn.q_proj.weight", H * K, D, 0);
    int w_k = param_matrix(s, "self_attn.k_proj.weight", G * K, D, 0);
    int w_v = param_matrix(s, "self_attn.v_proj.weight", G * K, D, 0);
    int w_o = param_matrix(s, "self_attn.o_proj.weight", D, H * K, 1);
    int w_qn = param_vector(s, "self_attn.q_norm.weight", K, INITIAL_ONE);
    int w_kn = param_vector(s, "self_attn.k_norm.weight", K, INITIAL_ONE);

    int n = rmsnorm_record(g, &norm, "n", x, w_norm, c->eps);
    int qk = graph_value(g, "qk", layer, T, (H + G) * K);
    int v = graph_value(g, "v", layer, T, G * K);
    graph_node(g, &qkv, layer, LIST(n), LIST(qk, v), LIST(w_q, w_k, w_v), attr, 0);
    int normed = graph_value(g, "qk_norm", layer, T, (H + G) * K);
    int q_r = graph_value(g, "q_r", layer, T, H);
    int k_r = graph_value(g, "k_r", layer, T, G);
    graph_node(g, &qk_norm, layer, LIST(qk), LIST(normed, q_r, k_r), LIST(w_qn, w_kn),
               attr, 0);
    int turned = rope_record(g, &rope, "qk_rope", normed, t);
    int o = attention_record(g, &core_attn, turned, v, segment, &shape.shape);
    int a = linear_record(g, &attn_proj, "attn", o, w_o, NONE);
    return residual_record(g, &residual, "h", x, a);
}
