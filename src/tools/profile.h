/* profile.h - where the time of a training step goes, from the plan's own step events.
 *
 * Components are those of the segments (vision, projector, embedding, attention, mlp,
 * router, experts, head), data wait, load (batch to device), state, optimizer, host
 * (binding) and idle.  A moment of the plan belongs to the compute lane if that works,
 * else to the first other lane that does, else to idle; so the rows add up to the step.
 */
#ifndef TOOLS_PROFILE_H
#define TOOLS_PROFILE_H

#include "base/text.h"
#include "train/session.h"

struct profile_row {
    const char *component, *segment;
    double ms, forward_ms, backward_ms, weight_ms;      /* of one step, mean */
    int64_t steps;                      /* plan steps of that sort in one step */
};
struct profile {                        /* of one rank */
    int ranks;
    int64_t steps;                      /* training steps measured */
    double step_ms;
    double covered;                     /* share of step_ms the rows account for */
    double decode_ms; /* reading, decoding and packing of one step's rows,
                       * measured alone, without workers; rank 0 has it */
    double useful_tokens_per_s;         /* of all ranks */
    /* Of a step: the compute lane's work; other lanes' where that does not, nobody's;
     * waiting for rows, other ranks than 0 for rank 0. */
    double compute_ms, exposed_ms, idle_ms, data_ms;
    int64_t nrow;
    struct profile_row *row;            /* largest first */
};

struct profile_options {
    int64_t warmup, steps;
    int64_t rank;                       /* whose trace */
    const char *trace;                  /* NULL: no trace file */
};
/* Warms up, then measures `steps` training steps of the recipe on all its ranks, *out
 * [ranks]; the weights of the model folder are not touched. */
MUST_USE bool profile_run(struct arena *a, const struct recipe *r,
                          const struct profile_options *o, struct profile **out);
/* All ranks in short, one of them by component. */
void profile_print(const struct profile *all, int64_t rank, struct text *t);

#endif
