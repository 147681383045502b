/* test_shard.c - boxes, flat shards and moves between layouts: against filling every
 * storage element by element. */
#include "check.h"

#include "base/clock.h"
#include "base/random.h"
#include "parallel/shard.h"

static uint64_t drawn;
static int64_t draw(int64_t least, int64_t most)
{
    return least + (int64_t)(random_bits(5, drawn++) % (uint64_t)(most - least + 1));
}

/* ---- boxes ---- */

static void test_box_by_hand(void **state)
{
    (void)state;
    struct mesh m;
    assert_ok(mesh_make(&(struct layout){.world = 8, .tp = 2, .ep = 4}, NULL, &m));
    /* 8 experts over ep 4: rank 5 is ep 1 of edp 1 */
    struct box b = box_of(&m.expert, 5, 3, (int64_t[]){8, 2, 3},
                          (unsigned[]){ON(AXIS_EP), 0, 0});
    assert_int_equal(b.from[0], 2);
    assert_int_equal(b.size[0], 2);
    assert_int_equal(box_count(&b), 12);
    assert_int_equal(box_row(&b), 12);          /* whole experts lie together */
    assert_int_equal(box_global(&b, 7), 12 + 7);
    assert_int_equal(box_local(&b, 11), -1);
    /* columns over tp 2: rank 5 has the second half of each row */
    b = box_of(&m.dense, 5, 2, (int64_t[]){3, 4}, (unsigned[]){0, ON(AXIS_TP)});
    static const int64_t global[] = {2, 3, 6, 7, 10, 11};
    for (int i = 0; i < 6; i++)
        assert_int_equal(box_global(&b, i), global[i]);
    assert_int_equal(box_row(&b), 2);
    /* gate | up, written as [2, 4]: half of each, never half of the whole */
    b = box_of(&m.dense, 5, 2, (int64_t[]){2, 4}, (unsigned[]){0, ON(AXIS_TP)});
    assert_int_equal(box_global(&b, 0), 2);
    assert_int_equal(box_global(&b, 2), 6);
    /* a number: whole everywhere */
    b = box_of(&m.dense, 5, 0, NULL, NULL);
    assert_int_equal(box_count(&b), 1);
    assert_int_equal(box_global(&b, 0), 0);
    assert_int_equal(box_local(&b, 0), 0);
}

/* ---- flat shards ---- */

static void test_flat(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        int64_t count = draw(0, 300), atom = draw(1, 20);
        int shards = (int)draw(1, 9);
        struct flat f = flat_make(count, shards, atom);
        assert_int_equal(f.each % atom, 0);
        assert_true(flat_padded(&f) >= count);
        assert_true(f.each == 0 || (f.each - atom) * shards < count);   /* least */
        int64_t offset = count ? draw(0, count) : 0, size = draw(0, count - offset);
        int64_t seen = 0;                       /* parts follow each other, no gap */
        for (int s = 0; s < shards; s++) {
            struct stretch p = flat_part(&f, s, offset, size);
            if (p.from == p.to)
                continue;
            assert_int_equal(p.from, seen);
            seen = p.to;
            assert_int_equal((offset + p.from) / f.each, s);
            assert_int_equal((offset + p.to - 1) / f.each, s);
        }
        assert_int_equal(seen, size);
    }
    /* 3, 1000 and 7 elements in one unit, over 2 and 3 ranks */
    struct flat f = flat_make(1010, 3, 1);
    assert_int_equal(f.each, 337);
    struct stretch p = flat_part(&f, 1, 3, 1000);
    assert_int_equal(p.from, 334);
    assert_int_equal(p.to, 671);
    p = flat_part(&f, 0, 1003, 7);
    assert_int_equal(p.from, p.to);
}

/* ---- a unit of tensors over a whole mesh ---- */

enum { TENSORS = 3, ROOM = 1 << 14 };
struct unit_case {
    int tensors, ndim[TENSORS];
    int64_t dim[TENSORS][BOX_DIMS];
    unsigned on[TENSORS][BOX_DIMS];
    bool experts;
    unsigned split;
};

struct stored { struct shard *at; int64_t count; };     /* of one tensor, all ranks */

/* Who stores what of tensor t: boxes of a rank one after another, cut over `along`. */
static struct stored store(struct arena *a, const struct mesh *m,
                           const struct unit_case *u, int t, unsigned along,
                           int64_t atom)
{
    const struct view *v = mesh_view(m, u->experts);
    struct stored s = {NEW(a, struct shard, m->layout.world), 0};
    for (int r = 0; r < m->layout.world; r++) {
        int64_t offset = 0, count = 0;
        struct box own = {.ndim = 0};
        for (int k = 0; k < u->tensors; k++) {
            struct box b = box_of(v, r, u->ndim[k], u->dim[k], u->on[k]);
            if (k < t)
                offset += box_count(&b);
            if (k == t)
                own = b;
            count += box_count(&b);
        }
        struct flat f = flat_make(count, view_group_size(v, along), atom);
        int at = view_group_index(v, r, along);
        struct stretch part = flat_part(&f, at, offset, box_count(&own));
        s.at[s.count++] = (struct shard){r, own, part,
                                         MAX(0, offset + part.from - at * f.each)};
    }
    return s;
}

static void random_unit(struct unit_case *u)
{
    memset(u, 0, sizeof *u);
    u->experts = draw(0, 1);
    u->split = u->experts ? ON(AXIS_EP) | ON(AXIS_ETP) : ON(AXIS_TP);
    u->tensors = (int)draw(1, TENSORS);
    for (int t = 0; t < u->tensors; t++) {
        u->ndim[t] = (int)draw(1, 4);
        for (int d = 0; d < u->ndim[t]; d++)
            u->dim[t][d] = draw(1, 4);
        int d = (int)draw(0, u->ndim[t] - 1);
        if (u->experts) {                       /* dim 0 over ep, another over etp */
            u->on[t][0] = ON(AXIS_EP);
            u->on[t][d] |= ON(AXIS_ETP);
            u->dim[t][0] *= 4;
        } else {
            u->on[t][d] = ON(AXIS_TP);
        }
        u->dim[t][d] *= 4;
    }
}

static struct mesh random_mesh(void)
{
    for (;;) {
        static const int size[] = {1, 2, 4};
        struct layout l = {
            .dp = (int)draw(1, 4), .cp = (int)draw(1, 2), .tp = size[draw(0, 2)],
            .ep = size[draw(0, 2)], .etp = size[draw(0, 2)],
        };
        l.replicate = (int)draw(1, l.dp);
        l.world = l.dp * l.cp * l.tp;
        struct mesh m;
        if (mesh_make(&l, NULL, &m))
            return m;
    }
}

static int64_t unique_of(const struct box *whole)
{
    int64_t n = 1;
    for (int d = 0; d < whole->ndim; d++)
        n *= whole->dim[d];
    return n;
}

/* Global element g is written as g + 1; every storage is filled, moved and compared. */
static void test_any_layout_into_any_other(void **state)
{
    (void)state;
    int64_t moved = 0, runs = 0;
    static int32_t storage[256][ROOM], fresh[ROOM];
    for (int i = 0; i < 1500; i++) {
        struct arena a = arena_make("case");
        struct unit_case u;
        random_unit(&u);
        struct mesh from = random_mesh(), to = random_mesh();
        unsigned inside = draw(0, 1) ? ~0u : ~ON(AXIS_REPLICATE);
        unsigned along = draw(0, 3) ? holder_axes(u.split) & inside : 0;
        int64_t atom = draw(0, 1) ? 1 : 16;
        int t = (int)draw(0, u.tensors - 1);
        struct stored old = store(&a, &from, &u, t, along, atom);
        struct stored new = store(&a, &to, &u, t, holder_axes(u.split), draw(1, 8));
        for (int64_t k = 0; k < old.count; k++) {
            const struct shard *s = &old.at[k];
            assert_true(s->offset + s->part.to - s->part.from < ROOM);
            memset(storage[s->rank], 0, sizeof storage[0]);
            for (int64_t e = s->part.from; e < s->part.to; e++)
                storage[s->rank][s->offset + e - s->part.from] =
                    (int32_t)(box_global(&s->box, e) + 1);
        }
        int64_t held = 0;
        for (int64_t k = 0; k < new.count; k++) {
            const struct shard *s = &new.at[k];
            struct copy *copy;
            int64_t n, at = s->offset;
            assert_ok(shard_overlap(&a, old.at, old.count, s, &copy, &n));
            memset(fresh, 0, sizeof fresh);
            for (int64_t c = 0; c < n; c++) {
                assert_int_equal(copy[c].to, at);       /* in order, nothing twice */
                assert_int_equal(old.at[copy[c].shard].rank, copy[c].rank);
                assert_true(copy[c].length > 0);
                memcpy(fresh + copy[c].to, storage[copy[c].rank] + copy[c].from,
                       sizeof *fresh * (size_t)copy[c].length);
                at += copy[c].length;
            }
            for (int64_t e = s->part.from; e < s->part.to; e++)
                assert_int_equal(fresh[s->offset + e - s->part.from],
                                 box_global(&s->box, e) + 1);
            assert_int_equal(at - s->offset, s->part.to - s->part.from);
            held += s->part.to - s->part.from;
            runs += n;
        }
        assert_int_equal(held, unique_of(&new.at[0].box));      /* nothing held twice */
        moved += held;
        arena_free(&a);
    }
    assert_true(moved > 100000 && runs > 3000);
}

static void test_a_missing_part_is_named(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct box whole = {1, {10}, {0}, {10}};
    struct shard old[] = {{0, whole, {0, 4}, 0}, {1, whole, {5, 10}, 0}};
    struct shard new = {3, whole, {2, 8}, 0};
    struct copy *copy;
    int64_t n;
    assert_fails(shard_overlap(&a, old, 2, &new, &copy, &n),
                 "element 4 of the tensor, wanted by rank 3, is in none of 2 shards");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_fails(shard_overlap(&a, NULL, 0, &new, &copy, &n), "element 2");
    old[1].part.from = 4;
    assert_ok(shard_overlap(&a, old, 2, &new, &copy, &n));
    assert_int_equal(n, 2);
    new.part = (struct stretch){5, 5};
    assert_ok(shard_overlap(&a, NULL, 0, &new, &copy, &n));
    assert_int_equal(n, 0);
    arena_free(&a);
}

/* Old shards that overlap in any way: whatever is taken is right. */
static void test_overlapping_shards(void **state)
{
    (void)state;
    enum { OLD = 12, SIZE = 40 };
    struct box whole = {2, {5, 8}, {0, 0}, {5, 8}};
    int covered = 0;
    for (int i = 0; i < 3000; i++) {
        struct arena a = arena_make("case");
        struct shard old[OLD];
        bool has[SIZE] = {false};
        for (int k = 0; k < OLD; k++) {
            int64_t from = draw(0, SIZE), most = from + draw(1, 30);
            int64_t to = draw(from, MIN(SIZE, most));
            old[k] = (struct shard){k, whole, {from, to}, draw(0, 9)};
            for (int64_t e = from; e < to; e++)
                has[e] = true;
        }
        int64_t from = draw(0, SIZE), to = draw(from, SIZE), n, at = 0, gap = from;
        struct shard new = {0, whole, {from, to}, 0};
        struct copy *copy;
        while (gap < to && has[gap])
            gap++;
        bool ok = shard_overlap(&a, old, OLD, &new, &copy, &n);
        assert_int_equal(ok, gap == to);
        for (int64_t c = 0; ok && c < n; c++) {
            const struct shard *s = &old[copy[c].shard];
            int64_t first = copy[c].from - s->offset + s->part.from;
            assert_int_equal(copy[c].to, at);
            assert_int_equal(first, from + at);
            assert_true(first >= s->part.from && first + copy[c].length <= s->part.to);
            at += copy[c].length;
        }
        if (ok)
            assert_int_equal(at, to - from);
        covered += ok && n > 2;
        arena_free(&a);
    }
    assert_true(covered > 100);
}

/* Same boxes are one copy a shard, however they are cut; a large tensor stays cheap. */
static void test_few_copies(void **state)
{
    (void)state;
    enum { SHARDS = 512 };
    struct arena a = arena_make("test");
    struct box b = {2, {4096, 4096}, {0, 1024}, {4096, 1024}};
    struct flat f = flat_make(box_count(&b), SHARDS, 1);
    struct shard *old = NEW(&a, struct shard, SHARDS);
    for (int i = 0; i < SHARDS; i++)
        old[i] = (struct shard){i, b, flat_part(&f, i, 0, f.count), 0};
    struct shard new = {0, b, {0, f.count}, 0};
    struct copy *copy;
    int64_t n;
    assert_ok(shard_overlap(&a, old, SHARDS, &new, &copy, &n));
    assert_int_equal(n, SHARDS);
    /* other columns: at least one copy a row, and not many more */
    struct box other = {2, {4096, 4096}, {0, 1024}, {4096, 512}};
    struct shard wide = {0, other, {0, box_count(&other)}, 0};
    double start = clock_seconds();
    assert_ok(shard_overlap(&a, old, SHARDS, &wide, &copy, &n));
    assert_in_range(n, 4096, 4096 + SHARDS);
    assert_true(clock_seconds() - start < 1);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_box_by_hand),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_any_layout_into_any_other),
        cmocka_unit_test(test_a_missing_part_is_named),
        cmocka_unit_test(test_overlapping_shards),
        cmocka_unit_test(test_few_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
