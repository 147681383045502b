/* test_model_segments.c - every segment of a small model, one by one, keeps four laws:
 *  - its gradients agree with finite differences of its forward pass;
 *  - what its masks do not grant does not matter (absent, or NaN);
 *  - a gradient that is not wanted, or not given, changes no other;
 *  - beta 1 adds to what is there. */
#include "check.h"

#include "tests/model/case.h"

/* A model with everything on: taps, dense and MoE layers, shared experts, biased
 * choice, tied head. */
static struct graph everything(struct arena *a, struct decoder_graph *d, bool tied,
                               int active)
{
    struct model_config c = case_config();
    c.vision.depth = 2;
    c.vision.taps = 1;
    c.vision.tap[0] = 0;
    c.decoder.layers = 3;
    c.decoder.shared_hidden = 14;
    c.decoder.tied = tied;
    c.decoder.active = active;
    return case_graph(a, &c, &(struct decoder_options){
        .aux_coef = 0.02, .z_coef = 0.003, .bias = true, .loss = true,
    }, d);
}

static struct mini ready(struct arena *a, const struct graph *g)
{
    struct mini m = mini_make(a, g, &ops_cpu);
    case_weights(&m, 100);
    case_inputs(&m);
    struct tensor bias = m.value[graph_find(g, "router_bias")];
    for (int64_t i = 0; i < tensor_count(bias); i++)
        ((float *)bias.data)[i] = 0.02f * (float)mini_u(77, (uint64_t)i);
    mini_forward(&m);
    graph_wants(g, m.wants);
    return m;
}

static struct tensor noise(struct arena *a, struct tensor like, uint64_t key)
{
    struct tensor t = mini_like(a, like);
    for (int64_t i = 0; i < tensor_count(t); i++)
        ((float *)t.data)[i] = (float)mini_u(key, (uint64_t)i);
    return t;
}

static bool differentiable_out(const struct mini *m, const struct node *n, int i)
{
    return n->out[i] != NONE && m->g->value[n->out[i]].grad;
}

/* What is differentiated: the sum of all outputs times dout (a loss: times 1). */
static double weighed(struct mini *m, const struct node *n, const struct tensor *dout)
{
    struct run r = mini_forward_run(m, n);
    struct tensor out[MAX_IO] = {0};
    for (int i = 0; i < n->nout; i++)
        if (n->out[i] != NONE)
            r.out[i] = out[i] = mini_like(m->arena, r.out[i]);
    n->kind->forward(&r);
    double sum = 0;
    for (int i = 0; i < n->nout; i++)
        if (differentiable_out(m, n, i))
            sum += m->g->value[n->out[i]].loss ? (double)*(float *)out[i].data
                                               : mini_dot(out[i], dout[i]);
    return sum;
}

static void compare(struct mini *m, const struct node *n, const struct tensor *dout,
                    struct tensor x, struct tensor dx, const char *of)
{
    /* A choice of experts must not change under the step. */
    const double step = strcmp(n->kind->name, "topk") == 0 ? 1e-4 : 4e-3;
    struct arena_mark mark = arena_mark(m->arena);
    struct tensor before = mini_copy(m->arena, x), way = noise(m->arena, x, 31);
    float *at = x.data;
    const float *from = before.data, *by = way.data;
    double side[2], moved[2] = {0, 0};
    if (!mini_finite(dx))
        fail_msg("%s of layer %d: gradient of %s is not finite", n->kind->name,
                 n->layer, of);
    for (int s = 0; s < 2; s++) {
        for (int64_t i = 0; i < tensor_count(x); i++)
            at[i] = from[i] + (float)((s ? 1 : -1) * step) * by[i];
        /* the step as rounding left it */
        for (int64_t i = 0; i < tensor_count(x); i++)
            moved[s] +=
                ((double)at[i] - (double)from[i]) * (double)((float *)dx.data)[i];
        side[s] = weighed(m, n, dout);
    }
    memcpy(at, from, sizeof *at * (size_t)tensor_count(x));
    double found = side[1] - side[0], told = moved[1] - moved[0];
    double scale =
        sqrt(mini_dot(dx, dx)) * step + 1e-3 * (fabs(side[0]) + fabs(side[1]));
    if (!(fabs(found - told) <= 5e-3 * fabs(told) + 2e-3 * scale))
        fail_msg("%s of layer %d, %s: finite difference %.7g, gradient %.7g",
                 n->kind->name, n->layer, of, found, told);
    arena_reset(m->arena, mark);
}

struct gradients { struct tensor din[MAX_IO], dw[MAX_WEIGHT]; };
struct wish { unsigned din, dw, dout; };        /* bits: which ones are there */

static bool takes_gradient(const struct mini *m, const struct node *n, int i)
{
    return n->in[i] != NONE && m->g->value[n->in[i]].grad && n->kind->backward &&
           !(n->kind->no_grad_in >> i & 1);
}

/* Segments whose backward overwrites: their inputs have one reader. */
static bool overwrites(const struct node *n, int i)
{
    const char *name = n->kind->name;
    return strcmp(name, "core_attn") == 0 || strcmp(name, "combine") == 0 ||
           strcmp(name, "router_loss") == 0 || (strcmp(name, "topk") == 0 && i == 0);
}

static struct gradients passes(struct mini *m, const struct node *n,
                               const struct tensor *dout, struct wish w, bool add)
{
    struct gradients q = {0};
    struct run back = mini_backward_run(m, n), weight = mini_weight_run(m, n);
    bool din = false, dw = false;
    for (int i = 0; i < n->nout; i++)
        if (differentiable_out(m, n, i) && w.dout >> i & 1 &&
            !m->g->value[n->out[i]].loss)
            back.dout[i] = weight.dout[i] = dout[i];
    for (int i = 0; i < n->nin; i++) {
        if (!takes_gradient(m, n, i) || !(w.din >> i & 1))
            continue;
        bool more = add && !overwrites(n, i);
        q.din[i] = more ? noise(m->arena, m->value[n->in[i]], 5)
                        : mini_like(m->arena, m->value[n->in[i]]);
        back.din[i] = q.din[i];
        back.beta[i] = more;
        din = true;
    }
    for (int i = 0; i < n->nw; i++) {
        if (n->w[i] == NONE || !(w.dw >> i & 1))
            continue;
        struct tensor p = m->param[n->w[i]];
        q.dw[i] = add ? noise(m->arena, p, 6) : mini_like(m->arena, p);
        back.dw[i] = weight.dw[i] = q.dw[i];
        back.beta_w[i] = weight.beta_w[i] = add;
        dw = true;
    }
    if (n->kind->backward && (din || (n->kind->fused && dw)))
        n->kind->backward(&back);
    if (n->kind->weight && dw)
        n->kind->weight(&weight);
    return q;
}

static void same_where_wished(const struct node *n, const struct gradients *all,
                              const struct gradients *some, struct wish w)
{
    for (int i = 0; i < n->nin; i++)
        if (w.din >> i & 1 && tensor_is(all->din[i]) &&
            !mini_same(all->din[i], some->din[i]))
            fail_msg("%s of layer %d: din %d differs with only din %x, dw %x there",
                     n->kind->name, n->layer, i, w.din, w.dw);
    for (int i = 0; i < n->nw; i++)
        if (w.dw >> i & 1 && tensor_is(all->dw[i]) &&
            !mini_same(all->dw[i], some->dw[i]))
            fail_msg("%s of layer %d: dw %d differs with only din %x, dw %x there",
                     n->kind->name, n->layer, i, w.din, w.dw);
}

static void adds(const struct node *n, struct tensor plain, struct tensor sum,
                 uint64_t key, const char *of)
{
    const float *x = plain.data, *y = sum.data;
    for (int64_t i = 0; i < tensor_count(plain); i++) {
        double want = (double)x[i] + (double)(float)mini_u(key, (uint64_t)i);
        if (!(fabs((double)y[i] - want) <= 1e-5 * (1 + fabs(want))))
            fail_msg("%s of layer %d: %s with beta 1 is %g, expected %g", n->kind->name,
                     n->layer, of, (double)y[i], want);
    }
}

static bool has_gradient(const struct mini *m, const struct node *n)
{
    for (int i = 0; i < n->nout; i++)
        if (differentiable_out(m, n, i) && m->wants[n->out[i]])
            return true;
    return false;
}

static const struct wish whole = {~0u, ~0u, ~0u};

static void check_node(struct mini *m, const struct node *n)
{
    struct tensor dout[MAX_IO] = {0};
    for (int i = 0; i < n->nout; i++)
        if (differentiable_out(m, n, i))
            dout[i] = noise(m->arena, m->value[n->out[i]], 11 + (uint64_t)i);
    struct gradients all = passes(m, n, dout, whole, false);
    for (int i = 0; i < n->nin; i++)
        if (tensor_is(all.din[i]))
            compare(m, n, dout, m->value[n->in[i]], all.din[i],
                    m->g->value[n->in[i]].name);
    for (int i = 0; i < n->nw; i++)
        if (tensor_is(all.dw[i]))
            compare(m, n, dout, m->param[n->w[i]], all.dw[i],
                    m->g->param[n->w[i]].name);

    m->poison = true;
    struct gradients poisoned = passes(m, n, dout, whole, false);
    same_where_wished(n, &all, &poisoned, whole);
    m->poison = false;

    struct gradients sum = passes(m, n, dout, whole, true);
    for (int i = 0; i < n->nin; i++)
        if (tensor_is(all.din[i]) && !overwrites(n, i))
            adds(n, all.din[i], sum.din[i], 5, "din");
    for (int i = 0; i < n->nw; i++)
        if (tensor_is(all.dw[i]))
            adds(n, all.dw[i], sum.dw[i], 6, "dw");

    /* q, k and v, and the router's sums, come from one node each: wanted together. */
    bool together = strcmp(n->kind->name, "core_attn") == 0 ||
                    strcmp(n->kind->name, "router_loss") == 0;
    for (int i = 0; i < n->nin && !together; i++)
        if (tensor_is(all.din[i])) {
            struct wish w = {1u << i, 0, ~0u};
            struct gradients one = passes(m, n, dout, w, false);
            same_where_wished(n, &all, &one, w);
        }
    struct wish none = {0, ~0u, ~0u};
    struct gradients weights = passes(m, n, dout, none, false);
    same_where_wished(n, &all, &weights, none);
}

/* Products leave padding zero, where a norm bends too sharply for differences; what it
 * holds must not matter. */
static void fill_padding(struct mini *m, const struct node *n)
{
    struct tensor x = m->value[n->in[0]];
    if (strcmp(n->kind->name, "qk_norm") != 0)
        return;
    for (int64_t i = CASE_LIVE * x.dim[1]; i < tensor_count(x); i++)
        ((float *)x.data)[i] = (float)mini_u(77, (uint64_t)i);
    struct run r = mini_forward_run(m, n);
    n->kind->forward(&r);
}

static void test_every_segment(void **state)
{
    (void)state;
    struct arena a = arena_make("segments");
    struct decoder_graph d;
    struct graph g = everything(&a, &d, false, 2);
    struct mini m = ready(&a, &g);
    int checked = 0;
    for (int64_t k = 0; k < g.nnode; k++) {
        const struct node *n = &g.node[k];
        if (!has_gradient(&m, n))
            continue;
        struct arena_mark mark = arena_mark(&a);
        fill_padding(&m, n);
        check_node(&m, n);
        arena_reset(&a, mark);
        checked++;
    }
    print_message("%d of %d nodes carry gradients\n", checked, (int)g.nnode);
    assert_true(checked > 60);
    mini_free(&m);
    arena_free(&a);
}

/* topk's gradients of the sums may be missing (no router loss): they count as zero. */
static void test_missing_douts_are_zero(void **state)
{
    (void)state;
    struct arena a = arena_make("segments");
    struct decoder_graph d;
    struct graph g = everything(&a, &d, false, 2);
    struct mini m = ready(&a, &g);
    int seen = 0;
    for (int64_t k = 0; k < g.nnode; k++) {
        const struct node *n = &g.node[k];
        if (strcmp(n->kind->name, "topk") != 0)
            continue;
        struct tensor dout[MAX_IO] = {0};
        for (int i = 0; i < n->nout; i++)
            if (differentiable_out(&m, n, i)) {
                dout[i] = noise(&a, m.value[n->out[i]], 3);
                if (strcmp(g.value[n->out[i]].name, "weight") != 0)
                    memset(dout[i].data, 0,
                           sizeof(float) * (size_t)tensor_count(dout[i]));
            }
        struct wish only_z = {1, 0, ~0u}, weight_alone = {1, 0, 1u << 2};
        struct gradients zero = passes(&m, n, dout, only_z, false);
        struct gradients absent = passes(&m, n, dout, weight_alone, false);
        assert_true(mini_finite(zero.din[0]));
        assert_true(mini_same(zero.din[0], absent.din[0]));
        seen++;
    }
    assert_int_equal(seen, 2);
    mini_free(&m);
    arena_free(&a);
}

/* The whole model: each tensor's gradient against the loss along that gradient.  All
 * experts are active, for a choice that changes would be a jump. */
static void whole_model(bool tied)
{
    struct arena a = arena_make("segments");
    struct decoder_graph d;
    struct graph g = everything(&a, &d, tied, 6);
    struct mini m = ready(&a, &g);
    mini_backward(&m);
    for (int64_t p = 0; p < g.nparam; p++) {
        struct arena_mark mark = arena_mark(&a);
        struct tensor x = m.param[p], dx = m.dparam[p], before = mini_copy(&a, x);
        assert_true(mini_finite(dx));
        double norm = sqrt(mini_dot(dx, dx)), side[2];
        double step = fmin(3e-3 / norm, 0.03);          /* length of the move */
        for (int s = 0; s < 2; s++) {
            for (int64_t i = 0; i < tensor_count(x); i++)
                ((float *)x.data)[i] = ((float *)before.data)[i] +
                                       (float)((s ? step : -step) / norm) *
                                           ((float *)dx.data)[i];
            mini_forward(&m);
            side[s] = (double)mini_value(&m, d.loss);
        }
        memcpy(x.data, before.data, sizeof(float) * (size_t)tensor_count(x));
        double found = (side[1] - side[0]) / (2 * step);
        if (!(fabs(found - norm) <= 0.02 * norm + 1e-6 / step))
            fail_msg("%s: finite difference %.6g, gradient norm %.6g", g.param[p].name,
                     found, norm);
        arena_reset(&a, mark);
    }
    mini_free(&m);
    arena_free(&a);
}

static void test_whole_model(void **state)
{
    (void)state;
    whole_model(false);
}

static void test_whole_model_tied(void **state)
{
    (void)state;
    whole_model(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_segment),
        cmocka_unit_test(test_missing_douts_are_zero),
        cmocka_unit_test(test_whole_model),
        cmocka_unit_test(test_whole_model_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
