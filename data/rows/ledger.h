/* ledger.h - where every slot of every batch went: double-entry books.
 *
 * Booked once, by the packer, and nowhere else; checked every step on every rank.
 * Reports divide by these numbers and by nothing else, so padding and context can never
 * pass for useful work. */
#ifndef ROWS_LEDGER_H
#define ROWS_LEDGER_H

#include "base/base.h"

struct ledger {
    int64_t slots;                      /* token places of the batch */
    int64_t supervised;                 /* text that carries loss */
    int64_t context;                    /* text that is read but not scored */
    int64_t image;                      /* merged image tokens in the sequence */
    int64_t padding;                    /* nothing */
    int64_t patch_slots, patches, patch_padding;    /* vision tower, before merging */
    int64_t samples, images, mock;      /* mock: samples not decoded from a real file */
    int64_t dropped;                    /* samples left out by policy, by cause: */
    int64_t too_long, bad, no_loss;     /* dropped = too_long + bad + no_loss */
    int64_t lost;                       /* supervised tokens of what was too long, left
                                         * out or cut off, as far as it was tokenized */
    int64_t shrunk, cut;                /* samples made to fit: images made smaller; the
                                         * end of the text left out */
    double attention;                   /* sum over segments of s (s + 1) / 2 */
    double attention_image;             /* sum over images of p^2 */
};

void ledger_add(struct ledger *sum, const struct ledger *l);
/* supervised + context + image + padding == slots, patches and dropped likewise, and
 * nothing negative. */
MUST_USE bool ledger_check(const struct ledger *l);
int64_t ledger_useful(const struct ledger *l);      /* supervised + context + image */

#endif
