/* stop.h - a signal asks to stop (SIGINT, SIGTERM; SIGHUP where it is not ignored).
 *
 * A command that listens ends with exit code 0 at once while it has nothing to lose;
 * once it has, it is only asked, and ends where it can go on later.  Another Ctrl-C,
 * two seconds or more after the first, ends it at once all the same. */
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include "base/base.h"

void stop_listen(void);                 /* from now on; a signal ends the program */
void stop_gently(void);                 /* from now on a signal only asks */
bool stop_asked(void);                  /* false where nobody listens */

#endif
