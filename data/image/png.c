/* png.c - PNG by libpng: its error handling by longjmp stays inside this file.
 *
 * Pixels become RGB as the reference makes them: palettes looked up, grey of 1, 2 and 4
 * bits stretched to 0..255, the high byte of 16-bit samples, alpha and tRNS composited
 * on white or dropped.  Gamma and colour profiles are ignored. */
#include "data/image/parts.h"

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
    struct bytes file, left;            /* all, and what is still to be read */
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

/* Goes to the next chunk, from `at` 0 to the first; false at the end of what is whole.
 * The chunk's kind stands before its data. */
static bool chunk_next(struct bytes file, int64_t *at, struct bytes *chunk)
{
    *at = *at ? *at : SIGNATURE;
    if (*at + CHUNK_EXTRA > file.size)
        return false;
    int64_t size = big_endian(file.at + *at);
    *chunk = (struct bytes){file.at + *at + CHUNK_HEAD, size};
    if (size > file.size - *at - CHUNK_EXTRA)
        return false;
    *at += CHUNK_EXTRA + size;
    return true;
}

/* The first chunk of a kind, if there is one. */
static void chunk_find(struct bytes file, const char *kind, struct bytes *out)
{
    struct bytes chunk;
    for (int64_t at = 0; !out->at && chunk_next(file, &at, &chunk);)
        if (!memcmp(chunk.at - 4, kind, 4))
            *out = chunk;
}

/* Chunks may say it before or after the pixels, so walk over them all; the last of a
 * kind counts. */
static int find_orientation(struct bytes file)
{
    struct arena a = arena_make("png notes");
    struct notes notes = {0};
    struct remark profile = {0}, xmp = {0};
    struct bytes chunk;
    for (int64_t at = 0; chunk_next(file, &at, &chunk);) {
        const char *kind = chunk.at - 4;
        if (!memcmp(kind, "eXIf", 4))
            notes.exif = chunk;
        remark_read(kind, chunk, "Raw profile type exif", &profile);
        remark_read(kind, chunk, "XML:com.adobe.xmp", &xmp);
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
        return fail("png: the file is truncated at %lld byte(s)", (long long)file.size);
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

/* What becomes of the library's bytes of a pixel: three of colour, a fourth of alpha
 * (on_white), or one that numbers a colour of the palette. */
struct look {
    int bytes;
    bool has_clear;                     /* one colour is clear: it becomes white */
    uint8_t clear[3];
    uint8_t palette[256][4];
};

/* Pillow compares the low byte of what tRNS says with levels of 8 bits, whatever the
 * depth. */
static void clear_read(const struct reader *r, struct look *l)
{
    png_color_16 *c;
    if (r->alpha == ALPHA_DROP || !png_get_tRNS(r->lib, r->info, NULL, NULL, &c))
        return;
    bool one_bit = png_get_bit_depth(r->lib, r->info) == 1;
    bool grey = png_get_color_type(r->lib, r->info) == PNG_COLOR_TYPE_GRAY;
    int level = one_bit && c->gray ? 255 : c->gray;
    l->has_clear = true;
    l->clear[0] = (uint8_t)(grey ? level : c->red);
    l->clear[1] = (uint8_t)(grey ? level : c->green);
    l->clear[2] = (uint8_t)(grey ? level : c->blue);
}

/* Colours that the file does not list are black.  More alphas than colours count too:
 * the library ignores such a chunk, Pillow does not. */
static void palette_read(const struct reader *r, struct look *l)
{
    png_color *colour;
    int count;
    struct bytes alpha = {0};
    if (!png_get_PLTE(r->lib, r->info, &colour, &count))
        count = 0;
    if (r->alpha == ALPHA_WHITE)
        chunk_find(r->file, "tRNS", &alpha);
    for (int i = 0; i < 256; i++) {
        uint8_t *p = l->palette[i];
        if (i < count)
            memcpy(p, (uint8_t[]){colour[i].red, colour[i].green, colour[i].blue}, 3);
        p[3] = i < alpha.size ? (uint8_t)alpha.at[i] : 255;
    }
}

static void ask(const struct reader *r, struct look *l)
{
    png_struct *lib = r->lib;
    int type = png_get_color_type(lib, r->info);
    bool alpha = type & PNG_COLOR_MASK_ALPHA && r->alpha == ALPHA_WHITE;
    if (png_get_bit_depth(lib, r->info) == 16)
        tell_reduced();
    png_set_packing(lib);
    if (type == PNG_COLOR_TYPE_PALETTE) {
        l->bytes = 1;
        palette_read(r, l);
        return;
    }
    clear_read(r, l);
    l->bytes = alpha ? 4 : 3;
    png_set_expand_gray_1_2_4_to_8(lib);
    png_set_strip_16(lib);
    png_set_gray_to_rgb(lib);
    if (!alpha)
        png_set_strip_alpha(lib);
}

static void row_give(const struct look *l, uint8_t *row, int width, uint8_t *wide,
                     struct rows *to)
{
    switch (l->bytes) {
    case 1:
        for (int x = 0; x < width; x++)
            memcpy(wide + 4 * x, l->palette[row[x]], 4);
        rows_give_on_white(to, wide, width);
        break;
    case 3:
        for (int x = 0; l->has_clear && x < width; x++)
            if (!memcmp(row + 3 * x, l->clear, 3))
                memset(row + 3 * x, 255, 3);
        rows_give(to, row, width);
        break;
    default:
        rows_give_on_white(to, row, width);
    }
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
    struct look *look = NEW(r->scratch, struct look, 1);
    ask(r, look);
    int passes = png_set_interlace_handling(lib);
    png_read_update_info(lib, r->info);
    size_t row_bytes = (size_t)width * (size_t)look->bytes;
    REQUIRE(png_get_rowbytes(lib, r->info) == row_bytes);

    uint8_t *whole = NULL;
    if (passes > 1) {
        whole = arena_room(r->scratch, row_bytes * (size_t)height);
        for (int pass = 1; pass < passes; pass++)
            for (int y = 0; y < height; y++)
                png_read_row(lib, whole + (size_t)y * row_bytes, NULL);
    }
    uint8_t *line = arena_push(r->scratch, row_bytes);
    uint8_t *wide = arena_push(r->scratch, 4 * (size_t)width);
    for (int y = 0; y < height; y++) {
        uint8_t *row = whole ? whole + (size_t)y * row_bytes : line;
        png_read_row(lib, row, NULL);
        row_give(look, row, width, wide, r->to);
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
    struct reader r = {.scratch = scratch, .alpha = alpha, .to = to,
                       .file = file, .left = file};
    r.lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, give_up, ignore);
    r.info = r.lib ? png_create_info_struct(r.lib) : NULL;
    bool ok = r.info ? read_file(&r)
                     : fail("png: libpng does not start: out of memory, or not the "
                            "version " PNG_LIBPNG_VER_STRING " it was built with");
    png_destroy_read_struct(&r.lib, &r.info, NULL);
    return ok;
}

const struct decoder png_decoder = {png_header, png_rows};
