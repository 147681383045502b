/* mesh.h - where a rank sits.  The same ranks are factored more than once: attention
 * sees pp x dp x cp x tp, experts see pp x edp x ep x etp, the vision tower sees
 * pp x vdp.  Stages are outermost and the same ranks in every view.
 *
 * Order puts talkative groups on neighbouring ranks: tp varies fastest, then cp (and
 * ep, which folds over cp and tp), then dp, then pp.  Hybrid sharding splits dp into
 * copies ("replicate", outer) of a sharded group ("shard", inner); a copy is a whole
 * block of ranks, so experts and vision have the same copies.
 *
 * One rule replaces lists of groups: a tensor's gradient is summed over, and its
 * storage sharded over, all ranks that hold the same piece (view_holders). */
#ifndef PARALLEL_MESH_H
#define PARALLEL_MESH_H

#include "base/arena.h"

enum axis {
    AXIS_PP,                            /* pipeline stages */
    AXIS_REPLICATE,                     /* copies of what is sharded */
    AXIS_SHARD, AXIS_CP, AXIS_TP,       /* dense view, inside a stage's copy */
    AXIS_EDP, AXIS_EP, AXIS_ETP,        /* expert view, the same ranks */
    AXIS_VDP,                           /* vision view, the same ranks */
    AXES
};
extern const char *const axis_name[AXES];
#define ON(axis) (1u << (axis))
/* dp of the dense view: both parts of it. */
#define ON_DP (ON(AXIS_REPLICATE) | ON(AXIS_SHARD))

enum { MAX_VIEW = 5 };
struct view {
    int naxis, size[MAX_VIEW];          /* outermost first; the last varies fastest */
    enum axis axis[MAX_VIEW];
};

int view_world(const struct view *v);                           /* ranks */
int view_size(const struct view *v, enum axis axis);            /* absent axis: 1 */
int view_at(const struct view *v, int rank, enum axis axis);    /* absent axis: 0 */
/* The rank whose coordinates are at[axis]; those of absent axes are not read. */
int view_rank(const struct view *v, const int at[AXES]);
/* `rank` moved to coordinate `at` of one axis the view has: a ring's or stage's
 * neighbour. */
int view_peer(const struct view *v, int rank, enum axis axis, int at);

/* A group: the ranks that differ from `rank` only along `along` (bits; absent axes are
 * ignored).  Members ascend, which is also row-major order of their coordinates, and
 * every member sees the same list.  Returns how many, itself included; `members` may be
 * NULL.  Takes time in the size of the group, not of the world. */
int view_group(const struct view *v, int rank, unsigned along, int *members);
int view_group_size(const struct view *v, unsigned along);
int view_group_index(const struct view *v, int rank, unsigned along);   /* own place */
/* Which of the world / size groups along `along` it is: 0, 1, ... */
int view_group_number(const struct view *v, int rank, unsigned along);

/* Axes along which the same piece repeats, of a tensor split over `split`: all others
 * but pp.  Without ON(AXIS_REPLICATE): the ranks its storage is sharded over. */
static inline unsigned holder_axes(unsigned split)
{
    return ~(split | ON(AXIS_PP));
}
/* The group along holder_axes(split). */
int view_holders(const struct view *v, int rank, unsigned split, int *members);

/* What a recipe asks for; 0 stands for 1, except where it says otherwise. */
struct layout {
    int world;                          /* ranks */
    int pp, dp, cp, tp;                 /* dp 0: whatever the others leave */
    int replicate;                      /* copies within dp */
    int ep, etp;
    int node;                           /* ranks of one node; 0: all */
};

/* What has to divide, by whom; a 0 asks for nothing (the model has no such part). */
struct mesh_limits {
    int heads, groups, hidden;          /* tp: query heads, key/value heads (which may
                                         * divide tp instead), dense F */
    int vocabulary;                     /* tp (as padded by the caller, if it is) */
    int vision_heads, vision_hidden, merger_hidden;     /* tp */
    int features;                       /* tp: image features of a row */
    int experts, expert_hidden;         /* ep, etp */
    int shared_hidden;                  /* tp: of a shared expert */
    int pieces, chunks;                 /* pp x chunks stages of at least one piece */
    int64_t tokens;                     /* of a row: tp pieces; with cp, 2 cp tp pieces
                                         * (two zig-zag parts a rank) */
};

struct mesh {
    struct layout layout;               /* every number filled in */
    int edp, vdp;                       /* inside a copy */
    struct view dense, expert, vision;
};

/* Fails with the numbers that do not fit, the legal ones and the nearest (FAULT_USAGE).
 * `limits` may be NULL. */
MUST_USE bool mesh_make(const struct layout *l, const struct mesh_limits *limits,
                        struct mesh *out);
/* The view in which a weight's split axes are meant. */
const struct view *mesh_view(const struct mesh *m, bool experts);
int mesh_node(const struct mesh *m, int rank);
/* Does this rank speak for its rows?  One of the stages, cp and tp ranks that have the
 * same rows does: where the loss is, on the last stage. */
bool mesh_speaks(const struct mesh *m, int rank);
/* Every view multiplied out, and rank 0's groups with their distances. */
char *mesh_text(const struct mesh *m, struct arena *a);

#endif
