/* precision.h - which types a device computes in, as memory and traffic see them.
 *
 * Recorders and the CPU device are f32 throughout.  A GPU computes in bf16 and updates
 * f32 masters; to plan for one, types are put into the graph before planning and into
 * the state afterwards.  Such a plan is for counting, not for running on the CPU. */
#ifndef PLAN_PRECISION_H
#define PLAN_PRECISION_H

#include "plan/plan.h"

struct precision {
    enum dtype value;           /* activations, their gradients, working weights */
    enum dtype gradient;        /* weight gradients and their sums; as they travel:
                                 * plan_options.wire */
};

/* Values of the graph, before plan_build: all floating ones that carry gradients but
 * for the router's, and narrow ones (statistics, partial losses), which stay f32. */
void precision_values(const struct precision *x, struct graph *g);
/* Units of a plan of that graph: weights and gradients by type, and an f32 master of
 * this rank's shard for what trains (where the working type is not f32 itself).  Places
 * everything anew, with the policy's slack. */
void precision_units(const struct precision *x, struct plan *p, struct arena *a,
                     double slack);

#endif
