/* places.c - which places of a packed row are this rank's, and inputs cut down to them.
 *
 * Inputs come whole to every rank.  With cp ranks the row is cut into 2 cp equal chunks
 * and rank r works on chunks r and 2 cp - 1 - r: a causal row costs more towards its
 * end, and so every rank gets the same.  Between blocks the tp ranks share those places
 * evenly, in order. */
#include "layers/layers.h"

/* The n places from number `from` of these. */
static struct places places_slice(struct places p, int64_t from, int64_t n)
{
    struct places s = {0};
    int64_t first = MIN(p.count[0], from + n) - MIN(p.count[0], from);
    s.from[0] = p.from[0] + MIN(p.count[0], from);
    s.count[0] = first;
    s.from[1] = p.from[1] + MAX(0, from - p.count[0]);
    s.count[1] = n - first;
    return s;
}

struct places places_of_row(const struct graph *g, int64_t T)
{
    int64_t ways = graph_ways(g, false, AXIS_CP), at = graph_at(g, false, AXIS_CP);
    if (ways == 1)
        return (struct places){{0, T}, {T, 0}};
    int64_t chunk = T / (2 * ways);
    REQUIRE(chunk * 2 * ways == T);
    return (struct places){{at * chunk, (2 * ways - 1 - at) * chunk}, {chunk, chunk}};
}

struct places places_of_rank(const struct graph *g, int64_t T)
{
    int64_t ways = graph_ways(g, false, AXIS_TP), at = graph_at(g, false, AXIS_TP);
    struct places p = places_of_row(g, T);
    int64_t n = places_count(&p) / ways;
    REQUIRE(n * ways == places_count(&p));
    return places_slice(p, at * n, n);
}

struct owner places_owner(int cp, int tp, int64_t T, int64_t at)
{
    int64_t chunk = T / (2 * cp), share = T / (cp * tp), i = at / chunk;
    struct owner o = {.local = at};
    if (cp > 1) {
        bool late = i >= cp;
        o.cp = (int)(late ? 2 * cp - 1 - i : i);
        o.local = late * chunk + at % chunk;
    }
    o.tp = (int)(o.local / share);
    o.local %= share;
    return o;
}

/* ---- own: in x, out its rows at own places ---- */

void own_forward(struct run *r)
{
    const struct places *p = r->attr;
    for (int i = 0, at = 0; i < 2; at += (int)p->count[i++])
        if (p->count[i] > 0)
            r->ops->copy(r->stream, tensor_rows(r->in[0], p->from[i], p->count[i]),
                         tensor_rows(r->out[0], at, p->count[i]));
}

/* ---- locate: in place, out the local numbers of own places, -1 for others ---- */

void locate_forward(struct run *r)
{
    r->ops->locate(r->stream, r->in[0], *(const struct places *)r->attr, r->out[0]);
}

/* ---- live: in live, out how many of own places are ---- */

void live_forward(struct run *r)
{
    r->ops->live_places(r->stream, r->in[0], *(const struct places *)r->attr,
                        r->out[0]);
}

static int small_record(struct graph *g, const struct segment *kind, int x,
                        const struct places *p, int64_t rows)
{
    int layer = g->layers - 1;
    const struct value *v = &g->value[x];
    int y = graph_value_of(g, arena_text(g->arena, "%s_own", v->name), layer, v->dtype,
                           v->ndim, (const int64_t[]){rows, v->dim[1]});
    graph_keep(g, y);                   /* small, and read by many */
    graph_node(g, kind, layer, LIST(x), LIST(y), EMPTY, graph_attr(g, p, sizeof *p), 0);
    return y;
}

int own_record(struct graph *g, const struct segment *kind, int x,
               const struct places *p)
{
    if (x == NONE || places_count(p) == g->value[x].dim[0])
        return x;
    return small_record(g, kind, x, p, places_count(p));
}

int locate_record(struct graph *g, const struct segment *kind, int place,
                  const struct places *p, int64_t of)
{
    if (place == NONE || places_count(p) == of)
        return place;
    return small_record(g, kind, place, p, g->value[place].dim[0]);
}

int live_record(struct graph *g, const struct segment *kind, int live,
                const struct places *p, int64_t of)
{
    if (live == NONE || places_count(p) == of)
        return live;
    return small_record(g, kind, live, p, 1);
}
