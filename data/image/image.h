/* image.h - an image file's bytes to the patches the vision tower reads.
 *
 * decode -> upright RGB -> smart resize -> normalise -> patches in merge order, equal
 * to the reference processor (docs/numerics.md).  JPEG, PNG and WebP by their
 * libraries; warnings are failures; hard limits stop a hostile file before it costs
 * anything. */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include "base/arena.h"
#include "base/file.h"

struct picture {                        /* rows of RGB, 8 bits each, no padding */
    int width, height;
    uint8_t *rgb;
};

struct image_limits {
    int64_t pixels;                     /* of the decoded image; default 2^27 */
    int64_t memory;                     /* bytes a decoder may take; default 2^30 */
    int scans;                          /* of a progressive JPEG; default 100 */
};
extern const struct image_limits image_limits_default;

enum exif_rule { EXIF_APPLY, EXIF_IGNORE };
enum alpha_rule { ALPHA_WHITE, ALPHA_DROP };    /* composited on white, or left out */
struct image_rules {                    /* how pixels become RGB, the right way up */
    enum exif_rule exif;
    enum alpha_rule alpha;
};
/* The reference processor's two back-ends; they round differently.  PIL is the rule of
 * Pillow 13: vertically first where that loses more than twice as many rows as columns.
 * (Before, only for images more than 100 times as high as wide, or never.) */
enum resize_rule { RESIZE_TORCHVISION, RESIZE_PIL };

enum image_kind { IMAGE_UNKNOWN, IMAGE_JPEG, IMAGE_PNG, IMAGE_WEBP };
enum image_kind image_kind_of(const void *bytes, int64_t size);
/* Fail with what a file of unknown kind is, as far as its bytes tell: GIF, TIFF, ... */
bool image_unread(struct bytes file);

/* Decode to RGB as the reference does: alpha and tRNS composited on white, palettes
 * looked up, grey copied, 16-bit samples cut to their high byte, CMYK and YCCK with
 * Adobe's polarity.  Profiles and gamma are ignored; so is damaged metadata.  Cut
 * files, damaged pixels, other numbers of components and animated WebP fail.
 * Orientation is EXIF's or XMP's, in any format.  A message says what is wrong; the
 * caller adds the name. */
MUST_USE bool image_decode(struct arena *a, struct bytes file, struct image_rules rules,
                           const struct image_limits *limits, struct picture *out);
/* Width and height after orientation, without decoding the pixels. */
MUST_USE bool image_size(struct bytes file, struct image_rules rules,
                         const struct image_limits *limits, int *width, int *height);

struct image_shape {                    /* how pixels become patches */
    int patch, frames, merge;           /* 16, 2, 2 */
    int64_t min_pixels, max_pixels;     /* of the resized image: 65536, 16777216 */
    float mean[3], std[3];              /* 0.5 each */
    enum resize_rule rule;
};
extern const struct image_shape image_shape_default;

/* The size an image is resized to: multiples of patch * merge, area within limits. */
MUST_USE bool image_target(const struct image_shape *s, int width, int height,
                           int *to_width, int *to_height);
/* Antialiased bicubic, a = -0.5, separable, fixed point. */
void image_resize(struct arena *a, const struct picture *from, int to_width,
                  int to_height, enum resize_rule rule, struct picture *out);
/* Patches of a resized picture: grid_h * grid_w rows of channels*frames*patch*patch
 * values, rows in merge order.  `out` holds that many floats. */
void image_patches(const struct image_shape *s, const struct picture *p, float *out);

/* All of it: bytes to patches. */
struct patches {
    int grid_h, grid_w;                 /* tokens = grid_h * grid_w / merge^2 */
    int values;                         /* of one patch */
    float *pixels;                      /* [grid_h * grid_w, values] */
};
MUST_USE bool image_load(struct arena *a, struct bytes file, struct image_rules rules,
                         const struct image_limits *limits, const struct image_shape *s,
                         struct patches *out);

#endif
