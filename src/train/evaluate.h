/* evaluate.h - loss on the held-out split, forward only. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "train/session.h"

struct evaluation {
    double loss;                        /* mean over supervised tokens, nats, or NAN */
    struct ledger ledger;               /* dropped: of all samples that were read */
    int64_t rows;
    bool stopped;                       /* by a signal, before its end */
};
/* `view` is recorded with purpose_train and a forward plan; the training plan is put
 * back by the caller.  The same rows every time: the split's own order from its start.
 */
MUST_USE bool evaluate(struct session *s, struct view_of_model *view, int64_t rows,
                       struct evaluation *out);

/* The same over given samples instead, each once; `out->rows` counts rows. */
MUST_USE bool evaluate_samples(struct session *s, struct view_of_model *view,
                               const struct sample *sample, int count,
                               struct evaluation *out);
/* sample[i] with the images of sample[i + 1], the last with the first's, where both
 * have equally many: what the loss of a model that looks at its images cannot bear. */
void images_swap(struct sample *sample, int count);

#endif
