/* outlook_search.c - which layout, recompute and row size to take.
 *
 * Stands alone because it only tries recipes: outlook.c says what each would do.  Order
 * is fit first: largest expert parallelism inside a node, smallest tensor parallelism,
 * fewest stages, context parallelism only where nothing fits without; of each layout
 * the least recompute that fits.  From the best of these it climbs: longer rows, more
 * chunks, zero bubble, copies, divided experts, context parallelism, less recompute, as
 * long as one of them is faster.  The fastest prediction wins, the earlier one where
 * they tie. */
#include "train/outlook_search.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/hf.h"
#include "plan/stage.h"
#include "train/hardware.h"

#include <stdlib.h>

/* ---- one candidate's recipe ---- */

/* Segments that neither multiply nor talk: cheap to run again. */
static bool cheap_list(struct search *x, const struct candidate *c, const char **list)
{
    struct arena a = arena_make("cheap");
    struct text t = text_make(x->arena);
    struct mesh mesh;
    struct model m;
    struct capacity capacity = capacity_of(&c->recipe, &x->config);
    struct model_purpose p = purpose_train(&c->recipe, &x->config, x->frozen);
    bool ok = session_layout(&c->recipe, &mesh);
    if (ok)
        model_record(&a, &x->config, &capacity, &p, &mesh, 0, &m);
    for (int64_t i = 0; ok && i < m.graph.nnode; i++) {
        const struct node *n = &m.graph.node[i];
        if (n->kind->lane != LANE_COMPUTE || n->along || node_flops(&m.graph, n) > 0)
            continue;
        const char *name = arena_text(&a, "%s.%s", n->tower, n->kind->name);
        const char *seen = t.size ? strstr(t.at, name) : NULL;
        size_t length = strlen(name);
        while (seen && seen[length] != ' ' && seen[length])
            seen = strstr(seen + length, name);
        if (!seen)
            text_add(&t, "%s%s", t.size ? " " : "", name);
    }
    arena_free(&a);
    *list = t.at;
    return ok;
}

/* What the layout does not read is what it would be if nobody had set it. */
static void plain_make(struct recipe *r)
{
    struct recipe plain;
    recipe_default(r->arena, &plain);
    if (r->parallel_cp == 1)
        r->parallel_cp_ring = false;
    if (r->parallel_ep == 1) {
        r->moe_capacity = plain.moe_capacity;
        r->moe_dispatcher = plain.moe_dispatcher;
        r->moe_overlap_shared &= r->parallel_etp > 1;
    }
    if (r->parallel_zero_bubble)
        r->parallel_delay_weights = false;
    if (strcmp(r->parallel_shard, "parameters") != 0) {
        r->parallel_keep_weights = false;
        r->parallel_reduce = plain.parallel_reduce;
    }
}

static bool refused(struct search *x, struct candidate *c)
{
    c->fate = FATE_REFUSED;
    c->why = arena_text(x->arena, "%s", fail_message());
    fail_clear();
    return false;
}

/* The recipe of a candidate, as vlmoe train would take it; rows get longer, not more
 * tokens a step. */
static bool recipe_make(struct search *x, struct candidate *c)
{
    const struct recipe *r = x->recipe;
    int64_t longer = c->tokens / r->batch_tokens;
    struct recipe *to = &c->recipe, again;
    *to = *r;
    to->parallel_pp = c->pp;
    to->parallel_dp = c->dp;
    to->parallel_cp = c->cp;
    to->parallel_tp = c->tp;
    to->parallel_ep = c->ep;
    to->parallel_etp = c->etp;
    to->parallel_replicate = c->replicate;
    to->parallel_chunks = c->chunks;
    to->parallel_zero_bubble = c->zero_bubble;
    to->parallel_shard = c->shard;
    to->parallel_stages = "";
    to->batch_tokens = c->tokens;
    to->batch_patches = r->batch_patches * longer;
    to->batch_samples = r->batch_samples * longer;
    to->batch_images = r->batch_images * longer;
    to->batch_rows = r->batch_rows / longer;
    to->memory_recompute = c->recompute == RECOMPUTE_ALL ? "*" : "";
    to->memory_slack = 1;               /* fit first */
    plain_make(to);
    if (c->recompute == RECOMPUTE_CHEAP && !cheap_list(x, c, &to->memory_recompute))
        return refused(x, c);
    if (r->batch_rows % longer) {
        fail("batch.rows %lld does not divide by %lld", (long long)r->batch_rows,
             (long long)longer);
        return refused(x, c);
    }
    struct arena a = arena_make("candidate");
    char *yaml = recipe_text_of(to, &a);
    recipe_default(&a, &again);
    bool ok = (recipe_parse(&again, "recipe", yaml, (int64_t)strlen(yaml)) &&
               recipe_check(&again)) || refused(x, c);
    arena_free(&a);
    return ok;
}

/* ---- what it would do ---- */

/* Plans so many microbatches; *each: seconds of another one at least, what the busiest
 * stage computes. */
static bool candidate_plan(struct search *x, struct candidate *c, int64_t mbs,
                           double *seconds, double *each)
{
    struct outlook o;
    struct recipe r = c->recipe;
    if (r.batch_rows % c->dp == 0)      /* else it is refused */
        r.batch_rows = c->dp * mbs;
    bool ok = outlook_open(&o, &r, &x->options) || refused(x, c);
    if (ok) {
        c->need = o.stage[o.largest].need;
        ok = outlook_fits(&o);
        c->fate = ok ? FATE_FITS : FATE_MEMORY;
        *seconds = o.seconds;
        *each = 0;
        for (int i = 0; i < o.stages; i++)
            *each = MAX(*each, o.stage[i].forecast.compute / (double)mbs);
    }
    outlook_close(&o);
    return ok;
}

static double speed_of(const struct search *x, const struct candidate *c,
                       double seconds)
{
    return (double)(c->tokens * c->recipe.batch_rows) / seconds / x->world;
}

/* Memory does not grow once every stage has all it holds at a time, and from then on
 * each microbatch takes as long as the last: two short plans tell of a long one. */
static void candidate_try(struct search *x, struct candidate *c)
{
    if (!recipe_make(x, c))
        return;
    int64_t mbs = MAX(c->recipe.batch_rows / c->dp, 1);
    int64_t few = MIN(2 * c->pp + 1, mbs);
    int64_t more = MIN(few + (c->chunks > 1 ? c->pp : 2), mbs);
    double seconds, longer, each, rest = (double)(mbs - few);
    if (!candidate_plan(x, c, few, &seconds, &each))
        return;
    c->speed = speed_of(x, c, seconds + each * rest);
    if (x->best && c->speed < x->best->speed) {
        c->fate = FATE_SLOWER;
        return;
    }
    if (more > few && candidate_plan(x, c, more, &longer, &each))
        each = (longer - seconds) / (double)(more - few);
    c->speed = speed_of(x, c, seconds + each * rest);
}

/* Where the search has come to: all the time on a terminal, elsewhere now and then. */
static void progress_say(struct search *x)
{
    enum { PAUSE = 30 };
    const struct candidate *b = x->best;
    struct arena a = arena_make("progress");
    const char *best = "none fits so far";
    if (b)
        best = arena_text(&a, "best so far %.0f tokens/s a rank (pp %d dp %d cp %d tp "
                          "%d ep %d)", b->speed, b->pp, b->dp, b->cp, b->tp, b->ep);
    const char *line = arena_text(&a, "%lld candidates, %s", (long long)x->count, best);
    double now = clock_seconds();
    if (log_terminal()) {
        log_progress("plan: %s", line);
    } else if (now - x->said > PAUSE) {
        log_info("plan", "%s", line);
        x->said = now;
    }
    arena_free(&a);
}

static bool same(const struct candidate *a, const struct candidate *b)
{
    return a->pp == b->pp && a->dp == b->dp && a->cp == b->cp && a->tp == b->tp &&
           a->ep == b->ep && a->etp == b->etp && a->replicate == b->replicate &&
           a->chunks == b->chunks && a->zero_bubble == b->zero_bubble &&
           a->shard == b->shard && a->recompute == b->recompute &&
           a->tokens == b->tokens;
}

/* The candidate like `from` on the list; *seen: it was there. */
static struct candidate *candidate_add(struct search *x, const struct candidate *from,
                                       bool *seen)
{
    for (int64_t i = 0; i < x->count; i++)
        if ((*seen = same(x->at[i], from)))
            return x->at[i];
    GROW(x->arena, x->at, x->count, x->room);
    struct candidate *c = NEW(x->arena, struct candidate, 1);
    *c = *from;
    c->need = 0;
    c->speed = 0;
    *seen = false;
    return x->at[x->count++] = c;
}

/* ---- layouts ---- */

/* What weights, gradients and optimizer take at least: as if stages were equal. */
static int64_t state_least(const struct search *x, const struct candidate *c)
{
    bool bf16 = x->hardware.compute == DTYPE_BF16;
    double weight = bf16 ? 2 : 4, rest = bf16 ? 16 : 12;        /* bytes a parameter */
    double all = (double)(x->dense + x->experts), trained = (double)x->trained / all;
    double dense = (double)x->dense / (c->pp * c->tp);
    double experts = (double)x->experts / (c->pp * c->ep * c->etp);
    double ways = c->dp * c->cp / c->replicate, edp = ways * c->tp / (c->ep * c->etp);
    bool divided = strcmp(c->shard, "parameters") == 0;
    return (int64_t)(dense * (divided ? weight / ways : weight) +
                     experts * (divided ? weight / edp : weight) +
                     trained * rest * (dense / ways + experts / edp));
}

/* Does the same with less of tp fit without running anything again? */
static bool smaller_fits(const struct search *x, const struct candidate *c)
{
    for (int64_t i = 0; i < x->count; i++) {
        const struct candidate *o = x->at[i];
        if (o->fate <= FATE_SLOWER && o->recompute == RECOMPUTE_NONE &&
            o->pp == c->pp && o->cp == c->cp && o->ep == c->ep && o->tp < c->tp &&
            o->shard == c->shard)
            return true;
    }
    return false;
}

/* On the list without a plan. */
static const struct candidate *candidate_skip(struct search *x,
                                              const struct candidate *layout,
                                              enum fate fate, const char *why,
                                              int64_t need)
{
    bool seen;
    struct candidate *c = candidate_add(x, layout, &seen);
    if (!seen) {
        c->fate = fate;
        c->why = why;
        c->need = need;
    }
    return c;
}

/* The least recompute, from the candidate's on, with which it fits.  Returns what was
 * tried last. */
static const struct candidate *layout_try(struct search *x,
                                          const struct candidate *layout)
{
    struct candidate next = *layout, *c;
    int64_t least = state_least(x, layout);
    if (least > x->have)
        return candidate_skip(x, layout, FATE_STATE, NULL, least);
    for (;; next.recompute++) {
        bool seen;
        c = candidate_add(x, &next, &seen);
        if (!seen) {
            candidate_try(x, c);
            if (c->fate == FATE_FITS && (!x->best ||
                                         c->speed > 1.001 * x->best->speed))
                x->best = c;
            progress_say(x);
        }
        if (c->fate != FATE_MEMORY || next.recompute == RECOMPUTE_ALL)
            return c;
    }
}

/* The same layout with more and with less divided: where the first does not fit, the
 * second cannot. */
static void shards_try(struct search *x, struct candidate layout)
{
    layout.shard = "parameters";
    if (smaller_fits(x, &layout)) {
        candidate_skip(x, &layout, FATE_SKIPPED, "less tp fits without recompute", 0);
    } else {
        const struct candidate *c = layout_try(x, &layout);
        layout.recompute = c->recompute;
        if (c->fate > FATE_SLOWER) {
            if (c->fate != FATE_REFUSED && layout.dp > 1) {
                layout.shard = "optimizer";
                candidate_skip(x, &layout, FATE_SKIPPED,
                               "does not fit with parameters divided", 0);
            }
            return;
        }
    }
    layout.shard = "optimizer";
    if (layout.dp > 1)
        layout_try(x, &layout);
}

static int largest_ep(const struct search *x, int block)
{
    int ep = 1, node = x->hardware.node > 0 ? (int)x->hardware.node : x->world;
    while (x->experts && 2 * ep <= node && block % (2 * ep) == 0)
        ep *= 2;
    return ep;
}

/* Useful ep: as many ranks of a node as there are, half of them, twice as many. */
static void layouts_of(struct search *x, int pp, int cp, int tp)
{
    int dp = x->world / (pp * cp * tp), best = largest_ep(x, dp * cp * tp);
    const int ep[] = {best, 2 * best, best / 2};
    for (int k = 0; k < (x->experts ? COUNT(ep) : 1); k++)
        if (ep[k] >= 1 && dp * cp * tp % ep[k] == 0)
            shards_try(x, (struct candidate){
                .pp = pp, .dp = dp, .cp = cp, .tp = tp, .ep = ep[k], .etp = 1,
                .replicate = 1, .chunks = 1, .tokens = x->recipe->batch_tokens});
}

static void layouts_all(struct search *x, int cp)
{
    enum { MOST_TP = 4, MOST_PP = 16 };
    for (int tp = 1; tp <= MOST_TP; tp *= 2)
        for (int pp = 1; pp <= MOST_PP; pp *= 2)
            if (x->world % (pp * cp * tp) == 0)
                layouts_of(x, pp, cp, tp);
}

/* ---- from the best of them up ---- */

enum turn {
    TURN_ROWS, TURN_CHUNKS, TURN_BUBBLE, TURN_COPIES, TURN_ETP, TURN_CP, TURN_AGAIN,
    TURNS
};

/* One thing about a candidate made otherwise; false: there is nothing to make. */
static bool turn_take(const struct search *x, enum turn turn, struct candidate *c)
{
    enum { LONGER = 4, MOST_CHUNKS = 4 };
    int node = x->hardware.node > 0 ? (int)x->hardware.node : x->world;
    int nodes = c->dp * c->cp * c->tp / node;           /* of a stage */
    switch (turn) {
    case TURN_ROWS:
        c->tokens *= 2;
        return c->tokens <= LONGER * x->recipe->batch_tokens;
    case TURN_CHUNKS:
        c->chunks *= 2;
        return c->pp > 1 && c->chunks <= MOST_CHUNKS;
    case TURN_BUBBLE:
        c->zero_bubble = !c->zero_bubble;
        return c->pp > 1;
    case TURN_COPIES:                   /* a copy a node */
        if (nodes < 2 || c->dp % nodes || c->replicate > 1)
            return false;
        c->replicate = nodes;
        return true;
    case TURN_ETP:
        if (c->ep % 2)
            return false;
        c->ep /= 2;
        c->etp *= 2;
        return true;
    case TURN_CP:
        if (c->dp % 2 || c->dp / 2 % c->replicate)
            return false;
        c->dp /= 2;
        c->cp *= 2;
        return true;
    case TURN_AGAIN:
        if (c->recompute == RECOMPUTE_NONE)
            return false;
        c->recompute--;
        return true;
    case TURNS:
        break;
    }
    BUG("search: turn %d", turn);
}

/* Turn after turn, as long as one of them is faster. */
static void climb(struct search *x, const struct candidate *from)
{
    for (const struct candidate *now = from, *next; now; now = next) {
        next = NULL;
        for (enum turn k = 0; k < TURNS; k++) {
            struct candidate other = *now;
            if (!turn_take(x, k, &other))
                continue;
            const struct candidate *c = layout_try(x, &other);
            if (c->fate == FATE_FITS && c->speed > 1.001 * (next ? next : now)->speed)
                next = c;
        }
    }
}

static int by_speed(const void *a, const void *b)
{
    double x = (*(struct candidate *const *)a)->speed;
    double y = (*(struct candidate *const *)b)->speed;
    return (x < y) - (x > y);
}

int64_t search_fitting(const struct search *x, struct arena *a,
                       struct candidate ***out)
{
    int64_t n = 0;
    *out = NEW(a, struct candidate *, x->count + 1);
    for (int64_t i = 0; i < x->count; i++)
        if (x->at[i]->fate == FATE_FITS)
            (*out)[n++] = x->at[i];
    qsort(*out, (size_t)n, sizeof **out, by_speed);
    return n;
}

/* Short plans may hide what placement loses in a long one: the winner is planned whole.
 */
static void best_check(struct search *x)
{
    struct candidate **c;
    double seconds, each;
    int64_t n = search_fitting(x, x->arena, &c);
    x->best = NULL;
    for (int64_t i = 0; i < n && !x->best; i++)
        if (candidate_plan(x, c[i], c[i]->recipe.batch_rows / c[i]->dp, &seconds,
                           &each)) {
            c[i]->speed = speed_of(x, c[i], seconds);
            x->best = c[i];
        }
}

/* From the fastest, and from the fastest pipeline: it has most to win. */
static void climb_all(struct search *x)
{
    enum { STARTS = 3 };
    struct candidate **start, *pipeline = NULL;
    int64_t n = search_fitting(x, x->arena, &start);
    for (int64_t i = 0; i < x->count; i++)
        if (x->at[i]->pp > 1 && x->at[i]->fate <= FATE_SLOWER &&
            (!pipeline || x->at[i]->speed > pipeline->speed))
            pipeline = x->at[i];
    for (int64_t i = 0; i < MIN(n, STARTS); i++)
        climb(x, start[i]);
    if (pipeline)
        climb(x, pipeline);
}

/* ---- all of it ---- */

/* What layouts are compared by. */
static bool search_open(struct search *x)
{
    struct arena *a = x->arena;
    const struct recipe *r = x->recipe;
    const char *name = x->options.hardware ? x->options.hardware : r->plan_hardware;
    struct model m;
    if (!parts_parse(r->model_freeze, &x->frozen) ||
        !hardware_read(a, name, &x->hardware))
        return false;
    if (!hf_config_read(a, r->model_path, &x->config))
        return fail_kind(FAULT_CHECKPOINT);
    struct capacity capacity = capacity_of(r, &x->config);
    struct model_purpose purpose = purpose_train(r, &x->config, x->frozen);
    model_record(a, &x->config, &capacity, &purpose, NULL, 0, &m);
    x->world = session_ranks(r);
    x->have = x->hardware.memory > 0
                  ? (int64_t)(x->hardware.memory - x->hardware.reserve)
                  : device_memory_free() / x->world;
    for (int64_t i = 0; i < m.graph.nparam; i++) {
        const struct param *p = &m.graph.param[i];
        int64_t n = param_disk_count(p);
        *(m.graph.unit[p->unit].experts ? &x->experts : &x->dense) += n;
        x->trained += p->trainable ? n : 0;
    }
    x->said = clock_seconds();
    return true;
}

/* No layout fits, or none is legal: then the first says why. */
static bool none_found(const struct search *x)
{
    int64_t no = 0;
    for (int64_t i = 0; i < x->count; i++)
        no += x->at[i]->fate == FATE_REFUSED;
    if (no == x->count) {
        fail("plan: no layout of %d ranks is legal here; the first is refused: %s",
             x->world, x->count ? x->at[0]->why : "there is none to try");
        return fail_kind(FAULT_USAGE);
    }
    fail("plan: none of %lld layouts of %d ranks fits %s; take more ranks, shorter "
         "rows (batch.tokens) or freeze parts (model.freeze)", (long long)x->count,
         x->world, x->hardware.name);
    return fail_kind(FAULT_MEMORY);
}

bool search_run(struct search *x, struct arena *a, const struct recipe *r,
                const struct outlook_options *options)
{
    enum { MOST_CP = 8 };
    *x = (struct search){.arena = a, .recipe = r, .options = *options};
    x->options.rank = -1;
    x->options.fitting = true;
    if (!search_open(x))
        return false;
    for (int cp = 1; cp <= MOST_CP && !x->best; cp *= 2)
        layouts_all(x, cp);
    climb_all(x);
    best_check(x);
    log_progress("%s", "");
    return true;
}

bool outlook_search(const struct recipe *r, const struct outlook_options *options,
                    struct text *t)
{
    struct arena a = arena_make("search");
    struct search x;
    bool ok = search_run(&x, &a, r, options);
    if (ok) {
        search_print(&x, t);
        ok = x.best || none_found(&x);
    }
    arena_free(&a);
    return ok;
}
