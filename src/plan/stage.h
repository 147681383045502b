/* stage.h - a pipeline: where the recorded model is cut into stages, which part of it
 * one rank runs, and what crosses the cuts.
 *
 * Every rank records the whole model; no layer knows of stages.  Layers go to stages in
 * order.  Stage s is chunk s / ranks of rank s % ranks, so with one chunk a rank is a
 * stage.  All else follows from the graph:
 * - a node runs on the rank of its layer; one that only inputs go into and no weights
 *   (rotary tables) runs again wherever it is read, so it needs no message;
 * - a value goes straight from the rank that makes it to each rank that reads it, once,
 *   however many stages lie between; its gradients come back the same way and are added
 *   from the last reader to the first;
 * - a rank has the units its layers use.  One that several ranks use (tied embeddings)
 *   lives on each, and its gradient is summed over them after the last microbatch.
 *
 *     struct stages stages;
 *     if (!stages_make(a, &graph, 4, 1, "V,4,4,4H", NULL, &stages))
 *         return fail_in("recipe"); */
#ifndef PLAN_STAGE_H
#define PLAN_STAGE_H

#include "graph/graph.h"

struct stages {
    int ranks, chunks;                  /* ranks * chunks stages */
    int *of;                            /* [layers] stage; ascends, none is left out */
};

/* Cut the model.  `layout` names what each stage has, stage after stage, separated by
 * commas: a number of decoder layers; V, the vision tower, or V3, three blocks of it
 * (patch embedding and mergers go with the block before or after them); E, the token
 * embedding; H, the head.  What is nowhere named goes where it belongs: V and E with
 * what follows them, H to the last stage.  Empty: cut so that the stage with most work
 * has least; `work` [layers] is that of each layer, NULL: stages_work.
 * Fails (FAULT_USAGE) with what does not add up. */
MUST_USE bool stages_make(struct arena *a, const struct graph *g, int ranks, int chunks,
                          const char *layout, const double *work, struct stages *out);
/* FLOPs of a node's forward, as the dry device counts; none where it asks other ranks,
 * which only moves. */
double node_flops(const struct graph *g, const struct node *n);
/* FLOPs of each layer's passes over one microbatch. */
double *stages_work(struct arena *a, const struct graph *g);
/* The layout of a cut: what stages_make would take to make it again. */
char *stages_text(struct arena *a, const struct graph *g, const struct stages *s);
/* The ranks that have a unit, ascending; `rank` (may be NULL) has room for all. */
int stages_holders(const struct stages *s, const struct graph *g, int unit, int *rank);

/* A value that one rank makes and another reads.  Both think of it in terms of the
 * reader's first stage after the maker's, so two ranks exchange messages in the same
 * order whatever the order of their items (plan/order.c). */
struct crossing {
    int value, node;                    /* the node that makes it */
    int from, to;                       /* stages */
    int back;           /* node of `to` whose backward is the last to add to the value's
                         * gradient; EARLY: the gradient is there before; NONE: no
                         * gradient is wanted or given */
};
enum { EARLY = INT32_MAX };

struct crossings {
    int64_t count, room;
    struct crossing *at;                /* in the order in which two ranks exchange */
    int *leave, *early, *arrive, *next; /* lists ended by -1: what leaves after a node
                                         * [nodes], at the begin of an item of a chunk
                                         * [chunks]; what arrives then [chunks] */
};

struct portion {                        /* what one rank runs */
    int *chunk;                         /* [nodes] -1: not here */
    int *input;                         /* [values] chunk that loads the input, -1 */
    bool *unit, *tied;                  /* [units] has it; several ranks have it */
    int *home;                          /* [units] the first rank that has it */
    struct crossings value, gradient;   /* forward, and back */
};

struct need;
/* The portion of `rank`, given what is needed of the whole graph. */
struct portion portion_make(struct arena *a, const struct need *d,
                            const struct stages *s, int rank);

#endif
