/* parts.h - what the vision tower's files share: its pieces in the order they run. */
#ifndef VISION_PARTS_H
#define VISION_PARTS_H

#include "vision/vision.h"

/* Deviation of fresh matrices: initializer_range of the family's configs. */
#define VISION_DEVIATION 0.02

/* Block `index`: x [P,Hv] -> x [P,Hv], attention within images. */
int vision_block(struct graph *g, const struct vision_config *c, int index, int x,
                 int image, struct rotary t);
/* merge^2 neighbours of x to one row for the decoder.  `tap` -1: the final merger, else
 * deepstack merger number `tap`, which normalises after joining the neighbours. */
int vision_merger(struct graph *g, const struct vision_config *c, int tap, int x);

#endif
