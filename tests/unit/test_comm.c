/* test_comm.c - ranks as threads: every collective against sums done by hand, the same
 * bits for everyone, and what happens when one fails, hangs or says something else. */
#include "check.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "parallel/mesh.h"
#include "parallel/world.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

/* Asserts cannot be used on a rank's thread: they jump out of it. */
#define EXPECT(cond)                                                                  \
    do {                                                                              \
        if (!(cond))                                                                  \
            return fail("line %d: %s (rank %d)", __LINE__, #cond, r->rank);           \
    } while (0)
#define TRY(call)                                                                     \
    do {                                                                              \
        if (!(call))                                                                  \
            return false;                                                             \
    } while (0)

static int everyone[MAX_WORLD];

static struct comm all_of(const struct rank *r, int lane)
{
    return world_comm(r, "all", everyone, r->ranks, lane);
}

/* Scattered bits, cheap under sanitizers: everyone makes everyone's inputs. */
static uint64_t number(int rank, uint64_t round, int64_t i)
{
    uint64_t x = ((uint64_t)rank + 64 * round) << 32 ^ (uint64_t)i;
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 29) * 0xd1b54a32d192ed03;
    return x ^ x >> 32;
}

/* How many elements `from` gives to `to` in an uneven exchange; some give none. */
static int64_t given(int from, int to, uint64_t round, int64_t most)
{
    bool none = number(from, round, 900) % 4 == 0;
    return none ? 0 : (int64_t)(number(from, round, 500 + to) % (uint64_t)(most + 1));
}

/* Numbers whose sum depends on the order. */
static void fill(enum dtype d, void *to, int rank, uint64_t round, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = number(rank, round, i);
        double x = ldexp((double)(bits % 4001) - 2000, (int)(bits >> 60) - 8);
        if (d == DTYPE_F32)
            ((float *)to)[i] = (float)x;
        else if (d == DTYPE_F64)
            ((double *)to)[i] = x / 3;
        else if (d == DTYPE_I32)
            ((int32_t *)to)[i] = (int32_t)(bits % 2001) - 1000;
        else if (d == DTYPE_I64)
            ((int64_t *)to)[i] = (int64_t)(bits % 2001) - 1000 + ((int64_t)1 << 40);
        else
            ((uint16_t *)to)[i] = bf16_from_f32((float)x);
    }
}

/* to = sum or largest over ranks of from[rank], one after another, plus beta old. */
static void naive(enum dtype d, char *const *from, int ranks, int64_t at, int64_t count,
                  bool largest, float beta, void *to)
{
#define NAIVE(type, get, set)                                                         \
    for (int64_t i = 0; i < count; i++) {                                             \
        type sum = get(from[0], at + i);                                              \
        for (int k = 1; k < ranks; k++) {                                             \
            type x = get(from[k], at + i);                                            \
            sum = largest ? MAX(sum, x) : sum + x;                                    \
        }                                                                             \
        sum = beta != 0 ? sum + (type)beta * get(to, i) : sum;                        \
        set(to, i, sum);                                                              \
    }
#define GET(type) GET_##type
#define GET_float(p, i) ((const float *)(p))[i]
#define GET_double(p, i) ((const double *)(p))[i]
#define GET_int32_t(p, i) ((const int32_t *)(p))[i]
#define GET_int64_t(p, i) ((const int64_t *)(p))[i]
#define GET_bf16(p, i) bf16_to_f32(((const uint16_t *)(p))[i])
#define SET_float(p, i, x) ((float *)(p))[i] = (x)
#define SET_double(p, i, x) ((double *)(p))[i] = (x)
#define SET_int32_t(p, i, x) ((int32_t *)(p))[i] = (x)
#define SET_int64_t(p, i, x) ((int64_t *)(p))[i] = (x)
#define SET_bf16(p, i, x) ((uint16_t *)(p))[i] = bf16_from_f32(x)
    if (d == DTYPE_F32)
        NAIVE(float, GET_float, SET_float)
    else if (d == DTYPE_F64)
        NAIVE(double, GET_double, SET_double)
    else if (d == DTYPE_I32)
        NAIVE(int32_t, GET_int32_t, SET_int32_t)
    else if (d == DTYPE_I64)
        NAIVE(int64_t, GET_int64_t, SET_int64_t)
    else
        NAIVE(float, GET_bf16, SET_bf16)
}

static const enum dtype dtypes[] = {
    DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_BF16,
};

/* Of bf16 the sum in group order, in f32 and never rounded, plus beta old. */
static bool wide_sum(struct rank *r, const struct comm *c, char *const *big, int64_t n,
                     float beta)
{
    float *out = arena_room(&r->arena, sizeof *out * (size_t)n);
    float *expected = arena_room(&r->arena, sizeof *out * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        float sum = GET_bf16(big[0], c->rank * n + i);
        for (int k = 1; k < c->size; k++)
            sum += GET_bf16(big[k], c->rank * n + i);
        out[i] = beta == 0 ? NAN : 0.37f * (float)i;
        expected[i] = beta == 0 ? sum : sum + beta * out[i];
    }
    TRY(comm_reduce_wide(c, big[c->rank], beta, out, n));
    EXPECT(!memcmp(out, expected, sizeof *out * (size_t)n));
    return true;
}

static bool one_round(struct rank *r, const struct comm *c, uint64_t round)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 33, 1024, 2500};
    enum dtype d = dtypes[round % COUNT(dtypes)];
    int64_t n = sizes[number(99, round, 0) % COUNT(sizes)];
    size_t width = (size_t)dtype_bytes(d), part = width * (size_t)n;
    int size = c->size;
    char *in[MAX_WORLD], *big[MAX_WORLD];
    for (int k = 0; k < size; k++) {    /* everyone's inputs; own ones are given */
        in[k] = arena_room(&r->arena, part);
        big[k] = arena_room(&r->arena, part * (size_t)size);
        fill(d, in[k], c->member[k], round, n);
        fill(d, big[k], c->member[k], round + 1000, n * size);
    }
    char *out = arena_room(&r->arena, part * (size_t)size);
    char *expected = arena_room(&r->arena, part * (size_t)size);
    char *own = in[c->rank], *own_big = big[c->rank];

    TRY(comm_all_gather(c, d, own, out, n));
    for (int k = 0; k < size; k++)
        EXPECT(!memcmp(out + (size_t)k * part, in[k], part));
    memset(out, 0, part * (size_t)size);        /* in place */
    memcpy(out + (size_t)c->rank * part, own, part);
    TRY(comm_all_gather(c, d, out + (size_t)c->rank * part, out, n));
    for (int k = 0; k < size; k++)
        EXPECT(!memcmp(out + (size_t)k * part, in[k], part));

    float betas[] = {0, 1, 0.5f};
    float beta = betas[round % (d == DTYPE_I32 || d == DTYPE_I64 ? 2 : 3)];
    memset(out, beta == 0 ? 0xff : 0, part);    /* beta 0 must not read these NaN */
    if (beta != 0)
        fill(d, out, 77, round, n);
    memcpy(expected, out, part);
    naive(d, big, size, c->rank * n, n, false, beta, expected);
    TRY(comm_reduce_scatter(c, d, own_big, beta, out, n));
    EXPECT(!memcmp(out, expected, part));

    if (d == DTYPE_BF16)
        TRY(wide_sum(r, c, big, n, beta));

    memcpy(out, own_big, part * (size_t)size);  /* bits of the scatter, for everyone */
    TRY(comm_all_reduce(c, d, out, n * size));
    naive(d, big, size, 0, n * size, false, 0, expected);
    EXPECT(!memcmp(out, expected, part * (size_t)size));
    memcpy(out, own_big, part * (size_t)size);
    char *slot = out + (size_t)c->rank * part;
    TRY(comm_reduce_scatter(c, d, out, 0, slot, n));
    TRY(comm_all_gather(c, d, slot, out, n));
    EXPECT(!memcmp(out, expected, part * (size_t)size));

    memcpy(out, own, part);
    TRY(comm_max(c, d, out, n));
    naive(d, in, size, 0, n, true, 0, expected);
    EXPECT(!memcmp(out, expected, part));

    TRY(comm_all_to_all(c, d, own_big, out, n));
    for (int k = 0; k < size; k++)
        EXPECT(!memcmp(out + (size_t)k * part, big[k] + (size_t)c->rank * part, part));

    int64_t give[MAX_WORLD], get[MAX_WORLD], total = 0;
    for (int k = 0; k < size; k++) {            /* any counts, also none at all */
        give[k] = given(c->rank, k, round, n);
        get[k] = given(k, c->rank, round, n);
    }
    TRY(comm_all_to_all_counts(c, d, own_big, give, out, get));
    for (int k = 0; k < size; k++) {
        int64_t from = 0;
        for (int i = 0; i < c->rank; i++)
            from += given(k, i, round, n);
        EXPECT(!memcmp(out + (size_t)total * width, big[k] + (size_t)from * width,
                       width * (size_t)get[k]));
        total += get[k];
    }

    int root = (int)(round % (uint64_t)size);
    memcpy(out, own, part);
    TRY(comm_broadcast(c, d, root, out, n));
    EXPECT(!memcmp(out, in[root], part));

    int next = (c->rank + 1) % size, before = (c->rank + size - 1) % size;
    TRY(comm_exchange(c, d, next, own, before, out, n));
    EXPECT(!memcmp(out, in[before], part));
    return comm_barrier(c);
}

static bool rounds(struct rank *r, void *arg)
{
    const int *count = arg;
    struct comm c = all_of(r, 0);
    EXPECT(c.size == r->ranks && c.rank == r->rank && c.member[c.rank] == r->rank);
    for (int i = 0; i < *count; i++) {
        struct arena_mark mark = arena_mark(&r->arena);
        TRY(one_round(r, &c, (uint64_t)i));
        arena_reset(&r->arena, mark);
    }
    return comm_check(&c);
}

static void test_collectives(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 16; ranks++)
        assert_ok(world_run(ranks, 0, rounds, &(int){ranks < 5 ? 20 : 10}));
    assert_ok(world_run(MAX_WORLD, 0, rounds, &(int){1}));
}

static void test_alone(void **state)
{
    (void)state;
    int rank = 5;
    struct comm c = comm_self("tp", &rank);
    struct rank r = {.rank = 5, .ranks = 1, .arena = arena_make("test")};
    for (uint64_t i = 0; i < 50; i++)
        if (!one_round(&r, &c, i))
            fail_msg("%s", fail_message());
    assert_ok(comm_check(&c));
    arena_free(&r.arena);
}

static bool nan_wins(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 0);
    for (int who = 0; who < r->ranks; who++) {
        float x = r->rank == who ? NAN : (float)r->rank;
        TRY(comm_max(&c, DTYPE_F32, &x, 1));
        EXPECT(isnan(x));
    }
    return true;
}

static void test_max_keeps_nan(void **state)
{
    (void)state;
    assert_ok(world_run(3, 0, nan_wins, NULL));
}

/* Counts that bf16 could not hold: 64 of 608..676 whose sum is 40,840. */
static bool exact_counts(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 0);
    int64_t n = r->rank < 32 ? 608 : 668;
    n += r->rank == 63 ? 8 : 0;
    TRY(comm_all_reduce(&c, DTYPE_I64, &n, 1));
    EXPECT(n == 32 * 608 + 32 * 668 + 8 && n == 40840);
    return true;
}

static void test_exact_counts(void **state)
{
    (void)state;
    assert_ok(world_run(64, 0, exact_counts, NULL));
}

/* ---- messages ---- */

/* Both neighbours send first, several values a microbatch, of changing sizes. */
static bool pipeline(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 4);
    enum { MBS = 40 };
    static const int sizes[] = {3, 0, 700, 1};
    int32_t x[1024];
    for (int mb = 0; mb < MBS; mb++)
        for (int v = 0; v < COUNT(sizes); v++) {
            for (int i = 0; i < sizes[v]; i++)
                x[i] = 1000 * r->rank + 10 * mb + v + i;
            for (int to = r->rank - 1; to <= r->rank + 1; to += 2)
                if (to >= 0 && to < r->ranks)
                    TRY(comm_send(&c, DTYPE_I32, to, 10 * mb + v, x, sizes[v]));
        }
    for (int from = r->rank + 1; from >= r->rank - 1; from -= 2)
        for (int mb = 0; mb < MBS && from >= 0 && from < r->ranks; mb++)
            for (int v = 0; v < COUNT(sizes); v++) {
                TRY(comm_recv(&c, DTYPE_I32, from, 10 * mb + v, x, sizes[v]));
                for (int i = 0; i < sizes[v]; i++)
                    EXPECT(x[i] == 1000 * from + 10 * mb + v + i);
            }
    return true;
}

static void test_messages(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks += 3)
        assert_ok(world_run(ranks, 0, pipeline, NULL));
}

/* A reader that comes late finds as much as there is room for; then, used again and
 * again, memory does not grow. */
enum { LETTER = 4096, BURST = 64, BURSTS = 300 };

static bool flood(struct rank *r, void *arg)
{
    atomic_int *sent = arg;
    struct comm c = all_of(r, 0);
    float x[LETTER] = {0};
    if (r->rank == 1) {
        while (atomic_load(sent) < MAX_MAIL && comm_check(&c))
            usleep(1000);
        usleep(50000);
        EXPECT(atomic_load(sent) == MAX_MAIL);  /* one more has to wait */
    }
    for (int i = 0; i < MAX_MAIL + 1; i++)
        if (r->rank == 1) {
            TRY(comm_recv(&c, DTYPE_F32, 0, i, x, LETTER));
        } else {
            TRY(comm_send(&c, DTYPE_F32, 1, i, x, LETTER));
            atomic_fetch_add(sent, 1);
        }
    for (int i = 0; i < BURSTS; i++) {
        for (int k = 0; k < BURST && r->rank == 0; k++)
            TRY(comm_send(&c, DTYPE_F32, 1, k, x, LETTER));
        TRY(comm_barrier(&c));
        for (int k = 0; k < BURST && r->rank == 1; k++)
            TRY(comm_recv(&c, DTYPE_F32, 0, k, x, LETTER));
    }
    return true;
}

static void test_mail_is_bounded(void **state)
{
    (void)state;
    struct rusage before, after;
    atomic_int sent = 0;
    getrusage(RUSAGE_SELF, &before);
    assert_ok(world_run(2, 0, flood, &sent));
    getrusage(RUSAGE_SELF, &after);
    long all = (long)sizeof(float) * LETTER * BURST * BURSTS;
    long bytes = (after.ru_maxrss - before.ru_maxrss) * 1024;
    if (bytes > all / 2)                /* a tenth, and what sanitizers add */
        fail_msg("%ld bytes for %ld of mail", bytes, all);
}

/* ---- lanes ---- */

struct lanes { struct rank *r; struct mesh *mesh; bool ok[3]; struct failure why[3]; };

/* Each lane has its own group and takes its time; no lane may wait for another. */
static bool lane_work(struct lanes *l, int lane)
{
    struct rank *r = l->r;
    static const struct { const char *name; unsigned along; } group[] = {
        {"tp", ON(AXIS_TP)}, {"dp", ON_DP}, {"dp", ON_DP},      /* twice the same */
    };
    int member[MAX_WORLD];
    int n = view_group(&l->mesh->dense, r->rank, group[lane].along, member);
    struct comm c = world_comm(r, group[lane].name, member, n, lane);
    for (int i = 0; i < 60; i++) {
        float x[50], expected = 0;
        for (int k = 0; k < 50; k++)
            x[k] = (float)(r->rank + i + 1000 * lane);
        for (int k = 0; k < n; k++)
            expected += (float)(member[k] + i + 1000 * lane);
        TRY(comm_all_reduce(&c, DTYPE_F32, x, 50));
        EXPECT(x[0] == expected && x[49] == expected);
        if (number(r->rank, (uint64_t)lane, i) % 8 == 0)
            usleep(200);
    }
    return true;
}

static void lane_main(void *arg, int lane)
{
    struct lanes *l = arg;
    l->ok[lane] = lane_work(l, lane) && log_rank(l->r->rank) == l->r->rank;
    fail_take(&l->why[lane]);
}

static bool lanes(struct rank *r, void *arg)
{
    struct lanes l = {.r = r, .mesh = arg};
    EXPECT(log_rank(r->rank) == r->rank);
    workers_join(workers_start(3, lane_main, &l));
    for (int i = 0; i < 3; i++)
        if (!l.ok[i])
            return fail_raise(&l.why[i]);
    return true;
}

static void test_lanes(void **state)
{
    (void)state;
    struct mesh m;
    assert_ok(mesh_make(&(struct layout){.world = 8, .tp = 2}, NULL, &m));
    assert_ok(world_run(8, 0, lanes, &m));
    assert_int_equal(log_rank(-1), -1);
}

/* ---- failure ---- */

struct seen { struct failure why[MAX_WORLD]; };         /* by each rank */

static bool note(struct rank *r, struct seen *s, bool ok)
{
    if (!ok)
        fail_take(&s->why[r->rank]);
    return ok;
}

/* Rank 2 fails on its own; the others are in a collective, a receive, a full send. */
static bool one_fails(struct rank *r, void *arg)
{
    struct comm c = all_of(r, 0), pair = world_comm(r, "pair", everyone, r->ranks, 1);
    float x[8] = {0};
    if (r->rank == 2) {
        usleep(200000);                 /* the others are waiting by then */
        fail("data: sample 7 is broken");
        return fail_kind(FAULT_DATA);
    }
    bool ok = true;
    if (r->rank == 3)
        ok = comm_recv(&pair, DTYPE_F32, 1, 9, x, 8);
    else if (r->rank == 4)
        for (int i = 0; ok; i++)
            ok = comm_send(&pair, DTYPE_F32, 0, i, x, 8);
    else
        ok = comm_all_reduce(&c, DTYPE_F32, x, 8);
    bool noted = note(r, arg, ok);
    EXPECT(!comm_check(&c) && fail_fault() == FAULT_RANK);
    EXPECT(strstr(fail_message(), "rank 2 was lost (data: sample 7 is broken)"));
    EXPECT(!comm_barrier(&pair) && !comm_exchange(&pair, DTYPE_F32, 0, x, 0, x + 1, 1));
    return noted;
}

static void test_a_lost_rank_wakes_all(void **state)
{
    (void)state;
    struct seen s = {0};
    double start = clock_seconds();
    assert_fails(world_run(6, 0, one_fails, &s), "rank 2: data: sample 7 is broken");
    assert_int_equal(fail_fault(), FAULT_DATA);
    assert_true(clock_seconds() - start < 10);
    for (int i = 0; i < 6; i++) {
        static const char *const what[] = {
            "comm: all_reduce f32 x 8 of 'all' (ranks 0 1 2 3 4 5): rank 2 was lost",
            NULL, NULL, "comm: recv f32 x 8 tag 9 of 'pair' (ranks 0 1 2 3 4 5): rank",
            "comm: send f32 x 8 tag ", NULL,
        };
        if (i == 2)
            continue;
        assert_int_equal(s.why[i].fault, FAULT_RANK);
        assert_non_null(strstr(s.why[i].message, what[i] ? what[i] : what[0]));
    }
}

static bool one_leaves(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 0);
    return r->rank == 1 || comm_barrier(&c);
}

static bool one_leaves_mail(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 0);
    float x = 0;
    if (r->rank == 0)
        return comm_send(&c, DTYPE_F32, 1, 5, &x, 1);
    return r->rank == 1 || comm_recv(&c, DTYPE_F32, 1, 5, &x, 1);
}

static bool one_forgets(struct rank *r, void *arg)
{
    (void)arg;
    struct comm c = all_of(r, 0);
    float x = 0;
    return r->rank == 0 ? comm_send(&c, DTYPE_F32, 1, 5, &x, 1) && comm_barrier(&c)
                        : comm_barrier(&c);
}

static void test_a_rank_that_ends_early(void **state)
{
    (void)state;
    assert_fails(world_run(3, 0, one_leaves, NULL),
                 "comm: barrier of 'all' (ranks 0 1 2): rank 1 has ended without it");
    assert_int_equal(fail_fault(), FAULT_RANK);
    assert_fails(world_run(3, 0, one_leaves_mail, NULL),
                 "recv f32 x 1 tag 5 of 'all' (ranks 0 1 2): rank 1 has ended without");
    assert_fails(world_run(2, 0, one_forgets, NULL),
                 "rank 1: comm: rank 1 never took send f32 x 1 tag 5 of 'all' from");
    assert_int_equal(fail_fault(), FAULT_BUG);
}

struct hang { bool receives; struct seen seen; };

static bool one_hangs(struct rank *r, void *arg)
{
    struct comm c = all_of(r, 0);
    struct hang *h = arg;
    float x = 0;
    if (r->rank == 1) {
        while (comm_check(&c))
            usleep(1000);
        return note(r, &h->seen, false);
    }
    return note(r, &h->seen, h->receives ? comm_recv(&c, DTYPE_F32, 1, 3, &x, 1)
                                         : comm_all_reduce(&c, DTYPE_F32, &x, 1));
}

static void test_a_rank_that_hangs(void **state)
{
    (void)state;
    double start = clock_seconds();
    struct hang h = {.receives = false};
    assert_fails(world_run(2, 0.2, one_hangs, &h),
                 "rank 0: comm: all_reduce f32 x 1 of 'all' (ranks 0 1): rank 0 waited "
                 "0.2 s for rank 1");
    assert_int_equal(fail_fault(), FAULT_RANK);
    const char *why = h.seen.why[0].message;        /* who finds out says it as it is */
    assert_int_equal(strncmp(why, "comm: all_reduce", 16), 0);
    assert_null(strstr(why, "was lost"));
    why = h.seen.why[1].message;
    assert_non_null(strstr(why, "comm: stopped: rank 1 was lost (comm: all_reduce"));
    h.receives = true;
    assert_fails(world_run(2, 0.2, one_hangs, &h),
                 "rank 0: comm: recv f32 x 1 tag 3 of 'all' (ranks 0 1): rank 0 waited "
                 "0.2 s for rank 1");
    assert_true(clock_seconds() - start >= 0.4);
    assert_true(clock_seconds() - start < 20);
}

enum mismatch {
    OTHER_OP, OTHER_COUNT, OTHER_DTYPE, OTHER_ROOT, OTHER_COUNTS, OTHER_TAG, OTHER_SIZE,
    OTHER_KIND
};

static bool mismatched(struct rank *r, void *arg)
{
    const enum mismatch *kind = arg;
    struct comm c = all_of(r, 0);
    bool odd = r->rank == 1;
    float x[16] = {0}, y[16] = {0};
    int64_t counts[3] = {1, 1, 1}, more[3] = {1, 1, 2};
    switch (*kind) {
    case OTHER_OP:
        return odd ? comm_all_gather(&c, DTYPE_F32, x, y, 4)
                   : comm_reduce_scatter(&c, DTYPE_F32, x, 0, y, 4);
    case OTHER_COUNT:
        return comm_all_reduce(&c, DTYPE_F32, x, odd ? 5 : 4);
    case OTHER_DTYPE:
        return comm_all_reduce(&c, odd ? DTYPE_I32 : DTYPE_F32, x, 4);
    case OTHER_ROOT:
        return comm_broadcast(&c, DTYPE_F32, odd, x, 4);
    case OTHER_COUNTS:
        return comm_all_to_all_counts(&c, DTYPE_F32, x, odd ? more : counts, y, counts);
    case OTHER_TAG: case OTHER_SIZE:
        if (r->rank == 0)
            return comm_send(&c, DTYPE_F32, 1, 7, x, 3) && comm_barrier(&c);
        return (!odd || comm_recv(&c, DTYPE_F32, 0, *kind == OTHER_TAG ? 8 : 7, x,
                                  *kind == OTHER_TAG ? 3 : 2)) && comm_barrier(&c);
    case OTHER_KIND:
        if (r->rank == 0)
            return comm_send(&c, DTYPE_F32, 1, 0, x, 3) && comm_barrier(&c);
        return (!odd || comm_exchange(&c, DTYPE_F32, 2, x, 0, y, 3)) &&
               comm_barrier(&c);
    }
    return true;
}

static void test_other_calls_are_named(void **state)
{
    (void)state;
    static const char *const message[] = {
        [OTHER_OP] = "members of 'all' call different things: rank 0 reduce_scatter "
                     "f32 x 4, rank 1 all_gather f32 x 4, rank 2 reduce_scatter f32",
        [OTHER_COUNT] = "rank 0 all_reduce f32 x 4, rank 1 all_reduce f32 x 5, rank 2",
        [OTHER_DTYPE] = "rank 0 all_reduce f32 x 4, rank 1 all_reduce i32 x 4, rank 2",
        [OTHER_ROOT] = "rank 0 broadcast f32 x 4 from member 0, rank 1 broadcast f32 x "
                       "4 from member 1",
        [OTHER_COUNTS] = "all_to_all_counts of 'all': rank 1 sends 2 to rank 2, which "
                         "expects 1",
        [OTHER_TAG] = "'all': rank 1 calls recv f32 x 3 tag 8, rank 0 had called send "
                      "f32 x 3 tag 7",
        [OTHER_SIZE] = "rank 1 calls recv f32 x 2 tag 7, rank 0 had called send f32 x 3"
                       " tag 7",
        [OTHER_KIND] = "rank 1 calls exchange f32 x 3, rank 0 had called send f32 x 3",
    };
    for (int k = 0; k < COUNT(message); k++) {
        assert_fails(world_run(3, 0, mismatched, &(enum mismatch){(enum mismatch)k}),
                     message[k]);
        assert_int_equal(fail_fault(), FAULT_BUG);
    }
}

static bool nothing(struct rank *r, void *arg)
{
    (void)r, (void)arg;
    return true;
}

/* Round k: member k fails, and from round 3 on member 5 too; the first one is heard. */
static bool agree(struct rank *r, void *arg)
{
    struct comm c = all_of(r, 0);
    (void)arg;
    for (int k = 0; k < r->ranks; k++) {
        bool ok = r->rank != k && (k < 3 || r->rank != 5);
        EXPECT(comm_agree(&c, true));
        if (!ok) {
            fail("round %d: member %d has no room", k, r->rank);
            fail_kind(FAULT_CHECKPOINT);
        }
        EXPECT(!comm_agree(&c, ok));
        EXPECT(fail_fault() == FAULT_CHECKPOINT);
        char says[64];
        snprintf(says, sizeof says, "round %d: member %d has no room", k, k);
        EXPECT(!strcmp(fail_message(), says));
    }
    EXPECT(comm_agree(&c, true));
    return true;
}

static bool nobody_agrees(struct rank *r, void *arg)
{
    struct comm c = all_of(r, 0);
    (void)arg;
    if (r->rank == 1)
        return fail("gone") || fail_kind(FAULT_DATA);
    EXPECT(!comm_agree(&c, true));
    EXPECT(fail_fault() == FAULT_RANK);
    return false;
}

/* Who writes for longer than the others' patience is late, not lost. */
static bool agree_late(struct rank *r, void *arg)
{
    struct comm c = all_of(r, 0);
    (void)arg;
    if (r->rank == 1)
        usleep(500000);
    EXPECT(comm_agree(&c, true));
    return true;
}

static void test_agree(void **state)
{
    (void)state;
    const int me = 0;
    const struct comm self = comm_self("alone", &me);
    assert_ok(world_run(6, 0, agree, NULL));
    assert_ok(world_run(3, 0.1, agree_late, NULL));
    assert_ok(comm_agree(&self, true));
    assert_fails(comm_agree(&self, fail("no room")), "no room");
    assert_fails(world_run(3, 0, nobody_agrees, NULL), "rank 1: gone");
}

static void test_world_size(void **state)
{
    (void)state;
    assert_ok(world_run(1, 0, nothing, NULL));
    assert_fails(world_run(0, 0, nothing, NULL), "0 ranks on this machine, expected 1");
    assert_fails(world_run(MAX_WORLD + 1, 0, nothing, NULL), "expected 1 to 64");
    assert_int_equal(fail_fault(), FAULT_USAGE);
}

/* ---- dry ---- */

static void is_bytes(struct link_bytes b, double inside, double across)
{
    if (fabs(b.inside - inside) > 1e-6 || fabs(b.across - across) > 1e-6)
        fail_msg("%g and %g bytes, expected %g and %g", b.inside, b.across, inside,
                 across);
}

static void test_dry(void **state)
{
    (void)state;
    int member[8];
    for (int i = 0; i < 8; i++)
        member[i] = 2 * i;                      /* 4 of the group on a node of 8 */
    struct traffic t = {.node = 8};
    struct comm c = comm_dry(&t, "dp", member, 8, 5);
    int64_t in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {10, 20, 30, 40, 50, 60, 70, 80};
    assert_ok(comm_all_gather(&c, DTYPE_F32, NULL, NULL, 100));
    assert_ok(comm_all_gather(&c, DTYPE_BF16, NULL, NULL, 100));
    assert_ok(comm_reduce_scatter(&c, DTYPE_F32, NULL, 1, NULL, 100));
    assert_ok(comm_reduce_wide(&c, NULL, 1, NULL, 100));
    assert_ok(comm_all_reduce(&c, DTYPE_F32, NULL, 800));
    assert_ok(comm_all_to_all(&c, DTYPE_F32, NULL, NULL, 100));
    assert_ok(comm_all_to_all_counts(&c, DTYPE_F32, NULL, in, NULL, out));
    assert_ok(comm_broadcast(&c, DTYPE_F32, 0, NULL, 100));
    assert_ok(comm_send(&c, DTYPE_F32, 4, 0, NULL, 100));
    assert_ok(comm_send(&c, DTYPE_F32, 3, 0, NULL, 100));
    assert_ok(comm_recv(&c, DTYPE_F32, 3, 0, NULL, 100));
    assert_ok(comm_exchange(&c, DTYPE_F32, 6, NULL, 4, NULL, 100));
    assert_ok(comm_barrier(&c));
    assert_ok(comm_check(&c));
    assert_int_equal(t.calls[COMM_ALL_GATHER], 2);
    assert_int_equal(t.calls[COMM_BARRIER], 1);
    /* 7 pieces arrive; the 4 from outside once a node, shared by its 4 members */
    is_bytes(t.bytes[COMM_ALL_GATHER], 6 * 400 + 6 * 200, 400 + 200);
    is_bytes(t.bytes[COMM_REDUCE_SCATTER], 6 * 400, 400);
    is_bytes(t.bytes[COMM_REDUCE_WIDE], 6 * 200, 200);
    is_bytes(t.bytes[COMM_ALL_REDUCE], 2 * 6 * 400, 2 * 400);
    is_bytes(t.bytes[COMM_ALL_TO_ALL], 3 * 400, 4 * 400);
    is_bytes(t.bytes[COMM_ALL_TO_ALL_COUNTS], 4 * (50 + 70 + 80), 4 * 100);
    is_bytes(t.bytes[COMM_BROADCAST], 300, 100);
    is_bytes(t.bytes[COMM_SEND], 400, 400);
    is_bytes(t.bytes[COMM_RECV], 0, 0);
    is_bytes(t.bytes[COMM_EXCHANGE], 400, 0);

    struct traffic one = {.node = 0};           /* one node: nothing crosses */
    c = comm_dry(&one, "dp", member, 8, 5);
    assert_ok(comm_all_reduce(&c, DTYPE_F32, NULL, 800));
    is_bytes(one.bytes[COMM_ALL_REDUCE], 2 * 7 * 400, 0);
    c = comm_dry(&one, "self", member, 1, 0);
    assert_ok(comm_all_gather(&c, DTYPE_F32, NULL, NULL, 800));
    is_bytes(one.bytes[COMM_ALL_GATHER], 0, 0);
}

int main(void)
{
    for (int i = 0; i < MAX_WORLD; i++)
        everyone[i] = i;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mail_is_bounded),         /* first: it measures memory */
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_max_keeps_nan),
        cmocka_unit_test(test_exact_counts),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_a_lost_rank_wakes_all),
        cmocka_unit_test(test_a_rank_that_ends_early),
        cmocka_unit_test(test_a_rank_that_hangs),
        cmocka_unit_test(test_other_calls_are_named),
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_world_size),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
