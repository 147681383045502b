/* profile.h - where the time of a training step goes, from the plan's own step events.
 *
 * Components are those of the segments (vision, projector, embedding, attention, mlp,
 * router, experts, head), data wait, load (batch to device), state, optimizer, host
 * (binding) and idle.  A moment of the plan belongs to the compute lane if that works,
 * else to the first other lane that does, else to idle; so the rows add up to the step.
 */
#ifndef TRAIN_PROFILE_H
#define TRAIN_PROFILE_H

#include "base/text.h"
#include "train/session.h"

struct profile_row {
    const char *component, *segment;
    double ms, forward_ms, backward_ms, weight_ms;      /* of one step, mean */
    int64_t steps;                      /* plan steps of that sort in one step */
};
struct profile {
    int64_t steps;                      /* training steps measured */
    double step_ms;
    double covered;                     /* share of step_ms the rows account for */
    double decode_ms; /* reading, decoding and packing of one step's rows,
                       * measured alone, without workers */
    double useful_tokens_per_s;
    int64_t nrow;
    struct profile_row *row;            /* largest first */
};
/* Warms up, then measures `steps` training steps of the recipe; the weights of the
 * model folder are not touched.  `trace` NULL: no trace file. */
MUST_USE bool profile_run(struct arena *a, const struct recipe *r, int64_t warmup,
                          int64_t steps, const char *trace, struct profile *out);
void profile_print(const struct profile *p, struct text *t);

#endif
