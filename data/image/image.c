/* image.c - what an image may cost, what size it gets, and the way from its bytes to
 * patches. */
#include "data/image/parts.h"

#include <math.h>

const struct image_limits image_limits_default = {
    .pixels = 1 << 27, .memory = 1 << 30, .scans = 100,
};
const struct image_shape image_shape_default = {
    .patch = 16, .frames = 2, .merge = 2,
    .min_pixels = 65536, .max_pixels = 16777216,
    .mean = {0.5f, 0.5f, 0.5f}, .std = {0.5f, 0.5f, 0.5f},
    .rule = RESIZE_TORCHVISION,
};

/* ---- what it is, and whether it may be read ---- */

static const struct decoder *const decoder[] = {
    [IMAGE_JPEG] = &jpeg_decoder,
    [IMAGE_PNG] = &png_decoder,
    [IMAGE_WEBP] = &webp_decoder,
};

bool pixels_allowed(const char *kind, const struct image_limits *limits, int64_t width,
                    int64_t height)
{
    return width <= limits->pixels / height ||
           fail("%s: %lld x %lld is %lld pixel(s), the limit is %lld", kind,
                (long long)width, (long long)height, (long long)(width * height),
                (long long)limits->pixels);
}

bool memory_allowed(const char *kind, const struct image_limits *limits, int64_t bytes)
{
    return bytes <= limits->memory ||
           fail("%s: decoding takes %lld byte(s) of memory, the limit is %lld", kind,
                (long long)bytes, (long long)limits->memory);
}

/* Finds the decoder and reads the header.  Orientation becomes 1 when it is ignored. */
static bool open_image(struct bytes file, enum exif_rule exif,
                       const struct image_limits *limits, const struct decoder **by,
                       struct image_header *h)
{
    enum image_kind kind = image_kind_of(file.at, file.size);
    *by = decoder[kind];
    if (!*by)
        return image_unread(file);
    if (!(*by)->header(file, limits, h))
        return false;
    if (exif == EXIF_IGNORE)
        h->orientation = 1;
    return true;
}

static void upright_size(const struct image_header *h, int *width, int *height)
{
    bool exchange = h->orientation >= 5;
    *width = exchange ? h->height : h->width;
    *height = exchange ? h->width : h->height;
}

bool image_size(struct bytes file, struct image_rules rules,
                const struct image_limits *limits, int *width, int *height)
{
    const struct decoder *by;
    struct image_header h;
    if (!open_image(file, rules.exif, limits, &by, &h))
        return fail_kind(FAULT_DATA);
    upright_size(&h, width, height);
    return true;
}

static bool decode_upright(struct arena *a, struct bytes file, const struct decoder *by,
                           const struct image_header *h, enum alpha_rule alpha,
                           const struct image_limits *limits, struct picture *out)
{
    upright_size(h, &out->width, &out->height);
    out->rgb = picture_room(a, out->width, out->height);
    struct arena_mark m = arena_mark(a);
    bool ok = by->rows(a, file, limits, alpha,
                       rows_into_picture(a, out, h->orientation));
    arena_reset(a, m);
    return ok;
}

bool image_decode(struct arena *a, struct bytes file, struct image_rules rules,
                  const struct image_limits *limits, struct picture *out)
{
    const struct decoder *by;
    struct image_header h;
    return (open_image(file, rules.exif, limits, &by, &h) &&
            decode_upright(a, file, by, &h, rules.alpha, limits, out)) ||
           fail_kind(FAULT_DATA);
}

/* ---- the size it gets ---- */

bool image_target(const struct image_shape *s, int width, int height, int *to_width,
                  int *to_height)
{
    enum { MOST_RATIO = 200 };
    int factor = s->patch * s->merge;
    int64_t longer = MAX(width, height), shorter = MIN(width, height);
    if (shorter < 1 || longer > MOST_RATIO * shorter) {
        fail("image: %d x %d, expected sides in a ratio of at most %d", width, height,
             MOST_RATIO);
        return fail_kind(FAULT_DATA);
    }
    /* In doubles and in this order, as the reference; rint() takes halves to even. */
    double w = rint((double)width / factor) * factor;
    double h = rint((double)height / factor) * factor;
    double area = (double)width * height;
    if (w * h > (double)s->max_pixels) {
        double shrink = sqrt(area / (double)s->max_pixels);
        w = fmax(factor, floor(width / shrink / factor) * factor);
        h = fmax(factor, floor(height / shrink / factor) * factor);
    } else if (w * h < (double)s->min_pixels) {
        double grow = sqrt((double)s->min_pixels / area);
        w = ceil(width * grow / factor) * factor;
        h = ceil(height * grow / factor) * factor;
    }
    if (w < factor || h < factor) {
        fail("image: %d x %d is less than half a patch, and min_pixels %lld does not "
             "enlarge it", width, height, (long long)s->min_pixels);
        return fail_kind(FAULT_DATA);
    }
    *to_width = (int)w;
    *to_height = (int)h;
    return true;
}

/* ---- all of it ---- */

bool image_load(struct arena *a, struct bytes file, struct image_rules rules,
                const struct image_limits *limits, const struct image_shape *s,
                struct patches *out)
{
    const struct decoder *by;
    struct image_header h;
    int width, height, to_width, to_height;
    if (!open_image(file, rules.exif, limits, &by, &h))
        return fail_kind(FAULT_DATA);
    upright_size(&h, &width, &height);
    if (!image_target(s, width, height, &to_width, &to_height))
        return false;

    out->grid_h = to_height / s->patch;
    out->grid_w = to_width / s->patch;
    out->values = 3 * s->frames * s->patch * s->patch;
    size_t rows = (size_t)out->grid_h * (size_t)out->grid_w;
    out->pixels = arena_room(a, rows * (size_t)out->values * sizeof(float));

    struct arena_mark m = arena_mark(a);
    struct rows *to = rows_into_patches(a, s, to_width, to_height, out->pixels);
    to = rows_resized(a, width, height, to_width, to_height, s->rule, to);
    bool ok = false;
    if (h.orientation == 1) {
        ok = by->rows(a, file, limits, rules.alpha, to);
    } else {                            /* resizing takes rows in order: turn first */
        struct picture upright;
        ok = decode_upright(a, file, by, &h, rules.alpha, limits, &upright);
        if (ok)
            rows_from_picture(&upright, to);
    }
    arena_reset(a, m);
    return ok || fail_kind(FAULT_DATA);
}
