/* parity.h - a model's loss and gradients on given inputs, for comparison with another
 * framework's.
 *
 * The case file holds input_ids, labels, attention_mask i64 [B,S], pixel_values f32
 * [P,..] and image_grid_thw i64 [images,3]; its rows are packed behind each other
 * without their padding (docs/numerics.md says why that is the same).  labels are
 * unshifted, -100 where there is no loss.  total = cross entropy + aux_coef * auxiliary
 * loss. */
#ifndef TOOLS_PARITY_H
#define TOOLS_PARITY_H

#include "base/arena.h"

struct parity_grad { const char *name; double norm, sum; };
struct parity {
    double loss, cross_entropy, aux_loss, aux_coef;
    int64_t ngrad;
    struct parity_grad *grad; /* by checkpoint name; elements in disk layout */
    int64_t tokens, vocabulary;
    const float *logits;                /* [tokens, vocabulary], live tokens in order */
};
MUST_USE bool parity_run(struct arena *a, const char *model, const char *case_file,
                         struct parity *out);
/* What golden files hold under a dtype: loss, cross_entropy, aux_loss, aux_coef, grad.
 */
char *parity_json(struct arena *a, const struct parity *p);

#endif
