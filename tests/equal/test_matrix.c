/* test_matrix.c - the everyday lines of the matrix; and that they would notice: a
 * missing wait, a wrong beta, a wrong group of holders. */
#include "equal/matrix.h"

/* ---- what the plan's own check must notice ---- */

static int noticed;                     /* faults so far */

static void must_notice(const struct plan *p, int64_t step, const char *what,
                        const char *line)
{
    struct arena a = arena_make("notice");
    struct text t = text_make(&a);
    plan_explain_step(p, step, &t);
    if (plan_check(p))
        fail_msg("%s: %s went unnoticed; there stands: %s", line, what, t.at);
    arena_free(&a);
    noticed++;
}

static void drop_waits(struct plan *p, struct step *s, const char *line)
{
    for (int l = 0; l < LANES; l++)
        if (s->wait[l] > 0) {
            s->wait[l]--;
            must_notice(p, s - p->step, "a missing wait", line);
            s->wait[l]++;
        }
}

static void turn_betas(struct plan *p, struct step *s, const char *line)
{
    bool reduces = s->kind == STEP_REDUCE && s->in[0] != s->out[0];
    for (int j = 0; j < MAX_IO + MAX_WEIGHT && s->kind != STEP_ZERO; j++) {
        bool din = j < MAX_IO;
        int at = din ? j : j - MAX_IO;
        float *beta = din ? &s->beta[at] : &s->beta_w[at];
        bool used = (din ? s->din[at] : s->dw[at]) >= 0 || (reduces && j == 0);
        if (!used || s->kind == STEP_RECV_GRAD)
            continue;
        *beta = 1 - *beta;
        must_notice(p, s - p->step, "a wrong beta", line);
        *beta = 1 - *beta;
    }
}

static void change_groups(struct plan *p, struct step *s, const char *line)
{
    const struct mesh *m = p->graph->mesh;
    if (s->kind != STEP_GATHER && s->kind != STEP_REDUCE)
        return;
    const struct view *v = mesh_view(m, p->graph->unit[s->unit].experts);
    for (int i = 0; i < v->naxis; i++) {
        if (v->size[i] == 1)
            continue;
        s->along ^= ON(v->axis[i]);
        must_notice(p, s - p->step, "a wrong group", line);
        s->along ^= ON(v->axis[i]);
    }
}

/* Of a plan's many steps every seventh is tried, from another one on for each line. */
static void plans_notice_planted_faults(void **state)
{
    (void)state;
    static const char *const line[] = {
        "dp4 copies2 parameters each prefetch2 weave rows:eight",
        "dp4 copies2 gradients keep recompute:decoder.* rows:eight",
        "dp2 tp2 offload:vision.* slack rows:eight",
        "dp2 cp2 ring tp2 ep4 optimizer rows:eight",
        "pp2 dp2 ep2 parameters zb rows:eight",
        "pp2 chunks2 tied tp2 recompute:act",
        "dp2 cp2 images parameters recompute:vision.* rows:many",
        "dp2 tp2 ep4 shared overlap delay recompute:shared_act",
    };
    const struct layout_growth none = {1, 1};
    for (int k = 0; k < COUNT(line); k++) {
        struct arena a = arena_make("plan");
        struct entry e = entry_read(&a, line[k], NULL);
        struct layout_run x = {
            .trial = &e.trial, .rows = &shared.rows[e.rows],
            .config = e.trial.config ? *e.trial.config : layout_config()};
        assert_ok(mesh_make(&e.trial.layout, NULL, &x.mesh));
        int last = e.trial.layout.world - 1;
        for (int rank = 0; rank <= last; rank += last) {
            struct model m;
            struct plan *p = layout_plan(&a, &x, rank, none, NULL, &m);
            assert_non_null(p);
            assert_ok(plan_check(p));
            for (int64_t i = k; i < p->nstep; i += 7) {
                drop_waits(p, &p->step[i], line[k]);
                turn_betas(p, &p->step[i], line[k]);
            }
            for (int64_t i = 0; i < p->nstep; i++)
                change_groups(p, &p->step[i], line[k]);
        }
        arena_free(&a);
    }
    print_message("  %d faults noticed\n", noticed);
    assert_true(noticed > 1000);
}

/* ---- what only the numbers can show ---- */

struct planted {
    const char *name, *line;
    int (*spoil)(struct step *s);       /* returns how many it spoilt; NULL: nothing */
};

struct planting {
    struct layout_run run;
    const struct planted *fault;
};

static int beta_of_weights(struct step *s)
{
    bool is = s->kind == STEP_WEIGHT && s->dw[0] >= 0 && s->beta_w[0] == 1;
    for (int i = 0; i < MAX_WEIGHT && is; i++)
        s->beta_w[i] = 0;
    return is;
}

static int beta_of_values(struct step *s)
{
    bool is = s->kind == STEP_BACKWARD && s->din[0] >= 0 && s->beta[0] == 1;
    s->beta[0] = is ? 0 : s->beta[0];
    return is;
}

static int beta_of_sums(struct step *s)
{
    bool is = s->kind == STEP_REDUCE && s->in[0] != s->out[0] && s->beta[0] == 1;
    s->beta[0] = is ? 0 : s->beta[0];
    return is;
}

static int group_without(struct step *s, enum axis axis)
{
    bool is = s->kind == STEP_REDUCE && s->in[0] == s->out[0] && s->along & ON(axis);
    s->along &= is ? ~ON(axis) : ~0u;
    return is;
}

static int group_without_tp(struct step *s)
{
    return group_without(s, AXIS_TP);
}

static int group_without_cp(struct step *s)
{
    return group_without(s, AXIS_CP);
}

static int group_without_shard(struct step *s)
{
    return group_without(s, AXIS_SHARD);
}

/* Shards of one copy instead of copies of one shard. */
static int group_across(struct step *s)
{
    bool is = s->kind == STEP_REDUCE && s->in[0] == s->out[0];
    s->along = is ? ON(AXIS_SHARD) | ON(AXIS_EDP) : s->along;
    return is;
}

static const struct planted faults[] = {
    {"nothing", "dp2 tp2 parameters each", NULL},
    {"beta of weight gradients", "dp2", beta_of_weights},
    {"beta of values' gradients", "dp2", beta_of_values},
    {"beta of sums over ranks", "dp2 parameters each", beta_of_sums},
    {"no sum over tp", "dp2 tp2", group_without_tp},
    {"no sum over cp", "cp2", group_without_cp},
    {"no sum over dp", "dp2 tp2", group_without_shard},
    {"no sum over cp of images", "cp2 images", group_without_cp},
    {"a sum over other shards", "dp4 copies2 parameters", group_across},
};

static bool plan_spoil(const struct layout_run *x, struct plan *p)
{
    const struct planted *f = ((const struct planting *)x)->fault;
    int spoilt = !f->spoil;
    for (int64_t i = 0; i < p->nstep && f->spoil; i++)
        spoilt += f->spoil(&p->step[i]);
    return spoilt || fail("%s: nothing to spoil in %s", f->name, f->line);
}

/* Do its numbers differ from one rank's? */
static bool fault_shows(const struct planted *f)
{
    struct arena a = arena_make("fault");
    struct entry e = entry_read(&a, f->line, NULL);
    struct planting x = {
        .run = {.trial = &e.trial, .rows = &shared.rows[e.rows], .spoil = plan_spoil},
        .fault = f};
    const struct outcome *want = alone(&e);
    struct outcome out = layout_measure(&a, &x.run);
    assert_ok(x.run.ended);
    struct worst w = worst_of(&out, want, e.trial.frozen);
    print_message("  %s: %.1e %s %s%s%s\n", f->name, w.error, w.what, w.name,
                  x.run.wrong[0] ? ", " : "", x.run.wrong);
    bool shows = !(w.error <= 1e-5) || x.run.wrong[0];
    arena_free(&a);
    return shows;
}

static void numbers_show_planted_faults(void **state)
{
    (void)state;
    assert_false(fault_shows(&faults[0]));
    for (int i = 1; i < COUNT(faults); i++)
        if (!fault_shows(&faults[i]))
            fail_msg("%s in %s does not show", faults[i].name, faults[i].line);
}

int main(void)
{
    struct CMUnitTest test[COUNT(matrix) + 2];
    shared_make();
    int n = matrix_tests(true, test);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(plans_notice_planted_faults);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(numbers_show_planted_faults);
    int failed = _cmocka_run_group_tests("matrix", test, (size_t)n, NULL, NULL);
    shared_free();
    return failed;
}
