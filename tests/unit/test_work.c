/* test_work.c - the work of a plan by hand: products of the toy, pass by pass, what
 * runs again, and nothing for what is frozen. */
#include "check.h"

#include "plan/toy.h"
#include "plan/plan.h"
#include "run/run.h"

enum { MBS = 3 };

struct sums { double forward, again, backward, weight; };

/* FLOPs of the steps of every segment `name` in `tower`. */
static struct sums sums_of(const char *recompute, unsigned frozen, const char *tower,
                           const char *name)
{
    struct arena a = arena_make("test");
    struct toy t = toy_record(&a, toy_small);
    graph_freeze(&t.graph, frozen);
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, &a, &t.graph, recompute, "none"));
    struct order order = order_1f1b(&a, 0, 1, MBS);
    struct plan *p = plan_build(&a, &t.graph, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2, .output = &t.loss,
        .outputs = 1});
    struct work *work = NEW(&a, struct work, p->nstep);
    struct sums sum = {0};
    plan_work(p, work);
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        if (s->node < 0)
            continue;
        const struct node *n = &t.graph.node[s->node];
        if (strcmp(n->kind->name, name) || strcmp(n->tower, tower))
            continue;
        double *to = s->kind == STEP_BACKWARD ? &sum.backward
                     : s->kind == STEP_WEIGHT ? &sum.weight
                     : s->again               ? &sum.again
                                              : &sum.forward;
        *to += work[i].flops;
    }
    arena_free(&a);
    return sum;
}

static void products_by_hand(void **state)
{
    (void)state;
    const struct toy_shape z = toy_small;
    double up = 2.0 * (double)(z.rows * z.width * 2 * z.hidden);
    double all = up * z.decoder_blocks * MBS;
    struct sums s = sums_of("none", 0, "decoder", "up");
    assert_true(s.forward == all && s.again == 0);
    assert_true(s.backward == all && s.weight == all);

    s = sums_of("up", 0, "decoder", "up");
    assert_true(s.forward == all && s.again == all);
    assert_true(s.backward == all && s.weight == all);

    all = up * z.vision_blocks * MBS;
    s = sums_of("none", 1u << PART_VISION, "vision", "up");
    assert_true(s.forward == all && s.again == 0);
    assert_true(s.backward == 0 && s.weight == 0);

    /* Pixels get no gradient. */
    double patch = 2.0 * (double)(z.rows * z.width * z.width) * MBS;
    s = sums_of("none", 0, "vision", "patch");
    assert_true(s.forward == patch && s.backward == 0 && s.weight == patch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
