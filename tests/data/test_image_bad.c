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
    bool sized = image_size(file, usual, &image_limits_default, &width, &height);
    bool ok = image_decode(&a, file, usual, &image_limits_default, &p);
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
        {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
        {"II\1\2", "\"II..\""},
        {"\xff\xd8\xff", "jpeg: "},
        {"\x89PNG\r\n\x1a\n", "png: the file is truncated at 8 bytes"},
    };
    for (int i = 0; i < COUNT(file); i++) {
        struct arena a = arena_make("test");
        struct bytes b = {.size = (int64_t)strlen(file[i].text)};
        b.at = arena_copy(&a, file[i].text, (size_t)b.size);
        assert_fails(decodes(b, usual, &image_limits_default), file[i].says);
        assert_int_equal(fail_fault(), FAULT_DATA);
        arena_free(&a);
    }
}

/* Other formats are named, whatever the file's name: here by how such files begin. */
static void formats_that_are_not_read_are_named(void **state)
{
    (void)state;
    static const struct { const char *name; char bytes[16]; } kind[] = {
        {"GIF", "GIF89a"}, {"GIF", "GIF87a"}, {"BMP", "BM\x46\0\0\0\0\0\0\0\x36"},
        {"AVIF", "\0\0\0\x20" "ftypavif"}, {"AVIF", "\0\0\0\x1c" "ftypavis"},
        {"HEIC", "\0\0\0\x18" "ftypheic"}, {"HEIC", "\0\0\0\x18" "ftypheix"},
        {"HEIC", "\0\0\0\x18" "ftyphevc"}, {"HEIF", "\0\0\0\x18" "ftypmif1"},
        {"MP4 or QuickTime", "\0\0\0\x18" "ftypisom"},
        {"TIFF", "II*\0"}, {"TIFF", "MM\0*"}, {"TIFF", "II+\0"},
        {"JPEG 2000", "\0\0\0\x0cjP  \r\n\x87\n"}, {"JPEG 2000", "\xff\x4f\xff\x51"},
        {"JPEG XL", "\xff\x0a"}, {"JPEG XL", "\0\0\0\x0cJXL \r\n\x87\n"},
        {"JPEG XR", "II\xbc\1"}, {"ICO", "\0\0\1\0"}, {"Photoshop", "8BPS"},
        {"DDS", "DDS "}, {"QOI", "qoif"}, {"OpenEXR", "v/1\1"},
        {"Radiance HDR", "#?RADIANCE"}, {"SVG", "<svg xmlns"}, {"PDF", "%PDF-1.7"},
        {"PNM", "P6 2 2 255"}, {"PNM", "P1\n2"},
    };
    for (int i = 0; i < COUNT(kind); i++) {
        char text[80], start[64] = "";
        memcpy(start, kind[i].bytes, sizeof kind[i].bytes);
        snprintf(text, sizeof text, "image: its format is %s; JPEG, PNG and WebP are "
                 "read", kind[i].name);
        struct bytes file = {start, sizeof start};
        assert_fails(decodes(file, usual, &image_limits_default), text);
        assert_int_equal(fail_fault(), FAULT_DATA);
        for (int64_t size = 0; size < 16; size++) {     /* never read past the end */
            struct bytes cut = image_prefix(file, size);
            image_unread(cut);
            free(cut.at);
        }
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
    assert_fails(decodes(png, usual, &image_limits_default),
                 "60000 x 60000 is 3600000000 pixels, the limit is 134217728");
    struct bytes jpeg = image_file(&a, "base_420.jpg");
    memcpy(segment(jpeg, 0xc0) + 5, "\xff\xdc\xff\xdc", 4);
    assert_fails(decodes(jpeg, usual, &image_limits_default), "65500 x 65500 is");
    struct bytes webp = image_file(&a, "lossy.webp");
    memcpy(webp.at + 26, "\xff\x3f\xff\x3f", 4);
    assert_fails(decodes(webp, usual, &image_limits_default), "16383 x 16383 is");

    /* Below the pixels' limit, but all coefficients of a progressive file are kept. */
    struct bytes progressive = image_file(&a, "progressive_444.jpg");
    memcpy(segment(progressive, 0xc2) + 5, "\x2a\xf8\x2a\xf8", 4);
    assert_fails(decodes(progressive, usual, &image_limits_default),
                 "decoding takes 1089000000 bytes of memory, the limit is 1073741824");
    assert_true(check_seconds() - start < 1);

    const struct image_limits small = {.pixels = 37 * 29 - 1, .memory = 1 << 20,
                                       .scans = 100};
    assert_fails(decodes(image_file(&a, "base_420.jpg"), usual, &small),
                 "37 x 29 is 1073 pixels, the limit is 1072");
    const struct image_limits tight = {.pixels = 1 << 20, .memory = 3000, .scans = 100};
    static const char *const any[] = {"lossless.webp", "base_420.jpg"};
    for (int i = 0; i < COUNT(any); i++)
        assert_fails(decodes(image_file(&a, any[i]), usual, &tight), "memory");
    arena_free(&a);
}

/* `size` bytes put into a file at a place; free() it. */
static struct bytes with_bytes(struct bytes file, int64_t at, const void *bytes,
                               int64_t size)
{
    struct bytes out = {malloc((size_t)(file.size + size)), file.size + size};
    assert_non_null(out.at);
    memcpy(out.at, file.at, (size_t)at);
    memcpy(out.at + at, bytes, (size_t)size);
    memcpy(out.at + at + size, file.at + at, (size_t)(file.size - at));
    return out;
}

static void assert_same_pixels(struct bytes file, struct bytes as)
{
    struct arena a = arena_make("same");
    struct picture p, q;
    assert_ok(image_decode(&a, file, usual, &image_limits_default, &p));
    assert_ok(image_decode(&a, as, usual, &image_limits_default, &q));
    assert_int_equal(p.width, q.width);
    assert_int_equal(p.height, q.height);
    assert_memory_equal(p.rgb, q.rgb, 3 * (size_t)p.width * (size_t)p.height);
    arena_free(&a);
}

/* What stands between segments or behind the image, odd versions, parameters that a
 * sequential file does not use: the pixels are whole.  What is left over before a
 * restart marker, or cut off at the end, is damage. */
static void what_costs_no_pixel_is_no_failure(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes file = image_file(&a, "base_420.jpg");
    static const struct { int before; const char *bytes; int size; } junk[] = {
        {0xdb, "\0\0\0", 3}, {0xdb, "junk", 4}, {0xc4, "\xff\xff\xff", 3},
        {0xda, "\0\xff\0", 3}, {0xda, "\xff\x01", 2},
        {0xda, "\xff\xfe\0\x03x", 5},
    };
    for (int i = 0; i < COUNT(junk); i++) {
        int64_t at = segment(file, junk[i].before) - file.at;
        struct bytes longer = with_bytes(file, at, junk[i].bytes, junk[i].size);
        assert_same_pixels(longer, file);
        free(longer.at);
    }
    for (int end = 0; end < 2; end++) {         /* before the end marker, behind it */
        struct bytes longer = with_bytes(file, file.size - 2 + 2 * end, "\0\0ab", 4);
        assert_same_pixels(longer, file);
        free(longer.at);
    }
    struct bytes copy = image_prefix(file, file.size);
    segment(copy, 0xe0)[9] = 2;                 /* JFIF 2 */
    segment(copy, 0xda)[12] = 5;                /* spectral selection */
    assert_same_pixels(copy, file);
    free(copy.at);

    struct bytes restarts = image_file(&a, "restart.jpg");
    char *marker = memmem(restarts.at, (size_t)restarts.size, "\xff\xd0", 2);
    assert_non_null(marker);
    struct bytes left_over = with_bytes(restarts, marker - restarts.at, "abc", 3);
    assert_false(try_both(left_over));
    free(left_over.at);
    struct bytes cut;
    assert_ok(file_read(&a, "tests/data/cases/jpeg/no_eoi.jpg", 1 << 20, &cut));
    assert_false(try_both(cut));
    arena_free(&a);
}

/* Time grows with the file, whatever it is made of; what is tried took 19 s once. */
static void many_segments_take_little_time(void **state)
{
    (void)state;
    enum { MANY = 50000 };
    struct arena a = arena_make("test");
    static const struct { const char *file, *bytes; int size, at; } kind[] = {
        {"base_420.jpg", "\xff\xe1\0\2", 4, 2},
        {"base_420.jpg", "\xff\xe1\0\x08" "Exif\0\0", 10, 2},
        {"base_420.jpg", "\xff\xe0\0\2", 4, 2}, {"base_420.jpg", "\xff\xfe\0\2", 4, 2},
        {"rgb8.png", "\0\0\0\0tEXt\x96\x42\xc5\x85", 12, 33},
        {"exif8.webp", "EXIF\0\0\0\0", 8, -1},
    };
    for (int i = 0; i < COUNT(kind); i++) {
        struct bytes file = image_file(&a, kind[i].file);
        int64_t at = kind[i].at < 0 ? file.size : kind[i].at;
        char *many = arena_push(&a, (size_t)(kind[i].size * MANY));
        for (int k = 0; k < MANY; k++)
            memcpy(many + kind[i].size * k, kind[i].bytes, (size_t)kind[i].size);
        struct bytes longer = with_bytes(file, at, many, kind[i].size * (int64_t)MANY);
        if (kind[i].at < 0)             /* of webp the size is in its head */
            memcpy(longer.at + 4, (uint32_t[]){(uint32_t)longer.size - 8}, 4);
        double start = check_seconds();
        assert_same_pixels(longer, file);
        double took = check_seconds() - start;
        if (took > 2)
            fail_msg("%s with %d of segment %d: %.1f s", kind[i].file, MANY, i, took);
        free(longer.at);
    }
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
    assert_fails(decodes(file, usual, &limits), "jpeg: more than 9 scans");
    limits.scans = 10;
    assert_ok(decodes(file, usual, &limits));

    struct bytes many = file_of_631_scans(&a);
    assert_fails(decodes(many, usual, &image_limits_default), "than 100 scans");
    limits.scans = 631;
    assert_ok(decodes(many, usual, &limits));
    arena_free(&a);
}

/* Metadata that makes no sense costs the rotation, never the pixels. */
static void bad_exif_never_fails_the_pixels(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct picture plain, p;
    assert_ok(image_decode(&a, image_file(&a, "exif1.jpg"), usual,
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
        assert_ok(image_decode(&a, copy, usual, &image_limits_default, &p));
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
    assert_fails(decodes(image_file(&a, "animation.webp"), usual,
                         &image_limits_default), "webp: an animation");
    struct bytes deep = image_file(&a, "base_420.jpg");
    segment(deep, 0xc0)[4] = 12;
    assert_fails(decodes(deep, usual, &image_limits_default), "precision 12");
    struct bytes bad = image_file(&a, "rgb8.png");
    bad.at[bad.size - 20] ^= 1;         /* in the pixels: their checksum */
    assert_false(decodes(bad, usual, &image_limits_default));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_file_fails),
        cmocka_unit_test(damaged_bytes_do_no_harm),
        cmocka_unit_test(what_is_no_image_is_named),
        cmocka_unit_test(formats_that_are_not_read_are_named),
        cmocka_unit_test(huge_claims_are_refused_at_once),
        cmocka_unit_test(what_costs_no_pixel_is_no_failure),
        cmocka_unit_test(many_segments_take_little_time),
        cmocka_unit_test(scans_are_limited),
        cmocka_unit_test(bad_exif_never_fails_the_pixels),
        cmocka_unit_test(what_we_do_not_read_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
