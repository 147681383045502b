/* search_text.c - what came of a search, as text.
 *
 * Stands alone because people read it and nothing depends on it. */
#include "outlook/search.h"

#include <ctype.h>

static const char *layout_text(struct arena *a, const struct candidate *c)
{
    struct text t = text_make(a);
    text_add(&t, "pp %-2d dp %-3d tp %d ep %-2d", c->pp, c->dp, c->tp, c->ep);
    if (c->cp > 1)
        text_add(&t, " cp %d", c->cp);
    if (c->etp > 1)
        text_add(&t, " etp %d", c->etp);
    if (c->replicate > 1)
        text_add(&t, " replicate %d", c->replicate);
    if (c->chunks > 1)
        text_add(&t, " chunks %d", c->chunks);
    if (c->zero_bubble)
        text_add(&t, " zero_bubble");
    if (c->weave)
        text_add(&t, " weave");
    if (c->delay)
        text_add(&t, " delay");
    if (c->allgather)
        text_add(&t, " allgather");
    return t.at;
}

static const char *number(struct arena *a, int digits, double value, bool known)
{
    return known ? arena_text(a, "%.*f", digits, value) : "-";
}

static const char *division_text(struct arena *a, const struct candidate *c)
{
    return arena_text(a, "%s%s",
                      recipe_word("parallel.shard", (int)division_shard(c->division)),
                      division_last(c->division) ? " last" : "");
}

static double slower(const struct search *x, const struct candidate *c)
{
    return x->best ? 100 * (1 - c->speed / x->best->speed) : 0;
}

static void candidate_print(const struct search *x, const struct candidate *c,
                            struct text *t)
{
    struct arena *a = t->arena;
    double need = (double)c->need / GIB, have = (double)x->have / GIB;
    text_add(t, "%s %-46s %-15s %-6s %7lld%9s%10s  ", c == x->best ? "*" : " ",
             layout_text(a, c), division_text(a, c), recompute_name[c->recompute],
             (long long)c->tokens, number(a, 2, need, c->need > 0),
             number(a, 0, c->speed, c->fate == FATE_FITS));
    switch (c->fate) {
    case FATE_FITS:
        text_add(t, c == x->best             ? "wins\n"
                    : !c->whole              ? "about %.1f%% slower\n"
                    : slower(x, c) < 1e-7    ? "as fast, with more to set\n"
                                             : "%.3f%% slower\n", slower(x, c));
        break;
    case FATE_SLOWER:
        text_add(t, "at least %.1f%% slower\n", slower(x, c));
        break;
    case FATE_MEMORY:
        text_add(t, "does not fit: %.2f of %.2f GiB\n", need, have);
        break;
    case FATE_STATE:
        text_add(t, "not planned: state alone takes %.2f of %.2f GiB\n", need, have);
        break;
    case FATE_SKIPPED:
        text_add(t, "not planned: %s\n", c->why);
        break;
    case FATE_REFUSED:
        text_add(t, "refused: %s\n", c->why);
        break;
    }
}

/* A reason without its numbers: what differs in these alone is one cause. */
static const char *cause_of(struct arena *a, const char *why)
{
    char *cause = arena_copy(a, why, strlen(why)), *to = cause;
    for (const char *at = why; *at; at++) {
        *to++ = *at;
        if (!isdigit((unsigned char)*at))
            continue;
        to[-1] = '#';
        while (isdigit((unsigned char)at[1]) ||
               (at[1] == ' ' && isdigit((unsigned char)at[2])))
            at++;
    }
    *to = 0;
    return cause;
}

/* Candidates that lost for one cause. */
struct group {
    enum fate fate;
    const char *cause, *why;            /* of the first; "" where the fate says all */
    bool several;                       /* reasons */
    int64_t count;
    double low, high;                   /* % slower, or GiB */
};

static void group_print(const struct group *g, double have, struct text *t)
{
    const char *such = g->several ? ", such as" : "";
    text_add(t, "%6lld ", (long long)g->count);
    switch (g->fate) {
    case FATE_FITS:
        text_add(t, "fit and are slower, by about %.1f%% to %.1f%%\n", g->low, g->high);
        break;
    case FATE_SLOWER:
        text_add(t, "fit and are slower even at best, by %.1f%% to %.1f%%\n", g->low,
                 g->high);
        break;
    case FATE_MEMORY:
        text_add(t, "do not fit: at least %.2f to %.2f of %.2f GiB\n", g->low, g->high,
                 have);
        break;
    case FATE_STATE:
        text_add(t, "not planned: state alone takes %.2f to %.2f of %.2f GiB\n", g->low,
                 g->high, have);
        break;
    case FATE_SKIPPED:
        text_add(t, "not planned%s: %s\n", such, g->why);
        break;
    case FATE_REFUSED:
        text_add(t, "refused%s: %s\n", such, g->why);
        break;
    }
}

static void groups_print(const struct search *x, const struct candidate *const *shown,
                         int64_t nshown, struct text *t)
{
    struct group *group = NEW(t->arena, struct group, x->count + 1);
    int64_t n = 0, k;
    for (int64_t i = 0; i < x->count; i++) {
        const struct candidate *c = x->at[i];
        const char *why = c->why ? c->why : "", *cause = cause_of(t->arena, why);
        bool speed = c->fate <= FATE_SLOWER, is = false;
        double value = speed ? slower(x, c) : (double)c->need / GIB;
        for (k = 0; k < nshown; k++)
            is |= shown[k] == c;
        for (k = 0; k < n; k++)
            if (group[k].fate == c->fate && !strcmp(group[k].cause, cause))
                break;
        if (is)
            continue;
        if (k == n)
            group[n++] = (struct group){c->fate, cause, why, false, 0, value, value};
        group[k].several |= strcmp(group[k].why, why) != 0;
        group[k].count++;
        group[k].low = MIN(group[k].low, value);
        group[k].high = MAX(group[k].high, value);
    }
    if (n > 0)
        text_add(t, "others%s\n", x->options.explain ? "" : " (--explain lists them)");
    for (k = 0; k < n; k++)
        group_print(&group[k], (double)x->have / GIB, t);
}

int search_take(const struct search *x, const struct candidate *c, struct arena *a,
                char ***overrides)
{
    static const char *const key[] = {
        "parallel.pp", "parallel.dp", "parallel.cp", "parallel.cp_ring", "parallel.tp",
        "parallel.ep", "parallel.etp", "parallel.replicate", "parallel.chunks",
        "parallel.zero_bubble", "parallel.stages", "parallel.shard", "parallel.reduce",
        "parallel.prefetch", "parallel.keep_weights", "parallel.delay_weights",
        "parallel.weave", "moe.dispatcher", "moe.capacity", "moe.overlap_shared",
        "batch.tokens", "batch.patches", "batch.samples", "batch.images", "batch.rows",
        "memory.recompute", "memory.slack",
    };
    int n = 0;
    *overrides = NEW(a, char *, COUNT(key));
    for (int i = 0; i < COUNT(key); i++) {
        const char *to = recipe_get(&c->recipe, a, key[i]);
        if (strcmp(recipe_get(x->recipe, a, key[i]), to) != 0)
            (*overrides)[n++] = arena_text(a, "%s=%s", key[i], to);
    }
    return n;
}

static void winner_print(const struct search *x, const struct candidate *c,
                         struct text *t)
{
    char **word;
    int n = search_take(x, c, x->arena, &word);
    text_add(t, "take:");
    for (int i = 0; i < n; i++)
        text_add(t, strpbrk(word[i], " *") ? " \"%s\"" : " %s", word[i]);
    text_add(t, n == 0 ? " the recipe as it is\n" : "\n");
}

void search_print(const struct search *x, struct text *t)
{
    struct candidate **list;
    const struct recipe *r = x->recipe;
    int64_t shown = MIN(search_fitting(x, t->arena, &list), SEARCH_SHOWN);
    text_add(t, "layouts of %d rank(s) on %s, %.2f GiB each; rows of at least %lld "
                "token(s), %lld token(s) a step; %lld candidate(s)%s%s\n", x->world,
             x->hardware.name, (double)x->have / GIB, (long long)r->batch_tokens,
             (long long)(r->batch_tokens * r->batch_rows), (long long)x->count,
             x->all ? ", every setting" : "",
             search_stopped(x) ? "; stopped by a signal, the best so far:" : "");
    text_add(t, "  %-46s %-15s %-6s %7s%9s%10s\n", "layout", "shard", "again", "row",
             "GiB", "tokens/s");
    if (x->options.explain) {
        list = x->at;
        shown = x->count;
    }
    for (int64_t i = 0; i < shown; i++)
        candidate_print(x, list[i], t);
    groups_print(x, (const struct candidate *const *)list, shown, t);
    if (x->best)
        winner_print(x, x->best, t);
}
