/* ranks.h - a model recorded for several ranks and run by as many threads, against the
 * same model on one: the loss, and every gradient once its holders have added it up. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "tests/model/case.h"

struct ranks_case {
    struct layout layout;
    struct model_config config;
    struct decoder_options options;
    struct capacity capacity;
    unsigned frozen;
    void (*change)(struct mini *m);     /* the inputs, or NULL */
    struct work *work;                  /* not NULL: ops are dry, and counted there */
};

struct ranks_out {                      /* of one rank */
    struct arena arena;
    struct graph g;
    struct decoder_graph d;
    struct tensor *grad;                /* by param, summed over holders */
    float loss, cross_entropy, router_loss, aux, z_loss;
    double activations;                 /* bytes of all values with a row per token */
};

struct ranks_run {
    const struct ranks_case *c;
    struct mesh mesh;
    struct ranks_out *out;
};

static inline void ranks_record(struct graph *g, const struct ranks_case *c,
                                struct decoder_graph *d)
{
    struct vision_graph vision;
    if (c->config.has_vision)
        vision_record(g, &c->config.vision, &c->capacity,
                      &(struct vision_options){0}, &vision);
    decoder_record(g, &c->config.decoder, &c->capacity,
                   c->config.has_vision ? &vision : NULL, &c->options, d);
    graph_freeze(g, c->frozen);
    graph_check(g);
}

static inline float ranks_value(const struct mini *m, int v)
{
    return v == NONE ? 0 : mini_value(m, v);
}

/* Gradients become those of the whole batch: what the runner does between backward and
 * update. */
static inline void ranks_sum(struct mini *m)
{
    const struct graph *g = m->g;
    for (int64_t p = 0; p < g->nparam; p++) {
        if (!g->param[p].trainable)
            continue;
        struct tensor t = m->dparam[p];
        if (!m->written[p])
            memset(t.data, 0, sizeof(float) * (size_t)tensor_count(t));
        const struct unit *u = &g->unit[g->param[p].unit];
        const struct view *v = mesh_view(g->mesh, u->experts);
        int member[64], size = view_holders(v, g->rank, u->split, member);
        struct comm c = world_comm(m->rank, "holders", member, size, LANE_STATE);
        comm_all_reduce(&c, DTYPE_F32, t.data, tensor_count(t));
    }
}

static inline void ranks_one(const struct ranks_case *c, const struct rank *r,
                             struct ranks_out *o)
{
    ranks_record(&o->g, c, &o->d);
    struct mini m = mini_make(&o->arena, &o->g, c->work ? &ops_dry : &ops_cpu);
    m.rank = r;
    m.stream.work = c->work ? &c->work[o->g.rank] : NULL;
    case_weights(&m, 100);
    case_inputs(&m);
    if (c->change)
        c->change(&m);
    mini_forward(&m);
    mini_backward(&m);
    if (r)
        ranks_sum(&m);
    o->grad = m.dparam;
    o->loss = ranks_value(&m, o->d.loss);
    o->cross_entropy = ranks_value(&m, o->d.cross_entropy);
    o->router_loss = ranks_value(&m, o->d.router_loss);
    o->aux = ranks_value(&m, o->d.aux);
    o->z_loss = ranks_value(&m, o->d.z_loss);
    for (int64_t v = 0; v < o->g.nvalue; v++)
        if (o->g.value[v].node >= 0)
            o->activations += (double)value_bytes(&o->g.value[v]);
    mini_free(&m);
}

static inline bool ranks_main(struct rank *r, void *arg)
{
    struct ranks_run *run = arg;
    struct ranks_out *o = &run->out[r->rank];
    o->g.mesh = &run->mesh;
    o->g.rank = r->rank;
    ranks_one(run->c, r, o);
    int all[64], n = view_group(&run->mesh.dense, r->rank, ~0u, all);
    struct comm c = world_comm(r, "end", all, n, LANE_STATE);
    return comm_check(&c) && comm_barrier(&c);
}

static inline struct ranks_out *ranks_alloc(int ranks)
{
    struct ranks_out *o = calloc((size_t)ranks, sizeof *o);
    for (int i = 0; i < ranks; i++) {
        o[i].arena = arena_make("rank");
        o[i].g = graph_make(&o[i].arena);
    }
    return o;
}

static inline void ranks_free(struct ranks_out *o, int ranks)
{
    for (int i = 0; i < ranks; i++)
        arena_free(&o[i].arena);
    free(o);
}

static inline struct ranks_out *ranks_alone(const struct ranks_case *c)
{
    struct ranks_out *o = ranks_alloc(1);
    ranks_one(c, NULL, o);
    return o;
}

static inline int64_t ranks_param(const struct graph *g, const char *name)
{
    for (int64_t p = 0; p < g->nparam; p++)
        if (strcmp(g->param[p].name, name) == 0)
            return p;
    fail_msg("no param %s", name);
    return -1;
}

static inline void ranks_near(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * fabs(want)))
        fail_msg("%s is %.9g, on one rank %.9g", what, got, want);
}

/* Rank's part of a gradient against one rank's whole; returns the worst so far. */
static inline double ranks_compare(const struct ranks_out *one, int rank,
                                   const struct ranks_out *o, int64_t p, double worst)
{
    const struct param *q = &o->g.param[p];
    struct tensor whole = one->grad[ranks_param(&one->g, q->name)];
    double off = 0, norm = mini_dot(whole, whole) * (double)q->count /
                           (double)tensor_count(whole);
    for (int64_t i = 0; i < q->count; i++) {
        double d = (double)((float *)o->grad[p].data)[i] -
                   (double)((float *)whole.data)[box_global(&q->box, i)];
        off += d * d;
    }
    double error = sqrt(off) / (sqrt(norm) + 1e-30);
    if (!(error <= 1e-5))
        fail_msg("rank %d: gradient of %s is %.2g off (norm %.3g)", rank, q->name,
                 error, sqrt(norm));
    return fmax(worst, error);
}

/* Ranks that hold the same piece have the same bits. */
static inline void ranks_replicas(const struct ranks_run *run, int ranks, int64_t p)
{
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < a; b++) {
            const struct param *x = &run->out[a].g.param[p];
            const struct param *y = &run->out[b].g.param[p];
            assert_string_equal(x->name, y->name);
            if (memcmp(&x->box, &y->box, sizeof x->box) == 0 &&
                !mini_same(run->out[a].grad[p], run->out[b].grad[p]))
                fail_msg("%s: ranks %d and %d have other bits", x->name, a, b);
        }
}

/* Run the case on layout.world threads; everything as on one rank.  Returns the largest
 * relative error of a gradient. */
static inline double ranks_check(const struct ranks_case *c,
                                 const struct ranks_out *one, double *activations)
{
    struct ranks_run run = {.c = c};
    int ranks = c->layout.world;
    if (!mesh_make(&c->layout, NULL, &run.mesh))
        fail_msg("%s", fail_message());
    run.out = ranks_alloc(ranks);
    if (!world_run(ranks, 60, ranks_main, &run))
        fail_msg("%s", fail_message());
    double worst = 0;
    for (int r = 0; r < ranks; r++) {
        const struct ranks_out *o = &run.out[r];
        ranks_near("loss", (double)o->loss, (double)one->loss);
        ranks_near("cross entropy", (double)o->cross_entropy,
                   (double)one->cross_entropy);
        ranks_near("router loss", (double)o->router_loss, (double)one->router_loss);
        ranks_near("aux", (double)o->aux, (double)one->aux);
        ranks_near("z loss", (double)o->z_loss, (double)one->z_loss);
        assert_true(o->loss == run.out[0].loss);
        assert_int_equal(o->g.nparam, one->g.nparam);
        for (int64_t p = 0; p < o->g.nparam; p++)
            if (o->g.param[p].trainable)
                worst = ranks_compare(one, r, o, p, worst);
    }
    for (int64_t p = 0; p < one->g.nparam; p++)
        if (run.out[0].g.param[p].trainable)
            ranks_replicas(&run, ranks, p);
    if (activations)
        *activations = run.out[0].activations;
    ranks_free(run.out, ranks);
    return worst;
}

#endif
