/* balance.h - which rank encodes which image of a microbatch (vision.balance), and the
 * lists by which pixels and features find their ways (vision/vision.h).
 *
 * Everything here is a function of the rows of all data-parallel ranks, which every
 * rank of the process sees: so all decide alike without a word.  Encoders are the dp x
 * cp ranks of a stage, numbered in rank order; the tp ranks of one encode together. */
#ifndef TRAIN_BALANCE_H
#define TRAIN_BALANCE_H

#include "train/model.h"

struct balance_image {
    int row, encoder;                   /* whose it is, who encodes it */
    int64_t from, patches;              /* where it lies in its row; how many */
    int64_t at;                         /* where among its encoder's patches */
    double cost;
};

struct balance {
    int rows, cp;                       /* encoders: rows * cp */
    int count;
    struct balance_image *image;        /* row after row, each row's in order */
    bool crowded;                       /* some found no room: all stayed at home, even
                                         * where longest first alone is to blame */
    double mean, most, unbalanced;      /* cost of an encoder: all images shared out
                                         * evenly; of the fullest; of the fullest if
                                         * every rank encoded its own row's images */
};

/* Longest first, each to the least loaded encoder that has room for its patches and
 * for one more image; of equals one of its own row, then the lowest.  Where an image
 * finds no room, or nothing is won, all stay at home: with the first encoder of their
 * row, which has room for a whole row's or must get it (vision.capacity).
 * Sets encoder, at and the rest of `b`; reads rows, cp, count and image. */
void balance_assign(struct arena *scratch, const struct capacity *room,
                    struct balance *b);
/* Of several microbatches, each of which takes as long as its fullest encoder. */
struct balance_sum { double mean, most, unbalanced; int64_t crowded; };
void balance_add(struct balance_sum *to, const struct balance *b);

/* The images of rows[dp], and who encodes them as the model was recorded: balanced, or
 * every rank its own row's. */
struct balance balance_make(struct arena *a, const struct model *m,
                            const struct row *const *rows);
/* Bind the inputs of a balanced model that feed_row leaves out. */
void balance_feed(struct arena *a, struct machine *machine, const struct model *m,
                  int mb, const struct row *const *rows, const struct balance *b);

#endif
