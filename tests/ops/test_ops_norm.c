/* test_ops_norm.c - norms: references in double, gradients by central differences,
 * per-head norms of column slices, odd widths. */
#include "ops/ops_test.h"

struct size { int64_t T, N, D; double eps; };

static void rmsnorm_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t i = 0; i < z->T * z->N; i++) {
        const double *x = in[0] + i * z->D;
        double square = 0;
        for (int64_t c = 0; c < z->D; c++)
            square += x[c] * x[c];
        for (int64_t c = 0; c < z->D; c++)
            out[i * z->D + c] = x[c] / sqrt(square / (double)z->D + z->eps) * in[1][c];
    }
}

static void rmsnorm_case(struct size z)
{
    int64_t width = z.N * z.D;
    struct tensor x = slice(z.T, width), y = slice(z.T, width), w = vector(z.D);
    struct tensor dy = slice(z.T, width), dx = slice(z.T, width), dw = vector(z.D);
    struct tensor r = floats(z.T, z.N);
    struct law l = {
        rmsnorm_law, &z, {fill(x, 2), fill(w, 1)}, z.T * width, fill(dy, 1)};
    fill_nan(y);
    fill_nan(r);
    cpu->rmsnorm(&stream, x, w, (float)z.eps, y, r);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(dx, law_slope(&l, 0, z.T * width), 3e-6,
                    cpu->rmsnorm_back(&stream, x, w, r, dy, beta, dx));
    assert_gradient(dw, law_slope(&l, 1, z.D), 3e-6,
                    cpu->rmsnorm_weight(&stream, x, r, dy, beta, dw));
}

static void rmsnorm_follows_its_law(void **state)
{
    (void)state;
    rmsnorm_case((struct size){7, 1, 33, 1e-6});
    rmsnorm_case((struct size){5, 3, 16, 1e-6});
    rmsnorm_case((struct size){21, 2, 7, 0.1});
    rmsnorm_case((struct size){1, 1, 1, 0.5});
    rmsnorm_case((struct size){3, 1, 1037, 1e-6});      /* more than two folds */
    rmsnorm_case((struct size){2, 3, 520, 1e-6});
    rmsnorm_case((struct size){0, 2, 8, 1e-6});
}

static void rmsnorm_of_zero_is_zero(void **state)
{
    (void)state;
    struct tensor x = floats(2, 20), y = floats(2, 20), w = vector(20),
                  r = floats(2, 1);
    fill(w, 1);
    cpu->rmsnorm(&stream, x, w, 1e-6f, y, r);
    for (int i = 0; i < 40; i++)
        assert_true(*at(y, i) == 0);
    assert_true(fabsf(*at(r, 0) - 1000) < 0.01f);
}

static void layernorm_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t i = 0; i < z->T; i++) {
        const double *x = in[0] + i * z->D;
        double mean = 0, square = 0;
        for (int64_t c = 0; c < z->D; c++)
            mean += x[c] / (double)z->D;
        for (int64_t c = 0; c < z->D; c++)
            square += (x[c] - mean) * (x[c] - mean) / (double)z->D;
        for (int64_t c = 0; c < z->D; c++)
            out[i * z->D + c] =
                (x[c] - mean) / sqrt(square + z->eps) * in[1][c] + in[2][c];
    }
}

static void layernorm_case(struct size z, double offset)
{
    struct tensor x = floats(z.T, z.D), y = floats(z.T, z.D), w = vector(z.D);
    struct tensor b = vector(z.D), dy = floats(z.T, z.D), dx = floats(z.T, z.D);
    struct tensor dw = vector(z.D), db = vector(z.D), none = tensor_none();
    struct tensor m = floats(z.T, 1), r = floats(z.T, 1);
    struct law l = {layernorm_law, &z, {fill(x, 1), fill(w, 1), fill(b, 1)}, z.T * z.D,
                    fill(dy, 1)};
    for (int64_t i = 0; i < z.T * z.D; i++) {
        *at(x, i) += (float)offset;
        l.in[0][i] = *at(x, i);
    }
    fill_nan(y);
    cpu->layernorm(&stream, x, w, b, (float)z.eps, y, m, r);
    double tolerance = 3e-6 * (1 + offset);
    assert_near(y, law_output(&l), tolerance);
    assert_gradient(dx, law_slope(&l, 0, z.T * z.D), tolerance,
                    cpu->layernorm_back(&stream, x, w, m, r, dy, beta, dx));
    double *slope_w = law_slope(&l, 1, z.D), *slope_b = law_slope(&l, 2, z.D);
    assert_gradient(dw, slope_w, tolerance,
                    cpu->layernorm_weight(&stream, x, m, r, dy, beta, dw, none));
    assert_gradient(db, slope_b, tolerance,
                    cpu->layernorm_weight(&stream, x, m, r, dy, beta, none, db));
    cpu->layernorm_weight(&stream, x, m, r, dy, 0, dw, db);
    assert_near(dw, slope_w, tolerance);
    assert_near(db, slope_b, tolerance);
}

static void layernorm_follows_its_law(void **state)
{
    (void)state;
    layernorm_case((struct size){7, 1, 33, 1e-6}, 0);
    layernorm_case((struct size){19, 1, 16, 1e-6}, 5);  /* a mean far from zero */
    layernorm_case((struct size){3, 1, 1037, 1e-6}, 0); /* more than two folds */
    layernorm_case((struct size){0, 1, 5, 1e-6}, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_follows_its_law),
        cmocka_unit_test(rmsnorm_of_zero_is_zero),
        cmocka_unit_test(layernorm_follows_its_law),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
