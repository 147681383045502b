/* test_matrix_slow.c - slow: every line of the matrix, or those that match the
 * pattern given as argument ("*pp2*zb*"); the same bits with lanes and without; and all
 * of it computed in bf16. */
#include "equal/matrix.h"

static void lanes_change_nothing(void **state)
{
    const struct entry *e = *state;
    struct arena a = arena_make("lanes");
    struct trial other = e->trial;
    other.lanes = !other.lanes;
    struct outcome one = layout_run(&a, &shared.rows[e->rows], &e->trial);
    struct outcome two = layout_run(&a, &shared.rows[e->rows], &other);
    layout_identical(&two, &one, e->trial.frozen, e->line);
    arena_free(&a);
}

int main(int argc, char **argv)
{
    struct CMUnitTest test[3 * COUNT(matrix)];
    shared_make();
    int n = matrix_tests(false, test);
    for (int i = 0; i < n; i++) {
        test[n + i] = test[i];
        test[n + i].test_func = lanes_change_nothing;
    }
    matrix_tests(false, &test[2 * n]);
    for (int i = 2 * n; i < 3 * n; i++) {
        struct entry *e = test[i].initial_state;
        e->trial.compute = DTYPE_BF16;
        e->trial.precision.masters = true;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failed = _cmocka_run_group_tests("matrix", test, 3 * (size_t)n, NULL, NULL);
    shared_free();
    return failed;
}
