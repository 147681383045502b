/* route.c - sending tokens to experts on the CPU: the choice, its losses, the order of
 * rows by expert, and the way back. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>

static int64_t live_rows(struct tensor live, int64_t rows)
{
    int64_t n = *(int32_t *)live.data;
    REQUIRE(n >= 0 && n <= rows);
    return n;
}

/* log of sum exp(z): from the most likely expert, where pi loses least. */
static float row_lse(const float *z, const float *pi, int64_t experts)
{
    int64_t best = 0;
    for (int64_t e = 1; e < experts; e++)
        if (pi[e] > pi[best])
            best = e;
    return z[best] - logf(pi[best]);
}

/* ---- the choice ---- */

struct router {
    struct tensor z, bias, pi, index, weight, dweight, dz;
    int64_t live, experts, chosen;
    const float *dsum;                  /* [E] or NULL */
    float dz2;
};

/* The a-th choice is the largest score after the one before it: ties go to the lower
 * index, and no list of what is taken is needed. */
static int32_t next_best(const float *pi, const float *bias, int64_t experts,
                         int32_t last)
{
    float limit = last < 0 ? 0 : pi[last] + (bias ? bias[last] : 0), top = 0;
    int32_t best = -1;
    for (int32_t e = 0; e < experts; e++) {
        float score = pi[e] + (bias ? bias[e] : 0);
        bool open = last < 0 || score < limit || (score == limit && e > last);
        if (open && (best < 0 || score > top)) {
            best = e;
            top = score;
        }
    }
    return best;
}

static void router_rows(void *arg, int64_t from, int64_t to)
{
    const struct router *p = arg;
    const float *bias = tensor_is(p->bias) ? p->bias.data : NULL;
    int64_t E = p->experts, A = p->chosen;
    for (int64_t t = from; t < to; t++) {
        float *pi = row(p->pi, t), *weight = row(p->weight, t), sum = 0;
        int32_t *index = row_i32(p->index, t);
        if (t >= p->live) {
            memset(pi, 0, (size_t)E * sizeof *pi);
            memset(weight, 0, (size_t)A * sizeof *weight);
            for (int64_t a = 0; a < A; a++)
                index[a] = -1;
            continue;
        }
        const float *z = row(p->z, t);
        float inverse = 1 / row_exp(z, row_max(z, E), E, pi);
        for (int64_t e = 0; e < E; e++)
            pi[e] *= inverse;
        for (int64_t a = 0; a < A; a++) {
            int32_t best = next_best(pi, bias, E, a ? index[a - 1] : -1);
            if (best < 0) /* only when scores are not numbers: the weights */
                best = (int32_t)a;      /* are not either, and the run stops on that */
            index[a] = best;
            sum += pi[best];
        }
        for (int64_t a = 0; a < A; a++)
            weight[a] = pi[index[a]] / sum;
    }
}

void cpu_router(struct stream *s, struct tensor z, struct tensor bias,
                struct tensor live, struct tensor pi, struct tensor index,
                struct tensor weight)
{
    struct router p = {.z = z, .bias = bias, .pi = pi, .index = index, .weight = weight,
                       .live = live_rows(live, z.dim[0]), .experts = z.dim[1],
                       .chosen = index.dim[1]};
    cpu_rows(s, z.dim[0], p.experts * (4 + p.chosen), router_rows, &p);
}

/* Through the chosen:  dz_e = a_e (da_e - sum_j a_j da_j).  Through the full softmax:
 * dz_e += pi_e (dsum_e - sum_j pi_j dsum_j).  Through lse^2: dz_e += dz2 2 lse pi_e. */
static void router_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct router *p = arg;
    int64_t E = p->experts, A = p->chosen;
    for (int64_t t = from; t < to; t++) {
        float *dz = row(p->dz, t);
        memset(dz, 0, (size_t)E * sizeof *dz);
        if (t >= p->live)
            continue;
        const float *pi = row(p->pi, t), *weight = row(p->weight, t);
        const int32_t *index = row_i32(p->index, t);
        float shift = p->dsum ? row_dot(pi, p->dsum, E) : 0;
        if (p->dz2 != 0)
            shift -= p->dz2 * 2 * row_lse(row(p->z, t), pi, E);
        for (int64_t e = 0; e < E; e++)
            dz[e] = pi[e] * ((p->dsum ? p->dsum[e] : 0) - shift);
        if (!tensor_is(p->dweight))
            continue;
        const float *dweight = row(p->dweight, t);
        float mean = 0;
        for (int64_t a = 0; a < A; a++)
            mean += weight[a] * dweight[a];
        for (int64_t a = 0; a < A; a++)
            dz[index[a]] += weight[a] * (dweight[a] - mean);
    }
}

void cpu_router_back(struct stream *s, struct tensor z, struct tensor pi,
                     struct tensor index, struct tensor weight, struct tensor live,
                     struct tensor dweight, struct tensor dsum, struct tensor dz2,
                     struct tensor dz)
{
    struct router p = {.z = z, .pi = pi, .index = index, .weight = weight, .dz = dz,
                       .dweight = dweight, .live = live_rows(live, z.dim[0]),
                       .experts = z.dim[1], .chosen = index.dim[1],
                       .dsum = tensor_is(dsum) ? dsum.data : NULL,
                       .dz2 = scalar(dz2, 0)};
    cpu_rows(s, z.dim[0], 4 * p.experts, router_back_rows, &p);
}

/* ---- the auxiliary losses ---- */

static void router_sums_rows(void *arg, int64_t from, int64_t to, int64_t column,
                             int64_t width, float *const sum[2])
{
    const struct router *p = arg;
    for (int64_t t = from; t < MIN(to, p->live); t++) {
        const float *pi = row(p->pi, t) + column;
        for (int64_t e = 0; e < width; e++)
            sum[0][e] += pi[e];
        const int32_t *index = row_i32(p->index, t);
        for (int64_t a = 0; a < p->chosen; a++)
            if (index[a] >= column && index[a] < column + width)
                sum[1][index[a] - column] += 1;
    }
}

static void carry(struct tensor from, struct tensor to)
{
    if (tensor_is(from))
        memcpy(to.data, from.data, (size_t)tensor_count(to) * sizeof(float));
    else
        memset(to.data, 0, (size_t)tensor_count(to) * sizeof(float));
}

void cpu_router_sums(struct stream *s, struct tensor z, struct tensor pi,
                     struct tensor index, struct tensor live, struct tensor chosen,
                     struct tensor sum, struct tensor z2, struct tensor rows,
                     struct tensor chosen_out, struct tensor sum_out,
                     struct tensor z2_out, struct tensor rows_out)
{
    struct router p = {.pi = pi, .index = index, .live = live_rows(live, z.dim[0]),
                       .chosen = index.dim[1]};
    carry(chosen, chosen_out);
    carry(sum, sum_out);
    cpu_fold(s, z.dim[0], z.dim[1], router_sums_rows, &p, 1, sum_out, chosen_out);
    double total = 0;
    for (int64_t t = 0; t < p.live; t++) {
        double lse = row_lse(row(z, t), row(pi, t), z.dim[1]);
        total += lse * lse;
    }
    *(float *)z2_out.data = (float)(scalar(z2, 0) + total);
    *(float *)rows_out.data = scalar(rows, 0) + (float)p.live;
}

void cpu_router_loss(struct stream *s, struct tensor chosen, struct tensor sum,
                     struct tensor z2, struct tensor rows, struct tensor share,
                     float aux_coef, float z_coef, struct tensor loss,
                     struct tensor aux, struct tensor zloss)
{
    (void)s;
    double n = scalar(rows, 0), balance = 0, square = 0;
    const float *count = chosen.data, *mass = sum.data;
    int64_t experts = tensor_count(chosen);
    for (int64_t e = 0; e < experts && n > 0; e++)
        balance += (double)experts * (count[e] / n) * (mass[e] / n);
    if (n > 0)
        square = scalar(z2, 0) / n;
    *(float *)aux.data = (float)balance;
    *(float *)zloss.data = (float)square;
    *(float *)loss.data = (float)(scalar(share, 0) * ((double)aux_coef * balance +
                                                      (double)z_coef * square));
}

void cpu_router_loss_back(struct stream *s, struct tensor chosen, struct tensor rows,
                          struct tensor share, float aux_coef, float z_coef,
                          struct tensor dsum, struct tensor dz2)
{
    (void)s;
    double n = scalar(rows, 0), part = scalar(share, 0);
    const float *count = chosen.data;
    float *d = dsum.data;
    int64_t experts = tensor_count(chosen);
    for (int64_t e = 0; e < experts; e++)
        d[e] =
            n > 0 ? (float)(part * aux_coef * (double)experts * count[e] / (n * n)) : 0;
    *(float *)dz2.data = n > 0 ? (float)(part * z_coef / n) : 0;
}

/* ---- rows by expert, and back ---- */

/* A counting sort of the pairs of experts first .. first + experts - 1; next (bound)
 * first holds counts, then where each expert's next row goes.  False: not enough rows,
 * none is placed. */
static bool sort_pairs(struct tensor index, int first, int experts, struct tensor place,
                       struct tensor source, struct tensor slot, int32_t *next)
{
    const int32_t *expert = index.data;
    int32_t *to = place.data, *token = source.data, *choice = slot.data;
    int64_t A = index.dim[1], pairs = index.dim[0] * A, R = source.dim[0];
    memset(next, 0, (size_t)(experts + 1) * sizeof *next);
    for (int64_t i = 0; i < pairs; i++)
        if (expert[i] >= first && expert[i] < first + experts)
            next[expert[i] - first]++;
    int32_t end = 0;
    for (int e = 0; e < experts; e++) {
        int32_t count = next[e];
        next[e] = end;
        end += count;
    }
    bool fits = end <= R;
    if (!fits)
        memset(next, 0, (size_t)(experts + 1) * sizeof *next);
    next[experts] = end = fits ? end : 0;
    for (int64_t i = 0; i < pairs; i++) {
        bool own = fits && expert[i] >= first && expert[i] < first + experts;
        to[i] = own ? next[expert[i] - first]++ : -1;
        if (!own)
            continue;
        token[to[i]] = (int32_t)(i / A);
        choice[to[i]] = (int32_t)(i % A);
    }
    for (int64_t r = end; r < R; r++)
        token[r] = choice[r] = -1;
    for (int e = experts - 1; e > 0; e--)       /* ends became starts of the next */
        next[e] = next[e - 1];
    next[0] = 0;
    return fits;
}

void cpu_sort_rows(struct stream *s, struct tensor index, int experts,
                   struct tensor place, struct tensor source, struct tensor slot,
                   struct tensor bound)
{
    (void)s;
    const int32_t *expert = index.data;
    for (int64_t i = 0; i < tensor_count(index); i++)
        REQUIRE(expert[i] < experts);
    REQUIRE(sort_pairs(index, 0, experts, place, source, slot, bound.data));
}

void cpu_sort_own(struct stream *s, struct tensor index, int first, struct tensor over,
                  struct tensor place, struct tensor source, struct tensor slot,
                  struct tensor bound, struct tensor over_out)
{
    (void)s;
    bool fits = sort_pairs(index, first, (int)bound.dim[0] - 1, place, source, slot,
                           bound.data);
    *(float *)over_out.data = scalar(over, 0) + !fits;
}

/* ---- rows of several ranks ---- */

/* The most rows that one owner gets. */
static int64_t most_rows(struct tensor bounds, int64_t own)
{
    int64_t most = 0;
    for (int64_t owner = 0; owner < bounds.dim[0]; owner++) {
        int64_t sum = 0;
        for (int64_t n = 0; n < bounds.dim[0]; n++) {
            const int32_t *b = row_i32(bounds, n) + owner * own;
            sum += b[own] - b[0];
        }
        most = MAX(most, sum);
    }
    return most;
}

void cpu_meet_rows(struct stream *s, struct tensor bounds, int rank, struct tensor over,
                   struct tensor leave, struct tensor arrive, struct tensor order,
                   struct tensor undo, struct tensor bound, struct tensor over_out)
{
    (void)s;
    int64_t N = bounds.dim[0], own = bound.dim[0] - 1, C = order.dim[0];
    bool fits = most_rows(bounds, own) <= C;
    int32_t *left = leave.data, *came = arrive.data, *end = bound.data;
    int32_t *next = order.data, *back = undo.data, at = 0;
    left[0] = came[0] = 0;
    for (int64_t n = 0; n < N; n++) {
        const int32_t *b = row_i32(bounds, n) + rank * own;
        left[n + 1] = fits ? row_i32(bounds, rank)[(n + 1) * own] : 0;
        came[n + 1] = came[n] + (fits ? b[own] - b[0] : 0);
    }
    for (int64_t e = 0; e < own; e++) {
        end[e] = at;
        for (int64_t n = 0; n < N && fits; n++) {
            const int32_t *b = row_i32(bounds, n) + rank * own;
            for (int32_t r = b[e]; r < b[e + 1]; r++) {
                next[at] = came[n] + r - b[0];
                back[next[at]] = at;
                at++;
            }
        }
    }
    end[own] = at;
    for (int64_t r = at; r < C; r++)
        next[r] = back[r] = -1;
    *(float *)over_out.data = scalar(over, 0) + !fits;
}

void cpu_clear_rows(struct stream *s, struct tensor bound, struct tensor x)
{
    (void)s;
    int64_t end = ((const int32_t *)bound.data)[bound.dim[0] - 1];
    REQUIRE(end >= 0 && end <= x.dim[0]);
    memset(row(x, end), 0, (size_t)((x.dim[0] - end) * x.dim[1]) * sizeof(float));
}

/* ---- back to tokens ---- */

struct routed {
    struct tensor place, weight, source, slot, rows, tokens, dweight;
    float beta;
};

static void gather_sum_rows(void *arg, int64_t from, int64_t to)
{
    const struct routed *p = arg;
    int64_t width = p->tokens.dim[1], A = p->place.dim[1];
    for (int64_t t = from; t < to; t++) {
        const int32_t *place = row_i32(p->place, t);
        float *dx = row(p->tokens, t), beta = p->beta;
        for (int64_t a = 0; a < A; a++) {
            if (place[a] < 0)
                continue;
            const float *dy = row(p->rows, place[a]);
            INDEPENDENT
            for (int64_t c = 0; c < width; c++)
                dx[c] = blend(beta, dx[c], dy[c]);
            beta = 1;
        }
        if (beta == 0)                  /* routed nowhere */
            memset(dx, 0, (size_t)width * sizeof *dx);
        for (int64_t c = 0; c < width && beta != 0 && beta != 1; c++)
            dx[c] *= beta;
    }
}

void cpu_gather_sum(struct stream *s, struct tensor place, struct tensor dy, float beta,
                    struct tensor dx)
{
    struct routed p = {.place = place, .rows = dy, .beta = beta, .tokens = dx};
    cpu_rows(s, dx.dim[0], dx.dim[1] * place.dim[1], gather_sum_rows, &p);
}

static void combine_rows(void *arg, int64_t from, int64_t to)
{
    const struct routed *p = arg;
    int64_t width = p->tokens.dim[1], A = p->place.dim[1];
    for (int64_t t = from; t < to; t++) {
        const int32_t *place = row_i32(p->place, t);
        const float *weight = row(p->weight, t);
        float *y = row(p->tokens, t), beta = 0;
        for (int64_t a = 0; a < A; a++) {
            if (place[a] < 0)
                continue;
            const float *x = row(p->rows, place[a]);
            float w = weight[a];
            if (beta == 0) {
                INDEPENDENT
                for (int64_t c = 0; c < width; c++)
                    y[c] = w * x[c];
                beta = 1;
                continue;
            }
            INDEPENDENT
            for (int64_t c = 0; c < width; c++)
                y[c] += w * x[c];
        }
        if (beta == 0)
            memset(y, 0, (size_t)width * sizeof *y);
    }
}

void cpu_combine(struct stream *s, struct tensor x, struct tensor place,
                 struct tensor weight, struct tensor y)
{
    struct routed p = {.rows = x, .place = place, .weight = weight, .tokens = y};
    cpu_rows(s, y.dim[0], y.dim[1] * place.dim[1], combine_rows, &p);
}

static void combine_back_x(void *arg, int64_t from, int64_t to)
{
    const struct routed *p = arg;
    const int32_t *source = p->source.data, *slot = p->slot.data;
    int64_t width = p->rows.dim[1];
    for (int64_t r = from; r < to; r++) {
        float *dx = row(p->rows, r);
        if (source[r] < 0) {
            memset(dx, 0, (size_t)width * sizeof *dx);
            continue;
        }
        float w = row(p->weight, source[r])[slot[r]];
        const float *dy = row(p->tokens, source[r]);
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            dx[c] = w * dy[c];
    }
}

static void combine_back_weight(void *arg, int64_t from, int64_t to)
{
    const struct routed *p = arg;
    int64_t A = p->place.dim[1];
    for (int64_t t = from; t < to; t++) {
        const int32_t *place = row_i32(p->place, t);
        for (int64_t a = 0; a < A; a++)
            row(p->dweight, t)[a] =
                place[a] < 0 ? 0 : row_dot(row(p->tokens, t), row(p->rows, place[a]),
                                           p->tokens.dim[1]);
    }
}

void cpu_combine_back(struct stream *s, struct tensor x, struct tensor place,
                      struct tensor weight, struct tensor source, struct tensor slot,
                      struct tensor dy, struct tensor dx, struct tensor dweight)
{
    struct routed p = {.place = place, .weight = weight, .source = source, .slot = slot,
                       .tokens = dy, .rows = dx, .dweight = dweight};
    if (tensor_is(dx))
        cpu_rows(s, dx.dim[0], dx.dim[1], combine_back_x, &p);
    p.rows = x;
    if (tensor_is(dweight))
        cpu_rows(s, dy.dim[0], dy.dim[1] * place.dim[1], combine_back_weight, &p);
}
