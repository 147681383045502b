/* embed.c - rows of tables on the CPU: token embeddings, placing rows, places that one
 * rank holds, and the bilinear position embedding of image patches. */
#include "kernels/cpu/cpu.h"

enum { STRIPE = 64 };                   /* columns one block of a gradient owns */

struct embed {
    struct tensor index, from, to;
    float beta;
};

static void take_rows(void *arg, int64_t from, int64_t to)
{
    const struct embed *p = arg;
    const int32_t *index = p->index.data;
    int64_t width = p->to.dim[1];
    for (int64_t t = from; t < to; t++) {
        float *y = row(p->to, t);
        const float *x = index[t] < 0 ? NULL : row(p->from, index[t]);
        if (p->beta != 0)
            for (int64_t c = 0; c < width; c++)
                y[c] = p->beta * y[c] + (x ? x[c] : 0);
        else if (x)
            memcpy(y, x, (size_t)width * sizeof *y);
        else
            memset(y, 0, (size_t)width * sizeof *y);
    }
}

void cpu_take(struct stream *s, struct tensor index, struct tensor from, float beta,
              struct tensor y)
{
    struct embed p = {index, from, y, beta};
    cpu_rows(s, y.dim[0], y.dim[1], take_rows, &p);
}

void cpu_embed(struct stream *s, struct tensor id, struct tensor table, struct tensor y)
{
    cpu_take(s, id, table, 0, y);
}

static void put_rows(void *arg, int64_t from, int64_t to)
{
    const struct embed *p = arg;
    const int32_t *index = p->index.data;
    for (int64_t t = from; t < to; t++)
        if (index[t] >= 0)
            memcpy(row(p->to, index[t]), row(p->from, t),
                   (size_t)p->to.dim[1] * sizeof(float));
}

void cpu_put(struct stream *s, struct tensor index, struct tensor x, struct tensor y)
{
    struct embed p = {.index = index, .from = x, .to = y};
    cpu_rows(s, x.dim[0], x.dim[1], put_rows, &p);
}

/* table = beta table, in columns [column, column + width). */
static void stripe_scale(struct tensor table, float beta, int64_t column, int64_t width)
{
    for (int64_t i = 0; i < table.dim[0] && beta != 1; i++) {
        float *y = row(table, i) + column;
        if (beta == 0)
            memset(y, 0, (size_t)width * sizeof *y);
        for (int64_t c = 0; c < width && beta != 0; c++)
            y[c] *= beta;
    }
}

/* A block owns columns, so tokens add to a row in their order. */
static void embed_weight_stripe(void *arg, int64_t i)
{
    const struct embed *p = arg;
    const int32_t *id = p->index.data;
    int64_t column = i * STRIPE, width = MIN(STRIPE, p->to.dim[1] - column);
    stripe_scale(p->to, p->beta, column, width);
    for (int64_t t = 0; t < p->from.dim[0]; t++) {
        if (id[t] < 0)
            continue;
        const float *dy = row(p->from, t) + column;
        float *y = row(p->to, id[t]) + column;
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            y[c] += dy[c];
    }
}

void cpu_embed_weight(struct stream *s, struct tensor id, struct tensor dy, float beta,
                      struct tensor dtable)
{
    struct embed p = {id, dy, dtable, beta};
    team_for(s->team, blocks_of(dtable.dim[1], STRIPE), embed_weight_stripe, &p);
}

/* ---- places of one rank ---- */

void cpu_locate(struct stream *s, struct tensor place, struct places own,
                struct tensor y)
{
    (void)s;
    const int32_t *from = place.data;
    int32_t *to = y.data;
    for (int64_t i = 0; i < y.dim[0]; i++) {
        int64_t first = from[i] - own.from[0], second = from[i] - own.from[1];
        to[i] = -1;
        if (first >= 0 && first < own.count[0])
            to[i] = (int32_t)first;
        if (second >= 0 && second < own.count[1])
            to[i] = (int32_t)(own.count[0] + second);
    }
}

void cpu_live_places(struct stream *s, struct tensor live, struct places own,
                     struct tensor y)
{
    (void)s;
    int64_t count = *(int32_t *)live.data, among = 0;
    for (int i = 0; i < 2; i++)
        among += MAX(0, MIN(count - own.from[i], own.count[i]));
    *(int32_t *)y.data = (int32_t)among;
}

/* ---- bilinear positions ---- */

struct taps {
    int64_t at[4];
    float weight[4];
};

/* Where patch row or column i of n falls on a side of `side` cells, corners aligned. */
static float side_place(int32_t i, int32_t n, int64_t side, int64_t *low, int64_t *high)
{
    float f = (float)i * (float)(side - 1) / (float)MAX(n - 1, 1);
    *low = (int64_t)f;
    *high = MIN(*low + 1, side - 1);
    return f - (float)*low;
}

static struct taps taps_at(const int32_t *place, int64_t side)
{
    int64_t y[2], x[2];
    float dy = side_place(place[0], place[2], side, &y[0], &y[1]);
    float dx = side_place(place[1], place[3], side, &x[0], &x[1]);
    return (struct taps){
        {y[0] * side + x[0], y[0] * side + x[1], y[1] * side + x[0],
         y[1] * side + x[1]},
        {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx},
    };
}

static int64_t table_side(struct tensor table)
{
    int64_t side = 1;
    while ((side + 1) * (side + 1) <= table.dim[0])
        side++;
    return side;
}

struct interpolate {
    struct tensor x, place, table, y;
    int64_t side;
    float beta;
};

static void interpolate_rows(void *arg, int64_t from, int64_t to)
{
    const struct interpolate *p = arg;
    for (int64_t t = from; t < to; t++) {
        struct taps taps = taps_at(row_i32(p->place, t), p->side);
        const float *a = row(p->table, taps.at[0]), *b = row(p->table, taps.at[1]);
        const float *c = row(p->table, taps.at[2]), *d = row(p->table, taps.at[3]);
        const float *w = taps.weight, *x = row(p->x, t);
        float *y = row(p->y, t);
        INDEPENDENT
        for (int64_t i = 0; i < p->y.dim[1]; i++)
            y[i] = x[i] + (w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i]);
    }
}

void cpu_interpolate(struct stream *s, struct tensor x, struct tensor place,
                     struct tensor table, struct tensor y)
{
    struct interpolate p = {x, place, table, y, table_side(table), 0};
    cpu_rows(s, y.dim[0], 2 * y.dim[1], interpolate_rows, &p);
}

static void interpolate_weight_stripe(void *arg, int64_t i)
{
    const struct interpolate *p = arg;
    int64_t column = i * STRIPE, width = MIN(STRIPE, p->table.dim[1] - column);
    stripe_scale(p->table, p->beta, column, width);
    for (int64_t t = 0; t < p->x.dim[0]; t++) {
        struct taps taps = taps_at(row_i32(p->place, t), p->side);
        const float *dy = row(p->x, t) + column;
        for (int k = 0; k < 4; k++) {
            if (taps.weight[k] == 0)
                continue;
            float *to = row(p->table, taps.at[k]) + column, w = taps.weight[k];
            INDEPENDENT
            for (int64_t c = 0; c < width; c++)
                to[c] += w * dy[c];
        }
    }
}

void cpu_interpolate_weight(struct stream *s, struct tensor dy, struct tensor place,
                            float beta, struct tensor dtable)
{
    struct interpolate p = {.x = dy, .place = place, .table = dtable, .beta = beta,
                            .side = table_side(dtable)};
    team_for(s->team, blocks_of(dtable.dim[1], STRIPE), interpolate_weight_stripe, &p);
}
