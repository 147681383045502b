/* test_ops_embed.c - rows of tables: placing, adding back, bilinear positions. */
#include "ops/ops_test.h"

struct size { int64_t T, V, D; const int32_t *id; };

static void embed_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    for (int64_t t = 0; t < z->T; t++)
        for (int64_t c = 0; c < z->D; c++)
            out[t * z->D + c] = z->id[t] < 0 ? 0 : in[0][z->id[t] * z->D + c];
}

/* Columns: more stripes than one hand counts, the last of them cut. */
enum { WIDE = 331 };

static void rows_are_placed(void **state)
{
    (void)state;
    int32_t id[] = {3, 0, -1, 3, 6, 3, -1, 0};
    struct size z = {COUNT(id), 7, WIDE, id};
    struct tensor table = floats(z.V, z.D), y = floats(z.T, z.D), dy = floats(z.T, z.D);
    struct tensor dtable = floats(z.V, z.D), which = list(z.T, id);
    struct law l = {embed_law, &z, {fill(table, 1)}, z.T * z.D, fill(dy, 1)};
    double *want = law_output(&l);
    fill_nan(y);
    cpu->embed(&stream, which, table, y);
    assert_near(y, want, 1e-7);
    assert_gradient(y, want, 1e-6, cpu->take(&stream, which, table, beta, y));
    assert_gradient(dtable, law_slope(&l, 0, z.V * z.D), 1e-6,
                    cpu->embed_weight(&stream, which, dy, beta, dtable));
}

/* Rows to places of their own; all other places keep what they hold. */
static void rows_are_put(void **state)
{
    (void)state;
    int32_t index[] = {6, -1, 0, 3, -1}, from[] = {2, -1, -1, 3, -1, -1, 0, -1};
    struct tensor x = slice(COUNT(index), 7), y = slice(8, 7);
    double *in = fill(x, 1), *want = fill(y, 1);
    for (int i = 0; i < 8; i++)
        for (int c = 0; c < 7 && from[i] >= 0; c++)
            want[i * 7 + c] = in[from[i] * 7 + c];
    cpu->put(&stream, list(COUNT(index), index), x, y);
    assert_near(y, want, 1e-9);
    cpu->put(&stream, ints(0, 0), floats(0, 7), y);
    assert_near(y, want, 1e-9);
}

static void no_rows(void **state)
{
    (void)state;
    struct tensor dtable = floats(4, 3), dy = floats(0, 3), id = ints(0, 0);
    double *zero = NEW(&memory, double, 12);
    assert_gradient(dtable, zero, 1e-6,
                    cpu->embed_weight(&stream, id, dy, beta, dtable));
}

/* A grid of 4 x 6 patches on a table of 48 x 48: taps and weights of the model
 * specification's example (patches in merge order, two by two). */
static void taps_of_the_example(void **state)
{
    (void)state;
    enum { D = 1, SIDE = 48 };
    static const int32_t place[6][4] = {{0, 0, 4, 6}, {0, 1, 4, 6}, {1, 0, 4, 6},
                                        {1, 1, 4, 6}, {0, 2, 4, 6}, {1, 3, 4, 6}};
    static const int cell[6][4] = {{0, 1, 48, 49},       {9, 10, 57, 58},
                                   {720, 721, 768, 769}, {729, 730, 777, 778},
                                   {18, 19, 66, 67},     {748, 749, 796, 797}};
    static const double weight[6][4] = {
        {1, 0, 0, 0},           {0.6, 0.4, 0, 0},
        {1 / 3., 0, 2 / 3., 0}, {0.2, 2 / 15., 0.4, 4 / 15.},
        {0.2, 0.8, 0, 0},       {4 / 15., 1 / 15., 8 / 15., 2 / 15.}};
    struct tensor at_place = tensor_as_2d(list(24, place[0]), 6, 4);
    struct tensor dtable = floats(SIDE * SIDE, D), dy = floats(6, D);
    for (int n = 0; n < 6; n++) {
        memset(dy.data, 0, 6 * sizeof(float));
        *at(dy, n) = 1;
        fill_nan(dtable);
        cpu->interpolate_weight(&stream, dy, at_place, 0, dtable);
        double want[SIDE * SIDE] = {0};
        for (int k = 0; k < 4; k++)
            want[cell[n][k]] += weight[n][k];
        assert_near(dtable, want, 4e-6);
    }
}

struct grid { int64_t P, D, side; const int32_t *place; };

static void interpolate_law(const void *shape, double *const in[], double *out)
{
    const struct grid *z = shape;
    for (int64_t p = 0; p < z->P; p++) {
        const int32_t *at_p = z->place + 4 * p;
        double f[2];
        int64_t low[2], high[2];
        for (int k = 0; k < 2; k++) {
            f[k] = (double)at_p[k] * (double)(z->side - 1) / fmax(at_p[2 + k] - 1, 1);
            low[k] = (int64_t)floor(f[k] + 1e-9);
            high[k] = low[k] + 1 < z->side ? low[k] + 1 : z->side - 1;
            f[k] -= (double)low[k];
        }
        for (int64_t c = 0; c < z->D; c++) {
            const double *e = in[1] + c;
            out[p * z->D + c] =
                in[0][p * z->D + c] +
                (1 - f[0]) * (1 - f[1]) * e[(low[0] * z->side + low[1]) * z->D] +
                (1 - f[0]) * f[1] * e[(low[0] * z->side + high[1]) * z->D] +
                f[0] * (1 - f[1]) * e[(high[0] * z->side + low[1]) * z->D] +
                f[0] * f[1] * e[(high[0] * z->side + high[1]) * z->D];
        }
    }
}

static void interpolation_follows(int rows, int columns, int side, int width)
{
    int count = rows * columns + 1;
    int32_t *place = NEW(&memory, int32_t, 4 * count);
    for (int p = 0; p < count; p++)
        memcpy(place + 4 * p, (int32_t[]){p / columns, p % columns, rows, columns},
               4 * sizeof *place);
    memcpy(place + 4 * (count - 1), (int32_t[]){0, 0, 1, 1}, 4 * sizeof *place);
    struct grid z = {count, width, side, place};
    int cells = side * side;
    struct tensor x = floats(count, width), y = floats(count, width);
    struct tensor dy = floats(count, width), table = floats(cells, width);
    struct tensor dtable = floats(cells, width);
    struct tensor at_place = tensor_as_2d(list(4 * count, place), count, 4);
    struct law l = {interpolate_law, &z, {fill(x, 1), fill(table, 1)}, count * width,
                    fill(dy, 1)};
    fill_nan(y);
    cpu->interpolate(&stream, x, at_place, table, y);
    assert_near(y, law_output(&l), 1e-6);
    assert_gradient(dtable, law_slope(&l, 1, cells * width), 2e-6,
                    cpu->interpolate_weight(&stream, dy, at_place, beta, dtable));
}

static void interpolation_follows_its_law(void **state)
{
    (void)state;
    interpolation_follows(5, 8, 6, 70);
    interpolation_follows(2, 3, 3, WIDE);
}

/* Places 3, 4, 5 and 9, 10 of a row are numbers 0 to 4 here. */
static void places_have_local_numbers(void **state)
{
    (void)state;
    struct places own = {{3, 9}, {3, 2}}, first = {{4, 4}, {2, 0}};
    int32_t place[] = {-1, 0, 2, 3, 5, 6, 8, 9, 10, 11, 4};
    int32_t want[] = {-1, -1, -1, 0, 2, -1, -1, 3, 4, -1, 1};
    int32_t other[] = {-1, -1, -1, -1, 1, -1, -1, -1, -1, -1, 0};
    struct tensor in = list(COUNT(place), place), y = ints(COUNT(place), 0);
    cpu->locate(&stream, in, own, y);
    assert_memory_equal(y.data, want, sizeof want);
    cpu->locate(&stream, in, first, y);
    assert_memory_equal(y.data, other, sizeof other);
    for (int32_t live = 0; live < 14; live++) {
        int32_t among = 0;
        for (int32_t i = 0; i < live; i++)
            among += (i >= 3 && i < 6) || (i >= 9 && i < 11);
        struct tensor count = ints(1, 0);
        cpu->live_places(&stream, list(1, &live), own, count);
        assert_int_equal(*(int32_t *)count.data, among);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_placed),
        cmocka_unit_test(rows_are_put),
        cmocka_unit_test(no_rows),
        cmocka_unit_test(taps_of_the_example),
        cmocka_unit_test(interpolation_follows_its_law),
        cmocka_unit_test(places_have_local_numbers),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
