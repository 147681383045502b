/* test_ops_act.c - activations and sums: laws in double, gradients by differences,
 * extreme inputs. */
#include "ops/ops_test.h"

struct size { int64_t T, F; bool exact; };

static void swiglu_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t t = 0; t < z->T; t++)
        for (int64_t c = 0; c < z->F; c++) {
            double g = in[0][t * 2 * z->F + c], u = in[0][t * 2 * z->F + z->F + c];
            out[t * z->F + c] = g / (1 + exp(-g)) * u;
        }
}

static void gelu_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t i = 0; i < z->T * z->F; i++) {
        double x = in[0][i], cube = x + 0.044715 * x * x * x;
        out[i] = z->exact ? x / 2 * (1 + erf(x / sqrt(2)))
                          : x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * cube));
    }
}

static void swiglu_follows_its_law(void **state)
{
    (void)state;
    struct size z = {9, 37, false};
    struct tensor gu = floats(z.T, 2 * z.F), y = floats(z.T, z.F),
                  dy = floats(z.T, z.F);
    struct tensor dgu = floats(z.T, 2 * z.F);
    struct law l = {swiglu_law, &z, {fill(gu, 3)}, z.T * z.F, fill(dy, 1)};
    fill_nan(y);
    cpu->swiglu(&stream, gu, y);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(dgu, law_slope(&l, 0, z.T * z.F * 2), 1e-6,
                    cpu->swiglu_back(&stream, gu, dy, beta, dgu));
}

static void gelu_follows_its_law(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        struct size z = {5, 301, exact};
        struct tensor x = floats(z.T, z.F), y = floats(z.T, z.F), dy = floats(z.T, z.F);
        struct tensor dx = floats(z.T, z.F);
        struct law l = {gelu_law, &z, {fill(x, 2)}, z.T * z.F, fill(dy, 1)};
        fill_nan(y);
        cpu->gelu(&stream, x, exact, y);
        assert_near(y, law_output(&l), 1e-6);
        assert_gradient(dx, law_slope(&l, 0, z.T * z.F), 1e-6,
                        cpu->gelu_back(&stream, x, exact, dy, beta, dx));
    }
}

static void gate_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t i = 0; i < z->T * z->F; i++)
        out[i] = in[0][i] + in[1][i] / (1 + exp(-in[2][i / z->F]));
}

static void gate_follows_its_law(void **state)
{
    (void)state;
    struct size z = {9, 37, false};
    int64_t n = z.T * z.F;
    struct tensor a = floats(z.T, z.F), x = floats(z.T, z.F), gate = floats(z.T, 1);
    struct tensor y = floats(z.T, z.F), dy = floats(z.T, z.F), none = tensor_none();
    struct tensor dx = floats(z.T, z.F), dz = floats(z.T, 1);
    struct law l = {gate_law, &z, {fill(a, 1), fill(x, 1), fill(gate, 3)}, n,
                    fill(dy, 1)};
    fill_nan(y);
    cpu->gate(&stream, a, x, gate, y);
    assert_near(y, law_output(&l), 1e-6);
    double *slope_x = law_slope(&l, 1, n), *slope_z = law_slope(&l, 2, z.T);
    fill_nan(dz);
    assert_gradient(dx, slope_x, 1e-6,
                    cpu->gate_back(&stream, x, gate, dy, beta, dx, 0, dz));
    assert_near(dz, slope_z, 1e-6);
    assert_gradient(dz, slope_z, 1e-6,
                    cpu->gate_back(&stream, x, gate, dy, 0, none, beta, dz));
    fill_nan(dx);
    cpu->gate_back(&stream, x, gate, dy, 0, dx, 0, none);
    assert_near(dx, slope_x, 1e-6);
    cpu->gate(&stream, a, x, gate, a);  /* in place */
    assert_near(a, law_output(&l), 1e-6);
}

static void extremes_stay_finite(void **state)
{
    (void)state;
    struct tensor x = floats(1, 6), y = floats(1, 6), d = floats(1, 6);
    const float extreme[] = {-1e4f, -100, -0.0f, 0, 100, 1e4f};
    memcpy(x.data, extreme, sizeof extreme);
    fill(d, 1);
    for (int exact = 0; exact < 2; exact++) {
        struct tensor dx = floats(1, 6);
        cpu->gelu(&stream, x, exact, y);
        cpu->gelu_back(&stream, x, exact, d, 0, dx);
        for (int i = 0; i < 6; i++) {
            assert_true(fabsf(*at(y, i) - (extreme[i] > 0 ? extreme[i] : 0)) < 1e-30f);
            float slope = extreme[i] > 0 ? 1 : extreme[i] < 0 ? 0 : 0.5f;
            assert_true(fabsf(*at(dx, i) - slope * *at(d, i)) < 1e-6f);
        }
    }
    struct tensor gu = floats(1, 12), dgu = floats(1, 12);
    memcpy(gu.data, extreme, sizeof extreme);
    for (int i = 6; i < 12; i++)
        *at(gu, i) = 1;
    cpu->swiglu(&stream, gu, y);
    cpu->swiglu_back(&stream, gu, d, 0, dgu);
    for (int i = 0; i < 12; i++)
        assert_true(isfinite(*at(y, i % 6)) && isfinite(*at(dgu, i)));
    *at(x, 2) = NAN;                    /* a bad number is never hidden */
    cpu->gelu(&stream, x, true, y);
    assert_true(isnan(*at(y, 2)));
}

static void sums_add(void **state)
{
    (void)state;
    struct tensor a = slice(6, 19), b = slice(6, 19), y = slice(6, 19);
    double *x = fill(a, 1), *z = fill(b, 1);
    double *sum = NEW(&memory, double, 6 * 19);
    for (int i = 0; i < 6 * 19; i++)
        sum[i] = x[i] + z[i];
    fill_nan(y);
    cpu->add(&stream, a, b, y);
    assert_near(y, sum, 1e-7);
    cpu->add(&stream, a, b, a);         /* in place */
    assert_near(a, sum, 1e-7);
    for (int i = 0; i < 6 * 19; i++)
        sum[i] = 3 * z[i];
    assert_gradient(y, sum, 1e-6, cpu->axpby(&stream, 3, b, beta, y));
    struct tensor dense = floats(50000, 1), to = floats(50000, 1);
    double *d = fill(dense, 1);
    assert_gradient(to, d, 1e-7, cpu->axpby(&stream, 1, dense, beta, to));
}

/* alpha 0 does not read x, which may then be y. */
static void nothing_is_added(void **state)
{
    (void)state;
    struct tensor y = slice(6, 19), bad = floats(6, 19);
    double *zero = NEW(&memory, double, 6 * 19), *x = fill(y, 1);
    fill_nan(bad);
    cpu->axpby(&stream, 0, bad, 2, y);
    assert_near_at(y, x, 2, 1e-7, __FILE__, __LINE__);
    fill_nan(y);
    cpu->axpby(&stream, 0, y, 0, y);
    assert_near(y, zero, 1e-7);
}

static void bias_law(const void *shape, double *const in[], double *out)
{
    const int64_t *z = shape;           /* T, N */
    for (int64_t i = 0; i < z[0] * z[1]; i++)
        out[i] = in[0][i] + in[1][i % z[1]];
}

static void bias_follows_its_law(void **state)
{
    (void)state;
    int64_t z[] = {203, 37};
    struct tensor x = floats(z[0], z[1]), b = vector(z[1]), y = floats(z[0], z[1]);
    struct tensor dy = floats(z[0], z[1]), db = vector(z[1]);
    struct law l = {bias_law, z, {fill(x, 1), fill(b, 1)}, z[0] * z[1], fill(dy, 1)};
    fill_nan(y);
    cpu->bias(&stream, x, b, y);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(db, law_slope(&l, 1, z[1]), 3e-6,
                    cpu->bias_weight(&stream, dy, beta, db));
    double *want = law_output(&l);
    cpu->bias(&stream, x, b, x);        /* in place */
    assert_near(x, want, 1e-6);
}

static void copies_are_equal(void **state)
{
    (void)state;
    struct tensor x = slice(6, 19), y = slice(6, 19);
    double *want = fill(x, 1);
    fill_nan(y);
    cpu->copy(&stream, x, y);
    assert_near(y, want, 0);
    struct tensor from = list(3, (int32_t[]){7, -1, 9}), to = ints(3, 0);
    cpu->copy(&stream, from, to);
    assert_memory_equal(from.data, to.data, 3 * sizeof(int32_t));
    struct tensor bytes = tensor_2d((char[]){"abcdef"}, DTYPE_U8, 2, 3);
    char room[] = "......";
    cpu->copy(&stream, tensor_columns(bytes, 1, 2),
              tensor_columns(tensor_2d(room, DTYPE_U8, 2, 3), 0, 2));
    assert_string_equal(room, "bc.ef.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_follows_its_law),
        cmocka_unit_test(gelu_follows_its_law),
        cmocka_unit_test(gate_follows_its_law),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(sums_add),
        cmocka_unit_test(nothing_is_added),
        cmocka_unit_test(bias_follows_its_law),
        cmocka_unit_test(copies_are_equal),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
