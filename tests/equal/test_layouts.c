/* test_layouts.c - every way to divide the model and its rows: one rank's numbers. */
#include "equal/layouts.h"

static const struct sharding optimizer = {.state = true, .prefetch = 1},
    parameters = {true, true, true, 1};

static void check_all(const struct trial *trial, int count)
{
    struct arena a = arena_make("test");
    struct layout_rows rows = layout_rows(&a, 4, (int[]){1, 2, 0, 3});
    struct outcome want = layout_run(&a, &rows, &(struct trial){0});
    for (int i = 0; i < count; i++) {
        struct arena_mark mark = arena_mark(&a);
        layout_check(&a, &rows, &trial[i], &want);
        arena_reset(&a, mark);
    }
    arena_free(&a);
}

static void tensor_parallel(void **state)
{
    (void)state;
    const struct trial t[] = {
        {.layout = {.world = 2, .tp = 2}},
        {.layout = {.world = 4, .tp = 4}, .lanes = true},
        {.layout = {.world = 4, .tp = 2}, .sharding = parameters, .lanes = true},
        {.layout = {.world = 4, .tp = 2}, .sharding = optimizer, .recompute = "*"},
    };
    check_all(t, COUNT(t));
}

static void context_parallel(void **state)
{
    (void)state;
    const struct trial t[] = {
        {.layout = {.world = 2, .cp = 2}},
        {.layout = {.world = 2, .cp = 2}, .options = {.cp_ring = true}, .lanes = true},
        {.layout = {.world = 4, .cp = 4}, .options = {.cp_ring = true}},
        {.layout = {.world = 4, .cp = 2}, .sharding = parameters, .lanes = true},
        {.layout = {.world = 4, .cp = 2, .tp = 2}, .recompute = "*", .lanes = true},
    };
    check_all(t, COUNT(t));
}

static void expert_parallel(void **state)
{
    (void)state;
    const struct decoder_options gather = {.dispatcher = DISPATCHER_ALLGATHER};
    const struct trial t[] = {
        {.layout = {.world = 2, .ep = 2}},
        {.layout = {.world = 2, .ep = 2}, .options = gather, .lanes = true},
        {.layout = {.world = 4, .ep = 4}, .sharding = parameters, .lanes = true},
        {.layout = {.world = 4, .ep = 2}, .sharding = parameters, .recompute = "*"},
        {.layout = {.world = 2, .etp = 2}},
        {.layout = {.world = 4, .ep = 2, .etp = 2}, .lanes = true},
        {.layout = {.world = 4, .tp = 2, .ep = 4}, .sharding = parameters},
        {.layout = {.world = 4, .cp = 2, .tp = 2, .ep = 4}, .lanes = true},
        {.layout = {.world = 4, .replicate = 2, .ep = 2}, .sharding = parameters},
    };
    check_all(t, COUNT(t));
}

static void pipeline(void **state)
{
    (void)state;
    const struct trial t[] = {
        {.layout = {.world = 2, .pp = 2}},
        {.layout = {.world = 4, .pp = 4}, .lanes = true},
        {.layout = {.world = 2, .pp = 2}, .chunks = 2, .lanes = true},
        {.layout = {.world = 2, .pp = 2}, .zero_bubble = true, .lanes = true},
        {.layout = {.world = 4, .pp = 2}, .sharding = parameters, .lanes = true},
        {.layout = {.world = 4, .pp = 2, .tp = 2}, .sharding = optimizer},
    };
    check_all(t, COUNT(t));
}

static atomic_int seats;

static bool last_leaves(const struct layout_run *x, struct plan *p)
{
    return atomic_fetch_add(&seats, 1) + 1 < p->graph->mesh->layout.world ||
           fail("rank %d left, of %d", p->graph->rank, x->mesh.layout.world);
}

/* Whatever others wait for: they end with its reason, and read nothing that never came,
 * counts of rows least of all. */
static void a_lost_rank_ends_all(void **state)
{
    (void)state;
    const struct decoder_options gather = {.dispatcher = DISPATCHER_ALLGATHER};
    const struct trial trial[] = {
        {.layout = {.world = 2, .ep = 2}},
        {.layout = {.world = 2, .ep = 2}, .lanes = true},
        {.layout = {.world = 4, .ep = 4}, .sharding = parameters, .lanes = true},
        {.layout = {.world = 4, .tp = 2, .ep = 2}, .options = gather},
        {.layout = {.world = 4, .pp = 2, .cp = 2, .ep = 2}, .lanes = true},
    };
    struct arena a = arena_make("test");
    struct layout_rows rows = layout_rows(&a, 4, (int[]){1, 2, 0, 3});
    for (int i = 0; i < COUNT(trial); i++) {
        struct layout_run x = {.trial = &trial[i], .rows = &rows, .spoil = last_leaves};
        atomic_store(&seats, 0);
        fail_clear();
        layout_measure(&a, &x);
        assert_false(x.ended);
        assert_non_null(strstr(fail_message(), "left, of"));
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(context_parallel),
        cmocka_unit_test(expert_parallel),
        cmocka_unit_test(pipeline),
        cmocka_unit_test(a_lost_rank_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
