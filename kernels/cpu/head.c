/* head.c - the output layer with its loss on the CPU.  Only rows that carry a target
 * are computed, HEAD_CHUNK of them at a time, so logits of all tokens never exist.
 *
 * A chunk's rows are gathered, then blocks of the vocabulary are independent: forward
 * each leaves a maximum and a sum a row; backward each turns its logits into dz and
 * adds its own rows of dw while dz is still in cache. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>

enum { ROWS = 64 };                     /* of a chunk, whose dx is one product */

struct head {
    struct tensor x, w, which, dx;
    int64_t T, D, V, words, blocks;     /* words: of a block */
    int64_t first;                      /* the first word's number */
    int64_t rows;                       /* whose dx is one product */
    /* the chunk */
    int64_t count;
    float *z, *gathered, *best, *sum;   /* [blocks,C,words] [C,D] [blocks,C] */
    int32_t *token, *word;              /* [C] [blocks,C] */
    const float *lse, *dpart;           /* of row t: lse[t * apart]; dpart [T,2] */
    int64_t apart;
    float factor, beta_x, beta_w;
    float *dw;
};

static struct head head_make(struct tensor x, struct tensor w, struct tensor which,
                             struct tensor work)
{
    struct head p = {.x = x, .w = w, .which = which, .T = x.dim[0], .D = x.dim[1],
                     .V = w.dim[0], .words = head_words(w.dim[0]), .apart = 1};
    p.blocks = blocks_of(p.V, p.words);
    int64_t rows = MIN(HEAD_CHUNK, p.T);
    p.z = work.data;
    p.gathered = p.z + rows * p.blocks * p.words;
    p.best = p.gathered + rows * p.D;
    p.sum = p.best + rows * p.blocks;
    p.word = (int32_t *)(p.sum + rows * p.blocks);
    p.token = p.word + rows * p.blocks;
    REQUIRE((char *)(p.token + rows) - (char *)work.data <= tensor_count(work));
    return p;
}

/* Gather the next chunk of wanted rows from token `at` on; returns where to go on. */
static int64_t head_chunk(struct head *p, int64_t at, bool choice)
{
    const int32_t *which = p->which.data;
    for (p->count = 0; at < p->T && p->count < HEAD_CHUNK; at++) {
        if (choice ? which[at] == 0 : which[at] < 0)
            continue;
        memcpy(p->gathered + p->count * p->D, row(p->x, at),
               (size_t)p->D * sizeof(float));
        p->token[p->count++] = (int32_t)at;
    }
    return at;
}

/* Row i of a block's logits: blocks lie apart, because rows as long as the vocabulary
 * would share cache sets. */
static float *logits(const struct head *p, int64_t block, int64_t i)
{
    return p->z + (block * p->count + i) * p->words;
}

/* The target of the chunk's row i as a row of w; of another share: -1. */
static int64_t target_of(const struct head *p, int64_t i)
{
    int64_t word = ((const int32_t *)p->which.data)[p->token[i]] - p->first;
    return word < 0 || word >= p->V ? -1 : word;
}

/* Is word `target` in this block? */
static bool in_block(const struct head *p, int64_t target, int64_t block)
{
    return target >= 0 && target / p->words == block;
}

/* Logits of one block of words for the whole chunk; returns how many words. */
static int64_t head_logits(const struct head *p, int64_t block)
{
    int64_t from = block * p->words, n = MIN(p->words, p->V - from);
    cpu_product(false, true, p->count, n, p->D, 1, p->gathered, p->D, row(p->w, from),
                p->w.stride[0], 0, logits(p, block, 0), p->words);
    return n;
}

static void loss_block(void *arg, int64_t block)
{
    const struct head *p = arg;
    int64_t n = head_logits(p, block);
    for (int64_t i = 0; i < p->count; i++) {
        float *z = logits(p, block, i);
        int64_t at = block * p->count + i, target = target_of(p, i);
        p->best[at] = row_max(z, n);
        float kept = in_block(p, target, block) ? z[target % p->words] : 0;
        p->sum[at] = row_exp(z, p->best[at], n, z);
        if (in_block(p, target, block))
            z[target % p->words] = kept;     /* the only logit read again */
    }
}

/* Blocks' maxima and sums to one lse, in the order of blocks. */
static float block_lse(const struct head *p, int64_t i)
{
    float top = p->best[i], sum = 0;
    for (int64_t b = 1; b < p->blocks; b++)
        top = MAX(top, p->best[b * p->count + i]);
    for (int64_t b = 0; b < p->blocks; b++)
        sum += p->sum[b * p->count + i] * expf(p->best[b * p->count + i] - top);
    return top + logf(sum);
}

/* The logit of row i's target, which is one of these words. */
static float target_logit(const struct head *p, int64_t i)
{
    int64_t word = target_of(p, i);
    REQUIRE(word >= 0);
    return logits(p, word / p->words, i)[word % p->words];
}

void cpu_head_loss(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor target, struct tensor scale, struct tensor work,
                   struct tensor loss, struct tensor lse)
{
    struct head p = head_make(x, w, target, work);
    float *out = lse.data;
    double total = 0;
    memset(out, 0, (size_t)p.T * sizeof *out);
    for (int64_t at = head_chunk(&p, 0, false); p.count > 0;
         at = head_chunk(&p, at, false)) {
        team_for(s->team, p.blocks, loss_block, &p);
        for (int64_t i = 0; i < p.count; i++) {
            int64_t t = p.token[i];
            out[t] = block_lse(&p, i);
            total += (double)out[t] - target_logit(&p, i);
        }
    }
    *(float *)loss.data = (float)(total * scalar(scale, 1));
}

void cpu_head_part(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor target, int64_t first, struct tensor work,
                   struct tensor part)
{
    struct head p = head_make(x, w, target, work);
    float *out = part.data;
    p.first = first;
    memset(out, 0, 2 * (size_t)p.T * sizeof *out);
    for (int64_t at = head_chunk(&p, 0, false); p.count > 0;
         at = head_chunk(&p, at, false)) {
        team_for(s->team, p.blocks, loss_block, &p);
        for (int64_t i = 0; i < p.count; i++) {
            out[2 * p.token[i]] = block_lse(&p, i);
            out[2 * p.token[i] + 1] = target_of(&p, i) < 0 ? 0 : target_logit(&p, i);
        }
    }
}

/* The lse of row t over n shares, in their order. */
static double shares_lse(struct tensor part, int64_t n, int64_t T, int64_t t)
{
    double top = row(part, t)[0], sum = 0;
    for (int64_t r = 1; r < n; r++)
        top = MAX(top, (double)row(part, r * T + t)[0]);
    for (int64_t r = 0; r < n; r++)
        sum += exp(row(part, r * T + t)[0] - top);
    return top + log(sum);
}

void cpu_head_sum(struct stream *s, struct tensor part, struct tensor target,
                  struct tensor scale, struct tensor loss)
{
    (void)s;
    int64_t T = target.dim[0], n = T ? part.dim[0] / T : 0;
    double total = 0;
    for (int64_t t = 0; t < T; t++) {
        if (((const int32_t *)target.data)[t] < 0)
            continue;
        total += shares_lse(part, n, T, t);
        for (int64_t r = 0; r < n; r++)
            total -= row(part, r * T + t)[1];
    }
    *(float *)loss.data = (float)(total * scalar(scale, 1));
}

void cpu_head_sum_back(struct stream *s, struct tensor part, struct tensor target,
                       struct tensor scale, struct tensor dloss, struct tensor dpart)
{
    (void)s;
    int64_t T = target.dim[0], n = T ? part.dim[0] / T : 0;
    float factor = scalar(scale, 1) * scalar(dloss, 1);
    for (int64_t t = 0; t < T; t++) {
        bool wanted = ((const int32_t *)target.data)[t] >= 0;
        double lse = wanted ? shares_lse(part, n, T, t) : 0;
        for (int64_t r = t; r < n * T; r += T) {
            row(dpart, r)[0] =
                wanted ? factor * (float)exp(row(part, r)[0] - lse) : 0;
            row(dpart, r)[1] = wanted ? -factor : 0;
        }
    }
}

static void loss_back_block(void *arg, int64_t block)
{
    const struct head *p = arg;
    int64_t from = block * p->words, n = head_logits(p, block);
    for (int64_t i = 0; i < p->count; i++) {
        const float *dpart = p->dpart ? p->dpart + 2 * p->token[i] : NULL;
        float *z = logits(p, block, i), factor = dpart ? dpart[0] : p->factor;
        float lse = p->lse[p->token[i] * p->apart];
        for (int64_t j = 0; j < n; j++)
            z[j] = factor * exp_f32(z[j] - lse);
        int64_t target = target_of(p, i);
        if (in_block(p, target, block))
            z[target % p->words] += dpart ? dpart[1] : -factor;
    }
    if (p->dw)
        cpu_product(true, false, n, p->D, p->count, 1, logits(p, block, 0), p->words,
                    p->gathered, p->D, p->beta_w, p->dw + from * p->D, p->D);
}

static void loss_back_x(void *arg, int64_t block)
{
    const struct head *p = arg;
    int64_t from = block * p->rows, n = MIN(p->rows, p->count - from);
    float *dx = p->gathered + from * p->D;      /* the rows themselves are used up */
    for (int64_t b = 0; b < p->blocks; b++)
        cpu_product(false, false, n, p->D, MIN(p->words, p->V - b * p->words), 1,
                    logits(p, b, from), p->words, row(p->w, b * p->words),
                    p->w.stride[0], b > 0, dx, p->D);
    for (int64_t i = 0; i < n; i++) {
        float *to = row(p->dx, p->token[from + i]);
        for (int64_t c = 0; c < p->D; c++)
            to[c] = blend(p->beta_x, to[c], dx[i * p->D + c]);
    }
}

/* Rows without a target get dx = beta dx. */
static void fade_rows(void *arg, int64_t from, int64_t to)
{
    const struct head *p = arg;
    const int32_t *target = p->which.data;
    for (int64_t t = from; t < to; t++) {
        float *dx = row(p->dx, t);
        for (int64_t c = 0; c < p->D && target[t] < 0; c++)
            dx[c] = blend(p->beta_x, dx[c], 0);
    }
}

static void fade_weight(void *arg, int64_t from, int64_t to)
{
    const struct head *p = arg;
    for (int64_t i = from; i < to; i++)
        p->dw[i] = blend(p->beta_w, p->dw[i], 0);
}

static void head_back(struct stream *s, struct head *p, float beta_x, struct tensor dx,
                      float beta_w, struct tensor dw)
{
    p->beta_x = beta_x;
    p->beta_w = beta_w;
    p->dx = dx;
    p->dw = tensor_is(dw) ? dw.data : NULL;
    if (tensor_is(dx) && beta_x != 1)
        cpu_rows(s, p->T, p->D, fade_rows, p);
    int64_t at = head_chunk(p, 0, false);
    if (p->count == 0 && p->dw)         /* no chunk will apply beta_w */
        cpu_rows(s, p->V * p->D, 1, fade_weight, p);
    for (; p->count > 0; at = head_chunk(p, at, false), p->beta_w = 1) {
        team_for(s->team, p->blocks, loss_back_block, p);
        p->rows = blocks_of(p->count, 2 * blocks_of(p->count, 2 * ROWS));
        if (tensor_is(dx))
            team_for(s->team, blocks_of(p->count, p->rows), loss_back_x, p);
    }
}

void cpu_head_loss_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor target, struct tensor scale, struct tensor lse,
                        struct tensor dloss, struct tensor work, float beta_x,
                        struct tensor dx, float beta_w, struct tensor dw)
{
    struct head p = head_make(x, w, target, work);
    p.lse = lse.data;
    p.factor = scalar(scale, 1) * scalar(dloss, 1);
    head_back(s, &p, beta_x, dx, beta_w, dw);
}

void cpu_head_part_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor target, int64_t first, struct tensor part,
                        struct tensor dpart, struct tensor work, float beta_x,
                        struct tensor dx, float beta_w, struct tensor dw)
{
    struct head p = head_make(x, w, target, work);
    p.first = first;
    p.lse = part.data;
    p.dpart = dpart.data;
    p.apart = 2;
    head_back(s, &p, beta_x, dx, beta_w, dw);
}

/* NaN is above all numbers, as it must not get lost among them. */
static bool above(float z, float best)
{
    return z > best || (isnan(z) && !isnan(best));
}

static void best_block(void *arg, int64_t block)
{
    const struct head *p = arg;
    int64_t n = head_logits(p, block);
    for (int64_t i = 0; i < p->count; i++) {
        const float *z = logits(p, block, i);
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++)
            if (above(z[j], z[best]))
                best = j;
        p->best[block * p->count + i] = z[best];
        p->word[block * p->count + i] = (int32_t)(block * p->words + best);
    }
}

void cpu_head_best(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor want, struct tensor work, struct tensor best,
                   struct tensor logit)
{
    struct head p = head_make(x, w, want, work);
    int32_t *word = best.data;
    float *value = logit.data;
    for (int64_t t = 0; t < p.T; t++) {
        word[t] = -1;
        value[t] = 0;
    }
    for (int64_t at = head_chunk(&p, 0, true); p.count > 0;
         at = head_chunk(&p, at, true)) {
        team_for(s->team, p.blocks, best_block, &p);
        for (int64_t i = 0; i < p.count; i++) {
            int64_t top = i;
            for (int64_t b = 1; b < p.blocks; b++)
                if (above(p.best[b * p.count + i], p.best[top]))
                    top = b * p.count + i;
            word[p.token[i]] = p.word[top];
            value[p.token[i]] = p.best[top];
        }
    }
}
