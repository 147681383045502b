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
/* prefix.name [rows, cols], split along dim `split` over ranks (-1: not). */
int param_matrix(const struct scope *s, const char *name, int64_t rows, int64_t cols,
                 int split);
/* prefix.name [n], not decayed. */
int param_vector(const struct scope *s, const char *name, int64_t n,
                 enum initial initial);

/* ---- linear: y = x w' (+ b)     x [T,D]  w [N,D]  b [N] or NONE ---- */

#define LINEAR                                                                         \
    .forward = linear_forward, .backward = linear_backward, .weight = linear_weight,   \
    .weight_in = 1
void linear_forward(struct run *r);
void linear_backward(struct run *r);
void linear_weight(struct run *r);
int linear_record(struct graph *g, const struct segment *kind, const char *name, int x,
                  int w, int b);

/* ---- rmsnorm: y = x r w     x [T,D]  w [D];  keeps r [T,1] ---- */

#define RMSNORM                                                                        \
    .forward = rmsnorm_forward, .backward = rmsnorm_backward,                          \
    .weight = rmsnorm_weight, .back_in = 1, .back_out = 2, .weight_in = 1,             \
    .weight_out = 2, .no_grad_out = 2
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
    .weight_out = 6, .no_grad_out = 6
void layernorm_forward(struct run *r);
void layernorm_backward(struct run *r);
void layernorm_weight(struct run *r);
int layernorm_record(struct graph *g, const struct segment *kind, const char *name,
                     int x, int64_t cols, int w, int b, double eps);

/* ---- rotary positions: tables once a tower, rotation in every layer ---- */

struct rotary { int cos, sin; };        /* values [T,K/2] */

#define ROPE_TABLE .forward = rope_table_forward, .no_grad_in = 1, .no_grad_out = 3
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
    .back_out = 3, .no_grad_in = 4, .no_grad_out = 2
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

/* ---- residual: y = a + b; what it makes is a boundary ---- */

#define RESIDUAL .forward = residual_forward, .backward = residual_backward
void residual_forward(struct run *r);
void residual_backward(struct run *r);
int residual_record(struct graph *g, const struct segment *kind, const char *name,
                    int a, int b);

#endif
