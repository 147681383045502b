/* test_model_policies.c - a whole vision-language model: a plan gives the bits of the
 * plainest way to run the graph, and every policy those of keeping everything. */
#include "check.h"

#include "run/run.h"
#include "tests/model/case.h"

enum { MAX_MBS = 2, SALT = 7 };

struct setting {
    const char *recompute, *offload;
    bool weave;
    double slack;
    unsigned frozen;
    int threads;                        /* 0: emission order, one thread */
};

struct result {
    float loss[MAX_MBS], aux[MAX_MBS];
    int64_t bytes;
    struct tensor *grad;                /* [params] absent where frozen */
};

static const struct decoder_options options = {.aux_coef = 0.02, .z_coef = 0.01,
                                               .loss = true};

/* Two different microbatches of the case. */
static struct mini batch(struct arena *a, const struct graph *g, int mb)
{
    struct mini m = mini_make(a, g, &ops_cpu);
    case_weights(&m, SALT);
    case_inputs(&m);
    if (mb == 0)
        return m;
    struct tensor pixels = m.value[graph_find(g, "pixels")];
    struct tensor input = m.value[graph_find(g, "input")];
    for (int64_t i = 0; i < tensor_count(pixels); i++)
        ((float *)pixels.data)[i] *= -0.5f;
    for (int64_t i = 0; i < tensor_count(input); i++)
        if (((int32_t *)input.data)[i] > 8)
            ((int32_t *)input.data)[i] ^= 1;
    return m;
}

static struct result run_setting(struct arena *a, const struct setting *x, int mbs)
{
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph *g = NEW(a, struct graph, 1);
    *g = case_graph(a, &c, &options, &d);
    graph_freeze(g, x->frozen);
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, a, g, x->recompute, x->offload));
    policy.weave = x->weave;
    policy.slack = x->slack;
    struct order order = order_1f1b(a, 0, 1, mbs);
    struct plan *p = plan_build(a, g, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2,
        .output = (int[]){d.loss, d.aux}, .outputs = 2});
    assert_ok(plan_check(p));

    struct team *team = team_make(MAX(1, x->threads));
    struct machine *m;
    assert_ok(machine_make(a, p, &(struct machine_options){
        .ops = &ops_cpu, .team = team, .lanes = x->threads > 0}, &m));
    struct result out = {.bytes = p->bytes, .grad = NEW(a, struct tensor, g->nparam)};
    struct mini data[MAX_MBS];
    for (int mb = 0; mb < mbs; mb++) {
        data[mb] = batch(a, g, mb);
        for (int v = 0; v < g->nvalue; v++)
            if (g->value[v].node < 0)
                machine_bind(m, v, mb, data[mb].value[v].data);
    }
    for (int i = 0; i < g->nparam; i++)
        memcpy(machine_weight(m, i).data, data[0].param[i].data,
               sizeof(float) * (size_t)g->param[i].count);
    assert_ok(machine_step(m));
    assert_ok(machine_evidence(m));
    for (int mb = 0; mb < mbs; mb++) {
        out.loss[mb] = *(float *)machine_value(m, d.loss, mb).data;
        out.aux[mb] = *(float *)machine_value(m, d.aux, mb).data;
        mini_free(&data[mb]);
    }
    for (int i = 0; i < g->nparam; i++) {
        struct tensor t = machine_grad(m, i);
        out.grad[i] = tensor_is(t) ? mini_copy(a, t) : tensor_none();
    }
    machine_free(m);
    team_free(team);
    return out;
}

static const struct setting keep = {"none", "none", false, 1, 0, 0};

static void a_plan_gives_the_plainest_bits(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    struct mini m = batch(&a, &g, 0);
    mini_forward(&m);
    mini_backward(&m);
    struct result got = run_setting(&a, &keep, 1);
    assert_true(got.loss[0] == mini_value(&m, d.loss));
    assert_true(got.aux[0] == mini_value(&m, d.aux));
    for (int64_t i = 0; i < g.nparam; i++)
        if (!mini_same(got.grad[i], m.dparam[i]))
            fail_msg("%s has another gradient", g.param[i].name);
    mini_free(&m);
    arena_free(&a);
}

static void same_bits(const struct result *want, const struct result *got,
                      const struct setting *x)
{
    struct arena a = arena_make("test");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    bool ok = memcmp(want->loss, got->loss, sizeof want->loss) == 0 &&
              memcmp(want->aux, got->aux, sizeof want->aux) == 0;
    for (int64_t i = 0; i < g.nparam; i++) {
        bool frozen = x->frozen >> g.param[i].part & 1;
        ok = ok && tensor_is(got->grad[i]) == !frozen &&
             (frozen || (mini_finite(got->grad[i]) &&
                         mini_same(want->grad[i], got->grad[i])));
        if (!ok)
            fail_msg("recompute %s, offload %s, weave %d, slack %g, frozen %x, threads "
                     "%d: other bits at %s", x->recompute, x->offload, x->weave,
                     x->slack, x->frozen, x->threads, g.param[i].name);
    }
    arena_free(&a);
}

static void policies_give_the_same_bits(void **state)
{
    (void)state;
    enum { VISION = 1 << PART_VISION | 1 << PART_PROJECTOR,
           TEXT = 1 << PART_DECODER | 1 << PART_ROUTER | 1 << PART_EXPERTS };
    static const struct setting settings[] = {
        {"none", "none", false, 1, 0, 2},
        {"none", "none", true, 1.5, 0, 2},
        {"*", "none", false, 1, 0, 2},
        {"*", "x pixels", true, 1, 0, 0},
        {"decoder.*", "vision.*", false, 1.1, 0, 2},
        {"vision.*", "decoder.*", false, 1, 0, 2},
        {"none", "*", true, 1.3, 0, 2},
        {"decoder.act mlp_norm", "none", false, 1, 0, 1},
        {"none", "none", false, 1, VISION, 2},
        {"*", "none", true, 1, VISION, 2},
        {"none", "*", false, 1, VISION, 0},
        {"*", "x", false, 1.2, TEXT, 2},
        {"none", "*", true, 1, 1 << PART_EMBEDDINGS | 1 << PART_ROUTER, 2},
    };
    struct arena a = arena_make("test");
    struct result want = run_setting(&a, &keep, MAX_MBS);
    assert_true(want.loss[0] != want.loss[1]);
    for (int i = 0; i < COUNT(settings); i++) {
        struct arena_mark mark = arena_mark(&a);
        struct result got = run_setting(&a, &settings[i], MAX_MBS);
        same_bits(&want, &got, &settings[i]);
        assert_true(got.bytes < want.bytes || settings[i].frozen || settings[i].weave ||
                    i == 0);
        arena_reset(&a, mark);
    }
    arena_free(&a);
}

static int64_t again(const struct plan *p, const char *name)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->ntally; i++)
        if (p->tally[i].again && strcmp(p->tally[i].name, name) == 0)
            n += p->tally[i].count;
    return n;
}

/* Choices are never made twice, and nothing is run again across a boundary. */
static void some_things_are_never_run_again(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, &a, &g, "*", "none"));
    struct order order = order_1f1b(&a, 0, 1, MAX_MBS);
    struct plan *p = plan_build(&a, &g, &(struct plan_options){
        .order = &order, .policy = &policy, .output = &d.loss, .outputs = 1});
    assert_int_equal(again(p, "topk"), 0);
    assert_int_equal(again(p, "residual"), 0);
    assert_int_equal(again(p, "expert_up"), 3 * MAX_MBS);       /* once a layer */
    assert_true(again(p, "act") > 0 && again(p, "core_attn") > 0);
    arena_free(&a);
}

/* Planned without data or memory: shapes hold in every step, and work is counted. */
static void the_dry_device_runs_the_plan(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    double flops[2];
    for (int i = 0; i < 2; i++) {
        struct policy policy = policy_plain();
        assert_ok(policy_parse(&policy, &a, &g, i ? "*" : "none", "none"));
        struct order order = order_1f1b(&a, 0, 1, 1);
        struct plan *p = plan_build(&a, &g, &(struct plan_options){
            .order = &order, .policy = &policy, .output = &d.loss, .outputs = 1});
        struct work *work = NEW(&a, struct work, p->nstep);
        plan_work(p, work);
        flops[i] = 0;
        for (int64_t k = 0; k < p->nstep; k++)
            flops[i] += work[k].flops;
    }
    assert_true(flops[0] > 0 && flops[1] > 1.1 * flops[0] && flops[1] < 1.5 * flops[0]);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_gives_the_plainest_bits),
        cmocka_unit_test(policies_give_the_same_bits),
        cmocka_unit_test(some_things_are_never_run_again),
        cmocka_unit_test(the_dry_device_runs_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
