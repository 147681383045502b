/* picture.c - a whole image in memory as taker and giver of rows; its orientation. */
#include "data/image/parts.h"

struct turner {
    struct rows rows;
    int width;                          /* pixels of a stored row */
    uint8_t *at;                        /* where the next row's first pixel goes, */
    ptrdiff_t next_row, next_pixel;     /* and how to go on from there, in bytes */
    uint8_t *line;                      /* [3, plane]: a row as stored */
};

void rows_give(struct rows *to, const uint8_t *rgb, int width)
{
    uint8_t *restrict red = to->room(to);
    uint8_t *restrict green = red + to->plane, *restrict blue = green + to->plane;
    for (int x = 0; x < width; x++) {
        red[x] = rgb[3 * x];
        green[x] = rgb[3 * x + 1];
        blue[x] = rgb[3 * x + 2];
    }
    to->done(to);
}

/* c a / 255 + (255 - a), in the fixed point and with the rounding of Pillow's
 * alpha_composite. */
static inline uint8_t on_white(int c, int a)
{
    int sum = c * a + 255 * (255 - a) + 128;
    return (uint8_t)(((sum >> 1) + 128 * sum) >> 15);
}

void rows_give_on_white(struct rows *to, const uint8_t *rgba, int width)
{
    uint8_t *restrict red = to->room(to);
    uint8_t *restrict green = red + to->plane, *restrict blue = green + to->plane;
    for (int x = 0; x < width; x++) {
        int a = rgba[4 * x + 3];
        red[x] = on_white(rgba[4 * x], a);
        green[x] = on_white(rgba[4 * x + 1], a);
        blue[x] = on_white(rgba[4 * x + 2], a);
    }
    to->done(to);
}

uint8_t *picture_room(struct arena *a, int width, int height)
{
    return arena_room(a, 3 * (size_t)width * (size_t)height);
}

static uint8_t *turner_room(struct rows *r)
{
    return ((struct turner *)r)->line;
}

static void turner_done(struct rows *r)
{
    struct turner *t = (struct turner *)r;
    const uint8_t *from = t->line;
    uint8_t *to = t->at;
    for (int x = 0; x < t->width; x++, from++, to += t->next_pixel)
        for (int c = 0; c < 3; c++)
            to[c] = from[(size_t)c * r->plane];
    t->at += t->next_row;
}

struct rows *rows_into_picture(struct arena *a, const struct picture *p,
                               int orientation)
{
    /* EXIF names the side of the upright picture where the stored first row lies, then
     * the side of the stored first column: bottom, right, or exchanged axes. */
    static const struct { bool exchange, right, bottom; } turn[9] = {
        [2] = {false, true, false}, [3] = {false, true, true},
        [4] = {false, false, true}, [5] = {true, false, false},
        [6] = {true, true, false},  [7] = {true, true, true},
        [8] = {true, false, true},
    };
    REQUIRE(orientation >= 1 && orientation <= 8);
    bool exchange = turn[orientation].exchange;
    ptrdiff_t across = 3, down = 3 * (ptrdiff_t)p->width;
    uint8_t *at = p->rgb;
    if (turn[orientation].right) {
        at += (p->width - 1) * across;
        across = -across;
    }
    if (turn[orientation].bottom) {
        at += (p->height - 1) * down;
        down = -down;
    }
    struct turner *t = NEW(a, struct turner, 1);
    int width = exchange ? p->height : p->width;
    *t = (struct turner){
        .rows = {turner_room, turner_done, (size_t)width + ROW_SLACK},
        .width = width,
        .at = at,
        .next_row = exchange ? across : down,
        .next_pixel = exchange ? down : across,
    };
    t->line = arena_push(a, 3 * t->rows.plane);
    return &t->rows;
}

void rows_from_picture(const struct picture *p, struct rows *to)
{
    for (int y = 0; y < p->height; y++)
        rows_give(to, p->rgb + 3 * (size_t)y * (size_t)p->width, p->width);
}
