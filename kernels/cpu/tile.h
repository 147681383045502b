/* tile.h - products of small matrices whose result is held in registers: for shapes
 * where a library spends its time on packing operands and on the call.
 *
 * Rows of b and c are read and written as vectors of LANES floats, an element of a is
 * broadcast from wherever it lies: so a may be turned or a slice, at no cost.  The file
 * that includes this is compiled so that a product and a sum are rounded once; sums run
 * over k in ascending order. */
#ifndef KERNELS_CPU_TILE_H
#define KERNELS_CPU_TILE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined __AVX512F__
enum { LANES = 16, TALL = 8 };          /* TALL x WIDE sums leave registers for b */
#elif defined __AVX__
enum { LANES = 8, TALL = 4 };
#else
enum { LANES = 4, TALL = 4 };
#endif
enum { WIDE = 3 };

#define VECTOR float __attribute__((vector_size(LANES * sizeof(float))))

#if defined __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* c [m,n] (+)= a [m,k] b [k,n].  Rows of b are readable to a multiple of LANES. */
struct tile {
    int64_t m, n, k;
    const float *a;                     /* a[i,s] at a + i a_row + s a_step */
    int64_t a_row, a_step;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;                           /* else c is overwritten */
};

/* `rows` rows of c from i on and `wide` vectors from column j on; the compiler knows
 * how many.  The last vector may reach past the end of c's rows. */
static inline __attribute__((always_inline)) void
tile_some(const struct tile *t, const int rows, const int wide, int64_t i, int64_t j)
{
    VECTOR sum[TALL][WIDE];
    const float *a = t->a + i * t->a_row, *b = t->b + j;
    float *c = t->c + i * t->c_row + j;
    int64_t last = t->n - j - (wide - 1) * LANES;
    size_t end = (last < LANES ? (size_t)last : LANES) * sizeof(float);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int v = 0; v < wide; v++) {
            sum[r][v] = (VECTOR){0};
            if (t->add && (v < wide - 1 || end == sizeof sum[r][v]))
                memcpy(&sum[r][v], c + r * t->c_row + v * LANES, sizeof sum[r][v]);
            else if (t->add)
                memcpy(&sum[r][v], c + r * t->c_row + v * LANES, end);
        }
    for (int64_t s = 0; s < t->k; s++, a += t->a_step, b += t->b_row) {
        VECTOR x[WIDE];
        UNROLL
        for (int v = 0; v < wide; v++)
            memcpy(&x[v], b + v * LANES, sizeof x[v]);
        UNROLL
        for (int r = 0; r < rows; r++)
            UNROLL
            for (int v = 0; v < wide; v++)
                sum[r][v] += a[r * t->a_row] * x[v];
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int v = 0; v < wide; v++)
            if (v < wide - 1 || end == sizeof sum[r][v])
                memcpy(c + r * t->c_row + v * LANES, &sum[r][v], sizeof sum[r][v]);
            else
                memcpy(c + r * t->c_row + v * LANES, &sum[r][v], end);
}

static inline __attribute__((always_inline)) void
tile_strip(const struct tile *t, const int wide, int64_t j)
{
    int64_t i = 0;
    for (; i + TALL <= t->m; i += TALL)
        tile_some(t, TALL, wide, i, j);
    for (; i + 2 <= t->m; i += 2)
        tile_some(t, 2, wide, i, j);
    for (; i < t->m; i++)
        tile_some(t, 1, wide, i, j);
}

/* Strips of at most WIDE vectors, as equal as can be. */
static inline void tile_product(struct tile t)
{
    int64_t vectors = (t.n + LANES - 1) / LANES, strips = (vectors + WIDE - 1) / WIDE;
    for (int64_t strip = 0, at = 0; strip < strips; strip++) {
        int64_t wide = (vectors - at) / (strips - strip);
        if (wide == 3)
            tile_strip(&t, 3, at * LANES);
        else if (wide == 2)
            tile_strip(&t, 2, at * LANES);
        else
            tile_strip(&t, 1, at * LANES);
        at += wide;
    }
}

#endif
