/* profile.c - measures training steps by the plan's own events and adds them up. */
#include "train/profile.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "train/optimizer.h"

#include <stdlib.h>

enum { ROWS_MOST = 512 };

struct profiler {
    struct session s;
    struct loader *loader;
    struct feed *feed;
    const struct row **row;
    struct profile *out;
    struct arena *a;
    double useful;                      /* tokens of the measured steps */
    double total;                       /* seconds of the measured steps */
};

/* ---- adding up ---- */

static struct profile_row *row_of(struct profile *p, const char *component,
                                  const char *segment)
{
    for (int64_t i = 0; i < p->nrow; i++)
        if (!strcmp(p->row[i].component, component) &&
            !strcmp(p->row[i].segment, segment))
            return &p->row[i];
    REQUIRE(p->nrow < ROWS_MOST);
    p->row[p->nrow] = (struct profile_row){.component = component, .segment = segment};
    return &p->row[p->nrow++];
}

static void add(struct profile *p, const char *component, const char *segment,
                double seconds)
{
    row_of(p, component, segment)->ms += 1e3 * seconds;
}

static void add_step(struct profile *p, const struct plan *plan, const struct step *s,
                     double seconds)
{
    if (s->node < 0) {
        bool load = s->kind == STEP_LOAD;
        add(p, load ? "load" : "state", load ? "batch" : step_name[s->kind], seconds);
        return;
    }
    const struct segment *k = plan->graph->node[s->node].kind;
    struct profile_row *r = row_of(p, k->component, k->name);
    double ms = 1e3 * seconds;
    r->ms += ms;
    r->steps++;
    if (s->kind == STEP_FORWARD)
        r->forward_ms += ms;
    else if (s->kind == STEP_BACKWARD)
        r->backward_ms += ms;
    else
        r->weight_ms += ms;
}

struct event { double start, end; int64_t step; };

static int by_start(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* A moment belongs to the compute lane where that works, else to the first other lane
 * that does, else to idle: `from` .. `to` is cut at every event's edge. */
static void spans_add(struct profiler *t, double from, double to)
{
    const struct plan *plan = t->s.plan;
    const struct span *span = machine_spans(t->s.machine);
    struct arena_mark mark = arena_mark(t->a);
    struct event *e = NEW(t->a, struct event, plan->nstep);
    for (int64_t i = 0; i < plan->nstep; i++)
        e[i] = (struct event){span[i].start, span[i].end, i};
    qsort(e, (size_t)plan->nstep, sizeof *e, by_start);
    for (int64_t i = 0; i < plan->nstep; i++)
        if (plan->step[e[i].step].lane == LANE_COMPUTE)
            add_step(t->out, plan, &plan->step[e[i].step], e[i].end - e[i].start);
    /* Gaps of the compute lane: covered by another lane, or idle. */
    double at = from;
    for (int64_t i = 0; i <= plan->nstep; i++) {
        bool last = i == plan->nstep;
        if (!last && plan->step[e[i].step].lane != LANE_COMPUTE)
            continue;
        double until = last ? to : e[i].start;
        for (int64_t k = 0; k < plan->nstep && at < until; k++) {
            const struct step *s = &plan->step[e[k].step];
            double begin = MAX(e[k].start, at), end = MIN(e[k].end, until);
            if (s->lane == LANE_COMPUTE || end <= begin)
                continue;
            add(t->out, "idle", "waiting", begin - at);
            add_step(t->out, plan, s, end - begin);
            at = end;
        }
        if (until > at)
            add(t->out, "idle", "waiting", until - at);
        at = last ? until : MAX(until, e[i].end);
    }
    arena_reset(t->a, mark);
}

/* ---- measuring ---- */

static bool step_measure(struct profiler *t, int64_t step, bool counts)
{
    struct session *s = &t->s;
    struct ledger sum = {0};
    double began = clock_seconds(), waited = loader_wait_seconds(t->loader), at, done;
    for (int i = 0; i < s->plan->mbs; i++) {
        bool end;
        if (!loader_next(t->loader, &t->row[i], &end))
            return false;
        ledger_add(&sum, &t->row[i]->ledger);
    }
    double fetched = clock_seconds();
    waited = loader_wait_seconds(t->loader) - waited;
    for (int i = 0; i < s->plan->mbs; i++)
        feed_row(&t->feed[i], s->machine, &s->model, i, t->row[i],
                 (double)sum.supervised, (double)ledger_useful(&sum), s->router_bias,
                 NULL);
    at = clock_seconds();
    if (!machine_step(s->machine))
        return false;
    done = clock_seconds();
    struct update u;
    if (!optimizer_step(s->recipe, &s->model, s->machine, s->ops, &s->stream,
                        schedule_rate(s->recipe, step, 0), step - 1, &u))
        return false;
    double end = clock_seconds();
    if (!counts)
        return true;
    add(t->out, "data wait", "loader", waited);
    add(t->out, "host", "bind", fetched - began - waited + at - fetched);
    spans_add(t, at, done);
    add(t->out, "optimizer", "adamw", end - done);
    t->total += end - began;
    t->useful += (double)ledger_useful(&sum);
    return true;
}

static int by_size(const void *a, const void *b)
{
    const struct profile_row *x = a, *y = b;
    return x->ms > y->ms ? -1 : x->ms < y->ms;
}

static void finish(struct profiler *t, int64_t steps)
{
    struct profile *p = t->out;
    double n = (double)steps, covered = 0;
    for (int64_t i = 0; i < p->nrow; i++) {
        struct profile_row *r = &p->row[i];
        r->ms /= n, r->forward_ms /= n, r->backward_ms /= n, r->weight_ms /= n;
        r->steps /= steps;
        covered += r->ms;
    }
    qsort(p->row, (size_t)p->nrow, sizeof *p->row, by_size);
    p->steps = steps;
    p->step_ms = 1e3 * t->total / n;
    p->covered = p->step_ms > 0 ? covered / p->step_ms : 0;
    p->useful_tokens_per_s = t->total > 0 ? t->useful / t->total : 0;
}

/* One step's rows read, decoded and packed in this thread alone. */
static bool decode_measure(struct profiler *t)
{
    struct arena a = arena_make("decode");
    struct loader_options o = t->s.loader;
    struct loader *l = NULL;
    const struct row *row;
    bool end, ok;
    o.workers = 0;
    ok = loader_open(&a, &o, NULL, &l);
    double began = clock_seconds();
    for (int i = 0; ok && i < t->s.plan->mbs; i++)
        ok = loader_next(l, &row, &end);
    t->out->decode_ms = 1e3 * (clock_seconds() - began);
    if (l)
        loader_close(l);
    arena_free(&a);
    return ok;
}

static bool measure(struct profiler *t, int64_t warmup, int64_t steps,
                    const char *trace)
{
    struct session *s = &t->s;
    t->feed = NEW(&s->arena, struct feed, s->plan->mbs);
    t->row = NEW(&s->arena, const struct row *, s->plan->mbs);
    for (int i = 0; i < s->plan->mbs; i++)
        t->feed[i] = feed_make(&s->arena, &s->model);
    if (!loader_open(&s->arena, &s->loader, NULL, &t->loader))
        return false;
    machine_trace(s->machine, true);
    for (int64_t i = 1; i <= warmup + steps; i++)
        if (!step_measure(t, i, i > warmup))
            return false;
    finish(t, steps);
    if (!decode_measure(t))
        return false;
    if (!trace)
        return true;
    struct text text = text_make(&s->arena);
    trace_json(s->plan, machine_spans(s->machine), &text);
    return file_replace(trace, text.at, text.size);
}

bool profile_run(struct arena *a, const struct recipe *r, int64_t warmup, int64_t steps,
                 const char *trace, struct profile *out)
{
    struct profiler t = {.out = out, .a = a};
    *out = (struct profile){.row = NEW(a, struct profile_row, ROWS_MOST)};
    if (session_ranks(r) > 1) {
        fail("profile: measures one rank, the recipe has %d; set parallel.ranks, pp, "
             "dp, cp, tp, ep and etp to 1", session_ranks(r));
        return fail_kind(FAULT_USAGE);
    }
    bool ok = session_open(&t.s, r, true) && session_data(&t.s) &&
              session_machine(&t.s) && measure(&t, warmup, steps, trace);
    if (t.loader)
        loader_close(t.loader);
    session_close(&t.s);
    return ok;
}

/* ---- printing ---- */

static double component_ms(const struct profile *p, const char *component)
{
    double sum = 0;
    for (int64_t i = 0; i < p->nrow; i++)
        if (!strcmp(p->row[i].component, component))
            sum += p->row[i].ms;
    return sum;
}

static bool first_of(const struct profile *p, int64_t i)
{
    for (int64_t k = 0; k < i; k++)
        if (!strcmp(p->row[k].component, p->row[i].component))
            return false;
    return true;
}

void profile_print(const struct profile *p, struct text *t)
{
    text_add(t,
             "step %.2f ms over %lld steps, %.0f useful tokens/s; rows cover %.1f%%; "
             "decoding and packing a step's rows takes %.2f ms of one core\n\n",
             p->step_ms, (long long)p->steps, p->useful_tokens_per_s, 100 * p->covered,
             p->decode_ms);
    text_add(t, "%-28s%10s%8s%10s%10s%10s%8s\n", "component / segment", "ms", "%",
             "forward", "backward", "weight", "steps");
    for (int64_t i = 0; i < p->nrow; i++) {
        const char *component = p->row[i].component;
        if (!first_of(p, i))
            continue;
        double sum = component_ms(p, component);
        text_add(t, "%-28s%10.2f%8.1f\n", component, sum, 100 * sum / p->step_ms);
        for (int64_t k = i; k < p->nrow; k++) {
            const struct profile_row *r = &p->row[k];
            if (!strcmp(r->component, component))
                text_add(t, "  %-26s%10.2f%8.1f%10.2f%10.2f%10.2f%8lld\n", r->segment,
                         r->ms, 100 * r->ms / p->step_ms, r->forward_ms, r->backward_ms,
                         r->weight_ms, (long long)r->steps);
        }
    }
}
