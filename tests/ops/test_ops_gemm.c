/* test_ops_gemm.c - products: references in double, gradients by central differences,
 * odd sizes, column slices, uneven and empty experts, no rows at all. */
#include "ops/ops_test.h"

#include <cblas.h>
#include <stdlib.h>

struct size { int64_t T, D, N; };

static void linear_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t t = 0; t < z->T; t++)
        for (int64_t n = 0; n < z->N; n++) {
            double sum = in[2] ? in[2][n] : 0;
            for (int64_t d = 0; d < z->D; d++)
                sum += in[0][t * z->D + d] * in[1][n * z->D + d];
            out[t * z->N + n] = sum;
        }
}

static void linear_case(struct size z)
{
    struct tensor x = slice(z.T, z.D), w = floats(z.N, z.D), b = vector(z.N);
    struct tensor y = slice(z.T, z.N), dy = slice(z.T, z.N), dx = slice(z.T, z.D);
    struct tensor dw = floats(z.N, z.D), db = vector(z.N), none = tensor_none();
    struct law l = {linear_law, &z, {fill(x, 1), fill(w, 0.5), NULL}, z.T * z.N,
                    fill(dy, 1)};
    double *bias = fill(b, 1);
    assert_gradient(y, law_output(&l), 1e-6, cpu->linear(&stream, x, w, none, beta, y));
    l.in[2] = bias;
    fill_nan(y);
    cpu->linear(&stream, x, w, b, 0, y);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(dx, law_slope(&l, 0, z.T * z.D), 2e-6,
                    cpu->linear_back(&stream, dy, w, beta, dx));
    double *slope_w = law_slope(&l, 1, z.N * z.D), *slope_b = law_slope(&l, 2, z.N);
    assert_gradient(dw, slope_w, 2e-6,
                    cpu->linear_weight(&stream, dy, x, beta, dw, none));
    assert_gradient(db, slope_b, 2e-6,
                    cpu->linear_weight(&stream, dy, x, beta, none, db));
    fill_nan(dw);
    fill_nan(db);
    cpu->linear_weight(&stream, dy, x, 0, dw, db);
    assert_near(dw, slope_w, 2e-6);
    assert_near(db, slope_b, 2e-6);
}

static void linear_follows_its_law(void **state)
{
    (void)state;
    linear_case((struct size){5, 7, 3});
    linear_case((struct size){1, 1, 1});
    linear_case((struct size){67, 3, 19});
    linear_case((struct size){0, 4, 5}); /* no rows: y is empty, dw and db are 0 */
}

/* So few rows that the matrix is read once for all of them: every number of rows up to
 * more than that takes, sums that end within a vector, columns that are not a multiple,
 * more of them than one block. */
static void few_rows(void **state)
{
    (void)state;
    for (int64_t T = 1; T <= 20; T++)
        for (int64_t N = 1; N <= 600; N += N < 9 ? 1 : 148) {
            struct size z = {T, N % 2 ? 67 : 32, N};
            struct tensor x = slice(T, z.D), w = floats(N, z.D), y = slice(T, N);
            struct tensor b = vector(N);
            struct law l = {linear_law, &z, {fill(x, 1), fill(w, 1), NULL}, T * N,
                            NULL};
            double *want = law_output(&l), *bias = fill(b, 1);
            assert_gradient(y, want, 1e-6,
                            cpu->linear(&stream, x, w, tensor_none(), beta, y));
            l.in[2] = bias;
            fill_nan(y);
            cpu->linear(&stream, x, w, b, 0, y);
            assert_near(y, law_output(&l), 1e-6);
        }
}

/* What backward must give for dy: sums by hand, for sizes where differences take too
 * long.  Added to dx, dw and db. */
static void linear_slopes(struct size z, const double *x, const double *w,
                          const double *dy, double *dx, double *dw, double *db)
{
    for (int64_t t = 0; t < z.T; t++)
        for (int64_t n = 0; n < z.N; n++) {
            double g = dy[t * z.N + n];
            db[n] += g;
            for (int64_t d = 0; d < z.D; d++) {
                dx[t * z.D + d] += g * w[n * z.D + d];
                dw[n * z.D + d] += g * x[t * z.D + d];
            }
        }
}

/* Larger than every block, in one dimension after the other. */
static void linear_wide(struct size z)
{
    struct tensor x = slice(z.T, z.D), w = floats(z.N, z.D), y = slice(z.T, z.N);
    struct tensor dx = slice(z.T, z.D), dw = floats(z.N, z.D), db = vector(z.N);
    struct tensor b = vector(z.N), none = tensor_none();
    double *dx_want = NEW(&memory, double, z.T * z.D);
    double *dw_want = NEW(&memory, double, z.N *z.D),
           *db_want = NEW(&memory, double, z.N);
    struct law l = {linear_law, &z, {fill(x, 1), fill(w, 1), NULL}, z.T * z.N, NULL};
    fill_nan(y);
    cpu->linear(&stream, x, w, none, 0, y);
    assert_near(y, law_output(&l), 1e-6);
    l.in[2] = fill(b, 5);
    fill_nan(y);
    cpu->linear(&stream, x, w, b, 0, y);
    assert_near(y, law_output(&l), 1e-6);
    double *dy = fill(y, 1);
    linear_slopes(z, l.in[0], l.in[1], dy, dx_want, dw_want, db_want);
    assert_gradient(dx, dx_want, 2e-6, cpu->linear_back(&stream, y, w, beta, dx));
    assert_gradient(dw, dw_want, 2e-6,
                    cpu->linear_weight(&stream, y, x, beta, dw, none));
    assert_gradient(db, db_want, 2e-6,
                    cpu->linear_weight(&stream, y, x, beta, none, db));
    fill_nan(dw);
    fill_nan(db);
    for (int times = 1; times <= 2; times++) {          /* both, written, then added */
        cpu->linear_weight(&stream, y, x, times > 1, dw, db);
        assert_near_at(dw, dw_want, times, 2e-6, __FILE__, __LINE__);
        assert_near_at(db, db_want, times, 2e-6, __FILE__, __LINE__);
    }
}

static void linear_blocks_meet(void **state)
{
    (void)state;
    linear_wide((struct size){301, 33, 1543});
    linear_wide((struct size){37, 1291, 70});   /* dx and dw are wide */
    linear_wide((struct size){37, 803, 790});
    linear_wide((struct size){1100, 20, 31});
    linear_wide((struct size){9, 270, 1543});   /* few rows */
}

struct routed { int64_t R, D, N, E; const int32_t *bound; };

static void grouped_law(const void *shape, double *const in[], double *out)
{
    const struct routed *z = shape;
    memset(out, 0, (size_t)(z->R * z->N) * sizeof *out);
    for (int64_t e = 0; e < z->E; e++)
        linear_law(&(struct size){z->bound[e + 1] - z->bound[e], z->D, z->N},
                   (double *const[]){in[0] + z->bound[e] * z->D,
                                     in[1] + e * z->N * z->D, NULL},
                   out + z->bound[e] * z->N);
}

static void grouped_case(struct routed z)
{
    struct tensor x = floats(z.R, z.D), y = floats(z.R, z.N), dy = floats(z.R, z.N);
    struct tensor dx = floats(z.R, z.D), bound = list(z.E + 1, z.bound);
    struct tensor w = tensor_3d(NEW(&memory, float, z.E *z.N *z.D), DTYPE_F32, z.E, z.N,
                                z.D);
    struct tensor dw =
        tensor_3d(NEW(&memory, float, z.E *z.N *z.D), DTYPE_F32, z.E, z.N, z.D);
    struct law l = {
        grouped_law, &z, {fill(x, 1), fill(w, 0.5)}, z.R * z.N, fill(dy, 1)};
    fill_nan(y);
    cpu->grouped(&stream, x, w, bound, y);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(dx, law_slope(&l, 0, z.R * z.D), 2e-6,
                    cpu->grouped_back(&stream, dy, w, bound, beta, dx));
    assert_gradient(dw, law_slope(&l, 1, z.E * z.N * z.D), 2e-6,
                    cpu->grouped_weight(&stream, dy, x, bound, beta, dw));
}

static void grouped_follows_its_law(void **state)
{
    (void)state;
    /* uneven, an empty expert, rows past the end */
    grouped_case((struct routed){13, 5, 7, 4, (int32_t[]){0, 3, 3, 10, 11}});
    /* no row routed at all */
    grouped_case((struct routed){6, 3, 2, 3, (int32_t[]){0, 0, 0, 0}});
    /* all rows to one expert, the last */
    grouped_case((struct routed){9, 4, 3, 3, (int32_t[]){0, 0, 0, 9}});
}

static void grouped_wide(struct routed z)
{
    struct tensor x = floats(z.R, z.D), y = floats(z.R, z.N), dx = floats(z.R, z.D);
    int64_t size = z.N * z.D;
    struct tensor w = tensor_3d(NEW(&memory, float, z.E *size), DTYPE_F32, z.E, z.N,
                                z.D);
    struct tensor dw = tensor_3d(NEW(&memory, float, z.E *size), DTYPE_F32, z.E, z.N,
                                 z.D);
    struct tensor bound = list(z.E + 1, z.bound);
    struct law l = {grouped_law, &z, {fill(x, 1), fill(w, 1)}, z.R * z.N, NULL};
    double *dx_want = NEW(&memory, double, z.R * z.D),
           *dw_want = NEW(&memory, double, z.E * size),
           *db = NEW(&memory, double, z.N);
    fill_nan(y);
    cpu->grouped(&stream, x, w, bound, y);
    assert_near(y, law_output(&l), 1e-6);
    double *dy = fill(y, 1);
    for (int64_t e = 0; e < z.E; e++) {
        struct size one = {z.bound[e + 1] - z.bound[e], z.D, z.N};
        linear_slopes(one, l.in[0] + z.bound[e] * z.D, l.in[1] + e * size,
                      dy + z.bound[e] * z.N, dx_want + z.bound[e] * z.D,
                      dw_want + e * size, db);
    }
    assert_gradient(dx, dx_want, 2e-6,
                    cpu->grouped_back(&stream, y, w, bound, beta, dx));
    assert_gradient(dw, dw_want, 2e-6,
                    cpu->grouped_weight(&stream, y, x, bound, beta, dw));
}

static void grouped_blocks_meet(void **state)
{
    (void)state;
    grouped_wide((struct routed){700, 9, 11, 2, (int32_t[]){0, 1, 601}});
    grouped_wide((struct routed){40, 803, 41, 3, (int32_t[]){0, 20, 20, 37}});
    grouped_wide((struct routed){40, 30, 1291, 3, (int32_t[]){0, 20, 20, 37}});
}

static void assert_bits(struct tensor got, struct tensor want)
{
    for (int64_t i = 0; i < tensor_count(want); i++)
        if (memcmp(at(got, i), at(want, i), sizeof(float)) != 0)
            fail_msg("element %lld is %.9g, not %.9g", (long long)i,
                     (double)*at(got, i), (double)*at(want, i));
}

static void assert_all(struct tensor t, float want)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        assert_true(*at(t, i) == want);
}

/* `live` rows of room for T give bit for bit what they give without room, nothing is
 * read past them, and the room holds empty sums. */
static void padded_case(int64_t T, int64_t D, int64_t N, int32_t live, int64_t per)
{
    struct tensor count = list(3, (int32_t[]){0, 1, (int32_t)(live * per + per / 2)});
    struct tensor x = slice(T, D), w = floats(N, D), b = vector(N), y = slice(T, N);
    struct tensor dy = slice(T, N), dx = slice(T, D), dw = floats(N, D), db = vector(N);
    struct tensor y1 = floats(live, N), dx1 = floats(live, D), dw1 = floats(N, D),
                  db1 = vector(N), none = tensor_none();
    struct tensor x1 = tensor_rows(x, 0, live), dy1 = tensor_rows(dy, 0, live);
    struct tensor y_room = tensor_rows(y, live, T - live),
                  dx_room = tensor_rows(dx, live, T - live);
    fill(x, 1);
    fill(dy, 1);
    fill(w, 0.5);
    fill(b, 1);
    for (int64_t i = live * D; i < T * D; i++)
        *at(x, i) = NAN;
    for (int64_t i = live * N; i < T * N; i++)
        *at(dy, i) = NAN;
    for (int biased = 0; biased < 2; biased++) {
        fill_nan(y);
        fill_nan(y1);
        cpu->linear(&stream, x, w, biased ? b : none, 0, tensor_live(y, count, per));
        cpu->linear(&stream, x1, w, biased ? b : none, 0, y1);
        assert_bits(tensor_rows(y, 0, live), y1);
        assert_all(y_room, 0);
    }
    fill_nan(dx);
    fill_nan(dx1);
    cpu->linear_back(&stream, tensor_live(dy, count, per), w, 0, dx);
    cpu->linear_back(&stream, dy1, w, 0, dx1);
    assert_bits(tensor_rows(dx, 0, live), dx1);
    assert_all(dx_room, 0);
    for (int64_t i = live * D; i < T * D; i++)
        *at(dx, i) = 2;
    cpu->linear_back(&stream, tensor_live(dy, count, per), w, 1, dx);
    assert_all(dx_room, 2);
    cpu->linear_back(&stream, tensor_live(dy, count, per), w, 0.5f, dx);
    assert_all(dx_room, 1);
    fill_nan(dw);
    fill_nan(dw1);
    fill_nan(db);
    cpu->linear_weight(&stream, tensor_live(dy, count, per), x, 0, dw, db);
    cpu->linear_weight(&stream, dy1, x1, 0, dw1, db1);
    assert_bits(dw, dw1);
    assert_bits(db, db1);
}

static void padding_is_left_out(void **state)
{
    (void)state;
    padded_case(12, 5, 7, 5, 1);
    padded_case(12, 5, 7, 0, 1);        /* nothing but room */
    padded_case(12, 5, 7, 12, 1);
    padded_case(12, 5, 7, 5, 4);        /* rows that join four, the last in part */
    padded_case(700, 40, 30, 300, 1);
    padded_case(700, 30, 900, 513, 1);
}

/* A library that does not know this processor's model falls back to SSE3 code. */
static void the_library_uses_the_processor(void **state)
{
    (void)state;
#if defined __x86_64__
    if (!strstr(openblas_get_config(), "DYNAMIC_ARCH") || getenv("OPENBLAS_CORETYPE") ||
        !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        check_skip("the BLAS library or this processor has one kind of code only");
    static const char *const old[] = {"Prescott", "Core2", "Nehalem", "Sandybridge"};
    for (int i = 0; i < COUNT(old); i++)
        assert_string_not_equal(openblas_get_corename(), old[i]);
#else
    check_skip("not an x86-64 processor");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_follows_its_law),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(linear_blocks_meet),
        cmocka_unit_test(grouped_follows_its_law),
        cmocka_unit_test(grouped_blocks_meet),
        cmocka_unit_test(padding_is_left_out),
        cmocka_unit_test(the_library_uses_the_processor),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
