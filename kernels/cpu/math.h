/* math.h - exp, exp2, sigmoid and the normal distribution, written so that a loop over
 * them becomes vector instructions; and sums over rows in a fixed order.
 *
 * No branches, no tables, no calls.  Errors, measured over every exponent against
 * double by tests/ops/test_ops_math.c: exp 1 ulp, exp2 1.2, sigmoid 3, normal 8 down to
 * x = -4 and 3e-6 relative further out, where it is tiny.  NaN stays NaN. */
#ifndef KERNELS_CPU_MATH_H
#define KERNELS_CPU_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x: n = round(x / ln 2), r = x - n ln 2, e^x = 2^n (1 + r + r^2 q(r)) with q our own
 * minimax fit on |r| <= ln 2 / 2 (3e-9).  0 below -86.6, infinite above 88.72. */
static inline float exp_f32(float x)
{
    float top = x > 88.8f ? 88.8f : x;
    float t = top * 1.44269504f + 12582912.0f;         /* the sum's low bits are n */
    float n = t - 12582912.0f;
    float r = top - n * 0.693359375f; /* ln 2 in two pieces; the first */
    r -= n * -2.12194440e-4f;                          /* times n is exact */
    float q = 0.00138145965f;
    q = q * r + 0.00836871751f;
    q = q * r + 0.041668389f;
    q = q * r + 0.166665211f;
    q = q * r + 0.49999994f;
    float p = q * (r * r) + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits - 0x4B400000u + 126u) << 23; /* 2^(n-1): 2^128 has no float */
    float half;
    memcpy(&half, &bits, sizeof half);
    float y = p * half * 2.0f;
    return x < -86.6f ? 0.0f : y;
}

/* 2^x for x up to 127, 0 below -127: n = round(x), 2^x = 2^n p(x - n), p our own
 * minimax fit on |r| <= 1/2 (2e-9).  Half of exp's instructions. */
static inline float exp2_f32(float x)
{
    float low = x < -127.0f ? -127.0f : x;
    float t = low + 12582912.0f;                       /* the sum's low bits are n */
    float r = low - (t - 12582912.0f);
    float p = 0.000153533620f;
    p = p * r + 0.00133988739f;
    p = p * r + 0.00961843692f;
    p = p * r + 0.0555033237f;
    p = p * r + 0.240226477f;
    p = p * r + 0.693147182f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 127u) << 23;                        /* 2^n; 0 for n = -127 */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

/* The normal distribution function, (1 + erf(x / sqrt 2)) / 2.  With a = |x| / sqrt 2
 * and t = 1 / (1 + 0.35 a), erfc(a) = e^(-a^2) t p(t); p is our own fit (7e-9). */
static inline float normal_f32(float x)
{
    float a = x < 0 ? -x : x;
    float t = 1.0f / (1.0f + 0.247487373f * a);
    float p = 0.0376081569f;
    p = p * t - 0.15447151f;
    p = p * t + 0.170575946f;
    p = p * t - 0.0125677899f;
    p = p * t + 0.0738312231f;
    p = p * t + 0.153492896f;
    p = p * t + 0.14846063f;
    p = p * t + 0.188523969f;
    p = p * t + 0.197058271f;
    p = p * t + 0.197488216f;
    float tail = 0.5f * exp_f32(-0.5f * x * x) * t * p;
    return x < 0 ? tail : 1.0f - tail;
}

/* The density, e^(-x^2/2) / sqrt(2 pi). */
static inline float density_f32(float x)
{
    return 0.398942280f * exp_f32(-0.5f * x * x);
}

/* Sixteen partial sums or maxima side by side, then a tree. */
#define LANES_F32 float __attribute__((vector_size(64)))

static inline float lanes_fold(float lane[16])
{
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

static inline float row_sum(const float *x, int64_t n)
{
    LANES_F32 sum = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        LANES_F32 a;
        memcpy(&a, x + i, sizeof a);
        sum += a;
    }
    float lane[16];
    memcpy(lane, &sum, sizeof lane);
    for (int j = 0; i < n; i++, j++)
        lane[j] += x[i];
    return lanes_fold(lane);
}

static inline float row_dot(const float *x, const float *y, int64_t n)
{
    LANES_F32 sum = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        LANES_F32 a, b;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, y + i, sizeof b);
        sum += a * b;
    }
    float lane[16];
    memcpy(lane, &sum, sizeof lane);
    for (int j = 0; i < n; i++, j++)
        lane[j] += x[i] * y[i];
    return lanes_fold(lane);
}

/* The sum of (x - shift) y z. */
static inline float row_dot3(const float *x, float shift, const float *y,
                             const float *z, int64_t n)
{
    LANES_F32 sum = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        LANES_F32 a, b, c;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, y + i, sizeof b);
        memcpy(&c, z + i, sizeof c);
        sum += (a - shift) * b * c;
    }
    float lane[16];
    memcpy(lane, &sum, sizeof lane);
    for (int j = 0; i < n; i++, j++)
        lane[j] += (x[i] - shift) * y[i] * z[i];
    return lanes_fold(lane);
}

/* n > 0.  NaN does not win, but whoever takes exp(x - max) meets it. */
static inline float row_max(const float *x, int64_t n)
{
    float top = x[0];
    int64_t i = 0;
    if (n >= 16) {
        LANES_F32 most;
        memcpy(&most, x, sizeof most);
        for (; i + 16 <= n; i += 16) {
            LANES_F32 a;
            memcpy(&a, x + i, sizeof a);
            __typeof__(a > most) more = a > most, bits, kept;
            memcpy(&bits, &a, sizeof a);
            memcpy(&kept, &most, sizeof a);
            kept = (bits & more) | (kept & ~more);
            memcpy(&most, &kept, sizeof a);
        }
        float lane[16];
        memcpy(lane, &most, sizeof lane);
        for (int half = 8; half; half /= 2)
            for (int j = 0; j < half; j++)
                lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
        top = lane[0];
    }
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

/* y = exp(x - shift), returns the sum; y may be x. */
static inline float row_exp(const float *x, float shift, int64_t n, float *y)
{
#if !defined __clang__
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < n; i++)
        y[i] = exp_f32(x[i] - shift);
    return row_sum(y, n);
}

#endif
