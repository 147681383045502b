/* weights.h - a machine's parameters: made, loaded, exported. */
#ifndef TRAIN_WEIGHTS_H
#define TRAIN_WEIGHTS_H

#include "checkpoint/hf.h"
#include "train/model.h"

/* Fresh values by each parameter's `initial`; a function of seed and name alone. */
void weights_fresh(const struct model *m, struct machine *machine, uint64_t seed);
MUST_USE bool weights_load(const struct model *m, struct machine *machine,
                           const char *folder);
/* A Hugging Face folder: config and other files from `from`. */
MUST_USE bool weights_export(const struct model *m, const struct machine *machine,
                             const char *folder, const char *from, enum dtype dtype);

#endif
