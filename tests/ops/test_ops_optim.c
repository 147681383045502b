/* test_ops_optim.c - the sum of squares and AdamW against their definitions. */
#include "ops/ops_test.h"

static void squares_add_up(void **state)
{
    (void)state;
    const int64_t counts[] = {0, 1, 7, 16384, 100001, 4300000};
    double *out = NEW(&memory, double, 1);
    struct tensor sum = tensor_1d(out, DTYPE_F64, 1);
    for (int i = 0; i < COUNT(counts); i++) {
        struct tensor g = vector(counts[i]);
        double *exact = fill(g, 2), want = 0;
        for (int64_t j = 0; j < counts[i]; j++)
            want += exact[j] * exact[j];
        *out = NAN;
        cpu->square_sum(&stream, g, 0, sum);
        assert_true(fabs(*out - want) <= 1e-11 * want);
        cpu->square_sum(&stream, g, 1, sum);
        assert_true(fabs(*out - 2 * want) <= 1e-11 * want);
    }
}

static void adamw_steps(void **state)
{
    (void)state;
    enum { N = 40001 };
    struct tensor w = vector(N), m = vector(N), v = vector(N), g = vector(N);
    double *w0 = fill(w, 1), *m0 = NEW(&memory, double, N),
           *v0 = NEW(&memory, double, N);
    for (int step = 1; step <= 3; step++) {
        double *g0 = fill(g, step == 2 ? 0 : 0.1);
        double b1 = 0.9f, b2 = 0.95f, rate = 0.01f, eps = 1e-8f, decay = 0.1f,
               clip = 0.5f;
        struct adamw a = {.rate = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .decay = 0.1f,
                          .scale = 0.5f,
                          .correct1 = (float)(1 - pow(b1, step)),
                          .correct2 = (float)(1 - pow(b2, step))};
        cpu->adamw(&stream, g, a, w, m, v);
        for (int i = 0; i < N; i++) {
            double x = clip * g0[i];
            m0[i] = b1 * m0[i] + (1 - b1) * x;
            v0[i] = b2 * v0[i] + (1 - b2) * x * x;
            w0[i] -= rate * decay * w0[i];
            w0[i] -= rate * (m0[i] / (1 - pow(b1, step))) /
                     (sqrt(v0[i] / (1 - pow(b2, step))) + eps);
        }
        assert_near(w, w0, 1e-6);
        assert_near(m, m0, 1e-6);
        assert_near(v, v0, 2e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squares_add_up),
        cmocka_unit_test(adamw_steps),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
