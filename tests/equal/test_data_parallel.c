/* test_data_parallel.c - whatever data-parallel ranks divide and whenever they talk:
 * one rank's loss, gradients and weights; the same bits whatever the policy. */
#include "equal/layouts.h"

enum { VISION = 1 << PART_VISION, PROJECTOR = 1 << PART_PROJECTOR,
       TEXT = 1 << PART_DECODER | 1 << PART_ROUTER | 1 << PART_EXPERTS };

static const struct sharding none = {0}, optimizer = {.state = true, .prefetch = 1},
    gradients = {.state = true, .each = true, .prefetch = 1},
    parameters = {true, true, true, 1};

/* Images and supervised tokens are uneven; some rows lack one or both. */
static struct layout_rows mixed(struct arena *a, int count)
{
    static const int images[] = {1, 0, 3, -1, 2, 0, -2, 1, 0, 2, 1, -3};
    REQUIRE(count <= COUNT(images));
    return layout_rows(a, count, images);
}

static void every_sharding_equals_one_rank(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 12);
    struct outcome want = layout_run(&a, &rows, &(struct trial){0});
    const struct sharding *const all[] = {&none, &optimizer, &gradients, &parameters};
    for (int dp = 2; dp <= 4; dp++)
        for (int i = 0; i < COUNT(all); i++) {
            struct arena_mark mark = arena_mark(&a);
            struct trial t = {.layout = {.world = dp}, .sharding = *all[i],
                              .lanes = i % 2};
            layout_check(&a, &rows, &t, &want);
            arena_reset(&a, mark);
        }
    arena_free(&a);
}

/* Prefetch, dropping, when to reduce, lanes, recompute: they change the plan only. */
static void policies_give_the_same_bits(void **state)
{
    (void)state;
    static const struct trial variants[] = {
        {.sharding = {true, false, false, 0}},
        {.sharding = {true, false, false, 3}, .lanes = true, .slack = 1.3},
        {.sharding = {true, true, false, 0}},
        {.sharding = {true, true, false, 1}, .lanes = true},
        {.sharding = {true, true, false, 4}, .lanes = true},
        {.sharding = {true, true, false, 2}, .keep_weights = true},
        {.sharding = {true, true, false, 1}, .weave = true, .lanes = true},
        {.sharding = {true, true, false, 1}, .recompute = "*", .lanes = true},
        {.sharding = {true, true, false, 1}, .offload = "*", .recompute = "act"},
        {.sharding = {0}, .lanes = true, .weave = true},
    };
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 8);
    struct trial first = {.layout = {.world = 4}};
    struct outcome want = layout_run(&a, &rows, &first);
    for (int i = 0; i < COUNT(variants); i++) {
        struct arena_mark mark = arena_mark(&a);
        struct trial t = variants[i];
        t.layout.world = 4;
        struct outcome is = layout_run(&a, &rows, &t);
        layout_identical(&is, &want, 0, layout_text(&a, &t));
        arena_reset(&a, mark);
    }
    arena_free(&a);
}

/* Sums of sums round otherwise, so these have bits of their own. */
static void reducing_each_microbatch_has_one_answer_too(void **state)
{
    (void)state;
    static const struct trial variants[] = {
        {.sharding = {true, false, true, 2}, .lanes = true},
        {.sharding = {true, true, true, 0}},
        {.sharding = {true, true, true, 2}, .lanes = true, .recompute = "decoder.*"},
        {.sharding = {true, true, true, 1}, .keep_weights = true, .lanes = true},
    };
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 6);
    struct outcome one = layout_run(&a, &rows, &(struct trial){0}), want;
    for (int i = 0; i < COUNT(variants); i++) {
        struct trial t = variants[i];
        t.layout.world = 3;
        struct outcome is = layout_run(&a, &rows, &t);
        if (i == 0)
            want = is;
        layout_same(&is, &one, 0, layout_text(&a, &t));
        layout_identical(&is, &want, 0, layout_text(&a, &t));
    }
    arena_free(&a);
}

static void copies_of_shards_equal_one_rank(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 8);
    struct outcome want = layout_run(&a, &rows, &(struct trial){0});
    const struct sharding *const all[] = {&none, &optimizer, &gradients, &parameters};
    for (int replicate = 2; replicate <= 4; replicate += 2)
        for (int i = 0; i < COUNT(all); i++) {
            struct arena_mark mark = arena_mark(&a);
            struct trial t = {.layout = {.world = 4, .replicate = replicate},
                              .sharding = *all[i], .lanes = true};
            layout_check(&a, &rows, &t, &want);
            arena_reset(&a, mark);
        }
    arena_free(&a);
}

static void frozen_parts_need_nothing(void **state)
{
    (void)state;
    static const unsigned frozen[] = {VISION, VISION | PROJECTOR, TEXT,
                                      1 << PART_EMBEDDINGS | 1 << PART_ROUTER};
    const struct sharding *const all[] = {&none, &optimizer, &gradients, &parameters};
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 4);
    for (int k = 0; k < COUNT(frozen); k++) {
        struct outcome want =
            layout_run(&a, &rows, &(struct trial){.frozen = frozen[k]});
        for (int i = 0; i < COUNT(all); i++) {
            struct trial t = {.layout = {.world = 2}, .sharding = *all[i],
                              .frozen = frozen[k], .lanes = true,
                              .recompute = i % 2 ? "*" : NULL};
            struct outcome is = layout_check(&a, &rows, &t, &want);
            t.frozen = 0;
            struct outcome full = layout_run(&a, &rows, &t);
            assert_true(is.bytes < full.bytes && is.steps < full.steps);
        }
    }
    arena_free(&a);
}

/* Images of ranks: (1,0) (0,1) (0,0) (2,0) (0,3), and in one microbatch only. */
static void ranks_without_images_do_not_hang(void **state)
{
    (void)state;
    static const int images[][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0},
                                    {2, 0, 0, 0}, {0, 3, 0, 0}, {0, 0, 1, 0}};
    static const unsigned frozen[] = {0, VISION, VISION | PROJECTOR};
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(images); i++)
        for (int k = 0; k < 4; k++) {
            struct arena_mark mark = arena_mark(&a);
            struct layout_rows rows = layout_rows(&a, 4, images[i]);
            struct trial t = {.layout = {.world = 2}, .sharding = parameters,
                              .frozen = k < 3 ? frozen[k] : 0, .lanes = true,
                              .recompute = k < 3 ? NULL : "*"};
            struct outcome is = layout_check(&a, &rows, &t, NULL);
            bool any = images[i][0] || images[i][1] || images[i][2];
            for (int p = 0; p < is.graph->nparam; p++)
                if (is.graph->param[p].part == PART_VISION && k % 3 == 0) {
                    bool zero = true;
                    for (int64_t j = 0; j < is.graph->param[p].count; j++)
                        zero &= is.grad[p][j] == 0;
                    assert_true(any || zero);
                }
            arena_reset(&a, mark);
        }
    arena_free(&a);
}

/* No rank has anything to learn from. */
static void nothing_supervised_is_no_error(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct layout_rows rows = layout_rows(&a, 2, (int[]){-2, -1});
    assert_true(rows.supervised == 0);
    struct trial t = {.layout = {.world = 2}, .sharding = parameters};
    struct outcome is = layout_check(&a, &rows, &t, NULL);
    assert_true(isfinite(is.grad_norm[0]));
    arena_free(&a);
}

/* Each strategy takes what it saves. */
static void dividing_saves_memory(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct layout_rows rows = mixed(&a, 4);
    const struct sharding *const all[] = {&none, &gradients, &parameters};
    int64_t bytes[COUNT(all)];
    for (int i = 0; i < COUNT(all); i++)
        bytes[i] = layout_run(&a, &rows, &(struct trial){
            .layout = {.world = 4}, .sharding = *all[i]}).bytes;
    assert_true(bytes[1] < bytes[0] && bytes[2] < bytes[1]);
    struct sharding lazy = parameters;
    lazy.prefetch = 0;
    int64_t least = layout_run(&a, &rows, &(struct trial){
        .layout = {.world = 4}, .sharding = lazy}).bytes;
    int64_t most = layout_run(&a, &rows, &(struct trial){
        .layout = {.world = 4}, .sharding = parameters, .keep_weights = true}).bytes;
    assert_true(least <= bytes[2] && bytes[2] < most);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sharding_equals_one_rank),
        cmocka_unit_test(policies_give_the_same_bits),
        cmocka_unit_test(reducing_each_microbatch_has_one_answer_too),
        cmocka_unit_test(copies_of_shards_equal_one_rank),
        cmocka_unit_test(frozen_parts_need_nothing),
        cmocka_unit_test(ranks_without_images_do_not_hang),
        cmocka_unit_test(nothing_supervised_is_no_error),
        cmocka_unit_test(dividing_saves_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
