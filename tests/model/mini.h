/* mini.h - the simplest thing that can run a graph: every node forward, then every node
 * back in reverse.  No plan, no reuse of memory, so wrong answers are the model's.
 *
 * Everything starts as NaN (integers: far out of range), and a backward or weight pass
 * gets only what its segment's masks grant: the rest is absent (`poison`: NaN). */
#ifndef TESTS_MINI_H
#define TESTS_MINI_H

#include <math.h>
#include <stdlib.h>

#include "graph/graph.h"
#include "parallel/world.h"

struct mini {
    struct arena *arena;
    const struct graph *g;
    const struct ops *ops;
    struct stream stream;
    struct tensor *value, *grad;        /* by value; grad absent where not wanted */
    struct tensor *param, *dparam;      /* by param; dparam absent where frozen */
    bool *wants, *given;                /* by value: wants a gradient; has one */
    bool *written;                      /* by param: dparam holds something */
    bool poison;
    const struct rank *rank;            /* of the graph's mesh; NULL: alone */
};

static inline void mini_fill(struct tensor t)           /* with what must not be read */
{
    bool integer = t.dtype == DTYPE_I32 || t.dtype == DTYPE_I64;
    memset(t.data, integer ? 0x7e : 0xff,
           (size_t)(tensor_count(t) * dtype_bytes(t.dtype)));
}

static inline struct tensor mini_tensor(struct arena *a, enum dtype d, int ndim,
                                        const int64_t *dim)
{
    struct tensor t = tensor_dense(NULL, d, ndim, dim);
    t.data = arena_push(a, (size_t)(tensor_count(t) * dtype_bytes(d)));
    mini_fill(t);
    return t;
}

static inline struct tensor mini_like(struct arena *a, struct tensor t)
{
    return mini_tensor(a, t.dtype, t.ndim, t.dim);
}

static inline struct mini mini_make(struct arena *a, const struct graph *g,
                                    const struct ops *ops)
{
    struct mini m = {.arena = a, .g = g, .ops = ops};
    m.stream = (struct stream){.team = team_make(1), .work = NEW(a, struct work, 1)};
    m.value = NEW(a, struct tensor, g->nvalue);
    m.grad = NEW(a, struct tensor, g->nvalue);
    m.param = NEW(a, struct tensor, g->nparam);
    m.dparam = NEW(a, struct tensor, g->nparam);
    m.wants = NEW(a, bool, g->nvalue);
    m.given = NEW(a, bool, g->nvalue);
    m.written = NEW(a, bool, g->nparam);
    for (int64_t v = 0; v < g->nvalue; v++) {
        const struct value *x = &g->value[v];
        m.value[v] = mini_tensor(a, x->dtype, x->ndim, x->dim);
    }
    for (int64_t p = 0; p < g->nparam; p++)
        m.param[p] = mini_tensor(a, DTYPE_F32, g->param[p].nrows, g->param[p].rows);
    return m;
}

static inline void mini_free(struct mini *m)
{
    team_free(m->stream.team);
}

/* The tensors of list `id` that `mask` grants. */
static inline void mini_take(struct mini *m, struct tensor *to,
                             const struct tensor *from, const int *id, int n,
                             unsigned mask)
{
    for (int i = 0; i < n; i++) {
        if (id[i] == NONE)
            continue;
        if (mask >> i & 1)
            to[i] = from[id[i]];
        else if (m->poison)
            to[i] = mini_like(m->arena, from[id[i]]);
    }
}

/* This rank's end of the group along these axes: the same whenever it is asked for. */
static inline const struct comm *mini_comm(struct mini *m, bool experts, unsigned along)
{
    const struct view *v = mesh_view(m->g->mesh, experts);
    int *member = NEW(m->arena, int, view_group_size(v, along));
    int size = view_group(v, m->g->rank, along, member);
    struct comm *c = NEW(m->arena, struct comm, 1);
    *c = world_comm(m->rank, "mini", member, size, LANE_LAYER);
    return c;
}

static inline struct run mini_run(struct mini *m, const struct node *n)
{
    struct run r = {.ops = m->ops, .stream = &m->stream, .attr = n->attr};
    if (n->along)
        r.comm = mini_comm(m, n->experts, n->along);
    if (n->work > 0)
        r.work = mini_tensor(m->arena, DTYPE_U8, 1, &n->work);
    return r;
}

static inline struct run mini_forward_run(struct mini *m, const struct node *n)
{
    struct run r = mini_run(m, n);
    mini_take(m, r.in, m->value, n->in, n->nin, ~0u);
    mini_take(m, r.out, m->value, n->out, n->nout, ~0u);
    mini_take(m, r.w, m->param, n->w, n->nw, ~0u);
    return r;
}

/* The inputs of a backward or weight pass; gradients are the caller's. */
static inline struct run mini_backward_run(struct mini *m, const struct node *n)
{
    struct run r = mini_run(m, n);
    mini_take(m, r.in, m->value, n->in, n->nin, n->kind->back_in);
    mini_take(m, r.out, m->value, n->out, n->nout, n->kind->back_out);
    mini_take(m, r.w, m->param, n->w, n->nw, ~0u);
    return r;
}

static inline struct run mini_weight_run(struct mini *m, const struct node *n)
{
    struct run r = mini_run(m, n);
    mini_take(m, r.in, m->value, n->in, n->nin, n->kind->weight_in);
    mini_take(m, r.out, m->value, n->out, n->nout, n->kind->weight_out);
    return r;
}

static inline void mini_forward(struct mini *m)
{
    for (int64_t v = 0; v < m->g->nvalue; v++)
        if (m->g->value[v].node >= 0)
            mini_fill(m->value[v]);
    for (int64_t k = 0; k < m->g->nnode; k++) {
        struct run r = mini_forward_run(m, &m->g->node[k]);
        m->g->node[k].kind->forward(&r);
    }
}

/* Give r the gradients node n reads; false if it has none to go on. */
static inline bool mini_douts(struct mini *m, const struct node *n, struct run *r)
{
    bool any = false;
    for (int i = 0; i < n->nout; i++) {
        if (n->out[i] == NONE || !m->wants[n->out[i]])
            continue;
        if (m->given[n->out[i]])
            r->dout[i] = m->grad[n->out[i]];
        any |= m->given[n->out[i]] || m->g->value[n->out[i]].loss;
    }
    return any;
}

static inline bool mini_dws(struct mini *m, const struct node *n, struct run *r)
{
    bool any = false;
    for (int i = 0; i < n->nw; i++) {
        if (n->w[i] == NONE || !m->g->param[n->w[i]].trainable)
            continue;
        r->dw[i] = m->dparam[n->w[i]];
        r->beta_w[i] = m->written[n->w[i]];
        m->written[n->w[i]] = any = true;
    }
    return any;
}

static inline bool mini_dins(struct mini *m, const struct node *n, struct run *r)
{
    bool any = false;
    for (int i = 0; i < n->nin; i++) {
        int v = n->in[i];
        if (v == NONE || !m->wants[v] || n->kind->no_grad_in >> i & 1)
            continue;
        r->din[i] = m->grad[v];
        r->beta[i] = m->given[v];
        m->given[v] = any = true;
    }
    return any;
}

static inline void mini_backward(struct mini *m)
{
    const struct graph *g = m->g;
    graph_wants(g, m->wants);
    for (int64_t v = 0; v < g->nvalue; v++) {
        m->given[v] = false;
        m->grad[v] = m->wants[v] ? mini_like(m->arena, m->value[v]) : tensor_none();
    }
    for (int64_t p = 0; p < g->nparam; p++) {
        m->written[p] = false;
        m->dparam[p] =
            g->param[p].trainable ? mini_like(m->arena, m->param[p]) : tensor_none();
    }
    for (int64_t k = g->nnode; k-- > 0;) {
        const struct node *n = &g->node[k];
        struct run r = mini_backward_run(m, n);
        if (!mini_douts(m, n, &r))
            continue;
        if (n->kind->backward) {
            bool any = mini_dins(m, n, &r);
            if (n->kind->fused)
                any |= mini_dws(m, n, &r);
            if (any)
                n->kind->backward(&r);
        }
        r = mini_weight_run(m, n);
        mini_douts(m, n, &r);
        if (n->kind->weight && mini_dws(m, n, &r))
            n->kind->weight(&r);
    }
}

/* ---- numbers ---- */

/* u(k, i) in [-1, 1): the golden models' values (splitmix64 of a key and a counter). */
static inline double mini_u(uint64_t k, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u + k * 0xD1B54A32D192ED03u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53 * 2 - 1;
}

static inline double mini_dot(struct tensor a, struct tensor b)
{
    const float *x = a.data, *y = b.data;
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(a); i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static inline double mini_sum(struct tensor a)
{
    const float *x = a.data;
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(a); i++)
        sum += (double)x[i];
    return sum;
}

static inline bool mini_finite(struct tensor a)
{
    const float *x = a.data;
    for (int64_t i = 0; i < tensor_count(a); i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static inline bool mini_same(struct tensor a, struct tensor b)          /* bits */
{
    return tensor_count(a) == tensor_count(b) &&
           memcmp(a.data, b.data, (size_t)(tensor_count(a) * dtype_bytes(a.dtype))) ==
               0;
}

static inline struct tensor mini_copy(struct arena *a, struct tensor t)
{
    struct tensor c = mini_like(a, t);
    memcpy(c.data, t.data, (size_t)(tensor_count(t) * dtype_bytes(t.dtype)));
    return c;
}

static inline float mini_value(const struct mini *m, int v)             /* of a [1,1] */
{
    return *(const float *)m->value[v].data;
}

/* The data of input `name`, or NULL where the graph has none of that name. */
static inline void *mini_input(struct mini *m, const char *name)
{
    int v = graph_find(m->g, name);
    return v < 0 ? NULL : m->value[v].data;
}

#endif
