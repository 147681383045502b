/* test_folder.c - a model folder that transformers wrote: the same numbers from both
 * layouts of its experts, and the same tensors when it is written again.
 *
 * The files are tests/ref/make_folder_golden.py's.  gate_up_proj is square there. */
#include "check.h"

#include "base/text.h"
#include "checkpoint/hf.h"
#include "tools/convert.h"
#include "tools/parity.h"

#include <jansson.h>
#include <math.h>

static const char folder[] = "tests/model/folder";
static const char inputs[] = "tests/model/folder/case.safetensors";

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

/* What --out writes is what was found. */
static void check_json(const struct parity *p)
{
    struct arena a = arena_make("test");
    json_t *all = json_loads(parity_json(&a, p), 0, NULL);
    json_t *grad = json_object_get(all, "grad");
    near("loss in JSON", number(all, "loss"), p->loss, 1e-9);
    near("cross_entropy in JSON", number(all, "cross_entropy"), p->cross_entropy, 1e-9);
    near("aux_loss in JSON", number(all, "aux_loss"), p->aux_loss, 1e-9);
    near("aux_coef in JSON", number(all, "aux_coef"), p->aux_coef, 1e-9);
    assert_int_equal(json_object_size(grad), p->ngrad);
    for (int64_t i = 0; i < p->ngrad; i++) {
        const json_t *g = json_object_get(grad, p->grad[i].name);
        double least = 1e-8 * p->grad[i].norm;
        near(p->grad[i].name, number(g, "norm"), p->grad[i].norm, least);
        near(p->grad[i].name, number(g, "sum"), p->grad[i].sum, least);
    }
    json_decref(all);
    arena_free(&a);
}

static void check_golden(const struct parity *p)
{
    check_json(p);
    json_error_t error;
    json_t *all = json_load_file("tests/model/folder/expected.json", 0, &error);
    json_t *grad = json_object_get(all, "grad");
    near("loss", p->loss, number(all, "loss"), 5e-6);
    near("cross_entropy", p->cross_entropy, number(all, "cross_entropy"), 5e-6);
    near("aux_loss", p->aux_loss, number(all, "aux_loss"), 5e-6);
    assert_int_equal(p->ngrad, json_object_size(grad));
    for (int64_t i = 0; i < p->ngrad; i++) {
        const json_t *g = json_object_get(grad, p->grad[i].name);
        double norm = number(g, "norm");
        near(p->grad[i].name, p->grad[i].norm, norm, 2e-5 * norm + 1e-7);
        near(p->grad[i].name, p->grad[i].sum, number(g, "sum"), 2e-5 * norm + 1e-6);
    }
    json_decref(all);
}

static void check_same(const struct parity *x, const struct parity *y)
{
    assert_true(x->loss == y->loss && x->aux_loss == y->aux_loss);
    assert_int_equal(x->ngrad, y->ngrad);
    for (int64_t i = 0; i < x->ngrad; i++)
        assert_true(x->grad[i].norm == y->grad[i].norm &&
                    x->grad[i].sum == y->grad[i].sum);
    size_t logits = (size_t)(x->tokens * x->vocabulary) * sizeof(float);
    assert_memory_equal(x->logits, y->logits, logits);
}

static void convert_to(const char *from, const char *to, enum expert_layout experts)
{
    assert_ok(convert(&(struct convert_options){
        .from = from, .to = to, .experts = experts, .shard_bytes = 1 << 30}));
}

/* The tensors of two folders, byte for byte; `swapped`: the experts' last two dims. */
static void check_tensors(const char *one, const char *other, bool swapped)
{
    struct arena a = arena_make("test");
    struct hf_folder x, y;
    int64_t experts = 0;
    assert_ok(hf_open(&a, one, NULL, 0, &x));
    assert_ok(hf_open(&a, other, NULL, 0, &y));
    assert_int_equal(x.ntensor, y.ntensor);
    for (int64_t i = 0; i < x.ntensor; i++) {
        const struct disk_tensor *s = x.tensor[i], *t = y.tensor[i];
        bool swap = swapped && strstr(s->name, ".experts.");
        assert_string_equal(s->name, t->name);
        assert_int_equal(s->dtype, t->dtype);
        assert_int_equal(s->ndim, t->ndim);
        assert_int_equal(s->count, t->count);
        for (int d = 0; d < s->ndim; d++)
            assert_int_equal(s->dim[d], t->dim[swap && d ? 3 - d : d]);
        if (!swap)
            assert_memory_equal(s->data, t->data, (size_t)s->bytes);
        int64_t rows = swap ? s->dim[1] : 0, cols = swap ? s->dim[2] : 0;
        for (int64_t k = 0; k < s->count && swap; k++) {
            int64_t e = k / (rows * cols), r = k / cols % rows, c = k % cols;
            assert_memory_equal((const char *)s->data + 2 * k,
                                (const char *)t->data + 2 * ((e * cols + c) * rows + r),
                                2);
        }
        experts += swap;
    }
    assert_int_equal(experts, swapped ? 4 : 0);
    hf_close(&x);
    hf_close(&y);
    arena_free(&a);
}

static void test_both_layouts(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct parity theirs, released, again;
    char *to = check_folder(&a), *one = path_join(&a, to, "released");
    char *two = path_join(&a, to, "same"), *three = path_join(&a, to, "again");
    assert_ok(parity_run(&a, folder, inputs, &theirs));
    check_golden(&theirs);

    convert_to(folder, one, EXPERTS_RELEASED);
    check_tensors(folder, one, true);
    assert_ok(parity_run(&a, one, inputs, &released));
    check_same(&theirs, &released);

    convert_to(folder, two, EXPERTS_AUTO);      /* as it came in, each of them */
    check_tensors(folder, two, false);
    convert_to(one, three, EXPERTS_AUTO);
    check_tensors(one, three, false);
    assert_ok(folder_remove(three));
    convert_to(one, three, EXPERTS_TRANSFORMERS);
    check_tensors(folder, three, false);
    assert_ok(parity_run(&a, three, inputs, &again));
    check_same(&theirs, &again);
    assert_ok(folder_remove(to));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
