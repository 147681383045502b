/* random.h - randomness without state: a key and a counter in, numbers out.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 * The same (key, counter) gives the same numbers on every machine and layout. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include "base/base.h"

struct random4 { uint32_t at[4]; };
struct random4 random_philox(uint64_t key, uint64_t hi, uint64_t lo);
uint64_t random_key(uint64_t seed, const char *purpose);        /* a key of its own */
uint64_t random_bits(uint64_t key, uint64_t counter);
double random_uniform(uint64_t key, uint64_t counter);         /* [0, 1) */
double random_normal(uint64_t key, uint64_t counter);          /* mean 0, deviation 1 */
/* Element i of a permutation of 0..n-1 that `key` names, without storing it. */
uint64_t random_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
