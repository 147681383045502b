/* narrow.c - the CPU's ops on bf16 tensors: widened, computed in f32, rounded once.
 *
 * Stands alone because no op knows of it: each has an entry here that hands f32 on as
 * it is.  What is widened takes memory that no plan shows: this device computes in bf16
 * to show what a GPU would get, not to be fast. */
#include "kernels/cpu/cpu.h"

#include "base/arena.h"
#include "base/random.h"

enum { OUTPUTS = 4 };                   /* of one op, at most */

struct narrow {
    struct stream *stream;
    struct arena memory;
    struct output { struct tensor wide, own; } out[OUTPUTS];
    int outputs;
    const struct adamw *chance;         /* rounds the first output, or NULL */
};

/* ---- rows of a tensor; those of a dense one, whatever its dims, lie together ---- */

struct rows { int64_t count, width, stride; };

static struct rows rows_of(struct tensor t)
{
    if (tensor_is_dense(t) && tensor_count(t) > 0)
        return (struct rows){tensor_count(t) / t.dim[t.ndim - 1], t.dim[t.ndim - 1],
                             t.dim[t.ndim - 1]};
    REQUIRE(t.ndim == 2);
    return (struct rows){t.dim[0], t.dim[1], t.stride[0]};
}

struct convert {
    const struct narrow *n;
    uint16_t *own;
    float *wide;
    struct rows rows;
};

static void widen_rows(void *arg, int64_t from, int64_t to)
{
    const struct convert *c = arg;
    for (int64_t i = from; i < to; i++)
        dtype_to_f32(DTYPE_BF16, c->own + i * c->rows.stride,
                     c->wide + i * c->rows.width, c->rows.width);
}

static void round_rows(void *arg, int64_t from, int64_t to)
{
    const struct convert *c = arg;
    for (int64_t i = from; i < to; i++)
        dtype_from_f32(DTYPE_BF16, c->wide + i * c->rows.width,
                       c->own + i * c->rows.stride, c->rows.width);
}

/* Four elements have the bits of one counter. */
static void chance_rows(void *arg, int64_t from, int64_t to)
{
    const struct convert *c = arg;
    const struct adamw *a = c->n->chance;
    for (int64_t i = from * c->rows.width; i < to * c->rows.width; i++) {
        uint64_t at = (uint64_t)(a->first + i);
        uint64_t bits = random_bits(a->noise, at / 4) >> at % 4 * 16;
        c->own[i] = bf16_by_chance(c->wide[i], (uint16_t)bits);
    }
}

static void convert(const struct narrow *n, struct tensor own, struct tensor wide,
                    void (*body)(void *arg, int64_t from, int64_t to))
{
    struct convert c = {n, own.data, wide.data, rows_of(own)};
    cpu_rows(n->stream, c.rows.count, c.rows.width, body, &c);
}

/* ---- one op ---- */

static struct tensor beside(struct narrow *n, struct tensor t)
{
    if (!n->memory.name)
        n->memory = arena_make("narrow");
    struct tensor wide = tensor_dense(NULL, DTYPE_F32, t.ndim, t.dim);
    wide.data = arena_room(&n->memory, sizeof(float) * (size_t)tensor_count(t));
    wide.live = t.live;
    wide.per = t.per;
    return wide;
}

static bool is_narrow(struct tensor t)
{
    return tensor_is(t) && t.dtype == DTYPE_BF16;
}

static struct tensor narrow_in(struct narrow *n, struct tensor t)
{
    if (!is_narrow(t))
        return t;
    struct tensor wide = beside(n, t);
    convert(n, t, wide, widen_rows);
    return wide;
}

/* beta 0: the op writes all of it and reads none. */
static struct tensor narrow_out(struct narrow *n, float beta, struct tensor t)
{
    if (!is_narrow(t))
        return t;
    struct tensor wide = beta == 0 ? beside(n, t) : narrow_in(n, t);
    REQUIRE(n->outputs < OUTPUTS);
    n->out[n->outputs++] = (struct output){wide, t};
    return wide;
}

static void narrow_end(struct narrow *n)
{
    for (int i = 0; i < n->outputs; i++)
        convert(n, n->out[i].own, n->out[i].wide,
                i == 0 && n->chance ? chance_rows : round_rows);
    if (n->memory.name)
        arena_free(&n->memory);
}

/* ---- all ops: IN is read, OUT written (its beta first), ALL changed in places ---- */

#define T struct tensor
#define S struct stream *s
#define NARROW(op, parameters, tensors, arguments)                                     \
    void narrow_##op parameters                                                        \
    {                                                                                  \
        struct narrow n = {.stream = s};                                               \
        tensors                                                                        \
        cpu_##op arguments;                                                            \
        narrow_end(&n);                                                                \
    }
#define IN(t) t = narrow_in(&n, t);
#define OUT(beta, t) t = narrow_out(&n, beta, t);
#define ALL(t) t = narrow_out(&n, 1, t);

NARROW(linear, (S, T x, T w, T b, float beta, T y), IN(x) IN(w) IN(b) OUT(beta, y),
       (s, x, w, b, beta, y))
NARROW(linear_back, (S, T dy, T w, float beta, T dx), IN(dy) IN(w) OUT(beta, dx),
       (s, dy, w, beta, dx))
NARROW(linear_weight, (S, T dy, T x, float beta, T dw, T db),
       IN(dy) IN(x) OUT(beta, dw) OUT(beta, db), (s, dy, x, beta, dw, db))
NARROW(grouped, (S, T x, T w, T bound, T y), IN(x) IN(w) OUT(0, y),
       (s, x, w, bound, y))
NARROW(grouped_back, (S, T dy, T w, T bound, float beta, T dx),
       IN(dy) IN(w) OUT(beta, dx), (s, dy, w, bound, beta, dx))
NARROW(grouped_weight, (S, T dy, T x, T bound, float beta, T dw),
       IN(dy) IN(x) OUT(beta, dw), (s, dy, x, bound, beta, dw))

NARROW(rmsnorm, (S, T x, T w, float eps, T y, T r), IN(x) IN(w) OUT(0, y),
       (s, x, w, eps, y, r))
NARROW(rmsnorm_back, (S, T x, T w, T r, T dy, float beta, T dx),
       IN(x) IN(w) IN(dy) OUT(beta, dx), (s, x, w, r, dy, beta, dx))
NARROW(rmsnorm_weight, (S, T x, T r, T dy, float beta, T dw),
       IN(x) IN(dy) OUT(beta, dw), (s, x, r, dy, beta, dw))
NARROW(layernorm, (S, T x, T w, T b, float eps, T y, T m, T r),
       IN(x) IN(w) IN(b) OUT(0, y), (s, x, w, b, eps, y, m, r))
NARROW(layernorm_back, (S, T x, T w, T m, T r, T dy, float beta, T dx),
       IN(x) IN(w) IN(dy) OUT(beta, dx), (s, x, w, m, r, dy, beta, dx))
NARROW(layernorm_weight, (S, T x, T m, T r, T dy, float beta, T dw, T db),
       IN(x) IN(dy) OUT(beta, dw) OUT(beta, db), (s, x, m, r, dy, beta, dw, db))

NARROW(rope_table, (S, T position, struct rope_shape shape, T cos, T sin), ,
       (s, position, shape, cos, sin))
NARROW(rope, (S, T x, T cos, T sin, int direction, float beta, T y),
       IN(x) OUT(beta, y), (s, x, cos, sin, direction, beta, y))
NARROW(attention,
       (S, T q, T k, T v, T bound, int heads, int groups, bool causal, float scale, T o,
        T lse),
       IN(q) IN(k) IN(v) OUT(0, o),
       (s, q, k, v, bound, heads, groups, causal, scale, o, lse))
NARROW(attention_back,
       (S, T q, T k, T v, T bound, T o, T lse, T d_o, int heads, int groups,
        bool causal, float scale, T dq, T dk, T dv),
       IN(q) IN(k) IN(v) IN(o) IN(d_o) OUT(0, dq) OUT(0, dk) OUT(0, dv),
       (s, q, k, v, bound, o, lse, d_o, heads, groups, causal, scale, dq, dk, dv))
NARROW(attention_part,
       (S, T q, T k, T v, T bound, int64_t first_q, int64_t first_k, int heads,
        int groups, bool causal, float scale, float beta, T o, T lse),
       IN(q) IN(k) IN(v) OUT(beta, o),
       (s, q, k, v, bound, first_q, first_k, heads, groups, causal, scale, beta, o,
        lse))
NARROW(attention_part_back,
       (S, T q, T k, T v, T bound, int64_t first_q, int64_t first_k, T o, T lse, T d_o,
        int heads, int groups, bool causal, float scale, float beta_q, T dq,
        float beta_kv, T dk, T dv),
       IN(q) IN(k) IN(v) IN(o) IN(d_o) OUT(beta_q, dq) OUT(beta_kv, dk)
       OUT(beta_kv, dv),
       (s, q, k, v, bound, first_q, first_k, o, lse, d_o, heads, groups, causal, scale,
        beta_q, dq, beta_kv, dk, dv))
NARROW(attention_rows,
       (S, T q, T k, T v, T first, T last, int heads, int groups, float scale, T o),
       IN(q) IN(k) IN(v) OUT(0, o), (s, q, k, v, first, last, heads, groups, scale, o))

NARROW(swiglu, (S, T gu, T y), IN(gu) OUT(0, y), (s, gu, y))
NARROW(swiglu_back, (S, T gu, T dy, float beta, T dgu), IN(gu) IN(dy) OUT(beta, dgu),
       (s, gu, dy, beta, dgu))
NARROW(gelu, (S, T x, bool exact, T y), IN(x) OUT(0, y), (s, x, exact, y))
NARROW(gelu_back, (S, T x, bool exact, T dy, float beta, T dx),
       IN(x) IN(dy) OUT(beta, dx), (s, x, exact, dy, beta, dx))
NARROW(gate, (S, T a, T x, T z, T y), IN(a) IN(x) OUT(0, y), (s, a, x, z, y))
NARROW(gate_back,
       (S, T x, T z, T dy, float beta_x, T dx, float beta_z, T dz),
       IN(x) IN(dy) OUT(beta_x, dx), (s, x, z, dy, beta_x, dx, beta_z, dz))

NARROW(add, (S, T a, T b, T y), IN(a) IN(b) OUT(0, y), (s, a, b, y))
NARROW(axpby, (S, float alpha, T x, float beta, T y),
       if (alpha != 0) { IN(x) } OUT(beta, y), (s, alpha, x, beta, y))
NARROW(bias, (S, T x, T b, T y), IN(x) IN(b) OUT(0, y), (s, x, b, y))
NARROW(bias_weight, (S, T dy, float beta, T db), IN(dy) OUT(beta, db),
       (s, dy, beta, db))
NARROW(copy, (S, T x, T y), if (x.dtype != y.dtype) { IN(x) OUT(0, y) }, (s, x, y))

NARROW(embed, (S, T id, T table, T y), IN(table) OUT(0, y), (s, id, table, y))
NARROW(embed_weight, (S, T id, T dy, float beta, T dtable), IN(dy) OUT(beta, dtable),
       (s, id, dy, beta, dtable))
NARROW(take, (S, T index, T from, float beta, T y), IN(from) OUT(beta, y),
       (s, index, from, beta, y))
NARROW(put, (S, T index, T x, T y), IN(x) ALL(y), (s, index, x, y))
NARROW(locate, (S, T place, struct places own, T y), , (s, place, own, y))
NARROW(live_places, (S, T live, struct places own, T y), , (s, live, own, y))
NARROW(interpolate, (S, T x, T place, T table, T y), IN(x) IN(table) OUT(0, y),
       (s, x, place, table, y))
NARROW(interpolate_weight, (S, T dy, T place, float beta, T dtable),
       IN(dy) OUT(beta, dtable), (s, dy, place, beta, dtable))

NARROW(router, (S, T z, T bias, T live, T pi, T index, T weight), ,
       (s, z, bias, live, pi, index, weight))
NARROW(router_back,
       (S, T z, T pi, T index, T weight, T live, T dweight, T dsum, T dz2, T dz), ,
       (s, z, pi, index, weight, live, dweight, dsum, dz2, dz))
NARROW(router_sums,
       (S, T z, T pi, T index, T live, T chosen, T sum, T z2, T rows, T chosen_out,
        T sum_out, T z2_out, T rows_out), ,
       (s, z, pi, index, live, chosen, sum, z2, rows, chosen_out, sum_out, z2_out,
        rows_out))
NARROW(router_loss,
       (S, T chosen, T sum, T z2, T rows, T share, float aux_coef, float z_coef, T loss,
        T aux, T zloss), ,
       (s, chosen, sum, z2, rows, share, aux_coef, z_coef, loss, aux, zloss))
NARROW(router_loss_back,
       (S, T chosen, T rows, T share, float aux_coef, float z_coef, T dsum, T dz2), ,
       (s, chosen, rows, share, aux_coef, z_coef, dsum, dz2))
NARROW(sort_rows, (S, T index, int experts, T place, T source, T slot, T bound), ,
       (s, index, experts, place, source, slot, bound))
NARROW(sort_own,
       (S, T index, int first, T over, T place, T source, T slot, T bound,
        T over_out), ,
       (s, index, first, over, place, source, slot, bound, over_out))
NARROW(meet_rows,
       (S, T bounds, int rank, T over, T leave, T arrive, T order, T undo, T bound,
        T over_out), ,
       (s, bounds, rank, over, leave, arrive, order, undo, bound, over_out))
NARROW(clear_rows, (S, T bound, T x), ALL(x), (s, bound, x))
NARROW(gather_sum, (S, T place, T dy, float beta, T dx), IN(dy) OUT(beta, dx),
       (s, place, dy, beta, dx))
NARROW(combine, (S, T x, T place, T weight, T y), IN(x) OUT(0, y),
       (s, x, place, weight, y))
NARROW(combine_back,
       (S, T x, T place, T weight, T source, T slot, T dy, T dx, T dweight),
       IN(x) IN(dy) OUT(0, dx), (s, x, place, weight, source, slot, dy, dx, dweight))

NARROW(head_loss, (S, T x, T w, T target, T scale, T work, T loss, T lse), IN(x) IN(w),
       (s, x, w, target, scale, work, loss, lse))
NARROW(head_loss_back,
       (S, T x, T w, T target, T scale, T lse, T dloss, T work, float beta_x, T dx,
        float beta_w, T dw),
       IN(x) IN(w) OUT(beta_x, dx) OUT(beta_w, dw),
       (s, x, w, target, scale, lse, dloss, work, beta_x, dx, beta_w, dw))
NARROW(head_part, (S, T x, T w, T target, int64_t first, T work, T part), IN(x) IN(w),
       (s, x, w, target, first, work, part))
NARROW(head_part_back,
       (S, T x, T w, T target, int64_t first, T part, T dpart, T work, float beta_x,
        T dx, float beta_w, T dw),
       IN(x) IN(w) OUT(beta_x, dx) OUT(beta_w, dw),
       (s, x, w, target, first, part, dpart, work, beta_x, dx, beta_w, dw))
NARROW(head_sum, (S, T part, T target, T scale, T loss), ,
       (s, part, target, scale, loss))
NARROW(head_sum_back, (S, T part, T target, T scale, T dloss, T dpart), ,
       (s, part, target, scale, dloss, dpart))
NARROW(head_best, (S, T x, T w, T want, T work, T best, T logit), IN(x) IN(w),
       (s, x, w, want, work, best, logit))

NARROW(square_sum, (S, T g, float beta, T out), IN(g), (s, g, beta, out))
NARROW(adamw, (S, T g, struct adamw step, T w, T m, T v),
       if (is_narrow(w)) { n.chance = &step; ALL(w) } IN(g) ALL(m) ALL(v),
       (s, g, step, w, m, v))
