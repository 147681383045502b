/* need.h - which passes of which segments run, and what happens to each value between
 * its forward and its backward use.  Facts about one microbatch; the same for all. */
#ifndef PLAN_NEED_H
#define PLAN_NEED_H

#include "plan/order.h"
#include "plan/policy.h"
#include "plan/stage.h"

enum stay {
    STAY_NONE,                          /* backward does not read it */
    STAY_KEEP,                          /* stays where it is */
    STAY_AGAIN,                         /* dropped, made again */
    STAY_PARK,                          /* moved to host memory and back */
    STAY_RELOAD,                        /* an input: dropped, loaded again */
};

struct need_options {
    bool backward;                      /* is there a backward pass at all? */
    const int *output;                  /* values the caller reads after the step */
    int outputs;
    const struct stages *stages;        /* NULL: one rank runs everything */
    int rank;                           /* of the pipeline */
};

struct unit_list {              /* layer l: unit[first[l]] to unit[first[l + 1] - 1] */
    int *first, *unit;
};

struct need {
    const struct graph *graph;
    bool *wants;                        /* [values] that get gradients */
    bool *output;                       /* [values] the caller, or the next step, reads
                                         * after the step */
    bool *forward, *backward, *weight;  /* [nodes] passes that run here.  A fused
                                         * backward counts as backward even for dw
                                         * alone. */
    int chunks;
    struct portion portion;             /* what of the graph is here, what crosses */
    enum stay *stay;                    /* [values] */
    int *last_reader;           /* [values] last node whose forward reads it, or its
                                 * producer; -1: unread input */
    int *park, *park_next;      /* [nodes], [values]: lists ended by -1: what may be
                                 * parked once this node has run forward */
    int *fetch, *fetch_next;    /* [layers], [values]: what backward of this layer
                                 * is the first to want back */
    int *layer_node;                    /* [layers + 1] first node of each layer */
    int *sequence[2];           /* [nodes] layer after layer: in which order its nodes
                                 * run FORWARD and BACKWARD */
    bool *busy[DIRECTIONS];             /* [chunks * layers] anything to do? */
    struct unit_list read[DIRECTIONS];  /* weights that visits read; those of weight
                                         * passes: none but to run a segment again */
    struct unit_list written;           /* gradients that backward visits write */
};

struct need need_make(struct arena *a, const struct graph *g,
                      const struct policy *policy, const struct need_options *options);
/* Does backward of n give a gradient to its input i? */
bool need_din(const struct need *d, const struct node *n, int i);

#endif
