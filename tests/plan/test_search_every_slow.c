/* test_search_every_slow.c - slow: the winner of a search is the fastest of all the
 * settings there are: these are listed here by themselves, each is planned whole. */
#include "check.h"

#include "base/text.h"
#include "plan/stage.h"
#include "outlook/search.h"

#include <math.h>

/* Tables of a machine: much or little memory, slow or quick links. */
static const struct {
    const char *overrides;
    double memory, inside;
    int node;
} problem[] = {
    {"parallel.ranks=2;batch.rows=2", 1e12, 450e9, 8},
    {"parallel.ranks=2;batch.rows=2;batch.tokens=512;batch.patches=512", 1e12, 1e8, 2},
    {"parallel.ranks=2;batch.rows=4;parallel.ep=2;moe.capacity=1", 2.4e6, 450e9, 1},
    {"parallel.ranks=2;batch.rows=2;model.freeze=vision", 1.8e6, 1e9, 2},
    {"parallel.ranks=3;batch.rows=9", 1e12, 450e9, 2},
    {"parallel.ranks=4;batch.rows=1;batch.tokens=256", 1e12, 1e10, 2},
};

struct settings {
    int64_t tried, legal;
    double best;
    const char *at;                     /* the fastest */
};

/* Of a recipe without recompute: its segments that neither multiply nor talk. */
static const char *cheap_of(struct arena *a, const struct outlook *o)
{
    const struct graph *g = &o->stage[0].session.model.graph;
    struct text t = text_make(a);
    for (int64_t i = 0; i < g->nnode; i++) {
        const struct node *n = &g->node[i];
        bool seen = false;
        for (int64_t k = 0; k < i; k++)
            seen |= g->node[k].kind == n->kind && g->node[k].tower == n->tower;
        if (n->kind->lane == LANE_COMPUTE && !n->along && !seen &&
            node_flops(g, n) == 0)
            text_add(&t, "%s.%s ", n->tower, n->kind->name);
    }
    return t.at;
}

/* Plans these settings whole, where they are legal; the speed, 0: illegal or too large.
 * `cheap`: what to run again for the second sort of recompute. */
static double speed_of(struct arena *a, const char *path, const char *settings,
                       const char **cheap)
{
    struct arena scratch = arena_make("setting");
    const struct outlook_options plain = {.rank = -1};
    struct recipe r;
    struct outlook o;
    char **word;
    double speed = 0;
    int words = text_split(&scratch, settings, ";", &word);
    if (recipe_read(&scratch, path, (const char *const *)word, words, &r)) {
        if (outlook_open(&o, &r, &plain)) {
            speed = outlook_fits(&o) ? o.tokens / o.seconds / o.crew.mesh.layout.world
                                     : 0;
            if (cheap)
                *cheap = cheap_of(a, &o);
        }
        outlook_close(&o);
    }
    fail_clear();
    arena_free(&scratch);
    return speed;
}

static void settings_try(struct arena *a, struct settings *x, const char *path,
                         const char *layout)
{
    static const char *const divide[] = {
        "none", "optimizer", "gradients", "gradients;parallel.reduce=last",
        "parameters", "parameters;parallel.reduce=last",
    };
    static const char *const flag[] = {
        "", ";parallel.weave=true", ";parallel.delay_weights=true",
        ";parallel.weave=true;parallel.delay_weights=true",
        ";parallel.zero_bubble=true", ";parallel.zero_bubble=true;parallel.weave=true",
    };
    static const char *const dispatcher[] = {"", ";moe.dispatcher=allgather"};
    for (int d = 0; d < COUNT(divide); d++)
        for (int f = 0; f < COUNT(flag); f++)
            for (int k = 0; k < COUNT(dispatcher); k++) {
                const char *cheap = NULL;
                for (int again = 0; again < 3; again++) {
                    const char *list = again == 1 ? cheap : "*";
                    const char *s = arena_text(
                        a, "%s;parallel.shard=%s%s%s%s%s", layout, divide[d], flag[f],
                        dispatcher[k], again ? ";memory.recompute=" : "",
                        again ? list : "");
                    double speed = speed_of(a, path, s, again ? NULL : &cheap);
                    x->tried++;
                    x->legal += speed > 0;
                    if (speed > x->best) {
                        x->best = speed;
                        x->at = s;
                    }
                    if (!cheap)         /* illegal, whatever runs again */
                        break;
                }
            }
}

static void layouts_try(struct arena *a, struct settings *x, const char *path,
                        const char *base, const struct recipe *r)
{
    int world = (int)r->parallel_ranks;
    int64_t at[4] = {r->batch_tokens, r->batch_patches, r->batch_samples,
                     r->batch_images};
    for (int pp = 1; pp <= world; pp++)
    for (int cp = 1; cp <= world; cp++)
    for (int tp = 1; tp <= world; tp++)
    for (int ep = 1; ep <= world; ep++)
    for (int etp = 1; etp <= world; etp++)
    for (int replicate = 1; replicate <= world; replicate++)
    for (int chunks = 1; chunks <= 4; chunks *= 2)
    for (int longer = 1; longer <= 4; longer *= 2) {
        if (world % (pp * cp * tp) || (pp == 1 && chunks > 1) ||
            r->batch_rows % longer || world / pp % (ep * etp))
            continue;
        const char *capacity = ep == 1 ? ";moe.capacity=0" : "";
        const char *layout = arena_text(a, "%s%s;parallel.pp=%d;parallel.cp=%d;"
            "parallel.tp=%d;parallel.ep=%d;parallel.etp=%d;parallel.replicate=%d;"
            "parallel.chunks=%d;batch.tokens=%lld;batch.patches=%lld;"
            "batch.samples=%lld;batch.images=%lld;batch.rows=%lld", base, capacity, pp,
            cp, tp, ep, etp, replicate, chunks, (long long)at[0] * longer,
            (long long)at[1] * longer, (long long)at[2] * longer,
            (long long)at[3] * longer, (long long)r->batch_rows / longer);
        settings_try(a, x, path, layout);
    }
}

static const char *problem_make(struct arena *a, const char *folder, int i)
{
    struct bytes h200;
    char **line, *path = path_join(a, folder, "small.yaml");
    struct text t = text_make(a);
    assert_ok(file_read(a, "recipes/hardware/h200.yaml", 1 << 16, &h200));
    int lines = text_split(a, h200.at, "\n", &line);
    for (int k = 0; k < lines; k++)
        if (!text_starts(line[k], "memory:") && !text_starts(line[k], "reserve:") &&
            !text_starts(line[k], "node:") && !text_starts(line[k], "inside:"))
            text_add(&t, "%s\n", line[k]);
    text_add(&t, "memory: %g\nreserve: 0\nnode: %d\ninside: %g\n", problem[i].memory,
             problem[i].node, problem[i].inside);
    assert_ok(file_replace(path, t.at, t.size));
    return arena_text(a, "model.path=tests/train/tiny;batch.tokens=64;batch.patches=64;"
                      "sample.every=0;memory.slack=1;plan.hardware=%s;%s", path,
                      problem[i].overrides);
}

static void the_winner_is_the_fastest_there_is(void **state)
{
    (void)state;
    static const char recipe[] = "recipes/quickstart.yaml";
    for (int i = 0; i < COUNT(problem); i++) {
        struct arena a = arena_make("test");
        char *folder = check_folder(&a), **word;
        struct settings all = {0};
        struct recipe r;
        struct search x;
        const char *base = problem_make(&a, folder, i);
        int words = text_split(&a, base, ";", &word);
        assert_ok(recipe_read(&a, recipe, (const char *const *)word, words, &r));
        assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
        assert_non_null(x.best);
        layouts_try(&a, &all, recipe, base, &r);
        print_message("%d: %lld candidates, %lld settings, %lld legal and fit; %.0f, "
                      "%.0f\n  %s\n", i, (long long)x.count, (long long)all.tried,
                      (long long)all.legal, x.best->speed, all.best, all.at);
        assert_true(all.legal > 20 && all.legal < all.tried);
        assert_true(fabs(x.best->speed / all.best - 1) < 1e-9);
        assert_ok(folder_remove(folder));
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_winner_is_the_fastest_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
