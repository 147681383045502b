/* saver.h - training states are written while training goes on.
 *
 * A save copies what this rank writes to a snapshot in host memory; a thread writes
 * that to its file, together with the other ranks' threads, and the next step begins at
 * once.  One save is under way at a time: the next one, the end of the run and every
 * failure wait for it.  Where it fails the run ends with its message; the state before
 * it is still there.
 *
 * The snapshot is as large as the rank's file (saver_snapshot) and there from the start
 * of the run on, so a run that begins does not run out of memory at its first save.  A
 * save that no step follows is written from where the state is, without a copy. */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H

#include "train/train_state.h"

struct saver;
/* ROOT = the run's checkpoints folder.  Fails (FAULT_MEMORY) where there is no room for
 * the snapshot. */
MUST_USE bool saver_make(struct session *s, const char *root, struct saver **out);
/* All ranks call it.  `last`: no step follows, it returns when all is written. */
MUST_USE bool saver_save(struct saver *v, const struct train_state *t, bool last);
/* False once the save under way has failed; does not wait. */
MUST_USE bool saver_check(struct saver *v);
MUST_USE bool saver_wait(struct saver *v);
MUST_USE bool saver_end(struct saver *v);       /* wait, and free */

/* Bytes of this rank's snapshot by the recipe; 0 where it writes without. */
int64_t saver_snapshot(const struct session *s);

#endif
