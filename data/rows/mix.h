/* mix.h - which sample comes when: a pure function of (seed, position).
 *
 * Several sources with weights by samples.  Every source is walked in its own shuffled
 * order, epoch after epoch, each sample once an epoch; which source serves a position
 * follows the weights (earliest due first: at any position every source is less than
 * one sample away from its share), so any number of workers, and any resume, sees the
 * same order.
 *
 * The order of the sources repeats after a period, tabled by mix_make; mix_at is a
 * look-up and a few divisions.  Weights that are ratios of whole numbers with a sum up
 * to 2^20 (up to six decimals) are met exactly; others are rounded to 2^20ths. */
#ifndef ROWS_MIX_H
#define ROWS_MIX_H

#include "data/source/source.h"

struct mix;
struct mix_part { struct source *source; double weight; const char *name; };
struct mix_place { int part; int64_t index, epoch; };   /* of one position */

/* shuffle false: the sources' own order.  hold_out: every n-th sample of each source is
 * held back for evaluation (0: none), by index, whatever the seed; `held` selects that
 * side, where a source of fewer than n samples has no part.  Sources with the same data
 * are reported and shuffled apart.  Fails (usage) on a weight that is not above 0, and
 * on sources that overlap where samples are held out: what one holds back the other
 * could train on. */
MUST_USE bool mix_make(struct arena *a, const struct mix_part *part, int count,
                       uint64_t seed, bool shuffle, int hold_out, bool held,
                       struct mix **out);
struct mix_place mix_at(const struct mix *m, int64_t position);
/* Samples until the largest source's first epoch ends. */
int64_t mix_epoch_samples(const struct mix *m);
/* A number of its own for every sample of every source: what sample.id becomes. */
int64_t mix_id(const struct mix *m, struct mix_place place);
const struct mix_part *mix_part(const struct mix *m, int part);

#endif
