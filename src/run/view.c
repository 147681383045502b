/* view.c - from buffers to tensors, once a step, without deciding anything.
 *
 * Stands alone because the run loop and the dry count both do exactly this. */
#include "run/view.h"

struct views views_make(struct arena *a, const struct plan *p)
{
    const struct graph *g = p->graph;
    struct views v = {.plan = p, .value = NEW(a, struct tensor, g->nvalue),
                      .param = NEW(a, struct tensor, g->nparam)};
    for (int64_t i = 0; i < g->nvalue; i++)
        v.value[i] = tensor_dense(NULL, g->value[i].dtype, g->value[i].ndim,
                                  g->value[i].dim);
    for (int64_t i = 0; i < g->nparam; i++)
        v.param[i] = tensor_dense(NULL, DTYPE_F32, g->param[i].nrows, g->param[i].rows);
    return v;
}

struct tensor view_value(const struct views *v, char *slab, int value, int buffer)
{
    if (buffer < 0)
        return tensor_none();
    struct tensor t = v->value[value];
    t.data = slab ? slab + v->plan->buffer[buffer].offset : NULL;
    return t;
}

struct tensor view_param(const struct views *v, char *slab, int param, int buffer)
{
    if (buffer < 0)
        return tensor_none();
    struct tensor t = v->param[param];
    int64_t offset = v->plan->graph->param[param].offset * dtype_bytes(t.dtype);
    t.data = slab ? slab + v->plan->buffer[buffer].offset + offset : NULL;
    return t;
}

void view_run(const struct views *v, const struct step *s, char *slab, struct run *x)
{
    const struct plan *p = v->plan;
    const struct node *n = &p->graph->node[s->node];
    for (int i = 0; i < n->nin; i++) {
        x->in[i] = view_value(v, slab, n->in[i], s->in[i]);
        x->din[i] = view_value(v, slab, n->in[i], s->din[i]);
        x->beta[i] = s->beta[i];
    }
    for (int i = 0; i < n->nout; i++) {
        x->out[i] = view_value(v, slab, n->out[i], s->out[i]);
        x->dout[i] = view_value(v, slab, n->out[i], s->dout[i]);
    }
    for (int i = 0; i < n->nw; i++) {
        x->w[i] = view_param(v, slab, n->w[i], s->w[i]);
        x->dw[i] = view_param(v, slab, n->w[i], s->dw[i]);
        x->beta_w[i] = s->beta_w[i];
    }
    /* What another node left beyond this one's own entries is absent here. */
    for (int i = n->nin; i < MAX_IO && x->in[i].ndim + x->din[i].ndim > 0; i++)
        x->in[i] = x->din[i] = tensor_none();
    for (int i = n->nout; i < MAX_IO && x->out[i].ndim + x->dout[i].ndim > 0; i++)
        x->out[i] = x->dout[i] = tensor_none();
    for (int i = n->nw; i < MAX_WEIGHT; i++)
        x->w[i] = x->dw[i] = tensor_none();
    x->work = tensor_none();
    if (s->work >= 0)
        x->work = tensor_1d(slab ? slab + p->buffer[s->work].offset : NULL, DTYPE_U8,
                            n->work);
    x->attr = n->attr;
    (s->kind == STEP_FORWARD    ? n->kind->forward
     : s->kind == STEP_BACKWARD ? n->kind->backward
                                : n->kind->weight)(x);
}
