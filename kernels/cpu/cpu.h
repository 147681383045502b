/* cpu.h - what the files of the CPU device share: prototypes taken from the contract,
 * rows of tensors, and loops split into blocks that the team's threads claim.
 *
 * Blocks depend on shapes only and every sum inside one has a fixed order, so results
 * do not depend on the number of threads. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/ops.h"

/* cpu_*: of f32 tensors; narrow_*: of those and bf16 (narrow.c). */
#define PROTOTYPE(name)                                                                \
    extern __typeof__(*((struct ops *)0)->name) cpu_##name, narrow_##name;
EACH_OP(PROTOTYPE)
#undef PROTOTYPE

/* The compiler may assume that no iteration of the next loop reads what another one
 * wrote, though output and input may be the same tensor. */
#if defined __clang__
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline float *row(struct tensor t, int64_t i)
{
    return (float *)t.data + i * t.stride[0];
}

static inline int32_t *row_i32(struct tensor t, int64_t i)
{
    return (int32_t *)t.data + i * t.stride[0];
}

/* Rows that are no padding. */
static inline int64_t live_of(struct tensor t)
{
    return t.live ? MIN(t.dim[0], *t.live / t.per) : t.dim[0];
}

/* The value of a [1,1] tensor; `otherwise` when it is absent. */
static inline float scalar(struct tensor t, float otherwise)
{
    return tensor_is(t) ? *(float *)t.data : otherwise;
}

static inline int64_t blocks_of(int64_t count, int64_t block)
{
    return (count + block - 1) / block;
}

/* y = beta y + x, without reading y when beta is 0. */
static inline float blend(float beta, float y, float x)
{
    return beta == 0 ? x : beta * y + x;
}

/* body(arg, from, to) over blocks of 0..rows-1 worth `cost` elements a row. */
void cpu_rows(struct stream *s, int64_t rows, int64_t cost,
              void (*body)(void *arg, int64_t from, int64_t to), void *arg);

/* Sums over rows: body adds rows [from, to) of columns [column, column + width) to
 * sum[0] and, where two sums are wanted, sum[1]; both begin as zero.  The outputs get
 * out = beta out + sum; an absent one is left out. */
void cpu_fold(struct stream *s, int64_t rows, int64_t columns,
              void (*body)(void *arg, int64_t from, int64_t to, int64_t column,
                           int64_t width, float *const sum[2]),
              void *arg, float beta, struct tensor out0, struct tensor out1);

/* c = beta c + op(a) op(b), row-major with row strides; a [m,k] or, turned, [k,m];
 * b [k,n] or, turned, [n,k].  One call is one thread's work. */
void cpu_product(bool turn_a, bool turn_b, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                 float beta, float *c, int64_t c_stride);
/* The same with a as it is and b turned, for so few rows that what matters is reading b
 * once; cpu_product calls it for at most CPU_FEW. */
void cpu_product_few(int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t a_stride, const float *b, int64_t b_stride, float beta,
                     float *c, int64_t c_stride);
#if defined __AVX512F__
enum { CPU_FEW = 16 };
#else
enum { CPU_FEW = 8 };
#endif

#endif
