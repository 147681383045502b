/* test_jpeg_quick.c - the quick way through a JPEG: it takes the common kinds, gives
 * the library's bits, and never says anything else than the library does. */
#include "data/jpeg_files.h"
#include "data/jpeg_quick.h"

/* ---- files made by the library ---- */

enum content { SOFT, NOISE, LETTERS, CONTENTS, LETTERS_BELOW = CONTENTS };
struct kind {
    int width, height;
    int parts, h, v;                    /* 1 or 3; samples of Y a chroma sample */
    int quality;
    enum content content;
    bool progressive, optimised;
    int interval;                       /* MCUs between restart markers */
    const jpeg_scan_info *script;
    int scans;
    bool arithmetic, rgb;
};

static uint8_t level_of(enum content content, int x, int y, int c)
{
    uint32_t h = (uint32_t)x * 73856093u ^ (uint32_t)y * 19349663u ^ (uint32_t)c << 27;
    h = (h ^ h >> 13) * 1274126177;
    if (content == NOISE)
        return (uint8_t)(h >> 24);
    if (content == LETTERS_BELOW && y < 48)
        return 100;
    if (content >= LETTERS)
        return (x / 3 + y / 5 + (x * y) / 40) % 2 ? 255 : 0;
    return (uint8_t)(128 + x * (c + 1) % 90 - (y * 2) % 70 + (int)(h >> 30));
}

static struct bytes jpeg_made(struct arena *a, const struct kind *k)
{
    struct jpeg_file f;
    jpeg_begin(&f, k->width, k->height, k->parts);
    if (k->rgb)
        jpeg_set_colorspace(&f.lib, JCS_RGB);
    jpeg_set_quality(&f.lib, k->quality, TRUE);
    if (k->progressive)
        jpeg_simple_progression(&f.lib);
    if (k->script) {
        f.lib.scan_info = k->script;
        f.lib.num_scans = k->scans;
    }
    f.lib.optimize_coding = k->optimised;
    f.lib.arith_code = k->arithmetic;
    f.lib.restart_interval = (unsigned)k->interval;
    f.lib.comp_info[0].h_samp_factor = k->h;
    f.lib.comp_info[0].v_samp_factor = k->v;
    jpeg_start_compress(&f.lib, TRUE);
    uint8_t *line = arena_push(a, 3 * (size_t)k->width);
    for (int y = 0; y < k->height; y++) {
        for (int i = 0; i < k->parts * k->width; i++)
            line[i] = level_of(k->content, i / k->parts, y, i % k->parts);
        JSAMPROW row = line;
        jpeg_write_scanlines(&f.lib, &row, 1);
    }
    return jpeg_end(a, &f);
}

/* ---- both ways ---- */

struct outcome {
    bool ok, was_quick;
    struct picture picture;
    char message[256];
};

static struct outcome decoded(struct arena *a, struct bytes file, bool may_be_quick)
{
    struct outcome o = {0};
    struct image_header h;
    fail_clear();
    if (jpeg_decoder.header(file, &image_limits_default, &h)) {
        o.picture = (struct picture){h.width, h.height,
                                     picture_room(a, h.width, h.height)};
        o.ok = jpeg_rows_by(a, file, &image_limits_default,
                            rows_into_picture(a, &o.picture, 1), may_be_quick,
                            &o.was_quick);
    }
    snprintf(o.message, sizeof o.message, "%s", o.ok ? "" : fail_message());
    return o;
}

/* Whether the quick way took it; either way all must be as the library has it alone. */
static bool quick_and_equal(struct bytes file)
{
    struct arena a = arena_make("both");
    struct outcome ours = decoded(&a, file, true), library = decoded(&a, file, false);
    assert_false(library.was_quick);
    assert_int_equal(ours.ok, library.ok);
    assert_string_equal(ours.message, library.message);
    assert_true(ours.ok || !ours.was_quick);
    size_t pixels = (size_t)ours.picture.width * (size_t)ours.picture.height;
    if (ours.ok)
        assert_memory_equal(ours.picture.rgb, library.picture.rgb, 3 * pixels);
    bool quick = ours.was_quick;
    arena_free(&a);
    return quick;
}

static void assert_quick(const struct kind *k)
{
    struct arena a = arena_make("kind");
    if (!quick_and_equal(jpeg_made(&a, k)))
        fail_msg("%d x %d, %d parts, %d x %d, quality %d, content %d, interval %d, "
                 "progressive %d, %d scans: left to the library", k->width, k->height,
                 k->parts, k->h, k->v, k->quality, k->content, k->interval,
                 k->progressive, k->scans);
    arena_free(&a);
}

/* ---- what it takes ---- */

static const struct { int parts, h, v; } sampling[] = {
    {1, 1, 1}, {1, 2, 2}, {3, 1, 1}, {3, 2, 1}, {3, 2, 2}, {3, 1, 2},
};

static void the_common_kinds_are_quick(void **state)
{
    (void)state;
    static const struct { int width, height; } size[] = {
        {1, 1}, {2, 1}, {1, 3}, {3, 2}, {4, 4}, {5, 5}, {6, 3}, {7, 9}, {8, 8},
        {16, 16}, {17, 33}, {33, 17}, {64, 15}, {131, 67}, {9, 130}, {272, 31},
    };
    static const int quality[] = {1, 25, 60, 75, 90, 96, 100};
    static const struct { bool progressive, optimised; int interval; } coding[] = {
        {false, false, 0}, {false, true, 0}, {true, true, 0}, {false, false, 1},
        {false, true, 5}, {true, true, 3},
    };
    for (int i = 0; i < COUNT(size); i++)
        for (int s = 0; s < COUNT(sampling); s++)
            for (int q = 0; q < COUNT(quality); q++)
                for (int c = 0; c < COUNT(coding); c++)
                    assert_quick(&(struct kind){
                        size[i].width, size[i].height, sampling[s].parts, sampling[s].h,
                        sampling[s].v, quality[q],
                        (enum content)((i + s + q + c) % CONTENTS),
                        coding[c].progressive, coding[c].optimised, coding[c].interval,
                        .scans = 0});
}

static void so_are_large_ones(void **state)
{
    (void)state;
    for (int progressive = 0; progressive < 2; progressive++)
        assert_quick(&(struct kind){1600, 1203, 3, 2, 2, 75, SOFT, progressive, true,
                                    .scans = 0});
}

/* Scans as no usual encoder orders them. */
#define DC_OF(c, high, low) {1, {c}, 0, 0, high, low}
#define AC_OF(c, first, last, high, low) {1, {c}, first, last, high, low}

static void scans_may_come_in_any_order(void **state)
{
    (void)state;
    static const jpeg_scan_info plain[] = {
        {3, {0, 1, 2}, 0, 0, 0, 0},
        AC_OF(0, 1, 63, 0, 0), AC_OF(1, 1, 63, 0, 0), AC_OF(2, 1, 63, 0, 0),
    };
    static const jpeg_scan_info chroma_first[] = {
        DC_OF(2, 0, 0), AC_OF(2, 1, 63, 0, 0), DC_OF(1, 0, 0), AC_OF(1, 1, 63, 0, 0),
        DC_OF(0, 0, 0), AC_OF(0, 1, 63, 0, 0),
    };
    static const jpeg_scan_info step_by_step[] = {
        {3, {0, 1, 2}, 0, 0, 0, 3},
        AC_OF(0, 1, 5, 0, 4), AC_OF(0, 6, 63, 0, 3), AC_OF(1, 1, 63, 0, 2),
        {3, {0, 1, 2}, 0, 0, 3, 2},
        AC_OF(0, 1, 5, 4, 3), AC_OF(2, 1, 63, 0, 1), AC_OF(1, 1, 63, 2, 1),
        {2, {0, 1}, 0, 0, 2, 1}, DC_OF(2, 2, 1),
        AC_OF(0, 1, 63, 3, 2), AC_OF(0, 1, 20, 2, 1), AC_OF(0, 21, 63, 2, 1),
        {3, {0, 1, 2}, 0, 0, 1, 0},
        AC_OF(2, 1, 63, 1, 0), AC_OF(1, 1, 1, 1, 0), AC_OF(1, 2, 63, 1, 0),
        AC_OF(0, 1, 63, 1, 0),
    };
    static const jpeg_scan_info one_by_one[] = {
        {1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0},
    };
    static const jpeg_scan_info two_and_one[] = {
        {1, {0}, 0, 63, 0, 0}, {2, {1, 2}, 0, 63, 0, 0},
    };
    static const struct { const jpeg_scan_info *at; int count; } script[] = {
        {plain, COUNT(plain)}, {chroma_first, COUNT(chroma_first)},
        {step_by_step, COUNT(step_by_step)}, {one_by_one, COUNT(one_by_one)},
        {two_and_one, COUNT(two_and_one)},
    };
    static const int quality[] = {10, 75, 100};
    for (int i = 0; i < COUNT(script); i++)
        for (int s = 2; s < COUNT(sampling); s++)
            for (int q = 0; q < COUNT(quality); q++)
                for (int c = 0; c < CONTENTS; c++)
                    assert_quick(&(struct kind){
                        75, 49, 3, sampling[s].h, sampling[s].v, quality[q],
                        (enum content)c, false, true, (i + s + q) % 3 * 4,
                        script[i].at, script[i].count, .rgb = false});
}

static void each_coefficient_may_have_its_scan(void **state)
{
    (void)state;
    jpeg_scan_info script[64];
    for (int k = 0; k < 64; k++)
        script[k] = (jpeg_scan_info)AC_OF(0, k, k, 0, 0);
    assert_quick(&(struct kind){40, 40, 1, 1, 1, 95, NOISE, false, true, 0, script, 64,
                                .rgb = false});
}

/* ---- what it leaves to the library ---- */

static bool steps_aside(const struct kind *k)
{
    struct arena a = arena_make("kind");
    bool quick = quick_and_equal(jpeg_made(&a, k));
    arena_free(&a);
    return !quick;
}

static void other_kinds_are_left_to_the_library(void **state)
{
    (void)state;
    static const jpeg_scan_info coarse[] = {    /* blocks are smoothed */
        {3, {0, 1, 2}, 0, 0, 0, 0}, AC_OF(0, 1, 63, 0, 2), AC_OF(1, 1, 63, 0, 1),
    };
    static const struct kind kind[] = {
        {40, 30, 3, 2, 2, 75, SOFT, .script = coarse, .scans = COUNT(coarse)},
        {40, 30, 3, 1, 1, 75, SOFT, .rgb = true},
        {40, 30, 3, 4, 1, 75, SOFT, .rgb = false},
        {40, 30, 3, 1, 4, 75, SOFT, .rgb = false},
        {40, 30, 3, 2, 2, 75, SOFT, .arithmetic = true},
    };
    for (int i = 0; i < COUNT(kind); i++)
        assert_true(steps_aside(&kind[i]));
    static const char *const file[] = {"cmyk_adobe0.jpg", "ycck_adobe2.jpg",
                                       "rgb_adobe.jpg"};
    for (int i = 0; i < COUNT(file); i++) {
        struct arena a = arena_make("file");
        assert_false(quick_and_equal(image_file(&a, file[i])));
        arena_free(&a);
    }
}

/* Limits are the library's, and its words. */
static void limits_hold(void **state)
{
    (void)state;
    struct arena a = arena_make("limits");
    struct bytes file = jpeg_made(&a, &(struct kind){64, 64, 3, 2, 2, 75, SOFT, true,
                                                     true, .scans = 0});
    struct picture p = {64, 64, picture_room(&a, 64, 64)};
    struct rows *to = rows_into_picture(&a, &p, 1);
    struct image_limits few = image_limits_default;
    bool quick;
    few.scans = 9;
    assert_fails(jpeg_rows_by(&a, file, &few, to, true, &quick),
                 "jpeg: more than 9 scans, the limit");
    assert_false(quick);
    few.scans = 10;
    assert_ok(jpeg_rows_by(&a, file, &few, to, true, &quick));
    assert_true(quick);
    arena_free(&a);
}

/* Blocks beside the image cost the quick way more memory than the library. */
static void a_narrow_file_may_need_the_library(void **state)
{
    (void)state;
    struct arena a = arena_make("narrow");
    struct bytes file = jpeg_made(&a, &(struct kind){8, 4000, 1, 1, 1, 75, SOFT, true,
                                                     true, .scans = 0});
    struct picture p = {8, 4000, picture_room(&a, 8, 4000)};
    struct image_limits limits = image_limits_default;
    for (int i = 0; i < 2; i++) {
        bool quick;
        limits.memory = i ? 1 << 21 : 1 << 19;
        assert_ok(jpeg_rows_by(&a, file, &limits, rows_into_picture(&a, &p, 1), true,
                               &quick));
        assert_int_equal(quick, i);
    }
    arena_free(&a);
}

/* With larger and larger quantisation, values of the lower half exceed what all builds
 * of the library compute alike; by then the upper half has been given. */
static void rows_before_it_steps_aside_stay(void **state)
{
    (void)state;
    struct arena a = arena_make("exceed");
    struct bytes file = jpeg_made(&a, &(struct kind){96, 96, 1, 1, 1, 100,
                                                     LETTERS_BELOW, .scans = 0});
    uint8_t *table = memmem(file.at, (size_t)file.size, "\xff\xdb", 2);
    assert_non_null(table);
    int left = 0, whole = 0;
    for (int factor = 1; factor < 256; factor++) {
        memset(table + 5, factor, AREA);
        *(quick_and_equal(file) ? &whole : &left) += 1;
    }
    assert_true(whole > 0 && left > 0);
    arena_free(&a);
}

/* ---- damage ---- */

static const struct kind small[] = {
    {21, 19, 3, 2, 2, 60, SOFT, .scans = 0},
    {21, 19, 3, 2, 1, 60, NOISE, .progressive = true},
    {21, 19, 3, 1, 1, 40, SOFT, .interval = 2},
    {35, 18, 3, 2, 2, 75, LETTERS, .progressive = true, .interval = 2},
    {19, 19, 1, 1, 1, 50, NOISE, .optimised = true},
};

static void cut_files_end_as_in_the_library(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(small); i++) {
        struct arena a = arena_make("cut");
        struct bytes file = jpeg_made(&a, &small[i]);
        for (int64_t size = 3; size < file.size; size++) {
            struct bytes cut = image_prefix(file, size);
            assert_false(quick_and_equal(cut));
            free(cut.at);
        }
        assert_true(quick_and_equal(file));
        arena_free(&a);
    }
}

static void damaged_files_end_as_in_the_library(void **state)
{
    (void)state;
    static const int damage[] = {0x01, 0x10, 0x80, 0xff, 0x55};
    for (int i = 0; i < COUNT(small); i++) {
        struct arena a = arena_make("damage");
        struct bytes file = jpeg_made(&a, &small[i]);
        struct bytes copy = image_prefix(file, file.size);
        for (int64_t at = 2; at < file.size; at++) {
            for (int d = 0; d < COUNT(damage); d++) {
                copy.at[at] = (char)(file.at[at] ^ damage[d]);
                quick_and_equal(copy);
            }
            copy.at[at] = (char)0xff;   /* markers where none belong */
            quick_and_equal(copy);
            copy.at[at] = file.at[at];
        }
        for (int64_t at = 2; at < file.size; at++) {        /* a byte too few */
            memmove(copy.at + at, file.at + at + 1, (size_t)(file.size - at - 1));
            quick_and_equal((struct bytes){copy.at, file.size - 1});
            memcpy(copy.at, file.at, (size_t)file.size);
        }
        free(copy.at);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_common_kinds_are_quick),
        cmocka_unit_test(so_are_large_ones),
        cmocka_unit_test(scans_may_come_in_any_order),
        cmocka_unit_test(each_coefficient_may_have_its_scan),
        cmocka_unit_test(other_kinds_are_left_to_the_library),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_narrow_file_may_need_the_library),
        cmocka_unit_test(rows_before_it_steps_aside_stay),
        cmocka_unit_test(cut_files_end_as_in_the_library),
        cmocka_unit_test(damaged_files_end_as_in_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
