/* test_model_golden.c - the tiny Qwen3-VL-MoE against transformers: loss, auxiliary
 * loss, logits, and of every gradient the norm, the sum, and the product with a random
 * vector, which knows each element by its place; also with shared experts.
 *
 * The files in golden hold what transformers gave for this model and batch (there two
 * padded rows, here one packed row with padding of its own).  Weights come from the
 * formula in case.h, so no checkpoint is read. */
#include "check.h"

#include <jansson.h>

#include "tests/model/case.h"

static json_t *expected(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);
    if (!j)
        fail_msg("%s", error.text);
    return j;
}

static double number(const json_t *o, const char *key)
{
    const json_t *n = json_object_get(o, key);
    if (!json_is_number(n))
        fail_msg("no number %s", key);
    return json_number_value(n);
}

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s is %.9g, expected %.9g within %.2g", what, got, want, tolerance);
}

static void check_logits(const struct mini *m, int logits, const json_t *list)
{
    const float *z = m->value[logits].data;
    size_t i;
    const json_t *at;
    json_array_foreach(list, i, at) {
        int64_t v[3];
        for (int k = 0; k < 3; k++)
            v[k] = json_integer_value(json_array_get(at, (size_t)k));
        int64_t t = v[0] * 79 + v[1];
        for (int k = 0; k < 4; k++)
            near("logit", (double)z[t * 64 + v[2] + k],
                 json_number_value(json_array_get(at, (size_t)k + 3)), 1e-5);
    }
    assert_int_equal(json_array_size(list), 5);
}

/* With mini_u(k, place on disk). */
static double secret_dot(const struct param *p, struct tensor x, uint64_t k)
{
    const float *v = x.data;
    double sum = 0;
    for (int64_t i = 0; i < p->count; i++)
        sum += (double)v[i] * mini_u(k, (uint64_t)case_disk(p, i));
    return sum;
}

static void against_transformers(int shared_hidden, const char *path, int params)
{
    struct arena a = arena_make("golden");
    struct model_config c = case_config();
    c.decoder.shared_hidden = shared_hidden;
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &(struct decoder_options){
        .aux_coef = c.decoder.aux_coef, .loss = true, .logits = true,
    }, &d);
    struct mini m = mini_make(&a, &g, &ops_cpu);
    case_weights(&m, 8000);
    case_inputs(&m);
    mini_forward(&m);
    mini_backward(&m);

    json_t *j = expected(path), *f = json_object_get(j, "float32");
    near("loss", (double)mini_value(&m, d.loss), number(f, "loss"), 1e-5);
    near("cross_entropy", (double)mini_value(&m, d.cross_entropy),
         number(f, "cross_entropy"), 1e-5);
    near("aux", (double)mini_value(&m, d.aux), number(f, "aux_loss"), 1e-5);
    check_logits(&m, d.logits, json_object_get(j, "logits"));

    json_t *grad = json_object_get(f, "grad");
    assert_int_equal(json_object_size(grad), g.nparam);
    assert_int_equal(g.nparam, params);
    double worst = 0;
    for (int64_t p = 0; p < g.nparam; p++) {
        const char *name = g.param[p].name;
        json_t *want = json_object_get(grad, name);
        if (!want)
            fail_msg("%s has no expected gradient", name);
        double norm = number(want, "norm"), sum = number(want, "sum");
        double got = sqrt(mini_dot(m.dparam[p], m.dparam[p]));
        near(name, got, norm, 1e-4 * norm);
        /* Some sums are zero but for rounding; the norm gives their scale. */
        near(name, mini_sum(m.dparam[p]), sum, 1e-4 * fabs(sum) + 1e-5 * norm);
        near(name, secret_dot(&g.param[p], m.dparam[p], 77 + case_place(&g, name)),
             number(want, "dot"), 1e-5 * norm);
        worst = fmax(worst, fabs(got / norm - 1));
    }
    print_message("worst relative error of a gradient norm: %.2g\n", worst);
    json_decref(j);
    mini_free(&m);
    arena_free(&a);
}

static void test_against_transformers(void **state)
{
    (void)state;
    against_transformers(0, "tests/model/golden/qwen3-vl-moe.json", 128);
}

static void test_shared_experts_against_transformers(void **state)
{
    (void)state;
    against_transformers(12, "tests/model/golden/qwen3-vl-moe-shared.json", 140);
}

static void test_greedy_choice_is_the_largest_logit(void **state)
{
    (void)state;
    struct arena a = arena_make("golden");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(
        &a, &c, &(struct decoder_options){.logits = true, .best = true}, &d);
    assert_int_equal(d.loss, NONE);
    assert_int_equal(graph_find(&g, "target"), -1);
    struct mini m = mini_make(&a, &g, &ops_cpu);
    case_weights(&m, 8000);
    case_inputs(&m);
    int32_t *want = mini_input(&m, "want");
    for (int t = 0; t < 120; t++)
        want[t] = t % 3 == 0;
    mini_forward(&m);
    const float *z = m.value[d.logits].data, *logit = m.value[d.best_logit].data;
    const int32_t *best = m.value[d.best].data;
    for (int t = 0; t < 120; t++) {
        int most = 0;
        for (int v = 1; v < 64; v++)
            if (z[t * 64 + v] > z[t * 64 + most])
                most = v;
        if (!want[t])
            assert_int_equal(best[t], -1);
        else
            near("best logit", (double)z[t * 64 + best[t]], (double)z[t * 64 + most],
                 1e-5);
        if (want[t])
            near("best logit", (double)logit[t], (double)z[t * 64 + most], 1e-5);
    }
    mini_free(&m);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_transformers),
        cmocka_unit_test(test_shared_experts_against_transformers),
        cmocka_unit_test(test_greedy_choice_is_the_largest_logit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
