/* test_answers.c - keys and values held over steps: one place a step chooses what the
 * whole row chooses there, over a long answer, with and without images, for answers of
 * any length side by side; and no plan loses what is held. */
#include "check.h"

#include <math.h>

#include "tests/model/case.h"
#include "train/model.h"

enum {
    ANSWERS = 3, LONGEST = 90,          /* tokens of an answer */
    TOKENS = 256, PATCHES = 160         /* of the row that has everything */
};

struct one {                            /* a prompt and what follows it */
    struct encoded e;
    int prompt, from;                   /* tokens; first row of the cache */
    int whole;                          /* where it begins in the row of everything */
};

struct fixture {
    struct arena arena;
    struct model_config config;
    struct team *team;
    struct machine *machine;
    struct model model[3];              /* everything, prompts, steps */
    struct plan *plan[3];
    struct feed feed[3];
    struct one one[ANSWERS];
    int32_t *best;                      /* [TOKENS] of the row of everything */
    float *logit;
};

static void sample_make(struct fixture *f, struct one *o, int prompt, int answer,
                        int images, uint64_t key)
{
    struct arena *a = &f->arena;
    static const int grid[][2] = {{4, 6}, {2, 8}};
    int n = 0;
    *o = (struct one){.prompt = prompt};
    o->e = (struct encoded){.name = "one", .tokens = prompt + answer, .nimage = images,
                            .input = NEW(a, int32_t, prompt + answer),
                            .scored = NEW(a, bool, prompt + answer),
                            .image = NEW(a, struct patches, images + 1)};
    for (int i = 0; i < images; i++) {
        int h = grid[i][0], w = grid[i][1];
        int values = vision_patch_values(&f->config.vision);
        o->e.image[i] = (struct patches){h, w, values, NEW(a, float, h * w * values)};
        for (int k = 0; k < h * w * values; k++)
            o->e.image[i].pixels[k] = (float)mini_u(key + 50, (uint64_t)(1000 * i + k));
        o->e.patches += h * w;
        o->e.input[n++] = 7;
        for (int k = 0; k < h * w / 4; k++)
            o->e.input[n++] = CASE_IMAGE;
    }
    for (; n < o->e.tokens; n++)
        o->e.input[n] = 9 + (int32_t)(25 * (mini_u(key, (uint64_t)n) + 1));
}

static void record(struct fixture *f, int i, struct capacity c, int64_t rows,
                   bool answers)
{
    static struct order order;
    struct model *m = &f->model[i];
    struct model_purpose p = {.frozen = (1u << PARTS) - 1,
                              .decoder = {.best = true, .cache_rows = rows,
                                          .answers = answers}};
    model_record(&f->arena, &f->config, &c, &p, NULL, 0, m);
    order = order_forward(&f->arena, 1);
    const int output[] = {m->decoder.best, m->decoder.best_logit};
    f->plan[i] = plan_build(&f->arena, &m->graph, &(struct plan_options){
        .order = &order, .output = output, .outputs = 2, .state = f->plan[0]});
    f->feed[i] = feed_make(&f->arena, m);
    assert_ok(plan_check(f->plan[i]));
}

static void weights_fill(struct fixture *f)
{
    const struct graph *g = &f->model[0].graph;
    for (int p = 0; p < g->nparam; p++) {
        bool vector = g->param[p].ndim == 1;
        float *w = machine_weight(f->machine, p).data;
        for (int64_t i = 0; i < g->param[p].count; i++)
            w[i] = (float)(0.3 * mini_u(100 + (uint64_t)p, (uint64_t)i)) + vector;
    }
}

/* Everything in one row, as training has it: what is chosen at every place. */
static void whole_run(struct fixture *f)
{
    struct row_shape shape = row_shape_of(&f->model[0].capacity, &f->config);
    const struct encoded *e[ANSWERS];
    int32_t *want = NEW(&f->arena, int32_t, TOKENS);
    struct row row;
    for (int i = 0, at = 0; i < ANSWERS; i++) {
        e[i] = &f->one[i].e;
        f->one[i].whole = at;
        at += e[i]->tokens;
    }
    row_fill(&f->arena, &shape, e, ANSWERS, &row);
    for (int t = 0; t < row.live; t++)
        want[t] = 1;
    feed_row(&f->feed[0], f->machine, &f->model[0], 0, &row, 1, row.live, NULL,
             &(struct ask){.want = want});
    assert_ok(machine_step(f->machine));
    struct decoder_graph *d = &f->model[0].decoder;
    f->best = NEW(&f->arena, int32_t, TOKENS);
    f->logit = NEW(&f->arena, float, TOKENS);
    memcpy(f->best, machine_value(f->machine, d->best, 0).data, 4 * TOKENS);
    memcpy(f->logit, machine_value(f->machine, d->best_logit, 0).data, 4 * TOKENS);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->arena = arena_make("test");
    f->config = case_config();
    sample_make(f, &f->one[0], 31, LONGEST, 2, 1);
    sample_make(f, &f->one[1], 5, 40, 0, 2);
    sample_make(f, &f->one[2], 22, 57, 1, 3);
    int rows = 3;                       /* not all of the cache is used */
    for (int i = 0; i < ANSWERS; i++) {
        f->one[i].from = rows;
        rows += f->one[i].e.tokens + 2;
    }
    struct capacity whole = {TOKENS, PATCHES, ANSWERS, 4}, prompts = {60, 64, 2, 3};
    record(f, 0, whole, 0, false);
    record(f, 1, prompts, rows, false);
    record(f, 2, (struct capacity){ANSWERS + 1, 4, 1, 1}, rows, true);
    f->team = team_make(2);
    assert_ok(machine_make(&f->arena, f->plan[0], &(struct machine_options){
        .ops = &ops_cpu, .team = f->team, .lanes = true}, &f->machine));
    weights_fill(f);
    whole_run(f);
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

/* Row `t` of what view i chose is what the whole row chose after `seen` tokens. */
static void same(struct fixture *f, int i, int t, const struct one *o, int seen)
{
    int32_t best = ((int32_t *)machine_value(f->machine, f->model[i].decoder.best, 0)
                        .data)[t];
    float logit = ((float *)machine_value(f->machine, f->model[i].decoder.best_logit, 0)
                       .data)[t];
    int at = o->whole + seen - 1;
    if (best != f->best[at] || !(fabsf(logit - f->logit[at]) < 2e-5f))
        fail_msg("after %d tokens of %d: word %d with %.7g, in the whole row %d with "
                 "%.7g", seen, o->e.tokens, best, logit, f->best[at], f->logit[at]);
}

/* The prompts of these answers, as one row. */
static void begin(struct fixture *f, const int *which, int count)
{
    struct model *m = &f->model[1];
    struct row_shape shape = row_shape_of(&m->capacity, &f->config);
    struct encoded short_one[ANSWERS];
    const struct encoded *e[ANSWERS];
    int32_t *want = NEW(&f->arena, int32_t, shape.tokens);
    int32_t *held = NEW(&f->arena, int32_t, shape.tokens);
    struct row row;
    int at = 0;
    memset(held, -1, sizeof *held * (size_t)shape.tokens);
    for (int i = 0; i < count; i++) {
        const struct one *o = &f->one[which[i]];
        short_one[i] = o->e;
        short_one[i].tokens = o->prompt;
        e[i] = &short_one[i];
        for (int k = 0; k < o->prompt; k++)
            held[at++] = o->from + k;
        want[at - 1] = 1;
    }
    row_fill(&f->arena, &shape, e, count, &row);
    assert_ok(machine_use(f->machine, f->plan[1]));
    feed_row(&f->feed[1], f->machine, m, 0, &row, 1, row.live, NULL,
             &(struct ask){.want = want, .cache_row = held});
    assert_ok(machine_step(f->machine));
    for (int i = at = 0; i < count; i++) {
        at += f->one[which[i]].prompt;
        same(f, 1, at - 1, &f->one[which[i]], f->one[which[i]].prompt);
    }
}

/* Token number `k` of the answers that are that long, the last one first. */
static int step(struct fixture *f, int k)
{
    struct model *m = &f->model[2];
    int64_t T = m->capacity.tokens;
    int32_t *want = NEW(&f->arena, int32_t, T), *held = NEW(&f->arena, int32_t, T);
    int32_t *from = NEW(&f->arena, int32_t, T);
    int32_t *position = NEW(&f->arena, int32_t, 3 * T);
    struct row_shape shape = row_shape_of(&f->model[0].capacity, &f->config);
    struct row row = {.input = NEW(&f->arena, int32_t, T), .position = position,
                      .feature = NEW(&f->arena, int32_t, T)};
    const struct one *open[ANSWERS];
    for (int64_t t = 0; t < T; t++)
        row.feature[t] = held[t] = -1;
    for (int i = ANSWERS - 1; i >= 0; i--) {
        const struct one *o = &f->one[i];
        int at = o->prompt + k;
        if (at >= o->e.tokens)
            continue;
        int32_t *all = NEW(&f->arena, int32_t, 3 * o->e.tokens), t = row.live++;
        assert_ok(sample_positions(&shape, &o->e, all));
        memcpy(position + 3 * t, all + 3 * at, 3 * sizeof *all);
        row.input[t] = o->e.input[at];
        from[t] = o->from;
        held[t] = o->from + at;
        want[t] = 1;
        open[t] = o;
    }
    feed_row(&f->feed[2], f->machine, m, 0, &row, 1, row.live, NULL,
             &(struct ask){want, held, from});
    assert_ok(machine_step(f->machine));
    for (int t = 0; t < row.live; t++)
        same(f, 2, t, open[t], open[t]->prompt + k + 1);
    return row.live;
}

static void steps_choose_what_rows_choose(void **state)
{
    struct fixture *f = *state;
    for (int check = 0; check < 2; check++) {
        machine_check(f->machine, check);
        begin(f, (int[]){2, 0}, 2);
        begin(f, (int[]){1}, 1);
        assert_ok(machine_use(f->machine, f->plan[2]));
        int answered = 0, before = ANSWERS;
        for (int k = 0; k < LONGEST; k++) {
            int now = step(f, k);
            assert_true(now <= before && now > 0);
            before = now;
            answered += now;
        }
        assert_int_equal(answered, LONGEST + 40 + 57);
        assert_ok(machine_evidence(f->machine));
    }
}

/* A prompt may come while others are being answered, and other plans in between. */
static void plans_take_turns(void **state)
{
    struct fixture *f = *state;
    begin(f, (int[]){0, 1}, 2);
    begin(f, (int[]){2}, 1);
    for (int k = 0; k < 5; k++) {
        assert_ok(machine_use(f->machine, f->plan[2]));
        assert_int_equal(step(f, k), ANSWERS);
        begin(f, (int[]){k % ANSWERS}, 1);      /* writes what is there already */
    }
}

static struct step *cache_step(struct plan *p)
{
    for (int64_t i = 0; i < p->nstep; i++)
        if (p->step[i].node >= 0 &&
            strcmp(p->graph->node[p->step[i].node].kind->name, "cache") == 0)
            return &p->step[i];
    fail_msg("no step writes a cache");
    return NULL;
}

/* What is held lies where every plan finds it, and a plan that has it elsewhere, or
 * that gives its memory to another, is no plan. */
static void no_plan_loses_what_is_held(void **state)
{
    struct fixture *f = *state;
    int layers = f->config.decoder.layers;
    assert_true(f->plan[0]->held_bytes == 0 && f->plan[1]->held_bytes > 0);
    assert_int_equal(f->plan[1]->state_bytes, f->plan[2]->state_bytes);
    assert_int_equal(f->plan[1]->held_bytes, f->plan[2]->held_bytes);
    for (int i = 1; i < 3; i++) {
        struct plan *p = f->plan[i];
        int held = 0;
        for (int64_t b = 0; b < p->nbuffer; b++)
            held += p->buffer[b].whole && p->buffer[b].value >= 0;
        assert_int_equal(held, layers);
        struct step *s = cache_step(p);
        struct buffer *x = &p->buffer[s->out[0]];
        x->whole = false;
        assert_fails(plan_check(p), "lives on");
        x->whole = true;
        int64_t was = x->offset;
        x->offset = 0;
        assert_false(plan_check(p));
        x->offset = was;
        assert_ok(plan_check(p));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_choose_what_rows_choose),
        cmocka_unit_test(plans_take_turns),
        cmocka_unit_test(no_plan_loses_what_is_held),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
