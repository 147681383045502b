/* jpeg_files.h - JPEG files that tests make with the library.
 *
 *     struct jpeg_file f;
 *     jpeg_begin(&f, width, height, 3);
 *     jpeg_set_quality(&f.lib, 75, TRUE);             // and what else it is to be
 *     jpeg_start_compress(&f.lib, TRUE);              // then its lines
 *     struct bytes file = jpeg_end(a, &f); */
#ifndef TESTS_DATA_JPEG_FILES_H
#define TESTS_DATA_JPEG_FILES_H

#include "data/image_files.h"

#include <stdio.h>

#include <jpeglib.h>

struct jpeg_file {
    struct jpeg_compress_struct lib;
    struct jpeg_error_mgr errors;
    unsigned char *bytes;
    unsigned long size;
};

/* Of 1 part (grey) or 3 (RGB) a pixel. */
static inline void jpeg_begin(struct jpeg_file *f, int width, int height, int parts)
{
    f->bytes = NULL;
    f->size = 0;
    f->lib.err = jpeg_std_error(&f->errors);
    jpeg_create_compress(&f->lib);
    jpeg_mem_dest(&f->lib, &f->bytes, &f->size);
    f->lib.image_width = (JDIMENSION)width;
    f->lib.image_height = (JDIMENSION)height;
    f->lib.input_components = parts;
    f->lib.in_color_space = parts == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&f->lib);
}

static inline struct bytes jpeg_end(struct arena *a, struct jpeg_file *f)
{
    jpeg_finish_compress(&f->lib);
    jpeg_destroy_compress(&f->lib);
    struct bytes out = {arena_copy(a, f->bytes, f->size), (int64_t)f->size};
    free(f->bytes);
    return out;
}

#endif
