/* graph.h - the model as a list of segments, recorded once at start-up.
 *
 * A segment is the smallest piece of a layer that a policy may want to name: keep it,
 * run it again, move it out, overlap it (6-12 a layer).  Its forward, backward and
 * weight passes are written by hand; how segments connect is recorded by functions
 * that read like the model's definition (src/layers, vision, decoder).  Nothing here,
 * and no segment, knows of plans, recompute, sharding or pipelines.
 *
 *     int n = graph_value(g, "n", layer, T, D);
 *     graph_node(g, &norm, layer, LIST(x), LIST(n, r), LIST(w), &attr, 0);
 *
 * The graph lives in an arena; ids are indices. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "base/arena.h"
#include "kernels/ops.h"
#include "parallel/comm.h"
#include "parallel/shard.h"

enum lane {
    LANE_COMPUTE,                       /* math */
    LANE_LAYER,                         /* collectives a layer waits for: TP, CP, EP */
    LANE_STATE,                         /* weights in, gradients out: FSDP */
    LANE_COPY,                          /* batches in, activations to host and back */
    LANE_PIPE,                          /* sends and receives between stages */
    LANES
};
extern const char *const lane_name[LANES];

enum { MAX_IO = 12, MAX_WEIGHT = 3 };

/* What a segment's function sees: tensors only, already in place.  It cannot tell
 * whether a weight was gathered a moment ago or an input was run again.
 * forward: in, w -> out.   backward: dout (+ in, out by the masks) -> din.
 * weight: dout (+ in, out by the masks) -> dw.
 * Absent tensors (tensor_is() false): a din or dw nobody wants because what is behind
 * it is frozen or carries no gradient; a dout that nobody gave (= zero, and 1 for a
 * loss: see graph_loss). */
struct run {
    const struct ops *ops;
    struct stream *stream;
    struct tensor in[MAX_IO], out[MAX_IO], w[MAX_WEIGHT];
    struct tensor din[MAX_IO], dout[MAX_IO], dw[MAX_WEIGHT];
    float beta[MAX_IO];                 /* of din: 0 first writer, 1 adds */
    float beta_w[MAX_WEIGHT];           /* of dw, likewise */
    struct tensor work;                 /* u8 scratch the node asked for */
    const void *attr;                   /* the node's constants */
    const struct comm *comm;            /* the node's group (node.along), or NULL */
};

struct segment {                        /* static const; no state */
    const char *name;
    enum lane lane;
    const char *component;              /* for profiles and memory: see graph.c */
    unsigned back_in, back_out;         /* bit i: backward reads in[i] / out[i] */
    unsigned weight_in, weight_out;     /* the same for the weight pass */
    unsigned no_grad_in;                /* bit i: in[i] never gets a gradient */
    unsigned no_grad_out;               /* bit i: out[i] never has one (statistics) */
    unsigned wide_out;                  /* bit i: out[i] is f32 whatever graph.dtype is:
                                         * statistics, routing, losses */
    unsigned wide_weight;               /* bit i: so is w[i], and all of its unit */
    bool fused;                         /* backward also writes dw (weight is NULL) */
    bool always;                        /* keep outputs: never run again (top-k) */
    void (*forward)(struct run *r);
    void (*backward)(struct run *r);
    void (*weight)(struct run *r);      /* NULL: no weights, or fused */
};

/* The part of the model a thing belongs to: what can be frozen or tuned apart. */
enum part {
    PART_VISION, PART_PROJECTOR, PART_EMBEDDINGS, PART_DECODER, PART_ROUTER,
    PART_EXPERTS, PARTS
};
extern const char *const part_name[PARTS];
extern const char *const components[];  /* what a segment may name; ended by NULL */

struct value {
    const char *name;                   /* "n", "qkv", "act", ... */
    const char *tower;                  /* "vision", "projector" or "decoder" */
    enum dtype dtype;
    int ndim;
    int64_t dim[4];
    int node;                           /* producer, -1: input of the graph */
    int layer;                          /* of the producer, or first use */
    bool keep;                          /* a boundary: recompute never goes behind it */
    bool held;                          /* lives on from step to step: see graph_hold */
    bool loss;                          /* backward starts here: see graph_loss */
    bool grad;                          /* a floating value that may carry a gradient */
    bool room;                          /* a row for each that experts have room for */
};

struct node {
    const struct segment *kind;
    const char *tower;
    int layer, nin, nout, nw;
    int in[MAX_IO], out[MAX_IO], w[MAX_WEIGHT];         /* values, params; -1 absent */
    const void *attr;
    int64_t work;                       /* bytes of scratch */
    unsigned along;                     /* axes of the group it talks to; 0 none */
    bool experts;                       /* of the expert view, else the dense one */
    int beside[2];                      /* see graph_beside; NONE */
};

/* Weights gathered and reduced together: one layer, one set of holders. */
struct unit {
    const char *name;
    int layer;
    enum part part;
    unsigned split;                     /* bits: mesh axes its tensors split over */
    bool experts;                       /* lives in the expert view of the mesh */
    bool wide;                          /* some segment wants it f32 (wide_weight) */
    int64_t count;                      /* of this rank, padded to 16 a param */
};

enum initial { INITIAL_NORMAL, INITIAL_ZERO, INITIAL_ONE };

struct param {
    const char *name;                   /* the checkpoint's tensor name */
    enum part part;
    int unit, layer;
    int ndim;                           /* as on disk, whole model */
    int64_t dim[5];
    bool transposed;                    /* dims as released: memory has the last two
                                         * swapped (files may too: expert_layout) */
    unsigned on[3];                     /* axes that divide each of rows, 0 whole */
    int fused[3];                       /* blocks in a divided dim (gate | up: 2), each
                                         * divided by itself; 0 counts as 1 */
    enum initial initial;
    double deviation;                   /* of INITIAL_NORMAL */
    bool decay;                         /* weight decay applies */
    int64_t rows[3];                    /* what segments see: 1-3 dims, this rank */
    int nrows;
    struct box box;                     /* this rank's part of the whole, in memory */
    int64_t offset, count;              /* elements; offset within the unit */
    bool trainable;
};

/* Of values of `rows` rows, the last element of `bound` (an i32 list) counts the live
 * ones, `per` of what is counted to a row; the others are padding. */
struct live {
    int bound;
    int64_t rows, per;
};

struct graph {
    struct arena *arena;
    enum dtype dtype;                   /* f32 or bf16: of values that carry gradients
                                         * and of params, but for what is wide; set
                                         * before anything is recorded */
    int64_t nvalue, nnode, nparam, nunit;
    int64_t value_room, node_room, param_room, unit_room;
    struct value *value;
    struct node *node;
    struct param *param;
    struct unit *unit;
    int layers;                         /* layers are numbered 0..layers-1 in order */
    const struct mesh *mesh; /* the ranks and this one's number; NULL: alone */
    int rank;
    const char *tower;                  /* given to what is recorded next */
    struct live live;                   /* likewise; see graph_live */
};

struct graph graph_make(struct arena *a);                /* f32 */
/* Ranks along an axis of a view, and this rank's place there (1 and 0 when alone). */
int graph_ways(const struct graph *g, bool experts, enum axis axis);
int graph_at(const struct graph *g, bool experts, enum axis axis);
/* A new layer number; nodes are recorded layer after layer. */
int graph_layer(struct graph *g);
/* A value [rows, cols] of the graph's type that can carry a gradient; f32 where the
 * segment that makes it says so.  Other types and inputs below. */
int graph_value(struct graph *g, const char *name, int layer, int64_t rows,
                int64_t cols);
int graph_value_of(struct graph *g, const char *name, int layer, enum dtype dtype,
                   int ndim, const int64_t *dim);
/* An input: filled by whoever runs the graph; never carries a gradient. */
int graph_input(struct graph *g, const char *name, enum dtype dtype, int ndim,
                const int64_t *dim);
int graph_find(const struct graph *g, const char *name);        /* an input; -1 none */
/* Rows that this rank's experts have room for; 0: there are none. */
int64_t graph_experts_room(const struct graph *g);
/* What segments recorded next may leave out (bound NONE: nothing); returns what was
 * said before. */
struct live graph_live(struct graph *g, struct live live);
/* The list that counts the live rows of a value like x; NONE where nothing does. */
int graph_live_of(const struct graph *g, int x);
void graph_keep(struct graph *g, int value);
/* The value is memory of the run: its node finds in it what the step before left and
 * changes some of it, so it is made for the next step as much as for this one's
 * readers.  No gradient; one microbatch a step.  Plans over the same state whose graphs
 * hold the same values in the same order find each other's. */
void graph_hold(struct graph *g, int value);
/* Backward starts at this [1,1] value, with gradient 1: nobody gives it a dout, and the
 * node that made it takes the absent one for 1 (not for 0).  There may be several; what
 * is minimised is their sum. */
void graph_loss(struct graph *g, int value);
int graph_unit(struct graph *g, const char *name, int layer, enum part part,
               unsigned split, bool experts);
/* A parameter of `unit`.  `p` gives name, dims, on, fused, initial, decay; the rest is
 * derived: rows are the disk dims folded to 2-D ([dim0, rest]) or 1-D, or 3-D with the
 * last two swapped where `transposed`, and of them this rank's part.  All params of a
 * unit are divided over the same axes: unit.split. */
int graph_param(struct graph *g, int unit, struct param p);
/* in, out and w are lists ended by END; an absent entry is NONE (-1). */
void graph_node(struct graph *g, const struct segment *kind, int layer, const int *in,
                const int *out, const int *w, const void *attr, int64_t work);
/* The node made last talks to the ranks along these axes. */
void graph_group(struct graph *g, bool experts, unsigned along);
/* Node `node` need not wait for its turn: its forward may run while collective
 * `forward` is under way, its backward and weight pass while that of `backward` is
 * (NONE: in turn).  Both are of its layer and recorded before it; what it reads is made
 * before them, or moves as it does.  Where readers share a value, their gradients must
 * add up in the same order either way. */
void graph_beside(struct graph *g, int node, int forward, int backward);
enum { NONE = -1, END = -2 };
#define LIST(...) ((const int[]){__VA_ARGS__, END})
#define EMPTY ((const int[]){END})
/* A constant copied into the graph's arena. */
void *graph_attr(struct graph *g, const void *attr, size_t size);

enum dtype unit_dtype(const struct graph *g, int unit);
int64_t value_count(const struct value *v);             /* elements */
int64_t value_bytes(const struct value *v);
int64_t param_disk_count(const struct param *p);

/* Freeze parts: bit p set = part p does not train.  Sets param.trainable. */
void graph_freeze(struct graph *g, unsigned parts);
/* Which values get gradients, given the trainable params: wants[v] for every value.
 * A value wants a gradient if it can carry one and something trainable is behind it
 * (or feeds it), and a loss is ahead of it (or it is one). */
void graph_wants(const struct graph *g, bool *wants);
/* Promises: every node's inputs come before it, shapes known, layers ascend, names of
 * params unique, whoever reads a wide unit says so.  BUG on a broken one. */
void graph_check(const struct graph *g);

#endif
