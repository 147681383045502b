/* policy.c - the names of a recipe's lists, resolved to values.
 *
 * Stands alone because it is all a user can get wrong about a plan. */
#include "plan/policy.h"

#include "base/text.h"

struct policy policy_plain(void)
{
    return (struct policy){.slack = 1};
}

struct list {
    const struct graph *graph;
    struct arena *arena;
    const char *key;                    /* "recompute" or "offload" */
    bool *mark;                         /* [values] */
    bool *named;                        /* [values] marked by a name, not a wildcard */
};

/* Does `name` (maybe "tower.x", maybe "*") speak of value v? */
static bool speaks_of(const struct graph *g, const char *name, int64_t v)
{
    const struct value *x = &g->value[v];
    const struct segment *kind = x->node >= 0 ? g->node[x->node].kind : NULL;
    const char *dot = strchr(name, '.');
    if (dot) {
        size_t n = (size_t)(dot - name);
        if (strlen(x->tower) != n || strncmp(x->tower, name, n) != 0)
            return false;
        name = dot + 1;
    }
    return strcmp(name, "*") == 0 || strcmp(name, x->name) == 0 ||
           (kind && strcmp(name, kind->name) == 0);
}

static void candidate_add(const char **all, int *count, const char *name)
{
    for (int i = 0; i < *count; i++)
        if (strcmp(all[i], name) == 0)
            return;
    all[(*count)++] = name;
}

/* Every name that means something, plain and qualified. */
static int candidates(const struct list *l, const char ***out)
{
    const struct graph *g = l->graph;
    const char **all = NEW(l->arena, const char *, 4 * g->nvalue + 1);
    int count = 0;
    for (int64_t v = 0; v < g->nvalue; v++) {
        const struct value *x = &g->value[v];
        const struct segment *kind = x->node >= 0 ? g->node[x->node].kind : NULL;
        const char *name[2] = {x->name, kind ? kind->name : NULL};
        for (int i = 0; i < 2 && name[i]; i++) {
            const char *full = arena_text(l->arena, "%s.%s", x->tower, name[i]);
            candidate_add(all, &count, name[i]);
            candidate_add(all, &count, full);
        }
    }
    *out = all;
    return count;
}

static bool list_unknown(const struct list *l, const char *name)
{
    const char **all;
    int count = candidates(l, &all);
    const char *nearest = text_nearest(name, all, count);
    if (!nearest)
        return fail("%s: no segment or value is named '%s'", l->key, name);
    return fail("%s: no segment or value is named '%s'; the nearest is '%s'", l->key,
                name, nearest);
}

static bool list_parse(const struct list *l, const char *text)
{
    char **word;
    int words = text_split(l->arena, text, ", ", &word);
    if (words == 1 && strcmp(word[0], "none") == 0)
        return true;
    for (int i = 0; i < words; i++) {
        if (strcmp(word[i], "none") == 0)
            return fail("%s: 'none' stands beside '%s', expected alone", l->key,
                        word[i == 0]);
        bool wild = text_ends(word[i], "*"), any = false;
        for (int64_t v = 0; v < l->graph->nvalue; v++) {
            if (!speaks_of(l->graph, word[i], v))
                continue;
            any = l->mark[v] = true;
            l->named[v] |= !wild;
        }
        if (!any)
            return list_unknown(l, word[i]);
    }
    return true;
}

bool policy_parse(struct policy *out, struct arena *a, const struct graph *g,
                  const char *recompute, const char *offload)
{
    const char *text[2] = {recompute, offload};
    struct list list[2] = {{.key = "recompute"}, {.key = "offload"}};
    for (int i = 0; i < 2; i++) {
        list[i].graph = g;
        list[i].arena = a;
        list[i].mark = NEW(a, bool, g->nvalue);
        list[i].named = NEW(a, bool, g->nvalue);
        if (!list_parse(&list[i], text[i]))
            return fail_kind(FAULT_USAGE);
    }
    for (int64_t v = 0; v < g->nvalue; v++)
        if (list[0].named[v] && list[1].named[v]) {
            fail("offload: value '%s' is in recompute too, expected one of them",
                 g->value[v].name);
            return fail_kind(FAULT_USAGE);
        }
    out->recompute = list[0].mark;
    out->offload = list[1].mark;
    return true;
}
