/* experts.c - the mixture of experts of a decoder layer, and its losses.
 *
 *     z = m Wr'                               [T,E]
 *     pi, index, weight = top A of softmax(z)
 *     routed = rows of m sorted by expert     [R,D], R = T A, none dropped (dispatch.c)
 *     gu = routed Wgu[e]';  act = silu(g) u;  y = act Wdown[e]'
 *     mlp[t] = sum over the A of weight y     [T,D], and of a shared expert (shared.c)
 *
 * The auxiliary losses are products of sums over all layers, so topk passes running
 * sums along from layer to layer; their gradients flow back through the chain
 * unchanged. */
#include "decoder/parts.h"

static const struct segment router = {
    .name = "router", COMPUTE("router"), LINEAR, .wide_out = 1, .wide_weight = 1,
};

/* ---- topk: in z live bias chosen sum z2 rows, out pi index weight chosen sum z2 rows.
 * Never run again: what was chosen must stay chosen. ---- */

enum { Z, LIVE_IN, BIAS_IN, CHOSEN_IN, SUM_IN, Z2_IN, ROWS_IN };
enum { PI, INDEX, WEIGHT, CHOSEN, SUM, Z2, ROWS };

struct topk { int moe; };               /* its row of router_bias */

static void topk_forward(struct run *r)
{
    const struct topk *a = r->attr;
    struct tensor bias = r->in[BIAS_IN];
    if (tensor_is(bias))
        bias = tensor_reshape(tensor_rows(bias, a->moe, 1), 1, &bias.dim[1]);
    r->ops->router(r->stream, r->in[Z], bias, r->in[LIVE_IN], r->out[PI], r->out[INDEX],
                   r->out[WEIGHT]);
    r->ops->router_sums(r->stream, r->in[Z], r->out[PI], r->out[INDEX], r->in[LIVE_IN],
                        r->in[CHOSEN_IN], r->in[SUM_IN], r->in[Z2_IN], r->in[ROWS_IN],
                        r->out[CHOSEN], r->out[SUM], r->out[Z2], r->out[ROWS]);
}

/* d sum_in = d sum_out */
static void pass_back(struct run *r, int in, int out)
{
    if (tensor_is(r->din[in]))
        r->ops->axpby(r->stream, 1, r->dout[out], r->beta[in], r->din[in]);
}

static void topk_backward(struct run *r)
{
    if (tensor_is(r->din[Z])) {
        REQUIRE(r->beta[Z] == 0);       /* its only reader */
        r->ops->router_back(r->stream, r->in[Z], r->out[PI], r->out[INDEX],
                            r->out[WEIGHT], r->in[LIVE_IN], r->dout[WEIGHT],
                            r->dout[SUM], r->dout[Z2], r->din[Z]);
    }
    pass_back(r, SUM_IN, SUM);
    pass_back(r, Z2_IN, Z2);
}

#define TOPK                                                                           \
    .name = "topk", COMPUTE("router"), .always = true, .forward = topk_forward,        \
    .backward = topk_backward, .back_in = 1 << Z | 1 << LIVE_IN,                       \
    .back_out = 1 << PI | 1 << INDEX | 1 << WEIGHT, .wide_out = FIXED_OUT |            \
    1 << WEIGHT | 1 << SUM | 1 << Z2
enum {
    FIXED_IN = 1 << LIVE_IN | 1 << BIAS_IN | 1 << CHOSEN_IN | 1 << ROWS_IN,
    FIXED_OUT = 1 << PI | 1 << INDEX | 1 << CHOSEN | 1 << ROWS,
};

static const struct segment topk = {
    TOPK, .no_grad_in = FIXED_IN, .no_grad_out = FIXED_OUT,
};

/* The same where router losses are only reported: then no sum carries a gradient. */
static const struct segment topk_reported = {
    TOPK, .no_grad_in = FIXED_IN | 1 << SUM_IN | 1 << Z2_IN,
    .no_grad_out = FIXED_OUT | 1 << SUM | 1 << Z2,
};

/* ---- expert products: in x bound, out y, weight [E,N,D] ---- */

static void grouped_forward(struct run *r)
{
    r->ops->grouped(r->stream, r->in[0], r->w[0], r->in[1], r->out[0]);
}

static void grouped_backward(struct run *r)
{
    r->ops->grouped_back(r->stream, r->dout[0], r->w[0], r->in[1], r->beta[0],
                         r->din[0]);
}

static void grouped_weight(struct run *r)
{
    r->ops->grouped_weight(r->stream, r->dout[0], r->in[0], r->in[1], r->beta_w[0],
                           r->dw[0]);
}

#define GROUPED                                                                        \
    .forward = grouped_forward, .backward = grouped_backward,                          \
    .weight = grouped_weight, .no_grad_in = 2, .back_in = 2, .weight_in = 3

static const struct segment expert_up = {
    .name = "expert_up", COMPUTE("experts"), GROUPED,
};

static const struct segment act = {
    .name = "act", COMPUTE("experts"), SWIGLU,
};

static const struct segment expert_down = {
    .name = "expert_down", COMPUTE("experts"), GROUPED,
};

static int grouped_record(struct graph *g, const struct segment *kind, const char *name,
                          int x, int bound, int w)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, g->value[x].dim[0], g->param[w].rows[1]);
    g->value[y].room = g->value[x].room;
    graph_node(g, kind, layer, LIST(x, bound), LIST(y), LIST(w), NULL, 0);
    return y;
}

int decoder_experts(const struct decoder_layer *l, int moe, int m, int live, int bias,
                    struct router_sums *sums)
{
    const struct decoder_config *c = l->config;
    struct graph *g = l->scope.g;
    int layer = g->layers - 1;
    int64_t T = g->value[m].dim[0], D = c->width, E = c->experts, A = c->active,
            F = c->expert_hidden;
    struct scope s = l->scope;
    s.unit = graph_unit(g, "router", layer, PART_ROUTER, 0, false);
    int w_router = param_matrix(&s, "mlp.gate.weight", E, D, -1);
    int unit = graph_unit(g, "experts", layer, PART_EXPERTS,
                          ON(AXIS_EP) | ON(AXIS_ETP), true);
    struct param p = {.ndim = 3, .transposed = true, .decay = true,
                      .on = {ON(AXIS_EP), ON(AXIS_ETP), 0}, .fused = {1, 2, 1},
                      .initial = INITIAL_NORMAL, .deviation = s.deviation};
    p.name = arena_text(g->arena, "%s.mlp.experts.gate_up_proj", s.prefix);
    memcpy(p.dim, (int64_t[]){E, D, 2 * F}, 3 * sizeof *p.dim);
    int w_up = graph_param(g, unit, p);
    p.name = arena_text(g->arena, "%s.mlp.experts.down_proj", s.prefix);
    memcpy(p.on, (unsigned[]){ON(AXIS_EP), 0, ON(AXIS_ETP)}, sizeof p.on);
    p.fused[1] = 1;
    memcpy(p.dim, (int64_t[]){E, F, D}, 3 * sizeof *p.dim);
    int w_down = graph_param(g, unit, p);

    int z = linear_record(g, &router, "z", m, w_router, NONE);
    int pi = graph_value(g, "pi", layer, T, E);
    int index = graph_value_of(g, "index", layer, DTYPE_I32, 2, (int64_t[]){T, A});
    int weight = graph_value(g, "weight", layer, T, A);
    struct router_sums next = {
        graph_value(g, "chosen", layer, 1, E), graph_value(g, "sum", layer, 1, E),
        graph_value(g, "z2", layer, 1, 1), graph_value(g, "rows", layer, 1, 1),
        sums->trained, sums->overflow,
    };
    graph_node(g, sums->trained ? &topk : &topk_reported, layer,
               LIST(z, live, bias, sums->chosen, sums->sum, sums->z2, sums->rows),
               LIST(pi, index, weight, next.chosen, next.sum, next.z2, next.rows),
               EMPTY, graph_attr(g, &(struct topk){moe}, sizeof(struct topk)), 0);
    *sums = next;

    struct dispatch d = decoder_dispatch(l, m, index, weight, &sums->overflow);
    int gu = grouped_record(g, &expert_up, "gu", d.rows, d.bound, w_up);
    int hidden = swiglu_record(g, &act, "act", gu);
    g->value[hidden].room = g->value[gu].room;
    int y = grouped_record(g, &expert_down, "expert", hidden, d.bound, w_down);
    int routed = decoder_combine(l, &d, y);
    return c->shared_hidden > 0 ? decoder_shared(l, &d, m, routed) : routed;
}

/* ---- router_loss: in sum z2 chosen rows share, out loss aux z_loss ---- */

struct coefs { float aux, z; };

static void router_loss_forward(struct run *r)
{
    const struct coefs *c = r->attr;
    r->ops->router_loss(r->stream, r->in[2], r->in[0], r->in[1], r->in[3], r->in[4],
                        c->aux, c->z, r->out[0], r->out[1], r->out[2]);
}

static void router_loss_backward(struct run *r)
{
    const struct coefs *c = r->attr;
    /* Sums come from one node: wanted together; and this is their last reader. */
    REQUIRE(tensor_is(r->din[0]) && tensor_is(r->din[1]));
    REQUIRE(r->beta[0] == 0 && r->beta[1] == 0);
    r->ops->router_loss_back(r->stream, r->in[2], r->in[3], r->in[4], c->aux, c->z,
                             r->din[0], r->din[1]);
}

static const struct segment router_loss = {
    .name = "router_loss", COMPUTE("router"), .no_grad_in = 28, .no_grad_out = 6,
    .wide_out = 7, .back_in = 28, .forward = router_loss_forward,
    .backward = router_loss_backward,
};

void decoder_router_loss(struct graph *g, const struct router_sums *sums, int share,
                         const struct decoder_options *o, struct decoder_graph *out)
{
    int layer = g->layers - 1;
    struct coefs c = {(float)o->aux_coef, (float)o->z_coef};
    out->router_loss = graph_value(g, "router_loss", layer, 1, 1);
    out->aux = graph_value(g, "aux", layer, 1, 1);
    out->z_loss = graph_value(g, "z_loss", layer, 1, 1);
    if (sums->trained)
        graph_loss(g, out->router_loss);
    graph_node(g, &router_loss, layer,
               LIST(sums->sum, sums->z2, sums->chosen, sums->rows, share),
               LIST(out->router_loss, out->aux, out->z_loss), EMPTY,
               graph_attr(g, &c, sizeof c), 0);
}
