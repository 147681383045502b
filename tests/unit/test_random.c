/* test_random.c - Philox against published vectors; laws of what is made of it. */
#include "check.h"

#include "base/random.h"

#include <math.h>

/* The known answers that Salmon et al. publish with Random123 (philox4x32, 10). */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t lo, hi, key;
        uint32_t want[4];
    } c[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < COUNT(c); i++) {
        struct random4 r = random_philox(c[i].key, c[i].hi, c[i].lo);
        for (int j = 0; j < 4; j++)
            assert_int_equal(r.at[j], c[i].want[j]);
    }
}

static void test_keys_differ_by_seed_and_purpose(void **state)
{
    (void)state;
    static const char *const purpose[] = {"", "init", "init ", "tini", "data", "mix"};
    uint64_t seen[6 * 50];
    int count = 0;
    for (int p = 0; p < COUNT(purpose); p++)
        for (uint64_t seed = 0; seed < 50; seed++) {
            uint64_t key = random_key(seed, purpose[p]);
            assert_true(key == random_key(seed, purpose[p]));
            for (int i = 0; i < count; i++)
                assert_true(seen[i] != key);
            seen[count++] = key;
        }
}

/* Mean and variance within five standard errors; neighbours uncorrelated. */
static void test_uniform_and_normal_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    uint64_t key = random_key(1, "moments");
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0, product = 0, last = 0;
    int decile[10] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = random_uniform(key, i), n = random_normal(key, i);
        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(n));
        decile[(int)(10 * u)]++;
        u1 += u;
        u2 += u * u;
        n1 += n;
        n2 += n * n;
        n4 += n * n * n * n;
        product += n * last;
        last = n;
    }
    double error = 5 / sqrt(N);
    assert_true(fabs(u1 / N - 0.5) < error * sqrt(1. / 12));
    assert_true(fabs(u2 / N - 1. / 3) < error * sqrt(4. / 45));
    assert_true(fabs(n1 / N) < error);
    assert_true(fabs(n2 / N - 1) < error * sqrt(2));
    assert_true(fabs(n4 / N - 3) < error * sqrt(96));
    assert_true(fabs(product / N) < error);
    for (int i = 0; i < 10; i++)
        assert_true(fabs((double)decile[i] - N / 10.) < 5 * sqrt(N * 0.09));
}

static void check_bijection(struct arena *a, uint64_t key, uint64_t n)
{
    char *seen = NEW(a, char, n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t to = random_permute(key, n, i);
        assert_true(to < n);
        assert_false(seen[to]);
        seen[to] = 1;
    }
}

static void test_permutations_are_bijections(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    for (uint64_t n = 1; n < 70; n++)
        for (uint64_t key = 0; key < 5; key++)
            check_bijection(&a, key, n);
    static const uint64_t large[] = {255, 256, 257, 1000, 4095, 4096, 4097, 65537};
    for (int i = 0; i < COUNT(large); i++)
        check_bijection(&a, 7, large[i]);
    arena_free(&a);
    for (uint64_t i = 0; i < 100; i++) {                    /* the largest domain */
        uint64_t n = UINT64_MAX - 5;
        assert_true(random_permute(3, n, i * (n / 100)) < n);
    }
}

/* Each of the 24 orders of 4 comes up about equally often; so does each image of 0. */
static void test_permutations_are_even(void **state)
{
    (void)state;
    enum { N = 24000 };
    int order[256] = {0}, used = 0, first[10] = {0};
    for (uint64_t key = 0; key < N; key++) {
        unsigned code = 0;
        for (uint64_t i = 0; i < 4; i++)
            code = code << 2 | (unsigned)random_permute(key, 4, i);
        used += order[code]++ == 0;
        first[random_permute(key, 10, 0)]++;
    }
    assert_int_equal(used, 24);
    for (int i = 0; i < 256; i++)
        if (order[i])
            assert_true(abs(order[i] - 1000) < 200);        /* over six deviations */
    for (int i = 0; i < 10; i++)
        assert_true(abs(first[i] - N / 10) < 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_keys_differ_by_seed_and_purpose),
        cmocka_unit_test(test_uniform_and_normal_moments),
        cmocka_unit_test(test_permutations_are_bijections),
        cmocka_unit_test(test_permutations_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
