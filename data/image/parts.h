/* parts.h - what the files of the image loader share; nobody else includes it.
 *
 * Rows flow from a decoder through the resizer into patches, a few at a time, so a
 * large image never exists as a whole unless its file format or a rotation needs it. */
#ifndef IMAGE_PARTS_H
#define IMAGE_PARTS_H

#include "data/image/image.h"

/* Takes an image row by row, top to bottom.  The giver writes a row of red where room()
 * says, green `plane` bytes behind it and blue behind that, where ROW_SLACK bytes more
 * of each may be overwritten, and then calls done(). */
enum { ROW_SLACK = 16 };
struct rows {
    uint8_t *(*room)(struct rows *r);
    void (*done)(struct rows *r);
    size_t plane;
};
/* A row whose pixels are three bytes each. */
void rows_give(struct rows *to, const uint8_t *rgb, int width);
/* The same with a fourth byte, alpha: composited on white. */
void rows_give_on_white(struct rows *to, const uint8_t *rgba, int width);

struct image_header {
    int width, height;                  /* as stored, before any rotation */
    int orientation;                    /* 1 (upright) to 8, as EXIF counts them */
};

/* One file format.  Both fail with what is wrong, and without leaks. */
struct decoder {
    bool (*header)(struct bytes file, const struct image_limits *limits,
                   struct image_header *out);
    /* All rows as stored; `scratch` may be used freely. */
    bool (*rows)(struct arena *scratch, struct bytes file,
                 const struct image_limits *limits, enum alpha_rule alpha,
                 struct rows *to);
};
extern const struct decoder jpeg_decoder, png_decoder, webp_decoder;

/* Fail when an image is larger, or its decoding takes more bytes, than allowed. */
MUST_USE bool pixels_allowed(const char *kind, const struct image_limits *limits,
                             int64_t width, int64_t height);
MUST_USE bool memory_allowed(const char *kind, const struct image_limits *limits,
                             int64_t bytes);

/* What a file says about the way it is held: EXIF data (a TIFF header and its first
 * directory) and XMP, where it has any.  Anything unreadable or out of range counts as
 * upright (1): metadata never fails the pixels. */
struct notes { struct bytes exif, xmp; };
int notes_orientation(const struct notes *n);

/* Rows into the memory of an upright picture, which the caller has made (for
 * orientations 5 to 8 with the stored width and height exchanged). */
struct rows *rows_into_picture(struct arena *a, const struct picture *p,
                               int orientation);
uint8_t *picture_room(struct arena *a, int width, int height);
void rows_from_picture(const struct picture *p, struct rows *to);

/* Rows of one size in, rows of another out to `to`; `to` itself for equal sizes. */
struct rows *rows_resized(struct arena *a, int width, int height, int to_width,
                          int to_height, enum resize_rule rule, struct rows *to);

/* Rows into patches; see image_patches(). */
struct rows *rows_into_patches(struct arena *a, const struct image_shape *s, int width,
                               int height, float *out);

#endif
