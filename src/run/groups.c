/* groups.c - from axes to comms.
 *
 * Stands alone because it is all that binds a plan to the ranks that are there. */
#include "run/groups.h"

#include "base/text.h"

struct groups groups_make(struct arena *a, const struct rank *rank)
{
    struct groups x = {.arena = a, .rank = rank};
    int ranks = rank ? rank->ranks : 1;
    int *member = NEW(a, int, ranks);
    for (int i = 0; i < ranks; i++)
        member[i] = i;
    x.world = rank ? world_comm(rank, "world", member, ranks, LANE_COMPUTE)
                   : comm_self("world", member);
    return x;
}

struct groups groups_dry(struct arena *a, struct traffic *traffic)
{
    return (struct groups){.arena = a, .traffic = traffic};
}

bool groups_fit(const struct groups *x, const struct graph *g)
{
    int planned = g->mesh ? g->mesh->layout.world : 1, ranks = x->world.size;
    if (planned == ranks && (!x->rank || x->rank->rank == g->rank))
        return true;
    fail("run: the plan divides its work over %d rank(s) and is for rank %d, this is "
         "rank %d of %d", planned, g->rank, x->world.rank, ranks);
    return fail_kind(FAULT_USAGE);
}

/* "ep", "shard cp tp": for messages. */
static const char *axes_text(struct arena *a, const struct view *v, unsigned along)
{
    struct text t = text_make(a);
    for (int i = 0; i < v->naxis; i++)
        if (along & ON(v->axis[i]) && v->size[i] > 1)
            text_add(&t, "%s%s", t.size ? " " : "", axis_name[v->axis[i]]);
    return t.at;
}

static const struct comm *comm_open(const struct groups *x, const char *name,
                                    const int *member, int size, int place,
                                    enum lane lane)
{
    struct comm *c = NEW(x->arena, struct comm, 1);
    if (x->traffic)
        *c = comm_dry(x->traffic, name, member, size, place);
    else if (size == 1)
        *c = comm_self("alone", member);
    else
        *c = world_comm(x->rank, name, member, size, lane);
    return c;
}

static const struct comm *group_open(const struct groups *x, const struct graph *g,
                                     const struct group_of *key)
{
    const struct view *v = mesh_view(g->mesh, key->experts);
    int size = view_group_size(v, key->along);
    int *member = NEW(x->arena, int, size);
    view_group(v, g->rank, key->along, member);
    const char *name = axes_text(x->arena, v, key->along);
    return comm_open(x, key->back ? "pp back" : name, member, size,
                     view_group_index(v, g->rank, key->along), key->lane);
}

static const struct comm *group_find(struct groups *x, const struct graph *g,
                                     struct group_of key)
{
    if (key.along == 0 || !g->mesh)
        return NULL;
    for (int64_t i = 0; i < x->count; i++)
        if (x->at[i].experts == key.experts && x->at[i].back == key.back &&
            x->at[i].along == key.along && x->at[i].lane == key.lane)
            return x->at[i].comm;
    key.comm = group_open(x, g, &key);
    GROW(x->arena, x->at, x->count, x->room);
    x->at[x->count++] = key;
    return key.comm;
}

/* Values and gradients that go the same way are wanted in orders of their own, so they
 * have a group each. */
static const struct comm *pipe_find(struct groups *x, const struct plan *p,
                                    const struct step *s)
{
    bool back = s->kind == STEP_SEND_GRAD || s->kind == STEP_RECV_GRAD;
    const struct comm *c = group_find(x, p->graph, (struct group_of){
        .back = back, .along = ON(AXIS_PP), .lane = s->lane});
    REQUIRE(c && c->rank == p->stage && c->size == p->stages->ranks);
    return c;
}

/* This rank and those in its place at other stages that have the unit. */
static const struct comm *tie_open(struct groups *x, const struct plan *p, int unit)
{
    const struct graph *g = p->graph;
    const struct view *v = g->mesh ? mesh_view(g->mesh, g->unit[unit].experts) : NULL;
    int *member = NEW(x->arena, int, p->stages->ranks), place = 0;
    int size = stages_holders(p->stages, g, unit, member);
    REQUIRE(v && view_at(v, g->rank, AXIS_PP) == p->stage);
    for (int i = 0; i < size; i++) {
        place = member[i] == p->stage ? i : place;
        member[i] = view_peer(v, g->rank, AXIS_PP, member[i]);
    }
    return comm_open(x, "tied stages", member, size, place, LANE_STATE);
}

const struct comm *groups_find(struct groups *x, const struct plan *p,
                               const struct step *s)
{
    const struct graph *g = p->graph;
    if (s->node >= 0)
        return group_find(x, g, (struct group_of){
            .experts = g->node[s->node].experts, .along = g->node[s->node].along,
            .lane = s->lane});
    if (s->kind == STEP_TIE)
        return tie_open(x, p, s->unit);
    if (s->unit >= 0)
        return group_find(x, g, (struct group_of){
            .experts = g->unit[s->unit].experts, .along = s->along, .lane = s->lane});
    return s->peer >= 0 ? pipe_find(x, p, s) : NULL;
}
