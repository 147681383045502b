/* jpeg.c - JPEG by libjpeg: its error handling by longjmp stays inside this file.
 *
 * A warning is a failure where it is about pixels: of cut or damaged data libjpeg
 * paints the rest grey and goes on.  Inverse transform and chroma upsampling are the
 * library's defaults, as in Pillow. */
#include "data/image/parts.h"

#include <setjmp.h>
#include <jpeglib.h>
#include <jerror.h>

struct reader {
    struct jpeg_decompress_struct lib;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const struct image_limits *limits;
    struct arena *scratch;
    struct rows *to;                    /* NULL: only the header is wanted */
    struct arena joined;                /* EXIF data that comes in several segments */
    struct bytes file;
    struct notes notes;
    struct image_header header;
};

_Noreturn static void give_up(j_common_ptr lib)
{
    struct reader *r = lib->client_data;
    char text[JMSG_LENGTH_MAX];
    lib->err->format_message(lib, text);
    fail("jpeg: %s", text);
    longjmp(r->escape, 1);
}

/* What costs no pixel: other versions and flags than expected, and junk outside scans.
 * Junk before a restart marker is what is left of a damaged stretch of pixels. */
static bool harmless(const struct jpeg_error_mgr *e)
{
    int marker = e->msg_parm.i[1];
    switch (e->msg_code) {
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
    case JWRN_NOT_SEQUENTIAL:
        return true;
    case JWRN_EXTRANEOUS_DATA:
        return marker < JPEG_RST0 || marker > JPEG_RST0 + 7;
    default:
        return false;
    }
}

static void on_message(j_common_ptr lib, int level)
{
    if (level < 0 && !harmless(lib->err))
        give_up(lib);
}

/* EXIF data may come in several segments, which are one after another. */
static void exif_add(struct reader *r, struct bytes more)
{
    struct bytes *exif = &r->notes.exif;
    if (!exif->at) {
        *exif = more;
        return;
    }
    if (!r->joined.block) {
        char *room = arena_room(&r->joined, (size_t)r->file.size);
        exif->at = memcpy(room, exif->at, (size_t)exif->size);
    }
    memcpy(exif->at + exif->size, more.at + 6, (size_t)more.size - 6);
    exif->size += more.size - 6;
}

/* A segment of metadata, seen where it lies: the library would chain copies of all, at
 * the cost of their number squared. */
static boolean on_segment(j_decompress_ptr lib)
{
    static const char adobe[] = "http://ns.adobe.com/xap/1.0/";
    struct reader *r = lib->client_data;
    struct jpeg_source_mgr *src = lib->src;
    const uint8_t *at = src->next_input_byte;
    size_t size = src->bytes_in_buffer < 2 ? 0 : (size_t)(at[0] << 8 | at[1]);
    if (size < 2 || size > src->bytes_in_buffer)
        ERREXIT(lib, size < 2 ? JERR_BAD_LENGTH : JERR_INPUT_EOF);
    struct bytes data = {(char *)(uintptr_t)at + 2, (int64_t)size - 2};
    if (data.size >= 6 && !memcmp(data.at, "Exif\0\0", 6))
        exif_add(r, data);
    else if (data.size >= (int64_t)sizeof adobe &&
             !memcmp(data.at, adobe, sizeof adobe))
        r->notes.xmp = (struct bytes){data.at + sizeof adobe,
                                      data.size - (int64_t)sizeof adobe};
    src->next_input_byte += size;
    src->bytes_in_buffer -= size;
    return TRUE;
}

/* A progressive file may hold any number of scans, each a pass over the whole image. */
static void on_progress(j_common_ptr lib)
{
    struct reader *r = lib->client_data;
    if (r->lib.input_scan_number <= r->limits->scans)
        return;
    fail("jpeg: more than %d scan(s), the limit", r->limits->scans);
    longjmp(r->escape, 1);
}

/* Bytes that the library will take for the image: coefficients of the whole image when
 * it comes in several scans, and the picture. */
static int64_t memory_needed(struct jpeg_decompress_struct *lib)
{
    int64_t memory = (int64_t)lib->image_width * lib->image_height * 3;
    if (!jpeg_has_multiple_scans(lib))
        return memory;
    for (int c = 0; c < lib->num_components; c++)
        memory += (int64_t)lib->comp_info[c].width_in_blocks *
                  lib->comp_info[c].height_in_blocks * DCTSIZE2 * (int)sizeof(JCOEF);
    return memory;
}

static bool read_header(struct reader *r)
{
    struct jpeg_decompress_struct *lib = &r->lib;
    jpeg_set_marker_processor(lib, JPEG_APP0 + 1, on_segment);
    jpeg_read_header(lib, TRUE);
    int n = lib->num_components;
    if (n != 1 && n != 3 && n != 4)
        return fail("jpeg: %d components, expected 1 (grey), 3 or 4 (inks)", n);
    if (!pixels_allowed("jpeg", r->limits, lib->image_width, lib->image_height) ||
        !memory_allowed("jpeg", r->limits, memory_needed(lib)))
        return false;
    r->header = (struct image_header){(int)lib->image_width, (int)lib->image_height,
                                      notes_orientation(&r->notes)};
    return true;
}

/* a b / 255, rounded, for 0..255 */
static int scale255(int a, int b)
{
    int t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* Adobe's polarity, always, as Pillow reads it: 255 means no ink.  YCCK has become CMYK
 * in the library. */
static void inks_to_rgb(const uint8_t *inks, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++)
        for (int c = 0; c < 3; c++) {
            int white = inks[4 * x + 3];
            rgb[3 * x + c] = (uint8_t)(white - scale255(255 - inks[4 * x + c], white));
        }
}

static void read_rows(struct reader *r)
{
    struct jpeg_decompress_struct *lib = &r->lib;
    uint8_t *rgb = arena_push(r->scratch, 3 * (size_t)lib->image_width), *inks = NULL;
    lib->out_color_space = JCS_RGB;
    if (lib->num_components == 4) {
        lib->out_color_space = JCS_CMYK;
        inks = arena_push(r->scratch, 4 * (size_t)lib->image_width);
    }
    jpeg_start_decompress(lib);
    for (int y = 0; y < (int)lib->output_height; y++) {
        JSAMPROW row = inks ? inks : rgb;
        jpeg_read_scanlines(lib, &row, 1);
        if (inks)
            inks_to_rgb(inks, (int)lib->output_width, rgb);
        rows_give(r->to, rgb, (int)lib->output_width);
    }
    jpeg_finish_decompress(lib);
}

/* The library's failures land here; no local variable lives across the jump. */
static bool read_file(struct reader *r)
{
    if (setjmp(r->escape))
        return false;
    jpeg_create_decompress(&r->lib);
    r->lib.progress = &r->progress;
    r->lib.mem->max_memory_to_use = (long)r->limits->memory;
    jpeg_mem_src(&r->lib, (const unsigned char *)r->file.at,
                 (unsigned long)r->file.size);
    if (!read_header(r))
        return false;
    if (r->to)
        read_rows(r);
    return true;
}

static bool read_with(struct reader *r)
{
    r->lib.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = give_up;
    r->errors.emit_message = on_message;
    r->progress.progress_monitor = on_progress;
    r->lib.client_data = r;
    r->joined = arena_make("exif");
    bool ok = read_file(r);
    jpeg_destroy_decompress(&r->lib);
    arena_free(&r->joined);
    return ok;
}

static bool jpeg_header(struct bytes file, const struct image_limits *limits,
                        struct image_header *out)
{
    struct reader r = {.limits = limits, .file = file};
    bool ok = read_with(&r);
    *out = r.header;
    return ok;
}

static bool jpeg_rows(struct arena *scratch, struct bytes file,
                      const struct image_limits *limits, enum alpha_rule alpha,
                      struct rows *to)
{
    (void)alpha;                        /* JPEG has none */
    struct reader r = {.limits = limits, .file = file, .scratch = scratch, .to = to};
    return read_with(&r);
}

const struct decoder jpeg_decoder = {jpeg_header, jpeg_rows};
