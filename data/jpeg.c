/* jpeg.c - JPEG by libjpeg: its error handling by longjmp stays inside this file.
 *
 * Every warning is a failure: libjpeg warns about cut or damaged data, paints the rest
 * grey and goes on.  Inverse transform and chroma upsampling are the library's
 * defaults, as in Pillow. */
#include "data/image_internal.h"

#include <setjmp.h>
#include <jpeglib.h>

struct reader {
    struct jpeg_decompress_struct lib;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const struct image_limits *limits;
    struct arena *scratch;
    struct rows *to;                    /* NULL: only the header is wanted */
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

static void on_message(j_common_ptr lib, int level)
{
    if (level < 0)
        give_up(lib);
}

/* A progressive file may hold any number of scans, each a pass over the whole image. */
static void on_progress(j_common_ptr lib)
{
    struct reader *r = lib->client_data;
    if (r->lib.input_scan_number <= r->limits->scans)
        return;
    fail("jpeg: more than %d scans, the limit", r->limits->scans);
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
    jpeg_save_markers(lib, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(lib, TRUE);
    int n = lib->num_components;
    if (n != 1 && n != 3 && n != 4)
        return fail("jpeg: %d components, expected 1 (grey), 3 or 4 (inks)", n);
    if (!pixels_allowed("jpeg", r->limits, lib->image_width, lib->image_height) ||
        !memory_allowed("jpeg", r->limits, memory_needed(lib)))
        return false;
    r->header = (struct image_header){(int)lib->image_width, (int)lib->image_height, 1};
    for (jpeg_saved_marker_ptr m = lib->marker_list; m; m = m->next)
        if (m->data_length >= 6 && !memcmp(m->data, "Exif\0\0", 6)) {
            r->header.orientation = exif_orientation(m->data, m->data_length);
            break;
        }
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
static bool read_file(struct reader *r, struct bytes file)
{
    if (setjmp(r->escape))
        return false;
    jpeg_create_decompress(&r->lib);
    r->lib.progress = &r->progress;
    r->lib.mem->max_memory_to_use = (long)r->limits->memory;
    jpeg_mem_src(&r->lib, (const unsigned char *)file.at, (unsigned long)file.size);
    if (!read_header(r))
        return false;
    if (r->to)
        read_rows(r);
    return true;
}

static bool read_with(struct reader *r, struct bytes file)
{
    r->lib.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = give_up;
    r->errors.emit_message = on_message;
    r->progress.progress_monitor = on_progress;
    r->lib.client_data = r;
    bool ok = read_file(r, file);
    jpeg_destroy_decompress(&r->lib);
    return ok;
}

static bool jpeg_header(struct bytes file, const struct image_limits *limits,
                        struct image_header *out)
{
    struct reader r = {.limits = limits};
    bool ok = read_with(&r, file);
    *out = r.header;
    return ok;
}

static bool jpeg_rows(struct arena *scratch, struct bytes file,
                      const struct image_limits *limits, struct rows *to)
{
    struct reader r = {.limits = limits, .scratch = scratch, .to = to};
    return read_with(&r, file);
}

const struct decoder jpeg_decoder = {jpeg_header, jpeg_rows};
