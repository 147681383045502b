/* shard.h - which part of a tensor is where.
 *
 * A global tensor is divided twice.  First dim by dim, evenly, over mesh axes (tp, ep,
 * etp): a rank's part is a box.  Then the boxes of a unit lie one after another in one
 * flat run, which is cut into equal shards (FSDP): a shard holds a stretch of
 * a box's elements.  A dimension of fused blocks (gate | up) is written as two
 * dimensions, of which the inner one is split.  All numbers count elements; order is
 * row-major. */
#ifndef PARALLEL_SHARD_H
#define PARALLEL_SHARD_H

#include "parallel/mesh.h"

/* ---- dim by dim ---- */

enum { BOX_DIMS = 6 };
struct box {
    int ndim;
    int64_t dim[BOX_DIMS];              /* of the whole tensor */
    int64_t from[BOX_DIMS], size[BOX_DIMS];     /* this part */
};

/* Dim d is split over the axes on[d] (0: whole); their ranks must divide it. */
struct box box_of(const struct view *v, int rank, int ndim, const int64_t *dim,
                  const unsigned *on);
int64_t box_count(const struct box *b);                 /* elements of the part */
/* Element i of the part as an index of the whole tensor, and back (-1: not inside). */
int64_t box_global(const struct box *b, int64_t i);
int64_t box_local(const struct box *b, int64_t global);
/* Elements that lie together in both, from a multiple of this on. */
int64_t box_row(const struct box *b);

/* ---- flat ---- */

struct flat {
    int64_t count;                      /* elements that mean something */
    int shards;
    int64_t each;                       /* of a shard, a multiple of the atom */
};

/* The smallest equal shards, each a multiple of `atom`: each * shards >= count. */
struct flat flat_make(int64_t count, int shards, int64_t atom);
int64_t flat_padded(const struct flat *f);              /* each * shards */
struct stretch { int64_t from, to; };                   /* empty: from == to */
/* What shard `at` holds of [offset, offset + count) of the run, counted from `offset`;
 * the elements lie from (offset + stretch.from - at * each) on in the shard. */
struct stretch flat_part(const struct flat *f, int at, int64_t offset, int64_t count);

/* ---- from one layout to another ---- */

/* Elements [part.from, part.to) of a box, stored by `rank` from `offset` on. */
struct shard {
    int rank;
    struct box box;
    struct stretch part;
    int64_t offset;
};

/* `length` elements go from `from` in the storage of `rank`, who has old[shard], to
 * `to` in the new storage. */
struct copy { int64_t shard; int rank; int64_t from, to, length; };

/* What makes up `new`, in order of `to`, as few copies as the layouts allow.  Old
 * shards may overlap (copies); which one is taken is not chance.  Fails
 * (FAULT_CHECKPOINT) when an element is in no old shard. */
MUST_USE bool shard_overlap(struct arena *a, const struct shard *old, int64_t count,
                            const struct shard *new, struct copy **copies,
                            int64_t *ncopies);

#endif
