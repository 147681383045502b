/* wants.c - which values get gradients: something trainable behind, a loss ahead.
 *
 * Stands alone because freezing is decided here and nowhere else: segments only see
 * absent tensors. */
#include "graph/graph.h"

static bool node_trains(const struct graph *g, const struct node *n)
{
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE && g->param[n->w[i]].trainable)
            return true;
    return false;
}

/* Does a gradient of input i come out of node n? */
static bool passes(const struct node *n, int i)
{
    return n->in[i] != NONE && !(n->kind->no_grad_in >> i & 1) && n->kind->backward;
}

/* Forward: mark what depends on a trainable param. */
static void mark_behind(const struct graph *g, bool *behind)
{
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        bool any = node_trains(g, n);
        for (int i = 0; i < n->nin; i++)
            any |= passes(n, i) && behind[n->in[i]];
        for (int i = 0; i < n->nout; i++)
            if (n->out[i] != NONE)
                behind[n->out[i]] = any && g->value[n->out[i]].grad;
    }
}

/* Backward: mark what a loss depends on. */
static void mark_ahead(const struct graph *g, bool *ahead)
{
    for (int64_t v = 0; v < g->nvalue; v++)
        ahead[v] = g->value[v].loss;
    for (int64_t k = g->nnode; k-- > 0;) {
        const struct node *n = &g->node[k];
        bool leads = false;
        for (int i = 0; i < n->nout; i++)
            leads |= n->out[i] != NONE && g->value[n->out[i]].grad && ahead[n->out[i]];
        for (int i = 0; i < n->nin; i++)
            if (passes(n, i))
                ahead[n->in[i]] |= leads;
    }
}

void graph_wants(const struct graph *g, bool *wants)
{
    struct arena_mark m = arena_mark(g->arena);
    bool *behind = NEW(g->arena, bool, g->nvalue);
    bool *ahead = NEW(g->arena, bool, g->nvalue);
    mark_behind(g, behind);
    mark_ahead(g, ahead);
    for (int64_t v = 0; v < g->nvalue; v++)
        wants[v] = behind[v] && ahead[v];
    arena_reset(g->arena, m);
}
