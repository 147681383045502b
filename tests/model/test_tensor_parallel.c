/* test_tensor_parallel.c - the whole model over 2 and 4 tensor-parallel ranks: losses
 * and every gradient as on one rank; what cannot be divided is refused. */
#include "check.h"

#include "tests/model/ranks.h"

static struct ranks_case tp_case(int tp)
{
    return (struct ranks_case){
        .layout = {.world = tp, .tp = tp},
        .config = case_config(),
        .options = {.aux_coef = 0.02, .z_coef = 0.003, .loss = true},
        .capacity = {.tokens = 128, .patches = 160, .segments = 4, .images = 5},
    };
}

static void both(struct ranks_case c, const char *what)
{
    struct ranks_out *one = ranks_alone(&c);
    for (int tp = 2; tp <= 4; tp += 2) {
        c.layout = (struct layout){.world = tp, .tp = tp};
        print_message("%s, tp %d: %.2g\n", what, tp, ranks_check(&c, one, NULL));
    }
    ranks_free(one, 1);
}

/* With tp 4 there are fewer key heads (2) than ranks: two ranks share each. */
static void test_whole_model(void **state)
{
    (void)state;
    both(tp_case(1), "all trainable");
}

static void test_tied_head(void **state)
{
    (void)state;
    struct ranks_case c = tp_case(1);
    c.config.decoder.tied = true;
    both(c, "tied");
}

static void test_router_losses_only_reported(void **state)
{
    (void)state;
    struct ranks_case c = tp_case(1);
    c.options.aux_coef = c.options.z_coef = 0;
    both(c, "no router loss");
}

static void test_text_alone(void **state)
{
    (void)state;
    struct ranks_case c = tp_case(1);
    c.config.has_vision = false;
    both(c, "text");
}

static void test_frozen_parts(void **state)
{
    (void)state;
    static const unsigned frozen[] = {
        1 << PART_VISION, 1 << PART_VISION | 1 << PART_PROJECTOR,
        1 << PART_DECODER | 1 << PART_ROUTER | 1 << PART_EXPERTS | 1 << PART_EMBEDDINGS,
        1 << PART_DECODER | 1 << PART_VISION,
    };
    for (int i = 0; i < COUNT(frozen); i++) {
        struct ranks_case c = tp_case(1);
        c.frozen = frozen[i];
        both(c, "frozen");
    }
}

/* Shape contracts hold on every rank, and products are shared: every one is made once,
 * but for the key heads. */
static void test_dry(void **state)
{
    (void)state;
    struct work one = {0}, part[4] = {{0}};
    struct ranks_case c = tp_case(1);
    c.work = &one;
    struct ranks_out *alone = ranks_alloc(1);
    ranks_one(&c, NULL, alone);
    c = tp_case(4);
    c.work = part;
    struct ranks_run run = {.c = &c, .out = ranks_alloc(4)};
    assert_true(mesh_make(&c.layout, NULL, &run.mesh));
    assert_true(world_run(4, 60, ranks_main, &run));
    double sum = 0;
    for (int r = 0; r < 4; r++) {
        sum += part[r].flops;
        assert_true(part[r].flops == part[0].flops);
    }
    /* two ranks make each shared key head: a little more than once */
    assert_true(sum > one.flops && sum < 1.05 * one.flops);
    ranks_free(run.out, 4);
    ranks_free(alone, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_model),
        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_router_losses_only_reported),
        cmocka_unit_test(test_text_alone),
        cmocka_unit_test(test_frozen_parts),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
