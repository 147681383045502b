/* precision.c - types of values and of state, in one place.
 *
 * Stands alone because it is all that tells a GPU's plan from the CPU's. */
#include "plan/precision.h"

enum { NARROW = 16 };                   /* columns: less is a statistic */

static bool computed_low(const struct graph *g, const struct value *v)
{
    if (v->dtype != DTYPE_F32 || !v->grad || v->node < 0)
        return false;
    return v->ndim >= 2 && v->dim[v->ndim - 1] >= NARROW &&
           strcmp(g->node[v->node].kind->component, "router") != 0;
}

void precision_values(const struct precision *x, struct graph *g)
{
    for (int64_t i = 0; i < g->nvalue; i++)
        if (computed_low(g, &g->value[i]))
            g->value[i].dtype = x->value;
}

/* Masters join the state: buffers that live for the run come first, so everything
 * after them moves up. */
static void masters_insert(struct plan *p, struct arena *a)
{
    int64_t whole = 0;
    int more = 0, *by = NEW(a, int, p->nbuffer);
    while (whole < p->nbuffer && p->buffer[whole].whole)
        whole++;
    for (int u = 0; u < p->graph->nunit; u++)
        more += p->gradient[u] >= 0;
    struct buffer *all = NEW(a, struct buffer, p->nbuffer + more);
    memcpy(all, p->buffer, sizeof *all * (size_t)whole);
    int64_t n = whole;
    for (int u = 0; u < p->graph->nunit; u++) {
        if (p->gradient[u] < 0)
            continue;
        struct flat f = unit_flat(p, u);
        all[n] = p->buffer[p->gradient[u]];
        all[n].kind = MEMORY_OPTIMIZER;
        all[n].name = "master";
        all[n].gradient = false;
        all[n].first = all[n].last = -1;
        all[n++].bytes = f.each * dtype_bytes(DTYPE_F32);
    }
    memcpy(&all[n], &p->buffer[whole], sizeof *all * (size_t)(p->nbuffer - whole));
    for (int64_t i = 0; i < p->nbuffer; i++)
        by[i] = i < whole ? 0 : more;
    for (int64_t i = 0; i < p->nstep; i++) {
        struct step *s = &p->step[i];
        int *lists[] = {s->in, s->out, s->din, s->dout, s->w, s->dw, &s->work};
        const int length[] = {MAX_IO,     MAX_IO,     MAX_IO, MAX_IO,
                              MAX_WEIGHT, MAX_WEIGHT, 1};
        for (int k = 0; k < COUNT(lists); k++)
            for (int j = 0; j < length[k]; j++)
                if (lists[k][j] >= 0)
                    lists[k][j] += by[lists[k][j]];
    }
    for (int i = 0; i < p->mbs * p->outputs; i++)
        if (p->output_buffer[i] >= 0)   /* else another stage makes it */
            p->output_buffer[i] += by[p->output_buffer[i]];
    p->buffer = all;
    p->nbuffer = p->buffer_room = p->nbuffer + more;
}

void precision_units(const struct precision *x, struct plan *p, struct arena *a,
                     double slack)
{
    for (int64_t i = 0; i < p->nbuffer; i++) {
        struct buffer *b = &p->buffer[i];
        if (b->unit < 0 || b->kind == MEMORY_WORKSPACE)     /* has the wire's type */
            continue;
        enum dtype d = b->kind == MEMORY_OPTIMIZER ? DTYPE_F32
                       : b->gradient               ? x->gradient
                                                   : x->value;
        b->bytes = b->bytes / dtype_bytes(DTYPE_F32) * dtype_bytes(d);
    }
    if (x->value != DTYPE_F32 && p->moments > 0)
        masters_insert(p, a);
    plan_place(p, slack);
    plan_waits(p);
}
