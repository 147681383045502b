/* graph.c - recording: values, nodes, units and params, and the promises they keep.
 *
 * Stands alone because everything above it only reads what is recorded here. */
#include "graph/graph.h"

#include <stdlib.h>

const char *const lane_name[LANES] = {"compute", "layer", "state", "copy", "pipe"};

const char *const part_name[PARTS] = {"vision",  "projector", "embeddings",
                                      "decoder", "router",    "experts"};

const char *const components[] = {"decode",    "vision", "projector", "embedding",
                                  "attention", "mlp",    "router",    "experts",
                                  "shared",    "head",   NULL};

enum { PARAM_ALIGN = 16 };              /* elements: 64 bytes of f32 */

struct graph graph_make(struct arena *a)
{
    return (struct graph){
        .arena = a, .dtype = DTYPE_F32, .tower = "decoder", .live = {NONE, 0, 1}};
}

int graph_layer(struct graph *g)
{
    return g->layers++;
}

/* ---- values ---- */

static int value_add(struct graph *g, struct value v)
{
    GROW(g->arena, g->value, g->nvalue, g->value_room);
    g->value[g->nvalue] = v;
    return (int)g->nvalue++;
}

static bool floating(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16;
}

int graph_value_of(struct graph *g, const char *name, int layer, enum dtype dtype,
                   int ndim, const int64_t *dim)
{
    REQUIRE(ndim >= 1 && ndim <= 4);
    struct value v = {.name = name, .tower = g->tower, .dtype = dtype, .ndim = ndim,
                      .node = -1, .layer = layer, .grad = floating(dtype)};
    memcpy(v.dim, dim, sizeof *dim * (size_t)ndim);
    return value_add(g, v);
}

int graph_value(struct graph *g, const char *name, int layer, int64_t rows,
                int64_t cols)
{
    return graph_value_of(g, name, layer, g->dtype, 2, (const int64_t[]){rows, cols});
}

int graph_input(struct graph *g, const char *name, enum dtype dtype, int ndim,
                const int64_t *dim)
{
    REQUIRE(graph_find(g, name) < 0);
    int v = graph_value_of(g, name, -1, dtype, ndim, dim);
    g->value[v].grad = false;
    return v;
}

int64_t graph_experts_room(const struct graph *g)
{
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        int w = n->nw ? n->w[0] : NONE;
        if (w != NONE && g->unit[g->param[w].unit].experts)
            return g->value[n->in[0]].dim[0];
    }
    return 0;
}

int graph_find(const struct graph *g, const char *name)
{
    for (int v = 0; v < g->nvalue; v++)
        if (g->value[v].node < 0 && strcmp(g->value[v].name, name) == 0)
            return v;
    return -1;
}

struct live graph_live(struct graph *g, struct live live)
{
    struct live before = g->live;
    g->live = live;
    return before;
}

int graph_live_of(const struct graph *g, int x)
{
    return g->value[x].dim[0] == g->live.rows ? g->live.bound : NONE;
}

void graph_keep(struct graph *g, int value)
{
    g->value[value].keep = true;
}

void graph_hold(struct graph *g, int value)
{
    g->value[value].held = true;
    g->value[value].grad = false;
}

void graph_loss(struct graph *g, int value)
{
    REQUIRE(value_count(&g->value[value]) == 1 && g->value[value].grad);
    g->value[value].loss = true;
}

int64_t value_count(const struct value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++)
        n *= v->dim[i];
    return n;
}

int64_t value_bytes(const struct value *v)
{
    return value_count(v) * dtype_bytes(v->dtype);
}

/* ---- units and params ---- */

int graph_unit(struct graph *g, const char *name, int layer, enum part part,
               unsigned split, bool experts)
{
    GROW(g->arena, g->unit, g->nunit, g->unit_room);
    g->unit[g->nunit] = (struct unit){.name = name, .layer = layer, .part = part,
                                      .split = split, .experts = experts};
    return (int)g->nunit++;
}

enum dtype unit_dtype(const struct graph *g, int unit)
{
    return g->unit[unit].wide ? DTYPE_F32 : g->dtype;
}

int64_t param_disk_count(const struct param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->ndim; i++)
        n *= p->dim[i];
    return n;
}

/* What segments see of a tensor of these disk dims. */
static void param_rows(struct param *p)
{
    if (p->transposed) {
        REQUIRE(p->ndim == 3);
        p->nrows = 3;
        p->rows[0] = p->dim[0];
        p->rows[1] = p->dim[2];
        p->rows[2] = p->dim[1];
        return;
    }
    p->nrows = MIN(p->ndim, 2);
    p->rows[0] = p->dim[0];
    p->rows[1] = p->ndim > 1 ? param_disk_count(p) / p->dim[0] : 0;
}

/* This rank's part of the rows: a fused dim counts as two, of which the inner divides.
 */
static void param_part(const struct graph *g, const struct unit *u, struct param *p)
{
    static const struct view alone = {0};
    const struct view *v = g->mesh ? mesh_view(g->mesh, u->experts) : &alone;
    int64_t dim[BOX_DIMS];
    unsigned on[BOX_DIMS], all = 0;
    int n = 0;
    for (int i = 0; i < p->nrows; i++) {
        int fused = MAX(p->fused[i], 1);
        REQUIRE(p->rows[i] % fused == 0);
        if (fused > 1) {
            dim[n] = fused;
            on[n++] = 0;
        }
        dim[n] = p->rows[i] / fused;
        on[n++] = p->on[i];
        all |= p->on[i];
    }
    REQUIRE(all == u->split);
    p->box = box_of(v, g->rank, n, dim, on);
    for (int i = 0; i < p->nrows; i++)
        p->rows[i] /= view_group_size(v, p->on[i]);
}

int graph_param(struct graph *g, int unit, struct param p)
{
    struct unit *u = &g->unit[unit];
    REQUIRE(p.ndim >= 1 && p.ndim <= 5 && param_disk_count(&p) > 0);
    p.unit = unit;
    p.layer = u->layer;
    p.part = u->part;
    p.trainable = true;
    param_rows(&p);
    param_part(g, u, &p);
    p.offset = u->count;
    p.count = 1;
    for (int i = 0; i < p.nrows; i++)
        p.count *= p.rows[i];
    u->count += (p.count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    GROW(g->arena, g->param, g->nparam, g->param_room);
    g->param[g->nparam] = p;
    return (int)g->nparam++;
}

void graph_freeze(struct graph *g, unsigned parts)
{
    for (int64_t i = 0; i < g->nparam; i++)
        g->param[i].trainable = !(parts >> g->param[i].part & 1);
}

int graph_ways(const struct graph *g, bool experts, enum axis axis)
{
    return g->mesh ? view_size(mesh_view(g->mesh, experts), axis) : 1;
}

int graph_at(const struct graph *g, bool experts, enum axis axis)
{
    return g->mesh ? view_at(mesh_view(g->mesh, experts), g->rank, axis) : 0;
}

/* ---- nodes ---- */

void graph_group(struct graph *g, bool experts, unsigned along)
{
    g->node[g->nnode - 1].experts = experts;
    g->node[g->nnode - 1].along = along;
}

void graph_beside(struct graph *g, int node, int forward, int backward)
{
    const int other[2] = {forward, backward};
    for (int i = 0; i < 2; i++) {
        REQUIRE(other[i] < node);
        REQUIRE(other[i] == NONE || (g->node[other[i]].layer == g->node[node].layer &&
                                     g->node[other[i]].beside[i] == NONE));
        g->node[node].beside[i] = other[i];
    }
}

static int list_copy(int *to, const int *from, int room)
{
    int n = 0;
    for (; from[n] != END; n++) {
        REQUIRE(n < room && from[n] >= NONE);
        to[n] = from[n];
    }
    return n;
}

void graph_node(struct graph *g, const struct segment *kind, int layer, const int *in,
                const int *out, const int *w, const void *attr, int64_t work)
{
    struct node n = {.kind = kind, .tower = g->tower, .layer = layer, .attr = attr,
                     .work = work, .beside = {NONE, NONE}};
    n.nin = list_copy(n.in, in, MAX_IO);
    n.nout = list_copy(n.out, out, MAX_IO);
    n.nw = list_copy(n.w, w, MAX_WEIGHT);
    for (int i = 0; i < n.nin; i++) {
        if (n.in[i] == NONE)
            continue;
        struct value *v = &g->value[n.in[i]];
        if (v->layer < 0)
            v->layer = layer;           /* an input: first use */
    }
    for (int i = 0; i < n.nout; i++) {
        if (n.out[i] == NONE)
            continue;
        struct value *v = &g->value[n.out[i]];
        REQUIRE(v->node < 0 && v->layer == layer);
        v->node = (int)g->nnode;
        if (kind->no_grad_out >> i & 1)
            v->grad = false;
        if (floating(v->dtype) && kind->wide_out >> i & 1)
            v->dtype = DTYPE_F32;
    }
    for (int i = 0; i < n.nw; i++)
        if (n.w[i] != NONE && kind->wide_weight >> i & 1)
            g->unit[g->param[n.w[i]].unit].wide = true;
    GROW(g->arena, g->node, g->nnode, g->node_room);
    g->node[g->nnode++] = n;
}

void *graph_attr(struct graph *g, const void *attr, size_t size)
{
    return arena_copy(g->arena, attr, size);
}

/* ---- promises ---- */

static bool component_known(const char *name)
{
    for (int i = 0; components[i]; i++)
        if (name && strcmp(components[i], name) == 0)
            return true;
    return false;
}

static void check_segment(const struct node *n)
{
    const struct segment *k = n->kind;
    unsigned in = (1u << n->nin) - 1, out = (1u << n->nout) - 1;
    if (!component_known(k->component))
        BUG("graph: segment %s names component %s", k->name,
            k->component ? k->component : "(none)");
    if ((k->back_in | k->weight_in | k->no_grad_in) & ~in ||
        (k->back_out | k->weight_out | k->no_grad_out | k->wide_out) & ~out ||
        k->wide_weight & ~((1u << n->nw) - 1))
        BUG("graph: segment %s has masks beyond its %d input(s), %d output(s) and %d "
            "weight(s)", k->name, n->nin, n->nout, n->nw);
    if (n->nw > 0 && !k->weight && !k->fused && k->no_grad_out != out)
        BUG("graph: segment %s has weights and no weight pass", k->name);
    if (!k->forward || (k->fused && (k->weight || !k->backward)))
        BUG("graph: segment %s lacks a pass or has one too many", k->name);
}

static void check_weights(const struct graph *g, const struct node *n)
{
    for (int i = 0; i < n->nw; i++) {
        if (n->w[i] == NONE)
            continue;
        REQUIRE(n->w[i] < g->nparam);
        const struct unit *u = &g->unit[g->param[n->w[i]].unit];
        if (u->wide != (n->kind->wide_weight >> i & 1))
            BUG("graph: segment %s of layer %d reads %s, whose unit %s is %s f32",
                n->kind->name, n->layer, g->param[n->w[i]].name, u->name,
                u->wide ? "always" : "not always");
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_names(const struct graph *g)
{
    struct arena_mark m = arena_mark(g->arena);
    const char **name = NEW(g->arena, const char *, g->nparam);
    for (int64_t i = 0; i < g->nparam; i++)
        name[i] = g->param[i].name;
    qsort(name, (size_t)g->nparam, sizeof *name, by_text);
    for (int64_t i = 1; i < g->nparam; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            BUG("graph: two params are named %s", name[i]);
    arena_reset(g->arena, m);
}

void graph_check(const struct graph *g)
{
    int layer = 0;
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        check_segment(n);
        if (n->layer < layer || n->layer >= g->layers)
            BUG("graph: node %s of layer %d comes after layer %d of %d", n->kind->name,
                n->layer, layer, g->layers);
        layer = n->layer;
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] != NONE && g->value[n->in[i]].node >= k)
                BUG("graph: %s of layer %d reads %s before it is made", n->kind->name,
                    n->layer, g->value[n->in[i]].name);
        check_weights(g, n);
    }
    for (int64_t v = 0; v < g->nvalue; v++) {
        if (g->value[v].loss && g->value[v].dtype != DTYPE_F32)
            BUG("graph: loss %s is not f32", g->value[v].name);
        if (value_count(&g->value[v]) <= 0)
            BUG("graph: value %s of layer %d is empty", g->value[v].name,
                g->value[v].layer);
    }
    check_names(g);
}
