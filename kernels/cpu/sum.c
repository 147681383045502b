/* sum.c - adding tensors of equal shape, and copying them, on the CPU. */
#include "kernels/cpu/cpu.h"

/* Dense tensors are one long row of elements; others go row by row. */
struct sum {
    struct tensor a, b, y;
    float alpha, beta;
    bool flat;
};

static void add_row(const float *a, const float *b, int64_t n, float *y)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void add_rows(void *arg, int64_t from, int64_t to)
{
    const struct sum *p = arg;
    if (p->flat)
        add_row((float *)p->a.data + from, (float *)p->b.data + from, to - from,
                (float *)p->y.data + from);
    for (int64_t t = from; t < to && !p->flat; t++)
        add_row(row(p->a, t), row(p->b, t), p->y.dim[1], row(p->y, t));
}

void cpu_add(struct stream *s, struct tensor a, struct tensor b, struct tensor y)
{
    struct sum p = {.a = a, .b = b, .y = y};
    p.flat = tensor_is_dense(a) && tensor_is_dense(b) && tensor_is_dense(y);
    cpu_rows(s, p.flat ? tensor_count(y) : y.dim[0], p.flat ? 1 : y.dim[1], add_rows,
             &p);
}

static void axpby_row(float alpha, const float *x, float beta, int64_t n, float *y)
{
    if (alpha == 0) {
        for (int64_t i = 0; i < n; i++)
            y[i] = blend(beta, y[i], 0);
        return;
    }
    if (beta == 0) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            y[i] = alpha * x[i];
        return;
    }
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = beta * y[i] + alpha * x[i];
}

static void axpby_rows(void *arg, int64_t from, int64_t to)
{
    const struct sum *p = arg;
    if (p->flat)
        axpby_row(p->alpha, (float *)p->a.data + from, p->beta, to - from,
                  (float *)p->y.data + from);
    for (int64_t t = from; t < to && !p->flat; t++)
        axpby_row(p->alpha, row(p->a, t), p->beta, p->y.dim[1], row(p->y, t));
}

void cpu_axpby(struct stream *s, float alpha, struct tensor x, float beta,
               struct tensor y)
{
    struct sum p = {.a = x, .alpha = alpha, .beta = beta, .y = y};
    p.flat = tensor_is_dense(x) && tensor_is_dense(y);
    cpu_rows(s, p.flat ? tensor_count(y) : y.dim[0], p.flat ? 1 : y.dim[1], axpby_rows,
             &p);
}

static void bias_rows(void *arg, int64_t from, int64_t to)
{
    const struct sum *p = arg;
    for (int64_t t = from; t < to; t++)
        add_row(row(p->a, t), p->b.data, p->y.dim[1], row(p->y, t));
}

void cpu_bias(struct stream *s, struct tensor x, struct tensor b, struct tensor y)
{
    struct sum p = {.a = x, .b = b, .y = y};
    cpu_rows(s, y.dim[0], y.dim[1], bias_rows, &p);
}

void cpu_bias_weight(struct stream *s, struct tensor dy, float beta, struct tensor db)
{
    cpu_linear_weight(s, dy, dy, beta, tensor_none(), db);
}

struct copy {
    const char *x;
    char *y;
    int64_t x_stride, y_stride, width;  /* bytes */
};

static void copy_rows(void *arg, int64_t from, int64_t to)
{
    const struct copy *p = arg;
    for (int64_t i = from; i < to; i++)
        memcpy(p->y + i * p->y_stride, p->x + i * p->x_stride, (size_t)p->width);
}

void cpu_copy(struct stream *s, struct tensor x, struct tensor y)
{
    int64_t size = dtype_bytes(y.dtype);
    struct copy p = {x.data, y.data, x.stride[0] * size, y.stride[0] * size,
                     (y.ndim == 2 ? y.dim[1] : 1) * size};
    cpu_rows(s, y.dim[0], p.width / 4, copy_rows, &p);
}
