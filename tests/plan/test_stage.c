/* test_stage.c - pipelines as plans: where layers go, what crosses, what each rank has,
 * and that the ranks' plans fit together. */
#include "check.h"

#include "plan/need.h"
#include "plan/plan.h"
#include "plan/toy.h"
#include "tests/model/case.h"

#include <math.h>

enum { MAX_RANKS = 4 };

enum schedule { PLAIN, ZERO_BUBBLE };

struct setting {
    int ranks, chunks;
    const char *layout;
    int mbs;
    enum schedule schedule;
    const char *recompute, *offload;
    bool weave, tied, forward, skips;
    unsigned frozen;
};

struct pipeline {
    struct graph *graph;                /* the toy's, or the whole model's */
    struct stages *stages;
    const struct plan *plan[MAX_RANKS];
};

static struct order order_of(struct arena *a, const struct setting *x, int rank)
{
    if (x->forward)
        return order_forward_only(a, x->ranks, x->chunks, x->mbs);
    return x->schedule == ZERO_BUBBLE
               ? order_zero_bubble(a, rank, x->ranks, x->chunks, x->mbs)
               : order_interleaved(a, rank, x->ranks, x->chunks, x->mbs);
}

static struct pipeline pipeline_make(struct arena *a, struct graph *g,
                                     const struct setting *x, const int *output,
                                     int outputs)
{
    struct pipeline p = {.graph = g, .stages = NEW(a, struct stages, 1)};
    graph_freeze(g, x->frozen);
    assert_ok(stages_make(a, g, x->ranks, x->chunks, x->layout, NULL, p.stages));
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, a, g, x->recompute ? x->recompute : "none",
                           x->offload ? x->offload : "none"));
    policy.weave = x->weave;
    for (int r = 0; r < x->ranks; r++) {
        struct order order = order_of(a, x, r);
        p.plan[r] = plan_build(a, g, &(struct plan_options){
            .order = &order, .policy = &policy, .moments = 2, .stages = p.stages,
            .stage = r, .output = output, .outputs = outputs});
    }
    return p;
}

static struct pipeline toy_pipeline(struct arena *a, struct toy *t,
                                    const struct setting *x)
{
    *t = toy_record_skips(a, (struct toy_shape){8, 16, 24, 40, 2, 6, false}, x->skips);
    return pipeline_make(a, &t->graph, x, &t->loss, 1);
}

static const struct decoder_options options = {.aux_coef = 0.02, .z_coef = 0.01,
                                               .loss = true};

static struct pipeline model_pipeline(struct arena *a, const struct setting *x)
{
    struct model_config c = case_config();
    struct decoder_graph d;
    struct graph *g = NEW(a, struct graph, 1);
    c.decoder.tied = x->tied;
    *g = case_graph(a, &c, &options, &d);
    return pipeline_make(a, g, x, (int[]){d.loss, d.aux}, 2);
}

static int64_t count(const struct plan *p, enum step_kind kind, const char *name)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->ntally; i++)
        if (p->tally[i].kind == kind && (!name || strcmp(p->tally[i].name, name) == 0))
            n += p->tally[i].count;
    return n;
}

static const struct setting settings[] = {
    {2, 1, "", 1, .schedule = PLAIN},
    {2, 1, "", 4, .schedule = PLAIN, .recompute = "act norm", .offload = "u pixels"},
    {2, 1, "V,6H", 3, .schedule = PLAIN, .weave = true},
    {3, 1, "V,4,2H", 5, .schedule = PLAIN, .recompute = "*", .weave = true},
    {4, 1, "", 8, .schedule = PLAIN, .frozen = 1u << PART_VISION},
    {4, 1, "V1,V1,3,3H", 3, .schedule = ZERO_BUBBLE},
    {4, 1, "", 7, .schedule = ZERO_BUBBLE, .recompute = "act", .offload = "decoder.u"},
    {2, 2, "", 1, .schedule = PLAIN},
    {2, 2, "", 3, .schedule = PLAIN, .recompute = "*"},
    {2, 2, "V,2,2,2H", 4, .schedule = ZERO_BUBBLE, .recompute = "norm", .weave = true},
    {3, 2, "", 5, .schedule = PLAIN, .offload = "*"},
    {2, 3, "", 8, .schedule = PLAIN, .weave = true},
    {4, 2, "", 6, .schedule = ZERO_BUBBLE,
     .frozen = 1u << PART_VISION | 1u << PART_EMBEDDINGS},
    {3, 1, "", 4, .forward = true},
    {2, 2, "", 5, .forward = true},
    {4, 1, "", 3, .schedule = PLAIN, .skips = true},
    {2, 2, "", 3, .schedule = PLAIN, .skips = true},
    {2, 3, "", 5, .schedule = ZERO_BUBBLE, .recompute = "*", .skips = true},
    {1, 1, "", 2, .schedule = PLAIN},
    {1, 3, "", 2, .schedule = ZERO_BUBBLE},
};

static void checked(const struct pipeline *p, const struct setting *x)
{
    for (int r = 0; r < x->ranks; r++)
        if (!plan_check(p->plan[r]))
            fail_msg("%d x %d '%s', %d microbatches, rank %d: %s", x->ranks, x->chunks,
                     x->layout, x->mbs, r, fail_message());
    if (!pipe_check(p->plan, x->ranks))
        fail_msg("%d x %d '%s', %d microbatches, schedule %d: %s", x->ranks, x->chunks,
                 x->layout, x->mbs, x->schedule, fail_message());
}

static void every_pipeline_checks(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(settings); i++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct pipeline p = toy_pipeline(&a, &t, &settings[i]);
        checked(&p, &settings[i]);
        arena_free(&a);
    }
}

/* Any number of ranks, chunks and microbatches, both schedules, woven or not. */
static void small_pipelines_check(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
        for (int chunks = 1; chunks * ranks <= 8 && chunks <= 2; chunks++)
            for (int mbs = 1; mbs <= 8; mbs++)
                for (int k = 0; k < 4; k++) {
                    struct setting x = {ranks, chunks, "", mbs,
                                        .schedule = k % 2 ? ZERO_BUBBLE : PLAIN,
                                        .weave = k / 2};
                    struct arena a = arena_make("test");
                    struct toy t;
                    struct pipeline p = toy_pipeline(&a, &t, &x);
                    checked(&p, &x);
                    arena_free(&a);
                }
}

static void whole_models_check(void **state)
{
    (void)state;
    static const struct setting models[] = {
        {2, 1, "", 3, .schedule = PLAIN},
        {2, 1, "", 3, .schedule = PLAIN, .tied = true},
        {4, 1, "V,1,1,2H", 3, .schedule = ZERO_BUBBLE, .tied = true},
        {4, 1, "V2,V3E,3,1H", 5, .schedule = PLAIN, .recompute = "decoder.*",
         .offload = "vision.*"},
        {2, 2, "V,1,1,2H", 4, .schedule = PLAIN, .tied = true, .weave = true},
        {3, 1, "V,3,1H", 3, .schedule = PLAIN,
         .frozen = 1u << PART_VISION | 1u << PART_PROJECTOR},
    };
    for (int i = 0; i < COUNT(models); i++) {
        struct arena a = arena_make("test");
        struct pipeline p = model_pipeline(&a, &models[i]);
        checked(&p, &models[i]);
        arena_free(&a);
    }
}

/* ---- layouts ---- */

static void layouts_say_where_layers_go(void **state)
{
    (void)state;
    static const struct { int stages; const char *layout; int of[10]; } good[] = {
        /* patch, 2 blocks | table, 5 blocks, head */
        {2, "V,5H", {0, 0, 0, 1, 1, 1, 1, 1, 1, 1}},
        {2, "V, 5", {0, 0, 0, 1, 1, 1, 1, 1, 1, 1}},
        {2, "3,2", {0, 0, 0, 0, 0, 0, 0, 1, 1, 1}},
        {3, "VE,5,H", {0, 0, 0, 0, 1, 1, 1, 1, 1, 2}},
        {4, "V1,V1E1,3,1H", {0, 0, 1, 1, 1, 2, 2, 2, 3, 3}},
        {4, "V2,E,4,1", {0, 0, 0, 1, 2, 2, 2, 2, 3, 3}},
    };
    static const struct { const char *layout, *says; } bad[] = {
        {"V,5", "names 2 stages, ranks x chunks is 3"},
        {"V,2,2", "1 of 5 decoder layers are on no stage"},
        {"V,3,3H", "wants 3 decoder layers, of 5 in the model 2 are left"},
        {"V3,2,3H", "wants 3 vision blocks, of 2 in the model 2 are left"},
        {"V1,3,2", "while 1 vision blocks are left"},
        {"V,3H,2", "while 2 decoder layers are left"},
        {"V,x,5H", "'x' in 'x' means nothing"},
        {"V,5,0", "stage 2 has nothing"},
        {"V,5HH,1", "wants 1 head, of 1 in the model 0 are left"},
        {"V,99999999999999999999,1", "of 5 in the model 5 are left"},
    };
    struct arena a = arena_make("test");
    struct toy t = toy_record(&a, (struct toy_shape){8, 16, 24, 40, 2, 5, false});
    struct stages s;
    for (int i = 0; i < COUNT(good); i++) {
        if (!stages_make(&a, &t.graph, good[i].stages, 1, good[i].layout, NULL, &s))
            fail_msg("'%s': %s", good[i].layout, fail_message());
        for (int l = 0; l < 10; l++)
            if (s.of[l] != good[i].of[l])
                fail_msg("'%s': layer %d is on stage %d", good[i].layout, l, s.of[l]);
        struct stages again;
        const char *text = stages_text(&a, &t.graph, &s);
        assert_ok(stages_make(&a, &t.graph, 1, good[i].stages, text, NULL, &again));
        assert_memory_equal(again.of, s.of, sizeof(int) * 10);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        assert_fails(stages_make(&a, &t.graph, 3, 1, bad[i].layout, NULL, &s),
                     bad[i].says);
        assert_int_equal(fail_fault(), FAULT_USAGE);
    }
    assert_fails(stages_make(&a, &t.graph, 5, 2, "", NULL, &s),
                 "more than the 9 pieces");
    arena_free(&a);
}

static double most_work(const struct stages *s, const double *work, int layers)
{
    double most = 0, sum = 0;
    for (int l = 0; l < layers; l++) {
        sum = l > 0 && s->of[l] == s->of[l - 1] ? sum + work[l] : work[l];
        most = MAX(most, sum);
    }
    return most;
}

/* No other cut has a smaller largest stage: all cuts are tried. */
static void even_cuts_are_the_best(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t = toy_record(&a, (struct toy_shape){8, 16, 24, 40, 2, 5, false});
    int layers = t.graph.layers;
    for (int round = 0; round < 8; round++) {
        double *work = stages_work(&a, &t.graph);
        for (int l = 0; l < layers; l++) {
            assert_true(work[l] >= 0);
            if (round > 0)
                work[l] = 1 + (double)(random_bits(random_key(3, "work"),
                                                   (uint64_t)(round * 99 + l)) % 50);
        }
        for (int stages = 1; stages <= 5; stages++) {
            struct stages s, other = {stages, 1, NEW(&a, int, layers)};
            assert_ok(stages_make(&a, &t.graph, stages, 1, NULL, work, &s));
            double got = most_work(&s, work, layers), best = INFINITY;
            for (int cuts = 0; cuts < 1 << (layers - 1); cuts++) {
                int at = 0;
                for (int l = 1; l < layers; l++)
                    other.of[l] = at += cuts >> (l - 1) & 1;
                if (at == stages - 1 && !(cuts & 1))    /* patches stay with a block */
                    best = MIN(best, most_work(&other, work, layers));
            }
            assert_true(got == best);
        }
    }
    arena_free(&a);
}

/* ---- what each rank has ---- */

static bool has_unit(const struct plan *p, const char *param)
{
    for (int64_t i = 0; i < p->graph->nparam; i++)
        if (strcmp(p->graph->param[i].name, param) == 0)
            return p->weight[p->graph->param[i].unit] >= 0;
    fail_msg("no parameter %s", param);
    return false;
}

static void ranks_have_their_own_units_and_inputs(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const struct setting x = {3, 1, "V,4,2H", 2, .schedule = PLAIN};
    struct toy t;
    struct pipeline p = toy_pipeline(&a, &t, &x);
    static const bool table[] = {false, true, true};    /* the toy is tied */
    int64_t sum = 0;
    for (int r = 0; r < 3; r++) {
        assert_int_equal(has_unit(p.plan[r], "vision.patch"), r == 0);
        assert_int_equal(has_unit(p.plan[r], "decoder.table"), table[r]);
        assert_int_equal(has_unit(p.plan[r], "decoder.3.up"), r == 1);
        assert_int_equal(has_unit(p.plan[r], "decoder.4.up"), r == 2);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "pixels"), r == 0 ? 2 : 0);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "ids"), r == 1 ? 2 : 0);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "target"), r == 2 ? 2 : 0);
        assert_int_equal(count(p.plan[r], STEP_TIE, NULL), table[r]);
        assert_int_equal(p.plan[r]->output_buffer[0] >= 0, r == 2);
        sum += p.plan[r]->state_bytes;
    }
    struct toy one;
    struct pipeline whole =
        toy_pipeline(&a, &one, &(struct setting){1, 1, "", 2, .schedule = PLAIN});
    int64_t tied = 0;                   /* weight, gradient and two moments once more */
    for (int64_t i = 0; i < whole.plan[0]->nbuffer; i++)
        if (whole.plan[0]->buffer[i].whole &&
            strcmp(one.graph.unit[whole.plan[0]->buffer[i].unit].name, "table") == 0)
            tied += (whole.plan[0]->buffer[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    assert_int_equal(sum, whole.plan[0]->state_bytes + tied);
    arena_free(&a);
}

/* One microbatch's messages, "x to 1, ...", in the order of the plan. */
static const char *messages(struct arena *a, const struct plan *p, enum step_kind kind)
{
    struct text t = text_make(a);
    for (int64_t i = 0; i < p->nstep; i++)
        if (p->step[i].kind == kind && p->step[i].mb == 0)
            text_add(&t, "%s%s %d", t.size ? ", " : "",
                     p->graph->value[p->step[i].value].name, p->step[i].peer);
    return t.at;
}

/* Through the whole model: image features and taps go straight to their layers, the
 * router's sums past the dense layer, rotary tables nowhere; no pipeline code is told
 * of any of them. */
static void what_crosses_is_what_is_read(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const struct setting x = {4, 1, "V,1,1,2H", 1, .schedule = PLAIN};
    struct pipeline p = model_pipeline(&a, &x);
    static const char *const sends[] = {
        "tap 1, tap 2, merged 1", "chosen 3, sum 3, z2 3, rows 3, x 2", "x 3", "",
    };
    static const char *const gradients[] = {
        "", "tap 0, merged 0", "tap 0, x 1", "sum 1, z2 1, x 2",
    };
    for (int r = 0; r < 4; r++) {
        assert_string_equal(messages(&a, p.plan[r], STEP_SEND), sends[r]);
        assert_string_equal(messages(&a, p.plan[r], STEP_SEND_GRAD), gradients[r]);
        assert_int_equal(count(p.plan[r], STEP_FORWARD, "rope_table"), 1);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "position"), r > 0);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "pixels"), r == 0);
        assert_int_equal(count(p.plan[r], STEP_LOAD, "live"), r == 1 || r == 3);
    }
    arena_free(&a);
}

/* One value read by every stage of two ranks: it goes over once, and what comes back is
 * added to what the maker's own later stage gave. */
static void skipping_values_cross_once(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct setting x = {2, 3, "VE1,1,1,1,1,1H", 2, .schedule = PLAIN, .skips = true};
    struct toy t;
    struct pipeline p = toy_pipeline(&a, &t, &x);
    checked(&p, &x);
    assert_string_equal(messages(&a, p.plan[0], STEP_SEND), "x 1, x 1, x 1, x 1");
    assert_string_equal(messages(&a, p.plan[1], STEP_SEND), "x 0, x 0");
    assert_int_equal(count(p.plan[0], STEP_ADD, "x"), x.mbs);
    assert_int_equal(count(p.plan[1], STEP_ADD, NULL), 0);
    arena_free(&a);
}

static void nobody_sends_gradients_that_nobody_wants(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct setting x = {3, 1, "V,4,2H", 2, .schedule = PLAIN,
                        .frozen = 1u << PART_VISION};
    struct toy t;
    struct pipeline p = toy_pipeline(&a, &t, &x);
    assert_int_equal(count(p.plan[0], STEP_BACKWARD, NULL), 0);
    assert_int_equal(count(p.plan[0], STEP_WEIGHT, NULL), 0);
    assert_int_equal(count(p.plan[0], STEP_RECV_GRAD, NULL), 0);
    assert_int_equal(count(p.plan[1], STEP_SEND_GRAD, NULL), 0);
    assert_int_equal(count(p.plan[2], STEP_SEND_GRAD, NULL), 2);
    for (int64_t i = 0; i < p.plan[0]->nbuffer; i++)
        assert_false(p.plan[0]->buffer[i].gradient);
    /* Vision alone trains: gradients pass through frozen stages, none is kept there. */
    x.frozen = 1u << PART_DECODER | 1u << PART_EMBEDDINGS;
    p = toy_pipeline(&a, &t, &x);
    assert_int_equal(count(p.plan[0], STEP_RECV_GRAD, NULL), 2);
    assert_int_equal(count(p.plan[1], STEP_WEIGHT, NULL), 0);
    assert_true(count(p.plan[1], STEP_BACKWARD, NULL) > 0);
    checked(&p, &x);
    arena_free(&a);
}

/* 1F1B: a stage holds activations of as many microbatches as stages follow it, itself
 * included, however many there are; the next one's inputs may be there already. */
static void activations_are_bounded(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    int64_t bytes[3][MAX_RANKS];
    static const int mbs[3] = {1, 4, 8};
    for (int i = 0; i < 3; i++) {
        struct setting x = {4, 1, "V,2,2,2H", mbs[i], .schedule = PLAIN};
        struct pipeline p = toy_pipeline(&a, &t, &x);
        for (int r = 0; r < 4; r++)
            bytes[i][r] = p.plan[r]->live_bytes - p.plan[r]->state_bytes;
    }
    int64_t inputs = 0, outputs = ALIGN;
    for (int v = 0; v < t.graph.nvalue; v++)
        if (t.graph.value[v].node < 0)
            inputs += (value_bytes(&t.graph.value[v]) + ALIGN - 1) / ALIGN * ALIGN;
    for (int r = 0; r < 4; r++) {
        assert_true(bytes[2][r] <= bytes[1][r] + inputs + 4 * outputs);
        assert_true(bytes[1][r] <= (4 - r) * bytes[0][r] + inputs + 4 * outputs);
        if (r < 3)
            assert_true(bytes[1][r] > (4 - r - 1) * bytes[0][r]);
    }
    arena_free(&a);
}

/* ---- planted faults ---- */

static void faults_between_ranks_are_noticed(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const struct setting x = {2, 2, "", 3, .schedule = PLAIN};
    struct toy t;
    struct pipeline p = toy_pipeline(&a, &t, &x);
    int tried = 0;
    for (int r = 0; r < 2; r++) {
        struct plan *q = (struct plan *)p.plan[r];
        for (int64_t i = 0; i < q->nstep; i++) {
            struct step *s = &q->step[i], was = *s;
            if (s->peer < 0)
                continue;
            s->tag++;
            assert_false(pipe_check(p.plan, 2));
            *s = was;
            s->kind = STEP_FORWARD;     /* as if it were not there */
            s->peer = -1;
            assert_false(pipe_check(p.plan, 2));
            *s = was;
            tried++;
        }
    }
    assert_true(tried > 20 && pipe_check(p.plan, 2));

    /* A rank that wants a microbatch's gradient before it has sent the microbatch. */
    struct plan *q = (struct plan *)p.plan[0];
    int64_t length = q->length[LANE_PIPE], first = -1;
    for (int64_t i = 0; i < q->nstep && first < 0; i++)
        if (q->step[i].kind == STEP_SEND)
            first = i;
    for (int64_t i = first; i < q->nstep; i++)
        if (q->step[i].kind == STEP_RECV_GRAD) {
            int64_t at = q->step[i].at;
            q->step[i].at = q->step[first].at;
            q->step[first].at = at;
            break;
        }
    assert_int_equal(length, q->length[LANE_PIPE]);
    assert_fails(pipe_check(p.plan, 2), "waits for ever");
    arena_free(&a);
}

/* Any step of any rank left out is noticed, by its own plan or by the others. */
static void no_step_can_be_left_out(void **state)
{
    (void)state;
    static const struct setting faulty[] = {
        {2, 1, "", 2, .schedule = ZERO_BUBBLE, .recompute = "act", .offload = "u"},
        {2, 2, "", 2, .schedule = PLAIN, .skips = true},
    };
    for (int k = 0; k < COUNT(faulty); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct pipeline x = toy_pipeline(&a, &t, &faulty[k]);
        for (int r = 0; r < 2; r++) {
            struct plan *p = (struct plan *)x.plan[r];
            for (int64_t i = 0; i < p->nstep; i++) {
                struct step out = p->step[i];
                size_t rest = sizeof out * (size_t)(p->nstep - i - 1);
                memmove(&p->step[i], &p->step[i + 1], rest);
                p->nstep--;
                plan_lifetimes(p);
                plan_place(p, 1);
                plan_waits(p);
                if (plan_check(p) && pipe_check(x.plan, 2))
                    fail_msg("step %lld of rank %d, a %s, is not missed", (long long)i,
                             r, step_name[out.kind]);
                memmove(&p->step[i + 1], &p->step[i], rest);
                p->step[i] = out;
                p->nstep++;
            }
            plan_lifetimes(p);
            plan_place(p, 1);
            plan_waits(p);
        }
        checked(&x, &faulty[k]);
        arena_free(&a);
    }
}

static void no_wait_can_be_dropped(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const struct setting x = {2, 2, "", 3, .schedule = PLAIN, .skips = true};
    struct toy t;
    struct pipeline y = toy_pipeline(&a, &t, &x);
    for (int r = 0; r < 2; r++)
        for (int64_t i = 0; i < y.plan[r]->nstep; i++)
            for (int l = 0; l < LANES; l++) {
                int64_t *wait = &((struct plan *)y.plan[r])->step[i].wait[l];
                if (*wait == 0)
                    continue;
                (*wait)--;
                if (plan_check(y.plan[r]))
                    fail_msg("rank %d, step %lld: a wait less is not noticed", r,
                             (long long)i);
                (*wait)++;
            }
    arena_free(&a);
}

/* ---- time ---- */

/* Weight passes in place of waiting: what order.c promises, of whole plans. */
static void bubbles_are_predicted(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    double bubble[4];
    for (int k = 0; k < 4; k++) {
        struct setting x = {2, k == 2 ? 2 : 1, "", k == 3 ? 32 : 8,
                            .schedule = k == 1 ? ZERO_BUBBLE : PLAIN};
        struct toy t;
        struct pipeline p = toy_pipeline(&a, &t, &x);
        const double *cost[2];
        for (int r = 0; r < 2; r++) {
            double *c = NEW(&a, double, p.plan[r]->nstep);
            for (int64_t i = 0; i < p.plan[r]->nstep; i++)
                c[i] = p.plan[r]->step[i].lane == LANE_COMPUTE;
            cost[r] = c;
        }
        struct pipe_prediction out;
        assert_ok(pipe_simulate(p.plan, 2, cost, &out));
        bubble[k] = out.bubble;
        assert_true(out.seconds > 0 && out.bubble > 0 && out.bubble < 1);
        print_message("bubble %.3f\n", out.bubble);
    }
    assert_true(bubble[1] < bubble[0] && bubble[3] < bubble[0]);
    arena_free(&a);
}

/* ---- golden plans ---- */

static void plans_read_as_before(void **state)
{
    (void)state;
    static const struct { const char *name; struct setting x; } golden[] = {
        {"stage_1f1b", {2, 1, "V1E2,1H", 2, .schedule = PLAIN}},
        {"stage_zero_bubble", {2, 1, "VE,3H", 3, .schedule = ZERO_BUBBLE}},
    };
    for (int i = 0; i < COUNT(golden); i++) {
        struct arena a = arena_make("test");
        struct text text = text_make(&a);
        struct toy t = toy_record(&a, (struct toy_shape){8, 16, 24, 40, 1, 3, false});
        struct pipeline p = pipeline_make(&a, &t.graph, &golden[i].x, &t.loss, 1);
        checked(&p, &golden[i].x);
        for (int r = 0; r < 2; r++)
            plan_explain(p.plan[r], &text, -1);
        assert_golden(&a, arena_text(&a, "tests/plan/%s.txt", golden[i].name), text);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_say_where_layers_go),
        cmocka_unit_test(even_cuts_are_the_best),
        cmocka_unit_test(every_pipeline_checks),
        cmocka_unit_test(small_pipelines_check),
        cmocka_unit_test(whole_models_check),
        cmocka_unit_test(ranks_have_their_own_units_and_inputs),
        cmocka_unit_test(what_crosses_is_what_is_read),
        cmocka_unit_test(skipping_values_cross_once),
        cmocka_unit_test(nobody_sends_gradients_that_nobody_wants),
        cmocka_unit_test(activations_are_bounded),
        cmocka_unit_test(faults_between_ranks_are_noticed),
        cmocka_unit_test(no_step_can_be_left_out),
        cmocka_unit_test(no_wait_can_be_dropped),
        cmocka_unit_test(bubbles_are_predicted),
        cmocka_unit_test(plans_read_as_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
