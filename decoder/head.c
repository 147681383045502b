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
    .wide_out = 3, .back_in = 7, .back_out = 2, .forward = head_forward,
    .backward = head_backward,
};

/* ---- the same where tp ranks share the vocabulary: head makes what a share knows, an
 * all-gather of two numbers a row brings the shares together, head_sum the loss.  Every
 * rank computes that loss, so the gradient of its own part is whole: no sum. ---- */

struct words { int64_t first; };        /* of this share */

static int64_t first_word(const struct run *r)
{
    return ((const struct words *)r->attr)->first;
}

static void part_forward(struct run *r)
{
    r->ops->head_part(r->stream, r->in[0], r->w[0], r->in[1], first_word(r), r->work,
                      r->out[0]);
}

static void part_backward(struct run *r)
{
    r->ops->head_part_back(r->stream, r->in[0], r->w[0], r->in[1], first_word(r),
                           r->out[0], r->dout[0], r->work, r->beta[0], r->din[0],
                           r->beta_w[0], r->dw[0]);
}

static const struct segment head_part = {
    .name = "head", COMPUTE("head"), .fused = true, .no_grad_in = 2, .back_in = 3,
    .back_out = 1, .wide_out = 1, .forward = part_forward, .backward = part_backward,
};

static void part_gather_backward(struct run *r)
{
    int64_t T = r->din[0].dim[0];
    r->ops->axpby(r->stream, 1, tensor_rows(r->dout[0], r->comm->rank * T, T),
                  r->beta[0], r->din[0]);
}

static const struct segment part_gather = {
    .name = "gather", .lane = LANE_LAYER, .component = "head",
    .wide_out = 1, .forward = gather_forward, .backward = part_gather_backward,
};

static void sum_forward(struct run *r)
{
    r->ops->head_sum(r->stream, r->in[0], r->in[1], r->in[2], r->out[0]);
}

static void sum_backward(struct run *r)
{
    REQUIRE(r->beta[0] == 0);           /* its only reader */
    r->ops->head_sum_back(r->stream, r->in[0], r->in[1], r->in[2], r->dout[0],
                          r->din[0]);
}

static const struct segment head_sum = {
    .name = "head_sum", COMPUTE("head"), .no_grad_in = 6, .back_in = 7, .wide_out = 1,
    .forward = sum_forward, .backward = sum_backward,
};

static const struct segment gather = {
    .name = "gather", .component = "head", GATHER,
};

static const struct segment own = {
    .name = "own", COMPUTE("head"), OWN,
};

/* ---- total: in cross_entropy router_loss, out their sum, to be reported ---- */

static void total_forward(struct run *r)
{
    r->ops->add(r->stream, r->in[0], r->in[1], r->out[0]);
}

static const struct segment total = {
    .name = "total", COMPUTE("head"), .no_grad_in = 3, .no_grad_out = 1, .wide_out = 1,
    .forward = total_forward,
};

/* ---- logits: in x, out [T,V]; to look at, never to train on ---- */

static const struct segment logits = {
    .name = "logits", COMPUTE("head"), .no_grad_in = 1, .no_grad_out = 1, .wide_out = 1,
    .forward = linear_forward,
};

/* ---- best: in x want, out best logit, weight [V,D] ---- */

static void best_forward(struct run *r)
{
    r->ops->head_best(r->stream, r->in[0], r->w[0], r->in[1], r->work, r->out[0],
                      r->out[1]);
}

static const struct segment best = {
    .name = "best", COMPUTE("head"), .no_grad_in = 3, .no_grad_out = 3, .wide_out = 3,
    .forward = best_forward,
};

/* x [T,D], the rows of the tp group; returns the cross entropy of these rows. */
static int cross_entropy(struct graph *g, int x, int w, int target, int scale)
{
    int layer = g->layers - 1, tp = graph_ways(g, false, AXIS_TP);
    int64_t T = g->value[x].dim[0], V = g->param[w].rows[0];
    int64_t work = head_work(T, g->value[x].dim[1], V);
    int loss = graph_value(g, "cross_entropy", layer, 1, 1);
    graph_loss(g, loss);
    if (tp == 1) {
        int lse = graph_value(g, "head_lse", layer, T, 1);
        graph_node(g, &head, layer, LIST(x, target, scale), LIST(loss, lse), LIST(w),
                   NULL, work);
        return loss;
    }
    struct words words = {V * graph_at(g, false, AXIS_TP)};
    int part = graph_value(g, "head_part", layer, T, 2);
    graph_node(g, &head_part, layer, LIST(x, target), LIST(part), LIST(w),
               graph_attr(g, &words, sizeof words), work);
    int parts = graph_value(g, "head_parts", layer, T * tp, 2);
    graph_node(g, &part_gather, layer, LIST(part), LIST(parts), EMPTY, NULL, 0);
    graph_group(g, false, ON(AXIS_TP));
    graph_node(g, &head_sum, layer, LIST(parts, target, scale), LIST(loss), EMPTY, NULL,
               0);
    return loss;
}

static void loss_record(struct graph *g, int x, int w, int64_t T,
                        struct decoder_graph *out)
{
    int layer = g->layers - 1;
    struct places p = places_of_row(g, T);
    int target = graph_input(g, "target", DTYPE_I32, 1, (int64_t[]){T});
    int scale = graph_input(g, "scale", DTYPE_F32, 2, (int64_t[]){1, 1});
    target = own_record(g, &own, target, &p);
    x = gather_record(g, &gather, x);
    out->cross_entropy = decoder_loss_sum(g, cross_entropy(g, x, w, target, scale));
    out->loss = out->cross_entropy;
    if (out->router_loss == NONE)
        return;
    out->loss = graph_value(g, "loss", layer, 1, 1);
    graph_node(g, &total, layer, LIST(out->cross_entropy, out->router_loss),
               LIST(out->loss), EMPTY, NULL, 0);
}

/* Of own places the best of own words: who wants the best of all compares. */
static void best_record(struct graph *g, int x, int w, int64_t T,
                        struct decoder_graph *out)
{
    int layer = g->layers - 1;
    struct places p = places_of_row(g, T);
    int64_t own_T = places_count(&p), V = g->param[w].rows[0];
    int want = graph_input(g, "want", DTYPE_I32, 1, (int64_t[]){T});
    want = own_record(g, &own, want, &p);
    x = gather_record(g, &gather, x);
    out->best = graph_value_of(g, "best", layer, DTYPE_I32, 1, (int64_t[]){own_T});
    out->best_logit = graph_value(g, "best_logit", layer, own_T, 1);
    out->best_first = (int)V * graph_at(g, false, AXIS_TP);
    graph_node(g, &best, layer, LIST(x, want), LIST(out->best, out->best_logit),
               LIST(w), NULL, head_work(own_T, g->value[x].dim[1], V));
}

void decoder_head(struct graph *g, const struct decoder_config *c, int64_t T, int x,
                  int w, const struct decoder_options *o, struct decoder_graph *out)
{
    if (o->loss)
        loss_record(g, x, w, T, out);
    /* Words are looked at by ranks that have all of them, and all places. */
    REQUIRE(!o->logits ||
            (g->value[x].dim[0] == T && g->param[w].rows[0] == c->vocabulary));
    if (o->logits)
        out->logits = linear_record(g, &logits, "logits", x, w, NONE);
    if (o->best)
        best_record(g, x, w, T, out);
}
