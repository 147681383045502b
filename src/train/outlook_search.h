/* outlook_search.h - the candidates of a search: what its two files share. */
#ifndef TRAIN_OUTLOOK_SEARCH_H
#define TRAIN_OUTLOOK_SEARCH_H

#include "train/outlook.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_ALL, RECOMPUTES };

enum fate {                             /* of a candidate */
    FATE_FITS,                          /* its speed is known */
    FATE_SLOWER,                        /* fits; even its best speed is too low */
    FATE_MEMORY,                        /* planned up to the stage that has no room */
    FATE_STATE,                         /* not planned: state alone has no room */
    FATE_SKIPPED,                       /* not planned: `why` */
    FATE_REFUSED,                       /* vlmoe train would say `why` */
};

struct candidate {
    int pp, dp, cp, tp, ep, etp, replicate, chunks;
    bool zero_bubble;
    const char *shard;
    enum recompute recompute;
    int64_t tokens;                     /* of a row */
    enum fate fate;
    const char *why;
    int64_t need;                       /* bytes; 0: not planned */
    double speed;                       /* tokens/s a rank; of FATE_SLOWER at most */
    struct recipe recipe;               /* that gives it */
};

struct search {
    struct arena *arena;
    const struct recipe *recipe;
    struct outlook_options options;
    struct model_config config;
    struct hardware hardware;
    unsigned frozen;
    int world;
    int64_t have;                       /* bytes of a rank */
    int64_t dense, experts, trained;    /* parameters, of them trained */
    int64_t count, room;
    struct candidate **at;              /* in the order tried */
    const struct candidate *best;
    double said;                        /* when progress was last told */
};

/* Tries them all.  Fails where the recipe, the model's config or the hardware table
 * cannot be read; that nothing fits is no failure: `best` is NULL then. */
MUST_USE bool search_run(struct search *x, struct arena *a, const struct recipe *r,
                         const struct outlook_options *options);
/* Those that fit, fastest first, in `a`; returns how many. */
int64_t search_fitting(const struct search *x, struct arena *a,
                       struct candidate ***out);
/* The fastest a line each, the others by why they lost (outlook_search_text.c). */
void search_print(const struct search *x, struct text *t);

#endif
