/* test_policy.c - a recipe's lists of names: what they mark, and what they refuse. */
#include "check.h"

#include "plan/policy.h"
#include "plan/toy.h"

static struct arena arena;
static struct toy toy;

static int setup(void **state)
{
    (void)state;
    arena = arena_make("test");
    toy = toy_record(&arena, toy_small);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

/* Which values does the list mark?  Counted by name and tower. */
static int marked(const char *list, const char *name, const char *tower)
{
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, &arena, &toy.graph, list, "none"));
    int n = 0;
    for (int64_t v = 0; v < toy.graph.nvalue; v++) {
        const struct value *x = &toy.graph.value[v];
        n += policy.recompute[v] && (!name || strcmp(x->name, name) == 0) &&
             (!tower || strcmp(x->tower, tower) == 0);
        assert_false(policy.offload[v]);
    }
    return n;
}

static void names_mark_values(void **state)
{
    (void)state;
    int blocks = toy_small.vision_blocks + toy_small.decoder_blocks;
    assert_int_equal(marked("none", NULL, NULL), 0);
    assert_int_equal(marked("", NULL, NULL), 0);
    assert_int_equal(marked("*", NULL, NULL), toy.graph.nvalue);
    assert_int_equal(marked("n", NULL, NULL), blocks);          /* a value */
    assert_int_equal(marked("act", NULL, NULL), blocks);        /* a segment */
    assert_int_equal(marked("norm", NULL, NULL), 2 * blocks);   /* both its outputs */
    assert_int_equal(marked("norm", "n", NULL), blocks);
    assert_int_equal(marked("vision.act", NULL, NULL), toy_small.vision_blocks);
    assert_int_equal(marked("vision.act", NULL, "decoder"), 0);
    assert_int_equal(marked("decoder.*", NULL, "vision"), 0);
    assert_int_equal(marked("decoder.*", NULL, NULL) + marked("vision.*", NULL, NULL),
                     toy.graph.nvalue);
    assert_int_equal(marked("act, n", NULL, NULL), 2 * blocks);
    assert_int_equal(marked("act act,act", NULL, NULL), blocks);
}

static bool parse(const char *recompute, const char *offload)
{
    struct policy policy = policy_plain();
    return policy_parse(&policy, &arena, &toy.graph, recompute, offload);
}

static void wrong_names_are_refused(void **state)
{
    (void)state;
    assert_fails(parse("nrom", "none"), "recompute: no segment or value is named "
                                        "'nrom'; the nearest is 'norm'");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    assert_fails(parse("none", "vison.act"), "offload");
    assert_fails(parse("none", "vison.act"), "'vision.act'");
    assert_fails(parse("act norm none", "none"), "'none' stands beside 'act'");
    assert_fails(parse("vision.embed", "none"), "no segment or value");
    assert_fails(parse("norm", "act n"), "value 'n' is in recompute too");
    assert_fails(parse("audio.*", "none"), "audio.*");
    assert_ok(parse("*", "x"));         /* what is recomputed is not offloaded */
    assert_ok(parse("norm", "*"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_mark_values),
        cmocka_unit_test(wrong_names_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
