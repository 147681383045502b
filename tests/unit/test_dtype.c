/* test_dtype.c - 16-bit floats over all their values, ties, NaN; names and sizes. */
#include "check.h"

#include "core/dtype.h"

#include <math.h>

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

struct format {
    const char *name;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
    int fraction_bits;
    uint16_t infinity;
};
static const struct format formats[] = {
    {"bf16", bf16_to_f32, bf16_from_f32, 7, 0x7F80},
    {"f16", f16_to_f32, f16_from_f32, 10, 0x7C00},
};

/* The value by the definition of the format, through ldexp. */
static float value_of(const struct format *f, uint16_t x)
{
    int exponent = (x & 0x7FFF) >> f->fraction_bits;
    int top = f->infinity >> f->fraction_bits;
    int fraction = x & ((1 << f->fraction_bits) - 1);
    int bias = top / 2;
    double v = exponent == top ? (fraction ? NAN : INFINITY)
             : exponent == 0   ? ldexp(fraction, 1 - bias - f->fraction_bits)
                               : ldexp(fraction + (1 << f->fraction_bits),
                                       exponent - bias - f->fraction_bits);
    return (float)(x & 0x8000 ? -v : v);
}

static void test_widening_and_round_trip_of_every_value(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(formats); k++) {
        const struct format *f = &formats[k];
        for (uint32_t x = 0; x < 65536; x++) {
            float got = f->widen((uint16_t)x), want = value_of(f, (uint16_t)x);
            uint16_t back = f->narrow(got);
            if (isnan(want)) {
                if (!isnan(got) || !isnan(f->widen(back)) || ((back ^ x) & 0x8000))
                    fail_msg("%s %04X: NaN lost", f->name, x);
            } else if (bits_of(got) != bits_of(want) || back != x) {
                fail_msg("%s %04X: %a, expected %a; back %04X", f->name, x, (double)got,
                         (double)want, back);
            }
        }
    }
}

/* Between neighbours: just below half goes down, just above up, half to even. */
static void test_ties_go_to_even(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(formats); k++) {
        const struct format *f = &formats[k];
        for (uint32_t x = 0; x + 1 < f->infinity; x++) {
            double low = (double)f->widen((uint16_t)x);
            double high = (double)f->widen((uint16_t)(x + 1));
            float half = (float)((low + high) / 2);         /* exact in f32 */
            uint16_t even = (uint16_t)(x + (x & 1));
            if (f->narrow(half) != even || f->narrow(-half) != (even | 0x8000) ||
                f->narrow(of_bits(bits_of(half) - 1)) != x ||
                f->narrow(of_bits(bits_of(half) + 1)) != x + 1)
                fail_msg("%s: around %a", f->name, (double)half);
        }
    }
}

static void test_ends_of_the_range(void **state)
{
    (void)state;
    assert_int_equal(f16_from_f32(65504), 0x7BFF);
    assert_int_equal(f16_from_f32(65519.996f), 0x7BFF);
    assert_int_equal(f16_from_f32(65520), 0x7C00);
    assert_int_equal(f16_from_f32(1e30f), 0x7C00);
    assert_int_equal(f16_from_f32(-1e30f), 0xFC00);
    assert_int_equal(f16_from_f32(1e-30f), 0);
    assert_int_equal(f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(bf16_from_f32(of_bits(0x7F7FFFFF)), 0x7F80); /* FLT_MAX goes up */
    assert_int_equal(bf16_from_f32(-0.0f), 0x8000);
    static const uint32_t nans[] = {0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF,
                                    0xFFFFFFFF, 0x7F80FFFF};
    for (int i = 0; i < COUNT(nans); i++) {
        assert_true(isnan(bf16_to_f32(bf16_from_f32(of_bits(nans[i])))));
        assert_true(isnan(f16_to_f32(f16_from_f32(of_bits(nans[i])))));
    }
}

static void test_arrays(void **state)
{
    (void)state;
    enum { N = 37 };
    static const enum dtype floating[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    for (int k = 0; k < COUNT(floating); k++) {
        float from[N], to[N + 1];
        double memory[N + 1];
        char *stored = (char *)memory;
        for (int i = 0; i < N; i++)
            from[i] = (float)(i - 18) / 8;                  /* exact in all of them */
        to[N] = 99;
        memset(stored, 0x5A, sizeof memory);
        dtype_from_f32(floating[k], from, stored, N);
        assert_int_equal(stored[N * dtype_bytes(floating[k])], 0x5A);
        dtype_to_f32(floating[k], stored, to, N);
        assert_memory_equal(from, to, sizeof from);
        assert_true(to[N] == 99);
        dtype_to_f32(floating[k], NULL, NULL, 0);
        dtype_from_f32(floating[k], NULL, NULL, 0);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const int bytes[DTYPES] = {4, 2, 2, 4, 8, 1, 8};
    for (int d = 0; d < DTYPES; d++) {
        enum dtype back;
        assert_ok(dtype_from_safetensors(dtype_safetensors((enum dtype)d), &back));
        assert_int_equal(back, d);
        assert_int_equal(dtype_bytes((enum dtype)d), bytes[d]);
        assert_non_null(dtype_name[d]);
    }
    assert_string_equal(dtype_safetensors(DTYPE_BF16), "BF16");
    assert_string_equal(dtype_name[DTYPE_F32], "f32");
    enum dtype d;
    assert_fails(dtype_from_safetensors("F8_E4M3", &d), "'F8_E4M3' is not supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widening_and_round_trip_of_every_value),
        cmocka_unit_test(test_ties_go_to_even),
        cmocka_unit_test(test_ends_of_the_range),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
