/* parts.h - what the vision tower's files share: its pieces in the order they run. */
#ifndef VISION_PARTS_H
#define VISION_PARTS_H

#include "vision/vision.h"

/* Deviation of fresh matrices: initializer_range of the family's configs. */
#define VISION_DEVIATION 0.02

/* Block `index`: x [P,Hv] -> x [P,Hv], attention within images. */
int vision_block(struct graph *g, const struct vision_config *c, int index, int x,
                 int image, struct rotary t);
/* Are images shared out (balance.c): asked for, and ranks to share them with? */
bool vision_balances(const struct graph *g, const struct vision_options *o);
/* Patches that a rank has room to encode, with its tp group. */
int64_t vision_room(const struct graph *g, const struct vision_config *c,
                    const struct capacity *cap, const struct vision_options *o);
/* pixels [P,values] of the row -> [room / tp,values], this rank's part of what it
 * encodes. */
int vision_pixels(struct graph *g, int pixels, int64_t room);
/* The inputs by which features find their tokens: `features` of a row at most, room for
 * so many where they are made. */
struct feature_lists { int order, undo, leave, arrive; int64_t rows, even; };
struct feature_lists vision_feature_lists(struct graph *g, int64_t features,
                                          int64_t room, int64_t tokens);
/* x [room / tp,D] of what was encoded here -> [rows,D], the features of this rank's
 * token places. */
int vision_features(struct graph *g, const struct feature_lists *l, int x);
/* merge^2 neighbours of x to one row for the decoder.  `tap` -1: the final merger, else
 * deepstack merger number `tap`, which normalises after joining the neighbours. */
int vision_merger(struct graph *g, const struct vision_config *c, int tap, int x);

#endif
