/* attention.c - softmax attention within segments on the CPU, tile by tile: memory does
 * not grow with the square of a segment.
 *
 * Forward keeps a running maximum and sum per query row (Milakov and Gimelshein,
 * "Online normalizer calculation for softmax", 2018), so the largest score is exact.
 * Backward makes the probabilities again from lse, P = exp(score - lse), and with
 * D_i = sum_c do_ic o_ic has  dS = P (do v' - D) scale. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>

enum {
    QUERIES = 64,                       /* rows of a forward tile */
    KEYS = 256,                         /* its columns */
    SIDE = 64                          /* of a backward tile */
};
_Static_assert(KEYS % QUERIES == 0, "a causal row sees a key of every tile it meets");

struct attention {
    struct tensor q, k, v, bound, o, lse, d_o, dq, dk, dv;
    int64_t segments, heads, groups, width;
    bool causal;
    float scale;
};

static struct attention attention_make(struct tensor q, struct tensor k,
                                       struct tensor v, struct tensor bound,
                                       struct tensor o, struct tensor lse, int heads,
                                       int groups, bool causal, float scale)
{
    return (struct attention){
        .q = q, .k = k, .v = v, .bound = bound, .o = o, .lse = lse, .causal = causal,
        .segments = bound.dim[0] - 1, .heads = heads, .groups = groups,
        .width = q.dim[1] / heads, .scale = scale,
    };
}

static float *head(const struct attention *p, struct tensor t, int64_t at, int64_t h)
{
    return row(t, at) + h * p->width;
}

static int64_t segment_rows(const struct attention *p, int64_t i)
{
    const int32_t *bound = p->bound.data;
    return bound[i + 1] - bound[i];
}

/* Rows before the first segment and after the last belong to none. */
static void zero_outside(const struct attention *p, struct tensor t)
{
    const int32_t *bound = p->bound.data;
    for (int64_t i = 0; i < t.dim[0]; i++) {
        if (i == bound[0])
            i = bound[p->segments];
        if (i < t.dim[0])
            memset(row(t, i), 0, (size_t)t.dim[1] * sizeof(float));
    }
}

/* One block of queries of one head against the keys it may see. */
static void attend(const struct attention *p, int64_t start, int64_t rows,
                   int64_t first, int64_t h)
{
    int64_t count = MIN(QUERIES, rows - first), g = h / (p->heads / p->groups);
    int64_t keys = p->causal ? first + count : rows;
    float *o = head(p, p->o, start + first, h);
    float tile[QUERIES * KEYS], most[QUERIES], sum[QUERIES];
    for (int64_t from = 0; from < keys; from += KEYS) {
        int64_t n = MIN(KEYS, keys - from);
        cpu_product(false, true, count, n, p->width, p->scale,
                    head(p, p->q, start + first, h), p->q.stride[0],
                    head(p, p->k, start + from, g), p->k.stride[0], 0, tile, KEYS);
        for (int64_t i = 0; i < count; i++) {
            float *x = tile + i * KEYS, *oi = o + i * p->o.stride[0];
            int64_t seen = p->causal ? MIN(n, first + i + 1 - from) : n;
            float top = row_max(x, seen);
            if (from > 0) {
                top = top > most[i] ? top : most[i];
                float fade = expf(most[i] - top);
                sum[i] = sum[i] * fade + row_exp(x, top, seen, x);
                if (fade != 1)
                    for (int64_t c = 0; c < p->width; c++)
                        oi[c] *= fade;
            } else {
                sum[i] = row_exp(x, top, seen, x);
            }
            most[i] = top;
            memset(x + seen, 0, (size_t)(n - seen) * sizeof *x);
        }
        cpu_product(false, false, count, p->width, n, 1, tile, KEYS,
                    head(p, p->v, start + from, g), p->v.stride[0], from > 0, o,
                    p->o.stride[0]);
    }
    for (int64_t i = 0; i < count; i++) {
        float *oi = o + i * p->o.stride[0], inverse = 1 / sum[i];
        for (int64_t c = 0; c < p->width; c++)
            oi[c] *= inverse;
        row(p->lse, start + first + i)[h] = most[i] + logf(sum[i]);
    }
}

/* Blocks of queries of all segments one after another, each for every head. */
static void attention_block(void *arg, int64_t i)
{
    const struct attention *p = arg;
    const int32_t *bound = p->bound.data;
    int64_t h = i % p->heads, block = i / p->heads, at = 0;
    for (; block >= blocks_of(segment_rows(p, at), QUERIES); at++)
        block -= blocks_of(segment_rows(p, at), QUERIES);
    attend(p, bound[at], segment_rows(p, at), block * QUERIES, h);
}

void cpu_attention(struct stream *s, struct tensor q, struct tensor k, struct tensor v,
                   struct tensor bound, int heads, int groups, bool causal, float scale,
                   struct tensor o, struct tensor lse)
{
    struct attention p = attention_make(q, k, v, bound, o, lse, heads, groups, causal,
                                        scale);
    zero_outside(&p, o);
    zero_outside(&p, lse);
    int64_t blocks = 0;
    for (int64_t i = 0; i < p.segments; i++)
        blocks += blocks_of(segment_rows(&p, i), QUERIES);
    team_for(s->team, blocks * p.heads, attention_block, &p);
}

/* P and dS of one tile: queries [first, first + m), keys [from, from + n). */
static void tile_back(const struct attention *p, int64_t start, int64_t first,
                      int64_t m, int64_t from, int64_t n, int64_t h, float *prob,
                      float *slope)
{
    int64_t g = h / (p->heads / p->groups);
    const float *d_o = head(p, p->d_o, start + first, h);
    const float *o = head(p, p->o, start + first, h);
    cpu_product(false, true, m, n, p->width, p->scale, head(p, p->q, start + first, h),
                p->q.stride[0], head(p, p->k, start + from, g), p->k.stride[0], 0, prob,
                SIDE);
    cpu_product(false, true, m, n, p->width, 1, d_o, p->d_o.stride[0],
                head(p, p->v, start + from, g), p->v.stride[0], 0, slope, SIDE);
    for (int64_t i = 0; i < m; i++) {
        float *x = prob + i * SIDE, *d = slope + i * SIDE;
        float lse = row(p->lse, start + first + i)[h], scale = p->scale;
        float along = row_dot(d_o + i * p->d_o.stride[0], o + i * p->o.stride[0],
                              p->width);
        int64_t seen = p->causal ? MIN(n, first + i + 1 - from) : n;
        for (int64_t j = 0; j < seen; j++) {
            float y = exp_f32(x[j] - lse);
            x[j] = y;
            d[j] = y * (d[j] - along) * scale;
        }
        memset(x + seen, 0, (size_t)(n - seen) * sizeof *x);
        memset(d + seen, 0, (size_t)(n - seen) * sizeof *d);
    }
}

/* One segment and key head, alone: keys outside, then the query heads that read them,
 * then queries, so that every sum has one order. */
static void attention_back_block(void *arg, int64_t i)
{
    const struct attention *p = arg;
    int64_t at = i / p->groups, g = i % p->groups, share = p->heads / p->groups;
    int64_t start = ((const int32_t *)p->bound.data)[at], rows = segment_rows(p, at);
    float prob[SIDE * SIDE], slope[SIDE * SIDE];
    for (int64_t from = 0; from < rows; from += SIDE) {
        int64_t n = MIN(SIDE, rows - from), begin = p->causal ? from : 0;
        float *dk = head(p, p->dk, start + from, g),
              *dv = head(p, p->dv, start + from, g);
        float add = 0;                  /* the first tile overwrites */
        for (int64_t h = g * share; h < (g + 1) * share; h++)
            for (int64_t first = begin; first < rows; first += SIDE, add = 1) {
                int64_t m = MIN(SIDE, rows - first);
                tile_back(p, start, first, m, from, n, h, prob, slope);
                cpu_product(true, false, n, p->width, m, 1, prob, SIDE,
                            head(p, p->d_o, start + first, h), p->d_o.stride[0], add,
                            dv, p->dv.stride[0]);
                cpu_product(true, false, n, p->width, m, 1, slope, SIDE,
                            head(p, p->q, start + first, h), p->q.stride[0], add, dk,
                            p->dk.stride[0]);
                cpu_product(false, false, m, p->width, n, 1, slope, SIDE,
                            head(p, p->k, start + from, g), p->k.stride[0], from > 0,
                            head(p, p->dq, start + first, h), p->dq.stride[0]);
            }
    }
}

void cpu_attention_back(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor bound, struct tensor o,
                        struct tensor lse, struct tensor d_o, int heads, int groups,
                        bool causal, float scale, struct tensor dq, struct tensor dk,
                        struct tensor dv)
{
    struct attention p = attention_make(q, k, v, bound, o, lse, heads, groups, causal,
                                        scale);
    p.d_o = d_o;
    p.dq = dq;
    p.dk = dk;
    p.dv = dv;
    zero_outside(&p, dq);
    zero_outside(&p, dk);
    zero_outside(&p, dv);
    team_for(s->team, p.segments * p.groups, attention_back_block, &p);
}
