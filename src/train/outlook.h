/* outlook.h - what a training step of a recipe will do and need, without doing it. */
#ifndef TRAIN_OUTLOOK_H
#define TRAIN_OUTLOOK_H

#include "base/text.h"
#include "train/recipe.h"

/* What trains, the layout, memory by kind and component, work; every plan step where
 * `explain`.  Fails (memory) after the text where this machine has less than it takes,
 * naming what to change. */
MUST_USE bool outlook(const struct recipe *r, bool explain, struct text *t);

#endif
