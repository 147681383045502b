/* attention.c - softmax attention within segments on the CPU, tile by tile: memory does
 * not grow with the square of a segment.
 *
 * Forward keeps a running maximum and sum per query row (Milakov and Gimelshein,
 * "Online normalizer calculation for softmax", 2018), so the largest score is exact.
 * Backward makes the probabilities again from lse, P = exp(score - lse), and with
 * D_i = sum_c do_ic o_ic has  dS = P (do v' - D) scale.
 *
 * Scores are kept as powers of two, times log2(e): 2^x is cheaper than e^x.
 * A tile of scores has its queries side by side, keys one below the other: keys and
 * values are read where they lie, maxima and sums run down columns, and only a block of
 * queries is turned, once for all its keys. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/tile.h"

#include <math.h>

enum {
    QUERIES = 96,                       /* columns of a tile */
    KEYS = 64,                          /* its rows */
    PANEL = 256                         /* columns of heads, at a time */
};
_Static_assert(QUERIES % (WIDE * LANES) == 0, "a tile is whole strips");

static const float log2e = 1.44269504f, ln2 = 0.693147181f;

struct attention {
    struct tensor q, k, v, bound, o, lse, d_o, dq, dk, dv;
    int64_t segments, heads, groups, width;
    int64_t first_q, first_k;           /* places of the first rows */
    bool causal, add;                   /* add: o and lse hold other keys' part */
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

/* Head h of the query at a place, of the key at a place. */
static float *query(const struct attention *p, struct tensor t, int64_t at, int64_t h)
{
    return row(t, at - p->first_q) + h * p->width;
}

static float *key(const struct attention *p, struct tensor t, int64_t at, int64_t g)
{
    return row(t, at - p->first_k) + g * p->width;
}

struct run { int64_t from, to; };       /* of places */

/* Places of segment i among `count` from `first` on. */
static struct run segment_run(const struct attention *p, int64_t i, int64_t first,
                              int64_t count)
{
    const int32_t *bound = p->bound.data;
    int64_t from = MAX(bound[i], first);
    return (struct run){from, MAX(from, MIN(bound[i + 1], first + count))};
}

static struct run queries_of(const struct attention *p, int64_t i)
{
    return segment_run(p, i, p->first_q, p->q.dim[0]);
}

static struct run keys_of(const struct attention *p, int64_t i)
{
    return segment_run(p, i, p->first_k, p->k.dim[0]);
}

/* Rows at places before the first segment and after the last belong to none. */
static void zero_outside(const struct attention *p, struct tensor t, int64_t first)
{
    const int32_t *bound = p->bound.data;
    for (int64_t i = 0; i < t.dim[0]; i++)
        if (first + i < bound[0] || first + i >= bound[p->segments])
            memset(row(t, i), 0, (size_t)t.dim[1] * sizeof(float));
}

/* Up to QUERIES rows of one head, scaled and turned: at[c * QUERIES + i], zero to whole
 * vectors. */
struct turned {
    _Alignas(64) float at[PANEL * QUERIES];
};

static int64_t lanes_of(int64_t count)
{
    return blocks_of(count, LANES) * LANES;
}

static void turn(const float *x, int64_t stride, int64_t count, int64_t width,
                 float scale, struct turned *to)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < width; c++)
            to->at[c * QUERIES + i] = x[i * stride + c] * scale;
    for (int64_t c = 0; c < width && count < lanes_of(count); c++)
        memset(to->at + c * QUERIES + count, 0,
               (size_t)(lanes_of(count) - count) * sizeof(float));
}

/* A tile: queries [first, first + count) of head h, of them the vectors from `skip` on,
 * keys [from, from + n). */
struct spot {
    int64_t h, first, count, skip, from, n;
};

/* tile[j,i] = scale b_j . a_i, rows of b against rows of a.  Where a head is one
 * panel the queries are turned at the block's first tile. */
static void spot_product(const struct attention *p, const struct spot *at,
                         struct tensor a, struct tensor b, float scale, bool begins,
                         struct turned *turned, float *tile)
{
    int64_t g = at->h / (p->heads / p->groups);
    for (int64_t c = 0; c < p->width; c += PANEL) {
        int64_t width = MIN(PANEL, p->width - c);
        if (begins || p->width > PANEL)
            turn(query(p, a, at->first, at->h) + c, a.stride[0], at->count, width,
                 scale, turned);
        tile_product((struct tile){
            .m = at->n, .n = lanes_of(at->count) - at->skip, .k = width,
            .a = key(p, b, at->from, g) + c, .a_row = b.stride[0], .a_step = 1,
            .b = turned->at + at->skip, .b_row = QUERIES,
            .c = tile + at->skip, .c_row = QUERIES, .add = c > 0});
    }
}

/* c [m,K] += a [m,k] b [k,K]: rows of heads.  Where they are not whole vectors, b is
 * copied to where reading past their end is allowed. */
static void add_rows(const struct attention *p, int64_t m, int64_t k, const float *a,
                     int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                     float *c, int64_t c_row, bool add)
{
    struct tile t = {.m = m, .n = p->width, .k = k, .a = a, .a_row = a_row,
                     .a_step = a_step, .b = b, .b_row = b_row, .c = c, .c_row = c_row,
                     .add = add};
    if (p->width % LANES == 0) {
        tile_product(t);
        return;
    }
    _Alignas(64) float copy[MAX(QUERIES, KEYS) * PANEL];
    for (int64_t at = 0; at < p->width; at += PANEL) {
        t.n = MIN(PANEL, p->width - at);
        for (int64_t i = 0; i < k; i++) {
            memcpy(copy + i * PANEL, b + i * b_row + at, (size_t)t.n * sizeof *b);
            memset(copy + i * PANEL + t.n, 0,
                   (size_t)(lanes_of(t.n) - t.n) * sizeof *b);
        }
        t.b = copy;
        t.b_row = PANEL;
        t.c = c + at;
        tile_product(t);
    }
}

/* The tile's queries that see nothing of it, as whole vectors. */
static int64_t blind(const struct attention *p, int64_t first, int64_t from)
{
    return p->causal ? MAX(0, from - first) / LANES * LANES : 0;
}

/* Scores of keys after the query are none. */
static void hide_later(const struct attention *p, const struct spot *at, float *tile)
{
    for (int64_t j = 0; p->causal && j < at->n; j++) {
        int64_t hidden = MIN(at->from + j - at->first, lanes_of(at->count));
        for (int64_t i = at->skip; i < hidden; i++)
            tile[j * QUERIES + i] = -INFINITY;
    }
}

/* Scores to 2^(score - top), top and sum carried along; fade = what sums so far are to
 * be multiplied with. */
static void soften(const struct spot *at, float *tile, float *top, float *sum,
                   float *fade)
{
    int64_t lanes = lanes_of(at->count);
    float most[QUERIES], part[QUERIES];
    memcpy(most, top, sizeof most);
    for (int64_t j = 0; j < at->n; j++)
        for (int64_t i = at->skip; i < lanes; i++) {
            float x = tile[j * QUERIES + i];
            most[i] = x > most[i] ? x : most[i];
        }
    for (int64_t i = at->skip; i < lanes; i++) {
        float shift = most[i] == -INFINITY ? 0 : most[i];   /* no key seen yet */
        fade[i] = exp2_f32(top[i] - shift);
        top[i] = most[i];
        most[i] = shift;
        part[i] = 0;
    }
    for (int64_t j = 0; j < at->n; j++)
        for (int64_t i = at->skip; i < lanes; i++) {
            float y = exp2_f32(tile[j * QUERIES + i] - most[i]);
            tile[j * QUERIES + i] = y;
            part[i] += y;
        }
    for (int64_t i = at->skip; i < lanes; i++)
        sum[i] = sum[i] * fade[i] + part[i];
}

/* One block of queries of one head against the keys of its segment. */
static void attend(const struct attention *p, int64_t first, int64_t count,
                   struct run keys, int64_t h)
{
    int64_t g = h / (p->heads / p->groups);
    int64_t end = p->causal ? MIN(keys.to, first + count) : keys.to;
    struct turned turned;
    _Alignas(64) float tile[KEYS * QUERIES];
    float top[QUERIES], sum[QUERIES], fade[QUERIES];
    bool add = p->add;                  /* o holds something */
    for (int64_t i = 0; i < QUERIES; i++) {
        top[i] = add && i < count ? row(p->lse, first + i - p->first_q)[h] * log2e
                                  : -INFINITY;
        sum[i] = add;
    }
    for (int64_t from = keys.from; from < end; from += KEYS, add = true) {
        struct spot at = {h, first, count, add ? blind(p, first, from) : 0, from,
                          MIN(KEYS, end - from)};
        spot_product(p, &at, p->q, p->k, p->scale * log2e, from == keys.from, &turned,
                     tile);
        hide_later(p, &at, tile);
        soften(&at, tile, top, sum, fade);
        for (int64_t i = at.skip; add && i < count; i++) {
            float *oi = query(p, p->o, first + i, h);
            for (int64_t c = 0; fade[i] != 1 && c < p->width; c++)
                oi[c] *= fade[i];
        }
        add_rows(p, count - at.skip, at.n, tile + at.skip, 1, QUERIES,
                 key(p, p->v, from, g), p->v.stride[0],
                 query(p, p->o, first + at.skip, h), p->o.stride[0], add);
    }
    for (int64_t i = 0; i < count; i++) {
        float *oi = query(p, p->o, first + i, h), inverse = sum[i] > 0 ? 1 / sum[i] : 0;
        for (int64_t c = 0; c < p->width; c++)
            oi[c] = add ? oi[c] * inverse : 0;
        row(p->lse, first + i - p->first_q)[h] = ln2 * (top[i] + log2f(sum[i]));
    }
}

static int64_t query_blocks(const struct attention *p, int64_t segment)
{
    struct run r = queries_of(p, segment);
    return blocks_of(r.to - r.from, QUERIES);
}

/* Blocks of queries of all segments one after another, each for every head. */
static void attention_block(void *arg, int64_t i)
{
    const struct attention *p = arg;
    int64_t h = i % p->heads, block = i / p->heads, at = 0;
    for (; block >= query_blocks(p, at); at++)
        block -= query_blocks(p, at);
    struct run r = queries_of(p, at);
    int64_t first = r.from + block * QUERIES;
    attend(p, first, MIN(QUERIES, r.to - first), keys_of(p, at), h);
}

static void attention_run(struct stream *s, struct attention *p)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < p->segments; i++)
        blocks += query_blocks(p, i);
    team_for(s->team, blocks * p->heads, attention_block, p);
}

void cpu_attention(struct stream *s, struct tensor q, struct tensor k, struct tensor v,
                   struct tensor bound, int heads, int groups, bool causal, float scale,
                   struct tensor o, struct tensor lse)
{
    struct attention p = attention_make(q, k, v, bound, o, lse, heads, groups, causal,
                                        scale);
    zero_outside(&p, o, 0);
    zero_outside(&p, lse, 0);
    attention_run(s, &p);
}

void cpu_attention_part(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor bound, int64_t first_q,
                        int64_t first_k, int heads, int groups, bool causal,
                        float scale, float beta, struct tensor o, struct tensor lse)
{
    struct attention p = attention_make(q, k, v, bound, o, lse, heads, groups, causal,
                                        scale);
    REQUIRE(beta == 0 || beta == 1);
    p.first_q = first_q;
    p.first_k = first_k;
    p.add = beta == 1;
    zero_outside(&p, o, first_q);
    zero_outside(&p, lse, first_q);
    attention_run(s, &p);
}

/* What backward knows of a query besides its row. */
struct known {
    float lse[QUERIES], along[QUERIES];
};

/* Scores and do v' of a tile to P and dS. */
static void soften_back(const struct attention *p, const struct spot *at,
                        const struct known *known, float *prob, float *slope)
{
    int64_t lanes = lanes_of(at->count);
    float scale = p->scale;
    for (int64_t j = 0; j < at->n; j++) {
        float *x = prob + j * QUERIES, *d = slope + j * QUERIES;
        INDEPENDENT
        for (int64_t i = at->skip; i < lanes; i++) {
            float y = exp2_f32(x[i] - known->lse[i]);
            x[i] = y;
            d[i] = y * (d[i] - known->along[i]) * scale;
        }
    }
}

/* One block of queries of one head, all its keys. */
static void attend_back(const struct attention *p, int64_t first, int64_t count,
                        struct run keys, int64_t h)
{
    int64_t g = h / (p->heads / p->groups);
    int64_t end = p->causal ? MIN(keys.to, first + count) : keys.to;
    struct turned q, d_o;
    _Alignas(64) float prob[KEYS * QUERIES], slope[KEYS * QUERIES];
    struct known known = {{0}, {0}};
    for (int64_t i = 0; i < count; i++) {
        known.lse[i] = row(p->lse, first + i - p->first_q)[h] * log2e;
        known.along[i] = row_dot(query(p, p->d_o, first + i, h),
                                 query(p, p->o, first + i, h), p->width);
    }
    for (int64_t from = keys.from; from < end; from += KEYS) {
        struct spot at = {h, first, count, blind(p, first, from), from,
                          MIN(KEYS, end - from)};
        bool begins = from == keys.from;
        int64_t skip = at.skip, m = count - skip;
        spot_product(p, &at, p->q, p->k, p->scale * log2e, begins, &q, prob);
        hide_later(p, &at, prob);
        spot_product(p, &at, p->d_o, p->v, 1, begins, &d_o, slope);
        soften_back(p, &at, &known, prob, slope);
        add_rows(p, at.n, m, prob + skip, QUERIES, 1, query(p, p->d_o, first + skip, h),
                 p->d_o.stride[0], key(p, p->dv, from, g), p->dv.stride[0], true);
        add_rows(p, at.n, m, slope + skip, QUERIES, 1, query(p, p->q, first + skip, h),
                 p->q.stride[0], key(p, p->dk, from, g), p->dk.stride[0], true);
        add_rows(p, m, at.n, slope + skip, 1, QUERIES, key(p, p->k, from, g),
                 p->k.stride[0], query(p, p->dq, first + skip, h), p->dq.stride[0],
                 true);
    }
}

/* One segment and key head, alone: the query heads that read it, then blocks of
 * queries, then keys, so that every sum has one order.  Outputs hold what is added
 * to. */
static void attention_back_block(void *arg, int64_t i)
{
    const struct attention *p = arg;
    int64_t at = i / p->groups, g = i % p->groups, share = p->heads / p->groups;
    struct run queries = queries_of(p, at), keys = keys_of(p, at);
    for (int64_t h = g * share; h < (g + 1) * share; h++)
        for (int64_t first = queries.from; first < queries.to; first += QUERIES)
            attend_back(p, first, MIN(QUERIES, queries.to - first), keys, h);
}

void cpu_attention_part_back(struct stream *s, struct tensor q, struct tensor k,
                             struct tensor v, struct tensor bound, int64_t first_q,
                             int64_t first_k, struct tensor o, struct tensor lse,
                             struct tensor d_o, int heads, int groups, bool causal,
                             float scale, float beta_q, struct tensor dq,
                             float beta_kv, struct tensor dk, struct tensor dv)
{
    struct attention p = attention_make(q, k, v, bound, o, lse, heads, groups, causal,
                                        scale);
    p.first_q = first_q;
    p.first_k = first_k;
    p.d_o = d_o;
    p.dq = dq;
    p.dk = dk;
    p.dv = dv;
    const struct { float beta; struct tensor to; } out[] = {
        {beta_q, dq}, {beta_kv, dk}, {beta_kv, dv},
    };
    for (int i = 0; i < COUNT(out); i++)        /* blocks only add */
        if (out[i].beta != 1)
            cpu_axpby(s, 0, out[i].to, out[i].beta, out[i].to);
    team_for(s->team, p.segments * p.groups, attention_back_block, &p);
}

void cpu_attention_back(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor bound, struct tensor o,
                        struct tensor lse, struct tensor d_o, int heads, int groups,
                        bool causal, float scale, struct tensor dq, struct tensor dk,
                        struct tensor dv)
{
    cpu_attention_part_back(s, q, k, v, bound, 0, 0, o, lse, d_o, heads, groups, causal,
                            scale, 0, dq, 0, dk, dv);
}
