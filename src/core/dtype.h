/* dtype.h - element types: names, sizes, conversions. */
#ifndef CORE_DTYPE_H
#define CORE_DTYPE_H

#include "base/base.h"

enum dtype {
    DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64, DTYPE_U8, DTYPE_F64, DTYPES
};

extern const char *const dtype_name[DTYPES];            /* "f32", "bf16", ... */
int64_t dtype_bytes(enum dtype d);                      /* of one element */
/* Names of safetensors files ("F32", "BF16", ...). */
MUST_USE bool dtype_from_safetensors(const char *name, enum dtype *out);
const char *dtype_safetensors(enum dtype d);

/* IEEE bfloat16 and float16, round to nearest even; NaN stays NaN. */
float bf16_to_f32(uint16_t x);
uint16_t bf16_from_f32(float x);
/* Up with the chance that is what is cut off, where `noise` is 16 even random bits. */
uint16_t bf16_by_chance(float x, uint16_t noise);
float f16_to_f32(uint16_t x);
uint16_t f16_from_f32(float x);
/* `count` elements of a floating type to f32 and back. */
void dtype_to_f32(enum dtype d, const void *from, float *to, int64_t count);
void dtype_from_f32(enum dtype d, const float *from, void *to, int64_t count);

#endif
