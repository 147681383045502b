/* cost.h - how long a plan will take on hardware that is not here.
 *
 * Every step costs what its products take at the rate their kind reaches, or what its
 * bytes take, whichever is longer; a collective costs what its bytes take on the
 * busier of two kinds of links, and a latency.  The rest is plan_simulate. */
#ifndef PLAN_COST_H
#define PLAN_COST_H

#include "plan/plan.h"

struct hardware {
    const char *name, *source;          /* source: where the numbers are from */
    enum dtype compute;
#define HARDWARE(key, least, most, meaning) double key;
#include "plan/hardware.def"
};

/* The dry device counts full rows as one sample, and all room for routed rows; what of
 * that a typical batch has. */
struct workload {
    double attention, vision_attention; /* shares of the pairs of query and key */
    double routed;                      /* share of the rows of experts */
};

/* FLOPs of a step of a node for such a batch. */
double workload_flops(const struct workload *load, const struct node *n,
                      const struct work *w);
/* Seconds of every step by itself: cost[nstep], from work[nstep] (plan_work); of them
 * talk[nstep] is spent on messages. */
void plan_cost(const struct plan *p, const struct work *work, const struct hardware *h,
               const struct workload *load, double *cost, double *talk);
/* Of the update that follows the plan: everything it keeps is read and written. */
double update_cost(const struct plan *p, const struct hardware *h);

struct forecast {
    double seconds;                     /* of the plan and the update */
    double update;
    double compute;                     /* some math runs */
    double communication;               /* some collective or message runs */
    double exposed;                     /* and no math does */
    double idle;                        /* neither: waiting for other stages, copies */
    double busy[LANES];
};
/* Steps of the compute lane may talk (a ring of attention): they compute for cost less
 * talk.  talk NULL: none does. */
struct forecast plan_forecast(const struct plan *p, struct arena *scratch,
                              const double *cost, const double *talk, double update);

#endif
