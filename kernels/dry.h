/* dry.h - what the files of the dry device share: the laws of shapes, and what is said
 * when one is broken; work counted; prototypes taken from the contract. */
#ifndef KERNELS_DRY_H
#define KERNELS_DRY_H

#include "kernels/ops.h"

#define PROTOTYPE(name) extern __typeof__(*((struct ops *)0)->name) dry_##name;
EACH_OP(PROTOTYPE)
#undef PROTOTYPE

/* ---- laws: what is required, and what is said when it is broken ---- */

static inline _Noreturn void broken(const char *op, const char *law, const char *names,
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

static inline bool floating(struct tensor t)
{
    return t.dtype == DTYPE_F32 || t.dtype == DTYPE_BF16;
}

/* Two dimensions, of floating type; the rows may have a stride. */
static inline bool is_2d(struct tensor t, int64_t rows, int64_t columns)
{
    return t.ndim == 2 && floating(t) && t.dim[0] == rows && t.dim[1] == columns &&
           (columns <= 1 || t.stride[1] == 1) && (rows <= 1 || t.stride[0] >= columns);
}

static inline bool is_dense(struct tensor t, int64_t rows, int64_t columns)
{
    return is_2d(t, rows, columns) && tensor_is_dense(t);
}

static inline bool is_3d(struct tensor t, int64_t a, int64_t b, int64_t c)
{
    return t.ndim == 3 && floating(t) && t.dim[0] == a && t.dim[1] == b &&
           t.dim[2] == c && tensor_is_dense(t);
}

static inline bool is_1d(struct tensor t, int64_t n)
{
    return t.ndim == 1 && floating(t) && t.dim[0] == n && tensor_is_dense(t);
}

static inline bool is_wide(struct tensor t)
{
    return t.dtype == DTYPE_F32;
}

/* Statistics and losses are f32 whatever the activations are. */
static inline bool is_stat(struct tensor t, int64_t rows, int64_t columns)
{
    return is_dense(t, rows, columns) && is_wide(t);
}

static inline bool is_list(struct tensor t, int64_t n)
{
    return t.ndim == 1 && t.dtype == DTYPE_I32 && t.dim[0] == n && tensor_is_dense(t);
}

static inline bool is_grid(struct tensor t, int64_t rows, int64_t columns)
{
    return t.ndim == 2 && t.dtype == DTYPE_I32 && t.dim[0] == rows &&
           t.dim[1] == columns && tensor_is_dense(t);
}

static inline bool is_same(struct tensor a, struct tensor b)
{
    bool same = a.ndim == b.ndim && a.ndim > 0 && floating(a) && floating(b);
    for (int i = 0; same && i < a.ndim; i++)
        same = a.dim[i] == b.dim[i];
    return same;
}

/* Those that are there are of one type: what is computed with is, but for what the laws
 * below say, and weight gradients. */
static inline bool alike(const struct tensor *t, int n)
{
    const struct tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (first && tensor_is(t[i]) && t[i].dtype != first->dtype)
            return false;
        first = tensor_is(t[i]) ? &t[i] : first;
    }
    return true;
}

#define ALIKE(op, ...)                                                                 \
    LAW(op, alike((const struct tensor[]){__VA_ARGS__},                                \
                  COUNT(((const struct tensor[]){__VA_ARGS__}))), __VA_ARGS__)

/* y = x w': y may be kept f32, and so may w then. */
static inline bool is_mix(struct tensor x, struct tensor w, struct tensor y)
{
    return (y.dtype == x.dtype || is_wide(y)) &&
           (w.dtype == x.dtype || w.dtype == y.dtype);
}

static inline bool none_or(struct tensor t, bool otherwise)
{
    return !tensor_is(t) || otherwise;
}

/* ---- work ---- */

static inline void count(struct stream *s, double flops, const struct tensor *t, int n)
{
    if (!s->work)
        return;
    s->work->flops += flops;
    for (int i = 0; i < n; i++) {
        double bytes = (double)tensor_count(t[i]) * (double)dtype_bytes(t[i].dtype);
        s->work->bytes += bytes;
        s->work->room += t[i].room ? bytes : 0;
    }
}

#define WORK(s, flops, ...)                                                            \
    count(s, flops, (const struct tensor[]){__VA_ARGS__},                              \
          COUNT(((const struct tensor[]){__VA_ARGS__})))

/* The same, of one kind: a field of struct work. */
#define WORK_OF(s, kind, flops, ...)                                                   \
    do {                                                                               \
        double of = (flops);                                                           \
        WORK(s, of, __VA_ARGS__);                                                      \
        if ((s)->work)                                                                 \
            (s)->work->kind += of;                                                     \
    } while (0)

/* An output that is read first, for the list of tensors moved. */
static inline struct tensor old(float beta, struct tensor t)
{
    return beta == 0 ? tensor_none() : t;
}

static inline double product(int64_t m, int64_t n, int64_t k)
{
    return 2.0 * (double)m * (double)n * (double)k;
}

#endif
