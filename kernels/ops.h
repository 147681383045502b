/* ops.h - THE contract: the operations every device provides.
 *
 * One table per device: ops_cpu, ops_dry (and ops_cuda).  Letters: T tokens, D model
 * width, F hidden width, H query heads, G key/value heads, K head width, E experts,
 * A experts per token, V vocabulary, P patches, N/M generic columns, R routed rows
 * (T * A, sorted by expert), S segments.
 *
 * Rules every op obeys
 *  - Inputs come first, then `beta`, then the outputs `beta` speaks of.  beta is the
 *    weight of what the output held before: 0 must not read it (it may be NaN), 1 adds.
 *    An op without beta overwrites.
 *  - *_back gives input gradients, *_weight gives weight gradients; apart, so that
 *    they can be scheduled apart.  Where an op has several gradient outputs, each has
 *    its own beta, and an absent tensor (tensor_none) means "not wanted".
 *  - Floating tensors are f32 or bf16: those of one op are alike, but for weight
 *    gradients and what is f32 always (statistics, routing, losses; a product may keep
 *    its result and weight f32).  Sums are f32 inside and rounded once.
 *  - Shapes and types are checked in dry.c only.  The last dimension is contiguous; the
 *    stride of the first may be larger (column slices) for tensors marked with a * in
 *    the comments; every other tensor is dense.
 *  - Rows at and past the live count (`live`, i32[1]) are padding: their inputs are
 *    finite but meaningless, their outputs must be finite and are zero where said.
 *  - Reductions have a fixed order: the same inputs give the same bits, whatever the
 *    number of threads. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "core/device.h"

enum { IGNORE = -1 };                   /* a target that carries no loss */

/* How rotary angles follow from positions; see ops.rope_table. */
struct rope_shape {
    double theta;                       /* base of the frequencies */
    int heads_width;                    /* K */
    bool axial;                         /* vision: rows then columns, else M-RoPE */
    int section[3];                     /* M-RoPE: t, y, x; sum = K / 2 */
};

/* The places of a row that one rank holds: two runs, the second after the first (either
 * may be empty).  Locally they lie one after the other, and are numbered from 0. */
struct places { int64_t from[2], count[2]; };

/* One step of AdamW (Loshchilov and Hutter, 2019, decoupled decay). */
struct adamw {
    float rate, beta1, beta2, epsilon, decay;
    float correct1, correct2;           /* 1 - beta^step */
    float scale;                        /* gradients times this first (clipping) */
    uint64_t noise;                     /* of a w that is not f32: the key of the random
                                         * bits that round element i, */
    int64_t first;                      /* as number first + i */
};

struct ops {
    const char *name;

    /* ---- products; every one accumulates in f32 ---- */

    /* Where y or dy says how many rows are live (tensor_live), linear's three leave the
     * others out: x and dy are not read there, y and dx are what an empty sum gives,
     * bias or no. */

    /* y = beta y + x w' (+ b)     x* [T,D]  w [N,D]  y* [T,N]  b [N] or none; with b,
     * beta is 0 */
    void (*linear)(struct stream *s, struct tensor x, struct tensor w, struct tensor b,
                   float beta, struct tensor y);
    /* dx = beta dx + dy w         dy* [T,N]  w [N,D]  dx* [T,D] */
    void (*linear_back)(struct stream *s, struct tensor dy, struct tensor w, float beta,
                        struct tensor dx);
    /* dw = beta dw + dy' x;  db = beta db + sum_t dy     dy* [T,N]  x* [T,D]
     * dw [N,D] or none  db [N] or none */
    void (*linear_weight)(struct stream *s, struct tensor dy, struct tensor x,
                          float beta, struct tensor dw, struct tensor db);

    /* Rows are grouped by expert: expert e owns rows bound[e] .. bound[e+1]-1
     * (i32[E+1]), rows at and past bound[E] are zeroed in outputs.
     * y[r] = x[r] w[e]'           x [R,D]  w [E,N,D]  y [R,N] */
    void (*grouped)(struct stream *s, struct tensor x, struct tensor w,
                    struct tensor bound, struct tensor y);
    /* dx[r] = beta dx[r] + dy[r] w[e], dy past the end counts as 0 dy [R,N] dx [R,D] */
    void (*grouped_back)(struct stream *s, struct tensor dy, struct tensor w,
                         struct tensor bound, float beta, struct tensor dx);
    /* dw[e] = beta dw[e] + sum_{r in e} dy[r]' x[r] */
    void (*grouped_weight)(struct stream *s, struct tensor dy, struct tensor x,
                           struct tensor bound, float beta, struct tensor dw);

    /* ---- norms ---- */

    /* y = x r w, r = 1/sqrt(mean(x x) + eps)      x* [T,N*D] seen as [T*N] rows of
     * width D  w [D]  y* like x  r [T,N].  N > 1: one norm per head. */
    void (*rmsnorm)(struct stream *s, struct tensor x, struct tensor w, float eps,
                    struct tensor y, struct tensor r);
    void (*rmsnorm_back)(struct stream *s, struct tensor x, struct tensor w,
                         struct tensor r, struct tensor dy, float beta,
                         struct tensor dx);
    void (*rmsnorm_weight)(struct stream *s, struct tensor x, struct tensor r,
                           struct tensor dy, float beta, struct tensor dw);
    /* y = (x - m) r w + b         x [T,D]  w, b [D]  y [T,D]  m, r [T,1] */
    void (*layernorm)(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor b, float eps, struct tensor y, struct tensor m,
                      struct tensor r);
    void (*layernorm_back)(struct stream *s, struct tensor x, struct tensor w,
                           struct tensor m, struct tensor r, struct tensor dy,
                           float beta, struct tensor dx);
    void (*layernorm_weight)(struct stream *s, struct tensor x, struct tensor m,
                             struct tensor r, struct tensor dy, float beta,
                             struct tensor dw, struct tensor db);

    /* ---- rotary positions ---- */

    /* cos, sin [T,K/2] of position[axis(j)] * f_j, f_j = theta^(-2j/K) (M-RoPE,
     * interleaved axes: y if j%3==1 and j < 3 section[1], x if j%3==2 and j < 3
     * section[2], else t; position [T,3] i32 = t,y,x) or axial (position [P,4] i32 =
     * row,col,..: the first K/4 angles are row * theta^(-4j/K), the next K/4 column *
     * the same). */
    void (*rope_table)(struct stream *s, struct tensor position,
                       struct rope_shape shape, struct tensor cos, struct tensor sin);
    /* Rotate every head: y_j = x_j c - x_{j+K/2} s,  y_{j+K/2} = x_{j+K/2} c + x_j s.
     * x*, y* [T,H*K]; y may be x.  direction +1 forward, -1 backward (then x is dy). */
    void (*rope)(struct stream *s, struct tensor x, struct tensor cos,
                 struct tensor sin, int direction, float beta, struct tensor y);

    /* ---- attention within segments ---- */

    /* Segment i owns rows bound[i] .. bound[i+1]-1 (i32[S+1], unused ones repeat the
     * last).  o = softmax(q k' scale) v per head; query head h reads key head
     * h / (H/G); causal or full inside a segment, nothing across.
     * q* [T,H*K]  k*, v* [T,G*K]  o [T,H*K]  lse [T,H] = log of the softmax denominator
     * (with the maximum in).  Rows outside all segments give zero o and lse. */
    void (*attention)(struct stream *s, struct tensor q, struct tensor k,
                      struct tensor v, struct tensor bound, int heads, int groups,
                      bool causal, float scale, struct tensor o, struct tensor lse);
    /* dq*, dk*, dv* are overwritten (zero outside segments). */
    void (*attention_back)(struct stream *s, struct tensor q, struct tensor k,
                           struct tensor v, struct tensor bound, struct tensor o,
                           struct tensor lse, struct tensor d_o, int heads, int groups,
                           bool causal, float scale, struct tensor dq, struct tensor dk,
                           struct tensor dv);

    /* The same between some places of a row and some: row i of q is place first_q + i,
     * row j of k and v place first_k + j, and `bound` counts places.
     * beta 0: o and lse over these keys alone; rows that see none of them get zero o
     * and lse -infinity (0 outside all segments).  beta 1: over these keys and those
     * that o and lse already speak of.
     * q* [M,H*K]  k*, v* [N,G*K]  o [M,H*K]  lse [M,H] */
    void (*attention_part)(struct stream *s, struct tensor q, struct tensor k,
                           struct tensor v, struct tensor bound, int64_t first_q,
                           int64_t first_k, int heads, int groups, bool causal,
                           float scale, float beta, struct tensor o, struct tensor lse);
    /* What these keys add to dq, and these queries to dk and dv, when o and lse are
     * those over all keys: dx = beta dx + ... for the three. */
    void (*attention_part_back)(struct stream *s, struct tensor q, struct tensor k,
                                struct tensor v, struct tensor bound, int64_t first_q,
                                int64_t first_k, struct tensor o, struct tensor lse,
                                struct tensor d_o, int heads, int groups, bool causal,
                                float scale, float beta_q, struct tensor dq,
                                float beta_kv, struct tensor dk, struct tensor dv);

    /* Each query has a run of rows of its own: o[t] is over rows first[t] .. last[t] of
     * k and v, 0 where last[t] < 0.  Other rows are not read: they may be NaN.
     * q* [T,H*K]  k*, v* [M,G*K]  first, last i32[T]  o [T,H*K] */
    void (*attention_rows)(struct stream *s, struct tensor q, struct tensor k,
                           struct tensor v, struct tensor first, struct tensor last,
                           int heads, int groups, float scale, struct tensor o);

    /* ---- activations ---- */

    /* y = silu(g) u               gu [T,2F] = gate | up   y [T,F] */
    void (*swiglu)(struct stream *s, struct tensor gu, struct tensor y);
    void (*swiglu_back)(struct stream *s, struct tensor gu, struct tensor dy,
                        float beta, struct tensor dgu);
    /* exact: x/2 (1 + erf(x/sqrt 2));  else the tanh form    x, y [T,F] */
    void (*gelu)(struct stream *s, struct tensor x, bool exact, struct tensor y);
    void (*gelu_back)(struct stream *s, struct tensor x, bool exact, struct tensor dy,
                      float beta, struct tensor dx);
    /* y = a + sigmoid(z) x        a, x, y [T,D]  z [T,1];  y may be a */
    void (*gate)(struct stream *s, struct tensor a, struct tensor x, struct tensor z,
                 struct tensor y);
    /* dx = beta_x dx + sigmoid(z) dy;  dz = beta_z dz + sigmoid'(z) (dy . x) */
    void (*gate_back)(struct stream *s, struct tensor x, struct tensor z,
                      struct tensor dy, float beta_x, struct tensor dx, float beta_z,
                      struct tensor dz);

    /* ---- sums and copies ---- */

    /* y = a + b                   [T,D] each; y may be a */
    void (*add)(struct stream *s, struct tensor a, struct tensor b, struct tensor y);
    /* y = beta y + alpha x        any equal shapes; y* x*; alpha 0 must not read x */
    void (*axpby)(struct stream *s, float alpha, struct tensor x, float beta,
                  struct tensor y);

    /* y = x + b in every row      x, y [T,N]  b [N];  y may be x */
    void (*bias)(struct stream *s, struct tensor x, struct tensor b, struct tensor y);
    /* db = beta db + sum_t dy     dy* [T,N]  db [N] */
    void (*bias_weight)(struct stream *s, struct tensor dy, float beta,
                        struct tensor db);
    /* y = x                       any equal shapes of 1-2 dims; y* x*; of one type, or
     * both floating: then rounded to y's */
    void (*copy)(struct stream *s, struct tensor x, struct tensor y);

    /* ---- embeddings and placing rows ---- */

    /* y[t] = table[id[t]], zero rows where id < 0    id i32[T]  table [V,D]  y [T,D] */
    void (*embed)(struct stream *s, struct tensor id, struct tensor table,
                  struct tensor y);
    /* dtable = beta dtable + rows of dy at id; rows with id < 0 give nothing */
    void (*embed_weight)(struct stream *s, struct tensor id, struct tensor dy,
                         float beta, struct tensor dtable);
    /* y[t] = beta y[t] + from[index[t]], 0 where index < 0
     * index i32[T]  from [M,D]  y [T,D] */
    void (*take)(struct stream *s, struct tensor index, struct tensor from, float beta,
                 struct tensor y);
    /* y[index[t]] = x[t] where index >= 0; other rows of y stay.  No index comes twice.
     * index i32[T]  x* [T,D]  y* [M,D] */
    void (*put)(struct stream *s, struct tensor index, struct tensor x,
                struct tensor y);
    /* y[i] = the local number of place[i], -1 if it is not among `own` (or is -1)
     * place, y i32[N] */
    void (*locate)(struct stream *s, struct tensor place, struct places own,
                   struct tensor y);
    /* y = how many of places 0 .. live - 1 are among `own`: locally, the first ones.
     * live, y i32[1] */
    void (*live_places)(struct stream *s, struct tensor live, struct places own,
                        struct tensor y);
    /* Bilinear position embedding: x[p] += sum of 4 taps of table at patch p.
     * place i32 [P,4] = row, column, grid height, grid width; table [G*G,D]; y = x +
     * taps (docs/numerics.md: align corners, f32) */
    void (*interpolate)(struct stream *s, struct tensor x, struct tensor place,
                        struct tensor table, struct tensor y);
    void (*interpolate_weight)(struct stream *s, struct tensor dy, struct tensor place,
                               float beta, struct tensor dtable);

    /* ---- routing ---- */

    /* pi = softmax(z) over E;  the A largest of pi + bias (ties: lower index first) are
     * chosen, weights are pi there over their sum.  Rows >= live route nowhere:
     * index -1, weight 0, pi 0.  z [T,E]  bias [E] or none  live i32[1]  pi [T,E]
     * index i32 [T,A]  weight [T,A] */
    void (*router)(struct stream *s, struct tensor z, struct tensor bias,
                   struct tensor live, struct tensor pi, struct tensor index,
                   struct tensor weight);
    /* dz from dweight [T,A] (through the renormalised softmax of the chosen) plus,
     * where dsum is there, dsum[e] (gradient of sum_t pi[t,e], [1,E]) through the
     * full softmax, plus, where dz2 is there ([1,1], gradient of sum_t lse(z[t])^2),
     * its 2 lse pi term.  Padding rows get 0.  dweight may be none (= 0).  dz is
     * overwritten. */
    void (*router_back)(struct stream *s, struct tensor z, struct tensor pi,
                        struct tensor index, struct tensor weight, struct tensor live,
                        struct tensor dweight, struct tensor dsum, struct tensor dz2,
                        struct tensor dz);
    /* Running sums over layers for the auxiliary loss:  chosen' = chosen + how often
     * each expert was chosen, sum' = sum + sum_t pi, z2' = z2 + sum_t lse(z)^2,
     * rows' = rows + live.  chosen, sum [1,E]  z2, rows [1,1] f32; absent inputs count
     * as zero. */
    void (*router_sums)(struct stream *s, struct tensor z, struct tensor pi,
                        struct tensor index, struct tensor live, struct tensor chosen,
                        struct tensor sum, struct tensor z2, struct tensor rows,
                        struct tensor chosen_out, struct tensor sum_out,
                        struct tensor z2_out, struct tensor rows_out);
    /* aux = E sum_e (chosen_e / rows) (sum_e / rows);  zloss = z2 / rows;  0 if
     * rows = 0.  loss = share (aux_coef aux + z_coef zloss), all [1,1]; share [1,1] =
     * these rows' share of the global batch's live tokens */
    void (*router_loss)(struct stream *s, struct tensor chosen, struct tensor sum,
                        struct tensor z2, struct tensor rows, struct tensor share,
                        float aux_coef, float z_coef, struct tensor loss,
                        struct tensor aux, struct tensor zloss);
    /* dsum_e = share aux_coef E chosen_e / rows^2,  dz2 = share z_coef / rows */
    void (*router_loss_back)(struct stream *s, struct tensor chosen, struct tensor rows,
                             struct tensor share, float aux_coef, float z_coef,
                             struct tensor dsum, struct tensor dz2);
    /* Sort (token, slot) pairs by expert, stable in token order.
     * index i32 [T,A] (-1 none) -> place i32 [T,A]: row of the pair (-1 none);
     * source, slot i32 [R]: the row's token and slot (-1 past the end);
     * bound i32 [E+1] */
    void (*sort_rows)(struct stream *s, struct tensor index, int experts,
                      struct tensor place, struct tensor source, struct tensor slot,
                      struct tensor bound);
    /* The same for the pairs of experts first .. first + e - 1 alone; others are placed
     * nowhere.  bound i32 [e+1].  Any R: where it is not enough no pair is placed and
     * over' = over + 1, else over' = over.  over [1,1] f32, absent: 0 */
    void (*sort_own)(struct stream *s, struct tensor index, int first,
                     struct tensor over, struct tensor place, struct tensor source,
                     struct tensor slot, struct tensor bound, struct tensor over_out);
    /* Rows of N ranks, on each sorted by expert (bounds i32 [N,E+1], a row a rank),
     * meet at the owners: rank n has experts n e .. n e + e - 1, e = E / N.  `rank` has
     * leave i32 [N+1]: bounds of its rows by owner;  arrive i32 [N+1]: bounds of what
     * it gets, by sender;  order i32 [C]: which arrived row is next by expert, then
     * sender, then the sender's order, -1 past the end;  undo i32 [C]: the inverse;
     * bound i32 [e+1]: of the ordered rows.  Any C: where it is not enough for some
     * owner no row leaves any rank and over' = over + 1, else over' = over (see above).
     */
    void (*meet_rows)(struct stream *s, struct tensor bounds, int rank,
                      struct tensor over, struct tensor leave, struct tensor arrive,
                      struct tensor order, struct tensor undo, struct tensor bound,
                      struct tensor over_out);
    /* x[r] = 0 for rows at and past the last of bound i32 [n+1]    x [R,D] */
    void (*clear_rows)(struct stream *s, struct tensor bound, struct tensor x);
    /* dx[t] = beta dx[t] + sum_a dy[place[t,a]], a ascending    dy [R,D]  dx [T,D] */
    void (*gather_sum)(struct stream *s, struct tensor place, struct tensor dy,
                       float beta, struct tensor dx);
    /* y[t] = sum_a weight[t,a] x[place[t,a]], a ascending (in order of choice, not of
     * expert)     x [R,D]  weight [T,A]  y [T,D] */
    void (*combine)(struct stream *s, struct tensor x, struct tensor place,
                    struct tensor weight, struct tensor y);
    /* dx[r] = weight[source, slot] dy[source] (0 past the end);
     * dweight[t,a] = dy[t] . x[place[t,a]] (0 where none) */
    void (*combine_back)(struct stream *s, struct tensor x, struct tensor place,
                         struct tensor weight, struct tensor source, struct tensor slot,
                         struct tensor dy, struct tensor dx, struct tensor dweight);

    /* ---- head and loss; logits exist only one chunk of rows at a time ---- */

    /* loss = scale sum_t (lse_t - z[t,target_t]) over rows with target >= 0, z = x w';
     * scale [1,1]: 1 / supervised tokens of the global batch.  lse [T,1] (0 elsewhere).
     * x [T,D]  w [V,D]  target i32 [T]  work: head_work() bytes, u8 */
    void (*head_loss)(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor target, struct tensor scale, struct tensor work,
                      struct tensor loss, struct tensor lse);
    /* dz = dloss scale (softmax - onehot);  dx = beta_x dx + dz w (0 rows elsewhere);
     * dw = beta_w dw + dz' x.  dx or dw may be absent.  dloss [1,1] or none (= 1). */
    void (*head_loss_back)(struct stream *s, struct tensor x, struct tensor w,
                           struct tensor target, struct tensor scale, struct tensor lse,
                           struct tensor dloss, struct tensor work, float beta_x,
                           struct tensor dx, float beta_w, struct tensor dw);
    /* The same over ranks that share the vocabulary.  What the V words of one know:
     * part[t] = lse over them, and z at the target (0 if that is another's word), of
     * rows with target >= 0; 0 elsewhere.
     * w [V,D]: words first .. first + V - 1  part [T,2]  others as above */
    void (*head_part)(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor target, int64_t first, struct tensor work,
                      struct tensor part);
    /* dz = dpart[t,0] exp(z - lse) + dpart[t,1] onehot of rows with target >= 0;
     * dx, dw as above. */
    void (*head_part_back)(struct stream *s, struct tensor x, struct tensor w,
                           struct tensor target, int64_t first, struct tensor part,
                           struct tensor dpart, struct tensor work, float beta_x,
                           struct tensor dx, float beta_w, struct tensor dw);
    /* loss = scale sum_t (lse_t - z_t) over rows with target >= 0, lse and z of all
     * words: the n shares together.    part [n*T,2], share after share  loss [1,1] */
    void (*head_sum)(struct stream *s, struct tensor part, struct tensor target,
                     struct tensor scale, struct tensor loss);
    /* dpart = dloss scale (exp(lse of the share - lse), -1); 0 in rows without target.
     * dloss [1,1] or none (= 1). */
    void (*head_sum_back)(struct stream *s, struct tensor part, struct tensor target,
                          struct tensor scale, struct tensor dloss,
                          struct tensor dpart);
    /* The largest logit of rows with want[t] != 0: best i32 [T] (-1 elsewhere),
     * logit [T,1].  Greedy choice; ties take the lower id, NaN is above all. */
    void (*head_best)(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor want, struct tensor work, struct tensor best,
                      struct tensor logit);

    /* ---- optimizer ---- */

    /* out f64[1] = beta out + sum g g;  any shape */
    void (*square_sum)(struct stream *s, struct tensor g, float beta,
                       struct tensor out);
    /* w, m, v [n] in place from g [n]; w not f32: rounded by chance (Gupta et al.,
     * 2015), so that small steps are not lost */
    void (*adamw)(struct stream *s, struct tensor g, struct adamw step, struct tensor w,
                  struct tensor m, struct tensor v);
};

/* Every op by name: tables, prototypes and tests are written from this list. */
#define EACH_OP(X) \
    X(linear) X(linear_back) X(linear_weight) \
    X(grouped) X(grouped_back) X(grouped_weight) \
    X(rmsnorm) X(rmsnorm_back) X(rmsnorm_weight) \
    X(layernorm) X(layernorm_back) X(layernorm_weight) \
    X(rope_table) X(rope) X(attention) X(attention_back) \
    X(attention_part) X(attention_part_back) X(attention_rows) \
    X(swiglu) X(swiglu_back) X(gelu) X(gelu_back) X(add) X(axpby) \
    X(gate) X(gate_back) X(bias) X(bias_weight) X(copy) X(locate) X(live_places) \
    X(embed) X(embed_weight) X(take) X(put) X(interpolate) X(interpolate_weight) \
    X(router) X(router_back) X(router_sums) X(router_loss) X(router_loss_back) \
    X(sort_rows) X(sort_own) X(meet_rows) X(clear_rows) \
    X(gather_sum) X(combine) X(combine_back) \
    X(head_loss) X(head_loss_back) X(head_part) X(head_part_back) \
    X(head_sum) X(head_sum_back) X(head_best) X(square_sum) X(adamw)

/* Bytes of the `work` tensor of the head ops, for T rows of width D and V logits. */
int64_t head_work(int64_t T, int64_t D, int64_t V);
/* Words of the vocabulary in a partial result: in an even number of them, so that two
 * threads end together. */
int64_t head_words(int64_t V);
enum {
    HEAD_CHUNK = 256,                   /* rows of logits that exist at a time */
    HEAD_WORDS = 512                    /* words of a partial result, at most */
};

extern const struct ops ops_cpu, ops_dry;

#endif
