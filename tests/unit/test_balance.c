/* test_balance.c - images are shared out whole, within room, alike on every rank, and
 * nearly as evenly as can be; every feature finds the rank and place of its token. */
#include "check.h"

#include "base/random.h"
#include "train/balance.h"

#include <math.h>

enum { MOST = 64 };

static uint64_t drawn;                  /* numbers so far */

static int draw(int least, int most)
{
    return least + (int)(random_bits(3, drawn++) % (uint64_t)(most - least + 1));
}

/* Images of `rows` rows, up to `images` each, of 4 to 4 * `size` patches, as far as
 * they find room; as costly as attention makes them. */
static struct balance some(struct arena *a, const struct capacity *room, int rows,
                           int cp, int images, int size)
{
    struct balance b = {.rows = rows, .cp = cp};
    b.image = NEW(a, struct balance_image, rows * images + 1);
    for (int r = 0; r < rows; r++) {
        int64_t from = 0;
        for (int i = draw(0, images); i > 0; i--) {
            int64_t p = 4 * draw(1, size);
            if (from + p > room->patches)
                continue;
            b.image[b.count++] = (struct balance_image){
                .row = r, .from = from, .patches = p,
                .cost = (double)p * (1000 + (double)p)};
            from += p;
        }
    }
    return b;
}

static void check_fits(const struct balance *b, const struct capacity *room)
{
    int64_t patches[MOST] = {0}, images[MOST] = {0};
    double cost[MOST] = {0}, most = 0, sum = 0;
    for (int i = 0; i < b->count; i++) {
        const struct balance_image *x = &b->image[i];
        assert_in_range(x->encoder, 0, b->rows * b->cp - 1);
        assert_true(x->at == patches[x->encoder]);      /* one after another */
        patches[x->encoder] += x->patches;
        images[x->encoder]++;
        cost[x->encoder] += x->cost;
        sum += x->cost;
        if (b->crowded)
            assert_int_equal(x->encoder, x->row * b->cp);
    }
    for (int e = 0; e < b->rows * b->cp; e++) {
        assert_true(patches[e] <= room->patches && images[e] <= room->images);
        most = MAX(most, cost[e]);
    }
    assert_true(fabs(b->mean * b->rows * b->cp - sum) <= 1e-9 * sum);
    assert_true(fabs(b->most - most) <= 1e-9 * most);
    assert_true(b->most <= b->unbalanced * (1 + 1e-9));
}

/* Rows that are packed full: everything is encoded once, within room, or at home. */
static void every_image_once_within_room(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    int home = 0, shared = 0;
    for (int k = 0; k < 2000; k++) {
        struct arena_mark mark = arena_mark(&a);
        struct capacity room = {.patches = 64, .images = draw(20, 22)};
        struct balance b = some(&a, &room, draw(1, 8), draw(1, 3), 20, draw(1, 14));
        balance_assign(&a, &room, &b);
        check_fits(&b, &room);
        home += b.crowded;
        shared += !b.crowded;
        arena_reset(&a, mark);
    }
    print_message("  %d shared out, %d had no room\n", shared, home);
    assert_true(home > 3 && shared > 1000);
    arena_free(&a);
}

/* The least that the fullest of `n` can have, by trying everything. */
static double best(const struct balance *b, int i, double *load, int n)
{
    double least = INFINITY;
    if (i == b->count) {
        least = 0;
        for (int e = 0; e < n; e++)
            least = MAX(least, load[e]);
        return least;
    }
    for (int e = 0; e < n; e++) {
        load[e] += b->image[i].cost;
        least = MIN(least, best(b, i + 1, load, n));
        load[e] -= b->image[i].cost;
        if (load[e] == 0)
            break;                      /* the next empty one is no other */
    }
    return least;
}

/* Graham, 1969: longest first is at most 4/3 - 1/(3n) of the best, where room does not
 * bind. */
static void nearly_the_best(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct capacity room = {.patches = 1 << 20, .images = MOST};
    double worst = 0;
    for (int k = 0; k < 300; k++) {
        struct arena_mark mark = arena_mark(&a);
        struct balance b = some(&a, &room, draw(1, 3), draw(1, 2), 3, 40);
        int n = b.rows * b.cp;
        double load[MOST] = {0}, least = best(&b, 0, load, n);
        balance_assign(&a, &room, &b);
        assert_false(b.crowded);
        check_fits(&b, &room);
        if (b.count > 0)
            worst = MAX(worst, b.most / least);
        assert_true(b.most <= least * (4.0 / 3 - 1.0 / (3 * n)) * (1 + 1e-12));
        arena_reset(&a, mark);
    }
    print_message("  at most %.3f times the best\n", worst);
    struct balance_image bad[5] = {{.cost = 3}, {.cost = 3}, {.cost = 2}, {.cost = 2},
                                   {.cost = 2}};        /* 7 of 6: the bound itself */
    struct balance b = {.rows = 2, .cp = 1, .count = 5, .image = bad};
    balance_assign(&a, &room, &b);
    assert_true(b.most == 7);
    arena_free(&a);
}

/* Equal images of equal rows do not move; of equally loaded ranks the lowest gets more.
 */
static void ties_stay_at_home_or_go_low(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct capacity room = {.patches = 64, .images = 4};
    struct balance_image even[6] = {{.row = 0}, {.row = 0}, {.row = 1}, {.row = 1},
                                    {.row = 2}, {.row = 2}};
    struct balance_image lone[3] = {{.row = 2}, {.row = 2}, {.row = 2}};
    const int at_home[] = {0, 1, 2, 3, 4, 5}, low[] = {4, 5, 0};
    for (int i = 0; i < 6; i++)
        even[i].patches = 8, even[i].cost = 1;
    for (int i = 0; i < 3; i++)
        lone[i].patches = 8, lone[i].cost = 1;
    struct balance b = {.rows = 3, .cp = 2, .count = 6, .image = even};
    balance_assign(&a, &room, &b);
    for (int i = 0; i < 6; i++)
        assert_int_equal(even[i].encoder, at_home[i]);
    b = (struct balance){.rows = 3, .cp = 2, .count = 3, .image = lone};
    balance_assign(&a, &room, &b);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lone[i].encoder, low[i]);
    arena_free(&a);
}

static void no_images_no_work(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct capacity room = {.patches = 64, .images = 4};
    struct balance b = {.rows = 4, .cp = 2};
    balance_assign(&a, &room, &b);
    assert_true(!b.crowded && b.mean == 0 && b.most == 0 && b.unbalanced == 0);
    arena_free(&a);
}

/* Ragged rows of a real distribution of sizes: a few large images among many small ones
 * that came to eight ranks as they were packed.  Without balance the fullest rank has
 * far more than its share, with it hardly more. */
static void uneven_images_become_even(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct capacity room = {.patches = 4096, .images = 256};
    struct balance_sum sum = {0};
    for (int step = 0; step < 50; step++) {
        struct balance b = {.rows = 8, .cp = 1};
        b.image = NEW(&a, struct balance_image, 8 * 256);
        for (int r = 0; r < 8; r++) {
            int64_t used = 0, fill = draw(0, 4096);     /* some rows are mostly text */
            for (;;) {
                int64_t p = draw(0, 9) == 0 ? 4 * draw(128, 256) : 4 * draw(16, 64);
                if (used + p > fill)
                    break;
                b.image[b.count++] = (struct balance_image){
                    .row = r, .from = used, .patches = p,
                    .cost = (double)p * (6600 + (double)p)};
                used += p;
            }
        }
        balance_assign(&a, &room, &b);
        check_fits(&b, &room);
        balance_add(&sum, &b);
    }
    print_message("  fullest over mean: %.3f, without balance %.3f; %d at home\n",
                  sum.most / sum.mean, sum.unbalanced / sum.mean, (int)sum.crowded);
    assert_true(sum.unbalanced / sum.mean > 1.5);
    assert_true(sum.most / sum.mean < 1.15);
    arena_free(&a);
}

/* ---- whose place is it ---- */

/* places_owner is the inverse of places_of_rank. */
static void owners_are_of_places(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const int T = 96;
    for (int cp = 1; cp <= 4; cp++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            struct layout l = {.world = cp * tp, .cp = cp, .tp = tp};
            struct mesh mesh;
            if (T % (2 * cp * tp))
                continue;
            assert_ok(mesh_make(&l, NULL, &mesh));
            bool found[96] = {false};
            for (int rank = 0; rank < cp * tp; rank++) {
                struct graph g = graph_make(&a);
                g.mesh = &mesh;
                g.rank = rank;
                struct places p = places_of_rank(&g, T);
                for (int64_t i = 0; i < places_count(&p); i++) {
                    int64_t at = i < p.count[0] ? p.from[0] + i
                                                : p.from[1] + i - p.count[0];
                    struct owner o = places_owner(cp, tp, T, at);
                    assert_int_equal(o.cp * tp + o.tp, rank);
                    assert_int_equal(o.local, i);
                    found[at] = true;
                }
            }
            for (int at = 0; at < T; at++)
                assert_true(found[at]);
        }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_image_once_within_room),
        cmocka_unit_test(nearly_the_best),
        cmocka_unit_test(ties_stay_at_home_or_go_low),
        cmocka_unit_test(no_images_no_work),
        cmocka_unit_test(uneven_images_become_even),
        cmocka_unit_test(owners_are_of_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
