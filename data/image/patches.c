/* patches.c - levels to numbers, and rows to the patches the vision tower reads. */
#include "data/image/parts.h"

#ifdef __AVX__
#include <immintrin.h>
#ifdef __AVX512F__
#define WIDE __m512
#define WIDE_LOAD _mm512_loadu_ps
#define WIDE_STREAM _mm512_stream_ps
#else
#define WIDE __m256
#define WIDE_LOAD _mm256_loadu_ps
#define WIDE_STREAM _mm256_stream_ps
#endif
enum { WIDE_FLOATS = sizeof(WIDE) / sizeof(float) };
#endif

enum { USUAL = 16 };                    /* patch size */

struct patcher {
    struct rows rows;
    const struct image_shape *shape;
    int y, grid_w;                      /* row to come; patches in a row of the grid */
    uint8_t *band;                      /* [patch, 3, plane]: a row of the grid */
    float *values;                      /* [patch, patch] */
    float *out;
    float level[3][256];                /* what each of 0..255 becomes, by channel */
};

/* The reference's two back-ends round at different places.
 * torchvision: (u - 255 mean) / (255 std) in 32 bits
 * PIL: (u / 255 - mean) / std, the first quotient in 64 bits, the rest in 32 */
static float normalise(const struct image_shape *s, int channel, int u)
{
    float mean = s->mean[channel], std = s->std[channel];
    if (s->rule == RESIZE_TORCHVISION)
        return ((float)u - mean * 255) / (std * 255);
    return ((float)(u * (1 / 255.0)) - mean) / std;
}

static uint8_t *patcher_room(struct rows *rows)
{
    struct patcher *r = (struct patcher *)rows;
    return r->band + 3 * (size_t)(r->y % r->shape->patch) * rows->plane;
}

/* Copies to memory that nobody reads soon: past the caches, which then need not fetch
 * what is overwritten anyway. */
static inline void copy_out(const float *from, size_t n, float *to)
{
#ifdef __AVX__
    if ((uintptr_t)to % sizeof(WIDE) == 0 && n % WIDE_FLOATS == 0) {
        for (size_t i = 0; i < n; i += WIDE_FLOATS)
            WIDE_STREAM(to + i, WIDE_LOAD(from + i));
        return;
    }
#endif
    memcpy(to, from, n * sizeof *to);
}

/* Other threads see everything that was copied out before this. */
static inline void copy_fence(void)
{
#ifdef __AVX__
    _mm_sfence();
#endif
}

/* One patch of the band, [channel, frame, y, x], p x p. */
static inline void patch_write(const struct patcher *r, int p, const uint8_t *from,
                               float *to)
{
    size_t area = (size_t)(p * p);
    float *values = r->values;
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < p; y++) {
            const uint8_t *row = from + (size_t)(3 * y + c) * r->rows.plane;
            for (int x = 0; x < p; x++)
                values[y * p + x] = r->level[c][row[x]];
        }
        for (int f = 0; f < r->shape->frames; f++, to += area)
            copy_out(values, area, to);                 /* a still image repeats */
    }
}

/* Patches go merge x merge by merge x merge block.  A band is written when it is whole,
 * so that the output, much larger than all caches, is written in long runs. */
static void patcher_done(struct rows *rows)
{
    struct patcher *r = (struct patcher *)rows;
    int p = r->shape->patch, m = r->shape->merge, grid_y = r->y / p;
    if (++r->y % p)
        return;
    int64_t values = (int64_t)3 * r->shape->frames * p * p;
    int64_t first = (int64_t)(grid_y / m) * m * r->grid_w + (int64_t)(grid_y % m) * m;
    for (int q = 0; q < r->grid_w; q++) {
        float *to = r->out + (first + (int64_t)(q / m) * m * m + q % m) * values;
        if (p == USUAL)                 /* a constant for the compiler to unroll */
            patch_write(r, USUAL, r->band + p * q, to);
        else
            patch_write(r, p, r->band + p * q, to);
    }
    copy_fence();
}

struct rows *rows_into_patches(struct arena *a, const struct image_shape *s, int width,
                               int height, float *out)
{
    REQUIRE(width % (s->patch * s->merge) == 0 && height % (s->patch * s->merge) == 0);
    struct patcher *r = NEW(a, struct patcher, 1);
    *r = (struct patcher){
        .rows = {patcher_room, patcher_done, (size_t)width + ROW_SLACK},
        .shape = s,
        .grid_w = width / s->patch,
        .out = out,
    };
    r->band = arena_push(a, 3 * (size_t)s->patch * r->rows.plane);
    r->values = NEW(a, float, s->patch * s->patch);
    for (int c = 0; c < 3; c++)
        for (int u = 0; u < 256; u++)
            r->level[c][u] = normalise(s, c, u);
    return &r->rows;
}

void image_patches(const struct image_shape *s, const struct picture *p, float *out)
{
    struct arena a = arena_make("patches");
    rows_from_picture(p, rows_into_patches(&a, s, p->width, p->height, out));
    arena_free(&a);
}
