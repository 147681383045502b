/* local.h - what world.c and comm_local.c share: the ranks of this process and the
 * groups they meet in. */
#ifndef PARALLEL_LOCAL_H
#define PARALLEL_LOCAL_H

#include "parallel/world.h"

#include <pthread.h>
#include <stdatomic.h>

struct group;
struct world {
    int ranks;
    double patience;                    /* seconds */
    atomic_bool *ended;                 /* [ranks]: its main has returned */
    atomic_bool lost;                   /* the three below are written, and stay */
    int lost_rank, teller;              /* who is lost, who found out */
    struct failure failure;             /* the teller's */
    pthread_mutex_t lock;               /* of the above and the list; before groups' */
    struct group *groups;               /* newest first */
};

/* The first loss of a world counts; it wakes everyone. */
void world_lose(struct world *w, int teller, int lost_rank, const struct failure *why);

/* The share of member `rank`, from everyone's calls (which match). */
void comm_work(const struct comm_call *const *call, int size, int rank);

/* ---- comm_local.c ---- */

struct group *group_make(struct world *w, const char *name, const int *member, int size,
                         int lane, struct group *next);
struct group *group_next(const struct group *g);
bool group_is(const struct group *g, const char *name, const int *member, int size,
              int lane);
struct comm group_comm(struct group *g, int rank);      /* of the world */
/* Has all mail been taken?  Else fails and *to is the rank that did not. */
MUST_USE bool group_quiet(const struct group *g, int *to);
void group_wake(struct group *g);       /* everyone who waits looks again */
void group_free(struct group *g);

#endif
