/* test_model_frozen.c - freezing any set of parts: what still trains gets the same
 * bits, what is frozen gets nothing, and nothing runs that only frozen parts would have
 * used. */
#include "check.h"

#include "tests/model/case.h"

static struct model_config small(void)
{
    struct model_config c = case_config();
    c.vision.depth = 2;
    c.vision.taps = 1;
    c.vision.tap[0] = 0;
    c.decoder.layers = 3;               /* MoE, dense, MoE */
    return c;
}

static const struct decoder_options options = {.aux_coef = 0.02, .z_coef = 0.01,
                                               .loss = true};

static void test_what_trains_gets_the_same_bits(void **state)
{
    (void)state;
    struct arena a = arena_make("frozen");
    struct model_config c = small();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    struct mini m = mini_make(&a, &g, &ops_cpu);
    case_weights(&m, 7);
    case_inputs(&m);
    mini_forward(&m);
    mini_backward(&m);
    struct tensor *whole = NEW(&a, struct tensor, g.nparam);
    memcpy(whole, m.dparam, sizeof *whole * (size_t)g.nparam);
    for (unsigned frozen = 1; frozen < 1u << PARTS; frozen++) {
        struct arena_mark mark = arena_mark(&a);
        graph_freeze(&g, frozen);
        mini_backward(&m);
        for (int64_t p = 0; p < g.nparam; p++) {
            bool still = frozen >> g.param[p].part & 1;
            assert_true(g.param[p].trainable != still);
            assert_true(m.written[p] == !still);
            if (!still && !mini_same(whole[p], m.dparam[p]))
                fail_msg("%s has another gradient with parts %x frozen",
                         g.param[p].name, frozen);
        }
        arena_reset(&a, mark);
    }
    mini_free(&m);
    arena_free(&a);
}

static bool tower_wants(const struct graph *g, const bool *wants, const char *tower)
{
    for (int64_t v = 0; v < g->nvalue; v++)
        if (wants[v] && strcmp(g->value[v].tower, tower) == 0)
            return true;
    return false;
}

static void test_frozen_towers_have_no_backward(void **state)
{
    (void)state;
    struct arena a = arena_make("frozen");
    struct model_config c = small();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    bool *wants = NEW(&a, bool, g.nvalue);
    static const struct { unsigned frozen; bool vision, projector, decoder; } row[] = {
        {0, true, true, true},
        {1 << PART_VISION, false, true, true},
        {1 << PART_PROJECTOR, true, true, true},
        {1 << PART_VISION | 1 << PART_PROJECTOR, false, false, true},
        {1 << PART_DECODER | 1 << PART_EXPERTS, true, true, true},
        {(1 << PARTS) - 1, false, false, false},
    };
    for (int i = 0; i < COUNT(row); i++) {
        graph_freeze(&g, row[i].frozen);
        graph_wants(&g, wants);
        assert_true(tower_wants(&g, wants, "vision") == row[i].vision);
        assert_true(tower_wants(&g, wants, "projector") == row[i].projector);
        assert_true(tower_wants(&g, wants, "decoder") == row[i].decoder);
    }
    arena_free(&a);
}

/* With router losses switched off, their sums carry no gradient at all. */
static void test_reported_losses_do_not_train(void **state)
{
    (void)state;
    struct arena a = arena_make("frozen");
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &(struct decoder_options){.loss = true}, &d);
    bool *wants = NEW(&a, bool, g.nvalue);
    graph_wants(&g, wants);
    assert_false(wants[d.router_loss]);
    assert_true(wants[d.cross_entropy]);
    for (int64_t v = 0; v < g.nvalue; v++) {
        const char *name = g.value[v].name;
        if (strcmp(name, "sum") == 0 || strcmp(name, "z2") == 0 ||
            strcmp(name, "loss") == 0)
            assert_false(wants[v]);
    }
    struct mini m = mini_make(&a, &g, &ops_cpu);
    case_weights(&m, 7);
    case_inputs(&m);
    mini_forward(&m);
    mini_backward(&m);
    assert_true(mini_value(&m, d.router_loss) == 0);
    assert_true(mini_value(&m, d.aux) > 1);
    assert_true(mini_value(&m, d.loss) == mini_value(&m, d.cross_entropy));
    for (int64_t p = 0; p < g.nparam; p++)
        assert_true(mini_finite(m.dparam[p]));
    mini_free(&m);
    arena_free(&a);
}

/* ---- what is not there does not matter ---- */

static void no_images(struct mini *m)
{
    struct tensor input = m->value[graph_find(m->g, "input")];
    for (int64_t t = 0; t < tensor_count(input); t++)
        if (((int32_t *)input.data)[t] < 0)
            ((int32_t *)input.data)[t] = CASE_IMAGE;
    static const char *const none[] = {"feature", "feature_token"};
    for (int i = 0; i < 2; i++)
        if (mini_input(m, none[i]))
            memset(mini_input(m, none[i]), 0xff,
                   (size_t)value_bytes(&m->g->value[graph_find(m->g, none[i])]));
    if (mini_input(m, "image"))
        memset(mini_input(m, "image"), 0,
               (size_t)value_bytes(&m->g->value[graph_find(m->g, "image")]));
}

static void test_no_images_is_text_only(void **state)
{
    (void)state;
    struct arena a = arena_make("frozen");
    struct model_config c = small(), text = small();
    text.has_vision = false;
    struct decoder_graph d, e;
    struct graph g = case_graph(&a, &c, &options, &d),
                 h = case_graph(&a, &text, &options, &e);
    struct mini m = mini_make(&a, &g, &ops_cpu), n = mini_make(&a, &h, &ops_cpu);
    case_weights(&m, 7);
    case_weights(&n, 7);
    case_inputs(&m);
    case_inputs(&n);
    no_images(&m);
    mini_forward(&m);
    mini_forward(&n);
    mini_backward(&m);
    mini_backward(&n);
    assert_true(mini_value(&m, d.loss) == mini_value(&n, e.loss));
    assert_true(isfinite(mini_value(&m, d.loss)));
    int same = 0;
    for (int64_t p = 0; p < g.nparam; p++) {
        const char *name = g.param[p].name;
        if (strstr(name, "visual")) {
            assert_true(mini_dot(m.dparam[p], m.dparam[p]) == 0);
            continue;
        }
        for (int64_t q = 0; q < h.nparam; q++)
            if (strcmp(h.param[q].name, name) == 0) {
                assert_true(mini_same(m.param[p], n.param[q]));
                assert_true(mini_same(m.dparam[p], n.dparam[q]));
                same++;
            }
    }
    assert_int_equal(same, h.nparam);
    mini_free(&m);
    mini_free(&n);
    arena_free(&a);
}

static void test_padding_does_not_matter(void **state)
{
    (void)state;
    struct arena a = arena_make("frozen");
    struct model_config c = small();
    struct decoder_graph d;
    struct graph g = case_graph(&a, &c, &options, &d);
    struct mini m = mini_make(&a, &g, &ops_cpu), n = mini_make(&a, &g, &ops_cpu);
    for (int i = 0; i < 2; i++) {
        struct mini *x = i ? &n : &m;
        case_weights(x, 7);
        case_inputs(x);
    }
    int64_t values = vision_patch_values(&c.vision);
    float *pixels = mini_input(&n, "pixels");
    for (int64_t i = CASE_PATCHES * values; i < case_capacity().patches * values; i++)
        pixels[i] = 3 * (float)mini_u(5, (uint64_t)i);
    int32_t *input = mini_input(&n, "input"), *position = mini_input(&n, "position");
    for (int64_t t = CASE_LIVE; t < case_capacity().tokens; t++) {
        input[t] = (int32_t)t % 64;
        position[3 * t] = 1000;
    }
    mini_forward(&m);
    mini_forward(&n);
    mini_backward(&m);
    mini_backward(&n);
    assert_true(mini_value(&m, d.loss) == mini_value(&n, d.loss));
    for (int64_t p = 0; p < g.nparam; p++) {
        if (!mini_finite(m.dparam[p]))
            fail_msg("%s is not finite", g.param[p].name);
        if (!mini_same(m.dparam[p], n.dparam[p]))
            fail_msg("padding changed the gradient of %s", g.param[p].name);
    }
    mini_free(&m);
    mini_free(&n);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_trains_gets_the_same_bits),
        cmocka_unit_test(test_frozen_towers_have_no_backward),
        cmocka_unit_test(test_reported_losses_do_not_train),
        cmocka_unit_test(test_no_images_is_text_only),
        cmocka_unit_test(test_padding_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
