/* mix.c - weights to a period of turns, positions to samples. */
#include "data/rows/mix.h"

#include "base/log.h"
#include "base/random.h"

#include <math.h>

enum { PERIOD = 1 << 20, PARTS = 1 << 10 };

struct lot {                            /* what the mix knows of one part */
    int64_t live;                       /* samples on this side of the hold-out */
    int64_t turns;                      /* of a period */
    int64_t first_id;
    uint64_t key;
};

struct turn {
    int32_t part;
    int32_t before;                     /* the part's turns earlier in the period */
};

struct mix {
    int count;
    struct mix_part *part;
    struct lot *lot;
    bool shuffle, held;
    int hold_out;
    int64_t period;                     /* sum of all turns */
    struct turn *turn;                  /* [period] */
    int64_t epoch_samples;
};

/* ---- weights to whole numbers ---- */

/* Are all shares whole numbers of turns, 1 or more, in a period of this length? */
static bool period_fits(const struct mix *m, double sum, int64_t period)
{
    for (int i = 0; i < m->count; i++) {
        if (!m->lot[i].live)
            continue;
        double turns = m->part[i].weight / sum * (double)period, whole = round(turns);
        if (whole < 1 || fabs(turns - whole) > 1e-7)
            return false;
    }
    return true;
}

/* Largest remainder: whole numbers that add up to the period. */
static void turns_round(struct mix *m, double sum)
{
    int64_t left = m->period;
    for (int i = 0; i < m->count; i++) {
        double share = m->lot[i].live ? m->part[i].weight / sum * (double)m->period : 0;
        m->lot[i].turns = (int64_t)share;
        left -= m->lot[i].turns;
    }
    for (; left > 0; left--) {
        int most = -1;
        double lack = -INFINITY;
        for (int i = 0; i < m->count; i++) {
            double share = m->part[i].weight / sum * (double)m->period;
            if (m->lot[i].live && share - (double)m->lot[i].turns > lack) {
                lack = share - (double)m->lot[i].turns;
                most = i;
            }
        }
        m->lot[most].turns++;
    }
}

static bool turns_choose(struct mix *m)
{
    double sum = 0;
    for (int i = 0; i < m->count; i++)
        sum += m->lot[i].live ? m->part[i].weight : 0;
    m->period = 1;
    while (m->period < PERIOD && !period_fits(m, sum, m->period))
        m->period++;
    turns_round(m, sum);
    for (int i = 0; i < m->count; i++)
        if (m->lot[i].live && !m->lot[i].turns)
            return fail("data: the weight of %s is %g of %g, expected one sample in %d "
                        "or more", m->part[i].name, m->part[i].weight, sum, PERIOD);
    return true;
}

/* ---- whole numbers to turns ---- */

/* Part i's turn j may not come before slot j / share and must come before slot
 * (j + 1) / share: then the part is always less than one sample from its share.  Some
 * order meets all windows, for the shares add up to 1 (Baruah et al., "Proportionate
 * progress", 1996), and with unit turns serving the one that is due first finds it. */
static void turns_place(struct arena *a, struct mix *m)
{
    m->turn = NEW(a, struct turn, m->period);
    struct arena work = arena_make("turns");
    int64_t *done = NEW(&work, int64_t, m->count), *due = NEW(&work, int64_t, m->count);
    for (int i = 0; i < m->count; i++)
        if (m->lot[i].turns)
            due[i] = (m->period + m->lot[i].turns - 1) / m->lot[i].turns;
    for (int64_t slot = 0; slot < m->period; slot++) {
        int next = -1;
        for (int i = 0; i < m->count; i++) {
            int64_t turns = m->lot[i].turns;
            bool open = done[i] < turns && done[i] * m->period < (slot + 1) * turns;
            if (open && (next < 0 || due[i] < due[next]))
                next = i;
        }
        REQUIRE(next >= 0 && due[next] > slot);
        m->turn[slot] = (struct turn){next, (int32_t)done[next]};
        int64_t turns = m->lot[next].turns;
        done[next]++;
        due[next] = ((done[next] + 1) * m->period + turns - 1) / turns;
    }
    arena_free(&work);
}

static int64_t epoch_end(const struct mix *m)
{
    int largest = 0;
    for (int i = 1; i < m->count; i++)
        if (m->lot[i].live > m->lot[largest].live)
            largest = i;
    int64_t last = m->lot[largest].live - 1, turns = m->lot[largest].turns;
    int64_t slot = 0;
    while (m->turn[slot].part != largest || m->turn[slot].before != last % turns)
        slot++;
    return last / turns * m->period + slot + 1;
}

/* ---- the parts ---- */

static bool part_check(const struct mix *m, int i)
{
    const struct mix_part *p = &m->part[i];
    if (!(p->weight > 0) || !isfinite(p->weight)) {
        fail("data: the weight of %s is %g, expected a number above 0", p->name,
             p->weight);
        return fail_kind(FAULT_USAGE);
    }
    for (int k = 0; k < i && m->hold_out; k++)
        if (sources_overlap(m->part[k].source, p->source)) {
            fail("data: %s and %s have files in common, so that a sample held out in "
                 "one could be trained on in the other; name the files in one source, "
                 "or set data.hold_out=0", m->part[k].name, p->name);
            return fail_kind(FAULT_USAGE);
        }
    for (int k = 0; k < i; k++)
        if (source_hash(m->part[k].source) == source_hash(p->source))
            log_warn("data", "%s and %s hold the same %lld sample(s); both are used, "
                             "in "
                     "different orders", m->part[k].name, p->name,
                     (long long)source_count(p->source));
    return true;
}

static void lot_fill(struct mix *m, int i, uint64_t seed)
{
    struct arena a = arena_make("key");
    int64_t all = source_count(m->part[i].source);
    int64_t back = m->hold_out ? all / m->hold_out : 0;
    struct lot *l = &m->lot[i];
    l->live = m->held ? back : all - back;
    /* By place in the list, so that data may move and twins are shuffled apart. */
    l->key = random_key(seed, arena_text(&a, "mix %d", i));
    if (i)
        l->first_id = l[-1].first_id + source_count(m->part[i - 1].source);
    if (!l->live)
        log_warn("data",
                 m->held ? "%s: %lld sample(s), too few to hold out one in %d"
                         : "%s: %lld sample(s), all held out, one in %d",
                 m->part[i].name, (long long)all, m->hold_out);
    arena_free(&a);
}

bool mix_make(struct arena *a, const struct mix_part *part, int count, uint64_t seed,
              bool shuffle, int hold_out, bool held, struct mix **out)
{
    if (count < 1 || count > PARTS || hold_out < 0 || hold_out == 1 ||
        (held && !hold_out)) {
        fail("data: %d source(s), hold_out %d; expected 1 to %d source(s) and "
             "hold_out 2 "
             "or more%s", count, hold_out, PARTS, held ? "" : ", or 0 for none");
        return fail_kind(FAULT_USAGE);
    }
    struct mix *m = NEW(a, struct mix, 1);
    m->count = count;
    m->part = NEW(a, struct mix_part, count);
    m->lot = NEW(a, struct lot, count);
    m->shuffle = shuffle;
    m->hold_out = hold_out;
    m->held = held;
    memcpy(m->part, part, sizeof *part * (size_t)count);
    int64_t live = 0;
    for (int i = 0; i < count; i++) {
        m->part[i].name = arena_text(a, "%s", part[i].name);
        if (!part_check(m, i))
            return false;
        lot_fill(m, i, seed);
        live += m->lot[i].live;
    }
    if (!live) {
        fail("data: no source has the %d sample(s) that hold_out needs to hold one "
             "back",
             hold_out);
        return fail_kind(FAULT_USAGE);
    }
    if (!turns_choose(m))
        return fail_kind(FAULT_USAGE);
    turns_place(a, m);
    m->epoch_samples = epoch_end(m);
    *out = m;
    return true;
}

/* The i-th sample of this side: held are those at hold_out - 1, 2 hold_out - 1, ... */
static int64_t side_index(const struct mix *m, int64_t i)
{
    if (!m->hold_out)
        return i;
    return m->held ? (i + 1) * m->hold_out - 1 : i + i / (m->hold_out - 1);
}

struct mix_place mix_at(const struct mix *m, int64_t position)
{
    REQUIRE(position >= 0);
    struct turn t = m->turn[position % m->period];
    const struct lot *l = &m->lot[t.part];
    int64_t served = position / m->period * l->turns + t.before;
    int64_t epoch = served / l->live, i = served % l->live;
    if (m->shuffle)
        i = (int64_t)random_permute(random_bits(l->key, (uint64_t)epoch),
                                    (uint64_t)l->live, (uint64_t)i);
    return (struct mix_place){t.part, side_index(m, i), epoch};
}

int64_t mix_epoch_samples(const struct mix *m)
{
    return m->epoch_samples;
}

int64_t mix_id(const struct mix *m, struct mix_place place)
{
    return m->lot[place.part].first_id + place.index;
}

const struct mix_part *mix_part(const struct mix *m, int part)
{
    REQUIRE(part >= 0 && part < m->count);
    return &m->part[part];
}
