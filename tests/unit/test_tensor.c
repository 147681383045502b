/* test_tensor.c - views: where an element lies after narrowing and reshaping. */
#include "check.h"

#include "core/tensor.h"

static float at(struct tensor t, int64_t i, int64_t j)
{
    return ((const float *)t.data)[i * t.stride[0] + j * t.stride[1]];
}

static void test_rows_and_columns(void **state)
{
    (void)state;
    float data[6 * 8];
    for (int i = 0; i < 48; i++)
        data[i] = (float)i;
    struct tensor t = tensor_2d(data, DTYPE_F32, 6, 8);
    struct tensor part = tensor_rows(tensor_columns(t, 3, 4), 2, 3);
    assert_int_equal(part.dim[0], 3);
    assert_int_equal(part.dim[1], 4);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            assert_true(at(part, i, j) == (float)((i + 2) * 8 + j + 3));
    assert_true(tensor_is_dense(t));
    assert_false(tensor_is_dense(part));
    assert_true(tensor_is_dense(tensor_rows(t, 2, 3)));
    assert_true(tensor_is_dense(tensor_rows(tensor_columns(t, 3, 4), 5, 1)));
    assert_true(tensor_is_dense(tensor_columns(t, 8, 0)));      /* of nothing */
    assert_int_equal(tensor_count(part), 12);
}

static void test_views_without_data(void **state)
{
    (void)state;
    struct tensor t = tensor_3d(NULL, DTYPE_BF16, 4, 5, 6);
    assert_null(tensor_rows(t, 2, 2).data);
    assert_null(tensor_columns(t, 2, 2).data);
    assert_int_equal(tensor_count(t), 120);
    assert_false(tensor_is(tensor_none()));
    assert_int_equal(tensor_count(tensor_none()), 0);
    assert_true(tensor_is(tensor_1d(NULL, DTYPE_F32, 0)));
}

static void test_reshape_keeps_order(void **state)
{
    (void)state;
    float data[24];
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    struct tensor t = tensor_3d(data, DTYPE_F32, 2, 3, 4);
    struct tensor u = tensor_as_2d(t, 6, 4);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 4; j++)
            assert_true(at(u, i, j) == (float)(4 * i + j));
    u = tensor_reshape(u, 4, (int64_t[]){2, 2, 3, 2});
    assert_int_equal(u.stride[0], 12);
    assert_int_equal(u.stride[1], 6);
    assert_int_equal(u.stride[2], 2);
    assert_int_equal(u.stride[3], 1);
    assert_ptr_equal(u.data, data);
}

static void test_text(void **state)
{
    (void)state;
    struct tensor t = tensor_2d(NULL, DTYPE_F32, 128, 64);
    assert_string_equal(tensor_text(t), "f32[128,64]");
    assert_string_equal(tensor_text(tensor_none()), "none");
    const char *one = tensor_text(tensor_1d(NULL, DTYPE_I64, 1));
    const char *two = tensor_text(tensor_1d(NULL, DTYPE_U8, 2));    /* in one line */
    assert_string_equal(one, "i64[1]");
    assert_string_equal(two, "u8[2]");
    int64_t big[4] = {INT64_MAX / 8, 1, 1, 1};
    assert_string_equal(tensor_text(tensor_dense(NULL, DTYPE_BF16, 4, big)),
                        "bf16[1152921504606846975,1,1,1]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_columns),
        cmocka_unit_test(test_views_without_data),
        cmocka_unit_test(test_reshape_keeps_order),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
