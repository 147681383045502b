/* sums.c - numbers of a whole row, where several ranks have its tokens.
 *
 * Router losses are products of sums over all tokens of a row, so the sums of the ranks
 * that share it meet before the product; every one of them then has the same losses.
 * The cross entropy is a sum itself: each cp rank trains on its own part, and the whole
 * is made only to be reported. */
#include "decoder/parts.h"

/* ---- sums: in sum z2 chosen rows, out the same over all ranks of the row.  What
 * follows is one loss that each rank computes, so a gradient passes as it is. ---- */

static void all_reduce(struct run *r, int i)
{
    r->ops->copy(r->stream, r->in[i], r->out[i]);
    comm_all_reduce(r->comm, r->out[i].dtype, r->out[i].data, tensor_count(r->out[i]));
}

static void sums_forward(struct run *r)
{
    for (int i = 0; i < 4; i++)
        all_reduce(r, i);
}

static void sums_backward(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (tensor_is(r->din[i]))
            r->ops->axpby(r->stream, 1, r->dout[i], r->beta[i], r->din[i]);
}

static const struct segment sums_all = {
    .name = "sums", .lane = LANE_LAYER, .component = "router", .no_grad_in = 12,
    .no_grad_out = 12, .wide_out = 15, .forward = sums_forward,
    .backward = sums_backward,
};

void decoder_sums(struct graph *g, struct router_sums *sums)
{
    if (graph_ways(g, false, AXIS_TP) * graph_ways(g, false, AXIS_CP) == 1)
        return;
    int layer = g->layers - 1;
    int64_t E = g->value[sums->chosen].dim[1];
    struct router_sums all = *sums;
    all.sum = graph_value(g, "sum_all", layer, 1, E);
    all.z2 = graph_value(g, "z2_all", layer, 1, 1);
    all.chosen = graph_value(g, "chosen_all", layer, 1, E);
    all.rows = graph_value(g, "rows_all", layer, 1, 1);
    graph_node(g, &sums_all, layer,
               LIST(sums->sum, sums->z2, sums->chosen, sums->rows),
               LIST(all.sum, all.z2, all.chosen, all.rows), EMPTY, NULL, 0);
    graph_group(g, false, ON(AXIS_TP) | ON(AXIS_CP));
    *sums = all;
}

/* ---- loss_sum: in cross_entropy of own places, out of the row; to be reported ---- */

static void loss_sum_forward(struct run *r)
{
    all_reduce(r, 0);
}

static const struct segment loss_sum = {
    .name = "loss_sum", .lane = LANE_LAYER, .component = "head", .no_grad_in = 1,
    .no_grad_out = 1, .wide_out = 1, .forward = loss_sum_forward,
};

int decoder_loss_sum(struct graph *g, int loss)
{
    if (graph_ways(g, false, AXIS_CP) == 1)
        return loss;
    int layer = g->layers - 1, whole = graph_value(g, "loss_sum", layer, 1, 1);
    graph_node(g, &loss_sum, layer, LIST(loss), LIST(whole), EMPTY, NULL, 0);
    graph_group(g, false, ON(AXIS_CP));
    return whole;
}
