/* state.h - the training state on disk: whole, hashed, crash-safe.
 *
 *   ROOT/step-N/state.safetensors   every tensor, streamed
 *   ROOT/step-N/manifest.json       step, caller's numbers, xxHash3 of every tensor
 *
 * Written to ROOT/.step-N.part, every file and folder fsynced, then one rename: a
 * checkpoint is there whole or not at all.  A crash leaves a .part that the next save
 * removes.  A missing file, a wrong size or hash, a changed manifest is named and
 * refused. */
#ifndef CHECKPOINT_STATE_H
#define CHECKPOINT_STATE_H

#include "checkpoint/safetensors.h"

struct state_source {
    const struct disk_tensor *tensor;   /* name, type, shape, bytes */
    int64_t count;
    /* Fills in the data of tensor[i], asked for once each, in order; NULL: it is there
     * already. */
    bool (*get)(void *arg, int64_t i, void *to);
    void *arg;
};
/* `meta` is the caller's JSON object as text.  Afterwards this step and the newest
 * complete others are kept, `keep` in all (0: all); the rest of the complete ones is
 * removed. */
MUST_USE bool state_save(const char *root, int64_t step,
                         const struct state_source *from, const char *meta, int keep);
/* Step of the newest whole checkpoint (manifest sound, sizes and every hash right).
 * Others are skipped with a warning that names them.  -1: there is none at all; where
 * there are only damaged ones it fails. */
MUST_USE bool state_newest(const char *root, int64_t *step);

struct state {
    const char *path;
    int64_t step;
    const char *meta;                   /* JSON text */
    struct safetensors file;
    const uint64_t *hash;               /* of file.tensor[i] */
};
/* Opens step N; hashes are checked by state_read, tensor by tensor. */
MUST_USE bool state_open(struct arena *a, const char *root, int64_t step,
                         struct state *out);
/* Copies a tensor after checking type, shape and hash against what is wanted. */
MUST_USE bool state_read(const struct state *s, const struct disk_tensor *want,
                         void *to);
MUST_USE bool state_verify(const struct state *s);      /* every hash */
void state_close(struct state *s);

#endif
