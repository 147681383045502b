/* changes.h - what a run that goes on has otherwise than before, and whether it may.
 *
 * A training state keeps every value of the recipe it was made with, and hashes of the
 * data and of the model's files.  What decides which samples are trained on or held
 * out, or how they look (the RESUME lines of recipe.def), stays as it was, unless its
 * key is allowed by name.  Every change that is made is said, and recorded with the
 * first step it holds for. */
#ifndef TRAIN_CHANGES_H
#define TRAIN_CHANGES_H

#include "train/session.h"

struct json_t;

/* --allow-changed KEY: keys; data.sources for all of the sources. */
struct allowed { const char *const *key; int count; };
/* Fails (usage) naming the nearest key where one is none. */
MUST_USE bool allowed_check(const struct allowed *allowed);

/* What changes_find compares with, into the JSON object of a state. */
void changes_keep(const struct session *s, struct json_t *meta);
/* What is otherwise than `meta`, of the state `path`, says: lines of "optim.lr 0.1 ->
 * 0.2" to `t`.  Fails (refused) naming all keys that may not change; (checkpoint) where
 * `meta` is none of changes_keep's. */
MUST_USE bool changes_find(const struct session *s, const struct allowed *allowed,
                           const char *path, const struct json_t *meta,
                           struct text *t);

#endif
