/* test_overlap.c - what hides behind collectives: the shared expert while rows are on
 * their way, weight passes in backward.  The same steps in another order, less exposed
 * communication, and a plan that reads as before. */
#include "check.h"

#include "plan/cost.h"
#include "plan/plan.h"
#include "tests/model/case.h"

struct setting {
    const char *name;
    struct layout layout;
    enum dispatcher dispatcher;
};

static const struct setting settings[] = {
    {"alltoall", {.world = 2, .ep = 2}, DISPATCHER_ALLTOALL},
    {"allgather", {.world = 2, .ep = 2}, DISPATCHER_ALLGATHER},
    {"etp", {.world = 2, .etp = 2}, DISPATCHER_ALLTOALL},
    {"ep and etp", {.world = 4, .ep = 2, .etp = 2}, DISPATCHER_ALLTOALL},
    {"tp", {.world = 4, .tp = 2, .ep = 4}, DISPATCHER_ALLTOALL},
};

/* One MoE layer with a shared expert, text alone; the plan of rank 0. */
static struct plan *build(struct arena *a, const struct setting *x, bool overlap,
                          bool delay)
{
    struct model_config c = case_config();
    struct mesh *mesh = NEW(a, struct mesh, 1);
    struct graph *g = NEW(a, struct graph, 1);
    struct decoder_graph d;
    c.decoder.layers = 1;
    c.decoder.experts = 8;
    c.decoder.shared_hidden = 16;
    assert_ok(mesh_make(&x->layout, NULL, mesh));
    *g = graph_make(a);
    g->mesh = mesh;
    decoder_record(g, &c.decoder, &(struct capacity){.tokens = 32, .segments = 2}, NULL,
                   &(struct decoder_options){.loss = true,
                                             .dispatcher = x->dispatcher}, &d);
    graph_check(g);
    struct policy policy = policy_plain();
    policy.slack = 1.5;
    policy.overlap = overlap;
    policy.delay = delay;
    struct order order = order_1f1b(a, 0, 1, 1);
    return plan_build(a, g, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2, .output = &d.loss,
        .outputs = 1});
}

/* The step `kind` of the segment of this name. */
static int64_t find(const struct plan *p, enum step_kind kind, const char *name)
{
    for (int64_t i = 0; i < p->nstep; i++)
        if (p->step[i].kind == kind && p->step[i].node >= 0 &&
            strcmp(p->graph->node[p->step[i].node].kind->name, name) == 0)
            return i;
    fail_msg("no %s of %s", step_name[kind], name);
    return -1;
}

/* Does compute run step `i` once the collective is issued, before it must be done? */
static bool beside(const struct plan *p, int64_t collective, int64_t i)
{
    const struct step *c = &p->step[collective];
    assert_int_equal(c->lane, LANE_LAYER);
    for (int64_t k = collective + 1; k < i; k++)
        if (p->step[k].lane == LANE_COMPUTE && p->step[k].wait[LANE_LAYER] > c->at)
            return false;
    return i > collective && p->step[i].wait[LANE_LAYER] <= c->at;
}

static void shared_expert_runs_beside(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct plan *plain = build(&a, &settings[0], false, false);
    const struct plan *p = build(&a, &settings[0], true, false);
    static const struct {
        enum step_kind kind;
        const char *collective, *name;
    } law[] = {
        {STEP_FORWARD, "dispatch", "shared_up"},
        {STEP_FORWARD, "dispatch", "shared_act"},
        {STEP_FORWARD, "combine", "shared_down"},
        {STEP_BACKWARD, "combine", "shared_down"},
        {STEP_BACKWARD, "combine", "shared_act"},
        {STEP_BACKWARD, "dispatch", "shared_up"},
    };
    for (int i = 0; i < COUNT(law); i++) {
        int64_t way = find(p, law[i].kind, law[i].collective);
        if (!beside(p, way, find(p, law[i].kind, law[i].name)))
            fail_msg("%s of %s is not beside %s", step_name[law[i].kind], law[i].name,
                     law[i].collective);
        way = find(plain, law[i].kind, law[i].collective);
        assert_false(beside(plain, way, find(plain, law[i].kind, law[i].name)));
    }
    arena_free(&a);
}

static void weight_passes_run_beside(void **state)
{
    (void)state;
    static const char *const expert[] = {"expert_up", "expert_down"};
    struct arena a = arena_make("test");
    const struct plan *plain = build(&a, &settings[0], false, false);
    const struct plan *p = build(&a, &settings[0], false, true);
    for (int i = 0; i < COUNT(expert); i++) {
        assert_true(beside(p, find(p, STEP_BACKWARD, "dispatch"),
                           find(p, STEP_WEIGHT, expert[i])));
        assert_false(beside(plain, find(plain, STEP_BACKWARD, "dispatch"),
                            find(plain, STEP_WEIGHT, expert[i])));
    }
    arena_free(&a);
}

/* Seconds in which ranks talk and nothing computes, a step taking a second. */
static double exposed(struct arena *a, const struct plan *p)
{
    double *cost = NEW(a, double, p->nstep);
    for (int64_t i = 0; i < p->nstep; i++)
        cost[i] = 1;
    return plan_forecast(p, a, cost, NULL, 0).exposed;
}

static void the_same_steps_hide_more(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        const struct plan *plain = build(&a, &settings[k], false, false);
        double last = exposed(&a, plain);
        print_message("%s: exposed %g", settings[k].name, last);
        for (int delay = 0; delay < 2; delay++) {
            const struct plan *p = build(&a, &settings[k], true, delay);
            assert_ok(plan_check(p));
            assert_int_equal(p->nstep, plain->nstep);
            assert_int_equal(p->ntally, plain->ntally);
            for (int64_t i = 0; i < p->ntally; i++) {
                int64_t j = 0;
                while (p->tally[i].kind != plain->tally[j].kind ||
                       strcmp(p->tally[i].name, plain->tally[j].name) != 0)
                    assert_true(++j < plain->ntally);
                assert_int_equal(p->tally[i].count, plain->tally[j].count);
            }
            double now = exposed(&a, p);
            print_message("%s %g", delay ? ", delayed weights, too" : ", overlapped",
                          now);
            assert_true(now < last || (delay && now == last));
            last = now;
        }
        print_message("\n");
        arena_free(&a);
    }
}

static void plans_read_as_before(void **state)
{
    (void)state;
    static const char *const path[] = {"tests/plan/overlap.txt",
                                       "tests/plan/overlap_delay.txt"};
    for (int delay = 0; delay < 2; delay++) {
        struct arena a = arena_make("test");
        struct text text = text_make(&a);
        plan_explain(build(&a, &settings[0], true, delay), &text, -1);
        assert_golden(&a, path[delay], text);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_expert_runs_beside),
        cmocka_unit_test(weight_passes_run_beside),
        cmocka_unit_test(the_same_steps_hide_more),
        cmocka_unit_test(plans_read_as_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
