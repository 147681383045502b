/* test_order.c - laws of pipeline orders, over every small pipeline there is. */
#include "check.h"

#include "plan/order.h"

enum { MAX_STAGES = 6, MAX_CHUNKS = 3, MAX_MBS = 13 };

enum kind { PLAIN, ZERO_BUBBLE, FORWARD_ONLY, KINDS };

struct pipeline {
    enum kind kind;
    int stages, chunks, mbs;            /* stages: ranks */
    struct order order[MAX_STAGES];
};

static struct pipeline pipeline_make(struct arena *a, enum kind kind, int stages,
                                     int chunks, int mbs)
{
    struct pipeline x = {kind, stages, chunks, mbs, {{0}}};
    for (int r = 0; r < stages; r++) {
        struct order *o = &x.order[r];
        if (kind == PLAIN)
            *o = order_interleaved(a, r, stages, chunks, mbs);
        else if (kind == ZERO_BUBBLE)
            *o = order_zero_bubble(a, r, stages, chunks, mbs);
        else
            *o = order_forward_only(a, stages, chunks, mbs);
    }
    return x;
}

static void each_pipeline(void (*body)(const struct pipeline *x))
{
    for (int stages = 1; stages <= MAX_STAGES; stages++)
        for (int chunks = 1; chunks <= MAX_CHUNKS; chunks++)
            for (int mbs = 1; mbs <= MAX_MBS; mbs++)
                for (int kind = 0; kind < KINDS; kind++) {
                    struct arena a = arena_make("test");
                    struct pipeline x =
                        pipeline_make(&a, (enum kind)kind, stages, chunks, mbs);
                    body(&x);
                    arena_free(&a);
                }
}

static int cell(const struct pipeline *x, struct order_item i)
{
    assert_true(i.chunk >= 0 && i.chunk < x->chunks && i.mb >= 0 && i.mb < x->mbs);
    return i.chunk * x->mbs + i.mb;
}

/* Forward before backward before weight, each once, and nothing else. */
static void complete(const struct pipeline *x)
{
    static const int ways[KINDS] = {2, 3, 1};
    for (int r = 0; r < x->stages; r++) {
        const struct order *o = &x->order[r];
        int passed[MAX_CHUNKS * MAX_MBS] = {0};
        assert_int_equal(o->mbs, x->mbs);
        assert_int_equal(o->chunks, x->chunks);
        assert_int_equal(o->split, x->kind == ZERO_BUBBLE);
        assert_int_equal(o->count, ways[x->kind] * x->mbs * x->chunks);
        for (int64_t i = 0; i < o->count; i++)
            assert_int_equal(passed[cell(x, o->item[i])]++, o->item[i].way);
    }
}

static void each_pass_comes_once_and_in_its_turn(void **state)
{
    (void)state;
    each_pipeline(complete);
}

/* Two ranks exchange messages in one order: all have the same sequences, apart from
 * those of weights. */
static void same_sequences(const struct pipeline *x)
{
    for (int way = FORWARD; way <= BACKWARD; way++)
        for (int r = 1; r < x->stages; r++) {
            const struct order *a = &x->order[0], *b = &x->order[r];
            int64_t i = 0, j = 0;
            for (;; i++, j++) {
                while (i < a->count && (int)a->item[i].way != way)
                    i++;
                while (j < b->count && (int)b->item[j].way != way)
                    j++;
                if (i == a->count || j == b->count)
                    break;
                assert_int_equal(cell(x, a->item[i]), cell(x, b->item[j]));
            }
            assert_true(i == a->count && j == b->count);
        }
}

static void ranks_agree_on_sequences(void **state)
{
    (void)state;
    each_pipeline(same_sequences);
}

/* ---- time: forward, backward and weight passes of a chunk take one each ---- */

struct clock {
    const struct pipeline *x;
    int64_t next[MAX_STAGES];
    double at[MAX_STAGES], end[DIRECTIONS][MAX_STAGES * MAX_CHUNKS][MAX_MBS];
};

/* When what the item reads is there; -1 not yet. */
static double ready(const struct clock *c, int stage, struct order_item i)
{
    int last = c->x->stages * c->x->chunks - 1;
    if (i.way == FORWARD)
        return stage == 0 ? 0 : c->end[FORWARD][stage - 1][i.mb];
    if (i.way == WEIGHT || stage == last)
        return c->end[i.way - 1][stage][i.mb];
    return c->end[BACKWARD][stage + 1][i.mb];
}

static double run(const struct pipeline *x)
{
    struct clock c = {.x = x};
    for (int i = 0; i < DIRECTIONS * MAX_STAGES * MAX_CHUNKS * MAX_MBS; i++)
        (&c.end[0][0][0])[i] = -1;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < x->stages; r++)
            while (c.next[r] < x->order[r].count) {
                struct order_item i = x->order[r].item[c.next[r]];
                int stage = i.chunk * x->stages + r;
                double start = ready(&c, stage, i);
                if (start < 0)
                    break;
                bool both = i.way == BACKWARD && !x->order[r].split;
                c.at[r] = MAX(c.at[r], start) + 1 + both;
                c.end[i.way][stage][i.mb] = c.at[r];
                c.next[r]++;
                moved = true;
            }
    }
    double end = 0;
    for (int r = 0; r < x->stages; r++) {
        if (c.next[r] < x->order[r].count)
            fail_msg("kind %d, %d ranks, %d chunks, %d microbatches: rank %d waits for "
                     "ever at %lld", x->kind, x->stages, x->chunks, x->mbs, r,
                     (long long)c.next[r]);
        end = MAX(end, c.at[r]);
    }
    return end;
}

static void ends(const struct pipeline *x)
{
    run(x);
}

static void nobody_waits_for_ever(void **state)
{
    (void)state;
    each_pipeline(ends);
}

static double bubble(enum kind kind, int stages, int chunks, int mbs)
{
    struct arena a = arena_make("test");
    struct pipeline x = pipeline_make(&a, kind, stages, chunks, mbs);
    double extra = run(&x) - 3 * chunks * mbs;
    arena_free(&a);
    return extra;
}

/* In units of a chunk's pass: 1F1B loses (p - 1)(f + b + w), v chunks the same of their
 * smaller passes, ZB-H1 (p - 1)(f + b - w). */
static void bubbles_are_those_of_the_papers(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_STAGES; p++)
        for (int mbs = 2 * p; mbs <= MAX_MBS; mbs++) {
            assert_true(bubble(PLAIN, p, 1, mbs) == 3 * (p - 1));
            assert_true(bubble(ZERO_BUBBLE, p, 1, mbs) == p - 1);
            for (int v = 2; v <= MAX_CHUNKS; v++) {
                if (mbs % p == 0)
                    assert_true(bubble(PLAIN, p, v, mbs) == 3 * (p - 1));
                assert_true(bubble(ZERO_BUBBLE, p, v, mbs) <=
                            bubble(PLAIN, p, v, mbs));
            }
        }
}

/* ---- memory: microbatches of chunks between their first and last pass ---- */

static int held_most(const struct order *o)
{
    int held = 0, most = 0;
    for (int64_t i = 0; i < o->count; i++) {
        held += o->item[i].way == FORWARD;
        most = MAX(most, held);
        held -= (int)o->item[i].way == (o->split ? WEIGHT : BACKWARD);
    }
    return most;
}

static void bounded(const struct pipeline *x)
{
    int p = x->stages, v = x->chunks, all = x->mbs * v;
    if (x->kind == FORWARD_ONLY)
        return;
    for (int r = 0; r < p; r++) {
        int behind = p - 1 - r;
        int groups = MAX(1, x->mbs / p), wide = (x->mbs + groups - 1) / groups;
        int bound = v == 1 ? behind + 1 : 2 * behind + (v - 1) * wide + 1;
        if (x->kind == ZERO_BUBBLE)     /* what the first rank holds without */
            bound = v == 1 ? p : 2 * (p - 1) + (v - 1) * wide + 1;
        assert_true(held_most(&x->order[r]) <= bound);
        assert_true(r > 0 || held_most(&x->order[r]) == MIN(bound, all));
    }
}

static void no_rank_holds_more_than_it_must(void **state)
{
    (void)state;
    each_pipeline(bounded);
}

static void one_rank_alone_is_plain(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct order o = order_1f1b(&a, 0, 1, 3), f = order_forward(&a, 3);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(o.item[i].way, i % 2 ? BACKWARD : FORWARD);
        assert_int_equal(o.item[i].mb, i / 2);
    }
    for (int i = 0; i < 3; i++)
        assert_true(f.item[i].way == FORWARD && f.item[i].mb == i);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pass_comes_once_and_in_its_turn),
        cmocka_unit_test(ranks_agree_on_sequences),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(bubbles_are_those_of_the_papers),
        cmocka_unit_test(no_rank_holds_more_than_it_must),
        cmocka_unit_test(one_rank_alone_is_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
