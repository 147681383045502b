/* simulate.c - how long the list takes if every step takes as long as it does alone.
 *
 * Stands alone because what costs are made of (measured, or counted by the dry device)
 * is not its business. */
#include "plan/plan.h"

struct prediction plan_simulate(const struct plan *p, struct arena *scratch,
                                const double *cost, double *end)
{
    struct arena_mark m = arena_mark(scratch);
    struct prediction out = {0};
    double free_at[LANES] = {0};
    double *done[LANES];                /* when each step of a lane ends */
    for (int l = 0; l < LANES; l++)
        done[l] = NEW(scratch, double, p->length[l]);
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        double start = free_at[s->lane];
        for (int l = 0; l < LANES; l++)
            if (s->wait[l] > 0)
                start = MAX(start, done[l][s->wait[l] - 1]);
        if (s->lane == LANE_COMPUTE)
            out.idle += start - free_at[s->lane];
        free_at[s->lane] = done[s->lane][s->at] = start + cost[i];
        out.busy[s->lane] += cost[i];
        out.seconds = MAX(out.seconds, free_at[s->lane]);
        if (end)
            end[i] = free_at[s->lane];
    }
    arena_reset(scratch, m);
    return out;
}
