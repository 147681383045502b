/* state.h - the training state on disk: in pieces, hashed, crash-safe.
 *
 *   ROOT/step-N/rank-R.bin          the pieces that rank R wrote, one after another
 *   ROOT/step-N/manifest.json       step, caller's numbers, and of every piece: tensor,
 *                                   box, stretch, file, place, xxHash3 (manifest.h)
 *
 * Every rank writes what it stores and nobody else does, into a file of its own; no
 * weight travels and no tensor is whole anywhere.  All go to ROOT/.step-N.part, every
 * file and folder fsynced, the manifest last, then one rename: a state is there whole
 * or not at all.  A crash leaves a .part that the next save removes.
 *
 * A piece says which part of its tensor it is, so any layout reads what any other one
 * wrote: a rank reads the byte ranges that overlap its own pieces, and checks the
 * hashes of the blocks they lie in.  A missing file, a wrong size or hash, pieces that
 * overlap or leave a gap, a changed manifest are named and refused. */
#ifndef CHECKPOINT_STATE_H
#define CHECKPOINT_STATE_H

#include "checkpoint/manifest.h"
#include "parallel/comm.h"

/* Elements [part.from, part.to) of a box of a tensor; box.dim is the whole tensor's. */
struct state_piece {
    const char *name;
    enum dtype dtype;
    struct box box;
    struct stretch part;
    void *data;                         /* of the part */
};
int64_t state_piece_bytes(const struct state_piece *p);

/* All members of `world` call it with what they write: together every tensor once.
 * `meta` is rank 0's JSON object as text.  Afterwards this step and the newest complete
 * others are kept, `keep` in all (0: all); the rest of the complete ones is removed, or
 * warned of where that cannot be.
 * Where one rank fails all do, alike, and nothing of the step is left. */
MUST_USE bool state_save(const struct comm *world, const char *root, int64_t step,
                         const struct state_piece *piece, int64_t count,
                         const char *meta, int keep);
/* Removes what a killed save left; where no other process may save. */
MUST_USE bool state_sweep(const char *root);
/* Step of the newest whole state (manifest sound, sizes and every hash right).  All
 * members call it; each reads its share of the files, all get the same answer.  Others
 * are skipped with a warning that names them.  -1: there is none at all; where there
 * are only damaged ones it fails. */
MUST_USE bool state_newest(const struct comm *world, const char *root, int64_t *step);

struct state { const char *path; struct manifest manifest; };
/* Opens step N: the manifest, and of the files their sizes.  Nothing to close. */
MUST_USE bool state_open(struct arena *a, const char *root, int64_t step,
                         struct state *out);
/* Reads the elements of `want` after checking type, shape and the hash of every block
 * they lie in; one floating type becomes another.  Needs memory for a block and a
 * list, whatever the tensor's size. */
MUST_USE bool state_read(const struct state *s, const struct state_piece *want,
                         void *to);
/* Every hash of the files that are `share` of `shares` (0 of 1: of all). */
MUST_USE bool state_verify(const struct state *s, int share, int shares);

#endif
