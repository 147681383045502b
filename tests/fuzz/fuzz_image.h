/* fuzz_image.h - what holds for any bytes given to the image loader: it ends, within
 * its limits, and its entry points agree. */
#ifndef TESTS_FUZZ_IMAGE_H
#define TESTS_FUZZ_IMAGE_H

#include "data/image/image.h"

static inline void fuzz_image(const uint8_t *data, size_t size, enum image_kind kind)
{
    const struct image_limits limits = {1 << 16, 1 << 22, 20};
    struct bytes file = {(char *)(uintptr_t)data, (int64_t)size};
    if (image_kind_of(data, (int64_t)size) != kind)
        return;
    struct image_shape shape = image_shape_default;
    shape.min_pixels = 1 << 10;
    shape.max_pixels = 1 << 12;
    for (int i = 0; i < 2; i++) {
        const struct image_rules rules = {i ? EXIF_IGNORE : EXIF_APPLY,
                                          i ? ALPHA_DROP : ALPHA_WHITE};
        struct arena a = arena_make("fuzz");
        struct picture picture;
        struct patches patches;
        int width = 0, height = 0, to_width, to_height;
        fail_clear();
        bool sized = image_size(file, rules, &limits, &width, &height);
        bool ok = image_decode(&a, file, rules, &limits, &picture);
        REQUIRE(!ok || (sized && picture.width == width && picture.height == height));
        REQUIRE(ok || fail_message()[0]);
        bool fits = sized && image_target(&shape, width, height, &to_width, &to_height);
        bool loaded = image_load(&a, file, rules, &limits, &shape, &patches);
        REQUIRE(loaded == (ok && fits));
        arena_free(&a);
    }
}

#endif
