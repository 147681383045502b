/* clock.h - time that never runs backwards, in seconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>

double clock_seconds(void);             /* since an arbitrary moment */
/* A stretch of time as text: "3m05s", "1h30m". */
void clock_text(char *to, size_t size, double seconds);

#endif
