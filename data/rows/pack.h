/* pack.h - encoded samples into rows of fixed capacity, books kept.
 *
 * A row is one microbatch of one rank: T token places, P patch places.  Samples lie one
 * after the other; positions restart and attention ends at their borders; what is left
 * at the end is padding.  The oldest waiting sample opens a row; then, of a window of
 * waiting samples, those that together fill the row best are taken, so no sample waits
 * for more rows than the window has samples.  A function of the sample order alone. */
#ifndef ROWS_PACK_H
#define ROWS_PACK_H

#include "data/image/image.h"
#include "data/rows/ledger.h"

/* One sample, encoded: tokens with labels, and its images as patches. */
struct encoded {
    const char *name;
    int64_t id, position;               /* position in the mix */
    int part;                           /* source in the mix */
    bool mock, shrunk, cut;             /* cut: the end of its text is left out */
    int lost;                           /* supervised tokens that were cut off, or, of
                                         * one left out as too long, all of its own */
    int special;                        /* special tokens kept in its text */
    int tokens;
    int32_t *input;                     /* [tokens] */
    bool *scored;                       /* [tokens]: is this token an answer's? */
    int nimage;
    struct patches *image;              /* in order of appearance */
    int patches;                        /* of all images */
    int64_t max_pixels;                 /* of an image: less where the sample shrank */
};

struct row_shape {
    int tokens, patches;                /* capacities T, P; P a multiple of merge^2 */
    int segments, images;               /* most samples and images in a row */
    int values, merge;                  /* of one patch; spatial merge */
    int pad;                            /* id of padding tokens */
    int image_token;                    /* id of an image's tokens in `input` */
};

struct row_sample {
    const char *name;
    int64_t id, position;
    int part, tokens, images;
};

struct row {
    int32_t *input;                     /* [T] ids */
    int32_t *target;                    /* [T] the next token where scored, else -1 */
    int32_t *position;                  /* [T,3] t, y, x within the sample (M-RoPE) */
    int32_t *segment;                   /* [segments + 1] bounds, the last repeated */
    int32_t *feature;                   /* [T] merged feature at this place, or -1 */
    int32_t *feature_token;             /* [P / merge^2] place of a feature, or -1 */
    float *pixels;                      /* [P, values], zero past the end */
    int32_t *patch;                     /* [P,4] row, column, grid height, grid width;
                                           padding 0 0 1 1 */
    int32_t *image;                     /* [images + 1] bounds in patches, as segment */
    int32_t live;                       /* token places in use */
    int nsample;
    struct row_sample *sample;          /* [nsample] in order */
    struct ledger ledger;
};

/* Lay these samples out as one row, in `a`.  They must fit (BUG otherwise).
 * A place is booked supervised if it has a target, else by the token it holds: image or
 * context.  An image token is never a target, whatever `scored` says. */
void row_fill(struct arena *a, const struct row_shape *s,
              const struct encoded *const *sample, int count, struct row *out);
/* M-RoPE positions of one sample (t, y, x), [tokens,3].  Text: (c, c, c), then c + 1.
 * An image of h x w merged features: (c, c + row, c + column), then c + max(h, w).
 * Images are told apart by their grids, so none needs text before the next.  Fails if
 * image tokens and images do not agree, with both counts. */
MUST_USE bool sample_positions(const struct row_shape *s, const struct encoded *e,
                               int32_t *position);
/* How many places of the sample would have a target. */
int sample_targets(const struct row_shape *s, const struct encoded *e);

/* Chooses what goes together.  Holds no samples, only their sizes; deterministic. */
struct packer;
struct packer *packer_make(struct arena *a, const struct row_shape *s, int window);
/* Offer sample `ticket`, which alone fits a row (BUG otherwise); true if accepted,
 * false if the window is full: as many as `window` free to be chosen, beyond what a
 * long row takes in their order. */
bool packer_offer(struct packer *p, int64_t ticket, int tokens, int patches,
                  int images);
/* Tickets of the next row, in the order offered, once the window is full or `flush` is
 * set; returns how many (0: offer more first, or nothing left).  `room` holds at least
 * row_shape.segments.  At most `window` samples still wait afterwards. */
int packer_take(struct packer *p, bool flush, int64_t *tickets, int room);
int packer_waiting(const struct packer *p);

#endif
