/* run.h - runs a plan: allocates exactly what it says, then takes no decisions.
 *
 * One machine is one rank's device memory plus the lanes that work on it.  Weights,
 * gradients and optimizer state live in the slab for the whole run; several plans
 * (training, evaluation, a larger capacity) may take turns over the same state.
 *
 *     struct machine *m;
 *     if (!machine_make(a, plan, &(struct machine_options){.ops = &ops_cpu,
 *             .team = team, .lanes = true}, &m))
 *         return false;
 *     machine_bind(m, ids, mb, batch->ids);           // each input, each microbatch
 *     if (!machine_step(m))
 *         ...
 *     float loss = *(float *)machine_value(m, loss, mb).data;
 *     machine_free(m);
 *
 * Called from one thread; the lanes' own threads are the machine's. */
#ifndef RUN_RUN_H
#define RUN_RUN_H

#include "parallel/world.h"
#include "plan/plan.h"

struct machine;

struct machine_options {
    const struct ops *ops;
    const struct rank *rank;            /* of graph.mesh; NULL: alone */
    struct team *team;                  /* the device's threads; outlives the machine */
    bool lanes;                         /* a thread per lane; else emission order on the
                                         * caller's thread.  The same bits either way */
};

/* Fails (FAULT_MEMORY) when the machine cannot give plan->bytes, or when the plan is
 * for more ranks than there are (FAULT_USAGE).  Weights and moments
 * begin as zero, the rest as NaN.  The plan and its graph must outlive the machine, or
 * its use of them. */
MUST_USE bool machine_make(struct arena *a, const struct plan *p,
                           const struct machine_options *options, struct machine **out);
void machine_free(struct machine *m);
/* Run another plan from now on, over the same state (built with options.state, or with
 * the same graph and layout).  The slab grows if the plan needs more; bindings are
 * forgotten.  Tensors taken before are no longer valid.  Held values (graph_hold) keep
 * what they hold while plans that hold the same take turns. */
MUST_USE bool machine_use(struct machine *m, const struct plan *p);
const struct plan *machine_plan(const struct machine *m);
int64_t machine_bytes(const struct machine *m);         /* device memory it took */

/* Views of whole-run memory, with the dims segments see; only of what is not
 * divided (plan.ways 1).  Gradients hold the sum over the last step's microbatches and
 * over all holders.  Absent (tensor_is false) for frozen params. */
struct tensor machine_weight(const struct machine *m, int param);
struct tensor machine_grad(const struct machine *m, int param);
struct tensor machine_moment(const struct machine *m, int param, int which);
/* This rank's own part of the same: elements [part.from, part.to) of the param's box,
 * flat; all of them where nothing is divided.  What an update works on. */
enum held {
    HELD_WEIGHT, HELD_GRADIENT, HELD_FIRST, HELD_SECOND,
    HELD_MASTER                         /* the weight itself where it has no master */
};
struct tensor machine_own(const struct machine *m, enum held what, int param,
                          struct stretch *part);
/* Does it hold numbers alone? */
bool machine_finite(const struct machine *m, enum held what, int param);
/* The same of a plan that no machine has: what type it is, where it is something. */
enum dtype plan_held_dtype(const struct plan *p, enum held what, int param);
/* All ranks of the run. */
const struct comm *machine_world(const struct machine *m);

/* Where microbatch mb's input `value` (dense, value_bytes) lies; needed until the next
 * machine_step returns, and forgotten by it. */
void machine_bind(struct machine *m, int value, int mb, const void *data);
/* Run the plan once.  Fails in check mode (FAULT_NOT_FINITE), and when another rank is
 * lost (FAULT_RANK). */
MUST_USE bool machine_step(struct machine *m);
/* An output of the plan after a step, until the next one. */
struct tensor machine_value(const struct machine *m, int value, int mb);

/* Check mode: after every step look at what it wrote; the first value that is not
 * finite fails machine_step with the plan step's line.  Emission order, slow. */
void machine_check(struct machine *m, bool on);
/* Tracing: when each step of the last machine_step began and ended, in seconds of
 * clock_seconds(), indexed like plan.step.  NULL when off. */
struct span { double start, end; };
void machine_trace(struct machine *m, bool on);
const struct span *machine_spans(const struct machine *m);
/* Chrome / Perfetto JSON of the last traced step: a track a lane. */
void trace_json(const struct plan *p, const struct span *span, struct text *t);

/* Evidence: steps run so far of each row of plan.tally, by the current plan. */
int64_t machine_ran(const struct machine *m, int64_t tally);
/* Fails when what ran is not steps * plan.tally. */
MUST_USE bool machine_evidence(const struct machine *m);

/* FLOPs and bytes of every step of the plan, from the dry device: work[nstep]. */
void plan_work(const struct plan *p, struct work *work);

#endif
