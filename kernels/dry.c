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
#include "kernels/ops.h"

int64_t head_work(int64_t T, int64_t D, int64_t V)
{
    int64_t rows = MIN(HEAD_CHUNK, T), blocks = (V + HEAD_WORDS - 1) / HEAD_WORDS;
    return 4 * rows * (blocks * (HEAD_WORDS + 3) + D + 1);
}

/* ---- laws: what is required, and what is said when it is broken ---- */

static _Noreturn void broken(const char *op, const char *law, const char *names,
                             const struct tensor *t, int count)
{
    char text[1024];
    int n =
        snprintf(text, sizeof text, "%s: %s does not hold for (%s) =", op, law, names);
    for (int i = 0; i < count && n < (int)sizeof text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %s", tensor_text(t[i]));
    BUG("%s", text);
}

#define LAW(op, law, ...)                                                              \
    ((law) ? (void)0                                                                   \
           : broken(op, #law, #__VA_ARGS__, (const struct tensor[]){__VA_ARGS__},      \
                    COUNT(((const struct tensor[]){__VA_ARGS__}))))

static bool floating(struct tensor t)
{
    return t.dtype == DTYPE_F32 || t.dtype == DTYPE_BF16 || t.dtype == DTYPE_F16;
}

/* Two dimensions, of floating type; the rows may have a stride. */
static bool is_2d(struct tensor t, int64_t rows, int64_t columns)
{
    return t.ndim == 2 && floating(t) && t.dim[0] == rows && t.dim[1] == columns &&
           (columns <= 1 || t.stride[1] == 1) && (rows <= 1 || t.stride[0] >= columns);
}

static bool is_dense(struct tensor t, int64_t rows, int64_t columns)
{
    return is_2d(t, rows, columns) && tensor_is_dense(t);
}

static bool is_3d(struct tensor t, int64_t a, int64_t b, int64_t c)
{
    return t.ndim == 3 && floating(t) && t.dim[0] == a && t.dim[1] == b &&
           t.dim[2] == c && tensor_is_dense(t);
}

static bool is_1d(struct tensor t, int64_t n)
{
    return t.ndim == 1 && floating(t) && t.dim[0] == n && tensor_is_dense(t);
}

/* Statistics and losses are f32 whatever the activations are. */
static bool is_stat(struct tensor t, int64_t rows, int64_t columns)
{
    return is_dense(t, rows, columns) && t.dtype == DTYPE_F32;
}

static bool is_list(struct tensor t, int64_t n)
{
    return t.ndim == 1 && t.dtype == DTYPE_I32 && t.dim[0] == n && tensor_is_dense(t);
}

static bool is_grid(struct tensor t, int64_t rows, int64_t columns)
{
    return t.ndim == 2 && t.dtype == DTYPE_I32 && t.dim[0] == rows &&
           t.dim[1] == columns && tensor_is_dense(t);
}

static bool is_same(struct tensor a, struct tensor b)
{
    bool same = a.ndim == b.ndim && a.ndim > 0 && floating(a) && floating(b);
    for (int i = 0; same && i < a.ndim; i++)
        same = a.dim[i] == b.dim[i];
    return same;
}

static bool none_or(struct tensor t, bool otherwise)
{
    return !tensor_is(t) || otherwise;
}

/* ---- work ---- */

static void count(struct stream *s, double flops, const struct tensor *t, int n)
{
    if (!s->work)
        return;
    s->work->flops += flops;
    for (int i = 0; i < n; i++)
        s->work->bytes += (double)tensor_count(t[i]) * (double)dtype_bytes(t[i].dtype);
}

#define WORK(s, flops, ...)                                                            \
    count(s, flops, (const struct tensor[]){__VA_ARGS__},                              \
          COUNT(((const struct tensor[]){__VA_ARGS__})))

/* An output that is read first, for the list of tensors moved. */
static struct tensor old(float beta, struct tensor t)
{
    return beta == 0 ? tensor_none() : t;
}

static double product(int64_t m, int64_t n, int64_t k)
{
    return 2.0 * (double)m * (double)n * (double)k;
}

/* ---- products ---- */

static void dry_linear(struct stream *s, struct tensor x, struct tensor w,
                       struct tensor b, float beta, struct tensor y)
{
    int64_t T = x.dim[0], D = x.dim[1], N = w.dim[0];
    LAW("linear", is_2d(x, T, D) && is_dense(w, N, D) && is_2d(y, T, N), x, w, y);
    LAW("linear", none_or(b, is_1d(b, N) && beta == 0), b, y);
    WORK(s, product(T, N, D), x, w, b, old(beta, y), y);
}

static void dry_linear_back(struct stream *s, struct tensor dy, struct tensor w,
                            float beta, struct tensor dx)
{
    int64_t T = dy.dim[0], N = dy.dim[1], D = w.dim[1];
    LAW("linear_back", is_2d(dy, T, N) && is_dense(w, N, D) && is_2d(dx, T, D), dy, w,
        dx);
    WORK(s, product(T, N, D), dy, w, old(beta, dx), dx);
}

static void dry_linear_weight(struct stream *s, struct tensor dy, struct tensor x,
                              float beta, struct tensor dw, struct tensor db)
{
    int64_t T = dy.dim[0], N = dy.dim[1], D = x.dim[1];
    LAW("linear_weight", is_2d(dy, T, N) && is_2d(x, T, D), dy, x);
    LAW("linear_weight", none_or(dw, is_dense(dw, N, D)), dy, x, dw);
    LAW("linear_weight", none_or(db, is_1d(db, N)), dy, db);
    WORK(s, tensor_is(dw) ? product(T, N, D) : 0, dy, x, old(beta, dw), old(beta, db),
         dw, db);
}

static void dry_grouped(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor bound, struct tensor y)
{
    int64_t R = x.dim[0], D = x.dim[1], E = w.dim[0], N = w.dim[1];
    LAW("grouped", is_dense(x, R, D) && is_3d(w, E, N, D) && is_dense(y, R, N), x, w,
        y);
    LAW("grouped", is_list(bound, E + 1), bound, w);
    WORK(s, product(R, N, D), x, w, bound, y);
}

static void dry_grouped_back(struct stream *s, struct tensor dy, struct tensor w,
                             struct tensor bound, float beta, struct tensor dx)
{
    int64_t R = dy.dim[0], N = dy.dim[1], E = w.dim[0], D = w.dim[2];
    LAW("grouped_back", is_dense(dy, R, N) && is_3d(w, E, N, D) && is_dense(dx, R, D),
        dy, w, dx);
    LAW("grouped_back", is_list(bound, E + 1), bound, w);
    WORK(s, product(R, N, D), dy, w, bound, old(beta, dx), dx);
}

static void dry_grouped_weight(struct stream *s, struct tensor dy, struct tensor x,
                               struct tensor bound, float beta, struct tensor dw)
{
    int64_t R = dy.dim[0], N = dy.dim[1], D = x.dim[1], E = dw.dim[0];
    LAW("grouped_weight", is_dense(dy, R, N) && is_dense(x, R, D) && is_3d(dw, E, N, D),
        dy, x, dw);
    LAW("grouped_weight", is_list(bound, E + 1), bound, dw);
    WORK(s, product(R, N, D), dy, x, bound, old(beta, dw), dw);
}

/* ---- norms ---- */

static void dry_rmsnorm(struct stream *s, struct tensor x, struct tensor w, float eps,
                        struct tensor y, struct tensor r)
{
    (void)eps;
    int64_t T = x.dim[0], N = r.dim[1], D = w.dim[0];
    LAW("rmsnorm", is_1d(w, D) && is_stat(r, T, N), w, r);
    LAW("rmsnorm", is_2d(x, T, N * D) && is_2d(y, T, N * D), x, w, y, r);
    WORK(s, 0, x, w, y, r);
}

static void dry_rmsnorm_back(struct stream *s, struct tensor x, struct tensor w,
                             struct tensor r, struct tensor dy, float beta,
                             struct tensor dx)
{
    int64_t T = x.dim[0], N = r.dim[1], D = w.dim[0];
    LAW("rmsnorm_back", is_1d(w, D) && is_stat(r, T, N) && is_2d(x, T, N * D), x, w, r);
    LAW("rmsnorm_back", is_2d(dy, T, N * D) && is_2d(dx, T, N * D), x, dy, dx);
    WORK(s, 0, x, w, r, dy, old(beta, dx), dx);
}

static void dry_rmsnorm_weight(struct stream *s, struct tensor x, struct tensor r,
                               struct tensor dy, float beta, struct tensor dw)
{
    int64_t T = x.dim[0], N = r.dim[1], D = dw.dim[0];
    LAW("rmsnorm_weight", is_1d(dw, D) && is_stat(r, T, N), r, dw);
    LAW("rmsnorm_weight", is_2d(x, T, N * D) && is_2d(dy, T, N * D), x, dy, r, dw);
    WORK(s, 0, x, r, dy, old(beta, dw), dw);
}

static void dry_layernorm(struct stream *s, struct tensor x, struct tensor w,
                          struct tensor b, float eps, struct tensor y, struct tensor m,
                          struct tensor r)
{
    (void)eps;
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm", is_dense(x, T, D) && is_dense(y, T, D), x, y);
    LAW("layernorm", is_1d(w, D) && is_1d(b, D), x, w, b);
    LAW("layernorm", is_stat(m, T, 1) && is_stat(r, T, 1), x, m, r);
    WORK(s, 0, x, w, b, y, m, r);
}

static void dry_layernorm_back(struct stream *s, struct tensor x, struct tensor w,
                               struct tensor m, struct tensor r, struct tensor dy,
                               float beta, struct tensor dx)
{
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm_back", is_dense(x, T, D) && is_dense(dy, T, D) && is_dense(dx, T, D),
        x, dy, dx);
    LAW("layernorm_back", is_1d(w, D) && is_stat(m, T, 1) && is_stat(r, T, 1), x, w, m,
        r);
    WORK(s, 0, x, w, m, r, dy, old(beta, dx), dx);
}

static void dry_layernorm_weight(struct stream *s, struct tensor x, struct tensor m,
                                 struct tensor r, struct tensor dy, float beta,
                                 struct tensor dw, struct tensor db)
{
    int64_t T = x.dim[0], D = x.dim[1];
    LAW("layernorm_weight", is_dense(x, T, D) && is_dense(dy, T, D), x, dy);
    LAW("layernorm_weight", is_stat(m, T, 1) && is_stat(r, T, 1), x, m, r);
    LAW("layernorm_weight", none_or(dw, is_1d(dw, D)) && none_or(db, is_1d(db, D)), x,
        dw, db);
    WORK(s, 0, x, m, r, dy, old(beta, dw), old(beta, db), dw, db);
}

/* ---- rotary positions ---- */

static void dry_rope_table(struct stream *s, struct tensor position,
                           struct rope_shape shape, struct tensor cos,
                           struct tensor sin)
{
    int64_t T = position.dim[0], half = shape.heads_width / 2;
    LAW("rope_table", is_grid(position, T, shape.axial ? 4 : 3), position);
    LAW("rope_table", is_dense(cos, T, half) && is_dense(sin, T, half), position, cos,
        sin);
    if (shape.axial)
        LAW("rope_table", shape.heads_width % 4 == 0, cos);
    else
        LAW("rope_table",
            shape.section[0] + shape.section[1] + shape.section[2] == half, cos);
    WORK(s, 0, position, cos, sin);
}

static void dry_rope(struct stream *s, struct tensor x, struct tensor cos,
                     struct tensor sin, int direction, float beta, struct tensor y)
{
    int64_t T = x.dim[0], half = cos.dim[1];
    LAW("rope", is_2d(x, T, x.dim[1]) && is_2d(y, T, x.dim[1]), x, y);
    LAW("rope", is_dense(cos, T, half) && is_dense(sin, T, half), x, cos, sin);
    LAW("rope", half > 0 && x.dim[1] % (2 * half) == 0, x, cos);
    LAW("rope", direction == 1 || direction == -1, x);
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
}

static void dry_attention(struct stream *s, struct tensor q, struct tensor k,
                          struct tensor v, struct tensor bound, int heads, int groups,
                          bool causal, float scale, struct tensor o, struct tensor lse)
{
    (void)scale;
    attention_laws("attention", q, k, v, bound, o, lse, heads, groups);
    WORK(s, 4 * (double)q.dim[1] * pairs_of(q.dim[0], causal), q, k, v, bound, o, lse);
}

static void dry_attention_back(struct stream *s, struct tensor q, struct tensor k,
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
    WORK(s, 10 * (double)q.dim[1] * pairs_of(q.dim[0], causal), q, k, v, bound, o, lse,
         d_o, dq, dk, dv);
}

/* ---- activations, sums ---- */

static void dry_swiglu(struct stream *s, struct tensor gu, struct tensor y)
{
    LAW("swiglu", is_dense(gu, y.dim[0], 2 * y.dim[1]), gu, y);
    LAW("swiglu", is_dense(y, y.dim[0], y.dim[1]), gu, y);
    WORK(s, 0, gu, y);
}

static void dry_swiglu_back(struct stream *s, struct tensor gu, struct tensor dy,
                            float beta, struct tensor dgu)
{
    LAW("swiglu_back", is_dense(dy, dy.dim[0], dy.dim[1]), gu, dy);
    LAW("swiglu_back", is_dense(gu, dy.dim[0], 2 * dy.dim[1]), gu, dy);
    LAW("swiglu_back", is_dense(dgu, dy.dim[0], 2 * dy.dim[1]), dgu, dy);
    WORK(s, 0, gu, dy, old(beta, dgu), dgu);
}

static void dry_gelu(struct stream *s, struct tensor x, bool exact, struct tensor y)
{
    (void)exact;
    LAW("gelu", is_dense(x, x.dim[0], x.dim[1]) && is_dense(y, x.dim[0], x.dim[1]), x,
        y);
    WORK(s, 0, x, y);
}

static void dry_gelu_back(struct stream *s, struct tensor x, bool exact,
                          struct tensor dy, float beta, struct tensor dx)
{
    (void)exact;
    LAW("gelu_back", is_dense(x, x.dim[0], x.dim[1]), x);
    LAW("gelu_back", is_dense(dy, x.dim[0], x.dim[1]), x, dy);
    LAW("gelu_back", is_dense(dx, x.dim[0], x.dim[1]), x, dx);
    WORK(s, 0, x, dy, old(beta, dx), dx);
}

static void dry_add(struct stream *s, struct tensor a, struct tensor b, struct tensor y)
{
    LAW("add", is_same(a, b) && is_same(a, y) && a.ndim == 2, a, b, y);
    WORK(s, 0, a, b, y);
}

static void dry_axpby(struct stream *s, float alpha, struct tensor x, float beta,
                      struct tensor y)
{
    (void)alpha;
    LAW("axpby", is_same(x, y), x, y);
    LAW("axpby", x.ndim == 2 || (tensor_is_dense(x) && tensor_is_dense(y)), x, y);
    WORK(s, 0, x, old(beta, y), y);
}

/* ---- rows of tables ---- */

static void dry_embed(struct stream *s, struct tensor id, struct tensor table,
                      struct tensor y)
{
    LAW("embed", is_list(id, y.dim[0]), id, y);
    LAW("embed", is_dense(table, table.dim[0], y.dim[1]), table, y);
    LAW("embed", is_dense(y, y.dim[0], y.dim[1]), y);
    WORK(s, 0, id, y, y);
}

static void dry_embed_weight(struct stream *s, struct tensor id, struct tensor dy,
                             float beta, struct tensor dtable)
{
    LAW("embed_weight", is_list(id, dy.dim[0]), id, dy);
    LAW("embed_weight", is_dense(dtable, dtable.dim[0], dy.dim[1]), dy, dtable);
    LAW("embed_weight", is_dense(dy, dy.dim[0], dy.dim[1]), dy);
    WORK(s, 0, id, dy, old(beta, dtable), dtable);
}

static void dry_take(struct stream *s, struct tensor index, struct tensor from,
                     float beta, struct tensor y)
{
    LAW("take", is_list(index, y.dim[0]), index, y);
    LAW("take", is_dense(from, from.dim[0], y.dim[1]), from, y);
    LAW("take", is_dense(y, y.dim[0], y.dim[1]), y);
    WORK(s, 0, index, y, old(beta, y), y);
}

static bool is_square(int64_t n)
{
    int64_t side = 0;
    while (side * side < n)
        side++;
    return side * side == n;
}

static void dry_interpolate(struct stream *s, struct tensor x, struct tensor place,
                            struct tensor table, struct tensor y)
{
    LAW("interpolate",
        is_dense(x, x.dim[0], x.dim[1]) && is_dense(y, x.dim[0], x.dim[1]), x, y);
    LAW("interpolate", is_grid(place, x.dim[0], 4), place, x);
    LAW("interpolate", is_dense(table, table.dim[0], x.dim[1]), table, x);
    LAW("interpolate", is_square(table.dim[0]), table);
    WORK(s, 0, x, place, y, y);
}

static void dry_interpolate_weight(struct stream *s, struct tensor dy,
                                   struct tensor place, float beta,
                                   struct tensor dtable)
{
    LAW("interpolate_weight", is_dense(dy, dy.dim[0], dy.dim[1]), dy);
    LAW("interpolate_weight", is_grid(place, dy.dim[0], 4), place, dy);
    LAW("interpolate_weight", is_dense(dtable, dtable.dim[0], dy.dim[1]), dtable, dy);
    LAW("interpolate_weight", is_square(dtable.dim[0]), dtable);
    WORK(s, 0, dy, place, old(beta, dtable), dtable);
}

/* ---- routing ---- */

static void dry_router(struct stream *s, struct tensor z, struct tensor bias,
                       struct tensor live, struct tensor pi, struct tensor index,
                       struct tensor weight)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router", is_stat(z, T, E) && is_stat(pi, T, E) && E > 0, z, pi);
    LAW("router", none_or(bias, is_1d(bias, E)) && is_list(live, 1), z, bias, live);
    LAW("router", is_grid(index, T, A) && is_stat(weight, T, A), z, index, weight);
    LAW("router", A >= 1 && A <= E, z, index);
    WORK(s, 0, z, bias, pi, index, weight);
}

static void dry_router_back(struct stream *s, struct tensor z, struct tensor pi,
                            struct tensor index, struct tensor weight,
                            struct tensor live, struct tensor dweight,
                            struct tensor dsum, struct tensor dz2, struct tensor dz)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router_back", is_stat(z, T, E) && is_stat(pi, T, E) && is_stat(dz, T, E), z,
        pi, dz);
    LAW("router_back", is_grid(index, T, A) && is_stat(weight, T, A), z, index, weight);
    LAW("router_back", none_or(dweight, is_stat(dweight, T, A)), z, dweight);
    LAW("router_back", is_list(live, 1) && none_or(dsum, is_stat(dsum, 1, E)), z, dsum);
    LAW("router_back", none_or(dz2, is_stat(dz2, 1, 1)), dz2);
    WORK(s, 0, z, pi, index, weight, dweight, dsum, dz);
}

static void dry_router_sums(struct stream *s, struct tensor z, struct tensor pi,
                            struct tensor index, struct tensor live,
                            struct tensor chosen, struct tensor sum, struct tensor z2,
                            struct tensor rows, struct tensor chosen_out,
                            struct tensor sum_out, struct tensor z2_out,
                            struct tensor rows_out)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router_sums", is_stat(z, T, E) && is_stat(pi, T, E), z, pi);
    LAW("router_sums", is_grid(index, T, A) && is_list(live, 1), z, index, live);
    LAW("router_sums", none_or(chosen, is_stat(chosen, 1, E)), z, chosen);
    LAW("router_sums", none_or(sum, is_stat(sum, 1, E)), z, sum);
    LAW("router_sums",
        none_or(z2, is_stat(z2, 1, 1)) && none_or(rows, is_stat(rows, 1, 1)), z2, rows);
    LAW("router_sums", is_stat(chosen_out, 1, E) && is_stat(sum_out, 1, E), chosen_out,
        sum_out);
    LAW("router_sums", is_stat(z2_out, 1, 1) && is_stat(rows_out, 1, 1), z2_out,
        rows_out);
    WORK(s, 0, z, pi, index, chosen, sum, chosen_out, sum_out);
}

static void dry_router_loss(struct stream *s, struct tensor chosen, struct tensor sum,
                            struct tensor z2, struct tensor rows, struct tensor share,
                            float aux_coef, float z_coef, struct tensor loss,
                            struct tensor aux, struct tensor zloss)
{
    (void)aux_coef, (void)z_coef;
    int64_t E = chosen.dim[1];
    LAW("router_loss", is_stat(chosen, 1, E) && is_stat(sum, 1, E), chosen, sum);
    LAW("router_loss", is_stat(z2, 1, 1) && is_stat(rows, 1, 1) && is_stat(share, 1, 1),
        z2, rows, share);
    LAW("router_loss",
        is_stat(loss, 1, 1) && is_stat(aux, 1, 1) && is_stat(zloss, 1, 1), loss, aux,
        zloss);
    WORK(s, 0, chosen, sum);
}

static void dry_router_loss_back(struct stream *s, struct tensor chosen,
                                 struct tensor rows, struct tensor share,
                                 float aux_coef, float z_coef, struct tensor dsum,
                                 struct tensor dz2)
{
    (void)aux_coef, (void)z_coef;
    int64_t E = chosen.dim[1];
    LAW("router_loss_back", is_stat(chosen, 1, E) && is_stat(dsum, 1, E), chosen, dsum);
    LAW("router_loss_back", is_stat(rows, 1, 1) && is_stat(share, 1, 1), rows, share);
    LAW("router_loss_back", is_stat(dz2, 1, 1), dz2);
    WORK(s, 0, chosen, dsum);
}

static void dry_sort_rows(struct stream *s, struct tensor index, int experts,
                          struct tensor place, struct tensor source, struct tensor slot,
                          struct tensor bound)
{
    int64_t T = index.dim[0], A = index.dim[1], R = source.dim[0];
    LAW("sort_rows", is_grid(index, T, A) && is_grid(place, T, A), index, place);
    LAW("sort_rows", is_list(source, R) && is_list(slot, R) && R >= T * A, index,
        source, slot);
    LAW("sort_rows", is_list(bound, experts + 1), bound);
    WORK(s, 0, index, place, source, slot, bound);
}

static void dry_gather_sum(struct stream *s, struct tensor place, struct tensor dy,
                           float beta, struct tensor dx)
{
    int64_t T = dx.dim[0], D = dx.dim[1];
    LAW("gather_sum", is_grid(place, T, place.dim[1]), place, dx);
    LAW("gather_sum", is_dense(dy, dy.dim[0], D) && is_dense(dx, T, D), dy, dx);
    WORK(s, 0, place, dy, old(beta, dx), dx);
}

static void dry_combine(struct stream *s, struct tensor x, struct tensor place,
                        struct tensor weight, struct tensor y)
{
    int64_t T = y.dim[0], D = y.dim[1], A = place.dim[1];
    LAW("combine", is_dense(x, x.dim[0], D) && is_dense(y, T, D), x, y);
    LAW("combine", is_grid(place, T, A) && is_stat(weight, T, A), place, weight);
    WORK(s, 0, x, place, weight, y);
}

static void dry_combine_back(struct stream *s, struct tensor x, struct tensor place,
                             struct tensor weight, struct tensor source,
                             struct tensor slot, struct tensor dy, struct tensor dx,
                             struct tensor dweight)
{
    int64_t T = dy.dim[0], D = dy.dim[1], A = place.dim[1], R = x.dim[0];
    LAW("combine_back", is_dense(x, R, D) && is_dense(dy, T, D), x, dy);
    LAW("combine_back", is_grid(place, T, A) && is_stat(weight, T, A), dy, place,
        weight);
    LAW("combine_back", is_list(source, R) && is_list(slot, R), x, source, slot);
    LAW("combine_back", none_or(dx, is_dense(dx, R, D)), x, dx);
    LAW("combine_back", none_or(dweight, is_stat(dweight, T, A)), dweight, place);
    WORK(s, 0, x, place, weight, source, slot, dy, dx, dweight);
}

/* ---- head ---- */

static void head_laws(const char *op, struct tensor x, struct tensor w,
                      struct tensor which, struct tensor work)
{
    int64_t T = x.dim[0], D = x.dim[1], V = w.dim[0];
    LAW(op, is_dense(x, T, D) && is_dense(w, V, D) && V > 0, x, w);
    LAW(op, is_list(which, T), x, which);
    LAW(op, work.dtype == DTYPE_U8 && tensor_count(work) >= head_work(T, D, V), x, w,
        work);
}

static void dry_head_loss(struct stream *s, struct tensor x, struct tensor w,
                          struct tensor target, struct tensor scale, struct tensor work,
                          struct tensor loss, struct tensor lse)
{
    head_laws("head_loss", x, w, target, work);
    LAW("head_loss", is_stat(scale, 1, 1) && is_stat(loss, 1, 1), scale, loss);
    LAW("head_loss", is_stat(lse, x.dim[0], 1), x, lse);
    WORK(s, product(x.dim[0], w.dim[0], x.dim[1]), x, w, target, lse);
}

static void dry_head_loss_back(struct stream *s, struct tensor x, struct tensor w,
                               struct tensor target, struct tensor scale,
                               struct tensor lse, struct tensor dloss,
                               struct tensor work, float beta_x, struct tensor dx,
                               float beta_w, struct tensor dw)
{
    int64_t T = x.dim[0], D = x.dim[1], V = w.dim[0];
    head_laws("head_loss_back", x, w, target, work);
    LAW("head_loss_back", is_stat(scale, 1, 1) && is_stat(lse, T, 1), scale, lse);
    LAW("head_loss_back", none_or(dloss, is_stat(dloss, 1, 1)), dloss);
    LAW("head_loss_back", none_or(dx, is_dense(dx, T, D)), x, dx);
    LAW("head_loss_back", none_or(dw, is_dense(dw, V, D)), w, dw);
    WORK(s, product(T, V, D) * (1 + tensor_is(dx) + tensor_is(dw)), x, w, target, lse,
         old(beta_x, dx), dx, old(beta_w, dw), dw);
}

static void dry_head_best(struct stream *s, struct tensor x, struct tensor w,
                          struct tensor want, struct tensor work, struct tensor best,
                          struct tensor logit)
{
    head_laws("head_best", x, w, want, work);
    LAW("head_best", is_list(best, x.dim[0]) && is_stat(logit, x.dim[0], 1), x, best,
        logit);
    WORK(s, product(x.dim[0], w.dim[0], x.dim[1]), x, w, want, best, logit);
}

/* ---- optimizer ---- */

static void dry_square_sum(struct stream *s, struct tensor g, float beta,
                           struct tensor out)
{
    (void)beta;
    LAW("square_sum", floating(g) && tensor_is(g) && tensor_is_dense(g), g);
    LAW("square_sum", out.dtype == DTYPE_F64 && tensor_count(out) == 1, out);
    WORK(s, 0, g);
}

static void dry_adamw(struct stream *s, struct tensor g, struct adamw step,
                      struct tensor w, struct tensor m, struct tensor v)
{
    (void)step;
    int64_t n = w.dim[0];
    LAW("adamw", is_1d(g, n) && is_1d(w, n) && w.dtype == DTYPE_F32, g, w);
    LAW("adamw", is_1d(m, n) && is_1d(v, n) && m.dtype == DTYPE_F32, w, m, v);
    LAW("adamw", v.dtype == DTYPE_F32, v);
    WORK(s, 0, g, w, m, v, w, m, v);
}

#define ENTRY(op) .op = dry_##op,
const struct ops ops_dry = {.name = "dry", EACH_OP(ENTRY)};
