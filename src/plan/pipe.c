/* pipe.c - the plans of all ranks of a pipeline together: do messages meet, does anyone
 * wait for ever, how long does a step take.
 *
 * Stands alone because no plan knows of another; each alone is check.c's and
 * simulate.c's. */
#include "plan/plan.h"

struct track {                          /* one lane of one rank */
    int64_t *step;                      /* in order */
    double *end;                        /* when each has ended; [done] of them have */
    int64_t done;
};

struct pipe {
    const struct plan *const *plan;
    int ranks;
    const double *const *cost;          /* NULL: nothing takes time */
    struct arena arena;
    struct track (*track)[LANES];       /* [ranks] */
    int64_t **sender;                   /* [ranks][steps] of a recv: the peer's send */
    double **tie;                       /* [ranks][units] when it came to it; -1 */
};

static bool sends(const struct step *s)
{
    return s->kind == STEP_SEND || s->kind == STEP_SEND_GRAD;
}

static bool receives(const struct step *s)
{
    return s->kind == STEP_RECV || s->kind == STEP_RECV_GRAD;
}

static bool carries_gradient(const struct step *s)
{
    return s->kind == STEP_SEND_GRAD || s->kind == STEP_RECV_GRAD;
}

static bool broken(const struct pipe *x, int rank, int64_t step, const char *what)
{
    struct arena a = arena_make("pipe");
    struct text t = text_make(&a);
    plan_explain_step(x->plan[rank], step, &t);
    fail("pipeline: stage rank %d, step %s: %s", rank, t.at, what);
    arena_free(&a);
    return fail_kind(FAULT_BUG);
}

/* ---- messages ---- */

/* The next message from `from` to `to` of that sort after step `after` of the sender's
 * or (`in`) the receiver's plan; -1 none. */
static int64_t next_message(const struct pipe *x, int from, int to, bool gradient,
                            bool in, int64_t after)
{
    const struct plan *p = x->plan[in ? to : from];
    for (int64_t i = after + 1; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        if ((in ? receives(s) : sends(s)) && s->peer == (in ? from : to) &&
            carries_gradient(s) == gradient)
            return i;
    }
    return -1;
}

static int64_t message_bytes(const struct plan *p, const struct step *s)
{
    int buffer = s->kind == STEP_SEND        ? s->in[0]
                 : s->kind == STEP_RECV      ? s->out[0]
                 : s->kind == STEP_SEND_GRAD ? s->dout[0]
                                             : s->din[0];
    return p->buffer[buffer].bytes;
}

static bool match_pair(struct pipe *x, int from, int to, bool gradient)
{
    const struct plan *p = x->plan[from], *q = x->plan[to];
    int64_t out = -1, in = -1;
    for (;;) {
        out = next_message(x, from, to, gradient, false, out);
        in = next_message(x, from, to, gradient, true, in);
        if (out < 0 && in < 0)
            return true;
        if (out < 0)
            return broken(x, to, in, "nobody sends this");
        if (in < 0)
            return broken(x, from, out, "nobody receives this");
        const struct step *a = &p->step[out], *b = &q->step[in];
        if (a->tag != b->tag || a->value != b->value || a->mb != b->mb)
            return broken(x, to, in, "another message comes first");
        if (message_bytes(p, a) != message_bytes(q, b))
            return broken(x, to, in, "has another size than what is sent");
        x->sender[to][in] = out;
    }
}

static bool match_all(struct pipe *x)
{
    for (int r = 0; r < x->ranks; r++)
        for (int64_t i = 0; i < x->plan[r]->nstep; i++) {
            const struct step *s = &x->plan[r]->step[i];
            if ((sends(s) || receives(s)) &&
                (s->peer < 0 || s->peer >= x->ranks || s->peer == r))
                return broken(x, r, i, "names no other rank");
        }
    for (int from = 0; from < x->ranks; from++)
        for (int to = 0; to < x->ranks; to++)
            if (!match_pair(x, from, to, false) || !match_pair(x, from, to, true))
                return false;
    return true;
}

/* ---- time ---- */

static double cost_of(const struct pipe *x, int rank, int64_t step)
{
    return x->cost ? x->cost[rank][step] : 0;
}

static void track_end(struct pipe *x, int rank, const struct step *s, double when)
{
    struct track *t = &x->track[rank][s->lane];
    t->end[t->done++] = when;
}

/* All that have the unit go on together. */
static bool tie_advance(struct pipe *x, int rank, int64_t i, double start)
{
    const struct plan *p = x->plan[rank];
    const struct step *s = &p->step[i];
    int *holder = NEW(&x->arena, int, x->ranks);
    int holders = stages_holders(p->stages, p->graph, s->unit, holder);
    x->tie[rank][s->unit] = start;
    for (int k = 0; k < holders; k++) {
        if (x->tie[holder[k]][s->unit] < 0)
            return false;
        start = MAX(start, x->tie[holder[k]][s->unit]);
    }
    for (int k = 0; k < holders; k++) {
        const struct track *t = &x->track[holder[k]][LANE_STATE];
        track_end(x, holder[k], s, start + cost_of(x, holder[k], t->step[t->done]));
    }
    return true;
}

/* Run the lane's next step, if it can. */
static bool track_advance(struct pipe *x, int rank, enum lane lane)
{
    const struct plan *p = x->plan[rank];
    struct track *t = &x->track[rank][lane];
    if (t->done == p->length[lane])
        return false;
    int64_t i = t->step[t->done];
    const struct step *s = &p->step[i];
    double start = t->done > 0 ? t->end[t->done - 1] : 0;
    for (int l = 0; l < LANES; l++) {
        const struct track *other = &x->track[rank][l];
        if (s->wait[l] > other->done)
            return false;
        if (s->wait[l] > 0)
            start = MAX(start, other->end[s->wait[l] - 1]);
    }
    if (receives(s)) {
        const struct step *sent = &x->plan[s->peer]->step[x->sender[rank][i]];
        const struct track *other = &x->track[s->peer][sent->lane];
        if (sent->at >= other->done)
            return false;
        start = MAX(start, other->end[sent->at]);
    }
    if (s->kind == STEP_TIE)
        return x->tie[rank][s->unit] < 0 && tie_advance(x, rank, i, start);
    track_end(x, rank, s, start + cost_of(x, rank, i));
    return true;
}

static bool run_all(struct pipe *x)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < x->ranks; r++)
            for (int l = 0; l < LANES; l++)
                while (track_advance(x, r, (enum lane)l))
                    moved = true;
    }
    for (int r = 0; r < x->ranks; r++)
        for (int l = 0; l < LANES; l++) {
            const struct track *t = &x->track[r][l];
            if (t->done < x->plan[r]->length[l])
                return broken(x, r, t->step[t->done], "waits for ever");
        }
    return true;
}

/* ---- both ---- */

static struct pipe pipe_make(const struct plan *const *plan, int ranks,
                             const double *const *cost)
{
    struct pipe x = {.plan = plan, .ranks = ranks, .cost = cost,
                     .arena = arena_make("pipe")};
    struct arena *a = &x.arena;
    x.track = arena_push(a, sizeof *x.track * (size_t)ranks);
    x.sender = NEW(a, int64_t *, ranks);
    x.tie = NEW(a, double *, ranks);
    for (int r = 0; r < ranks; r++) {
        const struct plan *p = plan[r];
        x.sender[r] = NEW(a, int64_t, p->nstep);
        x.tie[r] = NEW(a, double, p->graph->nunit);
        for (int64_t u = 0; u < p->graph->nunit; u++)
            x.tie[r][u] = -1;
        for (int l = 0; l < LANES; l++) {
            x.track[r][l].step = NEW(a, int64_t, p->length[l]);
            x.track[r][l].end = NEW(a, double, p->length[l]);
        }
        for (int64_t i = 0; i < p->nstep; i++)
            x.track[r][p->step[i].lane].step[p->step[i].at] = i;
    }
    return x;
}

static void predict(const struct pipe *x, struct pipe_prediction *out)
{
    double busy = 0;
    *out = (struct pipe_prediction){0};
    for (int r = 0; r < x->ranks; r++) {
        const struct plan *p = x->plan[r];
        for (int l = 0; l < LANES; l++)
            if (p->length[l] > 0)
                out->seconds =
                    MAX(out->seconds, x->track[r][l].end[p->length[l] - 1]);
        for (int64_t i = 0; i < p->length[LANE_COMPUTE]; i++)
            busy += cost_of(x, r, x->track[r][LANE_COMPUTE].step[i]);
    }
    if (out->seconds > 0)
        out->bubble = 1 - busy / (out->seconds * x->ranks);
}

bool pipe_simulate(const struct plan *const *plan, int ranks, const double *const *cost,
                   struct pipe_prediction *out)
{
    struct pipe x = pipe_make(plan, ranks, cost);
    bool ok = match_all(&x) && run_all(&x);
    if (ok)
        predict(&x, out);
    arena_free(&x.arena);
    return ok;
}

bool pipe_check(const struct plan *const *plan, int ranks)
{
    struct pipe_prediction ignored;
    return pipe_simulate(plan, ranks, NULL, &ignored);
}
