/* train_state.h - all a resumed run needs, between a session and a checkpoint. */
#ifndef TRAIN_TRAIN_STATE_H
#define TRAIN_TRAIN_STATE_H

#include "checkpoint/state.h"
#include "train/changes.h"

struct train_state {                    /* beside the tensors in the machine */
    int64_t step;                       /* steps done */
    int64_t updates;                    /* of them not skipped */
    int64_t skipped, skipped_in_row;    /* non-finite gradients */
    struct cursor cursor;               /* where the data stands */
    struct ledger ledger;               /* of the whole run */
    const char *changes;                /* since the state it goes on from, a line each;
                                         * the session's; NULL: none */
};

/* The newest complete state under ROOT, the run's checkpoints folder, into session and
 * `t`; *found says whether there was one.  All ranks call it; each reads its own part.
 * Fails if it is damaged or what may not change did (changes.h; `allowed` NULL: none of
 * it may). */
MUST_USE bool train_state_load(struct session *s, const char *root,
                               const struct allowed *allowed, struct train_state *t,
                               bool *found);

/* ---- saving: see saver.h ---- */

/* What this rank writes of the state's tensors; data: where they are now, NULL where
 * there is no machine.  Returns how many pieces. */
int64_t train_state_pieces(const struct session *s, struct arena *a,
                           struct state_piece **out);
int64_t train_state_bytes(const struct session *s);     /* of these pieces */
/* The counters as the JSON object a state keeps. */
char *train_state_meta(const struct session *s, const struct train_state *t,
                       struct arena *a);

#endif
