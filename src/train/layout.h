/* layout.h - how many ranks there are, and how they share the model. */
#ifndef TRAIN_LAYOUT_H
#define TRAIN_LAYOUT_H

#include "parallel/mesh.h"
#include "recipe/recipe.h"

/* parallel.ranks, or what the layout multiplies to. */
int session_ranks(const struct recipe *recipe);
/* The layout of parallel.*.  Fails (FAULT_USAGE) when it does not divide the model, the
 * ranks or batch.rows. */
MUST_USE bool session_layout(const struct recipe *recipe, struct mesh *out);

#endif
