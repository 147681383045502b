/* webp.c - WebP by libwebp, and the few bytes of its container that the library hides.
 *
 * Lossy and lossless.  Animations are refused: which frame a caption is about is not
 * ours to guess. */
#include "data/image/parts.h"

#include <webp/decode.h>

enum { RIFF_HEAD = 12, CHUNK_HEAD = 8, HAS_XMP = 4, HAS_EXIF = 8 };

static int64_t little_endian(const char *at)
{
    const uint8_t *b = (const uint8_t *)at;
    return b[0] | b[1] << 8 | b[2] << 16 | (int64_t)b[3] << 24;
}

/* Metadata counts where the extended header's flags announce it, and the first of a
 * kind: what libwebp hands to Pillow. */
static int find_orientation(struct bytes file)
{
    struct notes notes = {0};
    int flags = 0;
    int64_t end = MIN(file.size, little_endian(file.at + 4) + 8);
    for (int64_t at = RIFF_HEAD; at + CHUNK_HEAD <= end;) {
        int64_t size = little_endian(file.at + at + 4);
        struct bytes chunk = {file.at + at + CHUNK_HEAD, size};
        if (size > end - at - CHUNK_HEAD)
            break;
        if (at == RIFF_HEAD && size > 0 && !memcmp(file.at + at, "VP8X", 4))
            flags = chunk.at[0];
        if (flags & HAS_EXIF && !notes.exif.at && !memcmp(file.at + at, "EXIF", 4))
            notes.exif = chunk;
        if (flags & HAS_XMP && !notes.xmp.at && !memcmp(file.at + at, "XMP ", 4))
            notes.xmp = chunk;
        at += CHUNK_HEAD + size + size % 2;
    }
    return notes_orientation(&notes);
}

static bool webp_header(struct bytes file, const struct image_limits *limits,
                        struct image_header *out)
{
    int64_t size = little_endian(file.at + 4) + 8;
    if (size > file.size)
        return fail("webp: the file is truncated at %lld of %lld byte(s)",
                    (long long)file.size, (long long)size);
    WebPBitstreamFeatures found;
    if (WebPGetFeatures((const uint8_t *)file.at, (size_t)file.size, &found))
        return fail("webp: the header is damaged");
    if (found.has_animation)
        return fail("webp: an animation, expected a still image");
    enum { LOSSLESS = 2 };
    int work = found.has_alpha || found.format == LOSSLESS ? 4 + found.has_alpha : 0;
    int64_t pixels = (int64_t)found.width * found.height;
    if (!pixels_allowed("webp", limits, found.width, found.height) ||
        !memory_allowed("webp", limits, (3 + 3 + work) * pixels))
        return false;
    *out = (struct image_header){found.width, found.height, find_orientation(file)};
    return true;
}

static bool webp_rows(struct arena *scratch, struct bytes file,
                      const struct image_limits *limits, enum alpha_rule alpha,
                      struct rows *to)
{
    struct image_header h;
    if (!webp_header(file, limits, &h))
        return false;
    WebPDecoderConfig c;
    if (!WebPInitDecoderConfig(&c))
        return fail("webp: libwebp is not the version it was built with");
    WebPGetFeatures((const uint8_t *)file.at, (size_t)file.size, &c.input);
    bool clear = c.input.has_alpha && alpha == ALPHA_WHITE;
    size_t row_bytes = (size_t)(clear ? 4 : 3) * (size_t)h.width;
    size_t bytes = row_bytes * (size_t)h.height;
    uint8_t *pixels = arena_room(scratch, bytes);
    c.output.colorspace = clear ? MODE_RGBA : MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA = (WebPRGBABuffer){pixels, (int)row_bytes, bytes};
    VP8StatusCode status = WebPDecode((const uint8_t *)file.at, (size_t)file.size, &c);
    WebPFreeDecBuffer(&c.output);
    if (status != VP8_STATUS_OK)
        return fail("webp: the pixels are damaged or cut");
    for (int y = 0; y < h.height; y++) {
        const uint8_t *row = pixels + (size_t)y * row_bytes;
        if (clear)
            rows_give_on_white(to, row, h.width);
        else
            rows_give(to, row, h.width);
    }
    return true;
}

const struct decoder webp_decoder = {webp_header, webp_rows};
