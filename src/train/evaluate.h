/* evaluate.h - loss on the held-out split, forward only. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "train/session.h"

struct evaluation {
    double loss;                        /* mean over supervised tokens, nats */
    struct ledger ledger;
    int64_t rows;
};
/* `view` is recorded with purpose_train and a forward plan; the training plan is put
 * back by the caller.  The same rows every time: the split's own order from its start. */
MUST_USE bool evaluate(struct session *s, struct view_of_model *view, int64_t rows,
                       struct evaluation *out);

#endif
