/* test_gradient_dtype.c - weight gradients that travel as bf16: to the bit what
 * rounding each rank's part gives, where parts are known; else within what it may do.
 *
 * Data-parallel ranks do not meet before their gradients do, so one rank that has only
 * another one's rows has its part, to the bit. */
#include "equal/layouts.h"

enum { ROWS = 4 };

static const int images[ROWS] = {1, 2, 0, 3};

static float rounded(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

/* The gradient that one rank has of rows first, first + step, ... of all. */
static float **part_of(struct arena *a, const struct layout_rows *all, int first,
                       int step)
{
    struct layout_rows some = *all;
    some.row = NEW(a, struct row, ROWS);
    some.count = 0;
    for (int i = first; i < all->count; i += step)
        some.row[some.count++] = all->row[i];
    struct outcome out = layout_run(a, &some, &(struct trial){0});
    return out.grad;
}

/* ---- what ranks make of one number, each with its part of it ---- */

static float exact(float x)
{
    return x;
}

/* Shards: parts summed once. */
static float scattered(const float *x, float (*wire)(float))
{
    return wire(x[0]) + wire(x[1]);
}

/* Whole everywhere: the sum comes back, rounded. */
static float reduced(const float *x, float (*wire)(float))
{
    return wire(wire(x[0]) + wire(x[1]));
}

/* After every microbatch, added up in f32. */
static float scattered_each(const float *x, float (*wire)(float))
{
    return wire(x[2]) + wire(x[3]) + (wire(x[0]) + wire(x[1]));
}

/* Shards in each copy (ranks 0 1, 2 3), then over copies and back. */
static float copied(const float *x, float (*wire)(float))
{
    return wire(wire(wire(x[0]) + wire(x[1])) + wire(wire(x[2]) + wire(x[3])));
}

static const struct law {
    const char *name;
    struct trial trial;
    int parts;                          /* rows i, i + parts, ... are one */
    float (*sum)(const float *part, float (*wire)(float x));
} laws[] = {
    {"whole", {.layout = {.world = 2}}, 2, reduced},
    {"shards", {.layout = {.world = 2},
                .sharding = {.state = true, .weights = true, .prefetch = 1},
                .lanes = true}, 2, scattered},
    {"each", {.layout = {.world = 2}, .weave = true,
              .sharding = {.state = true, .each = true, .prefetch = 1}}, 4,
     scattered_each},
    {"copies", {.layout = {.world = 4, .replicate = 2},
                .sharding = {.state = true, .prefetch = 1}}, 4, copied},
};

static bool routes(const struct param *p)
{
    return p->part == PART_ROUTER;
}

static void ranks_round_once(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(laws); k++) {
        struct arena a = arena_make("law");
        const struct law *l = &laws[k];
        struct layout_rows rows = layout_rows(&a, ROWS, images);
        struct trial narrow = l->trial;
        narrow.wire = DTYPE_BF16;
        struct outcome f32 = layout_run(&a, &rows, &l->trial);
        struct outcome bf16 = layout_run(&a, &rows, &narrow);
        float **part[ROWS];
        for (int i = 0; i < l->parts; i++)
            part[i] = part_of(&a, &rows, i, l->parts);
        int64_t differ = 0, count = 0;
        for (int64_t p = 0; p < f32.graph->nparam; p++) {
            const struct param *x = &f32.graph->param[p];
            for (int64_t i = 0; i < x->count; i++, count++) {
                float of[ROWS];
                for (int r = 0; r < l->parts; r++)
                    of[r] = part[r][p][i];
                float wide = l->sum(of, exact);
                float want = routes(x) ? wide : l->sum(of, rounded);
                if (f32.grad[p][i] != wide || bf16.grad[p][i] != want)
                    fail_msg("%s: %s: %.9g and %.9g, expected %.9g and as bf16 %.9g",
                             l->name, x->name, (double)f32.grad[p][i],
                             (double)bf16.grad[p][i], (double)wide, (double)want);
                differ += want != wide;
            }
        }
        print_message("  %s: %lld of %lld numbers differ from f32\n", l->name,
                      (long long)differ, (long long)count);
        assert_true(differ > count / 4 && bf16.loss[0] == f32.loss[0]);
        arena_free(&a);
    }
}

/* Where ranks share rows their parts are not known one by one.  Each number is off by
 * at most u = 2^-8 of the sizes of its parts, for each time it travels; so a tensor by
 * about u of its norm, unless parts cancel.  4 u are allowed here. */
static void other_layouts_stay_near(void **state)
{
    (void)state;
    static const struct sharding shards = {.state = true, .weights = true,
                                           .prefetch = 1};
    const struct trial trial[] = {
        {.layout = {.world = 2, .tp = 2}},
        {.layout = {.world = 2, .ep = 2}, .sharding = shards},
        {.layout = {.world = 4, .pp = 2}, .sharding = shards, .zero_bubble = true},
        {.layout = {.world = 4, .tp = 2, .ep = 4}, .sharding = shards, .lanes = true},
    };
    struct arena a = arena_make("near");
    struct layout_rows rows = layout_rows(&a, ROWS, images);
    for (int k = 0; k < COUNT(trial); k++) {
        struct trial narrow = trial[k];
        narrow.wire = DTYPE_BF16;
        struct outcome f32 = layout_run(&a, &rows, &trial[k]);
        struct outcome bf16 = layout_run(&a, &rows, &narrow);
        double worst = 0;
        for (int64_t p = 0; p < f32.graph->nparam; p++) {
            const struct param *x = &f32.graph->param[p];
            double gap = layout_gap(bf16.grad[p], f32.grad[p], x->count), size = 0;
            for (int64_t i = 0; i < x->count; i++)
                size += (double)f32.grad[p][i] * (double)f32.grad[p][i];
            if (routes(x))
                assert_true(gap == 0);
            if (sqrt(size) > 1e-6 * f32.grad_norm[0])   /* else it is rounding alone */
                worst = fmax(worst, gap);
        }
        print_message("  %s: %.1e\n", layout_text(&a, &trial[k]), worst);
        assert_true(worst > 0 && worst < 0x1p-6);
        assert_true(bf16.loss[0] == f32.loss[0]);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_round_once),
        cmocka_unit_test(other_layouts_stay_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
