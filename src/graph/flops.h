/* flops.h - the work a model needs for what is really in a batch.
 *
 * A multiply-add counts 2.  No padding, no recompute: what any implementation has to do
 * (docs/numerics.md).  Hardware work is counted elsewhere, by the dry device. */
#ifndef GRAPH_FLOPS_H
#define GRAPH_FLOPS_H

#include "graph/config.h"

struct flops_count {                    /* sums over a batch; from its ledger */
    double tokens;                      /* that are not padding */
    double supervised;                  /* rows that have logits */
    double attention;                   /* sum over segments of s (s + 1) / 2 */
    double patches;                     /* that are not padding */
    double attention_image;             /* sum over images of p^2 */
    double merged;                      /* image tokens: patches / merge^2 */
};

/* Forward and backward of one batch.  `frozen`: bit p set = enum part p does not train.
 * Every module costs its forward once, once more if its input needs a gradient, and
 * once more if its weights do; attention cores cost twice their forward where a
 * gradient passes. */
double model_flops(const struct model_config *c, const struct flops_count *n,
                   unsigned frozen);
/* Of it what an image of so many patches costs the vision tower and the projector. */
double image_flops(const struct model_config *c, double patches, unsigned frozen);

#endif
