/* candidate.c - what one candidate of a search would do.
 *
 * Stands alone because the search only compares: here settings become a recipe that
 * vlmoe train would take, and plans say how fast it is.  A long step is told from two
 * short plans, which is good enough to sort by; no candidate is called the fastest
 * before all of it is planned. */
#include "outlook/search.h"

#include "plan/stage.h"
#include "train/layout.h"

const char *const recompute_name[RECOMPUTES] = {"none", "cheap", "all"};

/* ---- its recipe ---- */

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
    if (r->parallel_shard != parallel_shard_parameters)
        r->parallel_keep_weights = false;
    if (r->parallel_shard == parallel_shard_none)
        r->parallel_prefetch = plain.parallel_prefetch;
}

static bool refused(struct search *x, struct candidate *c)
{
    c->fate = FATE_REFUSED;
    c->why = arena_text(x->arena, "%s", fail_message());
    fail_clear();
    return false;
}

enum parallel_shard division_shard(enum division d)
{
    switch (d) {
    case DIVIDE_NONE: return parallel_shard_none;
    case DIVIDE_OPTIMIZER: return parallel_shard_optimizer;
    case DIVIDE_GRADIENTS: case DIVIDE_GRADIENTS_LAST: return parallel_shard_gradients;
    case DIVIDE_PARAMETERS: case DIVIDE_PARAMETERS_LAST:
        return parallel_shard_parameters;
    case DIVISIONS: break;
    }
    BUG("division %d", (int)d);
}

bool division_last(enum division d)
{
    return d == DIVIDE_GRADIENTS_LAST || d == DIVIDE_PARAMETERS_LAST;
}

/* As vlmoe train would take it; rows get longer, not more tokens a step. */
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
    to->parallel_delay_weights = c->delay;
    to->parallel_weave = c->weave;
    to->parallel_shard = division_shard(c->division);
    to->parallel_reduce = division_last(c->division) ? parallel_reduce_last
                                                     : parallel_reduce_each;
    to->moe_dispatcher = c->allgather ? moe_dispatcher_allgather
                                      : moe_dispatcher_alltoall;
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

bool candidate_same(const struct candidate *a, const struct candidate *b)
{
    return a->pp == b->pp && a->dp == b->dp && a->cp == b->cp && a->tp == b->tp &&
           a->ep == b->ep && a->etp == b->etp && a->replicate == b->replicate &&
           a->chunks == b->chunks && a->zero_bubble == b->zero_bubble &&
           a->delay == b->delay && a->weave == b->weave &&
           a->allgather == b->allgather && a->division == b->division &&
           a->recompute == b->recompute && a->tokens == b->tokens;
}

/* ---- what it would do ---- */

int64_t candidate_state(const struct search *x, const struct candidate *c)
{
    bool bf16 = x->hardware.compute == DTYPE_BF16;
    double weight = bf16 ? 2 : 4, rest = bf16 ? 16 : 12;        /* bytes a parameter */
    double all = (double)(x->dense + x->experts), trained = (double)x->trained / all;
    double dense = (double)x->dense / (c->pp * c->tp);
    double experts = (double)x->experts / (c->pp * c->ep * c->etp);
    bool parameters = c->division >= DIVIDE_PARAMETERS;
    double ways = c->division == DIVIDE_NONE ? 1 : c->dp * c->cp / c->replicate;
    double edp = MAX(1, ways * c->tp / (c->ep * c->etp));
    return (int64_t)(dense * (parameters ? weight / ways : weight) +
                     experts * (parameters ? weight / edp : weight) +
                     trained * rest * (dense / ways + experts / edp));
}

static int64_t microbatches(const struct candidate *c)
{
    return MAX(c->recipe.batch_rows / c->dp, 1);
}

/* Plans so many microbatches; *each: seconds of another one at least, what the busiest
 * lane of a stage works. */
static bool candidate_plan(struct search *x, struct candidate *c, int64_t mbs,
                           double *seconds, double *each)
{
    struct outlook o;
    struct recipe r = c->recipe;
    if (r.batch_rows % c->dp == 0)      /* else it is refused */
        r.batch_rows = c->dp * mbs;
    bool ok = outlook_open(&o, &r, &x->options) || refused(x, c);
    for (int i = 0; i < o.stages; i++)
        x->steps += o.stage[i].session.plan->nstep;
    if (ok) {
        const struct outlook_stage *most = &o.stage[o.largest];
        c->need = most->need;
        c->state = most->session.plan->state_bytes > x->have;
        ok = outlook_fits(&o);
        c->fate = ok ? FATE_FITS : FATE_MEMORY;
        c->whole = mbs == microbatches(c);
        *seconds = o.seconds;
        *each = 0;
        for (int i = 0; i < o.stages; i++) {
            const double *busy = o.stage[i].forecast.busy;
            *each = MAX(*each, MAX(busy[LANE_COMPUTE], busy[LANE_LAYER]) / (double)mbs);
        }
    }
    outlook_close(&o);
    return ok;
}

static double speed_of(const struct search *x, const struct candidate *c,
                       double seconds)
{
    return (double)(c->tokens * c->recipe.batch_rows) / seconds / x->world;
}

void candidate_whole(struct search *x, struct candidate *c)
{
    double seconds, each;
    if (c->fate == FATE_FITS && !c->whole &&
        candidate_plan(x, c, microbatches(c), &seconds, &each))
        c->speed = speed_of(x, c, seconds);
}

/* Memory does not grow once every stage has all it holds at a time, and from then on a
 * microbatch takes about as long as the last: two short plans tell of a long one. */
void candidate_try(struct search *x, struct candidate *c)
{
    const double sure = 1.02;           /* of a bound: bubbles may fill a little */
    if (!recipe_make(x, c))
        return;
    int64_t mbs = microbatches(c), few = MIN(2 * c->pp + 1, mbs);
    int64_t more = MIN(few + MAX(c->pp, 2), mbs);
    double seconds, longer, each, rest = (double)(mbs - few);
    if (!candidate_plan(x, c, few, &seconds, &each))
        return;
    c->speed = speed_of(x, c, seconds + each * rest);
    if (x->best && sure * c->speed < x->best->speed) {
        c->fate = c->whole ? FATE_FITS : FATE_SLOWER;
        c->speed *= c->whole ? 1 : sure;
        return;
    }
    if (more > few && candidate_plan(x, c, more, &longer, &each))
        each = (longer - seconds) / (double)(more - few);
    if (c->fate != FATE_FITS)
        return;
    seconds = more == mbs && more > few ? longer : seconds + each * rest;
    c->speed = speed_of(x, c, seconds);
    if (!x->best || c->speed > x->best->speed)
        candidate_whole(x, c);
}
