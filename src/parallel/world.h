/* world.h - all ranks as threads of this process: every layout on one machine, without
 * a GPU.
 *
 *     static bool train(struct rank *r, void *arg) { ... return true; }
 *     if (!world_run(16, 0, train, &recipe))
 *         return false;                // the first failure: "rank 3: ..."
 *
 * When a rank fails or returns too early, all others are woken from their calls with
 * FAULT_RANK; nobody hangs longer than the patience given. */
#ifndef PARALLEL_WORLD_H
#define PARALLEL_WORLD_H

#include "base/arena.h"
#include "parallel/comm.h"

enum { MAX_WORLD = 64 };                /* threads of one machine */

struct world;
struct rank {
    struct world *world;
    int rank, ranks;
    struct arena arena;                 /* this rank's, freed when all have ended */
};

/* Runs main on `ranks` threads and joins them.  `patience`: seconds a call may wait for
 * the other members (0: ten minutes).  Only rank 0 logs (warnings apart).  Fails with
 * the first failure of any rank, its number in front. */
MUST_USE bool world_run(int ranks, double patience,
                        bool (*main)(struct rank *r, void *arg), void *arg);

/* This rank cannot go on, for the failure it keeps (which stays): all others wake. */
void world_leave(const struct rank *r);

/* This rank's end of the group `member` (ascending, itself included) on `lane`.
 * Members that name the same group and lane meet; nobody waits.  Lives as long as the
 * world; asking again gives the same. */
struct comm world_comm(const struct rank *r, const char *name, const int *member,
                       int size, int lane);

#endif
