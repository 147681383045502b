/* profile.c - measures training steps by the plan's own events and adds them up. */
#include "tools/profile.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "train/data.h"
#include "train/layout.h"
#include "train/trainer.h"

#include <stdlib.h>

enum { ROWS_MOST = 512 };

struct profiler {                       /* of one rank */
    struct trainer t;
    struct profile *out;
    double useful;                      /* tokens of the measured steps, all ranks */
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
static void spans_add(struct profiler *p, double *from, double *to)
{
    const struct session *s = &p->t.s;
    const struct plan *plan = s->plan;
    const struct span *span = machine_spans(s->machine);
    struct arena a = arena_make("spans");
    struct event *e = NEW(&a, struct event, plan->nstep);
    for (int64_t i = 0; i < plan->nstep; i++)
        e[i] = (struct event){span[i].start, span[i].end, i};
    qsort(e, (size_t)plan->nstep, sizeof *e, by_start);
    *from = e[0].start, *to = e[0].end;
    for (int64_t i = 0; i < plan->nstep; i++) {
        *to = MAX(*to, e[i].end);
        if (plan->step[e[i].step].lane != LANE_COMPUTE)
            continue;
        add_step(p->out, plan, &plan->step[e[i].step], e[i].end - e[i].start);
        p->out->compute_ms += 1e3 * (e[i].end - e[i].start);
    }
    /* Gaps of the compute lane: covered by another lane, or idle. */
    double at = *from;
    for (int64_t i = 0, first = 0; i <= plan->nstep; i++) {
        bool last = i == plan->nstep;
        if (!last && plan->step[e[i].step].lane != LANE_COMPUTE)
            continue;
        double until = last ? *to : e[i].start;
        while (first < plan->nstep && e[first].end <= at)
            first++;
        for (int64_t k = first;
             k < plan->nstep && at < until && e[k].start < until; k++) {
            const struct step *other = &plan->step[e[k].step];
            double begin = MAX(e[k].start, at), end = MIN(e[k].end, until);
            if (other->lane == LANE_COMPUTE || end <= begin)
                continue;
            add(p->out, "idle", "waiting", begin - at);
            add_step(p->out, plan, other, end - begin);
            p->out->exposed_ms += 1e3 * (end - begin);
            p->out->idle_ms += 1e3 * (begin - at);
            at = end;
        }
        if (until > at) {
            add(p->out, "idle", "waiting", until - at);
            p->out->idle_ms += 1e3 * (until - at);
        }
        at = last ? until : MAX(until, e[i].end);
    }
    arena_free(&a);
}

/* ---- measuring ---- */

/* One step as training does it; what is not the plan lies before and after it. */
static bool step_measure(struct profiler *p, bool counts)
{
    struct trainer *t = &p->t;
    bool leads = session_leads(&t->s);
    struct metrics m;
    double began = clock_seconds(), from, to;
    if (!step_begin(t))
        return false;
    double ready = clock_seconds();
    double waited = leads ? t->batch->waited : 0;       /* of rank 0, for rows */
    if (!step_run(t, &m))
        return false;
    double end = clock_seconds();
    if (m.skipped_steps) {              /* and no step of another cost is shown */
        fail("profile: the gradients of step %lld are not finite, it updated nothing",
             (long long)m.step);
        return fail_kind(FAULT_NOT_FINITE);
    }
    if (!counts)
        return true;
    spans_add(p, &from, &to);
    waited = leads ? waited : ready - began;    /* for rank 0's */
    add(p->out, "data wait", leads ? "loader" : "rank 0's rows", waited);
    add(p->out, "host", "bind", from - began - waited);
    add(p->out, "optimizer", "adamw", end - to);
    p->out->data_ms += 1e3 * waited;
    p->total += end - began;
    p->useful += (double)ledger_useful(&m.ledger);
    return true;
}

static int by_size(const void *a, const void *b)
{
    const struct profile_row *x = a, *y = b;
    return x->ms > y->ms ? -1 : x->ms < y->ms;
}

static void finish(const struct profiler *t, int64_t steps)
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
    p->compute_ms /= n, p->exposed_ms /= n, p->idle_ms /= n, p->data_ms /= n;
    p->steps = steps;
    p->step_ms = 1e3 * t->total / n;
    p->covered = p->step_ms > 0 ? covered / p->step_ms : 0;
    p->useful_tokens_per_s = t->total > 0 ? t->useful / t->total : 0;
}

/* One step's rows read, decoded and packed in this thread alone. */
static bool decode_measure(const struct profiler *p)
{
    struct arena a = arena_make("decode");
    struct loader_options o = p->t.s.loader;
    struct loader *l = NULL;
    const struct row *row;
    bool end, ok;
    o.workers = 0;
    ok = loader_open(&a, &o, NULL, &l);
    double began = clock_seconds();
    for (int64_t i = 0; ok && i < p->t.s.recipe->batch_rows; i++)
        ok = loader_next(l, &row, &end);
    p->out->decode_ms = 1e3 * (clock_seconds() - began);
    if (l)
        loader_close(l);
    arena_free(&a);
    return ok;
}

struct job {
    const struct recipe *recipe;
    const struct profile_options *o;
    struct profiler *profiler;          /* [ranks] */
};

static bool prepare(struct trainer *t, const struct recipe *r, const struct rank *rank)
{
    struct session *s = &t->s;
    bool ok = session_join(s, r, true, rank, rank ? &t->batch->crew : NULL) &&
              (!session_leads(s) || session_data(s)) && session_machine(s);
    if (!ok)
        return false;
    t->feed = NEW(&s->arena, struct feed, s->plan->mbs);
    for (int i = 0; i < s->plan->mbs; i++)
        t->feed[i] = feed_make(&s->arena, &s->model);
    return step_costs(t) &&
           (!session_leads(s) ||
            loader_open(&s->arena, &s->loader, NULL, &t->batch->loader));
}

static bool trace_write(struct profiler *p, const char *path)
{
    struct text text = text_make(&p->t.s.arena);
    trace_json(p->t.s.plan, machine_spans(p->t.s.machine), &text);
    return file_replace(path, text.at, text.size);
}

static bool rank_profile(const struct job *j, int index, const struct rank *rank)
{
    struct profiler *p = &j->profiler[index];
    const struct profile_options *o = j->o;
    if (!prepare(&p->t, j->recipe, rank))
        return false;
    machine_trace(p->t.s.machine, true);
    for (int64_t i = 0; i < o->warmup + o->steps; i++)
        if (!step_measure(p, i >= o->warmup))
            return false;
    finish(p, o->steps);
    return (!session_leads(&p->t.s) || decode_measure(p)) &&
           (!o->trace || o->rank != index || trace_write(p, o->trace));
}

static bool rank_main(struct rank *rank, void *arg)
{
    return rank_profile(arg, rank->rank, rank);
}

bool profile_run(struct arena *a, const struct recipe *r,
                 const struct profile_options *o, struct profile **out)
{
    int ranks = session_ranks(r);
    struct batch *batch = NEW(a, struct batch, 1);
    if (o->rank >= ranks) {
        fail("profile: there is no rank %lld of %d rank(s), numbered from 0",
             (long long)o->rank, ranks);
        return fail_kind(FAULT_USAGE);
    }
    if (!session_layout(r, &batch->crew.mesh))
        return false;
    batch->row = NEW(a, const struct row *, r->batch_rows);
    struct profile *p = *out = NEW(a, struct profile, ranks);
    struct job job = {r, o, NEW(a, struct profiler, ranks)};
    for (int i = 0; i < ranks; i++) {
        p[i] = (struct profile){.ranks = ranks,
                                .row = NEW(a, struct profile_row, ROWS_MOST)};
        job.profiler[i] = (struct profiler){.t = {.batch = batch}, .out = &p[i]};
    }
    bool ok = ranks == 1 ? rank_profile(&job, 0, NULL)
                         : world_run(ranks, 0, rank_main, &job);
    if (batch->loader)
        loader_close(batch->loader);
    for (int i = 0; i < ranks; i++)
        session_close(&job.profiler[i].t.s);
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

/* Where the ranks differ: who computes, who waits. */
static void ranks_print(const struct profile *p, struct text *t)
{
    text_add(t, "%-8s%12s%12s%12s%12s\n", "rank", "compute ms", "exposed", "idle",
             "data wait");
    for (int i = 0; i < p->ranks; i++)
        text_add(t, "%-8d%12.2f%12.2f%12.2f%12.2f\n", i, p[i].compute_ms,
                 p[i].exposed_ms, p[i].idle_ms, p[i].data_ms);
    text_add(t, "\n");
}

void profile_print(const struct profile *all, int64_t rank, struct text *t)
{
    const struct profile *p = &all[rank];
    text_add(t,
             "step %.2f ms over %lld step(s), %.0f useful tokens/s%s; rows cover "
             "%.1f%%; "
             "decoding and packing a step's rows takes %.2f ms of one core\n\n",
             p->step_ms, (long long)p->steps, p->useful_tokens_per_s,
             p->ranks > 1 ? " of all ranks" : "", 100 * p->covered, all->decode_ms);
    if (p->ranks > 1) {
        ranks_print(all, t);
        text_add(t, "rank %lld\n", (long long)rank);
    }
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
