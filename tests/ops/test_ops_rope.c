/* test_ops_rope.c - rotary positions: the axis of every angle, the angles themselves,
 * rotation and its inverse, column slices. */
#include "ops/ops_test.h"

/* Which axis the angles of a head of width 128 with section 24, 20, 20 follow, written
 * out by the rule of the model's specification: y takes 1, 4, ... 58; x takes 2, 5, ...
 * 59; t all others. */
static int axis_of(int j)
{
    for (int y = 1; y <= 58; y += 3)
        if (j == y)
            return 1;
    for (int x = 2; x <= 59; x += 3)
        if (j == x)
            return 2;
    return 0;
}

static void interleaved_axes(void **state)
{
    (void)state;
    struct tensor position = list(6, (int32_t[]){3, 50, 7000, 1, 2, 3});
    position = tensor_as_2d(position, 2, 3);
    struct tensor cosine = floats(2, 64), sine = floats(2, 64);
    struct rope_shape shape = {5e6, 128, false, {24, 20, 20}};
    fill_nan(cosine);
    fill_nan(sine);
    cpu->rope_table(&stream, position, shape, cosine, sine);
    for (int t = 0; t < 2; t++)
        for (int j = 0; j < 64; j++) {
            int32_t place = ((int32_t *)position.data)[t * 3 + axis_of(j)];
            double angle = place * pow(5e6, -2.0 * j / 128);
            double room = 3e-7 * (1 + angle);   /* an f32 angle */
            assert_true(fabs(*at(cosine, t * 64 + j) - cos(angle)) < room);
            assert_true(fabs(*at(sine, t * 64 + j) - sin(angle)) < room);
        }
}

/* Vision: width 72, 18 angles of the row, then 18 of the column. */
static void axial_angles(void **state)
{
    (void)state;
    struct tensor position = list(8, (int32_t[]){5, 11, 99, 99, 0, 63, 99, 99});
    position = tensor_as_2d(position, 2, 4);
    struct tensor cosine = floats(2, 36), sine = floats(2, 36);
    struct rope_shape shape = {10000, 72, true, {0}};
    cpu->rope_table(&stream, position, shape, cosine, sine);
    for (int t = 0; t < 2; t++)
        for (int j = 0; j < 36; j++) {
            int32_t place = ((int32_t *)position.data)[t * 4 + j / 18];
            double angle = place * pow(10000, -2.0 * (j % 18) / 36);
            double room = 3e-7 * (1 + angle);
            assert_true(fabs(*at(cosine, t * 36 + j) - cos(angle)) < room);
            assert_true(fabs(*at(sine, t * 36 + j) - sin(angle)) < room);
        }
}

struct size { int64_t T, H, half; };

/* in: x, cosines, sines */
static void rope_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t t = 0; t < z->T; t++)
        for (int64_t h = 0; h < z->H; h++)
            for (int64_t j = 0; j < z->half; j++) {
                double c = in[1][t * z->half + j], s = in[2][t * z->half + j];
                int64_t a = (t * z->H + h) * 2 * z->half + j, b = a + z->half;
                out[a] = in[0][a] * c - in[0][b] * s;
                out[b] = in[0][b] * c + in[0][a] * s;
            }
}

static void rope_case(struct size z)
{
    int64_t width = z.H * 2 * z.half;
    struct tensor x = slice(z.T, width), y = slice(z.T, width), dy = slice(z.T, width);
    struct tensor dx = slice(z.T, width), c = floats(z.T, z.half),
                  s = floats(z.T, z.half);
    struct law l = {rope_law, &z, {fill(x, 1), fill(c, 1), fill(s, 1)}, z.T * width,
                    fill(dy, 1)};
    double *want = law_output(&l);
    assert_gradient(y, want, 1e-6, cpu->rope(&stream, x, c, s, 1, beta, y));
    assert_gradient(dx, law_slope(&l, 0, z.T * width), 2e-6,
                    cpu->rope(&stream, dy, c, s, -1, beta, dx));
    cpu->rope(&stream, x, c, s, 1, 0, x);       /* in place */
    assert_near(x, want, 1e-6);
}

static void rope_follows_its_law(void **state)
{
    (void)state;
    rope_case((struct size){3, 2, 16});
    rope_case((struct size){5, 3, 7});
    rope_case((struct size){2, 1, 18});
    rope_case((struct size){0, 2, 8});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_axes),
        cmocka_unit_test(axial_angles),
        cmocka_unit_test(rope_follows_its_law),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
