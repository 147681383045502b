/* random.c - Philox4x32-10 and what is made of its bits. */
#include "base/random.h"

#include <math.h>

enum { PHILOX_ROUNDS = 10, PERMUTE_ROUNDS = 8 };

struct random4 random_philox(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32);
    uint32_t c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t old1 = c1, old3 = c3;
        c0 = (uint32_t)(b >> 32) ^ old1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ old3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;          /* golden ratio */
        k1 += 0xBB67AE85u;          /* sqrt(3) - 1 */
    }
    return (struct random4){{c0, c1, c2, c3}};
}

/* The third counter word separates the uses, so that no two share bits. */
enum use { USE_BITS, USE_NORMAL, USE_PERMUTE, USE_KEY };

static uint64_t low64(struct random4 r)
{
    return r.at[0] | (uint64_t)r.at[1] << 32;
}

static uint64_t high64(struct random4 r)
{
    return r.at[2] | (uint64_t)r.at[3] << 32;
}

/* The 53 bits a double can hold, in [0, 1). */
static double unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

uint64_t random_key(uint64_t seed, const char *purpose)
{
    uint64_t hash = 0xCBF29CE484222325u;            /* FNV-1a */
    for (const char *p = purpose; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 0x100000001B3u;
    return low64(random_philox(seed, USE_KEY, hash));
}

uint64_t random_bits(uint64_t key, uint64_t counter)
{
    return low64(random_philox(key, USE_BITS, counter));
}

double random_uniform(uint64_t key, uint64_t counter)
{
    return unit(random_bits(key, counter));
}

double random_normal(uint64_t key, uint64_t counter)
{
    struct random4 r = random_philox(key, USE_NORMAL, counter);
    double radius = sqrt(-2 * log(1 - unit(low64(r))));     /* Box and Muller, 1958 */
    return radius * cos(2 * 3.14159265358979323846 * unit(high64(r)));
}

/* A Feistel network over the smallest even number of bits that holds 0..n-1; values
 * outside are sent through again, which ends because the network is a bijection and
 * started inside (cycle walking, Black and Rogaway 2002). */
uint64_t random_permute(uint64_t key, uint64_t n, uint64_t i)
{
    REQUIRE(i < n);
    int half = 1;
    while (half < 32 && (n - 1) >> 2 * half)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < PERMUTE_ROUNDS; round++) {
            struct random4 r = random_philox(key, USE_PERMUTE | round << 32, right);
            uint64_t next = left ^ (r.at[0] & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
