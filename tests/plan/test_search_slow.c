/* test_search_slow.c - slow: a search for 64 ranks of 235B takes little enough. */
#include "check.h"

#include "outlook/search.h"

#include <sys/resource.h>

static void a_large_search_ends(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r;
    struct search x;
    struct rusage use;
    assert_ok(recipe_read(&a, "recipes/qwen3-vl-235b-a22b-64.yaml", NULL, 0, &r));
    assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
    getrusage(RUSAGE_SELF, &use);
    assert_non_null(x.best);
    assert_true(x.count > 100);
    print_message("%lld candidates in %ld s of processor time\n", (long long)x.count,
                  (long)use.ru_utime.tv_sec);
#if defined __OPTIMIZE__ && !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__
    assert_true(use.ru_utime.tv_sec < 200);
    assert_true(use.ru_maxrss < 2 << 20);               /* KiB */
#endif
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_large_search_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
