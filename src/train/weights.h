/* weights.h - parameters of all ranks: made, loaded, gathered, exported. */
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
/* A Hugging Face folder: config and other files from `from`.  Rank 0 writes; the others
 * meanwhile give what it asks for (held_serve). */
MUST_USE bool weights_export(const struct model *m, const struct machine *machine,
                             const char *folder, const char *from, enum dtype dtype);

/* ---- whole tensors, one at a time ----
 * Rank 0 calls held_get as often as it likes and then held_end; all others call
 * held_serve, which returns when rank 0 has ended. */

/* A parameter's weight, gradient or moment, whole, in memory layout. */
MUST_USE bool held_get(const struct model *m, const struct machine *machine,
                       enum held what, int param, float *to);
MUST_USE bool held_end(const struct machine *machine);
MUST_USE bool held_serve(const struct model *m, const struct machine *machine);
/* This rank's part of a whole tensor in memory layout, into its machine. */
void held_set(const struct model *m, struct machine *machine, enum held what, int param,
              const float *from);
/* Dims of the whole tensor in memory layout; returns how many. */
int held_dims(const struct param *p, int64_t dim[3]);

#endif
