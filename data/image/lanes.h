/* lanes.h - LANES numbers side by side, for loops whose vectors the compiler does not
 * find by itself.
 *
 * Functions take lanes by pointer: passing them by value is another convention on every
 * processor. */
#ifndef IMAGE_LANES_H
#define IMAGE_LANES_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { LANES = 16 };
#define LANES_U8 uint8_t __attribute__((vector_size(LANES)))
#define LANES_I32 int32_t __attribute__((vector_size(4 * LANES)))
#define LANES_U32 uint32_t __attribute__((vector_size(4 * LANES)))

/* sum[i] += from[2 i] factor[0] + from[2 i + 1] factor[1].  x86 has an instruction for
 * this that compilers do not choose for such a loop. */
static inline void lanes_add_pairs(LANES_I32 *sum, const int16_t from[2 * LANES],
                                   const int16_t factor[2])
{
#ifdef __AVX2__
    int32_t both;
    memcpy(&both, factor, sizeof both);
#endif
#if defined(__AVX512BW__)
    *sum += (LANES_I32)_mm512_madd_epi16(_mm512_loadu_si512(from),
                                         _mm512_set1_epi32(both));
#elif defined(__AVX2__)
    __m256i halves[2], factors = _mm256_set1_epi32(both);
    for (int i = 0; i < 2; i++)
        halves[i] = _mm256_madd_epi16(
            _mm256_loadu_si256((const __m256i *)(from + LANES * i)), factors);
    LANES_I32 products;
    memcpy(&products, halves, sizeof products);
    *sum += products;
#else
    for (int i = 0; i < LANES; i++)
        (*sum)[i] += from[2 * i] * factor[0] + from[2 * i + 1] * factor[1];
#endif
}

/* Levels: what is below 0 or above 255 is clamped. */
static inline void lanes_clamp(const LANES_I32 *v, uint8_t to[LANES])
{
#ifdef __AVX512F__
    __m512i not_below = _mm512_max_epi32((__m512i)*v, _mm512_setzero_si512());
    LANES_U8 levels = (LANES_U8)_mm512_cvtusepi32_epi8(not_below);
#else
    LANES_I32 above = *v > 255, inside = (*v > 0) & ~above;
    LANES_U8 levels = __builtin_convertvector((*v & inside) | (above & 255), LANES_U8);
#endif
    memcpy(to, &levels, sizeof levels);
}

#endif
