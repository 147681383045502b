/* test_image.c - the right way through: decoding, sizes, resizing and patches, bit for
 * bit what the reference (Pillow, the model's own image processor) makes of them. */
#include "data/image_files.h"

/* A file of tests/data/image: its upright size, and the hash of its RGB bytes upright
 * on white, and with orientation and alpha ignored. */
struct decoded { const char *name; int width, height; uint64_t upright, plain; };

/* colours(width, height) in; grid and hash of the patches, by rule, out. */
struct loaded {
    int width, height, patch;
    int64_t min_pixels, max_pixels;
    float mean[3], std[3];
    int grid_h, grid_w;
    uint64_t hash[2];
};

/* colours(width, height) resized by Pillow. */
struct resized { int width, height, to_width, to_height; uint64_t hash; };

/* A real image below the stamps folder, or an odd one of tests/data/cases, with the
 * default shape. */
struct stamp { const char *name; int grid_h, grid_w; uint64_t hash[2]; };

#include "data/image_golden.h"

static const char *const rule_name[] = {
    [RESIZE_TORCHVISION] = "torchvision", [RESIZE_PIL] = "pil",
};

static const char stamps_folder[] = "/usr/share/tuxpaint/stamps";

/* FNV-1a over bytes, and over 32-bit words */
static uint64_t hash_bytes(const uint8_t *at, int64_t size)
{
    uint64_t h = 0xcbf29ce484222325;
    for (int64_t i = 0; i < size; i++)
        h = (h ^ at[i]) * 0x100000001b3;
    return h;
}

static uint64_t hash_floats(const float *at, int64_t count)
{
    uint64_t h = 0xcbf29ce484222325;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        h = (h ^ word) * 0x100000001b3;
    }
    return h;
}

static uint64_t hash_picture(const struct picture *p)
{
    return hash_bytes(p->rgb, 3 * (int64_t)p->width * p->height);
}

static uint64_t hash_patches(const struct patches *p)
{
    return hash_floats(p->pixels, (int64_t)p->grid_h * p->grid_w * p->values);
}

/* No two rows, columns or channels alike; the golden script has the same. */
static struct picture colours(struct arena *a, int width, int height)
{
    struct picture p = {width, height, NEW(a, uint8_t, 3 * width * height)};
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++)
                p.rgb[3 * (y * width + x) + c] =
                    (uint8_t)(37 * y + 53 * x + 101 * c + 11 * x * y);
    return p;
}

/* A PNG of it that needs no compressor: stored blocks of at most 65535 bytes. */
static void add32(char **at, uint32_t v)
{
    for (int i = 24; i >= 0; i -= 8)
        *(*at)++ = (char)(v >> i);
}

static uint32_t crc(const char *at, size_t size)
{
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < size; i++) {
        c ^= (uint8_t)at[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
    }
    return ~c;
}

static void end_chunk(char **at, char *data)
{
    uint32_t size = (uint32_t)(*at - data);
    char *length = data - 8;
    add32(&length, size);
    add32(at, crc(data - 4, size + 4));
}

static char *begin_chunk(char **at, const char *kind)
{
    memcpy(*at + 4, kind, 4);
    return *at += 8;
}

static struct bytes png_of(struct arena *a, const struct picture *p)
{
    size_t row = 3 * (size_t)p->width + 1, raw = row * (size_t)p->height;
    char *start = arena_push(a, raw + 5 * (raw / row + 1) + 100), *at = start;
    memcpy(at, "\x89PNG\r\n\x1a\n", 8);
    at += 8;
    char *data = begin_chunk(&at, "IHDR");
    add32(&at, (uint32_t)p->width);
    add32(&at, (uint32_t)p->height);
    memcpy(at, "\x08\x02\0\0\0", 5);
    at += 5;
    end_chunk(&at, data);
    data = begin_chunk(&at, "IDAT");
    *at++ = 0x78;
    *at++ = 0x01;
    uint32_t low = 1, high = 0;
    for (int y = 0; y < p->height; y++) {
        *at++ = y == p->height - 1;
        *at++ = (char)row;
        *at++ = (char)(row >> 8);
        *at++ = (char)~row;
        *at++ = (char)(~row >> 8);
        const char *line = at;
        *at++ = 0;
        memcpy(at, p->rgb + (size_t)y * (row - 1), row - 1);
        at += row - 1;
        for (; line < at; line++) {
            low = (low + (uint8_t)*line) % 65521;
            high = (high + low) % 65521;
        }
    }
    add32(&at, high << 16 | low);
    end_chunk(&at, data);
    data = begin_chunk(&at, "IEND");
    end_chunk(&at, data);
    return (struct bytes){start, at - start};
}

/* ---- decoding ---- */

static void every_kind_decodes_as_in_pillow(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(decoded); i++) {
        const struct decoded *d = &decoded[i];
        struct arena a = arena_make("test");
        struct bytes file = image_file(&a, d->name);
        for (int plain = 0; plain < 2; plain++) {
            struct picture p;
            int width, height;
            struct image_rules rules = {plain ? EXIF_IGNORE : EXIF_APPLY,
                                        plain ? ALPHA_DROP : ALPHA_WHITE};
            if (!image_decode(&a, file, rules, &image_limits_default, &p))
                fail_msg("%s: %s", d->name, fail_message());
            assert_ok(image_size(file, rules, &image_limits_default, &width, &height));
            assert_int_equal(p.width, width);
            assert_int_equal(p.height, height);
            if (hash_picture(&p) != (plain ? d->plain : d->upright))
                fail_msg("%s, %s: wrong pixels, the first is %d %d %d", d->name,
                         plain ? "plain" : "upright on white", p.rgb[0], p.rgb[1],
                         p.rgb[2]);
            if (!plain && (width != d->width || height != d->height))
                fail_msg("%s: %d x %d, expected %d x %d", d->name, width, height,
                         d->width, d->height);
        }
        arena_free(&a);
    }
}

/* A red block in the stored top left corner: where the tag's definition puts it. */
static void orientations_move_the_corner(void **state)
{
    (void)state;
    static const struct { bool tall, right, bottom; } corner[9] = {
        [1] = {0, 0, 0}, [2] = {0, 1, 0}, [3] = {0, 1, 1}, [4] = {0, 0, 1},
        [5] = {1, 0, 0}, [6] = {1, 1, 0}, [7] = {1, 1, 1}, [8] = {1, 0, 1},
    };
    struct arena a = arena_make("test");
    for (int o = 1; o <= 8; o++) {
        struct bytes file = image_file(&a, arena_text(&a, "exif%d.jpg", o));
        struct picture p;
        assert_ok(image_decode(&a, file, usual, &image_limits_default, &p));
        assert_int_equal(p.width, corner[o].tall ? 32 : 64);
        assert_int_equal(p.height, corner[o].tall ? 64 : 32);
        int x = corner[o].right ? p.width - 5 : 4;
        int y = corner[o].bottom ? p.height - 5 : 4;
        const uint8_t *red = p.rgb + 3 * (y * p.width + x);
        assert_true(red[0] > 240 && red[1] < 15 && red[2] < 15);
        struct patches loaded_patches;
        struct image_shape s = image_shape_default;
        s.min_pixels = 0;
        assert_ok(image_load(&a, file, usual, &image_limits_default, &s,
                             &loaded_patches));
        assert_int_equal(loaded_patches.grid_w, p.width / 16);
        assert_int_equal(loaded_patches.grid_h, p.height / 16);
    }
    arena_free(&a);
}

/* ---- sizes ---- */

static void targets_of_the_specification(void **state)
{
    (void)state;
    static const int size[][4] = {      /* height, width in and out */
        {480, 640, 480, 640}, {224, 224, 256, 256}, {100, 100, 256, 256},
        {16, 16, 256, 256}, {255, 257, 256, 256}, {48, 80, 224, 352},
        {33, 1000, 64, 1440}, {20, 3000, 32, 3008}, {720, 1280, 704, 1280},
        {1080, 1920, 1088, 1920}, {1365, 2048, 1376, 2048}, {5000, 8000, 3232, 5152},
        /* Halves go to the even multiple: 8.5, 9.5 and 10.5 times 32. */
        {272, 304, 256, 320}, {336, 272, 320, 256}, {304, 336, 320, 320},
    };
    int width, height;
    for (int i = 0; i < COUNT(size); i++) {
        assert_ok(image_target(&image_shape_default, size[i][1], size[i][0], &width,
                               &height));
        assert_int_equal(height, size[i][2]);
        assert_int_equal(width, size[i][3]);
    }
    assert_ok(image_target(&image_shape_default, 2000, 10, &width, &height));
    assert_fails(image_target(&image_shape_default, 2001, 10, &width, &height),
                 "2001 x 10");
    assert_int_equal(fail_fault(), FAULT_DATA);
    struct image_shape tiny = image_shape_default;
    tiny.min_pixels = 0;
    assert_fails(image_target(&tiny, 100, 15, &width, &height), "min_pixels");
}

/* The cap holds for any image; only a single row or column of blocks may pass it. */
static void max_pixels_is_a_cap(void **state)
{
    (void)state;
    struct image_shape s = image_shape_default;
    s.max_pixels = 1 << 18;
    s.min_pixels = 1 << 14;
    for (int w = 1; w < 9000; w += 37)
        for (int h = w / 190 + 1; h < MIN(9000, 190 * w); h += 211) {
            int width, height;
            assert_ok(image_target(&s, w, h, &width, &height));
            assert_true(width % 32 == 0 && height % 32 == 0);
            assert_true(width >= 32 && height >= 32);
            if (width > 32 && height > 32)
                assert_true((int64_t)width * height <= s.max_pixels);
        }
}

/* ---- resizing and patches ---- */

static void worked_example_of_the_specification(void **state)
{
    (void)state;
    static const uint8_t channel0[4][8] = {
        {5, 48, 96, 157, 192, 130, 23, 92}, {48, 103, 184, 186, 106, 77, 148, 102},
        {96, 172, 130, 75, 119, 164, 85, 62}, {140, 234, 107, 126, 131, 58, 114, 207},
    };
    struct arena a = arena_make("test");
    struct picture from = colours(&a, 7, 5), to;
    image_resize(&a, &from, 8, 4, RESIZE_TORCHVISION, &to);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 8; x++)
            assert_int_equal(to.rgb[3 * (8 * y + x)], channel0[y][x]);
    arena_free(&a);
}

static void resizing_equals_pillow(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(resized); i++) {
        const struct resized *r = &resized[i];
        struct arena a = arena_make("test");
        struct picture from = colours(&a, r->width, r->height), to;
        image_resize(&a, &from, r->to_width, r->to_height, RESIZE_PIL, &to);
        if (hash_picture(&to) != r->hash)
            fail_msg("%d x %d to %d x %d: wrong bits", r->width, r->height, r->to_width,
                     r->to_height);
        arena_free(&a);
    }
}

/* One colour stays that colour, whatever the sizes: the weights sum to one. */
static void flat_stays_flat(void **state)
{
    (void)state;
    for (int width = 1; width < 120; width += 7)
        for (int to_width = 1; to_width < 120; to_width += 11)
            for (int rule = RESIZE_TORCHVISION; rule <= RESIZE_PIL; rule++) {
                struct arena a = arena_make("test");
                struct picture from = {width, 3, NEW(&a, uint8_t, 9 * width)}, to;
                memset(from.rgb, 200, (size_t)(9 * width));
                image_resize(&a, &from, to_width, 5, (enum resize_rule)rule, &to);
                for (int i = 0; i < 3 * to_width * 5; i++)
                    assert_in_range(to.rgb[i], 199, 201);
                arena_free(&a);
            }
}

/* The whole way from a file, and the same in three steps. */
static void patches_equal_the_reference_processor(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(loaded); i++) {
        const struct loaded *l = &loaded[i];
        struct arena a = arena_make("test");
        struct picture from = colours(&a, l->width, l->height), to;
        struct bytes file = png_of(&a, &from);
        for (int rule = RESIZE_TORCHVISION; rule <= RESIZE_PIL; rule++) {
            struct image_shape s = {l->patch, 2, 2, l->min_pixels, l->max_pixels,
                {l->mean[0], l->mean[1], l->mean[2]}, {l->std[0], l->std[1], l->std[2]},
                (enum resize_rule)rule};
            struct patches p, again;
            assert_ok(image_load(&a, file, usual, &image_limits_default, &s, &p));
            assert_int_equal(p.grid_h, l->grid_h);
            assert_int_equal(p.grid_w, l->grid_w);
            assert_int_equal(p.values, 3 * 2 * l->patch * l->patch);
            if (hash_patches(&p) != l->hash[rule])
                fail_msg("%d x %d, %s: wrong bits", l->width, l->height,
                         rule_name[rule]);
            int width, height;
            assert_ok(image_target(&s, from.width, from.height, &width, &height));
            image_resize(&a, &from, width, height, s.rule, &to);
            again = p;
            again.pixels = NEW(&a, float, (int64_t)p.grid_h * p.grid_w * p.values);
            image_patches(&s, &to, again.pixels);
            assert_true(hash_patches(&again) == l->hash[rule]);
        }
        arena_free(&a);
    }
}

static void files_give_the_patches(const struct stamp *file, int count,
                                   const char *folder)
{
    for (int i = 0; i < count; i++) {
        struct arena a = arena_make("test");
        struct bytes bytes;
        assert_ok(file_read(&a, path_join(&a, folder, file[i].name), 1 << 24, &bytes));
        for (int rule = RESIZE_TORCHVISION; rule <= RESIZE_PIL; rule++) {
            struct image_shape s = image_shape_default;
            struct patches p;
            s.rule = (enum resize_rule)rule;
            assert_ok(image_load(&a, bytes, usual, &image_limits_default, &s, &p));
            assert_int_equal(p.grid_h, file[i].grid_h);
            assert_int_equal(p.grid_w, file[i].grid_w);
            if (hash_patches(&p) != file[i].hash[rule])
                fail_msg("%s, %s: wrong bits", file[i].name, rule_name[rule]);
        }
        arena_free(&a);
    }
}

static void stamps_equal_the_reference_processor(void **state)
{
    (void)state;
    if (!folder_exists(stamps_folder))
        fail_msg("%s is missing: install the package tuxpaint-stamps-default",
                 stamps_folder);
    files_give_the_patches(stamps, COUNT(stamps), stamps_folder);
}

/* Clear pixels, orientations of every make, 16-bit grey, JPEGs with harmless junk. */
static void odd_files_equal_the_reference_processor(void **state)
{
    (void)state;
    files_give_the_patches(cases, COUNT(cases), "tests/data/cases");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_decodes_as_in_pillow),
        cmocka_unit_test(orientations_move_the_corner),
        cmocka_unit_test(targets_of_the_specification),
        cmocka_unit_test(max_pixels_is_a_cap),
        cmocka_unit_test(worked_example_of_the_specification),
        cmocka_unit_test(resizing_equals_pillow),
        cmocka_unit_test(flat_stays_flat),
        cmocka_unit_test(patches_equal_the_reference_processor),
        cmocka_unit_test(stamps_equal_the_reference_processor),
        cmocka_unit_test(odd_files_equal_the_reference_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
