/* resize.c - antialiased bicubic resampling, the same bits as the reference processor.
 *
 * Both back-ends of the reference work in fixed point with 8 bits between the
 * horizontal and the vertical pass; they differ in the number of fraction bits, and in
 * which pass is first for images that lose much of their height.
 * Weights are computed once per axis.  Rows come in strips of LANES, which are turned,
 * so that both passes are one loop over LANES neighbours: no gathers, any taps.  Two
 * neighbours along the axis stand side by side and take their weights together. */
#include "data/image/parts.h"
#include "data/image/lanes.h"

#include <math.h>

enum { STRIP = LANES, PAIRS = STRIP / 2 };
_Static_assert((int)ROW_SLACK >= (int)LANES, "the last lanes end in the slack");

/* ---- the weights of one axis ---- */

struct axis {
    int outputs;
    int room;                           /* weights of an output, at most: even */
    int bits;                           /* of fraction in a weight */
    int *first, *count;                 /* [outputs]: pairs of inputs it is made of */
    int16_t *weight;                    /* [outputs, room] */
    int16_t *high;                      /* the same, to be taken HIGH times; or NULL */
};
enum { HIGH_BITS = 11, HIGH = 1 << HIGH_BITS };         /* two halves hold PIL's */

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

/* A weight in 16 bits, or in two halves with the low one in -HIGH / 2 .. HIGH / 2. */
static void weight_set(struct axis *x, int64_t at, int weight)
{
    int high = 0;
    if (x->high) {
        high = (weight + HIGH / 2) >> HIGH_BITS;
        x->high[at] = (int16_t)high;
    }
    x->weight[at] = (int16_t)(weight - high * HIGH);
}

static struct axis axis_make(struct arena *a, int from, int to, enum resize_rule rule)
{
    double scale = (double)from / to, spread = fmax(scale, 1), support = 2 * spread;
    int taps = (int)ceil(support) * 2 + 1;
    struct axis x = {
        .outputs = to,
        .room = (taps + 2) / 2 * 2,
        .first = NEW(a, int, to),
        .count = NEW(a, int, to),
    };
    x.weight = NEW(a, int16_t, (int64_t)to * x.room);
    if (rule == RESIZE_PIL)
        x.high = NEW(a, int16_t, (int64_t)to * x.room);
    double *exact = NEW(a, double, (int64_t)to * x.room), largest = 0;
    for (int i = 0; i < to; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        int first = MAX((int)(center - support + 0.5), 0);
        int count = MIN((int)(center + support + 0.5), from) - first;
        double *w = exact + (int64_t)i * x.room + first % 2;
        for (int k = 0; k < count; k++)
            sum += w[k] = cubic((k + first - center + 0.5) * (1 / spread));
        for (int k = 0; k < count; k++)
            largest = fmax(largest, w[k] /= sum);
        x.first[i] = first / 2;
        x.count[i] = (first % 2 + count + 1) / 2;
    }
    x.bits = fraction_bits(rule, largest);
    for (int64_t i = 0; i < (int64_t)to * x.room; i++)
        weight_set(&x, i, (int)(exact[i] * (1 << x.bits) + copysign(0.5, exact[i])));
    return x;
}

/* Output `at` of an axis for LANES neighbours: the sum of its inputs by weight over
 * 2^bits, rounded and clamped.  `from` is at its first pair, pairs of neighbours lie
 * side by side, and `stride` leads to the next pairs. */
static inline void blend(const struct axis *x, int at, const int16_t *from,
                         size_t stride, uint8_t *restrict to)
{
    const int16_t *weight = x->weight + (int64_t)at * x->room;
    LANES_I32 sum = {0};
    sum += 1 << (x->bits - 1);
    for (int k = 0; k < x->count[at]; k++)
        lanes_add_pairs(&sum, from + (size_t)k * stride, weight + 2 * k);
    if (x->high) {
        const int16_t *high = x->high + (int64_t)at * x->room;
        LANES_I32 more = {0};
        for (int k = 0; k < x->count[at]; k++)
            lanes_add_pairs(&more, from + (size_t)k * stride, high + 2 * k);
        sum = (LANES_I32)((LANES_U32)sum + (LANES_U32)more * HIGH);
    }
    sum >>= x->bits;
    lanes_clamp(&sum, to);
}

/* ---- turning ---- */

/* Interleaving the halves four times moves the upper four bits of an index below the
 * others. */
static inline void interleave(uint16_t *restrict a, int n)
{
    uint16_t b[STRIP * LANES];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n / 2; i++) {
            b[2 * i] = a[i];
            b[2 * i + 1] = a[n / 2 + i];
        }
        for (int i = 0; i < n / 2; i++) {
            a[2 * i] = b[i];
            a[2 * i + 1] = b[n / 2 + i];
        }
    }
}

static inline void widen(const uint16_t *restrict pairs, int n, int16_t *restrict to)
{
    const uint8_t *from = (const uint8_t *)pairs;
    for (int i = 0; i < 2 * n; i++)
        to[i] = from[i];
}

/* STRIP rows of LANES pairs to as many columns. */
static void turn_in(const uint8_t *restrict from, size_t pitch, int16_t *restrict to)
{
    uint16_t a[STRIP * LANES];
    for (int r = 0; r < STRIP; r++)
        memcpy(a + r * LANES, from + (size_t)r * pitch, 2 * LANES);
    interleave(a, STRIP * LANES);
    widen(a, STRIP * LANES, to);
}

/* LANES columns of PAIRS pairs to as many rows. */
static void turn_out(const uint8_t *restrict from, int16_t *restrict to, size_t pitch)
{
    uint16_t a[LANES * PAIRS];
    memcpy(a, from, sizeof a);
    interleave(a, LANES * PAIRS);
    for (int r = 0; r < PAIRS; r++)
        widen(a + r * LANES, LANES, to + (size_t)r * pitch);
}

/* ---- rows in, rows out ---- */

struct resizer {
    struct rows rows, *to;
    struct axis across, down;
    int height;
    int seen, made;                     /* rows taken and given so far */

    uint8_t *strip;                     /* [3, STRIP, pitch]: rows as they come */
    size_t pitch;                       /* a multiple of 2 LANES */
    int16_t *turned;                    /* [pitch / 2, STRIP, 2]: a colour by columns */
    uint8_t *narrow;                    /* [width, STRIP]: after the horizontal pass */
    int width;                          /* of the result, in multiples of LANES */

    int16_t *window;                    /* [window_room, 3, width, 2]: pairs of rows */
    int window_room, window_first;      /*     that the vertical pass may still need, */
    int window_pairs;                   /*     from this one on, so many */
};

static size_t window_pitch(const struct resizer *r)
{
    return (size_t)(3 * r->width * 2);
}

/* Drops the pairs of rows that no output needs any more, when room is needed. */
static void window_move(struct resizer *r)
{
    if (r->window_pairs + PAIRS <= r->window_room)
        return;
    int dead = MIN(r->down.first[r->made] - r->window_first, r->window_pairs);
    r->window_first += dead;
    r->window_pairs -= dead;
    memmove(r->window, r->window + (size_t)dead * window_pitch(r),
            (size_t)r->window_pairs * window_pitch(r) * sizeof *r->window);
}

static void pass_across(struct resizer *r, int rows)
{
    window_move(r);
    for (int c = 0; c < 3; c++) {
        const uint8_t *strip = r->strip + (size_t)c * r->rows.plane;
        int16_t *to = r->window + (size_t)r->window_pairs * window_pitch(r) +
                      (size_t)(c * r->width * 2);
        for (size_t x = 0; x < r->pitch; x += 2 * LANES)
            turn_in(strip + x, r->pitch, r->turned + x * STRIP);
        for (int x = 0; x < r->across.outputs; x++)
            blend(&r->across, x, r->turned + (size_t)r->across.first[x] * STRIP * 2,
                  STRIP * 2, r->narrow + (size_t)x * STRIP);
        for (int x = 0; x < r->width; x += LANES)
            turn_out(r->narrow + (size_t)x * STRIP, to + 2 * x, window_pitch(r));
    }
    r->window_pairs += (rows + 1) / 2;
}

static void pass_down(struct resizer *r)
{
    int y = r->made;
    const int16_t *from =
        r->window + (size_t)(r->down.first[y] - r->window_first) * window_pitch(r);
    uint8_t *to = r->to->room(r->to);
    for (int c = 0; c < 3; c++, to += r->to->plane)
        for (int x = 0; x < r->width; x += LANES, from += 2 * LANES)
            blend(&r->down, y, from, window_pitch(r), to + x);
    r->to->done(r->to);
    r->made++;
}

static uint8_t *resizer_room(struct rows *rows)
{
    struct resizer *r = (struct resizer *)rows;
    return r->strip + (size_t)(r->seen % STRIP) * r->pitch;
}

static void resizer_done(struct rows *rows)
{
    struct resizer *r = (struct resizer *)rows;
    r->seen++;
    if (r->seen % STRIP && r->seen < r->height)
        return;
    pass_across(r, (r->seen - 1) % STRIP + 1);
    int there = r->window_first + r->window_pairs;
    while (r->made < r->down.outputs &&
           r->down.first[r->made] + r->down.count[r->made] <= there)
        pass_down(r);
}

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* Pillow's rule since version 13, which saves it work. */
static bool vertical_first(int width, int height, int to_width, int to_height,
                           enum resize_rule rule)
{
    return rule == RESIZE_PIL && height - to_height > 2 * MAX(width - to_width, 0);
}

struct rows *rows_resized(struct arena *a, int width, int height, int to_width,
                          int to_height, enum resize_rule rule, struct rows *to)
{
    if (width == to_width && height == to_height)
        return to;
    if (width != to_width && vertical_first(width, height, to_width, to_height, rule)) {
        to = rows_resized(a, width, to_height, to_width, to_height, rule, to);
        to_width = width;
    }
    /* An axis that keeps its size gets the weight 1 for one input: the same bits. */
    struct resizer *r = NEW(a, struct resizer, 1);
    size_t pitch = (size_t)round_up(width + ROW_SLACK, 2 * LANES);
    *r = (struct resizer){
        .rows = {resizer_room, resizer_done, STRIP * pitch},
        .to = to,
        .across = axis_make(a, width, to_width, rule),
        .down = axis_make(a, height, to_height, rule),
        .height = height,
        .pitch = pitch,
        .width = round_up(to_width, LANES),
    };
    r->strip = arena_push(a, 3 * STRIP * pitch);
    r->turned = NEW(a, int16_t, pitch * STRIP);
    r->narrow = arena_push(a, (size_t)r->width * STRIP);
    r->window_room = r->down.room + 2 * PAIRS;
    r->window = NEW(a, int16_t, (size_t)r->window_room * window_pitch(r));
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
