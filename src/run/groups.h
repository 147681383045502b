/* groups.h - the ranks a machine's steps talk to: a comm for each group and lane. */
#ifndef RUN_GROUPS_H
#define RUN_GROUPS_H

#include "parallel/world.h"
#include "plan/plan.h"

struct groups {
    struct arena *arena;
    const struct rank *rank;            /* NULL: alone, or dry */
    struct traffic *traffic;            /* dry: nothing moves, it is counted */
    int64_t count, room;
    struct group_of {                   /* found by the first four */
        bool experts, back;             /* back: gradients from stage to stage */
        unsigned along;
        enum lane lane;
        const struct comm *comm;
    } *at;
    struct comm world;                  /* all ranks */
};

struct groups groups_make(struct arena *a, const struct rank *rank);
struct groups groups_dry(struct arena *a, struct traffic *traffic);
/* Fails (FAULT_USAGE) when the graph was recorded for other ranks than there are. */
MUST_USE bool groups_fit(const struct groups *x, const struct graph *g);
/* What step s talks through; NULL if it talks to nobody.  The same group on the same
 * lane gives the same comm. */
const struct comm *groups_find(struct groups *x, const struct plan *p,
                               const struct step *s);

#endif
