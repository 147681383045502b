/* vision.h - the vision tower: patches of images in, rows for the decoder out.
 *
 * Inputs it declares (P patches in all, padding last):
 *     pixels  f32 [P, values]     one patch a row, in merge order
 *     patch   i32 [P,4]           row, column, grid height, grid width
 *     image   i32 [images + 1]    bounds of the images, the last repeated
 * Towers: "vision" (patch embedding and blocks) and "projector" (the mergers).
 * Formulas: docs/numerics.md.
 *
 * Every cp rank runs the tower on all images of its row and places features of its own
 * tokens alone: so gradients of vision weights are partial sums over cp, which their
 * holders (cp ranks among them) add up like any others. */
#ifndef VISION_VISION_H
#define VISION_VISION_H

#include "graph/config.h"
#include "layers/layers.h"

struct vision_graph {
    int feature;                        /* value [P / merge^2, out]: final merger; with
                                         * tp, this rank's share of these rows */
    int taps, tap[MAX_TAPS];            /* likewise, for the first decoder layers */
};

void vision_record(struct graph *g, const struct vision_config *c,
                   const struct capacity *cap, struct vision_graph *out);

#endif
