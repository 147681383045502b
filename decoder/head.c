/* head.c - from the last rows to a loss, to logits, or to chosen tokens. */
#include "decoder/parts.h"

/* ---- head: in x target scale, out cross_entropy lse, weight [V,D].  One pass gives
 * both gradients, since logits exist only one chunk at a time. ---- */

static void head_forward(struct run *r)
{
    r->ops->head_loss(r->stream, r->in[0], r->w[0], r->in[1], r->in[2], r->work,
                      r->out[0], r->out[1]);
}

static void head_backward(struct run *r)
{
    r->ops->head_loss_back(r->stream, r->in[0], r->w[0], r->in[1], r->in[2], r->out[1],
                           r->dout[0], r->work, r->beta[0], r->din[0], r->beta_w[0],
                           r->dw[0]);
}

static const struct segment head = {
    .name = "head", COMPUTE("head"), .fused = true, .no_grad_in = 6, .no_grad_out = 2,
    .back_in = 7, .back_out = 2, .forward = head_forward, .backward = head_backward,
};

/* ---- total: in cross_entropy router_loss, out their sum, to be reported ---- */

static void total_forward(struct run *r)
{
    r->ops->add(r->stream, r->in[0], r->in[1], r->out[0]);
}

static const struct segment total = {
    .name = "total", COMPUTE("head"), .no_grad_in = 3, .no_grad_out = 1,
    .forward = total_forward,
};

/* ---- logits: in x, out [T,V]; to look at, never to train on ---- */

static const struct segment logits = {
    .name = "logits", COMPUTE("head"), .no_grad_in = 1, .no_grad_out = 1,
    .forward = linear_forward,
};

/* ---- best: in x want, out best logit, weight [V,D] ---- */

static void best_forward(struct run *r)
{
    r->ops->head_best(r->stream, r->in[0], r->w[0], r->in[1], r->work, r->out[0],
                      r->out[1]);
}

static const struct segment best = {
    .name = "best", COMPUTE("head"), .no_grad_in = 3, .no_grad_out = 3,
    .forward = best_forward,
};

static void loss_record(struct graph *g, int x, int w, int64_t work,
                        struct decoder_graph *out)
{
    int layer = g->layers - 1;
    int64_t T = g->value[x].dim[0];
    int target = graph_input(g, "target", DTYPE_I32, 1, (int64_t[]){T});
    int scale = graph_input(g, "scale", DTYPE_F32, 2, (int64_t[]){1, 1});
    int lse = graph_value(g, "head_lse", layer, T, 1);
    out->loss = out->cross_entropy = graph_value(g, "cross_entropy", layer, 1, 1);
    graph_loss(g, out->cross_entropy);
    graph_node(g, &head, layer, LIST(x, target, scale), LIST(out->cross_entropy, lse),
               LIST(w), NULL, work);
    if (out->router_loss == NONE)
        return;
    out->loss = graph_value(g, "loss", layer, 1, 1);
    graph_node(g, &total, layer, LIST(out->cross_entropy, out->router_loss),
               LIST(out->loss), EMPTY, NULL, 0);
}

void decoder_head(struct graph *g, const struct decoder_config *c, int x, int w,
                  const struct decoder_options *o, struct decoder_graph *out)
{
    int layer = g->layers - 1;
    int64_t T = g->value[x].dim[0], work = head_work(T, c->width, c->vocabulary);
    if (o->loss)
        loss_record(g, x, w, work, out);
    if (o->logits)
        out->logits = linear_record(g, &logits, "logits", x, w, NONE);
    if (!o->best)
        return;
    int want = graph_input(g, "want", DTYPE_I32, 1, (int64_t[]){T});
    out->best = graph_value_of(g, "best", layer, DTYPE_I32, 1, (int64_t[]){T});
    out->best_logit = graph_value(g, "best_logit", layer, T, 1);
    graph_node(g, &best, layer, LIST(x, want), LIST(out->best, out->best_logit),
               LIST(w), NULL, work);
}
