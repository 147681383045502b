/* outlook_search.c - which layout, recompute and row size to take.
 *
 * Stands alone because it only tries recipes: outlook.c says what each would do.  Order
 * is fit first: largest expert parallelism inside a node, smallest tensor parallelism,
 * fewest stages; of each layout the least recompute that fits, then longer rows.  The
 * fastest prediction of all that fit wins, the earlier one where they tie. */
#include "train/outlook.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_ALL, RECOMPUTES };
static const char *const recompute_name[RECOMPUTES] = {"none", "cheap", "all"};

struct candidate {
    int pp, dp, cp, tp, ep;
    const char *shard;
    enum recompute recompute;
    int64_t tokens;                     /* of a row */
    const char *why;                    /* it lost; NULL: it fits */
    int64_t need;                       /* bytes; 0: not planned */
    double speed;                       /* tokens/s a rank; 0: not known */
    struct recipe recipe;               /* that gives it */
};

struct search {
    struct arena *arena;
    const struct recipe *recipe;
    struct outlook_options options;
    struct hardware hardware;           /* the rest from a first look */
    int world;
    int64_t have, dense, experts, trained;      /* bytes; parameters, of them trained */
    int active;                         /* MoE layers: 0 none */
    int64_t count, room;
    struct candidate *at;
};

/* ---- one candidate ---- */

/* Segments that neither multiply nor talk: cheap to run again. */
static const char *cheap_list(struct search *x, const struct outlook_stage *s)
{
    const struct plan *p = s->session.plan;
    const struct graph *g = p->graph;
    struct text t = text_make(x->arena);
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *step = &p->step[i];
        if (step->kind != STEP_FORWARD || s->work[i].flops > 0 || s->work[i].calls > 0)
            continue;
        const struct node *n = &g->node[step->node];
        const char *name = arena_text(x->arena, "%s.%s", n->tower, n->kind->name);
        const char *seen = t.size ? strstr(t.at, name) : NULL;
        size_t length = strlen(name);
        while (seen && seen[length] != ' ' && seen[length])
            seen = strstr(seen + length, name);
        if (!seen)
            text_add(&t, "%s%s", t.size ? " " : "", name);
    }
    return t.at;
}

/* What the layout does not read is what it would be if nobody had set it. */
static void plain_make(struct recipe *r)
{
    struct recipe plain;
    recipe_default(r->arena, &plain);
    if (r->parallel_pp == 1)
        r->parallel_zero_bubble = false;
    if (r->parallel_cp == 1)
        r->parallel_cp_ring = false;
    if (r->parallel_ep == 1) {
        r->moe_capacity = plain.moe_capacity;
        r->moe_dispatcher = plain.moe_dispatcher;
    }
    if (!strcmp(r->parallel_shard, "none"))
        r->parallel_prefetch = plain.parallel_prefetch;
    if (strcmp(r->parallel_shard, "parameters") != 0) {
        r->parallel_keep_weights = false;
        r->parallel_reduce = plain.parallel_reduce;
    }
}

/* The recipe of a candidate; rows get longer, not more tokens a step. */
static bool recipe_make(struct search *x, struct candidate *c, const char *recompute)
{
    const struct recipe *r = x->recipe;
    int64_t longer = c->tokens / r->batch_tokens;
    c->recipe = *r;
    c->recipe.parallel_pp = c->pp;
    c->recipe.parallel_dp = c->dp;
    c->recipe.parallel_cp = c->cp;
    c->recipe.parallel_tp = c->tp;
    c->recipe.parallel_ep = c->ep;
    c->recipe.parallel_shard = c->shard;
    c->recipe.parallel_etp = c->recipe.parallel_replicate = 1;
    c->recipe.parallel_chunks = 1;
    c->recipe.parallel_stages = "";
    plain_make(&c->recipe);
    c->recipe.memory_recompute = recompute;
    c->recipe.batch_tokens = c->tokens;
    c->recipe.batch_patches = r->batch_patches * longer;
    c->recipe.batch_samples = r->batch_samples * longer;
    c->recipe.batch_images = r->batch_images * longer;
    c->recipe.batch_rows = r->batch_rows / longer;
    return r->batch_rows % longer == 0;
}

static void lose(struct search *x, struct candidate *c)
{
    c->why = arena_text(x->arena, "refused: %s", fail_message());
    fail_clear();
}

/* Plans it with so many microbatches a rank at most; seconds of that, 0 where it does
 * not fit.  *cheap gets the list where it is asked for. */
static double candidate_plan(struct search *x, struct candidate *c, int64_t most,
                             const char **cheap)
{
    struct outlook o;
    struct recipe r = c->recipe;
    double seconds = 0;
    if (r.batch_rows % c->dp == 0)
        r.batch_rows = MIN(r.batch_rows, c->dp * most);
    if (!outlook_open(&o, &r, &x->options)) {
        lose(x, c);
    } else {
        c->need = o.stage[o.largest].need;
        if (outlook_fits(&o))
            seconds = o.seconds;
        else
            c->why = arena_text(x->arena, "does not fit: %.2f of %.2f GiB",
                                (double)c->need / GIB, (double)o.have / GIB);
        if (cheap)
            *cheap = cheap_list(x, &o.stage[o.largest]);
    }
    outlook_close(&o);
    return seconds;
}

/* Memory does not grow beyond twice as many microbatches as stages, and each more takes
 * as long as the last: two short plans tell of a long one. */
static void candidate_try(struct search *x, struct candidate *c, const char *recompute,
                          const char **cheap)
{
    if (!recipe_make(x, c, recompute)) {
        c->why = "refused: batch.rows does not divide";
        return;
    }
    int64_t mbs = c->recipe.batch_rows / c->dp, few = 2 * c->pp, more = 3 * c->pp;
    double seconds = candidate_plan(x, c, few, cheap);
    if (c->why)
        return;
    if (mbs > few) {
        double longer = candidate_plan(x, c, more, NULL);
        double each = (longer - seconds) / (double)(MIN(more, mbs) - few);
        seconds = longer + each * (double)(mbs - MIN(more, mbs));
    }
    c->speed = (double)(c->tokens * c->recipe.batch_rows) / seconds / x->world;
}

/* ---- layouts ---- */

/* What weights, gradients and optimizer take at least: as if stages were equal. */
static int64_t state_least(const struct search *x, const struct candidate *c)
{
    bool bf16 = x->hardware.compute == DTYPE_BF16;
    double weight = bf16 ? 2 : 4, rest = bf16 ? 16 : 12;        /* bytes a parameter */
    double all = (double)(x->dense + x->experts), trained = (double)x->trained / all;
    double dense = (double)x->dense / (c->pp * c->tp);
    double experts = (double)x->experts / (c->pp * c->ep);
    double ways = c->dp * c->cp, edp = ways * c->tp / c->ep;
    bool divided = strcmp(c->shard, "parameters") == 0;
    return (int64_t)(dense * (divided ? weight / ways : weight) +
                     experts * (divided ? weight / edp : weight) +
                     trained * rest * (dense / ways + experts / edp));
}

static struct candidate *candidate_new(struct search *x, const struct candidate *from)
{
    GROW(x->arena, x->at, x->count, x->room);
    x->at[x->count] = *from;
    return &x->at[x->count++];
}

/* Does the same with less of tp fit without running anything again? */
static bool smaller_fits(const struct search *x, const struct candidate *c)
{
    for (int64_t i = 0; i < x->count; i++) {
        const struct candidate *o = &x->at[i];
        if (!o->why && o->recompute == RECOMPUTE_NONE && o->pp == c->pp &&
            o->cp == c->cp && o->ep == c->ep && o->tp < c->tp &&
            strcmp(o->shard, c->shard) == 0)
            return true;
    }
    return false;
}

static void layout_try(struct search *x, const struct candidate *layout)
{
    enum { LONGER = 4 };
    const char *list[RECOMPUTES] = {"", NULL, "*"};
    int64_t least = state_least(x, layout);
    struct candidate *c = NULL;
    if (least > x->have || smaller_fits(x, layout)) {
        c = candidate_new(x, layout);
        c->why = least <= x->have ? "not planned: less tp fits without recompute"
                                  : arena_text(x->arena, "does not fit: state alone is "
                                               "%.2f of %.2f GiB", (double)least / GIB,
                                               (double)x->have / GIB);
        return;
    }
    for (enum recompute k = 0; k < RECOMPUTES; k++) {
        c = candidate_new(x, layout);
        c->recompute = k;
        candidate_try(x, c, list[k],
                      k == RECOMPUTE_NONE ? &list[RECOMPUTE_CHEAP] : NULL);
        if (!c->why || c->need == 0)
            break;
    }
    for (int longer = 2; !c->why && longer <= LONGER; longer *= 2) {
        struct candidate more = *c;
        more.tokens = layout->tokens * longer;
        c = candidate_new(x, &more);
        candidate_try(x, c, more.recipe.memory_recompute, NULL);
    }
}

static int largest_ep(const struct search *x, int block)
{
    int ep = 1, node = x->hardware.node > 0 ? (int)x->hardware.node : x->world;
    while (x->active && 2 * ep <= node && block % (2 * ep) == 0)
        ep *= 2;
    return ep;
}

/* Useful ones: as many ranks of a node as there are, half of them, twice as many. */
static void layouts_of(struct search *x, int pp, int tp)
{
    static const char *const shard[] = {"parameters", "optimizer"};
    int dp = x->world / (pp * tp), best = largest_ep(x, dp * tp);
    const int ep[] = {best, 2 * best, best / 2};
    for (int k = 0; k < (x->active ? COUNT(ep) : 1); k++)
        for (int s = 0; s < COUNT(shard); s++) {
            if (ep[k] < 1 || dp * tp % ep[k] || (dp == 1 && s > 0))
                continue;
            layout_try(x, &(struct candidate){
                .pp = pp, .dp = dp, .cp = 1, .tp = tp, .ep = ep[k], .shard = shard[s],
                .tokens = x->recipe->batch_tokens});
        }
}

static void layouts_all(struct search *x)
{
    enum { MOST_TP = 4, MOST_PP = 16 };
    for (int tp = 1; tp <= MOST_TP; tp *= 2)
        for (int pp = 1; pp <= MOST_PP; pp *= 2)
            if (x->world % (pp * tp) == 0)
                layouts_of(x, pp, tp);
}

/* ---- what came of it ---- */

static const struct candidate *winner(const struct search *x)
{
    const struct candidate *best = NULL;
    for (int64_t i = 0; i < x->count; i++)
        if (!x->at[i].why && (!best || x->at[i].speed > 1.001 * best->speed))
            best = &x->at[i];
    return best;
}

static void candidate_print(const struct candidate *c, const struct candidate *best,
                            struct text *t)
{
    const char *again = c->need || !c->why ? recompute_name[c->recompute] : "-";
    text_add(t, "%s pp %-3d dp %-5d tp %-2d ep %-3d %-11s %-6s %7lld",
             c == best ? "*" : " ", c->pp, c->dp, c->tp, c->ep, c->shard, again,
             (long long)c->tokens);
    if (c->need)
        text_add(t, "%9.2f", (double)c->need / GIB);
    else
        text_add(t, "%9s", "-");
    if (c->why)
        text_add(t, "%10s", "-");
    else
        text_add(t, "%10.0f", c->speed);
    if (c == best)
        text_add(t, "  wins\n");
    else if (c->why)
        text_add(t, "  %s\n", c->why);
    else
        text_add(t, "  %.1f%% slower\n", 100 * (1 - c->speed / best->speed));
}

static void winner_print(const struct search *x, const struct candidate *c,
                         struct text *t)
{
    static const char *const key[] = {
        "parallel.pp", "parallel.dp", "parallel.cp", "parallel.tp", "parallel.ep",
        "parallel.etp", "parallel.replicate", "parallel.chunks", "parallel.stages",
        "parallel.shard", "batch.tokens", "batch.patches", "batch.samples",
        "batch.images", "batch.rows", "memory.recompute",
    };
    text_add(t, "take:");
    for (int i = 0; i < COUNT(key); i++) {
        const char *to = recipe_get(&c->recipe, x->arena, key[i]);
        if (strcmp(recipe_get(x->recipe, x->arena, key[i]), to) != 0)
            text_add(t, strpbrk(to, " *") ? " \"%s=%s\"" : " %s=%s", key[i], to);
    }
    text_add(t, "\n");
}

/* What layouts are compared by: found with the plainest. */
static bool search_open(struct search *x)
{
    struct outlook o;
    struct recipe *plain = NEW(x->arena, struct recipe, 1);
    struct candidate c = {.pp = 1, .dp = 1, .cp = 1, .tp = 1, .ep = 1, .shard = "none",
                          .tokens = x->recipe->batch_tokens};
    recipe_make(x, &c, "");
    *plain = c.recipe;
    plain->batch_rows = plain->parallel_ranks = 1;
    bool ok = outlook_open(&o, plain, &x->options);
    if (ok) {
        const struct graph *g = &o.stage[0].session.model.graph;
        x->hardware = o.hardware;
        x->hardware.name = arena_text(x->arena, "%s", o.hardware.name);
        x->world = session_ranks(x->recipe);
        x->have = x->hardware.memory > 0 ? o.have : o.have / x->world;
        x->active = o.stage[0].session.model.decoder.moe_layers;
        for (int64_t i = 0; i < g->nparam; i++) {
            const struct param *p = &g->param[i];
            int64_t n = param_disk_count(p);
            *(p->part == PART_EXPERTS ? &x->experts : &x->dense) += n;
            x->trained += p->trainable ? n : 0;
        }
    }
    outlook_close(&o);
    return ok;
}

/* No layout fits, or none is legal: then the first says why. */
static void none_found(const struct search *x)
{
    int64_t refused = 0;
    for (int64_t i = 0; i < x->count; i++)
        refused += text_starts(x->at[i].why, "refused");
    if (refused == x->count) {
        fail("plan: no layout of %d ranks is legal here; the first is %s", x->world,
             x->count ? x->at[0].why : "not to be made");
        fail_kind(FAULT_USAGE);
        return;
    }
    fail("plan: none of %lld layouts of %d ranks fits %s; take more ranks, shorter "
         "rows (batch.tokens) or freeze parts (model.freeze)", (long long)x->count,
         x->world, x->hardware.name);
    fail_kind(FAULT_MEMORY);
}

bool outlook_search(const struct recipe *r, const struct outlook_options *options,
                    struct text *t)
{
    struct arena a = arena_make("search");
    struct search x = {.arena = &a, .recipe = r, .options = *options};
    x.options.rank = -1;
    if (!search_open(&x)) {
        arena_free(&a);
        return false;
    }
    layouts_all(&x);
    const struct candidate *best = winner(&x);
    text_add(t, "layouts of %d ranks on %s, %.2f GiB each; rows of at least %lld "
                "tokens, %lld tokens a step\n", x.world, x.hardware.name,
             (double)x.have / GIB, (long long)r->batch_tokens,
             (long long)(r->batch_tokens * r->batch_rows));
    text_add(t, "  %-29s %-11s %-6s %7s%9s%10s\n", "layout", "shard", "again", "row",
             "GiB", "tokens/s");
    for (int64_t i = 0; i < x.count; i++)
        candidate_print(&x.at[i], best, t);
    if (best)
        winner_print(&x, best, t);
    else
        none_found(&x);
    arena_free(&a);
    return best != NULL;
}
