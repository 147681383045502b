/* png.c - PNG by libpng: its error handling by longjmp stays inside this file.
 *
 * Pixels become RGB as the reference makes them: palettes looked up, grey of 1, 2 and 4
 * bits stretched to 0..255, the high byte of 16-bit samples, alpha and tRNS composited
 * on white or dropped.  Gamma and colour profiles are ignored. */
#include "data/image_internal.h"

#include "base/log.h"

#include <ctype.h>
#include <png.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <zlib.h>

enum { SIGNATURE = 8, CHUNK_HEAD = 8, CHUNK_EXTRA = 12, CHUNK_LIMIT = 1 << 23 };
enum { TEXT_LIMIT = 1 << 20 };          /* of a compressed remark, as in Pillow */

struct reader {
    png_struct *lib;
    png_info *info;
    struct arena *scratch;
    enum alpha_rule alpha;
    struct rows *to;
    struct bytes left;                  /* of the file */
    jmp_buf escape;
};

static uint32_t big_endian(const char *at)
{
    const uint8_t *b = (const uint8_t *)at;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* ---- what it says of its orientation ---- */

/* The text of a chunk, from behind its keyword on; packed: by zlib. */
struct remark { struct bytes text; bool packed; };

static bool keyword(struct bytes chunk, const char *word, struct bytes *rest)
{
    int64_t size = (int64_t)strlen(word) + 1;
    if (chunk.size < size || memcmp(chunk.at, word, (size_t)size))
        return false;
    *rest = (struct bytes){chunk.at + size, chunk.size - size};
    return true;
}

static bool skip_text(struct bytes *at)
{
    char *end = at->size ? memchr(at->at, '\0', (size_t)at->size) : NULL;
    if (!end)
        return false;
    at->size -= end + 1 - at->at;
    at->at = end + 1;
    return true;
}

/* The remark with such a keyword in a tEXt, zTXt or iTXt chunk, if this is one. */
static void remark_read(const char *kind, struct bytes chunk, const char *word,
                        struct remark *out)
{
    struct bytes rest;
    if (!keyword(chunk, word, &rest))
        return;
    if (!memcmp(kind, "tEXt", 4)) {
        *out = (struct remark){rest, false};
    } else if (!memcmp(kind, "zTXt", 4) && rest.size > 1 && !rest.at[0]) {
        *out = (struct remark){{rest.at + 1, rest.size - 1}, true};
    } else if (!memcmp(kind, "iTXt", 4) && rest.size > 2 && !rest.at[1]) {
        bool packed = rest.at[0];
        rest = (struct bytes){rest.at + 2, rest.size - 2};
        if (skip_text(&rest) && skip_text(&rest))       /* language, keyword in it */
            *out = (struct remark){rest, packed};
    }
}

static struct bytes remark_text(struct arena *a, const struct remark *r)
{
    if (!r->packed)
        return r->text;
    uLongf size = TEXT_LIMIT;
    struct bytes out = {arena_room(a, TEXT_LIMIT), 0};
    if (uncompress((Bytef *)out.at, &size, (const Bytef *)r->text.at,
                   (uLong)r->text.size) == Z_OK)
        out.size = (int64_t)size;
    return out;
}

/* EXIF data as ImageMagick writes it: three lines, then hexadecimal digits. */
static struct bytes profile_bytes(struct arena *a, struct bytes text)
{
    static const char digits[] = "0123456789abcdef";
    struct bytes out = {arena_room(a, (size_t)text.size + 1), 0};
    int lines = 0, half = -1;
    for (int64_t i = 0; i < text.size; i++) {
        char c = text.at[i];
        const char *digit = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
        if (lines < 3) {
            lines += c == '\n';
        } else if (digit && half < 0) {
            half = (int)(digit - digits);
        } else if (digit) {
            out.at[out.size++] = (char)(half << 4 | (int)(digit - digits));
            half = -1;
        } else if (!isspace((unsigned char)c)) {
            return (struct bytes){0};
        }
    }
    return out;
}

/* Chunks may say it before or after the pixels, so walk over them all; the last of a
 * kind counts. */
static int find_orientation(struct bytes file)
{
    struct arena a = arena_make("png notes");
    struct notes notes = {0};
    struct remark profile = {0}, xmp = {0};
    for (int64_t at = SIGNATURE; at + CHUNK_EXTRA <= file.size;) {
        int64_t size = big_endian(file.at + at);
        const char *kind = file.at + at + 4;
        struct bytes chunk = {file.at + at + CHUNK_HEAD, size};
        if (size > file.size - at - CHUNK_EXTRA)
            break;
        if (!memcmp(kind, "eXIf", 4))
            notes.exif = chunk;
        remark_read(kind, chunk, "Raw profile type exif", &profile);
        remark_read(kind, chunk, "XML:com.adobe.xmp", &xmp);
        at += CHUNK_EXTRA + size;
    }
    if (!notes.exif.at)
        notes.exif = profile_bytes(&a, remark_text(&a, &profile));
    notes.xmp = remark_text(&a, &xmp);
    int found = notes_orientation(&notes);
    arena_free(&a);
    return found;
}

/* ---- its pixels ---- */

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
    int bytes = interlaced ? 3 + 4 : 3; /* the passes need the whole image */
    if (!pixels_allowed("png", limits, width, height) ||
        !memory_allowed("png", limits, bytes * width * height))
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

/* Said once: a run that loses half of its bits should know. */
static void tell_reduced(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        log_warn("data", "16-bit reduced: of images with 16 bits a sample the upper 8 "
                 "are read");
}

/* The colour that tRNS makes clear; Pillow compares the low byte of what the file says
 * with levels of 8 bits, whatever the depth. */
struct clear { bool is; uint8_t rgb[3]; };

static struct clear clear_colour(const struct reader *r)
{
    png_color_16 *c;
    int type = png_get_color_type(r->lib, r->info);
    if (r->alpha == ALPHA_DROP || type == PNG_COLOR_TYPE_PALETTE ||
        !png_get_tRNS(r->lib, r->info, NULL, NULL, &c))
        return (struct clear){0};
    if (type == PNG_COLOR_TYPE_RGB)
        return (struct clear){true, {c->red & 255, c->green & 255, c->blue & 255}};
    bool one_bit = png_get_bit_depth(r->lib, r->info) == 1;
    uint8_t level = one_bit ? (c->gray ? 255 : 0) : c->gray & 255;
    return (struct clear){true, {level, level, level}};
}

static void clear_to_white(const struct clear *c, uint8_t *rgb, int width)
{
    for (int x = 0; x < width; x++)
        if (!memcmp(rgb + 3 * x, c->rgb, 3))
            memset(rgb + 3 * x, 255, 3);
}

/* Asks for RGB or RGBA, 8 bits each; returns how many bytes a pixel gets. */
static int ask_for_rgb(const struct reader *r)
{
    png_struct *lib = r->lib;
    bool palette = png_get_color_type(lib, r->info) == PNG_COLOR_TYPE_PALETTE;
    bool alpha = png_get_color_type(lib, r->info) & PNG_COLOR_MASK_ALPHA ||
                 (palette && png_get_valid(lib, r->info, PNG_INFO_tRNS));
    if (palette)
        png_set_palette_to_rgb(lib);
    else
        png_set_expand_gray_1_2_4_to_8(lib);
    if (png_get_bit_depth(lib, r->info) == 16)
        tell_reduced();
    png_set_strip_16(lib);
    png_set_gray_to_rgb(lib);
    if (alpha && r->alpha == ALPHA_WHITE)
        return 4;
    png_set_strip_alpha(lib);
    return 3;
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
    struct clear clear = clear_colour(r);
    int bytes = ask_for_rgb(r);
    int passes = png_set_interlace_handling(lib);
    png_read_update_info(lib, r->info);
    size_t row_bytes = (size_t)width * (size_t)bytes;
    REQUIRE(png_get_rowbytes(lib, r->info) == row_bytes);

    uint8_t *whole = NULL;
    if (passes > 1) {
        whole = arena_room(r->scratch, row_bytes * (size_t)height);
        for (int pass = 1; pass < passes; pass++)
            for (int y = 0; y < height; y++)
                png_read_row(lib, whole + (size_t)y * row_bytes, NULL);
    }
    uint8_t *line = arena_push(r->scratch, row_bytes);
    for (int y = 0; y < height; y++) {
        uint8_t *row = whole ? whole + (size_t)y * row_bytes : line;
        png_read_row(lib, row, NULL);
        if (clear.is)
            clear_to_white(&clear, row, width);
        if (bytes == 4)
            rows_give_on_white(r->to, row, width);
        else
            rows_give(r->to, row, width);
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
                     const struct image_limits *limits, enum alpha_rule alpha,
                     struct rows *to)
{
    (void)limits;                       /* checked with the header */
    struct reader r = {.scratch = scratch, .alpha = alpha, .to = to, .left = file};
    r.lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, give_up, ignore);
    r.info = r.lib ? png_create_info_struct(r.lib) : NULL;
    bool ok = r.info ? read_file(&r)
                     : fail("png: libpng does not start: out of memory, or not the "
                            "version " PNG_LIBPNG_VER_STRING " it was built with");
    png_destroy_read_struct(&r.lib, &r.info, NULL);
    return ok;
}

const struct decoder png_decoder = {png_header, png_rows};
