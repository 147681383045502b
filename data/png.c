/* png.c - PNG by libpng: its error handling by longjmp stays inside this file.
 *
 * Pixels become RGB as Pillow's convert("RGB") makes them: palettes looked up, grey of
 * 1, 2 and 4 bits stretched to 0..255, alpha and tRNS dropped (never blended), the high
 * byte of 16-bit samples, except that 16-bit grey without alpha is clipped at 255, not
 * scaled.  Gamma and colour profiles are ignored. */
#include "data/image_internal.h"

#include <png.h>
#include <setjmp.h>

enum { SIGNATURE = 8, CHUNK_HEAD = 8, CHUNK_EXTRA = 12, CHUNK_LIMIT = 1 << 23 };

struct reader {
    png_struct *lib;
    png_info *info;
    struct arena *scratch;
    struct rows *to;
    struct bytes left;                  /* of the file */
    jmp_buf escape;
};

static uint32_t big_endian(const char *at)
{
    const uint8_t *b = (const uint8_t *)at;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* The orientation is in a chunk before or after the pixels, so walk over them all. */
static int find_orientation(struct bytes file)
{
    for (int64_t at = SIGNATURE; at + CHUNK_EXTRA <= file.size;) {
        int64_t size = big_endian(file.at + at);
        if (size > file.size - at - CHUNK_EXTRA)
            break;
        if (!memcmp(file.at + at + 4, "eXIf", 4))
            return exif_orientation((const uint8_t *)file.at + at + CHUNK_HEAD, size);
        at += CHUNK_EXTRA + size;
    }
    return 1;
}

static bool png_header(struct bytes file, const struct image_limits *limits,
                       struct image_header *out)
{
    if (file.size < 33)
        return fail("png: the file is truncated at %lld bytes", (long long)file.size);
    if (big_endian(file.at + 8) != 13 || memcmp(file.at + 12, "IHDR", 4))
        return fail("png: the first chunk is not an image header");
    int64_t width = big_endian(file.at + 16), height = big_endian(file.at + 20);
    if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX)
        return fail("png: size %lld x %lld is not possible", (long long)width,
                    (long long)height);
    bool interlaced = file.at[28];
    int copies = interlaced ? 2 : 1;    /* the passes need the whole image */
    if (!pixels_allowed("png", limits, width, height) ||
        !memory_allowed("png", limits, 3 * copies * width * height))
        return false;
    *out = (struct image_header){(int)width, (int)height, find_orientation(file)};
    return true;
}

_Noreturn static void give_up(png_struct *lib, const char *text)
{
    struct reader *r = png_get_error_ptr(lib);
    fail("png: %s", text);
    longjmp(r->escape, 1);
}

/* libpng warns about metadata only; what damages pixels is an error. */
static void ignore(png_struct *lib, const char *text)
{
    (void)lib;
    (void)text;
}

static void read_bytes(png_struct *lib, uint8_t *to, size_t size)
{
    struct reader *r = png_get_io_ptr(lib);
    if ((int64_t)size > r->left.size)
        png_error(lib, "the file is truncated");
    memcpy(to, r->left.at, size);
    r->left.at += size;
    r->left.size -= (int64_t)size;
}

/* 16-bit grey is clipped as Pillow clips it; `row` holds `width` big-endian samples. */
static void clip_row(uint8_t *row, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++)
        memset(rgb + 3 * x, row[2 * x] ? 255 : row[2 * x + 1], 3);
}

static void read_image(struct reader *r)
{
    png_struct *lib = r->lib;
    png_set_read_fn(lib, r, read_bytes);
    png_set_user_limits(lib, INT32_MAX, INT32_MAX);     /* image_allowed has decided */
    png_set_chunk_malloc_max(lib, CHUNK_LIMIT);
    /* Profiles and texts can be compressed bombs, and none changes a pixel. */
    png_set_keep_unknown_chunks(lib, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(lib, r->info);
    int width = (int)png_get_image_width(lib, r->info);
    int height = (int)png_get_image_height(lib, r->info);
    bool clip = png_get_bit_depth(lib, r->info) == 16 &&
                png_get_color_type(lib, r->info) == PNG_COLOR_TYPE_GRAY;
    if (!clip) {
        png_set_expand(lib);
        png_set_strip_16(lib);
        png_set_gray_to_rgb(lib);
    }
    png_set_strip_alpha(lib);
    int passes = png_set_interlace_handling(lib);
    png_read_update_info(lib, r->info);
    size_t row_bytes = (size_t)width * (clip ? 2 : 3);
    REQUIRE(png_get_rowbytes(lib, r->info) == row_bytes);

    uint8_t *whole = NULL;
    if (passes > 1) {
        whole = arena_room(r->scratch, row_bytes * (size_t)height);
        for (int pass = 1; pass < passes; pass++)
            for (int y = 0; y < height; y++)
                png_read_row(lib, whole + (size_t)y * row_bytes, NULL);
    }
    uint8_t *line = arena_push(r->scratch, row_bytes);
    uint8_t *clipped = arena_push(r->scratch, 3 * (size_t)width);
    for (int y = 0; y < height; y++) {
        uint8_t *row = whole ? whole + (size_t)y * row_bytes : line;
        png_read_row(lib, row, NULL);
        if (clip)
            clip_row(row, width, clipped);
        rows_give(r->to, clip ? clipped : row, width);
    }
    png_read_end(lib, NULL);
}

/* The library's failures land here; no local variable lives across the jump. */
static bool read_file(struct reader *r)
{
    if (setjmp(r->escape))
        return false;
    read_image(r);
    return true;
}

static bool png_rows(struct arena *scratch, struct bytes file,
                     const struct image_limits *limits, struct rows *to)
{
    (void)limits;                       /* checked with the header */
    struct reader r = {.scratch = scratch, .to = to, .left = file};
    r.lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, give_up, ignore);
    r.info = r.lib ? png_create_info_struct(r.lib) : NULL;
    bool ok = r.info ? read_file(&r)
                     : fail("png: libpng does not start: out of memory, or not the "
                            "version " PNG_LIBPNG_VER_STRING " it was built with");
    png_destroy_read_struct(&r.lib, &r.info, NULL);
    return ok;
}

const struct decoder png_decoder = {png_header, png_rows};
