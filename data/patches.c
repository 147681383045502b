/* patches.c - levels to numbers, and rows to the patches the vision tower reads. */
#include "data/image_internal.h"

struct patcher {
    struct rows rows;
    const struct image_shape *shape;
    int y, grid_w;                      /* row to come; patches in a row of the grid */
    uint8_t *band;                      /* [patch, pitch]: a row of the grid */
    size_t pitch;
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
    return r->band + (size_t)(r->y % r->shape->patch) * r->pitch;
}

/* One patch of the band, [channel, frame, y, x]. */
static void patch_write(const struct patcher *r, const uint8_t *from, float *to)
{
    int p = r->shape->patch, frames = r->shape->frames;
    size_t area = (size_t)(p * p);
    for (int c = 0; c < 3; c++, to += (size_t)frames * area) {
        for (int y = 0; y < p; y++) {
            const uint8_t *row = from + (size_t)y * r->pitch + c;
            for (int x = 0; x < p; x++)
                to[y * p + x] = r->level[c][row[3 * x]];
        }
        for (int f = 1; f < frames; f++)                /* a still image repeats */
            memcpy(to + (size_t)f * area, to, area * sizeof *to);
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
    for (int q = 0; q < r->grid_w; q++)
        patch_write(r, r->band + (size_t)(3 * p * q),
                    r->out + (first + (int64_t)(q / m) * m * m + q % m) * values);
}

struct rows *rows_into_patches(struct arena *a, const struct image_shape *s, int width,
                               int height, float *out)
{
    REQUIRE(width % (s->patch * s->merge) == 0 && height % (s->patch * s->merge) == 0);
    struct patcher *r = NEW(a, struct patcher, 1);
    *r = (struct patcher){
        .rows = {patcher_room, patcher_done},
        .shape = s,
        .grid_w = width / s->patch,
        .pitch = 3 * (size_t)width + ROW_SLACK,
        .out = out,
    };
    r->band = arena_push(a, (size_t)s->patch * r->pitch);
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
