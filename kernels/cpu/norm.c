/* norm.c - RMSNorm (per token or per head) and LayerNorm on the CPU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>

/* Rows are numbered over tokens and heads: row i is head i % N of token i / N. */
struct norm {
    struct tensor x, w, b, m, r, dy, y;
    int64_t heads, width;
    float eps, beta;
};

static float *head_row(const struct norm *p, struct tensor t, int64_t i)
{
    return row(t, i / p->heads) + i % p->heads * p->width;
}

static void rmsnorm_rows(void *arg, int64_t from, int64_t to)
{
    const struct norm *p = arg;
    const float *w = p->w.data;
    float *scale = p->r.data;
    for (int64_t i = from; i < to; i++) {
        const float *x = head_row(p, p->x, i);
        float *y = head_row(p, p->y, i);
        float r = 1 / sqrtf(row_dot(x, x, p->width) / (float)p->width + p->eps);
        INDEPENDENT
        for (int64_t c = 0; c < p->width; c++)
            y[c] = x[c] * r * w[c];
        scale[i] = r;
    }
}

void cpu_rmsnorm(struct stream *s, struct tensor x, struct tensor w, float eps,
                 struct tensor y, struct tensor r)
{
    struct norm p = {.x = x, .w = w, .eps = eps, .y = y, .r = r, .heads = r.dim[1],
                     .width = w.dim[0]};
    cpu_rows(s, x.dim[0] * p.heads, p.width, rmsnorm_rows, &p);
}

/* With n = x r and g = dy w:  dx = r (g - n mean(n g)). */
static void rmsnorm_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct norm *p = arg;
    const float *w = p->w.data, *scale = p->r.data;
    for (int64_t i = from; i < to; i++) {
        const float *x = head_row(p, p->x, i), *dy = head_row(p, p->dy, i);
        float *dx = head_row(p, p->y, i), r = scale[i];
        float mean = row_dot3(x, 0, dy, w, p->width) * r / (float)p->width;
        float beta = p->beta, slope = mean * r;
        if (beta == 0) {
            INDEPENDENT
            for (int64_t c = 0; c < p->width; c++)
                dx[c] = r * (dy[c] * w[c] - x[c] * slope);
            continue;
        }
        INDEPENDENT
        for (int64_t c = 0; c < p->width; c++)
            dx[c] = beta * dx[c] + r * (dy[c] * w[c] - x[c] * slope);
    }
}

void cpu_rmsnorm_back(struct stream *s, struct tensor x, struct tensor w,
                      struct tensor r, struct tensor dy, float beta, struct tensor dx)
{
    struct norm p = {.x = x, .w = w, .r = r, .dy = dy, .beta = beta, .y = dx,
                     .heads = r.dim[1], .width = w.dim[0]};
    cpu_rows(s, x.dim[0] * p.heads, p.width, rmsnorm_back_rows, &p);
}

static void rmsnorm_weight_rows(void *arg, int64_t from, int64_t to, int64_t column,
                                int64_t width, float *const sum[2])
{
    const struct norm *p = arg;
    const float *scale = p->r.data;
    float *dw = sum[0];
    for (int64_t i = from; i < to; i++) {
        const float *x = head_row(p, p->x, i) + column;
        const float *dy = head_row(p, p->dy, i) + column;
        float r = scale[i];
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            dw[c] += dy[c] * x[c] * r;
    }
}

void cpu_rmsnorm_weight(struct stream *s, struct tensor x, struct tensor r,
                        struct tensor dy, float beta, struct tensor dw)
{
    struct norm p = {.x = x, .r = r, .dy = dy, .heads = r.dim[1], .width = dw.dim[0]};
    cpu_fold(s, x.dim[0] * p.heads, p.width, rmsnorm_weight_rows, &p, beta, dw,
             tensor_none());
}

static void layernorm_rows(void *arg, int64_t from, int64_t to)
{
    const struct norm *p = arg;
    const float *w = p->w.data, *b = p->b.data;
    float *mean = p->m.data, *scale = p->r.data;
    for (int64_t i = from; i < to; i++) {
        const float *x = row(p->x, i);
        float *y = row(p->y, i);
        float m = row_sum(x, p->width) / (float)p->width;
        for (int64_t c = 0; c < p->width; c++)
            y[c] = x[c] - m;
        float r = 1 / sqrtf(row_dot(y, y, p->width) / (float)p->width + p->eps);
        INDEPENDENT
        for (int64_t c = 0; c < p->width; c++)
            y[c] = y[c] * r * w[c] + b[c];
        mean[i] = m;
        scale[i] = r;
    }
}

void cpu_layernorm(struct stream *s, struct tensor x, struct tensor w, struct tensor b,
                   float eps, struct tensor y, struct tensor m, struct tensor r)
{
    struct norm p = {.x = x, .w = w, .b = b, .eps = eps, .y = y, .m = m, .r = r,
                     .width = x.dim[1]};
    cpu_rows(s, x.dim[0], p.width, layernorm_rows, &p);
}

/* With n = (x - m) r and g = dy w:  dx = r (g - mean(g) - n mean(n g)). */
static void layernorm_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct norm *p = arg;
    const float *w = p->w.data, *mean = p->m.data, *scale = p->r.data;
    for (int64_t i = from; i < to; i++) {
        const float *x = row(p->x, i), *dy = row(p->dy, i);
        float *dx = row(p->y, i), m = mean[i], r = scale[i];
        float g_mean = row_dot(dy, w, p->width) / (float)p->width;
        float slope = row_dot3(x, m, dy, w, p->width) / (float)p->width * r * r;
        for (int64_t c = 0; c < p->width; c++)
            dx[c] =
                blend(p->beta, dx[c], r * (dy[c] * w[c] - g_mean - (x[c] - m) * slope));
    }
}

void cpu_layernorm_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor m, struct tensor r, struct tensor dy, float beta,
                        struct tensor dx)
{
    struct norm p = {.x = x, .w = w, .m = m, .r = r, .dy = dy, .beta = beta, .y = dx,
                     .width = x.dim[1]};
    cpu_rows(s, x.dim[0], p.width, layernorm_back_rows, &p);
}

static void layernorm_weight_rows(void *arg, int64_t from, int64_t to, int64_t column,
                                  int64_t width, float *const sum[2])
{
    const struct norm *p = arg;
    const float *mean = p->m.data, *scale = p->r.data;
    float *dw = sum[0], *db = sum[1];
    for (int64_t i = from; i < to; i++) {
        const float *x = row(p->x, i) + column, *dy = row(p->dy, i) + column;
        float m = mean[i], r = scale[i];
        INDEPENDENT
        for (int64_t c = 0; c < width; c++) {
            dw[c] += dy[c] * (x[c] - m) * r;
            db[c] += dy[c];
        }
    }
}

void cpu_layernorm_weight(struct stream *s, struct tensor x, struct tensor m,
                          struct tensor r, struct tensor dy, float beta,
                          struct tensor dw, struct tensor db)
{
    struct norm p = {.x = x, .m = m, .r = r, .dy = dy};
    cpu_fold(s, x.dim[0], x.dim[1], layernorm_weight_rows, &p, beta, dw, db);
}
