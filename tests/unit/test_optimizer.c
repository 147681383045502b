/* test_optimizer.c - schedules by hand; whole updates against AdamW in doubles. */
#include "check.h"

#include "base/random.h"
#include "model/case.h"
#include "train/optimizer.h"

#include <math.h>

static bool near(double is, double want)
{
    return fabs(is - want) <= 1e-12 * MAX(fabs(want), 1e-12);
}

static struct recipe schedule(struct arena *a, enum optim_schedule name, int64_t warmup,
                              int64_t decay, int64_t steps, double floor)
{
    struct recipe r;
    recipe_default(a, &r);
    r.optim_schedule = name;
    r.optim_lr = 2;
    r.optim_warmup = warmup;
    r.optim_decay_steps = decay;
    r.train_steps = steps;
    r.optim_floor = floor;
    return r;
}

static void check_rates(const struct recipe *r, int n, const double (*at)[2])
{
    for (int i = 0; i < n; i++)
        if (!near(schedule_rate(r, (int64_t)at[i][0], 0), at[i][1]))
            fail_msg("%s: rate of step %g is %.17g, expected %.17g",
                     recipe_word("optim.schedule", (int)r->optim_schedule), at[i][0],
                     schedule_rate(r, (int64_t)at[i][0], 0), at[i][1]);
}
#define RATES(r, ...)                                                                  \
    check_rates(&(r), COUNT(((const double[][2]){__VA_ARGS__})),                       \
                (const double[][2]){__VA_ARGS__})

static void test_schedules(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r = schedule(&a, optim_schedule_cosine, 4, 0, 12, 0.1);
    /* 2 (0.1 + 0.9 (1 + cos(pi i / 8)) / 2), cos(pi/4) = sqrt(1/2) */
    RATES(r, {1, 0.5}, {2, 1}, {3, 1.5}, {4, 2}, {8, 1.1},
          {6, 2 * (0.1 + 0.45 * (1 + sqrt(0.5)))},
          {10, 2 * (0.1 + 0.45 * (1 - sqrt(0.5)))}, {12, 0.2}, {13, 0.2}, {1000, 0.2});
    for (int64_t i = 5; i <= 12; i++)
        assert_true(schedule_rate(&r, i, 0) < schedule_rate(&r, i - 1, 0));
    r = schedule(&a, optim_schedule_cosine, 0, 0, 2, 0);
    RATES(r, {1, 1}, {2, 0});
    r = schedule(&a, optim_schedule_cosine, 5, 0, 5, 0.5);           /* all warmup */
    RATES(r, {1, 0.4}, {5, 2}, {6, 1});
    r = schedule(&a, optim_schedule_wsd, 2, 4, 10, 0.1); /* flat to 6, down by 0.45 */
    RATES(r, {1, 1}, {2, 2}, {3, 2}, {6, 2}, {7, 1.55}, {8, 1.1}, {9, 0.65}, {10, 0.2},
          {11, 0.2});
    r = schedule(&a, optim_schedule_wsd, 0, 0, 10, 0.1);             /* never decays */
    RATES(r, {1, 2}, {9, 2}, {10, 2});
    r = schedule(&a, optim_schedule_cosine, 4, 0, 100, 0.1);   /* by epochs, shares */
    r.train_epochs = 2;
    const double of[][3] = {{2, 0, 1}, {4, 0, 2}, {9, 0.5, 1.1}, {40, 1, 0.2}};
    for (int i = 0; i < COUNT(of); i++)
        assert_true(near(schedule_rate(&r, (int64_t)of[i][0], of[i][1]), of[i][2]));
    r = schedule(&a, optim_schedule_constant, 2, 4, 10, 0.1);
    RATES(r, {1, 1}, {2, 2}, {10, 2}, {99, 2});
    arena_free(&a);
}

static void test_part_rates(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r;
    recipe_default(&a, &r);
    for (int p = 0; p < PARTS; p++) {
        assert_true(part_rate(&r, (enum part)p) == 1);
        char key[64];
        snprintf(key, sizeof key, "optim.lr_%s", part_name[p]);
        assert_ok(recipe_set(&r, key, "0.25"));         /* every part has its key */
        assert_true(part_rate(&r, (enum part)p) == 0.25);
        assert_ok(recipe_set(&r, key, "1"));
    }
    arena_free(&a);
}

struct rig {
    struct arena arena;
    struct model model;
    struct team *team;
    struct stream stream;
    struct machine *machine;
};

static void rig_open(struct rig *g, const struct recipe *r, unsigned frozen,
                     enum dtype compute)
{
    struct model_config c = case_config();
    struct capacity capacity = {.tokens = 8, .patches = 4, .segments = 1, .images = 1};
    struct model_purpose purpose = purpose_train(r, &c, frozen);
    *g = (struct rig){.arena = arena_make("rig"), .team = team_make(2)};
    g->stream = (struct stream){.team = g->team};
    purpose.dtype = compute;
    model_record(&g->arena, &c, &capacity, &purpose, NULL, 0, &g->model);
    struct order order = order_1f1b(&g->arena, 0, 1, 1);
    struct plan *p = plan_build(&g->arena, &g->model.graph,
                                &(struct plan_options){.order = &order, .moments = 2});
    assert_ok(machine_make(&g->arena, p,
                           &(struct machine_options){.ops = &ops_cpu, .team = g->team},
                           &g->machine));
}

static void rig_close(struct rig *g)
{
    machine_free(g->machine);
    team_free(g->team);
    arena_free(&g->arena);
}

static void fill(struct tensor t, uint64_t key, double scale)
{
    float *x = t.data;
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = (float)(scale * random_normal(key, (uint64_t)i));
}

/* The textbook: Loshchilov and Hutter 2019, algorithm 2, in doubles. */
struct book { double *w, *m, *v; };

static void book_step(struct book *b, const float *grad, int64_t n, double rate,
                      double decay, double clip, int64_t t, const struct recipe *r)
{
    for (int64_t i = 0; i < n; i++) {
        double g = clip * (double)grad[i];
        b->m[i] = r->optim_beta1 * b->m[i] + (1 - r->optim_beta1) * g;
        b->v[i] = r->optim_beta2 * b->v[i] + (1 - r->optim_beta2) * g * g;
        double m = b->m[i] / (1 - pow(r->optim_beta1, (double)t));
        double v = b->v[i] / (1 - pow(r->optim_beta2, (double)t));
        b->w[i] -= rate * (m / (sqrt(v) + r->optim_epsilon) + decay * b->w[i]);
    }
}

static double gap(const float *is, const double *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = MAX(worst, fabs((double)is[i] - want[i]) / (1e-3 + fabs(want[i])));
    return worst;
}

static void test_steps(void **state)
{
    (void)state;
    enum { STEPS = 7 };
    struct arena a = arena_make("test");
    struct recipe r = schedule(&a, optim_schedule_cosine, 3, 0, STEPS, 0.1);
    r.optim_lr = 0.01;
    r.optim_clip = 1;
    r.optim_lr_experts = 0.5;
    r.optim_lr_vision = 3;
    struct rig g;
    rig_open(&g, &r, 1u << PART_PROJECTOR, DTYPE_F32);
    const struct graph *graph = &g.model.graph;
    struct book *book = NEW(&a, struct book, graph->nparam);
    int frozen = 0, matrices = 0, clipped = 0;
    for (int p = 0; p < graph->nparam; p++) {
        struct tensor w = machine_weight(g.machine, p);
        int64_t n = tensor_count(w);
        fill(w, (uint64_t)p, 0.5);
        book[p] = (struct book){NEW(&a, double, n), NEW(&a, double, n), NEW(&a, double,
                                                                            n)};
        for (int64_t i = 0; i < n; i++)
            book[p].w[i] = ((float *)w.data)[i];
        frozen += !graph->param[p].trainable;
        matrices += graph->param[p].decay;
        if (graph->param[p].ndim == 1)          /* norms and biases do not decay */
            assert_false(graph->param[p].decay);
        assert_true(graph->param[p].trainable ==
                    (graph->param[p].part != PART_PROJECTOR));
    }
    assert_true(frozen > 0 && matrices > 10);
    for (int64_t step = 1; step <= STEPS; step++) {
        double squares = 0;
        for (int p = 0; p < graph->nparam; p++) {
            if (!graph->param[p].trainable)
                continue;
            struct tensor d = machine_grad(g.machine, p);
            fill(d, (uint64_t)(step * 1000 + p), step % 2 ? 1e-4 : 0.5);
            for (int64_t i = 0; i < tensor_count(d); i++)
                squares += (double)((float *)d.data)[i] * (double)((float *)d.data)[i];
        }
        double norm = sqrt(squares), clip = norm > 1 ? 1 / norm : 1;
        clipped += norm > 1;
        struct update u;
        assert_ok(optimizer_step(&r, &g.model, g.machine, &ops_cpu, &g.stream,
                                 schedule_rate(&r, step, 0), step - 1, &u));
        assert_false(u.skipped);
        assert_true(fabs(u.grad_norm - norm) < 1e-9 * norm);
        assert_true(u.rate == schedule_rate(&r, step, 0));
        for (int p = 0; p < graph->nparam; p++) {
            const struct param *param = &graph->param[p];
            struct tensor w = machine_weight(g.machine, p);
            int64_t n = tensor_count(w);
            if (param->trainable)
                book_step(&book[p], machine_grad(g.machine, p).data, n,
                          u.rate * (param->part == PART_EXPERTS ? 0.5 :
                                    param->part == PART_VISION ? 3 : 1),
                          param->decay ? r.optim_decay : 0, clip, step, &r);
            if (gap(w.data, book[p].w, n) > 2e-5)
                fail_msg("step %d: %s is off by %g", (int)step, param->name,
                         gap(w.data, book[p].w, n));
            if (param->trainable) {
                assert_true(gap(machine_moment(g.machine, p, 0).data, book[p].m,
                                n) < 2e-5);
                assert_true(gap(machine_moment(g.machine, p, 1).data, book[p].v,
                                n) < 2e-5);
            }
        }
    }
    assert_true(clipped > 0 && clipped < STEPS);
    rig_close(&g);
    arena_free(&a);
}

/* Bits of all weights and moments, summed. */
static uint64_t digest(struct rig *g)
{
    uint64_t sum = 0;
    for (int p = 0; p < g->model.graph.nparam; p++)
        for (int k = -1; k < 2; k++) {
            struct tensor t = k < 0 ? machine_weight(g->machine, p)
                                    : machine_moment(g->machine, p, k);
            for (int64_t i = 0; tensor_is(t) && i < tensor_count(t); i++)
                sum = sum * 31 + ((uint32_t *)t.data)[i];
        }
    return sum;
}

static void test_skip_and_clip(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r = schedule(&a, optim_schedule_constant, 0, 0, 10, 0);
    struct rig g;
    rig_open(&g, &r, 0, DTYPE_F32);
    int last = (int)g.model.graph.nparam - 1;
    for (int p = 0; p <= last; p++) {
        fill(machine_weight(g.machine, p), (uint64_t)p, 1);
        fill(machine_grad(g.machine, p), (uint64_t)p + 99, 1);
    }
    uint64_t before = digest(&g);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < COUNT(bad); i++)
        for (int p = 0; p <= last; p += last) {
            struct tensor d = machine_grad(g.machine, p);
            float *at = (float *)d.data + tensor_count(d) - 1, old = *at;
            *at = bad[i];
            struct update u;
            assert_ok(optimizer_step(&r, &g.model, g.machine, &ops_cpu, &g.stream,
                                     schedule_rate(&r, 1, 0), 0, &u));
            assert_true(u.skipped);
            assert_false(isfinite(u.grad_norm));
            assert_true(digest(&g) == before);          /* not a bit changed */
            *at = old;
        }
    /* a huge but finite gradient is clipped, not skipped */
    *(float *)machine_grad(g.machine, 0).data = 1e30f;
    struct update u;
    assert_ok(optimizer_step(&r, &g.model, g.machine, &ops_cpu, &g.stream,
                             schedule_rate(&r, 1, 0), 0, &u));
    assert_false(u.skipped);
    assert_true(fabs(u.grad_norm / 1e30 - 1) < 1e-5);
    assert_true(fabs(*(float *)machine_moment(g.machine, 0, 0).data - 0.1f) < 1e-6f);
    /* without clipping it goes in as it is */
    r.optim_clip = 0;
    *(float *)machine_grad(g.machine, 0).data = 1000;
    *(float *)machine_moment(g.machine, 0, 0).data = 0;
    assert_ok(optimizer_step(&r, &g.model, g.machine, &ops_cpu, &g.stream,
                             schedule_rate(&r, 2, 0), 1, &u));
    assert_true(fabsf(*(float *)machine_moment(g.machine, 0, 0).data - 100) < 1e-3f);
    rig_close(&g);
    arena_free(&a);
}

/* ---- weights without masters: rounded by chance, of each its own ---- */

enum { MOST = 1 << 16 };

/* Which elements of a param of ones an update moved, when it is the so-manieth. */
static void moved(struct rig *g, const struct recipe *r, int param, int64_t updates,
                     bool out[MOST])
{
    for (int p = 0; p < g->model.graph.nparam; p++) {
        struct tensor w = machine_weight(g->machine, p);
        for (int k = 0; k < 2; k++) {
            struct tensor m = machine_moment(g->machine, p, k);
            memset(m.data, 0, (size_t)(tensor_count(m) * dtype_bytes(m.dtype)));
        }
        for (int64_t i = 0; i < tensor_count(w); i++) {
            float one = 1;
            dtype_from_f32(w.dtype, &one, (char *)w.data + i * dtype_bytes(w.dtype), 1);
            ((float *)machine_grad(g->machine, p).data)[i] = 1e-3f;
        }
    }
    struct update u;
    assert_ok(optimizer_step(r, &g->model, g->machine, &ops_cpu, &g->stream, 1e-3,
                             updates, &u));
    struct tensor w = machine_weight(g->machine, param);
    int64_t n = tensor_count(w), count = 0;
    assert_true(w.dtype == DTYPE_BF16 && n <= MOST);
    for (int64_t i = 0; i < n; i++)
        count += out[i] = ((uint16_t *)w.data)[i] != bf16_from_f32(1);
    assert_true(count > n / 10 && count < n * 9 / 10);
}

/* Of what the one that moved fewer did move, how much the other did too: all of it
 * where they draw alike, else about as much as it moves of anything. */
static bool drawn_alike(const bool *a, const bool *b, int64_t n)
{
    int64_t both = 0, count[2] = {0};
    for (int64_t i = 0; i < n; i++) {
        both += a[i] && b[i];
        count[0] += a[i];
        count[1] += b[i];
    }
    return (double)both > 0.8 * (double)MIN(count[0], count[1]);
}

static void test_chance_is_of_param_and_update(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r = schedule(&a, optim_schedule_constant, 0, 0, 10, 0);
    r.optim_decay = 0;
    struct rig g;
    rig_open(&g, &r, 0, DTYPE_BF16);
    const struct graph *graph = &g.model.graph;
    int pair[2] = {-1, -1};             /* the two largest of one size */
    for (int i = 0; i < graph->nparam; i++)
        for (int k = 0; k < i; k++)
            if (graph->param[i].count == graph->param[k].count &&
                graph->param[i].part != PART_ROUTER &&
                graph->param[k].part != PART_ROUTER &&
                (pair[0] < 0 || graph->param[i].count > graph->param[pair[0]].count))
                pair[0] = k, pair[1] = i;
    int64_t n = graph->param[pair[0]].count;
    assert_true(n > 200);
    bool *first = NEW(&a, bool, MOST), *again = NEW(&a, bool, MOST),
         *other = NEW(&a, bool, MOST), *later = NEW(&a, bool, MOST);
    moved(&g, &r, pair[0], 0, first);
    moved(&g, &r, pair[0], 0, again);
    moved(&g, &r, pair[1], 0, other);
    moved(&g, &r, pair[0], 1, later);
    assert_memory_equal(first, again, (size_t)n);
    assert_false(drawn_alike(first, other, n));
    assert_false(drawn_alike(first, later, n));
    r.run_seed++;
    moved(&g, &r, pair[0], 0, other);
    assert_false(drawn_alike(first, other, n));
    rig_close(&g);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chance_is_of_param_and_update),
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_part_rates),
        cmocka_unit_test(test_steps), cmocka_unit_test(test_skip_and_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
