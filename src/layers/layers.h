/* layers.h - the pieces that the vision tower and the decoder are both made of.
 *
 * A piece is three things: its passes (functions of struct run), its masks as an
 * initialiser, and a recorder.  The tower that uses a piece gives it a name and a
 * component of its own:
 *
 *     static const struct segment attn_proj = {
 *         .name = "attn_proj", COMPUTE("attention"), LINEAR,
 *     };
 *     int p = linear_record(g, &attn_proj, "attn", o, w_o, NONE);
 *
 * Recorders work in the layer opened last and return the value they make. */
#ifndef LAYERS_LAYERS_H
#define LAYERS_LAYERS_H

#include "graph/graph.h"

/* Room of one microbatch: what is there is counted in the inputs that come with it. */
struct capacity {
    int64_t tokens, patches;            /* T, P */
    int64_t segments, images;           /* samples and images in a row, at most */
};

#define COMPUTE(name) .lane = LANE_COMPUTE, .component = name

/* ---- params: named under a prefix, in one unit ---- */

struct scope {
    struct graph *g;
    int unit;
    const char *prefix;                 /* "model.visual.blocks.0" */
    double deviation;                   /* of fresh matrices */
};
/* prefix.name [rows, cols]; in a unit that is divided, along dim `split` (0 or 1). */
int param_matrix(const struct scope *s, const char *name, int64_t rows, int64_t cols,
                 int split);
/* prefix.name [n], not decayed. */
int param_vector(const struct scope *s, const char *name, int64_t n,
                 enum initial initial);
/* The same where dim 0 is `blocks` equal blocks, each divided by itself. */
int param_blocks(const struct scope *s, const char *name, int blocks, int64_t rows,
                 int64_t cols);
int param_vector_blocks(const struct scope *s, const char *name, int blocks, int64_t n,
                        enum initial initial);
/* Where this layer's params go that tp divides: a unit of their own with several tp
 * ranks (other ranks hold a piece than hold a norm), else the same. */
struct scope scope_divided(const struct scope *s);

/* ---- linear: y = x w' (+ b)     x [T,D]  w [N,D]  b [N] or NONE; over live rows where
 * the graph says which are (graph_live): in x bound, out y ---- */

#define LINEAR                                                                         \
    .forward = linear_forward, .backward = linear_backward, .weight = linear_weight,   \
    .no_grad_in = 2, .back_in = 2, .weight_in = 3
void linear_forward(struct run *r);
void linear_backward(struct run *r);
void linear_weight(struct run *r);
int linear_record(struct graph *g, const struct segment *kind, const char *name, int x,
                  int w, int b);

/* ---- rmsnorm: y = x r w     x [T,D]  w [D];  keeps r [T,1] ---- */

#define RMSNORM                                                                        \
    .forward = rmsnorm_forward, .backward = rmsnorm_backward,                          \
    .weight = rmsnorm_weight, .back_in = 1, .back_out = 2, .weight_in = 1,             \
    .weight_out = 2, .no_grad_out = 2, .wide_out = 2
void rmsnorm_forward(struct run *r);
void rmsnorm_backward(struct run *r);
void rmsnorm_weight(struct run *r);
int rmsnorm_record(struct graph *g, const struct segment *kind, const char *name, int x,
                   int w, double eps);

/* ---- layernorm: y = (x - m) r w + b     w, b [W]; x seen as rows of width W; y holds
 * the same elements as rows of width `cols`;  keeps m, r [rows of width W, 1] ---- */

#define LAYERNORM                                                                      \
    .forward = layernorm_forward, .backward = layernorm_backward,                      \
    .weight = layernorm_weight, .back_in = 1, .back_out = 6, .weight_in = 1,           \
    .weight_out = 6, .no_grad_out = 6, .wide_out = 6
void layernorm_forward(struct run *r);
void layernorm_backward(struct run *r);
void layernorm_weight(struct run *r);
int layernorm_record(struct graph *g, const struct segment *kind, const char *name,
                     int x, int64_t cols, int w, int b, double eps);

/* ---- rotary positions: tables once a tower, rotation in every layer ---- */

struct rotary { int cos, sin; };        /* values [T,K/2] */

#define ROPE_TABLE                                                                     \
    .forward = rope_table_forward, .no_grad_in = 1, .no_grad_out = 3, .wide_out = 3
void rope_table_forward(struct run *r);
struct rotary rope_table_record(struct graph *g, const struct segment *kind,
                                int position, const struct rope_shape *shape);

/* Every head of x [T,N*K] turned by its row's angles. */
#define ROPE                                                                           \
    .forward = rope_forward, .backward = rope_backward, .back_in = 6, .no_grad_in = 6
void rope_forward(struct run *r);
void rope_backward(struct run *r);
int rope_record(struct graph *g, const struct segment *kind, const char *name, int x,
                struct rotary t);

/* ---- attention core: o = softmax(q k' scale) v within segments
 * qk [T,(H+G)*K] = q | k  v [T,G*K]  segment i32[S+1]  o [T,H*K];  keeps lse [T,H]
 * ---- */

struct attention {
    int heads, groups, head_width;
    bool causal;
};
#define ATTENTION                                                                      \
    .forward = attention_forward, .backward = attention_backward, .back_in = 7,        \
    .back_out = 3, .no_grad_in = 4, .no_grad_out = 2, .wide_out = 2
void attention_forward(struct run *r);
void attention_backward(struct run *r);
int attention_record(struct graph *g, const struct segment *kind, int qk, int v,
                     int segment, const struct attention *shape);

/* ---- activations: gu [T,2F] -> [T,F], and x [T,F] -> [T,F] ---- */

#define SWIGLU .forward = swiglu_forward, .backward = swiglu_backward, .back_in = 1
void swiglu_forward(struct run *r);
void swiglu_backward(struct run *r);
int swiglu_record(struct graph *g, const struct segment *kind, const char *name,
                  int gu);

#define GELU .forward = gelu_forward, .backward = gelu_backward, .back_in = 1
void gelu_forward(struct run *r);
void gelu_backward(struct run *r);
int gelu_record(struct graph *g, const struct segment *kind, const char *name, int x,
                bool exact);

/* ---- rows between tp ranks (moves.c); nothing is recorded where tp is 1 ---- */

/* x [t,D] -> [T,D]: all ranks' rows.  Backward adds up what all ranks have. */
#define GATHER                                                                         \
    .lane = LANE_LAYER, .forward = gather_forward, .backward = gather_backward
void gather_forward(struct run *r);
void gather_backward(struct run *r);
int gather_record(struct graph *g, const struct segment *kind, int x);

/* x [T,D], a partial sum on every rank -> own rows of the sum [t,D]. */
#define SCATTER                                                                        \
    .lane = LANE_LAYER, .forward = scatter_forward, .backward = scatter_backward
void scatter_forward(struct run *r);
void scatter_backward(struct run *r);
int scatter_record(struct graph *g, const struct segment *kind, const char *name,
                   int x);

#define BIAS .forward = bias_forward, .backward = bias_backward, .weight = bias_weight
void bias_forward(struct run *r);
void bias_backward(struct run *r);
void bias_weight(struct run *r);
/* y = x w' (+ b) with w divided along its columns: partial sums are scattered and only
 * then is b added.  Where tp is 1: the product alone. */
int linear_scatter_record(struct graph *g, const struct segment *product,
                          const struct segment *scatter, const struct segment *bias,
                          const char *name, int x, int w, int b);

/* ---- rows to the ranks they are for (exchange.c); lists and counts are data ---- */

enum { MAX_MEMBERS = 1 << 14 };         /* ranks of a group that exchanges rows */

/* x [N,D] -> y [M,D]: row order[i] of x, 0 where that is -1.  order i32[M]; undo i32[N]
 * the inverse, or NONE where x gets no gradient. */
#define PICK                                                                           \
    .no_grad_in = 6, .back_in = 4, .forward = pick_forward, .backward = pick_backward
void pick_forward(struct run *r);
void pick_backward(struct run *r);
int pick_record(struct graph *g, const struct segment *kind, const char *name, int x,
                 int order, int undo);

/* x [N,D], sorted by receiver -> y [rows,D], by sender, 0 past the end.  leave, arrive
 * i32 [members + 1]: bounds of what goes to and comes from each member of the group,
 * which the caller names (graph_group).  `even`: rows for each member where nobody has
 * counted, in a plan without data.  x has no other reader. */
#define EXCHANGE                                                                       \
    .lane = LANE_LAYER, .no_grad_in = 6, .back_in = 6, .forward = exchange_forward,    \
    .backward = exchange_backward
void exchange_forward(struct run *r);
void exchange_backward(struct run *r);
int exchange_record(struct graph *g, const struct segment *kind, const char *name,
                    int x, int leave, int arrive, int64_t rows, int64_t even);

/* ---- places of a packed row (places.c); nothing is recorded where all are own ---- */

static inline int64_t places_count(const struct places *p)
{
    return p->count[0] + p->count[1];
}
/* This rank's places of a row of T: shared by its tp group (attention, head), and its
 * own alone (between blocks). */
struct places places_of_row(const struct graph *g, int64_t T);
struct places places_of_rank(const struct graph *g, int64_t T);

/* Whose place `at` of a row of T is among cp x tp ranks, and its number there: the
 * inverse of places_of_rank. */
struct owner { int cp, tp; int64_t local; };
struct owner places_owner(int cp, int tp, int64_t T, int64_t at);

/* Of an input [T,...] the rows at own places. */
#define OWN .forward = own_forward, .no_grad_in = 1, .no_grad_out = 1
void own_forward(struct run *r);
int own_record(struct graph *g, const struct segment *kind, int x,
               const struct places *p);
/* Of an input that names places of a row of `of`: their local numbers, -1 for places of
 * others. */
#define LOCATE .forward = locate_forward, .no_grad_in = 1, .no_grad_out = 1
void locate_forward(struct run *r);
int locate_record(struct graph *g, const struct segment *kind, int place,
                  const struct places *p, int64_t of);
/* Of a count of live places of a row of `of`: how many are own (the first ones). */
#define LIVE .forward = live_forward, .no_grad_in = 1, .no_grad_out = 1
void live_forward(struct run *r);
int live_record(struct graph *g, const struct segment *kind, int live,
                const struct places *p, int64_t of);

/* ---- residual: y = a + b; what it makes is a boundary ---- */

#define RESIDUAL .forward = residual_forward, .backward = residual_backward
void residual_forward(struct run *r);
void residual_backward(struct run *r);
int residual_record(struct graph *g, const struct segment *kind, const char *name,
                    int a, int b);

#endif
