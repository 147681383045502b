/* test_context_parallel.c - packed rows shared by context-parallel ranks, gathered and
 * as a ring, alone and with tensor parallelism: losses and gradients as on one rank,
 * wherever samples and images begin and end; memory falls with the number of ranks. */
#include "check.h"

#include "tests/model/ranks.h"

static struct ranks_case cp_case(void)
{
    return (struct ranks_case){
        .config = case_config(),
        .options = {.aux_coef = 0.02, .z_coef = 0.003, .loss = true},
        .capacity = {.tokens = 128, .patches = 160, .segments = 4, .images = 5},
    };
}

static const struct { int cp, tp; } layouts[] = {
    {2, 1}, {4, 1}, {2, 2}, {1, 2}, {2, 4},
};

static void every_layout(struct ranks_case c, const char *what)
{
    struct ranks_out *one = ranks_alone(&c);
    for (int i = 0; i < COUNT(layouts); i++)
        for (int ring = 0; ring < 2; ring++) {
            c.layout = (struct layout){.world = layouts[i].cp * layouts[i].tp,
                                       .cp = layouts[i].cp, .tp = layouts[i].tp};
            c.options.cp_ring = ring;
            print_message("%s, cp %d x tp %d%s: %.2g\n", what, layouts[i].cp,
                          layouts[i].tp, ring ? ", ring" : "",
                          ranks_check(&c, one, NULL));
        }
    ranks_free(one, 1);
}

static void test_whole_model(void **state)
{
    (void)state;
    every_layout(cp_case(), "all trainable");
}

/* Samples that begin and end inside chunks, at their edges, and one that is a chunk. */
static void more_samples(struct mini *m)
{
    memcpy(mini_input(m, "segment"), (int32_t[]){0, 33, 64, 80, 108}, 5 * 4);
}

static void test_many_samples(void **state)
{
    (void)state;
    struct ranks_case c = cp_case();
    c.change = more_samples;
    every_layout(c, "four samples");
}

/* Hardly anything in the row: most ranks have padding alone. */
static void short_row(struct mini *m)
{
    int32_t *target = mini_input(m, "target");
    memcpy(mini_input(m, "segment"), (int32_t[]){0, 9, 9, 9, 9}, 5 * 4);
    for (int t = 8; t < 128; t++)
        target[t] = IGNORE;
    *(int32_t *)mini_input(m, "live") = 9;
}

static void test_ranks_of_padding(void **state)
{
    (void)state;
    struct ranks_case c = cp_case();
    c.config.has_vision = false;
    c.change = short_row;
    every_layout(c, "a short row");
}

static void test_frozen_vision(void **state)
{
    (void)state;
    struct ranks_case c = cp_case();
    c.frozen = 1 << PART_VISION | 1 << PART_PROJECTOR;
    every_layout(c, "vision frozen");
}

/* All values of a graph that is nothing but tokens: as a ring, half on two ranks, a
 * quarter on four, but for the few that do not count tokens. */
static void test_memory_is_linear(void **state)
{
    (void)state;
    struct ranks_case c = cp_case();
    c.config.has_vision = false;
    c.options.cp_ring = true;
    struct ranks_out *one = ranks_alone(&c);
    for (int cp = 2; cp <= 4; cp *= 2) {
        double bytes;
        c.layout = (struct layout){.world = cp, .cp = cp};
        ranks_check(&c, one, &bytes);
        print_message("cp %d: %.3f of one rank's values\n", cp,
                      bytes / one->activations);
        assert_true(bytes < one->activations * 1.05 / cp);
    }
    ranks_free(one, 1);
}

/* What does not divide is refused with the numbers. */
static void test_odd_sizes_are_refused(void **state)
{
    (void)state;
    struct mesh m;
    struct layout l = {.world = 4, .cp = 2, .tp = 2};
    struct mesh_limits limits = {.heads = 4, .groups = 2, .tokens = 124};
    assert_false(mesh_make(&l, &limits, &m));
    assert_non_null(strstr(fail_message(), "124 tokens"));
    limits.tokens = 128;
    assert_true(mesh_make(&l, &limits, &m));
    limits.features = 37;
    assert_false(mesh_make(&l, &limits, &m));
    assert_non_null(strstr(fail_message(), "37 image features"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_model),
        cmocka_unit_test(test_many_samples),
        cmocka_unit_test(test_ranks_of_padding),
        cmocka_unit_test(test_frozen_vision),
        cmocka_unit_test(test_memory_is_linear),
        cmocka_unit_test(test_odd_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
