/* test_mix.c - the order of samples as laws: shares, epochs, hold-out, seeds. */
#include "tests/data/scratch.h"

#include "base/log.h"
#include "base/random.h"
#include "data/rows/mix.h"

#include <math.h>

/* A source of n samples; `tag` makes its data its own. */
static struct source *lines(struct scratch *s, int n, const char *tag)
{
    struct text t = text_make(&s->arena);
    for (int i = 0; i < n; i++)
        text_add(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}\n",
                 tag);
    return scratch_open(
        s, scratch_text(s, arena_text(&s->arena, "%s.jsonl", tag), t.at), "openai");
}

static struct mix *mix_of(struct scratch *s, const struct mix_part *part, int count,
                          uint64_t seed, bool shuffle, int hold_out, bool held)
{
    struct mix *m;
    if (!mix_make(&s->arena, part, count, seed, shuffle, hold_out, held, &m))
        fail_msg("%s", fail_message());
    return m;
}

/* At every prefix every part is less than one sample from its share. */
static void shares_check(struct scratch *s, const double *weight, int count,
                         int64_t until)
{
    struct mix_part *part = NEW(&s->arena, struct mix_part, count);
    int64_t *served = NEW(&s->arena, int64_t, count);
    double sum = 0;
    for (int i = 0; i < count; i++) {
        char *name = arena_text(&s->arena, "w%d", i);
        part[i] = (struct mix_part){lines(s, 3 + i, name), weight[i], name};
        sum += weight[i];
    }
    struct mix *m = mix_of(s, part, count, 1, true, 0, false);
    for (int64_t n = 1; n <= until; n++) {
        served[mix_at(m, n - 1).part]++;
        for (int i = 0; i < count; i++) {
            double off = (double)served[i] - weight[i] / sum * (double)n;
            if (fabs(off) >= 1.0 + 1e-6)
                fail_msg("part %d is %g samples off after %lld", i, off, (long long)n);
        }
    }
    for (int i = 0; i < count; i++)
        source_close(part[i].source);
}

static void test_shares(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const double even[] = {1, 1, 1}, extreme[] = {0.999, 0.001},
                        odd[] = {1, 2.5}, many[] = {30, 1, 1, 1, 1, 1, 7, 7, 0.5, 11},
                        third[] = {0.333333, 0.666667}, irrational[] = {M_PI, M_E, 1},
                        tiny[] = {1000000, 3};
    shares_check(&s, even, COUNT(even), 1000);
    shares_check(&s, extreme, COUNT(extreme), 5000);
    shares_check(&s, odd, COUNT(odd), 1000);
    shares_check(&s, many, COUNT(many), 5000);
    shares_check(&s, third, COUNT(third), 5000);
    shares_check(&s, irrational, COUNT(irrational), 100000);
    shares_check(&s, tiny, COUNT(tiny), 700000);
    uint64_t key = random_key(7, "weights");
    for (int round = 0; round < 20; round++) {
        double weight[12];
        int count = 2 + (int)(random_bits(key, (uint64_t)round) % 11);
        for (int i = 0; i < count; i++)
            weight[i] =
                1 + (double)(random_bits(key, (uint64_t)(100 + 16 * round + i)) % 99);
        shares_check(&s, weight, count, 2500);
    }
    scratch_remove(&s);
}

/* Each part, on its own, serves every sample once an epoch; epochs follow each other.
 */
static void epochs_check(const struct mix *m, int parts, int64_t until)
{
    struct arena a = arena_make("seen");
    int64_t **seen = NEW(&a, int64_t *, parts), *count = NEW(&a, int64_t, parts);
    int64_t *live = NEW(&a, int64_t, parts);
    for (int i = 0; i < parts; i++) {
        live[i] = source_count(mix_part(m, i)->source);
        seen[i] = NEW(&a, int64_t, live[i]); /* times each sample was served */
    }
    for (int64_t n = 0; n < until; n++) {
        struct mix_place p = mix_at(m, n);
        assert_in_range(p.part, 0, parts - 1);
        assert_in_range(p.index, 0, live[p.part] - 1);
        assert_int_equal(p.epoch, count[p.part]++ / live[p.part]);
        assert_int_equal(seen[p.part][p.index]++, p.epoch); /* once in each epoch */
    }
    arena_free(&a);
}

static void test_epochs(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct mix_part part[] = {{lines(&s, 1000, "a"), 0.999, "a"},
                              {lines(&s, 1, "b"), 0.001, "b"},
                              {lines(&s, 7, "c"), 0.01, "c"}};
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct mix *m = mix_of(&s, part, 3, 5, shuffle, 0, false);
        epochs_check(m, COUNT(part), 20000);
        int64_t end = mix_epoch_samples(m), served = 0;
        for (int64_t n = 0; n < end; n++)
            served += mix_at(m, n).part == 0;
        assert_int_equal(served, 1000); /* and the last one is the 1000th */
        assert_int_equal(mix_at(m, end - 1).part, 0);
    }
    struct mix *alone = mix_of(&s, part, 1, 5, true, 0, false);
    assert_int_equal(mix_epoch_samples(alone), 1000);
    int same = 0, sorted = 0;
    for (int i = 0; i < 1000; i++) {
        same += mix_at(alone, i).index == mix_at(alone, 1000 + i).index;
        sorted += mix_at(alone, i).index == i;
    }
    assert_in_range(same, 0, 10); /* chance: 1 */
    assert_in_range(sorted, 0, 10);
    struct mix *plain = mix_of(&s, part, 1, 5, false, 0, false);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(mix_at(plain, i).index, i % 1000);
    for (int i = 0; i < 3; i++)
        source_close(part[i].source);
    scratch_remove(&s);
}

static void test_seeds(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct source *a = lines(&s, 500, "a");
    struct mix_part part[] = {{a, 1, "a"}, {a, 1, "again"}, {a, 1, "again"}};
    struct mix *m[] = {mix_of(&s, part, 3, 1, true, 0, false),
                       mix_of(&s, part, 3, 2, true, 0, false),
                       mix_of(&s, part, 3, 1, true, 0, false)};
    int equal[3] = {0}, twins = 0;
    for (int n = 0; n < 1500; n++) {
        equal[1] += mix_at(m[0], n).index == mix_at(m[1], n).index;
        equal[2] += mix_at(m[0], n).index == mix_at(m[2], n).index;
    }
    assert_in_range(equal[1], 0, 20);
    assert_int_equal(equal[2], 1500);
    /* the same data in three parts is shuffled apart, by name or else by order */
    for (int n = 0; n < 1500; n += 3) {
        int64_t index[3];
        for (int i = 0; i < 3; i++) {
            struct mix_place p = mix_at(m[0], n + i);
            index[p.part] = p.index;
        }
        twins += index[0] == index[1] || index[1] == index[2];
    }
    assert_in_range(twins, 0, 20);
    /* ids tell parts apart, and a part keeps its shuffle when others come or go */
    assert_true(mix_id(m[0], (struct mix_place){1, 3, 0}) !=
                mix_id(m[0], (struct mix_place){0, 3, 0}));
    assert_int_equal(mix_id(m[0], (struct mix_place){2, 3, 9}), 1003);
    struct mix *alone = mix_of(&s, part, 1, 1, true, 0, false);
    for (int n = 0, k = 0; n < 1500; n++)
        if (mix_at(m[0], n).part == 0)
            assert_int_equal(mix_at(m[0], n).index, mix_at(alone, k++).index);
    source_close(a);
    scratch_remove(&s);
}

static void test_hold_out(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct mix_part part[] = {{lines(&s, 103, "a"), 1, "a"},
                              {lines(&s, 4, "b"), 1, "b"}};
    enum { NTH = 10 };
    struct mix *learn = mix_of(&s, part, 1, 1, true, NTH, false);
    struct mix *held = mix_of(&s, part, 1, 1, true, NTH, true);
    struct mix *other = mix_of(&s, part, 1, 99, true, NTH, true);
    int side[103] = {0};
    assert_int_equal(mix_epoch_samples(learn), 93);
    assert_int_equal(mix_epoch_samples(held), 10);
    for (int n = 0; n < 93; n++)
        side[mix_at(learn, n).index] += 1;
    for (int n = 0; n < 10; n++) {
        side[mix_at(held, n).index] += 2;
        side[mix_at(other, n).index] += 4;
    }
    for (int i = 0; i < 103; i++) /* learnt, or held out whatever the seed */
        assert_int_equal(side[i], i % NTH == NTH - 1 ? 6 : 1);
    log_set(LOG_WARN + 1, 0); /* b has too few samples to hold one out */
    struct mix *both = mix_of(&s, part, 2, 1, true, NTH, true);
    for (int n = 0; n < 100; n++)
        assert_int_equal(mix_at(both, n).part, 0);
    struct mix *m;
    assert_false(mix_make(&s.arena, part + 1, 1, 1, true, NTH, true, &m));
    log_set(LOG_WARN, 0);
    assert_int_equal(fail_fault(), FAULT_USAGE);
    source_close(part[0].source);
    source_close(part[1].source);
    scratch_remove(&s);
}

static void test_refused(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct source *a = lines(&s, 5, "a"), *b = lines(&s, 6, "b");
    static const double bad[] = {0, -1, NAN, INFINITY, 1e-9};
    struct mix *m;
    for (int i = 0; i < COUNT(bad); i++) {
        struct mix_part part[] = {{a, 1, "good"}, {b, bad[i], "wrong"}};
        assert_false(mix_make(&s.arena, part, 2, 1, true, 0, false, &m));
        ASSERT_SAYS("the weight of wrong is");
        assert_int_equal(fail_fault(), FAULT_USAGE);
    }
    struct mix_part part[] = {{a, 1, "a"}};
    assert_false(mix_make(&s.arena, part, 0, 1, true, 0, false, &m));
    assert_false(mix_make(&s.arena, part, 1, 1, true, 1, false, &m));
    assert_false(mix_make(&s.arena, part, 1, 1, true, -2, false, &m));
    assert_false(mix_make(&s.arena, part, 1, 1, true, 0, true, &m));
    source_close(a);
    source_close(b);
    scratch_remove(&s);
}

static struct source *images(struct scratch *s, const char *path, const char *match)
{
    struct source_options o = {.path = path, .format = "folder", .match = match};
    struct source *out;
    assert_ok(source_open(&s->arena, &o, &out));
    return out;
}

/* Held out in one source and trained on in another: no file can be. */
static void test_what_is_held_out_is_in_no_other_source(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    for (int i = 0; i < 8; i++) {
        scratch_png(&s, arena_text(&s.arena, "in/deep/%d.png", i));
        scratch_text(&s, arena_text(&s.arena, "in/deep/%d.txt", i), "one");
        scratch_png(&s, arena_text(&s.arena, "inner/%d.png", i));
        scratch_text(&s, arena_text(&s.arena, "inner/%d.txt", i), "other");
    }
    const char *in = path_join(&s.arena, s.folder, "in");
    const char *deep = path_join(&s.arena, s.folder, "in/../in/deep");
    struct source *whole = images(&s, in, NULL), *again = images(&s, in, NULL),
                  *some = images(&s, in, "*[0-3].png"), *part = images(&s, deep, NULL),
                  *apart = images(&s, path_join(&s.arena, s.folder, "inner"), NULL);
    const struct { struct source *one, *other; bool ok; } pair[] = {
        {whole, some, false}, {some, whole, false}, {whole, part, false},
        {part, whole, false}, {whole, again, true}, {whole, apart, true},
    };
    log_set(LOG_WARN + 1, 0);           /* that two are the same */
    for (int i = 0; i < COUNT(pair); i++)
        for (int hold_out = 0; hold_out <= 4; hold_out += 4) {
            struct mix_part both[] = {{pair[i].one, 1, "a"},
                                      {pair[i].other, 1, "b"}};
            struct mix *m;
            bool ok = mix_make(&s.arena, both, 2, 1, true, hold_out, false, &m);
            assert_true(ok == (pair[i].ok || !hold_out));
            if (ok)
                continue;
            ASSERT_SAYS("a and b", "held out", "data.hold_out");
            assert_int_equal(fail_fault(), FAULT_USAGE);
        }
    log_set(LOG_WARN, 0);
    scratch_remove(&s);
}

/* A resume far into a run costs no more than its start. */
static void test_far(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct mix_part part[] = {{lines(&s, 1000, "a"), M_PI, "a"},
                              {lines(&s, 10, "b"), 1, "b"}};
    struct mix *m = mix_of(&s, part, 2, 1, true, 0, false);
    double start = check_seconds();
    int64_t sum = 0;
    for (int n = 0; n < 10000; n++) {
        struct mix_place p = mix_at(m, 1000000000000 + n);
        assert_in_range(p.index, 0, source_count(part[p.part].source) - 1);
        sum += p.epoch;
    }
    assert_true(sum > 0);
    assert_true(check_seconds() - start < 2);
    source_close(part[0].source);
    source_close(part[1].source);
    scratch_remove(&s);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),  cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_seeds),   cmocka_unit_test(test_hold_out),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_what_is_held_out_is_in_no_other_source),
        cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
