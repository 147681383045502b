/* test_arena.c - arenas: zeroed, aligned, stable, and returned by mark. */
#include "check.h"

#include "base/arena.h"

static void test_pushes_are_zeroed_aligned_apart(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *last = NULL;
    for (size_t bytes = 0; bytes < 200000; bytes = bytes * 3 + 1) {
        unsigned char *at = arena_push(&a, bytes);
        assert_int_equal((uintptr_t)at % 64, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(at[i], 0);
        memset(at, 0xA5, bytes);
        if (last)
            assert_int_equal((unsigned char)*last, 0xA5);   /* earlier ones stay */
        last = bytes ? (char *)at : NULL;
    }
    arena_free(&a);
    assert_null(a.block);
    assert_int_equal(arena_used(&a), 0);
}

static void test_reset_gives_back_and_zeroes_again(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *kept = arena_copy(&a, "kept", 4);
    struct arena_mark m = arena_mark(&a);
    size_t used = arena_used(&a);
    for (int round = 0; round < 3; round++) {
        int *x = NEW(&a, int, 100);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(x[i], 0);
            x[i] = -1;
        }
        arena_push(&a, 1 << 20);                            /* a block of its own */
        assert_true(arena_used(&a) >= used + 400 + (1 << 20));
        arena_reset(&a, m);
        assert_int_equal(arena_used(&a), used);
        assert_string_equal(kept, "kept");
    }
    arena_free(&a);
    arena_reset(&a, arena_mark(&a));                        /* of an empty arena */
    arena_free(&a);
}

static void test_text_and_growth(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    assert_string_equal(arena_text(&a, "%s-%05d", "step", 42), "step-00042");
    assert_string_equal(arena_copy(&a, NULL, 0), "");
    int64_t *at = NULL, count = 0, room = 0;
    for (int64_t i = 0; i < 5000; i++) {
        GROW(&a, at, count, room);
        at[count++] = i * i;
    }
    assert_true(room >= count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(at[i], i * i);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pushes_are_zeroed_aligned_apart),
        cmocka_unit_test(test_reset_gives_back_and_zeroes_again),
        cmocka_unit_test(test_text_and_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
