/* dry.c - the device that touches no data: checks every shape contract once for all
 * devices, and counts work.
 *
 * FLOPs count products only, a multiply-add as 2, over capacity: live counts and
 * segment bounds are data, which this device does not have.  So all R routed rows
 * count, all T rows of the head, and attention counts one segment as long as the
 * tensor: T(T+1)/2 pairs of query and key when causal, T^2 when full (upper bounds).
 * Backward of attention counts 2.5 times forward (five products for two).  The head's
 * backward counts the logits it makes again.  Bytes are those of every tensor read and
 * written once, of tables the rows used; beta != 0 reads the output too. */
#include "kernels/dry.h"

/* ---- products ---- */

void dry_linear(struct stream *s, struct tensor x, struct tensor w,
                struct tensor b, float beta, struct tensor y)
{
    int64_t T = x.dim[0], D = x.dim[1], N = w.dim[0];
    LAW("linear", is_2d(x, T, D) && is_dense(w, N, D) && is_2d(y, T, N), x, w, y);
    LAW("linear", none_or(b, is_1d(b, N) && beta == 0), b, y);
    LAW("linear", is_mix(x, w, y) && none_or(b, b.dtype == w.dtype), x, w, b, y);
    WORK(s, product(T, N, D), x, w, b, old(beta, y), y);
}

void dry_linear_back(struct stream *s, struct tensor dy, struct tensor w,
                     float beta, struct tensor dx)
{
    int64_t T = dy.dim[0], N = dy.dim[1], D = w.dim[1];
    LAW("linear_back", is_2d(dy, T, N) && is_dense(w, N, D) && is_2d(dx, T, D), dy, w,
        dx);
    LAW("linear_back", is_mix(dx, w, dy), dy, w, dx);
    WORK(s, product(T, N, D), dy, w, old(beta, dx), dx);
}

void dry_linear_weight(struct stream *s, struct tensor dy, struct tensor x,
                       float beta, struct tensor dw, struct tensor db)
{
    int64_t T = dy.dim[0], N = dy.dim[1], D = x.dim[1];
    LAW("linear_weight", is_2d(dy, T, N) && is_2d(x, T, D), dy, x);
    LAW("linear_weight", none_or(dw, is_dense(dw, N, D)), dy, x, dw);
    LAW("linear_weight", none_or(db, is_1d(db, N)), dy, db);
    LAW("linear_weight", is_wide(dy) || dy.dtype == x.dtype, dy, x);
    WORK(s, tensor_is(dw) ? product(T, N, D) : 0, dy, x, old(beta, dw), old(beta, db),
         dw, db);
}

void dry_grouped(struct stream *s, struct tensor x, struct tensor w,
                 struct tensor bound, struct tensor y)
{
    int64_t R = x.dim[0], D = x.dim[1], E = w.dim[0], N = w.dim[1];
    LAW("grouped", is_dense(x, R, D) && is_3d(w, E, N, D) && is_dense(y, R, N), x, w,
        y);
    LAW("grouped", is_list(bound, E + 1), bound, w);
    ALIKE("grouped", x, w, y);
    WORK_OF(s, grouped, product(R, N, D), x, w, bound, y);
}

void dry_grouped_back(struct stream *s, struct tensor dy, struct tensor w,
                      struct tensor bound, float beta, struct tensor dx)
{
    int64_t R = dy.dim[0], N = dy.dim[1], E = w.dim[0], D = w.dim[2];
    LAW("grouped_back", is_dense(dy, R, N) && is_3d(w, E, N, D) && is_dense(dx, R, D),
        dy, w, dx);
    LAW("grouped_back", is_list(bound, E + 1), bound, w);
    ALIKE("grouped_back", dy, w, dx);
    WORK_OF(s, grouped, product(R, N, D), dy, w, bound, old(beta, dx), dx);
}

void dry_grouped_weight(struct stream *s, struct tensor dy, struct tensor x,
                        struct tensor bound, float beta, struct tensor dw)
{
    int64_t R = dy.dim[0], N = dy.dim[1], D = x.dim[1], E = dw.dim[0];
    LAW("grouped_weight", is_dense(dy, R, N) && is_dense(x, R, D) && is_3d(dw, E, N, D),
        dy, x, dw);
    LAW("grouped_weight", is_list(bound, E + 1), bound, dw);
    ALIKE("grouped_weight", dy, x);
    WORK_OF(s, grouped, product(R, N, D), dy, x, bound, old(beta, dw), dw);
}

/* ---- norms ---- */

void dry_rmsnorm(struct stream *s, struct tensor x, struct tensor w, float eps,
                 struct tensor y, struct tensor r)
{
    (void)eps;
    int64_t T = x.dim[0], N = r.dim[1], D = w.dim[0];
    LAW("rmsnorm", is_1d(w, D) && is_stat(r, T, N), w, r);
    LAW("rmsnorm", is_2d(x, T, N * D) && is_2d(y, T, N * D), x, w, y, r);
    ALIKE("rmsnorm", x, w, y);
    WORK(s, 0, x, w, y, r);
}

void dry_rmsnorm_back(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor r, struct tensor dy, float beta,
                      struct tensor dx)
{
    int64_t T = x.dim[0], N = r.dim[1], D = w.dim[0];
    LAW("rmsnorm_back", is_1d(w, D) && is_stat(r, T, N) && is_2d(x, T, N * D), x, w, r);
    LAW("rmsnorm_back", is_2d(dy, T, N * D) && is_2d(dx, T, N * D), x, dy, dx);
    ALIKE("rmsnorm_back", x, w, dy, dx);
    WORK(s, 0, x, w, r, dy, old(beta, dx), dx);
}

void dry_rmsnorm_weight(struct stream *s, struct tensor x, struct tensor r,
                        struct tensor dy, float beta, struct tensor dw)
{
    int64_t T = x.dim[0], N = r.dim[1], D = dw.dim[0];
    LAW("rmsnorm_weight", is_1d(dw, D) && is_stat(r, T, N), r, dw);
    LAW("rmsnorm_weight", is_2d(x, T, N * D) && is_2d(dy, T, N * D), x, dy, r, dw);
    ALIKE("rmsnorm_weight", x, dy);
    WORK(s, 0, x, r, dy, old(beta, dw), dw);
}

void dry_layernorm(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor b, float eps, struct tensor y, struct tensor m,
                   struct tensor r)
{
    (void)eps;
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm", is_dense(x, T, D) && is_dense(y, T, D), x, y);
    LAW("layernorm", is_1d(w, D) && is_1d(b, D), x, w, b);
    LAW("layernorm", is_stat(m, T, 1) && is_stat(r, T, 1), x, m, r);
    ALIKE("layernorm", x, w, b, y);
    WORK(s, 0, x, w, b, y, m, r);
}

void dry_layernorm_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor m, struct tensor r, struct tensor dy,
                        float beta, struct tensor dx)
{
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm_back", is_dense(x, T, D) && is_dense(dy, T, D) && is_dense(dx, T, D),
        x, dy, dx);
    LAW("layernorm_back", is_1d(w, D) && is_stat(m, T, 1) && is_stat(r, T, 1), x, w, m,
        r);
    ALIKE("layernorm_back", x, w, dy, dx);
    WORK(s, 0, x, w, m, r, dy, old(beta, dx), dx);
}

void dry_layernorm_weight(struct stream *s, struct tensor x, struct tensor m,
                          struct tensor r, struct tensor dy, float beta,
                          struct tensor dw, struct tensor db)
{
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm_weight", is_dense(x, T, D) && is_dense(dy, T, D), x, dy);
    LAW("layernorm_weight", is_stat(m, T, 1) && is_stat(r, T, 1), x, m, r);
    LAW("layernorm_weight", none_or(dw, is_1d(dw, D)) && none_or(db, is_1d(db, D)), x,
        dw, db);
    ALIKE("layernorm_weight", x, dy);
    WORK(s, 0, x, m, r, dy, old(beta, dw), old(beta, db), dw, db);
}

/* ---- rotary positions ---- */

void dry_rope_table(struct stream *s, struct tensor position,
                    struct rope_shape shape, struct tensor cos,
                    struct tensor sin)
{
    int64_t T = position.dim[0], half = shape.heads_width / 2;
    LAW("rope_table", is_grid(position, T, shape.axial ? 4 : 3), position);
    LAW("rope_table", is_stat(cos, T, half) && is_stat(sin, T, half), position, cos,
        sin);
    if (shape.axial)
        LAW("rope_table", shape.heads_width % 4 == 0, cos);
    else
        LAW("rope_table",
            shape.section[0] + shape.section[1] + shape.section[2] == half, cos);
    WORK(s, 0, position, cos, sin);
}

void dry_rope(struct stream *s, struct tensor x, struct tensor cos,
              struct tensor sin, int direction, float beta, struct tensor y)
{
    int64_t T = x.dim[0], half = cos.dim[1];
    LAW("rope", is_2d(x, T, x.dim[1]) && is_2d(y, T, x.dim[1]), x, y);
    LAW("rope", is_stat(cos, T, half) && is_stat(sin, T, half), x, cos, sin);
    LAW("rope", half > 0 && x.dim[1] % (2 * half) == 0, x, cos);
    LAW("rope", direction == 1 || direction == -1, x);
    ALIKE("rope", x, y);
    WORK(s, 0, x, cos, sin, old(beta, y), y);
}

/* ---- attention ---- */

static double pairs_of(int64_t T, bool causal)
{
    return causal ? (double)T * (double)(T + 1) / 2 : (double)T * (double)T;
}

static void attention_laws(const char *op, struct tensor q, struct tensor k,
                           struct tensor v, struct tensor bound, struct tensor o,
                           struct tensor lse, int heads, int groups)
{
    int64_t T = q.dim[0];
    LAW(op, heads > 0 && groups > 0 && heads % groups == 0, q, k);
    LAW(op, q.dim[1] % heads == 0, q);
    int64_t K = q.dim[1] / heads;
    LAW(op, is_2d(q, T, heads * K) && is_2d(o, T, heads * K), q, o);
    LAW(op, is_2d(k, T, groups * K) && is_2d(v, T, groups * K), q, k, v);
    LAW(op, is_list(bound, bound.dim[0]) && bound.dim[0] >= 1, bound);
    LAW(op, is_stat(lse, T, heads), q, lse);
    ALIKE(op, q, k, v, o);
}

void dry_attention(struct stream *s, struct tensor q, struct tensor k,
                   struct tensor v, struct tensor bound, int heads, int groups,
                   bool causal, float scale, struct tensor o, struct tensor lse)
{
    (void)scale;
    attention_laws("attention", q, k, v, bound, o, lse, heads, groups);
    WORK_OF(s, attention, 4 * (double)q.dim[1] * pairs_of(q.dim[0], causal), q, k, v,
            bound, o, lse);
}

void dry_attention_back(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor bound, struct tensor o,
                        struct tensor lse, struct tensor d_o, int heads,
                        int groups, bool causal, float scale, struct tensor dq,
                        struct tensor dk, struct tensor dv)
{
    (void)scale;
    attention_laws("attention_back", q, k, v, bound, o, lse, heads, groups);
    LAW("attention_back", is_2d(d_o, q.dim[0], q.dim[1]), q, d_o);
    LAW("attention_back", is_2d(dq, q.dim[0], q.dim[1]), q, dq);
    LAW("attention_back", is_2d(dk, k.dim[0], k.dim[1]), k, dk);
    LAW("attention_back", is_2d(dv, v.dim[0], v.dim[1]), v, dv);
    ALIKE("attention_back", q, d_o, dq, dk, dv);
    WORK_OF(s, attention, 10 * (double)q.dim[1] * pairs_of(q.dim[0], causal), q, k, v,
            bound, o, lse, d_o, dq, dk, dv);
}

/* Pairs of queries from place first_q on and keys from first_k on, one segment. */
static double part_pairs(int64_t M, int64_t N, int64_t first_q, int64_t first_k,
                         bool causal)
{
    int64_t apart = first_q - first_k;  /* query i sees min(N, apart + i + 1) keys */
    if (!causal)
        return (double)M * (double)N;
    int64_t none = MIN(M, MAX(0, -apart)), all = MAX(none, MIN(M, N - apart));
    double some = (double)(all - none);
    return some * (double)(apart + none) + some * (some + 1) / 2 +
           (double)(M - all) * (double)N;
}

static void part_laws(const char *op, struct tensor q, struct tensor k, struct tensor v,
                      struct tensor bound, struct tensor o, struct tensor lse,
                      int64_t first_q, int64_t first_k, int heads, int groups)
{
    int64_t M = q.dim[0], N = k.dim[0];
    LAW(op, heads > 0 && groups > 0 && heads % groups == 0, q, k);
    LAW(op, q.dim[1] % heads == 0 && first_q >= 0 && first_k >= 0, q);
    int64_t K = q.dim[1] / heads;
    LAW(op, is_2d(q, M, heads * K) && is_2d(o, M, heads * K), q, o);
    LAW(op, is_2d(k, N, groups * K) && is_2d(v, N, groups * K), q, k, v);
    LAW(op, is_list(bound, bound.dim[0]) && bound.dim[0] >= 1, bound);
    LAW(op, is_stat(lse, M, heads), q, lse);
    ALIKE(op, q, k, v, o);
}

void dry_attention_part(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor bound, int64_t first_q,
                        int64_t first_k, int heads, int groups, bool causal,
                        float scale, float beta, struct tensor o,
                        struct tensor lse)
{
    (void)scale;
    part_laws("attention_part", q, k, v, bound, o, lse, first_q, first_k, heads,
              groups);
    LAW("attention_part", beta == 0 || beta == 1, o);
    WORK_OF(s, attention,
         4 * (double)q.dim[1] *
             part_pairs(q.dim[0], k.dim[0], first_q, first_k, causal),
         q, k, v, bound, old(beta, o), old(beta, lse), o, lse);
}

void dry_attention_part_back(struct stream *s, struct tensor q, struct tensor k,
                             struct tensor v, struct tensor bound,
                             int64_t first_q, int64_t first_k, struct tensor o,
                             struct tensor lse, struct tensor d_o, int heads,
                             int groups, bool causal, float scale, float beta_q,
                             struct tensor dq, float beta_kv, struct tensor dk,
                             struct tensor dv)
{
    (void)scale;
    part_laws("attention_part_back", q, k, v, bound, o, lse, first_q, first_k, heads,
              groups);
    LAW("attention_part_back", is_2d(d_o, q.dim[0], q.dim[1]), q, d_o);
    LAW("attention_part_back", is_2d(dq, q.dim[0], q.dim[1]), q, dq);
    LAW("attention_part_back", is_2d(dk, k.dim[0], k.dim[1]), k, dk);
    LAW("attention_part_back", is_2d(dv, v.dim[0], v.dim[1]), v, dv);
    ALIKE("attention_part_back", q, d_o, dq, dk, dv);
    WORK_OF(s, attention,
         10 * (double)q.dim[1] *
             part_pairs(q.dim[0], k.dim[0], first_q, first_k, causal),
         q, k, v, bound, o, lse, d_o, old(beta_q, dq), old(beta_kv, dk),
         old(beta_kv, dv), dq, dk, dv);
}

/* Counted as if every query saw all rows: how many it does see is data. */
void dry_attention_rows(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor first, struct tensor last,
                        int heads, int groups, float scale, struct tensor o)
{
    (void)scale;
    int64_t T = q.dim[0], M = k.dim[0];
    LAW("attention_rows", heads > 0 && groups > 0 && heads % groups == 0, q, k);
    LAW("attention_rows", q.dim[1] % heads == 0, q);
    int64_t K = q.dim[1] / heads;
    LAW("attention_rows", is_2d(q, T, heads * K) && is_dense(o, T, heads * K), q, o);
    LAW("attention_rows", is_2d(k, M, groups * K) && is_2d(v, M, groups * K), q, k, v);
    LAW("attention_rows", is_list(first, T) && is_list(last, T), q, first, last);
    ALIKE("attention_rows", q, k, v, o);
    WORK_OF(s, attention, 4 * (double)q.dim[1] * (double)T * (double)M, q, k, v, first,
            last, o);
}

/* ---- activations, sums ---- */

void dry_swiglu(struct stream *s, struct tensor gu, struct tensor y)
{
    LAW("swiglu", is_dense(gu, y.dim[0], 2 * y.dim[1]), gu, y);
    LAW("swiglu", is_dense(y, y.dim[0], y.dim[1]), gu, y);
    ALIKE("swiglu", gu, y);
    WORK(s, 0, gu, y);
}

void dry_swiglu_back(struct stream *s, struct tensor gu, struct tensor dy,
                     float beta, struct tensor dgu)
{
    LAW("swiglu_back", is_dense(dy, dy.dim[0], dy.dim[1]), gu, dy);
    LAW("swiglu_back", is_dense(gu, dy.dim[0], 2 * dy.dim[1]), gu, dy);
    LAW("swiglu_back", is_dense(dgu, dy.dim[0], 2 * dy.dim[1]), dgu, dy);
    ALIKE("swiglu_back", gu, dy, dgu);
    WORK(s, 0, gu, dy, old(beta, dgu), dgu);
}

void dry_gelu(struct stream *s, struct tensor x, bool exact, struct tensor y)
{
    (void)exact;
    LAW("gelu", is_dense(x, x.dim[0], x.dim[1]) && is_dense(y, x.dim[0], x.dim[1]), x,
        y);
    ALIKE("gelu", x, y);
    WORK(s, 0, x, y);
}

void dry_gelu_back(struct stream *s, struct tensor x, bool exact,
                   struct tensor dy, float beta, struct tensor dx)
{
    (void)exact;
    LAW("gelu_back", is_dense(x, x.dim[0], x.dim[1]), x);
    LAW("gelu_back", is_dense(dy, x.dim[0], x.dim[1]), x, dy);
    LAW("gelu_back", is_dense(dx, x.dim[0], x.dim[1]), x, dx);
    ALIKE("gelu_back", x, dy, dx);
    WORK(s, 0, x, dy, old(beta, dx), dx);
}

void dry_gate(struct stream *s, struct tensor a, struct tensor x, struct tensor z,
              struct tensor y)
{
    int64_t T = y.dim[0], D = y.dim[1];
    LAW("gate", is_dense(a, T, D) && is_dense(x, T, D) && is_dense(y, T, D), a, x, y);
    LAW("gate", is_stat(z, T, 1), z, y);
    ALIKE("gate", a, x, y);
    WORK(s, 0, a, x, z, y);
}

void dry_gate_back(struct stream *s, struct tensor x, struct tensor z, struct tensor dy,
                   float beta_x, struct tensor dx, float beta_z, struct tensor dz)
{
    int64_t T = dy.dim[0], D = dy.dim[1];
    LAW("gate_back", is_dense(x, T, D) && is_dense(dy, T, D), x, dy);
    LAW("gate_back", is_stat(z, T, 1) && none_or(dz, is_stat(dz, T, 1)), z, dy, dz);
    LAW("gate_back", none_or(dx, is_dense(dx, T, D)), dy, dx);
    ALIKE("gate_back", x, dy, dx);
    WORK(s, 0, x, z, dy, old(beta_x, dx), old(beta_z, dz), dx, dz);
}

void dry_add(struct stream *s, struct tensor a, struct tensor b, struct tensor y)
{
    LAW("add", is_same(a, b) && is_same(a, y) && a.ndim == 2, a, b, y);
    ALIKE("add", a, b, y);
    WORK(s, 0, a, b, y);
}

void dry_axpby(struct stream *s, float alpha, struct tensor x, float beta,
               struct tensor y)
{
    LAW("axpby", is_same(x, y), x, y);
    LAW("axpby", x.ndim == 2 || (tensor_is_dense(x) && tensor_is_dense(y)), x, y);
    LAW("axpby", alpha == 0 || x.dtype == y.dtype, x, y);
    WORK(s, 0, old(alpha, x), old(beta, y), y);
}

void dry_bias(struct stream *s, struct tensor x, struct tensor b,
              struct tensor y)
{
    int64_t T = x.dim[0], N = x.dim[1];
    LAW("bias", is_dense(x, T, N) && is_dense(y, T, N) && is_1d(b, N), x, b, y);
    ALIKE("bias", x, b, y);
    WORK(s, 0, x, b, y);
}

void dry_bias_weight(struct stream *s, struct tensor dy, float beta,
                     struct tensor db)
{
    LAW("bias_weight", is_2d(dy, dy.dim[0], dy.dim[1]) && is_1d(db, dy.dim[1]), dy, db);
    WORK(s, 0, dy, old(beta, db), db);
}

void dry_copy(struct stream *s, struct tensor x, struct tensor y)
{
    int64_t columns = x.ndim == 2 ? x.dim[1] : 1;
    LAW("copy", x.dtype == y.dtype || (floating(x) && floating(y)), x, y);
    LAW("copy", x.ndim == y.ndim, x, y);
    LAW("copy", (x.ndim == 1 && tensor_is_dense(x) && tensor_is_dense(y)) ||
                    x.ndim == 2, x, y);
    LAW("copy", x.dim[0] == y.dim[0] && (x.ndim == 1 || y.dim[1] == columns), x, y);
    WORK(s, 0, x, y);
}

#define ENTRY(op) .op = dry_##op,
const struct ops ops_dry = {.name = "dry", EACH_OP(ENTRY)};
