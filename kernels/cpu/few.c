/* few.c - products of a few rows with a matrix that is read once: a step of answers,
 * experts that few tokens chose.
 *
 * Apart from gemm.c because BLAS packs the matrix first, which pays off where many rows
 * meet it; here reading it is all the time there is.  An output is a dot product: sums
 * side by side, then a tree, for a few rows of both sides at a time, while the next
 * rows of the matrix are on their way. */
#include "kernels/cpu/cpu.h"

#if defined __AVX512F__
enum { LANES = 16, ROWS = 4 };          /* sums side by side; rows of a at a time */
#else
enum { LANES = 8, ROWS = 2 };           /* half the registers, half as wide */
#endif
enum { COLUMNS = 4 };                   /* rows of b at a time */

#define VECTOR(n) float __attribute__((vector_size(4 * (n))))

/* The sum of the lanes, halves onto halves. */
static inline float fold(const VECTOR(LANES) *v)
{
    union { VECTOR(LANES) all; VECTOR(8) half[LANES / 8]; } x = {*v};
    union { VECTOR(8) all; VECTOR(4) half[2]; } y = {x.half[0]};
    if (LANES == 16)
        y.all += x.half[LANES / 8 - 1];
    VECTOR(4) z = y.half[0] + y.half[1];
    return (z[0] + z[2]) + (z[1] + z[3]);
}

struct few {
    int64_t k, a_stride, b_stride, c_stride;
    float alpha, beta;
};

/* `rows` rows of a with COLUMNS rows of b; `next`: fetch the b that follows. */
static inline __attribute__((always_inline)) void tile(const struct few *p, int rows,
                                                       bool next, const float *a,
                                                       const float *b, float *c)
{
    VECTOR(LANES) sum[ROWS][COLUMNS];
    int64_t i = 0;
    memset(sum, 0, sizeof sum);
    for (; i + LANES <= p->k; i += LANES) {
        VECTOR(LANES) x[ROWS], y;
        for (int m = 0; m < rows; m++)
            memcpy(&x[m], a + m * p->a_stride + i, sizeof y);
        for (int n = 0; n < COLUMNS; n++) {
            memcpy(&y, b + n * p->b_stride + i, sizeof y);
            if (next)
                __builtin_prefetch(b + (n + COLUMNS) * p->b_stride + i);
            for (int m = 0; m < rows; m++)
                sum[m][n] += x[m] * y;
        }
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < COLUMNS; n++) {
            float total = fold(&sum[m][n]), *to = c + m * p->c_stride + n;
            for (int64_t j = i; j < p->k; j++)
                total += a[m * p->a_stride + j] * b[n * p->b_stride + j];
            *to = blend(p->beta, *to, p->alpha * total);
        }
}

/* One row of a with one of b: what is left where columns are not a multiple. */
static float one(const struct few *p, const float *a, const float *b)
{
    VECTOR(LANES) sum = {0}, x, y;
    int64_t i = 0;
    for (; i + LANES <= p->k; i += LANES) {
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        sum += x * y;
    }
    float total = fold(&sum);
    for (; i < p->k; i++)
        total += a[i] * b[i];
    return total;
}

static void columns(const struct few *p, int64_t m, const float *a, const float *b,
                    float *c)
{
    int64_t at = 0;
    for (; at + ROWS <= m; at += ROWS)
        tile(p, ROWS, at == 0, a + at * p->a_stride, b, c + at * p->c_stride);
    a += at * p->a_stride;
    c += at * p->c_stride;
    switch (m - at) {                   /* a number the compiler knows */
    case 1: tile(p, 1, at == 0, a, b, c); break;
    case 2: tile(p, MIN(2, ROWS), at == 0, a, b, c); break;
    case 3: tile(p, MIN(3, ROWS), at == 0, a, b, c); break;
    default: break;
    }
}

void cpu_product_few(int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t a_stride, const float *b, int64_t b_stride, float beta,
                     float *c, int64_t c_stride)
{
    const struct few p = {k, a_stride, b_stride, c_stride, alpha, beta};
    int64_t j = 0;
    for (; j + COLUMNS <= n; j += COLUMNS)
        columns(&p, m, a, b + j * b_stride, c + j);
    for (; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float *to = c + i * c_stride + j;
            *to = blend(beta, *to, alpha * one(&p, a + i * a_stride, b + j * b_stride));
        }
}
