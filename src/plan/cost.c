/* cost.c - work over rates: seconds of steps, and what of them hides behind what.
 *
 * Stands alone because it is the only file that believes in a hardware table. */
#include "plan/cost.h"

#include <stdlib.h>

static double pairs_of(const struct workload *load, const struct node *n)
{
    return strcmp(n->tower, "vision") == 0 ? load->vision_attention : load->attention;
}

double workload_flops(const struct workload *load, const struct node *n,
                      const struct work *w)
{
    return w->flops - w->grouped * (1 - load->routed) -
           w->attention * (1 - pairs_of(load, n));
}

static double products(const struct step *s, const struct node *n, const struct work *w,
                       const struct hardware *h, const struct workload *load)
{
    double attention = s->kind == STEP_FORWARD ? h->attention : h->attention_back;
    return ((w->flops - w->grouped - w->attention) / h->products +
            w->grouped * load->routed / h->grouped +
            w->attention * pairs_of(load, n) / attention) /
           h->peak;
}

static double messages(const struct work *w, const struct hardware *h)
{
    double latency = w->across > 0   ? h->across_latency
                     : w->inside > 0 ? h->inside_latency
                                     : 0;
    return (double)w->calls * latency +
           MAX(w->inside / (h->inside * h->inside_share),
               w->across / (h->across * h->across_share));
}

/* Seconds without messages (counts of a balanced alltoall are of routed rows already).
 * Of rows that experts have room for only those move that are routed; weights, and rows
 * on the tokens' side, are there whatever the room is. */
static double work_cost(const struct plan *p, const struct step *s,
                        const struct work *w, const struct hardware *h,
                        const struct workload *load)
{
    double bandwidth = h->bandwidth * h->bandwidth_share;
    if (s->lane == LANE_COPY)
        return w->bytes / 2 / (h->host * h->host_share);
    if (s->node < 0)
        return w->bytes / bandwidth;
    const struct node *n = &p->graph->node[s->node];
    double bytes = w->bytes - w->room * (1 - load->routed);
    return MAX(products(s, n, w, h, load), bytes / bandwidth);
}

void plan_cost(const struct plan *p, const struct work *work, const struct hardware *h,
               const struct workload *load, double *cost, double *talk)
{
    for (int64_t i = 0; i < p->nstep; i++) {
        talk[i] = messages(&work[i], h);
        cost[i] = h->launch + talk[i] + work_cost(p, &p->step[i], &work[i], h, load);
    }
}

double update_cost(const struct plan *p, const struct hardware *h)
{
    double bytes = 0;
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        if (x->whole && x->kind == MEMORY_OPTIMIZER)
            bytes += 2.0 * (double)x->bytes;
        if (x->whole && x->kind == MEMORY_GRADIENT)     /* again for the norm */
            bytes += 2.0 * (double)x->bytes;
    }
    for (int u = 0; u < p->graph->nunit && p->moments > 0; u++)
        if (p->moment[0][u] >= 0)
            bytes += (double)p->buffer[p->weight[u]].bytes;
    return bytes / (h->bandwidth * h->bandwidth_share);
}

/* ---- what hides behind what ---- */

struct span { double from, to; };

static int by_start(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static double covered(struct span *span, int64_t count)
{
    double sum = 0, end = 0;
    qsort(span, (size_t)count, sizeof *span, by_start);
    for (int64_t i = 0; i < count; i++) {
        sum += MAX(0, span[i].to - MAX(span[i].from, end));
        end = MAX(end, span[i].to);
    }
    return sum;
}

/* Seconds at which the rank computes, talks, or either.  A step of the compute lane
 * talks last. */
enum { MATH = 1, TALK = 2 };
static double time_covered(const struct plan *p, const double *cost, const double *talk,
                           const double *end, unsigned what, struct span *span)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->nstep; i++) {
        enum lane lane = p->step[i].lane;
        if (lane == LANE_COPY)
            continue;
        double middle = end[i] - cost[i];
        if (lane == LANE_COMPUTE)
            middle = talk ? end[i] - talk[i] : end[i];
        if (what & MATH && middle > end[i] - cost[i])
            span[n++] = (struct span){end[i] - cost[i], middle};
        if (what & TALK && end[i] > middle)
            span[n++] = (struct span){middle, end[i]};
    }
    return covered(span, n);
}

struct forecast plan_forecast(const struct plan *p, struct arena *scratch,
                              const double *cost, const double *talk, double update)
{
    struct arena_mark mark = arena_mark(scratch);
    double *end = NEW(scratch, double, p->nstep);
    struct span *span = NEW(scratch, struct span, 2 * p->nstep);
    struct prediction x = plan_simulate(p, scratch, cost, end);
    struct forecast f = {.update = update, .seconds = x.seconds + update};
    double either = time_covered(p, cost, talk, end, MATH | TALK, span);
    memcpy(f.busy, x.busy, sizeof f.busy);
    f.compute = time_covered(p, cost, talk, end, MATH, span);
    f.communication = time_covered(p, cost, talk, end, TALK, span);
    f.exposed = either - f.compute;
    f.idle = x.seconds - either;
    arena_reset(scratch, mark);
    return f;
}
