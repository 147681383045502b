/* resize.c - antialiased bicubic resampling, the same bits as the reference processor.
 *
 * Both back-ends of the reference work in fixed point with 8 bits between the
 * horizontal and the vertical pass; they differ only in the number of fraction bits.
 * Weights are computed once per axis.  Rows come in strips of 16, which are transposed
 * so that both passes are one loop over 48 neighbours: no gathers, any taps. */
#include "data/image_internal.h"

#include <math.h>

enum { STRIP = 16, CHUNK = 3 * STRIP };
_Static_assert((int)ROW_SLACK >= (int)CHUNK, "a row's last chunk ends in its slack");

/* ---- the weights of one axis ---- */

struct axis {
    int taps;                           /* the most that an output needs */
    int bits;                           /* of fraction in a weight */
    int *first, *count;                 /* [outputs]: the inputs it is made of */
    int32_t *weight;                    /* [outputs, taps] */
};

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* PIL: 32 bits less 8 for the value and 2 for the sum.  torchvision: the weights are
 * 16-bit, so as many as the largest weight leaves. */
static int fraction_bits(enum resize_rule rule, double largest)
{
    enum { MOST = 32 - 8 - 2 };
    if (rule == RESIZE_PIL)
        return MOST;
    int bits = 0;
    while (bits < MOST && (int)(0.5 + largest * (double)(1 << (bits + 1))) < 1 << 15)
        bits++;
    return bits;
}

static struct axis axis_make(struct arena *a, int from, int to, enum resize_rule rule)
{
    double scale = (double)from / to, spread = fmax(scale, 1), support = 2 * spread;
    int taps = (int)ceil(support) * 2 + 1;
    struct axis x = {
        .taps = taps,
        .first = NEW(a, int, to),
        .count = NEW(a, int, to),
        .weight = NEW(a, int32_t, (int64_t)to * taps),
    };
    double *exact = NEW(a, double, (int64_t)to * taps), largest = 0;
    for (int i = 0; i < to; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        double *w = exact + (int64_t)i * taps;
        int first = MAX((int)(center - support + 0.5), 0);
        int count = MIN((int)(center + support + 0.5), from) - first;
        for (int k = 0; k < count; k++)
            sum += w[k] = cubic((k + first - center + 0.5) * (1 / spread));
        for (int k = 0; k < count; k++)
            largest = fmax(largest, w[k] /= sum);
        x.first[i] = first;
        x.count[i] = count;
    }
    x.bits = fraction_bits(rule, largest);
    for (int64_t i = 0; i < (int64_t)to * taps; i++)
        x.weight[i] = (int32_t)(exact[i] * (1 << x.bits) + copysign(0.5, exact[i]));
    return x;
}

/* to[i] = clamp(sum_k weight[k] from[k stride + i] / 2^bits), rounded; CHUNK values.
 * The time goes here.  Inputs are 32 bits wide already, so that the compiler has one
 * lane width to work with and keeps the sums in registers. */
static inline void blend(const int32_t *restrict from, size_t stride,
                         const int32_t *restrict weight, int count, int bits,
                         uint8_t *restrict to)
{
    int32_t sum[CHUNK];
    for (int i = 0; i < CHUNK; i++)
        sum[i] = 1 << (bits - 1);
    for (int k = 0; k < count; k++, from += stride)
        for (int i = 0; i < CHUNK; i++)
            sum[i] += weight[k] * from[i];
    for (int i = 0; i < CHUNK; i++)
        sum[i] = MAX(MIN(sum[i] >> bits, 255), 0);
    for (int i = 0; i < CHUNK; i++)
        to[i] = (uint8_t)sum[i];
}

/* ---- 16 x 16 bytes, rows to columns ---- */

/* Interleaving the two halves four times moves the row's index below the column's. */
static inline void transpose(const uint8_t *restrict from, size_t from_stride,
                             int32_t *restrict to, size_t to_stride)
{
    enum { HALF = STRIP * STRIP / 2 };
    uint8_t a[2 * HALF], b[2 * HALF];
    for (int r = 0; r < STRIP; r++)
        memcpy(a + r * STRIP, from + (size_t)r * from_stride, STRIP);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < HALF; i++) {
            b[2 * i] = a[i];
            b[2 * i + 1] = a[HALF + i];
        }
        for (int i = 0; i < HALF; i++) {
            a[2 * i] = b[i];
            a[2 * i + 1] = b[HALF + i];
        }
    }
    for (int r = 0; r < STRIP; r++)
        for (int i = 0; i < STRIP; i++)
            to[(size_t)r * to_stride + (size_t)i] = a[r * STRIP + i];
}

/* ---- rows in, rows out ---- */

struct resizer {
    struct rows rows, *to;
    struct axis across, down;
    int height, to_width, to_height;
    int seen, made;                     /* rows taken and given so far */

    uint8_t *strip;                     /* [STRIP, strip_pitch]: rows as they come */
    int32_t *turned;                    /* [strip_pitch, STRIP]: the same, by columns */
    uint8_t *narrow;                    /* [pitch, STRIP]: after the horizontal pass */
    size_t strip_pitch;                 /* bytes, a multiple of CHUNK; so is pitch */

    int32_t *window;                    /* [window_room, pitch]: the rows that the */
    size_t pitch;                       /*     vertical pass may still need, */
    int window_room, window_first;      /*     from this input row on, */
    int window_rows;                    /*     so many */
};

static void pass_across(struct resizer *r, int rows)
{
    int dead = MIN(r->down.first[r->made] - r->window_first, r->window_rows);
    if (r->window_rows + STRIP > r->window_room) {
        r->window_first += dead;
        r->window_rows -= dead;
        memmove(r->window, r->window + (size_t)dead * r->pitch,
                (size_t)r->window_rows * r->pitch * sizeof *r->window);
    }
    for (size_t i = 0; i < r->strip_pitch; i += STRIP)
        transpose(r->strip + i, r->strip_pitch, r->turned + i * STRIP, STRIP);
    for (int x = 0; x < r->to_width; x++)
        blend(r->turned + (size_t)r->across.first[x] * CHUNK, CHUNK,
              r->across.weight + (size_t)x * (size_t)r->across.taps, r->across.count[x],
              r->across.bits, r->narrow + (size_t)x * CHUNK);
    int32_t *to = r->window + (size_t)r->window_rows * r->pitch;
    for (size_t i = 0; i < r->pitch; i += STRIP)
        transpose(r->narrow + i * STRIP, STRIP, to + i, r->pitch);
    r->window_rows += rows;
}

static void pass_down(struct resizer *r)
{
    int y = r->made;
    const int32_t *from =
        r->window + (size_t)(r->down.first[y] - r->window_first) * r->pitch;
    uint8_t *to = r->to->room(r->to);
    for (size_t i = 0; i < r->pitch; i += CHUNK)
        blend(from + i, r->pitch, r->down.weight + (size_t)y * (size_t)r->down.taps,
              r->down.count[y], r->down.bits, to + i);
    r->to->done(r->to);
    r->made++;
}

static uint8_t *resizer_room(struct rows *rows)
{
    struct resizer *r = (struct resizer *)rows;
    return r->strip + (size_t)(r->seen % STRIP) * r->strip_pitch;
}

static void resizer_done(struct rows *rows)
{
    struct resizer *r = (struct resizer *)rows;
    r->seen++;
    if (r->seen % STRIP && r->seen < r->height)
        return;
    pass_across(r, (r->seen - 1) % STRIP + 1);
    while (r->made < r->to_height && r->down.first[r->made] + r->down.count[r->made] <=
                                         r->window_first + r->window_rows)
        pass_down(r);
}

static size_t chunks(int width)
{
    return (3 * (size_t)width + CHUNK - 1) / CHUNK * CHUNK;
}

struct rows *rows_resized(struct arena *a, int width, int height, int to_width,
                          int to_height, enum resize_rule rule, struct rows *to)
{
    if (width == to_width && height == to_height)
        return to;
    /* An axis that keeps its size gets the weight 1 for one input: the same bits. */
    struct resizer *r = NEW(a, struct resizer, 1);
    *r = (struct resizer){
        .rows = {resizer_room, resizer_done},
        .to = to,
        .across = axis_make(a, width, to_width, rule),
        .down = axis_make(a, height, to_height, rule),
        .height = height,
        .to_width = to_width,
        .to_height = to_height,
        .strip_pitch = chunks(width),
        .pitch = chunks(to_width),
    };
    r->strip = arena_push(a, STRIP * r->strip_pitch + ROW_SLACK);
    r->turned = NEW(a, int32_t, STRIP * r->strip_pitch);
    r->narrow = arena_push(a, STRIP * r->pitch);
    r->window_room = 2 * (r->down.taps + STRIP);
    r->window = NEW(a, int32_t, (size_t)r->window_room * r->pitch);
    return &r->rows;
}

void image_resize(struct arena *a, const struct picture *from, int to_width,
                  int to_height, enum resize_rule rule, struct picture *out)
{
    *out = (struct picture){to_width, to_height, picture_room(a, to_width, to_height)};
    struct arena_mark m = arena_mark(a);
    struct rows *to = rows_into_picture(a, out, 1);
    rows_from_picture(from, rows_resized(a, from->width, from->height, to_width,
                                         to_height, rule, to));
    arena_reset(a, m);
}
