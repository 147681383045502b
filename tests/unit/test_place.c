/* test_place.c - placement and waits of random lists: nothing overlaps, little is lost,
 * nobody waits too little or too much. */
#include "check.h"

#include "base/random.h"
#include "plan/owners.h"
#include "plan/plan.h"

/* A list of steps of random lanes; each makes a buffer, reads two older ones, and some
 * write into an older one. */
static struct plan *random_plan(struct arena *a, uint64_t seed, int steps)
{
    static struct graph graph;
    struct plan *p = NEW(a, struct plan, 1);
    p->graph = &graph;
    p->step = NEW(a, struct step, steps);
    p->buffer = NEW(a, struct buffer, steps);
    p->nstep = p->nbuffer = steps;
    for (int i = 0; i < steps; i++) {
        uint64_t r = random_bits(seed, (uint64_t)i);
        struct step *s = &p->step[i];
        memset(s, -1, sizeof *s);
        memset(s->wait, 0, sizeof s->wait);
        s->kind = STEP_GATHER;          /* in: read, out: written */
        s->lane = (enum lane)(r % LANES);
        s->out[0] = i;
        for (int k = 0; k < 2 && i > 0; k++) {
            uint64_t back = (r >> (8 + 16 * k)) % 1000;
            s->in[k] = MAX(0, i - 1 - (int)(back < 950 ? back % 8 : back % 64));
        }
        if (i > 8 && r % 7 == 0)
            s->out[1] = i - 1 - (int)((r >> 50) % 8);
        p->buffer[i] = (struct buffer){.kind = MEMORY_ACTIVATION, .name = "b",
                                       .bytes = 1 + (int64_t)((r >> 40) % 20000)};
    }
    plan_lifetimes(p);
    return p;
}

static bool overlap(const struct buffer *x, const struct buffer *y)
{
    return x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

static void nothing_overlaps(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct arena a = arena_make("test");
        struct plan *p = random_plan(&a, seed, 400);
        double slack = seed % 2 ? 1 : 1 + 0.1 * (double)seed;
        plan_place(p, 1);
        int64_t tight = p->bytes;
        plan_place(p, slack);
        assert_true((double)p->bytes <= (double)tight * slack + 1);
        assert_true(p->bytes >= p->live_bytes);
        assert_true((double)tight <= 1.35 * (double)p->live_bytes);
        for (int64_t i = 0; i < p->nbuffer; i++) {
            const struct buffer *x = &p->buffer[i];
            assert_true(x->offset >= 0 && x->offset % ALIGN == 0);
            assert_true(x->offset + x->bytes <= p->bytes);
            for (int64_t k = 0; k < i; k++) {
                const struct buffer *y = &p->buffer[k];
                bool together = x->first <= y->last && y->first <= x->last;
                assert_false(together && overlap(x, y));
            }
        }
        arena_free(&a);
    }
}

/* Lists longer than placement remembers who left a place. */
static void long_lists_too(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct arena a = arena_make("test");
        struct plan *p = random_plan(&a, 50 + seed, 6000);
        plan_place(p, 1);
        int64_t tight = p->bytes;
        plan_place(p, 1.5);
        assert_true((double)p->bytes <= (double)tight * 1.5 + 1);
        assert_true(p->bytes > tight);          /* it is used */
        for (int64_t i = 0; i < p->nbuffer; i++)
            for (int64_t k = 0; k < i; k++) {
                const struct buffer *x = &p->buffer[i], *y = &p->buffer[k];
                bool together = x->first <= y->last && y->first <= x->last;
                assert_false(together && overlap(x, y));
            }
        arena_free(&a);
    }
}

/* before[i][j]: step j is surely done when i begins, by waits and lanes alone. */
static bool *closure(struct arena *a, const struct plan *p)
{
    int64_t n = p->nstep;
    bool *before = NEW(a, bool, n * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) {
            const struct step *s = &p->step[i], *d = &p->step[j];
            bool direct = d->lane == s->lane || d->at < s->wait[d->lane];
            if (!direct)
                continue;
            before[i * n + j] = true;
            for (int64_t k = 0; k < j; k++)
                before[i * n + k] |= before[j * n + k];
        }
    return before;
}

static bool writes(const struct step *s, int64_t buffer)
{
    return s->out[0] == buffer || s->out[1] == buffer;
}

static bool touches(const struct step *s, int64_t buffer)
{
    return writes(s, buffer) || s->in[0] == buffer || s->in[1] == buffer;
}

/* Must step j be over before step i begins? */
static bool conflict(const struct plan *p, int64_t i, int64_t j)
{
    const struct step *s = &p->step[i], *d = &p->step[j];
    for (int64_t b = 0; b < i; b++) {
        if (touches(s, b) && touches(d, b) && (writes(s, b) || writes(d, b)))
            return true;
        if (touches(d, b) && overlap(&p->buffer[b], &p->buffer[i]))
            return true;                /* i takes memory that j still touched */
    }
    return false;
}

/* Every hazard is ordered, and no wait is there that the others imply. */
static void waits_are_enough_and_no_more(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct arena a = arena_make("test");
        struct plan *p = random_plan(&a, 100 + seed, 250);
        int64_t n = p->nstep;
        plan_place(p, seed % 2 ? 1.3 : 1);
        plan_waits(p);
        bool *before = closure(&a, p);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++)
                if (conflict(p, i, j) && !before[i * n + j])
                    fail_msg("step %lld may run before %lld", (long long)i,
                             (long long)j);
        for (int64_t i = 0; i < n; i++)
            for (int l = 0; l < LANES; l++) {
                int64_t wait = p->step[i].wait[l], j = -1;
                if (wait == 0)
                    continue;
                for (int64_t k = 0; k < n; k++)
                    if ((int)p->step[k].lane == l && p->step[k].at == wait - 1)
                        j = k;
                for (int64_t k = 0; k < i; k++) {       /* another way from j to i? */
                    const struct step *d = &p->step[k], *s = &p->step[i];
                    bool waited = (int)d->lane != l && s->wait[d->lane] > 0 &&
                                  d->at == s->wait[d->lane] - 1;
                    bool direct = k != j && (d->lane == s->lane || waited);
                    if (direct && before[k * n + j])
                        fail_msg("step %lld waits for %lld, which %lld implies",
                                 (long long)i, (long long)j, (long long)k);
                }
            }
        arena_free(&a);
    }
}

/* Against one entry a byte. */
static void owners_match_a_plain_array(void **state)
{
    (void)state;
    enum { BYTES = 300, TURNS = 2000 };
    struct arena a = arena_make("test");
    struct owners o = owners_make(&a);
    int plain[BYTES];
    memset(plain, -1, sizeof plain);
    for (int i = 0; i < TURNS; i++) {
        uint64_t r = random_bits(5, (uint64_t)i);
        int64_t from = (int64_t)(r % BYTES), to = from + 1 + (int64_t)(r >> 20) % 60;
        to = MIN(to, BYTES);
        owners_take(&o, from, to, i);
        for (int64_t k = from; k < to; k++)
            plain[k] = i;
        int64_t at = 0;
        for (int64_t k = 0; k < o.count; k++) {
            assert_true(o.at[k].from >= at && o.at[k].to > o.at[k].from);
            for (; at < o.at[k].from; at++)
                assert_int_equal(plain[at], -1);
            for (; at < o.at[k].to; at++)
                assert_int_equal(plain[at], o.at[k].buffer);
        }
        int64_t found = owners_find(&o, from);
        assert_true(o.at[found].from == from && o.at[found].buffer == i);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_overlaps),
        cmocka_unit_test(long_lists_too),
        cmocka_unit_test(waits_are_enough_and_no_more),
        cmocka_unit_test(owners_match_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
