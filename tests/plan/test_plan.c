/* test_plan.c - what plans look like, and that none of their parts can go unnoticed. */
#include "check.h"

#include "plan/plan.h"
#include "plan/toy.h"

#include <time.h>

struct setting {
    const char *name, *recompute, *offload;
    bool weave, forward, dead;
    double slack;
    unsigned frozen;
    int shards;
    enum dtype wire;
};

static const struct setting settings[] = {
    {"keep", "none", "none", .slack = 1},
    {"recompute", "norm act", "none", .slack = 1},
    {"recompute_all", "*", "none", .slack = 1.2},
    {"offload", "act", "u pixels", .slack = 1},
    {"frozen", "norm", "x", .slack = 1, .frozen = 1u << PART_VISION},
    {"frozen_decoder", "none", "none", .slack = 1, .dead = true,
     .frozen = 1u << PART_DECODER | 1u << PART_EMBEDDINGS},
    {"weave", "act", "decoder.n", .weave = true, .slack = 1.5},
    {"forward", "none", "none", .forward = true, .slack = 1},
    {"shards", "act", "u", .slack = 1, .shards = 2, .dead = true},
    {"shards_weave", "*", "none", .slack = 1, .shards = 4, .weave = true},
    {"shards_bf16", "none", "none", .slack = 1, .shards = 2, .wire = DTYPE_BF16},
};

enum { MBS = 2 };

static struct plan *build(struct arena *a, const struct setting *x, struct toy *t,
                          struct toy_shape shape, int mbs)
{
    shape.dead = x->dead;
    *t = toy_record(a, shape);
    graph_freeze(&t->graph, x->frozen);
    struct policy policy = policy_plain();
    if (!policy_parse(&policy, a, &t->graph, x->recompute, x->offload))
        fail_msg("%s", fail_message());
    policy.weave = x->weave;
    policy.slack = x->slack;
    struct mesh *mesh = NEW(a, struct mesh, 1);
    const struct layout layout = {.world = MAX(1, x->shards)};
    const struct sharding sharding = {true, true, true, 1};
    assert_ok(mesh_make(&layout, NULL, mesh));
    t->graph.mesh = mesh;
    struct order order = x->forward ? order_forward(a, mbs) : order_1f1b(a, 0, 1, mbs);
    return plan_build(a, &t->graph, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = x->forward ? 0 : 2,
        .sharding = &sharding, .wire = x->wire, .output = &t->loss, .outputs = 1});
}

static void check(const struct plan *p, const char *what)
{
    if (!plan_check(p))
        fail_msg("%s: %s", what, fail_message());
}

static void every_setting_checks(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(settings); i++) {
        struct arena a = arena_make("test");
        struct toy t;
        check(build(&a, &settings[i], &t, toy_small, MBS), settings[i].name);
        arena_free(&a);
    }
}

static void plans_read_as_before(void **state)
{
    (void)state;
    struct toy_shape shape = {8, 16, 24, 40, 1, 2, false};
    for (int i = 0; i < COUNT(settings); i++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct text text = text_make(&a);
        struct plan *p = build(&a, &settings[i], &t, shape, MBS);
        plan_explain(p, &text, -1);
        plan_summary(p, &text);
        assert_golden(&a, arena_text(&a, "tests/plan/%s.txt", settings[i].name), text);
        arena_free(&a);
    }
}

/* ---- planted faults ---- */

static void noticed(const struct plan *p, const char *what, const char *setting,
                    int64_t i)
{
    struct arena a = arena_make("test");
    struct text t = text_make(&a);
    plan_explain_step(p, MIN(i, p->nstep - 1), &t);
    if (plan_check(p))
        fail_msg("%s %lld of %s went unnoticed; there stands: %s", what, (long long)i,
                 setting, t.at);
    arena_free(&a);
}

static void no_wait_can_be_dropped(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        for (int64_t i = 0; i < p->nstep; i++)
            for (int l = 0; l < LANES; l++) {
                int64_t wait = p->step[i].wait[l];
                if (wait == 0)
                    continue;
                p->step[i].wait[l] = wait - 1;
                noticed(p, "a missing wait of step", settings[k].name, i);
                p->step[i].wait[l] = wait;
            }
        arena_free(&a);
    }
}

static void no_beta_can_be_wrong(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        for (int64_t i = 0; i < p->nstep; i++) {
            struct step *s = &p->step[i];
            for (int j = 0; j < MAX_IO + MAX_WEIGHT; j++) {
                bool din = j < MAX_IO;
                int at = din ? j : j - MAX_IO;
                float *beta = din ? &s->beta[at] : &s->beta_w[at];
                if ((din ? s->din[at] : s->dw[at]) < 0)
                    continue;
                if (s->kind == STEP_ZERO)
                    continue;
                *beta = 1 - *beta;
                noticed(p, "a wrong beta of step", settings[k].name, i);
                *beta = 1 - *beta;
            }
        }
        arena_free(&a);
    }
}

static void passes_again(struct plan *p)
{
    plan_lifetimes(p);
    plan_place(p, 1);
    plan_waits(p);
}

static void no_step_can_be_left_out(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        for (int64_t i = 0; i < p->nstep; i++) {
            struct step out = p->step[i];
            memmove(&p->step[i], &p->step[i + 1],
                    sizeof out * (size_t)(p->nstep - i - 1));
            p->nstep--;
            passes_again(p);
            noticed(p, "a step left out:", settings[k].name, i);
            memmove(&p->step[i + 1], &p->step[i], sizeof out * (size_t)(p->nstep - i));
            p->step[i] = out;
            p->nstep++;
        }
        passes_again(p);
        check(p, "put together again");
        arena_free(&a);
    }
}

/* Other ranks than a unit's holders, or one sum for another. */
static void no_group_can_be_wrong(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        for (int64_t i = 0; i < p->nstep; i++) {
            struct step *s = &p->step[i];
            if (s->kind != STEP_GATHER && s->kind != STEP_REDUCE)
                continue;
            for (enum axis x = 0; x < AXES; x++) {
                s->along ^= ON(x);
                noticed(p, "another group:", settings[k].name, i);
                s->along ^= ON(x);
            }
        }
        check(p, "put right again");
        arena_free(&a);
    }
}

/* A sum that travels in another type than the plan's, or from nowhere. */
static void no_wire_can_be_wrong(void **state)
{
    (void)state;
    int tried = 0;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        for (int64_t i = 0; i < p->nstep; i++) {
            struct step *s = &p->step[i], right = *s;
            if (s->kind != STEP_GATHER && s->kind != STEP_REDUCE)
                continue;
            s->wire = s->wire == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
            noticed(p, "another type:", settings[k].name, i);
            *s = right;
            s->work = s->work < 0 ? s->in[0] : -1;
            noticed(p, "no place to travel from:", settings[k].name, i);
            *s = right;
            tried += s->wire != DTYPE_F32;
        }
        check(p, "put right again");
        arena_free(&a);
    }
    assert_true(tried > 5);
}

static void lifetimes_off_by_one_are_noticed(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++)
        for (int late = 0; late < 2; late++) {
            struct arena a = arena_make("test");
            struct toy t;
            struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
            for (int64_t i = 0; i < p->nbuffer; i++) {
                struct buffer *x = &p->buffer[i];
                if (x->whole || x->last <= x->first)
                    continue;
                x->last -= !late;
                x->first += late;
            }
            plan_place(p, 1);
            plan_waits(p);
            noticed(p, "lifetimes too short", settings[k].name, late);
            arena_free(&a);
        }
}

/* Moving any buffer onto another that lives at the same time. */
static void overlaps_are_noticed(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    struct plan *p = build(&a, &settings[0], &t, toy_small, MBS);
    int tried = 0;
    for (int64_t i = 0; i < p->nbuffer; i++)
        for (int64_t j = 0; j < p->nbuffer; j++) {
            struct buffer *x = &p->buffer[i], *y = &p->buffer[j];
            bool together = y->whole || (x->first <= y->last && y->first <= x->last);
            if (i == j || x->whole || y->bytes == 0 || !together ||
                x->kind == MEMORY_HOST || y->kind == MEMORY_HOST)
                continue;
            int64_t offset = x->offset;
            x->offset = y->offset;
            noticed(p, "an overlap of buffer", settings[0].name, i);
            x->offset = offset;
            tried++;
        }
    assert_true(tried > 1000);
    arena_free(&a);
}

/* ---- numbers ---- */

static int64_t count(const struct plan *p, enum step_kind kind, const char *tower)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->ntally; i++)
        if (p->tally[i].kind == kind &&
            (!tower || strcmp(p->tally[i].tower, tower) == 0))
            n += p->tally[i].count;
    return n;
}

static void peak_is_what_lives(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(settings); k++) {
        struct arena a = arena_make("test");
        struct toy t;
        struct plan *p = build(&a, &settings[k], &t, toy_small, MBS);
        int64_t most = 0, top = 0;
        for (int64_t i = 0; i < p->nstep; i++) {
            int64_t live = 0;
            for (int64_t j = 0; j < p->nbuffer; j++) {
                const struct buffer *x = &p->buffer[j];
                int64_t room = (x->bytes + ALIGN - 1) / ALIGN * ALIGN;
                if (x->kind == MEMORY_HOST)
                    continue;
                if (x->whole || (x->first <= i && i <= x->last))
                    live += room;
                if (x->whole || x->first >= 0)
                    top = MAX(top, x->offset + room);
            }
            most = MAX(most, live);
        }
        assert_int_equal(most, p->live_bytes);
        assert_int_equal(top, p->bytes);
        assert_true(p->bytes <= p->live_bytes * 11 / 10 || settings[k].slack > 1);

        struct memory_row *row;
        int64_t sum = 0;
        int rows = plan_memory(p, &a, &row);
        for (int i = 0; i < rows; i++)
            for (int m = 0; m < MEMORY_HOST; m++)
                sum += row[i].bytes[m];
        assert_int_equal(sum, p->live_bytes);
        arena_free(&a);
    }
}

static void frozen_tower_stores_and_writes_nothing(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    struct plan *p = build(&a, &settings[4], &t, toy_small, MBS);
    assert_int_equal(count(p, STEP_BACKWARD, "vision"), 0);
    assert_int_equal(count(p, STEP_WEIGHT, "vision"), 0);
    assert_int_equal(count(p, STEP_OFFLOAD, "vision"), 0);
    assert_true(count(p, STEP_WEIGHT, "decoder") > 0);
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        if (x->unit >= 0 && t.graph.unit[x->unit].part == PART_VISION)
            assert_int_equal(x->kind, MEMORY_WEIGHT);
        if (x->value < 0 || strcmp(t.graph.value[x->value].tower, "vision") != 0)
            continue;
        assert_false(x->gradient);
        assert_int_not_equal(p->step[x->last].kind, STEP_BACKWARD);
    }
    arena_free(&a);
}

/* A parameter behind a dead branch is trainable but out of reach: zeroed, by plan. */
static void unreached_gradients_are_zeroed(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    struct plan *p = build(&a, &settings[5], &t, toy_small, MBS);
    assert_int_equal(count(p, STEP_ZERO, NULL), 1);
    assert_int_equal(count(p, STEP_WEIGHT, "decoder"), 0);
    assert_true(count(p, STEP_BACKWARD, "decoder") > 0); /* on the way to vision */
    arena_free(&a);
}

static void divided_units_come_and_go(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    struct plan *p = build(&a, &settings[8], &t, toy_small, MBS);
    static const struct setting one = {"", "act", "u", .slack = 1, .dead = true};
    const struct plan *whole = build(&a, &one, &t, toy_small, MBS);
    assert_int_equal(count(whole, STEP_GATHER, NULL), 0);
    assert_int_equal(count(whole, STEP_REDUCE, NULL), 0);
    assert_true(count(p, STEP_GATHER, NULL) > count(p, STEP_REDUCE, NULL));
    assert_true(p->state_bytes < whole->state_bytes * 6 / 10);
    arena_free(&a);
}

static void time_is_predicted(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct toy t;
    struct plan *p = build(&a, &settings[3], &t, toy_small, MBS);
    double *cost = NEW(&a, double, p->nstep), *end = NEW(&a, double, p->nstep), sum = 0;
    for (int64_t i = 0; i < p->nstep; i++)
        sum += cost[i] = 1;
    struct prediction x = plan_simulate(p, &a, cost, end);
    double busy = 0;
    for (int l = 0; l < LANES; l++) {
        assert_true(x.busy[l] == (double)p->length[l]);
        busy += x.busy[l];
    }
    assert_true(busy == sum && x.seconds < sum && x.seconds >= x.busy[LANE_COMPUTE]);
    assert_true(x.busy[LANE_COMPUTE] + x.idle <= x.seconds);
    for (int64_t i = 0; i < p->nstep; i++)      /* nobody begins too early */
        for (int64_t j = 0; j < i; j++)
            if (p->step[j].at < p->step[i].wait[p->step[j].lane])
                assert_true(end[j] <= end[i] - cost[i]);
    /* A copy lane ten times slower must show. */
    for (int64_t i = 0; i < p->nstep; i++)
        cost[i] = p->step[i].lane == LANE_COPY ? 10 : 1;
    assert_true(plan_simulate(p, &a, cost, NULL).idle > x.idle);
    arena_free(&a);
}

/* Seconds of this process to build a plan of so many microbatches, checked. */
static double build_seconds(const struct setting *x, int mbs, int64_t *steps)
{
    struct arena a = arena_make("test");
    struct toy t;
    struct toy_shape shape = {8, 16, 24, 40, 20, 100, false};
    clock_t start = clock();
    struct plan *p = build(&a, x, &t, shape, mbs);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    check(p, "large");
    *steps = p->nstep;
    print_message("%lld steps, %lld buffers: built in %.2f s, %.1f%% lost\n",
                  (long long)p->nstep, (long long)p->nbuffer, seconds,
                  100.0 * (double)(p->bytes - p->live_bytes) / (double)p->live_bytes);
    arena_free(&a);
    return seconds;
}

/* Four times the steps take about four times as long. */
static void planning_time_is_linear(void **state)
{
    (void)state;
    static const struct setting large[] = {
        {"", "norm act", "u", .slack = 1},
        {"", "norm act", "u", .weave = true, .slack = 1.2},
    };
    for (int i = 0; i < COUNT(large); i++) {
        int64_t few, many;
        double quarter = build_seconds(&large[i], 15, &few);
        double whole = build_seconds(&large[i], 60, &many);
        assert_true(many > 100000 && many > 7 * few / 2);
        assert_true(whole < 10 * quarter + 0.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_checks),
        cmocka_unit_test(plans_read_as_before),
        cmocka_unit_test(no_wait_can_be_dropped),
        cmocka_unit_test(no_beta_can_be_wrong),
        cmocka_unit_test(no_step_can_be_left_out),
        cmocka_unit_test(no_group_can_be_wrong),
        cmocka_unit_test(no_wire_can_be_wrong),
        cmocka_unit_test(lifetimes_off_by_one_are_noticed),
        cmocka_unit_test(overlaps_are_noticed),
        cmocka_unit_test(peak_is_what_lives),
        cmocka_unit_test(frozen_tower_stores_and_writes_nothing),
        cmocka_unit_test(unreached_gradients_are_zeroed),
        cmocka_unit_test(divided_units_come_and_go),
        cmocka_unit_test(time_is_predicted),
        cmocka_unit_test(planning_time_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
