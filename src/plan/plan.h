/* plan.h - one training step of one rank, lowered to a flat list.
 *
 * Everything that makes large training hard to read - gathering weights, keeping or
 * running again or moving activations, pipeline order, which lane waits for which - is
 * decided here, once, before the first step.  The result can be printed, diffed, and
 * checked; running it takes no decisions (run/run.h).
 *
 *     struct order order = order_1f1b(a, 0, 1, mbs);
 *     struct plan *p = plan_build(a, &graph, &(struct plan_options){
 *         .order = &order, .policy = &policy, .moments = 2,
 *         .output = (int[]){loss}, .outputs = 1});
 *
 * Passes, one file each: policy.c (names to masks), order.c (pipeline order), need.c
 * (which segments and values backward needs), plan.c (the list), place.c (memory),
 * waits.c (lanes), simulate.c, explain.c, check.c (an independent verifier).  Of a
 * pipeline: cut.c, stage.c (what of the model is whose), pipe.c (all its ranks). */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "base/text.h"
#include "plan/order.h"
#include "plan/policy.h"
#include "plan/stage.h"

enum step_kind {
    STEP_FORWARD, STEP_BACKWARD, STEP_WEIGHT,
    STEP_ZERO,                          /* a gradient no weight pass reaches */
    STEP_GATHER, STEP_REDUCE,           /* a unit's weights in, its gradients out */
    STEP_LOAD,                          /* one batch input to the device */
    STEP_OFFLOAD, STEP_FETCH,           /* one value to host memory and back */
    STEP_SEND, STEP_RECV,               /* one value to or from another stage's rank */
    STEP_SEND_GRAD, STEP_RECV_GRAD,     /* and its gradient: of din, dout */
    STEP_ADD,                           /* a received gradient to one that is there */
    STEP_TIE,                           /* a unit's gradient, summed over the stages'
                                         * ranks that have the unit */
    STEP_KINDS
};
extern const char *const step_name[STEP_KINDS];

/* What memory is for.  The first three live as long as the run. */
enum memory {
    MEMORY_WEIGHT, MEMORY_GRADIENT, MEMORY_OPTIMIZER,
    MEMORY_ACTIVATION,                  /* values and their gradients */
    MEMORY_INPUT, MEMORY_WORKSPACE,
    MEMORY_MESSAGE,                     /* there because ranks talk: gathered weights,
                                         * gradients on their way to their shards, what
                                         * collectives and other stages bring */
    MEMORY_HOST,                        /* parked values: not in the device slab */
    MEMORIES
};
extern const char *const memory_name[MEMORIES];

/* ---- the plan ---- */

enum { ALIGN = 256 };                   /* bytes; of every buffer */

struct buffer {                         /* a stretch of memory with a lifetime */
    enum memory kind;
    const char *name, *component;       /* component: NULL for a unit's, which hold
                                         * many */
    int value, unit, mb;                /* -1: none */
    bool gradient;                      /* of the value */
    bool whole;                         /* lives as long as the run: a unit's, or a held
                                         * value */
    bool shard;                         /* whole, of a unit: this rank's shard alone */
    enum dtype dtype;
    int64_t first, last;                /* steps that touch it first and last; -1 never.
                                         * An output's last is the step count. */
    int64_t bytes, offset;              /* from the start of its slab */
};

struct step {
    enum step_kind kind;
    enum lane lane;
    int node, value, unit, param, mb;   /* -1: does not apply */
    int in[MAX_IO], out[MAX_IO], w[MAX_WEIGHT];         /* buffers, -1 absent */
    int din[MAX_IO], dout[MAX_IO], dw[MAX_WEIGHT];
    int work;                           /* scratch buffer, -1 none */
    float beta[MAX_IO], beta_w[MAX_WEIGHT];             /* reduce: beta[0] */
    bool again;                         /* a forward that runs a second time */
    unsigned along;                     /* gather, reduce: axes of the group, in the
                                         * view the unit lives in.  in[0] == out[0]: in
                                         * place, and a reduce is then an all-reduce */
    enum dtype wire;                    /* reduce, tie: the type that travels; where the
                                         * gradient has another, the scratch buffer
                                         * holds what is sent */
    int peer;                           /* send, recv: the other's place along pp; -1 */
    int64_t tag;                        /* of the message: the same for both */
    int tally;                          /* row of plan.tally */
    int64_t at;                         /* position within its lane */
    int64_t wait[LANES];                /* run after this many steps of that lane */
};

/* How many steps of one sort a plan has: what a run must be able to show it did. */
struct tally {
    enum step_kind kind;
    bool again;
    const char *name, *tower;           /* of the segment, value or unit */
    int64_t count;
};

/* What the ranks that hold the same piece divide among them, and when they talk.  Read
 * by acquire, release and reduce in units.c and by nothing else.  Each copy of a hybrid
 * layout (AXIS_REPLICATE) has all shards. */
struct sharding {
    bool state;         /* gradients and moments are divided, an update is of a shard;
                         * else they are whole everywhere, summed after the last
                         * microbatch */
    bool weights;       /* (with state) so are weights: gathered for a visit, dropped
                         * after it; else they are gathered once a step */
    bool each;          /* (with state) gradients are summed after every microbatch */
    int prefetch;       /* visits that weights are gathered ahead */
};

/* Types of what is kept from step to step beside the weights, which have the graph's.
 * All of it is f32 for wide units. */
struct precision {
    enum dtype gradient, moment;        /* f32 or bf16 */
    bool masters;                       /* an f32 copy of every weight that trains and
                                         * is not f32 itself: what an update changes */
};

struct plan {
    const struct graph *graph;
    const struct stages *stages;        /* NULL: not a pipeline */
    int stage;                          /* this rank's place in it */
    int *home;                          /* [units] the first place that has it: one of
                                         * those that update the same speaks for all */
    struct sharding sharding;
    struct precision precision;
    enum dtype wire;                    /* see plan_options */
    int mbs;
    int64_t nstep, nbuffer, ntally, step_room, buffer_room, tally_room;
    struct step *step;
    struct buffer *buffer;
    struct tally *tally;
    int64_t length[LANES];              /* steps of each lane */

    int64_t bytes;                      /* the device slab, all of it */
    int64_t state_bytes;                /* its first part: what lives for the run, */
    int64_t held_bytes;                 /* of that, at its end, values that do */
    int64_t host_bytes;                 /* the host slab */
    int64_t peak_step;                  /* the step with the most live bytes */
    int64_t live_bytes;                 /* of the device at that step; what `bytes` has
                                         * beyond is lost to placement, or is slack */

    int moments;
    int *weight, *gradient, *moment[2], *master;        /* [units] whole-run buffers, -1
                                         * none: frozen, or another stage's; a master
                                         * where the weight is not its own */
    int *ways;                          /* [units] ranks that divide them; 1: whole */
    int outputs, *output;               /* values kept to the end of the step */
    int *output_buffer;                 /* [mbs * outputs] -1: another stage makes it */
};

struct plan_options {
    const struct order *order;
    const struct policy *policy;        /* NULL: policy_plain() */
    const struct stages *stages;        /* of a pipeline, and the order's place in it;
                                         * NULL: one rank runs everything */
    int stage;
    int moments;                        /* optimizer tensors of a trainable param */
    const int *output;                  /* values the caller reads after the step */
    int outputs;
    const struct sharding *sharding;    /* NULL: nothing is divided */
    struct precision precision;
    enum dtype wire;                    /* in which gradients travel to be summed over
                                         * ranks: f32, or bf16 (routers' always f32) */
    const struct plan *state;           /* share that plan's whole-run memory, its
                                         * sharding and precision; its graph has the
                                         * same type, units and params.  Or NULL */
};

/* The plan lives in the arena; the graph and the stages must outlive it. */
struct plan *plan_build(struct arena *a, const struct graph *g,
                        const struct plan_options *options);

/* Predicted seconds of one step.  cost[i] is the time of step i by itself; end, where
 * not NULL, gets when each step ends. */
struct prediction {
    double seconds;
    double busy[LANES];                 /* the lane's steps, summed */
    double idle;                        /* compute lane waiting for others */
};
struct prediction plan_simulate(const struct plan *p, struct arena *scratch,
                                const double *cost, double *end);

/* One line of text a step: number, lane, kind, layer.name, microbatch, waits. */
void plan_explain_step(const struct plan *p, int64_t step, struct text *t);
void plan_explain(const struct plan *p, struct text *t, int64_t limit);  /* -1: all */
/* Bytes at the peak by kind and component, and what the plan does, counted. */
void plan_summary(const struct plan *p, struct text *t);

/* Bytes at the peak, by component (a row each, those of graph.h in their order) and
 * kind.  Device kinds add up to plan.live_bytes, MEMORY_HOST to the most parked. */
struct memory_row { const char *component; int64_t bytes[MEMORIES]; };
int plan_memory(const struct plan *p, struct arena *a, struct memory_row **rows);

/* Replays the plan symbolically and fails with the first broken promise: a buffer read
 * before it is written, a wrong beta, two live buffers in one place, a missing wait. */
MUST_USE bool plan_check(const struct plan *p);

/* ---- all ranks of a pipeline together: pipe.c ---- */

/* plan[r] is that of place r along pp.  Fails with the first message that nobody sends,
 * nobody receives, or that comes in another order than it is waited for, and where all
 * wait for each other.  Sends never wait for the receiver (parallel/comm.h). */
MUST_USE bool pipe_check(const struct plan *const *plan, int ranks);
/* Predicted seconds of one step of them all; cost[r][i] is that of plan r's step i by
 * itself, a message arrives when its send and then its recv have taken theirs. */
struct pipe_prediction {
    double seconds;
    double bubble;                      /* share of all compute lanes' time in which
                                         * they wait, 0 to 1 */
};
MUST_USE bool pipe_simulate(const struct plan *const *plan, int ranks,
                            const double *const *cost, struct pipe_prediction *out);

/* ---- what a step touches: for passes ---- */

struct touch { int buffer; bool write; };
enum { MAX_TOUCH = 4 * MAX_IO + 2 * MAX_WEIGHT + 1 };
int step_touches(const struct step *s, struct touch out[MAX_TOUCH]);

/* ---- how a unit's state is divided ---- */

/* Ranks with the same piece that divide its storage, and all of them. */
unsigned unit_shard_axes(const struct unit *u);
unsigned unit_holder_axes(const struct unit *u);
/* The type of its gradient, and in which that travels to be summed: wide ones as they
 * are, for small differences of a router's decide who works. */
enum dtype unit_gradient(const struct plan *p, int unit);
enum dtype unit_wire(const struct plan *p, int unit);
/* Shards of plan.ways[unit] ranks: equal, of whole cache lines. */
struct flat unit_flat(const struct plan *p, int unit);

/* What this rank stores of a param's state (weights kept whole too): elements of its
 * box; none where another stage has it. */
struct stretch param_own(const struct plan *p, int param);
/* And what of that it alone writes where the state is saved: of ranks that store the
 * same, each has an equal share; small params go round. */
struct stretch param_duty(const struct plan *p, int param);
/* Does this rank speak for its own part?  Of all that have the same one, one does. */
bool param_speaks(const struct plan *p, int param);

/* ---- passes, in the order plan_build runs them ---- */

/* First and last step of every buffer. */
void plan_lifetimes(struct plan *p);
/* Offsets, slab sizes, the peak. */
void plan_place(struct plan *p, double slack);
/* step.at, step.wait, length: transitively reduced. */
void plan_waits(struct plan *p);

#endif
