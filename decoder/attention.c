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

static const struct segment gather = {
    .name = "gather", .component = "attention", GATHER,
};

static const struct segment scatter = {
    .name = "scatter", .component = "attention", SCATTER,
};

/* Which heads of qk are queries, which keys: q is part 0, k is part 1. */
static struct tensor heads(const struct run *r, struct tensor qk, int part)
{
    const struct attention *a = r->attr;
    int64_t q = (int64_t)a->heads * a->head_width,
            k = (int64_t)a->groups * a->head_width;
    return part == 0 ? tensor_columns(qk, 0, q) : tensor_columns(qk, q, k);
}

/* ---- qkv: in n bound, out qk v, weights q k v: three on disk, q and k in one
 * value ---- */

/* Of tp ranks that outnumber the key heads several share one: K and V weights are then
 * whole, and a rank reads the rows of its heads alone.  Their gradient is what its own
 * query heads give; the holders, all tp ranks, add that up like any other. */
struct heads {
    struct attention shape;             /* of this rank; first: see heads() */
    float eps;
    int64_t from;                       /* its first row of the K, V weights here */
};

static struct tensor own_rows(const struct run *r, struct tensor w, int i,
                              struct tensor y)
{
    return i == 0 ? w : tensor_rows(w, ((const struct heads *)r->attr)->from, y.dim[1]);
}

/* The rows of q, k and v (or their gradients) that are live. */
static void live_heads(const struct run *r, const struct tensor y[2],
                       struct tensor out[3])
{
    struct tensor qk = tensor_live(y[0], r->in[1], 1);
    out[0] = heads(r, qk, 0);
    out[1] = heads(r, qk, 1);
    out[2] = tensor_live(y[1], r->in[1], 1);
}

static void qkv_forward(struct run *r)
{
    struct tensor y[3];
    live_heads(r, r->out, y);
    for (int i = 0; i < 3; i++)
        r->ops->linear(r->stream, r->in[0], own_rows(r, r->w[i], i, y[i]),
                       tensor_none(), 0, y[i]);
}

static void qkv_backward(struct run *r)
{
    struct tensor dy[3];
    live_heads(r, r->dout, dy);
    float beta = r->beta[0];
    for (int i = 0; i < 3; i++) {
        r->ops->linear_back(r->stream, dy[i], own_rows(r, r->w[i], i, dy[i]), beta,
                            r->din[0]);
        beta = 1;
    }
}

/* dw = beta dw, in the rows of other ranks' heads. */
static void fade_others(struct run *r, int i, int64_t from, int64_t to)
{
    struct tensor dw = r->dw[i];
    struct tensor part[2] = {tensor_rows(dw, 0, from),
                             tensor_rows(dw, to, dw.dim[0] - to)};
    for (int k = 0; k < 2; k++)
        if (part[k].dim[0] > 0)
            r->ops->axpby(r->stream, 0, part[k], r->beta_w[i], part[k]);
}

static void qkv_weight(struct run *r)
{
    struct tensor dy[3];
    live_heads(r, r->dout, dy);
    for (int i = 0; i < 3; i++) {
        if (!tensor_is(r->dw[i]))
            continue;
        r->ops->linear_weight(r->stream, dy[i], r->in[0], r->beta_w[i],
                              own_rows(r, r->dw[i], i, dy[i]), tensor_none());
        int64_t from = ((const struct heads *)r->attr)->from;
        if (i > 0)
            fade_others(r, i, from, from + dy[i].dim[1]);
    }
}

static const struct segment qkv = {
    .name = "qkv", COMPUTE("attention"), .no_grad_in = 2, .back_in = 2, .weight_in = 3,
    .forward = qkv_forward, .backward = qkv_backward, .weight = qkv_weight,
};

/* ---- qk_norm: in qk, out normed, r of q, r of k; weights q_norm k_norm, each shared
 * by its heads ---- */

static void qk_norm_forward(struct run *r)
{
    float eps = ((const struct heads *)r->attr)->eps;
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
    .name = "qk_norm", COMPUTE("attention"), .no_grad_out = 6, .wide_out = 6,
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

/* qk, v at own places to o there. */
static int core_record(const struct decoder_layer *l, int qk, int v,
                       const struct seen *seen, const struct attention *shape)
{
    struct graph *g = l->scope.g;
    if (graph_ways(g, false, AXIS_CP) > 1)
        return decoder_context_attention(g, qk, v, seen, shape, l->options->cp_ring);
    int cache = seen->rows ? cache_record(g, qk, v, seen, shape) : NONE;
    if (seen->own_from != NONE)
        return cached_attention_record(g, qk, cache, seen, shape);
    return attention_record(g, &core_attn, qk, v, seen->segment, shape);
}

int decoder_attention(const struct decoder_layer *l, int x, const struct seen *seen,
                      struct rotary t)
{
    const struct decoder_config *c = l->config;
    struct graph *g = l->scope.g;
    int layer = g->layers - 1, tp = graph_ways(g, false, AXIS_TP);
    int64_t D = c->width, K = c->head_width;
    bool shared = c->groups % tp != 0;  /* fewer key heads than ranks */
    const struct scope *s = &l->scope, *d = &l->divided, *kv = shared ? s : d;
    REQUIRE(c->heads % tp == 0 && (!shared || tp % c->groups == 0));
    struct heads own = {
        {c->heads / tp, shared ? 1 : c->groups / tp, c->head_width, true},
        (float)c->eps,
        shared ? graph_at(g, false, AXIS_TP) / (tp / c->groups) * K : 0,
    };
    int64_t q = own.shape.heads * K, k = own.shape.groups * K;
    const void *attr = graph_attr(g, &own, sizeof own);
    int w_norm = param_vector(s, "input_layernorm.weight", D, INITIAL_ONE);
    int w_q = param_matrix(d, "self_attn.q_proj.weight", c->heads * K, D, 0);
    int w_k = param_matrix(kv, "self_attn.k_proj.weight", c->groups * K, D, 0);
    int w_v = param_matrix(kv, "self_attn.v_proj.weight", c->groups * K, D, 0);
    int w_o = param_matrix(d, "self_attn.o_proj.weight", D, c->heads * K, 1);
    int w_qn = param_vector(s, "self_attn.q_norm.weight", K, INITIAL_ONE);
    int w_kn = param_vector(s, "self_attn.k_norm.weight", K, INITIAL_ONE);

    int n = rmsnorm_record(g, &norm, "n", x, w_norm, c->eps);
    n = gather_record(g, &gather, n);
    int64_t T = g->value[n].dim[0];
    int qk = graph_value(g, "qk", layer, T, q + k);
    int v = graph_value(g, "v", layer, T, k);
    graph_node(g, &qkv, layer, LIST(n, graph_live_of(g, n)), LIST(qk, v),
               LIST(w_q, w_k, w_v), attr, 0);
    int normed = graph_value(g, "qk_norm", layer, T, q + k);
    int q_r = graph_value(g, "q_r", layer, T, own.shape.heads);
    int k_r = graph_value(g, "k_r", layer, T, own.shape.groups);
    graph_node(g, &qk_norm, layer, LIST(qk), LIST(normed, q_r, k_r), LIST(w_qn, w_kn),
               attr, 0);
    int turned = rope_record(g, &rope, "qk_rope", normed, t);
    int o = core_record(l, turned, v, seen, &own.shape);
    int a = linear_scatter_record(g, &attn_proj, &scatter, NULL, "attn", o, w_o, NONE);
    return residual_record(g, &residual, "h", x, a);
}
