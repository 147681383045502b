/* jpeg_quick.h - the JPEGs that data sets consist of, decoded here: what the files of
 * this quick way share.
 *
 * It takes 8-bit Huffman files, sequential or progressive, grey or YCbCr with chroma
 * whole or halved either way, and gives exactly the bits of libjpeg-turbo's defaults.
 * Where anything is unusual, or the library would warn, it steps aside: jpeg.c then
 * lets the library go on, or say what is wrong.  So all messages are the library's.
 *
 * Coefficients of LANES neighbouring blocks, a group, lie together, a line of LANES for
 * each of the 64: the transform runs over LANES blocks at once, and lines that hold
 * nothing cost nothing. */
#ifndef DATA_JPEG_QUICK_H
#define DATA_JPEG_QUICK_H

#include "data/image_internal.h"
#include "data/lanes.h"

enum {
    SIDE = 8, AREA = SIDE * SIDE,       /* of a block */
    JPEG_PARTS = 3, TABLES = 4,
    UNKNOWN = -1,                       /* see jpeg_part.known */
};

/* What stands before the first scan, as the library has read it. */
struct jpeg_frame {
    struct bytes file;
    int64_t scan;                       /* where the header of the first scan begins */
    int width, height, parts;
    bool progressive;
    int interval;                       /* MCUs between restart markers; 0: none */
    struct { int id, h, v; const uint16_t *quant; }   /* natural order */
        part[JPEG_PARTS];
    struct { const uint8_t *counts, *symbols; } table[2][TABLES];   /* DC, AC; NULL */
};

struct jpeg_part {                      /* grey, Y, Cb or Cr */
    int h, v;                           /* blocks in an MCU */
    int across, down;                   /* blocks that hold the image */
    int rows, groups;                   /* rows of blocks that are kept; their groups */
    int16_t *coefficients;              /* [rows, groups, AREA in file order, LANES] */
    uint64_t *live;                     /* [rows, groups]: lines in use, by bit */
    uint64_t *nonzero;                  /* [rows, groups, LANES], progressive files: */
                                        /*     which coefficients are not 0, by bit */
    int8_t known[AREA];                 /* the lowest bit that a scan has brought */
    const uint16_t *quant;              /* natural order */
};

/* ---- jpeg_entropy.c: the bits of a scan to coefficients ---- */

enum { LOOK = 10 };                     /* bits that are looked up at once */
struct huffman {
    bool made;
    uint32_t entry[1 << LOOK];          /* value << 16 | symbol << 8 | bits to drop */
    uint32_t limit[17];                 /* [length]: first 16 bits of longer codes */
    int offset[17];
    uint8_t symbol[256];
};
/* False: the counts [17] and symbols are no code that the library takes. */
MUST_USE bool huffman_make(struct huffman *h, bool dc, const uint8_t *counts,
                           const uint8_t *symbols);

struct bits {
    const uint8_t *at, *stop;           /* `at` beyond `stop`: ran out, or spoilt */
    uint64_t word;                      /* the next bits, the lowest first */
    int left;                           /* how many of them count */
};

struct jpeg_scan {
    int parts;
    struct jpeg_part *part[JPEG_PARTS];
    const struct huffman *dc[JPEG_PARTS], *ac[JPEG_PARTS];
    int first, last, high, low;         /* the band; bits known before, and after */
    bool progressive;
    int across, down;                   /* MCUs */
    int interval;

    const uint8_t *at, *end;            /* of the file: the next segment */
    uint8_t *clean, *clean_end;         /* the current segment, without stuffed bytes */
    struct bits bits;
    int before[JPEG_PARTS];                  /* DC values */
    int run;                            /* blocks that have ended already */
    int left, restarts;                 /* MCUs of this segment; segments so far */
};
/* Bytes that `clean` needs for a file of so many. */
size_t scan_room(int64_t file_size);
MUST_USE bool scan_begin(struct jpeg_scan *s);
/* One row of MCUs, to be kept as number `row`. */
MUST_USE bool scan_row(struct jpeg_scan *s, int row);
MUST_USE bool scan_end(struct jpeg_scan *s);            /* `at` is at a marker then */

/* ---- jpeg_pixels.c: coefficients to rows ---- */

struct jpeg_pixels;
int64_t pixels_memory(const struct jpeg_frame *f, const struct jpeg_part *part);
struct jpeg_pixels *pixels_make(struct arena *a, const struct jpeg_frame *f,
                                struct jpeg_part *part, struct rows *to);
/* A row of MCUs, kept as number `kept_row`; gives the image rows that are certain by
 * then.  False: values outside what every build of the library computes alike. */
MUST_USE bool pixels_row(struct jpeg_pixels *p, int mcu_row, int kept_row);
int pixels_given(const struct jpeg_pixels *p);          /* image rows so far */

/* ---- jpeg_scan.c: all of it ---- */

/* All rows, or false: stepped aside, after `*given` rows that are as the library's. */
MUST_USE bool jpeg_quick(struct arena *scratch, const struct jpeg_frame *f,
                         const struct image_limits *limits, struct rows *to,
                         int *given);

/* ---- jpeg.c ---- */

/* What jpeg_decoder does; tests choose and ask which way a file went. */
MUST_USE bool jpeg_rows_by(struct arena *scratch, struct bytes file,
                           const struct image_limits *limits, struct rows *to,
                           bool may_be_quick, bool *was_quick);

#endif
