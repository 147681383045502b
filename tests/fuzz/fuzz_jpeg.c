/* fuzz_jpeg.c - any bytes as a JPEG file: whichever way it goes, the library agrees. */
#include "data/jpeg_quick.h"
#include "fuzz_image.h"

struct outcome {
    bool ok, was_quick;
    struct picture picture;
    struct failure why;
};

static struct outcome decoded(struct arena *a, struct bytes file, bool may_be_quick)
{
    const struct image_limits limits = {1 << 16, 1 << 22, 20};
    struct outcome o = {0};
    struct image_header h;
    fail_clear();
    if (jpeg_decoder.header(file, &limits, &h)) {
        o.picture = (struct picture){h.width, h.height,
                                     picture_room(a, h.width, h.height)};
        o.ok = jpeg_rows_by(a, file, &limits, rows_into_picture(a, &o.picture, 1),
                            may_be_quick, &o.was_quick);
    }
    fail_take(&o.why);
    return o;
}

static void fuzz_both_ways(struct bytes file)
{
    struct arena a = arena_make("ways");
    struct outcome ours = decoded(&a, file, true), library = decoded(&a, file, false);
    REQUIRE(ours.ok == library.ok);
    REQUIRE(ours.ok || !strcmp(ours.why.message, library.why.message));
    REQUIRE(!ours.ok || !memcmp(ours.picture.rgb, library.picture.rgb,
                                3 * (size_t)ours.picture.width *
                                    (size_t)ours.picture.height));
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_image(data, size, IMAGE_JPEG);
    if (image_kind_of(data, (int64_t)size) == IMAGE_JPEG)
        fuzz_both_ways((struct bytes){(char *)(uintptr_t)data, (int64_t)size});
    return 0;
}
