/* view.h - what a segment's pass sees of a plan step: tensors in a slab. */
#ifndef RUN_VIEW_H
#define RUN_VIEW_H

#include "plan/plan.h"

struct views {                          /* shapes, made once; data comes with steps */
    const struct plan *plan;
    struct tensor *value, *param;       /* [values], [params] */
};

struct views views_make(struct arena *a, const struct plan *p);
/* A value's or parameter's tensor in `buffer` of the slab (NULL: the dry device);
 * absent for buffer -1. */
struct tensor view_value(const struct views *v, char *slab, int value, int buffer);
struct tensor view_param(const struct views *v, char *slab, int param, int buffer);
/* What the segments of one lane see, used over and over. */
struct pass {
    struct run run;                     /* ops and stream are the lane's, set once */
    int nin, nout, nw;                  /* entries the last step filled */
};
/* Fill in what step s reads and writes, and call it. */
void pass_run(struct pass *x, const struct views *v, const struct step *s, char *slab);

#endif
