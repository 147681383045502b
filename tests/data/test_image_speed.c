/* test_image_speed.c - how fast a photo becomes patches on one core.
 *
 *     test_image_speed                     a progressive JPEG made here; a low bar
 *     test_image_speed FILE [MAX_PIXELS]   prints the images per second for a file */
#include "data/jpeg_files.h"

#include "base/text.h"

#include <time.h>

enum { WIDTH = 1600, HEIGHT = 1203, MAX_PIXELS = 802816, REPEATS = 12 };

/* Best of some runs, in processor time: what the machine's other work spoils least. */
static double images_per_second(struct bytes file, int64_t max_pixels)
{
    struct image_shape s = image_shape_default;
    s.max_pixels = max_pixels;
    double best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        struct arena a = arena_make("speed");
        struct patches p;
        clock_t start = clock();
        assert_ok(image_load(&a, file, usual, &image_limits_default, &s, &p));
        best = MIN(best, (double)(clock() - start) / CLOCKS_PER_SEC);
        arena_free(&a);
    }
    return 1 / best;
}

/* Soft shapes with some grain, about as hard to decode as a photo. */
static struct bytes photo_make(struct arena *a)
{
    struct jpeg_file f;
    jpeg_begin(&f, WIDTH, HEIGHT, 3);
    jpeg_set_quality(&f.lib, 85, TRUE);
    jpeg_simple_progression(&f.lib);
    jpeg_start_compress(&f.lib, TRUE);
    uint32_t grain = 1;
    static uint8_t line[3 * WIDTH];
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            grain = grain * 1664525 + 1013904223;
            int noise = (int)(grain >> 28);
            line[3 * x] = (uint8_t)(x * y / 12000 % 200 + noise);
            line[3 * x + 1] = (uint8_t)((x * x + y * y) / 20000 % 200 + noise);
            line[3 * x + 2] = (uint8_t)((x + 2 * y) / 25 + noise);
        }
        JSAMPROW row = line;
        jpeg_write_scanlines(&f.lib, &row, 1);
    }
    return jpeg_end(a, &f);
}

static void a_photo_is_no_bottleneck(void **state)
{
    (void)state;
    const double bar = 0.2;     /* images per second: unoptimised and sanitized, too */
    struct arena a = arena_make("photo");
    struct bytes file = photo_make(&a);
    double speed = images_per_second(file, MAX_PIXELS);
    print_message("progressive JPEG, %d x %d, %lld bytes: %.1f images/s\n", WIDTH,
                  HEIGHT, (long long)file.size, speed);
    assert_true(speed > bar);
    arena_free(&a);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        struct arena a = arena_make("file");
        struct bytes file;
        int64_t max_pixels = MAX_PIXELS;
        assert_ok(file_read(&a, argv[1], 1 << 28, &file));
        assert_true(argc == 2 || text_integer(argv[2], &max_pixels));
        printf("%s: %.1f images/s\n", argv[1], images_per_second(file, max_pixels));
        arena_free(&a);
        return EXIT_SUCCESS;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_photo_is_no_bottleneck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
