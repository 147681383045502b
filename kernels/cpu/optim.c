/* optim.c - the optimizer's ops on the CPU: sum of squares and AdamW. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { PIECE = 16384, PIECES = 256 };   /* elements a partial sum; sums at a time */

struct squares {
    const float *g;
    int64_t count;
    double part[PIECES];
};

static void squares_piece(void *arg, int64_t i)
{
    struct squares *p = arg;
    const float *g = p->g + i * PIECE;
    int64_t n = MIN(PIECE, p->count - i * PIECE), j = 0;
    double lane[8] = {0};
    for (; j + 8 <= n; j += 8)
        for (int k = 0; k < 8; k++)
            lane[k] += (double)g[j + k] * g[j + k];
    for (; j < n; j++)
        lane[j % 8] += (double)g[j] * g[j];
    double sum = 0;
    for (int k = 0; k < 8; k++)
        sum += lane[k];
    p->part[i] = sum;
}

void cpu_square_sum(struct stream *s, struct tensor g, float beta, struct tensor out)
{
    REQUIRE(tensor_is_dense(g));
    double *to = out.data, sum = beta == 0 ? 0 : beta * *to;
    int64_t count = tensor_count(g);
    struct squares p;
    for (int64_t from = 0; from < count; from += (int64_t)PIECE * PIECES) {
        p.g = (const float *)g.data + from;
        p.count = MIN(count - from, (int64_t)PIECE * PIECES);
        int64_t pieces = blocks_of(p.count, PIECE);
        team_for(s->team, pieces, squares_piece, &p);
        for (int64_t i = 0; i < pieces; i++)
            sum += p.part[i];
    }
    *to = sum;
}

struct adam {
    const float *g;
    float *w, *m, *v;
    struct adamw step;
};

static void adamw_part(void *arg, int64_t from, int64_t to)
{
    const struct adam *p = arg;
    const struct adamw a = p->step;
    const float *g = p->g;
    float *w = p->w, *m = p->m, *v = p->v;
    float keep = 1 - a.rate * a.decay, step = a.rate / a.correct1;
    float root = 1 / sqrtf(a.correct2), rest1 = 1 - a.beta1, rest2 = 1 - a.beta2;
    INDEPENDENT
    for (int64_t i = from; i < to; i++) {
        float x = g[i] * a.scale;
        float mean = a.beta1 * m[i] + rest1 * x;
        float square = a.beta2 * v[i] + rest2 * x * x;
        m[i] = mean;
        v[i] = square;
        w[i] = keep * w[i] - step * mean / (sqrtf(square) * root + a.epsilon);
    }
}

void cpu_adamw(struct stream *s, struct tensor g, struct adamw step, struct tensor w,
               struct tensor m, struct tensor v)
{
    struct adam p = {g.data, w.data, m.data, v.data, step};
    cpu_rows(s, tensor_count(w), 1, adamw_part, &p);
}
