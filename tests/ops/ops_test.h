/* ops_test.h - what the tests of ops share: tensors with canaries around them, values
 * that are known in double as well, and gradients by central differences of an
 * independent reference in double. */
#ifndef TESTS_OPS_OPS_TEST_H
#define TESTS_OPS_OPS_TEST_H

#include "check.h"

#include "base/arena.h"
#include "base/random.h"
#include "kernels/ops.h"

#include <math.h>

static struct arena memory = {.name = "test"};
static struct stream stream;
static const struct ops *const cpu = &ops_cpu;

static int test_begin(void **state)
{
    (void)state;
    memory = arena_make("test");
    stream.team = team_make(2);
    return 0;
}

static int test_end(void **state)
{
    (void)state;
    team_free(stream.team);
    arena_free(&memory);
    return 0;
}

enum { MARGIN = 5 };
static const float canary = 12345.5f;

static inline struct tensor floats(int64_t rows, int64_t columns)
{
    return tensor_2d(NEW(&memory, float, rows *columns + 1), DTYPE_F32, rows, columns);
}

/* A column slice of something wider, canaries left and right. */
static inline struct tensor slice(int64_t rows, int64_t columns)
{
    struct tensor t = floats(rows, columns + 2 * MARGIN);
    for (int64_t i = 0; i < tensor_count(t); i++)
        ((float *)t.data)[i] = canary;
    return tensor_columns(t, MARGIN, columns);
}

static inline struct tensor vector(int64_t n)
{
    return tensor_1d(NEW(&memory, float, n + 1), DTYPE_F32, n);
}

static inline struct tensor ints(int64_t rows, int64_t columns)
{
    int32_t *at = NEW(&memory, int32_t, rows * MAX(1, columns) + 1);
    return columns ? tensor_2d(at, DTYPE_I32, rows, columns)
                   : tensor_1d(at, DTYPE_I32, rows);
}

static inline struct tensor list(int64_t n, const int32_t *values)
{
    struct tensor t = tensor_1d(NEW(&memory, int32_t, n + 1), DTYPE_I32, n);
    memcpy(t.data, values, (size_t)n * sizeof *values);
    return t;
}

static inline struct tensor number(float x)
{
    struct tensor t = floats(1, 1);
    *(float *)t.data = x;
    return t;
}

/* Rows and width of one to three dimensions. */
static inline int64_t width_of(struct tensor t)
{
    return t.ndim == 2 ? t.dim[1] : tensor_count(t);
}

static inline float *at(struct tensor t, int64_t i)
{
    int64_t width = width_of(t);
    return t.ndim == 2 ? (float *)t.data + i / width * t.stride[0] + i % width
                       : (float *)t.data + i;
}

/* Random values of the given size; the doubles they are. */
static inline double *fill(struct tensor t, double size)
{
    static uint64_t next;
    uint64_t key = random_key(7, "ops test") + next++;
    double *exact = NEW(&memory, double, tensor_count(t) + 1);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        *at(t, i) = (float)(size * random_normal(key, (uint64_t)i));
        exact[i] = *at(t, i);
    }
    return exact;
}

static inline void fill_nan(struct tensor t)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        *at(t, i) = NAN;
}

static inline double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* Within `tolerance` of the largest value; canaries of a slice untouched. */
static inline void assert_near_at(struct tensor got, const double *want, double factor,
                                  double tolerance, const char *file, int line)
{
    int64_t n = tensor_count(got), width = width_of(got);
    double room = tolerance * (largest(want, n) * fmax(1, fabs(factor)) + 1e-6);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(*at(got, i) - factor * want[i]) <= room))
            fail_msg("%s:%d: element %lld (row %lld) is %.9g, not %.9g", file, line,
                     (long long)i, (long long)(i / width), (double)*at(got, i),
                     factor * want[i]);
    if (got.ndim == 2 && got.stride[0] == got.dim[1] + 2 * MARGIN)
        for (int64_t t = 0; t < got.dim[0]; t++)
            for (int m = 1; m <= MARGIN; m++) {
                const float *row = (float *)got.data + t * got.stride[0];
                if (row[-m] != canary || row[width + m - 1] != canary)
                    fail_msg("%s:%d: wrote beside row %lld", file, line, (long long)t);
            }
}
#define assert_near(got, want, tolerance)                                              \
    assert_near_at(got, want, 1, tolerance, __FILE__, __LINE__)

/* What was there, filled in and so known, times beta, plus `want`. */
static inline double *grown(const double *want, const double *was, double beta,
                            int64_t n)
{
    double *sum = NEW(&memory, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        sum[i] = want[i] + beta * was[i];
    return sum;
}

/* A gradient output under beta 0 (over NaN), 1 and 0.5, wherever `beta` stands in CALL:
 * want, then want + what was there, also where nothing is to be added. */
#define assert_gradient(out, want, tolerance, CALL)                                    \
    do {                                                                               \
        float beta = 0;                                                                \
        const double *gradient = want;                                                 \
        int64_t elements = tensor_count(out);                                          \
        fill_nan(out);                                                                 \
        CALL;                                                                          \
        assert_near_at(out, gradient, 1, tolerance, __FILE__, __LINE__);               \
        for (beta = 1; beta >= 0.5f; beta /= 2) {                                      \
            double *was = fill(out, 0.3 * largest(gradient, elements) + 1e-3);         \
            CALL;                                                                      \
            assert_near_at(out, grown(gradient, was, beta, elements), 1, tolerance,    \
                           __FILE__, __LINE__);                                        \
        }                                                                              \
    } while (0)

/* A function of double arrays; its outputs are weighed by `d` to one number, whose
 * derivatives by central differences are what a backward pass must give. */
struct law {
    void (*f)(const void *shape, double *const in[], double *out);
    const void *shape;
    double *in[6];
    int64_t outputs;
    const double *d;
};

static inline double law_value(const struct law *l)
{
    struct arena_mark mark = arena_mark(&memory);
    double *out = NEW(&memory, double, l->outputs + 1), sum = 0;
    l->f(l->shape, l->in, out);
    for (int64_t i = 0; i < l->outputs; i++)
        sum += l->d[i] * out[i];
    arena_reset(&memory, mark);
    return sum;
}

static inline double *law_output(const struct law *l)
{
    double *out = NEW(&memory, double, l->outputs + 1);
    l->f(l->shape, l->in, out);
    return out;
}

static inline double *law_slope(const struct law *l, int input, int64_t count)
{
    double *slope = NEW(&memory, double, count + 1);
    for (int64_t i = 0; i < count; i++) {
        double x = l->in[input][i], h = 1e-5 * fmax(1, fabs(x));
        l->in[input][i] = x + h;
        double up = law_value(l);
        l->in[input][i] = x - h;
        slope[i] = (up - law_value(l)) / (2 * h);
        l->in[input][i] = x;
    }
    return slope;
}

#endif
