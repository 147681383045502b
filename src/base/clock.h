/* clock.h - time that never runs backwards, in seconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_seconds(void);             /* since an arbitrary moment */

#endif
