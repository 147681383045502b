/* crew.h - the ranks of one process run rows together, as rank 0 has them. */
#ifndef TRAIN_CREW_H
#define TRAIN_CREW_H

#include "train/session.h"

#include <stdatomic.h>

/* What answers take (generate.h): the largest row of prompts; how many are under way at
 * once on a data-parallel rank, and rows of its cache. */
struct answers_room {
    struct capacity prompts;
    int64_t answers, cache_rows;
};

/* What the ranks of one process share: the layout, and the rows that rank 0 has them
 * run (session_rows). */
struct crew {
    struct mesh mesh;
    const struct row *const *row;
    int rows, view;
    const struct ask *ask;
    struct answers_room room;
    bool end;
    atomic_int inside;                  /* ranks that may read the row */
};

/* Rows that run at once: one for each data-parallel rank. */
int session_ways(const struct session *s);
/* Run so many rows (at most session_ways) through the view, which is put to use, on all
 * ranks: rank 0 calls session_rows and session_end, the others session_follow with
 * their views of the same numbers, which returns after that.  `loss`, where not NULL,
 * gets the cross entropy summed over the rows, each counted once, if the view has one.
 * `ask`: of each row.  Loss and largest logits that are not finite fail. */
MUST_USE bool session_rows(struct session *s, struct view_of_model *v,
                           const struct row *const *row, int rows,
                           const struct ask *ask, double *loss);
MUST_USE bool session_end(struct session *s);
MUST_USE bool session_follow(struct session *s, struct view_of_model *const *view);
/* Is x, which all ranks have, a number?  Else fails (FAULT_NOT_FINITE): `what` it is
 * and which weight is not finite either, if one is.  All ranks together. */
MUST_USE bool session_finite(const struct session *s, const char *what, double x);
/* Rank 0's room becomes every rank's. */
MUST_USE bool session_agree(struct session *s, struct answers_room *room);

#endif
