/* view.c - from buffers to tensors, once a step, without deciding anything.
 *
 * Stands alone because the run loop and the dry count both do exactly this. */
#include "run/view.h"

struct views views_make(struct arena *a, const struct plan *p)
{
    const struct graph *g = p->graph;
    struct views v = {.plan = p, .value = NEW(a, struct tensor, g->nvalue),
                      .param = NEW(a, struct tensor, g->nparam)};
    for (int64_t i = 0; i < g->nvalue; i++) {
        v.value[i] = tensor_dense(NULL, g->value[i].dtype, g->value[i].ndim,
                                  g->value[i].dim);
        v.value[i].room = g->value[i].room;
    }
    for (int64_t i = 0; i < g->nparam; i++)
        v.param[i] = tensor_dense(NULL, unit_dtype(g, g->param[i].unit),
                                  g->param[i].nrows, g->param[i].rows);
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
    const struct buffer *b = &v->plan->buffer[buffer];
    struct tensor t = v->param[param];
    t.dtype = b->dtype;                 /* a gradient's may not be the weight's */
    int64_t offset = v->plan->graph->param[param].offset * dtype_bytes(t.dtype);
    t.data = slab ? slab + b->offset + offset : NULL;
    return t;
}

void pass_run(struct pass *x, const struct views *v, const struct step *s, char *slab)
{
    const struct plan *p = v->plan;
    const struct node *n = &p->graph->node[s->node];
    struct run *r = &x->run;
    for (int i = 0; i < n->nin; i++) {
        r->in[i] = view_value(v, slab, n->in[i], s->in[i]);
        r->din[i] = view_value(v, slab, n->in[i], s->din[i]);
        r->beta[i] = s->beta[i];
    }
    for (int i = 0; i < n->nout; i++) {
        r->out[i] = view_value(v, slab, n->out[i], s->out[i]);
        r->dout[i] = view_value(v, slab, n->out[i], s->dout[i]);
    }
    for (int i = 0; i < n->nw; i++) {
        r->w[i] = view_param(v, slab, n->w[i], s->w[i]);
        r->dw[i] = view_param(v, slab, n->w[i], s->dw[i]);
        r->beta_w[i] = s->beta_w[i];
    }
    /* Absent is what the last node had beyond this one's own. */
    for (int i = n->nin; i < x->nin; i++)
        r->in[i] = r->din[i] = tensor_none();
    for (int i = n->nout; i < x->nout; i++)
        r->out[i] = r->dout[i] = tensor_none();
    for (int i = n->nw; i < x->nw; i++)
        r->w[i] = r->dw[i] = tensor_none();
    x->nin = n->nin;
    x->nout = n->nout;
    x->nw = n->nw;

    r->work = tensor_none();
    if (s->work >= 0)
        r->work = tensor_1d(slab ? slab + p->buffer[s->work].offset : NULL, DTYPE_U8,
                            n->work);
    r->attr = n->attr;
    (s->kind == STEP_FORWARD    ? n->kind->forward
     : s->kind == STEP_BACKWARD ? n->kind->backward
                                : n->kind->weight)(r);
}
