/* pack.c - which waiting samples share a row.  Knows sizes and tickets only, so the
 * choice is a function of the order of offers and of nothing else. */
#include "data/rows/pack.h"

enum { TOKENS, PATCHES, SEGMENTS, IMAGES, KINDS };

struct size { int32_t of[KINDS]; };

struct waiting {
    int64_t ticket;
    struct size size;
    bool taken;                         /* has a place in the row being filled */
};

struct packer {
    struct size room;                   /* of a row */
    int window, free, count;            /* free: waiting and not taken */
    struct waiting *at;                 /* [count] oldest first */
    struct size used;                   /* by what is taken */
    int64_t free_tokens;
    struct size *sum;                   /* [T + 1] see choose() */
    int *last;                          /* [T + 1] */
};

struct packer *packer_make(struct arena *a, const struct row_shape *s, int window)
{
    REQUIRE(s->tokens > 0 && s->patches >= 0 && s->segments > 0 && s->images >= 0);
    REQUIRE(window > 0);
    struct packer *p = NEW(a, struct packer, 1);
    p->room = (struct size){{s->tokens, s->patches, s->segments, s->images}};
    p->window = window;
    p->at = NEW(a, struct waiting, s->segments + window);
    p->sum = NEW(a, struct size, s->tokens + 1);
    p->last = NEW(a, int, s->tokens + 1);
    return p;
}

/* *sum += size if that stays within the row. */
static bool add(const struct packer *p, struct size *sum, const struct size *size)
{
    struct size total;
    for (int k = 0; k < KINDS; k++) {
        total.of[k] = sum->of[k] + size->of[k];
        if (total.of[k] > p->room.of[k])
            return false;
    }
    *sum = total;
    return true;
}

static bool fits(const struct packer *p, const struct waiting *w)
{
    struct size sum = p->used;
    return !w->taken && add(p, &sum, &w->size);
}

static void take(struct packer *p, struct waiting *w)
{
    REQUIRE(fits(p, w));
    add(p, &p->used, &w->size);
    w->taken = true;
    p->free--;
    p->free_tokens -= w->size.of[TOKENS];
}

/* A row longer than the window's samples takes its oldest unchosen, for as long as the
 * free ones could not fill the rest twice over.  NULL: no more of those, choose now. */
static struct waiting *unchosen(struct packer *p)
{
    int64_t gap = p->room.of[TOKENS] - p->used.of[TOKENS];
    if (2 * gap > p->free_tokens)
        for (int i = 0; i < p->count; i++)
            if (fits(p, &p->at[i]))
                return &p->at[i];
    return NULL;
}

bool packer_offer(struct packer *p, int64_t ticket, int tokens, int patches,
                  int images)
{
    struct waiting w = {ticket, {{tokens, patches, 1, images}}, false};
    struct size sum = {{0}};
    REQUIRE(tokens > 0 && patches >= 0 && images >= 0 && add(p, &sum, &w.size));
    if (p->free == p->window) {
        struct waiting *oldest = unchosen(p);
        if (!oldest)
            return false;
        take(p, oldest);
    }
    p->at[p->count++] = w;
    p->free++;
    p->free_tokens += tokens;
    return true;
}

/* The free samples that fill the row best: sums of tokens that can be reached, by
 * dynamic programming.  sum[t] is the first combination found with t tokens, last[t]
 * its newest member; as neither ever changes, following `last` back never meets a
 * sample twice.  Oldest first, and an end at a perfect fit, favour what waited long. */
static void choose(struct packer *p)
{
    enum { START = -1, UNREACHED = -2 };
    int used = p->used.of[TOKENS], room = p->room.of[TOKENS], top = used;
    for (int t = used; t <= room; t++)
        p->last[t] = UNREACHED;
    p->last[used] = START;
    p->sum[used] = p->used;
    for (int i = 0; i < p->count && top < room; i++) {
        const struct waiting *w = &p->at[i];
        int tokens = w->size.of[TOKENS];
        if (w->taken)
            continue;
        for (int t = MIN(top, room - tokens); t >= used; t--) {
            struct size sum = p->sum[t];
            if (p->last[t] == UNREACHED || p->last[t + tokens] != UNREACHED ||
                !add(p, &sum, &w->size))
                continue;
            p->sum[t + tokens] = sum;
            p->last[t + tokens] = i;
            top = MAX(top, t + tokens);
        }
    }
    for (int t = top; p->last[t] != START;) {
        struct waiting *w = &p->at[p->last[t]];
        t -= w->size.of[TOKENS];
        take(p, w);
    }
}

int packer_take(struct packer *p, bool flush, int64_t *tickets, int room)
{
    REQUIRE(room >= p->room.of[SEGMENTS]);
    if (!p->count || (!flush && (p->free < p->window || unchosen(p))))
        return 0;
    if (!p->at[0].taken)
        take(p, &p->at[0]);             /* nobody is passed over for ever */
    choose(p);
    int taken = 0, left = 0;
    for (int i = 0; i < p->count; i++)
        if (p->at[i].taken)
            tickets[taken++] = p->at[i].ticket;
        else
            p->at[left++] = p->at[i];
    p->count = left;
    p->used = (struct size){{0}};
    return taken;
}

int packer_waiting(const struct packer *p)
{
    return p->count;
}
