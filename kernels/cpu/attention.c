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

/* Of n keys from `from` on, how many the query at place `at` sees. */
static int64_t seen_of(const struct attention *p, int64_t at, int64_t from, int64_t n)
{
    return p->causal ? MAX(0, MIN(n, at + 1 - from)) : n;
}

/* One block of queries of one head against the keys of its segment. */
static void attend(const struct attention *p, int64_t first, int64_t count,
                   struct run keys, int64_t h)
{
    int64_t g = h / (p->heads / p->groups);
    int64_t end = p->causal ? MIN(keys.to, first + count) : keys.to;
    float *o = query(p, p->o, first, h);
    float tile[QUERIES * KEYS], most[QUERIES], sum[QUERIES];
    bool add = p->add;                  /* o holds something */
    for (int64_t i = 0; i < count; i++) {
        most[i] = add ? row(p->lse, first + i - p->first_q)[h] : -INFINITY;
        sum[i] = add;
    }
    for (int64_t from = keys.from; from < end; from += KEYS, add = true) {
        int64_t n = MIN(KEYS, end - from);
        cpu_product(false, true, count, n, p->width, p->scale,
                    query(p, p->q, first, h), p->q.stride[0], key(p, p->k, from, g),
                    p->k.stride[0], 0, tile, KEYS);
        for (int64_t i = 0; i < count; i++) {
            float *x = tile + i * KEYS, *oi = o + i * p->o.stride[0];
            int64_t seen = seen_of(p, first + i, from, n);
            memset(x + seen, 0, (size_t)(n - seen) * sizeof *x);
            if (seen == 0)
                continue;
            float top = row_max(x, seen);
            top = top > most[i] ? top : most[i];
            float fade = expf(most[i] - top);
            sum[i] = sum[i] * fade + row_exp(x, top, seen, x);
            most[i] = top;
            if (add && fade != 1)
                for (int64_t c = 0; c < p->width; c++)
                    oi[c] *= fade;
        }
        cpu_product(false, false, count, p->width, n, 1, tile, KEYS,
                    key(p, p->v, from, g), p->v.stride[0], add, o, p->o.stride[0]);
    }
    for (int64_t i = 0; i < count; i++) {
        float *oi = o + i * p->o.stride[0], inverse = sum[i] > 0 ? 1 / sum[i] : 0;
        for (int64_t c = 0; c < p->width; c++)
            oi[c] = add ? oi[c] * inverse : 0;
        row(p->lse, first + i - p->first_q)[h] = most[i] + logf(sum[i]);
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

/* P and dS of one tile: queries [first, first + m), keys [from, from + n). */
static void tile_back(const struct attention *p, int64_t first, int64_t m, int64_t from,
                      int64_t n, int64_t h, float *prob, float *slope)
{
    int64_t g = h / (p->heads / p->groups);
    const float *d_o = query(p, p->d_o, first, h), *o = query(p, p->o, first, h);
    cpu_product(false, true, m, n, p->width, p->scale, query(p, p->q, first, h),
                p->q.stride[0], key(p, p->k, from, g), p->k.stride[0], 0, prob, SIDE);
    cpu_product(false, true, m, n, p->width, 1, d_o, p->d_o.stride[0],
                key(p, p->v, from, g), p->v.stride[0], 0, slope, SIDE);
    for (int64_t i = 0; i < m; i++) {
        float *x = prob + i * SIDE, *d = slope + i * SIDE;
        float lse = row(p->lse, first + i - p->first_q)[h], scale = p->scale;
        float along = row_dot(d_o + i * p->d_o.stride[0], o + i * p->o.stride[0],
                              p->width);
        int64_t seen = seen_of(p, first + i, from, n);
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
 * then queries, so that every sum has one order.  Outputs hold what is added to. */
static void attention_back_block(void *arg, int64_t i)
{
    const struct attention *p = arg;
    int64_t at = i / p->groups, g = i % p->groups, share = p->heads / p->groups;
    struct run queries = queries_of(p, at), keys = keys_of(p, at);
    float prob[SIDE * SIDE], slope[SIDE * SIDE];
    for (int64_t from = keys.from; from < keys.to; from += SIDE) {
        int64_t n = MIN(SIDE, keys.to - from);
        int64_t begin = p->causal ? MAX(queries.from, from) : queries.from;
        for (int64_t h = g * share; h < (g + 1) * share; h++)
            for (int64_t first = begin; first < queries.to; first += SIDE) {
                int64_t m = MIN(SIDE, queries.to - first);
                tile_back(p, first, m, from, n, h, prob, slope);
                cpu_product(true, false, n, p->width, m, 1, prob, SIDE,
                            query(p, p->d_o, first, h), p->d_o.stride[0], 1,
                            key(p, p->dv, from, g), p->dv.stride[0]);
                cpu_product(true, false, n, p->width, m, 1, slope, SIDE,
                            query(p, p->q, first, h), p->q.stride[0], 1,
                            key(p, p->dk, from, g), p->dk.stride[0]);
                cpu_product(false, false, m, p->width, n, 1, slope, SIDE,
                            key(p, p->k, from, g), p->k.stride[0], 1,
                            query(p, p->dq, first, h), p->dq.stride[0]);
            }
    }
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
