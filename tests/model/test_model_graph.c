/* test_model_graph.c - what recording leaves behind: names, shapes, units, layers. */
#include "check.h"

#include "tests/model/case.h"

static const struct decoder_options options = {.aux_coef = 0.01, .loss = true};

static const struct param *find(const struct graph *g, const char *name)
{
    for (int64_t p = 0; p < g->nparam; p++)
        if (strcmp(g->param[p].name, name) == 0)
            return &g->param[p];
    fail_msg("no param %s", name);
    return NULL;
}

static void check_param(const struct graph *g, const char *name, enum part part,
                        int ndim, const int64_t *disk, int nrows, const int64_t *rows,
                        bool decay)
{
    const struct param *p = find(g, name);
    assert_int_equal(p->part, part);
    assert_int_equal(p->ndim, ndim);
    assert_int_equal(p->nrows, nrows);
    for (int i = 0; i < ndim; i++)
        assert_int_equal(p->dim[i], disk[i]);
    for (int i = 0; i < nrows; i++)
        assert_int_equal(p->rows[i], rows[i]);
    assert_int_equal(p->decay, decay);
    assert_int_equal(g->unit[p->unit].part, part);
    assert_int_equal(g->unit[p->unit].layer, p->layer);
}

#define DIMS(...)                                                                      \
    COUNT(((const int64_t[]){__VA_ARGS__})), ((const int64_t[]){__VA_ARGS__})

static void test_params(void **state)
{
    (void)state;
    struct arena a = arena_make("graph");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    check_param(&g, "model.visual.patch_embed.proj.weight", PART_VISION,
                DIMS(32, 3, 2, 4, 4), DIMS(32, 96), true);
    check_param(&g, "model.visual.deepstack_merger_list.1.norm.bias", PART_PROJECTOR,
                DIMS(128), DIMS(128), false);
    check_param(&g, "model.language_model.embed_tokens.weight", PART_EMBEDDINGS,
                DIMS(64, 24), DIMS(64, 24), true);
    check_param(&g, "model.language_model.layers.2.mlp.experts.gate_up_proj",
                PART_EXPERTS, DIMS(6, 24, 20), DIMS(6, 20, 24), true);
    check_param(&g, "model.language_model.layers.2.mlp.experts.down_proj", PART_EXPERTS,
                DIMS(6, 10, 24), DIMS(6, 24, 10), true);
    check_param(&g, "model.language_model.layers.0.mlp.gate.weight", PART_ROUTER,
                DIMS(6, 24), DIMS(6, 24), true);
    check_param(&g, "model.language_model.layers.1.self_attn.q_norm.weight",
                PART_DECODER, DIMS(16), DIMS(16), false);
    c.decoder.shared_hidden = 12;
    struct graph h = case_graph(&a, &c, &options, &d);
    assert_int_equal(h.nparam, g.nparam + 3 * 4);       /* of three MoE layers */
    check_param(&h, "model.language_model.layers.2.mlp.shared_expert.up_proj.weight",
                PART_EXPERTS, DIMS(12, 24), DIMS(12, 24), true);
    check_param(&h, "model.language_model.layers.2.mlp.shared_expert.down_proj.weight",
                PART_EXPERTS, DIMS(24, 12), DIMS(24, 12), true);
    check_param(&h, "model.language_model.layers.2.mlp.shared_expert_gate.weight",
                PART_EXPERTS, DIMS(1, 24), DIMS(1, 24), true);
    arena_free(&a);
}

/* Norm weights start at one, biases at zero, neither decays; the rest is normal. */
static void test_initial_values(void **state)
{
    (void)state;
    struct arena a = arena_make("graph");
    struct model_config c = case_config();
    c.decoder.initial = 0.01;
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    for (int64_t i = 0; i < g.nparam; i++) {
        const struct param *p = &g.param[i];
        bool bias = case_ends(p->name, "bias");
        assert_true(p->decay == (p->ndim > 1));
        assert_true(p->trainable);
        if (p->ndim == 1) {
            assert_int_equal(p->initial, bias ? INITIAL_ZERO : INITIAL_ONE);
            assert_true(bias || strstr(p->name, "norm") != NULL);
            continue;
        }
        assert_int_equal(p->initial, INITIAL_NORMAL);
        assert_true(p->deviation == (strstr(p->name, "visual") ? 0.02 : 0.01));
    }
    arena_free(&a);
}

/* Params of a unit lie one after the other, aligned, inside its count. */
static void test_units(void **state)
{
    (void)state;
    struct arena a = arena_make("graph");
    struct model_config c = case_config();
    struct decoder_graph d;
    c.decoder.shared_hidden = 12;
    struct graph g = case_graph(&a, &c, &options, &d);
    for (int u = 0; u < g.nunit; u++) {
        int64_t end = 0;
        for (int64_t p = 0; p < g.nparam; p++) {
            if (g.param[p].unit != u)
                continue;
            assert_true(g.param[p].offset >= end && g.param[p].offset - end < 16);
            assert_int_equal(g.param[p].offset % 16, 0);
            end = g.param[p].offset + g.param[p].count;
        }
        assert_true(end > 0 && g.unit[u].count >= end && g.unit[u].count - end < 16);
        bool shared = strcmp(g.unit[u].name, "shared") == 0;    /* not dispatched to */
        assert_true(g.unit[u].experts == (g.unit[u].part == PART_EXPERTS && !shared));
    }
    arena_free(&a);
}

static void test_tied_head_has_no_param(void **state)
{
    (void)state;
    struct arena a = arena_make("graph");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    c.decoder.tied = true;
    struct graph h = case_graph(&a, &c, &options, &d);
    assert_int_equal(h.nparam, g.nparam - 1);
    for (int64_t p = 0; p < h.nparam; p++)
        assert_string_not_equal(h.param[p].name, "lm_head.weight");
    arena_free(&a);
}

static void test_layers_and_outputs(void **state)
{
    (void)state;
    struct arena a = arena_make("graph");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    /* embed, 5 blocks, 3 mergers; embed, 4 layers, head */
    assert_int_equal(g.layers, 1 + 5 + 3 + 1 + 4 + 1);
    assert_int_equal(d.moe_layers, 3);
    assert_int_equal(g.value[d.chosen[2]].dim[1], 6);
    assert_true(g.value[d.cross_entropy].loss && g.value[d.router_loss].loss);
    assert_false(g.value[d.loss].loss);
    for (int64_t k = 0; k < g.nnode; k++) {
        const struct node *n = &g.node[k];
        bool choice = strcmp(n->kind->name, "topk") == 0 ||
                      strcmp(n->kind->name, "sort") == 0;
        assert_true(n->kind->always == choice);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_tied_head_has_no_param),
        cmocka_unit_test(test_layers_and_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
