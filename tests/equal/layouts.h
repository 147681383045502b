/* layouts.h - a small vision-language model trained on given rows in any layout, on
 * ranks that are threads, and everything it leaves gathered: the law is that one rank
 * gets the same.
 *
 *     struct layout_rows rows = layout_rows(&a, 4, (int[]){1, 0, 2, 0});
 *     layout_check(&a, &rows, &(struct trial){.layout = {.world = 4, .tp = 2}}, NULL);
 *
 * layout_check runs the trial and one rank (or a given `want`), compares loss, gradient
 * norm, every gradient, and weights after the updates; that holders of a piece hold the
 * same bits; that each rank's memory is what the plan says. */
#ifndef TESTS_EQUAL_LAYOUTS_H
#define TESTS_EQUAL_LAYOUTS_H

#include "check.h"

#include "base/random.h"
#include "parallel/world.h"
#include "tests/model/case.h"
#include "train/optimizer.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

enum { LAYOUT_UPDATES = 3 };

struct trial {
    struct layout layout;               /* world 0: one rank */
    int chunks;                         /* of a pipeline rank; 0: 1 */
    bool zero_bubble;
    const char *stages;                 /* NULL: equal work */
    struct sharding sharding;
    const char *recompute, *offload;    /* NULL: none */
    bool weave, keep_weights, lanes;
    double slack;                       /* 0: 1 */
    unsigned frozen;
    struct decoder_options options;     /* loss and coefficients are filled in */
    const struct model_config *config;  /* NULL: layout_config() */
};

/* Rows of a step, the global batch. */
struct layout_rows {
    struct capacity capacity;
    int count;
    struct row *row;
    double supervised, live;
};

struct outcome {                        /* whole tensors in memory layout */
    const struct graph *graph;          /* of one rank */
    double loss[LAYOUT_UPDATES], grad_norm[LAYOUT_UPDATES];
    float **grad, **weight;             /* [params] first gradient, last weight */
    int64_t bytes, steps;               /* most of any rank */
};

/* Divisible by 4 where a layout divides; experts, a dense layer, two taps. */
static inline struct model_config layout_config(void)
{
    struct model_config c = case_config();
    c.decoder.width = c.vision.out = 32;
    c.decoder.heads = 8;
    c.decoder.groups = 4;
    c.decoder.head_width = 8;
    c.decoder.section[0] = 2;
    c.decoder.section[1] = c.decoder.section[2] = 1;
    c.decoder.experts = 8;
    c.decoder.expert_hidden = 12;
    c.decoder.hidden = 24;
    return c;
}

static inline struct capacity layout_capacity(void)
{
    return (struct capacity){.tokens = 64, .patches = 64, .segments = 3, .images = 3};
}

/* ---- rows ---- */

/* `images` images and text, scored but for the first tokens where `scored`. */
static inline const struct encoded *layout_sample(struct arena *a,
                                                  const struct row_shape *s, int key,
                                                  int images, int text, bool scored)
{
    static const int grid[][2] = {{4, 4}, {2, 6}, {4, 2}};
    struct encoded *e = NEW(a, struct encoded, 1);
    int room = s->tokens;
    *e = (struct encoded){.name = "sample", .id = key, .input = NEW(a, int32_t, room),
                          .scored = NEW(a, bool, room),
                          .image = NEW(a, struct patches, images + 1)};
    for (int i = 0; i < images; i++) {
        int h = grid[i % 3][0], w = grid[i % 3][1], n = h * w * s->values;
        float *pixels = NEW(a, float, n);
        for (int k = 0; k < n; k++)
            pixels[k] = (float)random_normal((uint64_t)(1000 + 10 * key + i),
                                             (uint64_t)k);
        e->image[e->nimage++] = (struct patches){h, w, s->values, pixels};
        e->patches += h * w;
        for (int k = 0; k < h * w / s->merge / s->merge; k++)
            e->input[e->tokens++] = s->image_token;
    }
    for (int i = 0; i < text; i++) {
        e->scored[e->tokens] = scored && i > 2;
        uint64_t word = random_bits((uint64_t)key, (uint64_t)i) % 50;
        e->input[e->tokens++] = 10 + (int32_t)word;
    }
    return e;
}

/* `count` rows; row i has images[i] images in two samples of uneven length, some tokens
 * scored; a negative number -n: n - 1 images and nothing scored. */
static inline struct layout_rows layout_rows(struct arena *a, int count,
                                             const int *images)
{
    struct model_config c = layout_config();
    struct layout_rows out = {.capacity = layout_capacity(), .count = count,
                              .row = NEW(a, struct row, count)};
    struct row_shape shape = row_shape_of(&out.capacity, &c);
    for (int i = 0; i < count; i++) {
        bool scored = images[i] >= 0;
        int n = scored ? images[i] : -images[i] - 1;
        const struct encoded *list[2] = {
            layout_sample(a, &shape, 2 * i, n, 17 + 3 * (i % 5), scored),
            layout_sample(a, &shape, 2 * i + 1, 0, 9 + i % 3, scored),
        };
        row_fill(a, &shape, list, 2, &out.row[i]);
        out.supervised += (double)out.row[i].ledger.supervised;
        out.live += out.row[i].live;
    }
    return out;
}

/* ---- one trial ---- */

struct layout_run {
    const struct trial *trial;
    const struct layout_rows *rows;
    struct model_config config;
    struct mesh mesh;
    struct outcome *out;
    double *share;                      /* [ranks, updates] loss of its rows */
    double *norm;                       /* [ranks, updates] */
    pthread_mutex_t lock;
    char wrong[512];                    /* what a rank found, "" nothing */
};

static inline void layout_wrong(struct layout_run *x, const char *what,
                                const char *name, int rank)
{
    pthread_mutex_lock(&x->lock);
    if (!x->wrong[0])
        snprintf(x->wrong, sizeof x->wrong, "rank %d: %s %s", rank, what, name);
    pthread_mutex_unlock(&x->lock);
}

static inline void layout_weights(const struct model *m, struct machine *machine)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct stretch part;
        float *at = machine_own(machine, HELD_WEIGHT, i, &part).data;
        uint64_t key = random_key(11, p->name);
        for (int64_t k = part.from; k < part.to; k++) {
            float u = (float)random_normal(key, (uint64_t)box_global(&p->box, k));
            at[k - part.from] = p->initial == INITIAL_ONE    ? 1 + 0.1f * u
                                : p->initial == INITIAL_ZERO ? 0.05f * u
                                                             : 0.15f * u;
        }
    }
}

/* Speakers write; then everyone looks whether it has the same bits. */
static inline bool layout_gather(struct layout_run *x, const struct model *m,
                                 const struct machine *machine, enum held what,
                                 float **to, int rank)
{
    const struct comm *world = machine_world(machine);
    for (int phase = 0; phase < 2; phase++) {
        for (int i = 0; i < m->graph.nparam; i++) {
            const struct param *p = &m->graph.param[i];
            struct stretch part;
            const float *at = machine_own(machine, what, i, &part).data;
            if (part.from == part.to || (phase == 0 && !machine_speaks(machine, i)))
                continue;
            bool same = true;
            for (int64_t k = part.from; k < part.to; k++) {
                float *place = &to[i][box_global(&p->box, k)];
                if (phase == 0)
                    *place = at[k - part.from];
                else
                    same &= memcmp(place, &at[k - part.from], sizeof *place) == 0;
            }
            if (!same)
                layout_wrong(x, what == HELD_WEIGHT ? "other bits in weight"
                                                    : "other bits in gradient",
                             p->name, rank);
        }
        if (!comm_barrier(world))
            return false;
    }
    return true;
}

static inline bool layout_steps(struct layout_run *x, const struct model *m,
                                struct machine *machine, const struct recipe *r,
                                struct stream *stream, int rank)
{
    const struct plan *p = machine_plan(machine);
    const struct mesh *mesh = &x->mesh;
    int dp = view_group_index(&mesh->dense, rank, ON_DP);
    struct arena a = arena_make("steps");
    struct feed *feed = NEW(&a, struct feed, p->mbs);
    bool ok = true;
    for (int mb = 0; mb < p->mbs; mb++)
        feed[mb] = feed_make(&a, m);
    for (int step = 0; step < LAYOUT_UPDATES && ok; step++) {
        struct update u;
        for (int mb = 0; mb < p->mbs; mb++)
            feed_row(&feed[mb], machine, m, mb,
                     &x->rows->row[mb * mesh->layout.dp + dp], x->rows->supervised,
                     x->rows->live, NULL, NULL);
        ok = machine_step(machine);
        if (!ok)
            break;
        for (int mb = 0; mb < p->mbs && mesh_speaks(mesh, rank); mb++)
            x->share[rank * LAYOUT_UPDATES + step] +=
                *(float *)machine_value(machine, m->decoder.loss, mb).data;
        ok = (step > 0 ||
              layout_gather(x, m, machine, HELD_GRADIENT, x->out->grad, rank)) &&
             optimizer_step(r, m, machine, &ops_cpu, stream, step + 1, step, &u);
        x->norm[rank * LAYOUT_UPDATES + step] = u.grad_norm;
    }
    ok = ok && layout_gather(x, m, machine, HELD_WEIGHT, x->out->weight, rank);
    arena_free(&a);
    return ok && machine_evidence(machine);
}

static inline bool layout_policy(const struct trial *t, struct arena *a,
                                 const struct graph *g, struct policy *out)
{
    *out = policy_plain();
    out->weave = t->weave;
    out->keep_weights = t->keep_weights;
    out->slack = MAX(t->slack, 1);
    return policy_parse(out, a, g, t->recompute ? t->recompute : "none",
                        t->offload ? t->offload : "none");
}

static inline bool layout_stages(const struct trial *t, struct arena *a,
                                 const struct graph *g, struct stages *out)
{
    return stages_make(a, g, g->mesh->layout.pp, MAX(t->chunks, 1),
                       t->stages ? t->stages : "", NULL, out);
}

static inline struct order layout_order(const struct trial *t, struct arena *a,
                                        int stage, int ranks, int mbs)
{
    int chunks = MAX(t->chunks, 1);
    if (t->zero_bubble)
        return order_zero_bubble(a, stage, ranks, chunks, mbs);
    return chunks > 1 ? order_interleaved(a, stage, ranks, chunks, mbs)
                      : order_1f1b(a, stage, ranks, mbs);
}

static inline void layout_recipe(struct arena *a, struct recipe *r)
{
    recipe_default(a, r);
    r->moe_aux_coef = 0.02;
    r->moe_z_coef = 0.01;
    r->optim_lr = 1e-3;
    r->optim_clip = 0.5;
    r->train_steps = LAYOUT_UPDATES;
    r->optim_epsilon = 1e-4;            /* AdamW's sign must not decide */
}

static inline struct model_purpose layout_purpose(const struct layout_run *x,
                                                  const struct recipe *r)
{
    struct model_purpose p = purpose_train(r, &x->config, x->trial->frozen);
    struct decoder_options o = x->trial->options;
    o.aux_coef = p.decoder.aux_coef;
    o.z_coef = p.decoder.z_coef;
    o.loss = true;
    p.decoder = o;
    return p;
}

/* One rank's recording and plan, in `a`; NULL: what the trial asks for is refused. */
static inline struct plan *layout_plan(struct arena *a, const struct layout_run *x,
                                       int rank, struct model *m)
{
    struct recipe *r = NEW(a, struct recipe, 1);
    struct policy *policy = NEW(a, struct policy, 1);
    struct stages *stages = NEW(a, struct stages, 1);
    struct order *order = NEW(a, struct order, 1);
    int pp = x->mesh.layout.pp, stage = view_at(&x->mesh.dense, rank, AXIS_PP);
    layout_recipe(a, r);
    struct model_purpose purpose = layout_purpose(x, r);
    model_record(a, &x->config, &x->rows->capacity, &purpose,
                 x->mesh.layout.world > 1 ? &x->mesh : NULL, rank, m);
    if (!layout_policy(x->trial, a, &m->graph, policy) ||
        (pp > 1 && !layout_stages(x->trial, a, &m->graph, stages)))
        return NULL;
    *order = layout_order(x->trial, a, stage, pp, x->rows->count / x->mesh.layout.dp);
    return plan_build(a, &m->graph, &(struct plan_options){
        .stages = pp > 1 ? stages : NULL, .stage = stage, .order = order,
        .policy = policy, .moments = 2, .sharding = &x->trial->sharding,
        .output = &m->decoder.loss, .outputs = 1});
}

static inline bool layout_rank(struct rank *rank, void *arg)
{
    struct layout_run *x = arg;
    struct arena *a = &rank->arena;
    struct recipe *r = NEW(a, struct recipe, 1);
    struct model *m = NEW(a, struct model, 1);
    layout_recipe(a, r);
    struct plan *p = layout_plan(a, x, rank->rank, m);
    if (!p || !plan_check(p))
        return false;
    struct team *team = team_make(1);
    struct stream stream = {.team = team};
    struct machine *machine;
    bool ok = machine_make(a, p, &(struct machine_options){
        .ops = &ops_cpu, .rank = rank->ranks > 1 ? rank : NULL, .team = team,
        .lanes = x->trial->lanes}, &machine);
    if (ok) {
        layout_weights(m, machine);
        ok = layout_steps(x, m, machine, r, &stream, rank->rank);
        if (machine_bytes(machine) != p->bytes)
            layout_wrong(x, "memory in use is not", "what was planned", rank->rank);
        machine_free(machine);
    }
    pthread_mutex_lock(&x->lock);
    x->out->bytes = MAX(x->out->bytes, p->bytes);
    x->out->steps = MAX(x->out->steps, p->nstep);
    pthread_mutex_unlock(&x->lock);
    team_free(team);
    return ok;
}

static inline float **layout_tensors(struct arena *a, const struct graph *g)
{
    float **t = NEW(a, float *, g->nparam);
    for (int64_t i = 0; i < g->nparam; i++) {
        t[i] = NEW(a, float, g->param[i].count);
        memset(t[i], 0xff, sizeof(float) * (size_t)g->param[i].count);
    }
    return t;
}

/* Loss and gradient norm of every update, first gradients and last weights. */
static inline struct outcome layout_run(struct arena *a, const struct layout_rows *rows,
                                        const struct trial *t)
{
    struct outcome out = {0};
    struct layout_run x = {.trial = t, .rows = rows, .out = &out};
    struct layout layout = t->layout;
    layout.world = MAX(layout.world, 1);
    x.config = t->config ? *t->config : layout_config();
    pthread_mutex_init(&x.lock, NULL);
    struct mesh_limits limits = limits_of(&x.config, &rows->capacity);
    assert_ok(mesh_make(&layout, &limits, &x.mesh));
    if (rows->count % x.mesh.layout.dp)
        fail_msg("%d rows for dp %d", rows->count, x.mesh.layout.dp);
    struct recipe *r = NEW(a, struct recipe, 1);
    struct model *m = NEW(a, struct model, 1);
    layout_recipe(a, r);
    struct model_purpose purpose = layout_purpose(&x, r);
    model_record(a, &x.config, &rows->capacity, &purpose, NULL, 0, m);
    out.graph = &m->graph;
    out.grad = layout_tensors(a, out.graph);
    out.weight = layout_tensors(a, out.graph);
    x.share = NEW(a, double, layout.world * LAYOUT_UPDATES);
    x.norm = NEW(a, double, layout.world * LAYOUT_UPDATES);
    assert_ok(world_run(layout.world, 60, layout_rank, &x));
    pthread_mutex_destroy(&x.lock);
    if (x.wrong[0])
        fail_msg("%s", x.wrong);
    for (int k = 0; k < LAYOUT_UPDATES; k++) {
        out.grad_norm[k] = x.norm[k];
        for (int i = 0; i < layout.world; i++) {
            out.loss[k] += x.share[i * LAYOUT_UPDATES + k];
            if (x.norm[i * LAYOUT_UPDATES + k] != x.norm[k])
                fail_msg("rank %d has another gradient norm", i);
        }
    }
    return out;
}

/* ---- comparing ---- */

static inline char *layout_text(struct arena *a, const struct trial *t)
{
    const struct layout *l = &t->layout;
    return arena_text(a, "world %d pp %d dp %d cp %d tp %d ep %d etp %d replicate %d, "
                      "chunks %d zero bubble %d stages %s ring %d dispatcher %d, "
                      "sharding state %d weights %d each %d prefetch %d, keep %d weave "
                      "%d lanes %d, recompute %s, offload %s, frozen %x", l->world,
                      l->pp, l->dp, l->cp, l->tp, l->ep, l->etp, l->replicate,
                      MAX(t->chunks, 1), t->zero_bubble,
                      t->stages ? t->stages : "equal",
                      t->options.cp_ring, t->options.dispatcher,
                      t->sharding.state, t->sharding.weights, t->sharding.each,
                      t->sharding.prefetch, t->keep_weights, t->weave, t->lanes,
                      t->recompute ? t->recompute : "none",
                      t->offload ? t->offload : "none", t->frozen);
}

static inline bool layout_near(double is, double want)
{
    return fabs(is - want) <= 1e-5 * fabs(want) + 1e-9;
}

/* Distance over size of the whole tensor; NaN where something is missing. */
static inline double layout_gap(const float *is, const float *want, int64_t n)
{
    double far = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)is[i] - (double)want[i];
        far += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return size > 0 ? sqrt(far / size) : sqrt(far);
}

static inline void layout_same(const struct outcome *is, const struct outcome *want,
                               unsigned frozen, const char *what)
{
    for (int k = 0; k < LAYOUT_UPDATES; k++)
        if (!layout_near(is->loss[k], want->loss[k]) ||
            !layout_near(is->grad_norm[k], want->grad_norm[k]))
            fail_msg("%s: step %d: loss %.9g, norm %.9g, one rank's %.9g, %.9g", what,
                     k, is->loss[k], is->grad_norm[k], want->loss[k],
                     want->grad_norm[k]);
    for (int64_t i = 0; i < want->graph->nparam; i++) {
        const struct param *p = &want->graph->param[i];
        /* A gradient that is zero but for rounding has no digits to compare. */
        double floor = 1e-7 * want->grad_norm[0], size = 0;
        for (int64_t k = 0; k < p->count; k++)
            size += (double)want->grad[i][k] * (double)want->grad[i][k];
        double grad = frozen >> p->part & 1
                          ? 0 : layout_gap(is->grad[i], want->grad[i], p->count);
        double weight = layout_gap(is->weight[i], want->weight[i], p->count);
        if (!(grad <= 1e-5 || grad * sqrt(size) <= floor) || !(weight <= 1e-5))
            fail_msg("%s: %s: gradient off by %g of %g, weight by %g", what, p->name,
                     grad, sqrt(size), weight);
    }
}

/* Bit by bit: what policies of one layout must give. */
static inline void layout_identical(const struct outcome *is,
                                    const struct outcome *want, unsigned frozen,
                                    const char *what)
{
    if (memcmp(is->loss, want->loss, sizeof is->loss) != 0)
        fail_msg("%s: another loss", what);
    for (int64_t i = 0; i < want->graph->nparam; i++) {
        const struct param *p = &want->graph->param[i];
        size_t size = sizeof(float) * (size_t)p->count;
        if ((!(frozen >> p->part & 1) &&
             memcmp(is->grad[i], want->grad[i], size) != 0) ||
            memcmp(is->weight[i], want->weight[i], size) != 0)
            fail_msg("%s: %s has other bits", what, p->name);
    }
}

/* Runs the trial against `want`, NULL: against one rank of the same policy. */
static inline struct outcome layout_check(struct arena *a,
                                          const struct layout_rows *rows,
                                          const struct trial *t,
                                          const struct outcome *want)
{
    struct outcome one;
    if (!want) {
        struct trial alone = *t;
        alone.layout = (struct layout){0};
        alone.sharding = (struct sharding){0};
        alone.chunks = 1;
        alone.zero_bubble = false;
        one = layout_run(a, rows, &alone);
        want = &one;
    }
    struct outcome is = layout_run(a, rows, t);
    layout_same(&is, want, t->frozen, layout_text(a, t));
    return is;
}

#endif
