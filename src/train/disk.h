/* disk.h - will what a run writes find room?  Asked before the first step, so that a
 * night's training does not end at its last write. */
#ifndef TRAIN_DISK_H
#define TRAIN_DISK_H

#include "train/session.h"

struct disk_need {                      /* bytes, beyond what the run's folder has */
    int64_t state, states;              /* one training state; of them at a time */
    int64_t export, metrics;
};
/* For a run that stands at `step` and has `kept` training states. */
struct disk_need disk_need_of(const struct session *s, int64_t step, int64_t kept);
/* Says what `run`, a folder, will take and what is free there.  Warns where that is
 * too little for all, fails (checkpoint) where not even the last state and the model
 * fit. */
MUST_USE bool disk_check(const char *run, const struct disk_need *need);

#endif
