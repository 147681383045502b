/* place.c - where every buffer lies: the list replayed as taking and giving back.
 *
 * Stands alone because it only knows lifetimes and sizes.  Tight: the lowest place
 * that is free.  With slack: the place, within the budget, whose last tenant left
 * longest ago, so that no lane waits for memory another has just finished with. */
#include "plan/plan.h"

#include <stdlib.h>

void plan_lifetimes(struct plan *p)
{
    for (int64_t i = 0; i < p->nbuffer; i++)
        p->buffer[i].first = p->buffer[i].last = -1;
    for (int64_t i = 0; i < p->nstep; i++) {
        struct touch touch[MAX_TOUCH];
        int n = step_touches(&p->step[i], touch);
        for (int j = 0; j < n; j++) {
            struct buffer *x = &p->buffer[touch[j].buffer];
            if (x->first < 0)
                x->first = i;
            x->last = i;
        }
    }
    for (int i = 0; i < p->mbs * p->outputs; i++)
        if (p->output_buffer[i] >= 0)
            p->buffer[p->output_buffer[i]].last = p->nstep;
}

/* Bytes a buffer occupies. */
static int64_t room(const struct buffer *x)
{
    return (x->bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- free stretches, by offset ---- */

enum { OLD = 256 };                    /* steps after which no lane lags any more */

struct gap {
    int64_t from, to;
    int64_t left;               /* step its last tenant left at, -1 never had one;
                                 * neighbours that differ stay apart */
};

struct gaps {
    struct arena *arena;
    int64_t count, room;
    struct gap *at;
    bool aged;                          /* tight placement needs no ages */
    int64_t top;                        /* highest end ever in use */
};

static void gaps_move(struct gaps *g, int64_t from, int64_t by)
{
    while (g->count + by > g->room)
        g->at = arena_grow(g->arena, g->at, sizeof *g->at, g->count, &g->room);
    memmove(g->at + from + by, g->at + from, sizeof *g->at * (size_t)(g->count - from));
    g->count += by;
}

/* Take [from, from + size) out of the free stretches that begin at index i. */
static int64_t gaps_take(struct gaps *g, int64_t i, int64_t size)
{
    int64_t from = g->at[i].from, to = from + size, end = i;
    while (g->at[end].to < to)
        end++;
    if (g->at[end].to > to)
        g->at[end].from = to;
    else
        end++;
    gaps_move(g, end, i - end);
    g->top = MAX(g->top, to);
    return from;
}

static void gaps_give(struct gaps *g, int64_t from, int64_t to, int64_t step)
{
    int64_t low = 0, high = g->count, left = g->aged ? step : -1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (g->at[middle].from > from)
            high = middle;
        else
            low = middle + 1;
    }
    bool before = low > 0 && g->at[low - 1].to == from && g->at[low - 1].left == left;
    bool after = low < g->count && g->at[low].from == to && g->at[low].left == left;
    if (before && after) {
        g->at[low - 1].to = g->at[low].to;
        gaps_move(g, low + 1, -1);
    } else if (before) {
        g->at[low - 1].to = to;
    } else if (after) {
        g->at[low].from = from;
    } else {
        gaps_move(g, low, 1);
        g->at[low] = (struct gap){from, to, left};
    }
}

/* What was left before `step` is as good as never used: one stretch, whoever left it.
 * Keeps the list short in long plans. */
static void gaps_settle(struct gaps *g, int64_t step)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->count; i++) {
        struct gap x = g->at[i];
        x.left = x.left < step ? -1 : x.left;
        if (n > 0 && g->at[n - 1].to == x.from && g->at[n - 1].left == x.left)
            g->at[n - 1].to = x.to;
        else
            g->at[n++] = x;
    }
    g->count = n;
}

/* Index of the gap where `size` bytes go: the longest free below `limit`, ties and
 * tight placement the lowest; -1 if there is none.  The last gap never ends.
 *
 * Linear: a place ends at gap k because k was left too late or nothing is free behind
 * it, and so do all places that begin at or before k. */
static int64_t gaps_choose(const struct gaps *g, int64_t size, int64_t limit)
{
    int64_t best = -1, best_left = INT64_MAX, next;
    for (int64_t i = 0; i < g->count && g->at[i].from + size <= limit; i = next) {
        int64_t to = g->at[i].from + size, latest = i, k = i;
        for (;; k++) {
            if (g->at[k].left >= g->at[latest].left)
                latest = k;
            if (g->at[k].to >= to || g->at[k].left >= best_left)
                break;
            if (k + 1 == g->count || g->at[k + 1].from != g->at[k].to)
                break;
        }
        next = k + 1;
        if (g->at[k].to < to || g->at[latest].left >= best_left)
            continue;
        best = i;
        best_left = g->at[latest].left;
        next = latest + 1;
        if (best_left < 0)
            break;
    }
    return best;
}

/* ---- the replay ---- */

/* Buffers of one slab by first and by last step, as lists. */
struct replay {
    struct plan *p;
    bool host;
    int64_t base;                       /* where the slab's transient part begins */
    int *first, *first_next, *last, *last_next;
};

static void replay_list(struct replay *r, struct arena *a)
{
    struct plan *p = r->p;
    int **array[4] = {&r->first, &r->last, &r->first_next, &r->last_next};
    for (int i = 0; i < 4; i++) {
        int64_t n = i < 2 ? p->nstep + 1 : p->nbuffer;
        *array[i] = NEW(a, int, n);
        memset(*array[i], -1, sizeof(int) * (size_t)n);
    }
    for (int i = (int)p->nbuffer; i-- > 0;) {
        const struct buffer *x = &p->buffer[i];
        if (x->whole || x->first < 0 || (x->kind == MEMORY_HOST) != r->host)
            continue;
        r->first_next[i] = r->first[x->first];
        r->first[x->first] = i;
        r->last_next[i] = r->last[x->last];
        r->last[x->last] = i;
    }
}

/* Place everything below `limit`; returns the end, or -1 where that is not enough. */
static int64_t replay_place(const struct replay *r, int64_t limit, bool aged)
{
    struct plan *p = r->p;
    struct arena scratch = arena_make("plan place");
    struct gaps gaps = {.arena = &scratch, .aged = aged, .top = r->base};
    gaps_move(&gaps, 0, 1);
    gaps.at[0] = (struct gap){r->base, INT64_MAX, -1};
    for (int64_t i = 0; i < p->nstep && gaps.top >= 0; i++) {
        if (aged && i % (OLD / 4) == 0)
            gaps_settle(&gaps, i - OLD);
        for (int k = r->first[i]; k >= 0 && gaps.top >= 0; k = r->first_next[k]) {
            int64_t gap = gaps_choose(&gaps, room(&p->buffer[k]), limit);
            if (gap < 0)
                gaps.top = -1;
            else
                p->buffer[k].offset = gaps_take(&gaps, gap, room(&p->buffer[k]));
        }
        for (int k = r->last[i]; k >= 0 && gaps.top >= 0; k = r->last_next[k]) {
            int64_t from = p->buffer[k].offset;
            gaps_give(&gaps, from, from + room(&p->buffer[k]), i);
        }
    }
    int64_t top = gaps.top;
    arena_free(&scratch);
    return top;
}

static int64_t place_slab(struct plan *p, bool host, int64_t base, double slack)
{
    struct arena scratch = arena_make("plan replay");
    struct replay r = {.p = p, .host = host, .base = base};
    replay_list(&r, &scratch);
    int64_t top = replay_place(&r, INT64_MAX, false);
    if (slack > 1) {
        int64_t limit = base + (int64_t)((double)(top - base) * slack);
        int64_t wide = replay_place(&r, limit, true);
        top = wide >= 0 ? wide : replay_place(&r, INT64_MAX, false);
    }
    arena_free(&scratch);
    return top;
}

/* The step at which most device bytes are live. */
static void find_peak(struct plan *p)
{
    struct arena scratch = arena_make("plan peak");
    int64_t *change = NEW(&scratch, int64_t, p->nstep + 2), live = p->state_bytes;
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        if (x->whole || x->first < 0 || x->kind == MEMORY_HOST)
            continue;
        change[x->first] += room(x);
        change[x->last + 1] -= room(x);
    }
    p->live_bytes = live;
    p->peak_step = 0;
    for (int64_t i = 0; i < p->nstep; i++) {
        live += change[i];
        if (live <= p->live_bytes)
            continue;
        p->live_bytes = live;
        p->peak_step = i;
    }
    arena_free(&scratch);
}

void plan_place(struct plan *p, double slack)
{
    p->state_bytes = p->held_bytes = 0;
    for (int64_t i = 0; i < p->nbuffer && p->buffer[i].whole; i++) {
        p->buffer[i].offset = p->state_bytes;
        p->state_bytes += room(&p->buffer[i]);
        p->held_bytes += p->buffer[i].value >= 0 ? room(&p->buffer[i]) : 0;
    }
    p->bytes = place_slab(p, false, p->state_bytes, slack);
    p->host_bytes = place_slab(p, true, 0, slack);
    find_peak(p);
}
