/* train_state.h - all a resumed run needs, between a session and a checkpoint. */
#ifndef TRAIN_TRAIN_STATE_H
#define TRAIN_TRAIN_STATE_H

#include "train/session.h"

struct train_state {                    /* beside the tensors in the machine */
    int64_t step;                       /* steps done */
    int64_t updates;                    /* of them not skipped */
    int64_t skipped, skipped_in_row;    /* non-finite gradients */
    struct cursor cursor;               /* where the data stands */
    struct ledger ledger;               /* of the whole run */
};

/* ROOT = the run's checkpoints folder.  All ranks call both; rank 0 writes. */
MUST_USE bool train_state_save(const struct session *s, const struct train_state *t,
                               const char *root, int keep);
/* The newest complete one into session and state; *found says whether there was one.
 * Fails if it is damaged or belongs to other data, sources or seed. */
MUST_USE bool train_state_load(struct session *s, const char *root,
                               struct train_state *t, bool *found);

#endif
