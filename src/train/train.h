/* train.h - the training loop: load, run, update, book, save. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "train/changes.h"

/* Trains as the recipe says, ranks as threads of this process, from the newest complete
 * checkpoint of the run if there is one.  Writes runs/NAME (docs/recipes.md).  A
 * signal (base/stop.h) ends it after the step in hand, with its state saved.
 * `allowed`: what may be otherwise than in that checkpoint. */
MUST_USE bool train(const struct recipe *recipe, const struct allowed *allowed);

#endif
