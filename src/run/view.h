/* view.h - what a segment's pass sees of a plan step: tensors in a slab. */
#ifndef RUN_VIEW_H
#define RUN_VIEW_H

#include "plan/plan.h"

struct views {                          /* shapes, made once; data is filled in per step */
    const struct plan *plan;
    struct tensor *value, *param;       /* [values], [params] */
};

struct views views_make(struct arena *a, const struct plan *p);
/* A value's or parameter's tensor in `buffer` of the slab (NULL: the dry device);
 * absent for buffer -1. */
struct tensor view_value(const struct views *v, char *slab, int value, int buffer);
struct tensor view_param(const struct views *v, char *slab, int param, int buffer);
/* Fill everything but ops and stream, and call the pass.  `x` is all zero before its
 * first use and then belongs to these calls. */
void view_run(const struct views *v, const struct step *s, char *slab, struct run *x);

#endif
