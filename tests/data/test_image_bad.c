/* test_image_bad.c - cut, forged, hostile and mislabelled images: one clear message
 * each, at once, and nothing read outside the file. */
#include "data/jpeg_files.h"

static const char *const sound[] = {
    "base_420.jpg", "progressive_420.jpg", "grey.jpg", "cmyk_adobe0.jpg", "exif6.jpg",
    "grey16_interlaced.png", "palette4.png", "rgba8.png", "exif6_late.png",
    "lossy.webp", "lossless_alpha.webp", "lossy_alpha.webp", "exif8.webp",
};

/* Both entry points on one input agree: whoever can decode it knows its size. */
static bool try_both(struct bytes file)
{
    struct arena a = arena_make("test");
    struct picture p;
    int width = 0, height = 0;
    fail_clear();
    bool sized = image_size(file, EXIF_APPLY, &image_limits_default, &width, &height);
    bool ok = image_decode(&a, file, EXIF_APPLY, &image_limits_default, &p);
    if (ok) {
        assert_true(sized);
        assert_int_equal(p.width, width);
        assert_int_equal(p.height, height);
    } else {
        assert_true(strlen(fail_message()) > 8);
        assert_int_equal(fail_fault(), FAULT_DATA);
    }
    arena_free(&a);
    return ok;
}

static void every_cut_file_fails(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(sound); i++) {
        struct arena a = arena_make("test");
        struct bytes file = image_file(&a, sound[i]);
        assert_true(try_both(file));
        for (int64_t size = 0; size < file.size; size++) {
            struct bytes cut = image_prefix(file, size);
            if (try_both(cut))
                fail_msg("%s cut to %lld of %lld bytes decodes", sound[i],
                         (long long)size, (long long)file.size);
            free(cut.at);
        }
        arena_free(&a);
    }
}

static void damaged_bytes_do_no_harm(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(sound); i++) {
        struct arena a = arena_make("test");
        struct bytes file = image_file(&a, sound[i]);
        struct bytes copy = image_prefix(file, file.size);
        for (int64_t at = 0; at < file.size; at++)
            for (int k = 0; k < 3; k++) {
                copy.at[at] = (char)(file.at[at] ^ (int[]){0x01, 0x80, 0xff}[k]);
                try_both(copy);
                copy.at[at] = file.at[at];
            }
        free(copy.at);
        arena_free(&a);
    }
}

static void what_is_no_image_is_named(void **state)
{
    (void)state;
    static const struct { const char *text, *says; } file[] = {
        {"", "the file is empty"},
        {"hello, this is no image", "23 bytes that start with \"hello, this is n\""},
        {"version https://git-lfs.github.com/spec/v1\n", "\"version https://\""},
        {"GIF89a\1\2", "\"GIF89a..\""},
        {"\xff\xd8\xff", "jpeg: "},
        {"\x89PNG\r\n\x1a\n", "png: the file is truncated at 8 bytes"},
    };
    for (int i = 0; i < COUNT(file); i++) {
        struct arena a = arena_make("test");
        struct bytes b = {.size = (int64_t)strlen(file[i].text)};
        b.at = arena_copy(&a, file[i].text, (size_t)b.size);
        assert_fails(decodes(b, EXIF_APPLY, &image_limits_default), file[i].says);
        assert_int_equal(fail_fault(), FAULT_DATA);
        arena_free(&a);
    }
}

/* The position of a JPEG segment's marker. */
static char *segment(struct bytes file, int marker)
{
    for (int64_t at = 2; at + 4 < file.size;) {
        uint8_t *s = (uint8_t *)file.at + at;
        if (s[1] == marker)
            return file.at + at;
        at += 2 + (s[2] << 8 | s[3]);
    }
    fail_msg("no segment 0xff%02x", marker);
    return NULL;
}

static void huge_claims_are_refused_at_once(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    double start = check_seconds();
    struct bytes png = image_file(&a, "rgb8.png");
    memcpy(png.at + 16, "\0\0\xea\x60\0\0\xea\x60", 8);
    assert_fails(decodes(png, EXIF_APPLY, &image_limits_default),
                 "60000 x 60000 is 3600000000 pixels, the limit is 134217728");
    struct bytes jpeg = image_file(&a, "base_420.jpg");
    memcpy(segment(jpeg, 0xc0) + 5, "\xff\xdc\xff\xdc", 4);
    assert_fails(decodes(jpeg, EXIF_APPLY, &image_limits_default), "65500 x 65500 is");
    struct bytes webp = image_file(&a, "lossy.webp");
    memcpy(webp.at + 26, "\xff\x3f\xff\x3f", 4);
    assert_fails(decodes(webp, EXIF_APPLY, &image_limits_default), "16383 x 16383 is");

    /* Below the pixels' limit, but all coefficients of a progressive file are kept. */
    struct bytes progressive = image_file(&a, "progressive_444.jpg");
    memcpy(segment(progressive, 0xc2) + 5, "\x2a\xf8\x2a\xf8", 4);
    assert_fails(decodes(progressive, EXIF_APPLY, &image_limits_default),
                 "decoding takes 1089000000 bytes of memory, the limit is 1073741824");
    assert_true(check_seconds() - start < 1);

    const struct image_limits small = {.pixels = 37 * 29 - 1, .memory = 1 << 20,
                                       .scans = 100};
    assert_fails(decodes(image_file(&a, "base_420.jpg"), EXIF_APPLY, &small),
                 "37 x 29 is 1073 pixels, the limit is 1072");
    const struct image_limits tight = {.pixels = 1 << 20, .memory = 3000, .scans = 100};
    static const char *const any[] = {"lossless.webp", "base_420.jpg"};
    for (int i = 0; i < COUNT(any); i++)
        assert_fails(decodes(image_file(&a, any[i]), EXIF_APPLY, &tight), "memory");
    arena_free(&a);
}

/* A sound grey file in which each of 63 coefficients comes in ten scans of its own. */
static struct bytes file_of_631_scans(struct arena *a)
{
    enum { SIDE = 16, BITS = 9 };
    static jpeg_scan_info script[1 + 63 * (BITS + 1)];
    int n = 0;
    script[n++] = (jpeg_scan_info){1, {0}, 0, 0, 0, 0};
    for (int k = 1; k < 64; k++)
        for (int low = BITS; low >= 0; low--)
            script[n++] = (jpeg_scan_info){1, {0}, k, k, low < BITS ? low + 1 : 0, low};
    struct jpeg_file f;
    jpeg_begin(&f, SIDE, SIDE, 1);
    f.lib.scan_info = script;
    f.lib.num_scans = n;
    jpeg_start_compress(&f.lib, TRUE);
    for (int y = 0; y < SIDE; y++) {
        uint8_t line[SIDE];
        for (int x = 0; x < SIDE; x++)
            line[x] = (uint8_t)(x * y);
        JSAMPROW row = line;
        jpeg_write_scanlines(&f.lib, &row, 1);
    }
    return jpeg_end(a, &f);
}

static void scans_are_limited(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes file = image_file(&a, "progressive_420.jpg");
    struct image_limits limits = image_limits_default;
    limits.scans = 9;
    assert_fails(decodes(file, EXIF_APPLY, &limits), "jpeg: more than 9 scans");
    limits.scans = 10;
    assert_ok(decodes(file, EXIF_APPLY, &limits));

    struct bytes many = file_of_631_scans(&a);
    assert_fails(decodes(many, EXIF_APPLY, &image_limits_default), "than 100 scans");
    limits.scans = 631;
    assert_ok(decodes(many, EXIF_APPLY, &limits));
    arena_free(&a);
}

/* Metadata that makes no sense costs the rotation, never the pixels. */
static void bad_exif_never_fails_the_pixels(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct picture plain, p;
    assert_ok(image_decode(&a, image_file(&a, "exif1.jpg"), EXIF_APPLY,
                           &image_limits_default, &plain));
    struct bytes file = image_file(&a, "exif6.jpg");
    char *tiff = memmem(file.at, (size_t)file.size, "Exif\0\0", 6);
    assert_non_null(tiff);
    tiff += 6;
    bool big = tiff[0] == 'M';
    char *entry = tiff + 8 + 2, *value = entry + 8 + big;
    assert_int_equal(*value, 6);
    static const struct { int offset; const char *bytes; int size; } damage[] = {
        {18, "\0\0", 2},            /* orientation 0, */
        {18, "\x09\x09", 2},            /* far out of range */
        {18, "\xff\xff", 2},
        {4, "\xff\xff\xff\xff", 4},     /* directory outside, */
        {4, "\x7f\0\0\x7f", 4},
        {8, "\xff\xff", 2},             /* too many entries, */
        {12, "\0\x0c", 2},              /* a type that is no number */
        {0, "XX", 2},                   /* no byte order */
    };
    for (int i = 0; i < COUNT(damage); i++) {
        struct bytes copy = image_prefix(file, file.size);
        char *at = copy.at + (tiff - file.at) + damage[i].offset;
        memcpy(at, damage[i].bytes, (size_t)damage[i].size);
        assert_ok(image_decode(&a, copy, EXIF_APPLY, &image_limits_default, &p));
        if (i == 5) {                   /* the entry itself is still there */
            assert_int_equal(p.width, 32);
        } else {
            assert_int_equal(p.width, 64);
            assert_memory_equal(p.rgb, plain.rgb, 64 * 32 * 3);
        }
        free(copy.at);
    }
    arena_free(&a);
}

static void what_we_do_not_read_is_said(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    assert_fails(decodes(image_file(&a, "animation.webp"), EXIF_APPLY,
                         &image_limits_default), "webp: an animation");
    struct bytes deep = image_file(&a, "base_420.jpg");
    segment(deep, 0xc0)[4] = 12;
    assert_fails(decodes(deep, EXIF_APPLY, &image_limits_default), "precision 12");
    struct bytes bad = image_file(&a, "rgb8.png");
    bad.at[bad.size - 20] ^= 1;         /* in the pixels: their checksum */
    assert_false(decodes(bad, EXIF_APPLY, &image_limits_default));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_file_fails),
        cmocka_unit_test(damaged_bytes_do_no_harm),
        cmocka_unit_test(what_is_no_image_is_named),
        cmocka_unit_test(huge_claims_are_refused_at_once),
        cmocka_unit_test(scans_are_limited),
        cmocka_unit_test(bad_exif_never_fails_the_pixels),
        cmocka_unit_test(what_we_do_not_read_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
