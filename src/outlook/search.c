/* search.c - which layout, recompute and row size to take.
 *
 * Stands alone because it only tries settings: candidate.c says what each would
 * do.  Fit first: of every layout the least recompute that fits, with parameters
 * divided, then only the optimizer; context parallelism only where nothing fits
 * without.  From the best of these, and the best pipeline, it climbs one change at a
 * time as long as one is faster.  Where a problem is small enough it then tries every
 * setting there is.  What comes close to the fastest is planned whole, and the fastest
 * of those wins, the earlier one where they tie. */
#include "outlook/search.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/hf.h"
#include "recipe/hardware.h"
#include "train/layout.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_PP = 16, MOST_CP = 8, MOST_TP = 8, MOST_CHUNKS = 4, LONGER = 4 };

bool search_stopped(const struct search *x)
{
    return x->options.stop && *x->options.stop;
}

/* ---- the list ---- */

/* Where the search has come to: all the time on a terminal, elsewhere now and then. */
static void progress_say(struct search *x)
{
    enum { PAUSE = 10 };
    const struct candidate *b = x->best;
    struct arena a = arena_make("progress");
    const char *best = "none fits so far";
    if (b)
        best = arena_text(&a, "best so far %.0f tokens/s a rank (pp %d dp %d cp %d tp "
                          "%d ep %d)", b->speed, b->pp, b->dp, b->cp, b->tp, b->ep);
    const char *line = arena_text(&a, "%lld candidate(s), %s", (long long)x->count,
                                  best);
    double now = clock_seconds();
    if (log_terminal()) {
        log_progress("plan: %s", line);
    } else if (now - x->said > PAUSE) {
        log_info("plan", "%s", line);
        x->said = now;
    }
    arena_free(&a);
}

/* The candidate like `from` on the list; *seen: it was there. */
static struct candidate *candidate_add(struct search *x, const struct candidate *from,
                                       bool *seen)
{
    for (int64_t i = 0; i < x->count; i++)
        if ((*seen = candidate_same(x->at[i], from)))
            return x->at[i];
    GROW(x->arena, x->at, x->count, x->room);
    struct candidate *c = NEW(x->arena, struct candidate, 1);
    *c = *from;
    c->fate = FATE_SKIPPED;
    c->why = NULL;
    c->whole = c->state = false;
    c->need = 0;
    c->speed = 0;
    *seen = false;
    return x->at[x->count++] = c;
}

/* Settings that are not as they would be if nobody had set them. */
static int settings_of(const struct candidate *c)
{
    return (c->replicate > 1) + (c->chunks > 1) + c->zero_bubble + c->delay + c->weave +
           c->allgather + (int)c->recompute;
}

/* > 0: `a` is faster; or as fast, with less to set. */
static int compare(const struct candidate *a, const struct candidate *b)
{
    const double same = 1e-9;
    if (fabs(a->speed - b->speed) <= same * b->speed)
        return settings_of(b) - settings_of(a);
    return a->speed > b->speed ? 1 : -1;
}

static void best_take(struct search *x, const struct candidate *c)
{
    if (c->fate == FATE_FITS && c->whole && (!x->best || compare(c, x->best) > 0))
        x->best = c;
}

/* On the list without a plan. */
static void candidate_skip(struct search *x, const struct candidate *layout,
                           enum fate fate, const char *why, int64_t need)
{
    bool seen;
    struct candidate *c = candidate_add(x, layout, &seen);
    if (seen)
        return;
    c->fate = fate;
    c->why = why;
    c->need = need;
}

/* This one, unless it was tried. */
static struct candidate *exactly_try(struct search *x, const struct candidate *like)
{
    bool seen;
    struct candidate *c = candidate_add(x, like, &seen);
    int64_t least = candidate_state(x, like);
    if (seen && c->fate != FATE_SKIPPED)
        return c;
    if (least > x->have) {
        c->fate = FATE_STATE;
        c->need = least;
        return c;
    }
    candidate_try(x, c);
    best_take(x, c);
    progress_say(x);
    return c;
}

/* The least recompute, from the candidate's on, with which it fits.  Returns what was
 * tried last. */
static const struct candidate *layout_try(struct search *x,
                                          const struct candidate *layout)
{
    struct candidate next = *layout;
    for (;; next.recompute++) {
        const struct candidate *c = exactly_try(x, &next);
        if (c->fate != FATE_MEMORY || next.recompute == RECOMPUTE_ALL ||
            search_stopped(x))
            return c;
    }
}

/* ---- fit first ---- */

/* Does the same with less of tp fit without running anything again? */
static bool smaller_fits(const struct search *x, const struct candidate *c)
{
    for (int64_t i = 0; i < x->count; i++) {
        const struct candidate *o = x->at[i];
        if (o->fate <= FATE_SLOWER && o->recompute == RECOMPUTE_NONE &&
            o->pp == c->pp && o->cp == c->cp && o->ep == c->ep && o->tp < c->tp &&
            o->division == c->division)
            return true;
    }
    return false;
}

/* The same layout with more and with less divided: where the first does not fit, the
 * second cannot. */
static void divisions_try(struct search *x, struct candidate layout)
{
    layout.division = DIVIDE_PARAMETERS;
    if (smaller_fits(x, &layout)) {
        candidate_skip(x, &layout, FATE_SKIPPED, "less tp fits without recompute", 0);
    } else {
        const struct candidate *c = layout_try(x, &layout);
        layout.recompute = c->recompute;
        if (c->fate > FATE_SLOWER) {
            layout.division = DIVIDE_OPTIMIZER;
            if (c->fate != FATE_REFUSED && layout.dp > 1)
                candidate_skip(x, &layout, FATE_SKIPPED,
                               "does not fit with parameters divided", 0);
            return;
        }
    }
    layout.division = DIVIDE_OPTIMIZER;
    if (layout.dp > 1)
        layout_try(x, &layout);
}

/* Every ep that divides the experts and the ranks of a stage, the largest first. */
static void layouts_of(struct search *x, int pp, int cp, int tp)
{
    int dp = x->world / (pp * cp * tp), block = dp * cp * tp;
    int experts = x->experts ? x->config.decoder.experts : 1;
    for (int ep = MIN(block, experts); ep >= 1; ep--)
        if (block % ep == 0 && experts % ep == 0 && !search_stopped(x))
            divisions_try(x, (struct candidate){
                .pp = pp, .dp = dp, .cp = cp, .tp = tp, .ep = ep, .etp = 1,
                .replicate = 1, .chunks = 1, .tokens = x->recipe->batch_tokens});
}

static void layouts_all(struct search *x, int cp)
{
    for (int tp = 1; tp <= MOST_TP; tp++)
        for (int pp = 1; pp <= MOST_PP; pp++)
            if (x->world % (pp * cp * tp) == 0)
                layouts_of(x, pp, cp, tp);
}

/* ---- from the best of them up ---- */

enum turn {
    TURN_WEAVE, TURN_DELAY, TURN_BUBBLE, TURN_DISPATCHER, TURN_AGAIN, TURN_ROWS,
    TURN_CHUNKS, TURN_FEWER_CHUNKS, TURN_EP, TURN_LESS_EP, TURN_ETP, TURN_COPIES,
    TURN_CP, TURN_LESS_CP, TURN_TP, TURN_LESS_TP, TURN_PP, TURN_LESS_PP, TURN_DIVIDE,
    TURNS = TURN_DIVIDE + DIVISIONS
};

/* From dp to `axis`, or back: twice as many. */
static bool move(int *dp, int *axis, bool more, int most)
{
    int *from = more ? dp : axis, *to = more ? axis : dp;
    if (*from % 2)
        return false;
    *from /= 2;
    *to *= 2;
    return *axis <= most;
}

static bool toggle(bool *flag)
{
    *flag = !*flag;
    return true;
}

/* Do experts and copies divide the ranks of a stage?  What else must divide (heads,
 * rows, layers) vlmoe train says best. */
static bool divides(const struct search *x, const struct candidate *c)
{
    int copy = c->dp / c->replicate * c->cp * c->tp;
    int experts = x->experts ? x->config.decoder.experts : 1;
    return c->dp % c->replicate == 0 && copy % (c->ep * c->etp) == 0 &&
           experts % c->ep == 0;
}

/* One thing about a candidate made otherwise; false: there is nothing to make. */
static bool turn_make(const struct search *x, enum turn turn, struct candidate *c)
{
    int node = x->hardware.node > 0 ? (int)x->hardware.node : x->world;
    int nodes = c->dp * c->cp * c->tp / node;           /* of a stage */
    switch (turn) {
    case TURN_WEAVE:
        return toggle(&c->weave);
    case TURN_DELAY:
        c->zero_bubble = false;
        return toggle(&c->delay);
    case TURN_BUBBLE:
        c->delay = false;
        return c->pp > 1 && toggle(&c->zero_bubble);
    case TURN_DISPATCHER:
        return c->ep > 1 && toggle(&c->allgather);
    case TURN_AGAIN:
        return c->recompute-- > RECOMPUTE_NONE;
    case TURN_ROWS:
        c->tokens *= 2;
        return c->tokens <= LONGER * x->recipe->batch_tokens;
    case TURN_CHUNKS:
        c->chunks *= 2;
        return c->pp > 1 && c->chunks <= MOST_CHUNKS;
    case TURN_FEWER_CHUNKS:
        c->chunks /= 2;
        return c->chunks >= 1;
    case TURN_EP:
        c->ep *= 2;
        return x->experts > 0;
    case TURN_LESS_EP:
        c->allgather &= c->ep > 2;
        c->ep /= 2;
        return c->ep >= 1;
    case TURN_ETP:
        c->allgather &= c->ep > 2;
        return x->experts && move(&c->ep, &c->etp, true, x->world);
    case TURN_COPIES:                   /* a copy a node */
        c->replicate = c->replicate > 1 ? 1 : nodes;
        return nodes > 1 && c->division != DIVIDE_NONE;
    case TURN_CP: case TURN_LESS_CP:
        return move(&c->dp, &c->cp, turn == TURN_CP, MOST_CP);
    case TURN_TP: case TURN_LESS_TP:
        return move(&c->dp, &c->tp, turn == TURN_TP, MOST_TP);
    case TURN_PP: case TURN_LESS_PP:
        if (!move(&c->dp, &c->pp, turn == TURN_PP, MOST_PP))
            return false;
        c->zero_bubble &= c->pp > 1;
        c->chunks = c->pp > 1 ? c->chunks : 1;
        return true;
    default:
        c->division = (enum division)(turn - TURN_DIVIDE);
        return c->division != DIVIDE_NONE || c->replicate == 1;
    }
}

/* Turn after turn, until a whole round brings nothing. */
static void climb(struct search *x, const struct candidate *now)
{
    for (int turn = 0, idle = 0; idle < TURNS && !search_stopped(x);
         turn = (turn + 1) % TURNS, idle++) {
        struct candidate other = *now;
        if (!turn_make(x, (enum turn)turn, &other) || !divides(x, &other))
            continue;
        const struct candidate *c = layout_try(x, &other);
        if (c->fate == FATE_FITS && c->speed > 1.0005 * now->speed) {
            now = c;
            idle = 0;
        }
    }
}

static int by_speed(const void *a, const void *b)
{
    return compare(*(struct candidate *const *)b, *(struct candidate *const *)a);
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

/* From the fastest, and from the fastest pipeline: it has most to win. */
static void climb_all(struct search *x)
{
    enum { STARTS = 2 };
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

/* ---- every setting ---- */

/* Counts it, or (count NULL) tries it. */
static void setting(struct search *x, const struct candidate *c, int64_t *count)
{
    if (count)
        ++*count;
    else if (!search_stopped(x))
        exactly_try(x, c);
}

/* How a layout is run: who divides what, which collectives hide, what runs again. */
static void ways_each(struct search *x, struct candidate c, int64_t *count)
{
    enum { BUBBLE = 1, DELAY = 2, WEAVE = 4, ALLGATHER = 8, FLAGS = 16 };
    for (int flags = 0; flags < FLAGS; flags++)
        for (int d = 0; d < DIVISIONS; d++)
            for (int again = 0; again < RECOMPUTES; again++) {
                c.zero_bubble = flags & BUBBLE;
                c.delay = flags & DELAY;
                c.weave = flags & WEAVE;
                c.allgather = flags & ALLGATHER;
                c.division = (enum division)d;
                c.recompute = (enum recompute)again;
                bool read = !(c.zero_bubble && (c.pp == 1 || c.delay)) &&
                            !(c.allgather && c.ep == 1) &&
                            !(c.replicate > 1 && d == DIVIDE_NONE);
                if (read)
                    setting(x, &c, count);
            }
}

static void stage_each(struct search *x, struct candidate c, int64_t *count)
{
    int block = c.dp * c.cp * c.tp;
    for (c.ep = 1; c.ep <= (x->experts ? block : 1); c.ep++)
        for (c.etp = 1; c.etp <= (x->experts ? block / c.ep : 1); c.etp++)
            for (c.replicate = 1; c.replicate <= c.dp; c.replicate++)
                for (c.chunks = 1; c.chunks <= (c.pp > 1 ? MOST_CHUNKS : 1);
                     c.chunks *= 2)
                    for (int longer = 1; longer <= LONGER; longer *= 2) {
                        c.tokens = x->recipe->batch_tokens * longer;
                        if (divides(x, &c))
                            ways_each(x, c, count);
                    }
}

static void settings_each(struct search *x, int64_t *count)
{
    for (int pp = 1; pp <= MOST_PP; pp++)
        for (int cp = 1; cp <= MOST_CP; cp++)
            for (int tp = 1; tp <= MOST_TP; tp++)
                if (x->world % (pp * cp * tp) == 0)
                    stage_each(x, (struct candidate){
                        .pp = pp, .cp = cp, .tp = tp,
                        .dp = x->world / (pp * cp * tp)}, count);
}

/* Where all settings together are so many steps of plans: some seconds. */
static void small_try(struct search *x)
{
    enum { RANKS = 16 };                /* with more there are too many to count */
    const double most = 2e6;
    int64_t settings = 0, planned = 0;
    if (!x->best || x->world > RANKS)
        return;
    for (int64_t i = 0; i < x->count; i++)
        planned += x->at[i]->fate <= FATE_MEMORY;
    settings_each(x, &settings);
    x->all = (double)settings * (double)x->steps <= most * (double)planned;
    if (x->all)
        settings_each(x, NULL);
    x->all &= !search_stopped(x);
}

/* ---- all of it ---- */

/* Short plans only tell: what is shown first, and what comes close to the fastest, is
 * planned whole, until nothing is left to. */
static void finals(struct search *x)
{
    const double close = 0.98;
    for (bool again = true; again && !search_stopped(x);) {
        struct candidate **c;
        int64_t n = search_fitting(x, x->arena, &c);
        again = false;
        for (int64_t i = 0; i < n && !again; i++) {
            again = !c[i]->whole && (i < SEARCH_SHOWN || !x->best ||
                                     c[i]->speed > close * x->best->speed);
            if (again) {
                candidate_whole(x, c[i]);
                best_take(x, c[i]);
                progress_say(x);
            }
        }
    }
}

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
    int64_t no = 0, state = 0;
    for (int64_t i = 0; i < x->count; i++) {
        no += x->at[i]->fate == FATE_REFUSED;
        state += x->at[i]->fate == FATE_STATE || x->at[i]->state ||
                 x->at[i]->fate == FATE_SKIPPED;
    }
    if (no == x->count) {
        fail("plan: no layout of %d rank(s) is legal here; the first is refused: %s",
             x->world, x->count ? x->at[0]->why : "there is none to try");
        return fail_kind(FAULT_USAGE);
    }
    fail("plan: none of %lld layout(s) of %d rank(s) fits %s; %s", (long long)x->count,
         x->world, x->hardware.name,
         state + no == x->count
             ? "weights, gradients and optimizer alone exceed it: take more ranks, a "
               "smaller model, or freeze parts (model.freeze)"
             : "take more ranks, shorter rows (batch.tokens) or freeze parts "
               "(model.freeze)");
    return fail_kind(FAULT_MEMORY);
}

bool search_run(struct search *x, struct arena *a, const struct recipe *r,
                const struct outlook_options *options)
{
    *x = (struct search){.arena = a, .recipe = r, .options = *options};
    x->options.rank = -1;
    x->options.fitting = true;
    if (!search_open(x))
        return false;
    for (int cp = 1; cp <= MOST_CP && !x->best; cp *= 2)
        layouts_all(x, cp);
    climb_all(x);
    small_try(x);
    finals(x);
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
        (options->json ? search_json : search_print)(&x, t);
        ok = x.best || search_stopped(&x) || none_found(&x);
    }
    arena_free(&a);
    return ok;
}
