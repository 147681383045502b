/* test_pipeline.c - a whole vision-language model in stages, on ranks that are threads:
 * losses and gradients are those of one rank. */
#include "check.h"

#include "parallel/world.h"
#include "plan/toy.h"
#include "run/run.h"
#include "tests/model/case.h"

#include <pthread.h>

enum { MAX_MBS = 8, SALT = 7 };

struct setting {
    int ranks, chunks;
    const char *layout;
    int mbs;
    bool zero_bubble, weave, lanes, tied;
    bool skips;                         /* the toy whose blocks all read one value */
    const char *recompute, *offload;
    double slack;
    unsigned frozen;
    int dp;                             /* copies, all on the same rows; 0 as 1 */
    struct sharding sharding;
};

enum { TOWER = 1 << PART_VISION | 1 << PART_PROJECTOR,
       TEXT = 1 << PART_DECODER | 1 << PART_ROUTER | 1 << PART_EXPERTS };

static const struct decoder_options options = {.aux_coef = 0.02, .z_coef = 0.01,
                                               .loss = true};

/* Different microbatches of the case; number 2, 5, ... have no image. */
static struct mini batch(struct arena *a, const struct graph *g, int mb)
{
    struct mini m = mini_make(a, g, &ops_cpu);
    case_weights(&m, SALT);
    case_inputs(&m);
    struct tensor pixels = m.value[graph_find(g, "pixels")];
    struct tensor input = m.value[graph_find(g, "input")];
    for (int64_t i = 0; i < tensor_count(pixels); i++)
        ((float *)pixels.data)[i] *= 1 - 0.4f * (float)mb;
    for (int64_t i = 0; i < tensor_count(input); i++)
        if (((int32_t *)input.data)[i] > 8)
            ((int32_t *)input.data)[i] ^= mb % 4;
    if (mb % 3 != 2)
        return m;
    memset(mini_input(&m, "image"), 0,
           4 * (size_t)tensor_count(m.value[graph_find(g, "image")]));
    for (int i = 0; i < 2; i++) {
        struct tensor t = m.value[graph_find(g, i ? "feature" : "feature_token")];
        memset(t.data, 0xff, 4 * (size_t)tensor_count(t));      /* -1: nowhere */
    }
    for (int64_t i = 0; i < tensor_count(input); i++)
        if (((int32_t *)input.data)[i] < 0)
            ((int32_t *)input.data)[i] = CASE_IMAGE;
    return m;
}

struct result {                         /* of all ranks together */
    struct graph graph;                 /* of one of them */
    struct arena arena;
    float loss[MAX_MBS], aux[MAX_MBS];
    float **grad;                       /* [params] NULL where frozen */
    bool **given;                       /* [params] elements that a rank had */
    int *holders;                       /* [params] ranks that gave it */
    int64_t state_bytes;                /* of all ranks */
};

struct model {                          /* as one rank has recorded it */
    struct toy toy;                     /* its graph; of the toy, all of it */
    int output[2];                      /* loss, router loss; twice the toy's loss */
};

struct trial {
    const struct setting *x;
    struct mesh mesh;
    struct model_config config;
    struct result *out;
    pthread_mutex_t lock;
};

static bool collect(struct trial *t, const struct model *model, const struct machine *m)
{
    const struct graph *g = &model->toy.graph;
    struct result *out = t->out;
    bool ok = true;
    pthread_mutex_lock(&t->lock);
    for (int mb = 0; mb < t->x->mbs; mb++) {
        struct tensor loss = machine_value(m, model->output[0], mb);
        struct tensor aux = machine_value(m, model->output[1], mb);
        if (tensor_is(loss))
            out->loss[mb] = *(float *)loss.data;
        if (tensor_is(aux))
            out->aux[mb] = *(float *)aux.data;
    }
    int dp = MAX(1, t->x->dp);
    for (int i = 0; i < g->nparam; i++) {
        struct stretch part;
        struct tensor x = machine_own(m, HELD_GRADIENT, i, &part);
        if (!tensor_is(x))
            continue;
        float *to = out->grad[i], *from = x.data;
        if (!to) {
            to = out->grad[i] = NEW(&out->arena, float, g->param[i].count);
            out->given[i] = NEW(&out->arena, bool, g->param[i].count);
        }
        for (int64_t k = part.from; k < part.to; k++) {
            float value = from[k - part.from] / (float)dp;      /* a power of 2 */
            if (out->given[i][k] && memcmp(&value, &to[k], sizeof value) != 0)
                ok = fail("%s has other bits on another rank", g->param[i].name);
            out->given[i][k] = true;
            to[k] = value;
        }
        out->holders[i]++;
    }
    out->state_bytes += machine_plan(m)->state_bytes;
    pthread_mutex_unlock(&t->lock);
    return ok;
}

/* Different microbatches of the toy. */
static struct mini toy_batch(struct arena *a, const struct toy *toy, int mb)
{
    const struct graph *g = &toy->graph;
    struct mini m = mini_make(a, g, &ops_cpu);
    for (int v = 0; v < g->nvalue; v++)
        if (g->value[v].node < 0)
            toy_input(toy, v, mb, m.value[v].data);
    for (int i = 0; i < g->nparam; i++)
        for (int64_t k = 0; k < g->param[i].count; k++)
            ((float *)m.param[i].data)[k] = toy_weight(&g->param[i], k);
    return m;
}

static bool step(struct trial *t, struct arena *a, const struct model *model,
                 struct machine *m)
{
    struct mini data[MAX_MBS];
    const struct graph *g = &model->toy.graph;
    for (int mb = 0; mb < t->x->mbs; mb++) {
        data[mb] = t->x->skips ? toy_batch(a, &model->toy, mb) : batch(a, g, mb);
        for (int v = 0; v < g->nvalue; v++)
            if (g->value[v].node < 0)
                machine_bind(m, v, mb, data[mb].value[v].data);
    }
    for (int i = 0; i < g->nparam; i++) {
        struct stretch part;
        struct tensor w = machine_own(m, HELD_WEIGHT, i, &part);
        if (tensor_is(w))
            memcpy(w.data, (float *)data[0].param[i].data + part.from,
                   sizeof(float) * (size_t)(part.to - part.from));
    }
    bool ok = machine_step(m) && machine_evidence(m) && collect(t, model, m);
    for (int mb = 0; mb < t->x->mbs; mb++)
        mini_free(&data[mb]);
    return ok;
}

static struct model model_record(struct arena *a, const struct trial *t,
                                 const struct mesh *mesh, int rank)
{
    struct model m = {0};
    if (t->x->skips) {
        struct toy_shape shape = {8, 16, 24, 40, 2, 6, false};
        m.toy = toy_record_skips(a, shape, true);
        m.output[0] = m.output[1] = m.toy.loss;
    } else {
        struct capacity cap = case_capacity();
        struct vision_graph vision;
        struct decoder_graph d;
        struct graph *g = &m.toy.graph;
        *g = graph_make(a);
        g->mesh = mesh;
        g->rank = rank;
        vision_record(g, &t->config.vision, &cap, &(struct vision_options){0}, &vision);
        decoder_record(g, &t->config.decoder, &cap, &vision, &options, &d);
        graph_check(g);
        m.output[0] = d.loss;
        m.output[1] = d.aux;
    }
    m.toy.graph.mesh = mesh;
    m.toy.graph.rank = rank;
    graph_freeze(&m.toy.graph, t->x->frozen);
    return m;
}

static bool rank_main(struct rank *rank, void *arg)
{
    struct trial *t = arg;
    const struct setting *x = t->x;
    struct arena *a = &rank->arena;
    struct model model = model_record(a, t, &t->mesh, rank->rank);
    struct graph *g = &model.toy.graph;
    struct stages stages;
    struct policy policy = policy_plain();
    int stage = view_at(&t->mesh.dense, rank->rank, AXIS_PP);
    if (!stages_make(a, g, x->ranks, x->chunks, x->layout, NULL, &stages) ||
        !policy_parse(&policy, a, g, x->recompute ? x->recompute : "none",
                      x->offload ? x->offload : "none"))
        return false;
    policy.weave = x->weave;
    policy.slack = MAX(1, x->slack);
    struct order order =
        x->zero_bubble
            ? order_zero_bubble(a, stage, x->ranks, x->chunks, x->mbs)
            : order_interleaved(a, stage, x->ranks, x->chunks, x->mbs);
    struct plan *p = plan_build(a, g, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2, .stages = &stages,
        .stage = stage, .sharding = &x->sharding,
        .output = model.output, .outputs = 2});
    struct team *team = team_make(1);
    struct machine *m;
    bool ok = plan_check(p) && machine_make(a, p, &(struct machine_options){
        .ops = &ops_cpu, .team = team, .rank = rank, .lanes = x->lanes}, &m);
    if (ok) {
        ok = step(t, a, &model, m);
        machine_free(m);
    }
    team_free(team);
    return ok;
}

static struct result run(const struct setting *x)
{
    struct result out = {.arena = arena_make("test")};
    struct trial t = {.x = x, .config = case_config(), .out = &out};
    t.config.decoder.tied = x->tied;
    out.graph = model_record(&out.arena, &t, NULL, 0).toy.graph;
    out.grad = NEW(&out.arena, float *, out.graph.nparam);
    out.given = NEW(&out.arena, bool *, out.graph.nparam);
    out.holders = NEW(&out.arena, int, out.graph.nparam);
    int world = x->ranks * MAX(1, x->dp);
    assert_ok(mesh_make(&(struct layout){.world = world, .pp = x->ranks}, NULL,
                        &t.mesh));
    pthread_mutex_init(&t.lock, NULL);
    if (!world_run(world, 60, rank_main, &t))
        fail_msg("%d x %d '%s', %d microbatches: %s", x->ranks, x->chunks, x->layout,
                 x->mbs, fail_message());
    pthread_mutex_destroy(&t.lock);
    return out;
}

/* Largest difference, relative to the largest number. */
static double difference(const float *a, const float *b, int64_t n)
{
    double most = 0, scale = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        most = MAX(most, fabs((double)a[i] - (double)b[i]));
        scale = MAX(scale, fabs((double)a[i]));
    }
    return isfinite(most) ? most / scale : INFINITY;
}

static void compare(const struct setting *x)
{
    struct setting alone = {1, 1, "", x->mbs, .tied = x->tied, .frozen = x->frozen,
                            .skips = x->skips};
    struct result want = run(&alone), got = run(x);
    assert_memory_equal(got.loss, want.loss, sizeof want.loss);
    assert_memory_equal(got.aux, want.aux, sizeof want.aux);
    double sum = 0;
    assert_true(want.loss[0] > 0 && (x->mbs < 2 || want.loss[0] != want.loss[1]));
    for (int i = 0; i < want.graph.nparam; i++) {
        const struct param *q = &want.graph.param[i];
        bool table = strstr(q->name, x->skips ? "table" : "embed_tokens");
        bool apart = (table && (x->tied || x->skips)) ||
                     (x->skips && x->ranks > 1) || x->sharding.each;
        if (!want.grad[i] != !got.grad[i])
            fail_msg("%s: one has no gradient", q->name);
        if (!want.grad[i])
            continue;
        for (int64_t k = 0; k < q->count; k++)
            assert_true(got.given[i][k]);
        double off = difference(want.grad[i], got.grad[i], q->count);
        /* Sums of different parts round differently; nothing else may. */
        if (off > (apart ? 1e-5 : 0))
            fail_msg("%d x %d '%s', %d microbatches: %s is %g off", x->ranks, x->chunks,
                     x->layout, x->mbs, q->name, off);
        for (int64_t k = 0; k < q->count; k++)
            sum += fabs((double)got.grad[i][k]);
    }
    assert_true(sum > 0);
    arena_free(&want.arena);
    arena_free(&got.arena);
}

static void compare_all(const struct setting *x, int count)
{
    for (int i = 0; i < count; i++)
        compare(&x[i]);
}

static void stages_change_no_bit(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 1, "", 1, .lanes = false},
        {2, 1, "", 3, .lanes = true},
        {3, 1, "V,1,3H", 4, .lanes = true},             /* vision on its own stage */
        {4, 1, "V,1,1,2H", 8, .lanes = true},           /* taps to other stages */
        {4, 1, "V2,V3E,3,1H", 5, .lanes = false},                     /* uneven */
        {3, 1, "VE,4,H", 2, .lanes = true},
        {4, 1, "", 2, .lanes = true},                   /* fewer than stages */
    };
    compare_all(all, COUNT(all));
}

static void chunks_change_no_bit(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 2, "", 1, .lanes = true},
        {2, 2, "V,1,1,2H", 3, .lanes = true},
        {2, 2, "V,2,1,1H", 4, .lanes = false},
        {3, 2, "", 5, .lanes = true},
        {2, 3, "V2,V3,E,2,1,1H", 7, .lanes = true, .weave = true},
        {1, 2, "", 2, .lanes = false},
    };
    compare_all(all, COUNT(all));
}

static void delayed_weights_change_no_bit(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 1, "", 4, .zero_bubble = true, .lanes = true},
        {4, 1, "V,1,1,2H", 6, .zero_bubble = true, .lanes = true},
        {3, 1, "V,3,1H", 3, .zero_bubble = true, .recompute = "*"},
        {2, 2, "", 5, .zero_bubble = true, .lanes = true, .offload = "*"},
        {1, 1, "", 2, .zero_bubble = true},
    };
    compare_all(all, COUNT(all));
}

static void policies_in_stages_change_no_bit(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 1, "", 3, .lanes = true, .recompute = "*", .slack = 1.3},
        {3, 1, "", 4, .lanes = true, .offload = "*", .weave = true},
        {4, 1, "", 4, .recompute = "decoder.*", .offload = "vision.*", .weave = true},
    };
    compare_all(all, COUNT(all));
}

static void frozen_stages_change_no_bit(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {3, 1, "V,3,1H", 3, .lanes = true, .frozen = TOWER},
        {2, 1, "V,4H", 2, .lanes = true, .frozen = TOWER | 1 << PART_EMBEDDINGS},
        {4, 1, "V,1,1,2H", 3, .zero_bubble = true, .lanes = true, .frozen = TEXT},
        {2, 2, "", 4, .lanes = true, .frozen = 1 << PART_VISION},
    };
    compare_all(all, COUNT(all));
}

/* One value read by all stages: its gradients are added in another order, if at all. */
static void values_read_by_many_stages(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {4, 1, "", 3, .lanes = true, .skips = true},
        {2, 3, "VE1,1,1,1,1,1H", 3, .lanes = true, .skips = true},
        {2, 2, "", 4, .zero_bubble = true, .recompute = "*", .skips = true},
        {3, 2, "", 5, .lanes = true, .offload = "*", .weave = true, .skips = true},
    };
    compare_all(all, COUNT(all));
}

/* Stages whose ranks divide their state: the holders of a piece are of one stage. */
static void stages_of_several_ranks(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 1, "", 2, .lanes = true, .dp = 2},
        {2, 1, "V,4H", 3, .lanes = true, .dp = 2, .tied = true,
         .sharding = {.state = true, .weights = true, .each = true, .prefetch = 1}},
        {2, 2, "", 3, .zero_bubble = true, .lanes = true, .dp = 4, .tied = true,
         .recompute = "*", .sharding = {.state = true, .weights = true, .prefetch = 2}},
        {4, 1, "V,1,1,2H", 4, .lanes = true, .dp = 2, .frozen = TOWER,
         .sharding = {.state = true}},
    };
    compare_all(all, COUNT(all));
}

/* One table, two stages: both have the whole gradient, the same bits. */
static void tied_embeddings_live_on_two_stages(void **state)
{
    (void)state;
    static const struct setting all[] = {
        {2, 1, "", 2, .lanes = true, .tied = true},
        {4, 1, "V,1,1,2H", 5, .zero_bubble = true, .lanes = true, .tied = true},
        {2, 2, "", 3, .tied = true},
        {3, 1, "V,4,H", 2, .lanes = true, .tied = true,
         .frozen = 1 << PART_EMBEDDINGS},
    };
    compare_all(all, COUNT(all));
    struct result x = run(&all[1]);
    for (int i = 0; i < x.graph.nparam; i++)
        assert_int_equal(x.holders[i],
                         1 + (strstr(x.graph.param[i].name, "embed_tokens") != NULL));
    arena_free(&x.arena);
}

/* Stages have their own parameters and no others: together no more than one rank. */
static void stages_share_the_state(void **state)
{
    (void)state;
    struct setting alone = {1, 1, "", 1, .lanes = false};
    struct setting four = {4, 1, "V,1,1,2H", 1, .lanes = false};
    struct result a = run(&alone), b = run(&four);
    assert_int_equal(a.state_bytes, b.state_bytes);
    for (int i = 0; i < b.graph.nparam; i++)
        assert_int_equal(b.holders[i], 1);
    arena_free(&a.arena);
    arena_free(&b.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_change_no_bit),
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(delayed_weights_change_no_bit),
        cmocka_unit_test(policies_in_stages_change_no_bit),
        cmocka_unit_test(frozen_stages_change_no_bit),
        cmocka_unit_test(values_read_by_many_stages),
        cmocka_unit_test(stages_of_several_ranks),
        cmocka_unit_test(tied_embeddings_live_on_two_stages),
        cmocka_unit_test(stages_share_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
