/* search.h - the candidates of a search: what its files share. */
#ifndef OUTLOOK_SEARCH_H
#define OUTLOOK_SEARCH_H

#include "outlook/outlook.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_ALL, RECOMPUTES };
extern const char *const recompute_name[RECOMPUTES];

/* parallel.shard and, where it is read, parallel.reduce. */
enum division {
    DIVIDE_NONE, DIVIDE_OPTIMIZER, DIVIDE_GRADIENTS, DIVIDE_GRADIENTS_LAST,
    DIVIDE_PARAMETERS, DIVIDE_PARAMETERS_LAST, DIVISIONS
};
enum parallel_shard division_shard(enum division d);
bool division_last(enum division d);    /* gradients are summed after the last row */

enum fate {                             /* of a candidate */
    FATE_FITS,                          /* its speed is known, or told: `whole` */
    FATE_SLOWER,                        /* fits; even its best speed is too low */
    FATE_MEMORY,                        /* planned up to the stage that has no room */
    FATE_STATE,                         /* not planned: state alone has no room */
    FATE_SKIPPED,                       /* not planned: `why` */
    FATE_REFUSED,                       /* vlmoe train would say `why` */
};

struct candidate {
    int pp, dp, cp, tp, ep, etp, replicate, chunks;
    bool zero_bubble, delay, weave, allgather;
    enum division division;
    enum recompute recompute;
    int64_t tokens;                     /* of a row */
    /* ---- what came of it ---- */
    enum fate fate;
    const char *why;
    bool whole;                         /* all its microbatches were planned */
    bool state;                         /* does not fit, and state alone would not */
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
    const struct candidate *best;       /* the fastest of those planned whole */
    bool all;                           /* every setting was tried */
    int64_t steps;                      /* of plans, all together */
    double said;                        /* when progress was last told */
};

/* Tries them.  Fails where the recipe, the model's config or the hardware table cannot
 * be read; that nothing fits is no failure: `best` is NULL then.  Ends early when
 * options.stop is raised. */
MUST_USE bool search_run(struct search *x, struct arena *a, const struct recipe *r,
                         const struct outlook_options *options);
bool search_stopped(const struct search *x);
/* Those that fit, fastest first, in `a`; returns how many.  The first SEARCH_SHOWN and
 * all that come close to the best are planned whole. */
enum { SEARCH_SHOWN = 12 };
int64_t search_fitting(const struct search *x, struct arena *a,
                       struct candidate ***out);
/* The fastest a line each, the others by why they lost (search_text.c). */
void search_print(const struct search *x, struct text *t);
/* The same for programs (json.c). */
void search_json(const struct search *x, struct text *t);
/* What a candidate has otherwise than the recipe, as overrides, in `a`; how many. */
int search_take(const struct search *x, const struct candidate *c, struct arena *a,
                char ***overrides);

/* ---- one candidate: candidate.c ---- */

/* Up to this field candidates are compared: the same settings. */
bool candidate_same(const struct candidate *a, const struct candidate *b);
/* What weights, gradients and optimizer take at least: as if stages were equal. */
int64_t candidate_state(const struct search *x, const struct candidate *c);
/* Plans it as far as its fate needs; where `best` may be beaten, whole. */
void candidate_try(struct search *x, struct candidate *c);
/* Plans all its microbatches, unless it was done. */
void candidate_whole(struct search *x, struct candidate *c);

#endif
