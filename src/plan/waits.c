/* waits.c - which step must wait for which on other lanes, and for no more.
 *
 * Stands alone because it is derived from what steps touch, whatever put them there.
 * A step waits for the last writer of what it touches; a writer for everyone who
 * touched it; the first to touch a buffer for everyone who touched the buffers that
 * had the memory before.  What another wait implies is left out (vector clocks, one
 * entry a lane). */
#include "plan/owners.h"
#include "plan/plan.h"

int step_touches(const struct step *s, struct touch out[MAX_TOUCH])
{
    /* Everywhere else backward's view of forward values is the output of the step. */
    bool writes = s->kind != STEP_BACKWARD && s->kind != STEP_WEIGHT;
    int n = 0;
    for (int i = 0; i < MAX_IO; i++) {
        if (s->in[i] >= 0)
            out[n++] = (struct touch){s->in[i], false};
        if (s->out[i] >= 0)
            out[n++] = (struct touch){s->out[i], writes};
        if (s->dout[i] >= 0)
            out[n++] = (struct touch){s->dout[i], false};
        if (s->din[i] >= 0)
            out[n++] = (struct touch){s->din[i], true};
    }
    for (int i = 0; i < MAX_WEIGHT; i++) {
        if (s->w[i] >= 0)
            out[n++] = (struct touch){s->w[i], false};
        if (s->dw[i] >= 0)
            out[n++] = (struct touch){s->dw[i], true};
    }
    if (s->work >= 0)
        out[n++] = (struct touch){s->work, true};
    return n;
}

struct hazard {
    int64_t writer;                     /* last step that wrote the buffer, -1 none */
    int64_t touch[LANES];               /* last step of each lane that touched it, -1 */
};

struct clock { int64_t at[LANES]; };    /* steps of each lane known to be done */

struct waiter {
    struct plan *p;
    struct hazard *hazard;              /* [buffers] */
    struct clock *seen;                 /* [steps] what is known when it is done */
    struct clock clock[LANES];          /* what each lane knows */
    struct owners device, host;
};

/* Latest steps, a lane each, that must be done first. */
static void need_add(const struct plan *p, struct clock *need, int64_t step)
{
    if (step < 0)
        return;
    int64_t *at = &need->at[p->step[step].lane];
    *at = MAX(*at, step);
}

static void need_former_owners(struct waiter *w, struct clock *need, int buffer)
{
    const struct buffer *x = &w->p->buffer[buffer];
    struct owners *o = x->kind == MEMORY_HOST ? &w->host : &w->device;
    int64_t to = x->offset + x->bytes;
    for (int64_t i = owners_find(o, x->offset); i < o->count && o->at[i].from < to; i++)
        for (int l = 0; l < LANES; l++)
            need_add(w->p, need, w->hazard[o->at[i].buffer].touch[l]);
    owners_take(o, x->offset, to, buffer);
}

/* Turn needs into waits, latest first: that prunes best. */
static void wait_add(struct waiter *w, struct step *s, struct clock *need)
{
    struct clock *clock = &w->clock[s->lane];
    for (;;) {
        int lane = 0;
        for (int l = 1; l < LANES; l++)
            if (need->at[l] > need->at[lane])
                lane = l;
        int64_t step = need->at[lane];
        if (step < 0)
            return;
        need->at[lane] = -1;
        const struct step *d = &w->p->step[step];
        if (d->lane == s->lane || clock->at[d->lane] > d->at)
            continue;
        s->wait[d->lane] = d->at + 1;
        for (int l = 0; l < LANES; l++)
            clock->at[l] = MAX(clock->at[l], w->seen[step].at[l]);
    }
}

static void wait_of(struct waiter *w, int64_t i)
{
    struct plan *p = w->p;
    struct step *s = &p->step[i];
    struct touch touch[MAX_TOUCH];
    struct clock need;
    int n = step_touches(s, touch);
    memset(&need, -1, sizeof need);
    for (int j = 0; j < n; j++) {
        const struct hazard *h = &w->hazard[touch[j].buffer];
        const struct buffer *x = &p->buffer[touch[j].buffer];
        need_add(p, &need, h->writer);
        for (int l = 0; l < LANES && touch[j].write; l++)
            need_add(p, &need, h->touch[l]);
        if (x->first == i && !x->whole)
            need_former_owners(w, &need, touch[j].buffer);
    }
    memset(s->wait, 0, sizeof s->wait);
    wait_add(w, s, &need);
    s->at = p->length[s->lane]++;
    w->clock[s->lane].at[s->lane] = s->at + 1;
    w->seen[i] = w->clock[s->lane];
    for (int j = 0; j < n; j++) {
        struct hazard *h = &w->hazard[touch[j].buffer];
        h->touch[s->lane] = i;
        if (touch[j].write)
            h->writer = i;
    }
}

void plan_waits(struct plan *p)
{
    struct arena scratch = arena_make("plan waits");
    struct waiter w = {.p = p, .device = owners_make(&scratch),
                       .host = owners_make(&scratch)};
    w.hazard = NEW(&scratch, struct hazard, p->nbuffer);
    memset(w.hazard, -1, sizeof *w.hazard * (size_t)p->nbuffer);
    w.seen = NEW(&scratch, struct clock, p->nstep);
    memset(p->length, 0, sizeof p->length);
    for (int64_t i = 0; i < p->nstep; i++)
        wait_of(&w, i);
    arena_free(&scratch);
}
