/* weights.h - parameters of all ranks: made, loaded, exported.  Each rank sees its own
 * part; nobody holds the model. */
#ifndef TRAIN_WEIGHTS_H
#define TRAIN_WEIGHTS_H

#include "checkpoint/hf.h"
#include "train/model.h"

/* Fresh values by each parameter's `initial`; a function of seed, name and place in the
 * whole tensor alone, so every layout starts from the same numbers. */
void weights_fresh(const struct model *m, struct machine *machine, uint64_t seed);
/* Each rank takes its own part; all call it. */
MUST_USE bool weights_load(const struct model *m, struct machine *machine,
                           const char *folder);
/* Every weight that has a master is rounded from it: after masters were filled. */
void weights_follow(const struct model *m, struct machine *machine);
/* A Hugging Face folder: config and other files from `from`.  Each rank writes its own
 * part; all call it. */
MUST_USE bool weights_export(const struct model *m, const struct machine *machine,
                             const char *folder, const char *from, enum dtype dtype,
                             enum expert_layout experts);
/* What an export is, but for a folder `from` with weights of other types. */
struct hf_outline weights_outline(const struct model *m, enum dtype dtype);

#endif
