/* policy.h - what to keep, run again or move out: a recipe's words, resolved.
 *
 * A list names segments or values, separated by commas or spaces: "norm act".  A name
 * may be qualified by its tower ("vision.act"); "*" is everything, "decoder.*" a whole
 * tower, "none" (or "") nothing.  A segment's name stands for all its outputs.
 *
 *     struct policy policy = policy_plain();
 *     if (!policy_parse(&policy, a, g, "norm decoder.act", "none"))
 *         return fail_in("recipe"); */
#ifndef PLAN_POLICY_H
#define PLAN_POLICY_H

#include "graph/graph.h"

struct policy {
    const bool *recompute;      /* [values] made again before backward; NULL: none */
    const bool *offload;        /* [values] parked in host memory between; NULL: none.
                                 * An input is never copied out: it is loaded again. */
    bool keep_weights;          /* do not drop gathered weights between uses */
    bool weave;                 /* run a backward and the next forward interleaved */
    bool overlap;               /* what may run beside a collective does */
    bool delay;                 /* weight passes wait for the next collective */
    double slack;               /* transient memory may grow by this factor (1: tight),
                                 * so that lanes wait less for each other's memory */
};

struct policy policy_plain(void);       /* keep everything, tight memory */
/* Fills recompute and offload.  What is recomputed is not offloaded; a name in both
 * lists is an error, and so is an unknown one (named with the nearest known). */
MUST_USE bool policy_parse(struct policy *out, struct arena *a, const struct graph *g,
                           const char *recompute, const char *offload);

#endif
