/* test_model_flops.c - the formula of model FLOPs against published per-token figures,
 * and against the dry device on a full batch, for all sets of frozen parts. */
#include "check.h"

#include "graph/flops.h"
#include "tests/model/case.h"

static struct model_config qwen3_vl_30b(void)
{
    struct model_config c = {
        .has_vision = true,
        .vision = {.depth = 27,
                   .width = 1152,
                   .heads = 16,
                   .hidden = 4304,
                   .patch = 16,
                   .frames = 2,
                   .merge = 2,
                   .channels = 3,
                   .positions = 2304,
                   .out = 2048,
                   .taps = 3,
                   .tap = {8, 16, 24},
                   .theta = 10000,
                   .eps = 1e-6},
        .decoder = {.layers = 48,
                    .width = 2048,
                    .heads = 32,
                    .groups = 4,
                    .head_width = 128,
                    .hidden = 6144,
                    .experts = 128,
                    .active = 8,
                    .expert_hidden = 768,
                    .vocabulary = 151936,
                    .theta = 5e6,
                    .eps = 1e-6,
                    .section = {24, 20, 20},
                    .initial = 0.02,
                    .aux_coef = 0.001},
        .image_token = 151655,
        .video_token = 151656,
        .vision_start = 151652,
        .vision_end = 151653,
        .neos = 1, .eos = {151645},
        .bos = 151643,
        .pad = 151643,
    };
    for (int l = 0; l < c.decoder.layers; l++)
        c.decoder.moe[l] = true;
    return c;
}

static struct model_config qwen3_vl_235b(void)
{
    struct model_config c = qwen3_vl_30b();
    c.vision.out = 4096;
    struct decoder_config *d = &c.decoder;
    d->layers = 94, d->width = 4096, d->heads = 64, d->expert_hidden = 1536;
    for (int l = 0; l < d->layers; l++)
        d->moe[l] = true;
    return c;
}

enum { ALL = (1 << PARTS) - 1 };

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g, expected %.9g within %.2g", got, want, tolerance);
}

static void test_published_figures(void **state)
{
    (void)state;
    struct model_config c = qwen3_vl_30b(), large = qwen3_vl_235b();
    struct flops_count text = {.tokens = 4096, .supervised = 4096,
                               .attention = 4096.0 * 4097 / 2};
    near(model_flops(&c, &text, ALL) / 4096 / 1e9, 7.6943, 5e-5);
    near(model_flops(&large, &text, ALL) / 4096 / 1e9, 49.4450, 5e-5);
    near(model_flops(&c, &text, 0) / model_flops(&c, &text, ALL), 3, 1e-12);
    /* The head works for supervised tokens alone. */
    struct flops_count half = text;
    half.supervised = 1000;
    near(model_flops(&c, &text, ALL) - model_flops(&c, &half, ALL),
         2.0 * 2048 * 151936 * (4096 - 1000), 1e3);
    /* One 1024 x 1024 image: 4096 patches, 1024 merged. */
    struct flops_count image = {.patches = 4096, .attention_image = 4096.0 * 4096,
                                .merged = 1024};
    near(model_flops(&c, &image, ALL) / 1e9,
         4096 * (0.0035 + 0.8221 + 0.5096) + 4 * 1024 * 0.0613, 0.6);
}

static void test_parameters_of_released_sizes(void **state)
{
    (void)state;
    struct model_config c[] = {qwen3_vl_30b(), qwen3_vl_235b()};
    const int64_t whole[] = {31070754032, 235670022896},
                  vision[] = {538631408, 576388336};
    for (int i = 0; i < 2; i++) {
        assert_ok(model_config_check(&c[i]));
        struct arena a = arena_make("sizes");
        struct graph g = graph_make(&a);
        struct capacity cap = {4096, 4096, 16, 16};
        struct vision_graph v;
        struct decoder_graph d;
        vision_record(&g, &c[i].vision, &cap, &(struct vision_options){0}, &v);
        decoder_record(&g, &c[i].decoder, &cap, &v,
                       &(struct decoder_options){.loss = true}, &d);
        graph_check(&g);
        int64_t sum = 0, tower = 0;
        for (int64_t p = 0; p < g.nparam; p++) {
            int64_t n = param_disk_count(&g.param[p]);
            assert_int_equal(n, g.param[p].count);
            sum += n;
            if (g.param[p].part == PART_VISION || g.param[p].part == PART_PROJECTOR)
                tower += n;
        }
        assert_int_equal(sum, whole[i]);
        assert_int_equal(tower, vision[i]);
        arena_free(&a);
    }
}

/* One segment as long as the row, one image, every row supervised: no padding. */
static void full_batch(struct arena *a, const struct model_config *c, struct graph *g,
                       struct flops_count *n)
{
    struct capacity cap = {.tokens = 48, .patches = 64, .segments = 1, .images = 1};
    struct vision_graph v;
    struct decoder_graph d;
    *g = graph_make(a);
    vision_record(g, &c->vision, &cap, &(struct vision_options){0}, &v);
    decoder_record(g, &c->decoder, &cap, &v,
                   &(struct decoder_options){.aux_coef = 1, .loss = true}, &d);
    *n = (struct flops_count){.tokens = 48, .supervised = 48, .attention = 48 * 49 / 2,
                              .patches = 64, .attention_image = 64 * 64, .merged = 16};
}

static void against_dry(bool tied, int shared_hidden)
{
    struct arena a = arena_make("flops");
    struct model_config c = case_config();
    c.decoder.shared_hidden = shared_hidden;
    c.decoder.tied = tied;
    struct graph g;
    struct flops_count n;
    full_batch(&a, &c, &g, &n);
    struct mini m = mini_make(&a, &g, &ops_dry);
    for (unsigned frozen = 0; frozen <= ALL; frozen++) {
        struct arena_mark mark = arena_mark(&a);
        graph_freeze(&g, frozen);
        *m.stream.work = (struct work){0};
        mini_forward(&m);
        mini_backward(&m);
        /* The dry device counts a half of each attention core and the logits again. */
        double again = 0;
        for (int64_t k = 0; k < g.nnode; k++) {
            const struct node *x = &g.node[k];
            const int64_t *o = g.value[x->out[0]].dim;
            bool vision = strcmp(x->tower, "vision") == 0;
            if (strcmp(x->kind->name, "core_attn") == 0 && m.wants[x->in[0]])
                again +=
                    2.0 * (double)o[1] * (vision ? n.attention_image : n.attention);
            if (strcmp(x->kind->name, "head") == 0 &&
                (m.wants[x->in[0]] || g.param[x->w[0]].trainable))
                again += 2.0 * 24 * 64 * n.supervised;
        }
        double model = model_flops(&c, &n, frozen);
        if (model + again != m.stream.work->flops)
            fail_msg("frozen %x: formula %.0f and %.0f more, dry %.0f", frozen, model,
                     again, m.stream.work->flops);
        arena_reset(&a, mark);
    }
    mini_free(&m);
    arena_free(&a);
}

static void test_formula_agrees_with_the_dry_device(void **state)
{
    (void)state;
    against_dry(false, 0);
    against_dry(true, 0);
    against_dry(false, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_figures),
        cmocka_unit_test(test_parameters_of_released_sizes),
        cmocka_unit_test(test_formula_agrees_with_the_dry_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
