/* jpeg_pixels.c - JPEG coefficients to rows: inverse transform, chroma between its
 * samples, colour.
 *
 * Bits as libjpeg-turbo computes them with its defaults: the accurate integer transform
 * (Loeffler, Ligtenberg, Moschytz), triangle filters for halved chroma, 16 fraction
 * bits for colour.  Loops run over LANES blocks or along a row, in the narrowest
 * integers that hold their values. */
#include "data/jpeg_quick.h"

/* Which coefficient comes when: row * SIDE + column. */
static const uint8_t natural[AREA] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

struct plane {                          /* the samples of one part */
    const struct jpeg_part *part;
    int high;                           /* rows that hold the image */
    int wide;                           /* samples of them */
    int room;                           /* rows kept: of two rows of MCUs */
    size_t pitch;
    uint8_t *samples;                   /* [room, pitch]; row y is at y % room */
    bool halved_across, halved_down;
    uint16_t *sums;                     /* [1 + wide + 1]: see widen() */
    uint8_t *line;                      /* a row as wide as the image */
};

struct jpeg_pixels {
    const struct jpeg_frame *frame;
    struct rows *to;
    int most_v;
    int mcu_rows;
    int given;
    struct plane plane[JPEG_PARTS];
};

/* ---- the transform of LANES blocks ---- */

/* Bits of fraction in the constants, and those kept between the passes. */
enum { FRACTION = 13, KEPT = 2 };

/* One dimension: products of cosines with FRACTION bits.  The odd half is its matrix
 * multiplied out, which gives the same sums as the library's steps.  Results are
 * rounded to `shift` bits less, and `base` is added.  Without `upper`, v[4] and up are
 * 0. */
static inline void transform(const LANES_I16 v[SIDE], bool upper, int shift, int base,
                             LANES_I32 to[SIDE])
{
    static const int16_t even[2][2] = {{10703, 4433}, {4433, -10704}};
    static const int16_t odd[4][4] = {
        {11363, 9633, 6437, 2260},
        {9633, -2259, -11362, -6436},
        {6437, -11362, 2261, 9633},
        {2260, -6436, 9633, -11363},
    };
    int16_t v26[2 * LANES], v13[2 * LANES], v57[2 * LANES];
    lanes_pair(&v[2], &v[6], v26);
    lanes_pair(&v[1], &v[3], v13);
    lanes_pair(&v[5], &v[7], v57);
    LANES_I32 a[4], b[4];
    for (int i = 0; i < 2; i++) {
        LANES_I16 sum = upper ? i ? v[0] - v[4] : v[0] + v[4] : v[0];
        LANES_I32 e = {0}, middle = __builtin_convertvector(sum, LANES_I32);
        lanes_add_pairs(&e, v26, even[i]);
        middle = middle * (1 << FRACTION) + (1 << (shift - 1)) + base * (1 << shift);
        a[i] = middle + e;
        a[3 - i] = middle - e;
    }
    for (int i = 0; i < 4; i++) {
        b[i] = (LANES_I32){0};
        lanes_add_pairs(&b[i], v13, odd[i]);
        if (upper)
            lanes_add_pairs(&b[i], v57, odd[i] + 2);
        to[i] = (a[i] + b[i]) >> shift;
        to[7 - i] = (a[i] - b[i]) >> shift;
    }
}

/* The library's builds agree while no sum exceeds 16 bits, which is so while the sizes
 * of no column's dequantised coefficients add up to more than this: a pass makes up to
 * 4 x 1.39 times as much, and the second adds two.  Pictures come nowhere near. */
enum { MOST_COLUMN = 2900 };

struct group {                          /* LANES blocks: coefficients, then sums */
    LANES_I16 v[SIDE][SIDE];            /* row, column */
    int used[SIDE];                     /* rows of a column that are not 0, by bit */
};

/* False if a block exceeds. */
static inline bool dequantise(const struct jpeg_part *p, size_t at, struct group *g)
{
    const LANES_I16 *lines = (const LANES_I16 *)p->coefficients + at * AREA;
    LANES_U16 sum[SIDE] = {{0}};
    LANES_I16 wrong = {0};
    memset(g, 0, sizeof *g);
    for (uint64_t live = p->live[at]; live; live &= live - 1) {
        int k = __builtin_ctzll(live), r = natural[k] / SIDE, c = natural[k] % SIDE;
        int quant = p->quant[natural[k]];
        int16_t most = (int16_t)(MOST_COLUMN / MAX(quant, 1)), least = (int16_t)-most;
        LANES_I16 v = (LANES_I16)((LANES_U16)lines[k] * (uint16_t)quant);
        LANES_I16 negative = v < 0;
        wrong |= (lines[k] > most) | (lines[k] < least);
        sum[c] += (LANES_U16)(v ^ negative) - (LANES_U16)negative;
        g->v[r][c] = v;
        g->used[c] |= 1 << r;
    }
    for (int c = 0; c < SIDE; c++)
        wrong |= (LANES_I16)(sum[c] > MOST_COLUMN);
    int any = 0;
    for (int i = 0; i < LANES; i++)
        any |= wrong[i];
    return !any;
}

static inline void transform_column(struct group *g, int c, bool upper)
{
    LANES_I16 v[SIDE];
    LANES_I32 sums[SIDE];
    for (int r = 0; r < SIDE; r++)
        v[r] = g->v[r][c];
    transform(v, upper, FRACTION - KEPT, 0, sums);
    for (int r = 0; r < SIDE; r++)
        g->v[r][c] = __builtin_convertvector(sums[r], LANES_I16);
}

static inline void transform_row(const LANES_I16 v[SIDE], bool upper,
                                 uint8_t to[SIDE][LANES])
{
    LANES_I32 sums[SIDE];
    transform(v, upper, FRACTION + KEPT + 3, 128, sums);
    for (int c = 0; c < SIDE; c++)
        lanes_clamp(&sums[c], to[c]);
}

/* [SIDE, LANES] to [LANES, SIDE]: interleaving the halves moves the uppermost bit of an
 * index below the others. */
static inline void turn(const uint8_t *restrict from, uint8_t *restrict to)
{
    enum { HALF = SIDE * LANES / 2 };
    uint8_t other[2 * HALF];
    for (int i = 0; i < HALF; i++) {
        to[2 * i] = from[i];
        to[2 * i + 1] = from[HALF + i];
    }
    for (int i = 0; i < HALF; i++) {
        other[2 * i] = to[i];
        other[2 * i + 1] = to[HALF + i];
    }
    for (int i = 0; i < HALF; i++) {
        to[2 * i] = other[i];
        to[2 * i + 1] = other[HALF + i];
    }
}

/* A group of blocks to SIDE rows of samples; false if one exceeds.  Most have nothing
 * in their upper frequencies. */
static bool transform_group(const struct jpeg_part *p, size_t at, uint8_t *to,
                            size_t pitch)
{
    struct group g;
    uint8_t level[SIDE][SIDE][LANES];
    if (!dequantise(p, at, &g))
        return false;
    int columns = 0;
    for (int c = 0; c < SIDE; c++) {
        if (g.used[c] >> SIDE / 2)
            transform_column(&g, c, true);
        else if (g.used[c])
            transform_column(&g, c, false);
        columns |= (g.used[c] > 0) << c;
    }
    for (int r = 0; r < SIDE; r++)
        if (columns >> SIDE / 2)
            transform_row(g.v[r], true, level[r]);
        else
            transform_row(g.v[r], false, level[r]);
    for (int r = 0; r < SIDE; r++, to += pitch)
        turn(&level[r][0][0], to);
    return true;
}

/* ---- chroma between its samples ---- */

/* Twice as many samples, each 3/4 of the nearer and 1/4 of the farther neighbour, with
 * `bits` removed that include those of the sums; left and right are rounded apart.
 * sums[-1] and sums[n] are there to be written. */
static inline void widen(uint16_t *restrict sums, int n, int bits, int left, int right,
                         uint8_t *restrict to)
{
    sums[-1] = sums[0];
    sums[n] = sums[n - 1];
    for (int x = 0; x < n; x++) {
        to[2 * x] = (uint8_t)((3 * sums[x] + sums[x - 1] + left) >> bits);
        to[2 * x + 1] = (uint8_t)((3 * sums[x] + sums[x + 1] + right) >> bits);
    }
}

static const uint8_t *plane_row(const struct plane *p, int y)
{
    y = MAX(MIN(y, p->high - 1), 0);
    return p->samples + (size_t)(y % p->room) * p->pitch;
}

/* A row as wide as the image.  As in the library, two samples or fewer are repeated
 * where a part is halved across. */
static const uint8_t *plane_line(const struct plane *p, int y)
{
    const uint8_t *restrict near = plane_row(p, p->halved_down ? y / 2 : y);
    if (!p->halved_across && !p->halved_down)
        return near;
    const uint8_t *restrict far = plane_row(p, y % 2 ? y / 2 + 1 : y / 2 - 1);
    uint8_t *restrict line = p->line;
    uint16_t *restrict sums = p->sums + 1;
    int n = p->wide;
    if (p->halved_across && n <= 2) {
        for (int x = 0; x < n; x++)
            line[2 * x] = line[2 * x + 1] = near[x];
    } else if (p->halved_across && p->halved_down) {
        for (int x = 0; x < n; x++)
            sums[x] = (uint16_t)(3 * near[x] + far[x]);
        widen(sums, n, 4, 8, 7, line);
    } else if (p->halved_across) {
        for (int x = 0; x < n; x++)
            sums[x] = near[x];
        widen(sums, n, 2, 1, 2, line);
    } else {
        int round = y % 2 ? 2 : 1;
        for (int x = 0; x < n; x++)
            line[x] = (uint8_t)((3 * near[x] + far[x] + round) >> 2);
    }
    return line;
}

/* ---- colour ---- */

/* R = Y + 1.402 Cr, G = Y - 0.34414 Cb - 0.71414 Cr, B = Y + 1.772 Cb, the products
 * rounded from 16 fraction bits.  Factors stand in two bytes here: with f = 256 h + l,
 * (f c + 2^15) >> 16 equals (h c + 2^7 + (l c >> 8)) >> 8, which fits 16 bits. */
static void colour_row(int width, const uint8_t *restrict luma,
                       const uint8_t *restrict cb, const uint8_t *restrict cr,
                       uint8_t *restrict red, uint8_t *restrict green,
                       uint8_t *restrict blue)
{
    for (int x = 0; x < width; x++) {
        int16_t y = luma[x], b = (int16_t)(cb[x] - 128), r = (int16_t)(cr[x] - 128);
        int16_t r_low = (int16_t)(233 * r), b_low = (int16_t)(-94 * b);
        int16_t g_low = (int16_t)(46 * r - 26 * b);
        int16_t r_part = (int16_t)(102 * r + 128 + (r_low >> 8));
        int16_t b_part = (int16_t)(-58 * b + 128 + (b_low >> 8));
        int16_t g_part = (int16_t)(73 * r - 88 * b + 128 + (g_low >> 8));
        int16_t to_red = (int16_t)(y + r + (r_part >> 8));
        int16_t to_green = (int16_t)(y - r + (g_part >> 8));
        int16_t to_blue = (int16_t)(y + 2 * b + (b_part >> 8));
        red[x] = (uint8_t)MAX(MIN(to_red, 255), 0);
        green[x] = (uint8_t)MAX(MIN(to_green, 255), 0);
        blue[x] = (uint8_t)MAX(MIN(to_blue, 255), 0);
    }
}

/* ---- rows ---- */

static int halves(int n, bool halved)
{
    return halved ? (n + 1) / 2 : n;
}

static struct plane plane_of(const struct jpeg_frame *f, const struct jpeg_part *part,
                             int most_h, int most_v)
{
    struct plane p = {
        .part = part,
        .room = 2 * part->v * SIDE,
        .pitch = (size_t)part->groups * LANES * SIDE,
        .halved_across = part->h < most_h,
        .halved_down = part->v < most_v,
    };
    p.high = halves(f->height, p.halved_down);
    p.wide = halves(f->width, p.halved_across);
    return p;
}

int64_t pixels_memory(const struct jpeg_frame *f, const struct jpeg_part *part)
{
    int64_t bytes = 0;
    for (int i = 0; i < f->parts; i++) {
        struct plane p = plane_of(f, &part[i], part[0].h, part[0].v);
        bytes += p.room * (int64_t)p.pitch + 4 * ((int64_t)f->width + 4);
    }
    return bytes;
}

struct jpeg_pixels *pixels_make(struct arena *a, const struct jpeg_frame *f,
                                struct jpeg_part *part, struct rows *to)
{
    struct jpeg_pixels *p = NEW(a, struct jpeg_pixels, 1);
    *p = (struct jpeg_pixels){.frame = f, .to = to, .most_v = part[0].v};
    p->mcu_rows = (f->height + SIDE * p->most_v - 1) / (SIDE * p->most_v);
    for (int i = 0; i < f->parts; i++) {
        p->plane[i] = plane_of(f, &part[i], part[0].h, part[0].v);
        struct plane *plane = &p->plane[i];
        plane->samples = arena_room(a, (size_t)plane->room * plane->pitch);
        plane->sums = NEW(a, uint16_t, plane->wide + 2);
        plane->line = arena_push(a, (size_t)f->width + 1);
    }
    return p;
}

int pixels_given(const struct jpeg_pixels *p)
{
    return p->given;
}

static void give_row(struct jpeg_pixels *p, int y)
{
    int width = p->frame->width;
    uint8_t *red = p->to->room(p->to);
    uint8_t *green = red + p->to->plane, *blue = green + p->to->plane;
    const uint8_t *luma = plane_row(&p->plane[0], y);
    if (p->frame->parts == 1) {
        memcpy(red, luma, (size_t)width);
        memcpy(green, luma, (size_t)width);
        memcpy(blue, luma, (size_t)width);
    } else {
        const uint8_t *cb = plane_line(&p->plane[1], y);
        const uint8_t *cr = plane_line(&p->plane[2], y);
        colour_row(width, luma, cb, cr, red, green, blue);
    }
    p->to->done(p->to);
}

static bool transform_rows(const struct plane *p, int mcu_row, int kept_row)
{
    int v = p->part->v, groups = p->part->groups;
    for (int r = 0; r < v; r++) {
        size_t from = (size_t)(kept_row * v + r) * (size_t)groups;
        size_t row = (size_t)((mcu_row * v + r) * SIDE % p->room);
        uint8_t *to = p->samples + row * p->pitch;
        for (int g = 0; g < groups; g++, to += LANES * SIDE)
            if (!transform_group(p->part, from + (size_t)g, to, p->pitch))
                return false;
    }
    return true;
}

bool pixels_row(struct jpeg_pixels *p, int mcu_row, int kept_row)
{
    int rows = p->most_v * SIDE, certain = (mcu_row + 1) * rows;
    for (int i = 0; i < p->frame->parts; i++) {
        if (!transform_rows(&p->plane[i], mcu_row, kept_row))
            return false;
        if (p->plane[i].halved_down)    /* the last row needs the next chroma row */
            certain = (mcu_row + 1) * rows - 1;
    }
    if (mcu_row == p->mcu_rows - 1)
        certain = p->frame->height;
    for (; p->given < certain; p->given++)
        give_row(p, p->given);
    return true;
}
