/* gemm.c - products on the CPU: CBLAS on blocks of fixed size.  OpenBLAS is kept to one
 * thread; the team claims the blocks. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <strings.h>

/* OpenBLAS chooses its code for this processor when it is loaded, by model number: a
 * processor newer than the library, or one behind a hypervisor, gets code for machines
 * of 2004, six times slower here.  These two functions (present where the library is
 * built for many processors) let it choose again. */
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char *better_core(const char *now)
{
#if defined __x86_64__
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const half[] = {"Haswell", "Zen", "Excavator"};
    for (int i = 0; i < COUNT(wide); i++)
        if (strcasecmp(now, wide[i]) == 0)
            return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    for (int i = 0; i < COUNT(half); i++)
        if (strcasecmp(now, half[i]) == 0)
            return NULL;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    (void)now;
    return NULL;
}

/* Before main, while there is one thread. */
__attribute__((constructor)) static void library_prepare(void)
{
    openblas_set_num_threads(1);
    if (getenv("OPENBLAS_CORETYPE") || !gotoblas_dynamic_init || !gotoblas_dynamic_quit)
        return;
    const char *core = better_core(openblas_get_corename());
    if (!core)
        return;
    setenv("OPENBLAS_CORETYPE", core, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv("OPENBLAS_CORETYPE");
}

void cpu_product(bool turn_a, bool turn_b, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                 float beta, float *c, int64_t c_stride)
{
    if (m == 0 || n == 0)
        return;
    if (k == 0) {                       /* libraries differ on an empty sum */
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                c[i * c_stride + j] = blend(beta, c[i * c_stride + j], 0);
        return;
    }
    if (!turn_a && turn_b && m <= CPU_FEW) {
        cpu_product_few(m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
        return;
    }
    cblas_sgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans,
                turn_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k,
                alpha, a, (blasint)a_stride, b, (blasint)b_stride, beta, c,
                (blasint)c_stride);
}

/* How [m,n] is cut: an even number of blocks of rows, so that two threads end together,
 * each large enough to be fast. */
struct cut {
    int64_t m, n, m_block, n_block, m_blocks, n_blocks;
};

enum { M_LEAST = 32, M_MOST = 256, N_MOST = 768, N_WIDE = 512, N_FEW = 256 };

static struct cut cut_make(int64_t m, int64_t n)
{
    struct cut c = {.m = m, .n = n};
    int64_t even = MAX(1, 2 * blocks_of(m, 2 * M_MOST));
    c.m_block = MAX(blocks_of(blocks_of(m, even), 16) * 16, M_LEAST);
    c.n_block = n <= N_MOST ? MAX(n, 1) : N_WIDE;
    c.m_blocks = blocks_of(m, c.m_block);
    c.n_blocks = blocks_of(n, c.n_block);
    return c;
}

struct block {
    int64_t m, n, rows, columns;
};

static struct block cut_block(const struct cut *c, int64_t i)
{
    struct block b = {i / c->n_blocks * c->m_block, i % c->n_blocks * c->n_block, 0, 0};
    b.rows = MIN(c->m_block, c->m - b.m);
    b.columns = MIN(c->n_block, c->n - b.n);
    return b;
}

/* ---- one matrix ---- */

struct linear {
    struct tensor a, b, bias, c;
    float beta;
    struct cut cut;
};

static void linear_block(void *arg, int64_t i)
{
    const struct linear *p = arg;
    struct block at = cut_block(&p->cut, i);
    float *y = row(p->c, at.m) + at.n;
    float beta = p->beta;
    if (tensor_is(p->bias)) {
        const float *bias = (const float *)p->bias.data + at.n;
        for (int64_t t = 0; t < at.rows; t++)
            memcpy(y + t * p->c.stride[0], bias, (size_t)at.columns * sizeof *y);
        beta = 1;
    }
    cpu_product(false, true, at.rows, at.columns, p->a.dim[1], 1, row(p->a, at.m),
                p->a.stride[0], row(p->b, at.n), p->b.stride[0], beta, y,
                p->c.stride[0]);
}

/* Padding past `live` rows of t: an empty sum. */
static void fade_padding(struct stream *s, float beta, struct tensor t, int64_t live)
{
    struct tensor rest = tensor_rows(t, live, t.dim[0] - live);
    if (rest.dim[0] > 0 && beta != 1)
        cpu_axpby(s, 0, rest, beta, rest);
}

void cpu_linear(struct stream *s, struct tensor x, struct tensor w, struct tensor b,
                float beta, struct tensor y)
{
    int64_t live = live_of(y);
    struct linear p = {x, w, b, y, beta, cut_make(live, y.dim[1])};
    if (live <= CPU_FEW) {              /* columns are all there is to share out */
        p.cut.n_block = N_FEW;
        p.cut.n_blocks = blocks_of(y.dim[1], N_FEW);
    }
    team_for(s->team, p.cut.m_blocks * p.cut.n_blocks, linear_block, &p);
    fade_padding(s, beta, y, live);
}

static void linear_back_block(void *arg, int64_t i)
{
    const struct linear *p = arg;
    struct block at = cut_block(&p->cut, i);
    cpu_product(false, false, at.rows, at.columns, p->a.dim[1], 1, row(p->a, at.m),
                p->a.stride[0], row(p->b, 0) + at.n, p->b.stride[0], p->beta,
                row(p->c, at.m) + at.n, p->c.stride[0]);
}

void cpu_linear_back(struct stream *s, struct tensor dy, struct tensor w, float beta,
                     struct tensor dx)
{
    int64_t live = live_of(dy);
    struct linear p = {dy, w, tensor_none(), dx, beta, cut_make(live, dx.dim[1])};
    team_for(s->team, p.cut.m_blocks * p.cut.n_blocks, linear_back_block, &p);
    fade_padding(s, beta, dx, live);
}

/* db = beta db + sum over rows of dy, columns [from, from + width): sums of 64 rows are
 * added up, which keeps the rounding error of a long sum small. */
static void bias_sum(struct tensor dy, int64_t from, int64_t width, float beta,
                     float *db)
{
    float total[M_MOST] = {0};
    int64_t live = live_of(dy);
    for (int64_t t = 0; t < live; t += 64) {
        float part[M_MOST] = {0};
        for (int64_t i = t; i < MIN(t + 64, live); i++) {
            const float *y = row(dy, i) + from;
            for (int64_t c = 0; c < width; c++)
                part[c] += y[c];
        }
        for (int64_t c = 0; c < width; c++)
            total[c] += part[c];
    }
    for (int64_t c = 0; c < width; c++)
        db[from + c] = blend(beta, db[from + c], total[c]);
}

static void linear_weight_block(void *arg, int64_t i)
{
    const struct linear *p = arg;
    struct block at = cut_block(&p->cut, i);
    if (tensor_is(p->bias) && at.n == 0)
        bias_sum(p->a, at.m, at.rows, p->beta, p->bias.data);
    if (tensor_is(p->c))
        cpu_product(true, false, at.rows, at.columns, live_of(p->a), 1,
                    row(p->a, 0) + at.m, p->a.stride[0], row(p->b, 0) + at.n,
                    p->b.stride[0], p->beta, row(p->c, at.m) + at.n, p->c.stride[0]);
}

void cpu_linear_weight(struct stream *s, struct tensor dy, struct tensor x, float beta,
                       struct tensor dw, struct tensor db)
{
    struct linear p = {dy, x, db, dw, beta, cut_make(dy.dim[1], x.dim[1])};
    int64_t n_blocks = tensor_is(dw) ? p.cut.n_blocks : 1;
    p.cut.n_blocks = n_blocks;
    team_for(s->team, p.cut.m_blocks * n_blocks, linear_weight_block, &p);
}

/* ---- one matrix an expert ---- */

enum { ROWS = 256 };                    /* of one expert, at a time */

struct grouped {
    struct tensor a, w, bound, c;
    float beta;
    bool back;
    struct cut cut;
};

/* The blocks of all experts one after another, then those of the rows past the end. */
static void grouped_block(void *arg, int64_t i)
{
    const struct grouped *p = arg;
    const int32_t *bound = p->bound.data;
    int64_t experts = p->w.dim[0], e = 0;
    for (; e < experts && i >= blocks_of(bound[e + 1] - bound[e], ROWS); e++)
        i -= blocks_of(bound[e + 1] - bound[e], ROWS);
    int64_t from = bound[e] + i * ROWS;
    int64_t to = MIN(from + ROWS, e < experts ? bound[e + 1] : p->c.dim[0]);
    if (e < experts)
        cpu_product(false, !p->back, to - from, p->c.dim[1], p->a.dim[1], 1,
                    row(p->a, from), p->a.stride[0], row(p->w, e), p->w.stride[1],
                    p->beta, row(p->c, from), p->c.stride[0]);
    else                                /* an empty sum */
        cpu_product(false, false, to - from, p->c.dim[1], 0, 1, NULL, 0, NULL, 0,
                    p->beta, row(p->c, from), p->c.stride[0]);
}

static void grouped_run(struct stream *s, struct grouped *p)
{
    const int32_t *bound = p->bound.data;
    int64_t experts = p->w.dim[0];
    REQUIRE(bound[experts] <= p->c.dim[0]);
    int64_t blocks = blocks_of(p->c.dim[0] - bound[experts], ROWS);
    for (int64_t e = 0; e < experts; e++)
        blocks += blocks_of(bound[e + 1] - bound[e], ROWS);
    team_for(s->team, blocks, grouped_block, p);
}

void cpu_grouped(struct stream *s, struct tensor x, struct tensor w,
                 struct tensor bound, struct tensor y)
{
    grouped_run(s, &(struct grouped){.a = x, .w = w, .bound = bound, .c = y});
}

void cpu_grouped_back(struct stream *s, struct tensor dy, struct tensor w,
                      struct tensor bound, float beta, struct tensor dx)
{
    grouped_run(s, &(struct grouped){.a = dy, .w = w, .bound = bound, .c = dx,
                                     .beta = beta, .back = true});
}

static void grouped_weight_block(void *arg, int64_t i)
{
    const struct grouped *p = arg;
    const int32_t *bound = p->bound.data;
    int64_t blocks = p->cut.m_blocks * p->cut.n_blocks, e = i / blocks;
    struct block at = cut_block(&p->cut, i % blocks);
    float *dw = row(p->c, e) + at.m * p->c.stride[1] + at.n;
    cpu_product(true, false, at.rows, at.columns, bound[e + 1] - bound[e], 1,
                row(p->a, bound[e]) + at.m, p->a.stride[0], row(p->w, bound[e]) + at.n,
                p->w.stride[0], p->beta, dw, p->c.stride[1]);
}

void cpu_grouped_weight(struct stream *s, struct tensor dy, struct tensor x,
                        struct tensor bound, float beta, struct tensor dw)
{
    struct grouped p = {.a = dy, .w = x, .bound = bound, .c = dw, .beta = beta,
                        .cut = cut_make(dw.dim[1], dw.dim[2])};
    team_for(s->team, dw.dim[0] * p.cut.m_blocks * p.cut.n_blocks, grouped_weight_block,
             &p);
}
