/* webp.c - WebP by libwebp, and the few bytes of its container that the library hides.
 *
 * Lossy and lossless; alpha is dropped, never blended.  Animations are refused: which
 * frame a caption is about is not ours to guess. */
#include "data/image_internal.h"

#include <webp/decode.h>

enum { RIFF_HEAD = 12, CHUNK_HEAD = 8 };

static int64_t little_endian(const char *at)
{
    const uint8_t *b = (const uint8_t *)at;
    return b[0] | b[1] << 8 | b[2] << 16 | (int64_t)b[3] << 24;
}

static int find_orientation(struct bytes file)
{
    for (int64_t at = RIFF_HEAD; at + CHUNK_HEAD <= file.size;) {
        int64_t size = little_endian(file.at + at + 4);
        if (size > file.size - at - CHUNK_HEAD)
            break;
        if (!memcmp(file.at + at, "EXIF", 4))
            return exif_orientation((const uint8_t *)file.at + at + CHUNK_HEAD, size);
        at += CHUNK_HEAD + size + size % 2;
    }
    return 1;
}

static bool webp_header(struct bytes file, const struct image_limits *limits,
                        struct image_header *out)
{
    int64_t size = little_endian(file.at + 4) + 8;
    if (size > file.size)
        return fail("webp: the file is truncated at %lld of %lld bytes",
                    (long long)file.size, (long long)size);
    WebPBitstreamFeatures found;
    if (WebPGetFeatures((const uint8_t *)file.at, (size_t)file.size, &found))
        return fail("webp: the header is damaged");
    if (found.has_animation)
        return fail("webp: an animation, expected a still image");
    enum { LOSSLESS = 2 };
    int work = found.has_alpha || found.format == LOSSLESS ? 4 : 0;
    int64_t pixels = (int64_t)found.width * found.height;
    if (!pixels_allowed("webp", limits, found.width, found.height) ||
        !memory_allowed("webp", limits, (3 + 3 + work) * pixels))
        return false;
    *out = (struct image_header){found.width, found.height, find_orientation(file)};
    return true;
}

static bool webp_rows(struct arena *scratch, struct bytes file,
                      const struct image_limits *limits, struct rows *to)
{
    struct image_header h;
    if (!webp_header(file, limits, &h))
        return false;
    size_t row_bytes = 3 * (size_t)h.width, bytes = row_bytes * (size_t)h.height;
    uint8_t *rgb = arena_room(scratch, bytes);
    if (!WebPDecodeRGBInto((const uint8_t *)file.at, (size_t)file.size, rgb, bytes,
                           (int)row_bytes))
        return fail("webp: the pixels are damaged or cut");
    rows_from_picture(&(struct picture){h.width, h.height, rgb}, to);
    return true;
}

const struct decoder webp_decoder = {webp_header, webp_rows};
