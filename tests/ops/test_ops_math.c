/* test_ops_math.c - the vector functions against double, over all of their range. */
#include "ops/ops_test.h"

#include "kernels/cpu/math.h"

static double ulps(float got, double want)
{
    float near = (float)want;
    return fabs((double)got - want) / (double)(nextafterf(near, INFINITY) - near);
}

static void exp_is_close(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -86.5f; x < 88.6f; x += 0.000173f)
        worst = fmax(worst, ulps(exp_f32(x), exp((double)x)));
    if (worst > 1.1)
        fail_msg("exp is %.2f ulp off", worst);
    assert_true(exp_f32(0) == 1);
    assert_true(exp_f32(-87) == 0 && exp_f32(-INFINITY) == 0 && exp_f32(-1e30f) == 0);
    assert_true(exp_f32(89) == INFINITY && exp_f32(INFINITY) == INFINITY);
    assert_true(isnan(exp_f32(NAN)));
}

static void exp2_is_close(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -125.9f; x < 127; x += 0.000173f)
        worst = fmax(worst, ulps(exp2_f32(x), exp2((double)x)));
    if (worst > 1.3)
        fail_msg("exp2 is %.2f ulp off", worst);
    assert_true(exp2_f32(0) == 1 && exp2_f32(-3) == 0.125f);
    assert_true(exp2_f32(-127) == 0 && exp2_f32(-INFINITY) == 0);
    assert_true(exp2_f32(-1e30f) == 0 && isnan(exp2_f32(NAN)));
}

static void sigmoid_is_close(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -80; x < 80; x += 0.000317f)
        worst = fmax(worst, ulps(sigmoid_f32(x), 1 / (1 + exp(-(double)x))));
    if (worst > 3)
        fail_msg("sigmoid is %.2f ulp off", worst);
    assert_true(sigmoid_f32(-200) == 0 && sigmoid_f32(200) == 1);
    assert_true(isnan(sigmoid_f32(NAN)));
}

static void normal_is_close(void **state)
{
    (void)state;
    double near = 0, far = 0;
    for (float x = -9; x < 9; x += 0.0000713f) {
        double want = 0.5 * erfc(-(double)x * 0.70710678118654752440);
        if (x > -4)
            near = fmax(near, ulps(normal_f32(x), want));
        else
            far = fmax(far, fabs(normal_f32(x) - want) / want);
    }
    if (near > 9 || far > 3e-6)
        fail_msg("normal is %.2f ulp and %.3g off", near, far);
    assert_true(normal_f32(-40) == 0 && normal_f32(40) == 1);
    assert_true(isnan(normal_f32(NAN)));
}

static void rows_are_summed(void **state)
{
    (void)state;
    float x[100], y[100], z[100], e[100];
    for (int n = 0; n <= 100; n++) {
        double sum = 0, dot = 0, dot3 = 0, most = -INFINITY, powers = 0;
        for (int i = 0; i < n; i++) {
            x[i] = (float)sin(3 * i + 1);
            y[i] = (float)cos(5 * i);
            z[i] = (float)sin(0.1 * i);
            sum += x[i];
            dot += (double)x[i] * y[i];
            dot3 += ((double)x[i] - 0.25) * y[i] * z[i];
            most = fmax(most, x[i]);
            powers += exp((double)x[i] - 1);
        }
        assert_true(fabs(row_sum(x, n) - sum) < 1e-5);
        assert_true(fabs(row_dot(x, y, n) - dot) < 1e-5);
        assert_true(fabs(row_dot3(x, 0.25f, y, z, n) - dot3) < 1e-5);
        if (n > 0)
            assert_true(row_max(x, n) == (float)most);
        assert_true(fabs(row_exp(x, 1, n, e) - powers) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_close),
        cmocka_unit_test(exp2_is_close),
        cmocka_unit_test(sigmoid_is_close),
        cmocka_unit_test(normal_is_close),
        cmocka_unit_test(rows_are_summed),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
