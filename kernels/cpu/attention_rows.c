/* attention_rows.c - attention of single queries, each over a run of rows of its own,
 * on the CPU: one step of many answers.
 *
 * Apart from attention.c because there is no tile here: a query meets every key once,
 * and what it costs is reading them.  So the heads that share a key head go together,
 * some keys at a time, with a running maximum as there. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>

enum {
    KEYS = 64,                          /* at a time: they stay in the first cache */
    HEADS = 16                          /* queries that meet them there */
};

struct rows {
    struct tensor q, k, v, first, last, o;
    int64_t heads, groups, width;
    float scale;
};

/* o += sum over n rows of v, weighed. */
static void add_rows(const float *weight, const float *v, int64_t stride, int64_t n,
                     int64_t width, float *o)
{
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *at = v + j * stride;
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            o[c] += (weight[j] * at[c] + weight[j + 1] * at[stride + c]) +
                    (weight[j + 2] * at[2 * stride + c] +
                     weight[j + 3] * at[3 * stride + c]);
    }
    for (; j < n; j++) {
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            o[c] += weight[j] * v[j * stride + c];
    }
}

/* n keys from row `from` on, for `count` heads whose maxima and sums so far are these.
 */
static void attend(const struct rows *p, const float *q, int64_t count, int64_t g,
                   int64_t from, int64_t n, float *most, float *sum, float *o)
{
    float score[HEADS * KEYS];
    cpu_product_few(count, n, p->width, p->scale, q, p->width,
                    row(p->k, from) + g * p->width, p->k.stride[0], 0, score, KEYS);
    for (int64_t i = 0; i < count; i++, o += p->width) {
        float *x = score + i * KEYS, top = row_max(x, n);
        top = top > most[i] ? top : most[i];
        float fade = expf(most[i] - top);
        sum[i] = sum[i] * fade + row_exp(x, top, n, x);
        most[i] = top;
        for (int64_t c = 0; c < p->width && fade != 1; c++)
            o[c] *= fade;
        add_rows(x, row(p->v, from) + g * p->width, p->v.stride[0], n, p->width, o);
    }
}

/* One query's heads [h, h + count), which share key head g. */
static void query_heads(const struct rows *p, int64_t t, int64_t g, int64_t h,
                        int64_t count)
{
    int64_t first = ((const int32_t *)p->first.data)[t];
    int64_t end = (int64_t)((const int32_t *)p->last.data)[t] + 1;
    const float *q = row(p->q, t) + h * p->width;
    float *o = row(p->o, t) + h * p->width, most[HEADS], sum[HEADS];
    memset(o, 0, (size_t)(count * p->width) * sizeof *o);
    for (int64_t i = 0; i < count; i++) {
        most[i] = -INFINITY;
        sum[i] = 0;
    }
    for (int64_t from = first; from < end; from += KEYS)
        attend(p, q, count, g, from, MIN(KEYS, end - from), most, sum, o);
    for (int64_t i = 0; i < count && end > 0; i++)
        for (int64_t c = 0; c < p->width; c++)
            o[i * p->width + c] /= sum[i];
}

static void rows_block(void *arg, int64_t i)
{
    const struct rows *p = arg;
    int64_t t = i / p->groups, g = i % p->groups, share = p->heads / p->groups;
    for (int64_t h = 0; h < share; h += HEADS)
        query_heads(p, t, g, g * share + h, MIN(HEADS, share - h));
}

void cpu_attention_rows(struct stream *s, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor first, struct tensor last,
                        int heads, int groups, float scale, struct tensor o)
{
    struct rows p = {.q = q, .k = k, .v = v, .first = first, .last = last, .o = o,
                     .heads = heads, .groups = groups, .width = q.dim[1] / heads,
                     .scale = scale};
    team_for(s->team, q.dim[0] * groups, rows_block, &p);
}
