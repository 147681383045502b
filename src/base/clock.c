/* clock.c - the monotonic clock, away from the calendar that people may set back. */
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clock_text(char *to, size_t size, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(to, size, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
    else
        snprintf(to, size, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
}
