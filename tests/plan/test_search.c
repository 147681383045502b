/* test_search.c - vlmoe plan --search: what each candidate is said to do is what
 * planning the whole of it says, and nothing is proposed that training would refuse. */
#include "check.h"

#include "base/text.h"
#include "recipe/hardware.h"
#include "outlook/search.h"
#include "train/layout.h"

#include <jansson.h>
#include <math.h>

/* The quickstart on so many ranks of a machine with little memory and small nodes. */
static void recipe_small(struct arena *a, const char *folder, double memory,
                         const char *overrides, struct recipe *r)
{
    struct bytes h200;
    char **word, *path = path_join(a, folder, "small.yaml");
    assert_ok(file_read(a, "recipes/hardware/h200.yaml", 1 << 16, &h200));
    struct text t = text_make(a);
    for (const char *line = h200.at; *line; line = strchr(line, '\n') + 1) {
        int n = (int)(strchr(line, '\n') - line);
        bool other = text_starts(line, "memory:") || text_starts(line, "reserve:") ||
                     text_starts(line, "node:");
        if (!other)
            text_add(&t, "%.*s\n", n, line);
    }
    text_add(&t, "memory: %g\nreserve: 0\nnode: 4\n", memory);
    assert_ok(file_replace(path, t.at, t.size));
    const char *all = arena_text(a, "sample.every=0;plan.hardware=%s;%s", path,
                                 overrides);
    int words = text_split(a, all, ";", &word);
    assert_ok(recipe_read(a, "recipes/quickstart.yaml", (const char *const *)word,
                          words, r));
}

static double whole_speed(const struct outlook *o)
{
    return o->tokens / o->seconds / o->crew.mesh.layout.world;
}

/* What the fate of a candidate claims, against an outlook of its whole recipe. */
static void fate_holds(struct arena *a, const struct search *x,
                       const struct candidate *c)
{
    const struct outlook_options plain = {.rank = -1};
    struct outlook o;
    struct recipe again;
    if (c->fate > FATE_MEMORY)
        return;
    char *yaml = recipe_text_of(&c->recipe, a);
    recipe_default(a, &again);
    assert_ok(recipe_parse(&again, "taken", yaml, (int64_t)strlen(yaml)));
    assert_ok(recipe_check(&again));
    assert_int_equal(session_ranks(&again), x->world);
    assert_ok(outlook_open(&o, &again, &plain));
    int64_t need = o.stage[o.largest].need, lost = c->whole ? 0 : x->have / 50;
    if (c->fate == FATE_MEMORY ? need <= x->have : need > x->have + lost)
        fail_msg("pp %d dp %d cp %d tp %d ep %d chunks %d, zero bubble %d, recompute "
                 "%d: %lld bytes by %lld microbatches, %lld by a short plan, %lld are "
                 "there", c->pp, c->dp, c->cp, c->tp, c->ep, c->chunks, c->zero_bubble,
                 (int)c->recompute, (long long)need,
                 (long long)again.batch_rows / c->dp, (long long)c->need,
                 (long long)x->have);
    double speed = whole_speed(&o);
    if (c->fate <= FATE_SLOWER)         /* nothing listed is faster than the winner */
        assert_true(speed <= x->best->speed * (1 + 1e-9));
    if (c->fate == FATE_FITS)
        assert_true(fabs(c->speed / speed - 1) < (c->whole ? 1e-12 : 0.05));
    if (c->fate == FATE_SLOWER) {
        assert_true(speed <= c->speed);
        assert_true(c->speed < x->best->speed);
    }
    outlook_close(&o);
}

static void candidates_are_what_they_say(void **state)
{
    (void)state;
    static const struct { double memory; const char *overrides; } trial[] = {
        {60e6, "parallel.ranks=8;batch.rows=32;parallel.cp_ring=true;parallel.cp=2"},
        {66e6, "parallel.ranks=8;batch.rows=16;batch.tokens=1024;batch.patches=2048"},
        {20e6, "parallel.ranks=8;batch.rows=16;batch.tokens=128;batch.patches=128"},
    };
    int fate[FATE_REFUSED + 1] = {0}, turn[9] = {0};
    for (int i = 0; i < COUNT(trial); i++) {
        struct arena a = arena_make("test");
        char *folder = check_folder(&a);
        struct recipe r;
        struct search x;
        recipe_small(&a, folder, trial[i].memory, trial[i].overrides, &r);
        assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
        assert_non_null(x.best);
        for (int64_t k = 0; k < x.count; k++) {
            const struct candidate *c = x.at[k];
            fate[c->fate]++;
            turn[0] += c->cp > 1;
            turn[1] += c->etp > 1;
            turn[2] += c->chunks > 1;
            turn[3] += c->zero_bubble;
            turn[4] += c->replicate > 1;
            turn[5] += c->weave;
            turn[6] += c->delay;
            turn[7] += c->allgather;
            turn[8] += c->division == DIVIDE_PARAMETERS_LAST;
            fate_holds(&a, &x, c);
            for (int64_t j = 0; j < k; j++)     /* nothing is tried twice */
                assert_false(candidate_same(x.at[j], c));
        }
        assert_ok(folder_remove(folder));
        arena_free(&a);
    }
    for (int k = 0; k < COUNT(turn); k++)
        assert_true(turn[k] > 0);
    for (int k = 0; k < FATE_REFUSED; k++)
        assert_true(fate[k] > 0);
}

static int64_t number_of(const char *text, const char *before)
{
    const char *at = strstr(text, before);
    assert_non_null(at);
    return strtoll(at + strlen(before), NULL, 10);
}

/* Every candidate is a line of its own, or one of a group with a reason. */
static void every_candidate_is_accounted_for(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), **line;
    struct recipe r;
    recipe_small(&a, folder, 60e6, "parallel.ranks=8;batch.rows=32", &r);
    for (int explain = 0; explain < 2; explain++) {
        struct text t = text_make(&a);
        assert_ok(outlook_search(&r, &(struct outlook_options){
            .rank = -1, .explain = explain}, &t));
        int lines = text_split(&a, t.at, "\n", &line), wins = 0, alone = 0;
        int64_t grouped = 0, all = number_of(line[0], "tokens a step; ");
        for (int i = 2; i < lines; i++) {
            bool group = strspn(line[i], " 0123456789") > 6;
            wins += text_ends(line[i], "  wins");
            alone += text_starts(line[i], "  pp") || text_starts(line[i], "* pp");
            grouped += group ? strtoll(line[i], NULL, 10) : 0;
            assert_true(!group || strstr(line[i], "slower") ||
                        strstr(line[i], "do not fit") || strstr(line[i], "refused") ||
                        strstr(line[i], "not planned"));
        }
        assert_int_equal(wins, 1);
        assert_int_equal(alone + grouped, all);
        assert_int_equal(grouped > 0, !explain);
        assert_true(text_starts(line[lines - 1], "take: "));
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* However many layouts do not divide something: a line a cause, with how many and one
 * of them. */
static void reasons_are_told_by_cause(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), **line;
    struct recipe r;
    struct text t = text_make(&a);
    struct search x;
    recipe_small(&a, folder, 60e6, "parallel.ranks=64;batch.rows=64", &r);
    assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
    search_print(&x, &t);
    int64_t refused = 0, told = 0;
    int causes = 0, several = 0, heads = 0;
    for (int64_t i = 0; i < x.count; i++)
        refused += x.at[i]->fate == FATE_REFUSED;
    int lines = text_split(&a, t.at, "\n", &line);
    for (int i = 0; i < lines; i++) {
        char *why = strstr(line[i], " refused");
        if (!why)
            continue;
        causes++;
        told += strtoll(line[i], NULL, 10);
        several += text_starts(why, " refused, such as: ");
        heads += strstr(why, "query heads") != NULL;
    }
    assert_true(refused > 8 && told == refused);
    assert_true(several > 0 && causes < 8 && heads <= 1);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* The rows that are shown are planned whole, and the winner is the first of them. */
static void what_is_shown_is_exact(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct search x;
    struct candidate **c;
    recipe_small(&a, folder, 66e6, "parallel.ranks=8;batch.rows=128", &r);
    assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
    assert_false(x.all);
    int64_t n = search_fitting(&x, &a, &c), told = 0;
    assert_true(n > SEARCH_SHOWN);
    assert_ptr_equal(c[0], x.best);
    for (int64_t i = 0; i < n; i++) {
        assert_true(c[i]->whole || i >= SEARCH_SHOWN);
        assert_true(c[i]->speed <= x.best->speed * (1 + 1e-9));
        told += !c[i]->whole;
    }
    assert_true(told > 0);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* The example of the documentation, and what it took before ep 1 was tried. */
static void a_small_model_on_many_ranks(void **state)
{
    (void)state;
    static const char *const words[] = {"parallel.ranks=64", "batch.rows=64",
                                        "plan.hardware=gb200"};
    struct arena a = arena_make("test");
    struct recipe r;
    struct search x;
    assert_ok(recipe_read(&a, "recipes/quickstart.yaml", words, COUNT(words), &r));
    assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
    assert_non_null(x.best);
    assert_true(x.best->whole && x.best->speed >= 540000);
    for (int64_t i = 0; i < x.count; i++)       /* the model has 8 */
        assert_true(8 % x.at[i]->ep == 0);
    arena_free(&a);
}

/* The same as JSON: every candidate, and the winner's overrides. */
static void a_search_as_json(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct search x;
    struct text t = text_make(&a);
    recipe_small(&a, folder, 66e6, "parallel.ranks=2;batch.rows=2", &r);
    assert_ok(search_run(&x, &a, &r, &(struct outlook_options){.rank = -1}));
    search_json(&x, &t);
    json_t *o = json_loads(t.at, 0, NULL), *best = json_object_get(o, "best");
    assert_int_equal(json_array_size(json_object_get(o, "candidates")), x.count);
    assert_int_equal(json_integer_value(json_object_get(best, "ep")), x.best->ep);
    assert_true(json_array_size(json_object_get(best, "take")) > 0);
    json_decref(o);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* A signal ends a search, and what was found by then is printed. */
static void a_stopped_search_says_what_it_has(void **state)
{
    (void)state;
    volatile sig_atomic_t stop = 1;
    struct arena a = arena_make("test");
    struct recipe r;
    struct text t = text_make(&a);
    char *folder = check_folder(&a);
    recipe_small(&a, folder, 66e6, "parallel.ranks=8;batch.rows=32", &r);
    assert_ok(outlook_search(&r, &(struct outlook_options){.rank = -1, .stop = &stop},
                             &t));
    assert_non_null(strstr(t.at, "stopped by a signal"));
    assert_null(strstr(t.at, "wins"));
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void where_nothing_will_do_it_says_why(void **state)
{
    (void)state;
    const struct outlook_options plain = {.rank = -1};
    static const char *const one[] = {"parallel.ranks=1", "parallel.dp=0"};
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct text t = text_make(&a);
    assert_ok(recipe_read(&a, "recipes/qwen3-vl-30b-a3b-8.yaml", one, 2, &r));
    assert_fails(outlook_search(&r, &plain, &t), "none of");
    assert_int_equal(fail_fault(), FAULT_MEMORY);
    assert_fails(outlook_search(&r, &plain, &t), "optimizer alone exceed it");
    recipe_small(&a, folder, 93e6, "parallel.ranks=1;batch.rows=1;batch.tokens=16384;"
                 "batch.patches=16384", &r);
    assert_fails(outlook_search(&r, &plain, &t), "shorter rows");
    assert_int_equal(fail_fault(), FAULT_MEMORY);
    recipe_small(&a, folder, 60e6, "parallel.ranks=11;batch.rows=10", &r);
    assert_fails(outlook_search(&r, &plain, &t), "is legal here; the first is refused");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_what_they_say),
        cmocka_unit_test(every_candidate_is_accounted_for),
        cmocka_unit_test(reasons_are_told_by_cause),
        cmocka_unit_test(what_is_shown_is_exact),
        cmocka_unit_test(a_small_model_on_many_ranks),
        cmocka_unit_test(a_search_as_json),
        cmocka_unit_test(a_stopped_search_says_what_it_has),
        cmocka_unit_test(where_nothing_will_do_it_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
