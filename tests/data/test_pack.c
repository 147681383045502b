/* test_pack.c - rows are what their samples say, and the packer leaves little empty. */
#include "check.h"

#include "base/random.h"
#include "data/rows/pack.h"

enum { IMG = 5, PAD = 0, VALUES = 3 };

struct grid { int h, w; };

static struct encoded sample_make(struct arena *a, const char *ids, const char *scored,
                                  int nimage, const struct grid *grid)
{
    /* ids: 'i' image token, anything else its own code; scored: '1' where scored */
    struct encoded e = {.name = "s", .tokens = (int)strlen(ids), .nimage = nimage};
    e.input = NEW(a, int32_t, e.tokens);
    e.scored = NEW(a, bool, e.tokens);
    for (int t = 0; t < e.tokens; t++) {
        e.input[t] = ids[t] == 'i' ? IMG : ids[t];
        e.scored[t] = scored && scored[t] == '1';
    }
    e.image = NEW(a, struct patches, nimage);
    for (int k = 0; k < nimage; k++) {
        int p = grid[k].h * grid[k].w;
        e.image[k] = (struct patches){grid[k].h, grid[k].w, VALUES,
                                      NEW(a, float, p * VALUES)};
        for (int i = 0; i < p * VALUES; i++)
            e.image[k].pixels[i] = (float)(1000 * (k + 1) + i);
        e.patches += p;
    }
    return e;
}

static const struct row_shape shape = {
    .tokens = 32, .patches = 64, .segments = 4, .images = 6, .values = VALUES,
    .merge = 2, .pad = PAD, .image_token = IMG,
};

static void check_axes(const int32_t *position, int tokens, const int (*expected)[3])
{
    for (int t = 0; t < tokens; t++)
        for (int axis = 0; axis < 3; axis++)
            if (position[3 * t + axis] != expected[t][axis])
                fail_msg("token %d axis %d: %d, expected %d", t, axis,
                         position[3 * t + axis], expected[t][axis]);
}

/* The worked example of the model's specification: two images with text around. */
static void positions_of_the_specification(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct encoded e = sample_make(&a, "TTTiiiiiiTTiiiiTT", NULL, 2,
                                   (const struct grid[]){{4, 6}, {4, 4}});
    int32_t position[17 * 3];
    assert_true(sample_positions(&shape, &e, position));
    check_axes(position, 17, (const int[][3]){
        {0, 0, 0}, {1, 1, 1}, {2, 2, 2},
        {3, 3, 3}, {3, 3, 4}, {3, 3, 5}, {3, 4, 3}, {3, 4, 4}, {3, 4, 5},
        {6, 6, 6}, {7, 7, 7},
        {8, 8, 8}, {8, 8, 9}, {8, 9, 8}, {8, 9, 9},
        {10, 10, 10}, {11, 11, 11}});
    arena_free(&a);
}

/* Two images without text between them are still two images. */
static void images_back_to_back(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct encoded e = sample_make(&a, "iiiiiiiiiiT", NULL, 2,
                                   (const struct grid[]){{4, 4}, {4, 6}});
    int32_t position[11 * 3];
    assert_true(sample_positions(&shape, &e, position));
    check_axes(position, 11, (const int[][3]){
        {0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1},
        {2, 2, 2}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2}, {2, 3, 3}, {2, 3, 4},
        {5, 5, 5}});
    arena_free(&a);
}

static void image_tokens_and_images_must_agree(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    int32_t position[32 * 3];
    const struct {
        const char *ids;
        int nimage;
        struct grid grid[2];
        const char *says;
    } bad[] = {
        {"TiiiiiT", 1, {{4, 4}, {0, 0}},
         "5 image tokens in the text, but its 1 image make 4"},
        {"TiiiT", 1, {{4, 4}, {0, 0}},
         "3 image tokens in the text, but its 1 image make 4"},
        {"TiT", 0, {{0, 0}}, "1 image token in the text, but its 0 images make 0"},
        {"TT", 1, {{2, 2}}, "0 image tokens in the text, but its 1 image make 1"},
        {"iiTiiii", 2, {{4, 4}, {2, 4}}, "image 1 makes 2 x 2 = 4 tokens, but text "
                                         "follows its first 2"},
        {"iiiii", 2, {{2, 2}, {2, 8}}, NULL},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        struct encoded e =
            sample_make(&a, bad[i].ids, NULL, bad[i].nimage, bad[i].grid);
        bool ok = sample_positions(&shape, &e, position);
        assert_int_equal(ok, !bad[i].says);
        if (!ok && !strstr(fail_message(), bad[i].says))
            fail_msg("message '%s' does not say '%s'", fail_message(), bad[i].says);
    }
    arena_free(&a);
}

/* Three samples, every array against values worked out by hand. */
static void a_row_by_hand(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct encoded e[3] = {
        sample_make(&a, "AiBC", "0011", 1, (const struct grid[]){{2, 2}}),
        sample_make(&a, "DEF", "110", 0, NULL),
        sample_make(&a, "GiiHi", "00011", 2, (const struct grid[]){{2, 4}, {2, 2}}),
    };
    e[0].id = 70, e[0].position = 7, e[0].part = 1, e[0].name = "first";
    e[1].mock = true, e[2].shrunk = true, e[1].cut = true, e[1].lost = 4;
    const struct encoded *in[] = {&e[0], &e[1], &e[2]};
    struct row_shape s = shape;
    s.tokens = 15, s.patches = 24;
    struct row r;
    row_fill(&a, &s, in, 3, &r);

    assert_int_equal(r.live, 12);
    const int32_t input[] = {'A', IMG, 'B', 'C', 'D', 'E', 'F', 'G', IMG, IMG, 'H', IMG,
                             PAD, PAD, PAD};
    assert_memory_equal(r.input, input, sizeof input);
    /* No target across a border (C before D), none that is an image token; an image
     * token may have one (B and H), and is then booked as supervised. */
    const int32_t target[] = {-1, 'B', 'C', -1, 'E', -1, -1, -1, -1, 'H', -1, -1,
                              -1, -1, -1};
    assert_memory_equal(r.target, target, sizeof target);
    const int32_t segment[] = {0, 4, 7, 12, 12};
    assert_memory_equal(r.segment, segment, sizeof segment);
    const int32_t image[] = {0, 4, 12, 16, 16, 16, 16};
    assert_memory_equal(r.image, image, sizeof image);
    const int32_t feature[] = {-1, 0, -1, -1, -1, -1, -1, -1, 1, 2, -1, 3, -1, -1, -1};
    assert_memory_equal(r.feature, feature, sizeof feature);
    const int32_t feature_token[] = {1, 8, 9, 11, -1, -1};
    assert_memory_equal(r.feature_token, feature_token, sizeof feature_token);
    const int32_t patch[24][4] = {
        {0, 0, 2, 2}, {0, 1, 2, 2}, {1, 0, 2, 2}, {1, 1, 2, 2},
        {0, 0, 2, 4}, {0, 1, 2, 4}, {1, 0, 2, 4}, {1, 1, 2, 4},
        {0, 2, 2, 4}, {0, 3, 2, 4}, {1, 2, 2, 4}, {1, 3, 2, 4},
        {0, 0, 2, 2}, {0, 1, 2, 2}, {1, 0, 2, 2}, {1, 1, 2, 2},
        {0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1},
        {0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1}};
    assert_memory_equal(r.patch, patch, sizeof patch);
    check_axes(r.position, 15, (const int[][3]){
        {0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3},
        {0, 0, 0}, {1, 1, 1}, {2, 2, 2},
        {0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {3, 3, 3}, {4, 4, 4},
        {0, 0, 0}, {0, 0, 0}, {0, 0, 0}});
    for (int i = 0; i < 24 * VALUES; i++) {
        float want = i < 4 * VALUES ? (float)(1000 + i)
                   : i < 12 * VALUES ? (float)(1000 + i - 4 * VALUES)
                   : i < 16 * VALUES ? (float)(2000 + i - 12 * VALUES) : 0.0f;
        assert_true(r.pixels[i] == want);
    }
    assert_int_equal(r.nsample, 3);
    assert_string_equal(r.sample[0].name, "first");
    assert_int_equal(r.sample[0].id, 70);
    assert_int_equal(r.sample[0].position, 7);
    assert_int_equal(r.sample[0].part, 1);
    assert_int_equal(r.sample[2].tokens, 5);
    assert_int_equal(r.sample[2].images, 2);
    const struct ledger books = {
        .slots = 15, .supervised = 4, .context = 6, .image = 2, .padding = 3,
        .patch_slots = 24, .patches = 16, .patch_padding = 8, .samples = 3, .images = 3,
        .mock = 1, .lost = 4, .shrunk = 1, .cut = 1, .attention = 10 + 6 + 15,
        .attention_image = 16 + 64 + 16,
    };
    assert_memory_equal(&r.ledger, &books, sizeof books);
    assert_true(ledger_check(&r.ledger));
    for (int i = 0; i < 3; i++) {
        static const int targets[] = {2, 1, 1};
        assert_int_equal(sample_targets(&s, &e[i]), targets[i]);
    }
    arena_free(&a);
}

/* A sample's positions and targets do not depend on its neighbours. */
static void neighbours_change_nothing(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct encoded e[2] = {
        sample_make(&a, "TTTTTiiiiTTT", "000000000111", 1,
                    (const struct grid[]){{4, 4}}),
        sample_make(&a, "iiTT", "0011", 1, (const struct grid[]){{2, 4}}),
    };
    const struct encoded *both[] = {&e[0], &e[1]}, *alone[] = {&e[1]};
    struct row packed, single;
    row_fill(&a, &shape, both, 2, &packed);
    row_fill(&a, &shape, alone, 1, &single);
    assert_memory_equal(packed.position + 3 * 12, single.position, 4 * 3 * 4);
    assert_memory_equal(packed.target + 12, single.target, 4 * 4);
    e[0].input[11] = 'X';
    struct row changed;
    row_fill(&a, &shape, both, 2, &changed);
    assert_memory_equal(packed.target + 11, changed.target + 11, 5 * 4);
    arena_free(&a);
}

static int below(uint64_t *counter, int n)
{
    return (int)(random_uniform(17, (*counter)++) * n);
}

static struct encoded sample_random(struct arena *a, uint64_t *counter)
{
    char ids[256], scored[256];
    struct grid grid[3];
    int nimage = below(counter, 4), n = 0;
    for (int k = 0; k < nimage; k++) {
        for (int i = below(counter, 4); i > 0; i--)
            ids[n++] = 'T';
        grid[k].h = 2 * (1 + below(counter, 3));
        grid[k].w = 2 * (1 + below(counter, 3));
        for (int i = grid[k].h * grid[k].w / 4; i > 0; i--)
            ids[n++] = 'i';
    }
    for (int i = 1 + below(counter, 20); i > 0; i--)
        ids[n++] = 'T';
    ids[n] = scored[n] = 0;
    for (int t = 0; t < n; t++)
        scored[t] = below(counter, 2) ? '1' : '0';
    return sample_make(a, ids, scored, nimage, grid);
}

/* Thousands of random rows: laws that need no second implementation of row_fill. */
static void laws_of_random_rows(void **state)
{
    (void)state;
    struct row_shape s = {.tokens = 160, .patches = 480, .segments = 6, .images = 14,
                          .values = VALUES, .merge = 2, .pad = PAD, .image_token = IMG};
    uint64_t counter = 0;
    for (int trial = 0; trial < 3000; trial++) {
        struct arena a = arena_make("test");
        struct encoded e[4];
        const struct encoded *in[4];
        int n = below(&counter, 5), tokens = 0, patches = 0, images = 0;
        for (int i = 0; i < n; i++) {
            in[i] = &e[i];
            e[i] = sample_random(&a, &counter);
            tokens += e[i].tokens, patches += e[i].patches, images += e[i].nimage;
        }
        struct row r;
        row_fill(&a, &s, in, n, &r);
        assert_true(ledger_check(&r.ledger));
        assert_int_equal(r.live, tokens);
        assert_int_equal(r.ledger.patches, patches);
        assert_int_equal(r.ledger.images, images);
        assert_int_equal(r.ledger.samples, n);
        int found = 0, targets = 0;
        for (int t = 0; t < s.tokens; t++) {
            assert_int_equal(r.feature[t] >= 0, t < tokens && r.input[t] == IMG);
            if (r.feature[t] >= 0) {
                assert_int_equal(r.feature[t], found++);
                assert_int_equal(r.feature_token[r.feature[t]], t);
            }
            if (r.target[t] >= 0) {
                targets++;
                assert_int_equal(r.target[t], r.input[t + 1]);
            }
        }
        for (int f = found; f < s.patches / 4; f++)
            assert_int_equal(r.feature_token[f], -1);
        assert_int_equal(found, patches / 4);
        assert_int_equal(targets, r.ledger.supervised);
        for (int i = 0; i < s.segments; i++)
            assert_int_equal(r.segment[i + 1] - r.segment[i], i < n ? e[i].tokens : 0);
        for (int i = 0; i < n; i++)
            assert_int_equal(r.target[r.segment[i + 1] - 1], -1);
        double pixels = 0, in_pixels = 0;
        for (int i = 0; i < s.patches * VALUES; i++)
            pixels += (double)r.pixels[i];
        for (int i = 0; i < n; i++)
            for (int k = 0; k < e[i].nimage; k++) {
                const struct patches *p = &e[i].image[k];
                for (int j = 0; j < p->grid_h * p->grid_w * VALUES; j++)
                    in_pixels += (double)p->pixels[j];
            }
        assert_true(pixels == in_pixels);
        arena_free(&a);
    }
}

/* ---- choosing ---- */

struct item { int tokens, patches, images; };

/* Offers items[0..count) in order and flushes; checks the capacities of every row, that
 * each item lands exactly once, and that progress never stops.  Returns the share of
 * token places in use; with `full_rows`, only of rows made before the flush. */
static double pack_all(const struct row_shape *s, int window, const struct item *item,
                       int count, bool full_rows)
{
    struct arena a = arena_make("test");
    struct packer *p = packer_make(&a, s, window);
    int64_t *ticket = NEW(&a, int64_t, s->segments);
    bool *seen = NEW(&a, bool, count);
    int next = 0, landed = 0, rows = 0, used = 0;
    double share = 0;
    while (landed < count) {
        int64_t oldest = -1;
        while (next < count && packer_offer(p, next, item[next].tokens,
                                            item[next].patches, item[next].images))
            next++;
        for (int i = 0; i < count && oldest < 0; i++)
            if (!seen[i])
                oldest = i;
        int n = packer_take(p, next == count, ticket, s->segments);
        assert_true(n > 0 && n <= s->segments);
        assert_int_equal(ticket[0], oldest);
        int tokens = 0, patches = 0, images = 0;
        for (int i = 0; i < n; i++) {
            assert_true(ticket[i] < next && (!i || ticket[i] > ticket[i - 1]));
            assert_false(seen[ticket[i]]);
            seen[ticket[i]] = true;
            tokens += item[ticket[i]].tokens;
            patches += item[ticket[i]].patches;
            images += item[ticket[i]].images;
        }
        assert_true(tokens <= s->tokens && patches <= s->patches);
        assert_true(images <= s->images);
        assert_true(packer_waiting(p) <= window);
        landed += n;
        assert_int_equal(packer_waiting(p), next - landed);
        if (!full_rows || next < count)
            used += tokens, rows++;
    }
    assert_int_equal(packer_take(p, true, ticket, s->segments), 0);
    if (rows)
        share = (double)used / ((double)rows * s->tokens);
    arena_free(&a);
    return share;
}

static void packer_makes_progress_on_any_sizes(void **state)
{
    (void)state;
    static struct item item[2000];
    struct row_shape s = {.tokens = 4096, .patches = 16384, .segments = 64,
                          .images = 64, .merge = 2};
    uint64_t counter = 0;
    for (int i = 0; i < 2000; i++)
        item[i] = (struct item){250 + below(&counter, 200), 0, 0};
    assert_true(pack_all(&s, 64, item, 2000, true) > 0.999);
    /* Lengths that never sum exactly: 4 of 1,000 is the best there is. */
    for (int i = 0; i < 2000; i++)
        item[i] = (struct item){1000, 0, 0};
    assert_true(pack_all(&s, 64, item, 2000, false) == 4000.0 / 4096.0);
    for (int i = 0; i < 2000; i++)
        item[i] = (struct item){4096, 16384, 64};
    assert_true(pack_all(&s, 1, item, 50, false) == 1.0);
    for (int i = 0; i < 2000; i++)
        item[i] = (struct item){1, 0, 0};               /* the segments run out */
    pack_all(&s, 64, item, 2000, false);
}

/* Every capacity can be the one that binds; windows from none to large. */
static void packer_keeps_every_capacity(void **state)
{
    (void)state;
    static struct item item[1500];
    uint64_t counter = 99;
    for (int trial = 0; trial < 60; trial++) {
        struct row_shape s = {.tokens = 64 + below(&counter, 4000),
                              .patches = 4 * below(&counter, 3000),
                              .segments = 1 + below(&counter, 40),
                              .images = below(&counter, 12), .merge = 2};
        int longest = 1 + below(&counter, s.tokens);
        for (int i = 0; i < COUNT(item); i++) {
            item[i] = (struct item){1 + below(&counter, longest), 0, 0};
            if (s.images && below(&counter, 2)) {
                item[i].images = 1 + below(&counter, MIN(s.images, 3));
                item[i].patches = below(&counter, s.patches + 1);
            }
        }
        pack_all(&s, 1 + below(&counter, 200), item, COUNT(item), false);
    }
}

/* A row ends when a capacity is full, not one before: tokens, patches, segments and
 * images, each the one that binds. */
static void rows_fill_to_the_last_place(void **state)
{
    (void)state;
    static const int room[][4] = {      /* tokens, patches, segments, images */
        {12, 80, 9, 9}, {90, 16, 9, 9}, {90, 80, 4, 9}, {90, 80, 9, 4},
    };
    for (int k = 0; k < COUNT(room); k++)
        for (int count = 4; count <= 5; count++) {
            struct arena a = arena_make("test");
            const struct row_shape s = {room[k][0], room[k][1], room[k][2], room[k][3],
                                        .merge = 2};
            int64_t ticket[9];
            struct packer *p = packer_make(&a, &s, 8);
            for (int i = 0; i < count; i++)
                assert_true(packer_offer(p, i, 3, 4, 1));
            assert_int_equal(packer_take(p, true, ticket, 9), 4);
            assert_int_equal(packer_waiting(p), count - 4);
            arena_free(&a);
        }
}

/* A row longer than the window's samples takes unchosen ones until those that wait
 * could fill the rest of it twice over: 3 of 7 taken, 4 of 20 tokens for 40 places. */
static void unchosen_until_twice_the_rest_waits(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct row_shape s = {100, 0, 9, 0, .merge = 2};
    struct packer *p = packer_make(&a, &s, 4);
    int64_t ticket[9];
    int offered = 0;
    while (packer_offer(p, offered, 20, 0, 0))
        offered++;
    assert_int_equal(offered, 7);
    assert_int_equal(packer_take(p, false, ticket, 9), 5);
    assert_int_equal(packer_waiting(p), 2);
    arena_free(&a);
}

/* Rows much longer than the window still fill up, also when patches are scarce. */
static void long_rows_fill_beyond_the_window(void **state)
{
    (void)state;
    static struct item item[20000];
    uint64_t counter = 5;
    int64_t tokens = 0, patches = 0;
    for (int i = 0; i < COUNT(item); i++) {
        int p = below(&counter, 3) ? 256 + 4 * below(&counter, 64) : 0;
        item[i] = (struct item){p / 4 + 10 + below(&counter, 60), p, p > 0};
        tokens += item[i].tokens, patches += p;
    }
    struct row_shape s = {.tokens = 32768, .patches = 131072, .segments = 1024,
                          .images = 1024, .merge = 2};
    assert_true(pack_all(&s, 64, item, COUNT(item), true) > 0.999);
    double scarce = 1.03 * (double)patches / (double)tokens * s.tokens;
    s.patches = (int)scarce / 4 * 4;
    assert_true(pack_all(&s, 64, item, COUNT(item), true) > 0.97);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_of_the_specification),
        cmocka_unit_test(images_back_to_back),
        cmocka_unit_test(image_tokens_and_images_must_agree),
        cmocka_unit_test(a_row_by_hand),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(laws_of_random_rows),
        cmocka_unit_test(packer_makes_progress_on_any_sizes),
        cmocka_unit_test(packer_keeps_every_capacity),
        cmocka_unit_test(rows_fill_to_the_last_place),
        cmocka_unit_test(unchosen_until_twice_the_rest_waits),
        cmocka_unit_test(long_rows_fill_beyond_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
