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
#include "train/balance.h"
#include "train/optimizer.h"
#include "train/weights.h"

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
    enum dtype compute, wire;           /* of gradients; 0: f32 */
    struct precision precision;
    const char *recompute, *offload;    /* NULL: none */
    bool weave, overlap, delay, keep_weights, lanes;
    double slack;                       /* 0: 1 */
    unsigned frozen;
    struct vision_options vision;       /* with too little room plans grow first */
    /* Loss and coefficients are filled in; where experts lack room (capacity), the step
     * runs again with twice as much. */
    struct decoder_options options;
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
    int grown;                          /* plans with more room that took over */
    int crowded;                        /* microbatches that could not balance */
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
    return (struct capacity){.tokens = 64, .patches = 64, .segments = 3, .images = 5};
}

/* ---- rows ---- */

/* Sides in patches of image i of so many, or of LARGE + 0, 1, ...: one as large as a
 * row has room for; two and three that two such rows cannot share out. */
enum { LARGE = 10 };
static inline const int *layout_grid(int images, int i)
{
    static const int grid[][2] = {{4, 4}, {2, 6}, {4, 2}};
    static const int large[][2] = {{8, 8}, {2, 14}, {2, 10}};
    return images < LARGE ? grid[i % 3] : large[images - LARGE];
}

/* `images` images and text, scored but for the first tokens where `scored`. */
static inline const struct encoded *layout_sample(struct arena *a,
                                                  const struct row_shape *s, int key,
                                                  int images, int text, bool scored)
{
    struct encoded *e = NEW(a, struct encoded, 1);
    int room = s->tokens;
    int count = images < LARGE ? images : images - LARGE + 1;
    *e = (struct encoded){.name = "sample", .id = key, .input = NEW(a, int32_t, room),
                          .scored = NEW(a, bool, room),
                          .image = NEW(a, struct patches, count + 1)};
    for (int i = 0; i < count; i++) {
        const int *side = layout_grid(images, i);
        int h = side[0], w = side[1], n = h * w * s->values;
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

/* `count` rows; row i has images[i] images (or LARGE ones) in two samples of uneven
 * length, some tokens scored; a negative number -n: n - 1 images and nothing scored. */
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
    int *crowded;                       /* [ranks] as in outcome */
    bool (*spoil)(const struct layout_run *x, struct plan *p);  /* NULL: nothing */
    pthread_mutex_t lock;
    char wrong[512];                    /* what a rank found, "" nothing */
    bool ended;                         /* well, else fail_message() says why */
};

static inline void layout_wrong(struct layout_run *x, const char *what,
                                const char *name, int rank)
{
    pthread_mutex_lock(&x->lock);
    if (!x->wrong[0])
        snprintf(x->wrong, sizeof x->wrong, "rank %d: %s %s", rank, what, name);
    pthread_mutex_unlock(&x->lock);
}

static inline void *layout_at(struct tensor own, int64_t i)
{
    return (char *)own.data + i * dtype_bytes(own.dtype);
}

static inline void layout_weights(const struct model *m, struct machine *machine)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct stretch part;
        struct tensor own = machine_own(machine, HELD_MASTER, i, &part);
        uint64_t key = random_key(11, p->name);
        for (int64_t k = part.from; k < part.to; k++) {
            float u = (float)random_normal(key, (uint64_t)box_global(&p->box, k));
            float x = p->initial == INITIAL_ONE    ? 1 + 0.1f * u
                      : p->initial == INITIAL_ZERO ? 0.05f * u
                                                   : 0.15f * u;
            dtype_from_f32(own.dtype, &x, layout_at(own, k - part.from), 1);
        }
    }
    weights_follow(m, machine);
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
            struct tensor own = machine_own(machine, what, i, &part);
            bool mine = phase > 0 || param_speaks(machine_plan(machine), i);
            if (part.from == part.to || !mine)
                continue;
            bool same = true;
            for (int64_t k = part.from; k < part.to; k++) {
                float *place = &to[i][box_global(&p->box, k)], has;
                dtype_to_f32(own.dtype, layout_at(own, k - part.from), &has, 1);
                if (phase == 0)
                    *place = has;
                else
                    same &= memcmp(place, &has, sizeof has) == 0;
            }
            if (!same)
                layout_wrong(x, what == HELD_MASTER ? "other bits in weight"
                                                    : "other bits in gradient",
                             p->name, rank);
        }
        if (!comm_barrier(world))
            return false;
    }
    return true;
}

static inline bool layout_policy(const struct trial *t, struct arena *a,
                                 const struct graph *g, struct policy *out)
{
    *out = policy_plain();
    out->weave = t->weave;
    out->overlap = t->overlap;
    out->delay = t->delay;
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
    p.vision = x->trial->vision;
    p.dtype = x->trial->compute;
    return p;
}

/* The plan of a rank, NULL if the trial's words are wrong.  `grown`: factors on the
 * trial's room for experts and for images; `state`: of the plan it takes over from, and
 * whose stages it keeps, or NULL. */
struct layout_growth { double experts, images; };
static inline struct plan *layout_plan(struct arena *a, const struct layout_run *x,
                                       int rank, struct layout_growth grown,
                                       const struct plan *state, struct model *m)
{
    struct recipe *r = NEW(a, struct recipe, 1);
    struct policy *policy = NEW(a, struct policy, 1);
    struct stages *stages = NEW(a, struct stages, 1);
    struct order *order = NEW(a, struct order, 1);
    int *output = NEW(a, int, 2), outputs = 0;
    const struct layout *l = &x->mesh.layout;
    int stage = view_at(&x->mesh.dense, rank, AXIS_PP);
    layout_recipe(a, r);
    struct model_purpose purpose = layout_purpose(x, r);
    purpose.decoder.capacity *= grown.experts;
    purpose.vision.capacity *= grown.images;
    model_record(a, &x->config, &x->rows->capacity, &purpose,
                 l->world > 1 ? &x->mesh : NULL, rank, m);
    if (!layout_policy(x->trial, a, &m->graph, policy) ||
        (l->pp > 1 && !state && !layout_stages(x->trial, a, &m->graph, stages)))
        return NULL;
    const struct stages *cut = state ? state->stages : l->pp > 1 ? stages : NULL;
    *order = layout_order(x->trial, a, stage, l->pp, x->rows->count / l->dp);
    output[outputs++] = m->decoder.loss;
    if (m->decoder.overflow != NONE)
        output[outputs++] = m->decoder.overflow;
    return plan_build(a, &m->graph, &(struct plan_options){
        .stages = cut, .stage = stage, .order = order, .policy = policy,
        .moments = 2, .sharding = &x->trial->sharding, .wire = x->trial->wire,
        .precision = x->trial->precision,
        .output = output, .outputs = outputs, .state = state});
}

/* ---- a rank's steps ---- */

struct layout_seat {                    /* a rank at work */
    struct layout_run *x;
    struct arena *arena;
    int rank;
    struct recipe *recipe;
    struct model model;
    struct plan *plan;
    struct machine *machine;
    struct stream stream;
    float *router_bias;                 /* NULL unless options.bias */
    struct layout_growth grown;
    int64_t bytes;                      /* most of its plans */
};

static inline bool layout_grow(struct layout_seat *s, double experts, double images)
{
    struct layout_run *x = s->x;
    s->grown.experts *= experts;
    s->grown.images *= images;
    s->plan = layout_plan(s->arena, x, s->rank, s->grown, s->plan, &s->model);
    if (s->rank == 0)
        x->out->grown++;
    if (!s->plan || !plan_check(s->plan) || !machine_use(s->machine, s->plan))
        return false;
    s->bytes = MAX(s->bytes, s->plan->bytes);
    return true;
}

/* Rows of microbatch mb for all data-parallel ranks. */
static inline const struct row **layout_row(const struct layout_run *x, struct arena *a,
                                            int mb)
{
    int dp = x->mesh.layout.dp;
    const struct row **row = NEW(a, const struct row *, dp);
    for (int i = 0; i < dp; i++)
        row[i] = &x->rows->row[mb * dp + i];
    return row;
}

/* Is there room for the images of a step?  Plans grow until there is. */
static inline bool layout_images(struct layout_seat *s, struct arena *a)
{
    for (int mb = 0; mb < s->plan->mbs; mb++) {
        struct balance b = balance_make(a, &s->model, layout_row(s->x, a, mb));
        while (b.crowded && s->model.encodes < s->model.capacity.patches) {
            /* As in training all have met before: one rank's memory may come to lie
             * where another's has been, which the thread sanitizer cannot see. */
            if (!comm_barrier(machine_world(s->machine)) || !layout_grow(s, 1, 2))
                return false;
            b = balance_make(a, &s->model, layout_row(s->x, a, mb));
        }
        s->x->crowded[s->rank] += b.crowded;
    }
    return true;
}

/* The plan on the rows of a step; *lacks: layers of any rank that had no room. */
static inline bool layout_rows_run(struct layout_seat *s, struct arena *a,
                                   struct feed *feed, double *lacks)
{
    const struct layout_run *x = s->x;
    const struct mesh *mesh = &x->mesh;
    const struct model *m = &s->model;
    int dp = view_group_index(&mesh->dense, s->rank, ON_DP);
    if (!layout_images(s, a))
        return false;
    for (int mb = 0; mb < s->plan->mbs; mb++) {
        const struct row **row = layout_row(x, a, mb);
        struct balance b = balance_make(a, m, row);
        feed_row(&feed[mb], s->machine, m, mb, row[dp], x->rows->supervised,
                 x->rows->live, s->router_bias, NULL);
        if (m->balanced)
            balance_feed(a, s->machine, m, mb, row, &b);
    }
    *lacks = 0;
    if (!machine_step(s->machine))
        return false;
    for (int mb = 0; mb < s->plan->mbs && x->trial->options.capacity > 0; mb++) {
        struct tensor over = m->decoder.overflow == NONE
                                 ? (struct tensor){0}
                                 : machine_value(s->machine, m->decoder.overflow, mb);
        *lacks += tensor_is(over) ? *(const float *)over.data : 0;
    }
    return comm_all_reduce(machine_world(s->machine), DTYPE_F64, lacks, 1);
}

static inline bool layout_update(struct layout_seat *s, struct arena *a,
                                 struct feed *feed, int step)
{
    struct layout_run *x = s->x;
    const struct model *m = &s->model;
    struct update u;
    double lacks;
    bool ok = layout_rows_run(s, a, feed, &lacks);
    while (ok && lacks > 0)
        ok = layout_grow(s, 2, 1) && layout_rows_run(s, a, feed, &lacks);
    if (!ok)
        return false;
    for (int mb = 0; mb < s->plan->mbs && mesh_speaks(&x->mesh, s->rank); mb++)
        x->share[s->rank * LAYOUT_UPDATES + step] +=
            *(float *)machine_value(s->machine, m->decoder.loss, mb).data;
    ok = (step > 0 ||
          layout_gather(x, m, s->machine, HELD_GRADIENT, x->out->grad, s->rank)) &&
         optimizer_step(s->recipe, m, s->machine, &ops_cpu, &s->stream,
                        schedule_rate(s->recipe, step + 1, 0), step, &u);
    x->norm[s->rank * LAYOUT_UPDATES + step] = u.grad_norm;
    return ok;
}

static inline bool layout_steps(struct layout_seat *s)
{
    struct arena a = arena_make("steps");
    struct feed *feed = NEW(&a, struct feed, s->plan->mbs);
    bool ok = true;
    for (int mb = 0; mb < s->plan->mbs; mb++)
        feed[mb] = feed_make(&a, &s->model);
    for (int step = 0; step < LAYOUT_UPDATES && ok; step++)
        ok = layout_update(s, &a, feed, step);
    ok = ok && layout_gather(s->x, &s->model, s->machine, HELD_MASTER,
                             s->x->out->weight, s->rank);
    arena_free(&a);
    return ok && machine_evidence(s->machine);
}

/* Large enough to send tokens elsewhere. */
static inline float *layout_router_bias(struct arena *a, const struct model *m)
{
    int64_t n = (int64_t)m->decoder.moe_layers * m->config.decoder.experts;
    float *bias = NEW(a, float, n);
    for (int64_t i = 0; i < n; i++)
        bias[i] = (float)(0.1 * random_normal(17, (uint64_t)i));
    return bias;
}

static inline bool layout_rank(struct rank *rank, void *arg)
{
    struct layout_run *x = arg;
    struct layout_seat *s = NEW(&rank->arena, struct layout_seat, 1);
    *s = (struct layout_seat){.x = x, .arena = &rank->arena, .rank = rank->rank,
                              .recipe = NEW(&rank->arena, struct recipe, 1),
                              .grown = {1, 1}};
    layout_recipe(s->arena, s->recipe);
    s->plan = layout_plan(s->arena, x, s->rank, s->grown, NULL, &s->model);
    if (!s->plan || !plan_check(s->plan) || (x->spoil && !x->spoil(x, s->plan)))
        return false;
    s->bytes = s->plan->bytes;
    if (s->model.in.router_bias != NONE)
        s->router_bias = layout_router_bias(s->arena, &s->model);
    s->stream.team = team_make(1);
    bool ok = machine_make(s->arena, s->plan, &(struct machine_options){
        .ops = &ops_cpu, .rank = rank->ranks > 1 ? rank : NULL, .team = s->stream.team,
        .lanes = x->trial->lanes}, &s->machine);
    if (ok) {
        layout_weights(&s->model, s->machine);
        ok = layout_steps(s);
        if (machine_bytes(s->machine) != s->bytes)
            layout_wrong(x, "memory in use is not", "what was planned", s->rank);
        machine_free(s->machine);
    }
    pthread_mutex_lock(&x->lock);
    x->out->bytes = MAX(x->out->bytes, s->bytes);
    x->out->steps = MAX(x->out->steps, s->plan->nstep);
    pthread_mutex_unlock(&x->lock);
    team_free(s->stream.team);
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

/* Loss and gradient norm of every update, first gradients and last weights; what is
 * wrong with them in x->wrong. */
static inline struct outcome layout_measure(struct arena *a, struct layout_run *x)
{
    struct outcome out = {0};
    const struct trial *t = x->trial;
    struct layout layout = t->layout;
    layout.world = MAX(layout.world, 1);
    x->config = t->config ? *t->config : layout_config();
    x->out = &out;
    pthread_mutex_init(&x->lock, NULL);
    struct mesh_limits limits = limits_of(&x->config, &x->rows->capacity);
    assert_ok(mesh_make(&layout, &limits, &x->mesh));
    if (x->rows->count % x->mesh.layout.dp)
        fail_msg("%d rows for dp %d", x->rows->count, x->mesh.layout.dp);
    struct recipe *r = NEW(a, struct recipe, 1);
    struct model *m = NEW(a, struct model, 1);
    layout_recipe(a, r);
    struct model_purpose purpose = layout_purpose(x, r);
    model_record(a, &x->config, &x->rows->capacity, &purpose, NULL, 0, m);
    out.graph = &m->graph;
    out.grad = layout_tensors(a, out.graph);
    out.weight = layout_tensors(a, out.graph);
    x->share = NEW(a, double, layout.world * LAYOUT_UPDATES);
    x->norm = NEW(a, double, layout.world * LAYOUT_UPDATES);
    x->crowded = NEW(a, int, layout.world);
    x->ended = world_run(layout.world, 60, layout_rank, x);
    pthread_mutex_destroy(&x->lock);
    for (int k = 0; k < LAYOUT_UPDATES; k++) {
        out.grad_norm[k] = x->norm[k];
        for (int i = 0; i < layout.world; i++) {
            out.loss[k] += x->share[i * LAYOUT_UPDATES + k];
            if (x->norm[i * LAYOUT_UPDATES + k] != x->norm[k])
                layout_wrong(x, "another", "gradient norm", i);
        }
    }
    out.crowded = x->crowded[0];
    for (int i = 0; i < layout.world; i++)
        if (x->crowded[i] != out.crowded)
            layout_wrong(x, "another", "way to share images out", i);
    return out;
}

static inline struct outcome layout_run(struct arena *a, const struct layout_rows *rows,
                                        const struct trial *t)
{
    struct layout_run x = {.trial = t, .rows = rows};
    struct outcome out = layout_measure(a, &x);
    assert_ok(x.ended);
    if (x.wrong[0])
        fail_msg("%s", x.wrong);
    return out;
}

/* ---- comparing ---- */

static inline char *layout_text(struct arena *a, const struct trial *t)
{
    const struct layout *l = &t->layout;
    return arena_text(a, "world %d pp %d dp %d cp %d tp %d ep %d etp %d replicate %d, "
                      "chunks %d zero bubble %d stages %s ring %d dispatcher %d, "
                      "sharding state %d weights %d each %d prefetch %d, keep %d weave "
                      "%d overlap %d delay %d lanes %d, recompute %s, offload %s, "
                      "frozen %x, %s masters %d", l->world, l->pp, l->dp, l->cp,
                      l->tp, l->ep, l->etp, l->replicate, MAX(t->chunks, 1),
                      t->zero_bubble,
                      t->stages ? t->stages : "equal", t->options.cp_ring,
                      t->options.dispatcher, t->sharding.state, t->sharding.weights,
                      t->sharding.each, t->sharding.prefetch, t->keep_weights, t->weave,
                      t->overlap, t->delay, t->lanes,
                      t->recompute ? t->recompute : "none",
                      t->offload ? t->offload : "none", t->frozen,
                      dtype_name[t->compute], t->precision.masters);
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
