/* mesh.c - ranks as mixed-radix numbers, and why a layout is refused.
 *
 * A rank's number is its coordinates written with the sizes of the axes as radices, so
 * groups are enumerated by counting along some digits: no search through the world. */
#include "parallel/mesh.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdlib.h>

const char *const axis_name[AXES] = {
    "pp", "replicate", "shard", "cp", "tp", "edp", "ep", "etp", "vdp",
};

/* ---- views ---- */

int view_world(const struct view *v)
{
    return view_group_size(v, ~0u);
}

int view_size(const struct view *v, enum axis axis)
{
    return view_group_size(v, ON(axis));
}

/* Ranks between neighbours along the i-th axis of the view. */
static int stride(const struct view *v, int i)
{
    int n = 1;
    while (++i < v->naxis)
        n *= v->size[i];
    return n;
}

int view_at(const struct view *v, int rank, enum axis axis)
{
    return view_group_index(v, rank, ON(axis));
}

int view_rank(const struct view *v, const int at[AXES])
{
    int rank = 0;
    for (int i = 0; i < v->naxis; i++) {
        REQUIRE(at[v->axis[i]] >= 0 && at[v->axis[i]] < v->size[i]);
        rank = rank * v->size[i] + at[v->axis[i]];
    }
    return rank;
}

int view_peer(const struct view *v, int rank, enum axis axis, int at)
{
    for (int i = 0; i < v->naxis; i++)
        if (v->axis[i] == axis) {
            REQUIRE(at >= 0 && at < v->size[i]);
            return rank + (at - view_at(v, rank, axis)) * stride(v, i);
        }
    BUG("mesh: this view has no axis %s", axis_name[axis]);
}

int view_group_size(const struct view *v, unsigned along)
{
    int n = 1;
    for (int i = 0; i < v->naxis; i++)
        n *= along & ON(v->axis[i]) ? v->size[i] : 1;
    return n;
}

int view_group_index(const struct view *v, int rank, unsigned along)
{
    int index = 0, weight = 1;
    for (int i = v->naxis - 1; i >= 0; rank /= v->size[i--])
        if (along & ON(v->axis[i])) {
            index += weight * (rank % v->size[i]);
            weight *= v->size[i];
        }
    return index;
}

int view_group_number(const struct view *v, int rank, unsigned along)
{
    return view_group_index(v, rank, ~along);
}

int view_group(const struct view *v, int rank, unsigned along, int *members)
{
    int n = view_group_size(v, along);
    for (int k = 0; members && k < n; k++) {
        int digits = k, apart = 1, r = rank;
        for (int i = v->naxis - 1; i >= 0; apart *= v->size[i--])
            if (along & ON(v->axis[i])) {
                int own = rank / apart % v->size[i];
                r += (digits % v->size[i] - own) * apart;
                digits /= v->size[i];
            }
        members[k] = r;
    }
    return n;
}

int view_holders(const struct view *v, int rank, unsigned split, int *members)
{
    return view_group(v, rank, holder_axes(split), members);
}

/* ---- refusing ---- */

/* What a recipe sets, in the order it is checked: each rule looks only at those before
 * it, so the one to change is the one that fails, and 1 is legal for all but dp. */
enum knob {
    KNOB_PP, KNOB_TP, KNOB_CP, KNOB_DP, KNOB_REPLICATE, KNOB_EP, KNOB_ETP, KNOBS
};
static const char *const knob_name[KNOBS] = {
    "pp", "tp", "cp", "dp", "replicate", "ep", "etp",
};

static int *knob(struct layout *l, enum knob k)
{
    int *const at[KNOBS] = {
        &l->pp, &l->tp, &l->cp, &l->dp, &l->replicate, &l->ep, &l->etp,
    };
    return at[k];
}

struct reason { char text[256]; };

static bool because(struct reason *why, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool because(struct reason *why, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    text_format(why->text, sizeof why->text, fmt, args);
    va_end(args);
    return false;
}

struct divided { int by; int64_t number; const char *what; };

/* Does every number split evenly? */
static bool divides(const char *name, const struct divided *d, int count,
                    struct reason *why)
{
    for (int i = 0; i < count; i++)
        if (d[i].number % d[i].by)
            return because(why, "%s %d does not divide %lld %s", name, d[i].by,
                           (long long)d[i].number, d[i].what);
    return true;
}
#define DIVIDES(name, why, ...)                                                       \
    divides(name, (const struct divided[]){__VA_ARGS__},                              \
            COUNT(((const struct divided[]){__VA_ARGS__})), why)

/* Do equally many tp ranks share each key/value head? */
static bool groups_shared(const struct layout *l, const struct mesh_limits *m)
{
    return m->groups > 0 && l->tp % m->groups == 0;
}

/* Is this setting legal, given those before it? */
static bool knob_fits(const struct layout *l, const struct mesh_limits *m, enum knob k,
                      struct reason *why)
{
    int64_t inner = (int64_t)l->pp * l->tp;
    int64_t block = (int64_t)l->dp / l->replicate * l->cp * l->tp;
    switch (k) {
    case KNOB_PP:
        if (m->pieces && (int64_t)l->pp * m->chunks > m->pieces)
            return because(why, "pp %d x %d chunk(s) are more stages than the %d "
                                "piece(s) "
                           "the model can be cut into", l->pp, m->chunks, m->pieces);
        return DIVIDES("pp", why, {l->pp, l->world, "ranks"});
    case KNOB_TP:
        if (l->world % inner)
            return because(why, "pp %d x tp %d = %lld does not divide %d rank(s)",
                           l->pp, l->tp, (long long)inner, l->world);
        return DIVIDES("tp", why, {l->tp, m->heads, "query heads"},
                       {l->tp, groups_shared(l, m) ? 0 : m->groups, "key/value heads"},
                       {l->tp, m->hidden, "hidden columns (dense F)"},
                       {l->tp, m->shared_hidden, "hidden columns of the shared expert"},
                       {l->tp, m->vocabulary, "words of the vocabulary"},
                       {l->tp, m->vision_heads, "vision heads"},
                       {l->tp, m->vision_hidden, "hidden columns of vision"},
                       {l->tp, m->merger_hidden, "hidden columns of the projector"},
                       {l->tp, m->features, "image features of a row"},
                       {l->tp, m->tokens, "tokens of a row"});
    case KNOB_CP:
        if (l->world % (inner * l->cp))
            return because(why, "pp %d x cp %d x tp %d = %lld does not divide %d "
                                "rank(s)",
                           l->pp, l->cp, l->tp, (long long)inner * l->cp, l->world);
        if (l->cp > 1 && m->tokens % (2 * (int64_t)l->cp * l->tp))
            return because(why, "2 x cp %d x tp %d = %lld piece(s) do not divide %lld "
                           "token(s) of a row", l->cp, l->tp, 2LL * l->cp * l->tp,
                           (long long)m->tokens);
        return true;
    case KNOB_DP:
        if (inner * l->cp * l->dp != l->world)
            return because(why, "pp %d x dp %d x cp %d x tp %d = %lld, but there are "
                           "%d rank(s)", l->pp, l->dp, l->cp, l->tp,
                           (long long)(inner * l->cp * l->dp), l->world);
        return true;
    case KNOB_REPLICATE:
        return DIVIDES("replicate", why, {l->replicate, l->dp, "data-parallel ranks"});
    case KNOB_EP:
        if (block % l->ep)
            return because(why, "ep %d does not divide the %lld rank(s) of dp %d x cp "
                                "%d "
                           "x tp %d", l->ep, (long long)block, l->dp / l->replicate,
                           l->cp, l->tp);
        return DIVIDES("ep", why, {l->ep, m->experts, "experts"});
    case KNOB_ETP:
        if (block % ((int64_t)l->ep * l->etp))
            return because(why, "ep %d x etp %d = %lld does not divide the %lld "
                                "rank(s) "
                           "of dp %d x cp %d x tp %d", l->ep, l->etp,
                           (long long)l->ep * l->etp, (long long)block,
                           l->dp / l->replicate, l->cp, l->tp);
        return DIVIDES("etp", why, {l->etp, m->expert_hidden,
                                    "hidden columns of an expert"});
    case KNOBS:
        break;
    }
    BUG("mesh: setting %d", k);
}

/* Says why, and what would do: "...; legal tp: 1 2 4 8 (nearest 4)". */
static bool refuse(const struct layout *l, const struct mesh_limits *m, enum knob k,
                   const struct reason *why)
{
    char list[256] = "";
    int size = 0, nearest = 0;
    struct layout other = *l;
    struct reason unused;
    int *at = knob(&other, k), asked = *at;
    for (*at = 1; *at <= l->world; ++*at) {
        if (!knob_fits(&other, m, k, &unused))
            continue;
        if (size < (int)sizeof list - 16)
            size += snprintf(list + size, sizeof list - (size_t)size, " %d", *at);
        if (!nearest || abs(*at - asked) < abs(nearest - asked))
            nearest = *at;
    }
    if (!nearest)
        return fail("mesh: %s; no %s is legal here", why->text, knob_name[k]);
    return fail("mesh: %s; legal %s:%s (nearest %d)", why->text, knob_name[k], list,
                nearest);
}

/* Fills in what is left open and checks in the order of enum knob. */
static bool complete(struct layout *l, const struct mesh_limits *m)
{
    enum { MOST = 1 << 24 };
    if (l->world < 1 || l->world > MOST)
        return fail("mesh: %d rank(s), expected 1 to %d", l->world, MOST);
    if (l->node < 0 || l->node > MOST)
        return fail("mesh: %d rank(s) a node, expected 0 (all) to %d", l->node, MOST);
    bool open = l->dp == 0;
    for (enum knob k = 0; k < KNOBS; k++) {
        int *at = knob(l, k);
        *at = *at == 0 ? 1 : *at;
        if (*at < 0 || *at > l->world)
            return fail("mesh: %s %d is outside 1 to %d (ranks)", knob_name[k], *at,
                        l->world);
    }
    for (enum knob k = 0; k < KNOBS; k++) {
        struct reason why;
        if (k == KNOB_DP && open)
            l->dp = l->world / (l->pp * l->cp * l->tp);
        if (!knob_fits(l, m, k, &why))
            return refuse(l, m, k, &why);
    }
    return true;
}

bool mesh_make(const struct layout *l, const struct mesh_limits *limits,
               struct mesh *out)
{
    struct mesh_limits m = limits ? *limits : (struct mesh_limits){0};
    m.chunks = MAX(1, m.chunks);
    struct layout c = *l;
    if (!complete(&c, &m))
        return fail_kind(FAULT_USAGE);
    int shard = c.dp / c.replicate, block = shard * c.cp * c.tp;
    int edp = block / (c.ep * c.etp);
    *out = (struct mesh){
        .layout = c, .edp = edp, .vdp = block,
        .dense = {5, {c.pp, c.replicate, shard, c.cp, c.tp},
                  {AXIS_PP, AXIS_REPLICATE, AXIS_SHARD, AXIS_CP, AXIS_TP}},
        .expert = {5, {c.pp, c.replicate, edp, c.ep, c.etp},
                   {AXIS_PP, AXIS_REPLICATE, AXIS_EDP, AXIS_EP, AXIS_ETP}},
        .vision = {3, {c.pp, c.replicate, block},
                   {AXIS_PP, AXIS_REPLICATE, AXIS_VDP}},
    };
    return true;
}

const struct view *mesh_view(const struct mesh *m, bool experts)
{
    return experts ? &m->expert : &m->dense;
}

int mesh_node(const struct mesh *m, int rank)
{
    return m->layout.node ? rank / m->layout.node : 0;
}

bool mesh_speaks(const struct mesh *m, int rank)
{
    return view_at(&m->dense, rank, AXIS_PP) == m->layout.pp - 1 &&
           view_group_index(&m->dense, rank, ON(AXIS_CP) | ON(AXIS_TP)) == 0;
}

/* ---- printing ---- */

static void product_add(struct text *t, const char *title, const struct view *v)
{
    text_add(t, "%-8s", title);
    for (int i = 0; i < v->naxis; i++)
        if (v->axis[i] != AXIS_REPLICATE || v->size[i] > 1)
            text_add(t, "%s%s %d", i ? " x " : "", axis_name[v->axis[i]], v->size[i]);
    text_add(t, " = %d\n", view_world(v));
}

/* "tp        2 ranks, 1 apart: 0 1" */
static void group_add(struct text *t, const struct mesh *m, const struct view *v,
                      const char *title, unsigned along)
{
    enum { SHOWN = 8 };
    int size = view_group_size(v, along), last = 0;
    if (size == 1)
        return;
    struct arena_mark mark = arena_mark(t->arena);
    int *member = NEW(t->arena, int, size);
    view_group(v, 0, along, member);
    char list[SHOWN * 12] = "";
    for (int i = 0, n = 0; i < MIN(size, SHOWN); i++)
        n += snprintf(list + n, sizeof list - (size_t)n, " %d", member[i]);
    last = member[size - 1];
    arena_reset(t->arena, mark);
    text_add(t, "  %-22s %4d ranks:%s%s%s\n", title, size, list,
             size > SHOWN ? " ..." : "",
             mesh_node(m, last) ? ", across nodes" : "");
}

char *mesh_text(const struct mesh *m, struct arena *a)
{
    const struct layout *l = &m->layout;
    struct text t = text_make(a);
    text_add(&t, "mesh of %d rank(s)", l->world);
    if (l->node)
        text_add(&t, ", %d a node", l->node);
    text_add(&t, "\n");
    product_add(&t, "dense", &m->dense);
    product_add(&t, "expert", &m->expert);
    product_add(&t, "vision", &m->vision);
    text_add(&t, "a stage: dp %d x cp %d x tp %d = edp %d x ep %d x etp %d = %d\n",
             l->dp, l->cp, l->tp, m->edp * l->replicate, l->ep, l->etp,
             l->world / l->pp);
    text_add(&t, "groups of rank 0\n");
    group_add(&t, m, &m->dense, "tp", ON(AXIS_TP));
    group_add(&t, m, &m->dense, "cp", ON(AXIS_CP));
    group_add(&t, m, &m->dense, "dp", ON_DP);
    group_add(&t, m, &m->dense, "replicate", ON(AXIS_REPLICATE));
    group_add(&t, m, &m->expert, "etp", ON(AXIS_ETP));
    group_add(&t, m, &m->expert, "ep", ON(AXIS_EP));
    group_add(&t, m, &m->dense, "pp", ON(AXIS_PP));
    group_add(&t, m, &m->dense, "holders of a norm", holder_axes(0));
    group_add(&t, m, &m->dense, "holders of a tp weight", holder_axes(ON(AXIS_TP)));
    group_add(&t, m, &m->expert, "holders of an expert",
              holder_axes(ON(AXIS_EP) | ON(AXIS_ETP)));
    return t.at;
}
