/* test_toy.c - whatever the policy, threads, memory: the same bits, and right ones. */
#include "check.h"

#include "plan/toy.h"
#include "run/run.h"

#include <math.h>

enum { MBS = 3, ROOM = 16384, STEPS = 2 };

struct setting {
    const char *recompute, *offload;
    bool weave;
    double slack;
    unsigned frozen;
    int threads;                        /* 0: emission order, one thread */
};

struct result {
    int64_t bytes, host_bytes, steps, count;
    double loss;
    float last[ROOM], grad[ROOM];       /* the last microbatch's rows; gradients */
};

static const float *changed;            /* replaces one weight */
static int changed_param, changed_at;

static void fill_weights(struct machine *m, const struct graph *g)
{
    for (int p = 0; p < g->nparam; p++) {
        float *w = machine_weight(m, p).data;
        for (int64_t i = 0; i < g->param[p].count; i++)
            w[i] = toy_weight(&g->param[p], i);
        if (changed && p == changed_param)
            w[changed_at] = *changed;
    }
}

static void one_step(struct machine *m, const struct toy *t, struct result *out)
{
    const int input[] = {t->pixels, t->ids, t->target, t->scale};
    static char data[MBS][COUNT(input)][8192];
    for (int mb = 0; mb < MBS; mb++)
        for (int i = 0; i < COUNT(input); i++) {
            toy_input(t, input[i], mb, data[mb][i]);
            machine_bind(m, input[i], mb, data[mb][i]);
        }
    assert_true(machine_step(m));
    out->loss = 0;
    for (int mb = 0; mb < MBS; mb++)
        out->loss += *(float *)machine_value(m, t->loss, mb).data;
    struct tensor last = machine_value(m, t->last, MBS - 1);
    memcpy(out->last, last.data, sizeof(float) * (size_t)tensor_count(last));
    out->count = 0;
    for (int p = 0; p < t->graph.nparam; p++) {
        struct tensor g = machine_grad(m, p);
        if (!tensor_is(g))
            continue;
        assert_true(out->count + tensor_count(g) <= ROOM);
        memcpy(out->grad + out->count, g.data, sizeof(float) * (size_t)tensor_count(g));
        out->count += tensor_count(g);
    }
}

static void run_setting(const struct setting *x, struct result *out)
{
    struct arena a = arena_make("test");
    struct toy t = toy_record(&a, toy_small);
    struct policy policy = policy_plain();
    graph_freeze(&t.graph, x->frozen);
    if (!policy_parse(&policy, &a, &t.graph, x->recompute, x->offload))
        fail_msg("%s", fail_message());
    policy.weave = x->weave;
    policy.slack = x->slack;
    struct order order = order_1f1b(&a, 0, 1, MBS);
    struct plan *p = plan_build(&a, &t.graph, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2,
        .output = (int[]){t.loss, t.last}, .outputs = 2});
    if (!plan_check(p))
        fail_msg("%s", fail_message());

    struct team *team = team_make(x->threads ? x->threads : 1);
    struct machine *m;
    assert_true(machine_make(&a, p, &(struct machine_options){
        .ops = &ops_cpu, .team = team, .lanes = x->threads > 0}, &m));
    fill_weights(m, &t.graph);
    memset(out, 0, sizeof *out);
    for (int i = 0; i < STEPS; i++)
        one_step(m, &t, out);
    assert_true(machine_evidence(m));
    out->bytes = p->bytes;
    out->host_bytes = p->host_bytes;
    out->steps = p->nstep;
    machine_free(m);
    team_free(team);
    arena_free(&a);
}

static bool same_bits(const struct result *a, const struct result *b)
{
    return a->loss == b->loss && a->count == b->count &&
           memcmp(a->last, b->last, sizeof a->last) == 0 &&
           memcmp(a->grad, b->grad, sizeof a->grad) == 0;
}

static const struct setting plain = {"none", "none", false, 1, 0, 0};

static void policies_give_the_same_bits(void **state)
{
    (void)state;
    static const struct setting settings[] = {
        {"none", "none", false, 1, 0, 2},
        {"none", "none", true, 1, 0, 0},
        {"none", "none", false, 1.5, 0, 2},
        {"norm act", "none", false, 1, 0, 2},
        {"norm,up,act", "none", false, 1.2, 0, 0},
        {"*", "none", false, 1, 0, 2},
        {"decoder.*", "none", true, 1, 0, 1},
        {"vision.act decoder.norm", "none", false, 1, 0, 2},
        {"none", "u", false, 1, 0, 2},
        {"none", "*", false, 1, 0, 2},
        {"none", "*", true, 2, 0, 2},
        {"act", "x n", false, 1, 0, 2},
        {"norm", "u vision.x pixels", true, 1.3, 0, 2},
        {"*", "x pixels", false, 1, 0, 2},
        {"act", "decoder.*", true, 1.1, 0, 1},
        {"a", "u target ids", false, 1, 0, 0},
    };
    static struct result keep, other;
    run_setting(&plain, &keep);
    assert_true(isfinite(keep.loss));
    for (int i = 0; i < COUNT(settings); i++) {
        run_setting(&settings[i], &other);
        if (!same_bits(&keep, &other))
            fail_msg("recompute %s, offload %s, weave %d, slack %g, threads %d differ",
                     settings[i].recompute, settings[i].offload, settings[i].weave,
                     settings[i].slack, settings[i].threads);
    }
}

static void policies_save_what_they_promise(void **state)
{
    (void)state;
    static struct result keep, other;
    run_setting(&plain, &keep);
    run_setting(&(struct setting){"norm act", "none", false, 1, 0, 0}, &other);
    assert_true(other.bytes < keep.bytes && other.steps > keep.steps);
    int64_t some = other.bytes;
    run_setting(&(struct setting){"*", "none", false, 1, 0, 0}, &other);
    assert_true(other.bytes < some);
    assert_int_equal(other.host_bytes, 0);
    run_setting(&(struct setting){"none", "u", false, 1, 0, 0}, &other);
    assert_true(other.bytes < keep.bytes && other.host_bytes > 0);
}

/* Freezing a part leaves the gradients of the others as they are. */
static void frozen_parts_change_nothing_else(void **state)
{
    (void)state;
    static struct result keep, other;
    static const unsigned frozen[] = {
        1u << PART_VISION, 1u << PART_EMBEDDINGS, 1u << PART_DECODER,
        1u << PART_VISION | 1u << PART_EMBEDDINGS,
    };
    run_setting(&plain, &keep);
    for (int i = 0; i < COUNT(frozen); i++) {
        for (int k = 0; k < 3; k++) {
            static const char *const recompute[] = {"none", "*", "act"};
            static const char *const offload[] = {"none", "none", "x n"};
            run_setting(&(struct setting){recompute[k], offload[k], k == 1, 1,
                                          frozen[i], 2 * (k > 0)}, &other);
            assert_true(other.loss == keep.loss && other.bytes < keep.bytes);
            struct arena a = arena_make("test");
            struct toy t = toy_record(&a, toy_small);
            int64_t from = 0, to = 0;
            for (int p = 0; p < t.graph.nparam; p++) {
                int64_t n = t.graph.param[p].count;
                if (!(frozen[i] >> t.graph.param[p].part & 1)) {
                    assert_memory_equal(keep.grad + from, other.grad + to,
                                        sizeof(float) * (size_t)n);
                    to += n;
                }
                from += n;
            }
            assert_int_equal(to, other.count);
            arena_free(&a);
        }
    }
}

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    static struct result base, other;
    run_setting(&plain, &base);
    struct arena a = arena_make("test");
    struct toy t = toy_record(&a, toy_small);
    int64_t from = 0;
    for (int p = 0; p < t.graph.nparam; p++) {
        const struct param *x = &t.graph.param[p];
        for (int k = 0; k < 2; k++) {
            int at = (int)(random_bits(3, (uint64_t)(2 * p + k)) % (uint64_t)x->count);
            double loss[2];
            for (int i = 0; i < 2; i++) {
                float w = toy_weight(x, at) + (i ? -0.01f : 0.01f);
                changed = &w;
                changed_param = p;
                changed_at = at;
                run_setting(&plain, &other);
                changed = NULL;
                loss[i] = other.loss;
            }
            double want = (loss[0] - loss[1]) / 0.02, got = base.grad[from + at];
            if (fabs(want - got) > 2e-2 * fabs(want) + 2e-4)
                fail_msg("%s[%d]: %g, finite difference %g", x->name, at, got, want);
        }
        from += x->count;
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_give_the_same_bits),
        cmocka_unit_test(policies_save_what_they_promise),
        cmocka_unit_test(frozen_parts_change_nothing_else),
        cmocka_unit_test(gradients_match_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
