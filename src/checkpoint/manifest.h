/* manifest.h - which bytes of a training state's files are what of which tensor.
 *
 *   {"step": 4, "state": {...}, "block": 4194304, "files": [bytes of rank-0.bin, ...],
 *    "tensors": {NAME: {"dtype": "F32", "dim": [2, 8, 4], "pieces": [
 *        {"file": 0, "at": 0, "from": [0, 4, 0], "size": [2, 4, 4], "part": [0, 16],
 *         "xxh3": "16 digits for each block of the piece"}, ...]}},
 *    "manifest": "xxHash3 of the text before"}
 *
 * "from" and "size" are a box of the whole tensor, "part" a stretch of the box's
 * elements (parallel/shard.h).  The boxes of a tensor are equal and make it up, the
 * parts of a box follow each other, and so do the pieces of a file: every element and
 * every byte is there once, which is checked before anything is believed. */
#ifndef CHECKPOINT_MANIFEST_H
#define CHECKPOINT_MANIFEST_H

#include "base/file.h"
#include "core/dtype.h"
#include "parallel/shard.h"

struct manifest_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t dim[BOX_DIMS], count;
    int64_t pieces;
    struct shard *piece;                /* rank: the file; offset: 0 */
    int64_t *at;                        /* byte of the file where a piece begins */
    const uint64_t **hash;              /* of each block of a piece */
};

struct manifest {
    int64_t step, block;                /* bytes that a hash is of */
    const char *meta;                   /* the caller's JSON text */
    int64_t files, *bytes;              /* of each file */
    int64_t tensors;
    struct manifest_tensor *tensor;     /* sorted by name */
};

/* `path` is for messages.  (Also the fuzzing entry.) */
MUST_USE bool manifest_parse(struct arena *a, const char *path, struct bytes text,
                             struct manifest *out);
const struct manifest_tensor *manifest_find(const struct manifest *m, const char *name);
int64_t piece_bytes(const struct manifest_tensor *t, int64_t piece);

/* ---- writing: each rank describes its file, one of them makes the manifest ---- */

struct content;                         /* what one file holds, piece after piece */
struct content *content_make(struct arena *a);
/* Elements `part` of a box come next; hash: of each of their blocks. */
void content_add(struct content *c, const char *name, enum dtype dtype,
                 const struct box *box, struct stretch part, const uint64_t *hash,
                 int64_t blocks);
char *content_text(struct content *c);  /* as JSON; at the end, and once */
/* Of all files' contents.  Fails where they do not make up whole tensors. */
MUST_USE bool manifest_text(struct arena *a, const char *path, int64_t step,
                            const char *meta, int64_t block, char *const *content,
                            int64_t files, char **out);

#endif
