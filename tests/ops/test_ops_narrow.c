/* test_ops_narrow.c - ops on bf16: computed as if f32 and rounded once, to the bit;
 * weights without masters rounded by chance, fairly. */
#include "ops/ops_test.h"

static struct tensor narrow(int64_t rows, int64_t columns)
{
    struct tensor t = floats(rows, columns);
    t.dtype = DTYPE_BF16;
    return t;
}

static struct tensor random_narrow(int64_t rows, int64_t columns, uint64_t key)
{
    struct tensor t = narrow(rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        ((uint16_t *)t.data)[i] =
            bf16_from_f32((float)random_normal(key, (uint64_t)i));
    return t;
}

/* The same numbers as f32, dense. */
static struct tensor widened(struct tensor t)
{
    struct tensor wide = floats(t.dim[0], t.dim[1]);
    for (int64_t i = 0; i < t.dim[0]; i++)
        dtype_to_f32(DTYPE_BF16, (uint16_t *)t.data + i * t.stride[0],
                     (float *)wide.data + i * wide.stride[0], t.dim[1]);
    return wide;
}

static void assert_rounded(struct tensor is, struct tensor wide)
{
    for (int64_t i = 0; i < is.dim[0]; i++)
        for (int64_t k = 0; k < is.dim[1]; k++) {
            uint16_t want = bf16_from_f32(((float *)wide.data)[i * wide.stride[0] + k]);
            assert_int_equal(((uint16_t *)is.data)[i * is.stride[0] + k], want);
        }
}

/* Products of column slices, with every beta, and a bias. */
static void products_round_once(void **state)
{
    (void)state;
    struct tensor none = tensor_none();
    struct tensor x = tensor_columns(random_narrow(37, 90, 1), 7, 53);
    struct tensor w = random_narrow(21, 53, 2), b = vector(21);
    b.dtype = DTYPE_BF16;
    for (int i = 0; i < 21; i++)
        ((uint16_t *)b.data)[i] = bf16_from_f32(0.3f * (float)i);
    struct tensor wide_b = vector(21);
    dtype_to_f32(DTYPE_BF16, b.data, wide_b.data, 21);
    for (int k = 0; k < 3; k++) {
        float beta = k == 2 ? 0.5f : (float)k;
        struct tensor all = random_narrow(37, 40, 3), y = tensor_columns(all, 9, 21);
        if (beta == 0)                  /* which must not read it */
            memset(all.data, 0xff, 2 * 37 * 40);
        struct tensor wide = widened(y), before = widened(all);
        cpu->linear(&stream, x, w, k ? none : b, beta, y);
        cpu->linear(&stream, widened(x), widened(w), k ? none : wide_b, beta, wide);
        assert_rounded(y, wide);
        assert_rounded(tensor_columns(all, 0, 9), tensor_columns(before, 0, 9));
    }
}

/* A weight's gradient may be kept f32: then nothing of the sum is rounded. */
static void gradients_keep_their_type(void **state)
{
    (void)state;
    struct tensor dy = random_narrow(64, 12, 4), x = random_narrow(64, 30, 5);
    struct tensor wide = floats(12, 30), low = narrow(12, 30), want = floats(12, 30);
    cpu->linear_weight(&stream, widened(dy), widened(x), 0, want, tensor_none());
    cpu->linear_weight(&stream, dy, x, 0, wide, tensor_none());
    cpu->linear_weight(&stream, dy, x, 0, low, tensor_none());
    assert_memory_equal(wide.data, want.data, sizeof(float) * 12 * 30);
    assert_rounded(low, want);
}

static void copies_cast(void **state)
{
    (void)state;
    struct tensor x = floats(9, 31), y = tensor_columns(narrow(9, 50), 4, 31);
    for (int i = 0; i < 9 * 31; i++)
        ((float *)x.data)[i] = (float)random_normal(6, (uint64_t)i);
    ((float *)x.data)[3] = INFINITY;
    cpu->copy(&stream, x, y);
    assert_rounded(y, x);
    struct tensor back = floats(9, 31);
    cpu->copy(&stream, y, back);
    assert_memory_equal(back.data, widened(y).data, sizeof(float) * 9 * 31);
}

/* alpha 0 does not read x, which may be anything. */
static void nothing_of_x_is_nothing(void **state)
{
    (void)state;
    struct tensor x = narrow(3, 40), y = random_narrow(3, 40, 7);
    memset(x.data, 0xff, 2 * 3 * 40);
    struct tensor want = widened(y);
    cpu->axpby(&stream, 0, x, 1, y);
    assert_rounded(y, want);
}

/* Rows that `put` does not name stay, to the bit. */
static void other_rows_stay(void **state)
{
    (void)state;
    struct tensor x = random_narrow(2, 20, 8), y = random_narrow(5, 20, 9);
    struct tensor want = widened(y);
    for (int k = 0; k < 20; k++) {
        ((float *)want.data)[3 * 20 + k] = ((float *)widened(x).data)[k];
        ((float *)want.data)[0 * 20 + k] = ((float *)widened(x).data)[20 + k];
    }
    cpu->put(&stream, list(2, (int32_t[]){3, 0}), x, y);
    assert_rounded(y, want);
}

/* ---- weights without masters ---- */

enum { WEIGHTS = 40000 };

static void update(struct tensor w, uint64_t noise, int64_t first)
{
    const struct adamw step = {.rate = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f,
                               .epsilon = 1e-8f, .correct1 = 0.1f, .correct2 = 0.01f,
                               .scale = 1, .noise = noise, .first = first};
    int64_t n = w.dim[0];
    struct tensor g = vector(n), m = vector(n), v = vector(n);
    for (int64_t i = 0; i < n; i++)
        ((float *)g.data)[i] = 1;
    cpu->adamw(&stream, g, step, w, m, v);
}

static struct tensor weights(void)
{
    struct tensor w = vector(WEIGHTS);
    w.dtype = DTYPE_BF16;
    for (int i = 0; i < WEIGHTS; i++)
        ((uint16_t *)w.data)[i] = bf16_from_f32(1 + 0.5f * (float)(i % 2));
    return w;
}

/* Every weight is to lose 1e-4, a fortieth of what bf16 can tell apart there: to the
 * nearest none would move, by chance they do on the average. */
static void small_steps_are_not_lost(void **state)
{
    (void)state;
    struct tensor w = weights();
    double moved = 0;
    for (int k = 0; k < 10; k++)
        update(w, 77 + (uint64_t)k, 0);
    for (int i = 0; i < WEIGHTS; i++)
        moved += 1 + 0.5 * (i % 2) - (double)bf16_to_f32(((uint16_t *)w.data)[i]);
    double mean = moved / WEIGHTS;      /* deviation of one: about 2.5e-3 */
    assert_true(fabs(mean - 10 * 1e-4) < 5 * 2.5e-3 / sqrt(WEIGHTS));
}

/* A function of key and number alone: the same for a part, other for another key. */
static void chance_is_reproducible(void **state)
{
    (void)state;
    struct tensor a = weights(), b = weights(), c = weights(), part = weights();
    update(a, 5, 0);
    update(b, 5, 0);
    update(c, 6, 0);
    assert_memory_equal(a.data, b.data, 2 * WEIGHTS);
    assert_memory_not_equal(a.data, c.data, 2 * WEIGHTS);
    uint16_t *from = (uint16_t *)part.data + 1001;
    update(tensor_1d(from, DTYPE_BF16, 300), 5, 1001);
    assert_memory_equal(from, (uint16_t *)a.data + 1001, 2 * 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_round_once),
        cmocka_unit_test(gradients_keep_their_type),
        cmocka_unit_test(copies_cast),
        cmocka_unit_test(nothing_of_x_is_nothing),
        cmocka_unit_test(other_rows_stay),
        cmocka_unit_test(small_steps_are_not_lost),
        cmocka_unit_test(chance_is_reproducible),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
