/* dtype.c - element types by name, and the 16-bit floats bit by bit. */
#include "core/dtype.h"

const char *const dtype_name[DTYPES] = {
    [DTYPE_F32] = "f32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "f16",
    [DTYPE_I32] = "i32", [DTYPE_I64] = "i64",   [DTYPE_U8] = "u8",
    [DTYPE_F64] = "f64",
};

static const char *const safetensors_name[DTYPES] = {
    [DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16",
    [DTYPE_I32] = "I32", [DTYPE_I64] = "I64",   [DTYPE_U8] = "U8",
    [DTYPE_F64] = "F64",
};

int64_t dtype_bytes(enum dtype d)
{
    static const int8_t bytes[DTYPES] = {
        [DTYPE_F32] = 4, [DTYPE_BF16] = 2, [DTYPE_F16] = 2, [DTYPE_I32] = 4,
        [DTYPE_I64] = 8, [DTYPE_U8] = 1,   [DTYPE_F64] = 8,
    };
    REQUIRE(d < DTYPES);
    return bytes[d];
}

bool dtype_from_safetensors(const char *name, enum dtype *out)
{
    for (int d = 0; d < DTYPES; d++) {
        if (strcmp(name, safetensors_name[d]) == 0) {
            *out = (enum dtype)d;
            return true;
        }
    }
    return fail("dtype: '%s' is not supported, expected F32, BF16, F16, I32, I64, U8 "
                "or F64", name);
}

const char *dtype_safetensors(enum dtype d)
{
    REQUIRE(d < DTYPES);
    return safetensors_name[d];
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float bf16_to_f32(uint16_t x)
{
    return of_bits((uint32_t)x << 16);
}

uint16_t bf16_from_f32(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t even = bits + 0x7FFF + (bits >> 16 & 1);   /* up past half, or odd */
    uint32_t nan = bits | 0x400000;                     /* quiet, so cutting keeps it */
    return (uint16_t)(((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : even) >> 16);
}

uint16_t bf16_by_chance(float x, uint16_t noise)
{
    uint32_t bits = bits_of(x);
    if ((bits & 0x7F800000) == 0x7F800000)      /* infinity, NaN */
        return bf16_from_f32(x);
    return (uint16_t)((bits + noise) >> 16);
}

float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31;
    uint32_t fraction = x & 0x3FF;
    if (exponent == 31)
        return of_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0)
        return of_bits(sign | bits_of((float)fraction * 0x1p-24f));
    return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f16_from_f32(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000)                              /* NaN, made quiet */
        return (uint16_t)(sign | 0x7E00 | (size >> 13 & 0x3FF));
    if (size >= 0x47800000)                             /* 2^16 and above: infinity */
        return (uint16_t)(sign | 0x7C00);
    if (size < 0x33000000)                              /* below 2^-25: zero */
        return (uint16_t)sign;
    uint32_t shift = 13, fraction = size - 0x38000000;  /* exponent bias 127 to 15 */
    if (size < 0x38800000) {                            /* units of 2^-24 */
        shift = 126 - (size >> 23);
        fraction = (size & 0x7FFFFF) | 0x800000;
    }
    uint32_t cut = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    uint32_t kept = fraction >> shift;
    kept += cut > half || (cut == half && (kept & 1));  /* may carry, up to infinity */
    return (uint16_t)(sign | kept);
}

void dtype_to_f32(enum dtype d, const void *from, float *to, int64_t count)
{
    const uint16_t *half = from;
    const double *wide = from;
    switch (d) {
    case DTYPE_F32:
        if (count)
            memcpy(to, from, (size_t)count * sizeof *to);
        return;
    case DTYPE_BF16:
        for (int64_t i = 0; i < count; i++)
            to[i] = bf16_to_f32(half[i]);
        return;
    case DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            to[i] = f16_to_f32(half[i]);
        return;
    case DTYPE_F64:
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)wide[i];
        return;
    default:
        BUG("%s is not a floating type", dtype_name[d]);
    }
}

void dtype_from_f32(enum dtype d, const float *from, void *to, int64_t count)
{
    uint16_t *half = to;
    double *wide = to;
    switch (d) {
    case DTYPE_F32:
        if (count)
            memcpy(to, from, (size_t)count * sizeof *from);
        return;
    case DTYPE_BF16:
        for (int64_t i = 0; i < count; i++)
            half[i] = bf16_from_f32(from[i]);
        return;
    case DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            half[i] = f16_from_f32(from[i]);
        return;
    case DTYPE_F64:
        for (int64_t i = 0; i < count; i++)
            wide[i] = from[i];
        return;
    default:
        BUG("%s is not a floating type", dtype_name[d]);
    }
}
