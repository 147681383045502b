/* optimizer.h - AdamW with decoupled decay, clipping by the global norm, schedules. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "train/model.h"

/* The learning rate of step 1, 2, ...: linear warmup, then cosine, wsd or constant. */
double schedule_rate(const struct recipe *r, int64_t step);
/* The factor of a part's rate: optim.lr_vision and its like. */
double part_rate(const struct recipe *r, enum part part);

struct update {
    double grad_norm;                   /* before clipping */
    double rate;
    bool skipped;                       /* not finite: nothing was changed */
};
/* One update of every trainable parameter, this rank's own parts; all ranks call it and
 * get the same answer.  `step` counts from 1 for the schedule, `updates` counts the
 * updates done before this one, for AdamW's bias correction.  Fails when a rank is lost
 * (FAULT_RANK). */
MUST_USE bool optimizer_step(const struct recipe *r, const struct model *m,
                             struct machine *machine, const struct ops *ops,
                             struct stream *stream, int64_t step, int64_t updates,
                             struct update *out);

#endif
