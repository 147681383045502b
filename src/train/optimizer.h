/* optimizer.h - AdamW with decoupled decay, clipping by the global norm, schedules. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "train/model.h"

/* The learning rate of step 1, 2, ...: linear warmup, then cosine, wsd or constant.
 * `share`: of the run, that is done with the step; asked where train.epochs end it. */
double schedule_rate(const struct recipe *r, int64_t step, double share);
/* Warns of a schedule that cannot be meant: never at its peak, never above 0. */
void schedule_warn(const struct recipe *r);
/* The factor of a part's rate: optim.lr_vision and its like. */
double part_rate(const struct recipe *r, enum part part);

struct update {
    double grad_norm;                   /* before clipping */
    double rate;
    bool skipped;                       /* not finite: nothing was changed */
};
/* One update of every trainable parameter, this rank's own parts; all ranks call it and
 * get the same answer.  `rate` is schedule_rate's, `updates` counts the updates done
 * before this one, for AdamW's bias correction.  Fails when a rank is lost
 * (FAULT_RANK). */
MUST_USE bool optimizer_step(const struct recipe *r, const struct model *m,
                             struct machine *machine, const struct ops *ops,
                             struct stream *stream, double rate, int64_t updates,
                             struct update *out);

#endif
