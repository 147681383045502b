/* vision.h - the vision tower: patches of images in, rows for the decoder out.
 *
 * Inputs it declares (P patches in all, padding last):
 *     pixels  f32 [P, values]     one patch a row, in merge order
 *     patch   i32 [P,4]           row, column, grid height, grid width
 *     image   i32 [images + 1]    bounds of the images, the last repeated
 * Towers: "vision" (patch embedding and blocks) and "projector" (the mergers).
 * Formulas: docs/numerics.md.
 *
 * Without options.balance every cp rank runs the tower on all images of its row and
 * places features of its own tokens alone: so gradients of vision weights are partial
 * sums over cp, which their holders (cp ranks among them) add up like any others.
 *
 * With it, and several ranks along dp or cp, each image of these ranks' rows is encoded
 * by one of them (by one tp group), which has room for Q patches (options.capacity).
 * pixels are still the row's own; patch [Q,4] and image are those of the images encoded
 * here, and lists say what goes where (dp, cp, tp: ranks along them, N = dp cp tp;
 * members of a group in rank order):
 *     pixel_row       i32 [P or, where dp is 1, Q / tp]   rows of pixels that leave, by
 *                                         receiver; -1 past the end
 *     pixel_leave, pixel_arrive       i32 [dp + 1]        bounds of what goes to and
 *                                         comes from ranks of the same cp and tp number
 *                                         (absent where dp is 1)
 *     feature_order, feature_undo     i32 [Q / (merge^2 tp)]  rows of features by
 *                                         receiver, and the inverse; -1 past the end
 *     feature_leave, feature_arrive   i32 [N + 1]         likewise, of all N ranks
 * So a rank encodes its tp part of these patches, in the order in which they arrive. */
#ifndef VISION_VISION_H
#define VISION_VISION_H

#include "graph/config.h"
#include "layers/layers.h"

struct vision_options {
    bool balance;                       /* share images out over dp x cp */
    /* With it: room for the patches a rank encodes, over an even share of its rows'
     * (P / cp), at most P; 0: P.  Whoever shares images out must mind it. */
    double capacity;
};

struct vision_graph {
    int feature;                        /* value [P / merge^2, out]: final merger; with
                                         * tp, this rank's share of these rows */
    int taps, tap[MAX_TAPS];            /* likewise, for the first decoder layers */
    bool placed;                        /* balanced: these are instead the features of
                                         * this rank's own token places, in any order:
                                         * min(P / merge^2, T / (cp tp)) rows */
};

void vision_record(struct graph *g, const struct vision_config *c,
                   const struct capacity *cap, const struct vision_options *options,
                   struct vision_graph *out);

#endif
