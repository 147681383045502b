/* explain.c - the plan as text: the list to read and diff, the summary to decide by.
 *
 * Stands alone because golden plans pin its format. */
#include "plan/plan.h"

void plan_explain_step(const struct plan *p, int64_t step, struct text *t)
{
    const struct step *s = &p->step[step];
    const struct graph *g = p->graph;
    char what[64];
    if (s->node >= 0)
        snprintf(what, sizeof what, "L%d.%s", g->node[s->node].layer,
                 g->node[s->node].kind->name);
    else if (s->unit >= 0)
        snprintf(what, sizeof what, "%s", s->param >= 0 ? g->param[s->param].name
                                                        : g->unit[s->unit].name);
    else
        snprintf(what, sizeof what, "L%d.%s", g->value[s->value].layer,
                 g->value[s->value].name);
    text_add(t, "%5lld  %-8s%-9s%-22s", (long long)step, lane_name[s->lane],
             s->again ? "again" : step_name[s->kind], what);
    if (s->mb >= 0)
        text_add(t, "mb%-3d", s->mb);
    if (s->wire != DTYPE_F32)
        text_add(t, "%-5s", dtype_name[s->wire]);
    if (s->peer >= 0)
        text_add(t, " %s stage rank %d",
                 s->kind == STEP_SEND || s->kind == STEP_SEND_GRAD ? "to" : "from",
                 s->peer);
    for (int l = 0; l < LANES; l++)
        if (s->wait[l] > 0)
            text_add(t, " after %s %lld", lane_name[l], (long long)s->wait[l] - 1);
    while (t->size > 0 && t->at[t->size - 1] == ' ')
        t->at[--t->size] = 0;
}

void plan_explain(const struct plan *p, struct text *t, int64_t limit)
{
    text_add(t, "%lld step(s), %lld buffer(s), device %lld byte(s) (state %lld), "
                "host %lld byte(s)\n",
             (long long)p->nstep, (long long)p->nbuffer, (long long)p->bytes,
             (long long)p->state_bytes, (long long)p->host_bytes);
    for (int64_t i = 0; i < p->nstep && (limit < 0 || i < limit); i++) {
        plan_explain_step(p, i, t);
        text_add(t, "\n");
    }
}

/* ---- memory ---- */

/* The component of the first segment that uses each parameter. */
static const char **param_components(const struct graph *g, struct arena *a)
{
    const char **component = NEW(a, const char *, g->nparam);
    for (int64_t k = g->nnode; k-- > 0;)
        for (int i = 0; i < g->node[k].nw; i++)
            if (g->node[k].w[i] != NONE)
                component[g->node[k].w[i]] = g->node[k].kind->component;
    return component;
}

static void row_add(struct memory_row *row, const char *component, enum memory kind,
                    int64_t bytes)
{
    while (strcmp(row->component, component) != 0)
        row++;                          /* graph_check: components are known */
    row->bytes[kind] += bytes;
}

struct table {
    const struct plan *p;
    struct memory_row *row;
    const char **component;             /* [params] */
    int *param, *param_next;            /* [units], [params]: lists, -1 ends */
};

static void table_add(const struct table *t, const struct buffer *x)
{
    const struct graph *g = t->p->graph;
    int64_t left = (x->bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (left == 0)
        return;
    if (x->component) {
        row_add(t->row, x->component, x->kind, left);
        return;
    }
    /* A unit's: every parameter its share, the first also the padding. */
    int64_t bytes = left, count = g->unit[x->unit].count;
    int first = t->param[x->unit];
    for (int i = t->param_next[first]; i >= 0; i = t->param_next[i]) {
        double share = (double)g->param[i].count / (double)count;
        int64_t part = (int64_t)((double)bytes * share);
        const char *component = t->component[i] ? t->component[i] : components[0];
        row_add(t->row, component, x->kind, part);
        left -= part;
    }
    row_add(t->row, t->component[first] ? t->component[first] : components[0], x->kind,
            left);
}

/* The step at which most host bytes are parked. */
static int64_t host_peak(const struct plan *p, struct arena *a)
{
    int64_t *change = NEW(a, int64_t, p->nstep + 2), live = 0, most = 0, step = -1;
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        if (x->kind != MEMORY_HOST)
            continue;
        change[x->first] += x->bytes;
        change[x->last + 1] -= x->bytes;
    }
    for (int64_t i = 0; i < p->nstep; i++) {
        live += change[i];
        if (live <= most)
            continue;
        most = live;
        step = i;
    }
    return step;
}

int plan_memory(const struct plan *p, struct arena *a, struct memory_row **rows)
{
    const struct graph *g = p->graph;
    int count = 0;
    while (components[count])
        count++;
    struct table t = {.p = p, .row = NEW(a, struct memory_row, count),
                      .component = param_components(g, a),
                      .param = NEW(a, int, g->nunit),
                      .param_next = NEW(a, int, g->nparam)};
    for (int i = 0; i < count; i++)
        t.row[i].component = components[i];
    memset(t.param, -1, sizeof *t.param * (size_t)g->nunit);
    for (int i = (int)g->nparam; i-- > 0;) {
        t.param_next[i] = t.param[g->param[i].unit];
        t.param[g->param[i].unit] = i;
    }
    int64_t host = host_peak(p, a);
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        int64_t step = x->kind == MEMORY_HOST ? host : p->peak_step;
        if (x->whole || (x->first >= 0 && x->first <= step && step <= x->last))
            table_add(&t, x);
    }
    *rows = t.row;
    return count;
}


static void summary_memory(const struct plan *p, struct text *t)
{
    struct memory_row *row, sum = {0};
    int rows = plan_memory(p, t->arena, &row);
    bool large = p->bytes >= (int64_t)1 << 26;
    double unit = large ? 1024.0 * 1024.0 : 1024.0;
    text_add(t, "memory at the peak, %s (step %lld)\n%-11s", large ? "MiB" : "KiB",
             (long long)p->peak_step, "");
    for (int k = 0; k < MEMORIES; k++)
        text_add(t, " %12s", memory_name[k]);
    text_add(t, " %12s\n", "device");
    for (int i = 0; i <= rows; i++) {
        const struct memory_row *r = i < rows ? &row[i] : &sum;
        int64_t device = 0;
        for (int k = 0; k < MEMORIES; k++)
            device += k == MEMORY_HOST ? 0 : r->bytes[k];
        if (i < rows && device + r->bytes[MEMORY_HOST] == 0)
            continue;
        text_add(t, "%-11s", i < rows ? r->component : "all");
        for (int k = 0; k < MEMORIES; k++) {
            text_add(t, " %12.1f", (double)r->bytes[k] / unit);
            sum.bytes[k] += i < rows ? r->bytes[k] : 0;
        }
        text_add(t, " %12.1f\n", (double)device / unit);
    }
    text_add(t, "allocated: device %lld byte(s) (%.2f%% above the live peak), "
                "host %lld byte(s)\n", (long long)p->bytes,
             100.0 * (double)(p->bytes - p->live_bytes) / (double)MAX(p->live_bytes, 1),
             (long long)p->host_bytes);
}

void plan_summary(const struct plan *p, struct text *t)
{
    int64_t waits = 0;
    for (int64_t i = 0; i < p->nstep; i++)
        for (int l = 0; l < LANES; l++)
            waits += p->step[i].wait[l] > 0;
    summary_memory(p, t);
    text_add(t, "%lld step(s), %lld wait(s):", (long long)p->nstep, (long long)waits);
    for (int l = 0; l < LANES; l++)
        text_add(t, "%s %s %lld", l ? "," : "", lane_name[l], (long long)p->length[l]);
    text_add(t, "\n");
    for (int64_t i = 0; i < p->ntally; i++) {
        const struct tally *x = &p->tally[i];
        text_add(t, "%8lld x %-9s %s.%s\n", (long long)x->count,
                 x->again ? "again" : step_name[x->kind], x->tower, x->name);
    }
}
