/* test_machine.c - what a machine promises besides the right bits: exact memory,
 * several plans over one state, the hunt for NaN, traces, evidence. */
#include "check.h"

#include <jansson.h>
#include <math.h>

#include "plan/toy.h"
#include "run/run.h"

enum { MBS = 2 };

struct fixture {
    struct arena arena;
    struct toy toy;
    struct team *team;
    struct plan *plan;
    struct machine *machine;
    float *pixels[MBS];
    int32_t *ids[MBS], *target[MBS];
    float scale;
};

static struct plan *plan_of(struct fixture *f, const struct toy *t,
                            const char *recompute, const char *offload, bool backward,
                            const struct plan *state)
{
    struct policy policy = policy_plain();
    assert_ok(policy_parse(&policy, &f->arena, &t->graph, recompute, offload));
    struct order order = backward ? order_1f1b(&f->arena, 0, 1, MBS)
                                  : order_forward(&f->arena, MBS);
    return plan_build(&f->arena, &t->graph, &(struct plan_options){
        .order = &order, .policy = &policy, .moments = 2, .state = state,
        .output = (int[]){t->loss}, .outputs = 1});
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->arena = arena_make("test");
    struct toy_shape shape = toy_small;
    shape.dead = true;
    f->toy = toy_record(&f->arena, shape);
    f->plan = plan_of(f, &f->toy, "act", "u", true, NULL);
    f->team = team_make(2);
    f->scale = 1.0f / 16;
    for (int mb = 0; mb < MBS; mb++) {
        f->pixels[mb] = NEW(&f->arena, float, shape.rows * shape.width);
        f->ids[mb] = NEW(&f->arena, int32_t, shape.rows);
        f->target[mb] = NEW(&f->arena, int32_t, shape.rows);
        toy_input(&f->toy, f->toy.pixels, mb, f->pixels[mb]);
        toy_input(&f->toy, f->toy.ids, mb, f->ids[mb]);
        toy_input(&f->toy, f->toy.target, mb, f->target[mb]);
    }
    assert_ok(machine_make(&f->arena, f->plan, &(struct machine_options){
        .ops = &ops_cpu, .team = f->team, .lanes = true}, &f->machine));
    for (int p = 0; p < f->toy.graph.nparam; p++)
        for (int64_t i = 0; i < f->toy.graph.param[p].count; i++)
            ((float *)machine_weight(f->machine, p).data)[i] =
                toy_weight(&f->toy.graph.param[p], i);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    machine_free(f->machine);
    team_free(f->team);
    arena_free(&f->arena);
    free(f);
    return 0;
}

static void bind(struct fixture *f, const struct toy *t)
{
    for (int mb = 0; mb < MBS; mb++) {
        machine_bind(f->machine, t->pixels, mb, f->pixels[mb]);
        machine_bind(f->machine, t->ids, mb, f->ids[mb]);
        machine_bind(f->machine, t->target, mb, f->target[mb]);
        machine_bind(f->machine, t->scale, mb, &f->scale);
    }
}

static double loss(struct fixture *f, const struct toy *t)
{
    bind(f, t);
    assert_ok(machine_step(f->machine));
    double sum = 0;
    for (int mb = 0; mb < MBS; mb++)
        sum += *(float *)machine_value(f->machine, t->loss, mb).data;
    return sum;
}

/* Whole-run tensors lie inside the state and do not touch each other. */
static void state_is_laid_out_as_planned(void **state)
{
    struct fixture *f = *state;
    const struct graph *g = &f->toy.graph;
    char *from = machine_weight(f->machine, 0).data;
    struct { char *at; int64_t bytes; } all[64];
    int n = 0;
    for (int p = 0; p < g->nparam; p++)
        for (int k = 0; k < 4; k++) {
            struct tensor t = k == 0 ? machine_weight(f->machine, p)
                              : k == 1 ? machine_grad(f->machine, p)
                                       : machine_moment(f->machine, p, k - 2);
            assert_int_equal(tensor_count(t), g->param[p].count);
            if (k > 1)
                for (int64_t i = 0; i < tensor_count(t); i++)
                    assert_true(((float *)t.data)[i] == 0);
            if (n < COUNT(all)) {
                all[n].at = t.data;
                all[n++].bytes = 4 * tensor_count(t);
            }
            assert_true((char *)t.data >= from);
            assert_true((char *)t.data + 4 * tensor_count(t) <=
                        from + f->plan->state_bytes);
        }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            assert_true(all[i].at + all[i].bytes <= all[k].at ||
                        all[k].at + all[k].bytes <= all[i].at);
}

static void unreached_gradients_are_zero(void **state)
{
    struct fixture *f = *state;
    loss(f, &f->toy);
    bool found = false;
    for (int p = 0; p < f->toy.graph.nparam; p++) {
        struct tensor t = machine_grad(f->machine, p);
        bool dead = f->toy.graph.param[p].part == PART_PROJECTOR;
        found |= dead;
        for (int64_t i = 0; i < tensor_count(t); i++)
            assert_true(isfinite(((float *)t.data)[i]) &&
                        (!dead || ((float *)t.data)[i] == 0));
    }
    assert_true(found);
}

/* Evaluation, and then a plan that needs more memory, between training steps. */
static void plans_take_turns_over_one_state(void **state)
{
    struct fixture *f = *state;
    double train = loss(f, &f->toy);
    struct toy_shape shape = f->toy.shape;
    struct toy small = toy_record(&f->arena, shape);
    struct plan *eval = plan_of(f, &small, "none", "none", false, f->plan);
    assert_ok(plan_check(eval));
    assert_int_equal(eval->state_bytes, f->plan->state_bytes);
    assert_true(eval->bytes < f->plan->bytes);
    ((float *)machine_moment(f->machine, 0, 1).data)[3] = 42;
    assert_ok(machine_use(f->machine, eval));
    assert_true(machine_plan(f->machine) == eval);
    assert_true(loss(f, &small) == train);

    shape.hidden = f->toy.shape.hidden;
    struct plan *keep = plan_of(f, &small, "none", "none", true, f->plan);
    assert_true(keep->bytes > f->plan->bytes);
    assert_ok(machine_use(f->machine, keep));
    assert_true(loss(f, &small) == train);
    assert_ok(machine_use(f->machine, f->plan));
    assert_true(loss(f, &f->toy) == train);
    assert_true(((float *)machine_moment(f->machine, 0, 1).data)[3] == 42);
    assert_ok(machine_evidence(f->machine));
}

static void check_mode_names_the_step(void **state)
{
    struct fixture *f = *state;
    machine_check(f->machine, true);
    loss(f, &f->toy);
    int up = -1;
    for (int p = 0; p < f->toy.graph.nparam; p++)
        if (strcmp(f->toy.graph.param[p].name, "decoder.1.up") == 0)
            up = p;
    float *w = machine_weight(f->machine, up).data, old = w[5];
    w[5] = NAN;
    bind(f, &f->toy);
    assert_fails(machine_step(f->machine), "L5.up");
    assert_int_equal(fail_fault(), FAULT_NOT_FINITE);
    w[5] = old;
    f->pixels[1][7] = INFINITY;
    bind(f, &f->toy);
    assert_fails(machine_step(f->machine), "L0.pixels");
    toy_input(&f->toy, f->toy.pixels, 1, f->pixels[1]);
    loss(f, &f->toy);
    f->scale = INFINITY;
    bind(f, &f->toy);
    assert_fails(machine_step(f->machine), "scale");
}

static void evidence_counts_what_ran(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++)
        loss(f, &f->toy);
    int64_t sum = 0;
    for (int64_t i = 0; i < f->plan->ntally; i++) {
        assert_int_equal(machine_ran(f->machine, i), 3 * f->plan->tally[i].count);
        sum += f->plan->tally[i].count;
    }
    assert_int_equal(sum, f->plan->nstep);
    assert_ok(machine_evidence(f->machine));
    f->plan->tally[0].count++;
    assert_fails(machine_evidence(f->machine), "planned");
    f->plan->tally[0].count--;
}

/* Spans respect waits, and the trace is JSON with an event for every step. */
static void traces_hold_every_step(void **state)
{
    struct fixture *f = *state;
    assert_null(machine_spans(f->machine));
    machine_trace(f->machine, true);
    loss(f, &f->toy);
    const struct span *span = machine_spans(f->machine);
    const struct plan *p = f->plan;
    for (int64_t i = 0; i < p->nstep; i++) {
        assert_true(span[i].start > 0 && span[i].start <= span[i].end);
        for (int64_t k = 0; k < i; k++)
            if (p->step[k].lane == p->step[i].lane ||
                p->step[k].at < p->step[i].wait[p->step[k].lane])
                assert_true(span[k].end <= span[i].start);
    }
    struct text t = text_make(&f->arena);
    trace_json(p, span, &t);
    json_error_t error;
    json_t *j = json_loads(t.at, 0, &error);
    if (!j)
        fail_msg("trace: %s", error.text);
    assert_int_equal(json_array_size(json_object_get(j, "traceEvents")),
                     p->nstep + LANES);
    json_decref(j);
    machine_trace(f->machine, false);
    assert_null(machine_spans(f->machine));
}

static void too_much_memory_is_refused(void **state)
{
    struct fixture *f = *state;
    struct plan huge = *f->plan;
    huge.bytes = INT64_MAX / 4;
    struct machine *m;
    assert_fails(machine_make(&f->arena, &huge, &(struct machine_options){
        .ops = &ops_cpu, .team = f->team}, &m), "device memory: the plan needs");
    assert_int_equal(fail_fault(), FAULT_MEMORY);
    assert_fails(machine_use(f->machine, &huge), "device memory");
    assert_true(isfinite(loss(f, &f->toy)));    /* the old plan still stands */
}

static void divided_plans_need_their_ranks(void **state)
{
    struct fixture *f = *state;
    struct mesh mesh;
    const struct sharding sharding = {.state = true, .weights = true};
    assert_ok(mesh_make(&(struct layout){.world = 2}, NULL, &mesh));
    struct graph g = f->toy.graph;
    g.mesh = &mesh;
    struct order order = order_1f1b(&f->arena, 0, 1, MBS);
    struct plan *p = plan_build(&f->arena, &g, &(struct plan_options){
        .order = &order, .sharding = &sharding, .output = &f->toy.loss, .outputs = 1});
    struct machine *m;
    assert_fails(machine_make(&f->arena, p, &(struct machine_options){
        .ops = &ops_cpu, .team = f->team}, &m), "divides its work over 2 ranks");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(state_is_laid_out_as_planned),
        TEST(unreached_gradients_are_zero),
        TEST(plans_take_turns_over_one_state),
        TEST(check_mode_names_the_step),
        TEST(evidence_counts_what_ran),
        TEST(traces_hold_every_step),
        TEST(too_much_memory_is_refused),
        TEST(divided_plans_need_their_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
