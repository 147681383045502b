/* shared.c - the shared expert of an MoE layer: an MLP that every token goes to, behind
 * a gate of one number a token.
 *
 *     z = m g'                                [T,1]
 *     moe = routed + sigmoid(z) mlp(m)        [T,D]
 *
 * Stands alone because no token is dispatched to it: like a dense layer's MLP it is in
 * every rank of the dense view, its hidden columns divided over tp. */
#include "decoder/parts.h"

static const struct segment shared_gather = {
    .name = "shared_gather", .component = "shared", GATHER,
};

static const struct segment shared_up = {
    .name = "shared_up", COMPUTE("shared"), MLP_UP,
};

static const struct segment shared_act = {
    .name = "shared_act", COMPUTE("shared"), SWIGLU,
};

static const struct segment shared_down = {
    .name = "shared_down", COMPUTE("shared"), LINEAR,
};

static const struct segment shared_scatter = {
    .name = "shared_scatter", .component = "shared", SCATTER,
};

static const struct segment shared_gate = {
    .name = "shared_gate", COMPUTE("shared"), LINEAR, .wide_out = 1,
};

/* ---- shared_add: in routed shared z, out moe ---- */

static void add_forward(struct run *r)
{
    r->ops->gate(r->stream, r->in[0], r->in[1], r->in[2], r->out[0]);
}

static void add_backward(struct run *r)
{
    if (tensor_is(r->din[0]))
        r->ops->axpby(r->stream, 1, r->dout[0], r->beta[0], r->din[0]);
    if (tensor_is(r->din[1]) || tensor_is(r->din[2]))
        r->ops->gate_back(r->stream, r->in[1], r->in[2], r->dout[0], r->beta[1],
                          r->din[1], r->beta[2], r->din[2]);
}

static const struct segment shared_add = {
    .name = "shared_add", COMPUTE("shared"), .back_in = 6, .forward = add_forward,
    .backward = add_backward,
};

/* While rows go to their experts: up, in backward too; while they come back: down.
 * What talks itself is out of the way, before or after.  Gradients of m add up in the
 * order gate, up, routed rows: where the last is a collective (a gather), backward of
 * up goes beside the other one. */
static void beside(struct graph *g, int first, const struct dispatch *d)
{
    int up_back = d->way == ALLTOALL ? d->go : d->back;
    const struct { const struct segment *kind; int forward, backward; } place[] = {
        {&shared_gather, d->begin, up_back},
        {&shared_up, d->go, up_back},
        {&shared_act, d->go, d->back},
        {&shared_down, d->back, d->back},
        {&shared_scatter, d->back, NONE},
    };
    for (int k = first; k < g->nnode; k++)
        for (int i = 0; i < COUNT(place); i++)
            if (g->node[k].kind == place[i].kind)
                graph_beside(g, k, place[i].forward, place[i].backward);
}

int decoder_shared(const struct decoder_layer *l, const struct dispatch *d, int m,
                   int routed)
{
    static const struct mlp shared = {
        &shared_gather, &shared_up, &shared_act, &shared_down, &shared_scatter,
        "shared_gu", "shared_act", "shared",
    };
    struct graph *g = l->scope.g;
    int layer = g->layers - 1;
    struct scope s = l->scope;
    s.unit = graph_unit(g, "shared", layer, PART_EXPERTS, 0, false);
    int w_gate = param_matrix(&s, "mlp.shared_expert_gate.weight", 1, l->config->width,
                              -1);
    struct scope divided = scope_divided(&s);
    divided.prefix = arena_text(g->arena, "%s.mlp.shared_expert", s.prefix);
    int first = (int)g->nnode;
    int x = mlp_record(&divided, &shared, l->config->shared_hidden, m);
    if (d->go != NONE)
        beside(g, first, d);
    int z = linear_record(g, &shared_gate, "shared_z", m, w_gate, NONE);
    int y = graph_value(g, "moe", layer, g->value[m].dim[0], l->config->width);
    graph_node(g, &shared_add, layer, LIST(routed, x, z), LIST(y), EMPTY, NULL, 0);
    return y;
}
